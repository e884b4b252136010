/* SPDX-License-Identifier: MIT */
/* Points of other devices mean nothing to the driver: a thread of the stream, the gate, waits for
 * them and then counts the stream's line on by hand, while what comes behind is already with the
 * driver. */
#include "vk_stream.h"

/* Until the point is reached, the stream closes or the other device fails. */
static enum bl_status wait_other(struct bl_stream *s, const struct bl_vk_gate *g)
{
    enum bl_status st = BL_ETIMEDOUT;
    while (st == BL_ETIMEDOUT && !atomic_load(&s->closing))
        st = g->ops->join(g->point, BL_VK_SLICE_NS);
    return st;
}

/* After a failure too: what the driver holds must end before its memory does. */
static void count_on(struct bl_stream *s, uint64_t value)
{
    const struct bl_vk_device *d = bl_vk_stream_device(s);
    const VkSemaphoreSignalInfo to = {
        .sType = VK_STRUCTURE_TYPE_SEMAPHORE_SIGNAL_INFO, .semaphore = s->line, .value = value};
    VkResult r = VK_TIMEOUT;
    while (r == VK_TIMEOUT)
        r = bl_vk_wait_value(s, value - 1, BL_VK_SLICE_NS);
    if (!r)
        r = d->vk.SignalSemaphore(d->dev, &to);
    (void)bl_vk_stream_check(s, r, "a signal from the host");
}

static void *gate_main(void *arg)
{
    struct bl_stream *s = arg;
    for (uint32_t n = 0;; n++) {
        bl_counter_wait(&s->posted, n + 1, BL_VK_SLICE_NS / 1000, UINT64_MAX);
        const struct bl_vk_gate g = s->gate[n % BL_VK_GATES];
        if (!g.value)
            return NULL;
        const enum bl_status st = wait_other(s, &g);
        if (st)
            bl_vk_stream_failed(s, bl_fail_in(st, "%s waits for another device", s->dev->name));
        bl_vk_trace_passed(&s->trace, g.mark);
        count_on(s, g.value);
        bl_counter_set(&s->passed, n + 1);
    }
}

enum bl_status bl_vk_gate_open(struct bl_stream *s, uint64_t patience_ns)
{
    if (!s->has_thread) {
        if (pthread_create(&s->thread, NULL, gate_main, s))
            return bl_vk_stream_failed(
                s,
                bl_fail(BL_ENOMEM, "%s: the thread of a stream cannot be started", s->dev->name));
        s->has_thread = true;
    }
    if (!bl_counter_wait(&s->passed, s->n_posted - BL_VK_GATES + 1, 0, patience_ns))
        return bl_fail(BL_ETIMEDOUT, "%s: %d waits for other devices have not ended", s->dev->name,
                       BL_VK_GATES);
    return BL_OK;
}

void bl_vk_gate_post(struct bl_stream *s, const struct bl_vk_gate *g)
{
    s->gate[s->n_posted % BL_VK_GATES] = *g;
    bl_counter_set(&s->posted, ++s->n_posted);
}

void bl_vk_gate_close(struct bl_stream *s)
{
    if (!s->has_thread)
        return;
    (void)bl_vk_gate_open(s, UINT64_MAX);
    bl_vk_gate_post(s, &(struct bl_vk_gate){0});
    pthread_join(s->thread, NULL);
}

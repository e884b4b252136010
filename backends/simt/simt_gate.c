/* SPDX-License-Identifier: MIT */
/* Waits of a card for devices that its driver knows nothing of. */
#include "simt_stream.h"

#include <time.h>

static const uint64_t slice_ns =
    50000000; /* between looks at whether there is still sense in waiting */

static struct bl_simt_device *device_of(const struct bl_stream *s)
{
    return bl_simt_of(s->dev);
}

/* Until the point is reached, the stream is given up or the other device fails. */
static enum bl_status wait_other(const struct bl_stream *s, const struct bl_simt_gate *g)
{
    enum bl_status st = BL_ETIMEDOUT;

    while (st == BL_ETIMEDOUT && !atomic_load(&s->closing))
        st = g->ops->join(g->point, slice_ns);
    return st;
}

static void *gate_main(void *arg)
{
    struct bl_stream *s = arg;

    for (uint32_t n = 0;; n++) {
        bl_counter_wait(&s->posted, n + 1, slice_ns / 1000, UINT64_MAX);
        const struct bl_simt_gate g = s->gate[n % BL_SIMT_GATES];
        if (!g.count)
            return NULL;
        const enum bl_status st = wait_other(s, &g);
        if (st)
            bl_simt_failed(s, bl_fail_in(st, "%s waits for another device", s->dev->name));
        atomic_store_explicit(s->number, g.count, memory_order_release);
        bl_counter_set(&s->passed, n + 1);
    }
}

static enum bl_status post(struct bl_stream *s, const struct bl_simt_gate *g, uint64_t patience_ns)
{
    if (!s->has_thread) {
        if (pthread_create(&s->thread, NULL, gate_main, s))
            return bl_simt_failed(
                s,
                bl_fail(BL_ENOMEM, "%s: the thread of a stream cannot be started", s->dev->name));
        s->has_thread = true;
    }
    if (!bl_counter_wait(&s->passed, s->n_posted - BL_SIMT_GATES + 1, 0, patience_ns))
        return bl_fail(BL_ETIMEDOUT, "%s: %d waits for other devices have not ended", s->dev->name,
                       BL_SIMT_GATES);
    s->gate[s->n_posted % BL_SIMT_GATES] = *g;
    bl_counter_set(&s->posted, ++s->n_posted);
    return BL_OK;
}

/* Where a stream cannot look at a number, who enqueues waits: what the point needs was enqueued
 * before. */
static enum bl_status wait_here(struct bl_stream *s, const struct bl_device_ops *ops,
                                struct bl_point p)
{
    const uint64_t start = bl_now_ns();
    enum bl_status st = BL_ETIMEDOUT;

    while (st == BL_ETIMEDOUT && !atomic_load(&s->closing) && bl_now_ns() - start < s->patience_ns)
        st = ops->join(p, s->patience_ns < slice_ns ? s->patience_ns : slice_ns);
    return st && st != BL_ETIMEDOUT
               ? bl_simt_failed(s, bl_fail_in(st, "%s waits for another device", s->dev->name))
               : st;
}

enum bl_status bl_simt_gate_pass(struct bl_stream *s, const struct bl_device_ops *ops,
                                 struct bl_point p)
{
    const struct bl_simt_device *d = device_of(s);
    const struct bl_simt_gate g = {ops, p, s->n_counted + 1};

    if (!s->number)
        return wait_here(s, ops, p);
    BL_TRY(post(s, &g, s->patience_ns));
    s->n_counted = g.count;
    return bl_simt_told(s, d->fn->stream_wait_value(d->driver, s->handle, s->number_addr, g.count),
                        "it cannot wait for the host");
}

void bl_simt_gate_close(struct bl_stream *s)
{
    if (!s->has_thread)
        return;
    atomic_store(&s->closing, true);
    (void)post(s, &(struct bl_simt_gate){0}, UINT64_MAX);
    pthread_join(s->thread, NULL);
    s->has_thread = false;
}

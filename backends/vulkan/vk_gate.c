/* SPDX-License-Identifier: MIT */
/* Waits for other devices: the gate counts the stream's line on by hand, while what comes behind is
 * already with the driver. */
#include "vk_stream.h"

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

static void pass(struct bl_stream *s, const struct bl_gate_wait *w, enum bl_status st)
{
    if (st)
        bl_vk_stream_failed(s, st);
    bl_vk_trace_passed(&s->trace, w->mark);
    count_on(s, w->value);
}

enum bl_status bl_vk_gate_open(struct bl_stream *s)
{
    const enum bl_status st =
        bl_gate_open(&s->gate, s, pass, s->patience_ns ? s->patience_ns : UINT64_MAX);
    return st == BL_ENOMEM ? bl_vk_stream_failed(s, st) : st;
}

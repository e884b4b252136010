/* SPDX-License-Identifier: MIT */
/* Waits of a card for devices that its driver knows nothing of. */
#include "simt_stream.h"

static struct bl_simt_device *device_of(const struct bl_stream *s)
{
    return bl_simt_of(s->dev);
}

/* The number that the card waits for. */
static void pass(struct bl_stream *s, const struct bl_gate_wait *w, enum bl_status st)
{
    if (st)
        bl_simt_failed(s, st);
    atomic_store_explicit(s->number, w->value, memory_order_release);
}

/* Where a stream cannot look at a number, who enqueues waits: what the point needs was enqueued
 * before. */
static enum bl_status wait_here(struct bl_stream *s, const struct bl_device_ops *ops,
                                struct bl_point p)
{
    const uint64_t start = bl_now_ns();
    enum bl_status st = BL_ETIMEDOUT;

    while (st == BL_ETIMEDOUT && !bl_gate_is_cancelled(&s->gate) &&
           bl_now_ns() - start < s->patience_ns)
        st = ops->join(p, s->patience_ns < BL_GATE_SLICE_NS ? s->patience_ns : BL_GATE_SLICE_NS);
    return st && st != BL_ETIMEDOUT
               ? bl_simt_failed(s, bl_fail_in(st, "%s waits for another device", s->dev->name))
               : st;
}

enum bl_status bl_simt_gate_pass(struct bl_stream *s, const struct bl_device_ops *ops,
                                 struct bl_point p)
{
    const struct bl_simt_device *d = device_of(s);
    const struct bl_gate_wait w = {.point = p, .value = s->n_counted + 1};

    if (!s->number)
        return wait_here(s, ops, p);
    const enum bl_status st = bl_gate_open(&s->gate, s, pass, s->patience_ns);
    if (st)
        return st == BL_ENOMEM ? bl_simt_failed(s, st) : st;
    bl_gate_post(&s->gate, &w);
    s->n_counted = w.value;
    const enum bl_status told =
        bl_simt_told(s, d->fn->stream_wait_value(d->driver, s->handle, s->number_addr, w.value),
                     "it cannot wait for the host");
    if (told) /* nothing of this stream waits for the thread, which may not outlive the point */
        bl_gate_close(&s->gate);
    return told;
}

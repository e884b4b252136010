/* SPDX-License-Identifier: MIT */
#include "gate.h"

enum { SPIN_NS = 50000 };

static const char *name_of(const struct bl_gate *g)
{
    struct bl_device *dev; /* every backend's streams begin with theirs */
    memcpy(&dev, g->stream, sizeof dev);
    return dev->name;
}

static enum bl_status wait_for(const struct bl_gate *g, struct bl_point p)
{
    enum bl_status st = BL_ETIMEDOUT;

    while (st == BL_ETIMEDOUT && !bl_gate_is_cancelled(g))
        st = bl_point_ops(p)->join(p, BL_GATE_SLICE_NS);
    return st ? bl_fail_in(st, "%s waits for another device", name_of(g)) : BL_OK;
}

static void *gate_main(void *arg)
{
    struct bl_gate *g = arg;

    for (uint32_t n = 0;; n++) {
        bl_counter_wait(&g->posted, n + 1, SPIN_NS, UINT64_MAX);
        const struct bl_gate_wait w = g->wait[n % BL_GATES];
        if (!w.value)
            return NULL;
        g->pass(g->stream, &w, wait_for(g, w.point));
        bl_counter_set(&g->passed, n + 1);
    }
}

static enum bl_status start(struct bl_gate *g)
{
    const int err = pthread_create(&g->thread, NULL, gate_main, g);

    if (err)
        return bl_fail(BL_ENOMEM, "%s: the thread of a stream cannot be started: %s", name_of(g),
                       strerror(err));
    g->has_thread = true;
    return BL_OK;
}

enum bl_status bl_gate_open(struct bl_gate *g, struct bl_stream *stream, bl_gate_fn *pass,
                            uint64_t patience_ns)
{
    if (!g->has_thread) { /* which reads both from then on */
        g->stream = stream;
        g->pass = pass;
        BL_TRY(start(g));
    }
    return bl_counter_wait(&g->passed, g->n_posted - BL_GATES + 1, 0, patience_ns)
               ? BL_OK
               : bl_fail(BL_ETIMEDOUT, "%s: %d waits for other devices have not ended", name_of(g),
                         BL_GATES);
}

void bl_gate_post(struct bl_gate *g, const struct bl_gate_wait *w)
{
    g->wait[g->n_posted % BL_GATES] = *w;
    bl_counter_set(&g->posted, ++g->n_posted);
}

void bl_gate_cancel(struct bl_gate *g)
{
    atomic_store(&g->closing, true);
}

bool bl_gate_is_cancelled(const struct bl_gate *g)
{
    return atomic_load(&g->closing);
}

void bl_gate_close(struct bl_gate *g)
{
    bl_gate_cancel(g);
    if (!g->has_thread)
        return;
    bl_counter_wait(&g->passed, g->n_posted - BL_GATES + 1, 0, UINT64_MAX);
    bl_gate_post(g, &(struct bl_gate_wait){0});
    pthread_join(g->thread, NULL);
    g->has_thread = false;
}

/* SPDX-License-Identifier: MIT */
/* When a stream did its commands: events that keep the time, one behind each, read when the stream
 * is idle. */
#include "simt_stream.h"

#include <stdlib.h>

static struct bl_simt_device *device_of(const struct bl_stream *s)
{
    return bl_simt_of(s->dev);
}

static bool make_room(struct bl_stream *s)
{
    const struct bl_simt_device *d = device_of(s);
    struct bl_simt_times *t = &s->times;

    if (t->n < t->n_made)
        return true;
    if (t->n == t->cap) {
        const uint32_t cap = t->cap ? 2 * t->cap : 64;
        void **bigger = realloc(t->event, cap * sizeof *bigger);
        if (!bigger)
            return false;
        t->event = bigger;
        t->cap = cap;
    }
    if (d->fn->event_create(d->driver, &t->event[t->n], true))
        return false;
    t->n_made++;
    return true;
}

/* What cannot be noted ends the trace, not the stream. */
static void note(struct bl_stream *s)
{
    const struct bl_simt_device *d = device_of(s);
    struct bl_simt_times *t = &s->times;

    if (make_room(s) && !d->fn->event_record(d->driver, t->event[t->n], s->handle))
        t->n++;
    else
        t->log = NULL;
}

void bl_simt_times_note(struct bl_stream *s)
{
    if (s->times.log)
        note(s);
}

/* From the first event to the i-th, on the host's clock. */
static bool passed_ns(const struct bl_stream *s, uint32_t i, uint64_t *out)
{
    const struct bl_simt_device *d = device_of(s);
    const struct bl_simt_times *t = &s->times;
    float ms = 0;

    if (i && d->fn->event_elapsed(d->driver, &ms, t->event[0], t->event[i]))
        return false;
    *out = t->zero_ns + (uint64_t)((double)ms * 1e6);
    return true;
}

static void write_down(const struct bl_stream *s, struct bl_lapse_log *log)
{
    const uint32_t n = s->times.n ? s->times.n - 1 : 0;
    struct bl_lapse span = {0};
    uint32_t i = 0;

    for (; i < n && i < log->cap && passed_ns(s, i, &span.begin_ns) &&
           passed_ns(s, i + 1, &span.end_ns);
         i++)
        log->lapse[i] = span;
    atomic_store_explicit(&log->n, i, memory_order_release);
}

/* The stream is idle, so that an event behind all else is passed at once; false: it has failed, and
 * may stand still for good. */
static bool wait_for_last(const struct bl_stream *s)
{
    const struct bl_simt_device *d = device_of(s);

    while (d->fn->event_query(d->driver, s->times.event[s->times.n - 1]) == BL_SIMT_NOT_READY)
        if (atomic_load(&s->status))
            return false;
    return true;
}

/* The first event is passed between two looks at the host's clock; the earlier is taken, so that
 * nothing lies in the future, and another event where they are far apart. */
static void begin(struct bl_stream *s)
{
    struct bl_simt_times *t = &s->times;
    uint64_t seen;
    int tries = 4;

    do {
        t->n = 0;
        t->zero_ns = bl_now_ns();
        note(s);
        if (!t->log || !wait_for_last(s))
            return;
        seen = bl_now_ns();
    } while (seen - t->zero_ns > 200000 && --tries);
}

void bl_simt_trace(struct bl_stream *s, struct bl_lapse_log *log)
{
    struct bl_simt_device *d = device_of(s);
    struct bl_simt_times *t = &s->times;

    if (atomic_load(&d->lost) || bl_simt_use(d))
        return;
    if (t->log && wait_for_last(s))
        write_down(s, t->log);
    t->n = 0;
    t->log = log;
    if (log)
        begin(s);
}

void bl_simt_times_close(struct bl_stream *s)
{
    const struct bl_simt_device *d = device_of(s);

    for (uint32_t i = 0; i < s->times.n_made; i++)
        d->fn->event_destroy(d->driver, s->times.event[i]);
}

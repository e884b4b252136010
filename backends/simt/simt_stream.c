/* SPDX-License-Identifier: MIT */
/* Streams and their points. */
#include "simt_stream.h"

#include "mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static const uint64_t join_spin_ns =
    20000; /* what a card is asked for mostly ends at once or late */
static const uint64_t grace_ns = 3000000000; /* for a stream that has failed to become idle */
static const long nap_ns = 20000;

static struct bl_simt_device *device_of(const struct bl_stream *s)
{
    return bl_simt_of(s->dev);
}

/* ---- failures ---- */

enum bl_status bl_simt_failed(struct bl_stream *s, enum bl_status st)
{
    if (!atomic_exchange(&s->failing, 1)) {
        snprintf(s->msg, sizeof s->msg, "%s", bl_error());
        atomic_store_explicit(&s->status, st, memory_order_release);
    }
    return st;
}

static enum bl_status status_of(const struct bl_stream *s)
{
    return (enum bl_status)atomic_load_explicit(&s->status, memory_order_acquire);
}

enum bl_status bl_simt_still_good(const struct bl_stream *s)
{
    const enum bl_status st = status_of(s);
    return st ? bl_fail(st, "%s", s->msg) : BL_OK;
}

enum bl_status bl_simt_told(struct bl_stream *s, int code, const char *what)
{
    return code ? bl_simt_failed(s, bl_simt_try(device_of(s), code, what)) : BL_OK;
}

enum bl_status bl_simt_ready(struct bl_stream *s)
{
    BL_TRY(bl_simt_still_good(s));
    const enum bl_status st = bl_simt_use(device_of(s));
    return st ? bl_simt_failed(s, st) : BL_OK;
}

void bl_simt_count_command(struct bl_stream *s)
{
    s->n_enqueued++;
    bl_simt_times_note(s);
}

/* ---- points ---- */

static void raise(struct bl_stream *s, uint32_t value)
{
    uint32_t seen = atomic_load(&s->reached);
    while ((int32_t)(value - seen) > 0 && !atomic_compare_exchange_weak(&s->reached, &seen, value))
        ;
}

static bool is_known(const struct bl_stream *s, uint32_t value)
{
    return (int32_t)(atomic_load(&s->reached) - value) >= 0;
}

/* True once the point is reached, or never will be. An event that is recorded anew while it is
 * asked belongs to a point that was known to be reached before. */
static bool is_over(struct bl_stream *s, uint32_t value)
{
    struct bl_simt_device *d = device_of(s);

    if (is_known(s, value) || bl_simt_ready(s))
        return true;
    const int code = d->fn->event_query(d->driver, s->event[value % BL_SIMT_RING]);
    if (!code)
        raise(s, value);
    else if (code != BL_SIMT_NOT_READY)
        bl_simt_told(s, code, "work was not done");
    return code != BL_SIMT_NOT_READY || is_known(s, value);
}

static bool wait_until_over(struct bl_stream *s, uint32_t value, uint64_t timeout_ns)
{
    const uint64_t start = bl_now_ns();

    for (;;) {
        if (is_over(s, value))
            return true;
        const uint64_t gone = bl_now_ns() - start;
        if (gone >= timeout_ns)
            return false;
        if (gone > join_spin_ns)
            nanosleep(&(struct timespec){.tv_nsec = nap_ns}, NULL);
    }
}

bool bl_simt_poll(struct bl_point p)
{
    return !p.stream || is_over(p.stream, p.value);
}

enum bl_status bl_simt_join(struct bl_point p, uint64_t timeout_ns)
{
    struct bl_stream *s = p.stream;

    if (!s)
        return BL_OK;
    if (!wait_until_over(s, p.value, timeout_ns))
        return bl_fail(BL_ETIMEDOUT, "%s: no answer within %.3f s (at point %u, waiting for %u)",
                       s->dev->name, (double)timeout_ns * 1e-9, atomic_load(&s->reached), p.value);
    return bl_simt_still_good(s);
}

enum bl_status bl_simt_signal(struct bl_stream *s, struct bl_point *out)
{
    const struct bl_simt_device *d = device_of(s);
    const uint32_t value = s->signals + 1, slot = value % BL_SIMT_RING;
    void **event = &s->event[slot];

    BL_TRY(bl_simt_ready(s));
    if (value > BL_SIMT_RING && !wait_until_over(s, value - BL_SIMT_RING, s->patience_ns))
        return bl_fail(BL_ETIMEDOUT, "%s: %d points are waited for", s->dev->name, BL_SIMT_RING);
    if (!*event)
        BL_TRY(bl_simt_told(s, d->fn->event_create(d->driver, event, false), "no event"));
    BL_TRY(bl_simt_told(s, d->fn->event_record(d->driver, *event, s->handle), "no signal"));
    bl_simt_count_command(s);
    s->before[slot] = s->n_enqueued;
    s->signals = value;
    *out = (struct bl_point){s, value};
    return BL_OK;
}

/* ---- waits ---- */

static bool is_kin(const struct bl_stream *s, struct bl_point p)
{
    return bl_point_ops(p) == &bl_simt_ops && device_of(p.stream)->vendor == device_of(s)->vendor;
}

enum bl_status bl_simt_wait(struct bl_stream *s, struct bl_point p)
{
    const struct bl_simt_device *d = device_of(s);
    enum bl_status st;

    if (p.stream == s || !p.stream) /* in order anyway */
        return BL_OK;
    const struct bl_device_ops *other = bl_point_ops(p);
    BL_TRY(bl_simt_still_good(s));
    if (other->poll(p)) {
        st = other->join(p, 0);
        return st ? bl_simt_failed(s, bl_fail_in(st, "%s waits for another device", s->dev->name))
                  : BL_OK;
    }
    BL_TRY(bl_simt_ready(s));
    if (is_kin(s, p))
        st = bl_simt_told(
            s,
            d->fn->stream_wait_event(d->driver, s->handle, p.stream->event[p.value % BL_SIMT_RING]),
            "it cannot wait for another card");
    else
        st = bl_simt_gate_pass(s, other, p);
    if (!st)
        bl_simt_count_command(s);
    return st;
}

/* ---- work ---- */

static bool is_peer(const struct bl_stream *s, const struct bl_mem *m)
{
    return m->dev && m->addr && bl_simt_reaches_card(s->dev, m->dev);
}

/* Where the card finds a block, for so many of the bytes from off on; 0: it does not. */
static uint64_t address_of(struct bl_stream *s, const struct bl_mem *m, size_t off, size_t *bytes)
{
    if (m->dev == s->dev)
        return m->addr + off;
    if (!m->host)
        return is_peer(s, m) ? m->addr + off : 0;
    return bl_simt_reaches(s, m, off, bytes) ? (uintptr_t)m->host + off : 0;
}

static bool can_have(const struct bl_stream *s, const struct bl_mem *m)
{
    return m->dev == s->dev || m->host || is_peer(s, m);
}

/* Of a copy as much as goes one way. */
static enum bl_status copy_some(struct bl_stream *s, const struct bl_mem *dst, size_t dst_off,
                                const struct bl_mem *src, size_t src_off, size_t *bytes,
                                uint64_t patience_ns)
{
    const struct bl_simt_device *d = device_of(s);
    const uint64_t to = address_of(s, dst, dst_off, bytes),
                   from = address_of(s, src, src_off, bytes);

    if (to && from)
        return bl_simt_told(s, d->fn->copy(d->driver, to, from, *bytes, s->handle),
                            "a copy was not taken");
    return bl_simt_copy_staged(s, to, to ? NULL : (char *)dst->host + dst_off, from,
                               from ? NULL : (const char *)src->host + src_off, *bytes,
                               patience_ns);
}

enum bl_status bl_simt_copy(struct bl_stream *s, const struct bl_mem *dst, size_t dst_off,
                            const struct bl_mem *src, size_t src_off, size_t bytes)
{

    if (!bl_mem_inside(dst, dst_off, bytes) || !bl_mem_inside(src, src_off, bytes))
        return bl_fail(BL_EINVAL, "%s: copy of %zu bytes runs over the end of a block",
                       s->dev->name, bytes);
    if ((dst->dev != s->dev && src->dev != s->dev) || !can_have(s, dst) || !can_have(s, src))
        return bl_fail(BL_EINVAL, "%s: a copy with memory that neither it nor the host has",
                       s->dev->name);
    BL_TRY(bl_simt_ready(s));
    if (!bytes)
        return BL_OK;
    for (size_t at = 0, n; at < bytes; at += n) {
        n = bytes - at;
        BL_TRY(copy_some(s, dst, dst_off + at, src, src_off + at, &n,
                         at ? UINT64_MAX : s->patience_ns));
    }
    bl_simt_count_command(s);
    return BL_OK;
}

enum bl_status bl_simt_fill(struct bl_stream *s, const struct bl_mem *dst, size_t off,
                            uint32_t word, size_t bytes)
{
    const struct bl_simt_device *d = device_of(s);

    if (dst->dev != s->dev || !bl_mem_inside(dst, off, bytes) || off % 4 || bytes % 4)
        return bl_fail(BL_EINVAL, "%s: fill of %zu bytes at %zu is not whole words of its block",
                       s->dev->name, bytes, off);
    BL_TRY(bl_simt_ready(s));
    if (!bytes)
        return BL_OK;
    BL_TRY(bl_simt_told(s, d->fn->fill(d->driver, dst->addr + off, word, bytes / 4, s->handle),
                        "a fill was not taken"));
    bl_simt_count_command(s);
    return BL_OK;
}

enum bl_status bl_simt_segment_run(struct bl_stream *s, struct bl_segment *segment)
{
    BL_TRY(bl_simt_ready(s));
    const enum bl_status st = bl_simt_segment_enqueue(segment, s->handle);
    if (st)
        return bl_simt_failed(s, st);
    bl_simt_count_command(s);
    return BL_OK;
}

/* ---- watching ---- */

static bool is_idle(const struct bl_stream *s)
{
    const struct bl_simt_device *d = device_of(s);

    return bl_counter_get(&s->stage.done) == s->stage.n_posted &&
           (bl_simt_use(d) || d->fn->stream_query(d->driver, s->handle) != BL_SIMT_NOT_READY);
}

/* Of the points that are over, the newest says how much that was. A failed stream's are not known:
 * then all or nothing. */
void bl_simt_progress(const struct bl_stream *s, uint32_t *enqueued, uint32_t *done)
{
    struct bl_stream *self = (struct bl_stream *)(uintptr_t)s;
    const uint32_t oldest = s->signals > BL_SIMT_RING ? s->signals - BL_SIMT_RING : 0;

    *enqueued = s->n_enqueued;
    *done = status_of(s) && is_idle(s) ? s->n_enqueued : 0;
    for (uint32_t v = s->signals; v > oldest && !*done; v--)
        if (is_over(self, v) && is_known(s, v))
            *done = s->before[v % BL_SIMT_RING];
}

/* What the driver has cannot be taken back; what it waits for is let through. */
void bl_simt_cancel(struct bl_stream *s)
{
    bl_simt_failed(s, bl_fail(BL_ECANCELLED, "%s: cancelled", s->dev->name));
    bl_gate_cancel(&s->gate);
}

void bl_simt_patience(struct bl_stream *s, uint64_t ns)
{
    s->patience_ns = ns;
}

/* ---- opening and closing ---- */

static enum bl_status create(struct bl_stream *s)
{
    const struct bl_simt_device *d = device_of(s);
    void *number = NULL;

    BL_TRY(bl_simt_use(d));
    BL_TRY(bl_simt_try(d, d->fn->stream_create(d->driver, &s->handle), "no stream"));
    if (!d->card.wait_value)
        return BL_OK;
    BL_TRY(bl_simt_try(d, d->fn->host_alloc(d->driver, &number, sizeof *s->number),
                       "no host memory that it reaches"));
    s->number = number;
    atomic_init(s->number, 0);
    return bl_simt_try(d, d->fn->host_addr(d->driver, &s->number_addr, number),
                       "host memory has no address on it");
}

/* After a while it no longer waits for other devices. One that has failed may stand still for good;
 * any other ends. */
static bool becomes_idle(struct bl_stream *s)
{
    const struct bl_simt_device *d = device_of(s);
    uint64_t since = bl_now_ns();

    while (d->fn->stream_query(d->driver, s->handle) == BL_SIMT_NOT_READY) {
        if (bl_now_ns() - since > grace_ns) {
            if (status_of(s) && bl_gate_is_cancelled(&s->gate))
                return false;
            bl_gate_cancel(&s->gate);
            since = bl_now_ns();
        }
        nanosleep(&(struct timespec){.tv_nsec = nap_ns}, NULL);
    }
    return true;
}

static void give_back(struct bl_stream *s)
{
    const struct bl_simt_device *d = device_of(s);

    bl_simt_host_close(s);
    bl_simt_times_close(s);
    for (uint32_t i = 0; i < BL_SIMT_RING; i++)
        if (s->event[i])
            d->fn->event_destroy(d->driver, s->event[i]);
    d->fn->stream_destroy(d->driver, s->handle);
    if (s->number)
        d->fn->host_free(d->driver, (void *)(uintptr_t)s->number);
}

/* What was handed over is done first, unless it never will be: then the driver keeps all that it
 * has, and the stream as well if it may still be called for. */
void bl_simt_stream_close(struct bl_stream *s)
{
    if (!s)
        return;
    struct bl_simt_device *d = device_of(s);
    const bool alive = s->handle && !atomic_load(&d->lost) && !bl_simt_use(d);
    const bool idle = alive && becomes_idle(s);
    bl_gate_close(&s->gate);
    if (idle)
        give_back(s);
    else if (alive)
        atomic_store(&d->lost, true);
    free(s->times.event);
    free(s->hold);
    if (idle || bl_counter_get(&s->stage.done) == s->stage.n_posted)
        free(s);
}

enum bl_status bl_simt_stream_open(struct bl_device *dev, struct bl_stream **out)
{
    struct bl_stream *s = bl_calloc(1, sizeof *s);

    if (!s)
        return bl_fail(BL_ENOMEM, "%s: out of memory for a stream", dev->name);
    s->dev = dev;
    s->patience_ns = UINT64_MAX;
    const enum bl_status st = create(s);
    if (st)
        bl_simt_stream_close(s);
    else
        *out = s;
    return st;
}

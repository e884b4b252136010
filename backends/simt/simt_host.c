/* SPDX-License-Identifier: MIT */
/* Copies with memory of the host.
 *
 * Drivers copy in a stream's order only with memory that they hold down; with any other they read
 * it at once, before whoever the stream waits for has written it. So blocks are registered when
 * they are first met, those that are most of the host's memory a window at a time. What cannot be,
 * or would hold down a whole file, passes through a piece of pinned memory, moved by the host when
 * it is the stream's turn. */
#include "simt_stream.h"

#include "mem.h"

#include <stdlib.h>

enum { STAGE_BYTES = 4 << 20 };
static const size_t window_bytes = (size_t)1 << 30;

static struct bl_simt_device *device_of(const struct bl_stream *s)
{
    return bl_simt_of(s->dev);
}

/* ---- registered ---- */

static bool pin(void *arg, void *at, size_t bytes, bool *ours)
{
    const struct bl_simt_device *d = arg;
    const int code = d->fn->host_register(d->driver, at, bytes);

    *ours = !code;
    return !code || code == BL_SIMT_IS_REGISTERED;
}

static void unpin(void *arg, void *at)
{
    const struct bl_simt_device *d = arg;
    d->fn->host_unregister(d->driver, at);
}

static struct bl_pinning pinning_of(const struct bl_stream *s)
{
    struct bl_simt_device *d = device_of(s);
    return (struct bl_pinning){.who = d->vendor, .arg = d, .pin = pin, .unpin = unpin};
}

static const struct bl_pin *find_hold(const struct bl_stream *s, const void *at, size_t bytes)
{
    for (uint32_t i = s->n_holds; i-- > 0;)
        if (s->hold[i].pin->at == at && s->hold[i].pin->bytes == bytes)
            return s->hold[i].pin;
    return NULL;
}

static const struct bl_pin *add_hold(struct bl_stream *s, struct bl_pins *of, void *at,
                                     size_t bytes)
{
    const struct bl_pinning how = pinning_of(s);

    if (s->n_holds == s->cap_holds) {
        const uint32_t cap = s->cap_holds ? 2 * s->cap_holds : 16;
        struct bl_simt_hold *bigger = realloc(s->hold, cap * sizeof *bigger);
        if (!bigger)
            return NULL;
        s->hold = bigger;
        s->cap_holds = cap;
    }
    struct bl_pin *k = bl_pins_hold(of, &how, at, bytes);
    if (k)
        s->hold[s->n_holds++] = (struct bl_simt_hold){of, k};
    return k;
}

/* The whole pages of the block that hold the byte, as far as the window goes. */
static void *window_of(const struct bl_mem *m, size_t off, size_t *bytes)
{
    const uintptr_t at = (uintptr_t)m->host, page = at & ~(uintptr_t)(bl_page_bytes() - 1),
                    end = (uintptr_t)bl_align_up(at + m->bytes, bl_page_bytes()),
                    from = page + (at + off - page) / window_bytes * window_bytes;

    *bytes = end - from < window_bytes ? end - from : window_bytes;
    return (void *)from;
}

/* Pinned already where another card of the vendor allocated it. A mapped file belongs to nobody. */
bool bl_simt_reaches(struct bl_stream *s, const struct bl_mem *m, size_t off, size_t *bytes)
{
    size_t window;

    if (m->dev && m->dev->ops == &bl_simt_ops && bl_simt_of(m->dev)->vendor == device_of(s)->vendor)
        return true;
    if (!m->granted_bytes || !m->dev || !m->dev->pins)
        return false;
    void *from = window_of(m, off, &window);
    const size_t left = (uintptr_t)from + window - ((uintptr_t)m->host + off);
    const struct bl_pin *k = find_hold(s, from, window);
    if (!k)
        k = add_hold(s, m->dev->pins, from, window);
    *bytes = *bytes < left ? *bytes : left;
    return k && k->reached;
}

/* ---- staged ---- */

/* On a thread of the driver. */
static void move_piece(void *arg)
{
    const struct bl_simt_piece *p = arg;
    struct bl_simt_stage *g = &p->stream->stage;

    memcpy(p->dst, p->src, p->bytes);
    bl_counter_set(&g->done, bl_counter_get(&g->done) + 1);
}

static enum bl_status open_stage(struct bl_stream *s)
{
    const struct bl_simt_device *d = device_of(s);
    void *room = NULL;

    if (s->stage.room)
        return BL_OK;
    BL_TRY(bl_simt_told(s, d->fn->host_alloc(d->driver, &room, STAGE_BYTES),
                        "no host memory to copy through"));
    s->stage.room = room;
    return BL_OK;
}

static enum bl_status call_for(struct bl_stream *s, void *dst, const void *src, size_t bytes)
{
    const struct bl_simt_device *d = device_of(s);
    struct bl_simt_stage *g = &s->stage;
    struct bl_simt_piece *p = &g->piece[g->n_posted % BL_SIMT_STAGES];

    *p = (struct bl_simt_piece){s, dst, src, bytes};
    g->n_posted++;
    return bl_simt_told(s, d->fn->stream_call(d->driver, s->handle, move_piece, p),
                        "a copy was not taken");
}

/* The room is free again when the stream comes to the next piece: what used it came before. */
static enum bl_status copy_piece(struct bl_stream *s, uint64_t dst, void *dst_host, uint64_t src,
                                 const void *src_host, size_t bytes)
{
    const struct bl_simt_device *d = device_of(s);
    unsigned char *room = s->stage.room;

    if (src_host)
        BL_TRY(call_for(s, room, src_host, bytes));
    BL_TRY(bl_simt_told(s,
                        d->fn->copy(d->driver, dst_host ? (uintptr_t)room : dst,
                                    src_host ? (uintptr_t)room : src, bytes, s->handle),
                        "a copy was not taken"));
    return dst_host ? call_for(s, dst_host, room, bytes) : BL_OK;
}

/* Patience ends before the first piece or not at all: half a copy cannot be asked for again. */
static enum bl_status make_room(struct bl_stream *s, uint32_t n_pieces, uint64_t patience_ns)
{
    struct bl_simt_stage *g = &s->stage;
    const uint32_t n = n_pieces < BL_SIMT_STAGES ? n_pieces : BL_SIMT_STAGES;

    if (bl_counter_wait(&g->done, g->n_posted + n - BL_SIMT_STAGES, 0, patience_ns))
        return BL_OK;
    return bl_fail(BL_ETIMEDOUT, "%s: %d pieces of copies have not been moved", s->dev->name,
                   BL_SIMT_STAGES);
}

enum bl_status bl_simt_copy_staged(struct bl_stream *s, uint64_t dst, void *dst_host, uint64_t src,
                                   const void *src_host, size_t bytes, uint64_t patience_ns)
{
    const size_t n_pieces = bytes / STAGE_BYTES + 1;

    BL_TRY(open_stage(s));
    BL_TRY(make_room(s, n_pieces < UINT32_MAX ? (uint32_t)n_pieces : UINT32_MAX, patience_ns));
    for (size_t at = 0, n; at < bytes; at += n) {
        n = bytes - at < STAGE_BYTES ? bytes - at : STAGE_BYTES;
        bl_counter_wait(&s->stage.done, s->stage.n_posted + 1 - BL_SIMT_STAGES, 0, UINT64_MAX);
        BL_TRY(copy_piece(s, dst_host ? 0 : dst + at, dst_host ? (char *)dst_host + at : NULL,
                          src_host ? 0 : src + at, src_host ? (const char *)src_host + at : NULL,
                          n));
    }
    return BL_OK;
}

void bl_simt_host_close(struct bl_stream *s)
{
    const struct bl_simt_device *d = device_of(s);
    const struct bl_pinning how = pinning_of(s);

    for (uint32_t i = 0; i < s->n_holds; i++)
        bl_pins_release(s->hold[i].of, &how, s->hold[i].pin);
    if (s->stage.room)
        d->fn->host_free(d->driver, s->stage.room);
}

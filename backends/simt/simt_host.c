/* SPDX-License-Identifier: MIT */
/* Copies with memory of the host.
 *
 * Drivers copy in a stream's order only with memory that they hold down; with any other they read
 * it at once, before whoever the stream waits for has written it. So blocks are registered when
 * they are first met. What cannot be, or would hold down a whole file, passes through a piece of
 * pinned memory, moved by the host when it is the stream's turn. */
#include "simt_stream.h"

#include "mem.h"

enum { STAGE_BYTES = 4 << 20 };
static const size_t most_pinned = (size_t)4 << 30; /* weights of the host may be all its memory */

static struct bl_simt_device *device_of(const struct bl_stream *s)
{
    return bl_simt_of(s->dev);
}

/* ---- registered ---- */

static const struct bl_simt_pin *find_pin(const struct bl_stream *s, uintptr_t page, size_t bytes)
{
    for (uint32_t i = 0; i < s->n_pins; i++)
        if ((uintptr_t)s->pin[i].page <= page && bytes <= s->pin[i].bytes &&
            page - (uintptr_t)s->pin[i].page <= s->pin[i].bytes - bytes)
            return &s->pin[i];
    return NULL;
}

static struct bl_simt_pin make_pin(const struct bl_stream *s, uintptr_t page, size_t bytes)
{
    const struct bl_simt_device *d = device_of(s);
    struct bl_simt_pin p = {.page = (void *)page, .bytes = bytes};
    const int code = d->fn->host_register(d->driver, p.page, bytes);

    p.ours = !code;
    p.reached = !code || code == BL_SIMT_IS_REGISTERED;
    return p;
}

/* Pinned already where another card of the vendor allocated it. A mapped file belongs to nobody. */
bool bl_simt_reaches(struct bl_stream *s, const struct bl_mem *m)
{
    const uintptr_t at = (uintptr_t)m->host, page = at & ~(uintptr_t)(bl_page_bytes() - 1);
    const size_t bytes = (size_t)bl_align_up(at + m->bytes - page, bl_page_bytes());

    if (m->dev && m->dev->ops == &bl_simt_ops && bl_simt_of(m->dev)->vendor == device_of(s)->vendor)
        return true;
    if (!m->granted_bytes || bytes > most_pinned)
        return false;
    const struct bl_simt_pin *p = find_pin(s, page, bytes);
    if (!p && s->n_pins < BL_SIMT_PINS) {
        s->pin[s->n_pins] = make_pin(s, page, bytes);
        p = &s->pin[s->n_pins++];
    }
    return p && p->reached;
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
static enum bl_status make_room(struct bl_stream *s, uint32_t n_pieces)
{
    struct bl_simt_stage *g = &s->stage;
    const uint32_t n = n_pieces < BL_SIMT_STAGES ? n_pieces : BL_SIMT_STAGES;

    if (bl_counter_wait(&g->done, g->n_posted + n - BL_SIMT_STAGES, 0, s->patience_ns))
        return BL_OK;
    return bl_fail(BL_ETIMEDOUT, "%s: %d pieces of copies have not been moved", s->dev->name,
                   BL_SIMT_STAGES);
}

enum bl_status bl_simt_copy_staged(struct bl_stream *s, uint64_t dst, void *dst_host, uint64_t src,
                                   const void *src_host, size_t bytes)
{
    const size_t n_pieces = bytes / STAGE_BYTES + 1;

    BL_TRY(open_stage(s));
    BL_TRY(make_room(s, n_pieces < UINT32_MAX ? (uint32_t)n_pieces : UINT32_MAX));
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

    for (uint32_t i = 0; i < s->n_pins; i++)
        if (s->pin[i].ours)
            d->fn->host_unregister(d->driver, s->pin[i].page);
    if (s->stage.room)
        d->fn->host_free(d->driver, s->stage.room);
}

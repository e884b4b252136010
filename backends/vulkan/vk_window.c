/* SPDX-License-Identifier: MIT */
/* The host's memory, which copies meet anywhere, as buffers. */
#include "vk_stream.h"

#include "mem.h"

#include <stdlib.h>

/* Imported in one go: drivers take no block of any size. */
enum { WINDOW = 1 << 28 };

static enum bl_status import_window(struct bl_stream *s, uintptr_t at, size_t bytes, VkBuffer *out)
{
    for (uint32_t i = 0; i < s->n_imports; i++)
        if (s->import[i].host == (const void *)at && s->import[i].bytes == bytes) {
            *out = s->import[i].block.buffer;
            return BL_OK;
        }
    if (s->n_imports == s->cap_imports) {
        const uint32_t cap = s->cap_imports ? 2 * s->cap_imports : 16;
        struct bl_vk_imported *bigger = realloc(s->import, cap * sizeof *bigger);
        if (!bigger)
            return bl_fail(BL_ENOMEM, "%s: out of memory", s->dev->name);
        s->import = bigger;
        s->cap_imports = cap;
    }
    struct bl_vk_imported *i = &s->import[s->n_imports];
    *i = (struct bl_vk_imported){.host = (const void *)at, .bytes = bytes};
    BL_TRY(bl_vk_import(bl_vk_stream_device(s), (void *)at, bytes, &i->block));
    s->n_imports++;
    *out = i->block.buffer;
    return BL_OK;
}

enum bl_status bl_vk_piece_of(struct bl_stream *s, const struct bl_mem *m, size_t off,
                              struct bl_vk_piece *out)
{
    if (m->dev == s->dev) {
        *out = (struct bl_vk_piece){((const struct bl_vk_block *)m->impl)->buffer, off,
                                    m->bytes - off};
        return BL_OK;
    }
    if (!m->host)
        return bl_fail(BL_EINVAL, "%s: a copy with memory that neither it nor the host has",
                       s->dev->name);
    const uint64_t align = bl_vk_stream_device(s)->facts.import_align,
                   window = bl_align_up(WINDOW, align);
    const uintptr_t host = (uintptr_t)m->host, first = host & ~(uintptr_t)(align - 1),
                    begin = first + (host + off - first) / window * window,
                    end = (uintptr_t)bl_align_up(host + m->bytes, align);
    const size_t bytes = end - begin < window ? end - begin : (size_t)window;
    *out = (struct bl_vk_piece){.off = host + off - begin, .bytes = begin + bytes - (host + off)};
    return import_window(s, begin, bytes, &out->buffer);
}

void bl_vk_windows_close(struct bl_stream *s)
{
    for (uint32_t i = 0; i < s->n_imports; i++)
        bl_vk_block_free(bl_vk_stream_device(s), &s->import[i].block);
    free(s->import);
}

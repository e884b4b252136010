/* SPDX-License-Identifier: MIT */
#include "blocks.h"

#include "mem.h"

#include <stdlib.h>

uint64_t bl_units_together(uint64_t at, uint64_t each, uint64_t window)
{
    return window ? (window - at % window) / each : UINT64_MAX;
}

uint64_t bl_unit_at(uint64_t first, uint64_t each, uint64_t k, uint64_t window)
{
    const uint64_t here = bl_units_together(first, each, window);

    if (k < here)
        return first + k * each;
    const uint64_t per = window / each ? window / each : 1, left = k - here;
    return (first / window + 1 + left / per) * window + left % per * each;
}

enum bl_status bl_blocks_take(struct bl_blocks *b, struct bl_ledger *l, uint16_t d,
                              struct bl_device *dev, enum bl_purpose purpose, uint64_t bytes,
                              uint64_t window, bool host_visible)
{
    const uint64_t each = window ? window : bytes, n = bytes ? (bytes - 1) / each + 1 : 0;

    *b = (struct bl_blocks){.window = window};
    if (n > UINT32_MAX || (n && !(b->mem = bl_calloc((size_t)n, sizeof *b->mem))))
        return bl_fail(BL_ENOMEM, "out of memory for %llu blocks of %s", (unsigned long long)n,
                       dev->name);
    for (uint64_t at = 0; at < bytes; at += each, b->n++)
        BL_TRY(bl_take(l, d, dev, purpose, bytes - at < each ? bytes - at : each, host_visible,
                       &b->mem[b->n]));
    return BL_OK;
}

void bl_blocks_free(struct bl_blocks *b)
{
    for (uint32_t i = 0; i < b->n; i++)
        b->mem[i].dev->ops->mem_free(&b->mem[i]);
    free(b->mem);
    *b = (struct bl_blocks){0};
}

const struct bl_mem *bl_blocks_at(const struct bl_blocks *b, uint64_t off, uint64_t *inside)
{
    *inside = b->window ? off % b->window : off;
    return &b->mem[b->window ? off / b->window : 0];
}

uint64_t bl_blocks_addr(const struct bl_blocks *b, uint64_t off)
{
    uint64_t inside;
    const struct bl_mem *m = bl_blocks_at(b, off, &inside);
    return m->addr + inside;
}

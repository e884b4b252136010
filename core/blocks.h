/* SPDX-License-Identifier: MIT */
/* blocks.h — one thing after the other in as many blocks as a device's largest allocation makes of them.
 *
 * Purpose   offsets go on through all blocks: block k begins at k windows. Units (a tensor, a state, one expert) do not lie
 *           across two, so that each has one address; what that leaves free at a block's end is counted as the rest is.
 * Ownership the caller frees what was taken, after a failure too.
 * Units     bytes. window: of a block, a multiple of its alignment; 0: one block holds everything.
 * Errors    as bl_take.
 * Threads   submitting thread.
 */
#ifndef BL_BLOCKS_H
#define BL_BLOCKS_H

#include "take.h"

struct bl_blocks {
    struct bl_mem *mem;      /* [n] each of a window, the last of what is left */
    uint32_t n;
    uint64_t window;
};

/* Where a unit may begin that could at `at`. */
static inline uint64_t bl_unit_begin(uint64_t at, uint64_t bytes, uint64_t window)
{
    const uint64_t left = window ? window - at % window : bytes;
    return bytes <= left ? at : at + left;
}
/* Of units of one size side by side, the first at `first`, which is where it may begin: where the k-th is. */
uint64_t bl_unit_at(uint64_t first, uint64_t each, uint64_t k, uint64_t window);
/* How many from there on lie side by side. */
uint64_t bl_units_together(uint64_t at, uint64_t each, uint64_t window);

/* No bytes: nothing is taken. */
enum bl_status bl_blocks_take(struct bl_blocks *, struct bl_ledger *, uint16_t d, struct bl_device *, enum bl_purpose,
                              uint64_t bytes, uint64_t window, bool host_visible);
void bl_blocks_free(struct bl_blocks *); /* zeroed is fine */
/* The block with the offset; *inside: from its beginning. */
const struct bl_mem *bl_blocks_at(const struct bl_blocks *, uint64_t off, uint64_t *inside);
uint64_t bl_blocks_addr(const struct bl_blocks *, uint64_t off);

#endif

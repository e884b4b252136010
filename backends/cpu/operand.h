/* SPDX-License-Identifier: MIT */
/* operand.h — activations in the form that matrix kernels want; private to backends/cpu.
 *
 * Purpose   a dot wants a vector quantised, a panel wants tiles of several. Both are made by steps of their own, once for
 *           all matrices over the same x, and stay in the scratch block until something else needs the place.
 * Ownership the segment's scratch block.
 * Units     bytes; tokens.
 * Errors    through the builder.
 * Threads   building: one. bl_panel_rows: pure but for the buffers given.
 */
#ifndef BL_CPU_OPERAND_H
#define BL_CPU_OPERAND_H

#include "segment.h"

/* ---- vectors ---- */

/* x for a dot of this law: source `src` itself for float, otherwise quantised, by a step of its own unless an earlier
 * node of the segment had the same done. row_bytes: from token to token. */
struct bl_cpu_operand {
    uint64_t addr, row_bytes;
};
struct bl_cpu_operand bl_cpu_operand(struct bl_cpu_builder *, unsigned src, uint8_t act);
/* Declares that the step in hand reads it. */
void bl_cpu_reads_operand(struct bl_cpu_builder *, struct bl_cpu_operand, uint32_t n_rows);
uint64_t bl_cpu_operand_bytes(const struct bl_caps *, const struct bl_value *x, enum bl_dtype weight);
static inline uint64_t bl_cpu_act_bytes(uint64_t k)
{
    return bl_act_blocks(k) * sizeof(struct bl_act_block);
}
bl_quant_fn *bl_cpu_quantizer(const struct bl_cpu_kernels *, uint8_t act); /* NULL: the law is float */

/* Columns [0, BL_PANEL_COLS) of a vector, in bytes. */
static inline size_t bl_cpu_step_bytes(uint8_t act)
{
    return act == BL_ACT_F32 ? BL_PANEL_COLS * sizeof(float)
                             : BL_PANEL_COLS / BL_PANEL_STEP * sizeof(struct bl_act_block);
}

/* Rows of one kernel call: `rows` * 2^n of them, near 16 KiB of weights, the distance that prefetching runs ahead. */
uint32_t bl_cpu_chunk_rows(uint64_t row_bytes, uint32_t rows);

/* ---- tiles ---- */

/* Source `src` of the node in hand in tiles of the kernel, or where there are many tokens of the folded one, beside the
 * vectors themselves. */
struct bl_cpu_tiles {
    uint64_t addr, token_bytes;
};
static inline uint64_t bl_cpu_token_bytes(const struct bl_panel_kernel *p, uint64_t k)
{
    return bl_act_blocks(k) * p->part_bytes;
}
/* Whether as many tokens as x has room for are worth panels. */
static inline bool bl_cpu_is_many(const struct bl_caps *caps, const struct bl_value *x, enum bl_dtype weight)
{
    return caps->tiles[weight].from && x->ne[1] >= caps->tiles[weight].from;
}
/* Vectors, tiles of them and room for every thread: whatever of it is there already is taken from there. */
struct bl_cpu_many {
    struct bl_cpu_operand vectors;
    struct bl_cpu_tiles tiles;
    uint64_t own; /* struct bl_cpu_room for each thread */
};
struct bl_cpu_many bl_cpu_many(struct bl_cpu_builder *, unsigned src, uint8_t act, const struct bl_panel_kernel *);
/* Declares that the step in hand uses it. */
void bl_cpu_uses_many(struct bl_cpu_builder *, const struct bl_cpu_many *, uint32_t n_rows);
uint64_t bl_cpu_many_bytes(const struct bl_caps *, const struct bl_value *x, enum bl_dtype weight);
/* Room for every thread alone; declared by bl_cpu_touch_own. */
uint64_t bl_cpu_own(struct bl_cpu_builder *);
uint64_t bl_cpu_own_bytes(const struct bl_caps *);

/* ---- matrices in panels ---- */

enum {
    BL_CPU_BLOCK = 512, /* most tokens that a panel meets before the next is packed; a thread has sums for them */
    BL_CPU_ROOM = BL_CPU_BLOCK + 2 * BL_TILE_TOKENS /* a block ends with a tile */
};
/* What a thread needs: a panel, and the sums of two matrices for a block of tokens. */
struct bl_cpu_room {
    uint8_t panel[BL_PANEL_BYTES];
    float sum[2][BL_CPU_ROOM][BL_PANEL_ROWS];
} BL_ALIGNED(64);

/* A matrix, and n_tok tokens in n_tiles tiles. */
struct bl_panel_weight {
    const struct bl_panel_kernel *kernel;
    size_t row_bytes, step_bytes; /* of a whole row, of BL_PANEL_COLS columns */
    uint32_t k, rows;
    uint8_t act; /* what x is */
};
/* type: whose panels serve */
struct bl_panel_weight bl_panel_weight_of(const struct bl_cpu_kernels *, enum bl_dtype type, const struct bl_value *w);
struct bl_panel_tokens {
    const struct bl_panel_kernel *kernel; /* of bl_panel_for */
    const uint8_t *tiles;
    uint32_t n_tok, n_tiles;
};
static inline struct bl_panel_tokens bl_panel_tokens_of(const struct bl_panel_weight *w, const uint8_t *tiles,
                                                        uint32_t n_tok)
{
    const struct bl_panel_kernel *kernel = bl_panel_for(w->kernel, n_tok);
    return (struct bl_panel_tokens){kernel, tiles, n_tok, bl_panel_tiles(n_tok, kernel->tokens)};
}
/* Where columns from at on, a multiple of BL_PANEL_COLS, of the tile of tokens first.. begin: tiles lie side by side for
 * BL_PANEL_COLS columns, then for the next, in the order in which panels meet them. */
static inline size_t bl_panel_tile_at(const struct bl_panel_kernel *kernel, uint32_t n_tok, uint32_t k, uint32_t at,
                                      uint32_t first)
{
    const uint32_t left = k - at, parts = (uint32_t)bl_act_blocks(left < BL_PANEL_COLS ? left : BL_PANEL_COLS);
    return ((size_t)at / BL_PANEL_STEP * n_tok + (size_t)parts * first) * kernel->part_bytes;
}
/* Arranges the tile of tokens [first, first + n) of n_tok, by the kernel of bl_panel_for; x[n], which is left changed. */
void bl_panel_arrange(const struct bl_panel_kernel *, uint8_t act, uint8_t *tiles, uint32_t n_tok, uint32_t first,
                      uint32_t n, uint32_t k, const void **x);
/* Where sums are made, and who is told of each tile when its n tokens from number `first` on are whole: what it stores far
 * away then waits for its cache lines beside the next products. NULL: nobody. */
struct bl_panel_sums {
    float (*at)[BL_PANEL_ROWS];
    void (*whole)(const void *arg, float (*sum)[BL_PANEL_ROWS], uint32_t first, uint32_t n);
    const void *arg;
};
/* sums.at[i] = rows [row, row + 32) of w times token i of tiles [from, to). Meanwhile the rows at `next`, 32 as well, NULL
 * for none, come into the caches, all of them or those columns that are packed first. */
void bl_panel_rows(const struct bl_panel_weight *, const struct bl_panel_sums *, void *panel, const uint8_t *w,
                   uint32_t row, const struct bl_panel_tokens *, uint32_t from, uint32_t to, const uint8_t *next);
/* y = the first n sums of a token: of a known length where there are all, so that nothing is called. */
static inline void bl_panel_put(float *y, const float sum[BL_PANEL_ROWS], uint32_t n)
{
    if (n == BL_PANEL_ROWS)
        memcpy(y, sum, BL_PANEL_ROWS * sizeof *y);
    else
        memcpy(y, sum, n * sizeof *y);
}
/* Into how many blocks tokens of k columns are cut that meet n_panels panels on so many threads. */
uint32_t bl_panel_blocks(const struct bl_panel_tokens *, uint32_t k, uint32_t n_panels, uint32_t n_threads);

#endif

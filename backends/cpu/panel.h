/* SPDX-License-Identifier: MIT */
/* panel.h — many tokens against rows of weights: the matrix-matrix kernels of prefill.
 *
 * Purpose   32 rows of weights are unpacked for 512 columns at a time into a panel that stays in the first-level
 *           cache, and meet every tile of tokens there. What panel and tile look like is the kernel's own business:
 *           rows are its vector lanes, tokens are broadcast, so that a tile may have any width and nothing is padded.
 * Ownership buffers are the caller's, 64-byte aligned.
 * Units     columns and rows in elements, tokens; sizes in bytes.
 * Errors    none.
 * Threads   kernels are pure.
 *
 * The panel of BL_F32 is float[column][32] and its tiles are float[column][token], so that other matrices can be laid out
 * for its multiply.
 *
 *   file rows --pack--> panel  \
 *                               multiply --> c[token][32 rows], f32
 *   x per token --arrange--> tile /
 */
#ifndef BL_PANEL_H
#define BL_PANEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    BL_PANEL_ROWS = 32,
    BL_PANEL_COLS = 512,       /* most columns of a panel, a multiple of BL_PANEL_STEP */
    BL_PANEL_STEP = 256,       /* columns are padded with zeros to a multiple of it, as activations are */
    BL_PANEL_BYTES = 72 << 10, /* most that a panel of any kernel takes */
    BL_TILE_TOKENS = 16        /* most that a tile of any kernel holds */
};

/* panel = columns [0, n_cols) of n_rows <= 32 rows; n_cols <= 512 are whole blocks of the type. Rows beyond n_rows and
 * columns up to the next multiple of 256 become zeros. Nothing outside the rows is read. */
typedef void bl_pack_fn(void *panel, uint32_t n_rows, uint32_t n_cols, const void *w, size_t w_stride);

/* tile = n_tok rows of k elements, x[t] as a dot of this weight type takes it: float[k] or struct bl_act_block[]. A tile is
 * a sequence of parts of 256 columns, each part_bytes * n_tok bytes; the last is padded with zeros. A panel reads the
 * same columns of all tiles: with them side by side (arrange called for BL_PANEL_COLS at a time) many tokens take 10 to
 * 25 % less time than with whole tiles one after the other, as the hardware prefetches across tiles. */
typedef void bl_arrange_fn(void *tile, uint32_t n_tok, uint32_t k, const void *const *x);

/* c[t][r] (+)= sum over the panel's columns, t < n_tok, all 32 r. tile: the part where the panel's columns begin;
 * n_cols as given to pack. */
typedef void bl_multiply_fn(float *c, const void *panel, const void *tile, uint32_t n_tok, uint32_t n_cols, bool add);

struct bl_panel_kernel {
    const char *name;         /* "panel_q4k_act_7__avx512" */
    bl_pack_fn *pack;         /* NULL: the type has no panels, dots serve any number of tokens */
    bl_arrange_fn *arrange;
    bl_multiply_fn *multiply;
    uint16_t part_bytes;      /* of a tile, per token and 256 columns */
    uint8_t tokens;           /* widest tile */
    uint8_t from;             /* least tokens for which panels are faster than dots */
    /* Faster yet for fold->from tokens and more, NULL: none. It rounds the weights to bytes of one scale for a row's 256
     * columns; its tiles are no larger. */
    const struct bl_panel_kernel *fold;
};
static inline const struct bl_panel_kernel *bl_panel_for(const struct bl_panel_kernel *k, uint32_t n_tok)
{
    return k->fold && n_tok >= k->fold->from ? k->fold : k;
}

/* Tokens [first, end) of tile i when n are cut into the fewest tiles of at most `widest`, nearly equal ones. */
static inline uint32_t bl_panel_tiles(uint32_t n, uint32_t widest)
{
    return (n + widest - 1) / widest;
}
static inline uint32_t bl_panel_tile_first(uint32_t n, uint32_t n_tiles, uint32_t i)
{
    return (uint32_t)((uint64_t)n * i / n_tiles);
}

#endif

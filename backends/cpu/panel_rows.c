/* SPDX-License-Identifier: MIT */
/* A panel of rows against tiles of tokens: the loops around the kernels of panel.h. */
#include "operand.h"

enum {
    BLOCK_BYTES = 1 << 20, /* tokens of a block: what a second-level cache holds beside the rows */
    LEAST_BLOCK = 64,      /* tokens that are worth packing rows for again */
    SHARES = 4 /* pieces of work for every thread: the last to end is then late by little */
};

struct bl_panel_weight bl_panel_weight_of(const struct bl_cpu_kernels *kernels, enum bl_dtype type,
                                          const struct bl_value *w)
{
    return (struct bl_panel_weight){.kernel = &kernels->panel[type],
                                    .act = kernels->matmul[type].act,
                                    .row_bytes = (size_t)bl_dtype_row_bytes(w->type, w->ne[0]),
                                    .step_bytes =
                                        (size_t)bl_dtype_row_bytes(w->type, BL_PANEL_COLS),
                                    .k = w->ne[0],
                                    .rows = w->ne[1]};
}

static uint32_t first_of(const struct bl_panel_tokens *x, uint32_t tile)
{
    return bl_panel_tile_first(x->n_tok, x->n_tiles, tile);
}

/* Rows that are wanted next, fetched piece by piece between the products: 32 rows side by side are
 * nothing that hardware would foresee. */
struct ahead {
    const uint8_t *at, *end;
    size_t piece;
};

static struct ahead ahead_of(const uint8_t *next, size_t bytes, uint32_t n_pieces)
{
    if (!next)
        return (struct ahead){0};
    return (struct ahead){next, next + bytes, (bytes / n_pieces / 64 + 1) * 64};
}

static void fetch(struct ahead *a)
{
    const size_t left = (size_t)(a->end - a->at), n = left < a->piece ? left : a->piece;
    for (size_t i = 0; i < n; i += 64)
        BL_PREFETCH(a->at + i);
    a->at += n;
}

void bl_panel_arrange(const struct bl_panel_kernel *kernel, uint8_t act, uint8_t *tiles,
                      uint32_t n_tok, uint32_t first, uint32_t n, uint32_t k, const void **x)
{
    const size_t step_bytes = bl_cpu_step_bytes(act);
    for (uint32_t at = 0; at < k; at += BL_PANEL_COLS) {
        const uint32_t left = k - at, n_cols = left < BL_PANEL_COLS ? left : BL_PANEL_COLS;
        for (uint32_t t = 0; t < n && at; t++)
            x[t] = (const uint8_t *)x[t] + step_bytes;
        kernel->arrange(tiles + bl_panel_tile_at(kernel, n_tok, k, at, first), n, n_cols, x);
    }
}

uint32_t bl_panel_rows(const struct bl_panel_weight *m, float (*sum)[BL_PANEL_ROWS], void *panel,
                       const uint8_t *w, uint32_t row, const struct bl_panel_tokens *x,
                       uint32_t from, uint32_t to, const uint8_t *next)
{
    const struct bl_panel_kernel *kernel = x->kernel;
    const uint32_t n_rows = m->rows - row < BL_PANEL_ROWS ? m->rows - row : BL_PANEL_ROWS;
    const uint32_t n_steps = (m->k + BL_PANEL_COLS - 1) / BL_PANEL_COLS;
    const uint32_t base = first_of(x, from);
    struct ahead ahead = ahead_of(next, n_rows * m->row_bytes, n_steps * (to - from + 1));
    w += row * m->row_bytes;
    for (uint32_t s = 0; s < n_steps; s++) {
        const uint32_t left = m->k - s * BL_PANEL_COLS,
                       n_cols = left < BL_PANEL_COLS ? left : BL_PANEL_COLS;
        fetch(&ahead);
        kernel->pack(panel, n_rows, n_cols, w + s * m->step_bytes, m->row_bytes);
        for (uint32_t i = from; i < to; i++) {
            const uint32_t first = first_of(x, i), n = first_of(x, i + 1) - first;
            fetch(&ahead);
            kernel->multiply(sum[first - base], panel,
                             x->tiles +
                                 bl_panel_tile_at(kernel, x->n_tok, m->k, s * BL_PANEL_COLS, first),
                             n, n_cols, s > 0);
        }
    }
    return first_of(x, to) - base;
}

/* Tokens of a block stay in the cache while all panels pass; with few panels for many threads,
 * smaller blocks make more units. */
uint32_t bl_panel_blocks(const struct bl_panel_tokens *x, uint32_t k, uint32_t n_panels,
                         uint32_t n_threads)
{
    const uint64_t fit = BLOCK_BYTES / bl_cpu_token_bytes(x->kernel, k);
    const uint32_t tokens = fit < LEAST_BLOCK    ? LEAST_BLOCK
                            : fit > BL_CPU_BLOCK ? BL_CPU_BLOCK
                                                 : (uint32_t)fit;
    const uint32_t blocks = (x->n_tok + tokens - 1) / tokens,
                   most = (x->n_tok + LEAST_BLOCK - 1) / LEAST_BLOCK,
                   even = n_threads > 1 ? (SHARES * n_threads + n_panels - 1) / n_panels : 1;
    const uint32_t n = even > blocks ? (even < most ? even : most) : blocks;
    return n < x->n_tiles ? n : x->n_tiles;
}

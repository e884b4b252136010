/* SPDX-License-Identifier: MIT */
/* A panel of rows against tiles of tokens: the loops around the kernels of panel.h. */
#include "operand.h"

enum {
    BLOCK_BYTES =
        8 << 20,      /* tokens of a block, which all threads read from the third-level cache */
    NEAR_FROM = 96,   /* tokens whose products take longer than memory does to answer */
    LEAST_BLOCK = 64, /* tokens that are worth packing rows for again */
    SHARES = 4        /* pieces of work for every thread: the last to end is then late by little */
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

/* Rows that are wanted later, fetched piece by piece between the products: 32 rows side by side are
 * nothing that hardware would foresee. */
struct ahead {
    const uint8_t *row;
    size_t stride, bytes;
    uint32_t left, piece; /* rows */
    bool near;
};

static void fetch(struct ahead *a)
{
    const uint32_t n = a->left < a->piece ? a->left : a->piece;
    for (uint32_t r = 0; r < n; r++, a->row += a->stride)
        for (size_t i = 0; i < a->bytes; i += 64) {
            if (a->near)
                BL_PREFETCH_NEAR(a->row + i);
            else
                BL_PREFETCH(a->row + i);
        }
    a->left -= n;
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

/* A panel and the tokens it meets. */
struct pass {
    const struct bl_panel_weight *m;
    const uint8_t *w, *next; /* rows of this panel, of the next */
    uint32_t n_rows, n_steps, n_tiles, n_tok;
    uint32_t piece; /* rows fetched at a time */
};

static uint32_t columns_of(const struct pass *p, uint32_t step)
{
    const uint32_t left = p->m->k - step * BL_PANEL_COLS;
    return left < BL_PANEL_COLS ? left : BL_PANEL_COLS;
}

/* The columns that the next step packs, which the first-level cache has room for. */
static struct ahead near_of(const struct pass *p, uint32_t step)
{
    const struct bl_panel_weight *m = p->m;
    const uint32_t then = step + 1 < p->n_steps ? step + 1 : 0;
    const uint8_t *rows = then ? p->w : p->next;
    if (!rows)
        return (struct ahead){0};
    return (struct ahead){.row = rows + then * m->step_bytes,
                          .stride = m->row_bytes,
                          /* a row's last line may be one more */
                          .bytes = m->step_bytes * columns_of(p, then) / BL_PANEL_COLS + 63,
                          .left = p->n_rows,
                          .piece = p->piece,
                          .near = true};
}

/* A share of the next panel, in the order in which it lies in memory: few tokens' products take
 * less time than memory needs to answer. Many would push it out of the second-level cache again. */
static struct ahead far_of(const struct pass *p, uint32_t step)
{
    const struct bl_panel_weight *m = p->m;
    if (!p->next || p->n_tok >= NEAR_FROM)
        return (struct ahead){0};
    const size_t bytes = (m->row_bytes + p->n_steps - 1) / p->n_steps;
    return (struct ahead){.row = p->next + (size_t)step * p->n_rows * bytes,
                          .stride = bytes,
                          .bytes = bytes,
                          .left = p->n_rows,
                          .piece = p->piece};
}

void bl_panel_rows(const struct bl_panel_weight *m, const struct bl_panel_sums *sums, void *panel,
                   const uint8_t *w, uint32_t row, const struct bl_panel_tokens *x, uint32_t from,
                   uint32_t to, const uint8_t *next)
{
    const struct bl_panel_kernel *kernel = x->kernel;
    const uint32_t base = first_of(x, from), n_tok = first_of(x, to) - base;
    struct pass p = {.m = m,
                     .w = w + row * m->row_bytes,
                     .next = next,
                     .n_rows = m->rows - row < BL_PANEL_ROWS ? m->rows - row : BL_PANEL_ROWS,
                     .n_steps = (m->k + BL_PANEL_COLS - 1) / BL_PANEL_COLS,
                     .n_tiles = to - from,
                     .n_tok = n_tok};
    p.piece = (p.n_rows + p.n_tiles) / (p.n_tiles + 1);
    for (uint32_t s = 0; s < p.n_steps; s++) {
        const uint32_t n_cols = columns_of(&p, s), at = s * BL_PANEL_COLS;
        struct ahead far = far_of(&p, s), near = near_of(&p, s);
        fetch(&far);
        fetch(&near);
        kernel->pack(panel, p.n_rows, n_cols, p.w + s * m->step_bytes, m->row_bytes);
        for (uint32_t i = from; i < to; i++) {
            const uint32_t first = first_of(x, i), n = first_of(x, i + 1) - first;
            fetch(&far);
            fetch(&near);
            float(*sum)[BL_PANEL_ROWS] = sums->at + (first - base);
            kernel->multiply(sum[0], panel,
                             x->tiles + bl_panel_tile_at(kernel, x->n_tok, m->k, at, first), n,
                             n_cols, s > 0);
            if (sums->whole && s + 1 == p.n_steps)
                sums->whole(sums->arg, sum, first - base, n);
        }
    }
}

/* Tokens of a block stay in the third-level cache while all panels pass: they are read in their
 * order, four bytes a clock, which hardware foresees, and packing rows again costs more. With few
 * panels for many threads, smaller blocks make more units. */
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

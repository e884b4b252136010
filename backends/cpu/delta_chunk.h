/* SPDX-License-Identifier: MIT */
/* delta_chunk.h — the delta rule for many tokens at once; included by one file of each instruction set.
 *
 * Purpose   cpu_kernels.h says what a chunk is. Unrolled over its tokens the rule is a triangular system with all tokens'
 *           differences D as unknowns, (I + L) D = B, and products of small matrices around it: B from keys and the state
 *           before, results from queries, that state and D, the state behind from keys and D. Sums are held in ROWS by
 *           VECTORS registers; columns of the state are lanes, so nothing is summed across lanes and a column does not
 *           depend on those beside it.
 * Ownership as cpu_kernels.h.
 * Units     as cpu_kernels.h.
 * Errors    none.
 * Threads   pure.
 */
#ifndef BL_DELTA_CHUNK_H
#define BL_DELTA_CHUNK_H

#include "cpu_kernels.h"

enum {
#if BL_LANES == 16
    VECTORS = 2,
    ROWS = 8,
#elif defined(__aarch64__)
    VECTORS = 4,
    ROWS = 4,
#else
    VECTORS = 2, /* sixteen registers */
    ROWS = 4,
#endif
    STRIP = VECTORS * BL_LANES, /* columns taken through a chunk together */
    CHUNK = BL_DELTA_CHUNK,
    COLUMNS = BL_DELTA_COLUMNS
};

typedef bl_lanes sums[ROWS][VECTORS];

BL_ALWAYS_INLINE const bl_lanes *lanes_at(const float *p)
{
    return (const bl_lanes *)(const void *)p;
}

BL_ALWAYS_INLINE void load_rows(sums s, const float *p, size_t stride)
{
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++)
            s[r][v] = lanes_at(p + r * stride)[v];
}

BL_ALWAYS_INLINE void store_rows(float *p, size_t stride, sums s)
{
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++)
            ((bl_lanes *)(void *)(p + r * stride))[v] = s[r][v];
}

BL_ALWAYS_INLINE void clear_rows(sums s)
{
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++)
            s[r][v] = (bl_lanes){0};
}

/* s[r] += sum over k < n of a[r * a_row + k * a_step] b[k * b_row] */
BL_ALWAYS_INLINE void add_product(sums s, uint32_t n, const float *a, size_t a_row, size_t a_step, const float *b,
                                  size_t b_row)
{
    for (uint32_t k = 0; k < n; k++, a += a_step, b += b_row)
        for (int v = 0; v < VECTORS; v++) {
            const bl_lanes w = lanes_at(b)[v];
            for (int r = 0; r < ROWS; r++)
                s[r][v] += a[r * a_row] * w;
        }
}

/* The differences of ROWS tokens, in the place of their values. */
BL_ALWAYS_INLINE void solve_rows(float *d, const struct bl_delta_chunk *c, const float *state, uint32_t t)
{
    const float *lower = c->lower + (size_t)t * CHUNK;
    sums s;
    clear_rows(s);
    add_product(s, c->dk, c->keys + (size_t)t * c->dk, c->dk, 1, state, COLUMNS);
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++)
            s[r][v] = c->beta[t + r] * (lanes_at(d + (t + r) * COLUMNS)[v] - c->total[t + r] * s[r][v]);
    add_product(s, t, lower, CHUNK, 1, d, COLUMNS);
    for (int r = 1; r < ROWS; r++)
        for (int i = 0; i < r; i++)
            for (int v = 0; v < VECTORS; v++)
                s[r][v] += lower[r * CHUNK + t + i] * s[i][v];
    store_rows(d + t * COLUMNS, COLUMNS, s);
}

BL_ALWAYS_INLINE void answer_rows(float *y, const float *d, const struct bl_delta_chunk *c, const float *state, uint32_t t)
{
    sums s;
    clear_rows(s);
    add_product(s, c->dk, c->queries + (size_t)t * c->dk, c->dk, 1, state, COLUMNS);
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++)
            s[r][v] *= c->total[t + r];
    add_product(s, t + ROWS, c->mix + (size_t)t * CHUNK, CHUNK, 1, d, COLUMNS);
    store_rows(y + t * COLUMNS, COLUMNS, s);
}

/* The state behind the chunk, of ROWS keys. */
BL_ALWAYS_INLINE void carry_rows(float *state, const float *d, const struct bl_delta_chunk *c, uint32_t i)
{
    sums s;
    load_rows(s, state + i * COLUMNS, COLUMNS);
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++)
            s[r][v] *= c->total[c->n - 1];
    add_product(s, c->n, c->keys + i, 1, c->dk, d, COLUMNS);
    store_rows(state + i * COLUMNS, COLUMNS, s);
}

static void delta_columns(const struct bl_delta_chunk *c)
{
    for (uint32_t strip = 0; strip < COLUMNS; strip += STRIP) {
        float *state = c->s + strip, *d = c->d + strip, *y = c->y + strip;
        for (uint32_t t = 0; t < c->n; t += ROWS) {
            solve_rows(d, c, state, t);
            answer_rows(y, d, c, state, t);
        }
        for (uint32_t t = 0; t < c->n; t++)
            for (int v = 0; v < VECTORS; v++)
                ((bl_lanes *)(void *)(d + t * COLUMNS))[v] *= c->rest[t];
        for (uint32_t i = 0; i < c->dk; i += ROWS)
            carry_rows(state, d, c, i);
    }
}

/* y[j * y_row + i] = x[i * x_row + j] for i < rows, j < cols */
static void turn(uint32_t rows, uint32_t cols, float *y, size_t y_row, const float *x, size_t x_row)
{
    enum { SIDE = 4 };
    uint32_t i = 0;
    for (; i + SIDE <= rows; i += SIDE) {
        uint32_t j = 0;
        for (; j + SIDE <= cols; j += SIDE) {
            float block[SIDE][SIDE];
            for (int r = 0; r < SIDE; r++)
                for (int c = 0; c < SIDE; c++)
                    block[c][r] = x[(i + r) * x_row + j + c];
            for (int c = 0; c < SIDE; c++)
                memcpy(y + (j + c) * y_row + i, block[c], sizeof block[c]);
        }
        for (; j < cols; j++)
            for (int r = 0; r < SIDE; r++)
                y[j * y_row + i + r] = x[(i + r) * x_row + j];
    }
    for (; i < rows; i++)
        for (uint32_t j = 0; j < cols; j++)
            y[j * y_row + i] = x[i * x_row + j];
}

/* Rows [t, n) of a times all rows of what is turned in b, as far as they are not later. */
static void products_of(uint32_t dk, uint32_t n, float *out, const float *a, const float *b)
{
    for (uint32_t t = 0; t < n; t += ROWS)
        for (uint32_t i = 0; i < t + ROWS; i += STRIP) {
            sums s;
            clear_rows(s);
            add_product(s, dk, a + (size_t)t * dk, dk, 1, b + i, CHUNK);
            store_rows(out + (size_t)t * CHUNK + i, CHUNK, s);
        }
}

static void delta_products(uint32_t dk, uint32_t n, float *kk, float *qk, const float *keys, const float *queries,
                           float *work)
{
    turn(n, dk, work, CHUNK, keys, dk);
    products_of(dk, n, kk, keys, work);
    products_of(dk, n, qk, queries, work);
}

static void delta_load(uint32_t dk, uint32_t dk_padded, uint32_t n, float *s, const float *rows)
{
    if (n < COLUMNS || dk < dk_padded)
        memset(s, 0, (size_t)dk_padded * COLUMNS * sizeof *s);
    turn(n, dk, s, COLUMNS, rows, dk);
}

static void delta_store(uint32_t dk, uint32_t n, float *rows, const float *s)
{
    turn(dk, n, rows, dk, s, COLUMNS);
}

static const struct bl_delta_kernel delta_chunk = {delta_products, delta_columns, delta_load, delta_store};

#endif

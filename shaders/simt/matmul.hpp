/* SPDX-License-Identifier: MIT */
/* matmul.hpp — products with many tokens.
 *
 *   grid: tiles of rows, of tokens (or of pairs of one expert), heads   block: MM_THREADS
 *
 * Purpose   halves: tiles of M rows × N tokens by matrix hardware, weights decoded to halves in shared memory, activations
 *           halved before (halve_rows below), each row times a power of two that brings its largest near 1024.
 *           Exact: tiles of 64 × 64 in floats.
 *           With ids the grid's y is an entry of the list that experts_sort wrote: expert, first place in the order, pairs.
 * Ownership none.
 * Units     elements.
 * Errors    none.
 * Threads   a block's.
 */
#ifndef BL_SIMT_MATMUL_HPP
#define BL_SIMT_MATMUL_HPP

#include "simt/mma.hpp"
#include "simt/product.hpp"

constexpr uint32_t MM_THREADS = 256;

/* What a block multiplies. */
struct tile_job {
    const uint8_t *w;           /* row 0 */
    uint32_t row0, first, n;    /* rows; token, or place in the order; tokens or pairs */
    uint32_t expert, head;
    const uint32_t *order;      /* of pairs, or null */
    bool nothing;
};

template <uint32_t M, uint32_t N> BL_DEV tile_job job_of(const struct bl_simt_args &p)
{
    tile_job j;
    j.row0 = block_x() * M;
    j.head = block_z();
    j.order = nullptr;
    j.nothing = false;
    if (p.a[IDS]) {
        const uint32_t *tiles = at<const uint32_t>(p.a[TILES]);
        j.nothing = block_y() >= tiles[0];
        if (j.nothing)
            return j;
        j.expert = tiles[1 + 3 * block_y()];
        j.first = tiles[2 + 3 * block_y()];
        j.n = tiles[3 + 3 * block_y()];
        j.order = at<const uint32_t>(p.a[ORDER]) + j.first;
        j.w = bytes(entry_of(p.a[W_OF], j.expert));
        return j;
    }
    j.expert = 0;
    j.first = block_y() * N;
    j.n = least(N, p.n[TOKENS] - j.first);
    j.w = bytes(p.a[W_OF]) + static_cast<uint64_t>(p.n[HEAD_BYTES]) * j.head;
    return j;
}

/* The row of x that column c of a tile stands for. */
BL_DEV uint32_t x_row(const struct bl_simt_args &p, const tile_job &j, uint32_t c)
{
    return j.order ? j.order[c] / p.n[DIVISOR] : j.first + c;
}

BL_DEV void put_sum(const struct bl_simt_args &p, const tile_job &j, uint32_t row, uint32_t c, float sum)
{
    if (row >= p.n[OUT] || c >= j.n)
        return;
    if (j.order)
        put_pair(p, j.expert, j.order[c], row, sum);
    else
        put_row(p, j.head, j.first + c, row, sum);
}

/* ---- in floats ---- */

constexpr uint32_t SIDE = 64, DEPTH = 32, SUB = 4;

template <class W> BL_DEV void thirty_two(float (&v)[32], const uint8_t *row, uint32_t i)
{
    piece w;
    W::piece_of(w, row, i);
    BL_UNROLL for (uint32_t j = 0; j < 8; j++) {
        float four[4];
        values<W>(four, w, j);
        BL_UNROLL for (uint32_t e = 0; e < 4; e++)
            v[4 * j + e] = four[e];
    }
}
template <class W> BL_DEV void plain_thirty_two(float (&v)[32], const struct bl_simt_args &p, const uint8_t *row, uint32_t i)
{
    BL_UNROLL for (uint32_t j = 0; j < 32; j++)
        v[j] = 32 * i + j < p.n[IN] ? W::one(row, 32 * i + j) : 0;
}

struct float_tiles {
    float w[DEPTH][SIDE + 1], x[DEPTH][SIDE + 1];
};

/* Columns [k, k + DEPTH) of the tile's rows of x. */
BL_DEV void load_x(float_tiles &s, const struct bl_simt_args &p, const tile_job &j, uint32_t k)
{
    for (uint32_t i = thread_x(); i < SIDE * DEPTH; i += MM_THREADS) {
        const uint32_t c = i / DEPTH, e = i % DEPTH;
        const float *x = floats(p.a[X]) + p.n[IN] * j.head;
        s.x[e][c] = c < j.n && k + e < p.n[IN] ? x[static_cast<uint64_t>(p.n[X_STRIDE]) * x_row(p, j, c) + k + e] : 0;
    }
}

BL_DEV void multiply_floats(const float_tiles &s, float (&sum)[SUB][SUB])
{
    const uint32_t row = thread_x() % (SIDE / SUB), column = thread_x() / (SIDE / SUB);
    for (uint32_t d = 0; d < DEPTH; d++) {
        float a[SUB], b[SUB];
        BL_UNROLL for (uint32_t i = 0; i < SUB; i++) {
            a[i] = s.w[d][row + i * (SIDE / SUB)];
            b[i] = s.x[d][column + i * (SIDE / SUB)];
        }
        BL_UNROLL for (uint32_t r = 0; r < SUB; r++)
            BL_UNROLL for (uint32_t c = 0; c < SUB; c++)
                sum[r][c] = fmaf(a[r], b[c], sum[r][c]);
    }
}

/* PLAIN: W is of single values. */
template <class W, bool PLAIN> BL_DEV void matmul_exact(const struct bl_simt_args &p)
{
    BL_SHARED float_tiles s;
    const tile_job j = job_of<SIDE, SIDE>(p);
    if (j.nothing)
        return;
    float sum[SUB][SUB] = {};
    for (uint32_t k = 0; k < p.n[IN]; k += DEPTH) {
        if (thread_x() < SIDE) {
            const uint32_t row = least(j.row0 + thread_x(), p.n[OUT] - 1);
            const uint8_t *w = j.w + static_cast<uint64_t>(p.n[ROW_BYTES]) * row;
            float v[32];
            if constexpr (PLAIN)
                plain_thirty_two<W>(v, p, w, k / 32);
            else
                thirty_two<W>(v, w, k / 32);
            BL_UNROLL for (uint32_t e = 0; e < 32; e++)
                s.w[e][thread_x()] = v[e];
        }
        load_x(s, p, j, k);
        sync();
        multiply_floats(s, sum);
        sync();
    }
    BL_UNROLL for (uint32_t r = 0; r < SUB; r++)
        BL_UNROLL for (uint32_t c = 0; c < SUB; c++)
            put_sum(p, j, j.row0 + thread_x() % (SIDE / SUB) + r * (SIDE / SUB),
                    thread_x() / (SIDE / SUB) + c * (SIDE / SUB), sum[r][c]);
}

/* ---- in halves ---- */

constexpr uint32_t M = 128, K = 64, PITCH = K / 2 + 4; /* words; no two rows of eight begin in one bank */

/* Elements [32 i, 32 i + 32) of a row of weights as halves; zeros beyond the row. */
template <class W, bool PLAIN>
BL_DEV void halve_weights(uint32_t (&h)[16], const struct bl_simt_args &p, const uint8_t *row, uint32_t i)
{
    if (32 * i >= p.n[IN]) {
        BL_UNROLL for (uint32_t j = 0; j < 16; j++)
            h[j] = 0;
        return;
    }
    if constexpr (!PLAIN) {
        piece w;
        W::piece_of(w, row, i);
        BL_UNROLL for (uint32_t j = 0; j < 8; j++) {
            float v[4];
            values<W>(v, w, j);
            h[2 * j] = two_halves(v[0], v[1]);
            h[2 * j + 1] = two_halves(v[2], v[3]);
        }
    } else if (p.n[WIDE] && 32 * i + 32 <= p.n[IN]) {
        BL_UNROLL for (uint32_t j = 0; j < 4; j++) {
            float v[8];
            W::eight(v, row, 4 * i + j);
            BL_UNROLL for (uint32_t e = 0; e < 4; e++)
                h[4 * j + e] = two_halves(v[2 * e], v[2 * e + 1]);
        }
    } else {
        float v[32];
        plain_thirty_two<W>(v, p, row, i);
        BL_UNROLL for (uint32_t e = 0; e < 16; e++)
            h[e] = two_halves(v[2 * e], v[2 * e + 1]);
    }
}

template <uint32_t N> struct half_tiles {
    alignas(16) uint32_t w[M][PITCH], x[N][PITCH];
};

/* What a thread brings to the next K columns: half of a row of weights, and N / 32 times eight halves of x. */
template <uint32_t N> struct brought {
    uint32_t w[16], x[N / 32][4];
};

/* Halved rows of x are n[X_STRIDE] halves long, whole Ks with zeros behind. */
template <class W, bool PLAIN, uint32_t N>
BL_DEV void bring(brought<N> &b, const struct bl_simt_args &p, const tile_job &j, uint32_t k)
{
    const uint32_t row = least(j.row0 + thread_x() / 2, p.n[OUT] - 1);
    halve_weights<W, PLAIN>(b.w, p, j.w + static_cast<uint64_t>(p.n[ROW_BYTES]) * row, k / 32 + thread_x() % 2);
    BL_UNROLL for (uint32_t i = 0; i < N / 32; i++) {
        const uint32_t c = i * 32 + thread_x() / 8;
        BL_UNROLL for (uint32_t e = 0; e < 4; e++)
            b.x[i][e] = 0;
        if (c < j.n) {
            const uint64_t from = static_cast<uint64_t>(p.n[X_STRIDE]) * (x_row(p, j, c) * (j.order ? 1 : p.n[DIVISOR]) + j.head);
            load_words<16>(b.x[i], bytes(p.a[X]) + 2 * (from + k + thread_x() % 8 * 8));
        }
    }
}

template <uint32_t N> BL_DEV void put_down(half_tiles<N> &s, const brought<N> &b)
{
    BL_UNROLL for (uint32_t i = 0; i < 16; i += 4)
        store_four(&s.w[thread_x() / 2][thread_x() % 2 * 16 + i], b.w + i);
    BL_UNROLL for (uint32_t i = 0; i < N / 32; i++)
        store_four(&s.x[i * 32 + thread_x() / 8][thread_x() % 8 * 4], b.x[i]);
}

template <class W, bool PLAIN, uint32_t N> BL_DEV void matmul_halves(const struct bl_simt_args &p)
{
    constexpr uint32_t WARPS = MM_THREADS / BL_WARP, ACROSS = N >= 128 ? 2 : 1, DOWN = WARPS / ACROSS;
    constexpr uint32_t ROWS = M / DOWN / 16, COLUMNS = N / ACROSS / 16; /* 16s of a warp */
    BL_SHARED half_tiles<N> s;
    const tile_job j = job_of<M, N>(p);
    if (j.nothing)
        return;
    const uint32_t row = warp_x() / ACROSS * ROWS * 16, column = warp_x() % ACROSS * COLUMNS * 16;
    sums sum[ROWS][COLUMNS] = {};
    brought<N> b;
    bring<W, PLAIN>(b, p, j, 0);
    for (uint32_t k = 0; k < p.n[IN]; k += K) {
        put_down(s, b);
        sync();
        if (k + K < p.n[IN])
            bring<W, PLAIN>(b, p, j, k + K);
        BL_UNROLL for (uint32_t d = 0; d < K; d += 16) {
            fragment x[COLUMNS];
            BL_UNROLL for (uint32_t c = 0; c < COLUMNS; c++)
                load_fragment(x[c], &s.x[column + 16 * c][d / 2], PITCH);
            BL_UNROLL for (uint32_t r = 0; r < ROWS; r++) {
                fragment w;
                load_fragment(w, &s.w[row + 16 * r][d / 2], PITCH);
                BL_UNROLL for (uint32_t c = 0; c < COLUMNS; c++)
                    multiply(sum[r][c], w, x[c]);
            }
        }
        sync();
    }
    BL_UNROLL for (uint32_t c = 0; c < COLUMNS; c++)
        BL_UNROLL for (uint32_t i = 0; i < SUMS; i++) {
            const uint32_t at_column = column + 16 * c + sum_column(i);
            if (at_column >= j.n)
                continue;
            const uint32_t x = x_row(p, j, at_column) * (j.order ? 1 : p.n[DIVISOR]) + j.head;
            const float scale = floats(p.a[ROW_SCALES])[x];
            BL_UNROLL for (uint32_t r = 0; r < ROWS; r++)
                put_sum(p, j, j.row0 + row + 16 * r + sum_row(i), at_column, sum[r][c].v[i] * scale);
        }
}

#define BL_MATMUL(W, w)                                                                            \
    BL_KERNEL(matmul__##w, MM_THREADS)                                                             \
    {                                                                                              \
        matmul_halves<W, false, 128>(p);                                                           \
    }                                                                                              \
    BL_KERNEL(matmul32__##w, MM_THREADS)                                                           \
    {                                                                                              \
        matmul_halves<W, false, 32>(p);                                                            \
    }                                                                                              \
    BL_KERNEL(matmulx__##w, MM_THREADS)                                                            \
    {                                                                                              \
        matmul_exact<W, false>(p);                                                                 \
    }

#define BL_MATMUL_PLAIN(W, w)                                                                      \
    BL_KERNEL(matmul__##w, MM_THREADS)                                                             \
    {                                                                                              \
        matmul_halves<W, true, 128>(p);                                                            \
    }                                                                                              \
    BL_KERNEL(matmul32__##w, MM_THREADS)                                                           \
    {                                                                                              \
        matmul_halves<W, true, 32>(p);                                                             \
    }                                                                                              \
    BL_KERNEL(matmulx__##w, MM_THREADS)                                                            \
    {                                                                                              \
        matmul_exact<W, true>(p);                                                                  \
    }

#endif

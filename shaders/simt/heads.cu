/* SPDX-License-Identifier: MIT */
/* MATMUL_HEADS transposed: y[t][head] = (transpose of w[head]) · x[t][head] * scale. A thread sums 32 columns over every
 * ACROSS-th row.
 *   a, n: as product.hpp has them, in and out being those of w as it lies: x has `out` elements a head, y has `in`
 *   grid: columns, tokens, heads */
#include "simt/product.hpp"

constexpr uint32_t ACROSS = 32, WIDE_32S = 4, THREADS = ACROSS * WIDE_32S;

BL_DEV void finish_columns(const struct bl_simt_args &p, const float (&sum)[32])
{
    /* rows of a warp lie beside each other: lane % ACROSS */
    const uint32_t k = p.n[IN], t = block_y(), head = block_z(), first = 32 * (block_x() * WIDE_32S + thread_x() / ACROSS);
    const float scale = p.a[SCALE] ? floats(p.a[SCALE])[p.n[OWN_SCALES] ? head : 0] : 1;
    float *y = floats(p.a[Y]) + static_cast<uint64_t>(p.n[Y_STRIDE]) * t + k * head;
    BL_UNROLL for (uint32_t j = 0; j < 32; j++) {
        const float v = sum_lanes(sum[j], ACROSS);
        if (thread_x() % ACROSS == j && first + j < k)
            y[first + j] = v * scale;
    }
}

template <class W, bool PLAIN> BL_DEV void heads_t(const struct bl_simt_args &p)
{
    const uint32_t k = p.n[IN], m = p.n[OUT], t = block_y(), head = block_z();
    const uint32_t i = block_x() * WIDE_32S + thread_x() / ACROSS;
    const uint8_t *w = bytes(p.a[W_OF]) + static_cast<uint64_t>(p.n[HEAD_BYTES]) * head;
    const float *x = floats(p.a[X]) + static_cast<uint64_t>(p.n[X_STRIDE]) * t + m * head;
    float sum[32] = {};
    for (uint32_t r = thread_x() % ACROSS; 32 * i < k && r < m; r += ACROSS) {
        const uint8_t *row = w + static_cast<uint64_t>(p.n[ROW_BYTES]) * r;
        const float v = x[r];
        if constexpr (PLAIN) {
            BL_UNROLL for (uint32_t j = 0; j < 32; j++)
                sum[j] = fmaf(32 * i + j < k ? W::one(row, 32 * i + j) : 0, v, sum[j]);
        } else {
            piece q;
            W::piece_of(q, row, i);
            BL_UNROLL for (uint32_t j = 0; j < 8; j++) {
                float four[4];
                values<W>(four, q, j);
                BL_UNROLL for (uint32_t e = 0; e < 4; e++)
                    sum[4 * j + e] = fmaf(four[e], v, sum[4 * j + e]);
            }
        }
    }
    finish_columns(p, sum);
}

#define HEADS(W, w)                                                                                \
    BL_KERNEL(heads_t__##w, THREADS)                                                               \
    {                                                                                              \
        heads_t<W, false>(p);                                                                      \
    }
#define HEADS_PLAIN(W, w)                                                                          \
    BL_KERNEL(heads_t__##w, THREADS)                                                               \
    {                                                                                              \
        heads_t<W, true>(p);                                                                       \
    }
BL_QUANT_A(HEADS)
BL_QUANT_B(HEADS)
BL_QUANT_C(HEADS)
BL_QUANT_D(HEADS)
BL_PLAIN(HEADS_PLAIN)

/* SPDX-License-Identifier: MIT */
/* MATMUL, MATMUL_HEADS and EXPERTS for many tokens. */
#include "simt/matmul.hpp"

BL_QUANT_A(BL_MATMUL)
BL_PLAIN(BL_MATMUL_PLAIN)

/* Rows of floats to halves, whole 64s with zeros behind; each times a power of two that brings its largest to [1024, 2048).
 *   a: x, halves, scales   n: elements, floats from row to row, halves from row to row, rows of a token, rows
 *   grid: rows of a token, tokens */
BL_KERNEL(halve_rows, MM_THREADS)
{
    BL_SHARED float part[MM_THREADS / BL_WARP];
    const uint32_t n = p.n[0], row = block_y() * p.n[3] + block_x();
    const float *x = floats(p.a[0]) + static_cast<uint64_t>(p.n[1]) * block_y() + n * block_x();
    uint32_t *y = at<uint32_t>(p.a[1]) + static_cast<uint64_t>(p.n[2] / 2) * row;
    float most = 0;
    for (uint32_t i = thread_x(); i < n; i += MM_THREADS)
        most = fmaxf(most, fabsf(x[i]));
    most = most_block<MM_THREADS>(most, part);
    const uint32_t exponent = bits_as<uint32_t>(most) >> 23;
    const bool in_range = exponent > 40 && exponent < 255;
    const float scale = in_range ? bits_as<float>((exponent - 10) << 23) : 1, inverse = 1 / scale;
    for (uint32_t i = thread_x(); i < p.n[2] / 2; i += MM_THREADS)
        y[i] = two_halves(2 * i < n ? x[2 * i] * inverse : 0, 2 * i + 1 < n ? x[2 * i + 1] * inverse : 0);
    if (thread_x() == 0)
        floats(p.a[2])[row] = scale;
}

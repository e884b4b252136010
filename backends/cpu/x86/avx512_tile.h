/* SPDX-License-Identifier: MIT */
/* avx512_tile.h — what tiles of floats and of pairs share. Included by the files of attention by tiles only.
 *
 * Purpose   rows become columns; a constant number of queries; the largest scores.
 * Ownership none.
 * Units     lanes.
 * Errors    none.
 * Threads   pure.
 */
#ifndef BL_X86_AVX512_TILE_H
#define BL_X86_AVX512_TILE_H

#include <math.h>

#include "avx512_rows.h"

enum { VECTORS = BL_TILE_KEYS / LANES };

/* Rows and columns of 16 x 16 change places. */
BL_ALWAYS_INLINE void transpose(__m512 v[LANES])
{
    __m512 a[LANES], b[LANES];
    for (int i = 0; i < LANES; i += 2) {
        a[i] = _mm512_unpacklo_ps(v[i], v[i + 1]);
        a[i + 1] = _mm512_unpackhi_ps(v[i], v[i + 1]);
    }
    for (int i = 0; i < LANES; i += 4)
        for (int h = 0; h < 2; h++) {
            b[i + 2 * h] = _mm512_shuffle_ps(a[i + h], a[i + 2 + h], 0x44);
            b[i + 2 * h + 1] = _mm512_shuffle_ps(a[i + h], a[i + 2 + h], 0xee);
        }
    /* b[4 g + c]: columns c, c + 4, c + 8, c + 12 of rows 4 g .. 4 g + 3 */
    for (int c = 0; c < 4; c++) {
        const __m512 lo01 = _mm512_shuffle_f32x4(b[c], b[4 + c], 0x88);
        const __m512 hi01 = _mm512_shuffle_f32x4(b[c], b[4 + c], 0xdd);
        const __m512 lo23 = _mm512_shuffle_f32x4(b[8 + c], b[12 + c], 0x88);
        const __m512 hi23 = _mm512_shuffle_f32x4(b[8 + c], b[12 + c], 0xdd);
        v[c] = _mm512_shuffle_f32x4(lo01, lo23, 0x88);
        v[c + 8] = _mm512_shuffle_f32x4(lo01, lo23, 0xdd);
        v[c + 4] = _mm512_shuffle_f32x4(hi01, hi23, 0x88);
        v[c + 12] = _mm512_shuffle_f32x4(hi01, hi23, 0xdd);
    }
}

/* ---- queries together ---- */

BL_ALWAYS_INLINE void ask(bool any, bl_tile_ahead *ahead)
{
    if (any)
        _mm_prefetch(*ahead, _MM_HINT_T1);
}
/* f(R, ...) with R a constant, so that sums stay in registers; so is whether lines are asked for.
 */
#define CASE(n, f, ahead, ...)                                                                     \
    case n:                                                                                        \
        if (ahead)                                                                                 \
            f(n, true, __VA_ARGS__);                                                               \
        else                                                                                       \
            f(n, false, __VA_ARGS__);                                                              \
        break;
#define FOR_ROWS(n, ...)                                                                           \
    switch (n) {                                                                                   \
        CASE(1, __VA_ARGS__)                                                                       \
        CASE(2, __VA_ARGS__)                                                                       \
        CASE(3, __VA_ARGS__)                                                                       \
        CASE(4, __VA_ARGS__)                                                                       \
        CASE(5, __VA_ARGS__)                                                                       \
        CASE(6, __VA_ARGS__)                                                                       \
        CASE(7, __VA_ARGS__)                                                                       \
        CASE(8, __VA_ARGS__)                                                                       \
    }

/* ---- scores ---- */

/* Bits [first, end) of 64. */
BL_ALWAYS_INLINE uint64_t seen(uint32_t first, uint32_t end)
{
    const uint64_t below = end < BL_TILE_KEYS ? ((uint64_t)1 << end) - 1 : UINT64_MAX;
    return first < end ? below & (UINT64_MAX << first) : 0;
}
/* The largest scores of a row by columns; a NaN never wins. */
BL_ALWAYS_INLINE __m512 largest(const float *score, uint64_t in)
{
    __m512 m = _mm512_set1_ps(-INFINITY);
    for (int v = 0; v < VECTORS; v++) {
        const __m512 s = _mm512_load_ps(score + v * LANES);
        m = _mm512_mask_max_ps(m, (__mmask16)(in >> v * LANES), s, m);
    }
    return m;
}

#endif

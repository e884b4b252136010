/* SPDX-License-Identifier: MIT */
/* avx512_rows.h — cached rows as vectors of floats. Included by the files of attention only.
 *
 * Purpose   16 elements of a row of keys or values, whatever its type.
 * Ownership none.
 * Units     elements.
 * Errors    none.
 * Threads   pure.
 */
#ifndef BL_X86_AVX512_ROWS_H
#define BL_X86_AVX512_ROWS_H

#include <stdbool.h>

#include "avx512.h"

enum { LANES = 16 };

BL_ALWAYS_INLINE __mmask16 lanes(uint32_t left)
{
    return left < LANES ? (__mmask16)((1u << left) - 1) : 0xffff;
}

BL_ALWAYS_INLINE __m512 scaled(const char *block, __m128i bytes)
{
    const __m512 d = _mm512_cvtph_ps(_mm256_set1_epi16((short)bl_load_u16(block)));
    return _mm512_mul_ps(to_float(_mm512_cvtepi8_epi32(bytes)), d);
}
/* 16 codes: the lower nibbles of a block, then the upper ones. */
BL_ALWAYS_INLINE __m512 load_q4_0(const char *row, uint32_t i)
{
    const char *block = row + (size_t)(i / 32) * 18;
    __m128i v = load128(block + 2);
    if (i % 32)
        v = _mm_srli_epi16(v, 4);
    v = _mm_sub_epi8(_mm_and_si128(v, _mm_set1_epi8(15)), _mm_set1_epi8(8));
    return scaled(block, v);
}
BL_ALWAYS_INLINE __m256i load_shorts(const char *p, __mmask16 m)
{
    return m == 0xffff ? load256(p) : _mm256_maskz_loadu_epi16(m, p);
}
BL_ALWAYS_INLINE __m512 load_floats(const void *p, __mmask16 m)
{
    return m == 0xffff ? _mm512_loadu_ps(p) : _mm512_maskz_loadu_ps(m, p);
}
/* 16 elements of a row, those of the mask; rows of blocks have no others. A mask known to be full costs nothing. */
BL_ALWAYS_INLINE __m512 load_row(enum bl_dtype t, const char *row, uint32_t i, __mmask16 m)
{
    const char *block = row + (size_t)(i / 32) * 34;
    switch (t) {
    case BL_F32:
        return load_floats(row + 4 * (size_t)i, m);
    case BL_F16:
        return _mm512_cvtph_ps(load_shorts(row + 2 * (size_t)i, m));
    case BL_BF16:
        return _mm512_castsi512_ps(_mm512_slli_epi32(
            _mm512_cvtepu16_epi32(load_shorts(row + 2 * (size_t)i, m)), 16));
    case BL_Q8_0:
        return scaled(block, load128(block + 2 + i % 32));
    default:
        return load_q4_0(row, i);
    }
}

/* ---- across lanes ---- */

BL_ALWAYS_INLINE __m512 larger_or_sum(bool max, __m512 a, __m512 b)
{
    return max ? _mm512_max_ps(a, b) : _mm512_add_ps(a, b);
}
/* Halves of the 128-bit lanes of two vectors. */
BL_ALWAYS_INLINE __m512 fold_lanes(bool max, __m512 a, __m512 b)
{
    return larger_or_sum(max, _mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}
/* Lane i is the largest element or the sum of vector i, i < n <= 16. By transposing: 15 operations for 16 vectors. A
 * vector without a second is folded with itself, so that results do not depend on n. */
BL_ALWAYS_INLINE __m512 fold_all(bool max, int n, const __m512 *v)
{
    __m512 a[8], b[4];
    for (int i = 0; 2 * i < n; i++) {
        const __m512 x = v[2 * i], y = v[2 * i + 1 < n ? 2 * i + 1 : 2 * i];
        a[i] = larger_or_sum(max, _mm512_unpacklo_ps(x, y), _mm512_unpackhi_ps(x, y));
    }
    for (int i = 0; 4 * i < n; i++) {
        const __m512 x = a[2 * i], y = a[4 * i + 2 < n ? 2 * i + 1 : 2 * i];
        b[i] = larger_or_sum(max, _mm512_shuffle_ps(x, y, 0x44), _mm512_shuffle_ps(x, y, 0xee));
    }
    const __m512 lo = fold_lanes(max, b[0], b[n > 4 ? 1 : 0]);
    const __m512 hi = n > 8 ? fold_lanes(max, b[2], b[n > 12 ? 3 : 2]) : lo;
    return fold_lanes(max, lo, hi);
}

#endif

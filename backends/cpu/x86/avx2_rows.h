/* SPDX-License-Identifier: MIT */
/* avx2_rows.h — cached rows as vectors of floats. Included by the files of attention only.
 *
 * Purpose   eight elements of a row of keys or values, whatever its type.
 * Ownership none.
 * Units     elements.
 * Errors    none.
 * Threads   pure.
 */
#ifndef BL_X86_AVX2_ROWS_H
#define BL_X86_AVX2_ROWS_H

#include "avx2.h"

enum { LANES = 8 };

BL_ALWAYS_INLINE __m256 scaled(const char *block, __m128i bytes)
{
    const __m256 d = _mm256_cvtph_ps(_mm_set1_epi16((short)bl_load_u16(block)));
    return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)), d);
}
BL_ALWAYS_INLINE __m128i load_half(const char *p)
{
    return _mm_loadl_epi64((const __m128i *)(const void *)p);
}
/* Eight codes: the lower nibbles of a block, then the upper ones. */
BL_ALWAYS_INLINE __m256 load_q4_0(const char *row, uint32_t i)
{
    const char *block = row + (size_t)(i / 32) * 18;
    __m128i v = load_half(block + 2 + i % 16);
    if (i % 32 >= 16)
        v = _mm_srli_epi16(v, 4);
    v = _mm_sub_epi8(_mm_and_si128(v, _mm_set1_epi8(15)), _mm_set1_epi8(8));
    return scaled(block, v);
}
/* Eight elements of a row. */
BL_ALWAYS_INLINE __m256 load_row(enum bl_dtype t, const char *row, uint32_t i)
{
    const char *block = row + (size_t)(i / 32) * 34;
    switch (t) {
    case BL_F32:
        return _mm256_loadu_ps((const float *)(const void *)row + i);
    case BL_F16:
        return _mm256_cvtph_ps(load128(row + 2 * (size_t)i));
    case BL_BF16:
        return _mm256_castsi256_ps(
            _mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(row + 2 * (size_t)i)), 16));
    case BL_Q8_0:
        return scaled(block, load_half(block + 2 + i % 32));
    default:
        return load_q4_0(row, i);
    }
}
/* The last n < 8 elements of a row of single numbers, zeros behind them. */
BL_ALWAYS_INLINE __m256 load_last(enum bl_dtype t, const char *row, uint32_t i, uint32_t n)
{
    const size_t bytes = t == BL_F32 ? 4 : 2;
    char tail[32] = {0};
    memcpy(tail, row + bytes * i, bytes * n);
    return load_row(t, tail, 0);
}
BL_ALWAYS_INLINE __m256 load_some(enum bl_dtype t, const char *row, uint32_t i, uint32_t left)
{
    return left >= LANES || t == BL_Q8_0 || t == BL_Q4_0 ? load_row(t, row, i)
                                                         : load_last(t, row, i, left);
}

#endif

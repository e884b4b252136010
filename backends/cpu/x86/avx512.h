/* SPDX-License-Identifier: MIT */
/* avx512.h — small steps shared by the AVX-512 kernels (F BW DQ VL VNNI VBMI, GFNI). Included by those files only.
 *
 * Purpose   loads without shuffles, byte dot products, nibbles, sums of rows.
 * Ownership none.
 * Units     lanes.
 * Errors    none.
 * Threads   pure.
 */
#ifndef BL_X86_AVX512_H
#define BL_X86_AVX512_H

#include "dot.h"

BL_ALWAYS_INLINE __m512i load512(const void *p)
{
    return _mm512_loadu_si512(p);
}
BL_ALWAYS_INLINE __m256i load256(const void *p)
{
    return _mm256_loadu_si256(p);
}
BL_ALWAYS_INLINE __m128i load128(const void *p)
{
    return _mm_loadu_si128(p);
}
/* two 32-byte halves from memory: a load and a blending load, no shuffle */
BL_ALWAYS_INLINE __m512i load_halves(const void *lo, const void *hi)
{
    return _mm512_mask_broadcast_i64x4(_mm512_castsi256_si512(load256(lo)), 0xf0, load256(hi));
}
/* acc + sums of four products u[i] * s[i], unsigned times signed */
BL_ALWAYS_INLINE __m512i dot4(__m512i acc, __m512i u, __m512i s)
{
    return _mm512_dpbusd_epi32(acc, u, s);
}
BL_ALWAYS_INLINE __m512 to_float(__m512i v)
{
    return _mm512_cvtepi32_ps(v);
}
BL_ALWAYS_INLINE __m512i nibble_lo(__m512i v)
{
    return _mm512_and_si512(v, _mm512_set1_epi8(15));
}
/* One row of a GFNI bit matrix: bit `out` of the result is bit `in` of the source. A matrix shifts and masks bytes in
 * one instruction, and may differ from one group of eight bytes to the next. */
#define GF_BIT(out, in) ((uint64_t)(1u << (in)) << (8 * (7 - (out))))
BL_ALWAYS_INLINE __m512i gf_bits(__m512i v, uint64_t matrix)
{
    return _mm512_gf2p8affine_epi64_epi8(v, _mm512_set1_epi64((long long)matrix), 0);
}
/* the same with one matrix for the lower and one for the upper 32 bytes */
BL_ALWAYS_INLINE __m512i gf_halves(uint64_t lower, uint64_t upper)
{
    return _mm512_inserti64x4(_mm512_set1_epi64((long long)lower),
                              _mm256_set1_epi64x((long long)upper), 1);
}
BL_ALWAYS_INLINE __m512i nibble_hi(__m512i v)
{
    return gf_bits(v, GF_BIT(0, 4) | GF_BIT(1, 5) | GF_BIT(2, 6) | GF_BIT(3, 7));
}
/* Per lane -c * (sum of the lane's four activations): a start value that undoes "weights stored plus c". */
BL_ALWAYS_INLINE __m512i bias_start(__m512i x, int c)
{
    const __m512i zero = _mm512_setzero_si512();
    return _mm512_sub_epi32(zero, dot4(zero, _mm512_set1_epi8((char)c), x));
}

/* out[r] = sum of acc[r]. Four rows are summed by transposing: 13 instructions in place of 4 x 7. */
BL_ALWAYS_INLINE void store_sums(int R, float *out, const __m512 *acc)
{
    for (int r = 0; R < 4 && r < R; r++)
        out[r] = _mm512_reduce_add_ps(acc[r]);
    if (R < 4)
        return;
    const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(acc[0], acc[1]),
                                    _mm512_unpackhi_ps(acc[0], acc[1]));
    const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(acc[2], acc[3]),
                                    _mm512_unpackhi_ps(acc[2], acc[3]));
    const __m512 abcd = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44),
                                      _mm512_shuffle_ps(ab, cd, 0xee));
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(abcd),
                                      _mm512_extractf32x8_ps(abcd, 1));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
}

/* The f16 at p of R rows as floats. */
BL_ALWAYS_INLINE __m128 load_f16x4(int R, const char *p, size_t stride)
{
    __m128i v = _mm_cvtsi32_si128(bl_load_u16(p));
    if (R > 1)
        v = _mm_insert_epi16(v, bl_load_u16(p + stride), 1);
    if (R > 2) {
        v = _mm_insert_epi16(v, bl_load_u16(p + 2 * stride), 2);
        v = _mm_insert_epi16(v, bl_load_u16(p + 3 * stride), 3);
    }
    return _mm_cvtph_ps(v);
}
/* A 16-byte field of R rows, one row in each 16-byte lane. */
BL_ALWAYS_INLINE __m512i load_lanes(int R, const char *p, size_t stride)
{
    __m512i v = _mm512_castsi128_si512(load128(p));
    if (R > 1) {
        v = _mm512_mask_broadcast_i32x4(v, 0x00f0, load128(p + stride));
        v = _mm512_mask_broadcast_i32x4(v, 0x0f00, load128(p + 2 * stride));
        v = _mm512_mask_broadcast_i32x4(v, 0xf000, load128(p + 3 * stride));
    }
    return v;
}
/* acc[r] += lane r of rows. With one row the other lanes are undefined and left out. */
BL_ALWAYS_INLINE void add_lanes(int R, __m512 *acc, __m512 rows)
{
    for (int r = 0; r < R; r++)
        acc[r] = _mm512_mask_add_ps(acc[r], (__mmask16)(0xf << (4 * r)), acc[r], rows);
}

#endif

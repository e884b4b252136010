/* SPDX-License-Identifier: MIT */
/* avx512_codebook.h — codebook look-ups by byte permutations, shared by the AVX-512 kernels that have codebooks.
 *
 * Purpose   64 indices at a time: groups of four of one row, or groups of eight of two rows woven; and the activations
 *           and factors in the order that this gives.
 * Ownership none.
 * Units     lanes.
 * Errors    none.
 * Threads   pure.
 */
#ifndef BL_X86_AVX512_CODEBOOK_H
#define BL_X86_AVX512_CODEBOOK_H

#include "avx512.h"
#include "codebooks.h"

/* The f16 at the start of each row's block times `factor`, as floats the FMAs broadcast from
 * memory. */
BL_ALWAYS_INLINE void row_factors(int R, float *d, const char *w, size_t stride, float factor)
{
    _mm_store_ps(d, _mm_mul_ps(load_f16x4(R, w, stride), _mm_set1_ps(factor)));
}

/* 64 indices of up to 11 bits: idx has bits 0 to 6, m[i] is the mask of bit 7 + i. */
struct index {
    __m512i idx;
    __mmask64 m[4];
};
/* What a table of bytes has at one or two vectors of indices. Two share the loads of the table. */
struct entries {
    __m512i at[2];
};
BL_ALWAYS_INLINE struct entries lookup128(const uint8_t *table, int n, const struct index *w)
{
    const __m512i lo = load512(table), hi = load512(table + 64);
    struct entries c;
    c.at[0] = _mm512_permutex2var_epi8(lo, w[0].idx, hi);
    c.at[1] = n > 1 ? _mm512_permutex2var_epi8(lo, w[1].idx, hi) : c.at[0];
    return c;
}
BL_ALWAYS_INLINE struct entries lookup_blend(int n, const struct index *w, int bit,
                                             struct entries a, struct entries b)
{
    for (int i = 0; i < n; i++)
        a.at[i] = _mm512_mask_blend_epi8(w[i].m[bit], a.at[i], b.at[i]);
    return a;
}
BL_ALWAYS_INLINE struct entries lookup256(const uint8_t *table, int n, const struct index *w)
{
    return lookup_blend(n, w, 0, lookup128(table, n, w), lookup128(table + 128, n, w));
}
BL_ALWAYS_INLINE struct entries lookup512(const uint8_t *table, int n, const struct index *w)
{
    return lookup_blend(n, w, 1, lookup256(table, n, w), lookup256(table + 256, n, w));
}
BL_ALWAYS_INLINE struct entries lookup1024(const uint8_t *table, int n, const struct index *w)
{
    return lookup_blend(n, w, 2, lookup512(table, n, w), lookup512(table + 512, n, w));
}
BL_ALWAYS_INLINE struct entries lookup2048(const uint8_t *table, int n, const struct index *w)
{
    return lookup_blend(n, w, 3, lookup1024(table, n, w), lookup1024(table + 1024, n, w));
}
/* Byte i of out[j] = element 4 i + j of the block: an in-lane 4 x 4 transpose, then the lanes'
 * dwords of each j. */
BL_ALWAYS_INLINE void deal_acts(const struct bl_act_block *x, __m512i *out)
{
    const __m512i t =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const __m512i even =
        _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(2));
    __m512i v[4];
    for (int i = 0; i < 4; i++)
        v[i] = _mm512_shuffle_epi8(load512(x->q + 64 * i), t);
    const __m512i a = _mm512_permutex2var_epi32(v[0], even, v[1]);
    const __m512i b = _mm512_permutex2var_epi32(v[2], even, v[3]);
    const __m512i c = _mm512_permutex2var_epi32(v[0], odd, v[1]);
    const __m512i d = _mm512_permutex2var_epi32(v[2], odd, v[3]);
    out[0] = _mm512_shuffle_i64x2(a, b, 0x44);
    out[1] = _mm512_shuffle_i64x2(a, b, 0xee);
    out[2] = _mm512_shuffle_i64x2(c, d, 0x44);
    out[3] = _mm512_shuffle_i64x2(c, d, 0xee);
}

/* ---- groups of eight, two rows woven: even bytes are the first row's, odd ones the second's ----
 */

#define ODD_BYTES 0xaaaaaaaaaaaaaaaau
#define EVEN_BYTES 0x5555555555555555u

/* 32 bytes of two rows -> 64 woven */
BL_ALWAYS_INLINE __m512i load_woven(const char *p, const char *other)
{
    const __m512i weave = _mm512_set_epi8(
        63, 31, 62, 30, 61, 29, 60, 28, 59, 27, 58, 26, 57, 25, 56, 24, 55, 23, 54, 22, 53, 21, 52,
        20, 51, 19, 50, 18, 49, 17, 48, 16, 47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9,
        40, 8, 39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    return _mm512_permutexvar_epi8(weave, load_halves(p, other));
}
/* Woven codes of elements 0-3 and 4-7 of each group -> those of one row, a word per group. */
BL_ALWAYS_INLINE __m512i unweave(__m512i c0, __m512i c1, int row)
{
    if (row == 0)
        return _mm512_mask_blend_epi8(ODD_BYTES, c0, _mm512_slli_epi16(c1, 8));
    return _mm512_mask_blend_epi8(ODD_BYTES, _mm512_srli_epi16(c0, 8), c1);
}

#endif

/* SPDX-License-Identifier: MIT */
/* AVX-512 dots of IQ4_XS, IQ3_XXS and IQ2_XXS: blocks of 256, values from tables. Four rows are
 * taken together. */
#include "avx512.h"

#include "codebooks.h"

enum { ROWS = 4, BLOCK = 256 };

/* The f16 at the start of each row's block times `factor`, as floats the FMAs broadcast from
 * memory. */
BL_ALWAYS_INLINE void row_factors(int R, float *d, const char *w, size_t stride, float factor)
{
    _mm_store_ps(d, _mm_mul_ps(load_f16x4(R, w, stride), _mm_set1_ps(factor)));
}

/* ---- IQ4_XS ---- */

/* The value table plus 128, for the low nibble of the index byte and for its bits 2..5 (the index
 * being byte >> 2): vpermb ignores bits 6 and 7, so neither lookup needs a mask. */
#define X4(a) a, a, a, a
#define IQ4_VALUES 1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241
static const uint8_t iq4_lo[64] BL_ALIGNED(64) = {IQ4_VALUES, IQ4_VALUES, IQ4_VALUES, IQ4_VALUES};
static const uint8_t iq4_hi[64] BL_ALIGNED(64) = {
    X4(1),   X4(24),  X4(45),  X4(63),  X4(79),  X4(93),  X4(106), X4(118),
    X4(129), X4(141), X4(153), X4(166), X4(181), X4(197), X4(217), X4(241)};

/* Eight scales of 6 bits minus 32, put together on the scalar ports, which have nothing else to do.
 */
BL_ALWAYS_INLINE __m512 iq4_xs_scales(const char *p)
{
    const uint64_t s = _pdep_u64(bl_load_u32(p + 4), 0x0f0f0f0f0f0f0f0f) |
                       _pdep_u64(bl_load_u16(p + 2), 0x3030303030303030);
    const __m256i v = _mm256_sub_epi32(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)s)),
                                       _mm256_set1_epi32(32));
    return _mm512_castps256_ps512(_mm256_cvtepi32_ps(v));
}
/* 64 nibble bytes = four sub-blocks; x[0] are their first, x[1] their second halves */
BL_ALWAYS_INLINE __m512 iq4_xs_half(const char *qs, const __m512i *x, __m512i start)
{
    const __m512i q = load512(qs);
    const __m512i lo = _mm512_permutexvar_epi8(q, load512(iq4_lo));
    const __m512i hi = _mm512_permutexvar_epi8(_mm512_srli_epi16(q, 2), load512(iq4_hi));
    return to_float(dot4(dot4(start, lo, x[0]), hi, x[1]));
}
BL_ALWAYS_INLINE void iq4_xs_group(int R, uint32_t k, float *out, const struct row_group *g,
                                   const void *xv)
{
    enum { SIZE = 136 };
    const __m512i idx_a = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    const __m512i idx_b = _mm512_add_epi32(idx_a, _mm512_set1_epi32(4));
    const struct bl_act_block *x = xv;
    const char *w = g->w;
    __m512 acc[ROWS] = {_mm512_setzero_ps()};
    for (uint32_t b = 0; b < k / BLOCK; b++, x++, w += SIZE) {
        prefetch(g, (size_t)b * (size_t)(R * SIZE), R * SIZE);
        __m512i q8[4], start[2];
        for (int h = 0; h < 2; h++) {
            const __m512i a = load512(x->q + 128 * h), c = load512(x->q + 128 * h + 64);
            q8[2 * h] = _mm512_shuffle_i64x2(a, c, 0x88);
            q8[2 * h + 1] = _mm512_shuffle_i64x2(a, c, 0xdd);
            start[h] = _mm512_add_epi32(bias_start(q8[2 * h], 128), bias_start(q8[2 * h + 1], 128));
        }
        float d[4] BL_ALIGNED(16);
        row_factors(R, d, w, g->stride, x->d[0]);
        THROUGH_MEMORY(d);
        for (int r = 0; r < R; r++) {
            const char *p = w + (size_t)r * g->stride;
            const __m512 s = iq4_xs_scales(p);
            const __m512 va = iq4_xs_half(p + 8, q8, start[0]);
            const __m512 vb = iq4_xs_half(p + 72, q8 + 2, start[1]);
            const __m512 v = _mm512_fmadd_ps(vb, _mm512_permutexvar_ps(idx_b, s),
                                             _mm512_mul_ps(va, _mm512_permutexvar_ps(idx_a, s)));
            acc[r] = _mm512_fmadd_ps(v, _mm512_set1_ps(d[r]), acc[r]);
        }
    }
    store_sums(R, out, acc);
}

/* ---- codebook types ---- */

/* A table of 256 bytes at 64 indices; b6 and b7 are the masks of their bits 6 and 7. */
BL_ALWAYS_INLINE __m512i lookup256(const uint8_t *table, __m512i idx, __mmask64 b6, __mmask64 b7)
{
    const __m512i t0 = load512(table), t1 = load512(table + 64);
    const __m512i t2 = load512(table + 128), t3 = load512(table + 192);
    const __m512i lo = _mm512_mask_permutexvar_epi8(_mm512_permutexvar_epi8(idx, t0), b6, idx, t1);
    const __m512i hi = _mm512_mask_permutexvar_epi8(_mm512_permutexvar_epi8(idx, t2), b6, idx, t3);
    return _mm512_mask_blend_epi8(b7, lo, hi);
}
BL_ALWAYS_INLINE __mmask64 mask_bit6(__m512i v)
{
    return _mm512_movepi8_mask(_mm512_add_epi8(v, v));
}
/* Bytes whose low 7 bits are sign bits (bit 7 = anything) -> bit 7 = parity of the seven. */
BL_ALWAYS_INLINE __m512i with_parity(__m512i s)
{
    return gf_bits(s, GF_BIT(0, 0) | GF_BIT(1, 1) | GF_BIT(2, 2) | GF_BIT(3, 3) | GF_BIT(4, 4) |
                          GF_BIT(5, 5) | GF_BIT(6, 6) | 0x7f);
}
BL_ALWAYS_INLINE __m512i negate_if(__m512i x, __m512i signs, __m512i bit)
{
    const __mmask64 m = _mm512_test_epi8_mask(signs, bit);
    return _mm512_mask_sub_epi8(x, m, _mm512_setzero_si512(), x);
}
/* The four bits on top of each dword s -> 2 s + 1, the sub-block's scale in eighths. */
BL_ALWAYS_INLINE __m512 odd_scale(__m512i word)
{
    const __m512i twice = _mm512_slli_epi32(_mm512_srli_epi32(word, 28), 1);
    return to_float(_mm512_or_si512(twice, _mm512_set1_epi32(1)));
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

/* 64 indices of 4 elements; with the activations dealt by 4, a lane of four indices shares its
 * scale. */
BL_ALWAYS_INLINE __m512 iq3_xxs_row(const char *p, const __m512i *x)
{
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const __m512i fields =
        _mm512_set1_epi64(0x15150e0e07070000); /* four 7-bit fields, each twice */
    const __m512i pick0 = load512(iq3_pick[0]), pick1 = load512(iq3_pick[1]);
    const __m512i idx = load512(p + 2);
    const __m512i word = _mm512_permutexvar_epi32(twice, _mm512_castsi256_si512(load256(p + 66)));
    const __mmask64 b7 = _mm512_movepi8_mask(idx), b6 = mask_bit6(idx);
    const __m512i c0 = lookup256(iq3_codes[0], idx, b6, b7);
    const __m512i c1 = lookup256(iq3_codes[1], idx, b6, b7);
    const __m512i signs = with_parity(_mm512_multishift_epi64_epi8(fields, word));
    __m512i s[4];
    for (int j = 0; j < 4; j++) /* even bytes: sign bits 0-3, odd bytes: 4-7 */
        s[j] = negate_if(x[j], signs, _mm512_set1_epi16((short)(1 << j | 1 << (12 + j))));
    const __m512i zero = _mm512_setzero_si512();
    const __m512i u = dot4(dot4(zero, _mm512_permutexvar_epi8(c0, pick0), s[0]),
                           _mm512_permutexvar_epi8(c1, pick0), s[2]);
    const __m512i v = dot4(dot4(zero, _mm512_permutexvar_epi8(c0, pick1), s[1]),
                           _mm512_permutexvar_epi8(c1, pick1), s[3]);
    return _mm512_mul_ps(to_float(_mm512_add_epi32(u, v)), odd_scale(word));
}
BL_ALWAYS_INLINE void iq3_xxs_group(int R, uint32_t k, float *out, const struct row_group *g,
                                    const void *xv)
{
    enum { SIZE = 98 };
    const struct bl_act_block *x = xv;
    const char *w = g->w;
    __m512 acc[ROWS] = {_mm512_setzero_ps()};
    for (uint32_t b = 0; b < k / BLOCK; b++, x++, w += SIZE) {
        prefetch(g, (size_t)b * (size_t)(R * SIZE), R * SIZE);
        __m512i q8[4];
        deal_acts(x, q8);
        float d[4] BL_ALIGNED(16);
        row_factors(R, d, w, g->stride, 0.25f * x->d[0]);
        THROUGH_MEMORY(d);
        for (int r = 0; r < R; r++)
            acc[r] = _mm512_fmadd_ps(iq3_xxs_row(w + (size_t)r * g->stride, q8),
                                     _mm512_set1_ps(d[r]), acc[r]);
    }
    store_sums(R, out, acc);
}

/* Codes of one row: low dword of a qword = elements 0-3 of its four groups, high dword = elements
 * 4-7. */
BL_ALWAYS_INLINE __m512 iq2_xxs_row(__m512i q, __m512i codes, const __m512i *x)
{
    const __m512i fields = _mm512_set1_epi64(0x352e2720352e2720);
    const __m512i signs = with_parity(_mm512_multishift_epi64_epi8(fields, q));
    __m512i v = _mm512_setzero_si512();
    for (int j = 0; j < 4; j++) {
        const __m512i bit = _mm512_set1_epi64((long long)(0x1010101001010101u << j));
        const __m512i c = j < 3 ? codes : _mm512_srli_epi16(codes, 2);
        v = dot4(v, _mm512_permutexvar_epi8(c, load512(iq2_pick[j])), negate_if(x[j], signs, bit));
    }
    return _mm512_mul_ps(to_float(v), odd_scale(_mm512_shuffle_epi32(q, _MM_PERM_DDBB)));
}
/* 32 indices a block (low dword of each qword; the high one is signs and scale). Those of two rows
 * are woven into 64 bytes, looked up in both code tables, and the codes unwoven. */
BL_ALWAYS_INLINE void iq2_xxs_pair(int n, const char *p, size_t stride, const __m512i *x,
                                   const float *d, __m512 *acc)
{
    const __m512i q0 = load512(p), q1 = load512(n > 1 ? p + stride : p);
    const __m512i idx = _mm512_mask_blend_epi32(0xaaaa, q0, _mm512_slli_epi64(q1, 32));
    const __mmask64 b7 = _mm512_movepi8_mask(idx), b6 = mask_bit6(idx);
    const __m512i c0 = lookup256(iq2_codes[0], idx, b6, b7);
    const __m512i c1 = lookup256(iq2_codes[1], idx, b6, b7);
    const __m512i mine = _mm512_mask_blend_epi32(0xaaaa, c0, _mm512_slli_epi64(c1, 32));
    acc[0] = _mm512_fmadd_ps(iq2_xxs_row(q0, mine, x), _mm512_set1_ps(d[0]), acc[0]);
    if (n > 1) {
        const __m512i theirs = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(c0, 32), c1);
        acc[1] = _mm512_fmadd_ps(iq2_xxs_row(q1, theirs, x), _mm512_set1_ps(d[1]), acc[1]);
    }
}
BL_ALWAYS_INLINE void iq2_xxs_group(int R, uint32_t k, float *out, const struct row_group *g,
                                    const void *xv)
{
    enum { SIZE = 66 };
    const __m512i order =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
    const struct bl_act_block *x = xv;
    const char *w = g->w;
    __m512 acc[ROWS] = {_mm512_setzero_ps()};
    for (uint32_t b = 0; b < k / BLOCK; b++, x++, w += SIZE) {
        prefetch(g, (size_t)b * (size_t)(R * SIZE), R * SIZE);
        __m512i q8[4];
        deal_acts(x, q8);
        for (int j = 0; j < 4; j++)
            q8[j] = _mm512_shuffle_epi8(q8[j], order);
        float d[4] BL_ALIGNED(16);
        row_factors(R, d, w, g->stride, 0.125f * x->d[0]);
        THROUGH_MEMORY(d);
        for (int r = 0; r < R; r += 2)
            iq2_xxs_pair(R - r, w + 2 + (size_t)r * g->stride, g->stride, q8, d + r, acc + r);
    }
    store_sums(R, out, acc);
}

DOT_ENTRY(dot_iq4_xs_act_4__avx512, iq4_xs_group, ROWS)
DOT_ENTRY(dot_iq3_xxs_act_4__avx512, iq3_xxs_group, ROWS)
DOT_ENTRY(dot_iq2_xxs_act_4__avx512, iq2_xxs_group, ROWS)

void bl_cpu_avx512_iquant(struct bl_cpu_kernels *t)
{
    DOT_SET(t, BL_IQ4_XS, dot_iq4_xs_act_4__avx512, ROWS);
    DOT_SET(t, BL_IQ3_XXS, dot_iq3_xxs_act_4__avx512, ROWS);
    DOT_SET(t, BL_IQ2_XXS, dot_iq2_xxs_act_4__avx512, ROWS);
}

/* SPDX-License-Identifier: MIT */
/* AVX-512 dots of IQ4_XS and of the codebook types: blocks of 256, values from tables. Four rows
 * are taken together. */
#include "avx512_codebook.h"

enum { ROWS = 4, BLOCK = 256 };

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
/* Masks of the signs of elements j of groups of four, where a pair of groups (a word) has its eight
 * sign bits in both bytes. */
BL_ALWAYS_INLINE __m512i sign_bit(int j)
{
    return _mm512_set1_epi16((short)(1 << j | 1 << (12 + j)));
}
/* 32 sign bytes, each twice */
BL_ALWAYS_INLINE __m512i load_signs(const char *p)
{
    const __m512i spread = _mm512_set_epi8(
        31, 31, 30, 30, 29, 29, 28, 28, 27, 27, 26, 26, 25, 25, 24, 24, 23, 23, 22, 22, 21, 21, 20,
        20, 19, 19, 18, 18, 17, 17, 16, 16, 15, 15, 14, 14, 13, 13, 12, 12, 11, 11, 10, 10, 9, 9, 8,
        8, 7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
    return _mm512_permutexvar_epi8(spread, _mm512_castsi256_si512(load256(p)));
}
/* The four bits on top of each dword s -> 2 s + 1, the sub-block's scale in eighths. */
BL_ALWAYS_INLINE __m512 odd_scale(__m512i word)
{
    const __m512i twice = _mm512_slli_epi32(_mm512_srli_epi32(word, 28), 1);
    return to_float(_mm512_or_si512(twice, _mm512_set1_epi32(1)));
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
    const struct index ix = {idx, {_mm512_movepi8_mask(idx)}};
    const __m512i c0 = lookup256(iq3_codes[0], 1, &ix).at[0];
    const __m512i c1 = lookup256(iq3_codes[1], 1, &ix).at[0];
    const __m512i signs = with_parity(_mm512_multishift_epi64_epi8(fields, word));
    __m512i s[4];
    for (int j = 0; j < 4; j++) /* even bytes: sign bits 0-3, odd bytes: 4-7 */
        s[j] = negate_if(x[j], signs, sign_bit(j));
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
    const struct index ix = {idx, {_mm512_movepi8_mask(idx)}};
    const __m512i c0 = lookup256(iq2_codes[0], 1, &ix).at[0];
    const __m512i c1 = lookup256(iq2_codes[1], 1, &ix).at[0];
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

/* ---- IQ3_S: as IQ3_XXS, with values as nibbles, nine bits of index and all signs ---- */

/* Nibbles of `bytes` bits 4 i - 1 .. 4 i + 2 as 2 s + 1: lanes 16 / n of them each. */
BL_ALWAYS_INLINE __m512 nibble_scales(uint64_t nibbles, __m512i bit)
{
    const __m512i v = _mm512_multishift_epi64_epi8(bit, _mm512_set1_epi64((long long)nibbles));
    return to_float(
        _mm512_ternarylogic_epi64(v, _mm512_set1_epi32(0x1e), _mm512_set1_epi32(1), 0xea));
}
BL_ALWAYS_INLINE __m512 iq3_s_row(const char *p, const __m512i *x)
{
    const __m512i bit =
        _mm512_setr_epi32(63, 63, 3, 3, 7, 7, 11, 11, 15, 15, 19, 19, 23, 23, 27, 27);
    const __m512i idx = load512(p + 2), signs = load_signs(p + 74);
    const struct index ix = {idx, {_mm512_movepi8_mask(idx), bl_load_u64(p + 66)}};
    const __m512i c0 = lookup512(iq3_s_codes[0], 1, &ix).at[0],
                  c1 = lookup512(iq3_s_codes[1], 1, &ix).at[0];
    __m512i s[4];
    for (int j = 0; j < 4; j++)
        s[j] = negate_if(x[j], signs, sign_bit(j));
    const __m512i zero = _mm512_setzero_si512();
    const __m512i u = dot4(dot4(zero, nibble_lo(c0), s[0]), nibble_lo(c1), s[2]);
    const __m512i v = dot4(dot4(zero, nibble_hi(c0), s[1]), nibble_hi(c1), s[3]);
    return _mm512_mul_ps(to_float(_mm512_add_epi32(u, v)),
                         nibble_scales(bl_load_u32(p + 106), bit));
}
BL_ALWAYS_INLINE void iq3_s_group(int R, uint32_t k, float *out, const struct row_group *g,
                                  const void *xv)
{
    enum { SIZE = 110 };
    const struct bl_act_block *x = xv;
    const char *w = g->w;
    __m512 acc[ROWS] = {_mm512_setzero_ps()};
    for (uint32_t b = 0; b < k / BLOCK; b++, x++, w += SIZE) {
        prefetch(g, (size_t)b * (size_t)(R * SIZE), R * SIZE);
        __m512i q8[4];
        deal_acts(x, q8);
        float d[4] BL_ALIGNED(16);
        row_factors(R, d, w, g->stride, x->d[0]);
        THROUGH_MEMORY(d);
        for (int r = 0; r < R; r++)
            acc[r] = _mm512_fmadd_ps(iq3_s_row(w + (size_t)r * g->stride, q8), _mm512_set1_ps(d[r]),
                                     acc[r]);
    }
    store_sums(R, out, acc);
}

/* ---- IQ2_XS, IQ2_S ---- */

/* One row's sums; a lane is 16 elements and shares a scale. */
BL_ALWAYS_INLINE __m512 iq2_row(__m512i codes, __m512i signs, const char *scales, const __m512i *x)
{
    const __m512i bit =
        _mm512_setr_epi32(63, 3, 7, 11, 15, 19, 23, 27, 31, 35, 39, 43, 47, 51, 55, 59);
    __m512i v = _mm512_setzero_si512();
    for (int j = 0; j < 4; j++) {
        const __m512i c = j < 3 ? codes : _mm512_srli_epi16(codes, 2);
        const __m512i s = negate_if(x[j], signs, sign_bit(j));
        v = dot4(v, _mm512_permutexvar_epi8(c, load512(iq2_pick[j])), s);
    }
    return _mm512_mul_ps(to_float(v), nibble_scales(bl_load_u64(scales), bit));
}
/* IQ2_XS has a word per group: nine bits of index, seven signs, which are left in `signs`. */
BL_ALWAYS_INLINE struct index iq2_xs_index(const char *p, const char *other, __m512i *signs)
{
    const __m512i q0 = load512(p + 2), q1 = load512(other + 2);
    const __m512i idx = _mm512_mask_blend_epi8(ODD_BYTES, q0, _mm512_slli_epi16(q1, 8));
    const __m512i high = _mm512_mask_blend_epi8(ODD_BYTES, _mm512_srli_epi16(q0, 8), q1);
    /* from bits 1 to 7, and their parity */
    *signs = gf_bits(high, GF_BIT(0, 1) | GF_BIT(1, 2) | GF_BIT(2, 3) | GF_BIT(3, 4) |
                               GF_BIT(4, 5) | GF_BIT(5, 6) | GF_BIT(6, 7) | 0xfe);
    return (struct index){
        idx, {_mm512_movepi8_mask(idx), _mm512_test_epi8_mask(high, _mm512_set1_epi8(1))}};
}
/* One row of two woven: its byte of each word twice. */
BL_ALWAYS_INLINE __m512i iq2_xs_signs(__m512i woven, int row)
{
    const __m512i even =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12, 14, 14));
    return _mm512_shuffle_epi8(woven, row ? _mm512_add_epi8(even, _mm512_set1_epi8(1)) : even);
}
/* Index bits 8 and 9 of IQ2_S lie two by two in 64 bits: woven, they are the masks. */
BL_ALWAYS_INLINE struct index iq2_s_index(const char *p, const char *other)
{
    const uint64_t a = bl_load_u64(p + 66), b = bl_load_u64(other + 66);
    const __m512i idx = load_woven(p + 2, other + 2);
    return (struct index){idx,
                          {_mm512_movepi8_mask(idx), (a & EVEN_BYTES) | (b & EVEN_BYTES) << 1,
                           (a & ODD_BYTES) >> 1 | (b & ODD_BYTES)}};
}
/* One block of R rows. */
BL_ALWAYS_INLINE void iq2_block(bool with_s, int R, const char *w, size_t stride, const __m512i *x,
                                const float *d, __m512 *acc)
{
    const int n = (R + 1) / 2;
    struct index pair[2];
    struct entries c0, c1;
    __m512i woven[2];
    for (int i = 0; i < n; i++) {
        const char *p = w + (size_t)(2 * i) * stride, *p1 = R > 1 ? p + stride : p;
        pair[i] = with_s ? iq2_s_index(p, p1) : iq2_xs_index(p, p1, &woven[i]);
    }
    if (with_s) {
        c0 = lookup1024(iq2_s_codes[0], n, pair);
        c1 = lookup1024(iq2_s_codes[1], n, pair);
    } else {
        c0 = lookup512(iq2_xs_codes[0], n, pair);
        c1 = lookup512(iq2_xs_codes[1], n, pair);
    }
    for (int r = 0; r < R; r++) {
        const char *p = w + (size_t)r * stride;
        const int i = r / 2, odd = r % 2;
        const __m512i signs = with_s ? load_signs(p + 34) : iq2_xs_signs(woven[i], odd);
        const __m512 v =
            iq2_row(unweave(c0.at[i], c1.at[i], odd), signs, p + (with_s ? 74 : 66), x);
        acc[r] = _mm512_fmadd_ps(v, _mm512_set1_ps(d[r]), acc[r]);
    }
}
BL_ALWAYS_INLINE void iq2_group(bool with_s, int R, uint32_t k, float *out,
                                const struct row_group *g, const struct bl_act_block *x)
{
    const int size = with_s ? 82 : 74;
    const char *w = g->w;
    __m512 acc[ROWS] = {_mm512_setzero_ps()};
    for (uint32_t b = 0; b < k / BLOCK; b++, x++, w += size) {
        prefetch(g, (size_t)b * (size_t)(R * size), R * size);
        __m512i q8[4];
        deal_acts(x, q8);
        float d[4] BL_ALIGNED(16);
        row_factors(R, d, w, g->stride, 0.125f * x->d[0]);
        THROUGH_MEMORY(d);
        iq2_block(with_s, R, w, g->stride, q8, d, acc);
    }
    store_sums(R, out, acc);
}
BL_ALWAYS_INLINE void iq2_xs_group(int R, uint32_t k, float *out, const struct row_group *g,
                                   const void *x)
{
    iq2_group(false, R, k, out, g, x);
}
BL_ALWAYS_INLINE void iq2_s_group(int R, uint32_t k, float *out, const struct row_group *g,
                                  const void *x)
{
    iq2_group(true, R, k, out, g, x);
}

DOT_ENTRY(dot_iq4_xs_act_4__avx512, iq4_xs_group, ROWS)
DOT_ENTRY(dot_iq3_xxs_act_4__avx512, iq3_xxs_group, ROWS)
DOT_ENTRY(dot_iq3_s_act_4__avx512, iq3_s_group, ROWS)
DOT_ENTRY(dot_iq2_xxs_act_4__avx512, iq2_xxs_group, ROWS)
DOT_ENTRY(dot_iq2_xs_act_4__avx512, iq2_xs_group, ROWS)
DOT_ENTRY(dot_iq2_s_act_4__avx512, iq2_s_group, ROWS)

DOT_ENTRY(dot_iq4_xs_act_1__avx512, iq4_xs_group, 1)

void bl_cpu_avx512_iquant(struct bl_cpu_kernels *t)
{
    DOT_SET(t, BL_IQ4_XS, dot_iq4_xs_act_4__avx512, ROWS);
    DOT_SET(t, BL_IQ3_XXS, dot_iq3_xxs_act_4__avx512, ROWS);
    DOT_SET(t, BL_IQ3_S, dot_iq3_s_act_4__avx512, ROWS);
    DOT_SET(t, BL_IQ2_XXS, dot_iq2_xxs_act_4__avx512, ROWS);
    DOT_SET(t, BL_IQ2_XS, dot_iq2_xs_act_4__avx512, ROWS);
    DOT_SET(t, BL_IQ2_S, dot_iq2_s_act_4__avx512, ROWS);
}
void bl_cpu_avx512_iquant_one(struct bl_cpu_kernels *t)
{
    DOT_SET(t, BL_IQ4_XS, dot_iq4_xs_act_1__avx512, 1);
}

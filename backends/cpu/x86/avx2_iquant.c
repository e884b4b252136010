/* SPDX-License-Identifier: MIT */
/* Dots of IQ4_XS and of the codebook types in 256 bits: blocks of 256 with integer scales. Two rows
 * are taken together.
 *
 * Entries are loaded one by one, a byte an element; index arithmetic runs on the scalar ports.
 * Signs go to the activations. Products of two are 16 bits, and their scales are applied by the
 * same vpmaddwd that widens them, so a block needs one conversion and one FMA a row. */
#include "avx2_codebook.h"

enum { ROWS = 2, BLOCK = 256 };

/* ---- steps of 32 elements ---- */

/* acc + u * x * scale, where both words of each lane of `scale` are the 32 elements' */
BL_ALWAYS_INLINE __m256i add_scaled(__m256i acc, __m256i u, __m256i x, uint32_t scale)
{
    return add_words(acc, dot2(u, x), _mm256_set1_epi32((int)scale));
}
/* the same with one scale for the lower 16 elements (the low word) and one for the upper */
BL_ALWAYS_INLINE __m256i add_scaled16(__m256i acc, __m256i u, __m256i x, uint32_t scales)
{
    const __m256i halves = _mm256_setr_epi64x(0x0100010001000100, 0x0100010001000100,
                                              0x0302030203020302, 0x0302030203020302);
    const __m256i s = _mm256_shuffle_epi8(_mm256_set1_epi32((int)scales), halves);
    return add_words(acc, dot2(u, x), s);
}
/* 32 activations, negated where the bit is set */
BL_ALWAYS_INLINE __m256i signed_acts(const int8_t *x, uint32_t signs)
{
    return _mm256_sign_epi8(load256(x), plus_or_minus(signs));
}
/* ---- what a block has for its eight steps, over the stack to where it is broadcast ---- */

struct steps {
    uint32_t signs[8] BL_ALIGNED(32);
    uint32_t scales[8] BL_ALIGNED(32);
};
BL_ALWAYS_INLINE void store_steps(uint32_t *dst, __m256i v)
{
    _mm256_store_si256((__m256i *)(void *)dst, v);
}
/* 2 s + 1 in both words of each lane */
BL_ALWAYS_INLINE __m256i odd_scales(__m256i s)
{
    const __m256i twice = _mm256_or_si256(_mm256_slli_epi32(s, 1), _mm256_slli_epi32(s, 17));
    return _mm256_or_si256(twice, _mm256_set1_epi32(0x00010001));
}
/* Eight nibbles, one a lane */
BL_ALWAYS_INLINE __m256i spread_nibbles(uint32_t nibbles)
{
    const __m256i shift = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    return _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32((int)nibbles), shift),
                            _mm256_set1_epi32(15));
}
/* Words of IQ2_XXS and IQ3_XXS: four times seven signs, four bits of scale on top. */
BL_ALWAYS_INLINE void xxs_steps(struct steps *st, __m256i word)
{
    store_steps(st->signs, xxs_signs(word));
    store_steps(st->scales, odd_scales(_mm256_srli_epi32(word, 28)));
    THROUGH_MEMORY(*st);
}
/* Eight bytes, each two scales of 16 elements: 2 s + 1 of the low nibble in the low word. */
BL_ALWAYS_INLINE __m256i nibble_pairs(const char *p)
{
    const __m256i v = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)p));
    const __m256i twice = _mm256_or_si256(_mm256_slli_epi32(v, 1), _mm256_slli_epi32(v, 13));
    return _mm256_or_si256(_mm256_and_si256(twice, _mm256_set1_epi32(0x001e001e)),
                           _mm256_set1_epi32(0x00010001));
}

/* ---- rows: the block's sum of scale * product, in the units of the type ---- */

typedef __m256i row_fn(const char *p, const struct bl_act_block *x);

BL_ALWAYS_INLINE __m256i iq2_xxs_row(const char *p, const struct bl_act_block *x)
{
    const __m256 a = _mm256_castsi256_ps(load256(p + 2)), b = _mm256_castsi256_ps(load256(p + 34));
    const __m256i odd = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd));
    const uint8_t *idx = (const uint8_t *)p + 2;
    struct steps st;
    xxs_steps(&st, _mm256_permute4x64_epi64(odd, 0xd8));
    __m256i v = _mm256_setzero_si256();
    for (int s = 0; s < 8; s++, idx += 8)
        v = add_scaled(v, load_entries(iq2_xxs_bytes, idx[0], idx[1], idx[2], idx[3]),
                       signed_acts(x->q + 32 * s, st.signs[s]), st.scales[s]);
    return v;
}
BL_ALWAYS_INLINE __m256i iq2_xs_row(const char *p, const struct bl_act_block *x)
{
    const __m256i low = _mm256_srli_epi16(load256(p + 2), 9);
    const __m256i high = _mm256_srli_epi16(load256(p + 34), 9);
    const __m256i signs = _mm256_permute4x64_epi64(_mm256_packus_epi16(low, high), 0xd8);
    struct steps st;
    store_steps(st.signs, with_parity(signs));
    store_steps(st.scales, nibble_pairs(p + 66));
    THROUGH_MEMORY(st);
    __m256i v = _mm256_setzero_si256();
    for (int s = 0; s < 8; s++) {
        const uint64_t w = bl_load_u64(p + 2 + 8 * s);
        const __m256i u = load_entries(iq2_xs_bytes, w & 511, w >> 16 & 511, w >> 32 & 511,
                                       (unsigned)(w >> 48) & 511);
        v = add_scaled16(v, u, signed_acts(x->q + 32 * s, st.signs[s]), st.scales[s]);
    }
    return v;
}
BL_ALWAYS_INLINE __m256i iq2_s_row(const char *p, const struct bl_act_block *x)
{
    const uint8_t *idx = (const uint8_t *)p + 2, *high = (const uint8_t *)p + 66;
    struct steps st;
    store_steps(st.scales, nibble_pairs(p + 74));
    THROUGH_MEMORY(st);
    __m256i v = _mm256_setzero_si256();
    for (int s = 0; s < 8; s++, idx += 4) {
        const unsigned h = high[s];
        const __m256i u =
            load_entries(iq2_s_bytes, idx[0] | (h << 8 & 0x300), idx[1] | (h << 6 & 0x300),
                         idx[2] | (h << 4 & 0x300), idx[3] | (h << 2 & 0x300));
        const uint32_t signs = bl_load_u32(p + 34 + 4 * s);
        v = add_scaled16(v, u, signed_acts(x->q + 32 * s, signs), st.scales[s]);
    }
    return v;
}
BL_ALWAYS_INLINE __m256i iq3_xxs_row(const char *p, const struct bl_act_block *x)
{
    const uint32_t *t = iq3_xxs_bytes;
    const uint8_t *i = (const uint8_t *)p + 2;
    struct steps st;
    xxs_steps(&st, load256(p + 66));
    __m256i v = _mm256_setzero_si256();
    for (int s = 0; s < 8; s++, i += 8) {
        const __m256i u = load_entries4(t, i);
        v = add_scaled(v, u, signed_acts(x->q + 32 * s, st.signs[s]), st.scales[s]);
    }
    return v;
}
BL_ALWAYS_INLINE __m256i iq3_s_row(const char *p, const struct bl_act_block *x)
{
    const uint8_t *i = (const uint8_t *)p + 2, *high = (const uint8_t *)p + 66;
    struct steps st;
    store_steps(st.scales, odd_scales(spread_nibbles(bl_load_u32(p + 106))));
    THROUGH_MEMORY(st);
    __m256i v = _mm256_setzero_si256();
    for (int s = 0; s < 8; s++, i += 8) {
        const unsigned h = high[s];
        const __m256i u = load_entries9(i, h);
        const uint32_t signs = bl_load_u32(p + 74 + 4 * s);
        v = add_scaled(v, u, signed_acts(x->q + 32 * s, signs), st.scales[s]);
    }
    return v;
}
/* Eight words, each twice in its lane. */
BL_ALWAYS_INLINE __m256i twice_words(__m128i v)
{
    return _mm256_setr_m128i(_mm_unpacklo_epi16(v, v), _mm_unpackhi_epi16(v, v));
}
/* Eighths: entries are 8 (value + 1), from which the sums of 16 take 8 and give 1 or -1. */
BL_ALWAYS_INLINE __m256i iq1_s_row(const char *p, const struct bl_act_block *x)
{
    const uint8_t *idx = (const uint8_t *)p + 2;
    const __m128i h = load128(p + 34);
    const __m128i scale =
        _mm_or_si128(_mm_and_si128(_mm_srli_epi16(h, 11), _mm_set1_epi16(14)), _mm_set1_epi16(1));
    const __m128i minus = _mm_srai_epi16(h, 15);
    const __m128i shift = _mm_add_epi16(_mm_add_epi16(minus, minus), _mm_set1_epi16(-7));
    __m256i v = _mm256_madd_epi16(twice_words(_mm_mullo_epi16(scale, shift)), load256(x->sum));
    struct steps st;
    store_steps(st.scales, twice_words(scale));
    THROUGH_MEMORY(st);
    for (int s = 0; s < 8; s++, idx += 4) {
        const unsigned high = bl_load_u16(p + 34 + 2 * s);
        const __m256i u =
            load_entries(iq1_bytes, idx[0] | (high << 8 & 0x700), idx[1] | (high << 5 & 0x700),
                         idx[2] | (high << 2 & 0x700), idx[3] | (high >> 1 & 0x700));
        v = add_scaled(v, u, load256(x->q + 32 * s), st.scales[s]);
    }
    return v;
}
/* 16 scales: 3 of 3 bits and 1 in each of four words -> 2 s + 1 as words. */
BL_ALWAYS_INLINE __m256i iq1_m_scales(uint64_t words)
{
    const __m256i each = _mm256_setr_epi64x(0x0100010001000100, 0x0302030203020302,
                                            0x0504050405040504, 0x0706070607060706);
    const __m256i to_top = _mm256_set1_epi64x(0x0010008004002000); /* 1 << 13 - 3 i */
    const __m256i w = _mm256_shuffle_epi8(_mm256_set1_epi64x((long long)words), each);
    const __m256i s = _mm256_srli_epi16(_mm256_mullo_epi16(w, to_top), 12);
    return _mm256_or_si256(_mm256_and_si256(s, _mm256_set1_epi16(14)), _mm256_set1_epi16(1));
}
/* Eighths plus 9: 8 (value + 1), and 2 where the shift goes up. */
BL_ALWAYS_INLINE __m256i iq1_m_row(const char *p, const struct bl_act_block *x)
{
    const uint8_t *idx = (const uint8_t *)p;
    const __m256i scales = iq1_m_scales(bl_load_u64(p + 48));
    __m256i v =
        _mm256_madd_epi16(_mm256_mullo_epi16(scales, _mm256_set1_epi16(-9)), load256(x->sum));
    struct steps st;
    store_steps(st.scales, scales);
    THROUGH_MEMORY(st);
    for (int s = 0; s < 8; s++, idx += 4) {
        const unsigned high = bl_load_u16(p + 32 + 2 * s);
        const __m256i u =
            load_entries(iq1_bytes, idx[0] | (high << 8 & 0x700), idx[1] | (high << 4 & 0x700),
                         idx[2] | (high & 0x700), idx[3] | (high >> 4 & 0x700));
        v = add_scaled16(v, _mm256_or_si256(u, iq1_m_plus((uint16_t)high)), load256(x->q + 32 * s),
                         st.scales[s]);
    }
    return v;
}
/* Scales of 6 bits minus 32, values from a table of 16 with signs. */
BL_ALWAYS_INLINE __m256i iq4_xs_row(const char *p, const struct bl_act_block *x)
{
    const __m256i table = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113));
    const __m256i shift = _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4);
    const __m256i two = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14);
    const __m256i high = _mm256_and_si256(
        _mm256_srlv_epi32(_mm256_set1_epi32(bl_load_u16(p + 2)), two), _mm256_set1_epi32(3));
    const __m256i six =
        _mm256_or_si256(spread_nibbles(bl_load_u32(p + 4)), _mm256_slli_epi32(high, 4));
    const __m256i scale = _mm256_sub_epi32(six, _mm256_set1_epi32(32));
    struct steps st;
    store_steps(st.scales, _mm256_blend_epi16(scale, _mm256_slli_epi32(scale, 16), 0xaa));
    THROUGH_MEMORY(st);
    __m256i v = _mm256_setzero_si256();
    for (int s = 0; s < 8; s++) {
        const __m256i nibbles = _mm256_srlv_epi32(load_twice(p + 8 + 16 * s), shift);
        const __m256i q = _mm256_shuffle_epi8(table, and_bytes(nibbles, 15));
        v = add_scaled(v, _mm256_abs_epi8(q), _mm256_sign_epi8(load256(x->q + 32 * s), q),
                       st.scales[s]);
    }
    return v;
}

/* ---- groups of rows ---- */

/* unit: of a row's integers, times d */
BL_ALWAYS_INLINE void iquant_group(row_fn *row, int size, float unit, bool d_in_scales, int R,
                                   uint32_t k, float *out, const struct row_group *g,
                                   const struct bl_act_block *x)
{
    const char *w = g->w;
    __m256 acc[ROWS] = {_mm256_setzero_ps()};
    for (uint32_t b = 0; b < k / BLOCK; b++, x++, w += size) {
        prefetch(g, (size_t)b * (size_t)(R * size), R * size);
        for (int r = 0; r < R; r++) {
            const char *p = w + (size_t)r * g->stride;
            const uint16_t h = d_in_scales ? iq1_m_d(bl_load_u64(p + 48)) : bl_load_u16(p);
            const __m256 d = _mm256_set1_ps(_cvtsh_ss(h) * (unit * x->d[0]));
            acc[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(row(p, x)), d, acc[r]);
        }
    }
    store_sums(R, out, acc);
}
#define IQUANT_GROUP(type, size, unit, d_in_scales)                                                \
    BL_ALWAYS_INLINE void type##_group(int R, uint32_t k, float *out, const struct row_group *g,   \
                                       const void *x)                                              \
    {                                                                                              \
        iquant_group(type##_row, size, unit, d_in_scales, R, k, out, g, x);                        \
    }
IQUANT_GROUP(iq2_xxs, 66, 0.125f, false)
IQUANT_GROUP(iq2_xs, 74, 0.125f, false)
IQUANT_GROUP(iq2_s, 82, 0.125f, false)
IQUANT_GROUP(iq3_xxs, 98, 0.25f, false)
IQUANT_GROUP(iq3_s, 110, 1, false)
IQUANT_GROUP(iq1_s, 50, 0.125f, false)
IQUANT_GROUP(iq1_m, 56, 0.125f, true)
IQUANT_GROUP(iq4_xs, 136, 1, false)

DOT_ENTRY(TIER(dot_iq2_xxs_act_2), iq2_xxs_group, ROWS)
DOT_ENTRY(TIER(dot_iq2_xs_act_2), iq2_xs_group, ROWS)
DOT_ENTRY(TIER(dot_iq2_s_act_2), iq2_s_group, ROWS)
DOT_ENTRY(TIER(dot_iq3_xxs_act_2), iq3_xxs_group, ROWS)
DOT_ENTRY(TIER(dot_iq3_s_act_2), iq3_s_group, ROWS)
DOT_ENTRY(TIER(dot_iq1_s_act_2), iq1_s_group, ROWS)
DOT_ENTRY(TIER(dot_iq1_m_act_2), iq1_m_group, ROWS)
DOT_ENTRY(TIER(dot_iq4_xs_act_2), iq4_xs_group, ROWS)

void TIER_FN(iquant)(struct bl_cpu_kernels *t)
{
    TIER_SET(t, BL_IQ2_XXS, dot_iq2_xxs_act_2, ROWS);
    TIER_SET(t, BL_IQ2_XS, dot_iq2_xs_act_2, ROWS);
    TIER_SET(t, BL_IQ2_S, dot_iq2_s_act_2, ROWS);
    TIER_SET(t, BL_IQ3_XXS, dot_iq3_xxs_act_2, ROWS);
    TIER_SET(t, BL_IQ3_S, dot_iq3_s_act_2, ROWS);
    TIER_SET(t, BL_IQ1_S, dot_iq1_s_act_2, ROWS);
    TIER_SET(t, BL_IQ1_M, dot_iq1_m_act_2, ROWS);
    TIER_SET(t, BL_IQ4_XS, dot_iq4_xs_act_2, ROWS);
}

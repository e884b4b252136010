/* SPDX-License-Identifier: MIT */
/* AVX-512 panels of the types with values from codebooks.
 *
 * 64 indices are looked up together: four in a dword of each of 16 rows. What the tables give is a
 * byte of codes for four or for two elements; its fields, spread to the bytes of a dword, go
 * through a table of the levels and are negated where the sign bits say so. */
#include "avx512_panel.h"

#include "avx512_codebook.h"

/* Tables of 64 bytes ignore the bits of an index above their period. */
#define TIMES_8(...)                                                                               \
    __VA_ARGS__, __VA_ARGS__, __VA_ARGS__, __VA_ARGS__, __VA_ARGS__, __VA_ARGS__, __VA_ARGS__,     \
        __VA_ARGS__
static const uint8_t iq4_table[64] BL_ALIGNED(64) = IQ4_TABLE;
static const uint8_t iq2_levels[64] BL_ALIGNED(64) = {TIMES_8(8, 25, 43, 0, 8, 25, 43, 0)};
static const uint8_t iq3_levels[64] BL_ALIGNED(64) = {TIMES_8(4, 12, 20, 28, 36, 44, 52, 62)};
/* eighths plus 127 */
static const uint8_t iq1_levels[64] BL_ALIGNED(64) = {TIMES_8(119, 127, 135, 0, 119, 127, 135, 0)};

/* ---- fields and signs ---- */

/* Bytes of elements 0, 1 and of 2, 3 of four groups -> those of a group side by side: of groups 0
 * and 2, of 1 and 3. */
struct paired {
    __m512i even, odd;
};
BL_ALWAYS_INLINE struct paired pair_codes(__m512i c0, __m512i c1)
{
    const __mmask64 odd = 0xaaaaaaaaaaaaaaaa;
    return (struct paired){_mm512_mask_blend_epi8(odd, c0, _mm512_slli_epi16(c1, 8)),
                           _mm512_mask_blend_epi8(odd, _mm512_srli_epi16(c0, 8), c1)};
}
/* Group i of four: its two bytes have a field of `width` bits at bit 0 and one above. */
BL_ALWAYS_INLINE __m512i fields_of_pair(const struct paired *p, int i, int width)
{
    const long long dword = 0x08080000 | (long long)width << 8 | (long long)width << 24;
    const __m512i first = _mm512_set1_epi64(dword | (dword + 0x20202020) << 32);
    const __m512i at = _mm512_add_epi8(first, _mm512_set1_epi8((char)(16 * (i / 2))));
    return _mm512_multishift_epi64_epi8(at, i % 2 ? p->odd : p->even);
}
/* Magnitudes of group `group`, negative where bit 4 i + j of the dword of signs is set. */
BL_ALWAYS_INLINE void put_signed(const struct panel_half *h, int group, __m512i v, __m512i signs,
                                 int i)
{
    const __m512i middle = _mm512_set1_epi8(-128);
    const __mmask64 minus = _mm512_test_epi8_mask(bits_to_bytes(signs, i), _mm512_set1_epi8(16));
    put_code(h, group, _mm512_mask_sub_epi8(_mm512_add_epi8(middle, v), minus, middle, v));
}
/* The four fields of seven bits of each dword as bytes whose eighth bit is the parity of the rest,
 * signs of 32 columns. */
BL_ALWAYS_INLINE __m512i even_signs(__m512i v)
{
    const __m512i fields = _mm512_multishift_epi64_epi8(_mm512_set1_epi64(0x352e2720150e0700), v);
    return gf_bits(fields, GF_BIT(0, 0) | GF_BIT(1, 1) | GF_BIT(2, 2) | GF_BIT(3, 3) |
                               GF_BIT(4, 4) | GF_BIT(5, 5) | GF_BIT(6, 6) | 0x7f);
}
/* d times 2 s + 1 */
BL_ALWAYS_INLINE __m512 odd_times(__m512 d, __m512i s)
{
    return _mm512_mul_ps(d,
                         to_float(_mm512_add_epi32(_mm512_add_epi32(s, s), _mm512_set1_epi32(1))));
}
BL_ALWAYS_INLINE __m512 f16_times(const uint8_t *w, size_t stride, float factor)
{
    return _mm512_mul_ps(f16_low(column(w, stride)), _mm512_set1_ps(factor));
}
BL_ALWAYS_INLINE __m512i nibble_of(__m512i v, int i)
{
    return _mm512_and_si512(_mm512_srli_epi32(v, (unsigned)(4 * i)), _mm512_set1_epi32(15));
}

/* ---- IQ4_XS ---- */

BL_ALWAYS_INLINE void iq4_xs_half(const struct panel_half *h, const uint8_t *w, size_t stride,
                                  int n)
{
    __m512i head[4];
    (void)n;
    columns(w, stride, head); /* d and eight times two high bits of scales; eight low nibbles */
    const __m512 d = f16_low(head[0]);
    for (int b = 0; b < 8; b++) {
        const __m512i high = _mm512_srli_epi32(head[0], (unsigned)(12 + 2 * b));
        const __m512i s = and_or(high, _mm512_set1_epi32(0x30), nibble_of(head[1], b));
        put_scale(h, b, _mm512_mul_ps(d, to_float(_mm512_sub_epi32(s, _mm512_set1_epi32(32)))));
        put_table(h, 8 * b, w + 8 + 16 * b, stride, iq4_table);
    }
    put_undo(h, 8);
}

/* ---- IQ3: an index for four columns ---- */

BL_ALWAYS_INLINE void iq3_xxs_half(const struct panel_half *h, const uint8_t *w, size_t stride,
                                   int n)
{
    const __m512 d = f16_times(w, stride, 0.25f);
    __m512i words[8], q[4];
    (void)n;
    columns(w + 66, stride, words);
    columns(w + 82, stride, words + 4);
    for (int b = 0; b < 8; b++) {
        const __m512i signs = even_signs(words[b]);
        put_scale(h, b, odd_times(d, _mm512_srli_epi32(words[b], 28)));
        if (b % 2 == 0)
            columns(w + 2 + 8 * b, stride, q);
        for (int i = 0; i < 8; i += 4) {
            const __m512i idx = q[2 * (b % 2) + i / 4];
            const struct index ix = {idx, {_mm512_movepi8_mask(idx)}};
            const struct paired codes = pair_codes(lookup256(iq3_codes[0], 1, &ix).at[0],
                                                   lookup256(iq3_codes[1], 1, &ix).at[0]);
            for (int j = 0; j < 4; j++)
                put_signed(
                    h, 8 * b + i + j,
                    _mm512_permutexvar_epi8(fields_of_pair(&codes, j, 3), load512(iq3_levels)),
                    signs, i + j);
        }
    }
    put_undo(h, 8);
}
/* Bit i of 64 is the ninth of index i. */
BL_ALWAYS_INLINE void iq3_s_half(const struct panel_half *h, const uint8_t *w, size_t stride, int n)
{
    const __m512i sixteen = _mm512_set1_epi8(16);
    __m512i high[4], scale, q[4], signs[8];
    (void)n;
    columns(w + 66, stride, high); /* two dwords */
    columns(w + 74, stride, signs);
    columns(w + 90, stride, signs + 4);
    scale = column(w + 106, stride);
    const __m512 d = f16_low(column(w, stride));
    for (int b = 0; b < 8; b++) {
        put_scale(h, b, odd_times(d, nibble_of(scale, b)));
        if (b % 2 == 0)
            columns(w + 2 + 8 * b, stride, q);
        for (int i = 0; i < 8; i += 4) {
            const __m512i idx = q[2 * (b % 2) + i / 4];
            const __m512i ninth = bits_to_bytes(high[b / 4], 2 * (b % 4) + i / 4);
            const struct index ix = {
                idx, {_mm512_movepi8_mask(idx), _mm512_test_epi8_mask(ninth, sixteen)}};
            const struct paired codes = pair_codes(lookup512(iq3_s_codes[0], 1, &ix).at[0],
                                                   lookup512(iq3_s_codes[1], 1, &ix).at[0]);
            for (int j = 0; j < 4; j++)
                put_signed(h, 8 * b + i + j, nibble_lo(fields_of_pair(&codes, j, 4)), signs[b],
                           i + j);
        }
    }
    put_undo(h, 8);
}

/* ---- IQ2: an index for eight columns ---- */

/* 32 columns of four entries, whose first and second four codes are in c0 and c1. */
BL_ALWAYS_INLINE void put_iq2(const struct panel_half *h, int b, __m512i c0, __m512i c1,
                              __m512i signs)
{
    for (int i = 0; i < 8; i++) {
        const __m512i fields = fields_of_2(i % 2 ? c1 : c0, i / 2);
        put_signed(h, 8 * b + i, _mm512_permutexvar_epi8(fields, load512(iq2_levels)), signs, i);
    }
}
BL_ALWAYS_INLINE void iq2_xxs_half(const struct panel_half *h, const uint8_t *w, size_t stride,
                                   int n)
{
    const __m512 d = f16_times(w, stride, 0.125f);
    __m512i q[4]; /* indices and signs of a block, of the next */
    (void)n;
    for (int b = 0; b < 8; b++) {
        if (b % 2 == 0)
            columns(w + 2 + 8 * b, stride, q);
        const __m512i idx = q[2 * (b % 2)], word = q[2 * (b % 2) + 1];
        const struct index ix = {idx, {_mm512_movepi8_mask(idx)}};
        put_scale(h, b, odd_times(d, _mm512_srli_epi32(word, 28)));
        put_iq2(h, b, lookup256(iq2_codes[0], 1, &ix).at[0], lookup256(iq2_codes[1], 1, &ix).at[0],
                even_signs(word));
    }
    put_undo(h, 8);
}
/* Scales of 16 columns: nibbles of two dwords. */
BL_ALWAYS_INLINE void iq2_scales(const struct panel_half *h, __m512 d, const __m512i *nibbles)
{
    for (int i = 0; i < 16; i++)
        put_scale(h, i, odd_times(d, nibble_of(nibbles[i / 8], i % 8)));
    put_undo(h, 16);
}
/* Words of nine bits of index and seven of signs. */
BL_ALWAYS_INLINE void iq2_xs_half(const struct panel_half *h, const uint8_t *w, size_t stride,
                                  int n)
{
    /* bytes 0 and 2, 1 and 3 of a dword to its lower word */
    const __m512i low =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 0, 0, 4, 6, 0, 0, 8, 10, 0, 0, 12, 14, 0, 0));
    const __m512i high = _mm512_add_epi8(low, _mm512_set1_epi8(1));
    const __mmask32 upper = 0xaaaaaaaa;
    __m512i q[4];
    (void)n;
    for (int b = 0; b < 8; b++) {
        if (b % 2 == 0)
            columns(w + 2 + 8 * b, stride, q);
        const __m512i first = q[2 * (b % 2)], second = q[2 * (b % 2) + 1];
        const __m512i idx =
            _mm512_mask_blend_epi16(upper, _mm512_shuffle_epi8(first, low),
                                    _mm512_slli_epi32(_mm512_shuffle_epi8(second, low), 16));
        const __m512i tops =
            _mm512_mask_blend_epi16(upper, _mm512_shuffle_epi8(first, high),
                                    _mm512_slli_epi32(_mm512_shuffle_epi8(second, high), 16));
        const struct index ix = {
            idx, {_mm512_movepi8_mask(idx), _mm512_test_epi8_mask(tops, _mm512_set1_epi8(1))}};
        const __m512i signs =
            gf_bits(tops, GF_BIT(0, 1) | GF_BIT(1, 2) | GF_BIT(2, 3) | GF_BIT(3, 4) | GF_BIT(4, 5) |
                              GF_BIT(5, 6) | GF_BIT(6, 7) | 0xfe);
        put_iq2(h, b, lookup512(iq2_xs_codes[0], 1, &ix).at[0],
                lookup512(iq2_xs_codes[1], 1, &ix).at[0], signs);
    }
    columns(w + 58, stride, q); /* which ends with the block: the last two are scales */
    iq2_scales(h, f16_times(w, stride, 0.125f), q + 2);
}
/* Two bits above the eight of an index, four in a byte. */
BL_ALWAYS_INLINE void iq2_s_half(const struct panel_half *h, const uint8_t *w, size_t stride, int n)
{
    __m512i q[4], signs[4], tail[4]; /* two dwords of high bits, two of scales */
    (void)n;
    columns(w + 66, stride, tail);
    for (int b = 0; b < 8; b++) {
        if (b % 4 == 0) {
            columns(w + 2 + 4 * b, stride, q);
            columns(w + 34 + 4 * b, stride, signs);
        }
        const __m512i idx = q[b % 4], high = fields_of_2(tail[b / 4], b % 4);
        const struct index ix = {idx,
                                 {_mm512_movepi8_mask(idx),
                                  _mm512_test_epi8_mask(high, _mm512_set1_epi8(1)),
                                  _mm512_test_epi8_mask(high, _mm512_set1_epi8(2))}};
        put_iq2(h, b, lookup1024(iq2_s_codes[0], 1, &ix).at[0],
                lookup1024(iq2_s_codes[1], 1, &ix).at[0], signs[b % 4]);
    }
    iq2_scales(h, f16_times(w, stride, 0.125f), tail + 2);
}

/* ---- IQ1: an index for eight columns, whose values are an eighth more or less ---- */

/* high: bits 0 to 2 of byte i are above the eight of index i; more: 2 or 0 in its place. */
BL_ALWAYS_INLINE void put_iq1(const struct panel_half *h, int b, __m512i idx, __m512i high,
                              __m512i more)
{
    const struct index ix = {idx,
                             {_mm512_movepi8_mask(idx),
                              _mm512_test_epi8_mask(high, _mm512_set1_epi8(1)),
                              _mm512_test_epi8_mask(high, _mm512_set1_epi8(2)),
                              _mm512_test_epi8_mask(high, _mm512_set1_epi8(4))}};
    const __m512i c0 = lookup2048(iq1_codes[0], 1, &ix).at[0];
    const __m512i c1 = lookup2048(iq1_codes[1], 1, &ix).at[0];
    for (int i = 0; i < 8; i++) {
        const __m512i fields = fields_of_2(i % 2 ? c1 : c0, i / 2);
        const __m512i v = _mm512_permutexvar_epi8(fields, load512(iq1_levels));
        put_code(h, 8 * b + i, _mm512_add_epi8(v, in_bytes(more, i / 2)));
    }
}
/* Fields of `width` bits from bit `from` of each dword to its bytes. */
BL_ALWAYS_INLINE __m512i fields_from(__m512i v, int from, int width)
{
    const long long dword = 0x010000 * (2 * width) + 0x01000000LL * (3 * width) + 0x0100 * width;
    const __m512i first = _mm512_set1_epi64(dword | (dword + 0x20202020) << 32);
    return _mm512_multishift_epi64_epi8(_mm512_add_epi8(first, _mm512_set1_epi8((char)from)), v);
}
/* A word has four times three bits of index, three of scale, and the sign of the eighth. */
BL_ALWAYS_INLINE void iq1_s_half(const struct panel_half *h, const uint8_t *w, size_t stride, int n)
{
    const __m512 d = f16_times(w, stride, 0.125f);
    __m512i q[4], words[4];
    (void)n;
    columns(w + 34, stride, words);
    for (int b = 0; b < 8; b++) {
        if (b % 4 == 0)
            columns(w + 2 + 4 * b, stride, q);
        const int at = 16 * (b % 2);
        const __m512i word = _mm512_srli_epi32(words[b / 2], (unsigned)at);
        const __mmask16 less = _mm512_test_epi32_mask(word, _mm512_set1_epi32(0x8000));
        const __m512i more =
            _mm512_mask_blend_epi32(less, _mm512_set1_epi32(0x02020202), _mm512_setzero_si512());
        put_scale(
            h, b,
            odd_times(d, _mm512_and_si512(_mm512_srli_epi32(word, 12), _mm512_set1_epi32(7))));
        put_iq1(h, b, q[b % 4], fields_from(words[b / 2], at, 3), more);
    }
    put_undo(h, 8);
}
/* Nibbles have three bits of index and the sign of the eighth; four words have four scales of three
 * bits each, and above them a nibble of d. */
BL_ALWAYS_INLINE void iq1_m_half(const struct panel_half *h, const uint8_t *w, size_t stride, int n)
{
    const __m512i nibble = _mm512_set1_epi32(0xf), eight = _mm512_set1_epi8(8);
    __m512i q[4], high[4], tail[4], bits = _mm512_setzero_si512();
    (void)n;
    columns(w + 40, stride, tail); /* which ends with the block: the last two are scales */
    for (int i = 0; i < 4; i++) {
        const __m512i top = _mm512_srli_epi32(tail[2 + i / 2], (unsigned)(12 + 16 * (i % 2)));
        bits = _mm512_or_si512(bits,
                               _mm512_slli_epi32(_mm512_and_si512(top, nibble), (unsigned)(4 * i)));
    }
    const __m512 d = _mm512_mul_ps(f16_low(bits), _mm512_set1_ps(0.125f));
    for (int i = 0; i < 16; i++) {
        const int at = 16 * (i / 4 % 2) + 3 * (i % 4);
        const __m512i s = _mm512_srli_epi32(tail[2 + i / 8], (unsigned)at);
        put_scale(h, i, odd_times(d, _mm512_and_si512(s, _mm512_set1_epi32(7))));
    }
    put_undo(h, 16);
    columns(w + 32, stride, high);
    for (int b = 0; b < 8; b++) {
        if (b % 4 == 0)
            columns(w + 4 * b, stride, q);
        const __m512i fields = fields_from(high[b / 2], 16 * (b % 2), 4);
        const __mmask64 more = _mm512_testn_epi8_mask(fields, eight);
        put_iq1(h, b, q[b % 4], fields, _mm512_maskz_set1_epi8(more, 2));
    }
}

PACK_ENTRY(pack_iq4_xs, iq4_xs_half, 256, 136)
PACK_ENTRY(pack_iq3_xxs, iq3_xxs_half, 256, 98)
PACK_ENTRY(pack_iq3_s, iq3_s_half, 256, 110)
PACK_ENTRY(pack_iq2_xxs, iq2_xxs_half, 256, 66)
PACK_ENTRY(pack_iq2_xs, iq2_xs_half, 256, 74)
PACK_ENTRY(pack_iq2_s, iq2_s_half, 256, 82)
PACK_ENTRY(pack_iq1_s, iq1_s_half, 256, 50)
PACK_ENTRY(pack_iq1_m, iq1_m_half, 256, 56)
FOLD_ENTRY(iq4_xs, 256, 32, 128, -127, 113, FOLD_PLAIN)
FOLD_ENTRY(iq3_xxs, 256, 32, 128, -62, 62, FOLD_PLAIN)
FOLD_ENTRY(iq3_s, 256, 32, 128, -15, 15, FOLD_PLAIN)
FOLD_ENTRY(iq2_xxs, 256, 32, 128, -43, 43, FOLD_PLAIN)
FOLD_ENTRY(iq2_xs, 256, 16, 128, -43, 43, FOLD_PLAIN)
FOLD_ENTRY(iq2_s, 256, 16, 128, -43, 43, FOLD_PLAIN)
FOLD_ENTRY(iq1_s, 256, 32, 128, -9, 9, FOLD_PLAIN)
FOLD_ENTRY(iq1_m, 256, 16, 128, -9, 9, FOLD_PLAIN)

void bl_cpu_avx512_panel_iquant(struct bl_cpu_kernels *t)
{
    PANEL_SET(t, IQ4_XS, FORM_BY_32, 128, "iq4_xs_act_7", pack_iq4_xs, 3);
    PANEL_SET(t, IQ3_XXS, FORM_BY_32, 128, "iq3_xxs_act_7", pack_iq3_xxs, 3);
    PANEL_SET(t, IQ3_S, FORM_BY_32, 128, "iq3_s_act_7", pack_iq3_s, 3);
    PANEL_SET(t, IQ2_XXS, FORM_BY_32, 128, "iq2_xxs_act_7", pack_iq2_xxs, 3);
    PANEL_SET(t, IQ2_XS, FORM_BY_16, 128, "iq2_xs_act_7", pack_iq2_xs, 3);
    PANEL_SET(t, IQ2_S, FORM_BY_16, 128, "iq2_s_act_7", pack_iq2_s, 3);
    PANEL_SET(t, IQ1_S, FORM_BY_32, 128, "iq1_s_act_7", pack_iq1_s, 3);
    PANEL_SET(t, IQ1_M, FORM_BY_16, 128, "iq1_m_act_7", pack_iq1_m, 3);
    FOLD_SET(t, IQ4_XS, iq4_xs_fold);
    FOLD_SET(t, IQ3_XXS, iq3_xxs_fold);
    FOLD_SET(t, IQ3_S, iq3_s_fold);
    FOLD_SET(t, IQ2_XXS, iq2_xxs_fold);
    FOLD_SET(t, IQ2_XS, iq2_xs_fold);
    FOLD_SET(t, IQ2_S, iq2_s_fold);
    FOLD_SET(t, IQ1_S, iq1_s_fold);
    FOLD_SET(t, IQ1_M, iq1_m_fold);
}

/* SPDX-License-Identifier: MIT */
/* AVX-512 panels of Q2_K to Q6_K, blocks of 256.
 *
 * The 2 and 3 bit codes of Q2_K and Q3_K times their integer scales fit a byte: those types have
 * one float scale for all 256 columns, and their sums are integers to the end. */
#include "avx512_panel.h"

/* Two minima of each pair of rows: bytes 0 and 1, or 2 and 3, of a dword to its two words. */
BL_ALWAYS_INLINE __m512i byte_pair(__m512i v, int which)
{
    const __m512i low = _mm512_broadcast_i32x4(
        _mm_setr_epi8(0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1));
    const __m512i high = _mm512_broadcast_i32x4(
        _mm_setr_epi8(2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15, -1));
    return _mm512_shuffle_epi8(v, which ? high : low);
}
BL_ALWAYS_INLINE void put_minima(const struct panel_half *h, int i, __m512i pairs)
{
    _mm512_store_si512(&h->part->minima[i][h->first], pairs);
}
BL_ALWAYS_INLINE void put_min_scale(const struct panel_half *h, __m512 v)
{
    _mm512_store_ps(&h->part->min_scale[h->first], v);
}

/* ---- Q4_K, Q5_K ---- */

/* d, dmin, then eight scales and eight minima of 6 bits in 12 bytes */
BL_ALWAYS_INLINE void k45_header(const struct panel_half *h, const uint8_t *w, size_t stride)
{
    const __m512i six = _mm512_set1_epi8(63), low = _mm512_set1_epi8(15);
    const __m512i top = _mm512_set1_epi8(0x30);
    __m512i f[4];
    columns(w, stride, f);
    const __m512 d = f16_low(f[0]);
    const __m512i scale[2] = {_mm512_and_si512(f[1], six),
                              and_or(f[3], low, _mm512_and_si512(_mm512_srli_epi16(f[1], 2), top))};
    const __m512i minimum[2] = {
        _mm512_and_si512(f[2], six),
        and_or(_mm512_srli_epi16(f[3], 4), low, _mm512_and_si512(_mm512_srli_epi16(f[2], 2), top))};
    for (int j = 0; j < 8; j++)
        put_scale(h, j, _mm512_mul_ps(d, to_float(byte_of(scale[j / 4], j % 4))));
    for (int j = 0; j < 4; j++)
        put_minima(h, j, byte_pair(minimum[j / 2], j % 2));
    put_min_scale(h, f16_high(f[0]));
    put_undo(h, 8);
}
BL_ALWAYS_INLINE void q4_k_half(const struct panel_half *h, const uint8_t *w, size_t stride, int n)
{
    (void)n;
    k45_header(h, w, stride);
    for (int c = 0; c < 8; c++) { /* 16 bytes: a half of two sub-blocks */
        const int group = 16 * (c / 2) + 4 * (c % 2);
        __m512i q[4];
        columns(w + 16 + 16 * c, stride, q);
        for (int i = 0; i < 4; i++) {
            put_code(h, group + i, nibble_lo(q[i]));
            put_code(h, group + 8 + i, nibble_hi(q[i]));
        }
    }
}
/* Bit j of byte l is the fifth bit of column l of sub-block j. */
BL_ALWAYS_INLINE void q5_k_half(const struct panel_half *h, const uint8_t *w, size_t stride, int n)
{
    (void)n;
    k45_header(h, w, stride);
    for (int side = 0; side < 2; side++) { /* of the sub-blocks */
        __m512i high[4], q[4];
        columns(w + 16 + 16 * side, stride, high);
        for (int c = 0; c < 4; c++) {
            const int group = 16 * c + 4 * side;
            columns(w + 48 + 32 * c + 16 * side, stride, q);
            for (int i = 0; i < 4; i++) {
                const __m512i lo = gf_bits(high[i], GF_BIT(4, 2 * c));
                const __m512i hi = gf_bits(high[i], GF_BIT(4, 2 * c + 1));
                put_code(h, group + i, and_or(q[i], _mm512_set1_epi8(15), lo));
                put_code(h, group + 8 + i, _mm512_or_si512(nibble_hi(q[i]), hi));
            }
        }
    }
}

/* ---- Q6_K ---- */

BL_ALWAYS_INLINE void q6_k_scales(const struct panel_half *h, const uint8_t *w, size_t stride)
{
    const __m512 d = f16_high(column(w + 206, stride));
    __m512i s[4];
    columns(w + 192, stride, s);
    for (int j = 0; j < 16; j++) {
        const __m512i up = _mm512_slli_epi32(s[j / 4], (unsigned)(24 - 8 * (j % 4)));
        put_scale(h, j, _mm512_mul_ps(d, to_float(_mm512_srai_epi32(up, 24))));
    }
    put_undo(h, 16);
}
/* Of each 128 columns, four planes of 32: low nibbles of two times 32 bytes, then high ones; bits
 * 2s, 2s + 1 of other 32 bytes are above those of plane s. */
BL_ALWAYS_INLINE void q6_k_half(const struct panel_half *h, const uint8_t *w, size_t stride, int n)
{
    const __m512i low = _mm512_set1_epi8(15), top = _mm512_set1_epi8(0x30);
    (void)n;
    q6_k_scales(h, w, stride);
    for (int c = 0; c < 4; c++) {
        const int side = c % 2, group = 32 * (c / 2) + 4 * side;
        const uint8_t *ql = w + 64 * (c / 2) + 16 * side;
        __m512i a[4], b[4], high[4];
        columns(ql, stride, a);
        columns(ql + 32, stride, b);
        columns(w + 128 + 32 * (c / 2) + 16 * side, stride, high);
        for (int i = 0; i < 4; i++) {
            const __m512i planes[4] = {
                and_or(_mm512_slli_epi16(high[i], 4), top, _mm512_and_si512(a[i], low)),
                and_or(_mm512_slli_epi16(high[i], 2), top, _mm512_and_si512(b[i], low)),
                and_or(high[i], top, nibble_hi(a[i])),
                and_or(_mm512_srli_epi16(high[i], 2), top, nibble_hi(b[i]))};
            for (int s = 0; s < 4; s++)
                put_code(h, group + 8 * s + i, planes[s]);
        }
    }
}

/* ---- Q2_K, Q3_K ----
 *
 * Plane s of 32 columns is bits 2 (s % 4), 2 (s % 4) + 1 of 32 bytes, planes 4 to 7 of the next 32.
 * In a 16-bit product of two codes and a scale no carry passes from one byte to the other. */

/* Byte i of each dword in the low byte of its words. */
BL_ALWAYS_INLINE __m512i in_words(__m512i v, int i)
{
    return _mm512_maskz_mov_epi8(0x5555555555555555, in_bytes(v, i));
}
BL_ALWAYS_INLINE __m512i plane(__m512i v, int s)
{
    return gf_bits(v, GF_BIT(0, 2 * (s % 4)) | GF_BIT(1, 2 * (s % 4) + 1));
}

BL_ALWAYS_INLINE void q2_k_half(const struct panel_half *h, const uint8_t *w, size_t stride, int n)
{
    const __m512i d = column(w + 80, stride);
    __m512i head[4], q[4];
    (void)n;
    columns(w, stride, head); /* of 16 columns: scale in the low nibble, minimum in the high one */
    for (int j = 0; j < 8; j++)
        put_minima(h, j, byte_pair(nibble_hi(head[j / 2]), j % 2));
    put_scale(h, 0, f16_low(d));
    put_min_scale(h, f16_high(d));
    for (int j = 0; j < 4; j++)
        head[j] = nibble_lo(head[j]);
    for (int c = 0; c < 4; c++) {
        columns(w + 16 + 16 * c, stride, q);
        for (int s = 0; s < 4; s++) {
            const int sixteen = 8 * (c / 2) + 2 * s + c % 2;
            const __m512i scale = in_words(head[sixteen / 4], sixteen % 4);
            for (int i = 0; i < 4; i++)
                put_code(h, 4 * sixteen + i, _mm512_mullo_epi16(plane(q[i], s), scale));
        }
    }
}

/* 16 scales of 6 bits - 32, bytes of four dwords; then d. */
BL_ALWAYS_INLINE __m512 q3_k_scales(const uint8_t *w, size_t stride, __m512i scale[4])
{
    const __m512i low = _mm512_set1_epi8(15), top = _mm512_set1_epi8(0x30);
    __m512i f[4], v[3];
    columns(w + 94, stride, f); /* which ends with the block */
    for (int i = 0; i < 3; i++)
        v[i] = _mm512_or_si512(_mm512_srli_epi32(f[i], 16), _mm512_slli_epi32(f[i + 1], 16));
    const __m512i high[4] = {_mm512_slli_epi16(v[2], 4), _mm512_slli_epi16(v[2], 2), v[2],
                             _mm512_srli_epi16(v[2], 2)};
    for (int i = 0; i < 4; i++) {
        const __m512i nibbles = i < 2 ? v[i % 2] : _mm512_srli_epi16(v[i % 2], 4);
        const __m512i six = and_or(high[i], top, _mm512_and_si512(nibbles, low));
        scale[i] = _mm512_sub_epi8(six, _mm512_set1_epi8(32));
    }
    return f16_high(f[3]);
}
/* The code u in 0..7 and scale s stand for (u - 4) s. As products have to be of unsigned bytes, for
 * negative s it is (7 - u) |s| - 3 |s|. Stored plus 127, which all of -124..128 take. */
struct q3_k_factor {
    __m512i flip, scale, add;
};
BL_ALWAYS_INLINE struct q3_k_factor q3_k_factor(__m512i scale, int i)
{
    const __m512i s = in_bytes(scale, i), size = _mm512_abs_epi8(s);
    const __mmask64 negative = _mm512_movepi8_mask(s);
    const __m512i twice = _mm512_add_epi8(size, size), four = _mm512_add_epi8(twice, twice);
    const __m512i less = _mm512_mask_sub_epi8(four, negative, four, size);
    return (struct q3_k_factor){_mm512_maskz_set1_epi8(negative, 7),
                                _mm512_maskz_mov_epi8(0x5555555555555555, size),
                                _mm512_sub_epi8(_mm512_set1_epi8(127), less)};
}
BL_ALWAYS_INLINE void q3_k_half(const struct panel_half *h, const uint8_t *w, size_t stride, int n)
{
    __m512i scale[4], q[4], high[2][4];
    (void)n;
    put_scale(h, 0, q3_k_scales(w, stride, scale));
    columns(w, stride, high[0]);
    columns(w + 16, stride, high[1]);
    for (int c = 0; c < 4; c++) {
        columns(w + 32 + 16 * c, stride, q);
        for (int s = 0; s < 4; s++) {
            const int sixteen = 8 * (c / 2) + 2 * s + c % 2;
            const struct q3_k_factor f = q3_k_factor(scale[sixteen / 4], sixteen % 4);
            for (int i = 0; i < 4; i++) {
                const __m512i top = gf_bits(high[c % 2][i], GF_BIT(2, 4 * (c / 2) + s));
                /* (plane | top) ^ flip */
                const __m512i u = _mm512_ternarylogic_epi32(plane(q[i], s), top, f.flip, 0x56);
                put_code(h, 4 * sixteen + i,
                         _mm512_add_epi8(_mm512_mullo_epi16(u, f.scale), f.add));
            }
        }
    }
}

PACK_ENTRY(pack_q2_k, q2_k_half, 256, 84)
PACK_ENTRY(pack_q3_k, q3_k_half, 256, 110)
PACK_ENTRY(pack_q4_k, q4_k_half, 256, 144)
PACK_ENTRY(pack_q5_k, q5_k_half, 256, 176)
PACK_ENTRY(pack_q6_k, q6_k_half, 256, 210)
FOLD_ENTRY(q4_k, 256, 32, 8, -8, 7, FOLD_MINIMA)
FOLD_ENTRY(q5_k, 256, 32, 16, -16, 15, FOLD_MINIMA)
FOLD_ENTRY(q6_k, 256, 16, 32, -32, 31, FOLD_PLAIN)

void bl_cpu_avx512_panel_kquant(struct bl_cpu_kernels *t)
{
    PANEL_SET(t, Q2_K, FORM_WHOLE_MIN, 0, "q2_k_act_14", pack_q2_k, 3);
    PANEL_SET(t, Q3_K, FORM_WHOLE, 127, "q3_k_act_14", pack_q3_k, 3);
    PANEL_SET(t, Q4_K, FORM_BY_32_MIN, 0, "q4_k_act_7", pack_q4_k, 3);
    PANEL_SET(t, Q5_K, FORM_BY_32_MIN, 0, "q5_k_act_7", pack_q5_k, 3);
    PANEL_SET(t, Q6_K, FORM_BY_16, 32, "q6_k_act_7", pack_q6_k, 3);
    FOLD_SET(t, Q4_K, q4_k_fold);
    FOLD_SET(t, Q5_K, q5_k_fold);
    FOLD_SET(t, Q6_K, q6_k_fold);
}

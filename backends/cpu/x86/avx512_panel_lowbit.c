/* SPDX-License-Identifier: MIT */
/* AVX-512 panels of ternary and one and two bit types, and of NVFP4. */
#include "avx512_panel.h"

/* ---- ternary: one scale per 256, codes 0 to 2 stand for -1 to 1 ---- */

/* Of 16 columns, in planes of two bits as Q2_K has them. */
BL_ALWAYS_INLINE void tq2_0_half(const struct panel_half *h, const uint8_t *w, size_t stride, int n)
{
    (void)n;
    put_scale(h, 0, f16_high(column(w + 62, stride)));
    for (int c = 0; c < 4; c++) {
        __m512i q[4];
        columns(w + 16 * c, stride, q);
        for (int s = 0; s < 4; s++)
            for (int i = 0; i < 4; i++)
                put_code(h, 32 * (c / 2) + 8 * s + 4 * (c % 2) + i,
                         gf_bits(q[i], GF_BIT(0, 2 * s) | GF_BIT(1, 2 * s + 1)));
    }
}
/* A byte is a fraction of 256; the carry of three times it is a digit, what remains has the next.
 */
BL_ALWAYS_INLINE __m512i next_digit(__m512i *v)
{
    const __m512i one = _mm512_set1_epi8(1);
    const __mmask64 some = _mm512_cmpge_epu8_mask(*v, _mm512_set1_epi8(86));
    const __mmask64 two = _mm512_cmpge_epu8_mask(*v, _mm512_set1_epi8((char)171));
    const __m512i digit = _mm512_maskz_mov_epi8(some, one);
    *v = _mm512_add_epi8(*v, _mm512_add_epi8(*v, *v));
    return _mm512_mask_add_epi8(digit, two, digit, one);
}
/* 32 bytes of five digits, 16 of five, 4 of four; a digit of all bytes is columns side by side. */
BL_ALWAYS_INLINE void tq1_0_half(const struct panel_half *h, const uint8_t *w, size_t stride, int n)
{
    __m512i q[12], last = column(w + 48, stride);
    (void)n;
    for (int i = 0; i < 3; i++)
        columns(w + 16 * i, stride, q + 4 * i);
    put_scale(h, 0, f16_high(column(w + 50, stride)));
    for (int digit = 0; digit < 5; digit++) {
        for (int i = 0; i < 8; i++)
            put_code(h, 8 * digit + i, next_digit(&q[i]));
        for (int i = 0; i < 4; i++)
            put_code(h, 40 + 4 * digit + i, next_digit(&q[8 + i]));
        if (digit < 4)
            put_code(h, 60 + digit, next_digit(&last));
    }
}

/* ---- a scale for 128 and for 64 columns ---- */

BL_ALWAYS_INLINE void q1_0_half(const struct panel_half *h, const uint8_t *w, size_t stride, int n)
{
    const __m512i minus = _mm512_set1_epi8(127), plus = _mm512_set1_epi8((char)129);
    for (int at = 0; at < n; at += 128, w += 18) {
        const __m512 d = f16_low(column(w, stride));
        __m512i q[4];
        columns(w + 2, stride, q);
        for (int b = 0; b < 4; b++) {
            put_scale(h, at / 32 + b, d);
            for (int i = 0; i < 8; i++) {
                const __mmask64 set =
                    _mm512_test_epi8_mask(bits_to_bytes(q[b], i), _mm512_set1_epi8(16));
                put_code(h, at / 4 + 8 * b + i, _mm512_mask_blend_epi8(set, minus, plus));
            }
        }
    }
}
BL_ALWAYS_INLINE void q2_0_half(const struct panel_half *h, const uint8_t *w, size_t stride, int n)
{
    const __m512i three = _mm512_set1_epi8(3), off = _mm512_set1_epi8(127);
    for (int at = 0; at < n; at += 64, w += 18) {
        const __m512 d = f16_low(column(w, stride));
        __m512i q[4];
        columns(w + 2, stride, q);
        put_scale(h, at / 32, d);
        put_scale(h, at / 32 + 1, d);
        for (int i = 0; i < 16; i++) {
            const __m512i v = fields_of_2(q[i / 4], i % 4);
            put_code(h, at / 4 + i, _mm512_add_epi8(_mm512_and_si512(v, three), off));
        }
    }
}

/* ---- NVFP4: scales of 16 columns are bytes of four bits of exponent and three of mantissa ---- */

/* Half the value, the other half is in the codes. Exponent 0 is subnormal here as there; the
 * largest value is none and counts as 0. */
BL_ALWAYS_INLINE __m512 half_ue4m3(__m512i e)
{
    const __m512i bits = _mm512_slli_epi32(_mm512_and_si512(e, _mm512_set1_epi32(0x7f)), 20);
    const __mmask16 some = _mm512_cmpneq_epi32_mask(e, _mm512_set1_epi32(0x7f));
    return _mm512_maskz_mul_ps(some, _mm512_castsi512_ps(bits), _mm512_set1_ps(0x1p119f));
}
BL_ALWAYS_INLINE void nvfp4_half(const struct panel_half *h, const uint8_t *w, size_t stride, int n)
{
    static const uint8_t table[64] BL_ALIGNED(64) = FP4_TABLE;
    for (int at = 0; at < n; at += 64, w += 36) {
        const __m512i scales = column(w, stride);
        __m512i q[8];
        columns(w + 4, stride, q);
        columns(w + 20, stride, q + 4);
        for (int s = 0; s < 4; s++) {
            put_scale(h, at / 16 + s, half_ue4m3(byte_of(scales, s)));
            for (int i = 0; i < 2; i++) {
                const __m512i lo = nibble_lo(q[2 * s + i]), hi = nibble_hi(q[2 * s + i]);
                put_code(h, at / 4 + 4 * s + i, _mm512_shuffle_epi8(load512(table), lo));
                put_code(h, at / 4 + 4 * s + 2 + i, _mm512_shuffle_epi8(load512(table), hi));
            }
        }
    }
}

PACK_ENTRY(pack_tq1_0, tq1_0_half, 256, 54)
PACK_ENTRY(pack_tq2_0, tq2_0_half, 256, 66)
PACK_ENTRY(pack_q1_0, q1_0_half, 128, 18)
PACK_ENTRY(pack_q2_0, q2_0_half, 64, 18)
PACK_ENTRY(pack_nvfp4, nvfp4_half, 64, 36)

void bl_cpu_avx512_panel_lowbit(struct bl_cpu_kernels *t)
{
    PANEL_SET(t, TQ1_0, FORM_WHOLE, 1, "tq1_0_act_14", pack_tq1_0, 3);
    PANEL_SET(t, TQ2_0, FORM_WHOLE, 1, "tq2_0_act_14", pack_tq2_0, 4);
    PANEL_SET(t, Q1_0, FORM_ACT_32, 128, "q1_0_act_7", pack_q1_0, 3);
    PANEL_SET(t, Q2_0, FORM_ACT_32, 128, "q2_0_act_7", pack_q2_0, 3);
    PANEL_SET(t, NVFP4, FORM_ACT_16, 128, "nvfp4_act_7", pack_nvfp4, 4);
}

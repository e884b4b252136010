/* SPDX-License-Identifier: MIT */
/* Panels of 256 bits of the types with blocks of 32, of Q2_K to Q6_K, and IQ4_XS. */
#include "avx2_panel.h"

#define IQ4(value) (((value) + OFFSET_8_BIT) & 255)
static const uint8_t iq4_table[32] BL_ALIGNED(32) = TWICE(IQ4(-127), IQ4(-104), IQ4(-83), IQ4(-65),
                                                          IQ4(-49), IQ4(-35), IQ4(-22), IQ4(-10),
                                                          IQ4(1), IQ4(13), IQ4(25), IQ4(38),
                                                          IQ4(53), IQ4(69), IQ4(89), IQ4(113));
static const uint8_t fp4_table[32] BL_ALIGNED(32) = FP4_TABLE;

/* ---- blocks of 32 ---- */

static void q8_0_rows(const struct panel_rows *to, const uint8_t *w, size_t stride, int n)
{
    for (int b = 0; b < n / 32; b++, w += 34) {
        __m256i q[8];
        columns(w + 2, stride, q);
        columns(w + 18, stride, q + 4);
        for (int i = 0; i < 8; i++)
            put_code_8(to, 8 * b + i, q[i]);
        put_scale(to, b, f16_low(column(w, stride)));
    }
}
/* 16 bytes a row are 32 columns: low nibbles the first four groups of four, high ones the others.
 */
BL_ALWAYS_INLINE void split_nibbles(const uint8_t *w, size_t stride, __m256i code[8])
{
    columns(w, stride, code);
    for (int i = 0; i < 4; i++) {
        code[4 + i] = high_nibbles(code[i]);
        code[i] = and_bytes(code[i], 15);
    }
}
BL_ALWAYS_INLINE void put_nibbles(const struct panel_rows *to, int group, const uint8_t *w,
                                  size_t stride)
{
    __m256i code[8];
    split_nibbles(w, stride, code);
    for (int i = 0; i < 8; i++)
        put_code(to, group + i, code[i]);
}
BL_ALWAYS_INLINE void put_table(const struct panel_rows *to, int group, const uint8_t *w,
                                size_t stride, const uint8_t *table)
{
    __m256i code[8];
    split_nibbles(w, stride, code);
    for (int i = 0; i < 8; i++)
        put_code(to, group + i, _mm256_shuffle_epi8(load256(table), code[i]));
}
/* with fifth bits: bit i of each row's `high` belongs to column i */
BL_ALWAYS_INLINE void put_five_bits(const struct panel_rows *to, int group, const uint8_t *w,
                                    size_t stride, __m256i high)
{
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201080402010);
    const __m256i low_bit = _mm256_set1_epi64x(0x0804020108040201);
    const __m256i first = _mm256_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12, 0, 0,
                                           0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12);
    __m256i code[8];
    split_nibbles(w, stride, code);
    for (int i = 0; i < 8; i++) {
        const __m256i mine = i % 2 ? bit : low_bit;
        const __m256i byte =
            _mm256_shuffle_epi8(high, _mm256_add_epi8(first, _mm256_set1_epi8((char)(i / 2))));
        const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(byte, mine), mine);
        put_code(to, group + i, _mm256_or_si256(code[i], and_bytes(set, 16)));
    }
}
static void q4_0_rows(const struct panel_rows *to, const uint8_t *w, size_t stride, int n)
{
    for (int b = 0; b < n / 32; b++, w += 18) {
        put_nibbles(to, 8 * b, w + 2, stride);
        put_scale(to, b, f16_low(column(w, stride)));
    }
}
static void q4_1_rows(const struct panel_rows *to, const uint8_t *w, size_t stride, int n)
{
    for (int b = 0; b < n / 32; b++, w += 20) {
        const __m256i d_m = column(w, stride);
        put_nibbles(to, 8 * b, w + 4, stride);
        put_scale(to, b, f16_low(d_m));
        put_addend(to, b, f16_high(d_m));
    }
}
static void q5_0_rows(const struct panel_rows *to, const uint8_t *w, size_t stride, int n)
{
    for (int b = 0; b < n / 32; b++, w += 22) {
        put_five_bits(to, 8 * b, w + 6, stride, column(w + 2, stride));
        put_scale(to, b, f16_low(column(w, stride)));
    }
}
static void q5_1_rows(const struct panel_rows *to, const uint8_t *w, size_t stride, int n)
{
    for (int b = 0; b < n / 32; b++, w += 24) {
        const __m256i d_m = column(w, stride);
        put_five_bits(to, 8 * b, w + 8, stride, column(w + 4, stride));
        put_scale(to, b, f16_low(d_m));
        put_addend(to, b, f16_high(d_m));
    }
}
static void iq4_nl_rows(const struct panel_rows *to, const uint8_t *w, size_t stride, int n)
{
    for (int b = 0; b < n / 32; b++, w += 18) {
        put_table(to, 8 * b, w + 2, stride, iq4_table);
        put_scale(to, b, f16_low(column(w, stride)));
    }
}
/* 2^(e - 128) of the byte e: codes are twice the values; e of 0 and 1 are subnormal */
BL_ALWAYS_INLINE __m256 half_e8m0(__m256i e)
{
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    const __m256i tiny = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    const __m256i is_normal = _mm256_cmpgt_epi32(e, _mm256_set1_epi32(1));
    return _mm256_castsi256_ps(_mm256_blendv_epi8(tiny, normal, is_normal));
}
static void mxfp4_rows(const struct panel_rows *to, const uint8_t *w, size_t stride, int n)
{
    for (int b = 0; b < n / 32; b++, w += 17) {
        put_table(to, 8 * b, w + 1, stride, fp4_table);
        put_scale(to, b, half_e8m0(byte_of(column(w, stride), 0)));
    }
}

/* ---- blocks of 256 ---- */

BL_ALWAYS_INLINE __m256 times(__m256 d, __m256i s)
{
    return _mm256_mul_ps(d, _mm256_cvtepi32_ps(s));
}
/* Scales and minima of Q4_K and Q5_K: d, dmin, then eight of each, of 6 bits in 12 bytes. */
BL_ALWAYS_INLINE void k45_header(const struct panel_rows *to, const uint8_t *w, size_t stride)
{
    __m256i f[4];
    columns(w, stride, f);
    const __m256 d = f16_low(f[0]);
    const __m256 dmin = _mm256_sub_ps(_mm256_setzero_ps(), f16_high(f[0]));
    const __m256i scale[2] = {
        and_bytes(f[1], 63),
        _mm256_or_si256(and_bytes(f[3], 15), and_bytes(_mm256_srli_epi16(f[1], 2), 0x30))};
    const __m256i minimum[2] = {
        and_bytes(f[2], 63),
        _mm256_or_si256(high_nibbles(f[3]), and_bytes(_mm256_srli_epi16(f[2], 2), 0x30))};
    for (int j = 0; j < 8; j++) {
        put_scale(to, j, times(d, byte_of(scale[j / 4], j % 4)));
        put_addend(to, j, times(dmin, byte_of(minimum[j / 4], j % 4)));
    }
}
static void q4_k_rows(const struct panel_rows *to, const uint8_t *w, size_t stride, int n)
{
    (void)n;
    k45_header(to, w, stride);
    for (int c = 0; c < 8; c++) { /* 16 bytes: a half of two sub-blocks */
        const int group = 16 * (c / 2) + 4 * (c % 2);
        __m256i q[4];
        columns(w + 16 + 16 * c, stride, q);
        for (int i = 0; i < 4; i++) {
            put_code(to, group + i, and_bytes(q[i], 15));
            put_code(to, group + 8 + i, high_nibbles(q[i]));
        }
    }
}
/* Bit j of byte l is the fifth bit of column l of sub-block j. */
static void q5_k_rows(const struct panel_rows *to, const uint8_t *w, size_t stride, int n)
{
    (void)n;
    k45_header(to, w, stride);
    for (int side = 0; side < 2; side++) {
        __m256i high[4], q[4];
        columns(w + 16 + 16 * side, stride, high);
        for (int c = 0; c < 4; c++) {
            const int group = 16 * c + 4 * side;
            columns(w + 48 + 32 * c + 16 * side, stride, q);
            for (int i = 0; i < 4; i++) {
                const __m256i lo = and_bytes(_mm256_slli_epi16(high[i], 4), 16);
                const __m256i hi = and_bytes(_mm256_slli_epi16(high[i], 3), 16);
                put_code(to, group + i, _mm256_or_si256(and_bytes(q[i], 15), lo));
                put_code(to, group + 8 + i, _mm256_or_si256(high_nibbles(q[i]), hi));
                high[i] = _mm256_srli_epi16(high[i], 2);
            }
        }
    }
}
/* Signed byte i of each dword. */
BL_ALWAYS_INLINE __m256i signed_byte_of(__m256i v, int i)
{
    return _mm256_srai_epi32(_mm256_slli_epi32(v, 24 - 8 * i), 24);
}
static void q6_k_rows(const struct panel_rows *to, const uint8_t *w, size_t stride, int n)
{
    const __m256 d = f16_high(column(w + 206, stride));
    __m256i s[4];
    (void)n;
    columns(w + 192, stride, s);
    for (int j = 0; j < 16; j++)
        put_scale(to, j, times(d, signed_byte_of(s[j / 4], j % 4)));
    for (int c = 0; c < 4; c++) { /* of 128 columns four planes of 32 */
        const int side = c % 2, group = 32 * (c / 2) + 4 * side;
        const uint8_t *ql = w + 64 * (c / 2) + 16 * side;
        __m256i a[4], b[4], high[4];
        columns(ql, stride, a);
        columns(ql + 32, stride, b);
        columns(w + 128 + 32 * (c / 2) + 16 * side, stride, high);
        for (int i = 0; i < 4; i++) {
            const __m256i up = _mm256_slli_epi16(high[i], 4);
            const __m256i planes[4] = {
                _mm256_or_si256(and_bytes(up, 0x30), and_bytes(a[i], 15)),
                _mm256_or_si256(and_bytes(_mm256_slli_epi16(high[i], 2), 0x30),
                                and_bytes(b[i], 15)),
                _mm256_or_si256(and_bytes(high[i], 0x30), high_nibbles(a[i])),
                _mm256_or_si256(and_bytes(_mm256_srli_epi16(high[i], 2), 0x30),
                                high_nibbles(b[i]))};
            for (int p = 0; p < 4; p++)
                put_code(to, group + 8 * p + i, planes[p]);
        }
    }
}
/* The two bits of plane p of 32 columns. */
BL_ALWAYS_INLINE __m256i plane(__m256i v, int p)
{
    return and_bytes(_mm256_srli_epi16(v, 2 * p), 3);
}
static void q2_k_rows(const struct panel_rows *to, const uint8_t *w, size_t stride, int n)
{
    const __m256i d_m = column(w + 80, stride);
    const __m256 d = f16_low(d_m), dmin = _mm256_sub_ps(_mm256_setzero_ps(), f16_high(d_m));
    __m256i head[4], q[4];
    (void)n;
    columns(w, stride, head); /* of 16 columns: scale in the low nibble, minimum in the high one */
    for (int j = 0; j < 16; j++) {
        put_scale(to, j, times(d, byte_of(and_bytes(head[j / 4], 15), j % 4)));
        put_addend(to, j, times(dmin, byte_of(high_nibbles(head[j / 4]), j % 4)));
    }
    for (int c = 0; c < 4; c++) {
        columns(w + 16 + 16 * c, stride, q);
        for (int p = 0; p < 4; p++)
            for (int i = 0; i < 4; i++)
                put_code(to, 32 * (c / 2) + 8 * p + 4 * (c % 2) + i, plane(q[i], p));
    }
}
/* 16 scales of 6 bits - 32, bytes of four dwords; then d. */
BL_ALWAYS_INLINE __m256 q3_k_scales(const uint8_t *w, size_t stride, __m256i scale[4])
{
    __m256i f[4], v[3];
    columns(w + 94, stride, f); /* which ends with the block */
    for (int i = 0; i < 3; i++)
        v[i] = _mm256_or_si256(_mm256_srli_epi32(f[i], 16), _mm256_slli_epi32(f[i + 1], 16));
    const __m256i high[4] = {_mm256_slli_epi16(v[2], 4), _mm256_slli_epi16(v[2], 2), v[2],
                             _mm256_srli_epi16(v[2], 2)};
    for (int i = 0; i < 4; i++) {
        const __m256i low = i < 2 ? and_bytes(v[i], 15) : high_nibbles(v[i - 2]);
        const __m256i six = _mm256_or_si256(low, and_bytes(high[i], 0x30));
        scale[i] = _mm256_sub_epi8(six, _mm256_set1_epi8(32));
    }
    return f16_high(f[3]);
}
static void q3_k_rows(const struct panel_rows *to, const uint8_t *w, size_t stride, int n)
{
    __m256i scale[4], q[4], high[2][4];
    (void)n;
    const __m256 d = q3_k_scales(w, stride, scale);
    for (int j = 0; j < 16; j++)
        put_scale(to, j, times(d, signed_byte_of(scale[j / 4], j % 4)));
    columns(w, stride, high[0]); /* third bits: bit j of byte l of plane j of all eight */
    columns(w + 16, stride, high[1]);
    for (int c = 0; c < 4; c++) {
        columns(w + 32 + 16 * c, stride, q);
        for (int p = 0; p < 4; p++)
            for (int i = 0; i < 4; i++) {
                const __m256i at_0 = _mm256_srli_epi16(high[c % 2][i], 4 * (c / 2) + p);
                const __m256i third = _mm256_slli_epi16(and_bytes(at_0, 1), 2);
                put_code(to, 32 * (c / 2) + 8 * p + 4 * (c % 2) + i,
                         _mm256_or_si256(plane(q[i], p), third));
            }
    }
}
static void iq4_xs_rows(const struct panel_rows *to, const uint8_t *w, size_t stride, int n)
{
    const __m256i low = _mm256_set1_epi32(15), high = _mm256_set1_epi32(0x30);
    __m256i head[4];
    (void)n;
    columns(w, stride, head); /* d and eight times two high bits of scales; eight low nibbles */
    const __m256 d = f16_low(head[0]);
    for (int b = 0; b < 8; b++) {
        const __m256i s =
            _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi32(head[0], 12 + 2 * b), high),
                            _mm256_and_si256(_mm256_srli_epi32(head[1], 4 * b), low));
        put_scale(to, b, times(d, _mm256_sub_epi32(s, _mm256_set1_epi32(32))));
        put_table(to, 8 * b, w + 8 + 16 * b, stride, iq4_table);
    }
}

PACK_ENTRY(pack_q8_0, q8_0_rows, 32, 34)
PACK_ENTRY(pack_q4_0, q4_0_rows, 32, 18)
PACK_ENTRY(pack_q4_1, q4_1_rows, 32, 20)
PACK_ENTRY(pack_q5_0, q5_0_rows, 32, 22)
PACK_ENTRY(pack_q5_1, q5_1_rows, 32, 24)
PACK_ENTRY(pack_iq4_nl, iq4_nl_rows, 32, 18)
PACK_ENTRY(pack_mxfp4, mxfp4_rows, 32, 17)
PACK_ENTRY(pack_q2_k, q2_k_rows, 256, 84)
PACK_ENTRY(pack_q3_k, q3_k_rows, 256, 110)
PACK_ENTRY(pack_q4_k, q4_k_rows, 256, 144)
PACK_ENTRY(pack_q5_k, q5_k_rows, 256, 176)
PACK_ENTRY(pack_q6_k, q6_k_rows, 256, 210)
PACK_ENTRY(pack_iq4_xs, iq4_xs_rows, 256, 136)

void TIER_FN(panel_blocks)(struct bl_cpu_kernels *t)
{
    PANEL_SET(t, Q8_0, FORM_8_BIT, OFFSET_8_BIT, "q8_0_act_4", pack_q8_0, 3);
    PANEL_SET(t, Q4_0, FORM_5_BIT, 8, "q4_0_act_4", pack_q4_0, 3);
    PANEL_SET(t, Q4_1, FORM_5_BIT_ADD, 0, "q4_1_act_4", pack_q4_1, 3);
    PANEL_SET(t, Q5_0, FORM_5_BIT, 16, "q5_0_act_4", pack_q5_0, 3);
    PANEL_SET(t, Q5_1, FORM_5_BIT_ADD, 0, "q5_1_act_4", pack_q5_1, 3);
    PANEL_SET(t, IQ4_NL, FORM_8_BIT, OFFSET_8_BIT, "iq4_nl_act_4", pack_iq4_nl, 3);
    PANEL_SET(t, MXFP4, FORM_5_BIT, 12, "mxfp4_act_4", pack_mxfp4, 3);
    PANEL_SET(t, Q2_K, FORM_5_BIT_16_ADD, 0, "q2_k_act_4", pack_q2_k, 5);
    PANEL_SET(t, Q3_K, FORM_5_BIT_16, 4, "q3_k_act_4", pack_q3_k, 3);
    PANEL_SET(t, Q4_K, FORM_5_BIT_ADD, 0, "q4_k_act_4", pack_q4_k, 3);
    PANEL_SET(t, Q5_K, FORM_5_BIT_ADD, 0, "q5_k_act_4", pack_q5_k, 3);
    PANEL_SET(t, Q6_K, FORM_6_BIT_16, 32, "q6_k_act_4", pack_q6_k, 3);
    PANEL_SET(t, IQ4_XS, FORM_8_BIT, OFFSET_8_BIT, "iq4_xs_act_4", pack_iq4_xs, 3);
}

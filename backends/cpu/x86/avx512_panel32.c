/* SPDX-License-Identifier: MIT */
/* AVX-512 panels of the float types and of the types with blocks of 32. */
#include "avx512_panel.h"

/* ---- blocks of 32 ---- */

static const uint8_t iq4_table[64] BL_ALIGNED(64) = IQ4_TABLE;
static const uint8_t fp4_table[64] BL_ALIGNED(64) = FP4_TABLE;

BL_ALWAYS_INLINE void q8_0_half(const struct panel_half *h, const uint8_t *w, size_t stride, int n)
{
    const __m512i flip = _mm512_set1_epi8(-128);
    for (int b = 0; b < n / 32; b++, w += 34) {
        __m512i q[8];
        columns(w + 2, stride, q);
        columns(w + 18, stride, q + 4);
        for (int i = 0; i < 8; i++)
            put_code(h, 8 * b + i, _mm512_xor_si512(q[i], flip));
        put_scale(h, b, f16_low(column(w, stride)));
    }
}

/* 16 bytes a row: low nibbles are the first four groups of four, high ones the next. */
BL_ALWAYS_INLINE void put_nibbles(const struct panel_half *h, int group, const uint8_t *w,
                                  size_t stride)
{
    __m512i q[4];
    columns(w, stride, q);
    for (int i = 0; i < 4; i++) {
        put_code(h, group + i, nibble_lo(q[i]));
        put_code(h, group + 4 + i, nibble_hi(q[i]));
    }
}
/* the same with fifth bits: bit i of each row's `high` belongs to column i */
BL_ALWAYS_INLINE void put_five_bits(const struct panel_half *h, int group, const uint8_t *w,
                                    size_t stride, __m512i high)
{
    const __m512i sixteen = _mm512_set1_epi8(16);
    __m512i q[4], code[8];
    columns(w, stride, q);
    for (int i = 0; i < 4; i++) {
        code[i] = nibble_lo(q[i]);
        code[4 + i] = nibble_hi(q[i]);
    }
    for (int i = 0; i < 8; i++)
        put_code(h, group + i, and_or(bits_to_bytes(high, i), sixteen, code[i]));
}

BL_ALWAYS_INLINE void q4_0_half(const struct panel_half *h, const uint8_t *w, size_t stride, int n)
{
    for (int b = 0; b < n / 32; b++, w += 18) {
        put_nibbles(h, 8 * b, w + 2, stride);
        put_scale(h, b, f16_low(column(w, stride)));
    }
}
BL_ALWAYS_INLINE void put_addend(const struct panel_half *h, int i, __m512 v)
{
    _mm512_store_ps(&h->part->addend[i][h->first], v);
}
BL_ALWAYS_INLINE void q4_1_half(const struct panel_half *h, const uint8_t *w, size_t stride, int n)
{
    for (int b = 0; b < n / 32; b++, w += 20) {
        const __m512i d_m = column(w, stride);
        put_nibbles(h, 8 * b, w + 4, stride);
        put_scale(h, b, f16_low(d_m));
        put_addend(h, b, f16_high(d_m));
    }
}
BL_ALWAYS_INLINE void q5_0_half(const struct panel_half *h, const uint8_t *w, size_t stride, int n)
{
    for (int b = 0; b < n / 32; b++, w += 22) {
        __m512i head[4];
        columns(w, stride, head); /* d, then the fifth bits across two dwords */
        put_five_bits(
            h, 8 * b, w + 6, stride,
            _mm512_or_si512(_mm512_srli_epi32(head[0], 16), _mm512_slli_epi32(head[1], 16)));
        put_scale(h, b, f16_low(head[0]));
    }
}
BL_ALWAYS_INLINE void q5_1_half(const struct panel_half *h, const uint8_t *w, size_t stride, int n)
{
    for (int b = 0; b < n / 32; b++, w += 24) {
        __m512i head[4];
        columns(w, stride, head);
        put_five_bits(h, 8 * b, w + 8, stride, head[1]);
        put_scale(h, b, f16_low(head[0]));
        put_addend(h, b, f16_high(head[0]));
    }
}
BL_ALWAYS_INLINE void iq4_nl_half(const struct panel_half *h, const uint8_t *w, size_t stride,
                                  int n)
{
    for (int b = 0; b < n / 32; b++, w += 18) {
        put_table(h, 8 * b, w + 2, stride, iq4_table);
        put_scale(h, b, f16_low(column(w, stride)));
    }
}
/* 2^(e - 128) of the byte e: codes are twice the values; e of 0 and 1 are subnormal */
BL_ALWAYS_INLINE __m512 half_e8m0(__m512i e)
{
    const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    const __mmask16 tiny = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
    return _mm512_castsi512_ps(
        _mm512_mask_sllv_epi32(normal, tiny, _mm512_set1_epi32(0x00200000), e));
}
BL_ALWAYS_INLINE void mxfp4_half(const struct panel_half *h, const uint8_t *w, size_t stride, int n)
{
    for (int b = 0; b < n / 32; b++, w += 17) {
        put_table(h, 8 * b, w + 1, stride, fp4_table);
        put_scale(h, b, half_e8m0(byte_of(column(w, stride), 0)));
    }
}

PACK_ENTRY(pack_q8_0, q8_0_half, 32, 34)
PACK_ENTRY(pack_q4_0, q4_0_half, 32, 18)
PACK_ENTRY(pack_q4_1, q4_1_half, 32, 20)
PACK_ENTRY(pack_q5_0, q5_0_half, 32, 22)
PACK_ENTRY(pack_q5_1, q5_1_half, 32, 24)
PACK_ENTRY(pack_iq4_nl, iq4_nl_half, 32, 18)
PACK_ENTRY(pack_mxfp4, mxfp4_half, 32, 17)
/* 12 becomes 96: where scales are within 8 of each other nothing is lost */
FOLD_ENTRY(mxfp4, 32, 32, 128, -15.875f, 15.875f, FOLD_PLAIN)

/* ---- float types: panel[column][row] ---- */

/* out[j] = dword j of the 64 bytes at p + row * stride. As columns(), but all of a row's line is
 * taken at once: rows of floats often lie powers of two apart, and 16 lines of one set do not stay
 * in the cache. */
BL_ALWAYS_INLINE void columns_64(const uint8_t *p, size_t stride, __m512i out[16])
{
    static const __mmask16 lane[4] = {0x000f, 0x00f0, 0x0f00, 0xf000};
    __m512i z[4][4];
    for (size_t g = 0; g < 4; g++)
        for (size_t l = 0; l < 4; l++)
            for (int i = 0; i < 4; i++) {
                const __m128i v = load128(p + (4 * l + g) * stride + 16 * i);
                z[i][g] = l ? _mm512_mask_broadcast_i32x4(z[i][g], lane[l], v)
                            : _mm512_castsi128_si512(v);
            }
    for (int i = 0; i < 4; i++) {
        const __m512i a = _mm512_unpacklo_epi32(z[i][0], z[i][1]);
        const __m512i b = _mm512_unpackhi_epi32(z[i][0], z[i][1]);
        const __m512i c = _mm512_unpacklo_epi32(z[i][2], z[i][3]);
        const __m512i d = _mm512_unpackhi_epi32(z[i][2], z[i][3]);
        out[4 * i] = _mm512_unpacklo_epi64(a, c);
        out[4 * i + 1] = _mm512_unpackhi_epi64(a, c);
        out[4 * i + 2] = _mm512_unpacklo_epi64(b, d);
        out[4 * i + 3] = _mm512_unpackhi_epi64(b, d);
    }
}
BL_ALWAYS_INLINE void put_floats(enum bl_dtype type, float *to, const uint8_t *w, size_t stride)
{
    __m512i q[16];
    columns_64(w, stride, q);
    for (int i = 0; i < 16; i++) {
        const __m512i v = q[i];
        if (type == BL_F32) {
            _mm512_store_si512(to + BL_PANEL_ROWS * i, v);
        } else {
            const __m512i high = _mm512_set1_epi32((int)0xffff0000);
            float *pair = to + BL_PANEL_ROWS * 2 * i;
            const bool f16 = type == BL_F16;
            _mm512_store_ps(pair, f16 ? f16_low(v) : _mm512_castsi512_ps(_mm512_slli_epi32(v, 16)));
            _mm512_store_ps(pair + BL_PANEL_ROWS,
                            f16 ? f16_high(v) : _mm512_castsi512_ps(_mm512_and_si512(v, high)));
        }
    }
}
BL_ALWAYS_INLINE void pack_floats(enum bl_dtype type, float *panel, uint32_t n_rows,
                                  uint32_t n_cols, const uint8_t *w, size_t w_stride)
{
    const uint32_t size = type == BL_F32 ? 4 : 2, step = 64 / size;
    uint8_t spare[16 * 64] BL_ALIGNED(64);
    for (uint32_t at = 0; at < n_cols; at += step)
        for (uint32_t first = 0; first < BL_PANEL_ROWS; first += 16) {
            const uint32_t left = n_cols - at < step ? n_cols - at : step;
            const uint8_t *rows = w + first * w_stride + at * size;
            size_t stride = w_stride;
            if (n_rows < first + 16 || left < step) {
                const uint32_t beyond = n_rows > first ? n_rows - first : 0;
                copy_rows(spare, 64, beyond < 16 ? beyond : 16, left * size, rows, w_stride);
                rows = spare, stride = 64;
            }
            put_floats(type, panel + (size_t)at * BL_PANEL_ROWS + first, rows, stride);
        }
}
static void pack_f32(void *panel, uint32_t n_rows, uint32_t n_cols, const void *w, size_t w_stride)
{
    pack_floats(BL_F32, panel, n_rows, n_cols, w, w_stride);
}
static void pack_f16(void *panel, uint32_t n_rows, uint32_t n_cols, const void *w, size_t w_stride)
{
    pack_floats(BL_F16, panel, n_rows, n_cols, w, w_stride);
}
static void pack_bf16(void *panel, uint32_t n_rows, uint32_t n_cols, const void *w, size_t w_stride)
{
    pack_floats(BL_BF16, panel, n_rows, n_cols, w, w_stride);
}

void bl_cpu_avx512_panel32(struct bl_cpu_kernels *t)
{
    PANEL_SET(t, F32, FORM_FLOAT, 0, "f32_f32_14", pack_f32, 4);
    PANEL_SET(t, F16, FORM_FLOAT, 0, "f16_f32_14", pack_f16, 4);
    PANEL_SET(t, BF16, FORM_FLOAT, 0, "bf16_f32_14", pack_bf16, 4);
    PANEL_SET(t, Q8_0, FORM_ACT_32, 128, "q8_0_act_7", pack_q8_0, 3);
    PANEL_SET(t, Q4_0, FORM_ACT_32, 8, "q4_0_act_7", pack_q4_0, 3);
    PANEL_SET(t, Q4_1, FORM_ACT_32_ADD, 0, "q4_1_act_7", pack_q4_1, 3);
    PANEL_SET(t, Q5_0, FORM_ACT_32, 16, "q5_0_act_7", pack_q5_0, 3);
    PANEL_SET(t, Q5_1, FORM_ACT_32_ADD, 0, "q5_1_act_7", pack_q5_1, 3);
    PANEL_SET(t, IQ4_NL, FORM_ACT_32, 128, "iq4_nl_act_7", pack_iq4_nl, 3);
    PANEL_SET(t, MXFP4, FORM_ACT_32, 128, "mxfp4_act_7", pack_mxfp4, 3);
    FOLD_SET(t, MXFP4, mxfp4_fold);
}

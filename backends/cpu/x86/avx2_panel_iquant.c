/* SPDX-License-Identifier: MIT */
/* Panels of 256 bits of the codebook types, of one and two bit types, and of NVFP4.
 *
 * Codebook entries are loaded one by one, so blocks are unpacked row by row into a buffer that is
 * then transposed. */
#include "avx2_panel.h"

#include "avx2_codebook.h"

/* ---- codebooks ---- */

/* A block of 256 as bytes; rows a power of two apart would share cache sets. */
struct row {
    int8_t code[256 + 32] BL_ALIGNED(32);
    float scale[16];
};
typedef void row_fn(struct row *, const uint8_t *block);

BL_ALWAYS_INLINE void rows_256(row_fn *unpack, int n_scales, int offset,
                               const struct panel_rows *to, const uint8_t *w, size_t stride)
{
    struct row row[8];
    for (size_t r = 0; r < 8; r++) {
        unpack(&row[r], w + r * stride);
        for (int i = 0; i < n_scales; i++)
            to->part->scale[i][(size_t)to->first + r] = row[r].scale[i];
    }
    for (int c = 0; c < 16; c++) {
        __m256i q[4];
        columns((const uint8_t *)row[0].code + 16 * c, sizeof row[0], q);
        for (int i = 0; i < 4; i++)
            put_code(to, 4 * c + i, _mm256_add_epi8(q[i], _mm256_set1_epi8((char)offset)));
    }
}
BL_ALWAYS_INLINE void store_codes(struct row *row, int b, __m256i v)
{
    _mm256_store_si256((void *)(row->code + 32 * b), v);
}
/* d times 2 s + 1 of eight lanes, into scales 8 i to 8 i + 7 */
BL_ALWAYS_INLINE void store_odd_scales(struct row *row, int i, float d, __m256i s)
{
    const __m256i odd = _mm256_add_epi32(_mm256_add_epi32(s, s), _mm256_set1_epi32(1));
    _mm256_storeu_ps(row->scale + 8 * i, _mm256_mul_ps(_mm256_set1_ps(d), _mm256_cvtepi32_ps(odd)));
}
BL_ALWAYS_INLINE void store_nibble_scales(struct row *row, int i, float d, const uint8_t *p)
{
    const __m256i shift = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    const __m256i s = _mm256_srlv_epi32(_mm256_set1_epi32((int)bl_load_u32(p)), shift);
    store_odd_scales(row, i, d, _mm256_and_si256(s, _mm256_set1_epi32(15)));
}

static void iq2_xxs_row(struct row *row, const uint8_t *w)
{
    const __m256 a = _mm256_castsi256_ps(load256(w + 2)), b = _mm256_castsi256_ps(load256(w + 34));
    const __m256i odd = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd));
    const __m256i word = _mm256_permute4x64_epi64(odd, 0xd8);
    const uint8_t *idx = w + 2;
    uint32_t signs[8] BL_ALIGNED(32);
    _mm256_store_si256((void *)signs, xxs_signs(word));
    store_odd_scales(row, 0, load_f16(w) * 0.125f, _mm256_srli_epi32(word, 28));
    for (int s = 0; s < 8; s++, idx += 8)
        store_codes(row, s,
                    _mm256_sign_epi8(load_entries(iq2_xxs_bytes, idx[0], idx[1], idx[2], idx[3]),
                                     plus_or_minus(signs[s])));
}
static void iq2_xs_row(struct row *row, const uint8_t *w)
{
    const __m256i low = _mm256_srli_epi16(load256(w + 2), 9);
    const __m256i high = _mm256_srli_epi16(load256(w + 34), 9);
    const float d = load_f16(w) * 0.125f;
    uint32_t signs[8] BL_ALIGNED(32);
    _mm256_store_si256((void *)signs,
                       with_parity(_mm256_permute4x64_epi64(_mm256_packus_epi16(low, high), 0xd8)));
    store_nibble_scales(row, 0, d, w + 66);
    store_nibble_scales(row, 1, d, w + 70);
    for (int s = 0; s < 8; s++) {
        const uint64_t i = bl_load_u64(w + 2 + 8 * s);
        const __m256i u = load_entries(iq2_xs_bytes, i & 511, i >> 16 & 511, i >> 32 & 511,
                                       (unsigned)(i >> 48) & 511);
        store_codes(row, s, _mm256_sign_epi8(u, plus_or_minus(signs[s])));
    }
}
static void iq2_s_row(struct row *row, const uint8_t *w)
{
    const uint8_t *idx = w + 2;
    const float d = load_f16(w) * 0.125f;
    store_nibble_scales(row, 0, d, w + 74);
    store_nibble_scales(row, 1, d, w + 78);
    for (int s = 0; s < 8; s++, idx += 4) {
        const unsigned h = w[66 + s];
        const __m256i u =
            load_entries(iq2_s_bytes, idx[0] | (h << 8 & 0x300), idx[1] | (h << 6 & 0x300),
                         idx[2] | (h << 4 & 0x300), idx[3] | (h << 2 & 0x300));
        store_codes(row, s, _mm256_sign_epi8(u, plus_or_minus(bl_load_u32(w + 34 + 4 * s))));
    }
}
static void iq3_xxs_row(struct row *row, const uint8_t *w)
{
    const __m256i word = load256(w + 66);
    uint32_t signs[8] BL_ALIGNED(32);
    _mm256_store_si256((void *)signs, xxs_signs(word));
    store_odd_scales(row, 0, load_f16(w) * 0.25f, _mm256_srli_epi32(word, 28));
    for (int s = 0; s < 8; s++)
        store_codes(
            row, s,
            _mm256_sign_epi8(load_entries4(iq3_xxs_bytes, w + 2 + 8 * s), plus_or_minus(signs[s])));
}
static void iq3_s_row(struct row *row, const uint8_t *w)
{
    store_nibble_scales(row, 0, load_f16(w), w + 106);
    for (int s = 0; s < 8; s++)
        store_codes(row, s,
                    _mm256_sign_epi8(load_entries9(w + 2 + 8 * s, w[66 + s]),
                                     plus_or_minus(bl_load_u32(w + 74 + 4 * s))));
}
/* Entries are eighths plus 8; what is stored has the shift, too: 8 (value + 1) + 2 or + 0, which is
 * the code plus 9. */
static void iq1_s_row(struct row *row, const uint8_t *w)
{
    const uint8_t *idx = w + 2;
    const __m256i high = _mm256_cvtepu16_epi32(load128(w + 34));
    store_odd_scales(row, 0, load_f16(w) * 0.125f,
                     _mm256_and_si256(_mm256_srli_epi32(high, 12), _mm256_set1_epi32(7)));
    for (int s = 0; s < 8; s++, idx += 4) {
        const unsigned h = bl_load_u16(w + 34 + 2 * s);
        const __m256i u =
            load_entries(iq1_bytes, idx[0] | (h << 8 & 0x700), idx[1] | (h << 5 & 0x700),
                         idx[2] | (h << 2 & 0x700), idx[3] | (h >> 1 & 0x700));
        store_codes(row, s, _mm256_or_si256(u, _mm256_set1_epi8(h & 0x8000 ? 0 : 2)));
    }
}
static void iq1_m_row(struct row *row, const uint8_t *w)
{
    const uint64_t words = bl_load_u64(w + 48);
    const float d = _cvtsh_ss(iq1_m_d(words)) * 0.125f;
    const uint8_t *idx = w;
    for (int i = 0; i < 16; i++)
        row->scale[i] = d * (float)(2 * (words >> (16 * (i / 4) + 3 * (i % 4)) & 7) + 1);
    for (int s = 0; s < 8; s++, idx += 4) {
        const unsigned h = bl_load_u16(w + 32 + 2 * s);
        const __m256i u =
            load_entries(iq1_bytes, idx[0] | (h << 8 & 0x700), idx[1] | (h << 4 & 0x700),
                         idx[2] | (h & 0x700), idx[3] | (h >> 4 & 0x700));
        store_codes(row, s, _mm256_or_si256(u, iq1_m_plus((uint16_t)h)));
    }
}
#define ROWS_256(name, n_scales, offset, bytes)                                                    \
    static void name##_rows(const struct panel_rows *to, const uint8_t *w, size_t stride, int n)   \
    {                                                                                              \
        (void)n;                                                                                   \
        rows_256(name##_row, n_scales, offset, to, w, stride);                                     \
    }                                                                                              \
    PACK_ENTRY(pack_##name, name##_rows, 256, bytes)
ROWS_256(iq3_xxs, 8, 64, 98)
ROWS_256(iq3_s, 8, 16, 110)
ROWS_256(iq2_xxs, 8, 64, 66)
ROWS_256(iq2_xs, 16, 64, 74)
ROWS_256(iq2_s, 16, 64, 82)
ROWS_256(iq1_s, 8, 0, 50)
ROWS_256(iq1_m, 16, 0, 56)

/* ---- one and two bits: codes minus 1 are the values ---- */

BL_ALWAYS_INLINE void put_scales(const struct panel_rows *to, int from, int n, __m256 d)
{
    for (int i = from; i < from + n; i++)
        put_scale(to, i, d);
}
/* Planes of two bits, as Q2_K has them. */
static void tq2_0_rows(const struct panel_rows *to, const uint8_t *w, size_t stride, int n)
{
    (void)n;
    put_scales(to, 0, 8, f16_high(column(w + 62, stride)));
    for (int c = 0; c < 4; c++) {
        __m256i q[4];
        columns(w + 16 * c, stride, q);
        for (int s = 0; s < 4; s++)
            for (int i = 0; i < 4; i++)
                put_code(to, 32 * (c / 2) + 8 * s + 4 * (c % 2) + i,
                         and_bytes(_mm256_srli_epi16(q[i], 2 * s), 3));
    }
}
/* A byte is a fraction of 256; the carry of three times it is a digit, what remains has the next.
 */
BL_ALWAYS_INLINE __m256i next_digit(__m256i *v)
{
    const __m256i some = _mm256_set1_epi8(86), two = _mm256_set1_epi8((char)171);
    const __m256i zero = _mm256_setzero_si256();
    const __m256i less = _mm256_add_epi8(_mm256_cmpeq_epi8(_mm256_max_epu8(*v, some), *v),
                                         _mm256_cmpeq_epi8(_mm256_max_epu8(*v, two), *v));
    *v = _mm256_add_epi8(*v, _mm256_add_epi8(*v, *v));
    return _mm256_sub_epi8(zero, less);
}
/* 32 bytes of five digits, 16 of five, 4 of four; a digit of all bytes is columns side by side. */
static void tq1_0_rows(const struct panel_rows *to, const uint8_t *w, size_t stride, int n)
{
    __m256i q[12], last = column(w + 48, stride);
    (void)n;
    for (int i = 0; i < 3; i++)
        columns(w + 16 * i, stride, q + 4 * i);
    put_scales(to, 0, 8, f16_high(column(w + 50, stride)));
    for (int digit = 0; digit < 5; digit++) {
        for (int i = 0; i < 8; i++)
            put_code(to, 8 * digit + i, next_digit(&q[i]));
        for (int i = 0; i < 4; i++)
            put_code(to, 40 + 4 * digit + i, next_digit(&q[8 + i]));
        if (digit < 4)
            put_code(to, 60 + digit, next_digit(&last));
    }
}
/* Byte i of each dword in all its bytes. */
BL_ALWAYS_INLINE __m256i in_bytes(__m256i v, int i)
{
    const __m256i first = _mm256_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12, 0, 0,
                                           0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12);
    return _mm256_shuffle_epi8(v, _mm256_add_epi8(first, _mm256_set1_epi8((char)i)));
}
static void q1_0_rows(const struct panel_rows *to, const uint8_t *w, size_t stride, int n)
{
    for (int at = 0; at < n; at += 128, w += 18) {
        __m256i q[4];
        columns(w + 2, stride, q);
        put_scales(to, at / 32, 4, f16_low(column(w, stride)));
        for (int i = 0; i < 32; i++) {
            const __m256i bit = _mm256_set1_epi32(i % 2 ? (int)0x80402010 : 0x08040201);
            const __m256i four = _mm256_and_si256(in_bytes(q[i / 8], i % 8 / 2), bit);
            put_code(to, at / 4 + i, and_bytes(_mm256_cmpeq_epi8(four, bit), 2));
        }
    }
}
static void q2_0_rows(const struct panel_rows *to, const uint8_t *w, size_t stride, int n)
{
    for (int at = 0; at < n; at += 64, w += 18) {
        __m256i q[4];
        columns(w + 2, stride, q);
        put_scales(to, at / 32, 2, f16_low(column(w, stride)));
        for (int i = 0; i < 16; i++) {
            /* the byte four times; its field j is what byte j keeps, moved down */
            const __m256i v = in_bytes(q[i / 4], i % 4);
            const __m256i odd = _mm256_srli_epi16(v, 2);
            const __m256i low = _mm256_blend_epi16(v, _mm256_srli_epi16(v, 4), 0xaa);
            const __m256i high = _mm256_blend_epi16(odd, _mm256_srli_epi16(odd, 4), 0xaa);
            put_code(to, at / 4 + i,
                     and_bytes(_mm256_blendv_epi8(low, high, _mm256_set1_epi16((short)0xff00)), 3));
        }
    }
}

/* ---- NVFP4: scales of 16 columns are bytes of four bits of exponent and three of mantissa ---- */

/* Half the value, the other half is in the codes. Exponent 0 is subnormal here as there; the
 * largest value is none and counts as 0. */
BL_ALWAYS_INLINE __m256 half_ue4m3(__m256i e)
{
    const __m256i bits = _mm256_slli_epi32(_mm256_and_si256(e, _mm256_set1_epi32(0x7f)), 20);
    const __m256i none = _mm256_cmpeq_epi32(e, _mm256_set1_epi32(0x7f));
    const __m256 v = _mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(0x1p119f));
    return _mm256_andnot_ps(_mm256_castsi256_ps(none), v);
}
static void nvfp4_rows(const struct panel_rows *to, const uint8_t *w, size_t stride, int n)
{
    static const int8_t table[32] BL_ALIGNED(32) = FP4_TABLE;
    for (int at = 0; at < n; at += 64, w += 36) {
        const __m256i scales = column(w, stride);
        __m256i q[8];
        columns(w + 4, stride, q);
        columns(w + 20, stride, q + 4);
        for (int s = 0; s < 4; s++) {
            put_scale(to, at / 16 + s, half_ue4m3(byte_of(scales, s)));
            for (int i = 0; i < 2; i++) {
                const __m256i lo = and_bytes(q[2 * s + i], 15), hi = high_nibbles(q[2 * s + i]);
                put_code(to, at / 4 + 4 * s + i, _mm256_shuffle_epi8(load256(table), lo));
                put_code(to, at / 4 + 4 * s + 2 + i, _mm256_shuffle_epi8(load256(table), hi));
            }
        }
    }
}

PACK_ENTRY(pack_tq1_0, tq1_0_rows, 256, 54)
PACK_ENTRY(pack_tq2_0, tq2_0_rows, 256, 66)
PACK_ENTRY(pack_q1_0, q1_0_rows, 128, 18)
PACK_ENTRY(pack_q2_0, q2_0_rows, 64, 18)
PACK_ENTRY(pack_nvfp4, nvfp4_rows, 64, 36)

void TIER_FN(panel_iquant)(struct bl_cpu_kernels *t)
{
    PANEL_SET(t, IQ3_XXS, FORM_7_BIT, 64, "iq3_xxs_act_4", pack_iq3_xxs, 3);
    PANEL_SET(t, IQ3_S, FORM_5_BIT, 16, "iq3_s_act_4", pack_iq3_s, 3);
    PANEL_SET(t, IQ2_XXS, FORM_7_BIT, 64, "iq2_xxs_act_4", pack_iq2_xxs, 3);
    PANEL_SET(t, IQ2_XS, FORM_7_BIT_16, 64, "iq2_xs_act_4", pack_iq2_xs, 3);
    PANEL_SET(t, IQ2_S, FORM_7_BIT_16, 64, "iq2_s_act_4", pack_iq2_s, 3);
    PANEL_SET(t, IQ1_S, FORM_5_BIT, 9, "iq1_s_act_4", pack_iq1_s, 3);
    PANEL_SET(t, IQ1_M, FORM_5_BIT_16, 9, "iq1_m_act_4", pack_iq1_m, 3);
    PANEL_SET(t, TQ1_0, FORM_5_BIT, 1, "tq1_0_act_4", pack_tq1_0, 3);
    PANEL_SET(t, TQ2_0, FORM_5_BIT, 1, "tq2_0_act_4", pack_tq2_0, 3);
    PANEL_SET(t, Q1_0, FORM_5_BIT, 1, "q1_0_act_4", pack_q1_0, 3);
    PANEL_SET(t, Q2_0, FORM_5_BIT, 1, "q2_0_act_4", pack_q2_0, 3);
    PANEL_SET(t, NVFP4, FORM_5_BIT_16, 12, "nvfp4_act_4", pack_nvfp4, 3);
}

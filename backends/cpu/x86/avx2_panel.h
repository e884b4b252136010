/* SPDX-License-Identifier: MIT */
/* avx2_panel.h — what panels of 256 bits look like, between those who pack and those who multiply.
 *
 * Purpose   one form for all quantised types: codes of a byte, a float scale for 16 or 32 columns, and for some types an
 *           addend. Included by the avx2_panel files only.
 * Ownership none.
 * Units     columns in elements.
 * Errors    none.
 * Threads   pure.
 *
 * vpmaddubsw multiplies unsigned by signed bytes and adds two products in 16 bits. Codes are stored plus an offset that
 * makes them unsigned; the smaller they are, the more sums of two can be added before they are widened. Codes of 8 bits
 * stay signed: the sign goes over to the activation. With vpdpbusd all codes are unsigned, those of 8 bits plus 128. */
#ifndef BL_X86_AVX2_PANEL_H
#define BL_X86_AVX2_PANEL_H

#include "avx2.h"

/* 256 columns of 32 rows. */
struct panel_part {
    uint8_t code[64][BL_PANEL_ROWS][4]; /* of four columns */
    float scale[16][BL_PANEL_ROWS];
    float addend[16][BL_PANEL_ROWS]; /* times the sum of activations */
} BL_ALIGNED(64);
_Static_assert(BL_PANEL_COLS / 256 * sizeof(struct panel_part) <= BL_PANEL_BYTES, "a panel has room");

/* What codes are, and how many sums of two 16 bits hold: 2 * code * 127 * depth <= 32767. More than four, for codes of
 * four bits, is not faster. */
enum panel_form {
    FORM_5_BIT,     /* up to 32, depth 4; 32 columns a scale */
    FORM_5_BIT_ADD, /* with addends */
    FORM_5_BIT_16,  /* 16 columns a scale */
    FORM_5_BIT_16_ADD,
    FORM_6_BIT_16, /* up to 63, depth 2 */
    FORM_7_BIT,    /* up to 127, depth 1 */
    FORM_7_BIT_16,
    FORM_8_BIT /* signed, depth 1 */
};
/* The entry of a type of this form. offset: what codes are stored plus; one of those that avx2_panel.c arranges. */
struct bl_panel_kernel TIER_FN(panel_of)(enum panel_form, int offset, const char *name, bl_pack_fn *pack, uint8_t from);
#ifdef DPBUSD
enum { OFFSET_8_BIT = 128 };
#else
enum { OFFSET_8_BIT = 0 };
#endif
#define PANEL_SET(t, type, form, offset, tag, pack, from)                                                              \
    ((t)->panel[BL_##type] = TIER_FN(panel_of)(form, offset, "panel_" tag TIER_NAME, pack, from))

void TIER_FN(panel_blocks)(struct bl_cpu_kernels *); /* blocks of 32, Q2_K to Q6_K, IQ4_XS */
void TIER_FN(panel_iquant)(struct bl_cpu_kernels *); /* the rest of the quantised types */

/* A table of 16 bytes for each lane; that of 4-bit floats: twice the value, plus 12. */
#define TWICE(...) {__VA_ARGS__, __VA_ARGS__}
#define FP4_TABLE TWICE(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0)

/* ---- packing: 8 rows at a time, rows are the 8 lanes ---- */

/* Where 8 of the 32 rows go. */
struct panel_rows {
    struct panel_part *part;
    int first;
};
BL_ALWAYS_INLINE void put_code(const struct panel_rows *r, int group, __m256i v)
{
    _mm256_store_si256((void *)r->part->code[group][r->first], v);
}
/* a signed one */
BL_ALWAYS_INLINE void put_code_8(const struct panel_rows *r, int group, __m256i v)
{
    put_code(r, group, OFFSET_8_BIT ? _mm256_xor_si256(v, _mm256_set1_epi8((char)OFFSET_8_BIT)) : v);
}
BL_ALWAYS_INLINE void put_scale(const struct panel_rows *r, int i, __m256 v)
{
    _mm256_store_ps(&r->part->scale[i][r->first], v);
}
BL_ALWAYS_INLINE void put_addend(const struct panel_rows *r, int i, __m256 v)
{
    _mm256_store_ps(&r->part->addend[i][r->first], v);
}

/* out[j] = dword j of the 16 bytes at p + row * stride, 8 rows. */
BL_ALWAYS_INLINE void columns(const uint8_t *p, size_t stride, __m256i out[4])
{
    __m256i z[4];
    for (size_t g = 0; g < 4; g++)
        z[g] = _mm256_inserti128_si256(_mm256_castsi128_si256(load128(p + g * stride)),
                                       load128(p + (g + 4) * stride), 1);
    const __m256i a = _mm256_unpacklo_epi32(z[0], z[1]), b = _mm256_unpackhi_epi32(z[0], z[1]);
    const __m256i c = _mm256_unpacklo_epi32(z[2], z[3]), d = _mm256_unpackhi_epi32(z[2], z[3]);
    out[0] = _mm256_unpacklo_epi64(a, c), out[1] = _mm256_unpackhi_epi64(a, c);
    out[2] = _mm256_unpacklo_epi64(b, d), out[3] = _mm256_unpackhi_epi64(b, d);
}
/* The dword at p of 8 rows. */
BL_ALWAYS_INLINE __m256i column(const uint8_t *p, size_t stride)
{
    uint32_t v[8] BL_ALIGNED(32);
    for (size_t r = 0; r < 8; r++)
        v[r] = bl_load_u32(p + r * stride);
    return _mm256_setr_epi32((int)v[0], (int)v[1], (int)v[2], (int)v[3], (int)v[4], (int)v[5], (int)v[6], (int)v[7]);
}
/* The f16 in the lower, or the upper, half of each dword. */
BL_ALWAYS_INLINE __m256 f16_low(__m256i v)
{
    const __m256i low = _mm256_blend_epi16(v, _mm256_setzero_si256(), 0xaa);
    return _mm256_cvtph_ps(
        _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1)));
}
BL_ALWAYS_INLINE __m256 f16_high(__m256i v)
{
    return f16_low(_mm256_srli_epi32(v, 16));
}
BL_ALWAYS_INLINE __m256i byte_of(__m256i v, int i)
{
    return _mm256_and_si256(_mm256_srli_epi32(v, 8 * i), _mm256_set1_epi32(255));
}
BL_ALWAYS_INLINE __m256i high_nibbles(__m256i v)
{
    return and_bytes(_mm256_srli_epi16(v, 4), 15);
}

/* Packs n columns, at most 256 and whole blocks, of 8 rows. */
typedef void pack_rows_fn(const struct panel_rows *, const uint8_t *w, size_t stride, int n);

/* Less than 8 rows: those there are, and zeros, which decode to zero in every type. A row of a part has at most 272
 * bytes. */
BL_ALWAYS_INLINE void pack_parts(pack_rows_fn *body, uint32_t elems, uint32_t bytes, struct panel_part *part,
                                 uint32_t n_rows, uint32_t n_cols, const uint8_t *w, size_t w_stride)
{
    enum { STRIDE = 320 };
    uint8_t spare[8 * STRIDE] BL_ALIGNED(64);
    for (uint32_t at = 0; at < n_cols; at += 256, part++, w += 256 / elems * bytes) {
        const uint32_t n = n_cols - at < 256 ? n_cols - at : 256;
        for (uint32_t first = 0; first < BL_PANEL_ROWS; first += 8) {
            const struct panel_rows to = {part, (int)first};
            const uint8_t *rows = w + first * w_stride;
            size_t stride = w_stride;
            if (n_rows < first + 8) {
                memset(spare, 0, sizeof spare);
                for (uint32_t r = first; r < n_rows; r++)
                    memcpy(spare + (r - first) * STRIDE, w + r * w_stride, n / elems * bytes);
                rows = spare, stride = STRIDE;
            }
            body(&to, rows, stride, (int)n);
        }
    }
}
#define PACK_ENTRY(name, body, elems, bytes)                                                       \
    static void name(void *panel, uint32_t n_rows, uint32_t n_cols, const void *w,                 \
                     size_t w_stride)                                                              \
    {                                                                                              \
        pack_parts(body, elems, bytes, panel, n_rows, n_cols, w, w_stride);                        \
    }

#endif

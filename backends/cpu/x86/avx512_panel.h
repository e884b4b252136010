/* SPDX-License-Identifier: MIT */
/* avx512_panel.h — what the AVX-512 panels look like, between those who pack and those who multiply.
 *
 * Purpose   weights of any quantised type become unsigned bytes (value + offset) in the order vpdpbusd wants, and float
 *           scales; a few forms of tile serve all types. Included by the avx512_panel files only.
 * Ownership none.
 * Units     columns in elements.
 * Errors    none.
 * Threads   pure.
 *
 * Scales of weights apply to 16 or 32 columns, of activations to 32 (laws Q8_0, Q8_1) or 256 (law Q8_K). An int32 sum
 * over the columns of one scale starts at bits(1.5 * 2^23) - offset * (sum of the activations): the offset costs
 * nothing, and the finished sum, read as a float, is 1.5 * 2^23 + sum, exactly, without a conversion.
 *   law Q8_K  the constant is taken out once for 256 columns: float sums start at -1.5 * 2^23 * (sum of the scales).
 *             Rounding there adds an error of up to about 1e-6 of the norm of the terms (0.5 * 2^-23 of the constant
 *             per scale), far below that of 8-bit activations.
 *   law Q8_0  it goes in the FMA that applies the activation's scale; that product is exact but for one rounding.
 * Types whose codes times their integer scales fit a byte have the product for a code, and one scale per 256. */
#ifndef BL_X86_AVX512_PANEL_H
#define BL_X86_AVX512_PANEL_H

#include "avx512.h"

/* 256 columns of 32 rows, except float types: float[column][32]. */
struct panel_part {
    uint8_t code[64][BL_PANEL_ROWS][4]; /* of four columns */
    float scale[16][BL_PANEL_ROWS];     /* 1, 8 or 16 of them are used */
    union {
        float addend[8][BL_PANEL_ROWS];  /* per 32 columns, times the sum of activations */
        int32_t minima[8][BL_PANEL_ROWS]; /* pairs of int16, of 32 or 16 columns each */
    };
    float undo[BL_PANEL_ROWS];      /* law Q8_K: see above */
    float min_scale[BL_PANEL_ROWS]; /* of minima */
} BL_ALIGNED(64);
_Static_assert(BL_PANEL_COLS / 256 * sizeof(struct panel_part) <= BL_PANEL_BYTES, "a panel has room");

/* The forms. Each has a multiply, one arrange per offset, a width, and a part_bytes. */
enum panel_form {
    FORM_BY_32,       /* law Q8_K, scales of 32 columns */
    FORM_BY_32_MIN,   /* and minima */
    FORM_BY_16,       /* law Q8_K, scales of 16 columns */
    FORM_WHOLE,       /* law Q8_K, one scale */
    FORM_WHOLE_MIN,   /* and minima of 16 columns */
    FORM_ACT_32,      /* law Q8_0 or Q8_1 */
    FORM_ACT_32_ADD,  /* and addends */
    FORM_ACT_16,      /* law Q8_0, scales of 16 columns */
    FORM_FLOAT
};
/* Dwords of a token in a part; see fill_record of avx512_panel_arrange.c. */
enum {
    BY_32_ROWS = 64 + 8 + 1,
    BY_32_MIN_ROWS = 64 + 8 + 4 + 1,
    BY_16_ROWS = 64 + 16 + 1,
    WHOLE_ROWS = 64 + 1 + 1,
    WHOLE_MIN_ROWS = 64 + 1 + 1 + 8,
    ACT_32_ROWS = 64 + 3 * 8,
    ACT_32_ADD_ROWS = 64 + 4 * 8,
    ACT_16_ROWS = 64 + 3 * 16,
    FLOAT_ROWS = 256
};
/* The entry of a type of this form, whose codes are stored plus offset. Offsets: FORM_BY_32 128; FORM_BY_16 32 or 128;
 * FORM_WHOLE 1 or 127; FORM_ACT_32 8, 16 or 128; FORM_ACT_16 128; 0 for the rest. */
struct bl_panel_kernel bl_avx512_panel(enum panel_form, int offset, const char *name, bl_pack_fn *pack, uint8_t from);

bl_arrange_fn *bl_avx512_arrange(enum panel_form, int offset);

#define PANEL_SET(t, type, form, offset, tag, pack, from)                                           \
    ((t)->panel[BL_##type] = bl_avx512_panel(form, offset, "panel_" tag "__avx512", pack, from))

/* Folded panels have one form. Which arrange: of activations with one scale, or with eight, which get one. */
bl_multiply_fn bl_avx512_multiply_whole;
bl_arrange_fn bl_avx512_arrange_whole, bl_avx512_arrange_whole_of_32;
enum { WHOLE_TOKENS = 14, FOLD_FROM = 40 };
#define FOLD_SET(t, type, kernel) ((t)->panel[BL_##type].fold = &(kernel))

void bl_cpu_avx512_panel32(struct bl_cpu_kernels *);     /* float types and blocks of 32 */
void bl_cpu_avx512_panel_kquant(struct bl_cpu_kernels *); /* Q2_K to Q6_K */
void bl_cpu_avx512_panel_iquant(struct bl_cpu_kernels *); /* types with tables */
void bl_cpu_avx512_panel_lowbit(struct bl_cpu_kernels *); /* ternary, one and two bits, NVFP4 */

/* ---- packing: 16 rows at a time, rows are the 16 lanes ---- */

/* Where 16 of the 32 rows go. */
struct panel_half {
    struct panel_part *part;
    int first; /* 0 or 16 */
};
BL_ALWAYS_INLINE void put_code(const struct panel_half *h, int group, __m512i v)
{
    _mm512_store_si512(h->part->code[group][h->first], v);
}
BL_ALWAYS_INLINE void put_scale(const struct panel_half *h, int i, __m512 v)
{
    _mm512_store_ps(&h->part->scale[i][h->first], v);
}
BL_ALWAYS_INLINE __m512 get_scale(const struct panel_half *h, int i)
{
    return _mm512_load_ps(&h->part->scale[i][h->first]);
}
/* After the scales of a part of forms BY_32 and BY_16. */
BL_ALWAYS_INLINE void put_undo(const struct panel_half *h, int n_scales)
{
    __m512 sum = get_scale(h, 0);
    for (int i = 1; i < n_scales; i++)
        sum = _mm512_add_ps(sum, get_scale(h, i));
    _mm512_store_ps(&h->part->undo[h->first], _mm512_mul_ps(sum, _mm512_set1_ps(-0x1.8p23f)));
}

/* out[j] = dword j of the 16 bytes at p + row * stride, 16 rows. Twelve of the loads merge, which takes no shuffle. */
BL_ALWAYS_INLINE void columns(const uint8_t *p, size_t stride, __m512i out[4])
{
    __m512i z[4];
    for (int g = 0; g < 4; g++) {
        const uint8_t *r = p + (size_t)g * stride;
        z[g] = _mm512_castsi128_si512(load128(r));
        z[g] = _mm512_mask_broadcast_i32x4(z[g], 0x00f0, load128(r + 4 * stride));
        z[g] = _mm512_mask_broadcast_i32x4(z[g], 0x0f00, load128(r + 8 * stride));
        z[g] = _mm512_mask_broadcast_i32x4(z[g], 0xf000, load128(r + 12 * stride));
    }
    const __m512i a = _mm512_unpacklo_epi32(z[0], z[1]), b = _mm512_unpackhi_epi32(z[0], z[1]);
    const __m512i c = _mm512_unpacklo_epi32(z[2], z[3]), d = _mm512_unpackhi_epi32(z[2], z[3]);
    out[0] = _mm512_unpacklo_epi64(a, c), out[1] = _mm512_unpackhi_epi64(a, c);
    out[2] = _mm512_unpacklo_epi64(b, d), out[3] = _mm512_unpackhi_epi64(b, d);
}
/* The dword at p of 16 rows, by merging loads again: a gather takes a third longer (Zen 5). */
BL_ALWAYS_INLINE __m512i column(const uint8_t *p, size_t stride)
{
    __m128i z[4];
    for (int g = 0; g < 4; g++) {
        const uint8_t *r = p + (size_t)(4 * g) * stride;
        z[g] = _mm_loadu_si32(r);
        z[g] = _mm_mask_broadcastd_epi32(z[g], 2, _mm_loadu_si32(r + stride));
        z[g] = _mm_mask_broadcastd_epi32(z[g], 4, _mm_loadu_si32(r + 2 * stride));
        z[g] = _mm_mask_broadcastd_epi32(z[g], 8, _mm_loadu_si32(r + 3 * stride));
    }
    __m512i v = _mm512_inserti32x4(_mm512_castsi128_si512(z[0]), z[1], 1);
    v = _mm512_inserti32x4(v, z[2], 2);
    return _mm512_inserti32x4(v, z[3], 3);
}
/* The f16 in the lower, or the upper, half of each dword. */
BL_ALWAYS_INLINE __m512 f16_low(__m512i v)
{
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v));
}
BL_ALWAYS_INLINE __m512 f16_high(__m512i v)
{
    return f16_low(_mm512_srli_epi32(v, 16));
}
/* v & mask | more, of bytes */
BL_ALWAYS_INLINE __m512i and_or(__m512i v, __m512i mask, __m512i more)
{
    return _mm512_ternarylogic_epi32(v, mask, more, 0xea);
}
/* Byte i of each dword. */
BL_ALWAYS_INLINE __m512i byte_of(__m512i v, int i)
{
    return _mm512_and_si512(_mm512_srli_epi32(v, (unsigned)(8 * i)), _mm512_set1_epi32(255));
}

/* Bit 4 i + j of each dword as bit 4 of its byte j, other bits at random. */
BL_ALWAYS_INLINE __m512i bits_to_bytes(__m512i v, int i)
{
    /* a rotation of qwords by the bit's place - 4 */
    const __m512i first = _mm512_set1_epi64(0x1f1e1d1c3f3e3d3c);
    const __m512i at = _mm512_add_epi8(first, _mm512_set1_epi8((char)(4 * i)));
    return _mm512_multishift_epi64_epi8(at, v);
}
/* Four fields of two bits of byte i of each dword, to its bytes; above them other bits. */
BL_ALWAYS_INLINE __m512i fields_of_2(__m512i codes, int i)
{
    const __m512i first = _mm512_set1_epi64(0x2624222006040200);
    const __m512i at = _mm512_add_epi8(first, _mm512_set1_epi8((char)(8 * i)));
    return _mm512_multishift_epi64_epi8(at, codes);
}
/* Byte i of each dword in all its bytes. */
BL_ALWAYS_INLINE __m512i in_bytes(__m512i v, int i)
{
    const __m512i first =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12));
    return _mm512_shuffle_epi8(v, _mm512_add_epi8(first, _mm512_set1_epi8((char)i)));
}
/* A table of 16 bytes for each lane; and those of 4-bit floats (twice the value) and IQ4, plus 128. */
#define LANES(...) {__VA_ARGS__, __VA_ARGS__, __VA_ARGS__, __VA_ARGS__}
#define FP4_TABLE                                                                                  \
    LANES(128, 129, 130, 131, 132, 134, 136, 140, 128, 127, 126, 125, 124, 122, 120, 116)
#define IQ4_TABLE                                                                                  \
    LANES(1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241)
/* 16 bytes of each row are 32 columns: low nibbles the first four groups of four, high ones the
 * others. */
BL_ALWAYS_INLINE void put_table(const struct panel_half *h, int group, const uint8_t *w,
                                size_t stride, const uint8_t table[64])
{
    __m512i q[4];
    columns(w, stride, q);
    for (int i = 0; i < 4; i++) {
        put_code(h, group + i, _mm512_shuffle_epi8(load512(table), nibble_lo(q[i])));
        put_code(h, group + 4 + i, _mm512_shuffle_epi8(load512(table), nibble_hi(q[i])));
    }
}

/* Packs n columns, at most 256 and whole blocks, of 16 rows. */
typedef void pack_half_fn(const struct panel_half *, const uint8_t *w, size_t stride, int n);

/* Less than 16 rows: those there are, and zeros, which decode to zero in every type. */
BL_ALWAYS_INLINE void copy_rows(uint8_t *to, size_t to_stride, uint32_t rows, size_t bytes, const uint8_t *w,
                                size_t stride)
{
    memset(to, 0, 16 * to_stride);
    for (uint32_t r = 0; r < rows; r++)
        memcpy(to + r * to_stride, w + r * stride, bytes);
}
/* elems, bytes: of the type's block. A row of a part has at most 272 bytes. */
BL_ALWAYS_INLINE void pack_parts(pack_half_fn *body, uint32_t elems, uint32_t bytes, struct panel_part *part,
                                 uint32_t n_rows, uint32_t n_cols, const uint8_t *w, size_t w_stride)
{
    enum { STRIDE = 320 };
    uint8_t spare[16 * STRIDE] BL_ALIGNED(64);
    for (uint32_t at = 0; at < n_cols; at += 256, part++, w += 256 / elems * bytes) {
        const uint32_t n = n_cols - at < 256 ? n_cols - at : 256;
        for (uint32_t first = 0; first < BL_PANEL_ROWS; first += 16) {
            const struct panel_half h = {part, (int)first};
            const uint8_t *rows = w + first * w_stride;
            size_t stride = w_stride;
            if (n_rows < first + 16) {
                const uint32_t there = n_rows > first ? n_rows - first : 0;
                copy_rows(spare, STRIDE, there, n / elems * bytes, rows, w_stride);
                rows = spare, stride = STRIDE;
            }
            body(&h, rows, stride, (int)n);
        }
    }
}
#define PACK_ENTRY(name, body, elems, bytes)                                                       \
    static void name(void *panel, uint32_t n_rows, uint32_t n_cols, const void *w,                 \
                     size_t w_stride)                                                              \
    {                                                                                              \
        pack_parts(body, elems, bytes, panel, n_rows, n_cols, w, w_stride);                        \
    }

/* ---- folding: one scale for 256 columns ---- */

enum panel_fold_more { FOLD_PLAIN, FOLD_MINIMA };
/* What a packer made: codes are the offset plus least..most. */
struct panel_fold {
    int columns; /* of a scale: 32, or 16 where it is PLAIN */
    int offset;
    float least, most;
    enum panel_fold_more more;
};
void bl_avx512_fold(void *panel, uint32_t n_cols, const struct panel_fold *);

/* The kernel tag_fold, whose panels are those of pack_tag folded. Blocks of 256 go with activations of one scale. The
 * rest: of struct panel_fold. */
#define FOLD_ENTRY(tag, elems, ...)                                                                \
    static void fold_##tag(void *panel, uint32_t n_rows, uint32_t n_cols, const void *w,           \
                           size_t w_stride)                                                        \
    {                                                                                              \
        static const struct panel_fold fold = {__VA_ARGS__};                                       \
        pack_##tag(panel, n_rows, n_cols, w, w_stride);                                            \
        bl_avx512_fold(panel, n_cols, &fold);                                                      \
    }                                                                                              \
    static const struct bl_panel_kernel tag##_fold = {                                             \
        .name = "fold_" #tag "_act_14__avx512",                                                    \
        .pack = fold_##tag,                                                                        \
        .arrange = (elems) == 256 ? bl_avx512_arrange_whole : bl_avx512_arrange_whole_of_32,       \
        .multiply = bl_avx512_multiply_whole,                                                      \
        .part_bytes = 4 * WHOLE_ROWS,                                                              \
        .tokens = WHOLE_TOKENS,                                                                    \
        .from = FOLD_FROM};

#endif

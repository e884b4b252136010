/* SPDX-License-Identifier: MIT */
/* AVX-512 panels: how tiles of tokens are laid out.
 *
 * A tile's part of 256 columns is a matrix of dwords [row][token]: 64 rows of four activations,
 * then rows of start values, of scales and of what else the form needs. The tokens of a row lie
 * side by side, so a tile has any width. */
#include <math.h>

#include "avx512_panel.h"

enum { START = 0x4b400000 }; /* bits of 1.5 * 2^23 */

/* What follows a token's 64 dwords of activations, in the order of the rows. */
struct record {
    int32_t dword[48] BL_ALIGNED(64);
};
BL_ALWAYS_INLINE __m512i starts(__m512i sums, int offset, int from)
{
    const __m512i off = _mm512_mullo_epi32(sums, _mm512_set1_epi32(offset));
    return _mm512_sub_epi32(_mm512_set1_epi32(from), off);
}
/* d rounded to 22 bits, so that 1.5 * 2^23 d is exact (a change of at most 2^-22) */
BL_ALWAYS_INLINE __m512 short_scale(__m512 d)
{
    const __m512i up = _mm512_add_epi32(_mm512_castps_si512(d), _mm512_set1_epi32(2));
    return _mm512_castsi512_ps(_mm512_and_si512(up, _mm512_set1_epi32(-4)));
}
BL_ALWAYS_INLINE void fill_act_32(struct record *r, const struct bl_act_block *x, __m256i sums,
                                  int offset, bool add)
{
    const __m512i start = starts(_mm512_castsi256_si512(sums), offset, START);
    const __m256 d =
        _mm512_castps512_ps256(short_scale(_mm512_castps256_ps512(_mm256_load_ps(x->d))));
    _mm256_store_si256((void *)r->dword, _mm512_castsi512_si256(start));
    _mm256_store_ps((void *)(r->dword + 8), d);
    _mm256_store_ps((void *)(r->dword + 16), _mm256_mul_ps(d, _mm256_set1_ps(0x1.8p23f)));
    if (add)
        _mm256_store_ps((void *)(r->dword + 24), _mm256_mul_ps(d, _mm256_cvtepi32_ps(sums)));
}
BL_ALWAYS_INLINE void fill_act_16(struct record *r, const struct bl_act_block *x, __m512i sums,
                                  int offset)
{
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const __m512 d =
        short_scale(_mm512_permutexvar_ps(twice, _mm512_castps256_ps512(_mm256_load_ps(x->d))));
    _mm512_store_si512(r->dword, starts(sums, offset, START));
    _mm512_store_ps(r->dword + 16, d);
    _mm512_store_ps(r->dword + 32, _mm512_mul_ps(d, _mm512_set1_ps(0x1.8p23f)));
}
BL_ALWAYS_INLINE void fill_record(enum panel_form form, int offset, struct record *r,
                                  const struct bl_act_block *x)
{
    const __m256i words = load256(x->sum);
    const __m512i by_16 = _mm512_cvtepi16_epi32(words);
    const __m256i by_32 = _mm256_madd_epi16(words, _mm256_set1_epi16(1));
    const __m512i start_32 = starts(_mm512_castsi256_si512(by_32), offset, START);
    const int32_t total = _mm512_reduce_add_epi32(by_16);
    int32_t d;
    memcpy(&d, x->d, sizeof d);
    switch (form) {
    case FORM_BY_32:
        _mm256_store_si256((void *)r->dword, _mm512_castsi512_si256(start_32));
        r->dword[8] = d;
        break;
    case FORM_BY_32_MIN:
        _mm256_store_si256((void *)r->dword, _mm512_castsi512_si256(start_32));
        _mm_store_si128((void *)(r->dword + 8), _mm256_cvtepi32_epi16(by_32));
        r->dword[12] = d;
        break;
    case FORM_BY_16:
        _mm512_store_si512(r->dword, starts(by_16, offset, START));
        r->dword[16] = d;
        break;
    case FORM_WHOLE:
    case FORM_WHOLE_MIN: /* one conversion for 256 columns is no reason to lose bits */
        r->dword[0] = -offset * total;
        r->dword[1] = d;
        if (form == FORM_WHOLE_MIN)
            memcpy(r->dword + 2, x->sum, sizeof x->sum);
        break;
    case FORM_ACT_16:
        fill_act_16(r, x, by_16, offset);
        break;
    default:
        fill_act_32(r, x, by_32, offset, form == FORM_ACT_32_ADD);
    }
}

/* dst[row][token] = dword `row` of four tokens of a tile that has n_tok, for `rows` rows, at most
 * 16. m: which of the four, all = all. */
BL_ALWAYS_INLINE void deal_four(int32_t *dst, size_t n_tok, uint32_t rows, bool all, __mmask8 m,
                                const int32_t *const x[4])
{
    const __m512i v0 = load512(x[0]), v1 = load512(x[1]), v2 = load512(x[2]), v3 = load512(x[3]);
    const __m512i a = _mm512_unpacklo_epi32(v0, v1), b = _mm512_unpackhi_epi32(v0, v1);
    const __m512i c = _mm512_unpacklo_epi32(v2, v3), d = _mm512_unpackhi_epi32(v2, v3);
    const __m512i q[4] = {_mm512_unpacklo_epi64(a, c), _mm512_unpackhi_epi64(a, c),
                          _mm512_unpacklo_epi64(b, d), _mm512_unpackhi_epi64(b, d)};
/* The store apart from the extraction: gcc makes them one instruction, which faults at what the
 * mask leaves out. */
#define PUT(row)                                                                                   \
    if (row < rows) {                                                                              \
        __m128i four = _mm512_extracti32x4_epi32(q[row % 4], row / 4);                             \
        if (!all)                                                                                  \
            __asm__("" : "+v"(four));                                                              \
        if (all)                                                                                   \
            _mm_storeu_si128((void *)(dst + row * n_tok), four);                                   \
        else                                                                                       \
            _mm_mask_storeu_epi32(dst + row * n_tok, m, four);                                     \
    }
#define PUT_4(row) PUT((row)) PUT((row + 1)) PUT((row + 2)) PUT((row + 3))
    PUT_4(0)
    PUT_4(4)
    PUT_4(8)
    PUT_4(12)
#undef PUT_4
#undef PUT
}
BL_ALWAYS_INLINE void deal_rows(int32_t *dst, uint32_t n_tok, uint32_t rows,
                                const int32_t *const *x, uint32_t from)
{
    if (n_tok < 4) {
        const int32_t *four[4];
        for (uint32_t t = 0; t < 4; t++)
            four[t] = x[t < n_tok ? t : 0] + from;
        deal_four(dst, n_tok, rows, false, (__mmask8)((1u << n_tok) - 1), four);
        return;
    }
    /* the last four tokens overlap the four before where n_tok is no multiple of four */
    for (uint32_t t = 0; t < n_tok; t += 4) {
        const uint32_t first = t + 4 <= n_tok ? t : n_tok - 4;
        const int32_t *const four[4] = {x[first] + from, x[first + 1] + from, x[first + 2] + from,
                                        x[first + 3] + from};
        deal_four(dst + first, n_tok, rows, true, 15, four);
    }
}
/* x[t]: `rows` dwords of each token, readable to a multiple of 16 */
BL_ALWAYS_INLINE void deal(int32_t *dst, uint32_t n_tok, uint32_t rows, const int32_t *const *x)
{
    uint32_t r = 0;
    for (; r + 16 <= rows; r += 16, dst += 16 * (size_t)n_tok)
        deal_rows(dst, n_tok, 16, x, r);
    if (r < rows)
        deal_rows(dst, n_tok, rows - r, x, r);
}
/* apart, so that it is there once */
static void deal_activations(int32_t *dst, uint32_t n_tok, const int32_t *const *x)
{
    deal(dst, n_tok, 64, x);
}

BL_ALWAYS_INLINE void arrange_act(enum panel_form form, int offset, uint32_t rows, int32_t *tile,
                                  uint32_t n_tok, uint32_t k, const void *const *x)
{
    const int32_t *q[BL_TILE_TOKENS], *rest[BL_TILE_TOKENS];
    struct record record[BL_TILE_TOKENS];
    for (uint32_t b = 0; b < bl_act_blocks(k); b++, tile += rows * n_tok) {
        for (uint32_t t = 0; t < n_tok; t++) {
            const struct bl_act_block *a = (const struct bl_act_block *)x[t] + b;
            q[t] = (const int32_t *)(const void *)a->q;
            rest[t] = record[t].dword;
            fill_record(form, offset, &record[t], a);
        }
        deal_activations(tile, n_tok, q);
        deal(tile + 64 * n_tok, n_tok, rows - 64, rest);
    }
}
#define ARRANGE(name, form, offset, rows)                                                          \
    void name(void *tile, uint32_t n_tok, uint32_t k, const void *const *x)                        \
    {                                                                                              \
        arrange_act(form, offset, rows, tile, n_tok, k, x);                                        \
    }
/* clang-format off */
static ARRANGE(arrange_by_32, FORM_BY_32, 128, BY_32_ROWS)
static ARRANGE(arrange_by_32_min, FORM_BY_32_MIN, 0, BY_32_MIN_ROWS)
static ARRANGE(arrange_by_16, FORM_BY_16, 128, BY_16_ROWS)
static ARRANGE(arrange_by_16_off_32, FORM_BY_16, 32, BY_16_ROWS)
static ARRANGE(arrange_whole_off_1, FORM_WHOLE, 1, WHOLE_ROWS)
static ARRANGE(arrange_whole_off_127, FORM_WHOLE, 127, WHOLE_ROWS)
ARRANGE(bl_avx512_arrange_whole, FORM_WHOLE, 128, WHOLE_ROWS)
static ARRANGE(arrange_whole_min, FORM_WHOLE_MIN, 0, WHOLE_MIN_ROWS)
static ARRANGE(arrange_act_32, FORM_ACT_32, 128, ACT_32_ROWS)
static ARRANGE(arrange_act_32_off_16, FORM_ACT_32, 16, ACT_32_ROWS)
static ARRANGE(arrange_act_32_off_8, FORM_ACT_32, 8, ACT_32_ROWS)
static ARRANGE(arrange_act_32_add, FORM_ACT_32_ADD, 0, ACT_32_ADD_ROWS)
static ARRANGE(arrange_act_16, FORM_ACT_16, 128, ACT_16_ROWS)

/* 256 activations of eight scales, by the largest of them. */
struct rescaled {
    int8_t q[256];
    int32_t dword[16]; /* as of struct record */
} BL_ALIGNED(64);
/* clang-format on */

BL_ALWAYS_INLINE void rescale(struct rescaled *r, const struct bl_act_block *x)
{
    const __m256 d = _mm256_load_ps(x->d);
    const float most = _mm512_reduce_max_ps(_mm512_broadcast_f32x8(d));
    const __mmask8 some = _mm256_cmp_ps_mask(d, _mm256_set1_ps(0), _CMP_GT_OQ);
    const __m256 ratio = _mm256_maskz_div_ps(some, d, _mm256_set1_ps(most));
    const __m256i factor = _mm256_cvtps_epi32(_mm256_mul_ps(ratio, _mm256_set1_ps(INT16_MAX)));
    __m512i sums = _mm512_setzero_si512();
    for (int j = 0; j < 8; j++) {
        const __m512i by = _mm512_permutexvar_epi16(_mm512_set1_epi16((short)(2 * j)),
                                                    _mm512_castsi256_si512(factor));
        const __m512i q = _mm512_cvtepi8_epi16(load256(x->q + 32 * j));
        const __m512i v = _mm512_mulhrs_epi16(q, by);
        sums = _mm512_dpwssd_epi32(sums, v, _mm512_set1_epi16(1));
        _mm256_store_si256((void *)(r->q + 32 * j), _mm512_cvtepi16_epi8(v));
    }
    const bool number = _mm256_cmp_ps_mask(d, d, _CMP_UNORD_Q) == 0;
    const float scale = number ? most : NAN;
    r->dword[0] = -128 * _mm512_reduce_add_epi32(sums);
    memcpy(&r->dword[1], &scale, sizeof scale);
}
void bl_avx512_arrange_whole_of_32(void *tile, uint32_t n_tok, uint32_t k, const void *const *x)
{
    const int32_t *q[BL_TILE_TOKENS], *rest[BL_TILE_TOKENS];
    struct rescaled of[BL_TILE_TOKENS];
    int32_t *to = tile;
    for (uint32_t b = 0; b < bl_act_blocks(k); b++, to += WHOLE_ROWS * n_tok) {
        for (uint32_t t = 0; t < n_tok; t++) {
            rescale(&of[t], (const struct bl_act_block *)x[t] + b);
            q[t] = (const int32_t *)(const void *)of[t].q;
            rest[t] = of[t].dword;
        }
        deal_activations(to, n_tok, q);
        deal(to + 64 * n_tok, n_tok, WHOLE_ROWS - 64, rest);
    }
}

static void arrange_float(void *tile, uint32_t n_tok, uint32_t k, const void *const *x)
{
    const int32_t *row[BL_TILE_TOKENS];
    int32_t *to = tile, last[BL_TILE_TOKENS][256];
    for (uint32_t at = 0; at < k; at += 256, to += 256 * n_tok) {
        for (uint32_t t = 0; t < n_tok; t++) {
            row[t] = (const int32_t *)x[t] + at;
            if (k - at >= 256)
                continue;
            memset(last[t], 0, sizeof last[t]);
            memcpy(last[t], row[t], (k - at) * sizeof(float));
            row[t] = last[t];
        }
        deal(to, n_tok, 256, row);
    }
}

/* ---- which serves ---- */

bl_arrange_fn *bl_avx512_arrange(enum panel_form form, int offset)
{
    static const struct {
        enum panel_form form;
        int offset;
        bl_arrange_fn *arrange;
    } all[] = {
        {FORM_BY_32, 128, arrange_by_32},         {FORM_BY_32_MIN, 0, arrange_by_32_min},
        {FORM_BY_16, 32, arrange_by_16_off_32},   {FORM_BY_16, 128, arrange_by_16},
        {FORM_WHOLE, 1, arrange_whole_off_1},     {FORM_WHOLE, 127, arrange_whole_off_127},
        {FORM_WHOLE_MIN, 0, arrange_whole_min},   {FORM_ACT_32, 8, arrange_act_32_off_8},
        {FORM_ACT_32, 16, arrange_act_32_off_16}, {FORM_ACT_32, 128, arrange_act_32},
        {FORM_ACT_32_ADD, 0, arrange_act_32_add}, {FORM_ACT_16, 128, arrange_act_16},
        {FORM_FLOAT, 0, arrange_float},
    };
    size_t i = 0;
    while (i + 1 < BL_COUNT(all) && (all[i].form != form || all[i].offset != offset))
        i++;
    return all[i].arrange;
}

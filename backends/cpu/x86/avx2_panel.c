/* SPDX-License-Identifier: MIT */
/* Panels of 256 bits: tiles of up to four tokens, and their products with a panel; and the packing
 * of types that have no packer of their own.
 *
 * A tile's part of 256 columns is a matrix of dwords [row][token]: 64 rows of four activations,
 * then for each scale of the panel a row of start values, of scales, and of scaled sums for
 * addends. Every width does the same operations in the same order for a token. */
#include "avx2_panel.h"

enum { TOKENS = 4, HALF = 2 /* registers of eight rows */ };

/* What differs between the forms; constant in each kernel. */
struct form {
    int groups; /* of four columns, of a scale */
    int depth;  /* groups added in 16 bits, without vpdpbusd */
    bool add, is_signed;
};

/* ---- one scale of 16 rows and T tokens ---- */

BL_ALWAYS_INLINE __m256i all_of(const int32_t *x)
{
    return _mm256_set1_epi32(*x);
}
/* An addition of its own: gcc would regroup a chain of them, form all products first and spill them
 * (a third lost). */
#define IN_ORDER(v) __asm__("" : "+x"(v))
#ifndef DPBUSD
/* Sums of pairs over `depth` groups, in 16 bits. */
BL_ALWAYS_INLINE void sum_groups(const struct form *f, int T, const uint8_t (*w)[BL_PANEL_ROWS][4],
                                 const int32_t *x, __m256i s[TOKENS][HALF])
{
    for (int g = 0; g < f->depth; g++, w++, x += T) {
        __m256i v[HALF], size[HALF];
        for (int h = 0; h < HALF; h++) {
            v[h] = load256((*w)[8 * h]);
            size[h] = f->is_signed ? _mm256_abs_epi8(v[h]) : v[h];
        }
        for (int t = 0; t < T; t++) {
            const __m256i q = all_of(x + t);
            for (int h = 0; h < HALF; h++) {
                const __m256i p = dot2(size[h], f->is_signed ? _mm256_sign_epi8(q, v[h]) : q);
                s[t][h] = g == 0 ? p : _mm256_add_epi16(s[t][h], p);
                IN_ORDER(s[t][h]);
            }
        }
    }
}
#endif
/* acc += products of the columns of a scale */
BL_ALWAYS_INLINE void dot_columns(const struct form *f, int T, const uint8_t (*w)[BL_PANEL_ROWS][4],
                                  const int32_t *x, __m256i acc[TOKENS][HALF])
{
#ifdef DPBUSD
    for (int g = 0; g < f->groups; g++, w++, x += T) {
        const __m256i v[HALF] = {load256((*w)[0]), load256((*w)[8])};
        for (int t = 0; t < T; t++) {
            const __m256i q = all_of(x + t);
            for (int h = 0; h < HALF; h++) {
                acc[t][h] = dot4(acc[t][h], v[h], q);
                IN_ORDER(acc[t][h]);
            }
        }
    }
#else
    __m256i s[TOKENS][HALF];
    for (int g = 0; g < f->groups; g += f->depth) {
        sum_groups(f, T, w + g, x + g * T, s);
        for (int t = 0; t < T; t++)
            for (int h = 0; h < HALF; h++)
                acc[t][h] = add_words(acc[t][h], s[t][h], _mm256_set1_epi16(1));
    }
#endif
}
/* c[t] += scale * x's scale * sum (+ addend * x's sum). rest: the rows behind the activations, of
 * the first scale; n: scales of a part; i: which one. */
BL_ALWAYS_INLINE void add_block(const struct form *f, int T, float *c,
                                const struct panel_part *part, int first, const int32_t *x,
                                const int32_t *rest, int i)
{
    const int n = 64 / f->groups;
    const int32_t *start = rest + i * T;
    const int32_t *scale = rest + (n + i) * T, *sums = rest + (2 * n + i) * T; /* floats */
    const uint8_t(*w)[BL_PANEL_ROWS][4] =
        (const uint8_t(*)[BL_PANEL_ROWS][4])(const void *)part->code[i * f->groups][first];
    __m256i acc[TOKENS][HALF];
    x += i * f->groups * T;
    for (int t = 0; t < T; t++)
        for (int h = 0; h < HALF; h++)
            acc[t][h] = f->is_signed ? _mm256_setzero_si256() : all_of(start + t);
    dot_columns(f, T, w, x, acc);
    for (int t = 0; t < T; t++)
        for (int h = 0; h < HALF; h++) {
            float *to = c + t * BL_PANEL_ROWS + first + 8 * h;
            const __m256 v = _mm256_mul_ps(_mm256_cvtepi32_ps(acc[t][h]),
                                           _mm256_castsi256_ps(all_of(scale + t)));
            __m256 sum = _mm256_load_ps(to);
            sum = _mm256_fmadd_ps(v, _mm256_load_ps(&part->scale[i][first + 8 * h]), sum);
            if (f->add)
                sum = _mm256_fmadd_ps(_mm256_castsi256_ps(all_of(sums + t)),
                                      _mm256_load_ps(&part->addend[i][first + 8 * h]), sum);
            _mm256_store_ps(to, sum);
        }
}

/* ---- multiply ---- */

BL_ALWAYS_INLINE uint32_t rows_of(const struct form *f)
{
    return 64 + (f->add ? 3 : 2) * (64 / (uint32_t)f->groups);
}
BL_ALWAYS_INLINE void multiply_width(const struct form *f, int T, float *c,
                                     const struct panel_part *part, const int32_t *tile,
                                     uint32_t n_cols)
{
    const uint32_t columns = 4 * (uint32_t)f->groups;
    for (uint32_t at = 0; at < n_cols; at += 256, part++, tile += rows_of(f) * (uint32_t)T) {
        const uint32_t n = n_cols - at < 256 ? n_cols - at : 256;
        for (int first = 0; first < BL_PANEL_ROWS; first += 8 * HALF)
            for (int i = 0; i < (int)(n / columns); i++)
                add_block(f, T, c, part, first, tile, tile + 64 * T, i);
    }
}
BL_ALWAYS_INLINE void multiply(const struct form *f, float *c, const void *panel, const void *tile,
                               uint32_t n_tok, uint32_t n_cols, bool add)
{
    if (!add)
        memset(c, 0, n_tok * BL_PANEL_ROWS * sizeof *c);
    switch (n_tok) {
    case 1:
        multiply_width(f, 1, c, panel, tile, n_cols);
        break;
    case 2:
        multiply_width(f, 2, c, panel, tile, n_cols);
        break;
    case 3:
        multiply_width(f, 3, c, panel, tile, n_cols);
        break;
    default:
        multiply_width(f, 4, c, panel, tile, n_cols);
    }
}

/* ---- arrange ---- */

BL_ALWAYS_INLINE __m256i load_row(const void *x, uint32_t row)
{
    return load256((const char *)x + 4 * (size_t)row);
}
/* dst[row][token] = dword `row` of each token, a multiple of eight rows. */
static void deal(int32_t *dst, uint32_t n_tok, uint32_t rows, const void *const *x)
{
    if (n_tok < TOKENS) {
        for (uint32_t r = 0; r < rows; r++)
            for (uint32_t t = 0; t < n_tok; t++)
                memcpy(dst++, (const char *)x[t] + 4 * (size_t)r, 4);
        return;
    }
    for (uint32_t r = 0; r < rows; r += 8, dst += 8 * TOKENS) {
        const __m256i v0 = load_row(x[0], r), v1 = load_row(x[1], r);
        const __m256i v2 = load_row(x[2], r), v3 = load_row(x[3], r);
        const __m256i a = _mm256_unpacklo_epi32(v0, v1), b = _mm256_unpackhi_epi32(v0, v1);
        const __m256i c = _mm256_unpacklo_epi32(v2, v3), d = _mm256_unpackhi_epi32(v2, v3);
        const __m256i q[4] = {_mm256_unpacklo_epi64(a, c), _mm256_unpackhi_epi64(a, c),
                              _mm256_unpacklo_epi64(b, d), _mm256_unpackhi_epi64(b, d)};
        for (int j = 0; j < 4; j++) {
            _mm_storeu_si128((void *)(dst + 4 * j), _mm256_castsi256_si128(q[j]));
            _mm_storeu_si128((void *)(dst + 16 + 4 * j), _mm256_extracti128_si256(q[j], 1));
        }
    }
}
/* What follows a token's activations, in the order of the rows. */
BL_ALWAYS_INLINE void fill_record(const struct form *f, int offset, int32_t *to,
                                  const struct bl_act_block *x)
{
    const int n = 64 / f->groups, of_16 = 16 / n;
    for (int i = 0; i < n; i++) {
        const int sum = of_16 == 1 ? x->sum[i] : x->sum[2 * i] + x->sum[2 * i + 1];
        const float d = x->d[of_16 == 1 ? i / 2 : i];
        to[i] = -offset * sum;
        memcpy(to + n + i, &d, sizeof d);
        const float scaled = d * (float)sum;
        if (f->add)
            memcpy(to + 2 * n + i, &scaled, sizeof scaled);
    }
}
BL_ALWAYS_INLINE void arrange(const struct form *f, int offset, int32_t *tile, uint32_t n_tok,
                              uint32_t k, const void *const *x)
{
    const uint32_t rows = rows_of(f);
    const void *q[TOKENS], *rest[TOKENS];
    int32_t record[TOKENS][48];
    for (uint32_t b = 0; b < bl_act_blocks(k); b++, tile += rows * n_tok) {
        for (uint32_t t = 0; t < n_tok; t++) {
            const struct bl_act_block *a = (const struct bl_act_block *)x[t] + b;
            q[t] = a->q;
            rest[t] = record[t];
            fill_record(f, offset, record[t], a);
        }
        deal(tile, n_tok, 64, q);
        deal(tile + 64 * n_tok, n_tok, rows - 64, rest);
    }
}

/* ---- entries ---- */

/* X(name, groups, depth, add, signed) */
#define FORMS(X)                                                                                   \
    X(FORM_5_BIT, 8, 4, false, false)                                                              \
    X(FORM_5_BIT_ADD, 8, 4, true, false)                                                           \
    X(FORM_5_BIT_16, 4, 4, false, false)                                                           \
    X(FORM_5_BIT_16_ADD, 4, 4, true, false)                                                        \
    X(FORM_6_BIT_16, 4, 2, false, false)                                                           \
    X(FORM_7_BIT, 8, 1, false, false)                                                              \
    X(FORM_7_BIT_16, 4, 1, false, false)                                                           \
    X(FORM_8_BIT, 8, 1, false, OFFSET_8_BIT == 0)
#define X(name, groups, depth, add, is_signed)                                                     \
    static const struct form name##_traits = {groups, depth, add, is_signed};                      \
    static void name##_multiply(float *c, const void *panel, const void *tile, uint32_t n_tok,     \
                                uint32_t n_cols, bool add_to)                                      \
    {                                                                                              \
        multiply(&name##_traits, c, panel, tile, n_tok, n_cols, add_to);                           \
    }
FORMS(X)
#undef X

/* X(name, offset) */
#define OFFSETS(X)                                                                                 \
    X(FORM_5_BIT, 1)                                                                               \
    X(FORM_5_BIT, 8)                                                                               \
    X(FORM_5_BIT, 9)                                                                               \
    X(FORM_5_BIT, 12)                                                                              \
    X(FORM_5_BIT, 16)                                                                              \
    X(FORM_5_BIT_ADD, 0)                                                                           \
    X(FORM_5_BIT_16, 4)                                                                            \
    X(FORM_5_BIT_16, 9)                                                                            \
    X(FORM_5_BIT_16, 12)                                                                           \
    X(FORM_5_BIT_16_ADD, 0)                                                                        \
    X(FORM_6_BIT_16, 32)                                                                           \
    X(FORM_7_BIT, 64)                                                                              \
    X(FORM_7_BIT_16, 64)                                                                           \
    X(FORM_8_BIT, OFFSET_8_BIT)
#define X(name, offset)                                                                            \
    static void name##_arrange_##offset(void *tile, uint32_t n_tok, uint32_t k,                    \
                                        const void *const *x)                                      \
    {                                                                                              \
        arrange(&name##_traits, offset, tile, n_tok, k, x);                                        \
    }
OFFSETS(X)
#undef X

struct bl_panel_kernel TIER_FN(panel_of)(enum panel_form form, int offset, const char *name,
                                         bl_pack_fn *pack, uint8_t from)
{
    static const struct {
        enum panel_form form;
        int offset;
        const struct form *traits;
        bl_arrange_fn *arrange;
    } arranges[] = {
#define X(form, offset) {form, offset, &form##_traits, form##_arrange_##offset},
        OFFSETS(X)
#undef X
    };
    static bl_multiply_fn *const multiplies[] = {
#define X(form, ...) [form] = form##_multiply,
        FORMS(X)
#undef X
    };
    size_t i = 0;
    while (i + 1 < BL_COUNT(arranges) && (arranges[i].form != form || arranges[i].offset != offset))
        i++;
    return (struct bl_panel_kernel){.name = name,
                                    .pack = pack,
                                    .arrange = arranges[i].arrange,
                                    .multiply = multiplies[form],
                                    .part_bytes = (uint16_t)(4 * rows_of(arranges[i].traits)),
                                    .tokens = TOKENS,
                                    .from = from};
}

void TIER_FN(panel)(struct bl_cpu_kernels *t)
{
    TIER_FN(panel_blocks)(t);
    TIER_FN(panel_iquant)(t);
}

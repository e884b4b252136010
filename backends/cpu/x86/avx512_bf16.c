/* SPDX-License-Identifier: MIT */
/* AVX-512 attention by tiles in pairs: scores of 16-bit integers, sums of bfloat16. */
#include "avx512_rows.h"
#include "avx512_tile.h"

#include <math.h>

enum { PAIRS = 2 * LANES /* elements of a vector of pairs */ };

/* acc + products of pairs. Of their own accord compilers copy all sums around each product. */
BL_ALWAYS_INLINE __m512i dot_integers(__m512i acc, __m512i x, __m512i y)
{
    __asm__("vpdpwssd %2,%1,%0" : "+v"(acc) : "v"(x), "v"(y));
    return acc;
}
BL_ALWAYS_INLINE __m512 dot_bf16(__m512 acc, __m512i x, __m512i y)
{
    __asm__("vdpbf16ps %2,%1,%0" : "+v"(acc) : "v"(x), "v"(y));
    return acc;
}

/* ---- integers ---- */

/* Lengths of vectors: no element is larger, and the product of two, which no sum of products
 * exceeds, fits 31 bits, what rounding adds included. */
static const float LENGTH = 32767 - 32;
/* Squares below may be no numbers of full precision. */
static const float LEAST = 0x1p-120f;

/* Lane r: what vector r is multiplied by, and what one is worth then: nothing in a vector of next
 * to nothing; no number where the squares are not finite. */
struct units {
    __m512 scale, unit;
};
BL_ALWAYS_INLINE struct units units_of(__m512 squares)
{
    const __mmask16 any = _mm512_cmp_ps_mask(squares, _mm512_set1_ps(LEAST), _CMP_GE_OQ);
    const __mmask16 finite = _mm512_cmp_ps_mask(squares, _mm512_set1_ps(INFINITY), _CMP_LT_OQ);
    const __m512 unit = _mm512_div_ps(_mm512_sqrt_ps(squares), _mm512_set1_ps(LENGTH));
    struct units u;
    u.scale = _mm512_maskz_div_ps(any & finite, _mm512_set1_ps(1), unit);
    u.unit = _mm512_mask_mov_ps(_mm512_set1_ps(NAN), finite, _mm512_maskz_mov_ps(any, unit));
    return u;
}
/* 32 elements as integers: those of each quarter of the first half, then of the second. */
BL_ALWAYS_INLINE __m512i to_integers(__m512 lo, __m512 hi, __m512 scale)
{
    return _mm512_packs_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(lo, scale)),
                              _mm512_cvtps_epi32(_mm512_mul_ps(hi, scale)));
}
/* The pair in lane i of to_integers. */
BL_ALWAYS_INLINE uint32_t pair_of(uint32_t i)
{
    return 2 * (i / 4) + i % 2 + (i % 4 / 2) * 8;
}
BL_ALWAYS_INLINE __m512 some(enum bl_dtype t, const char *row, uint32_t i, uint32_t n)
{
    return i < n ? load_row(t, row, i, lanes(n - i)) : _mm512_setzero_ps();
}

/* The lengths of n rows. */
BL_ALWAYS_INLINE struct units measure(enum bl_dtype t, uint32_t dk, uint32_t n,
                                      const char *const row[LANES])
{
    __m512 squares[LANES];
    for (uint32_t r = 0; r < LANES; r++)
        squares[r] = _mm512_setzero_ps();
    for (uint32_t r = 0; r < n; r++) {
        uint32_t i = 0;
        for (; i + LANES <= dk; i += LANES) {
            const __m512 v = load_row(t, row[r], i, 0xffff);
            squares[r] = _mm512_fmadd_ps(v, v, squares[r]);
        }
        const __m512 v = some(t, row[r], i, dk);
        squares[r] = _mm512_fmadd_ps(v, v, squares[r]);
    }
    return units_of(fold_all(false, LANES, squares));
}

static void queries(uint32_t dk, uint32_t n, int16_t *out, float *unit, const float *q)
{
    const uint32_t width = bl_pair_padded(dk);
    const __m512i order = _mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    for (uint32_t at = 0; at < n; at += LANES) {
        const uint32_t some_n = n - at < LANES ? n - at : LANES;
        const char *row[LANES];
        float scale[LANES];
        for (uint32_t r = 0; r < LANES; r++)
            row[r] = (const char *)(q + (size_t)(at + (r < some_n ? r : 0)) * dk);
        const struct units u = measure(BL_F32, dk, some_n, row);
        _mm512_storeu_ps(scale, u.scale);
        _mm512_mask_storeu_ps(unit + at, lanes(some_n), u.unit);
        for (uint32_t r = 0; r < some_n; r++)
            for (uint32_t i = 0; i < dk; i += PAIRS) {
                const __m512i v =
                    _mm512_permutexvar_epi32(order, to_integers(some(BL_F32, row[r], i, dk),
                                                                some(BL_F32, row[r], i + LANES, dk),
                                                                _mm512_set1_ps(scale[r])));
                _mm512_mask_storeu_epi32(out + (size_t)(at + r) * width + i, lanes((width - i) / 2),
                                         v);
            }
    }
}

/* ---- rows ---- */

/* Elements [i, i + 32) of 16 keys, of which a row has dk; whole: that many and more. */
BL_ALWAYS_INLINE void arrange(enum bl_dtype t, bool whole, uint32_t dk, uint32_t i, int16_t *out,
                              const char *const row[LANES], const float scale[LANES])
{
    __m512 v[LANES];
    for (uint32_t r = 0; r < LANES; r++) {
        const __m512 lo = whole ? load_row(t, row[r], i, 0xffff) : some(t, row[r], i, dk);
        const __m512 hi =
            whole ? load_row(t, row[r], i + LANES, 0xffff) : some(t, row[r], i + LANES, dk);
        v[r] = _mm512_castsi512_ps(to_integers(lo, hi, _mm512_set1_ps(scale[r])));
    }
    transpose(v);
    for (uint32_t r = 0; r < LANES; r++)
        if (whole || i + 2 * pair_of(r) < dk)
            _mm512_store_ps(out + 2 * pair_of(r) * BL_TILE_PANEL, v[r]);
}
BL_ALWAYS_INLINE void keys(enum bl_dtype t, uint32_t dk, int16_t *panel, float *unit,
                           const char *base, const uint64_t *row)
{
    for (uint32_t j = 0; j < BL_TILE_PANEL; j += LANES, panel += PAIRS) {
        const char *of[LANES];
        float scale[LANES];
        uint32_t i = 0;
        for (uint32_t r = 0; r < LANES; r++)
            of[r] = base + row[j + r];
        const struct units u = measure(t, dk, LANES, of);
        _mm512_storeu_ps(scale, u.scale);
        _mm512_store_ps(unit + j, u.unit);
        for (; i + PAIRS <= dk; i += PAIRS)
            arrange(t, true, dk, i, panel + (size_t)i * BL_TILE_PANEL, of, scale);
        if (i < dk)
            arrange(t, false, dk, i, panel + (size_t)i * BL_TILE_PANEL, of, scale);
    }
}
/* Of each element the one of row a, then the one of row b. */
BL_ALWAYS_INLINE __m512i paired(__m512 a, __m512 b)
{
    const __m512i order =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(b, a));
}
/* Two rows in pairs; whole: of whole vectors. Returns the larger of `largest` and all magnitudes,
 * one bit to the left. */
BL_ALWAYS_INLINE __m512i pair_rows(enum bl_dtype t, bool whole, uint32_t dv, uint16_t *out,
                                   const char *a, const char *b, __m512i largest)
{
    for (uint32_t i = 0; i < dv; i += LANES, out += PAIRS) {
        const __mmask16 m = whole ? 0xffff : lanes(dv - i);
        const __m512i v =
            paired(load_row(t, a, i, m), b ? load_row(t, b, i, m) : _mm512_setzero_ps());
        _mm512_store_si512(out, v);
        largest = _mm512_max_epu16(largest, _mm512_add_epi16(v, v));
    }
    return largest;
}
BL_ALWAYS_INLINE bool values_of(enum bl_dtype t, bool whole, uint32_t dv, uint32_t n, uint16_t *out,
                                const char *base, const uint64_t *row)
{
    const size_t width = 2 * (size_t)bl_tile_padded(dv);
    __m512i largest = _mm512_setzero_si512();
    uint32_t j = 0;
    for (; j + 2 <= n; j += 2, out += width)
        largest = pair_rows(t, whole, dv, out, base + row[j], base + row[j + 1], largest);
    if (j < n)
        largest = pair_rows(t, whole, dv, out, base + row[j], NULL, largest);
    return !_mm512_cmpge_epu16_mask(largest, _mm512_set1_epi16((short)(2 * 0x7f80)));
}
/* Loops of usual lengths are unrolled. */
BL_ALWAYS_INLINE bool values(enum bl_dtype t, uint32_t dv, uint32_t n, uint16_t *out,
                             const char *base, const uint64_t *row)
{
    return dv == 128         ? values_of(t, true, 128, n, out, base, row)
           : dv == 64        ? values_of(t, true, 64, n, out, base, row)
           : dv % LANES == 0 ? values_of(t, true, dv, n, out, base, row)
                             : values_of(t, false, dv, n, out, base, row);
}

#define ROWS_OF(name, type)                                                                        \
    static void keys_##name(uint32_t dk, int16_t *panel, float *unit, const void *base,            \
                            const uint64_t *row)                                                   \
    {                                                                                              \
        keys(type, dk, panel, unit, base, row);                                                    \
    }                                                                                              \
    static bool values_##name(uint32_t dv, uint32_t n, uint16_t *out, const void *base,            \
                              const uint64_t *row)                                                 \
    {                                                                                              \
        return values(type, dv, n, out, base, row);                                                \
    }
ROWS_OF(f32, BL_F32)
ROWS_OF(f16, BL_F16)
ROWS_OF(bf16, BL_BF16)
ROWS_OF(q8_0, BL_Q8_0)
ROWS_OF(q4_0, BL_Q4_0)

/* ---- scores ---- */

BL_ALWAYS_INLINE int load_pair(const void *p)
{
    return (int)bl_load_u32(p);
}
/* All 32 keys of a panel in two registers for each of R queries. */
BL_ALWAYS_INLINE void scores_of(int R, bool A, uint32_t dk, float *score, const int16_t *q,
                                const int16_t *panel, const float *unit, bl_tile_ahead *ahead)
{
    const uint32_t width = bl_pair_padded(dk);
    __m512i a[BL_TILE_ROWS], b[BL_TILE_ROWS], zero = _mm512_setzero_si512();
    __asm__("" : "+v"(zero)); /* known to be zero, sums would go to memory to be cleared */
    for (int r = 0; r < R; r++)
        a[r] = b[r] = zero;
    for (uint32_t i = 0; i < width; i += 2, q += 2, panel += 2 * BL_TILE_PANEL) {
        const __m512i k0 = load512(panel), k1 = load512(panel + PAIRS);
        ask(A, ahead + i);
        ask(A && i + 1 < dk, ahead + i + 1);
        for (int r = 0; r < R; r++) {
            const __m512i x = _mm512_set1_epi32(load_pair(q + (size_t)r * width));
            a[r] = dot_integers(a[r], x, k0);
            b[r] = dot_integers(b[r], x, k1);
        }
    }
    const __m512 u0 = _mm512_load_ps(unit), u1 = _mm512_load_ps(unit + LANES);
    for (int r = 0; r < R; r++) {
        _mm512_store_ps(score + r * BL_TILE_KEYS, _mm512_mul_ps(to_float(a[r]), u0));
        _mm512_store_ps(score + r * BL_TILE_KEYS + LANES, _mm512_mul_ps(to_float(b[r]), u1));
    }
}

static void scores(uint32_t dk, uint32_t n, float *score, const int16_t *q, const int16_t *panel,
                   const float *unit, bl_tile_ahead *ahead){
    FOR_ROWS(n, scores_of, ahead, dk, score, q, panel, unit, ahead)}

/* ---- weights ---- */

/* 2^x for x <= 2^7 within 8e-5, an eighth of what rounding to bfloat16 costs; NaN stays NaN. */
BL_ALWAYS_INLINE __m512 power(__m512 x)
{
    const __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 f = _mm512_sub_ps(x, n);
    __m512 p = _mm512_set1_ps(0x1.c3f760p-5f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.f0de1ap-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.62f31ap-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.fff692p-1f));
    return _mm512_scalef_ps(p, n);
}
/* Scores become weights, whose sums by columns are returned. */
BL_ALWAYS_INLINE __m512 weigh(float *score, uint64_t in, float unit, float from)
{
    const __m512i one = _mm512_set1_epi16(0x3f80);
    __m512 sum = _mm512_setzero_ps(), p[VECTORS];
    for (int v = 0; v < VECTORS; v++) {
        const __m512 s = _mm512_fmsub_ps(_mm512_load_ps(score + v * LANES), _mm512_set1_ps(unit),
                                         _mm512_set1_ps(from));
        p[v] = _mm512_maskz_mov_ps((__mmask16)(in >> v * LANES), power(s));
    }
    for (int v = 0; v < VECTORS; v += 2) {
        const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(p[v + 1], p[v]);
        _mm512_store_si512(score + v / 2 * LANES, both);
        sum = dot_bf16(sum, both, one);
    }
    return sum;
}
/* The state after larger scores of some rows: where the power of two that weights count from
 * changes, and by how much. */
BL_ALWAYS_INLINE __mmask16 rise(__mmask16 m, __m512 top, struct bl_tile *t)
{
    const __m512 before = _mm512_maskz_loadu_ps(m, t->max), one = _mm512_set1_ps(1);
    const __m512 limit = _mm512_add_ps(before, _mm512_set1_ps(BL_PAIR_SLACK));
    const __mmask16 up = _mm512_mask_cmp_ps_mask(m, top, limit, _CMP_GT_OQ);
    if (!up) {
        _mm512_mask_storeu_ps(t->keep, m, one);
        return 0;
    }
    const __m512 keep = power(_mm512_sub_ps(before, top));
    _mm512_mask_storeu_ps(t->max, m, _mm512_mask_mov_ps(before, up, top));
    _mm512_mask_storeu_ps(t->keep, m, _mm512_mask_mov_ps(one, up, keep));
    return up;
}
BL_ALWAYS_INLINE bool weights_of(int R, float *score, const float *unit, struct bl_tile *t)
{
    const __mmask16 m = (__mmask16)((1u << R) - 1);
    __m512 part[BL_TILE_ROWS];
    float from[LANES];
    for (int r = 0; r < R; r++)
        part[r] = largest(score + r * BL_TILE_KEYS, seen(t->first[r], t->end[r]));
    const __m512 top = _mm512_mul_ps(fold_all(true, R, part), _mm512_maskz_loadu_ps(m, unit));
    const __mmask16 up = rise(m, top, t);
    const __m512 max = _mm512_maskz_loadu_ps(m, t->max);
    _mm512_storeu_ps(
        from,
        _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(max, _mm512_set1_ps(-INFINITY), _CMP_NEQ_OQ), max));
    for (int r = 0; r < R; r++)
        part[r] = weigh(score + r * BL_TILE_KEYS, seen(t->first[r], t->end[r]), unit[r], from[r]);
    const __m512 total =
        _mm512_fmadd_ps(_mm512_maskz_loadu_ps(m, t->sum), _mm512_maskz_loadu_ps(m, t->keep),
                        fold_all(false, R, part));
    _mm512_mask_storeu_ps(t->sum, m, total);
    return up;
}
#define WEIGHTS_CASE(n)                                                                            \
    case n:                                                                                        \
        return weights_of(n, score, unit, t);
static bool weights(uint32_t n, float *score, const float *unit, struct bl_tile *t)
{
    switch (n) {
        WEIGHTS_CASE(1)
        WEIGHTS_CASE(2)
        WEIGHTS_CASE(3)
        WEIGHTS_CASE(4)
        WEIGHTS_CASE(5)
        WEIGHTS_CASE(6)
        WEIGHTS_CASE(7)
    default:
        return weights_of(BL_TILE_ROWS, score, unit, t);
    }
}

/* ---- sums ---- */

struct sums {
    uint32_t width, n_pairs, mask;
    const uint16_t *weight, *values;
    const float *keep;
    bl_tile_ahead *ahead;
};

/* V vectors of columns for R queries over all pairs of keys. */
BL_ALWAYS_INLINE void sum_columns(int R, bool A, int V, float *acc, const struct sums *s,
                                  uint32_t at)
{
    bl_tile_ahead *ahead = A ? s->ahead + at / 32 * (2 * s->n_pairs) : NULL;
    const __m512i mask = _mm512_set1_epi32((int)s->mask);
    const uint16_t *values = s->values + 2 * at, *weight = s->weight;
    __m512 a[2 * BL_TILE_ROWS];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) {
            a[2 * r + v] = _mm512_load_ps(acc + (size_t)r * s->width + at + v * LANES);
            if (s->keep)
                a[2 * r + v] = _mm512_mul_ps(a[2 * r + v], _mm512_set1_ps(s->keep[r]));
        }
    for (uint32_t j = 0; j < s->n_pairs; j++, weight += 2, values += 2 * s->width) {
        const __m512i v0 = _mm512_and_si512(mask, load512(values));
        const __m512i v1 = _mm512_and_si512(mask, load512(values + (V - 1) * PAIRS));
        ask(A, ahead + 2 * j);
        ask(A, ahead + 2 * j + 1);
        for (int r = 0; r < R; r++) {
            const __m512i p = _mm512_set1_epi32(load_pair(weight + r * 2 * BL_TILE_KEYS));
            a[2 * r] = dot_bf16(a[2 * r], p, v0);
            if (V == 2)
                a[2 * r + 1] = dot_bf16(a[2 * r + 1], p, v1);
        }
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++)
            _mm512_store_ps(acc + (size_t)r * s->width + at + v * LANES, a[2 * r + v]);
}
BL_ALWAYS_INLINE void sum_of(int R, bool A, float *acc, const struct sums *s)
{
    uint32_t at = 0;
    for (; s->width - at >= 2 * LANES; at += 2 * LANES)
        sum_columns(R, A, 2, acc, s, at);
    if (at < s->width)
        sum_columns(R, false, 1, acc, s, at);
}
static void sum(uint32_t dv, uint32_t n, uint32_t n_pairs, float *acc, const uint16_t *weight,
                const uint16_t *values, const float *keep, uint32_t mask, bl_tile_ahead *ahead)
{
    const struct sums s = {bl_tile_padded(dv), n_pairs, mask, weight, values, keep, ahead};
    FOR_ROWS(n, sum_of, ahead, acc, &s)
}

void bl_cpu_avx512_bf16(struct bl_cpu_kernels *t)
{
    t->pair_rows[BL_F32] = (struct bl_pair_rows){"pairs_f32_i16_16__bf16", keys_f32, values_f32};
    t->pair_rows[BL_F16] = (struct bl_pair_rows){"pairs_f16_i16_16__bf16", keys_f16, values_f16};
    t->pair_rows[BL_BF16] =
        (struct bl_pair_rows){"pairs_bf16_i16_16__bf16", keys_bf16, values_bf16};
    t->pair_rows[BL_Q8_0] =
        (struct bl_pair_rows){"pairs_q8_0_i16_16__bf16", keys_q8_0, values_q8_0};
    t->pair_rows[BL_Q4_0] =
        (struct bl_pair_rows){"pairs_q4_0_i16_16__bf16", keys_q4_0, values_q4_0};
    t->pair = (struct bl_pair_kernel){"pair_i16_bf16_8x32__bf16", queries, scores, weights, sum};
}

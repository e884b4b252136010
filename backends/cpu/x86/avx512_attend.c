/* SPDX-License-Identifier: MIT */
/* AVX-512 attention by tiles: keys and values decoded once, up to eight queries together. */
#include "avx512_rows.h"
#include "avx512_tile.h"

#include <math.h>
#include <stdbool.h>

/* ---- rows ---- */

BL_ALWAYS_INLINE void keys(enum bl_dtype t, uint32_t dk, float *panel, const char *base,
                           const uint64_t *row)
{
    for (uint32_t j = 0; j < BL_TILE_PANEL; j += LANES)
        for (uint32_t i = 0; i < dk; i += LANES) {
            const uint32_t n = dk - i < LANES ? dk - i : LANES;
            float *out = panel + (size_t)i * BL_TILE_PANEL + j;
            __m512 v[LANES];
            for (int r = 0; r < LANES; r++)
                v[r] = load_row(t, base + row[j + (uint32_t)r], i, lanes(n));
            transpose(v);
            if (n == LANES)
                for (int r = 0; r < LANES; r++)
                    _mm512_store_ps(out + r * BL_TILE_PANEL, v[r]);
            else
                for (uint32_t r = 0; r < n; r++)
                    _mm512_store_ps(out + r * BL_TILE_PANEL, v[r]);
        }
}
BL_ALWAYS_INLINE void values(enum bl_dtype t, uint32_t dv, uint32_t n, float *out, const char *base,
                             const uint64_t *row)
{
    for (uint32_t j = 0; j < n; j++)
        for (uint32_t i = 0; i < dv; i += LANES, out += LANES)
            _mm512_store_ps(out, load_row(t, base + row[j], i, lanes(dv - i)));
}

#define ROWS_OF(name, type)                                                                        \
    static void keys_##name(uint32_t dk, float *panel, const void *base, const uint64_t *row)      \
    {                                                                                              \
        keys(type, dk, panel, base, row);                                                          \
    }                                                                                              \
    static void values_##name(uint32_t dv, uint32_t n, float *out, const void *base,               \
                              const uint64_t *row)                                                 \
    {                                                                                              \
        values(type, dv, n, out, base, row);                                                       \
    }
ROWS_OF(f32, BL_F32)
ROWS_OF(f16, BL_F16)
ROWS_OF(bf16, BL_BF16)
ROWS_OF(q8_0, BL_Q8_0)
ROWS_OF(q4_0, BL_Q4_0)

/* ---- scores ---- */

/* All 32 keys of a panel in two registers for each of R queries. */
BL_ALWAYS_INLINE void scores_of(int R, bool A, uint32_t dk, float *score, const float *q,
                                const float *panel, bl_tile_ahead *ahead)
{
    __m512 a[BL_TILE_ROWS], b[BL_TILE_ROWS];
    for (int r = 0; r < R; r++)
        a[r] = b[r] = _mm512_setzero_ps();
    for (uint32_t i = 0; i < dk; i++, q++, panel += BL_TILE_PANEL) {
        const __m512 k0 = _mm512_load_ps(panel), k1 = _mm512_load_ps(panel + LANES);
        ask(A, ahead + i);
        for (int r = 0; r < R; r++) {
            const __m512 x = _mm512_set1_ps(q[(size_t)r * dk]);
            a[r] = _mm512_fmadd_ps(x, k0, a[r]);
            b[r] = _mm512_fmadd_ps(x, k1, b[r]);
        }
    }
    for (int r = 0; r < R; r++) {
        _mm512_store_ps(score + r * BL_TILE_KEYS, a[r]);
        _mm512_store_ps(score + r * BL_TILE_KEYS + LANES, b[r]);
    }
}

static void scores(uint32_t dk, uint32_t n, float *score, const float *q, const float *panel,
                   bl_tile_ahead *ahead){FOR_ROWS(n, scores_of, ahead, dk, score, q, panel, ahead)}

/* ---- weights ---- */

/* 2^x for x <= 0 within 1 ulp, 0 below -150; NaN stays NaN. The polynomial's own relative error on
 * |f| <= 1/2 is 4e-9. */
BL_ALWAYS_INLINE __m512 power(__m512 x)
{
    x = _mm512_max_ps(_mm512_set1_ps(-160.0f), x);
    const __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 f = _mm512_sub_ps(x, n);
    __m512 p = _mm512_set1_ps(0x1.414ebcp-13f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.5f03ecp-10f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.3b2e0cp-7f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.c6af8ap-5f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.ebfbdcp-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.62e43p-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, n);
}
/* Scores become weights, whose sums by columns are returned. */
BL_ALWAYS_INLINE __m512 weigh(float *score, uint64_t in, float from)
{
    __m512 sum = _mm512_setzero_ps();
    for (int v = 0; v < VECTORS; v++) {
        const __m512 s = _mm512_sub_ps(_mm512_load_ps(score + v * LANES), _mm512_set1_ps(from));
        const __m512 p = _mm512_maskz_mov_ps((__mmask16)(in >> v * LANES), power(s));
        _mm512_store_ps(score + v * LANES, p);
        sum = _mm512_add_ps(sum, p);
    }
    return sum;
}
BL_ALWAYS_INLINE void weights_of(int R, float *score, struct bl_tile *t)
{
    const __mmask16 m = (__mmask16)((1u << R) - 1);
    __m512 part[BL_TILE_ROWS];
    float from[LANES];
    for (int r = 0; r < R; r++)
        part[r] = largest(score + r * BL_TILE_KEYS, seen(t->first[r], t->end[r]));
    const __m512 before = _mm512_maskz_loadu_ps(m, t->max);
    const __m512 top = _mm512_max_ps(before, fold_all(true, R, part));
    const __m512 base =
        _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(top, _mm512_set1_ps(-INFINITY), _CMP_NEQ_OQ), top);
    _mm512_storeu_ps(from, base);
    for (int r = 0; r < R; r++)
        part[r] = weigh(score + r * BL_TILE_KEYS, seen(t->first[r], t->end[r]), from[r]);
    const __m512 keep = power(_mm512_sub_ps(before, base));
    const __m512 total =
        _mm512_fmadd_ps(_mm512_maskz_loadu_ps(m, t->sum), keep, fold_all(false, R, part));
    _mm512_mask_storeu_ps(t->max, m, top);
    _mm512_mask_storeu_ps(t->keep, m, keep);
    _mm512_mask_storeu_ps(t->sum, m, total);
}
#define WEIGHTS_CASE(n)                                                                            \
    case n:                                                                                        \
        weights_of(n, score, t);                                                                   \
        break;
static void weights(uint32_t n, float *score, struct bl_tile *t)
{
    switch (n) {
        WEIGHTS_CASE(1)
        WEIGHTS_CASE(2)
        WEIGHTS_CASE(3)
        WEIGHTS_CASE(4)
        WEIGHTS_CASE(5)
        WEIGHTS_CASE(6)
        WEIGHTS_CASE(7)
        WEIGHTS_CASE(8)
    }
}

/* ---- sums ---- */

struct sums {
    uint32_t width, n_keys;
    const float *weight, *values, *keep;
    bl_tile_ahead *ahead;
};

/* V vectors of columns for R queries over all keys. */
BL_ALWAYS_INLINE void sum_columns(int R, bool A, int V, float *acc, const struct sums *s,
                                  uint32_t at)
{
    bl_tile_ahead *ahead = A ? s->ahead + at / 32 * s->n_keys : NULL;
    __m512 a[2 * BL_TILE_ROWS];
    const float *values = s->values + at, *weight = s->weight;
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) {
            a[2 * r + v] = _mm512_load_ps(acc + (size_t)r * s->width + at + v * LANES);
            if (s->keep)
                a[2 * r + v] = _mm512_mul_ps(a[2 * r + v], _mm512_set1_ps(s->keep[r]));
        }
    for (uint32_t j = 0; j < s->n_keys; j++, weight++, values += s->width) {
        const __m512 v0 = _mm512_load_ps(values), v1 = _mm512_load_ps(values + (V - 1) * LANES);
        ask(A, ahead + j);
        for (int r = 0; r < R; r++) {
            const __m512 p = _mm512_set1_ps(weight[r * BL_TILE_KEYS]);
            a[2 * r] = _mm512_fmadd_ps(p, v0, a[2 * r]);
            if (V == 2)
                a[2 * r + 1] = _mm512_fmadd_ps(p, v1, a[2 * r + 1]);
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
static void sum(uint32_t dv, uint32_t n, uint32_t n_keys, float *acc, const float *weight,
                const float *values, const float *keep, bl_tile_ahead *ahead)
{
    const struct sums s = {bl_tile_padded(dv), n_keys, weight, values, keep, ahead};
    FOR_ROWS(n, sum_of, ahead, acc, &s)
}

void bl_cpu_avx512_attend(struct bl_cpu_kernels *t)
{
    t->rows[BL_F32] =
        (struct bl_rows_kernel){"rows_f32_f32_16__avx512", keys_f32, values_f32, NULL, NULL};
    t->rows[BL_F16] =
        (struct bl_rows_kernel){"rows_f16_f32_16__avx512", keys_f16, values_f16, NULL, NULL};
    t->rows[BL_BF16] =
        (struct bl_rows_kernel){"rows_bf16_f32_16__avx512", keys_bf16, values_bf16, NULL, NULL};
    t->rows[BL_Q8_0] =
        (struct bl_rows_kernel){"rows_q8_0_f32_16__avx512", keys_q8_0, values_q8_0, NULL, NULL};
    t->rows[BL_Q4_0] =
        (struct bl_rows_kernel){"rows_q4_0_f32_16__avx512", keys_q4_0, values_q4_0, NULL, NULL};
    t->tile = (struct bl_tile_kernel){"tile_f32_f32_8x32__avx512", scores, weights, sum};
}

/* SPDX-License-Identifier: MIT */
/* AVX2 attention by tiles: keys and values decoded once, up to four queries together. */
#include "avx2_rows.h"

#include <math.h>
#include <stdbool.h>

enum {
    ROWS = 4,   /* queries whose sums are in registers together */
    VECTORS = 4 /* of sums of each query, at most */
};

/* ---- rows ---- */

/* Rows and columns of 8 x 8 change places. */
BL_ALWAYS_INLINE void transpose(__m256 v[LANES])
{
    __m256 a[LANES], b[LANES];
    for (int i = 0; i < LANES; i += 2) {
        a[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
        a[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
    }
    for (int i = 0; i < LANES; i += 4)
        for (int h = 0; h < 2; h++) {
            b[i + 2 * h] = _mm256_shuffle_ps(a[i + h], a[i + 2 + h], 0x44);
            b[i + 2 * h + 1] = _mm256_shuffle_ps(a[i + h], a[i + 2 + h], 0xee);
        }
    for (int c = 0; c < 4; c++) {
        v[c] = _mm256_permute2f128_ps(b[c], b[4 + c], 0x20);
        v[c + 4] = _mm256_permute2f128_ps(b[c], b[4 + c], 0x31);
    }
}
BL_ALWAYS_INLINE void keys(enum bl_dtype t, uint32_t dk, float *panel, const char *base,
                           const uint64_t *row)
{
    for (uint32_t j = 0; j < BL_TILE_PANEL; j += LANES)
        for (uint32_t i = 0; i < dk; i += LANES) {
            const uint32_t n = dk - i < LANES ? dk - i : LANES;
            float *out = panel + (size_t)i * BL_TILE_PANEL + j;
            __m256 v[LANES];
            for (int r = 0; r < LANES; r++)
                v[r] = load_some(t, base + row[j + (uint32_t)r], i, n);
            transpose(v);
            for (uint32_t r = 0; r < n; r++)
                _mm256_store_ps(out + r * BL_TILE_PANEL, v[r]);
        }
}
BL_ALWAYS_INLINE void values(enum bl_dtype t, uint32_t dv, uint32_t n, float *out, const char *base,
                             const uint64_t *row)
{
    const uint32_t width = bl_tile_padded(dv);
    for (uint32_t j = 0; j < n; j++, out += width) {
        uint32_t i = 0;
        for (; i < dv; i += LANES)
            _mm256_store_ps(out + i, load_some(t, base + row[j], i, dv - i));
        if (i < width)
            _mm256_store_ps(out + i, _mm256_setzero_ps());
    }
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

BL_ALWAYS_INLINE void ask(bool any, bl_tile_ahead *ahead)
{
    if (any)
        _mm_prefetch(*ahead, _MM_HINT_T1);
}
/* R queries against V vectors of keys. */
BL_ALWAYS_INLINE void score_keys(int R, int V, bool A, uint32_t dk, float *score, const float *q,
                                 const float *panel, bl_tile_ahead *ahead)
{
    __m256 a[ROWS][VECTORS];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++)
            a[r][v] = _mm256_setzero_ps();
    for (uint32_t i = 0; i < dk; i++, q++, panel += BL_TILE_PANEL) {
        ask(A, ahead + i);
        for (int r = 0; r < R; r++) {
            const __m256 x = _mm256_broadcast_ss(q + (size_t)r * dk);
            for (int v = 0; v < V; v++)
                a[r][v] = _mm256_fmadd_ps(x, _mm256_load_ps(panel + v * LANES), a[r][v]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++)
            _mm256_store_ps(score + r * BL_TILE_KEYS + v * LANES, a[r][v]);
}
/* As many sums as hide the latency of an FMA and still fit the registers. */
BL_ALWAYS_INLINE void scores_of(int R, uint32_t dk, float *score, const float *q,
                                const float *panel, bl_tile_ahead *ahead)
{
    const int V = R > 2 ? 2 : 4;
    int at = 0;
    if (ahead) {
        score_keys(R, V, true, dk, score, q, panel, ahead);
        at += V * LANES;
    }
    for (; at < BL_TILE_PANEL; at += V * LANES)
        score_keys(R, V, false, dk, score + at, q, panel + at, NULL);
}
static void scores(uint32_t dk, uint32_t n, float *score, const float *q, const float *panel,
                   bl_tile_ahead *ahead)
{
    for (; n >= ROWS; n -= ROWS, score += ROWS * BL_TILE_KEYS, q += (size_t)ROWS * dk) {
        scores_of(ROWS, dk, score, q, panel, ahead);
        ahead = NULL;
    }
    if (n == 3)
        scores_of(3, dk, score, q, panel, ahead);
    else if (n == 2)
        scores_of(2, dk, score, q, panel, ahead);
    else if (n)
        scores_of(1, dk, score, q, panel, ahead);
}

/* ---- weights ---- */

/* 2^n for n in -126 .. 127 */
BL_ALWAYS_INLINE __m256 power_of_two(__m256i n)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
/* 2^x for x <= 0 within 1 ulp, 0 below -150; NaN stays NaN. The polynomial's own relative error on
 * |f| <= 1/2 is 4e-9. 2^n is applied in two halves, so that results may be subnormal. */
BL_ALWAYS_INLINE __m256 power(__m256 x)
{
    x = _mm256_max_ps(_mm256_set1_ps(-160.0f), x);
    const __m256 n = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m256 f = _mm256_sub_ps(x, n);
    __m256 p = _mm256_set1_ps(0x1.414ebcp-13f);
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.5f03ecp-10f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.3b2e0cp-7f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.c6af8ap-5f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.ebfbdcp-3f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.62e43p-1f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
    const __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
    p = _mm256_mul_ps(p, power_of_two(half));
    return _mm256_mul_ps(p, power_of_two(_mm256_sub_epi32(whole, half)));
}
/* All bits of the lanes at .. at + 8 that lie in [first, end). */
BL_ALWAYS_INLINE __m256 seen(uint32_t at, uint32_t first, uint32_t end)
{
    const __m256i j =
        _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32((int)at));
    return _mm256_castsi256_ps(
        _mm256_and_si256(_mm256_cmpgt_epi32(j, _mm256_set1_epi32((int)first - 1)),
                         _mm256_cmpgt_epi32(_mm256_set1_epi32((int)end), j)));
}
BL_ALWAYS_INLINE float largest_lane(__m256 v)
{
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}
/* The largest score of a row; a NaN never wins. */
BL_ALWAYS_INLINE float largest(const float *score, uint32_t first, uint32_t end)
{
    const __m256 none = _mm256_set1_ps(-INFINITY);
    __m256 m = none;
    for (uint32_t at = 0; at < BL_TILE_KEYS; at += LANES) {
        const __m256 s = _mm256_load_ps(score + at);
        m = _mm256_max_ps(_mm256_blendv_ps(none, s, seen(at, first, end)), m);
    }
    return largest_lane(m);
}
BL_ALWAYS_INLINE float weigh(float *score, uint32_t first, uint32_t end, float from)
{
    __m256 sum = _mm256_setzero_ps();
    for (uint32_t at = 0; at < BL_TILE_KEYS; at += LANES) {
        const __m256 s = _mm256_sub_ps(_mm256_load_ps(score + at), _mm256_set1_ps(from));
        const __m256 p = _mm256_and_ps(power(s), seen(at, first, end));
        _mm256_store_ps(score + at, p);
        sum = _mm256_add_ps(sum, p);
    }
    return sum_lanes(sum);
}
static void weights(uint32_t n, float *score, struct bl_tile *t)
{
    float top[BL_TILE_ROWS], from[BL_TILE_ROWS] = {0}, before[BL_TILE_ROWS] = {0};
    for (uint32_t r = 0; r < n; r++) {
        const float most = largest(score + r * BL_TILE_KEYS, t->first[r], t->end[r]);
        before[r] = t->max[r];
        top[r] = most > before[r] ? most : before[r];
        from[r] = top[r] == -INFINITY ? 0 : top[r];
    }
    float keep[BL_TILE_ROWS];
    _mm256_storeu_ps(keep, power(_mm256_sub_ps(_mm256_loadu_ps(before), _mm256_loadu_ps(from))));
    for (uint32_t r = 0; r < n; r++) {
        const float sum = weigh(score + r * BL_TILE_KEYS, t->first[r], t->end[r], from[r]);
        t->max[r] = top[r];
        t->keep[r] = keep[r];
        t->sum[r] = t->sum[r] * keep[r] + sum;
    }
}

/* ---- sums ---- */

struct sums {
    uint32_t width, n_keys;
    const float *weight, *values, *keep;
    bl_tile_ahead *ahead;
};

/* V vectors of columns for R queries over all keys. */
BL_ALWAYS_INLINE void sum_columns(int R, int V, bool A, float *acc, const struct sums *s,
                                  uint32_t at)
{
    bl_tile_ahead *ahead = A ? s->ahead + at / 32 * s->n_keys : NULL;
    __m256 a[ROWS][VECTORS];
    const float *values = s->values + at, *weight = s->weight;
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) {
            a[r][v] = _mm256_load_ps(acc + (size_t)r * s->width + at + v * LANES);
            if (s->keep)
                a[r][v] = _mm256_mul_ps(a[r][v], _mm256_broadcast_ss(s->keep + r));
        }
    for (uint32_t j = 0; j < s->n_keys; j++, weight++, values += s->width) {
        ask(A, ahead + j);
        for (int r = 0; r < R; r++) {
            const __m256 p = _mm256_broadcast_ss(weight + r * BL_TILE_KEYS);
            for (int v = 0; v < V; v++)
                a[r][v] = _mm256_fmadd_ps(p, _mm256_load_ps(values + v * LANES), a[r][v]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++)
            _mm256_store_ps(acc + (size_t)r * s->width + at + v * LANES, a[r][v]);
}
BL_ALWAYS_INLINE void sum_of(int R, float *acc, const struct sums *s)
{
    const int V = R > 2 ? 2 : 4;
    uint32_t at = 0;
    for (; s->width - at >= 32; at += 32) {
        if (s->ahead)
            sum_columns(R, V, true, acc, s, at);
        else
            sum_columns(R, V, false, acc, s, at);
        if (V == 2)
            sum_columns(R, V, false, acc, s, at + 16);
    }
    if (at < s->width)
        sum_columns(R, 2, false, acc, s, at);
}
static void sum(uint32_t dv, uint32_t n, uint32_t n_keys, float *acc, const float *weight,
                const float *values, const float *keep, bl_tile_ahead *ahead)
{
    struct sums s = {bl_tile_padded(dv), n_keys, weight, values, keep, ahead};
    for (; n >= ROWS; n -= ROWS, acc += (size_t)ROWS * s.width) {
        sum_of(ROWS, acc, &s);
        s.weight += ROWS * BL_TILE_KEYS;
        s.keep = keep ? s.keep + ROWS : NULL;
        s.ahead = NULL;
    }
    if (n == 3)
        sum_of(3, acc, &s);
    else if (n == 2)
        sum_of(2, acc, &s);
    else if (n)
        sum_of(1, acc, &s);
}

void bl_cpu_avx2_attend(struct bl_cpu_kernels *t)
{
    t->rows[BL_F32] =
        (struct bl_rows_kernel){"rows_f32_f32_8__avx2", keys_f32, values_f32, NULL, NULL};
    t->rows[BL_F16] =
        (struct bl_rows_kernel){"rows_f16_f32_8__avx2", keys_f16, values_f16, NULL, NULL};
    t->rows[BL_BF16] =
        (struct bl_rows_kernel){"rows_bf16_f32_8__avx2", keys_bf16, values_bf16, NULL, NULL};
    t->rows[BL_Q8_0] =
        (struct bl_rows_kernel){"rows_q8_0_f32_8__avx2", keys_q8_0, values_q8_0, NULL, NULL};
    t->rows[BL_Q4_0] =
        (struct bl_rows_kernel){"rows_q4_0_f32_8__avx2", keys_q4_0, values_q4_0, NULL, NULL};
    t->tile = (struct bl_tile_kernel){"tile_f32_f32_4x16__avx2", scores, weights, sum};
}

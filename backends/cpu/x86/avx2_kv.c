/* SPDX-License-Identifier: MIT */
/* AVX2 attention over cached rows: scores of a query against keys, weighted sums of values. */
#include "avx2.h"

enum {
    ROWS = 4,          /* keys that share the loads of the query */
    VECTORS = 8,       /* of sums kept in registers */
    AHEAD_BYTES = 8192 /* of the head's rows from the one in work to the one prefetched */
};

BL_ALWAYS_INLINE uint32_t rows_ahead(size_t bytes)
{
    return (uint32_t)(AHEAD_BYTES / bytes) + ROWS;
}
/* Rows of one head lie apart (other heads between them), which hardware prefetch does not follow.
 */
BL_ALWAYS_INLINE void prefetch_row(const char *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64)
        _mm_prefetch(p + i, _MM_HINT_T1);
}
BL_ALWAYS_INLINE size_t kv_bytes(enum bl_dtype t, uint32_t n)
{
    return t == BL_F32 ? 4 * (size_t)n : t == BL_F16 ? 2 * (size_t)n : (size_t)(n / 32) * 34;
}
/* Eight elements of a float row from element i on. */
BL_ALWAYS_INLINE __m256 load_floats(enum bl_dtype t, const char *row, uint32_t i)
{
    const char *p = row + kv_bytes(t, i);
    return t == BL_F32 ? _mm256_loadu_ps((const float *)(const void *)p)
                       : _mm256_cvtph_ps(load128(p));
}
/* The last n < 8 elements, zeros behind them. */
BL_ALWAYS_INLINE __m256 load_last(enum bl_dtype t, const char *row, uint32_t i, uint32_t n)
{
    char tail[32] = {0};
    memcpy(tail, row + kv_bytes(t, i), kv_bytes(t, n));
    return load_floats(t, tail, 0);
}
/* Eight bytes of a Q8_0 row, without their scale. */
BL_ALWAYS_INLINE __m256 load_bytes(const char *p)
{
    const __m128i v = _mm_loadl_epi64((const __m128i *)(const void *)p);
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(v));
}
BL_ALWAYS_INLINE __m256 broadcast_f16(const char *p)
{
    return _mm256_cvtph_ps(_mm_set1_epi16((short)bl_load_u16(p)));
}

/* ---- scores ---- */

/* R keys, the rows of R keys to come, and the query they meet. */
struct keys {
    const char *base;
    const uint64_t *row, *later;
    const float *q;
    size_t bytes; /* of a key */
};
/* Line `line` of the keys to come. A row may begin anywhere in a line, so its last byte counts as
 * one more. */
BL_ALWAYS_INLINE void prefetch_later(const struct keys *k, int R, size_t line)
{
    const size_t at = 64 * line < k->bytes ? 64 * line : k->bytes - 1;
    for (int r = 0; r < R; r++)
        _mm_prefetch(k->base + k->later[r] + at, _MM_HINT_T1);
}
BL_ALWAYS_INLINE void qk_step(enum bl_dtype t, int R, const struct keys *k, uint32_t i, __m256 *acc)
{
    const __m256 x = _mm256_loadu_ps(k->q + i);
    for (int r = 0; r < R; r++)
        acc[r] = _mm256_fmadd_ps(load_floats(t, k->base + k->row[r], i), x, acc[r]);
}
/* a cache line a step */
BL_ALWAYS_INLINE void qk_floats(enum bl_dtype t, int R, uint32_t dk, const struct keys *k,
                                __m256 *acc)
{
    const uint32_t line = t == BL_F32 ? 16 : 32;
    uint32_t i = 0;
    for (; i + line <= dk; i += line) {
        prefetch_later(k, R, i / line);
        for (uint32_t c = 0; c < line; c += 8)
            qk_step(t, R, k, i + c, acc);
    }
    prefetch_later(k, R, k->bytes);
    for (; i + 8 <= dk; i += 8)
        qk_step(t, R, k, i, acc);
    if (i < dk) {
        const __m256 x = load_last(BL_F32, (const char *)k->q, i, dk - i);
        for (int r = 0; r < R; r++)
            acc[r] = _mm256_fmadd_ps(load_last(t, k->base + k->row[r], i, dk - i), x, acc[r]);
    }
}
BL_ALWAYS_INLINE void qk_bytes(int R, uint32_t dk, const struct keys *k, __m256 *acc)
{
    for (uint32_t i = 0; i < dk; i += 32) {
        prefetch_later(k, R, i / 32);
        for (int r = 0; r < R; r++) {
            const char *p = k->base + k->row[r] + kv_bytes(BL_Q8_0, i);
            __m256 v = _mm256_mul_ps(load_bytes(p + 2), _mm256_loadu_ps(k->q + i));
            for (uint32_t c = 8; c < 32; c += 8)
                v = _mm256_fmadd_ps(load_bytes(p + 2 + c), _mm256_loadu_ps(k->q + i + c), v);
            acc[r] = _mm256_fmadd_ps(v, broadcast_f16(p), acc[r]);
        }
    }
}
BL_ALWAYS_INLINE void qk_group(enum bl_dtype t, int R, uint32_t dk, float *score,
                               const struct keys *k, float scale)
{
    __m256 acc[ROWS] = {_mm256_setzero_ps()};
    if (t == BL_Q8_0)
        qk_bytes(R, dk, k, acc);
    else
        qk_floats(t, R, dk, k, acc);
    for (int r = 0; r < R; r++)
        score[r] = sum_lanes(acc[r]) * scale;
}
BL_ALWAYS_INLINE void qk(enum bl_dtype t, uint32_t dk, uint32_t n, float *score, const float *q,
                         const char *base, const uint64_t *row, float scale)
{
    const size_t bytes = kv_bytes(t, dk);
    const uint32_t ahead = rows_ahead(bytes);
    uint32_t j = 0;
    for (; j + ROWS <= n; j += ROWS) {
        /* at the end there is nothing to prefetch: then rows that are there anyway */
        const uint32_t later = n - j >= ahead + ROWS ? j + ahead : j;
        const struct keys k = {base, row + j, row + later, q, bytes};
        qk_group(t, ROWS, dk, score + j, &k, scale);
    }
    for (; j < n; j++) {
        const struct keys k = {base, row + j, row + j, q, bytes};
        qk_group(t, 1, dk, score + j, &k, scale);
    }
}

/* ---- weighted sums ---- */

/* n rows, their weights and what they are added to. */
struct values {
    const char *base;
    const uint64_t *row;
    const float *p;
    float *acc;
    uint32_t n;
};

/* Columns at .. at + 8 V over all rows: the sums stay in registers. */
BL_ALWAYS_INLINE void pv_columns(enum bl_dtype t, int V, uint32_t at, const struct values *s)
{
    const size_t offset = kv_bytes(t, at), bytes = kv_bytes(t, 8 * (uint32_t)V);
    const uint32_t ahead = rows_ahead(bytes);
    __m256 v[VECTORS] = {_mm256_setzero_ps()};
    for (int c = 0; c < V; c++)
        v[c] = _mm256_loadu_ps(s->acc + at + 8 * c);
    for (uint32_t j = 0; j < s->n; j++) {
        const char *src = s->base + s->row[j] + offset;
        const __m256 weight = _mm256_set1_ps(s->p[j]);
        if (j + ahead < s->n)
            prefetch_row(s->base + s->row[j + ahead] + offset, bytes);
        for (int c = 0; c < V; c++) {
            if (t != BL_Q8_0) {
                v[c] = _mm256_fmadd_ps(load_floats(t, src, 8 * (uint32_t)c), weight, v[c]);
                continue;
            }
            const char *block = src + (c / 4) * 34;
            const __m256 d = _mm256_mul_ps(weight, broadcast_f16(block));
            v[c] = _mm256_fmadd_ps(load_bytes(block + 2 + 8 * (c % 4)), d, v[c]);
        }
    }
    for (int c = 0; c < V; c++)
        _mm256_storeu_ps(s->acc + at + 8 * c, v[c]);
}
/* The last columns, fewer than a vector. */
BL_ALWAYS_INLINE void pv_last(enum bl_dtype t, uint32_t at, uint32_t left, const struct values *s)
{
    float sums[8];
    __m256 v = load_last(BL_F32, (const char *)s->acc, at, left);
    for (uint32_t j = 0; j < s->n; j++)
        v = _mm256_fmadd_ps(load_last(t, s->base + s->row[j], at, left), _mm256_set1_ps(s->p[j]),
                            v);
    _mm256_storeu_ps(sums, v);
    memcpy(s->acc + at, sums, left * sizeof *s->acc);
}
BL_ALWAYS_INLINE void pv(enum bl_dtype t, uint32_t dv, const struct values *s)
{
    uint32_t at = 0;
    for (; dv - at >= 64; at += 64)
        pv_columns(t, 8, at, s);
    if (dv - at >= 32) {
        pv_columns(t, 4, at, s);
        at += 32;
    }
    if (t == BL_Q8_0)
        return;
    for (; dv - at >= 8; at += 8)
        pv_columns(t, 1, at, s);
    if (at < dv)
        pv_last(t, at, dv - at, s);
}

#define KV_ENTRIES(name, type)                                                                     \
    static void qk_##name(uint32_t dk, uint32_t n, float *score, const float *q, const void *base, \
                          const uint64_t *row, float scale)                                        \
    {                                                                                              \
        qk(type, dk, n, score, q, base, row, scale);                                               \
    }                                                                                              \
    static void pv_##name(uint32_t dv, uint32_t n, float *acc, const float *p, const void *base,   \
                          const uint64_t *row)                                                     \
    {                                                                                              \
        const struct values s = {base, row, p, acc, n};                                            \
        pv(type, dv, &s);                                                                          \
    }
KV_ENTRIES(f32, BL_F32)
KV_ENTRIES(f16, BL_F16)
KV_ENTRIES(q8_0, BL_Q8_0)

void bl_cpu_avx2_kv(struct bl_cpu_kernels *t)
{
    t->kv[BL_F32] = (struct bl_kv_kernel){"kv_f32_f32_4__avx2", qk_f32, pv_f32};
    t->kv[BL_F16] = (struct bl_kv_kernel){"kv_f16_f32_4__avx2", qk_f16, pv_f16};
    t->kv[BL_Q8_0] = (struct bl_kv_kernel){"kv_q8_0_f32_4__avx2", qk_q8_0, pv_q8_0};
}

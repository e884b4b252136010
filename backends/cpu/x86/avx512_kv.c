/* SPDX-License-Identifier: MIT */
/* AVX-512 attention over cached rows: scores of a query against keys, weighted sums of values. */
#include "avx512.h"

enum {
    ROWS = 4,          /* keys that share the loads of the query */
    VECTORS = 8,       /* of sums kept in registers */
    AHEAD_BYTES = 8192 /* of the head's rows from the one in work to the one prefetched */
};

BL_ALWAYS_INLINE __mmask16 lanes(uint32_t left)
{
    return left < 16 ? (__mmask16)((1u << left) - 1) : 0xffff;
}
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
/* 16 elements of a float row */
BL_ALWAYS_INLINE __m512 load_floats(enum bl_dtype t, const char *row, uint32_t i, __mmask16 m)
{
    if (t == BL_F32)
        return _mm512_maskz_loadu_ps(m, row + 4 * (size_t)i);
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(m, row + 2 * (size_t)i));
}
/* 16 bytes of a Q8_0 row, without their scale */
BL_ALWAYS_INLINE __m512 load_bytes(const char *p)
{
    return to_float(_mm512_cvtepi8_epi32(load128(p)));
}
BL_ALWAYS_INLINE const char *q8_0_block(const char *row, uint32_t i)
{
    return row + (size_t)(i / 32) * 34;
}
BL_ALWAYS_INLINE __m512 broadcast_f16(const char *p)
{
    return _mm512_cvtph_ps(_mm256_set1_epi16((short)bl_load_u16(p)));
}
BL_ALWAYS_INLINE size_t kv_bytes(enum bl_dtype t, uint32_t n)
{
    return t == BL_F32 ? 4 * (size_t)n : t == BL_F16 ? 2 * (size_t)n : (size_t)(n / 32) * 34;
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
/* 16 elements, those of the mask */
BL_ALWAYS_INLINE void qk_step(enum bl_dtype t, int R, const struct keys *k, uint32_t i, __mmask16 m,
                              __m512 *acc)
{
    const __m512 x = _mm512_maskz_loadu_ps(m, k->q + i);
    for (int r = 0; r < R; r++)
        acc[r] = _mm512_fmadd_ps(load_floats(t, k->base + k->row[r], i, m), x, acc[r]);
}
/* a cache line a step */
BL_ALWAYS_INLINE void qk_floats(enum bl_dtype t, int R, uint32_t dk, const struct keys *k,
                                __m512 *acc)
{
    const uint32_t line = t == BL_F32 ? 16 : 32;
    uint32_t i = 0;
    for (; i + line <= dk; i += line) {
        prefetch_later(k, R, i / line);
        for (uint32_t c = 0; c < line; c += 16)
            qk_step(t, R, k, i + c, 0xffff, acc);
    }
    prefetch_later(k, R, k->bytes);
    for (; i < dk; i += 16)
        qk_step(t, R, k, i, lanes(dk - i), acc);
}
BL_ALWAYS_INLINE void qk_bytes(int R, uint32_t dk, const struct keys *k, __m512 *acc)
{
    for (uint32_t i = 0; i < dk; i += 32) {
        const __m512 x0 = _mm512_loadu_ps(k->q + i), x1 = _mm512_loadu_ps(k->q + i + 16);
        prefetch_later(k, R, i / 32);
        for (int r = 0; r < R; r++) {
            const char *p = q8_0_block(k->base + k->row[r], i);
            const __m512 v =
                _mm512_fmadd_ps(load_bytes(p + 18), x1, _mm512_mul_ps(load_bytes(p + 2), x0));
            acc[r] = _mm512_fmadd_ps(v, broadcast_f16(p), acc[r]);
        }
    }
}
BL_ALWAYS_INLINE void qk_group(enum bl_dtype t, int R, uint32_t dk, float *score,
                               const struct keys *k, float scale)
{
    __m512 acc[ROWS] = {_mm512_setzero_ps()};
    if (t == BL_Q8_0)
        qk_bytes(R, dk, k, acc);
    else
        qk_floats(t, R, dk, k, acc);
    for (int r = 0; r < R; r++)
        acc[r] = _mm512_mul_ps(acc[r], _mm512_set1_ps(scale));
    store_sums(R, score, acc);
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

/* Columns at .. at + 16 V, those of the mask, over all rows: the sums stay in registers. */
BL_ALWAYS_INLINE void pv_columns(enum bl_dtype t, int V, uint32_t at, __mmask16 m,
                                 const struct values *s)
{
    const size_t offset = kv_bytes(t, at), bytes = kv_bytes(t, 16 * (uint32_t)V);
    const uint32_t ahead = rows_ahead(bytes);
    __m512 v[VECTORS] = {_mm512_setzero_ps()};
    for (int c = 0; c < V; c++)
        v[c] = _mm512_maskz_loadu_ps(m, s->acc + at + 16 * c);
    for (uint32_t j = 0; j < s->n; j++) {
        const char *src = s->base + s->row[j] + offset;
        const __m512 weight = _mm512_set1_ps(s->p[j]);
        if (j + ahead < s->n)
            prefetch_row(s->base + s->row[j + ahead] + offset, bytes);
        for (int c = 0; c < V; c++) {
            if (t != BL_Q8_0) {
                v[c] = _mm512_fmadd_ps(load_floats(t, src, 16 * (uint32_t)c, m), weight, v[c]);
                continue;
            }
            const char *block = q8_0_block(src, 16 * (uint32_t)c);
            const __m512 d = _mm512_mul_ps(weight, broadcast_f16(block));
            v[c] = _mm512_fmadd_ps(load_bytes(block + 2 + 16 * (c % 2)), d, v[c]);
        }
    }
    for (int c = 0; c < V; c++)
        _mm512_mask_storeu_ps(s->acc + at + 16 * c, m, v[c]);
}
BL_ALWAYS_INLINE void pv(enum bl_dtype t, uint32_t dv, const struct values *s)
{
    const __mmask16 all = 0xffff;
    uint32_t at = 0;
    for (; dv - at >= 128; at += 128)
        pv_columns(t, 8, at, all, s);
    if (dv - at >= 64) {
        pv_columns(t, 4, at, all, s);
        at += 64;
    }
    if (dv - at >= 32) {
        pv_columns(t, 2, at, all, s);
        at += 32;
    }
    for (; t != BL_Q8_0 && at < dv; at += 16)
        pv_columns(t, 1, at, lanes(dv - at), s);
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

void bl_cpu_avx512_kv(struct bl_cpu_kernels *t)
{
    t->kv[BL_F32] = (struct bl_kv_kernel){"kv_f32_f32_4__avx512", qk_f32, pv_f32};
    t->kv[BL_F16] = (struct bl_kv_kernel){"kv_f16_f32_4__avx512", qk_f16, pv_f16};
    t->kv[BL_Q8_0] = (struct bl_kv_kernel){"kv_q8_0_f32_4__avx512", qk_q8_0, pv_q8_0};
}

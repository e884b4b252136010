/* SPDX-License-Identifier: MIT */
/* few_rows.h — attention of few queries over rows where they lie, in vectors of any width. Included
 * by one file of each instruction set, which first defines FEW_ISA, FEW_MOST_ROWS         its name;
 * as MOST_ROWS vec, LANES                     a vector of floats MOST_ROWS, MOST_SUMS queries taken
 * together; sums in registers zero, fill, fma3               its arithmetic load_vec, store_vec
 * 64-byte aligned floats; load_queries: any row_whole, row_part            LANES elements of a row;
 * the last `left` of one, zeros behind queries_part                   the same of floats put_sums
 * the sums of R rows of K vectors, of each row the first n, to rows of scores
 *
 * Purpose   bl_row_scores_fn, bl_row_sum_fn and bl_qk_fn.
 * Ownership none.
 * Units     elements, keys.
 * Errors    none.
 * Threads   pure.
 */
#ifndef BL_X86_FEW_ROWS_H
#define BL_X86_FEW_ROWS_H

enum {
    NEAR = 8, /* keys from those in hand to those asked for in the first-level cache */
    ASK = 32  /* elements between which lines are asked for */
};

BL_ALWAYS_INLINE size_t row_bytes(enum bl_dtype t, uint32_t n)
{
    return t == BL_F32    ? 4 * (size_t)n
           : t == BL_Q8_0 ? n / 32 * 34
           : t == BL_Q4_0 ? n / 32 * 18
                          : 2 * (size_t)n;
}

/* ---- scores ---- */

/* Up to eight keys, those asked for near and those far. */
struct keys_in_hand {
    const char *row[8], *near[8], *far[8];
};

/* Past the last key the last one stands in. */
BL_ALWAYS_INLINE struct keys_in_hand take_keys(int K, const struct bl_tile_source *s, uint32_t j)
{
    const uint32_t last = s->n_keys - 1;
    struct keys_in_hand k;
    for (int c = 0; c < K; c++) {
        const uint32_t at = j + (uint32_t)c < last ? j + (uint32_t)c : last;
        const uint32_t near = at + NEAR < last ? at + NEAR : last;
        k.row[c] = (const char *)s->base + s->row[at];
        k.near[c] = (const char *)s->base + s->row[near];
        k.far[c] = s->next ? (const char *)s->next_base + s->next[at] : k.near[c];
    }
    return k;
}
BL_ALWAYS_INLINE void ask_keys(enum bl_dtype t, int K, const struct keys_in_hand *k, uint32_t i)
{
    const size_t at = row_bytes(t, i);
    for (int c = 0; c < K; c++)
        for (size_t line = 0; line < row_bytes(t, ASK); line += 64) {
            _mm_prefetch(k->near[c] + at + line, _MM_HINT_T0);
            _mm_prefetch(k->far[c] + at + line, _MM_HINT_T1);
        }
}
/* R queries against K keys, of which n are wanted. */
BL_ALWAYS_INLINE void score_keys(enum bl_dtype t, int R, int K, uint32_t dk, uint32_t n,
                                 float *score, const float *q, const struct keys_in_hand *k)
{
    vec acc[MOST_SUMS], key[8];
    uint32_t i = 0;
    for (int a = 0; a < R * K; a++)
        acc[a] = zero();
    for (; i + ASK <= dk; i += ASK) {
        ask_keys(t, K, k, i);
        for (uint32_t part = i; part < i + ASK; part += LANES) {
            for (int c = 0; c < K; c++)
                key[c] = row_whole(t, k->row[c], part);
            for (int r = 0; r < R; r++) {
                vec x = load_queries(q + (size_t)r * dk + part);
                __asm__("" : "+v"(x)); /* loaded once: compilers would load it for each product */
                for (int c = 0; c < K; c++)
                    acc[r * K + c] = fma3(x, key[c], acc[r * K + c]);
            }
        }
    }
    for (; i < dk; i += LANES)
        for (int c = 0; c < K; c++) {
            const vec v = row_part(t, k->row[c], i, dk - i);
            for (int r = 0; r < R; r++)
                acc[r * K + c] =
                    fma3(queries_part(q + (size_t)r * dk + i, dk - i), v, acc[r * K + c]);
        }
    put_sums(R, K, n, score, acc);
}
BL_ALWAYS_INLINE void scores_of(enum bl_dtype t, int R, uint32_t dk, float *score, const float *q,
                                const struct bl_tile_source *s)
{
    const int K = MOST_SUMS / R < 8 ? MOST_SUMS / R : 8;
    for (uint32_t j = 0; j < s->n_keys; j += (uint32_t)K) {
        const struct keys_in_hand k = take_keys(K, s, j);
        const uint32_t left = s->n_keys - j;
        score_keys(t, R, K, dk, left < (uint32_t)K ? left : (uint32_t)K, score + j, q, &k);
    }
}

/* ---- sums ---- */

struct values {
    const struct bl_tile_source *s;
    float *acc;
    const float *weight, *keep;
    uint32_t dv, width;
};

/* V vectors of columns for R queries over all keys; part: the row's last elements, fewer than V
 * vectors. */
BL_ALWAYS_INLINE void sum_columns(enum bl_dtype t, int R, int V, bool part, const struct values *v,
                                  uint32_t at)
{
    const struct bl_tile_source *s = v->s;
    const size_t first = row_bytes(t, at), bytes = row_bytes(t, (uint32_t)V * LANES);
    const float *weight = v->weight;
    vec acc[MOST_SUMS], value[MOST_SUMS];
    for (int r = 0; r < R; r++)
        for (int c = 0; c < V; c++) {
            acc[r * V + c] = load_vec(v->acc + (size_t)r * v->width + at + c * LANES);
            if (v->keep)
                acc[r * V + c] = fma3(acc[r * V + c], fill(v->keep[r]), zero());
        }
    for (uint32_t j = 0; j < s->n_keys; j++, weight++) {
        const char *row = (const char *)s->base + s->row[j];
        const char *near =
            (const char *)s->base + s->row[j + NEAR < s->n_keys ? j + NEAR : s->n_keys - 1] + first;
        const char *far = s->next ? (const char *)s->next_base + s->next[j] + first : near;
        for (size_t line = 0; line < bytes; line += 64) {
            _mm_prefetch(near + line, _MM_HINT_T0);
            _mm_prefetch(far + line, _MM_HINT_T1);
        }
        for (int c = 0; c < V; c++)
            value[c] = part ? row_part(t, row, at, v->dv - at)
                            : row_whole(t, row, at + (uint32_t)c * LANES);
        for (int r = 0; r < R; r++) {
            const vec p = fill(weight[r * BL_TILE_KEYS]);
            for (int c = 0; c < V; c++)
                acc[r * V + c] = fma3(p, value[c], acc[r * V + c]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int c = 0; c < V; c++)
            store_vec(v->acc + (size_t)r * v->width + at + c * LANES, acc[r * V + c]);
}
BL_ALWAYS_INLINE void sum_of(enum bl_dtype t, int R, const struct values *v)
{
    const int V = R == 1 ? 8 : R == 2 ? MOST_SUMS / 2 : MOST_SUMS / R >= 4 ? 4 : 2;
    uint32_t at = 0;
    for (; at + V * LANES <= v->dv; at += V * LANES)
        sum_columns(t, R, V, false, v, at);
    for (; at + 2 * LANES <= v->dv; at += 2 * LANES)
        sum_columns(t, R, 2, false, v, at);
    for (; at + LANES <= v->dv; at += LANES)
        sum_columns(t, R, 1, false, v, at);
    if (at < v->dv)
        sum_columns(t, R, 1, true, v, at);
}

/* ---- entries ---- */

#define FEW_CASE(n, f, ...)                                                                        \
    case n:                                                                                        \
        f(__VA_ARGS__);                                                                            \
        break;

/* All queries, MOST_ROWS together, then those left over. */
BL_ALWAYS_INLINE void few_scores(enum bl_dtype t, uint32_t dk, uint32_t n, float *score,
                                 const float *q, const struct bl_tile_source *source)
{
    struct bl_tile_source s = *source;
    for (; n >= MOST_ROWS; n -= MOST_ROWS, q += (size_t)MOST_ROWS * dk) {
        scores_of(t, MOST_ROWS, dk, score, q, &s);
        score += MOST_ROWS * BL_TILE_KEYS;
        s.next = NULL;
    }
    switch (n) {
        FEW_CASE(1, scores_of, t, 1, dk, score, q, &s)
        FEW_CASE(2, scores_of, t, 2, dk, score, q, &s)
        FEW_CASE(3, scores_of, t, 3, dk, score, q, &s)
#if FEW_MOST_ROWS > 4
        FEW_CASE(4, scores_of, t, 4, dk, score, q, &s)
        FEW_CASE(5, scores_of, t, 5, dk, score, q, &s)
        FEW_CASE(6, scores_of, t, 6, dk, score, q, &s)
        FEW_CASE(7, scores_of, t, 7, dk, score, q, &s)
#endif
    }
}
BL_ALWAYS_INLINE void few_sum(enum bl_dtype t, uint32_t dv, uint32_t n, float *acc,
                              const float *weight, const float *keep,
                              const struct bl_tile_source *source)
{
    struct bl_tile_source s = *source;
    struct values v = {&s, acc, weight, keep, dv, bl_tile_padded(dv)};
    for (; n >= MOST_ROWS; n -= MOST_ROWS) {
        sum_of(t, MOST_ROWS, &v);
        v.acc += (size_t)MOST_ROWS * v.width;
        v.weight += MOST_ROWS * BL_TILE_KEYS;
        v.keep = keep ? v.keep + MOST_ROWS : NULL;
        s.next = NULL;
    }
    switch (n) {
        FEW_CASE(1, sum_of, t, 1, &v)
        FEW_CASE(2, sum_of, t, 2, &v)
        FEW_CASE(3, sum_of, t, 3, &v)
#if FEW_MOST_ROWS > 4
        FEW_CASE(4, sum_of, t, 4, &v)
        FEW_CASE(5, sum_of, t, 5, &v)
        FEW_CASE(6, sum_of, t, 6, &v)
        FEW_CASE(7, sum_of, t, 7, &v)
#endif
    }
}

/* One query against any number of keys. */
BL_ALWAYS_INLINE void few_qk(enum bl_dtype t, uint32_t dk, uint32_t n, float *score, const float *q,
                             const void *base, const uint64_t *row, float scale)
{
    for (uint32_t j = 0; j < n; j += BL_TILE_KEYS) {
        const uint32_t n_keys = n - j < BL_TILE_KEYS ? n - j : BL_TILE_KEYS;
        const struct bl_tile_source s = {.base = base, .row = row + j, .n_keys = n_keys};
        scores_of(t, 1, dk, score + j, q, &s);
        for (uint32_t i = j; i < j + n_keys; i++)
            score[i] *= scale;
    }
}

#define FEW_OF(e, type)                                                                            \
    static void scores_##e(uint32_t dk, uint32_t n, float *score, const float *q,                  \
                           const struct bl_tile_source *s)                                         \
    {                                                                                              \
        few_scores(type, dk, n, score, q, s);                                                      \
    }                                                                                              \
    static void sum_##e(uint32_t dv, uint32_t n, float *acc, const float *weight,                  \
                        const float *keep, const struct bl_tile_source *s)                         \
    {                                                                                              \
        few_sum(type, dv, n, acc, weight, keep, s);                                                \
    }                                                                                              \
    static void qk_##e(uint32_t dk, uint32_t n, float *score, const float *q, const void *base,    \
                       const uint64_t *row, float scale)                                           \
    {                                                                                              \
        few_qk(type, dk, n, score, q, base, row, scale);                                           \
    }                                                                                              \
    static void set_##e(struct bl_cpu_kernels *t)                                                  \
    {                                                                                              \
        t->rows[type].scores = scores_##e;                                                         \
        t->rows[type].sum = sum_##e;                                                               \
        t->kv[type].name = "kv_" #e "_f32_8__" FEW_ISA;                                            \
        t->kv[type].qk = qk_##e;                                                                   \
    }
FEW_OF(f32, BL_F32)
FEW_OF(f16, BL_F16)
FEW_OF(bf16, BL_BF16)
FEW_OF(q8_0, BL_Q8_0)
FEW_OF(q4_0, BL_Q4_0)

/* Sums of single queries are for --exact alone: those of the portable kernels stay. */
static void set_few(struct bl_cpu_kernels *t)
{
    set_f32(t);
    set_f16(t);
    set_bf16(t);
    set_q8_0(t);
    set_q4_0(t);
}

#endif

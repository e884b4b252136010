/* SPDX-License-Identifier: MIT */
/* The steps of attention by tiles of queries; attention.h says how the work is cut. */
#include "attend_block.h"

#include <math.h>

/* ---- a part ---- */

/* Queries of the unit, scaled so that weights are powers of two. */
static void load_queries(const struct bl_cpu_attention_args *a,
                         const struct bl_cpu_kernels *kernels, const struct bl_attend_unit *u,
                         const struct bl_attend_work *w)
{
    const float scale = a->at.scale * 0x1.715476p+0f;
    const uint32_t n = u->n_heads * a->at.dk, n_rows = bl_attend_rows_of(u);
    uint32_t row = 0;
    for (uint32_t t = u->t0; t < u->t1; t++, row += u->n_heads) {
        const float *src = a->q + ((size_t)t * a->at.n_head + u->head) * a->at.dk;
        if (a->pair_keys)
            kernels->pair.queries(a->at.dk, u->n_heads,
                                  w->pair_q + (size_t)row * bl_pair_padded(a->at.dk), w->unit + row,
                                  src);
        for (uint32_t i = 0; i < n && !a->pair_keys; i++)
            w->q[(size_t)row * a->at.dk + i] = src[i] * scale;
    }
    for (uint32_t r = 0; r < n_rows && a->pair_keys; r++)
        w->unit[r] *= scale;
}

/* No keys have been met. */
static void begin(const struct bl_cpu_attention_args *a, const struct bl_cpu_kernels *kernels,
                  const struct bl_attend_work *w, const struct bl_attend_unit *u)
{
    const uint32_t n = bl_attend_rows_of(u);
    load_queries(a, kernels, u, w);
    for (uint32_t r = 0; r < n; r++) {
        w->tile[r / BL_TILE_ROWS].max[r % BL_TILE_ROWS] = -INFINITY;
        w->tile[r / BL_TILE_ROWS].sum[r % BL_TILE_ROWS] = 0;
    }
    memset(w->acc, 0, (size_t)n * bl_tile_padded(a->at.dv) * sizeof *w->acc);
}

static void limit_rows(const struct bl_cpu_attention_args *a, const struct bl_params *p,
                       const struct bl_attend_work *w, const struct bl_attend_unit *u,
                       struct bl_attend_part part)
{
    struct bl_attend_span *span = w->span;
    for (uint32_t t = u->t0; t < u->t1; t++) {
        const struct bl_attend_part mine = bl_attend_meet(bl_attend_view_of(a, p, t), part);
        for (uint32_t h = 0; h < u->n_heads; h++)
            *span++ = (struct bl_attend_span){mine.first, mine.first + mine.n};
    }
}

/* From first keys, which are in hand, to last; then the first ones of `after` are. */
static void run_part(const struct bl_cpu_attention_args *a, const struct bl_cpu_job *job,
                     struct bl_attend_work *w, const struct bl_attend_unit *u, uint32_t part,
                     struct bl_attend_source *after)
{
    struct bl_attend_source s = bl_attend_source_of(u, part);
    limit_rows(a, job->params, w, u, s.part);
    s.part.n -= w->keys[0].end - w->keys[0].first;
    s.part.first += w->keys[0].end - w->keys[0].first;
    for (bool more = true; more;) {
        more = s.part.n > 0;
        bl_attend_find_keys(a, more ? &s : after, &w->keys[1]);
        bl_attend_meet_keys(a, job, w, bl_attend_rows_of(u));
        const struct bl_attend_keys in_use = w->keys[0];
        w->keys[0] = w->keys[1];
        w->keys[1] = in_use;
    }
}

/* ---- results ---- */

static float *out_of(const struct bl_cpu_attention_args *a, uint32_t t, uint32_t head)
{
    return a->y + ((size_t)t * a->at.n_head + head) * a->at.dv;
}

/* ---- many tokens ---- */

/* A sink is a score without a value. */
static float share_of(const struct bl_cpu_attention_args *a, const struct bl_tile *t, uint32_t r,
                      uint32_t head)
{
    if (!a->sinks)
        return 1 / t->sum[r];
    const float sink = a->sinks[head] * 0x1.715476p+0f, max = sink > t->max[r] ? sink : t->max[r];
    const float c = exp2f(t->max[r] - max);
    return c / (t->sum[r] * c + exp2f(sink - max));
}

static void run_unit(const struct bl_cpu_attention_args *a, const struct bl_cpu_job *job,
                     struct bl_attend_work *w, const struct bl_attend_unit *u)
{
    const uint32_t n = bl_attend_n_parts(u->all), width = bl_tile_padded(a->at.dv);
    struct bl_attend_source s = bl_attend_source_of(u, 0);
    begin(a, job->kernels, w, u);
    bl_attend_find_keys(a, &s, &w->keys[0]);
    for (uint32_t i = 0; i < n; i++) {
        struct bl_attend_source after = {0};
        if (i + 1 < n)
            after = bl_attend_source_of(u, i + 1);
        run_part(a, job, w, u, i, &after);
    }
    for (uint32_t row = 0; row < bl_attend_rows_of(u); row++) {
        const uint32_t t = u->t0 + row / u->n_heads, head = u->head + row % u->n_heads;
        const float *acc = w->acc + (size_t)row * width;
        const float share = share_of(a, &w->tile[row / BL_TILE_ROWS], row % BL_TILE_ROWS, head);
        float *y = out_of(a, t, head);
        for (uint32_t i = 0; i < a->at.dv; i++)
            y[i] = acc[i] * share;
    }
}

void bl_cpu_tile_many(const void *args, const struct bl_cpu_job *job)
{
    const struct bl_cpu_attention_args *a = args;
    struct bl_attend_walk walk = bl_attend_walk_of(a, job, false);
    struct bl_attend_work w = bl_attend_work_of(a, job->ith);
    struct bl_attend_unit u;
    while (bl_attend_next_unit(a, job->params, &walk, &u))
        run_unit(a, job, &w, &u);
}

/* ---- few tokens ---- */

static bool sees_any(const struct bl_attend_work *w, uint32_t row)
{
    return w->span[row].first < w->span[row].end;
}

static float *partial_of(const struct bl_cpu_attention_args *a, uint32_t t, uint32_t head,
                         uint32_t part)
{
    return a->partial +
           (((size_t)t * a->at.n_head + head) * a->n_splits + part) * a->partial_floats;
}

/* Parts of a unit are counted over what its tokens see together; a token counts its own. */
static uint32_t own_part(struct bl_attend_view v, struct bl_attend_part part)
{
    const uint32_t split = part.first / v.split;
    return part.groups ? split : bl_attend_row_parts(v) + split - v.first / v.split;
}

static void keep_part(const struct bl_cpu_attention_args *a, const struct bl_params *p,
                      const struct bl_attend_work *w, const struct bl_attend_unit *u)
{
    const uint32_t dv = a->at.dv, width = bl_tile_padded(dv);
    const struct bl_attend_part part = bl_attend_part_of(u->all, u->part);
    for (uint32_t row = 0; row < bl_attend_rows_of(u); row++) {
        const uint32_t t = u->t0 + row / u->n_heads, head = u->head + row % u->n_heads;
        if (!sees_any(w, row))
            continue;
        float *to = partial_of(a, t, head, own_part(bl_attend_view_of(a, p, t), part));
        const struct bl_tile *tile = &w->tile[row / BL_TILE_ROWS];
        memcpy(to, w->acc + (size_t)row * width, dv * sizeof *to);
        to[dv] = tile->max[row % BL_TILE_ROWS];
        to[dv + 1] = tile->sum[row % BL_TILE_ROWS];
    }
}

/* Results of all parts, which become shares of the whole. A sink is a score without a value. */
static void merge_parts(const struct bl_cpu_attention_args *a, const struct bl_cpu_kernels *kernels,
                        uint32_t t, uint32_t head, uint32_t n)
{
    const uint32_t dv = a->at.dv;
    const float sink = a->sinks ? a->sinks[head] * 0x1.715476p+0f : -INFINITY;
    float *p = partial_of(a, t, head, 0), *y = out_of(a, t, head), max = sink, sum;
    for (uint32_t s = 0; s < n; s++)
        max = p[s * a->partial_floats + dv] > max ? p[s * a->partial_floats + dv] : max;
    sum = a->sinks ? exp2f(sink - max) : 0;
    for (uint32_t s = 0; s < n; s++) {
        float *share = &p[s * a->partial_floats + dv];
        *share = exp2f(*share - max);
        sum += share[1] * *share;
    }
    memset(y, 0, dv * sizeof *y);
    for (uint32_t s = 0; s < n; s++, p += a->partial_floats)
        kernels->axpy(dv, y, p[dv] / sum, p);
}

/* Whoever brings the last part of some tokens and a key head puts their results together: no thread
 * waits for it, and parts are taken in their order. */
static void end_unit(const struct bl_cpu_attention_args *a, const struct bl_cpu_job *job,
                     const struct bl_attend_unit *u)
{
    _Atomic uint32_t *done = &a->done[u->key]->next;
    if (atomic_fetch_add_explicit(done, 1, memory_order_acq_rel) + 1 < u->n_same)
        return;
    for (uint32_t t = u->t0; t < u->t1; t++) {
        const uint32_t n = bl_attend_n_parts(bl_attend_view_of(a, job->params, t));
        for (uint32_t i = 0; i < a->group; i++)
            merge_parts(a, job->kernels, t, u->kv * a->group + i, n);
    }
}

/* A unit is taken before the last one is run, so that its first keys come near meanwhile. */
void bl_cpu_tile_few(const void *args, const struct bl_cpu_job *job)
{
    const struct bl_cpu_attention_args *a = args;
    struct bl_attend_walk walk = bl_attend_walk_of(a, job, true);
    struct bl_attend_work w = bl_attend_work_of(a, job->ith);
    struct bl_attend_unit u, next;
    bool more = bl_attend_next_unit(a, job->params, &walk, &u);
    struct bl_attend_source s = {0};
    if (more) {
        s = bl_attend_source_of(&u, u.part);
        bl_attend_find_keys(a, &s, &w.keys[0]);
    }
    for (; more; u = next) {
        struct bl_attend_source after = {0};
        more = bl_attend_next_unit(a, job->params, &walk, &next);
        if (more)
            after = bl_attend_source_of(&next, next.part);
        begin(a, job->kernels, &w, &u);
        run_part(a, job, &w, &u, u.part, &after);
        keep_part(a, job->params, &w, &u);
        end_unit(a, job, &u);
    }
}

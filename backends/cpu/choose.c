/* SPDX-License-Identifier: MIT */
/* CHOOSE: the rows with the largest scores. Rows are scored in blocks and the best of them kept in
 * a workspace of fixed size. Which rows are best does not depend on the order they come in: of two
 * rows one is always better. Few tokens: threads share the rows of each, a second step takes the
 * best of what they found. Many: a thread takes whole tokens. */
#include "segment.h"

#include <math.h>

enum {
    FEW_TOKENS = 4,
    BLOCK = 64 /* rows scored together, at fixed places */
};

struct found {
    float score;
    uint32_t row;
};

struct choose_args {
    const float *q, *weights;
    const uint8_t *rows;
    int32_t *y;
    bl_qk_fn *qk;
    size_t row_bytes;
    struct bl_choose_attr at;
    uint32_t rows_per_seq, room; /* room: candidates before they are cut down to the best */
    uint8_t *work;               /* every thread's own */
    size_t work_bytes;
    struct found *part; /* few tokens: [token][thread][n], those not found have no score */
    uint32_t threads;
};

/* One thread's tools. */
struct work {
    struct found *found; /* [room] */
    uint32_t n;          /* of them */
    float least;         /* once n were cut down: what a candidate has to beat */
};

struct sizes {
    uint32_t room;
    uint64_t work, part; /* bytes of a thread, of a token */
};

static struct sizes sizes_of(const struct bl_caps *caps, const struct bl_choose_attr *at)
{
    struct sizes s = {.room = 2 * at->n + BLOCK};
    s.work = bl_cpu_round(s.room * sizeof(struct found));
    s.part = (uint64_t)caps->threads * at->n * sizeof(struct found);
    return s;
}

/* ---- the best ---- */

static bool better(struct found a, struct found b)
{
    return a.score > b.score || (a.score == b.score && a.row < b.row);
}

static void swap(struct found *a, struct found *b)
{
    const struct found t = *a;
    *a = *b;
    *b = t;
}

/* Moves the k best of n to the front, in any order. */
static void select_best(struct found *x, uint32_t n, uint32_t k)
{
    uint32_t lo = 0, hi = n;
    while (hi - lo > 1 && k > lo && k < hi) {
        const struct found pivot = x[lo + (hi - lo) / 2];
        uint32_t i = lo, j = hi - 1;
        for (;; i++, j--) {
            while (better(x[i], pivot))
                i++;
            while (better(pivot, x[j]))
                j--;
            if (i >= j)
                break;
            swap(&x[i], &x[j]);
        }
        /* [lo, i) are no worse than the pivot, [i, hi) no better. */
        const uint32_t cut = i > lo ? i : lo + 1;
        if (k < cut)
            hi = cut;
        else
            lo = cut;
    }
}

static void cut_down(const struct choose_args *a, struct work *w)
{
    if (w->n <= a->at.n)
        return;
    select_best(w->found, w->n, a->at.n);
    w->n = a->at.n;
    w->least = w->found[0].score;
    for (uint32_t i = 1; i < w->n; i++)
        w->least = w->found[i].score < w->least ? w->found[i].score : w->least;
}

static void offer(const struct choose_args *a, struct work *w, struct found f)
{
    if (f.score < w->least) /* as good as the least may still be better, by its row */
        return;
    if (w->n == a->room)
        cut_down(a, w);
    w->found[w->n++] = f;
}

/* ---- scores ---- */

struct view {
    uint32_t slot, n; /* rows [0, n) */
};

static struct view view_of(const struct choose_args *a, const struct bl_params *p, uint32_t t)
{
    const uint32_t seq = BL_PARAMS_ARRAY(const uint32_t, p, p->seq_off)[t];
    return (struct view){BL_PARAMS_ARRAY(const struct bl_seq_params, p, p->table_off)[seq].slot,
                         (BL_PARAMS_ARRAY(const uint32_t, p, p->pos_off)[t] + 1) / a->at.group};
}

static void score_block(const struct choose_args *a, uint32_t t, uint32_t slot, uint32_t first,
                        uint32_t n, float *sum)
{
    uint64_t off[BLOCK];
    float s[BLOCK];
    for (uint32_t j = 0; j < n; j++) {
        off[j] = ((uint64_t)slot * a->rows_per_seq + first + j) * a->row_bytes;
        sum[j] = 0;
    }
    for (uint32_t head = 0; head < a->at.n_head; head++) {
        const size_t h = (size_t)t * a->at.n_head + head;
        const float w = a->weights[h];
        a->qk(a->at.dk, n, s, a->q + h * a->at.dk, a->rows, off, 1);
        for (uint32_t j = 0; j < n; j++)
            sum[j] += w * (s[j] < 0 ? 0 : s[j]); /* what is not a number stays so */
    }
}

/* Offers rows [first, end) of a token's sequence. */
static void search(const struct choose_args *a, struct work *w, uint32_t t, uint32_t slot,
                   uint32_t first, uint32_t end)
{
    for (; first < end; first += BLOCK) {
        const uint32_t n = end - first < BLOCK ? end - first : BLOCK;
        float sum[BLOCK];
        score_block(a, t, slot, first, n, sum);
        for (uint32_t j = 0; j < n; j++)
            offer(a, w, (struct found){isnan(sum[j]) ? -INFINITY : sum[j], first + j});
    }
    cut_down(a, w);
}

static struct work work_of(const struct choose_args *a, uint32_t ith)
{
    return (struct work){.found = (struct found *)(void *)(a->work + ith * a->work_bytes),
                         .least = -INFINITY};
}

/* ---- results ---- */

/* Shell's way: a list is short, and nothing may be allocated in a step. */
static void sort_by_row(struct found *x, uint32_t n)
{
    uint32_t gap = 1;
    while (gap < n / 3)
        gap = 3 * gap + 1;
    for (; gap; gap /= 3)
        for (uint32_t i = gap; i < n; i++) {
            const struct found f = x[i];
            uint32_t at = i;
            for (; at >= gap && x[at - gap].row > f.row; at -= gap)
                x[at] = x[at - gap];
            x[at] = f;
        }
}

static void put(const struct choose_args *a, uint32_t t, struct found *f, uint32_t n)
{
    int32_t *y = a->y + (size_t)t * a->at.n;
    sort_by_row(f, n);
    for (uint32_t i = 0; i < n; i++)
        y[i] = (int32_t)f[i].row;
}

/* All rows that there are, where they are no more than are wanted; the rest of the list is 0. */
static bool put_all(const struct choose_args *a, uint32_t t, uint32_t n)
{
    int32_t *y = a->y + (size_t)t * a->at.n;
    if (n > a->at.n)
        return false;
    for (uint32_t i = 0; i < a->at.n; i++)
        y[i] = i < n ? (int32_t)i : 0;
    return true;
}

/* ---- few tokens ---- */

static struct found *part_of(const struct choose_args *a, uint32_t t, uint32_t ith)
{
    return a->part + ((size_t)t * a->threads + ith) * a->at.n;
}

static void few_run(const void *args, const struct bl_cpu_job *job)
{
    const struct choose_args *a = args;
    for (uint32_t t = 0; t < job->params->n_tok; t++) {
        const struct view v = view_of(a, job->params, t);
        if (v.n <= a->at.n)
            continue;
        const struct bl_cpu_range r = bl_cpu_groups(v.n, BLOCK, job->ith, job->nth);
        struct work w = work_of(a, job->ith);
        struct found *part = part_of(a, t, job->ith);
        search(a, &w, t, v.slot, r.first, r.end);
        memcpy(part, w.found, w.n * sizeof *part);
        for (uint32_t i = w.n; i < a->at.n; i++)
            part[i] = (struct found){-INFINITY, UINT32_MAX};
    }
}

static void merge_run(const void *args, const struct bl_cpu_job *job)
{
    const struct choose_args *a = args;
    const struct bl_cpu_range own = bl_cpu_rows(job, BL_CPU_TOKENS);
    for (uint32_t t = own.first; t < own.end; t++) {
        struct found *part = part_of(a, t, 0);
        if (put_all(a, t, view_of(a, job->params, t).n))
            continue;
        select_best(part, job->nth * a->at.n, a->at.n);
        put(a, t, part, a->at.n);
    }
}

/* ---- many tokens ---- */

static void many_run(const void *args, const struct bl_cpu_job *job)
{
    const struct choose_args *a = args;
    for (uint32_t t = job->ith; t < job->params->n_tok; t += job->nth) { /* late ones see more */
        const struct view v = view_of(a, job->params, t);
        struct work w = work_of(a, job->ith);
        if (put_all(a, t, v.n))
            continue;
        search(a, &w, t, v.slot, 0, v.n);
        put(a, t, w.found, w.n);
    }
}

/* ---- op ---- */

static void fill_args(struct bl_cpu_builder *b, struct choose_args *a, const struct sizes *s)
{
    const struct bl_value *rows = bl_cpu_src(b, 2);
    a->q = bl_cpu_reads(b, 0);
    a->weights = bl_cpu_reads(b, 1);
    a->rows = bl_cpu_reads(b, 2);
    a->y = (int32_t *)(uintptr_t)b->bound->dst[0];
    a->qk = b->dev->kernels.kv[rows->type].qk;
    a->row_bytes = (size_t)bl_dtype_row_bytes(rows->type, rows->ne[0]);
    a->at = *(const struct bl_choose_attr *)bl_cpu_attr(b);
    a->rows_per_seq = rows->ne[1];
    a->room = s->room;
    a->work_bytes = (size_t)s->work;
    a->threads = b->dev->base.caps.threads;
}

static void choose_emit(struct bl_cpu_builder *b)
{
    const struct sizes s = sizes_of(&b->dev->base.caps, bl_cpu_attr(b));
    const uint32_t n_tok = bl_cpu_src(b, 0)->ne[1];
    const bool few = n_tok <= FEW_TOKENS;
    const uint64_t own = b->dev->base.caps.threads * s.work, parts = n_tok * s.part;
    bl_cpu_reserve(b, bl_cpu_round(own) + (few ? bl_cpu_round(parts) : 0));
    const uint64_t work = bl_cpu_take(b, own), part = few ? bl_cpu_take(b, parts) : 0;
    struct choose_args *a = bl_cpu_step(b, few ? few_run : many_run, sizeof *a, BL_CPU_SPREAD);
    if (!a)
        return;
    fill_args(b, a, &s);
    bl_cpu_touch(b, work, own, 0, true);
    a->work = (uint8_t *)(uintptr_t)work;
    a->part = (struct found *)(uintptr_t)part;
    if (!few) {
        bl_cpu_writes(b, 0);
        return;
    }
    bl_cpu_touch(b, part, parts, s.part, true);
    struct choose_args *m = bl_cpu_step(b, merge_run, sizeof *m, BL_CPU_TOKENS);
    if (!m)
        return;
    *m = *a;
    bl_cpu_touch(b, part, parts, s.part, true);
    bl_cpu_writes(b, 0);
}

static bool choose_supports(const struct bl_graph *g, const struct bl_node *n)
{
    const uint8_t type = g->vals[bl_node_src(g, n, 2)].type;
    return type == BL_F32 || type == BL_F16 || type == BL_BF16 || type == BL_Q8_0 ||
           type == BL_Q4_0;
}

static uint64_t choose_scratch(const struct bl_caps *caps, const struct bl_graph *g,
                               const struct bl_node *n)
{
    const struct sizes s = sizes_of(caps, bl_node_attr(g, n));
    const uint32_t n_tok = g->vals[bl_node_src(g, n, 0)].ne[1];
    const uint64_t own = bl_cpu_round(caps->threads * s.work);
    return n_tok <= FEW_TOKENS ? own + bl_cpu_round(n_tok * s.part) : own;
}

const struct bl_cpu_op bl_cpu_choose = {choose_supports, choose_scratch, choose_emit};

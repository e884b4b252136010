/* SPDX-License-Identifier: MIT */
/* CHOOSE: the rows with the largest scores, kept in a heap of as many as are wanted that sees the
 * rows in their order; which of equal rows stay follows from it, and graph.h tells the law. Few
 * tokens: threads score the rows of each, a second step chooses among the scores. Many: a thread
 * takes whole tokens. */
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
    uint32_t rows_per_seq;
    uint8_t *work; /* every thread's own heap */
    size_t work_bytes;
    float *score; /* few tokens: [token][rows_per_seq] */
};

struct sizes {
    uint64_t work, score; /* bytes of a thread, of a token */
};

static struct sizes sizes_of(const struct bl_choose_attr *at, uint32_t rows_per_seq)
{
    return (struct sizes){bl_cpu_round((uint64_t)at->n * sizeof(struct found)),
                          (uint64_t)rows_per_seq * sizeof(float)};
}

/* ---- the best ---- */

struct best {
    struct found *heap; /* full: no row is better than those below it, the worst is on top */
    uint32_t n, most;
};

/* Puts f into the tree below `top`, whose place is free: the free place sinks to a leaf, the worse
 * child moving up (of equal ones the right), then f rises from there past better ones. */
static void settle(struct best *b, uint32_t top, struct found f)
{
    struct found *h = b->heap;
    uint32_t at = top;
    for (uint32_t child; (child = 2 * at + 1) < b->n; at = child) {
        if (child + 1 < b->n && h[child + 1].score <= h[child].score)
            child++;
        h[at] = h[child];
    }
    for (uint32_t up; at > top && h[up = (at - 1) / 2].score > f.score; at = up)
        h[at] = h[up];
    h[at] = f;
}

static void offer(struct best *b, struct found f)
{
    if (b->n < b->most) {
        b->heap[b->n++] = f;
        for (uint32_t i = b->most / 2; b->n == b->most && i-- > 0;)
            settle(b, i, b->heap[i]);
    } else if (f.score > b->heap[0].score)
        settle(b, 0, f);
}

static struct best best_of(const struct choose_args *a, uint32_t ith)
{
    return (struct best){.heap = (struct found *)(void *)(a->work + ith * a->work_bytes),
                         .most = a->at.n};
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

static uint32_t block_rows(uint32_t first, uint32_t end)
{
    return end - first < BLOCK ? end - first : BLOCK;
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
    for (uint32_t j = 0; j < n; j++)
        sum[j] = isnan(sum[j]) ? -INFINITY : sum[j];
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

static void score_run(const void *args, const struct bl_cpu_job *job)
{
    const struct choose_args *a = args;
    for (uint32_t t = 0; t < job->params->n_tok; t++) {
        const struct view v = view_of(a, job->params, t);
        if (v.n <= a->at.n)
            continue;
        const struct bl_cpu_range r = bl_cpu_groups(v.n, BLOCK, job->ith, job->nth);
        for (uint32_t first = r.first; first < r.end; first += BLOCK)
            score_block(a, t, v.slot, first, block_rows(first, r.end),
                        a->score + (size_t)t * a->rows_per_seq + first);
    }
}

static void pick_run(const void *args, const struct bl_cpu_job *job)
{
    const struct choose_args *a = args;
    const struct bl_cpu_range own = bl_cpu_rows(job, BL_CPU_TOKENS);
    for (uint32_t t = own.first; t < own.end; t++) {
        const float *score = a->score + (size_t)t * a->rows_per_seq;
        const uint32_t n = view_of(a, job->params, t).n;
        struct best b = best_of(a, job->ith);
        if (put_all(a, t, n))
            continue;
        for (uint32_t i = 0; i < n; i++)
            offer(&b, (struct found){score[i], i});
        put(a, t, b.heap, b.n);
    }
}

/* ---- many tokens ---- */

static void many_run(const void *args, const struct bl_cpu_job *job)
{
    const struct choose_args *a = args;
    for (uint32_t t = job->ith; t < job->params->n_tok; t += job->nth) { /* late ones see more */
        const struct view v = view_of(a, job->params, t);
        struct best b = best_of(a, job->ith);
        if (put_all(a, t, v.n))
            continue;
        for (uint32_t first = 0; first < v.n; first += BLOCK) {
            const uint32_t n = block_rows(first, v.n);
            float score[BLOCK];
            score_block(a, t, v.slot, first, n, score);
            for (uint32_t j = 0; j < n; j++)
                offer(&b, (struct found){score[j], first + j});
        }
        put(a, t, b.heap, b.n);
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
    a->work_bytes = (size_t)s->work;
}

static void choose_emit(struct bl_cpu_builder *b)
{
    const struct sizes s = sizes_of(bl_cpu_attr(b), bl_cpu_src(b, 2)->ne[1]);
    const uint32_t n_tok = bl_cpu_src(b, 0)->ne[1];
    const bool few = n_tok <= FEW_TOKENS;
    const uint64_t own = b->dev->base.caps.threads * s.work, scores = n_tok * s.score;
    bl_cpu_reserve(b, bl_cpu_round(own) + (few ? bl_cpu_round(scores) : 0));
    const uint64_t work = bl_cpu_take(b, own), score = few ? bl_cpu_take(b, scores) : 0;
    struct choose_args *a = bl_cpu_step(b, few ? score_run : many_run, sizeof *a, BL_CPU_SPREAD);
    if (!a)
        return;
    fill_args(b, a, &s);
    a->work = (uint8_t *)(uintptr_t)work;
    a->score = (float *)(uintptr_t)score;
    if (few) {
        bl_cpu_touch(b, score, scores, 0, true);
        struct choose_args *pick = bl_cpu_step(b, pick_run, sizeof *pick, BL_CPU_TOKENS);
        if (!pick)
            return;
        *pick = *a;
        bl_cpu_touch(b, score, scores, s.score, false);
    }
    bl_cpu_touch(b, work, own, 0, true);
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
    const struct sizes s = sizes_of(bl_node_attr(g, n), g->vals[bl_node_src(g, n, 2)].ne[1]);
    const uint32_t n_tok = g->vals[bl_node_src(g, n, 0)].ne[1];
    const uint64_t own = bl_cpu_round(caps->threads * s.work);
    return n_tok <= FEW_TOKENS ? own + bl_cpu_round(n_tok * s.score) : own;
}

const struct bl_cpu_op bl_cpu_choose = {choose_supports, choose_scratch, choose_emit};

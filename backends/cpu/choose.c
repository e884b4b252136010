/* SPDX-License-Identifier: MIT */
/* CHOOSE: rows are scored in blocks, of which one is decoded for a few tokens together, then each
 * token keeps the best. Few tokens: threads share the rows of all, a second step chooses among the
 * scores. Many: a thread takes a few tokens whole. Scores do not depend on how work is shared. */
#include "best.h"
#include "segment.h"

#include <math.h>

enum {
    FEW_TOKENS = 4, /* that a block of rows is decoded for */
    UNITS = 4,      /* of work for every thread */
    BLOCK = BL_TILE_PANEL
};

struct choose_args {
    const float *q, *weights;
    const uint8_t *rows;
    int32_t *y;
    bl_qk_fn *qk;
    bl_tile_keys_fn *keys; /* NULL: scores of one query after the other */
    size_t row_bytes;
    struct bl_choose_attr at;
    uint32_t rows_per_seq;
    uint8_t *work; /* every thread's own */
    size_t work_bytes, panel_bytes, room_bytes;
    float *score; /* few tokens: [token][rows_per_seq] */
    struct bl_cpu_counter *counter;
};

/* Of one thread: a block of rows, room for choosing, scores of a unit of many tokens. */
struct sizes {
    uint64_t panel, room, score;
};

static struct sizes sizes_of(const struct bl_choose_attr *at, uint32_t rows_per_seq)
{
    return (struct sizes){
        .panel = bl_cpu_round((uint64_t)at->dk * BLOCK * sizeof(float)),
        .room = bl_cpu_best_bytes(at->n),
        .score = bl_cpu_round(FEW_TOKENS * (uint64_t)rows_per_seq * sizeof(float)),
    };
}

static uint64_t own_bytes(const struct sizes *s, uint32_t n_tok)
{
    return s->panel + s->room + (n_tok > FEW_TOKENS ? s->score : 0);
}

/* ---- scores ---- */

/* A token and what it sees: rows [0, n) of its slot; n is 0 where it sees no more than it keeps. */
struct view {
    uint32_t t, slot, n;
    float *score;
};

static struct view view_of(const struct choose_args *a, const struct bl_params *p, uint32_t t,
                           float *score)
{
    const uint32_t seq = BL_PARAMS_ARRAY(const uint32_t, p, p->seq_off)[t];
    const uint32_t n = (BL_PARAMS_ARRAY(const uint32_t, p, p->pos_off)[t] + 1) / a->at.group;
    return (struct view){t, BL_PARAMS_ARRAY(const struct bl_seq_params, p, p->table_off)[seq].slot,
                         n > a->at.n ? n : 0, score};
}

struct block {
    uint64_t off[BLOCK]; /* of rows; those beyond n repeat the last */
    const float *panel;
    uint32_t first, n;
};

/* Eight heads together. */
static void score_by_tiles(const struct choose_args *a, const struct bl_cpu_kernels *k,
                           const struct block *b, uint32_t t, float *sum)
{
    BL_ALIGNED(64) float score[BL_TILE_ROWS * BL_TILE_KEYS];
    const float *q = a->q + (size_t)t * a->at.n_head * a->at.dk,
                *w = a->weights + (size_t)t * a->at.n_head;
    for (uint32_t head = 0, n; head < a->at.n_head; head += n) {
        n = a->at.n_head - head < BL_TILE_ROWS ? a->at.n_head - head : BL_TILE_ROWS;
        k->tile.scores(a->at.dk, n, score, q + (size_t)head * a->at.dk, b->panel, NULL);
        k->relu_sum(n, sum, w + head, score);
    }
}

static void score_by_heads(const struct choose_args *a, const struct block *b, uint32_t t,
                           float *sum)
{
    float score[BLOCK];
    for (uint32_t head = 0; head < a->at.n_head; head++) {
        const size_t h = (size_t)t * a->at.n_head + head;
        a->qk(a->at.dk, b->n, score, a->q + h * a->at.dk, a->rows, b->off, 1);
        for (uint32_t j = 0; j < b->n; j++) /* what is not a number stays so */
            sum[j] += a->weights[h] * (score[j] < 0 ? 0 : score[j]);
    }
}

static void score_block(const struct choose_args *a, const struct bl_cpu_kernels *k,
                        const struct block *b, const struct view *v)
{
    BL_ALIGNED(64) float sum[BLOCK] = {0};
    if (a->keys)
        score_by_tiles(a, k, b, v->t, sum);
    else
        score_by_heads(a, b, v->t, sum);
    for (uint32_t j = 0; j < b->n; j++)
        v->score[b->first + j] = isnan(sum[j]) ? -INFINITY : sum[j];
}

static uint32_t longest(const struct view *v, uint32_t n)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < n; i++)
        most = v[i].n > most ? v[i].n : most;
    return most;
}

/* Rows `of` one slot, as far as there are so many, for tokens of that slot. */
static void score_slot(const struct choose_args *a, const struct bl_cpu_job *job,
                       const struct view *v, uint32_t n, struct bl_cpu_range of)
{
    const uint32_t most = longest(v, n), end = of.end < most ? of.end : most;
    float *panel = (float *)(void *)(a->work + job->ith * a->work_bytes);
    struct block b = {.panel = panel};
    for (b.first = of.first; b.first < end; b.first += BLOCK) {
        b.n = end - b.first < BLOCK ? end - b.first : BLOCK;
        for (uint32_t j = 0; j < BLOCK; j++)
            b.off[j] = ((uint64_t)v->slot * a->rows_per_seq + b.first + (j < b.n ? j : b.n - 1)) *
                       a->row_bytes;
        if (a->keys)
            a->keys(a->at.dk, panel, a->rows, b.off);
        for (uint32_t i = 0; i < n; i++)
            if (v[i].n > b.first)
                score_block(a, job->kernels, &b, &v[i]);
    }
}

/* Rows `of` every token's slot; those of neighbours that share it together. */
static void score_views(const struct choose_args *a, const struct bl_cpu_job *job,
                        const struct view *v, uint32_t n, struct bl_cpu_range of)
{
    for (uint32_t from = 0, to; from < n; from = to) {
        for (to = from + 1; to < n && v[to].slot == v[from].slot;)
            to++;
        score_slot(a, job, v + from, to - from, of);
    }
}

/* ---- results ---- */

/* All rows that there are, where they are no more than are wanted; the rest of the list is 0. */
static void put_all(const struct choose_args *a, const struct bl_params *p, uint32_t t)
{
    const uint32_t n = (BL_PARAMS_ARRAY(const uint32_t, p, p->pos_off)[t] + 1) / a->at.group;
    int32_t *y = a->y + (size_t)t * a->at.n;
    for (uint32_t i = 0; i < a->at.n; i++)
        y[i] = i < n ? (int32_t)i : 0;
}

static void pick(const struct choose_args *a, const struct bl_cpu_job *job, const struct view *v)
{
    if (v->n)
        bl_cpu_best(v->n, v->score, a->at.n, a->y + (size_t)v->t * a->at.n,
                    a->work + job->ith * a->work_bytes + a->panel_bytes);
    else
        put_all(a, job->params, v->t);
}

/* ---- few tokens ---- */

static void score_run(const void *args, const struct bl_cpu_job *job)
{
    const struct choose_args *a = args;
    struct view v[FEW_TOKENS];
    const uint32_t n = job->params->n_tok;
    for (uint32_t t = 0; t < n; t++)
        v[t] = view_of(a, job->params, t, a->score + (size_t)t * a->rows_per_seq);
    score_views(a, job, v, n, bl_cpu_groups(longest(v, n), BLOCK, job->ith, job->nth));
}

static void pick_run(const void *args, const struct bl_cpu_job *job)
{
    const struct choose_args *a = args;
    const struct bl_cpu_range own = bl_cpu_rows(job, BL_CPU_TOKENS);
    for (uint32_t t = own.first; t < own.end; t++) {
        const struct view v = view_of(a, job->params, t, a->score + (size_t)t * a->rows_per_seq);
        pick(a, job, &v);
    }
}

/* ---- many tokens ---- */

static void many_run(const void *args, const struct bl_cpu_job *job)
{
    const struct choose_args *a = args;
    const uint32_t n_tok = job->params->n_tok, even = n_tok / (UNITS * job->nth);
    const uint32_t tokens = even < 1 ? 1 : even < FEW_TOKENS ? even : FEW_TOKENS;
    const uint32_t n_units = (n_tok + tokens - 1) / tokens;
    float *score =
        (float *)(void *)(a->work + job->ith * a->work_bytes + a->panel_bytes + a->room_bytes);
    struct view v[FEW_TOKENS];
    for (uint32_t i; bl_cpu_claim(a->counter, n_units, &i);) {
        const uint32_t first = (n_units - 1 - i) * tokens; /* late ones see more */
        const uint32_t n = n_tok - first < tokens ? n_tok - first : tokens;
        for (uint32_t k = 0; k < n; k++)
            v[k] = view_of(a, job->params, first + k, score + (size_t)k * a->rows_per_seq);
        score_views(a, job, v, n, (struct bl_cpu_range){0, UINT32_MAX});
        for (uint32_t k = 0; k < n; k++)
            pick(a, job, &v[k]);
    }
}

/* ---- op ---- */

static void fill_args(struct bl_cpu_builder *b, struct choose_args *a, const struct sizes *s)
{
    const struct bl_value *rows = bl_cpu_src(b, 2);
    const struct bl_cpu_kernels *k = &b->dev->kernels;
    a->q = bl_cpu_reads(b, 0);
    a->weights = bl_cpu_reads(b, 1);
    a->rows = bl_cpu_reads(b, 2);
    a->y = (int32_t *)(uintptr_t)b->bound->dst[0];
    a->qk = k->kv[rows->type].qk;
    a->keys = k->tile.scores ? k->rows[rows->type].keys : NULL;
    a->row_bytes = (size_t)bl_dtype_row_bytes(rows->type, rows->ne[0]);
    a->at = *(const struct bl_choose_attr *)bl_cpu_attr(b);
    a->rows_per_seq = rows->ne[1];
    a->panel_bytes = (size_t)s->panel;
    a->room_bytes = (size_t)s->room;
}

static void choose_emit(struct bl_cpu_builder *b)
{
    const struct sizes s = sizes_of(bl_cpu_attr(b), bl_cpu_src(b, 2)->ne[1]);
    const uint32_t n_tok = bl_cpu_src(b, 0)->ne[1], n_own = b->dev->base.caps.threads;
    const uint64_t own = own_bytes(&s, n_tok),
                   scores = (uint64_t)n_tok * bl_cpu_src(b, 2)->ne[1] * sizeof(float);
    const bool few = n_tok <= FEW_TOKENS;
    bl_cpu_reserve(b, n_own * own + (few ? s.score : 0));
    const uint64_t work = bl_cpu_take(b, n_own * own), score = few ? bl_cpu_take(b, s.score) : 0;
    struct choose_args *a = bl_cpu_step(b, few ? score_run : many_run, sizeof *a, BL_CPU_SPREAD);
    if (!a || (!few && !(a->counter = bl_cpu_counter_of(b))))
        return;
    fill_args(b, a, &s);
    a->work = (uint8_t *)(uintptr_t)work;
    a->work_bytes = (size_t)own;
    a->score = (float *)(uintptr_t)score;
    if (few) {
        bl_cpu_touch(b, score, scores, 0, true);
        bl_cpu_touch_own(b, work, own);
        struct choose_args *then = bl_cpu_step(b, pick_run, sizeof *then, BL_CPU_TOKENS);
        if (!then)
            return;
        *then = *a;
        bl_cpu_touch(b, score, scores, scores / n_tok, false);
    }
    bl_cpu_touch_own(b, work, own);
    bl_cpu_writes(b, 0);
}

static bool choose_supports(const struct bl_graph *g, const struct bl_node *n)
{
    return bl_dtype_can_cache(g->vals[bl_node_src(g, n, 2)].type);
}

static uint64_t choose_scratch(const struct bl_caps *caps, const struct bl_graph *g,
                               const struct bl_node *n)
{
    const struct sizes s = sizes_of(bl_node_attr(g, n), g->vals[bl_node_src(g, n, 2)].ne[1]);
    const uint32_t n_tok = g->vals[bl_node_src(g, n, 0)].ne[1];
    return caps->threads * own_bytes(&s, n_tok) + (n_tok > FEW_TOKENS ? 0 : s.score);
}

const struct bl_cpu_op bl_cpu_choose = {choose_supports, choose_scratch, choose_emit};

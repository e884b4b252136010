/* SPDX-License-Identifier: MIT */
/* ATTENTION and ATTENTION_GROUPS: how much memory they need, which steps they become. */
#include "attention.h"

enum {
    FEW_TOKENS = 4,
    LEAST_SPLIT = 128,      /* keys and values of one head stay in the first-level caches */
    LEAST_TILE_SPLIT = 256, /* merging is a small part of the work */
    MOST_SPLITS = 64,
    MOST_TILE_SPLITS = 24, /* enough for many threads */
    /* of a key head whose rows are read where they lie: with more, copies pay, sooner in pairs */
    MOST_HEADS = 16,
    MOST_HEADS_PAIRS = 8
};
enum { Q, K, V, SINKS, ROWS, CHOSEN }; /* sources */

/* ---- sizes ---- */

struct sizes {
    uint32_t split, most_parts; /* as the arguments' */
    uint32_t n_splits;          /* most that a token sees */
    uint32_t tile_rows;         /* 0: single queries */
    uint64_t work, partial;     /* bytes of a thread, of a token */
};

static uint64_t partial_floats(const struct bl_attention_attr *at)
{
    return bl_align_up((uint64_t)at->dv + 2, 16);
}

/* Most rows of groups that a token sees. */
static uint32_t most_group_rows(const struct bl_graph *g, const struct bl_node *n)
{
    if (n->op != BL_OP_ATTENTION_GROUPS)
        return 0;
    const bl_val chosen = bl_node_src(g, n, CHOSEN);
    return chosen ? g->vals[chosen].ne[0] : g->vals[bl_node_src(g, n, ROWS)].ne[1];
}

/* Most parts of n rows in splits that double where there would be more than `most`. */
static uint64_t parts_of(uint32_t n, const struct sizes *s)
{
    const uint64_t parts = ((uint64_t)n + s->split - 1) / s->split;
    return parts < s->most_parts ? parts : s->most_parts;
}

static struct sizes sizes_of(const struct bl_caps *caps, const struct bl_graph *g,
                             const struct bl_node *n)
{
    const struct bl_attention_attr *at = bl_node_attr(g, n); /* ATTENTION_GROUPS begins with it */
    const uint32_t rows = g->vals[bl_node_src(g, n, K)].ne[1], groups = most_group_rows(g, n);
    const uint64_t most = rows > groups ? rows : groups;
    struct sizes s = {.split = LEAST_TILE_SPLIT, .most_parts = MOST_TILE_SPLITS};
    if (caps->exact) {
        s.split = LEAST_SPLIT;
        s.most_parts = UINT32_MAX;
        while ((uint64_t)s.split * MOST_SPLITS < most)
            s.split *= 2;
    }
    /* A window may begin inside a split: one more. */
    s.n_splits = (uint32_t)(parts_of(rows, &s) + 1 + parts_of(groups, &s));
    if (!caps->exact)
        s.tile_rows = bl_cpu_tile_rows(at, g->vals[bl_node_src(g, n, Q)].ne[1]);
    s.work = caps->exact ? bl_cpu_attend_work_bytes(s.split, at->dv)
                         : bl_cpu_tile_work_bytes(at, s.tile_rows);
    s.partial = at->n_head * s.n_splits * partial_floats(at) * sizeof(float);
    return s;
}

/* ---- steps ---- */

static bool is_few(const struct bl_value *q)
{
    return q->ne[1] <= FEW_TOKENS;
}

static void fill_groups(struct bl_cpu_builder *b, struct bl_cpu_attention_args *a)
{
    if (b->node->op != BL_OP_ATTENTION_GROUPS)
        return;
    a->rows = bl_cpu_reads(b, ROWS);
    a->group_rows = bl_cpu_src(b, ROWS)->ne[1];
    a->group_tokens = ((const struct bl_groups_attr *)bl_cpu_attr(b))->group;
    if (!bl_node_src(b->graph, b->node, CHOSEN))
        return;
    a->chosen = bl_cpu_reads(b, CHOSEN);
    a->n_chosen = bl_cpu_src(b, CHOSEN)->ne[0];
}

static uint32_t most_heads(const struct bl_cpu_builder *b, const struct bl_value *k,
                           const struct bl_value *v)
{
    const struct bl_pair_rows *rows = b->dev->kernels.pair_rows;
    return rows[k->type].keys && rows[v->type].values ? MOST_HEADS_PAIRS : MOST_HEADS;
}

static void fill_args(struct bl_cpu_builder *b, struct bl_cpu_attention_args *a,
                      const struct sizes *s)
{
    const struct bl_value *k = bl_cpu_src(b, K), *v = bl_cpu_src(b, V);
    a->at = *(const struct bl_attention_attr *)bl_cpu_attr(b);
    a->q = bl_cpu_reads(b, Q);
    a->k = bl_cpu_reads(b, K);
    a->v = bl_cpu_reads(b, V);
    a->sinks = bl_cpu_weight(b, SINKS);
    a->y = (float *)(uintptr_t)b->bound->dst[0];
    a->qk = b->dev->kernels.kv[k->type].qk;
    a->pv = b->dev->kernels.kv[v->type].pv;
    a->keys = b->dev->kernels.rows[k->type].keys;
    a->values = b->dev->kernels.rows[v->type].values;
    a->k_row_bytes = (size_t)bl_dtype_row_bytes(k->type, k->ne[0]);
    a->v_row_bytes = (size_t)bl_dtype_row_bytes(v->type, v->ne[0]);
    a->k_head_bytes = (size_t)bl_dtype_row_bytes(k->type, a->at.dk);
    a->v_head_bytes = k == v ? a->k_head_bytes : (size_t)bl_dtype_row_bytes(v->type, a->at.dv);
    a->group = a->at.n_head / a->at.n_head_kv;
    if (is_few(bl_cpu_src(b, Q)) && a->group <= most_heads(b, k, v)) {
        a->row_scores = b->dev->kernels.rows[k->type].scores;
        a->row_sum = b->dev->kernels.rows[v->type].sum;
    }
    if (!a->row_scores && !a->row_sum) {
        a->pair_keys = b->dev->kernels.pair_rows[k->type].keys;
        a->pair_values = b->dev->kernels.pair_rows[v->type].values;
    }
    a->rows_per_seq = k->ne[1];
    a->split = s->split;
    a->most_parts = s->most_parts;
    a->tile_rows = s->tile_rows;
    a->n_splits = s->n_splits;
    a->partial_floats = (uint32_t)partial_floats(&a->at);
    a->work_bytes = (size_t)s->work;
    fill_groups(b, a);
}

static void emit_merge(struct bl_cpu_builder *b, const struct bl_cpu_attention_args *a,
                       uint64_t partials, uint64_t token_bytes)
{
    struct bl_cpu_attention_args *m = bl_cpu_step(b, bl_cpu_attend_merge, sizeof *m, BL_CPU_TOKENS);
    if (!m)
        return;
    *m = *a;
    bl_cpu_touch(b, (uint64_t)(uintptr_t)a->partial, partials, token_bytes, false);
    bl_cpu_writes(b, 0);
}

/* Arguments with n counters of what is done behind them. */
static struct bl_cpu_attention_args *begin_step(struct bl_cpu_builder *b, bl_cpu_step_fn *run,
                                                uint64_t n)
{
    struct bl_cpu_attention_args *a =
        bl_cpu_step(b, run, sizeof *a + (size_t)n * sizeof *a->done, BL_CPU_SPREAD);
    if (!a || !(a->counter = bl_cpu_counter_of(b)))
        return NULL;
    a->done = (struct bl_cpu_counter **)(a + 1);
    for (uint64_t i = 0; i < n; i++)
        if (!(a->done[i] = bl_cpu_counter_of(b)))
            return NULL;
    return a;
}

static bl_cpu_step_fn *step_of(bool few, bool tiles)
{
    if (few)
        return tiles ? bl_cpu_tile_few : bl_cpu_attend_few;
    return tiles ? bl_cpu_tile_many : bl_cpu_attend_many;
}

static void attention_emit(struct bl_cpu_builder *b)
{
    const struct sizes s = sizes_of(&b->dev->base.caps, b->graph, b->node);
    const struct bl_value *q = bl_cpu_src(b, Q);
    const bool few = is_few(q), tiles = s.tile_rows > 0;
    const uint64_t own = b->dev->base.caps.threads * s.work, partials = q->ne[1] * s.partial;
    const struct bl_attention_attr *at = bl_cpu_attr(b);
    bl_cpu_reserve(b, bl_cpu_round(own) + (few ? bl_cpu_round(partials) : 0));
    const uint64_t work = bl_cpu_take(b, own), partial = few ? bl_cpu_take(b, partials) : 0;
    struct bl_cpu_attention_args *a =
        begin_step(b, step_of(few, tiles), few && tiles ? (uint64_t)q->ne[1] * at->n_head_kv : 0);
    if (!a)
        return;
    fill_args(b, a, &s);
    bl_cpu_touch(b, work, own, 0, true);
    a->work = (uint8_t *)(uintptr_t)work;
    a->partial = (float *)(uintptr_t)partial;
    if (few)
        bl_cpu_touch(b, partial, partials, s.partial, true);
    if (few && !tiles)
        emit_merge(b, a, partials, s.partial);
    else
        bl_cpu_writes(b, 0);
}

/* A head of K or V must be whole blocks of its type. */
static bool attention_supports(const struct bl_graph *g, const struct bl_node *n)
{
    const struct bl_attention_attr *at = bl_node_attr(g, n);
    const struct bl_value *k = &g->vals[bl_node_src(g, n, K)], *v = &g->vals[bl_node_src(g, n, V)];
    return bl_dtype_can_cache(k->type) && bl_dtype_can_cache(v->type) &&
           bl_dtype_row_bytes(k->type, at->dk) && bl_dtype_row_bytes(v->type, at->dv);
}

static uint64_t attention_scratch(const struct bl_caps *caps, const struct bl_graph *g,
                                  const struct bl_node *n)
{
    const struct sizes s = sizes_of(caps, g, n);
    const struct bl_value *q = &g->vals[bl_node_src(g, n, Q)];
    const uint64_t own = bl_cpu_round(caps->threads * s.work);
    return is_few(q) ? own + bl_cpu_round(q->ne[1] * s.partial) : own;
}

const struct bl_cpu_op bl_cpu_attention = {attention_supports, attention_scratch, attention_emit};

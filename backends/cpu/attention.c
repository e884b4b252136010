/* SPDX-License-Identifier: MIT */
/* ATTENTION and ATTENTION_GROUPS. What a token sees is a list of rows: those of whole groups of
 * tokens, then those of single tokens. Both are cut into splits at fixed places; each split gives a
 * partial result for a (token, head): its largest score, the sum of exponentials and the weighted
 * values. Partials are merged in order. Few tokens: threads share (token, heads, split), a second
 * step merges. Many: a thread takes a block of tokens and merges as it goes. Both do the same
 * arithmetic, so a token's result depends neither on the number of threads nor on whether it came
 * alone or in a batch. */
#include "segment.h"

#include <math.h>

enum {
    FEW_TOKENS = 4,
    BLOCK_TOKENS = 16, /* that share one reading of a split */
    BLOCK_HEADS = 8,   /* of one key head that a thread takes together */
    LEAST_SPLIT = 128, /* keys and values of one head stay in the first-level caches */
    MOST_SPLITS = 64
};
enum { Q, K, V, SINKS, ROWS, CHOSEN }; /* sources */

struct attention_args {
    const float *q, *sinks;
    const uint8_t *k, *v;
    const uint8_t *rows;   /* of groups, NULL: none */
    const int32_t *chosen; /* [token][n_chosen] which of them, in ascending order; NULL: all */
    float *y;
    bl_qk_fn *qk;
    bl_pv_fn *pv;
    size_t k_row, v_row, k_head, v_head; /* bytes */
    struct bl_attention_attr at;
    uint32_t group; /* query heads of one key head */
    uint32_t rows_per_seq, split;
    uint32_t group_tokens, group_rows, n_chosen; /* group_rows: per sequence */
    uint8_t *work;                               /* every thread's own */
    size_t work_bytes;
    float *partial; /* few tokens: [token][head][split][dv, largest, sum] */
    uint32_t n_splits, partial_floats;
};

/* ---- sizes ---- */

struct sizes {
    uint32_t split, n_splits; /* keys of a split; most splits that a token sees */
    uint64_t work, partial;   /* bytes of a thread, of a token */
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

static struct sizes sizes_of(const struct bl_graph *g, const struct bl_node *n)
{
    const struct bl_attention_attr *at = bl_node_attr(g, n); /* ATTENTION_GROUPS begins with it */
    const uint32_t rows = g->vals[bl_node_src(g, n, K)].ne[1], groups = most_group_rows(g, n);
    const uint64_t most = rows > groups ? rows : groups;
    struct sizes s = {.split = LEAST_SPLIT};
    while ((uint64_t)s.split * MOST_SPLITS < most)
        s.split *= 2;
    /* A window may begin inside a split: one more. */
    s.n_splits = (uint32_t)(((uint64_t)rows + s.split - 1) / s.split + 1 +
                            ((uint64_t)groups + s.split - 1) / s.split);
    s.work = bl_cpu_round(s.split * (2 * sizeof(uint64_t) + sizeof(float)) +
                          at->dv * sizeof(float) + BLOCK_TOKENS * BLOCK_HEADS * 2 * sizeof(float));
    s.partial = at->n_head * s.n_splits * partial_floats(at) * sizeof(float);
    return s;
}

/* One thread's tools. */
struct work {
    uint64_t *k_off, *v_off; /* [split] where the rows of this split are */
    float *score;            /* [split] */
    float *acc;              /* [dv] */
    struct running {
        float max, sum;
    } * run; /* [BLOCK_TOKENS][BLOCK_HEADS] */
};

static struct work work_of(const struct attention_args *a, uint32_t ith)
{
    struct work w;
    w.k_off = (uint64_t *)(a->work + ith * a->work_bytes);
    w.v_off = w.k_off + a->split;
    w.score = (float *)(w.v_off + a->split);
    w.acc = w.score + a->split;
    w.run = (struct running *)(w.acc + a->at.dv);
    return w;
}

/* ---- what a token sees ---- */

struct view {
    uint32_t slot, first, end; /* positions [first, end) */
    uint32_t n_rows;           /* of groups */
    const int32_t *chosen;     /* [n_rows], NULL: all from the first */
};

static struct view view_of(const struct attention_args *a, const struct bl_params *p, uint32_t t)
{
    const uint32_t pos = BL_PARAMS_ARRAY(const uint32_t, p, p->pos_off)[t];
    const uint32_t seq = BL_PARAMS_ARRAY(const uint32_t, p, p->seq_off)[t];
    const uint32_t window = a->at.window;
    struct view v = {
        .slot = BL_PARAMS_ARRAY(const struct bl_seq_params, p, p->table_off)[seq].slot,
        .first = window && pos >= window ? pos - window + 1 : 0,
        .end = pos + 1,
        .n_rows = a->rows ? (pos + 1) / a->group_tokens : 0,
    };
    if (a->chosen) {
        v.chosen = a->chosen + (size_t)t * a->n_chosen;
        v.n_rows = v.n_rows < a->n_chosen ? v.n_rows : a->n_chosen;
    }
    return v;
}

/* What lies in one split: rows of groups, or positions. */
struct part {
    bool groups;
    uint32_t first, n;
};

/* What a token sees of a part, perhaps nothing. */
static struct part meet(struct view v, struct part p)
{
    const uint32_t first = p.groups ? 0 : v.first, end = p.groups ? v.n_rows : v.end;
    const uint32_t p_end = p.first + p.n < end ? p.first + p.n : end;
    p.first = p.first > first ? p.first : first;
    p.n = p_end > p.first ? p_end - p.first : 0;
    return p;
}

static uint32_t row_parts(const struct attention_args *a, struct view v)
{
    return (v.n_rows + a->split - 1) / a->split;
}

static uint32_t n_parts(const struct attention_args *a, struct view v)
{
    return row_parts(a, v) + (v.end - 1) / a->split - v.first / a->split + 1;
}

static struct part part_of(const struct attention_args *a, struct view v, uint32_t i)
{
    const uint32_t before = row_parts(a, v);
    const uint32_t split = i < before ? i : v.first / a->split + i - before;
    return meet(v, (struct part){i < before, split * a->split, a->split});
}

static void find_groups(const struct attention_args *a, const struct work *w, struct view v,
                        struct part p)
{
    for (uint32_t j = 0; j < p.n; j++) {
        const uint32_t row = v.chosen ? (uint32_t)v.chosen[p.first + j] : p.first + j;
        w->k_off[j] = w->v_off[j] = ((uint64_t)v.slot * a->group_rows + row) * a->k_row;
    }
}

static void find_rows(const struct attention_args *a, const struct work *w, struct view v,
                      struct part p)
{
    const uint32_t base = v.slot * a->rows_per_seq;
    uint32_t row = bl_kv_row(a->rows_per_seq, v.slot, p.first) - base;
    if (p.groups) {
        find_groups(a, w, v, p);
        return;
    }
    for (uint32_t j = 0; j < p.n; j++) {
        w->k_off[j] = (uint64_t)(base + row) * a->k_row;
        w->v_off[j] = (uint64_t)(base + row) * a->v_row;
        row = row + 1 == a->rows_per_seq ? 0 : row + 1;
    }
}

/* ---- partial results ---- */

/* Eight running maxima, which compilers turn into vector instructions; a NaN never wins. */
static float largest(uint32_t n, const float *x)
{
    float m[8] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY,
                  -INFINITY, -INFINITY, -INFINITY, -INFINITY};
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (unsigned j = 0; j < 8; j++)
            m[j] = x[i + j] > m[j] ? x[i + j] : m[j];
    for (; i < n; i++)
        m[0] = x[i] > m[0] ? x[i] : m[0];
    for (unsigned j = 1; j < 8; j++)
        m[0] = m[j] > m[0] ? m[j] : m[0];
    return m[0];
}

/* Rows [skip, skip + n) of those found, against query head `head` of token t; acc gets the weighted
 * values. */
static struct running attend(const struct attention_args *a, const struct bl_cpu_kernels *k,
                             const struct work *w, uint32_t t, uint32_t head, bool groups,
                             uint32_t skip, uint32_t n, float *acc)
{
    const struct bl_attention_attr *at = &a->at;
    const uint32_t kv = head / a->group;
    const uint8_t *keys = groups ? a->rows : a->k, *values = groups ? a->rows : a->v;
    struct running r;
    a->qk(at->dk, n, w->score, a->q + ((size_t)t * at->n_head + head) * at->dk,
          keys + kv * a->k_head, w->k_off + skip, at->scale);
    r.max = largest(n, w->score);
    r.sum = k->exp_sum(n, w->score, r.max);
    memset(acc, 0, at->dv * sizeof *acc);
    a->pv(at->dv, n, acc, w->score, values + kv * a->v_head, w->v_off + skip);
    return r;
}

static void merge(uint32_t dv, struct running *to, float *y, struct running part, const float *acc)
{
    const float max = part.max > to->max ? part.max : to->max;
    const float c_to = expf(to->max - max), c_part = expf(part.max - max);
    to->max = max;
    to->sum = to->sum * c_to + part.sum * c_part;
    for (uint32_t i = 0; i < dv; i++)
        y[i] = y[i] * c_to + acc[i] * c_part;
}

/* A sink is a score without a value. */
static void finish(const struct attention_args *a, struct running r, uint32_t head, float *y)
{
    float c = 1;
    if (a->sinks) {
        const float sink = a->sinks[head], max = sink > r.max ? sink : r.max;
        c = expf(r.max - max);
        r.sum = r.sum * c + expf(sink - max);
    }
    c /= r.sum;
    for (uint32_t i = 0; i < a->at.dv; i++)
        y[i] *= c;
}

static float *out_of(const struct attention_args *a, uint32_t t, uint32_t head)
{
    return a->y + ((size_t)t * a->at.n_head + head) * a->at.dv;
}

/* Query heads of one key head that are taken together. */
struct heads {
    uint32_t first, end;
};

static uint32_t n_blocks(const struct attention_args *a)
{
    return (a->group + BLOCK_HEADS - 1) / BLOCK_HEADS * a->at.n_head_kv;
}

static struct heads block_of(const struct attention_args *a, uint32_t block)
{
    const uint32_t per_kv = (a->group + BLOCK_HEADS - 1) / BLOCK_HEADS;
    const uint32_t kv = block / per_kv, first = block % per_kv * BLOCK_HEADS;
    const uint32_t end = a->group - first < BLOCK_HEADS ? a->group : first + BLOCK_HEADS;
    return (struct heads){kv * a->group + first, kv * a->group + end};
}

/* ---- few tokens ---- */

static float *partial_of(const struct attention_args *a, uint32_t t, uint32_t head, uint32_t split)
{
    return a->partial +
           (((size_t)t * a->at.n_head + head) * a->n_splits + split) * a->partial_floats;
}

static void few_part(const struct attention_args *a, const struct bl_cpu_job *job,
                     const struct work *w, uint32_t t, struct heads h, uint32_t i)
{
    const struct view v = view_of(a, job->params, t);
    const struct part part = part_of(a, v, i);
    find_rows(a, w, v, part);
    for (uint32_t head = h.first; head < h.end; head++) {
        float *p = partial_of(a, t, head, i);
        const struct running r = attend(a, job->kernels, w, t, head, part.groups, 0, part.n, p);
        p[a->at.dv] = r.max;
        p[a->at.dv + 1] = r.sum;
    }
}

static void few_run(const void *args, const struct bl_cpu_job *job)
{
    const struct attention_args *a = args;
    const struct work w = work_of(a, job->ith);
    uint32_t unit = 0;
    for (uint32_t t = 0; t < job->params->n_tok; t++) {
        const uint32_t n = n_parts(a, view_of(a, job->params, t));
        for (uint32_t block = 0; block < n_blocks(a); block++)
            for (uint32_t i = 0; i < n; i++)
                if (unit++ % job->nth == job->ith)
                    few_part(a, job, &w, t, block_of(a, block), i);
    }
}

static void merge_run(const void *args, const struct bl_cpu_job *job)
{
    const struct attention_args *a = args;
    const uint32_t dv = a->at.dv;
    const struct bl_cpu_range own = bl_cpu_rows(job, BL_CPU_TOKENS);
    for (uint32_t t = own.first; t < own.end; t++) {
        const uint32_t n = n_parts(a, view_of(a, job->params, t));
        for (uint32_t head = 0; head < a->at.n_head; head++) {
            const float *p = partial_of(a, t, head, 0);
            float *y = out_of(a, t, head);
            struct running r = {p[dv], p[dv + 1]};
            memcpy(y, p, dv * sizeof *y);
            for (uint32_t s = 1; s < n; s++) {
                p += a->partial_floats;
                merge(dv, &r, y, (struct running){p[dv], p[dv + 1]}, p);
            }
            finish(a, r, head, y);
        }
    }
}

/* ---- many tokens ---- */

/* One token's rows of a part, of which the first `skip` of those found are not its own. run:
 * [heads] what its earlier parts gave. */
static void token_part(const struct attention_args *a, const struct bl_cpu_job *job,
                       const struct work *w, uint32_t t, struct heads h, struct part p,
                       uint32_t skip, struct running *run)
{
    const struct view v = view_of(a, job->params, t);
    const bool first = p.groups ? !p.first : !v.n_rows && p.first == v.first;
    const bool last = !p.groups && p.first + p.n == v.end;
    for (uint32_t head = h.first; head < h.end; head++, run++) {
        float *y = out_of(a, t, head), *acc = first ? y : w->acc;
        const struct running r = attend(a, job->kernels, w, t, head, p.groups, skip, p.n, acc);
        if (first)
            *run = r;
        else
            merge(a->at.dv, run, y, r, acc);
        if (last)
            finish(a, *run, head, y);
    }
}

/* Tokens [t0, t1) of one sequence. */
static void run_sequence(const struct attention_args *a, const struct bl_cpu_job *job,
                         struct heads h, uint32_t t0, uint32_t t1)
{
    const struct work w = work_of(a, job->ith);
    struct view all = view_of(a, job->params, t0);
    for (uint32_t t = t0 + 1; t < t1; t++) {
        const struct view v = view_of(a, job->params, t);
        all.first = v.first < all.first ? v.first : all.first;
        all.end = v.end > all.end ? v.end : all.end;
        all.n_rows = v.n_rows > all.n_rows ? v.n_rows : all.n_rows;
    }
    for (uint32_t i = 0; i < n_parts(a, all); i++) {
        const struct part part = part_of(a, all, i);
        const bool shared = !part.groups || !a->chosen; /* every token has chosen for itself */
        if (shared)
            find_rows(a, &w, all, part);
        for (uint32_t t = t0; t < t1; t++) {
            const struct view v = view_of(a, job->params, t);
            const struct part mine = meet(v, part);
            if (!mine.n)
                continue;
            if (!shared)
                find_rows(a, &w, v, mine);
            token_part(a, job, &w, t, h, mine, shared ? mine.first - part.first : 0,
                       &w.run[(t - t0) * BLOCK_HEADS]);
        }
    }
}

static uint32_t same_sequence(const struct bl_params *p, uint32_t t, uint32_t end)
{
    const uint32_t *seq = BL_PARAMS_ARRAY(const uint32_t, p, p->seq_off);
    uint32_t e = t + 1;
    while (e < end && seq[e] == seq[t])
        e++;
    return e;
}

static void many_run(const void *args, const struct bl_cpu_job *job)
{
    const struct attention_args *a = args;
    const uint32_t n_tok = job->params->n_tok;
    uint32_t unit = 0;
    /* Late tokens see more keys: dealt in turn, not in contiguous shares. */
    for (uint32_t t = 0; t < n_tok; t += BLOCK_TOKENS) {
        const uint32_t end = n_tok - t < BLOCK_TOKENS ? n_tok : t + BLOCK_TOKENS;
        for (uint32_t block = 0; block < n_blocks(a); block++) {
            if (unit++ % job->nth != job->ith)
                continue;
            for (uint32_t t0 = t, t1; t0 < end; t0 = t1) {
                t1 = same_sequence(job->params, t0, end);
                run_sequence(a, job, block_of(a, block), t0, t1);
            }
        }
    }
}

/* ---- op ---- */

static void fill_groups(struct bl_cpu_builder *b, struct attention_args *a)
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

static void fill_args(struct bl_cpu_builder *b, struct attention_args *a, const struct sizes *s)
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
    a->k_row = (size_t)bl_dtype_row_bytes(k->type, k->ne[0]);
    a->v_row = (size_t)bl_dtype_row_bytes(v->type, v->ne[0]);
    a->k_head = (size_t)bl_dtype_row_bytes(k->type, a->at.dk);
    a->v_head = k == v ? a->k_head : (size_t)bl_dtype_row_bytes(v->type, a->at.dv);
    a->group = a->at.n_head / a->at.n_head_kv;
    a->rows_per_seq = k->ne[1];
    a->split = s->split;
    a->n_splits = s->n_splits;
    a->partial_floats = (uint32_t)partial_floats(&a->at);
    a->work_bytes = (size_t)s->work;
    fill_groups(b, a);
}

static bool is_few(const struct bl_value *q)
{
    return q->ne[1] <= FEW_TOKENS;
}

static void attention_emit(struct bl_cpu_builder *b)
{
    const struct sizes s = sizes_of(b->graph, b->node);
    const struct bl_value *q = bl_cpu_src(b, Q);
    const bool few = is_few(q);
    const uint64_t own = b->dev->base.caps.threads * s.work, partials = q->ne[1] * s.partial;
    bl_cpu_reserve(b, bl_cpu_round(own) + (few ? bl_cpu_round(partials) : 0));
    const uint64_t work = bl_cpu_take(b, own), partial = few ? bl_cpu_take(b, partials) : 0;
    struct attention_args *a = bl_cpu_step(b, few ? few_run : many_run, sizeof *a, BL_CPU_SPREAD);
    if (!a)
        return;
    fill_args(b, a, &s);
    bl_cpu_touch(b, work, own, 0, true);
    a->work = (uint8_t *)(uintptr_t)work;
    a->partial = (float *)(uintptr_t)partial;
    if (!few) {
        bl_cpu_writes(b, 0);
        return;
    }
    bl_cpu_touch(b, partial, partials, s.partial, true);
    struct attention_args *m = bl_cpu_step(b, merge_run, sizeof *m, BL_CPU_TOKENS);
    if (!m)
        return;
    *m = *a;
    bl_cpu_touch(b, partial, partials, s.partial, false);
    bl_cpu_writes(b, 0);
}

static bool holds_kv(uint8_t type)
{
    return type == BL_F32 || type == BL_F16 || type == BL_BF16 || type == BL_Q8_0 ||
           type == BL_Q4_0;
}

/* A head of K or V must be whole blocks of its type. */
static bool attention_supports(const struct bl_graph *g, const struct bl_node *n)
{
    const struct bl_attention_attr *at = bl_node_attr(g, n);
    const struct bl_value *k = &g->vals[bl_node_src(g, n, K)], *v = &g->vals[bl_node_src(g, n, V)];
    return holds_kv(k->type) && holds_kv(v->type) && bl_dtype_row_bytes(k->type, at->dk) &&
           bl_dtype_row_bytes(v->type, at->dv);
}

static uint64_t attention_scratch(const struct bl_caps *caps, const struct bl_graph *g,
                                  const struct bl_node *n)
{
    const struct sizes s = sizes_of(g, n);
    const struct bl_value *q = &g->vals[bl_node_src(g, n, Q)];
    const uint64_t own = bl_cpu_round(caps->threads * s.work);
    return is_few(q) ? own + bl_cpu_round(q->ne[1] * s.partial) : own;
}

const struct bl_cpu_op bl_cpu_attention = {attention_supports, attention_scratch, attention_emit};

/* SPDX-License-Identifier: MIT */
/* ATTENTION. The keys of a sequence are cut into splits at fixed positions; each split gives a
 * partial result for a (token, head): its largest score, the sum of exponentials and the weighted
 * values. Partials are merged in order. Few tokens: threads share (token, key head, split), a
 * second step merges. Many: a thread takes a block of tokens and merges as it goes. Both do the
 * same arithmetic, so a token's result depends neither on the number of threads nor on whether it
 * came alone or in a batch. */
#include "segment.h"

#include <math.h>

enum {
    FEW_TOKENS = 4,
    BLOCK_TOKENS = 16, /* that share one reading of a split */
    LEAST_SPLIT = 128, /* keys and values of one head stay in the first-level caches */
    MOST_SPLITS = 64,
    UNITS = 2, /* for each thread at least, so that their ends do not show */
    PIECE = 16 /* rows between which the next ones are asked for */
};

struct attention_args {
    const float *q, *sinks;
    const uint8_t *k, *v;
    float *y;
    bl_qk_fn *qk;
    bl_pv_fn *pv;
    size_t k_row, v_row, k_head, v_head; /* bytes */
    struct bl_attention_attr at;
    uint32_t group; /* query heads of one key head */
    uint32_t rows_per_seq, split;
    uint8_t *work; /* every thread's own */
    size_t work_bytes;
    float *partial; /* few tokens: [token][head][split][dv, largest, sum] */
    uint32_t n_splits, partial_floats;
};

/* ---- sizes ---- */

static uint32_t split_keys(uint32_t rows_per_seq)
{
    uint32_t split = LEAST_SPLIT;
    while ((uint64_t)split * MOST_SPLITS < rows_per_seq)
        split *= 2;
    return split;
}

/* A window may begin inside a split: one more. */
static uint32_t most_splits(uint32_t rows_per_seq)
{
    const uint32_t split = split_keys(rows_per_seq);
    return (uint32_t)(((uint64_t)rows_per_seq + split - 1) / split) + 1;
}

static uint64_t partial_floats(const struct bl_attention_attr *at)
{
    return bl_align_up((uint64_t)at->dv + 2, 16);
}

static uint64_t partial_row_bytes(const struct bl_attention_attr *at, uint32_t rows_per_seq)
{
    return at->n_head * most_splits(rows_per_seq) * partial_floats(at) * sizeof(float);
}

/* One thread's tools. */
struct work {
    uint64_t *k_off, *v_off; /* [split] where the rows of this split are */
    float *score;            /* [split] */
    float *acc;              /* [dv] */
    struct running {
        float max, sum;
    } * run; /* [BLOCK_TOKENS][group] */
};

static uint64_t work_bytes(const struct bl_attention_attr *at, uint32_t rows_per_seq)
{
    const uint64_t split = split_keys(rows_per_seq), group = at->n_head / at->n_head_kv;
    return bl_cpu_round(split * (2 * sizeof(uint64_t) + sizeof(float)) + at->dv * sizeof(float) +
                        BLOCK_TOKENS * group * sizeof(struct running));
}

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
};

static struct view view_of(const struct attention_args *a, const struct bl_params *p, uint32_t t)
{
    const uint32_t pos = BL_PARAMS_ARRAY(const uint32_t, p, p->pos_off)[t];
    const uint32_t seq = BL_PARAMS_ARRAY(const uint32_t, p, p->seq_off)[t];
    const uint32_t slot = BL_PARAMS_ARRAY(const struct bl_seq_params, p, p->table_off)[seq].slot;
    const uint32_t window = a->at.window;
    return (struct view){slot, window && pos >= window ? pos - window + 1 : 0, pos + 1};
}

static struct view cut(struct view v, const struct attention_args *a, uint32_t split)
{
    const uint32_t first = split * a->split;
    v.first = v.first > first ? v.first : first;
    v.end = v.end - first < a->split ? v.end : first + a->split;
    return v;
}

static void find_rows(const struct attention_args *a, const struct work *w, struct view v)
{
    const uint32_t base = v.slot * a->rows_per_seq;
    uint32_t row = bl_kv_row(a->rows_per_seq, v.slot, v.first) - base;
    for (uint32_t j = 0; j < v.end - v.first; j++) {
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

/* Rows of one head that will be wanted next. They lie apart, other heads between them, where
 * hardware does not look. */
struct ahead {
    const uint8_t *base;
    size_t row_bytes, head_bytes;
    uint32_t row, rows_per_seq, n; /* the first; then on around the ring */
};

static void prefetch_rows(const struct ahead *h, uint32_t first, uint32_t n)
{
    for (uint32_t i = first; i < first + n && i < h->n; i++) {
        const uint32_t row =
            h->row + i < h->rows_per_seq ? h->row + i : h->row + i - h->rows_per_seq;
        const uint8_t *p = h->base + row * h->row_bytes;
        for (size_t at = 0; at < h->head_bytes; at += 64)
            BL_PREFETCH(p + at);
    }
}

/* Keys [first, first + n) of those found, against query head `head` of token t; acc gets the
 * weighted values. */
struct task {
    uint32_t t, head, first, n;
    float *acc;
    struct ahead v, k; /* wanted after the keys, after the values */
};

static struct running attend(const struct attention_args *a, const struct bl_cpu_kernels *kernels,
                             const struct work *w, const struct task *s)
{
    const struct bl_attention_attr *at = &a->at;
    const uint32_t kv = s->head / a->group;
    const float *q = a->q + ((size_t)s->t * at->n_head + s->head) * at->dk;
    struct running r;
    for (uint32_t i = 0, n; i < s->n; i += n) {
        n = s->n - i < PIECE ? s->n - i : PIECE;
        prefetch_rows(&s->v, i, n);
        a->qk(at->dk, n, w->score + i, q, a->k + kv * a->k_head, w->k_off + s->first + i,
              at->scale);
    }
    r.max = largest(s->n, w->score);
    r.sum = kernels->exp_sum(s->n, w->score, r.max);
    memset(s->acc, 0, at->dv * sizeof *s->acc);
    for (uint32_t i = 0, n; i < s->n; i += n) {
        n = s->n - i < PIECE ? s->n - i : PIECE;
        prefetch_rows(&s->k, i, n);
        a->pv(at->dv, n, s->acc, w->score + i, a->v + kv * a->v_head, w->v_off + s->first + i);
    }
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

/* ---- few tokens ---- */

static float *partial_of(const struct attention_args *a, uint32_t t, uint32_t head, uint32_t split)
{
    return a->partial +
           (((size_t)t * a->at.n_head + head) * a->n_splits + split) * a->partial_floats;
}

static uint32_t splits_of(const struct attention_args *a, struct view v)
{
    return (v.end - 1) / a->split - v.first / a->split + 1;
}

/* Heads [head, head + heads) of one key head, one split, one token. Their order is that of memory:
 * threads take consecutive ones, and while one is worked on the next comes near. */
struct unit {
    uint32_t t, split, head;
    struct view all, part; /* what the token sees; of that, in this split */
    uint64_t before;       /* keys of the units before */
};

static void enter_split(const struct attention_args *a, struct unit *u)
{
    u->head = 0;
    u->part = cut(u->all, a, u->all.first / a->split + u->split);
}

static void enter_token(const struct attention_args *a, const struct bl_params *p, struct unit *u)
{
    u->split = 0;
    u->all = view_of(a, p, u->t);
    enter_split(a, u);
}

/* false behind the last */
static bool next_unit(const struct attention_args *a, const struct bl_params *p, uint32_t heads,
                      struct unit *u)
{
    u->before += u->part.end - u->part.first;
    u->head += heads;
    if (u->head < a->at.n_head)
        return true;
    if (++u->split < splits_of(a, u->all)) {
        enter_split(a, u);
        return true;
    }
    if (++u->t == p->n_tok)
        return false;
    enter_token(a, p, u);
    return true;
}

/* The heads of a key head stay together, as they read the same rows, unless that leaves threads
 * idle. *keys: of all units. */
static uint32_t heads_of_unit(const struct attention_args *a, const struct bl_cpu_job *job,
                              uint64_t *keys)
{
    uint64_t units = 0;
    *keys = 0;
    for (uint32_t t = 0; t < job->params->n_tok; t++) {
        const struct view v = view_of(a, job->params, t);
        units += (uint64_t)splits_of(a, v) * a->at.n_head_kv;
        *keys += v.end - v.first;
    }
    const uint32_t heads = units < (uint64_t)UNITS * job->nth ? 1 : a->group;
    *keys *= a->at.n_head / heads;
    return heads;
}

static struct ahead ahead_of(const struct attention_args *a, const struct unit *u, bool values)
{
    const uint32_t kv = u->head / a->group, row = u->part.first % a->rows_per_seq;
    struct ahead h = {
        .row = row, .rows_per_seq = a->rows_per_seq, .n = u->part.end - u->part.first};
    h.row_bytes = values ? a->v_row : a->k_row;
    h.head_bytes = values ? a->v_head : a->k_head;
    h.base =
        (values ? a->v : a->k) + u->part.slot * a->rows_per_seq * h.row_bytes + kv * h.head_bytes;
    return h;
}

static void few_unit(const struct attention_args *a, const struct bl_cpu_job *job, uint32_t heads,
                     const struct unit *u, const struct unit *next)
{
    const struct work w = work_of(a, job->ith);
    struct task s = {.t = u->t, .n = u->part.end - u->part.first, .v = ahead_of(a, u, true)};
    if (next)
        s.k = ahead_of(a, next, false);
    find_rows(a, &w, u->part);
    for (s.head = u->head; s.head < u->head + heads; s.head++) {
        s.acc = partial_of(a, u->t, s.head, u->split);
        const struct running r = attend(a, job->kernels, &w, &s);
        s.acc[a->at.dv] = r.max;
        s.acc[a->at.dv + 1] = r.sum;
        s.v.n = s.k.n = 0; /* asked for once */
    }
}

static void few_run(const void *args, const struct bl_cpu_job *job)
{
    const struct attention_args *a = args;
    const struct bl_params *p = job->params;
    uint64_t keys;
    const uint32_t heads = heads_of_unit(a, job, &keys);
    const uint64_t from = keys * job->ith / job->nth, to = keys * (job->ith + 1) / job->nth;
    struct unit u = {0}, next;
    if (p->n_tok)
        enter_token(a, p, &u);
    for (bool more = p->n_tok; more && u.before < to; u = next) {
        next = u;
        more = next_unit(a, p, heads, &next);
        if (u.before >= from)
            few_unit(a, job, heads, &u, more && next.before < to ? &next : NULL);
    }
}

static void merge_run(const void *args, const struct bl_cpu_job *job)
{
    const struct attention_args *a = args;
    const uint32_t dv = a->at.dv;
    const struct bl_cpu_range own = bl_cpu_rows(job, BL_CPU_TOKENS);
    for (uint32_t t = own.first; t < own.end; t++) {
        const struct view v = view_of(a, job->params, t);
        const uint32_t n = splits_of(a, v);
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

/* Tokens of one sequence, [t0, t1), and one key head, which a thread takes through all splits. */
struct block {
    struct work w;
    uint32_t kv, t0, t1;
};

/* The rows of `part` are found: adds them to what token t has so far. */
static void add_split(const struct attention_args *a, const struct bl_cpu_job *job,
                      const struct block *b, uint32_t t, uint32_t split, struct view part)
{
    const struct view v = view_of(a, job->params, t);
    const uint32_t first = v.first / a->split, last = (v.end - 1) / a->split;
    if (split < first || split > last)
        return;
    const struct view mine = cut(v, a, split);
    for (uint32_t g = 0; g < a->group; g++) {
        const uint32_t head = b->kv * a->group + g;
        struct running *r = &b->w.run[(t - b->t0) * a->group + g];
        float *y = out_of(a, t, head), *acc = split == first ? y : b->w.acc;
        const struct task s = {.t = t,
                               .head = head,
                               .first = mine.first - part.first,
                               .n = mine.end - mine.first,
                               .acc = acc};
        const struct running p = attend(a, job->kernels, &b->w, &s);
        if (split == first)
            *r = p;
        else
            merge(a->at.dv, r, y, p, acc);
        if (split == last)
            finish(a, *r, head, y);
    }
}

static void run_block(const struct attention_args *a, const struct bl_cpu_job *job,
                      const struct block *b)
{
    struct view all = view_of(a, job->params, b->t0);
    for (uint32_t t = b->t0 + 1; t < b->t1; t++) {
        const struct view v = view_of(a, job->params, t);
        all.first = v.first < all.first ? v.first : all.first;
        all.end = v.end > all.end ? v.end : all.end;
    }
    for (uint32_t split = all.first / a->split; split <= (all.end - 1) / a->split; split++) {
        const struct view part = cut(all, a, split);
        find_rows(a, &b->w, part);
        for (uint32_t t = b->t0; t < b->t1; t++)
            add_split(a, job, b, t, split, part);
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
    struct block b = {.w = work_of(a, job->ith)};
    uint32_t unit = 0;
    /* Late tokens see more keys: dealt in turn, not in contiguous shares. */
    for (uint32_t t = 0; t < n_tok; t += BLOCK_TOKENS) {
        const uint32_t end = n_tok - t < BLOCK_TOKENS ? n_tok : t + BLOCK_TOKENS;
        for (b.kv = 0; b.kv < a->at.n_head_kv; b.kv++) {
            if (unit++ % job->nth != job->ith)
                continue;
            for (b.t0 = t; b.t0 < end; b.t0 = b.t1) {
                b.t1 = same_sequence(job->params, b.t0, end);
                run_block(a, job, &b);
            }
        }
    }
}

/* ---- op ---- */

static void fill_args(struct bl_cpu_builder *b, struct attention_args *a)
{
    const struct bl_value *k = bl_cpu_src(b, 1), *v = bl_cpu_src(b, 2);
    a->at = *(const struct bl_attention_attr *)bl_cpu_attr(b);
    a->q = bl_cpu_reads(b, 0);
    a->k = bl_cpu_reads(b, 1);
    a->v = bl_cpu_reads(b, 2);
    a->sinks = bl_cpu_weight(b, 3);
    a->y = (float *)(uintptr_t)b->bound->dst[0];
    a->qk = b->dev->kernels.kv[k->type].qk;
    a->pv = b->dev->kernels.kv[v->type].pv;
    a->k_row = (size_t)bl_dtype_row_bytes(k->type, k->ne[0]);
    a->v_row = (size_t)bl_dtype_row_bytes(v->type, v->ne[0]);
    a->k_head = (size_t)bl_dtype_row_bytes(k->type, a->at.dk);
    a->v_head = (size_t)bl_dtype_row_bytes(v->type, a->at.dv);
    a->group = a->at.n_head / a->at.n_head_kv;
    a->rows_per_seq = k->ne[1];
    a->split = split_keys(k->ne[1]);
    a->n_splits = most_splits(k->ne[1]);
    a->partial_floats = (uint32_t)partial_floats(&a->at);
    a->work_bytes = (size_t)work_bytes(&a->at, k->ne[1]);
}

static bool is_few(const struct bl_value *q)
{
    return q->ne[1] <= FEW_TOKENS;
}

static void attention_emit(struct bl_cpu_builder *b)
{
    const struct bl_attention_attr *at = bl_cpu_attr(b);
    const struct bl_value *q = bl_cpu_src(b, 0), *k = bl_cpu_src(b, 1);
    const bool few = is_few(q);
    const uint64_t own = b->dev->base.caps.threads * work_bytes(at, k->ne[1]);
    const uint64_t row = partial_row_bytes(at, k->ne[1]);
    bl_cpu_reserve(b, bl_cpu_round(own) + (few ? bl_cpu_round(q->ne[1] * row) : 0));
    const uint64_t work = bl_cpu_take(b, own), partial = few ? bl_cpu_take(b, q->ne[1] * row) : 0;
    struct attention_args *a = bl_cpu_step(b, few ? few_run : many_run, sizeof *a, BL_CPU_SPREAD);
    if (!a)
        return;
    fill_args(b, a);
    bl_cpu_touch(b, work, own, 0, true);
    a->work = (uint8_t *)(uintptr_t)work;
    a->partial = (float *)(uintptr_t)partial;
    if (!few) {
        bl_cpu_writes(b, 0);
        return;
    }
    bl_cpu_touch(b, partial, q->ne[1] * row, row, true);
    struct attention_args *m = bl_cpu_step(b, merge_run, sizeof *m, BL_CPU_TOKENS);
    if (!m)
        return;
    *m = *a;
    bl_cpu_touch(b, partial, q->ne[1] * row, row, false);
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
    const struct bl_value *k = &g->vals[bl_node_src(g, n, 1)], *v = &g->vals[bl_node_src(g, n, 2)];
    return holds_kv(k->type) && holds_kv(v->type) && bl_dtype_row_bytes(k->type, at->dk) &&
           bl_dtype_row_bytes(v->type, at->dv);
}

static uint64_t attention_scratch(const struct bl_caps *caps, const struct bl_graph *g,
                                  const struct bl_node *n)
{
    const struct bl_attention_attr *at = bl_node_attr(g, n);
    const struct bl_value *q = &g->vals[bl_node_src(g, n, 0)], *k = &g->vals[bl_node_src(g, n, 1)];
    const uint64_t own = bl_cpu_round(caps->threads * work_bytes(at, k->ne[1]));
    return is_few(q) ? own + bl_cpu_round(q->ne[1] * partial_row_bytes(at, k->ne[1])) : own;
}

const struct bl_cpu_op bl_cpu_attention = {attention_supports, attention_scratch, attention_emit};

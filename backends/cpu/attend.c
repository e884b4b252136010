/* SPDX-License-Identifier: MIT */
/* The steps of attention by single queries, in float and in one order whatever the CPU: `--exact`.
 * attention.h says how the work is cut. */
#include "attend_rows.h"

#include <math.h>

enum {
    BLOCK_TOKENS = 16,      /* that share one reading of a split */
    BLOCK_HEADS = 8,        /* of one key head that a thread takes together, at most */
    UNITS = 2,              /* for each thread at least, so that their ends do not show */
    PIECE = 16,             /* rows between which the next ones are asked for */
    AHEAD_BYTES = 256 << 10 /* asked for ahead of their use: half of a small second-level cache */
};

/* ---- a thread's tools ---- */

/* The rows in hand of one key head. */
struct rows {
    const uint8_t *k, *v;    /* where offsets count from; equal: values are the front of keys */
    uint64_t *k_off, *v_off; /* [n] */
    uint32_t n;
};

struct running {
    float max, sum;
};

struct work {
    struct rows rows[2]; /* in use, and the next */
    float *score;        /* [split] */
    float *acc;          /* [dv] */
    struct running *run; /* [BLOCK_TOKENS][BLOCK_HEADS] */
};

uint64_t bl_cpu_attend_work_bytes(uint32_t split, uint32_t dv)
{
    return bl_cpu_round((uint64_t)split * (4 * sizeof(uint64_t) + sizeof(float)) +
                        dv * sizeof(float) + BLOCK_TOKENS * BLOCK_HEADS * sizeof(struct running));
}

static struct work work_of(const struct bl_cpu_attention_args *a, uint32_t ith)
{
    struct work w = {0};
    uint64_t *off = (uint64_t *)(a->work + ith * a->work_bytes);
    for (unsigned i = 0; i < 2; i++, off += 2 * a->split) {
        w.rows[i].k_off = off;
        w.rows[i].v_off = off + a->split;
    }
    w.score = (float *)off;
    w.acc = w.score + a->split;
    w.run = (struct running *)(w.acc + a->at.dv);
    return w;
}

static void swap_rows(struct work *w)
{
    const struct rows in_use = w->rows[0];
    w->rows[0] = w->rows[1];
    w->rows[1] = in_use;
}

static void find_rows(const struct bl_cpu_attention_args *a, uint32_t kv, struct bl_attend_view v,
                      struct bl_attend_part p, struct rows *r)
{
    r->k = (p.groups ? a->rows : a->k) + kv * a->k_head_bytes;
    r->v = (p.groups ? a->rows : a->v) + kv * a->v_head_bytes;
    r->n = p.n;
    bl_attend_find(a, v, p, r->k_off, r->v_off);
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

/* Rows [first, first + n) of those found, against one query head; acc gets the weighted values. */
struct task {
    const float *q;
    const struct rows *rows;
    uint32_t first, n;
    float *acc;
    const struct rows *values_ahead; /* come near while keys are worked on, NULL: none */
    const struct rows *keys_ahead;   /* while values are */
};

/* Asks for a piece. Rows of one head lie apart, other heads between them, where hardware does not
 * look. */
static void ask(const uint8_t *base, const uint64_t *off, uint32_t left, size_t head_bytes)
{
    for (uint32_t i = 0; i < left && i < PIECE; i++)
        for (size_t at = 0; at < head_bytes; at += 64)
            BL_PREFETCH(base + off[i] + at);
}

static uint32_t rows_ahead(const struct rows *r, size_t head_bytes)
{
    const size_t most = AHEAD_BYTES / head_bytes;
    return !r ? 0 : r->n < most ? r->n : (uint32_t)most;
}

/* How many rows from i on are worked on before more are asked for: all, when none are. */
static uint32_t piece(uint32_t i, uint32_t n, uint32_t ahead)
{
    return i < ahead && n - i > PIECE ? PIECE : n - i;
}

static void weigh_keys(const struct bl_cpu_attention_args *a, const struct task *s, float *score)
{
    const struct rows *r = s->rows, *next = s->values_ahead;
    const uint32_t ahead = rows_ahead(next, a->v_head_bytes);
    for (uint32_t i = 0, n; i < s->n; i += n) {
        n = piece(i, s->n, ahead);
        if (i < ahead)
            ask(next->v, next->v_off + i, ahead - i, a->v_head_bytes);
        a->qk(a->at.dk, n, score + i, s->q, r->k, r->k_off + s->first + i, a->at.scale);
    }
}

static void sum_values(const struct bl_cpu_attention_args *a, const struct task *s,
                       const float *score)
{
    const struct rows *r = s->rows, *next = s->keys_ahead;
    const uint32_t ahead = rows_ahead(next, a->k_head_bytes);
    memset(s->acc, 0, a->at.dv * sizeof *s->acc);
    for (uint32_t i = 0, n; i < s->n; i += n) {
        n = piece(i, s->n, ahead);
        if (i < ahead)
            ask(next->k, next->k_off + i, ahead - i, a->k_head_bytes);
        a->pv(a->at.dv, n, s->acc, score + i, r->v, r->v_off + s->first + i);
    }
}

static struct running attend(const struct bl_cpu_attention_args *a,
                             const struct bl_cpu_kernels *kernels, const struct work *w,
                             const struct task *s)
{
    struct running r;
    weigh_keys(a, s, w->score);
    r.max = largest(s->n, w->score);
    r.sum = kernels->exp_sum(s->n, w->score, r.max);
    sum_values(a, s, w->score);
    return r;
}

static const float *query(const struct bl_cpu_attention_args *a, uint32_t t, uint32_t head)
{
    return a->q + ((size_t)t * a->at.n_head + head) * a->at.dk;
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
static void finish(const struct bl_cpu_attention_args *a, struct running r, uint32_t head, float *y)
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

static float *out_of(const struct bl_cpu_attention_args *a, uint32_t t, uint32_t head)
{
    return a->y + ((size_t)t * a->at.n_head + head) * a->at.dv;
}

/* ---- heads together ---- */

/* Query heads of one key head, taken together as they read the same rows. */
struct heads {
    uint32_t kv, first, end;
};

static uint32_t n_blocks(const struct bl_cpu_attention_args *a, uint32_t together)
{
    return (a->group + together - 1) / together * a->at.n_head_kv;
}

static struct heads block_of(const struct bl_cpu_attention_args *a, uint32_t together,
                             uint32_t block)
{
    const uint32_t per_kv = (a->group + together - 1) / together;
    const uint32_t kv = block / per_kv, first = block % per_kv * together;
    const uint32_t end = a->group - first < together ? a->group : first + together;
    return (struct heads){kv, kv * a->group + first, kv * a->group + end};
}

/* Heads of a block where there are `n` units for each block: fewer where threads would idle. */
static uint32_t heads_together(const struct bl_cpu_attention_args *a, uint64_t n, uint32_t nth)
{
    uint32_t together = a->group < BLOCK_HEADS ? a->group : BLOCK_HEADS;
    while (together > 1 && n * n_blocks(a, together) < (uint64_t)UNITS * nth)
        together /= 2;
    return together;
}

/* ---- few tokens ---- */

/* A token's part, one block of heads. Their order is that of memory: threads take consecutive ones,
 * and while one is worked on the next comes near. */
struct unit {
    uint32_t t, i, block; /* i: which part */
    struct bl_attend_view view;
    struct bl_attend_part part;
    struct heads heads;
    uint64_t before; /* weight of the units before */
};

/* A unit weighs rows times heads. */
struct plan {
    uint32_t together, blocks;
    uint64_t weight;
};

static struct plan plan_of(const struct bl_cpu_attention_args *a, const struct bl_cpu_job *job)
{
    struct plan plan = {0};
    uint64_t parts = 0;
    for (uint32_t t = 0; t < job->params->n_tok; t++) {
        const struct bl_attend_view v = bl_attend_view_of(a, job->params, t);
        parts += bl_attend_n_parts(v);
        plan.weight += (uint64_t)(v.n_rows + v.end - v.first) * a->at.n_head;
    }
    plan.together = heads_together(a, parts, job->nth);
    plan.blocks = n_blocks(a, plan.together);
    return plan;
}

/* Fills in what follows from t, i and block. */
static void enter(const struct bl_cpu_attention_args *a, const struct bl_params *p,
                  const struct plan *plan, struct unit *u)
{
    u->view = bl_attend_view_of(a, p, u->t);
    u->part = bl_attend_part_of(u->view, u->i);
    u->heads = block_of(a, plan->together, u->block);
}

/* false behind the last */
static bool next_unit(const struct bl_cpu_attention_args *a, const struct bl_params *p,
                      const struct plan *plan, struct unit *u)
{
    u->before += (uint64_t)u->part.n * (u->heads.end - u->heads.first);
    if (++u->block == plan->blocks) {
        u->block = 0;
        if (++u->i == bl_attend_n_parts(u->view)) {
            u->i = 0;
            if (++u->t == p->n_tok)
                return false;
        }
    }
    enter(a, p, plan, u);
    return true;
}

static float *partial_of(const struct bl_cpu_attention_args *a, uint32_t t, uint32_t head,
                         uint32_t part)
{
    return a->partial +
           (((size_t)t * a->at.n_head + head) * a->n_splits + part) * a->partial_floats;
}

/* fresh: its rows are in use for the first time. */
static void run_unit(const struct bl_cpu_attention_args *a, const struct bl_cpu_job *job,
                     const struct work *w, const struct unit *u, bool fresh, bool next)
{
    struct task s = {.rows = &w->rows[0], .n = u->part.n};
    s.values_ahead = fresh && s.rows->v != s.rows->k ? s.rows : NULL;
    s.keys_ahead = next ? &w->rows[1] : NULL;
    for (uint32_t head = u->heads.first; head < u->heads.end; head++) {
        s.q = query(a, u->t, head);
        s.acc = partial_of(a, u->t, head, u->i);
        const struct running r = attend(a, job->kernels, w, &s);
        s.acc[a->at.dv] = r.max;
        s.acc[a->at.dv + 1] = r.sum;
        s.values_ahead = s.keys_ahead = NULL; /* asked for once */
    }
}

static bool same_rows(const struct unit *x, const struct unit *y)
{
    return x->t == y->t && x->i == y->i && x->heads.kv == y->heads.kv;
}

void bl_cpu_attend_few(const void *args, const struct bl_cpu_job *job)
{
    const struct bl_cpu_attention_args *a = args;
    const struct plan plan = plan_of(a, job);
    const uint64_t from = plan.weight * job->ith / job->nth,
                   to = plan.weight * (job->ith + 1) / job->nth;
    struct work w = work_of(a, job->ith);
    struct unit u = {0}, next;
    bool more = job->params->n_tok > 0, fresh = true;
    if (more)
        enter(a, job->params, &plan, &u);
    while (more && u.before < from)
        more = next_unit(a, job->params, &plan, &u);
    if (more && u.before < to)
        find_rows(a, u.heads.kv, u.view, u.part, &w.rows[0]);
    for (; more && u.before < to; u = next) {
        next = u;
        more = next_unit(a, job->params, &plan, &next);
        const bool other = more && next.before < to && !same_rows(&u, &next);
        if (other)
            find_rows(a, next.heads.kv, next.view, next.part, &w.rows[1]);
        run_unit(a, job, &w, &u, fresh, other);
        if (other)
            swap_rows(&w);
        fresh = other;
    }
}

void bl_cpu_attend_merge(const void *args, const struct bl_cpu_job *job)
{
    const struct bl_cpu_attention_args *a = args;
    const uint32_t dv = a->at.dv;
    const struct bl_cpu_range own = bl_cpu_rows(job, BL_CPU_TOKENS);
    for (uint32_t t = own.first; t < own.end; t++) {
        const uint32_t n = bl_attend_n_parts(bl_attend_view_of(a, job->params, t));
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

/* Tokens [t0, t1) of one sequence, one block of heads, which a thread takes through all parts. */
struct block {
    uint32_t t0, t1;
    struct heads heads;
};

/* One token's rows of a part. */
static void token_part(const struct bl_cpu_attention_args *a, const struct bl_cpu_job *job,
                       const struct work *w, const struct block *b, uint32_t t,
                       struct bl_attend_part p, struct task s)
{
    const struct bl_attend_view v = bl_attend_view_of(a, job->params, t);
    const bool first = p.groups ? !p.first : !v.n_rows && p.first == v.first;
    const bool last = !p.groups && p.first + p.n == v.end;
    struct running *run = &w->run[(t - b->t0) * BLOCK_HEADS];
    for (uint32_t head = b->heads.first; head < b->heads.end; head++, run++) {
        float *y = out_of(a, t, head);
        s.q = query(a, t, head);
        s.acc = first ? y : w->acc;
        const struct running r = attend(a, job->kernels, w, &s);
        if (first)
            *run = r;
        else
            merge(a->at.dv, run, y, r, s.acc);
        if (last)
            finish(a, *run, head, y);
        s.values_ahead = s.keys_ahead = NULL; /* asked for once */
    }
}

/* Whether the tokens of a block see the same rows; of chosen ones, each has its own. */
static bool is_shared(const struct bl_cpu_attention_args *a, const struct block *b,
                      struct bl_attend_part p)
{
    return p.n && (!p.groups || !a->chosen || b->t1 - b->t0 == 1);
}

static void run_part(const struct bl_cpu_attention_args *a, const struct bl_cpu_job *job,
                     struct work *w, const struct block *b, struct bl_attend_part part, bool next)
{
    const bool shared = is_shared(a, b, part);
    struct task s = {.rows = &w->rows[0], .keys_ahead = next ? &w->rows[1] : NULL};
    if (shared && s.rows->v != s.rows->k)
        s.values_ahead = s.rows;
    for (uint32_t t = b->t0; t < b->t1; t++) {
        const struct bl_attend_view v = bl_attend_view_of(a, job->params, t);
        const struct bl_attend_part mine = bl_attend_meet(v, part);
        if (!mine.n)
            continue;
        if (!shared)
            find_rows(a, b->heads.kv, v, mine, &w->rows[0]);
        s.first = shared ? mine.first - part.first : 0;
        s.n = mine.n;
        token_part(a, job, w, b, t, mine, s);
        s.values_ahead = s.keys_ahead = NULL;
    }
}

static void run_block(const struct bl_cpu_attention_args *a, const struct bl_cpu_job *job,
                      const struct block *b)
{
    const struct bl_attend_view all = bl_attend_view_of_all(a, job->params, b->t0, b->t1);
    const uint32_t n = bl_attend_n_parts(all);
    struct work w = work_of(a, job->ith);
    struct bl_attend_part part = bl_attend_part_of(all, 0);
    if (is_shared(a, b, part))
        find_rows(a, b->heads.kv, all, part, &w.rows[0]);
    for (uint32_t i = 0; i < n; i++) {
        const struct bl_attend_part next =
            i + 1 < n ? bl_attend_part_of(all, i + 1) : (struct bl_attend_part){0};
        const bool ahead = is_shared(a, b, next);
        if (ahead)
            find_rows(a, b->heads.kv, all, next, &w.rows[1]);
        run_part(a, job, &w, b, part, ahead);
        swap_rows(&w);
        part = next;
    }
}

static uint32_t end_of_run(const struct bl_params *p, uint32_t t)
{
    const uint32_t *seq = BL_PARAMS_ARRAY(const uint32_t, p, p->seq_off);
    uint32_t end = t + 1;
    while (end < p->n_tok && end - t < BLOCK_TOKENS && seq[end] == seq[t])
        end++;
    return end;
}

void bl_cpu_attend_many(const void *args, const struct bl_cpu_job *job)
{
    const struct bl_cpu_attention_args *a = args;
    const struct bl_params *p = job->params;
    uint32_t runs = 0, unit = 0;
    for (uint32_t t = 0; t < p->n_tok; t = end_of_run(p, t))
        runs++;
    const uint32_t together = heads_together(a, runs, job->nth), blocks = n_blocks(a, together);
    /* Late tokens see more keys: dealt in turn, not in contiguous shares. */
    for (struct block b = {0}; b.t0 < p->n_tok && !bl_cpu_halts(job->halt); b.t0 = b.t1) {
        b.t1 = end_of_run(p, b.t0);
        for (uint32_t block = 0; block < blocks; block++) {
            b.heads = block_of(a, together, block);
            if (unit++ % job->nth == job->ith)
                run_block(a, job, &b);
        }
    }
}

/* SPDX-License-Identifier: MIT */
/* DELTA_RULE on the state of the token's sequence. Threads share rows of state matrices, each
 * taking its own through all tokens in the order of the batch; a row does not depend on the others,
 * so sequences may be mixed and threads be any number without a difference in the result.
 *
 * Few tokens go one after the other through rows that stay in the first-level cache. A long run of
 * one sequence goes in chunks: the rule unrolled over a chunk is products of small matrices, which
 * sum to the same with other roundings (delta_chunk.h). */
#include "recurrent.h"

#include <math.h>

enum {
    TOGETHER = 16,          /* tokens for which state rows are brought into the first-level cache */
    STATE_BYTES = 24 << 10, /* of those rows */
    ROW_GROUP = 4,          /* rows that kernels like to take together */
    CHUNK = BL_DELTA_CHUNK,
    COLUMNS = BL_DELTA_COLUMNS,
    LEAST_RUN = CHUNK /* tokens that pay for turning the state to columns and back */
};

struct delta_args {
    const float *qkv, *beta, *alpha, *a, *dt;
    float *y, *state;
    struct bl_delta_attr at;
    uint32_t n, rows_per_seq,
        block;   /* elements of a token, versions of the state, rows at a time */
    float *work; /* every thread's own */
    size_t work_floats;
};

/* ---- tokens ---- */

static void scale_to(const struct bl_cpu_kernels *k, uint32_t n, float *y, const float *x,
                     float least, float scale)
{
    float sum;
    k->matmul[BL_F32].dot(n, 1, &sum, x, 0, x, NULL);
    const float length = sqrtf(sum);
    scale /= length > least ? length : least;
    for (uint32_t i = 0; i < n; i++)
        y[i] = x[i] * scale;
}

static float softplus(float x)
{
    return x > 20 ? x : log1pf(expf(x));
}

/* q of a head's key head; k lies n_head_k heads behind. */
static const float *query_of(const struct delta_args *a, uint32_t t, uint32_t head)
{
    const struct bl_delta_attr *at = &a->at;
    const uint32_t key = at->tiled ? head % at->n_head_k : head / (at->n_head_v / at->n_head_k);
    return a->qkv + (size_t)t * a->n + (size_t)key * at->dk;
}

static void unit_length(const struct delta_args *a, const struct bl_cpu_kernels *kernels,
                        uint32_t t, uint32_t head, float *q, float *k)
{
    const float *x = query_of(a, t, head);
    scale_to(kernels, a->at.dk, q, x, a->at.eps, a->at.scale);
    scale_to(kernels, a->at.dk, k, x + (size_t)a->at.n_head_k * a->at.dk, a->at.eps, 1);
}

static const float *values_of(const struct delta_args *a, uint32_t t, uint32_t head, uint32_t row)
{
    return a->qkv + (size_t)t * a->n + 2 * (size_t)a->at.n_head_k * a->at.dk +
           (size_t)head * a->at.dv + row;
}

static float *result_of(const struct delta_args *a, uint32_t t, uint32_t head, uint32_t row)
{
    return a->y + ((size_t)t * a->at.n_head_v + head) * a->at.dv + row;
}

/* work: place for q and k. */
static struct bl_delta_token token_of(const struct delta_args *a, const struct bl_cpu_kernels *k,
                                      uint32_t t, uint32_t head, float *work)
{
    const size_t gate = (size_t)t * a->at.n_head_v + head;
    unit_length(a, k, t, head, work, work + a->at.dk);
    return (struct bl_delta_token){
        .q = work,
        .k = work + a->at.dk,
        .decay = expf(a->a[head] * softplus(a->alpha[gate] + a->dt[head])),
        .beta = 1 / (1 + expf(-a->beta[gate])),
    };
}

/* ---- the state ---- */

/* Rows of a head from `row` on, as they stand behind the token at pos. */
static float *state_of(const struct delta_args *a, uint32_t slot, uint32_t pos, uint32_t head,
                       uint32_t row)
{
    const size_t all = (size_t)a->at.n_head_v * a->at.dv * a->at.dk;
    return a->state + bl_kv_row(a->rows_per_seq, slot, pos) * all +
           ((size_t)head * a->at.dv + row) * a->at.dk;
}

/* The state rows [row, row + n) of a head as they stand before the token, where those after it go.
 */
static float *enter(const struct delta_args *a, struct bl_cpu_place at, uint32_t head, uint32_t row,
                    uint32_t n)
{
    const size_t bytes = (size_t)n * a->at.dk * sizeof(float);
    float *s = state_of(a, at.slot, at.pos, head, row);
    if (!at.pos)
        memset(s, 0, bytes);
    else if (a->rows_per_seq > 1)
        memcpy(s, state_of(a, at.slot, at.pos - 1, head, row), bytes);
    return s;
}

/* ---- one token after the other ---- */

/* State rows [row, row + n) of a head through tokens [t0, t1). */
static void rows_through(const struct delta_args *a, const struct bl_cpu_job *job,
                         const struct bl_delta_token *token, uint32_t t0, uint32_t t1,
                         uint32_t head, uint32_t row, uint32_t n)
{
    for (uint32_t t = t0; t < t1; t++) {
        float *s = enter(a, bl_cpu_place_of(job->params, t), head, row, n);
        job->kernels->delta_rule(a->at.dk, n, result_of(a, t, head, row), s,
                                 values_of(a, t, head, row), &token[t - t0]);
    }
}

/* A few of the tokens [t0, end) at a time are made ready for all rows [row, row_end) of the head.
 */
static void tokens_through(const struct delta_args *a, const struct bl_cpu_job *job, uint32_t t0,
                           uint32_t end, uint32_t head, uint32_t row, uint32_t row_end)
{
    float *work = a->work + job->ith * a->work_floats;
    struct bl_delta_token token[TOGETHER];
    for (uint32_t t1; t0 < end; t0 = t1) {
        t1 = end - t0 < TOGETHER ? end : t0 + TOGETHER;
        for (uint32_t t = t0; t < t1; t++)
            token[t - t0] =
                token_of(a, job->kernels, t, head, work + (size_t)(t - t0) * 2 * a->at.dk);
        for (uint32_t r = row; r < row_end; r += a->block)
            rows_through(a, job, token, t0, t1, head, r,
                         row_end - r < a->block ? row_end - r : a->block);
    }
}

/* ---- chunks ---- */

/* A thread's room for a chunk. */
struct room {
    float *keys, *queries; /* [CHUNK][dk] */
    float *turned;         /* the same once more */
    float *lower, *mix;    /* [CHUNK][CHUNK] */
    float *beta, *decay;   /* [CHUNK] */
    float *total, *ratio;  /* [CHUNK] */
    float *d, *y;          /* [CHUNK][COLUMNS] */
    float *s;              /* [dv / COLUMNS][dk][COLUMNS] */
};

static uint32_t padded(uint32_t n, uint32_t to)
{
    return (n + to - 1) / to * to;
}

static size_t room_floats(const struct bl_delta_attr *at)
{
    const size_t dk = padded(at->dk, BL_DELTA_GRAIN);
    return 3 * CHUNK * dk + 2 * CHUNK * CHUNK + 4 * CHUNK + 2 * CHUNK * COLUMNS +
           dk * padded(at->dv, COLUMNS);
}

static struct room room_of(const struct delta_args *a, uint32_t ith)
{
    const size_t dk = padded(a->at.dk, BL_DELTA_GRAIN);
    struct room r;
    r.keys = a->work + ith * a->work_floats;
    r.queries = r.keys + CHUNK * dk;
    r.turned = r.queries + CHUNK * dk;
    r.lower = r.turned + CHUNK * dk;
    r.mix = r.lower + CHUNK * CHUNK;
    r.beta = r.mix + CHUNK * CHUNK;
    r.decay = r.beta + CHUNK;
    r.total = r.decay + CHUNK;
    r.ratio = r.total + CHUNK;
    r.d = r.ratio + CHUNK;
    r.y = r.d + CHUNK * COLUMNS;
    r.s = r.y + CHUNK * COLUMNS;
    return r;
}

/* Gates of tokens [t, t + n); beyond them nothing is forgotten and nothing learned. */
static void gates_of(const struct delta_args *a, const struct bl_cpu_kernels *k, uint32_t t,
                     uint32_t n, uint32_t head, const struct room *r)
{
    float open[CHUNK];
    for (uint32_t i = 0; i < CHUNK; i++) {
        const size_t gate = (size_t)(t + i) * a->at.n_head_v + head;
        const bool there = i < n;
        open[i] = there ? a->beta[gate] : 0;
        r->beta[i] = there; /* times the opened gate */
        r->decay[i] = there ? a->a[head] * softplus(a->alpha[gate] + a->dt[head]) : 0;
    }
    k->exp_sum(CHUNK, r->decay, 0);
    k->sigmoid_mul(CHUNK, r->beta, open, r->beta);
}

/* Keys and queries of tokens [t, t + n), with zeros up to whole grains. */
static void keys_of(const struct delta_args *a, const struct bl_cpu_kernels *kernels, uint32_t t,
                    uint32_t n, uint32_t head, const struct room *r)
{
    const uint32_t dk = padded(a->at.dk, BL_DELTA_GRAIN), some = padded(n, BL_DELTA_GRAIN);
    for (uint32_t i = 0; i < some; i++) {
        float *q = r->queries + (size_t)i * dk, *k = r->keys + (size_t)i * dk;
        const uint32_t from = i < n ? a->at.dk : 0;
        if (from)
            unit_length(a, kernels, t + i, head, q, k);
        memset(q + from, 0, (dk - from) * sizeof *q);
        memset(k + from, 0, (dk - from) * sizeof *k);
    }
}

/* Makes products of keys into what the kernel wants: ratio[i] is what a token leaves of what token
 * i brought. */
static void weigh(uint32_t n, const struct room *r)
{
    float total = 1, lower[CHUNK];
    memset(r->ratio, 0, CHUNK * sizeof *r->ratio);
    for (uint32_t t = 0; t < n; t++) {
        float *kk = r->lower + (size_t)t * CHUNK, *qk = r->mix + (size_t)t * CHUNK;
        total *= r->decay[t];
        r->total[t] = total;
        for (uint32_t i = 0; i < CHUNK; i++)
            r->ratio[i] *= r->decay[t];
        for (uint32_t i = 0; i < CHUNK; i++)
            lower[i] = -r->beta[t] * r->ratio[i] * kk[i];
        memset(kk, 0, CHUNK * sizeof *kk);
        memcpy(kk, lower, t * sizeof *kk);
        r->ratio[t] = 1;
        for (uint32_t i = 0; i <= t; i++)
            qk[i] *= r->ratio[i];
        memset(qk + t + 1, 0, (CHUNK - t - 1) * sizeof *qk);
    }
}

/* Columns of one chunk: d begins as the values. */
static void columns_through(const struct delta_args *a, const struct bl_cpu_kernels *k,
                            const struct bl_delta_chunk *c, uint32_t t, uint32_t n, uint32_t head,
                            uint32_t row)
{
    const uint32_t width = a->at.dv - row < COLUMNS ? a->at.dv - row : COLUMNS;
    const size_t bytes = width * sizeof(float);
    if (n < c->n || width < COLUMNS)
        memset(c->d, 0, (size_t)c->n * COLUMNS * sizeof *c->d);
    for (uint32_t i = 0; i < n; i++)
        memcpy(c->d + (size_t)i * COLUMNS, values_of(a, t + i, head, row), bytes);
    k->delta_chunk.columns(c);
    for (uint32_t i = 0; i < n; i++)
        memcpy(result_of(a, t + i, head, row), c->y + (size_t)i * COLUMNS, bytes);
}

/* Tokens [t, t + n), n at most CHUNK, through rows [row, end) of a head. */
static void chunk_through(const struct delta_args *a, const struct bl_cpu_kernels *k,
                          const struct room *r, uint32_t t, uint32_t n, uint32_t head, uint32_t row,
                          uint32_t end)
{
    struct bl_delta_chunk c = {.n = padded(n, BL_DELTA_GRAIN),
                               .dk = padded(a->at.dk, BL_DELTA_GRAIN),
                               .keys = r->keys,
                               .queries = r->queries,
                               .lower = r->lower,
                               .mix = r->mix,
                               .beta = r->beta,
                               .total = r->total,
                               .rest = r->ratio,
                               .d = r->d,
                               .y = r->y,
                               .s = r->s};
    gates_of(a, k, t, n, head, r);
    keys_of(a, k, t, n, head, r);
    k->delta_chunk.products(c.dk, c.n, r->lower, r->mix, r->keys, r->queries, r->turned);
    weigh(c.n, r);
    for (; row < end; row += COLUMNS, c.s += (size_t)c.dk * COLUMNS)
        columns_through(a, k, &c, t, n, head, row);
}

/* How many tokens of a run go in chunks: where versions of the state are kept, the last ones go one
 * by one and leave theirs. */
static uint32_t chunked(const struct delta_args *a, const struct bl_cpu_kernels *k,
                        const struct bl_cpu_run *run)
{
    const uint32_t n = run->end - run->first, alone = a->rows_per_seq - 1;
    return k->delta_chunk.columns && n >= LEAST_RUN + alone ? n - alone : 0;
}

/* The first n tokens of a run through rows [row, end) of a head; row is a multiple of COLUMNS. */
static void run_through(const struct delta_args *a, const struct bl_cpu_job *job,
                        const struct bl_cpu_run *run, uint32_t n, uint32_t head, uint32_t row,
                        uint32_t end)
{
    const struct bl_delta_kernel *k = &job->kernels->delta_chunk;
    const struct room r = room_of(a, job->ith);
    const struct bl_cpu_place at = run->at;
    const uint32_t dk = a->at.dk, dk_padded = padded(dk, BL_DELTA_GRAIN);
    float *s = r.s;
    for (uint32_t i = row; i < end; i += COLUMNS, s += (size_t)dk_padded * COLUMNS) {
        const uint32_t rows = end - i < COLUMNS ? end - i : COLUMNS;
        if (at.pos)
            k->load(dk, dk_padded, rows, s, state_of(a, at.slot, at.pos - 1, head, i));
        else
            memset(s, 0, (size_t)dk_padded * COLUMNS * sizeof *s);
    }
    for (uint32_t t = 0; t < n; t += CHUNK)
        chunk_through(a, job->kernels, &r, run->first + t, n - t < CHUNK ? n - t : CHUNK, head, row,
                      end);
    s = r.s;
    for (uint32_t i = row; i < end; i += COLUMNS, s += (size_t)dk_padded * COLUMNS)
        k->store(dk, end - i < COLUMNS ? end - i : COLUMNS,
                 state_of(a, at.slot, at.pos + n - 1, head, i), s);
}

/* ---- op ---- */

/* All tokens through rows [row, end) of a head. */
static void head_through(const struct delta_args *a, const struct bl_cpu_job *job, uint32_t head,
                         uint32_t row, uint32_t end)
{
    struct bl_cpu_run run = {0};
    uint32_t done = 0;
    while (bl_cpu_next_run(job->params, &run)) {
        const uint32_t n = chunked(a, job->kernels, &run);
        if (!n)
            continue;
        tokens_through(a, job, done, run.first, head, row, end);
        run_through(a, job, &run, n, head, row, end);
        done = run.first + n;
    }
    tokens_through(a, job, done, job->params->n_tok, head, row, end);
}

static void delta_run(const void *args, const struct bl_cpu_job *job)
{
    const struct delta_args *a = args;
    const uint32_t dv = a->at.dv;
    const uint32_t group = job->params->n_tok < LEAST_RUN ? ROW_GROUP : COLUMNS,
                   groups = (dv + group - 1) / group; /* of a head */
    struct bl_cpu_range own = bl_cpu_split(a->at.n_head_v * groups, job->ith, job->nth);
    while (own.first < own.end) {
        const uint32_t head = own.first / groups, from = own.first - head * groups,
                       to = own.end - head * groups < groups ? own.end - head * groups : groups;
        head_through(a, job, head, from * group, to * group < dv ? to * group : dv);
        own.first = head * groups + to;
    }
}

static size_t work_floats(const struct bl_delta_attr *at, bool exact, uint32_t n_tok)
{
    const size_t tokens = (size_t)TOGETHER * 2 * at->dk,
                 room = exact || n_tok < LEAST_RUN ? 0 : room_floats(at);
    return (size_t)bl_cpu_round((room > tokens ? room : tokens) * sizeof(float)) / sizeof(float);
}

static void delta_emit(struct bl_cpu_builder *b)
{
    const struct bl_delta_attr *at = bl_cpu_attr(b);
    const size_t floats = work_floats(at, b->dev->base.caps.exact, bl_cpu_src(b, 0)->ne[1]);
    const uint64_t bytes = b->dev->base.caps.threads * floats * sizeof(float),
                   work = bl_cpu_take(b, bytes);
    struct delta_args *a = bl_cpu_step(b, delta_run, sizeof *a, BL_CPU_SPREAD);
    if (!a)
        return;
    a->qkv = bl_cpu_reads(b, 0);
    a->beta = bl_cpu_reads(b, 1);
    a->alpha = bl_cpu_reads(b, 2);
    a->a = bl_cpu_weight(b, 3);
    a->dt = bl_cpu_weight(b, 4);
    bl_cpu_touch(b, work, bytes, 0, true);
    a->y = bl_cpu_writes(b, 0);
    a->state = bl_cpu_writes(b, 1);
    a->at = *at;
    a->n = bl_cpu_src(b, 0)->ne[0];
    a->rows_per_seq = bl_cpu_dst(b, 1)->ne[1];
    a->block = (uint32_t)(STATE_BYTES / (at->dk * sizeof(float))) / ROW_GROUP * ROW_GROUP;
    a->block = a->block ? a->block : ROW_GROUP;
    a->work = (float *)(uintptr_t)work;
    a->work_floats = floats;
}

static uint64_t delta_scratch(const struct bl_caps *caps, const struct bl_graph *g,
                              const struct bl_node *n)
{
    const uint32_t n_tok = g->vals[bl_node_src(g, n, 0)].ne[1];
    return bl_cpu_round(caps->threads * work_floats(bl_node_attr(g, n), caps->exact, n_tok) *
                        sizeof(float));
}

const struct bl_cpu_op bl_cpu_delta_rule = {.scratch = delta_scratch, .emit = delta_emit};

/* SPDX-License-Identifier: MIT */
/* ROUTE and EXPERTS. The pairs (token, slot) are sorted by expert; a matrix of an expert is then
 * read once for all its tokens. Threads share (expert, rows) evenly whatever the routing. Every
 * pair has its own result in scratch, summed in the order of the slots: nothing depends on the
 * number of threads. */
#include "operand.h"

#include <assert.h>
#include <math.h>

/* ---- ROUTE ---- */

struct route_args {
    const float *z, *bias;
    const int32_t *table; /* [token id][n_used] experts, NULL: those of the largest scores */
    int32_t *ids;
    float *weights;
    struct bl_route_attr at;
    uint32_t n_experts;
    uint8_t rows;
    uint8_t *work; /* every thread's own */
    size_t work_bytes;
};
struct route_work {
    float *p, *score; /* [n_experts] probability; what is compared */
    bool *out;        /* [n_experts] chosen already, or in a group that is not */
};

static uint64_t route_work_bytes(uint32_t n_experts)
{
    return bl_cpu_round((uint64_t)n_experts * (2 * sizeof(float) + sizeof(bool)));
}

static struct route_work route_work_of(const struct route_args *a, uint32_t ith)
{
    struct route_work w;
    w.p = (float *)(a->work + ith * a->work_bytes);
    w.score = w.p + a->n_experts;
    w.out = (bool *)(w.score + a->n_experts);
    return w;
}

static void softmax(const struct bl_cpu_kernels *k, uint32_t n, float *x)
{
    float max = x[0];
    for (uint32_t i = 1; i < n; i++)
        max = x[i] > max ? x[i] : max;
    const float sum = k->exp_sum(n, x, max);
    for (uint32_t i = 0; i < n; i++)
        x[i] /= sum;
}

static void gate(const struct bl_cpu_kernels *k, uint32_t gating, uint32_t n, float *p)
{
    if (gating == BL_GATE_SOFTMAX)
        softmax(k, n, p);
    for (uint32_t i = 0; i < n && gating == BL_GATE_SIGMOID; i++)
        p[i] = 1 / (1 + expf(-p[i]));
    for (uint32_t i = 0; i < n && gating == BL_GATE_SQRT_SOFTPLUS; i++)
        p[i] = sqrtf(p[i] > 20 ? p[i] : log1pf(expf(p[i])));
}

/* Largest of those not out, the lower index where equal. */
static uint32_t pick(uint32_t n, const float *score, const bool *out)
{
    uint32_t best = n;
    for (uint32_t i = 0; i < n; i++)
        if (!out[i] && (best == n || score[i] > score[best]))
            best = i;
    return best;
}

/* The sum of its two largest scores, or the largest alone. */
static float group_score(const struct route_args *a, const float *score, uint32_t n)
{
    float first = -INFINITY, second = -INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        if (score[i] > first) {
            second = first;
            first = score[i];
        } else if (score[i] > second) {
            second = score[i];
        }
    }
    return a->at.group_by_max || n < 2 ? first : first + second;
}

/* Rules out the groups that are not among the best. */
static void pick_groups(const struct route_args *a, const struct route_work *w)
{
    const uint32_t n = a->n_experts / a->at.n_group;
    memset(w->out, true, a->n_experts * sizeof *w->out);
    for (uint32_t used = 0; used < a->at.n_group_used; used++) {
        uint32_t best = a->at.n_group;
        float most = 0;
        for (uint32_t g = 0; g < a->at.n_group; g++) {
            const float score = group_score(a, w->score + g * n, n);
            if (w->out[g * n] && (best == a->at.n_group || score > most)) {
                best = g;
                most = score;
            }
        }
        memset(w->out + best * n, false, n * sizeof *w->out);
    }
}

static void weigh(const struct route_args *a, const struct bl_cpu_kernels *k, float *weight)
{
    const uint32_t n = a->at.n_used;
    if (a->at.gating == BL_GATE_SOFTMAX_CHOSEN)
        softmax(k, n, weight);
    if (a->at.normalise) {
        float sum = 0;
        for (uint32_t i = 0; i < n; i++)
            sum += weight[i];
        sum = sum > 6.103515625e-5f ? sum : 6.103515625e-5f;
        for (uint32_t i = 0; i < n; i++)
            weight[i] /= sum;
    }
    if (a->at.scale != 0 && a->at.scale != 1)
        for (uint32_t i = 0; i < n; i++)
            weight[i] *= a->at.scale;
}

static void choose(const struct route_args *a, const struct route_work *w, int32_t *id)
{
    const uint32_t n = a->n_experts;
    for (uint32_t i = 0; i < n; i++)
        w->score[i] = a->bias ? w->p[i] + a->bias[i] : w->p[i];
    if (a->at.n_group > 1)
        pick_groups(a, w);
    else
        memset(w->out, false, n * sizeof *w->out);
    for (uint32_t u = 0; u < a->at.n_used; u++) {
        const uint32_t e = pick(n, w->score, w->out);
        w->out[e] = true;
        id[u] = (int32_t)e;
    }
}

static void route_token(const struct route_args *a, const struct bl_cpu_job *job,
                        const struct route_work *w, uint32_t t)
{
    const int32_t *token = BL_PARAMS_ARRAY(const int32_t, job->params, job->params->token_off);
    const uint32_t n = a->n_experts, n_used = a->at.n_used;
    int32_t *id = a->ids + (size_t)t * n_used;
    float *weight = a->weights + (size_t)t * n_used;
    memcpy(w->p, a->z + (size_t)t * n, n * sizeof *w->p);
    gate(job->kernels, a->at.gating, n, w->p);
    if (a->table)
        memcpy(id, a->table + (size_t)token[t] * n_used, n_used * sizeof *id);
    else
        choose(a, w, id);
    for (uint32_t u = 0; u < n_used; u++)
        weight[u] = w->p[id[u]];
    weigh(a, job->kernels, weight);
}

static void route_run(const void *args, const struct bl_cpu_job *job)
{
    const struct route_args *a = args;
    const struct route_work w = route_work_of(a, job->ith);
    const struct bl_cpu_range r = bl_cpu_rows(job, a->rows);
    for (uint32_t t = r.first; t < r.end; t++)
        route_token(a, job, &w, t);
}

static void route_emit(struct bl_cpu_builder *b)
{
    const uint8_t rows = bl_cpu_rows_of(b, 0);
    const uint64_t bytes = route_work_bytes(bl_cpu_src(b, 0)->ne[0]),
                   all = b->dev->base.caps.threads * bytes;
    const uint64_t work = bl_cpu_take(b, all);
    struct route_args *a = bl_cpu_step(b, route_run, sizeof *a, rows);
    if (!a)
        return;
    a->z = bl_cpu_reads(b, 0);
    a->bias = bl_cpu_weight(b, 1);
    a->table = bl_cpu_weight(b, 2);
    bl_cpu_touch(b, work, all, 0, true);
    a->ids = bl_cpu_writes(b, 0);
    a->weights = bl_cpu_writes(b, 1);
    a->at = *(const struct bl_route_attr *)bl_cpu_attr(b);
    a->n_experts = bl_cpu_src(b, 0)->ne[0];
    a->rows = rows;
    a->work = (uint8_t *)(uintptr_t)work;
    a->work_bytes = (size_t)bytes;
}

static uint64_t route_scratch(const struct bl_caps *caps, const struct bl_graph *g,
                              const struct bl_node *n)
{
    return bl_cpu_round(caps->threads * route_work_bytes(g->vals[bl_node_src(g, n, 0)].ne[0]));
}

const struct bl_cpu_op bl_cpu_route = {.scratch = route_scratch, .emit = route_emit};

/* ---- EXPERTS ---- */

enum {
    GROUP_ROWS = 32, /* element-wise kernels then see the same vectors whatever a thread's share */
    MOST_ROWS = 256  /* of one kernel call, whose results wait on the stack */
};
enum {
    INPUT,
    IDS,
    WEIGHTS,
    GATE,
    UP,
    DOWN
}; /* sources; biases and scales follow in the order of the matrices */

/* The pairs of one expert. */
struct batch {
    uint32_t expert, first, n; /* in order[] */
    uint32_t cost;             /* of the batches before it */
};
/* One matrix of every expert, as its rows are dealt. */
struct matrix {
    const struct bl_matmul_kernel *kernel;
    const uint64_t *expert; /* addresses */
    const float *bias, *scale;
    size_t stride, bias_elems; /* from one expert's bias to the next */
    uint32_t k, rows, group, chunk;
};
struct experts_args {
    struct matrix gate, up, down;
    const uint8_t *x[2]; /* for gate, for up */
    size_t x_stride[2];
    const int32_t *ids;
    const float *weights;
    float *y;
    uint32_t n_experts, n_used;
    struct bl_glu_attr glu;
    uint8_t rows;
    /* scratch */
    uint32_t *n_batches;
    struct batch *batch; /* [n_experts], cost of all behind the last */
    uint32_t *order;     /* [pairs] */
    float *h, *part;     /* [pairs][n_ff], [pairs][n_out] */
    uint8_t *hq;         /* h as the dots of down want it */
    size_t hq_stride;
};

struct sizes {
    uint64_t batches, order, h, hq, part;
    uint64_t table, body; /* as they are taken */
};

static struct sizes experts_sizes(const struct bl_caps *caps, const struct bl_graph *g,
                                  const struct bl_node *n)
{
    const struct bl_experts_attr *at = bl_node_attr(g, n);
    const struct bl_value *down = &g->vals[bl_node_src(g, n, DOWN)];
    const uint64_t pairs = (uint64_t)g->vals[bl_node_src(g, n, INPUT)].ne[1] * at->n_used;
    const bool is_float = caps->exact || bl_dtypes[down->type].act == BL_ACT_F32;
    struct sizes s;
    s.batches = bl_cpu_round(64 + (down->ne[2] + 1ull) * sizeof(struct batch));
    s.order = bl_cpu_round(pairs * sizeof(uint32_t));
    s.h = bl_cpu_round(pairs * down->ne[0] * sizeof(float));
    s.hq = is_float ? 0 : pairs * bl_cpu_act_bytes(down->ne[0]);
    s.part = bl_cpu_round(pairs * down->ne[1] * sizeof(float));
    s.table = s.batches + s.order;
    /* Once h is quantised its place is free for the results. */
    s.body = is_float ? s.h + s.part : s.hq + (s.h > s.part ? s.h : s.part);
    return s;
}

static uint64_t experts_scratch(const struct bl_caps *caps, const struct bl_graph *g,
                                const struct bl_node *n)
{
    const struct bl_value *x = &g->vals[bl_node_src(g, n, INPUT)];
    const struct sizes s = experts_sizes(caps, g, n);
    return s.table + s.body + bl_cpu_operand_bytes(caps, x, g->vals[bl_node_src(g, n, GATE)].type) +
           bl_cpu_operand_bytes(caps, x, g->vals[bl_node_src(g, n, UP)].type);
}

/* ---- sorting ---- */

/* What a batch costs, in passes over its matrices: the first pass also brings them from memory. */
static uint32_t cost_of(uint32_t n_pairs)
{
    return n_pairs + 1;
}

/* A counting sort, in which the batches' counters first count and then point. */
static void sort_run(const void *args, const struct bl_cpu_job *job)
{
    const struct experts_args *a = args;
    const uint32_t n_pairs = bl_cpu_n_rows(job, a->rows) * a->n_used;
    if (job->ith)
        return;
    memset(a->batch, 0, (a->n_experts + 1) * sizeof *a->batch);
    for (uint32_t p = 0; p < n_pairs; p++) {
        assert(a->ids[p] >= 0 && (uint32_t)a->ids[p] < a->n_experts);
        a->batch[a->ids[p]].n++;
    }
    for (uint32_t e = 0, first = 0; e < a->n_experts; e++) {
        a->batch[e].expert = e;
        a->batch[e].first = first;
        first += a->batch[e].n;
    }
    for (uint32_t p = 0; p < n_pairs; p++)
        a->order[a->batch[a->ids[p]].first++] = p;
    uint32_t n = 0, cost = 0;
    for (uint32_t e = 0; e < a->n_experts; e++) {
        struct batch b = a->batch[e];
        if (!b.n)
            continue;
        b.first -= b.n;
        b.cost = cost;
        cost += cost_of(b.n);
        a->batch[n++] = b;
    }
    a->batch[n].cost = cost;
    *a->n_batches = n;
}

/* ---- shares ---- */

/* A thread's way through a matrix of every expert: pieces of rows, in memory order inside a batch.
 */
struct piece {
    const struct batch *batch;
    uint32_t row, n;
};
struct path {
    const struct matrix *m;
    const struct batch *at, *end;
    uint64_t from, to;     /* in units of cost: [from, to) of all groups of rows */
    uint32_t row, row_end; /* left of the batch in hand */
};

static struct path path_of(const struct experts_args *a, const struct matrix *m,
                           const struct bl_cpu_job *job)
{
    const uint32_t n = *a->n_batches;
    const uint64_t groups = (m->rows + m->group - 1) / m->group, all = groups * a->batch[n].cost;
    return (struct path){
        m, a->batch, a->batch + n, all * job->ith / job->nth, all * (job->ith + 1) / job->nth,
        0, 0};
}

/* First group of the batch that begins at `cost` or later. */
static uint64_t group_at(const struct batch *b, uint64_t groups, uint64_t cost)
{
    const uint64_t each = cost_of(b->n), before = b->cost * groups;
    const uint64_t g = cost > before ? (cost - before + each - 1) / each : 0;
    return g < groups ? g : groups;
}

static bool path_next(struct path *p, struct piece *out)
{
    const uint32_t rows = p->m->rows, group = p->m->group;
    const uint64_t groups = (rows + group - 1) / group;
    for (; p->row == p->row_end; p->at++) {
        if (p->at == p->end || p->at->cost * groups >= p->to)
            return false;
        const uint64_t first = group_at(p->at, groups, p->from) * group,
                       end = group_at(p->at, groups, p->to) * group;
        p->row = (uint32_t)(first < rows ? first : rows);
        p->row_end = (uint32_t)(end < rows ? end : rows);
    }
    const uint32_t left = p->row_end - p->row;
    *out = (struct piece){p->at - 1, p->row, left < p->m->chunk ? left : p->m->chunk};
    p->row += out->n;
    return true;
}

static const uint8_t *rows_of(const struct matrix *m, const struct piece *p)
{
    return (const uint8_t *)(uintptr_t)m->expert[p->batch->expert] + p->row * m->stride;
}

static void scale_and_bias(const struct matrix *m, const struct piece *p, float *y)
{
    const uint32_t e = p->batch->expert;
    if (m->scale)
        for (uint32_t i = 0; i < p->n; i++)
            y[i] *= m->scale[e];
    if (m->bias)
        for (uint32_t i = 0; i < p->n; i++)
            y[i] += m->bias[e * m->bias_elems + p->row + i];
}

static void dot(const struct matrix *m, const struct piece *p, float *y, const uint8_t *x,
                const uint8_t *next)
{
    m->kernel->dot(m->k, p->n, y, rows_of(m, p), m->stride, x, next);
    scale_and_bias(m, p, y);
}

/* ---- phases ---- */

static void gate_up_piece(const struct experts_args *a, const struct bl_cpu_kernels *k,
                          const struct piece *p, const uint8_t *next)
{
    float g[MOST_ROWS], u[MOST_ROWS];
    const uint8_t *then = rows_of(&a->up, p);
    for (uint32_t i = 0; i < p->batch->n; i++) {
        const uint32_t pair = a->order[p->batch->first + i];
        const size_t t = pair / a->n_used;
        dot(&a->gate, p, g, a->x[0] + t * a->x_stride[0], then);
        dot(&a->up, p, u, a->x[1] + t * a->x_stride[1], next);
        bl_cpu_glu_run(k, &a->glu, p->n, a->h + (size_t)pair * a->gate.rows + p->row, g, u);
        then = next = NULL;
    }
}

static void gate_up_run(const void *args, const struct bl_cpu_job *job)
{
    const struct experts_args *a = args;
    struct path path = path_of(a, &a->gate, job);
    struct piece p, q;
    for (bool more = path_next(&path, &p); more; p = q) {
        more = path_next(&path, &q);
        gate_up_piece(a, job->kernels, &p, more ? rows_of(&a->gate, &q) : NULL);
    }
}

static void quantize_run(const void *args, const struct bl_cpu_job *job)
{
    const struct experts_args *a = args;
    const uint32_t k = a->down.k, n_pairs = bl_cpu_n_rows(job, a->rows) * a->n_used;
    const struct bl_cpu_range r = bl_cpu_split(n_pairs, job->ith, job->nth);
    bl_quant_fn *const quantize =
        a->down.kernel->act == BL_ACT_Q8_K ? job->kernels->quantize_256 : job->kernels->quantize_32;
    for (size_t p = r.first; p < r.end; p++)
        quantize(k, (struct bl_act_block *)(a->hq + p * a->hq_stride), a->h + p * k);
}

static void down_run(const void *args, const struct bl_cpu_job *job)
{
    const struct experts_args *a = args;
    struct path path = path_of(a, &a->down, job);
    struct piece p, q;
    for (bool more = path_next(&path, &p); more; p = q) {
        more = path_next(&path, &q);
        const uint8_t *next = more ? rows_of(&a->down, &q) : NULL;
        for (uint32_t i = 0; i < p.batch->n; i++, next = NULL) {
            const size_t pair = a->order[p.batch->first + i];
            dot(&a->down, &p, a->part + pair * a->down.rows + p.row, a->hq + pair * a->hq_stride,
                next);
        }
    }
}

static void sum_run(const void *args, const struct bl_cpu_job *job)
{
    const struct experts_args *a = args;
    const struct bl_cpu_range r = bl_cpu_rows(job, a->rows);
    const uint32_t n = a->down.rows;
    for (size_t t = r.first; t < r.end; t++) {
        float *y = a->y + t * n;
        memset(y, 0, n * sizeof *y);
        for (size_t pair = t * a->n_used; pair < (t + 1) * a->n_used; pair++)
            job->kernels->axpy(n, y, a->weights[pair], a->part + pair * n);
    }
}

/* ---- build ---- */

static struct matrix matrix_of(const struct bl_cpu_builder *b, unsigned src)
{
    const struct bl_value *w = bl_cpu_src(b, src);
    struct matrix m = {.kernel = &b->dev->kernels.matmul[w->type],
                       .expert = bl_cpu_weight(b, src),
                       .bias = bl_cpu_weight(b, src + 3),
                       .scale = bl_cpu_weight(b, src + 6),
                       .stride = (size_t)bl_dtype_row_bytes(w->type, w->ne[0]),
                       .bias_elems = w->ne[1],
                       .k = w->ne[0],
                       .rows = w->ne[1]};
    m.group = m.kernel->rows;
    while (m.group < GROUP_ROWS)
        m.group *= 2;
    m.chunk = bl_cpu_chunk_rows(m.stride, m.kernel->rows);
    m.chunk = m.chunk < MOST_ROWS ? m.chunk : MOST_ROWS;
    return m;
}

/* Gate and up walk together: one grouping for both. */
static void share_pieces(struct matrix *a, struct matrix *b)
{
    a->group = b->group = a->group > b->group ? a->group : b->group;
    a->chunk = b->chunk = a->chunk < b->chunk ? a->chunk : b->chunk;
}

struct places {
    uint64_t batches, order, h, hq, part;
    struct sizes s;
};

static struct places take_places(struct bl_cpu_builder *b)
{
    struct places p = {.s = experts_sizes(&b->dev->base.caps, b->graph, b->node)};
    bl_cpu_reserve(b, experts_scratch(&b->dev->base.caps, b->graph, b->node));
    p.batches = bl_cpu_take(b, p.s.table);
    p.order = p.batches + p.s.batches;
    p.h = bl_cpu_take(b, p.s.body);
    if (p.s.hq) {
        p.part = p.h;
        p.hq = p.h + (p.s.h > p.s.part ? p.s.h : p.s.part);
    } else {
        p.part = p.h + p.s.h;
        p.hq = p.h;
    }
    return p;
}

static void fill_args(struct bl_cpu_builder *b, struct experts_args *a, const struct places *p)
{
    const struct bl_experts_attr *at = bl_cpu_attr(b);
    a->gate = matrix_of(b, GATE);
    a->up = matrix_of(b, UP);
    a->down = matrix_of(b, DOWN);
    if (at->bias_elems)
        a->gate.bias_elems = a->up.bias_elems = at->bias_elems;
    share_pieces(&a->gate, &a->up);
    a->ids = (const int32_t *)(uintptr_t)b->bound->src[IDS];
    a->weights = (const float *)(uintptr_t)b->bound->src[WEIGHTS];
    a->y = (float *)(uintptr_t)b->bound->dst[0];
    a->n_experts = bl_cpu_src(b, DOWN)->ne[2];
    a->n_used = at->n_used;
    a->glu = at->glu;
    a->rows = bl_cpu_rows_of(b, INPUT);
    a->n_batches = (uint32_t *)(uintptr_t)p->batches;
    a->batch = (struct batch *)(uintptr_t)(p->batches + 64);
    a->order = (uint32_t *)(uintptr_t)p->order;
    a->h = (float *)(uintptr_t)p->h;
    a->part = (float *)(uintptr_t)p->part;
    a->hq = (uint8_t *)(uintptr_t)p->hq;
    a->hq_stride = (size_t)(p->s.hq ? bl_cpu_act_bytes(a->down.k) : a->down.k * sizeof(float));
}

/* Another step over the same arguments. */
static bool phase(struct bl_cpu_builder *b, const struct experts_args *a, bl_cpu_step_fn *run,
                  enum bl_cpu_share share)
{
    struct experts_args *copy = bl_cpu_step(b, run, sizeof *copy, share);
    if (copy)
        *copy = *a;
    return copy;
}

static void experts_emit(struct bl_cpu_builder *b)
{
    const uint32_t n_tok = bl_cpu_src(b, INPUT)->ne[1];
    const struct places p = take_places(b);
    struct experts_args a = {0};
    fill_args(b, &a, &p);
    const struct bl_cpu_operand x[2] = {bl_cpu_operand(b, INPUT, a.gate.kernel->act),
                                        bl_cpu_operand(b, INPUT, a.up.kernel->act)};
    for (unsigned i = 0; i < 2; i++) {
        a.x[i] = (const uint8_t *)(uintptr_t)x[i].addr;
        a.x_stride[i] = (size_t)x[i].row_bytes;
    }
    /* Sorted by thread 0, which with one token also made the ids: no barrier then. */
    if (!phase(b, &a, sort_run, n_tok == 1 ? (enum bl_cpu_share)a.rows : BL_CPU_SPREAD))
        return;
    bl_cpu_reads(b, IDS);
    bl_cpu_touch(b, p.batches, p.s.table, 0, true);
    if (!phase(b, &a, gate_up_run, BL_CPU_SPREAD))
        return;
    bl_cpu_touch(b, p.batches, p.s.table, 0, false);
    bl_cpu_reads_operand(b, x[0], n_tok);
    bl_cpu_reads_operand(b, x[1], n_tok);
    bl_cpu_touch(b, p.h, p.s.h, 0, true);
    if (p.s.hq) {
        if (!phase(b, &a, quantize_run, BL_CPU_SPREAD))
            return;
        bl_cpu_touch(b, p.h, p.s.h, 0, false);
        bl_cpu_touch(b, p.hq, p.s.hq, 0, true);
    }
    if (!phase(b, &a, down_run, BL_CPU_SPREAD))
        return;
    bl_cpu_touch(b, p.batches, p.s.table, 0, false);
    bl_cpu_touch(b, p.hq, p.s.hq ? p.s.hq : p.s.h, 0, false);
    bl_cpu_touch(b, p.part, p.s.part, 0, true);
    if (!phase(b, &a, sum_run, (enum bl_cpu_share)a.rows))
        return;
    bl_cpu_touch(b, p.part, p.s.part, 0, false);
    bl_cpu_reads(b, WEIGHTS);
    bl_cpu_writes(b, 0);
    b->last_matmul = NULL; /* what comes after the router was not the matmul that follows here */
}

static bool experts_supports(const struct bl_graph *g, const struct bl_node *n)
{
    for (unsigned i = GATE; i <= DOWN; i++)
        if (bl_dtypes[g->vals[bl_node_src(g, n, i)].type].act == BL_ACT_NONE)
            return false;
    return true;
}

const struct bl_cpu_op bl_cpu_experts = {experts_supports, experts_scratch, experts_emit};

/* SPDX-License-Identifier: MIT */
/* ROUTE: which experts a token goes to, and with what weights. */
#include "segment.h"

#include <math.h>

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

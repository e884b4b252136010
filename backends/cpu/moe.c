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
    int32_t *key;     /* [whole blocks of experts] the same in order of integers, or OUT */
    int32_t *most;    /* [blocks] the largest key of each */
    bool *out;        /* [n_experts] in a group that is not chosen */
};
enum {
    BLOCK = 16,          /* keys that are looked through again when one of them is taken */
    OUT = INT32_MIN,     /* taken, or never to be */
    NO_NUMBER = OUT + 1, /* last of all */
    CHAINS = 8           /* maxima that do not wait for each other */
};

static uint32_t n_blocks(uint32_t n_experts)
{
    return (n_experts + BLOCK - 1) / BLOCK;
}

static uint64_t route_work_bytes(uint32_t n_experts)
{
    const uint64_t blocks = n_blocks(n_experts);
    return bl_cpu_round(n_experts * (2 * sizeof(float) + sizeof(bool)) +
                        blocks * (BLOCK + 1) * sizeof(int32_t));
}

static struct route_work route_work_of(const struct route_args *a, uint32_t ith)
{
    struct route_work w;
    w.p = (float *)(a->work + ith * a->work_bytes);
    w.score = w.p + a->n_experts;
    w.key = (int32_t *)(w.score + a->n_experts);
    w.most = w.key + n_blocks(a->n_experts) * BLOCK;
    w.out = (bool *)(w.most + n_blocks(a->n_experts));
    return w;
}

static float largest(uint32_t n, const float *x)
{
    float most[CHAINS];
    for (uint32_t c = 0; c < CHAINS; c++)
        most[c] = x[c < n ? c : 0];
    for (uint32_t i = CHAINS; i + CHAINS <= n; i += CHAINS)
        for (uint32_t c = 0; c < CHAINS; c++)
            most[c] = x[i + c] > most[c] ? x[i + c] : most[c];
    for (uint32_t i = n / CHAINS * CHAINS; i < n; i++)
        most[0] = x[i] > most[0] ? x[i] : most[0];
    for (uint32_t c = 1; c < CHAINS; c++)
        most[0] = most[c] > most[0] ? most[c] : most[0];
    return most[0];
}

static void softmax(const struct bl_cpu_kernels *k, uint32_t n, float *x)
{
    const float sum = k->exp_sum(n, x, largest(n, x));
    for (uint32_t i = 0; i < n; i++)
        x[i] /= sum;
}

static void gate(const struct bl_cpu_kernels *k, uint32_t gating, uint32_t n, float *p)
{
    if (gating == BL_GATE_SOFTMAX)
        softmax(k, n, p);
    if (gating == BL_GATE_SIGMOID) {
        for (uint32_t i = 0; i < n; i++)
            p[i] = -p[i];
        k->exp_sum(n, p, 0);
        for (uint32_t i = 0; i < n; i++)
            p[i] = 1 / (1 + p[i]);
    }
    for (uint32_t i = 0; i < n && gating == BL_GATE_SQRT_SOFTPLUS; i++)
        p[i] = sqrtf(p[i] > 20 ? p[i] : log1pf(expf(p[i])));
}

/* ---- the largest ---- */

/* Integers in the order of the floats, both zeros alike. */
static int32_t key_of(float score)
{
    int32_t bits;
    score += 0.0f;
    memcpy(&bits, &score, sizeof bits);
    return isnan(score) ? NO_NUMBER : bits < 0 ? bits ^ INT32_MAX : bits;
}

static int32_t largest_key(const int32_t key[BLOCK])
{
    int32_t most = key[0];
    for (uint32_t i = 1; i < BLOCK; i++)
        most = key[i] > most ? key[i] : most;
    return most;
}

static void make_keys(const struct route_work *w, uint32_t n, bool in_groups)
{
    for (uint32_t i = 0; i < n; i++)
        w->key[i] = in_groups && w->out[i] ? OUT : key_of(w->score[i]);
    for (uint32_t i = n; i < n_blocks(n) * BLOCK; i++)
        w->key[i] = OUT;
    for (uint32_t b = 0; b < n_blocks(n); b++)
        w->most[b] = largest_key(w->key + b * BLOCK);
}

/* Takes the expert of the largest score, of the lowest index where equal. */
static uint32_t take(const struct route_work *w, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t b = 1; b < n_blocks(n); b++)
        best = w->most[b] > w->most[best] ? b : best;
    int32_t *key = w->key + best * BLOCK;
    uint32_t i = 0;
    while (key[i] != w->most[best])
        i++;
    key[i] = OUT;
    w->most[best] = largest_key(key);
    return best * BLOCK + i;
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
    make_keys(w, n, a->at.n_group > 1);
    for (uint32_t u = 0; u < a->at.n_used; u++)
        id[u] = (int32_t)take(w, n);
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

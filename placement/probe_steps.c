/* SPDX-License-Identifier: MIT */
/* Steps besides products with weights: attention, recurrences, what goes element by element. */
#include "probe_impl.h"

#include "backends.h"

enum {
    FIRST_WEIGHT = 1000,
    MANY_TOKENS = 512,   /* a step of a prompt */
    ATTEND_TOKENS = 256, /* one of attention, to as many before it and its own */
    LATENT_TOKENS = 128, /* one of many heads that share a row */
    CACHED = 2048,       /* rows that a token sees, when there is one */
    MOST_NODES = 128     /* one after the other, each with states of its own */
};

/* Nodes that leave nothing of a block of states in caches; of many tokens one, which waits for
 * arithmetic. */
static uint32_t nodes_for(const struct bl_rig *r, uint64_t state_bytes, uint32_t n_tok)
{
    const uint64_t n = n_tok == 1 ? r->states.n / state_bytes : 1;
    return n < 1 ? 1 : n > MOST_NODES ? MOST_NODES : (uint32_t)n;
}

/* ---- attention ---- */

struct attention {
    uint32_t heads_kv, group, head; /* query heads of a key head, elements of a head */
    bool latent;                    /* keys are values */
};

static bl_val add_attention(struct bl_graph *g, bl_val q, const struct attention *a,
                            enum bl_dtype type, int32_t state, uint32_t rows)
{
    const struct bl_attention_attr at = {
        a->heads_kv * a->group, a->heads_kv, a->head, a->head, 0, 0.1f};
    const uint32_t row = a->heads_kv * a->head;
    const bl_val k = bl_graph_state(g, state, type, row, rows, 1);
    const bl_val v = a->latent ? k : bl_graph_state(g, state + 1, type, row, rows, 1);
    return bl_graph_attention(g, q, k, v, 0, &at);
}

/* Time for what one token's query heads of one key head do with one row. */
static enum bl_status time_attention(struct bl_rig *r, const struct bl_rig_block *cache,
                                     const struct attention *a, enum bl_dtype type, uint32_t n_tok,
                                     double *ns)
{
    const uint32_t before = n_tok == 1 ? CACHED - 1 : n_tok, rows = before + n_tok;
    const uint64_t row_bytes = bl_dtype_row_bytes(type, a->heads_kv * a->head);
    bl_rig_clear(r);
    r->states = *cache;
    const uint32_t n = nodes_for(r, rows * row_bytes * (a->latent ? 1 : 2), n_tok);
    bl_val q = bl_rig_input(r, a->heads_kv * a->group * a->head, n_tok);
    for (uint32_t i = 0; i < n; i++)
        q = add_attention(&r->graph, q, a, type, 2 * (int32_t)i, rows);
    r->first_position = before;
    BL_TRY(bl_rig_ready(r, NULL, n_tok));
    BL_TRY(bl_rig_time(r, BL_PROBE_RUNS, bl_probe_cell_ns, ns));
    *ns /= (double)n * a->heads_kv * n_tok * (before + (n_tok + 1) / 2.0);
    return BL_OK;
}

static double per_s(double ns)
{
    return ns > 0 ? 1e9 / ns : 0;
}

/* Three shapes tell apart what a score costs whatever the head's size (weights, softmax), what a
 * multiply-add costs, and what a value of the cache costs that several query heads then share. With
 * hardly any heads to share it arithmetic hides behind memory: such a shape would tell too much of
 * both. */
static enum bl_status measure_kv(struct bl_rig *r, const struct bl_rig_block *cache,
                                 enum bl_dtype type, uint32_t n_tok, struct bl_kv_rate *out)
{
    enum { HEADS = 8, FEWER = 3, GROUP = 8, HEAD = 128 };
    static const struct attention few = {HEADS, FEWER, HEAD, false},
                                  some = {HEADS, GROUP, HEAD, false},
                                  small = {HEADS, GROUP, HEAD / 2, false};
    const double macs = 2 * HEAD; /* of one query head and one row */
    double fewer, group, narrow;
    BL_TRY(time_attention(r, cache, &few, type, n_tok, &fewer));
    BL_TRY(time_attention(r, cache, &some, type, n_tok, &group));
    BL_TRY(time_attention(r, cache, &small, type, n_tok, &narrow));
    double score = (2 * narrow - group) / GROUP;
    score = score > 0 ? score : 0;
    double mac = ((group - fewer) / (GROUP - FEWER) - score) / macs;
    const double most = (group / GROUP - score) / macs;
    mac = mac > most || mac < 0 ? most : mac;
    out->scores_per_s = per_s(score);
    out->macs_per_s = per_s(mac);
    out->values_per_s = per_s((group - GROUP * (score + macs * mac)) / macs);
    return BL_OK;
}

/* Many heads meet each row, so that other kernels multiply them. */
static enum bl_status measure_latent(struct bl_rig *r, const struct bl_rig_block *cache,
                                     enum bl_dtype type, uint32_t n_tok, struct bl_kv_rate *out)
{
    static const struct attention latent = {1, 64, 512, true};
    double ns;
    BL_TRY(time_attention(r, cache, &latent, type, n_tok, &ns));
    out->latent_macs_per_s = per_s(ns / (2.0 * latent.group * latent.head));
    return BL_OK;
}

static enum bl_status measure_attention(struct bl_probe *p, struct bl_rig *r, uint32_t n_tok,
                                        struct bl_kv_rate *rate)
{
    static const uint8_t types[] = {BL_F16, BL_Q8_0};
    const struct bl_rig_block cache = bl_probe_cache_of(&p->states);
    const size_t n = p->plan->quick || bl_probe_late(p) ? 1 : BL_COUNT(types);
    for (size_t i = 0; i < n; i++) {
        const enum bl_dtype t = (enum bl_dtype)types[i];
        BL_TRY(measure_kv(r, &cache, t, n_tok, &rate[t]));
        BL_TRY(measure_latent(r, &cache, t, n_tok == 1 ? 1 : LATENT_TOKENS, &rate[t]));
    }
    return BL_OK;
}

/* ---- recurrent layers ---- */

enum { HEADS_K = 16, HEADS_V = 32, HEAD = 128, KEYS = HEADS_K * HEAD, VALUES = HEADS_V * HEAD };

static void add_recurrence(struct bl_graph *g, const struct bl_delta_vals *in, int32_t state)
{
    const struct bl_delta_attr at = {.n_head_k = HEADS_K,
                                     .n_head_v = HEADS_V,
                                     .dk = HEAD,
                                     .dv = HEAD,
                                     .eps = 1e-6f,
                                     .scale = 0.1f};
    struct bl_delta_vals v = *in;
    v.state = bl_graph_state(g, state, BL_F32, VALUES * HEAD, 1, 1);
    bl_graph_delta_rule(g, &v, &at);
}

static enum bl_status measure_state(struct bl_rig *r, const struct bl_rig_block *states,
                                    uint32_t n_tok, double *rate)
{
    double ns;
    bl_rig_clear(r);
    r->states = *states;
    struct bl_graph *g = &r->graph;
    struct bl_delta_vals v = {.beta = bl_rig_input(r, HEADS_V, n_tok),
                              .alpha = bl_rig_input(r, HEADS_V, n_tok),
                              .qkv = bl_rig_input(r, 2 * KEYS + VALUES, n_tok)};
    v.a = bl_graph_weight(g, FIRST_WEIGHT, BL_F32, (uint32_t[]){HEADS_V, 1, 1});
    v.dt = bl_graph_weight(g, FIRST_WEIGHT + 1, BL_F32, (uint32_t[]){HEADS_V, 1, 1});
    const uint32_t n = nodes_for(r, (uint64_t)VALUES * HEAD * sizeof(float), n_tok);
    for (uint32_t i = 0; i < n; i++)
        add_recurrence(g, &v, (int32_t)i);
    BL_TRY(bl_rig_ready(r, NULL, n_tok));
    BL_TRY(bl_rig_time(r, BL_PROBE_RUNS, bl_probe_cell_ns, &ns));
    *rate = (double)VALUES * HEAD * n * n_tok / ns * 1e9;
    return BL_OK;
}

/* ---- element by element ---- */

static enum bl_status measure_moving(struct bl_rig *r, uint32_t n_tok, double own_ns, double *bps)
{
    /* arrays of many tokens pass through caches, as those of models do; those of one stay there */
    const uint32_t n = n_tok == 1 ? 16384 : 12288;
    const double moves = 2 + 3 + 3; /* arrays read and written below */
    const struct bl_glu_attr glu = {.kind = BL_GLU_SILU};
    double ns;
    bl_rig_clear(r);
    struct bl_graph *g = &r->graph;
    const bl_val x = bl_rig_input(r, n, n_tok);
    const bl_val w = bl_graph_weight(g, FIRST_WEIGHT, BL_F32, (uint32_t[]){n, 1, 1});
    const bl_val y = bl_graph_add(g, x, bl_graph_rms_norm(g, x, w, 1e-6f));
    bl_graph_glu(g, y, x, &glu);
    BL_TRY(bl_rig_ready(r, NULL, n_tok));
    BL_TRY(bl_rig_time(r, BL_PROBE_RUNS, bl_probe_cell_ns, &ns));
    const double left = ns - own_ns;
    *bps = moves * n * n_tok * sizeof(float) / (left > ns / 4 ? left : ns / 4) * 1e9;
    return BL_OK;
}

/* ---- both teams ---- */

enum bl_status bl_probe_team(struct bl_probe *p, struct bl_rig *r, uint32_t n_tok,
                             enum bl_step_team team)
{
    const struct bl_rig_block recurrent = bl_probe_recurrent_of(&p->states);
    struct bl_step_rate *out = &p->dev->step_rate[team];
    BL_TRY(measure_attention(p, r, n_tok == 1 ? 1 : ATTEND_TOKENS, p->dev->kv_rate[team]));
    BL_TRY(measure_state(r, &recurrent, n_tok, &out->state_values_per_s));
    return measure_moving(r, n_tok, p->dev->launch_ns, &out->moved_bps);
}

static enum bl_status measure_team(struct bl_probe *p, uint32_t threads, uint32_t n_tok,
                                   enum bl_step_team team)
{
    struct bl_rig r;
    const struct bl_device_config c = bl_probe_config(p, threads);
    BL_TRY(bl_rig_open(&r, p->dev->backend, &c));
    const enum bl_status st = bl_probe_team(p, &r, n_tok, team);
    bl_rig_close(&r);
    return st;
}

enum bl_status bl_probe_steps(struct bl_probe *p)
{
    bl_probe_say(p, "attention and other steps");
    BL_TRY(measure_team(p, bl_probe_few_threads(p), 1, BL_STEP_FEW));
    return measure_team(p, bl_probe_many_threads(p), MANY_TOKENS, BL_STEP_MANY);
}

/* SPDX-License-Identifier: MIT */
/* Steps besides products with weights: attention, recurrences, what goes element by element. */
#include "probe_impl.h"

#include "backends.h"

enum {
    FIRST_WEIGHT = 1000,
    MANY_TOKENS = 512, /* a step of a prompt */
    CACHED = 2048      /* rows that a token sees, when there is one */
};

/* ---- attention ---- */

enum { KV_HEADS = 4 };
struct attention {
    uint32_t group, head; /* query heads of a key head, elements of a head */
};

/* Time for what one token's query heads of one key head do with one row. */
static enum bl_status time_attention(struct bl_rig *r, struct attention a, uint32_t n_tok,
                                     double *ns)
{
    const uint32_t heads = KV_HEADS * a.group, row = KV_HEADS * a.head;
    const uint32_t before = n_tok == 1 ? CACHED - 1 : n_tok;
    const struct bl_attention_attr at = {heads, KV_HEADS, a.head, a.head, 0, 0.1f};
    bl_rig_clear(r);
    struct bl_graph *g = &r->graph;
    const bl_val q = bl_rig_input(r, heads * a.head, n_tok);
    const bl_val k = bl_graph_state(g, 0, BL_F16, row, before + n_tok, 1);
    const bl_val v = bl_graph_state(g, 1, BL_F16, row, before + n_tok, 1);
    bl_graph_attention(g, q, k, v, 0, &at);
    r->first_position = before;
    BL_TRY(bl_rig_ready(r, NULL, n_tok));
    BL_TRY(bl_rig_time(r, BL_PROBE_RUNS, bl_probe_cell_ns, ns));
    *ns /= (double)KV_HEADS * n_tok * (before + (n_tok + 1) / 2.0);
    return BL_OK;
}

static double per_s(double ns)
{
    return ns > 0 ? 1e9 / ns : 0;
}

/* Three shapes tell apart what a score costs whatever the head's size (weights, softmax), what a
 * multiply-add costs, and what a value of the cache costs that several query heads then share. */
static enum bl_status measure_attention(struct bl_rig *r, uint32_t n_tok, struct bl_step_rate *out)
{
    enum { GROUP = 8, HEAD = 128 };
    const double macs = 2 * HEAD; /* of one query head and one row */
    double alone, group, narrow;
    BL_TRY(time_attention(r, (struct attention){1, HEAD}, n_tok, &alone));
    BL_TRY(time_attention(r, (struct attention){GROUP, HEAD}, n_tok, &group));
    BL_TRY(time_attention(r, (struct attention){GROUP, HEAD / 2}, n_tok, &narrow));
    double score = (2 * narrow - group) / GROUP;
    score = score > 0 ? score : 0;
    double mac = ((group - alone) / (GROUP - 1) - score) / macs;
    const double most = (group / GROUP - score) / macs;
    mac = mac > most || mac < 0 ? most : mac;
    out->scores_per_s = per_s(score);
    out->attend_macs_per_s = per_s(mac);
    out->cache_values_per_s = per_s((group - GROUP * (score + macs * mac)) / macs);
    return BL_OK;
}

/* ---- recurrent layers ---- */

static enum bl_status measure_state(struct bl_rig *r, uint32_t n_tok, double *rate)
{
    enum { HEADS_K = 8, HEADS_V = 16, HEAD = 128, KEYS = HEADS_K * HEAD, VALUES = HEADS_V * HEAD };
    const struct bl_delta_attr at = {.n_head_k = HEADS_K,
                                     .n_head_v = HEADS_V,
                                     .dk = HEAD,
                                     .dv = HEAD,
                                     .eps = 1e-6f,
                                     .scale = 0.1f};
    double ns;
    bl_rig_clear(r);
    struct bl_graph *g = &r->graph;
    struct bl_delta_vals v = {.beta = bl_rig_input(r, HEADS_V, n_tok),
                              .alpha = bl_rig_input(r, HEADS_V, n_tok),
                              .qkv = bl_rig_input(r, 2 * KEYS + VALUES, n_tok)};
    v.a = bl_graph_weight(g, FIRST_WEIGHT, BL_F32, (uint32_t[]){HEADS_V, 1, 1});
    v.dt = bl_graph_weight(g, FIRST_WEIGHT + 1, BL_F32, (uint32_t[]){HEADS_V, 1, 1});
    v.state = bl_graph_state(g, 0, BL_F32, HEADS_V * HEAD * HEAD, 1, 1);
    bl_graph_delta_rule(g, &v, &at);
    BL_TRY(bl_rig_ready(r, NULL, n_tok));
    BL_TRY(bl_rig_time(r, BL_PROBE_RUNS, bl_probe_cell_ns, &ns));
    *rate = (double)HEADS_V * HEAD * HEAD * n_tok / ns * 1e9;
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

static enum bl_status measure_team(struct bl_probe *p, uint32_t threads, uint32_t n_tok,
                                   struct bl_step_rate *out)
{
    struct bl_rig r;
    const struct bl_device_config c = bl_probe_config(p, threads);
    BL_TRY(bl_rig_open(&r, p->dev->backend, &c));
    enum bl_status st = measure_attention(&r, n_tok, out);
    if (!st)
        st = measure_state(&r, n_tok, &out->state_values_per_s);
    if (!st)
        st = measure_moving(&r, n_tok, p->dev->launch_ns, &out->moved_bps);
    bl_rig_close(&r);
    return st;
}

enum bl_status bl_probe_steps(struct bl_probe *p)
{
    struct bl_step_rate *rate = p->dev->step_rate;
    bl_probe_say(p, "attention and other steps");
    BL_TRY(measure_team(p, bl_probe_few_threads(p), 1, &rate[BL_STEP_FEW]));
    return measure_team(p, bl_probe_many_threads(p), MANY_TOKENS, &rate[BL_STEP_MANY]);
}

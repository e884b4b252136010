/* SPDX-License-Identifier: MIT */
/* deepseek4: DeepSeek-V4-Flash and V4-Pro. The residual is several streams, mixed before and after
 * each half of a layer. One vector per token is key and value of all heads; a layer sees those of a
 * window and, by its ratio, rows into which every 4 or 128 tokens are compressed: of those of 4,
 * an index chooses. Experts of the first layers go by token id. Draft heads are not built. */
#include "model.h"

#include "log.h"
#include "mem.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    MOST_RANK = 1 << 16,
    MOST_HEADS = 4096,
    MOST_HEAD = 4096,
    MOST_STREAMS = 16,
    MOST_ROUNDS = 1000,
    OVERLAPPING = 4, /* the ratio whose groups overlap, and among whose rows an index chooses */
    PLAIN = 128      /* the other ratio */
};

/* Rows of groups of tokens: what they are made of and where they are kept. */
struct rows {
    enum bl_role kv, gate, ape, norm;
    uint32_t n; /* elements of a row */
    int32_t tail, state;
};
struct layer {
    uint32_t ratio; /* tokens of a group, 0: none */
    struct rows main, index;
    struct bl_glu_attr glu, shared_glu;
};
struct ds4 {
    uint32_t q_rank, out_groups, out_rank;
    uint32_t index_heads, index_head, top_k;
    uint32_t n_hash; /* layers whose experts go by token id */
    uint32_t window;
    struct bl_streams_attr streams;
    struct bl_angles_attr angles; /* of layers with groups */
    struct layer layer[];
};

static const struct ds4 *ds4_of(const struct bl_model *m)
{
    return m->extra;
}

/* ---- keys ---- */

/* What other families can do without. */
static enum bl_status check_keys(const struct bl_model *m)
{
    static const char *const required[] = {
        "attention.head_count_kv", "attention.key_length", "attention.value_length",
        "rope.dimension_count",    "rope.freq_base",       "expert_count",
        "expert_used_count",       "expert_weights_scale", "expert_feed_forward_length"};
    for (unsigned i = 0; i < BL_COUNT(required); i++) {
        char key[64];
        snprintf(key, sizeof key, "deepseek4.%s", required[i]);
        if (!bl_gguf_find(m->gguf, key))
            return bl_model_fail(m, BL_EFORMAT, "key '%s' is missing", key);
    }
    return BL_OK;
}

static enum bl_status read_attention(struct bl_model *m, struct ds4 *x)
{
    const struct bl_hparams *hp = &m->hp;
    BL_TRY(bl_hp_u32(m, "attention.q_lora_rank", true, 1, MOST_RANK, &x->q_rank));
    BL_TRY(bl_hp_u32(m, "attention.sliding_window", true, 1, BL_MAX_CONTEXT, &x->window));
    BL_TRY(bl_hp_u32(m, "attention.output_group_count", true, 1, MOST_HEADS, &x->out_groups));
    BL_TRY(bl_hp_u32(m, "attention.output_lora_rank", true, 1, MOST_RANK, &x->out_rank));
    BL_TRY(bl_hp_u32(m, "attention.indexer.head_count", true, 1, MOST_HEADS, &x->index_heads));
    BL_TRY(bl_hp_u32(m, "attention.indexer.key_length", true, hp->rope_dims, MOST_HEAD,
                     &x->index_head));
    BL_TRY(bl_hp_u32(m, "attention.indexer.top_k", true, 1, BL_MAX_CONTEXT, &x->top_k));
    if (m->opt.round_index && (x->index_head & (x->index_head - 1)))
        return bl_model_fail(m, BL_EUNSUPPORTED,
                             "deepseek4.attention.indexer.key_length is %u; rounding as in training"
                             " needs a power of two",
                             x->index_head);
    if (hp->dk != hp->dv)
        return bl_model_fail(m, BL_EFORMAT,
                             "deepseek4.attention.key_length and value_length are %u and %u; keys "
                             "and values are the same vectors",
                             hp->dk, hp->dv);
    for (uint32_t i = 0; i < hp->n_layer; i++) {
        struct bl_layer *l = &m->layer[i];
        if (l->n_head_kv != 1 || l->n_head % x->out_groups)
            return bl_model_fail(m, BL_EFORMAT,
                                 "layer %u has %u heads over %u of keys, and %u groups at its "
                                 "output; must be one key head, and whole groups",
                                 i, l->n_head, l->n_head_kv, x->out_groups);
        l->window = x->window;
    }
    return BL_OK;
}

/* Entries beyond the layers belong to blocks for drafting. */
static enum bl_status read_ratios(struct bl_model *m, struct ds4 *x)
{
    static const char *const suffix = "attention.compress_ratios";
    uint32_t n = m->hp.n_layer, *ratio = bl_calloc(n, sizeof *ratio);
    enum bl_status st = BL_OK;
    if (!ratio)
        return bl_model_fail(m, BL_ENOMEM, "out of memory for %u layers", n);
    st = bl_hp_u32_per_layer(m, suffix, true, 0, PLAIN, ratio, NULL);
    for (uint32_t i = 0; !st && i < n; i++) {
        x->layer[i].ratio = ratio[i];
        if (ratio[i] && ratio[i] != OVERLAPPING && ratio[i] != PLAIN)
            st = bl_model_fail(m, BL_EUNSUPPORTED,
                               "deepseek4.%s of layer %u is %u; must be 0, %d"
                               " or %d",
                               suffix, i, ratio[i], OVERLAPPING, PLAIN);
    }
    free(ratio);
    const struct bl_kv *kv = bl_gguf_find(m->gguf, "deepseek4.attention.compress_ratios");
    if (kv && kv->n > n + m->hp.n_layer_nextn)
        m->hp.n_layer_nextn = (uint32_t)kv->n - n;
    return st;
}

static enum bl_status read_streams(struct bl_model *m, struct ds4 *x)
{
    struct bl_streams_attr *at = &x->streams;
    at->norm_eps = m->hp.eps;
    BL_TRY(bl_hp_u32(m, "hyper_connection.count", true, 1, MOST_STREAMS, &at->n));
    BL_TRY(bl_hp_u32(m, "hyper_connection.sinkhorn_iterations", true, 1, MOST_ROUNDS,
                     &at->iterations));
    return bl_hp_f32(m, "hyper_connection.epsilon", true, 1e-12f, 1, &at->eps);
}

static enum bl_status read_clamps(struct bl_model *m, struct ds4 *x)
{
    uint32_t n = m->hp.n_layer;
    float *clamp = bl_calloc(2 * (size_t)n, sizeof *clamp);
    if (!clamp)
        return bl_model_fail(m, BL_ENOMEM, "out of memory for %u layers", n);
    float *shared = clamp + n;
    enum bl_status st = bl_hp_f32_per_layer(m, "swiglu_clamp_exp", true, 0, 1e9f, clamp);
    memcpy(shared, clamp, n * sizeof *clamp);
    if (!st)
        st = bl_hp_f32_per_layer(m, "swiglu_clamp_shexp", false, 0, 1e9f, shared);
    for (uint32_t i = 0; i < n; i++) {
        struct layer *l = &x->layer[i];
        l->glu.kind = clamp[i] > 0 ? BL_GLU_SILU_CLAMPED : BL_GLU_SILU;
        l->glu.limit = clamp[i];
        l->shared_glu.kind = shared[i] > 0 ? BL_GLU_SILU_CLAMPED : BL_GLU_SILU;
        l->shared_glu.limit = shared[i];
    }
    free(clamp);
    return st;
}

static enum bl_status read_experts(struct bl_model *m, struct ds4 *x)
{
    struct bl_hparams *hp = &m->hp;
    uint32_t func = 0, n_shared = 0;
    bool normalise = false;
    BL_TRY(bl_hp_u32(m, "expert_gating_func", true, 0, UINT32_MAX, &func));
    if (func != BL_GATE_SQRT_SOFTPLUS)
        return bl_model_fail(m, BL_EUNSUPPORTED, "deepseek4.expert_gating_func is %u; must be %d",
                             func, BL_GATE_SQRT_SOFTPLUS);
    BL_TRY(bl_hp_bool(m, "expert_weights_norm", true, &normalise));
    BL_TRY(bl_hp_u32(m, "expert_shared_count", true, 1, UINT32_MAX, &n_shared));
    BL_TRY(bl_hp_routed_experts(m, BL_GATE_SQRT_SOFTPLUS));
    BL_TRY(bl_hp_u32(m, "hash_layer_count", true, 0, hp->n_layer, &x->n_hash));
    return read_clamps(m, x);
}

/* Many files were written without any of the scaling keys, by a fault of the converter. Only the
 * layers with groups see the whole context; the others' rope is as the file's base says. */
static enum bl_status read_rope(struct bl_model *m, struct ds4 *x)
{
    struct bl_hparams *hp = &m->hp;
    float base = 0;
    BL_TRY(bl_hp_f32(m, "attention.compress_rope_freq_base", true, 2, 1e15f, &base));
    if (m->opt.rope.freq_base > 0)
        base = m->opt.rope.freq_base;
    hp->rope_magnitude = 1;
    hp->rope_window = (struct bl_angles_attr){
        .n_dims = hp->rope_dims, .base = hp->rope_window.base, .freq_scale = 1, .magnitude = 1};
    if (!bl_gguf_find(m->gguf, "deepseek4.rope.scaling.type") && !m->opt.rope.scaling) {
        bl_warn("%s: deepseek4.rope.scaling.type is missing; yarn by 16 from 65536 is meant",
                bl_path_tail(bl_gguf_path(m->gguf)));
        hp->rope_yarn = true;
        hp->rope_freq_scale = 1.0f / 16;
        hp->rope_ctx_orig = 65536;
        hp->yarn_fast = 32;
        hp->yarn_slow = 1;
    }
    x->angles = bl_model_angles_at(m, base);
    return BL_OK;
}

static void name_rows(struct layer *l, const struct bl_hparams *hp, const struct ds4 *x)
{
    l->main =
        (struct rows){BL_W_COMP_KV, BL_W_COMP_GATE, BL_W_COMP_APE, BL_W_COMP_NORM, hp->dk, -1, -1};
    l->index = (struct rows){BL_W_INDEX_COMP_KV,
                             BL_W_INDEX_COMP_GATE,
                             BL_W_INDEX_COMP_APE,
                             BL_W_INDEX_COMP_NORM,
                             x->index_head,
                             -1,
                             -1};
}

static enum bl_status hparams(struct bl_model *m)
{
    struct ds4 *x = bl_calloc(1, sizeof *x + m->hp.n_layer * sizeof x->layer[0]);
    if (!x)
        return bl_model_fail(m, BL_ENOMEM, "out of memory for %u layers", m->hp.n_layer);
    m->extra = x;
    BL_TRY(check_keys(m));
    BL_TRY(read_attention(m, x));
    BL_TRY(read_ratios(m, x));
    BL_TRY(read_streams(m, x));
    BL_TRY(read_experts(m, x));
    for (uint32_t i = 0; i < m->hp.n_layer; i++)
        name_rows(&x->layer[i], &m->hp, x);
    return read_rope(m, x);
}

/* ---- tensors ---- */

/* fn {all streams, m}, base {m}, scale: three roles one after the other. */
static enum bl_status want_mixing(struct bl_model *m, enum bl_role fn, int layer)
{
    uint32_t n = ds4_of(m)->streams.n, out = layer < 0 ? n : 2 * n + n * n;
    if ((uint64_t)n * m->hp.n_embd > UINT32_MAX)
        return bl_model_fail(m, BL_EFORMAT, "%u streams of %u elements are too many", n,
                             m->hp.n_embd);
    BL_TRY(bl_model_want(m, fn, layer, n * m->hp.n_embd, out, 0, 0));
    BL_TRY(bl_model_want(m, fn + 1, layer, out, 0, 0, 0));
    return bl_model_want(m, fn + 2, layer, layer < 0 ? 1 : 3, 0, 0, 0);
}

static uint32_t n_halves(uint32_t ratio)
{
    return ratio == OVERLAPPING ? 2 : 1;
}

static enum bl_status want_rows(struct bl_model *m, const struct rows *r, int i)
{
    uint32_t ratio = ds4_of(m)->layer[i].ratio, n = n_halves(ratio) * r->n;
    BL_TRY(bl_model_want(m, r->kv, i, m->hp.n_embd, n, 0, 0));
    BL_TRY(bl_model_want(m, r->gate, i, m->hp.n_embd, n, 0, 0));
    BL_TRY(bl_model_want(m, r->ape, i, n, ratio, 0, 0));
    return bl_model_want(m, r->norm, i, r->n, 0, 0, 0);
}

static enum bl_status want_groups(struct bl_model *m, int i)
{
    const struct ds4 *x = ds4_of(m);
    if (!x->layer[i].ratio)
        return BL_OK;
    BL_TRY(want_rows(m, &x->layer[i].main, i));
    if (x->layer[i].ratio != OVERLAPPING)
        return BL_OK;
    BL_TRY(bl_model_want(m, BL_W_INDEX_Q, i, x->q_rank, x->index_heads * x->index_head, 0, 0));
    BL_TRY(bl_model_want(m, BL_W_INDEX_PROJ, i, m->hp.n_embd, x->index_heads, 0, 0));
    return want_rows(m, &x->layer[i].index, i);
}

/* Every group of heads has a matrix of its own, one below the other in a tensor. */
static enum bl_status want_output(struct bl_model *m, int i)
{
    const struct ds4 *x = ds4_of(m);
    uint32_t all = x->out_groups * x->out_rank;
    const struct bl_piece p = {
        "attn_output_a", m->layer[i].n_head / x->out_groups * m->hp.dv, all, x->out_groups, 0,
        x->out_rank};
    BL_TRY(bl_model_want_piece(m, BL_W_ATTN_OUT_A, i, &p));
    return bl_model_want(m, BL_W_ATTN_OUT_B, i, all, m->hp.n_embd, 0, 0);
}

static enum bl_status want_attention(struct bl_model *m, int i)
{
    uint32_t embd = m->hp.n_embd, heads = m->layer[i].n_head, rank = ds4_of(m)->q_rank;
    BL_TRY(want_mixing(m, BL_W_HC_ATTN_FN, i));
    BL_TRY(bl_model_want(m, BL_W_ATTN_NORM, i, embd, 0, 0, 0));
    BL_TRY(bl_model_want(m, BL_W_ATTN_Q_A, i, embd, rank, 0, 0));
    BL_TRY(bl_model_want(m, BL_W_ATTN_Q_A_NORM, i, rank, 0, 0, 0));
    BL_TRY(bl_model_want(m, BL_W_ATTN_Q_B, i, rank, heads * m->hp.dk, 0, 0));
    BL_TRY(bl_model_want(m, BL_W_ATTN_KV_A, i, embd, m->hp.dk, 0, 0));
    BL_TRY(bl_model_want(m, BL_W_ATTN_KV_A_NORM, i, m->hp.dk, 0, 0, 0));
    BL_TRY(bl_model_want(m, BL_W_ATTN_SINKS, i, heads, 0, 0, 0));
    BL_TRY(want_groups(m, i));
    return want_output(m, i);
}

static enum bl_status want_experts(struct bl_model *m, int i)
{
    const struct ds4 *x = ds4_of(m);
    const struct bl_hparams *hp = &m->hp;
    BL_TRY(want_mixing(m, BL_W_HC_FFN_FN, i));
    BL_TRY(bl_model_want(m, BL_W_FFN_NORM, i, hp->n_embd, 0, 0, 0));
    BL_TRY(bl_model_want_experts(m, i, hp->n_ff_expert, 0));
    BL_TRY(bl_model_want_shared_experts(m, i, hp->n_ff_shared));
    return (uint32_t)i < x->n_hash ? bl_model_want(m, BL_W_ROUTER_IDS, i, hp->n_expert_used,
                                                   hp->n_vocab, 0, BL_WANT_EXPERT_IDS)
                                   : bl_model_want(m, BL_W_ROUTER_BIAS, i, hp->n_expert, 0, 0, 0);
}

static enum bl_status tensors(struct bl_model *m)
{
    BL_TRY(bl_model_want_shared(m));
    BL_TRY(want_mixing(m, BL_W_HC_OUT_FN, -1));
    for (int i = 0; i < (int)m->hp.n_layer; i++) {
        BL_TRY(want_attention(m, i));
        BL_TRY(want_experts(m, i));
    }
    return BL_OK;
}

/* ---- state ---- */

static enum bl_status keep(struct bl_model *m, struct bl_state_desc d, uint32_t layer,
                           const char *what, int32_t *index)
{
    d.layer = (int16_t)layer;
    snprintf(d.name, sizeof d.name, "blk.%u.%s", layer, what);
    return bl_model_keep(m, &d, d.row_elems, index);
}

/* The finished rows, and of the group in hand (and the one before, where they overlap) every
 * token's part. */
static enum bl_status keep_rows(struct bl_model *m, struct rows *r, uint32_t layer,
                                const char *what, const char *tail)
{
    uint32_t ratio = ds4_of(m)->layer[layer].ratio, halves = n_halves(ratio);
    const struct bl_state_desc rows = {
        .law = BL_PER_GROUP, .type = m->opt.type_k, .group = ratio, .row_elems = r->n};
    const struct bl_state_desc parts = {.law = BL_WINDOW,
                                        .tail = true,
                                        .type = BL_F32,
                                        .window = halves * ratio,
                                        .group = ratio,
                                        .slack_rows = 1 + m->opt.slack_tokens,
                                        .row_elems = 2 * halves * r->n};
    BL_TRY(keep(m, rows, layer, what, &r->state));
    return keep(m, parts, layer, tail, &r->tail);
}

static enum bl_status state(struct bl_model *m)
{
    struct ds4 *x = m->extra;
    const struct bl_state_desc tokens = {.law = BL_WINDOW,
                                         .type = m->opt.type_k,
                                         .window = x->window,
                                         .row_elems = m->hp.dk,
                                         .slack_rows = m->opt.slack_tokens};
    if (m->opt.type_v != m->opt.type_k)
        bl_warn("%s: values are read from the keys' cache; its type is %s",
                bl_path_tail(bl_gguf_path(m->gguf)), bl_dtypes[m->opt.type_k].name);
    for (uint32_t i = 0; i < m->hp.n_layer; i++) {
        struct layer *l = &x->layer[i];
        BL_TRY(keep(m, tokens, i, "kv", &m->layer[i].state_k));
        if (l->ratio)
            BL_TRY(keep_rows(m, &l->main, i, "groups", "groups_tail"));
        if (l->ratio == OVERLAPPING)
            BL_TRY(keep_rows(m, &l->index, i, "index", "index_tail"));
    }
    return BL_OK;
}

/* ---- graph ---- */

/* Angles of a layer kind: of tokens, back from them, and of the first tokens of groups. */
struct angles {
    bl_val tokens, back, groups;
};

static struct angles build_angles(const struct bl_model *m, struct bl_graph *g,
                                  const struct bl_shape *s, struct bl_angles_attr at,
                                  uint32_t ratio)
{
    struct angles a = {.tokens = bl_build_angles(m, g, s, &at)};
    at.group = ratio;
    if (ratio)
        a.groups = bl_build_angles(m, g, s, &at);
    at.group = 0;
    at.inverse = 1;
    a.back = bl_build_angles(m, g, s, &at);
    return a;
}

/* Rotates the tail of every head. */
static bl_val rope_tail(const struct bl_model *m, struct bl_graph *g, bl_val x, bl_val angles,
                        uint32_t head)
{
    return bl_graph_rope_at(g, x, angles, BL_ROPE_NORM, head, head - m->hp.rope_dims);
}

/* Rows as the model saw them in training: all but the rotated tail in eight bits. */
static bl_val round_row(const struct bl_model *m, struct bl_graph *g, bl_val x)
{
    const struct bl_round_attr at = {
        .kind = BL_ROUND_E4M3, .run = m->hp.dk, .n = m->hp.dk - m->hp.rope_dims, .group = 64};
    return m->opt.round_kv && at.n ? bl_graph_round(g, x, &at) : x;
}

/* Of the index, queries and rows: turned so that no element stands out, in four bits. */
static bl_val round_index(const struct bl_model *m, struct bl_graph *g, bl_val x)
{
    const uint32_t n = ds4_of(m)->index_head;
    const struct bl_round_attr at = {.kind = BL_ROUND_E2M1, .run = n, .n = n, .group = 32};
    return m->opt.round_index ? bl_graph_round(g, bl_graph_hadamard(g, x, n), &at) : x;
}

static bl_val build_mixing(const struct bl_model *m, struct bl_graph *g,
                           const struct bl_linear *role, bl_val streams)
{
    bl_val z = bl_build_linear(m, g, role[0], streams);
    return bl_graph_stream_weights(g, streams, z, bl_build_weight(m, g, role[1].w),
                                   bl_build_weight(m, g, role[2].w), &ds4_of(m)->streams);
}

/* What the products of a layer's input are: placed side by side, threads of a CPU meet once behind
 * them. In the order of the names; 0 where a layer has none. */
struct products {
    bl_val latent, kv;
    struct pair {
        bl_val kv, gate;
    } main, index;
    bl_val weights; /* of index heads */
};

static struct pair build_pair(const struct bl_model *m, struct bl_graph *g, int layer,
                              const struct rows *r, bl_val h)
{
    const struct bl_linear *role = m->layer[layer].role;
    struct pair p = {.kv = bl_build_linear(m, g, role[r->kv], h)};
    p.gate = bl_build_linear(m, g, role[r->gate], h);
    return p;
}

/* Whether there may be more rows than are chosen. */
static bool is_choice(const struct bl_model *m, const struct bl_shape *s, int layer)
{
    const struct layer *x = &ds4_of(m)->layer[layer];
    return x->ratio == OVERLAPPING &&
           bl_state_rows(&m->state[x->index.state], s) > ds4_of(m)->top_k;
}

static struct products build_products(const struct bl_model *m, struct bl_graph *g,
                                      const struct bl_shape *s, int layer, bl_val h)
{
    const struct bl_linear *role = m->layer[layer].role;
    const struct layer *x = &ds4_of(m)->layer[layer];
    struct products p = {.latent = bl_build_linear(m, g, role[BL_W_ATTN_Q_A], h)};
    p.kv = bl_build_linear(m, g, role[BL_W_ATTN_KV_A], h);
    if (x->ratio)
        p.main = build_pair(m, g, layer, &x->main, h);
    if (x->ratio == OVERLAPPING)
        p.index = build_pair(m, g, layer, &x->index, h);
    if (is_choice(m, s, layer))
        p.weights = bl_build_linear(m, g, role[BL_W_INDEX_PROJ], h);
    return p;
}

static bl_val compress(const struct bl_model *m, struct bl_graph *g, const struct bl_shape *s,
                       int layer, const struct rows *r, struct pair p)
{
    uint32_t ratio = ds4_of(m)->layer[layer].ratio;
    const struct bl_compress_attr at = {.group = ratio, .overlap = ratio == OVERLAPPING};
    bl_val ape = bl_build_weight(m, g, m->layer[layer].role[r->ape].w);
    return bl_graph_compress(g, p.kv, p.gate, ape, bl_build_state(m, g, s, r->tail), &at);
}

static bl_val keep_row(const struct bl_model *m, struct bl_graph *g, const struct bl_shape *s,
                       int layer, const struct rows *r, bl_val row, bl_val angles)
{
    uint32_t ratio = ds4_of(m)->layer[layer].ratio;
    row = bl_build_norm(m, g, m->layer[layer].role[r->norm], row);
    row = rope_tail(m, g, row, angles, r->n);
    row = r->kv == BL_W_COMP_KV ? round_row(m, g, row) : round_index(m, g, row);
    return bl_graph_kv_store_groups(g, row, bl_build_state(m, g, s, r->state), ratio);
}

/* Which rows to attend to. Scores are compared only, so their scale is left out. */
static bl_val choose(const struct bl_model *m, struct bl_graph *g, bl_val q, bl_val weights,
                     bl_val rows, const struct angles *angles)
{
    const struct ds4 *x = ds4_of(m);
    const struct bl_choose_attr at = {
        .n_head = x->index_heads,
        .dk = x->index_head,
        .n = x->top_k,
        .group = OVERLAPPING,
    };
    q = round_index(m, g, rope_tail(m, g, q, angles->tokens, x->index_head));
    return bl_graph_choose(g, q, weights, rows, &at);
}

/* What a token attends to. Index rows are made even where all rows are attended to: a sequence can
 * be continued with a larger context. Products and sums over elements come first, then what a
 * thread does with whole tokens. */
static bl_val attend(const struct bl_model *m, struct bl_graph *g, const struct bl_shape *s,
                     int layer, const struct products *p, const struct angles *angles)
{
    const struct bl_layer *l = &m->layer[layer];
    const struct layer *x = &ds4_of(m)->layer[layer];
    const struct bl_groups_attr at = {.at = {.n_head = l->n_head,
                                             .n_head_kv = 1,
                                             .dk = m->hp.dk,
                                             .dv = m->hp.dv,
                                             .window = l->window,
                                             .scale = m->hp.attn_scale},
                                      .group = x->ratio};
    bl_val main = 0, index = 0, index_q = 0;
    bl_val latent = bl_build_norm(m, g, l->role[BL_W_ATTN_Q_A_NORM], p->latent);
    bl_val kv = bl_build_norm(m, g, l->role[BL_W_ATTN_KV_A_NORM], p->kv);
    if (x->ratio)
        main = compress(m, g, s, layer, &x->main, p->main);
    if (x->ratio == OVERLAPPING)
        index = compress(m, g, s, layer, &x->index, p->index);
    struct bl_attention_vals v = {.q = bl_build_linear(m, g, l->role[BL_W_ATTN_Q_B], latent)};
    if (p->weights)
        index_q = bl_build_linear(m, g, l->role[BL_W_INDEX_Q], latent);
    v.q = bl_graph_rms_norm_runs(g, v.q, m->hp.dk, m->hp.eps);
    v.q = rope_tail(m, g, v.q, angles->tokens, m->hp.dk);
    kv = round_row(m, g, rope_tail(m, g, kv, angles->tokens, m->hp.dk));
    v.k = v.v = bl_graph_kv_store(g, kv, bl_build_state(m, g, s, l->state_k));
    v.sinks = bl_build_weight(m, g, l->role[BL_W_ATTN_SINKS].w);
    if (!x->ratio)
        return bl_graph_attention(g, v.q, v.k, v.v, v.sinks, &at.at);
    v.rows = keep_row(m, g, s, layer, &x->main, main, angles->groups);
    if (index)
        index = keep_row(m, g, s, layer, &x->index, index, angles->groups);
    if (p->weights)
        v.chosen = choose(m, g, index_q, p->weights, index, angles);
    return bl_graph_attention_groups(g, &v, &at);
}

static bl_val build_attention(const struct bl_model *m, struct bl_graph *g,
                              const struct bl_shape *s, int layer, bl_val h,
                              const struct angles *angles)
{
    const struct bl_layer *l = &m->layer[layer];
    const struct bl_linear *out = &l->role[BL_W_ATTN_OUT_A];
    const struct bl_heads_attr at = {.head_rows = ds4_of(m)->out_rank};
    const struct products p = build_products(m, g, s, layer, h);
    bl_val o = attend(m, g, s, layer, &p, angles);
    o = rope_tail(m, g, o, angles->back, m->hp.dv);
    o = bl_graph_matmul_heads(g, bl_build_weight(m, g, out->w), o,
                              bl_build_weight(m, g, out->scale), &at);
    return bl_build_linear(m, g, l->role[BL_W_ATTN_OUT_B], o);
}

/* Around each half of a layer: what it reads of the streams, and what becomes of them. */
static bl_val build_layer(const struct bl_model *m, struct bl_graph *g, const struct bl_shape *s,
                          int layer, bl_val streams, const struct angles *angles)
{
    const struct bl_layer *l = &m->layer[layer];
    const struct layer *x = &ds4_of(m)->layer[layer];
    uint32_t n = ds4_of(m)->streams.n;
    bl_graph_at(g, BL_PART_ATTN, layer);
    bl_val w = build_mixing(m, g, &l->role[BL_W_HC_ATTN_FN], streams);
    bl_val h = bl_graph_stream_read(g, streams, w, n);
    h = bl_build_norm(m, g, l->role[BL_W_ATTN_NORM], h);
    h = build_attention(m, g, s, layer, h, angles);
    streams = bl_graph_stream_write(g, streams, h, w);
    bl_graph_at(g, BL_PART_FFN, layer);
    w = build_mixing(m, g, &l->role[BL_W_HC_FFN_FN], streams);
    h = bl_graph_stream_read(g, streams, w, n);
    h = bl_build_norm(m, g, l->role[BL_W_FFN_NORM], h);
    h = bl_build_moe(m, g, layer, h, &x->glu, &x->shared_glu);
    return bl_graph_stream_write(g, streams, h, w);
}

static void build_head(const struct bl_model *m, struct bl_graph *g, const struct bl_shape *s,
                       bl_val streams)
{
    if (!s->n_out)
        return;
    bl_graph_at(g, BL_PART_HEAD, -1);
    streams = bl_graph_gather_rows(g, streams, bl_graph_param(g, BL_PARAM_OUT_ROWS, s->n_out));
    bl_val w = build_mixing(m, g, &m->role[BL_W_HC_OUT_FN], streams);
    bl_val x = bl_graph_stream_read(g, streams, w, ds4_of(m)->streams.n);
    x = bl_build_norm(m, g, m->role[BL_W_OUTPUT_NORM], x);
    g->result = bl_build_linear(m, g, m->role[BL_W_OUTPUT], x);
}

static enum bl_status build(const struct bl_model *m, const struct bl_shape *s, struct bl_graph *g)
{
    const struct ds4 *x = ds4_of(m);
    struct angles by_ratio[PLAIN + 1] = {0};
    bl_val streams = bl_graph_repeat(g, bl_build_embed(m, g, s, 1), x->streams.n);
    for (int i = 0; i < (int)m->hp.n_layer; i++) {
        const uint32_t ratio = x->layer[i].ratio;
        struct angles *angles = &by_ratio[ratio];
        if (!angles->tokens)
            *angles = build_angles(m, g, s, ratio ? x->angles : m->hp.rope_window, ratio);
        streams = build_layer(m, g, s, i, streams, angles);
    }
    build_head(m, g, s, streams);
    return BL_OK;
}

const struct bl_family bl_family_deepseek4 = {
    .arch = "deepseek4",
    .rounds = true,
    .hparams = hparams,
    .tensors = tensors,
    .state = state,
    .build = build,
};

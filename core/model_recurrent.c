/* SPDX-License-Identifier: MIT */
/* Layers with recurrent state: the gated delta net that stands in the place of attention in hybrid
 * models. Its state is the tail of the convolution's input and one matrix for each head. */
#include "model.h"

#include <math.h>
#include <stdio.h>

enum { MAX_LAYERS = 1024, MAX_HEADS = 4096, MAX_TAPS = 16, MAX_STATE = 1024, MAX_INNER = 1 << 20 };

/* Rows of the convolution: q of all key heads, k of all key heads, v of all value heads. */
static uint32_t channels(const struct bl_delta_hparams *d)
{
    return 2 * d->n_head_k * d->dk + d->n_head_v * d->dv;
}

/* ---- keys ---- */

static enum bl_status read_sizes(struct bl_model *m)
{
    struct bl_delta_hparams *d = &m->hp.delta;
    uint32_t inner = 0;
    BL_TRY(bl_hp_u32(m, "ssm.conv_kernel", true, 2, MAX_TAPS, &d->taps));
    BL_TRY(bl_hp_u32(m, "ssm.state_size", true, 1, MAX_STATE, &d->dk));
    BL_TRY(bl_hp_u32(m, "ssm.group_count", true, 1, MAX_HEADS, &d->n_head_k));
    BL_TRY(bl_hp_u32(m, "ssm.time_step_rank", true, 1, MAX_HEADS, &d->n_head_v));
    BL_TRY(bl_hp_u32(m, "ssm.inner_size", true, 1, MAX_INNER, &inner));
    d->dv = inner / d->n_head_v;
    if (inner % d->n_head_v || d->n_head_v % d->n_head_k)
        return bl_model_fail(m, BL_EFORMAT,
                             "%s.ssm.inner_size, time_step_rank and group_count are %u, %u and %u;"
                             " each must be a multiple of the next",
                             m->family->arch, inner, d->n_head_v, d->n_head_k);
    return BL_OK;
}

static enum bl_status read_layers(struct bl_model *m)
{
    uint32_t recurrent[MAX_LAYERS], interval = 4;
    bool listed = false;
    BL_TRY(bl_hp_u32(m, "full_attention_interval", false, 1, MAX_LAYERS, &interval));
    for (uint32_t i = 0; i < m->hp.n_layer; i++)
        recurrent[i] = (i + 1) % interval != 0;
    BL_TRY(bl_hp_u32_per_layer(m, "attention.recurrent_layers", false, 0, 1, recurrent, &listed));
    for (uint32_t i = 0; i < m->hp.n_layer; i++)
        m->layer[i].recurrent = recurrent[i];
    return BL_OK;
}

enum bl_status bl_hp_hybrid(struct bl_model *m, bool tiled)
{
    m->hp.delta.tiled = tiled;
    m->hp.attn_gated = true;
    if (m->hp.dk != m->hp.dv)
        return bl_model_fail(m, BL_EFORMAT,
                             "%s.attention.key_length and value_length are %u and %u; must be"
                             " equal where queries have gates",
                             m->family->arch, m->hp.dk, m->hp.dv);
    BL_TRY(read_sizes(m));
    return read_layers(m);
}

/* ---- tensors ---- */

/* beta and alpha of all heads, or, in the first files of the grouped kind, those of each key head
 * together. */
static enum bl_status want_gates(struct bl_model *m, int layer)
{
    const struct bl_delta_hparams *d = &m->hp.delta;
    const struct bl_linear *fused = &m->layer[layer].role[BL_W_SSM_BA];
    uint32_t embd = m->hp.n_embd;
    if (!d->tiled)
        BL_TRY(bl_model_want(m, BL_W_SSM_BA, layer, embd, 2 * d->n_head_v, 0, BL_WANT_OPTIONAL));
    if (fused->w >= 0)
        return BL_OK;
    BL_TRY(bl_model_want(m, BL_W_SSM_BETA, layer, embd, d->n_head_v, 0, 0));
    return bl_model_want(m, BL_W_SSM_ALPHA, layer, embd, d->n_head_v, 0, 0);
}

/* Likewise q, k, v and z. */
static enum bl_status want_inputs(struct bl_model *m, int layer)
{
    const struct bl_delta_hparams *d = &m->hp.delta;
    const struct bl_linear *fused = &m->layer[layer].role[BL_W_SSM_IN];
    uint32_t embd = m->hp.n_embd, inner = d->n_head_v * d->dv;
    if (!d->tiled)
        BL_TRY(
            bl_model_want(m, BL_W_SSM_IN, layer, embd, channels(d) + inner, 0, BL_WANT_OPTIONAL));
    if (fused->w >= 0)
        return BL_OK;
    BL_TRY(bl_model_want(m, BL_W_SSM_QKV, layer, embd, channels(d), 0, 0));
    return bl_model_want(m, BL_W_SSM_GATE, layer, embd, inner, 0, 0);
}

static enum bl_status want_delta_net(struct bl_model *m, int layer)
{
    const struct bl_delta_hparams *d = &m->hp.delta;
    uint32_t embd = m->hp.n_embd, inner = d->n_head_v * d->dv;
    BL_TRY(bl_model_want(m, BL_W_ATTN_NORM, layer, embd, 0, 0, 0));
    BL_TRY(want_inputs(m, layer));
    BL_TRY(want_gates(m, layer));
    BL_TRY(bl_model_want(m, BL_W_SSM_CONV, layer, d->taps, channels(d), 0, BL_WANT_F32));
    BL_TRY(bl_model_want(m, BL_W_SSM_DT, layer, d->n_head_v, 0, 0, 0));
    BL_TRY(bl_model_want(m, BL_W_SSM_A, layer, d->n_head_v, 0, 0, 0));
    BL_TRY(bl_model_want(m, BL_W_SSM_NORM, layer, d->dv, 0, 0, 0));
    return bl_model_want(m, BL_W_SSM_OUT, layer, inner, embd, 0, 0);
}

enum bl_status bl_model_want_hybrid(struct bl_model *m, int layer)
{
    BL_TRY(bl_model_want_norm(m, BL_W_FFN_NORM, "post_attention_norm", layer, m->hp.n_embd));
    if (m->layer[layer].recurrent)
        return want_delta_net(m, layer);
    BL_TRY(bl_model_want_attention(m, layer, 0));
    BL_TRY(bl_model_want(m, BL_W_ATTN_Q_NORM, layer, m->hp.dk, 0, 0, 0));
    return bl_model_want(m, BL_W_ATTN_K_NORM, layer, m->hp.dk, 0, 0, 0);
}

/* ---- state ---- */

static enum bl_status keep_delta_net(struct bl_model *m, int layer)
{
    const struct bl_delta_hparams *d = &m->hp.delta;
    struct bl_layer *l = &m->layer[layer];
    struct bl_state_desc tail = {.layer = (int16_t)layer,
                                 .law = BL_WINDOW,
                                 .type = BL_F32,
                                 .window = d->taps,
                                 .row_elems = channels(d),
                                 .slack_rows = m->opt.slack_tokens,
                                 .tail = true};
    struct bl_state_desc heads = {.layer = (int16_t)layer,
                                  .law = BL_FIXED,
                                  .type = BL_F32,
                                  .row_elems = d->n_head_v * d->dv * d->dk,
                                  .slack_rows = m->opt.slack_tokens};
    snprintf(tail.name, sizeof tail.name, "blk.%d.conv", layer);
    snprintf(heads.name, sizeof heads.name, "blk.%d.ssm", layer);
    BL_TRY(bl_model_keep(m, &tail, tail.row_elems, &l->state_k));
    return bl_model_keep(m, &heads, heads.row_elems, &l->state_v);
}

enum bl_status bl_model_keep_hybrid(struct bl_model *m)
{
    for (int i = 0; i < (int)m->hp.n_layer; i++)
        BL_TRY(m->layer[i].recurrent ? keep_delta_net(m, i) : bl_model_keep_kv(m, i));
    return BL_OK;
}

/* ---- graph ---- */

struct inputs {
    bl_val qkv, z;
};

/* Groups of the fused form: q and k of a key head, then v and z of its value heads. */
static struct inputs regroup(const struct bl_delta_hparams *d, struct bl_graph *g, bl_val u)
{
    uint32_t n = d->n_head_v / d->n_head_k * d->dv, run = 2 * d->dk + 2 * n;
    bl_val q = bl_graph_slice(g, u, run, 0, d->dk);
    bl_val k = bl_graph_slice(g, u, run, d->dk, d->dk);
    bl_val v = bl_graph_slice(g, u, run, 2 * d->dk, n);
    bl_val z = bl_graph_slice(g, u, run, 2 * d->dk + n, n);
    return (struct inputs){bl_graph_concat(g, q, k, v), z};
}

static struct inputs build_inputs(const struct bl_model *m, struct bl_graph *g,
                                  const struct bl_layer *l, bl_val h)
{
    const struct bl_linear *fused = &l->role[BL_W_SSM_IN];
    if (fused->w >= 0)
        return regroup(&m->hp.delta, g, bl_build_linear(m, g, *fused, h));
    bl_val qkv = bl_build_linear(m, g, l->role[BL_W_SSM_QKV], h);
    return (struct inputs){qkv, bl_build_linear(m, g, l->role[BL_W_SSM_GATE], h)};
}

static void build_gates(const struct bl_model *m, struct bl_graph *g, const struct bl_layer *l,
                        bl_val h, struct bl_delta_vals *in)
{
    const struct bl_linear *fused = &l->role[BL_W_SSM_BA];
    if (fused->w >= 0) {
        uint32_t n = m->hp.delta.n_head_v / m->hp.delta.n_head_k; /* of one key head */
        bl_val u = bl_build_linear(m, g, *fused, h);
        in->beta = bl_graph_slice(g, u, 2 * n, 0, n);
        in->alpha = bl_graph_slice(g, u, 2 * n, n, n);
        return;
    }
    in->beta = bl_build_linear(m, g, l->role[BL_W_SSM_BETA], h);
    in->alpha = bl_build_linear(m, g, l->role[BL_W_SSM_ALPHA], h);
}

bl_val bl_build_delta_net(const struct bl_model *m, struct bl_graph *g, const struct bl_shape *s,
                          int layer, bl_val h)
{
    static const struct bl_glu_attr silu = {.kind = BL_GLU_SILU};
    const struct bl_layer *l = &m->layer[layer];
    const struct bl_delta_hparams *d = &m->hp.delta;
    const struct bl_delta_attr at = {
        .n_head_k = d->n_head_k,
        .n_head_v = d->n_head_v,
        .dk = d->dk,
        .dv = d->dv,
        .tiled = d->tiled,
        .eps = m->hp.eps,
        .scale = 1 / sqrtf((float)d->dk),
    };
    struct bl_delta_vals in;
    bl_graph_at(g, BL_PART_ATTN, layer);
    struct inputs x = build_inputs(m, g, l, h);
    build_gates(m, g, l, h, &in);
    in.qkv = bl_graph_short_conv(g, x.qkv, bl_build_weight(m, g, l->role[BL_W_SSM_CONV].w),
                                 bl_build_state(m, g, s, l->state_k), true);
    in.a = bl_build_weight(m, g, l->role[BL_W_SSM_A].w);
    in.dt = bl_build_weight(m, g, l->role[BL_W_SSM_DT].w);
    in.state = bl_build_state(m, g, s, l->state_v);
    bl_val o = bl_graph_delta_rule(g, &in, &at);
    o = bl_build_norm(m, g, l->role[BL_W_SSM_NORM], o);
    return bl_build_linear(m, g, l->role[BL_W_SSM_OUT], bl_graph_glu(g, x.z, o, &silu));
}

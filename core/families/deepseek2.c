/* SPDX-License-Identifier: MIT */
/* deepseek2: DeepSeek-V2, V3, R1 and their Lite sizes, Kimi-K2, GLM-4.7-Flash. Keys and values of
 * all heads come from one latent vector per token, which is all that is cached, with a rope key
 * that the heads share. Attention runs on the latents: queries are taken into their space, results
 * out of it. Older files keep both maps of the latent in one tensor. */
#include "model.h"

#include "log.h"
#include "mem.h"

#include <math.h>
#include <stdio.h>

enum { MOST_RANK = 1 << 16, MOST_HEAD = 4096 };

struct latent {
    uint32_t rank, q_rank; /* of the latent; of the queries, 0 = they are whole */
    uint32_t dn, rope, dv; /* elements of a head: plain, rotated, of its value */
    float temper;          /* queries grow by this with every temper_every tokens, 0 = not */
    uint32_t temper_every;
};

static const struct latent *latent_of(const struct bl_model *m)
{
    return m->extra;
}

/* ---- keys ---- */

/* Files without the keys of the expanded heads have those in the place of the cached ones. */
static enum bl_status read_sizes(struct bl_model *m, struct latent *x)
{
    struct bl_hparams *hp = &m->hp;
    uint32_t dk = hp->dk;
    x->dv = hp->dv;
    x->rope = hp->rope_dims;
    BL_TRY(bl_hp_u32(m, "attention.kv_lora_rank", true, 1, MOST_RANK, &x->rank));
    BL_TRY(bl_hp_u32(m, "attention.q_lora_rank", false, 0, MOST_RANK, &x->q_rank));
    BL_TRY(bl_hp_u32(m, "attention.key_length_mla", false, 1, MOST_HEAD, &dk));
    BL_TRY(bl_hp_u32(m, "attention.value_length_mla", false, 1, MOST_HEAD, &x->dv));
    if (dk <= x->rope)
        return bl_model_fail(m, BL_EFORMAT,
                             "the key length of a head is %u; must be above "
                             "deepseek2.rope.dimension_count, %u",
                             dk, x->rope);
    x->dn = dk - x->rope;
    hp->dk = x->rank + x->rope;
    hp->dv = x->rank;
    for (uint32_t i = 0; i < hp->n_layer; i++)
        m->layer[i].n_head_kv = 1;
    return BL_OK;
}

/* The factor by which stretched rope grows the scores is part of their scale; rope itself keeps
 * lengths. */
static enum bl_status read_scale(struct bl_model *m, const struct latent *x)
{
    struct bl_hparams *hp = &m->hp;
    float per_log = -1, grown = 1;
    hp->attn_scale = 1 / sqrtf((float)(x->dn + x->rope));
    BL_TRY(bl_hp_f32(m, "rope.scaling.yarn_log_multiplier", false, 0, 100, &per_log));
    if (!hp->rope_yarn)
        return BL_OK;
    if (per_log < 0) {
        bl_warn("%s: deepseek2.rope.scaling.yarn_log_multiplier is missing; scores are scaled as "
                "if it had never been trained with one",
                bl_path_tail(bl_gguf_path(m->gguf)));
        return BL_OK;
    }
    if (hp->rope_freq_scale < 1)
        grown -= per_log * logf(hp->rope_freq_scale);
    hp->attn_scale *= grown * grown;
    hp->rope_magnitude = 1;
    return BL_OK;
}

static enum bl_status read_temper(struct bl_model *m, struct latent *x)
{
    BL_TRY(bl_hp_f32(m, "attention.temperature_scale", false, 0, 1e3f, &x->temper));
    return bl_hp_u32(m, "attention.temperature_length", x->temper > 0, x->temper > 0,
                     BL_MAX_CONTEXT, &x->temper_every);
}

/* V2 files say nothing of how experts are scored and mean softmax; those with a selection bias that
 * say nothing mean a sigmoid. */
static enum bl_gating usual_gating(const struct bl_model *m)
{
    int last = (int)m->hp.n_layer - 1;
    return bl_model_has(m, last, "exp_probs_b.bias") || bl_model_has(m, last, "exp_probs_b.weight")
               ? BL_GATE_SIGMOID
               : BL_GATE_SOFTMAX;
}

static enum bl_status hparams(struct bl_model *m)
{
    uint32_t n_shared = 0;
    struct latent *x = m->extra = bl_calloc(1, sizeof *x);
    if (!x)
        return bl_model_fail(m, BL_ENOMEM, "out of memory");
    BL_TRY(read_sizes(m, x));
    BL_TRY(read_scale(m, x));
    BL_TRY(read_temper(m, x));
    BL_TRY(bl_hp_u32(m, "expert_shared_count", true, 1, UINT32_MAX, &n_shared));
    return bl_hp_routed_experts(m, usual_gating(m));
}

/* ---- tensors ---- */

static enum bl_status want_queries(struct bl_model *m, int i)
{
    const struct latent *x = latent_of(m);
    uint32_t embd = m->hp.n_embd, n = m->layer[i].n_head * (x->dn + x->rope);
    if (!x->q_rank || !bl_model_has(m, i, "attn_q_a.weight"))
        return bl_model_want(m, BL_W_ATTN_Q, i, embd, n, 0, 0);
    BL_TRY(bl_model_want(m, BL_W_ATTN_Q_A, i, embd, x->q_rank, 0, 0));
    BL_TRY(bl_model_want(m, BL_W_ATTN_Q_A_NORM, i, x->q_rank, 0, 0, 0));
    return bl_model_want(m, BL_W_ATTN_Q_B, i, x->q_rank, n, 0, 0);
}

static enum bl_status want_latent(struct bl_model *m, int i)
{
    const struct latent *x = latent_of(m);
    struct bl_piece p = {"attn_kv_a_mqa", m->hp.n_embd, x->rank + x->rope, 1, 0, x->rank};
    BL_TRY(bl_model_want_piece(m, BL_W_ATTN_KV_A, i, &p));
    p.first = x->rank;
    p.n = x->rope;
    BL_TRY(bl_model_want_piece(m, BL_W_ATTN_KV_ROPE, i, &p));
    return bl_model_want(m, BL_W_ATTN_KV_A_NORM, i, x->rank, 0, 0, 0);
}

/* From latent to heads: matrices of their own, the keys' transposed; or for every head first the
 * rows of its keys, then those of its values, in one tensor. */
static enum bl_status want_heads(struct bl_model *m, int i)
{
    const struct latent *x = latent_of(m);
    uint32_t heads = m->layer[i].n_head;
    struct bl_piece p = {"attn_kv_b", x->rank, heads * (x->dn + x->dv), heads, 0, x->dn};
    if (!bl_model_has(m, i, "attn_kv_b.weight")) {
        BL_TRY(bl_model_want(m, BL_W_ATTN_K_B, i, x->dn, x->rank, heads, 0));
        return bl_model_want(m, BL_W_ATTN_V_B, i, x->rank, x->dv, heads, 0);
    }
    BL_TRY(bl_model_want_piece(m, BL_W_ATTN_K_B, i, &p));
    p.first = x->dn;
    p.n = x->dv;
    return bl_model_want_piece(m, BL_W_ATTN_V_B, i, &p);
}

static enum bl_status tensors(struct bl_model *m)
{
    uint32_t embd = m->hp.n_embd;
    BL_TRY(bl_model_want_shared(m));
    for (int i = 0; i < (int)m->hp.n_layer; i++) {
        BL_TRY(bl_model_want(m, BL_W_ATTN_NORM, i, embd, 0, 0, 0));
        BL_TRY(want_queries(m, i));
        BL_TRY(want_latent(m, i));
        BL_TRY(want_heads(m, i));
        BL_TRY(
            bl_model_want(m, BL_W_ATTN_OUT, i, m->layer[i].n_head * latent_of(m)->dv, embd, 0, 0));
        BL_TRY(bl_model_want(m, BL_W_FFN_NORM, i, embd, 0, 0, 0));
        BL_TRY(bl_model_want_moe_or_ffn(m, i, BL_WANT_OPTIONAL));
    }
    return BL_OK;
}

/* ---- state ---- */

static enum bl_status state(struct bl_model *m)
{
    const struct latent *x = latent_of(m);
    if (m->opt.type_v != m->opt.type_k)
        bl_warn("%s: values are read from the keys' cache; its type is %s",
                bl_path_tail(bl_gguf_path(m->gguf)), bl_dtypes[m->opt.type_k].name);
    for (uint32_t i = 0; i < m->hp.n_layer; i++) {
        struct bl_state_desc d = {.layer = (int16_t)i,
                                  .law = BL_PER_TOKEN,
                                  .type = m->opt.type_k,
                                  .row_elems = x->rank + x->rope};
        snprintf(d.name, sizeof d.name, "blk.%u.latent", i);
        BL_TRY(bl_model_keep(m, &d, x->rank, &m->layer[i].state_k));
    }
    return BL_OK;
}

/* ---- graph ---- */

/* Matrices {in, n, heads}; transposed when it is n that goes in. */
static bl_val build_heads(const struct bl_model *m, struct bl_graph *g, struct bl_linear l,
                          uint32_t in, bl_val x)
{
    const struct bl_weight *w = &m->weight[l.w];
    const struct bl_heads_attr at = {.head_rows = w->tensor_rows, .transposed = w->ne[0] != in};
    return bl_graph_matmul_heads(g, bl_build_weight(m, g, l.w), x, bl_build_weight(m, g, l.scale),
                                 &at);
}

static bl_val build_queries(const struct bl_model *m, struct bl_graph *g, const struct bl_layer *l,
                            bl_val h)
{
    if (l->role[BL_W_ATTN_Q_A].w < 0)
        return bl_build_linear(m, g, l->role[BL_W_ATTN_Q], h);
    h = bl_build_linear(m, g, l->role[BL_W_ATTN_Q_A], h);
    h = bl_build_norm(m, g, l->role[BL_W_ATTN_Q_A_NORM], h);
    return bl_build_linear(m, g, l->role[BL_W_ATTN_Q_B], h);
}

/* Every head's query as the cached rows are: in the latents' space, then its rotated part. */
static bl_val absorb(const struct bl_model *m, struct bl_graph *g, const struct bl_shape *s,
                     const struct bl_layer *l, bl_val q, bl_val angles)
{
    const struct latent *x = latent_of(m);
    uint32_t dk = x->dn + x->rope;
    bl_val plain = bl_graph_slice(g, q, dk, 0, x->dn);
    bl_val rotated = bl_graph_slice(g, q, dk, x->dn, x->rope);
    plain = build_heads(m, g, l->role[BL_W_ATTN_K_B], x->dn, plain);
    rotated = bl_graph_rope(g, rotated, angles, BL_ROPE_NORM, x->rope);
    q = bl_graph_concat_runs(g, plain, rotated, 0, l->n_head);
    if (x->temper > 0)
        q = bl_graph_temper(g, q, bl_graph_param(g, BL_PARAM_POSITIONS, s->n_tok),
                            &(struct bl_temper_attr){x->temper, x->temper_every});
    return q;
}

static bl_val build_attention(const struct bl_model *m, struct bl_graph *g,
                              const struct bl_shape *s, int layer, bl_val h, bl_val angles)
{
    const struct latent *x = latent_of(m);
    const struct bl_layer *l = &m->layer[layer];
    const struct bl_attention_attr at = {.n_head = l->n_head,
                                         .n_head_kv = 1,
                                         .dk = x->rank + x->rope,
                                         .dv = x->rank,
                                         .scale = m->hp.attn_scale};
    bl_val q = absorb(m, g, s, l, build_queries(m, g, l, h), angles);
    bl_val latent = bl_build_linear(m, g, l->role[BL_W_ATTN_KV_A], h);
    bl_val key = bl_build_linear(m, g, l->role[BL_W_ATTN_KV_ROPE], h);
    latent = bl_build_norm(m, g, l->role[BL_W_ATTN_KV_A_NORM], latent);
    key = bl_graph_rope(g, key, angles, BL_ROPE_NORM, x->rope);
    bl_val rows = bl_graph_kv_store(g, bl_graph_concat(g, latent, key, 0),
                                    bl_build_state(m, g, s, l->state_k));
    bl_val o = bl_graph_attention(g, q, rows, rows, 0, &at);
    o = build_heads(m, g, l->role[BL_W_ATTN_V_B], x->rank, o);
    return bl_build_linear(m, g, l->role[BL_W_ATTN_OUT], o);
}

static enum bl_status build(const struct bl_model *m, const struct bl_shape *s, struct bl_graph *g)
{
    const struct bl_angles_attr at = bl_model_angles(m);
    bl_val x = bl_build_embed(m, g, s, 1), angles = bl_build_angles(m, g, s, &at);
    for (int i = 0; i < (int)m->hp.n_layer; i++) {
        const struct bl_layer *l = &m->layer[i];
        bl_graph_at(g, BL_PART_ATTN, i);
        bl_val h = bl_build_norm(m, g, l->role[BL_W_ATTN_NORM], x);
        h = build_attention(m, g, s, i, h, angles);
        bl_graph_at(g, BL_PART_FFN, i);
        x = bl_graph_add(g, x, h);
        h = bl_build_norm(m, g, l->role[BL_W_FFN_NORM], x);
        h = l->moe ? bl_build_moe(m, g, i, h, &m->hp.glu, &m->hp.glu)
                   : bl_build_ffn(m, g, i, h, &m->hp.glu);
        x = bl_graph_add(g, x, h);
    }
    bl_build_head(m, g, s, x);
    return BL_OK;
}

const struct bl_family bl_family_deepseek2 = {
    .arch = "deepseek2",
    .hparams = hparams,
    .tensors = tensors,
    .state = state,
    .build = build,
};

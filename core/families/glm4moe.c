/* SPDX-License-Identifier: MIT */
/* glm4moe: GLM-4.5, 4.5-Air and 4.6, Solar-Open: some dense layers first, then experts with a
 * shared one; rope on half of each head; the largest also normalises heads. Blocks for drafting
 * follow the last layer. */
#include "model.h"

static enum bl_status hparams(struct bl_model *m)
{
    return bl_hp_routed_experts(m, BL_GATE_SIGMOID);
}

/* The largest size only: both or none. */
static enum bl_status want_head_norms(struct bl_model *m, int layer)
{
    BL_TRY(bl_model_want(m, BL_W_ATTN_Q_NORM, layer, m->hp.dk, 0, 0, BL_WANT_OPTIONAL));
    unsigned flags = m->layer[layer].role[BL_W_ATTN_Q_NORM].w < 0 ? (unsigned)BL_WANT_OPTIONAL : 0;
    return bl_model_want(m, BL_W_ATTN_K_NORM, layer, m->hp.dk, 0, 0, flags);
}

static enum bl_status tensors(struct bl_model *m)
{
    uint32_t embd = m->hp.n_embd;
    unsigned flags = 0; /* relatives have no biases; what the first layer has all have */
    BL_TRY(bl_model_want_shared(m));
    for (int i = 0; i < (int)m->hp.n_layer; i++) {
        BL_TRY(bl_model_want_attention(m, i, flags));
        flags = m->layer[0].role[BL_W_ATTN_Q].bias < 0 ? 0 : (unsigned)BL_WANT_BIAS;
        BL_TRY(want_head_norms(m, i));
        BL_TRY(bl_model_want_norm(m, BL_W_FFN_NORM, "post_attention_norm", i, embd));
        BL_TRY(bl_model_want_moe_or_ffn(m, i, 0));
    }
    return BL_OK;
}

static enum bl_status build(const struct bl_model *m, const struct bl_shape *s, struct bl_graph *g)
{
    bl_build_decoder(m, g, s, BL_ROPE_NEOX);
    return BL_OK;
}

const struct bl_family bl_family_glm4moe = {
    .arch = "glm4moe",
    .hparams = hparams,
    .tensors = tensors,
    .state = bl_model_keep_kv_everywhere,
    .build = build,
};

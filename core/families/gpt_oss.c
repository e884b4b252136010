/* SPDX-License-Identifier: MIT */
/* gpt-oss: experts in every layer, with biases everywhere; every other layer slides; each head has
 * a sink that takes part of its attention. The softmax is over the chosen experts alone. */
#include "model.h"

enum { WINDOW_PERIOD = 2 };

static enum bl_status hparams(struct bl_model *m)
{
    BL_TRY(bl_hp_routed_experts(m, BL_GATE_SOFTMAX_CHOSEN));
    m->hp.glu = (struct bl_glu_attr){.kind = BL_GLU_SWIGLU_OAI, .alpha = 1.702f, .limit = 7};
    return bl_hp_sliding_window(m, WINDOW_PERIOD);
}

static enum bl_status tensors(struct bl_model *m)
{
    uint32_t embd = m->hp.n_embd;
    BL_TRY(bl_model_want_shared(m));
    for (int i = 0; i < (int)m->hp.n_layer; i++) {
        uint32_t n_head = m->layer[i].n_head, out = n_head * m->hp.dv;
        BL_TRY(bl_model_want_attention(m, i, BL_WANT_BIAS));
        BL_TRY(bl_model_want(m, BL_W_ATTN_OUT, i, out, embd, 0, BL_WANT_BIAS));
        BL_TRY(bl_model_want(m, BL_W_ATTN_SINKS, i, n_head, 0, 0, 0));
        BL_TRY(bl_model_want_norm(m, BL_W_FFN_NORM, "post_attention_norm", i, embd));
        BL_TRY(bl_model_want_experts(m, i, m->hp.n_ff_expert, BL_WANT_BIAS));
    }
    return BL_OK;
}

static enum bl_status build(const struct bl_model *m, const struct bl_shape *s, struct bl_graph *g)
{
    bl_build_decoder(m, g, s, BL_ROPE_NEOX);
    return BL_OK;
}

const struct bl_family bl_family_gpt_oss = {
    .arch = "gpt-oss",
    .hparams = hparams,
    .tensors = tensors,
    .state = bl_model_keep_kv_everywhere,
    .build = build,
};

/* SPDX-License-Identifier: MIT */
/* qwen3moe: qwen3 attention, experts in every layer, no shared expert. */
#include "model.h"

static enum bl_status hparams(struct bl_model *m)
{
    struct bl_hparams *hp = &m->hp;
    BL_TRY(bl_hp_softmax_experts(m));
    if (!hp->n_ff_expert) /* the first files have only the dense width */
        hp->n_ff_expert = m->layer[0].n_ff / hp->n_expert_used;
    return BL_OK;
}

static enum bl_status tensors(struct bl_model *m)
{
    BL_TRY(bl_model_want_shared(m));
    for (int i = 0; i < (int)m->hp.n_layer; i++) {
        BL_TRY(bl_model_want_attention(m, i, 0));
        BL_TRY(bl_model_want(m, BL_W_ATTN_Q_NORM, i, m->hp.dk, 0, 0, 0));
        BL_TRY(bl_model_want(m, BL_W_ATTN_K_NORM, i, m->hp.dk, 0, 0, 0));
        BL_TRY(bl_model_want(m, BL_W_FFN_NORM, i, m->hp.n_embd, 0, 0, 0));
        BL_TRY(bl_model_want_experts(m, i, m->hp.n_ff_expert, 0));
    }
    return BL_OK;
}

static enum bl_status build(const struct bl_model *m, const struct bl_shape *s, struct bl_graph *g)
{
    bl_build_decoder(m, g, s, BL_ROPE_NEOX);
    return BL_OK;
}

const struct bl_family bl_family_qwen3moe = {
    .arch = "qwen3moe",
    .hparams = hparams,
    .tensors = tensors,
    .state = bl_model_keep_kv_everywhere,
    .build = build,
};

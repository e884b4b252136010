/* SPDX-License-Identifier: MIT */
/* qwen3next: three gated delta nets to one gated attention; experts in every layer, with a gated
 * one for all tokens beside them. */
#include "model.h"

static enum bl_status hparams(struct bl_model *m)
{
    BL_TRY(bl_hp_softmax_shared_experts(m));
    return bl_hp_hybrid(m, false);
}

static enum bl_status tensors(struct bl_model *m)
{
    BL_TRY(bl_model_want_shared(m));
    for (int i = 0; i < (int)m->hp.n_layer; i++) {
        BL_TRY(bl_model_want_hybrid(m, i));
        BL_TRY(bl_model_want_experts(m, i, m->hp.n_ff_expert, 0));
        BL_TRY(bl_model_want(m, BL_W_SHEXP_ROUTER, i, m->hp.n_embd, 0, 0, 0));
        BL_TRY(bl_model_want_shared_experts(m, i, m->hp.n_ff_shared));
    }
    return BL_OK;
}

static enum bl_status build(const struct bl_model *m, const struct bl_shape *s, struct bl_graph *g)
{
    bl_build_decoder(m, g, s, BL_ROPE_NEOX);
    return BL_OK;
}

const struct bl_family bl_family_qwen3next = {
    .arch = "qwen3next",
    .hparams = hparams,
    .tensors = tensors,
    .state = bl_model_keep_hybrid,
    .build = build,
};

/* SPDX-License-Identifier: MIT */
/* qwen2: Qwen 1.5 to 2.5 and their distillates: q, k and v have biases. */
#include "model.h"

static enum bl_status tensors(struct bl_model *m)
{
    BL_TRY(bl_model_want_shared(m));
    for (int i = 0; i < (int)m->hp.n_layer; i++) {
        BL_TRY(bl_model_want_attention(m, i, BL_WANT_BIAS));
        BL_TRY(bl_model_want(m, BL_W_FFN_NORM, i, m->hp.n_embd, 0, 0, 0));
        BL_TRY(bl_model_want_ffn(m, i, m->layer[i].n_ff));
    }
    return BL_OK;
}

static enum bl_status build(const struct bl_model *m, const struct bl_shape *s, struct bl_graph *g)
{
    bl_build_decoder(m, g, s, BL_ROPE_NEOX);
    return BL_OK;
}

const struct bl_family bl_family_qwen2 = {
    .arch = "qwen2",
    .tensors = tensors,
    .state = bl_model_keep_kv_everywhere,
    .build = build,
};

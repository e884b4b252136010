/* SPDX-License-Identifier: MIT */
/* ernie4_5, dense, and ernie4_5-moe: some dense layers first, then experts in every n-th layer with
 * shared ones beside them. Rope turns neighbouring elements. */
#include "model.h"

static enum bl_status moe_hparams(struct bl_model *m)
{
    BL_TRY(bl_hp_routed_experts(m, BL_GATE_SOFTMAX));
    m->hp.route.normalise = 1;
    return BL_OK;
}

static enum bl_status tensors(struct bl_model *m)
{
    BL_TRY(bl_model_want_shared(m));
    for (int i = 0; i < (int)m->hp.n_layer; i++) {
        BL_TRY(bl_model_want_attention(m, i, 0));
        BL_TRY(bl_model_want(m, BL_W_FFN_NORM, i, m->hp.n_embd, 0, 0, 0));
        BL_TRY(bl_model_want_moe_or_ffn(m, i, BL_WANT_OPTIONAL));
    }
    return BL_OK;
}

static enum bl_status build(const struct bl_model *m, const struct bl_shape *s, struct bl_graph *g)
{
    bl_build_decoder(m, g, s, BL_ROPE_NORM);
    return BL_OK;
}

const struct bl_family bl_family_ernie4_5 = {
    .arch = "ernie4_5",
    .tensors = tensors,
    .state = bl_model_keep_kv_everywhere,
    .build = build,
};

const struct bl_family bl_family_ernie4_5_moe = {
    .arch = "ernie4_5-moe",
    .hparams = moe_hparams,
    .tensors = tensors,
    .state = bl_model_keep_kv_everywhere,
    .build = build,
};

/* SPDX-License-Identifier: MIT */
/* qwen35: Qwen 3.5 and 3.6, dense: the layers of qwen3next, with value heads in tiled order and
 * positions of several axes. */
#include "model.h"

static enum bl_status hparams(struct bl_model *m)
{
    BL_TRY(bl_hp_rope_sections(m));
    return bl_hp_hybrid(m, true);
}

static enum bl_status tensors(struct bl_model *m)
{
    BL_TRY(bl_model_want_shared(m));
    for (int i = 0; i < (int)m->hp.n_layer; i++) {
        BL_TRY(bl_model_want_hybrid(m, i));
        BL_TRY(bl_model_want_ffn(m, i, m->layer[i].n_ff));
    }
    return BL_OK;
}

static enum bl_status build(const struct bl_model *m, const struct bl_shape *s, struct bl_graph *g)
{
    bl_build_decoder(m, g, s, BL_ROPE_NEOX);
    return BL_OK;
}

const struct bl_family bl_family_qwen35 = {
    .arch = "qwen35",
    .hparams = hparams,
    .tensors = tensors,
    .state = bl_model_keep_hybrid,
    .build = build,
};

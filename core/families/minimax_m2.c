/* SPDX-License-Identifier: MIT */
/* minimax-m2: experts in every layer, none shared; q and k are normalised over all heads at once,
 * then rotated in half of each head. */
#include "model.h"

static enum bl_status hparams(struct bl_model *m)
{
    struct bl_hparams *hp = &m->hp;
    if (m->layer[0].n_ff) /* files have both keys; this one goes with the tensors */
        hp->n_ff_expert = m->layer[0].n_ff;
    BL_TRY(bl_hp_routed_experts(m, BL_GATE_SIGMOID));
    hp->route.normalise = 1;
    return BL_OK;
}

static enum bl_status tensors(struct bl_model *m)
{
    BL_TRY(bl_model_want_shared(m));
    for (int i = 0; i < (int)m->hp.n_layer; i++) {
        const struct bl_layer *l = &m->layer[i];
        BL_TRY(bl_model_want_attention(m, i, 0));
        BL_TRY(bl_model_want(m, BL_W_ATTN_Q_NORM, i, l->n_head * m->hp.dk, 0, 0, 0));
        BL_TRY(bl_model_want(m, BL_W_ATTN_K_NORM, i, l->n_head_kv * m->hp.dk, 0, 0, 0));
        BL_TRY(bl_model_want(m, BL_W_FFN_NORM, i, m->hp.n_embd, 0, 0, 0));
        BL_TRY(bl_model_want_moe_or_ffn(m, i, 0));
    }
    return BL_OK;
}

static enum bl_status build(const struct bl_model *m, const struct bl_shape *s, struct bl_graph *g)
{
    bl_build_decoder(m, g, s, BL_ROPE_NEOX);
    return BL_OK;
}

const struct bl_family bl_family_minimax_m2 = {
    .arch = "minimax-m2",
    .hparams = hparams,
    .tensors = tensors,
    .state = bl_model_keep_kv_everywhere,
    .build = build,
};

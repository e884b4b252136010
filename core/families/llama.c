/* SPDX-License-Identifier: MIT */
/* llama: Llama 1 to 3, Mistral, Mixtral, SmolLM2, Yi and relatives. With experts,
 * feed_forward_length is theirs. */
#include "model.h"

static enum bl_status hparams(struct bl_model *m)
{
    const struct bl_hparams *hp = &m->hp;
    if (hp->dv != hp->dk || hp->rope_dims != hp->dk)
        return bl_model_fail(m, BL_EFORMAT,
                             "llama.attention.key_length, value_length and rope.dimension_count are"
                             " %u, %u and %u; must be equal",
                             hp->dk, hp->dv, hp->rope_dims);
    return hp->n_expert ? bl_hp_softmax_experts(m) : BL_OK;
}

static enum bl_status tensors(struct bl_model *m)
{
    BL_TRY(bl_model_want_shared(m));
    BL_TRY(bl_model_want_rope_factors(m));
    for (int i = 0; i < (int)m->hp.n_layer; i++) {
        uint32_t n_ff = m->layer[i].n_ff;
        BL_TRY(bl_model_want_attention(m, i, 0));
        BL_TRY(bl_model_want(m, BL_W_FFN_NORM, i, m->hp.n_embd, 0, 0, 0));
        BL_TRY(m->layer[i].moe ? bl_model_want_experts(m, i, n_ff, 0)
                               : bl_model_want_ffn(m, i, n_ff));
    }
    return BL_OK;
}

static enum bl_status build(const struct bl_model *m, const struct bl_shape *s, struct bl_graph *g)
{
    bl_build_decoder(m, g, s, BL_ROPE_NORM);
    return BL_OK;
}

const struct bl_family bl_family_llama = {
    .arch = "llama",
    .hparams = hparams,
    .tensors = tensors,
    .state = bl_model_keep_kv_everywhere,
    .build = build,
};

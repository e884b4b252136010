/* SPDX-License-Identifier: MIT */
/* gemma3, text part: five sliding-window layers to one full, each kind with its own rope; norms
 * before and after both halves of a layer; scaled embeddings; a tanh GELU. */
#include "model.h"

#include <math.h>

enum { WINDOW_PERIOD = 6, LAYERS_27B = 62 };

static enum bl_status hparams(struct bl_model *m)
{
    struct bl_hparams *hp = &m->hp;
    float window_base = 10000;
    BL_TRY(bl_hp_sliding_window(m, WINDOW_PERIOD));
    BL_TRY(bl_hp_f32(m, "rope.freq_base_swa", false, 2, 1e15f, &window_base));
    /* Scaling stretches the full layers only; windows never see distances beyond training. */
    hp->rope_window = (struct bl_angles_attr){
        .n_dims = hp->rope_dims, .base = window_base, .freq_scale = 1, .magnitude = 1};
    BL_TRY(bl_hp_f32(m, "final_logit_softcapping", false, 0, 1e6f, &hp->final_softcap));
    if (hp->n_layer == LAYERS_27B) /* no key tells; this size scales by embedding / heads */
        hp->attn_scale = 1 / sqrtf((float)hp->n_embd / (float)m->layer[0].n_head);
    return BL_OK;
}

static enum bl_status tensors(struct bl_model *m)
{
    uint32_t embd = m->hp.n_embd;
    BL_TRY(bl_model_want_shared(m));
    for (int i = 0; i < (int)m->hp.n_layer; i++) {
        BL_TRY(bl_model_want_attention(m, i, 0));
        BL_TRY(bl_model_want(m, BL_W_ATTN_Q_NORM, i, m->hp.dk, 0, 0, 0));
        BL_TRY(bl_model_want(m, BL_W_ATTN_K_NORM, i, m->hp.dk, 0, 0, 0));
        BL_TRY(bl_model_want(m, BL_W_ATTN_POST_NORM, i, embd, 0, 0, 0));
        BL_TRY(bl_model_want(m, BL_W_FFN_NORM, i, embd, 0, 0, 0));
        BL_TRY(bl_model_want_ffn(m, i, m->layer[i].n_ff));
        BL_TRY(bl_model_want(m, BL_W_FFN_POST_NORM, i, embd, 0, 0, 0));
    }
    return BL_OK;
}

static enum bl_status build(const struct bl_model *m, const struct bl_shape *s, struct bl_graph *g)
{
    static const struct bl_glu_attr gelu = {.kind = BL_GLU_GELU_TANH};
    const struct bl_angles_attr at = bl_model_angles(m);
    bl_val x = bl_build_embed(m, g, s, sqrtf((float)m->hp.n_embd));
    bl_val full = bl_build_angles(m, g, s, &at),
           window = bl_build_angles(m, g, s, &m->hp.rope_window);
    for (int i = 0; i < (int)m->hp.n_layer; i++) {
        const struct bl_layer *l = &m->layer[i];
        bl_graph_at(g, BL_PART_ATTN, i);
        bl_val h = bl_build_norm(m, g, l->role[BL_W_ATTN_NORM], x);
        h = bl_build_attention(m, g, s, i, h, l->window ? window : full, BL_ROPE_NEOX);
        h = bl_build_norm(m, g, l->role[BL_W_ATTN_POST_NORM], h);
        bl_graph_at(g, BL_PART_FFN, i);
        x = bl_graph_add(g, x, h);
        h = bl_build_norm(m, g, l->role[BL_W_FFN_NORM], x);
        h = bl_build_ffn(m, g, i, h, &gelu);
        h = bl_build_norm(m, g, l->role[BL_W_FFN_POST_NORM], h);
        x = bl_graph_add(g, x, h);
    }
    bl_build_head(m, g, s, x);
    return BL_OK;
}

const struct bl_family bl_family_gemma3 = {
    .arch = "gemma3",
    .hparams = hparams,
    .tensors = tensors,
    .state = bl_model_keep_kv_everywhere,
    .build = build,
};

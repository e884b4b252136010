/* SPDX-License-Identifier: MIT */
/* Builders of what recurrent layers need: their second destination is the state after the step. */
#include "graph_impl.h"

static bool holds_rows(const struct bl_value *state, uint64_t elems, uint32_t rows)
{
    return state->origin == BL_STATE_ROWS && state->type == BL_F32 && state->ne[0] == elems &&
           state->ne[1] >= rows;
}

bl_val bl_graph_short_conv(struct bl_graph *g, bl_val x, bl_val w, bl_val state, bool silu)
{
    const bl_val src[] = {x, w, state};
    if (!bl_graph_ready(g, BL_OP_SHORT_CONV, src, 3))
        return 0;
    const struct bl_value *a = &g->vals[x], *k = &g->vals[w], *s = &g->vals[state];
    if (!bl_is_rows(a, BL_F32) || !bl_is_floats(k, k->ne[0], a->ne[0]) || k->ne[0] < 2 ||
        !holds_rows(s, a->ne[0], k->ne[0] - 1))
        return bl_graph_refuse(g, BL_OP_SHORT_CONV, src,
                               "f32 x {n}, w {2 or more, n}, a state of its earlier rows");
    const struct bl_value y[] = {*a, *s};
    return bl_graph_emit(g, BL_OP_SHORT_CONV, src, &(struct bl_conv_attr){silu}, y);
}

static bool delta_fits(const struct bl_graph *g, const bl_val *src, const struct bl_delta_attr *at)
{
    const struct bl_value *x = &g->vals[src[0]], *beta = &g->vals[src[1]],
                          *alpha = &g->vals[src[2]], *s = &g->vals[src[5]];
    uint64_t k = (uint64_t)at->n_head_k * at->dk, v = (uint64_t)at->n_head_v * at->dv;
    return bl_is_rows(x, BL_F32) && k && v && at->n_head_v % at->n_head_k == 0 && k <= UINT32_MAX &&
           v <= UINT32_MAX && 2 * k + v == x->ne[0] && bl_is_rows(beta, BL_F32) &&
           bl_same_value(beta, alpha) && beta->ne[0] == at->n_head_v && beta->ne[1] == x->ne[1] &&
           bl_is_floats(&g->vals[src[3]], at->n_head_v, 1) &&
           bl_is_floats(&g->vals[src[4]], at->n_head_v, 1) && v * at->dk <= UINT32_MAX &&
           holds_rows(s, v * at->dk, 1);
}

bl_val bl_graph_delta_rule(struct bl_graph *g, const struct bl_delta_vals *in,
                           const struct bl_delta_attr *at)
{
    const bl_val src[] = {in->qkv, in->beta, in->alpha, in->a, in->dt, in->state};
    if (!bl_graph_ready(g, BL_OP_DELTA_RULE, src, 6))
        return 0;
    if (!delta_fits(g, src, at) || at->tiled > 1 || !bl_positive(at->eps) ||
        !bl_positive(at->scale))
        return bl_graph_refuse(g, BL_OP_DELTA_RULE, src,
                               "whole heads, beta, alpha, a, dt of one each, a state of matrices");
    const struct bl_value y[] = {bl_floats(at->n_head_v * at->dv, g->vals[in->qkv].ne[1]),
                                 g->vals[in->state]};
    return bl_graph_emit(g, BL_OP_DELTA_RULE, src, at, y);
}

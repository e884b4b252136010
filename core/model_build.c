/* SPDX-License-Identifier: MIT */
/* From a model to the graph of a step: the pieces that families share. */
#include "model.h"

bl_val bl_build_weight(const struct bl_model *m, struct bl_graph *g, int32_t w)
{
    return w < 0 ? 0 : bl_graph_weight(g, w, m->weight[w].type, m->weight[w].ne);
}

bl_val bl_build_linear(const struct bl_model *m, struct bl_graph *g, struct bl_linear l, bl_val x)
{
    bl_val w = bl_build_weight(m, g, l.w);
    bl_val bias = bl_build_weight(m, g, l.bias);
    return bl_graph_matmul(g, w, x, bias, bl_build_weight(m, g, l.scale));
}

bl_val bl_build_norm(const struct bl_model *m, struct bl_graph *g, struct bl_linear l, bl_val x)
{
    return bl_graph_rms_norm(g, x, bl_build_weight(m, g, l.w), m->hp.eps);
}

bl_val bl_build_state(const struct bl_model *m, struct bl_graph *g, const struct bl_shape *s,
                      int32_t state)
{
    const struct bl_state_desc *d = &m->state[state];
    return bl_graph_state(g, state, d->type, d->row_elems, bl_state_rows(d, s), s->max_sequences);
}

/* ---- once per step ---- */

bl_val bl_build_embed(const struct bl_model *m, struct bl_graph *g, const struct bl_shape *s,
                      float scale)
{
    bl_graph_at(g, BL_PART_EMBED, -1);
    bl_val table = bl_build_weight(m, g, m->role[BL_W_TOKEN_EMBD].w);
    return bl_graph_embed(g, table, bl_graph_param(g, BL_PARAM_TOKENS, s->n_tok), scale);
}

/* Long or short is decided by the size of the context, not by what is in it: rows already cached
 * depend on it. */
static int32_t rope_factors(const struct bl_model *m)
{
    if (m->role[BL_W_ROPE_FREQS].w >= 0)
        return m->role[BL_W_ROPE_FREQS].w;
    bool beyond = m->opt.ctx_tokens > m->hp.rope_ctx_orig;
    return m->role[beyond ? BL_W_ROPE_LONG : BL_W_ROPE_SHORT].w;
}

bl_val bl_build_angles(const struct bl_model *m, struct bl_graph *g, const struct bl_shape *s,
                       const struct bl_angles_attr *at)
{
    bl_graph_at(g, BL_PART_EMBED, -1);
    bl_val positions = bl_graph_param(g, BL_PARAM_POSITIONS, s->n_tok);
    return bl_graph_rope_angles(g, positions, bl_build_weight(m, g, rope_factors(m)), at);
}

/* Only the rows whose logits are wanted reach the output matrix. */
bl_val bl_build_head(const struct bl_model *m, struct bl_graph *g, const struct bl_shape *s,
                     bl_val x)
{
    if (!s->n_out)
        return 0;
    bl_graph_at(g, BL_PART_HEAD, -1);
    x = bl_graph_gather_rows(g, x, bl_graph_param(g, BL_PARAM_OUT_ROWS, s->n_out));
    x = bl_build_norm(m, g, m->role[BL_W_OUTPUT_NORM], x);
    x = bl_build_linear(m, g, m->role[BL_W_OUTPUT], x);
    if (m->hp.final_softcap > 0)
        x = bl_graph_softcap(g, x, m->hp.final_softcap);
    return g->result = x;
}

/* ---- per layer ---- */

/* Heads of a projection, normalised one by one where the model does that, then rotated. */
static bl_val build_heads(const struct bl_model *m, struct bl_graph *g, struct bl_linear norm,
                          bl_val x, bl_val angles, enum bl_rope_mode mode)
{
    if (norm.w >= 0)
        x = bl_build_norm(m, g, norm, x);
    return angles ? bl_graph_rope(g, x, angles, mode, m->hp.dk) : x;
}

bl_val bl_build_attention(const struct bl_model *m, struct bl_graph *g, const struct bl_shape *s,
                          int layer, bl_val h, bl_val angles, enum bl_rope_mode mode)
{
    const struct bl_layer *l = &m->layer[layer];
    const struct bl_attention_attr at = {
        .n_head = l->n_head,
        .n_head_kv = l->n_head_kv,
        .dk = m->hp.dk,
        .dv = m->hp.dv,
        .window = l->window,
        .scale = m->hp.attn_scale,
    };
    static const struct bl_glu_attr sigmoid = {.kind = BL_GLU_SIGMOID};
    bl_val gate = 0;
    bl_graph_at(g, BL_PART_ATTN, layer);
    /* products side by side: threads of a CPU then meet once behind them */
    bl_val q = bl_build_linear(m, g, l->role[BL_W_ATTN_Q], h);
    bl_val k = bl_build_linear(m, g, l->role[BL_W_ATTN_K], h);
    bl_val v = bl_build_linear(m, g, l->role[BL_W_ATTN_V], h);
    if (m->hp.attn_gated) {
        gate = bl_graph_slice(g, q, 2 * at.dk, at.dk, at.dk);
        q = bl_graph_slice(g, q, 2 * at.dk, 0, at.dk);
    }
    q = build_heads(m, g, l->role[BL_W_ATTN_Q_NORM], q, angles, mode);
    k = build_heads(m, g, l->role[BL_W_ATTN_K_NORM], k, angles, mode);
    bl_val k_rows = bl_graph_kv_store(g, k, bl_build_state(m, g, s, l->state_k));
    bl_val v_rows = bl_graph_kv_store(g, v, bl_build_state(m, g, s, l->state_v));
    bl_val sinks = bl_build_weight(m, g, l->role[BL_W_ATTN_SINKS].w);
    bl_val o = bl_graph_attention(g, q, k_rows, v_rows, sinks, &at);
    if (gate)
        o = bl_graph_glu(g, gate, o, &sigmoid);
    return bl_build_linear(m, g, l->role[BL_W_ATTN_OUT], o);
}

/* The roles of gate, up and down follow one another. */
static bl_val build_glu(const struct bl_model *m, struct bl_graph *g, const struct bl_linear *role,
                        bl_val h, const struct bl_glu_attr *glu)
{
    bl_val gate = bl_build_linear(m, g, role[0], h);
    bl_val up = bl_build_linear(m, g, role[1], h);
    return bl_build_linear(m, g, role[2], bl_graph_glu(g, gate, up, glu));
}

bl_val bl_build_ffn(const struct bl_model *m, struct bl_graph *g, int layer, bl_val h,
                    const struct bl_glu_attr *glu)
{
    const struct bl_layer *l = &m->layer[layer];
    bl_graph_at(g, BL_PART_FFN, layer);
    return build_glu(m, g, &l->role[BL_W_FFN_GATE], h, glu);
}

bl_val bl_build_shared_experts(const struct bl_model *m, struct bl_graph *g, int layer, bl_val h,
                               const struct bl_glu_attr *glu)
{
    static const struct bl_glu_attr sigmoid = {.kind = BL_GLU_SIGMOID};
    const struct bl_layer *l = &m->layer[layer];
    bl_graph_at(g, BL_PART_FFN, layer);
    bl_val y = build_glu(m, g, &l->role[BL_W_SHEXP_GATE], h, glu);
    if (l->role[BL_W_SHEXP_ROUTER].w < 0)
        return y;
    return bl_graph_glu(g, bl_build_linear(m, g, l->role[BL_W_SHEXP_ROUTER], h), y, &sigmoid);
}

static struct bl_expert_vals expert_vals(const struct bl_model *m, struct bl_graph *g,
                                         const struct bl_layer *l)
{
    const struct bl_linear *gate = &l->role[BL_W_EXP_GATE], *up = &l->role[BL_W_EXP_UP],
                           *down = &l->role[BL_W_EXP_DOWN];
    return (struct bl_expert_vals){
        .gate = bl_build_weight(m, g, gate->w),
        .up = bl_build_weight(m, g, up->w),
        .down = bl_build_weight(m, g, down->w),
        .gate_b = bl_build_weight(m, g, gate->bias),
        .up_b = bl_build_weight(m, g, up->bias),
        .down_b = bl_build_weight(m, g, down->bias),
        .gate_s = bl_build_weight(m, g, gate->scale),
        .up_s = bl_build_weight(m, g, up->scale),
        .down_s = bl_build_weight(m, g, down->scale),
    };
}

/* What all parts of a layer's experts have in common. */
struct routed {
    bl_val h, ids, weights;
    struct bl_expert_vals e;
    struct bl_experts_attr at;
};

static void build_route(const struct bl_model *m, struct bl_graph *g, int layer, struct routed *r)
{
    const struct bl_layer *l = &m->layer[layer];
    struct bl_route_vals route = {0};

    bl_graph_at(g, BL_PART_FFN, layer);
    route.logits = bl_build_linear(m, g, l->role[BL_W_ROUTER], r->h);
    route.bias = bl_build_weight(m, g, l->role[BL_W_ROUTER_BIAS].w);
    route.table = bl_build_weight(m, g, l->role[BL_W_ROUTER_IDS].w);
    if (route.table)
        route.tokens = bl_graph_param(g, BL_PARAM_TOKENS, g->vals[r->h].ne[1]);
    bl_graph_route_by_table(g, &route, &m->hp.route, &r->ids, &r->weights);
    r->e = expert_vals(m, g, l);
}

static bl_val build_part(struct bl_graph *g, int layer, struct routed *r, uint32_t part)
{
    r->at.part = part;
    bl_graph_at(g, BL_PART_EXPERTS, layer);
    const bl_val y = bl_graph_experts(g, r->h, r->ids, r->weights, &r->e, &r->at);
    bl_graph_at(g, BL_PART_FFN, layer);
    return y;
}

/* Those that devices have for good; returns the first that was emitted, which the others follow. */
static bl_val build_whole(struct bl_graph *g, int layer, struct routed *r, uint32_t n,
                          uint32_t last)
{
    bl_val first = 0;
    for (uint32_t i = 0; i < n; i++) {
        const bl_val y = build_part(g, layer, r, i + 1 == n ? last : i + (i >= last));
        first = i ? first : y;
    }
    return first;
}

static bl_val add_whole(struct bl_graph *g, bl_val first, uint32_t n, uint32_t last)
{
    bl_val sum = 0;
    for (uint32_t k = 0; k < n; k++) {
        const bl_val y = first + (k == last ? n - 1 : k - (k > last));
        sum = k ? bl_graph_add(g, sum, y) : y;
    }
    return sum;
}

static bl_val add_chunks(struct bl_graph *g, int layer, struct routed *r, bl_val sum,
                         struct bl_expert_parts parts)
{
    r->at.chunks = parts.chunks;
    for (uint32_t c = 0; c < parts.chunks; c++) {
        r->at.chunk = c;
        const bl_val y = build_part(g, layer, r, (uint32_t)parts.n - parts.chunks + c);
        sum = sum ? bl_graph_add(g, sum, y) : y;
    }
    return sum;
}

bl_val bl_build_moe(const struct bl_model *m, struct bl_graph *g, int layer, bl_val h,
                    const struct bl_glu_attr *glu, const struct bl_glu_attr *shared)
{
    const struct bl_expert_parts parts =
        g->parts ? g->parts[layer] : (struct bl_expert_parts){.n = 1};
    const uint32_t whole = (uint32_t)parts.n - parts.chunks;
    struct routed r = {
        .h = h,
        .at = {.n_used = m->hp.route.n_used, .parts = parts.n > 1 ? parts.n : 0, .glu = *glu}};
    bl_val s = 0;

    build_route(m, g, layer, &r);
    bl_val y = build_whole(g, layer, &r, whole, parts.last);
    if (m->layer[layer].role[BL_W_SHEXP_GATE].w >= 0)
        s = bl_build_shared_experts(m, g, layer, h, shared);
    bl_graph_at(g, BL_PART_FFN, layer);
    y = add_whole(g, y, whole, parts.last);
    y = add_chunks(g, layer, &r, y, parts);
    return s ? bl_graph_add(g, y, s) : y;
}

/* One value for both kinds of layer where their angles are the same. */
static bl_val window_angles(const struct bl_model *m, struct bl_graph *g, const struct bl_shape *s,
                            const struct bl_angles_attr *full, bl_val angles)
{
    const struct bl_angles_attr *window = &m->hp.rope_window;
    for (uint32_t i = 0; i < m->hp.n_layer; i++)
        if (m->layer[i].window && memcmp(window, full, sizeof *window))
            return bl_build_angles(m, g, s, window);
    return angles;
}

void bl_build_decoder(const struct bl_model *m, struct bl_graph *g, const struct bl_shape *s,
                      enum bl_rope_mode mode)
{
    const struct bl_glu_attr *glu = &m->hp.glu;
    const struct bl_angles_attr at = bl_model_angles(m);
    bl_val x = bl_build_embed(m, g, s, 1);
    bl_val full = bl_build_angles(m, g, s, &at), window = window_angles(m, g, s, &at, full);
    for (int i = 0; i < (int)m->hp.n_layer; i++) {
        const struct bl_layer *l = &m->layer[i];
        bl_graph_at(g, BL_PART_ATTN, i);
        bl_val h = bl_build_norm(m, g, l->role[BL_W_ATTN_NORM], x);
        bl_val o = l->recurrent
                       ? bl_build_delta_net(m, g, s, i, h)
                       : bl_build_attention(m, g, s, i, h, l->window ? window : full, mode);
        bl_graph_at(g, BL_PART_FFN, i);
        x = bl_graph_add(g, x, o);
        h = bl_build_norm(m, g, l->role[BL_W_FFN_NORM], x);
        h = l->moe ? bl_build_moe(m, g, i, h, glu, glu) : bl_build_ffn(m, g, i, h, glu);
        x = bl_graph_add(g, x, h);
    }
    bl_build_head(m, g, s, x);
}

enum bl_status bl_model_build(const struct bl_model *m, const struct bl_shape *s,
                              struct bl_graph *g)
{
    if (!s->n_tok || !s->max_sequences || !s->ctx_tokens || s->n_tok > s->ubatch_tokens)
        return bl_fail(
            BL_EINVAL, "a step of %u tokens (ubatch %u) for %u sequences of a context of %llu",
            s->n_tok, s->ubatch_tokens, s->max_sequences, (unsigned long long)s->ctx_tokens);
    BL_TRY(m->family->build(m, s, g));
    return bl_graph_check(g);
}

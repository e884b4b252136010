/* SPDX-License-Identifier: MIT */
/* Builders: the rules of shape of every op. */
#include "graph_impl.h"

bl_val bl_graph_embed(struct bl_graph *g, bl_val table, bl_val tokens, float scale)
{
    const bl_val src[] = {table, tokens};
    if (!bl_graph_ready(g, BL_OP_EMBED, src, 2))
        return 0;
    const struct bl_value *w = &g->vals[table], *t = &g->vals[tokens];
    if (!bl_is_matrix(w) || !bl_is_param(t, BL_PARAM_TOKENS) || !bl_positive(scale))
        return bl_graph_refuse(g, BL_OP_EMBED, src,
                               "a table {elements, rows}, token ids, a scale above 0");
    struct bl_value y = bl_floats(w->ne[0], t->ne[0]);
    return bl_graph_emit(g, BL_OP_EMBED, src, &(struct bl_embed_attr){scale}, &y);
}

bl_val bl_graph_gather_rows(struct bl_graph *g, bl_val x, bl_val rows)
{
    const bl_val src[] = {x, rows};
    if (!bl_graph_ready(g, BL_OP_GATHER_ROWS, src, 2))
        return 0;
    const struct bl_value *a = &g->vals[x], *r = &g->vals[rows];
    if (!bl_is_rows(a, BL_F32) || !bl_is_param(r, BL_PARAM_OUT_ROWS))
        return bl_graph_refuse(g, BL_OP_GATHER_ROWS, src, "f32 {elements, tokens}, output rows");
    struct bl_value y = bl_floats(a->ne[0], r->ne[0]);
    return bl_graph_emit(g, BL_OP_GATHER_ROWS, src, &bl_no_attr, &y);
}

bl_val bl_graph_rms_norm(struct bl_graph *g, bl_val x, bl_val w, float eps)
{
    const bl_val src[] = {x, w};
    if (!bl_graph_ready(g, BL_OP_RMS_NORM, src, 2))
        return 0;
    const struct bl_value *a = &g->vals[x], *v = &g->vals[w];
    if (!bl_is_rows(a, BL_F32) || !bl_is_floats(v, v->ne[0], 1) || a->ne[0] % v->ne[0] ||
        !bl_positive(eps))
        return bl_graph_refuse(g, BL_OP_RMS_NORM, src, "whole runs of f32 w {n}, eps above 0");
    struct bl_value y = *a;
    return bl_graph_emit(g, BL_OP_RMS_NORM, src, &(struct bl_norm_attr){eps, v->ne[0]}, &y);
}

bl_val bl_graph_rms_norm_runs(struct bl_graph *g, bl_val x, uint32_t run, float eps)
{
    const bl_val src[] = {x, 0};
    if (!bl_graph_ready(g, BL_OP_RMS_NORM, src, 1))
        return 0;
    const struct bl_value *a = &g->vals[x];
    if (!bl_is_rows(a, BL_F32) || !run || a->ne[0] % run || !bl_positive(eps))
        return bl_graph_refuse(g, BL_OP_RMS_NORM, src, "whole runs of f32, eps above 0");
    struct bl_value y = *a;
    return bl_graph_emit(g, BL_OP_RMS_NORM, src, &(struct bl_norm_attr){eps, run}, &y);
}

bl_val bl_graph_matmul(struct bl_graph *g, bl_val w, bl_val x, bl_val bias, bl_val scale)
{
    const bl_val src[] = {w, x, bias, scale};
    if (!bl_graph_ready(g, BL_OP_MATMUL, src, 2))
        return 0;
    const struct bl_value *m = &g->vals[w], *a = &g->vals[x];
    if (!bl_is_matrix(m) || !bl_is_rows(a, BL_F32) || m->ne[0] != a->ne[0] ||
        !bl_absent_or_floats(g, bias, m->ne[1], 1) || !bl_absent_or_floats(g, scale, 1, 1))
        return bl_graph_refuse(g, BL_OP_MATMUL, src,
                               "w {in, out}, x {in, tokens}, [bias {out}], [scale {1}]");
    struct bl_value y = bl_floats(m->ne[1], a->ne[1]);
    return bl_graph_emit(g, BL_OP_MATMUL, src, &bl_no_attr, &y);
}

static bool heads_fit(const struct bl_value *w, const struct bl_value *x,
                      const struct bl_heads_attr *at)
{
    uint32_t in = at->transposed ? w->ne[1] : w->ne[0], out = w->ne[0] + w->ne[1] - in;
    return w->origin == BL_WEIGHT && bl_dtypes[w->type].act != BL_ACT_NONE &&
           bl_is_rows(x, BL_F32) && (uint64_t)in * w->ne[2] == x->ne[0] &&
           (uint64_t)out * w->ne[2] <= UINT32_MAX && at->head_rows >= w->ne[1] &&
           at->transposed <= 1;
}

bl_val bl_graph_matmul_heads(struct bl_graph *g, bl_val w, bl_val x, bl_val scale,
                             const struct bl_heads_attr *at)
{
    const bl_val src[] = {w, x, scale};
    if (!bl_graph_ready(g, BL_OP_MATMUL_HEADS, src, 2))
        return 0;
    const struct bl_value *m = &g->vals[w], *a = &g->vals[x];
    if (!heads_fit(m, a, at) ||
        (!bl_absent_or_floats(g, scale, 1, 1) && !bl_absent_or_floats(g, scale, m->ne[2], 1)))
        return bl_graph_refuse(g, BL_OP_MATMUL_HEADS, src,
                               "w {in, out, heads}, x {heads * in}, [scale {1} or {heads}]");
    struct bl_value y = bl_floats(m->ne[at->transposed ? 0 : 1] * m->ne[2], a->ne[1]);
    return bl_graph_emit(g, BL_OP_MATMUL_HEADS, src, at, &y);
}

bl_val bl_graph_rope_angles(struct bl_graph *g, bl_val positions, bl_val factors,
                            const struct bl_angles_attr *at)
{
    const bl_val src[] = {positions, factors};
    if (!bl_graph_ready(g, BL_OP_ROPE_ANGLES, src, 1))
        return 0;
    const struct bl_value *p = &g->vals[positions];
    if (!bl_is_param(p, BL_PARAM_POSITIONS) || !at->n_dims || at->n_dims % 2 ||
        !bl_absent_or_floats(g, factors, at->n_dims / 2, 1))
        return bl_graph_refuse(g, BL_OP_ROPE_ANGLES, src,
                               "positions, [factors {n_dims / 2}], even n_dims");
    if (!bl_positive(at->base) || !bl_positive(at->freq_scale) || !bl_positive(at->magnitude) ||
        !isfinite(at->lo) || !isfinite(at->hi) || at->yarn > 1 || at->inverse > 1)
        return bl_graph_refuse(g, BL_OP_ROPE_ANGLES, src,
                               "base, freq_scale, magnitude above 0, finite lo, hi");
    struct bl_value y = bl_floats(at->n_dims, p->ne[0]);
    return bl_graph_emit(g, BL_OP_ROPE_ANGLES, src, at, &y);
}

bl_val bl_graph_rope_at(struct bl_graph *g, bl_val x, bl_val angles, enum bl_rope_mode mode,
                        uint32_t head_elems, uint32_t first)
{
    const bl_val src[] = {x, angles};
    if (!bl_graph_ready(g, BL_OP_ROPE, src, 2))
        return 0;
    const struct bl_value *a = &g->vals[x], *r = &g->vals[angles];
    if (!bl_is_rows(a, BL_F32) || !bl_is_rows(r, BL_F32) || a->ne[1] != r->ne[1] || !head_elems ||
        a->ne[0] % head_elems || first > head_elems || r->ne[0] > head_elems - first ||
        r->ne[0] % 2)
        return bl_graph_refuse(g, BL_OP_ROPE, src,
                               "whole heads, angles {n_dims <= head, same tokens}");
    struct bl_value y = bl_floats(a->ne[0], a->ne[1]);
    return bl_graph_emit(g, BL_OP_ROPE, src,
                         &(struct bl_rope_attr){mode, head_elems, r->ne[0], first}, &y);
}

bl_val bl_graph_rope(struct bl_graph *g, bl_val x, bl_val angles, enum bl_rope_mode mode,
                     uint32_t head_elems)
{
    return bl_graph_rope_at(g, x, angles, mode, head_elems, 0);
}

bl_val bl_graph_temper(struct bl_graph *g, bl_val x, bl_val positions,
                       const struct bl_temper_attr *at)
{
    const bl_val src[] = {x, positions};
    if (!bl_graph_ready(g, BL_OP_TEMPER, src, 2))
        return 0;
    const struct bl_value *a = &g->vals[x], *p = &g->vals[positions];
    if (!bl_is_rows(a, BL_F32) || !bl_is_param(p, BL_PARAM_POSITIONS) || p->ne[0] != a->ne[1] ||
        !bl_positive(at->scale) || !at->every)
        return bl_graph_refuse(g, BL_OP_TEMPER, src,
                               "f32 {elements, tokens}, their positions, scale and every above 0");
    struct bl_value y = *a;
    return bl_graph_emit(g, BL_OP_TEMPER, src, at, &y);
}

/* The result is the state after the step: a new value of the same index, so that readers come after
 * the write. */
bl_val bl_graph_kv_store_groups(struct bl_graph *g, bl_val x, bl_val state, uint32_t group)
{
    const bl_val src[] = {x, state};
    if (!bl_graph_ready(g, BL_OP_KV_STORE, src, 2))
        return 0;
    const struct bl_value *a = &g->vals[x], *s = &g->vals[state];
    if (!bl_is_rows(a, BL_F32) || s->origin != BL_STATE_ROWS || a->ne[0] != s->ne[0] || !group)
        return bl_graph_refuse(g, BL_OP_KV_STORE, src,
                               "f32 {row, tokens}, a state of such rows, group above 0");
    struct bl_value y = *s;
    return bl_graph_emit(g, BL_OP_KV_STORE, src, &(struct bl_store_attr){group}, &y);
}

bl_val bl_graph_kv_store(struct bl_graph *g, bl_val x, bl_val state)
{
    return bl_graph_kv_store_groups(g, x, state, 1);
}

static bool attention_fits(const struct bl_graph *g, const bl_val *src,
                           const struct bl_attention_attr *at)
{
    const struct bl_value *q = &g->vals[src[0]], *k = &g->vals[src[1]], *v = &g->vals[src[2]];
    return bl_is_rows(q, BL_F32) && k->origin == BL_STATE_ROWS && v->origin == BL_STATE_ROWS &&
           at->n_head && at->n_head_kv && at->n_head % at->n_head_kv == 0 &&
           (uint64_t)at->n_head * at->dk == q->ne[0] &&
           (uint64_t)at->n_head_kv * at->dk == k->ne[0] &&
           (k == v ? at->dv && at->dv <= at->dk : (uint64_t)at->n_head_kv * at->dv == v->ne[0]) &&
           (uint64_t)at->n_head * at->dv <= UINT32_MAX && k->ne[1] == v->ne[1] &&
           k->ne[2] == v->ne[2] && bl_absent_or_floats(g, src[3], at->n_head, 1);
}

bl_val bl_graph_attention(struct bl_graph *g, bl_val q, bl_val k, bl_val v, bl_val sinks,
                          const struct bl_attention_attr *at)
{
    const bl_val src[] = {q, k, v, sinks};
    if (!bl_graph_ready(g, BL_OP_ATTENTION, src, 3))
        return 0;
    if (!attention_fits(g, src, at))
        return bl_graph_refuse(
            g, BL_OP_ATTENTION, src,
            "q {heads * dk}, k and v rows of heads_kv * dk, dv, [sinks {heads}]");
    if (!bl_positive(at->scale))
        return bl_graph_refuse(g, BL_OP_ATTENTION, src, "a scale above 0");
    struct bl_value y = bl_floats(at->n_head * at->dv, g->vals[q].ne[1]);
    return bl_graph_emit(g, BL_OP_ATTENTION, src, at, &y);
}

static bool groups_fit(const struct bl_graph *g, const bl_val *src)
{
    const struct bl_value *k = &g->vals[src[1]], *rows = &g->vals[src[4]];
    const struct bl_value *chosen = &g->vals[src[5]];
    return src[1] == src[2] && rows->origin == BL_STATE_ROWS && rows->type == k->type &&
           rows->ne[0] == k->ne[0] && rows->ne[2] == k->ne[2] &&
           (!src[5] || (bl_is_rows(chosen, BL_I32) && chosen->ne[1] == g->vals[src[0]].ne[1]));
}

bl_val bl_graph_attention_groups(struct bl_graph *g, const struct bl_attention_vals *v,
                                 const struct bl_groups_attr *at)
{
    const bl_val src[] = {v->q, v->k, v->v, v->sinks, v->rows, v->chosen};
    if (!bl_graph_ready(g, BL_OP_ATTENTION_GROUPS, src, 3))
        return 0;
    if (!v->rows || !attention_fits(g, src, &at->at) || !groups_fit(g, src))
        return bl_graph_refuse(
            g, BL_OP_ATTENTION_GROUPS, src,
            "q {heads * dk}, k and v one state of heads_kv * dk, [sinks {heads}],"
            " rows of groups like k, [chosen i32 {n, tokens}]");
    if (!bl_positive(at->at.scale) || !at->at.window || !at->group)
        return bl_graph_refuse(g, BL_OP_ATTENTION_GROUPS, src, "scale, window, group above 0");
    struct bl_value y = bl_floats(at->at.n_head * at->at.dv, g->vals[v->q].ne[1]);
    return bl_graph_emit(g, BL_OP_ATTENTION_GROUPS, src, at, &y);
}

static bool valid_glu(const struct bl_glu_attr *at)
{
    if (at->kind == BL_GLU_SWIGLU_OAI)
        return bl_positive(at->alpha) && bl_positive(at->limit);
    if (at->kind == BL_GLU_SILU_CLAMPED)
        return bl_positive(at->limit);
    return at->kind == BL_GLU_SILU || at->kind == BL_GLU_GELU_TANH || at->kind == BL_GLU_SIGMOID;
}

/* One gate for a whole row needs a kind that is linear in up. */
static bool gates(const struct bl_value *gate, const struct bl_value *up, uint32_t kind)
{
    return bl_same_value(gate, up) || (gate->ne[0] == 1 && gate->ne[1] == up->ne[1] &&
                                       kind != BL_GLU_SWIGLU_OAI && kind != BL_GLU_SILU_CLAMPED);
}

bl_val bl_graph_glu(struct bl_graph *g, bl_val gate, bl_val up, const struct bl_glu_attr *at)
{
    const bl_val src[] = {gate, up};
    if (!bl_graph_ready(g, BL_OP_GLU, src, 2))
        return 0;
    const struct bl_value *a = &g->vals[gate], *b = &g->vals[up];
    if (!bl_is_rows(a, BL_F32) || !bl_is_rows(b, BL_F32) || !gates(a, b, at->kind) ||
        !valid_glu(at))
        return bl_graph_refuse(g, BL_OP_GLU, src, "two f32 values of one shape, a known kind");
    struct bl_value y = *b;
    return bl_graph_emit(g, BL_OP_GLU, src, at, &y);
}

bl_val bl_graph_add(struct bl_graph *g, bl_val a, bl_val b)
{
    const bl_val src[] = {a, b};
    if (!bl_graph_ready(g, BL_OP_ADD, src, 2))
        return 0;
    if (!bl_is_rows(&g->vals[a], BL_F32) || !bl_same_value(&g->vals[a], &g->vals[b]))
        return bl_graph_refuse(g, BL_OP_ADD, src, "two f32 values of one shape");
    struct bl_value y = g->vals[a];
    return bl_graph_emit(g, BL_OP_ADD, src, &bl_no_attr, &y);
}

static bool valid_route(uint32_t n_experts, const struct bl_route_attr *at)
{
    if (!at->n_used || at->n_used > n_experts || at->gating < BL_GATE_SOFTMAX ||
        at->gating > BL_GATE_SQRT_SOFTPLUS || !isfinite(at->scale) || at->scale < 0)
        return false;
    return at->n_group <= 1 ||
           (n_experts % at->n_group == 0 && at->n_group_used && at->n_group_used <= at->n_group &&
            (uint64_t)at->n_group_used * (n_experts / at->n_group) >= at->n_used);
}

static bool table_fits(const struct bl_graph *g, const struct bl_route_vals *v, uint32_t n_used)
{
    const struct bl_value *table = &g->vals[v->table], *tokens = &g->vals[v->tokens];
    if (!v->table)
        return !v->tokens;
    return table->origin == BL_WEIGHT && table->type == BL_I32 && table->ne[0] == n_used &&
           table->ne[2] == 1 && !v->bias && bl_is_param(tokens, BL_PARAM_TOKENS) &&
           tokens->ne[0] == g->vals[v->logits].ne[1];
}

void bl_graph_route_by_table(struct bl_graph *g, const struct bl_route_vals *v,
                             const struct bl_route_attr *at, bl_val *ids, bl_val *weights)
{
    const bl_val src[] = {v->logits, v->bias, v->table, v->tokens};
    *ids = *weights = 0;
    if (!bl_graph_ready(g, BL_OP_ROUTE, src, 1))
        return;
    const struct bl_value *z = &g->vals[v->logits];
    if (!bl_is_rows(z, BL_F32) || !bl_absent_or_floats(g, v->bias, z->ne[0], 1) ||
        !valid_route(z->ne[0], at) || !table_fits(g, v, at->n_used)) {
        bl_graph_refuse(g, BL_OP_ROUTE, src,
                        "f32 {experts, tokens}, [bias {experts}] or [table i32 {used, ids}, "
                        "tokens], 1 to experts used");
        return;
    }
    const struct bl_value y[] = {bl_activation(BL_I32, at->n_used, z->ne[1]),
                                 bl_floats(at->n_used, z->ne[1])};
    *ids = bl_graph_emit(g, BL_OP_ROUTE, src, at, y);
    *weights = *ids ? *ids + 1 : 0;
}

void bl_graph_route(struct bl_graph *g, bl_val logits, bl_val bias, const struct bl_route_attr *at,
                    bl_val *ids, bl_val *weights)
{
    const struct bl_route_vals v = {.logits = logits, .bias = bias};
    bl_graph_route_by_table(g, &v, at, ids, weights);
}

static bool is_experts(const struct bl_value *v, uint32_t in, uint32_t out, uint32_t experts)
{
    return v->origin == BL_WEIGHT && bl_dtypes[v->type].act != BL_ACT_NONE && v->ne[0] == in &&
           v->ne[1] == out && v->ne[2] == experts;
}

static bool experts_fit(const struct bl_graph *g, const bl_val *src,
                        const struct bl_experts_attr *at)
{
    const struct bl_value *x = &g->vals[src[0]], *ids = &g->vals[src[1]], *w = &g->vals[src[2]];
    uint32_t n_embd = x->ne[0], n_ff = g->vals[src[3]].ne[1], n = g->vals[src[3]].ne[2];
    return bl_is_rows(x, BL_F32) && bl_is_rows(ids, BL_I32) && bl_is_rows(w, BL_F32) &&
           ids->ne[0] == at->n_used && w->ne[0] == at->n_used && ids->ne[1] == x->ne[1] &&
           w->ne[1] == x->ne[1] && at->n_used && at->n_used <= n &&
           is_experts(&g->vals[src[3]], n_embd, n_ff, n) &&
           is_experts(&g->vals[src[4]], n_embd, n_ff, n) &&
           is_experts(&g->vals[src[5]], n_ff, n_embd, n) &&
           bl_absent_or_floats(g, src[6], n_ff, n) && bl_absent_or_floats(g, src[7], n_ff, n) &&
           bl_absent_or_floats(g, src[8], n_embd, n) && bl_absent_or_floats(g, src[9], n, 1) &&
           bl_absent_or_floats(g, src[10], n, 1) && bl_absent_or_floats(g, src[11], n, 1) &&
           (at->parts ? at->part < at->parts : !at->part) &&
           (at->chunks ? at->chunk < at->chunks : !at->chunk) && valid_glu(&at->glu);
}

bl_val bl_graph_experts(struct bl_graph *g, bl_val x, bl_val ids, bl_val weights,
                        const struct bl_expert_vals *e, const struct bl_experts_attr *at)
{
    const bl_val src[] = {x,         ids,     weights,   e->gate,   e->up,   e->down,
                          e->gate_b, e->up_b, e->down_b, e->gate_s, e->up_s, e->down_s};
    if (!bl_graph_ready(g, BL_OP_EXPERTS, src, 6))
        return 0;
    if (!experts_fit(g, src, at))
        return bl_graph_refuse(g, BL_OP_EXPERTS, src,
                               "x, ids, weights, gate, up, down of one set of experts");
    struct bl_value y = g->vals[x];
    return bl_graph_emit(g, BL_OP_EXPERTS, src, at, &y);
}

bl_val bl_graph_softcap(struct bl_graph *g, bl_val x, float cap)
{
    const bl_val src[] = {x};
    if (!bl_graph_ready(g, BL_OP_SOFTCAP, src, 1))
        return 0;
    if (!bl_is_rows(&g->vals[x], BL_F32) || !bl_positive(cap))
        return bl_graph_refuse(g, BL_OP_SOFTCAP, src, "an f32 value, a cap above 0");
    struct bl_value y = g->vals[x];
    return bl_graph_emit(g, BL_OP_SOFTCAP, src, &(struct bl_softcap_attr){cap}, &y);
}

bl_val bl_graph_slice(struct bl_graph *g, bl_val x, uint32_t run, uint32_t first, uint32_t n)
{
    const bl_val src[] = {x};
    if (!bl_graph_ready(g, BL_OP_SLICE, src, 1))
        return 0;
    const struct bl_value *a = &g->vals[x];
    if (!bl_is_rows(a, BL_F32) || !run || a->ne[0] % run || !n || n > run || first > run - n)
        return bl_graph_refuse(g, BL_OP_SLICE, src, "whole runs of f32, elements inside a run");
    struct bl_value y = bl_floats(a->ne[0] / run * n, a->ne[1]);
    return bl_graph_emit(g, BL_OP_SLICE, src, &(struct bl_slice_attr){run, first, n}, &y);
}

bl_val bl_graph_concat_runs(struct bl_graph *g, bl_val a, bl_val b, bl_val c, uint32_t runs)
{
    const bl_val src[] = {a, b, c};
    uint64_t n = 0;
    if (!bl_graph_ready(g, BL_OP_CONCAT, src, 2))
        return 0;
    for (unsigned i = 0; i < 3; i++) {
        const struct bl_value *v = &g->vals[src[i]];
        if (!runs ||
            (src[i] && (!bl_is_rows(v, BL_F32) || v->ne[1] != g->vals[a].ne[1] || v->ne[0] % runs)))
            return bl_graph_refuse(g, BL_OP_CONCAT, src, "f32 rows of the same tokens, whole runs");
        n += src[i] ? v->ne[0] : 0;
    }
    if (n > UINT32_MAX)
        return bl_graph_refuse(g, BL_OP_CONCAT, src, "rows of less than 2^32 elements");
    struct bl_value y = bl_floats((uint32_t)n, g->vals[a].ne[1]);
    return bl_graph_emit(g, BL_OP_CONCAT, src, &(struct bl_concat_attr){runs}, &y);
}

bl_val bl_graph_concat(struct bl_graph *g, bl_val a, bl_val b, bl_val c)
{
    return bl_graph_concat_runs(g, a, b, c, 1);
}

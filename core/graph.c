/* SPDX-License-Identifier: MIT */
#include "graph.h"

#include "mem.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    MAX_SOURCES = 12,
    MAX_LEAVES = 1 << 24, /* above it an index is a mistake, not a model */
    ATTR_ALIGN = 8,
    FIRST_CAPACITY = 64
};

const struct bl_op_info bl_ops[BL_N_OPS] = {
#define X(op, name, max_src, n_dst, attr, split)                                                   \
    [BL_OP_##op] = {name, max_src, n_dst, BL_SPLIT_##split, sizeof(struct bl_##attr##_attr)},
#include "op.def"
#undef X
};

#define X(op, name, max_src, n_dst, attr, split)                                                   \
    _Static_assert(max_src <= MAX_SOURCES, #op " has too many sources");
#include "op.def"
#undef X

const char *bl_part_name(enum bl_part part)
{
    static const char *const name[BL_N_PARTS] = {"embed", "attn",    "state",
                                                 "ffn",   "experts", "head"};
    return name[part];
}

/* ---- lines of text ---- */

struct text {
    char *at;
    size_t room;
};

static void put(struct text *t, const char *fmt, ...) BL_PRINTF(2, 3);
static void put(struct text *t, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(t->at, t->room, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= t->room) /* cut; what follows is dropped */
        n = t->room ? (int)t->room - 1 : 0;
    t->at += n;
    t->room -= (size_t)n;
}

/* Activations always show their tokens, other values their last dimension above 1. */
static void put_shape(struct text *t, const struct bl_value *v)
{
    unsigned n = 4, least = v->origin == BL_ACTIVATION ? 2 : 1;
    while (n > least && v->ne[n - 1] == 1)
        n--;
    for (unsigned i = 0; i < n; i++)
        put(t, "%s%u", i ? ", " : "[", v->ne[i]);
    put(t, "] %s", bl_dtypes[v->type].name);
}

static void put_place(struct text *t, enum bl_part part, int layer)
{
    put(t, "%s", bl_part_name(part));
    if (layer >= 0)
        put(t, " layer %d", layer);
}

static void put_leaf(struct text *t, const struct bl_value *v)
{
    static const char *const param[] = {"tokens", "positions", "out_rows"};
    if (v->origin == BL_PARAM)
        put(t, "%s", param[v->index]);
    else
        put(t, "%s %d", v->origin == BL_WEIGHT ? "weight" : "state", v->index);
}

/* ---- the first fault ---- */

static bl_val fault(struct bl_graph *g, enum bl_status status, const char *fmt, ...)
    BL_PRINTF(3, 4);
static bl_val fault(struct bl_graph *g, enum bl_status status, const char *fmt, ...)
{
    va_list ap;
    if (g->failed)
        return 0;
    g->failed = true;
    g->status = status;
    va_start(ap, fmt);
    vsnprintf(g->fault, sizeof g->fault, fmt, ap);
    va_end(ap);
    return 0;
}

/* A node that cannot be: which, where, what it needs, and the shapes it was given. */
static bl_val refuse(struct bl_graph *g, enum bl_op op, const bl_val *src, const char *needs)
{
    char line[sizeof g->fault];
    struct text t = {line, sizeof line};
    put(&t, "node %u %s (", g->n_nodes, bl_ops[op].name);
    put_place(&t, g->part, g->layer);
    put(&t, ") needs %s; given", needs);
    for (unsigned i = 0; i < bl_ops[op].max_src; i++) {
        put(&t, i ? ", " : " ");
        if (!src[i] || src[i] >= g->n_vals)
            put(&t, "nothing");
        else
            put_shape(&t, &g->vals[src[i]]);
    }
    return fault(g, BL_EINVAL, "%s", line);
}

enum bl_status bl_graph_check(const struct bl_graph *g)
{
    return g->failed ? bl_fail(g->status, "graph: %s", g->fault) : BL_OK;
}

/* ---- arrays ---- */

/* The array with room for `need` items, new ones zeroed; NULL marks the graph failed and leaves the
 * array as it is. */
static void *grown(struct bl_graph *g, void *array, uint32_t *cap, uint64_t need, size_t item)
{
    if (need <= *cap)
        return array;
    uint64_t want = *cap ? *cap : FIRST_CAPACITY, bytes;
    while (want < need)
        want *= 2;
    void *bigger = NULL;
    if (want <= UINT32_MAX && bl_size_mul(want, item, &bytes) && bytes <= PTRDIFF_MAX)
        bigger = realloc(array, (size_t)bytes);
    if (!bigger) {
        fault(g, BL_ENOMEM, "out of memory after %u nodes", g->n_nodes);
        return NULL;
    }
    memset((char *)bigger + (size_t)*cap * item, 0, (size_t)(want - *cap) * item);
    *cap = (uint32_t)want;
    return bigger;
}

static bool reserve_values(struct bl_graph *g, uint32_t n)
{
    struct bl_value *vals = grown(g, g->vals, &g->cap_vals, (uint64_t)g->n_vals + n, sizeof *vals);
    if (vals)
        g->vals = vals;
    return vals;
}

/* Room for a whole node first, so that none is ever half there. */
static bool reserve_node(struct bl_graph *g, const struct bl_op_info *op)
{
    struct bl_node *nodes =
        grown(g, g->nodes, &g->cap_nodes, (uint64_t)g->n_nodes + 1, sizeof *nodes);
    if (!nodes)
        return false;
    g->nodes = nodes;
    bl_val *srcs = grown(g, g->srcs, &g->cap_srcs, (uint64_t)g->n_srcs + op->max_src, sizeof *srcs);
    if (!srcs)
        return false;
    g->srcs = srcs;
    uint64_t attr_end = g->n_attr_bytes + bl_align_up(op->attr_bytes, ATTR_ALIGN);
    unsigned char *attrs = grown(g, g->attrs, &g->cap_attrs, attr_end, 1);
    if (!attrs)
        return false;
    g->attrs = attrs;
    return reserve_values(g, op->n_dst);
}

void bl_graph_init(struct bl_graph *g)
{
    *g = (struct bl_graph){.layer = -1};
    if (reserve_values(g, 1))
        g->n_vals = 1;
}

void bl_graph_finish(struct bl_graph *g)
{
    free(g->nodes);
    free(g->vals);
    free(g->srcs);
    free(g->attrs);
    free(g->leaf);
    *g = (struct bl_graph){0};
}

void bl_graph_at(struct bl_graph *g, enum bl_part part, int layer)
{
    g->part = (uint8_t)part;
    g->layer = (int16_t)layer;
}

/* ---- leaves ---- */

static bool same_value(const struct bl_value *a, const struct bl_value *b)
{
    return a->type == b->type && a->origin == b->origin && a->index == b->index &&
           !memcmp(a->ne, b->ne, sizeof a->ne);
}

static bl_val refuse_leaf(struct bl_graph *g, const struct bl_value *v, const char *why)
{
    char line[sizeof g->fault];
    struct text t = {line, sizeof line};
    put_leaf(&t, v);
    put(&t, " ");
    put_shape(&t, v);
    put(&t, " %s", why);
    return fault(g, BL_EINVAL, "%s", line);
}

static bl_val leaf(struct bl_graph *g, const struct bl_value *v)
{
    if (g->failed)
        return 0;
    if (v->index < 0 || v->index >= MAX_LEAVES)
        return refuse_leaf(g, v, "has no valid index");
    if (!bl_value_bytes(v))
        return refuse_leaf(g, v, "is empty or not made of whole blocks");
    uint32_t at = (uint32_t)v->index * 3 + v->origin - BL_WEIGHT;
    bl_val *map = grown(g, g->leaf, &g->cap_leaves, (uint64_t)at + 1, sizeof *map);
    if (!map)
        return 0;
    g->leaf = map;
    if (map[at])
        return same_value(&g->vals[map[at]], v)
                   ? map[at]
                   : refuse_leaf(g, v, "was declared with another shape");
    if (!reserve_values(g, 1))
        return 0;
    g->vals[g->n_vals] = *v;
    return map[at] = g->n_vals++;
}

bl_val bl_graph_weight(struct bl_graph *g, int32_t index, enum bl_dtype type, const uint32_t ne[3])
{
    return leaf(g, &(struct bl_value){.ne = {ne[0], ne[1], ne[2], 1},
                                      .type = (uint8_t)type,
                                      .origin = BL_WEIGHT,
                                      .index = index});
}

bl_val bl_graph_state(struct bl_graph *g, int32_t index, enum bl_dtype type, uint32_t row_elems,
                      uint32_t rows, uint32_t sequences)
{
    return leaf(g, &(struct bl_value){.ne = {row_elems, rows, sequences, 1},
                                      .type = (uint8_t)type,
                                      .origin = BL_STATE_ROWS,
                                      .index = index});
}

bl_val bl_graph_param(struct bl_graph *g, enum bl_param param, uint32_t n)
{
    return leaf(
        g, &(struct bl_value){
               .ne = {n, 1, 1, 1}, .type = BL_I32, .origin = BL_PARAM, .index = (int32_t)param});
}

uint64_t bl_value_bytes(const struct bl_value *v)
{
    uint64_t bytes = bl_dtype_row_bytes(v->type, v->ne[0]);
    for (unsigned i = 1; i < 4; i++)
        if (!bl_size_mul(bytes, v->ne[i], &bytes))
            return UINT64_MAX;
    return bytes;
}

/* ---- nodes ---- */

/* True when a node may be tried at all: no fault so far, the first `required` sources given, all of
 * them known. */
static bool ready(struct bl_graph *g, enum bl_op op, const bl_val *src, unsigned required)
{
    if (g->failed)
        return false;
    for (unsigned i = 0; i < bl_ops[op].max_src; i++)
        if (src[i] >= g->n_vals || (i < required && !src[i])) {
            refuse(g, op, src, "all its sources");
            return false;
        }
    return true;
}

static bl_val emit(struct bl_graph *g, enum bl_op op, const bl_val *src, const void *attr,
                   const struct bl_value *dst)
{
    const struct bl_op_info *info = &bl_ops[op];
    if (!reserve_node(g, info))
        return 0;
    struct bl_node *n = &g->nodes[g->n_nodes++];
    n->op = (uint8_t)op;
    n->part = g->part;
    n->n_src = info->max_src;
    n->n_dst = info->n_dst;
    n->layer = g->layer;
    n->src = g->n_srcs;
    n->attr = g->n_attr_bytes;
    memcpy(&g->srcs[n->src], src, info->max_src * sizeof *src);
    memcpy(&g->attrs[n->attr], attr, info->attr_bytes);
    g->n_srcs += info->max_src;
    g->n_attr_bytes += (uint32_t)bl_align_up(info->attr_bytes, ATTR_ALIGN);
    for (unsigned i = 0; i < info->n_dst; i++) {
        n->dst[i] = g->n_vals++;
        g->vals[n->dst[i]] = dst[i];
    }
    return n->dst[0];
}

static const struct bl_none_attr no_attr;

static struct bl_value activation(enum bl_dtype type, uint32_t elems, uint32_t tokens)
{
    return (struct bl_value){
        .ne = {elems, tokens, 1, 1}, .type = (uint8_t)type, .origin = BL_ACTIVATION, .index = -1};
}

static struct bl_value floats(uint32_t elems, uint32_t tokens)
{
    return activation(BL_F32, elems, tokens);
}

static bool is_rows(const struct bl_value *v, enum bl_dtype type)
{
    return v->origin == BL_ACTIVATION && v->type == type;
}

static bool is_matrix(const struct bl_value *v)
{
    return v->origin == BL_WEIGHT && v->ne[2] == 1 && bl_dtypes[v->type].act != BL_ACT_NONE;
}

/* An F32 weight of exactly this shape. */
static bool is_floats(const struct bl_value *v, uint32_t ne0, uint32_t ne1)
{
    return v->origin == BL_WEIGHT && v->type == BL_F32 && v->ne[0] == ne0 && v->ne[1] == ne1 &&
           v->ne[2] == 1;
}

static bool absent_or_floats(const struct bl_graph *g, bl_val v, uint32_t ne0, uint32_t ne1)
{
    return !v || is_floats(&g->vals[v], ne0, ne1);
}

static bool is_param(const struct bl_value *v, enum bl_param param)
{
    return v->origin == BL_PARAM && v->index == (int32_t)param;
}

static bool positive(float x)
{
    return isfinite(x) && x > 0;
}

bl_val bl_graph_embed(struct bl_graph *g, bl_val table, bl_val tokens, float scale)
{
    const bl_val src[] = {table, tokens};
    if (!ready(g, BL_OP_EMBED, src, 2))
        return 0;
    const struct bl_value *w = &g->vals[table], *t = &g->vals[tokens];
    if (!is_matrix(w) || !is_param(t, BL_PARAM_TOKENS) || !positive(scale))
        return refuse(g, BL_OP_EMBED, src, "a table {elements, rows}, token ids, a scale above 0");
    struct bl_value y = floats(w->ne[0], t->ne[0]);
    return emit(g, BL_OP_EMBED, src, &(struct bl_embed_attr){scale}, &y);
}

bl_val bl_graph_gather_rows(struct bl_graph *g, bl_val x, bl_val rows)
{
    const bl_val src[] = {x, rows};
    if (!ready(g, BL_OP_GATHER_ROWS, src, 2))
        return 0;
    const struct bl_value *a = &g->vals[x], *r = &g->vals[rows];
    if (!is_rows(a, BL_F32) || !is_param(r, BL_PARAM_OUT_ROWS))
        return refuse(g, BL_OP_GATHER_ROWS, src, "f32 {elements, tokens}, output rows");
    struct bl_value y = floats(a->ne[0], r->ne[0]);
    return emit(g, BL_OP_GATHER_ROWS, src, &no_attr, &y);
}

bl_val bl_graph_rms_norm(struct bl_graph *g, bl_val x, bl_val w, float eps)
{
    const bl_val src[] = {x, w};
    if (!ready(g, BL_OP_RMS_NORM, src, 2))
        return 0;
    const struct bl_value *a = &g->vals[x], *v = &g->vals[w];
    if (!is_rows(a, BL_F32) || !is_floats(v, v->ne[0], 1) || a->ne[0] % v->ne[0] || !positive(eps))
        return refuse(g, BL_OP_RMS_NORM, src, "whole runs of f32 w {n}, eps above 0");
    struct bl_value y = floats(a->ne[0], a->ne[1]);
    return emit(g, BL_OP_RMS_NORM, src, &(struct bl_norm_attr){eps}, &y);
}

bl_val bl_graph_matmul(struct bl_graph *g, bl_val w, bl_val x, bl_val bias, bl_val scale)
{
    const bl_val src[] = {w, x, bias, scale};
    if (!ready(g, BL_OP_MATMUL, src, 2))
        return 0;
    const struct bl_value *m = &g->vals[w], *a = &g->vals[x];
    if (!is_matrix(m) || !is_rows(a, BL_F32) || m->ne[0] != a->ne[0] ||
        !absent_or_floats(g, bias, m->ne[1], 1) || !absent_or_floats(g, scale, 1, 1))
        return refuse(g, BL_OP_MATMUL, src,
                      "w {in, out}, x {in, tokens}, [bias {out}], [scale {1}]");
    struct bl_value y = floats(m->ne[1], a->ne[1]);
    return emit(g, BL_OP_MATMUL, src, &no_attr, &y);
}

bl_val bl_graph_rope_angles(struct bl_graph *g, bl_val positions, bl_val factors,
                            const struct bl_angles_attr *at)
{
    const bl_val src[] = {positions, factors};
    if (!ready(g, BL_OP_ROPE_ANGLES, src, 1))
        return 0;
    const struct bl_value *p = &g->vals[positions];
    if (!is_param(p, BL_PARAM_POSITIONS) || !at->n_dims || at->n_dims % 2 ||
        !absent_or_floats(g, factors, at->n_dims / 2, 1))
        return refuse(g, BL_OP_ROPE_ANGLES, src, "positions, [factors {n_dims / 2}], even n_dims");
    if (!positive(at->base) || !positive(at->freq_scale) || !positive(at->magnitude) ||
        !isfinite(at->lo) || !isfinite(at->hi) || at->yarn > 1)
        return refuse(g, BL_OP_ROPE_ANGLES, src,
                      "base, freq_scale, magnitude above 0, finite lo, hi");
    struct bl_value y = floats(at->n_dims, p->ne[0]);
    return emit(g, BL_OP_ROPE_ANGLES, src, at, &y);
}

bl_val bl_graph_rope(struct bl_graph *g, bl_val x, bl_val angles, enum bl_rope_mode mode,
                     uint32_t head_elems)
{
    const bl_val src[] = {x, angles};
    if (!ready(g, BL_OP_ROPE, src, 2))
        return 0;
    const struct bl_value *a = &g->vals[x], *r = &g->vals[angles];
    if (!is_rows(a, BL_F32) || !is_rows(r, BL_F32) || a->ne[1] != r->ne[1] || !head_elems ||
        a->ne[0] % head_elems || r->ne[0] > head_elems || r->ne[0] % 2)
        return refuse(g, BL_OP_ROPE, src, "whole heads, angles {n_dims <= head, same tokens}");
    struct bl_value y = floats(a->ne[0], a->ne[1]);
    return emit(g, BL_OP_ROPE, src, &(struct bl_rope_attr){mode, head_elems, r->ne[0]}, &y);
}

/* The result is the state after the step: a new value of the same index, so that readers come after
 * the write. */
bl_val bl_graph_kv_store(struct bl_graph *g, bl_val x, bl_val state)
{
    const bl_val src[] = {x, state};
    if (!ready(g, BL_OP_KV_STORE, src, 2))
        return 0;
    const struct bl_value *a = &g->vals[x], *s = &g->vals[state];
    if (!is_rows(a, BL_F32) || s->origin != BL_STATE_ROWS || a->ne[0] != s->ne[0])
        return refuse(g, BL_OP_KV_STORE, src, "f32 {row, tokens}, a state of such rows");
    struct bl_value y = *s;
    return emit(g, BL_OP_KV_STORE, src, &no_attr, &y);
}

static bool attention_fits(const struct bl_graph *g, const bl_val *src,
                           const struct bl_attention_attr *at)
{
    const struct bl_value *q = &g->vals[src[0]], *k = &g->vals[src[1]], *v = &g->vals[src[2]];
    return is_rows(q, BL_F32) && k->origin == BL_STATE_ROWS && v->origin == BL_STATE_ROWS &&
           at->n_head && at->n_head_kv && at->n_head % at->n_head_kv == 0 &&
           (uint64_t)at->n_head * at->dk == q->ne[0] &&
           (uint64_t)at->n_head_kv * at->dk == k->ne[0] &&
           (uint64_t)at->n_head_kv * at->dv == v->ne[0] &&
           (uint64_t)at->n_head * at->dv <= UINT32_MAX && k->ne[1] == v->ne[1] &&
           k->ne[2] == v->ne[2] && absent_or_floats(g, src[3], at->n_head, 1);
}

bl_val bl_graph_attention(struct bl_graph *g, bl_val q, bl_val k, bl_val v, bl_val sinks,
                          const struct bl_attention_attr *at)
{
    const bl_val src[] = {q, k, v, sinks};
    if (!ready(g, BL_OP_ATTENTION, src, 3))
        return 0;
    if (!attention_fits(g, src, at))
        return refuse(g, BL_OP_ATTENTION, src,
                      "q {heads * dk}, k and v rows of heads_kv * dk, dv, [sinks {heads}]");
    if (!positive(at->scale))
        return refuse(g, BL_OP_ATTENTION, src, "a scale above 0");
    struct bl_value y = floats(at->n_head * at->dv, g->vals[q].ne[1]);
    return emit(g, BL_OP_ATTENTION, src, at, &y);
}

static bool valid_glu(const struct bl_glu_attr *at)
{
    if (at->kind == BL_GLU_SWIGLU_OAI)
        return positive(at->alpha) && positive(at->limit);
    return at->kind == BL_GLU_SILU || at->kind == BL_GLU_GELU_TANH;
}

bl_val bl_graph_glu(struct bl_graph *g, bl_val gate, bl_val up, const struct bl_glu_attr *at)
{
    const bl_val src[] = {gate, up};
    if (!ready(g, BL_OP_GLU, src, 2))
        return 0;
    const struct bl_value *a = &g->vals[gate], *b = &g->vals[up];
    if (!is_rows(a, BL_F32) || !same_value(a, b) || !valid_glu(at))
        return refuse(g, BL_OP_GLU, src, "two f32 values of one shape, a known kind");
    struct bl_value y = *a;
    return emit(g, BL_OP_GLU, src, at, &y);
}

bl_val bl_graph_add(struct bl_graph *g, bl_val a, bl_val b)
{
    const bl_val src[] = {a, b};
    if (!ready(g, BL_OP_ADD, src, 2))
        return 0;
    if (!is_rows(&g->vals[a], BL_F32) || !same_value(&g->vals[a], &g->vals[b]))
        return refuse(g, BL_OP_ADD, src, "two f32 values of one shape");
    struct bl_value y = g->vals[a];
    return emit(g, BL_OP_ADD, src, &no_attr, &y);
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

void bl_graph_route(struct bl_graph *g, bl_val logits, bl_val bias, const struct bl_route_attr *at,
                    bl_val *ids, bl_val *weights)
{
    const bl_val src[] = {logits, bias};
    *ids = *weights = 0;
    if (!ready(g, BL_OP_ROUTE, src, 1))
        return;
    const struct bl_value *z = &g->vals[logits];
    if (!is_rows(z, BL_F32) || !absent_or_floats(g, bias, z->ne[0], 1) ||
        !valid_route(z->ne[0], at)) {
        refuse(g, BL_OP_ROUTE, src, "f32 {experts, tokens}, [bias {experts}], 1 to experts used");
        return;
    }
    const struct bl_value y[] = {activation(BL_I32, at->n_used, z->ne[1]),
                                 floats(at->n_used, z->ne[1])};
    *ids = emit(g, BL_OP_ROUTE, src, at, y);
    *weights = *ids ? *ids + 1 : 0;
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
    return is_rows(x, BL_F32) && is_rows(ids, BL_I32) && is_rows(w, BL_F32) &&
           ids->ne[0] == at->n_used && w->ne[0] == at->n_used && ids->ne[1] == x->ne[1] &&
           w->ne[1] == x->ne[1] && at->n_used && at->n_used <= n &&
           is_experts(&g->vals[src[3]], n_embd, n_ff, n) &&
           is_experts(&g->vals[src[4]], n_embd, n_ff, n) &&
           is_experts(&g->vals[src[5]], n_ff, n_embd, n) && absent_or_floats(g, src[6], n_ff, n) &&
           absent_or_floats(g, src[7], n_ff, n) && absent_or_floats(g, src[8], n_embd, n) &&
           absent_or_floats(g, src[9], n, 1) && absent_or_floats(g, src[10], n, 1) &&
           absent_or_floats(g, src[11], n, 1) && valid_glu(&at->glu);
}

bl_val bl_graph_experts(struct bl_graph *g, bl_val x, bl_val ids, bl_val weights,
                        const struct bl_expert_vals *e, const struct bl_experts_attr *at)
{
    const bl_val src[] = {x,         ids,     weights,   e->gate,   e->up,   e->down,
                          e->gate_b, e->up_b, e->down_b, e->gate_s, e->up_s, e->down_s};
    if (!ready(g, BL_OP_EXPERTS, src, 6))
        return 0;
    if (!experts_fit(g, src, at))
        return refuse(g, BL_OP_EXPERTS, src,
                      "x, ids, weights, gate, up, down of one set of experts");
    struct bl_value y = g->vals[x];
    return emit(g, BL_OP_EXPERTS, src, at, &y);
}

bl_val bl_graph_softcap(struct bl_graph *g, bl_val x, float cap)
{
    const bl_val src[] = {x};
    if (!ready(g, BL_OP_SOFTCAP, src, 1))
        return 0;
    if (!is_rows(&g->vals[x], BL_F32) || !positive(cap))
        return refuse(g, BL_OP_SOFTCAP, src, "an f32 value, a cap above 0");
    struct bl_value y = g->vals[x];
    return emit(g, BL_OP_SOFTCAP, src, &(struct bl_softcap_attr){cap}, &y);
}

/* ---- print ---- */

static void put_node(struct text *t, const struct bl_graph *g, const struct bl_node *n)
{
    for (unsigned i = 0; i < n->n_dst; i++)
        put(t, "%s%%%u", i ? ", " : "", n->dst[i]);
    put(t, " = %s", bl_ops[n->op].name);
    for (unsigned i = 0; i < n->n_src; i++)
        if (bl_node_src(g, n, i))
            put(t, " %%%u", bl_node_src(g, n, i));
    put(t, "   ");
    put_shape(t, &g->vals[n->dst[0]]);
    put(t, "  ");
    put_place(t, n->part, n->layer);
}

/* Values are numbered as they appear: every one is a leaf or the destination of the next node. */
void bl_graph_print(const struct bl_graph *g, void (*line)(void *arg, const char *text), void *arg)
{
    char buf[256];
    uint32_t next = 0;
    for (bl_val v = 1; v < g->n_vals; v++) {
        struct text t = {buf, sizeof buf};
        if (next < g->n_nodes && g->nodes[next].dst[0] == v) {
            put_node(&t, g, &g->nodes[next]);
            v += g->nodes[next++].n_dst - 1u;
        } else {
            put(&t, "%%%u = ", v);
            put_leaf(&t, &g->vals[v]);
            put(&t, "   ");
            put_shape(&t, &g->vals[v]);
        }
        line(arg, buf);
    }
}

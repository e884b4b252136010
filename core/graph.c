/* SPDX-License-Identifier: MIT */
/* The graph itself: arrays, leaves, the first fault, printing. Ops are built in graph_ops.c. */
#include "graph_impl.h"

#include "mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum {
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
    _Static_assert(max_src <= BL_MAX_SOURCES, #op " has too many sources");
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
bl_val bl_graph_refuse(struct bl_graph *g, enum bl_op op, const bl_val *src, const char *needs)
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

bool bl_same_value(const struct bl_value *a, const struct bl_value *b)
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
        return bl_same_value(&g->vals[map[at]], v)
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

bool bl_graph_ready(struct bl_graph *g, enum bl_op op, const bl_val *src, unsigned required)
{
    if (g->failed)
        return false;
    for (unsigned i = 0; i < bl_ops[op].max_src; i++)
        if (src[i] >= g->n_vals || (i < required && !src[i])) {
            bl_graph_refuse(g, op, src, "all its sources");
            return false;
        }
    return true;
}

/* What reads or writes cached state runs where that lies, which may be apart from its layer's
 * weights. */
static uint8_t part_of(const struct bl_graph *g, const bl_val *src, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        if (src[i] && g->vals[src[i]].origin == BL_STATE_ROWS)
            return BL_PART_STATE;
    return g->part;
}

bl_val bl_graph_emit(struct bl_graph *g, enum bl_op op, const bl_val *src, const void *attr,
                     const struct bl_value *dst)
{
    const struct bl_op_info *info = &bl_ops[op];
    if (!reserve_node(g, info))
        return 0;
    struct bl_node *n = &g->nodes[g->n_nodes++];
    n->op = (uint8_t)op;
    n->part = part_of(g, src, info->max_src);
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

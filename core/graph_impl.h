/* SPDX-License-Identifier: MIT */
/* graph_impl.h — what builders of nodes share; private to core/graph*.c.
 *
 * Purpose   a builder checks its sources with the predicates below, then emits its node or refuses.
 * Ownership as graph.h.
 * Units     elements.
 * Errors    refuse marks the graph failed with the node, what it needs and the shapes it was given.
 * Threads   one thread per graph.
 */
#ifndef BL_GRAPH_IMPL_H
#define BL_GRAPH_IMPL_H

#include "graph.h"

#include <math.h>

enum { BL_MAX_SOURCES = 12 };

/* True when a node may be tried at all: no fault so far, the first `required` sources given, all of
 * them known. */
bool bl_graph_ready(struct bl_graph *, enum bl_op, const bl_val *src, unsigned required);
bl_val bl_graph_refuse(struct bl_graph *, enum bl_op, const bl_val *src, const char *needs); /* returns 0 */
/* src: bl_ops[op].max_src values. dst: as many shapes as the op has destinations; returns the first. */
bl_val bl_graph_emit(struct bl_graph *, enum bl_op, const bl_val *src, const void *attr,
                     const struct bl_value *dst);
bool bl_same_value(const struct bl_value *, const struct bl_value *); /* type, shape and origin */

static const struct bl_none_attr bl_no_attr = {0};

static inline struct bl_value bl_activation(enum bl_dtype type, uint32_t elems, uint32_t tokens)
{
    return (struct bl_value){
        .ne = {elems, tokens, 1, 1}, .type = (uint8_t)type, .origin = BL_ACTIVATION, .index = -1};
}

static inline struct bl_value bl_floats(uint32_t elems, uint32_t tokens)
{
    return bl_activation(BL_F32, elems, tokens);
}

static inline bool bl_is_rows(const struct bl_value *v, enum bl_dtype type)
{
    return v->origin == BL_ACTIVATION && v->type == type;
}

static inline bool bl_is_matrix(const struct bl_value *v)
{
    return v->origin == BL_WEIGHT && v->ne[2] == 1 && bl_dtypes[v->type].act != BL_ACT_NONE;
}

/* An F32 weight of exactly this shape. */
static inline bool bl_is_floats(const struct bl_value *v, uint32_t ne0, uint32_t ne1)
{
    return v->origin == BL_WEIGHT && v->type == BL_F32 && v->ne[0] == ne0 && v->ne[1] == ne1 &&
           v->ne[2] == 1;
}

static inline bool bl_absent_or_floats(const struct bl_graph *g, bl_val v, uint32_t ne0, uint32_t ne1)
{
    return !v || bl_is_floats(&g->vals[v], ne0, ne1);
}

static inline bool bl_is_param(const struct bl_value *v, enum bl_param param)
{
    return v->origin == BL_PARAM && v->index == (int32_t)param;
}

static inline bool bl_positive(float x)
{
    return isfinite(x) && x > 0;
}

#endif

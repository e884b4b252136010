/* SPDX-License-Identifier: MIT */
/* Residuals of several streams, rounding, and the choice among rows of groups. */
#include "vk_ops.h"

#include "mem.h"

/* ---- STREAM_WEIGHTS, STREAM_READ, STREAM_WRITE ---- */

static void weights_emit(struct bl_vk_builder *b)
{
    const struct bl_streams_attr *at = bl_vk_attr(b);
    struct bl_vk_call c = {.kernel = "stream_weights", .type = BL_VK_NO_TYPE};

    c.args =
        (struct bl_vk_args){.a = {bl_vk_reads(b, 0), bl_vk_reads(b, 1), bl_vk_weight(b, 2),
                                  bl_vk_weight(b, 3), bl_vk_writes(b, 0)},
                            .n = {at->n, bl_vk_src(b, 0)->ne[0], bl_vk_src(b, 1)->ne[0],
                                  at->iterations, bl_vk_float(at->norm_eps), bl_vk_float(at->eps)}};
    c.groups[0] = bl_vk_src(b, 0)->ne[1];
    bl_vk_emit(b, &c);
}

const struct bl_vk_op bl_vk_stream_weights = {.emit = weights_emit};

/* x: the source that is added, 0: none. */
static void mix(struct bl_vk_builder *b, unsigned weights, unsigned x, uint32_t elems)
{
    const struct bl_value *h = bl_vk_src(b, 0);
    struct bl_vk_call c = {.kernel = "stream_mix", .type = BL_VK_NO_TYPE};

    c.args = (struct bl_vk_args){.a = {bl_vk_reads(b, 0), bl_vk_reads(b, weights),
                                       bl_vk_writes(b, 0), x ? bl_vk_reads(b, x) : 0},
                                 .n = {h->ne[0] / elems, elems, bl_vk_src(b, weights)->ne[0]}};
    c.groups[0] = bl_vk_groups(elems, BL_VK_GROUP);
    c.groups[1] = h->ne[1];
    bl_vk_emit(b, &c);
}

static void read_emit(struct bl_vk_builder *b)
{
    mix(b, 1, 0, bl_vk_dst(b, 0)->ne[0]);
}

static void write_emit(struct bl_vk_builder *b)
{
    mix(b, 2, 1, bl_vk_src(b, 1)->ne[0]);
}

const struct bl_vk_op bl_vk_stream_read = {.emit = read_emit};
const struct bl_vk_op bl_vk_stream_write = {.emit = write_emit};

/* ---- ROUND, HADAMARD ---- */

static void round_emit(struct bl_vk_builder *b)
{
    const struct bl_round_attr *at = bl_vk_attr(b);
    const struct bl_value *x = bl_vk_src(b, 0);
    struct bl_vk_call c = {.kernel = "round", .type = BL_VK_NO_TYPE};

    c.args = (struct bl_vk_args){.a = {bl_vk_reads(b, 0), bl_vk_writes(b, 0)},
                                 .n = {at->kind, at->run, at->n, at->group}};
    c.groups[0] = bl_vk_groups(at->run, 32 * at->group);
    c.groups[1] = x->ne[0] / at->run;
    c.groups[2] = x->ne[1];
    bl_vk_emit(b, &c);
}

const struct bl_vk_op bl_vk_round = {.emit = round_emit};

static void hadamard_emit(struct bl_vk_builder *b)
{
    const struct bl_hadamard_attr *at = bl_vk_attr(b);
    const struct bl_value *x = bl_vk_src(b, 0);
    struct bl_vk_call c = {.kernel = "hadamard", .type = BL_VK_NO_TYPE};

    c.args = (struct bl_vk_args){.a = {bl_vk_reads(b, 0), bl_vk_writes(b, 0)}, .n = {at->run}};
    c.groups[0] = x->ne[0] / at->run;
    c.groups[1] = x->ne[1];
    bl_vk_emit(b, &c);
}

const struct bl_vk_op bl_vk_hadamard = {.emit = hadamard_emit};

/* ---- CHOOSE ---- */

enum { ROW_GROUPS = 64 }; /* work groups that share the rows of a token, at most */

static void score(struct bl_vk_builder *b, const struct bl_vk_choose_layout *l)
{
    const struct bl_choose_attr *at = bl_vk_attr(b);
    const struct bl_value *rows = bl_vk_src(b, 2);
    struct bl_vk_call c = {.kernel = "choose_score", .type = BL_VK_NO_TYPE, .spec = {rows->type}};

    c.args = (struct bl_vk_args){.a = {bl_vk_reads(b, 0), bl_vk_reads(b, 1), bl_vk_reads(b, 2),
                                       bl_vk_scratch(b, l->scores, l->heap, true), b->params},
                                 .n = {at->n_head, at->dk, at->n, at->group, rows->ne[1],
                                       (uint32_t)bl_dtype_row_bytes(rows->type, rows->ne[0])}};
    c.groups[0] = bl_vk_groups(rows->ne[1], BL_VK_GROUP / b->dev->facts.subgroup);
    c.groups[0] = c.groups[0] < ROW_GROUPS ? c.groups[0] : ROW_GROUPS;
    c.groups[1] = bl_vk_src(b, 0)->ne[1];
    bl_vk_emit(b, &c);
}

static void choose_emit(struct bl_vk_builder *b)
{
    const struct bl_choose_attr *at = bl_vk_attr(b);
    const struct bl_vk_choose_layout l = bl_vk_choose_layout(b->graph, b->node);
    struct bl_vk_call c = {.kernel = "choose_best", .type = BL_VK_NO_TYPE};

    score(b, &l);
    c.args =
        (struct bl_vk_args){.a = {bl_vk_scratch(b, l.scores, l.heap, false), bl_vk_writes(b, 0),
                                  b->params, bl_vk_scratch(b, l.heap, l.bytes - l.heap, true)},
                            .n = {at->n, at->group, bl_vk_src(b, 2)->ne[1]}};
    c.groups[0] = bl_vk_src(b, 0)->ne[1];
    bl_vk_emit(b, &c);
}

const struct bl_vk_op bl_vk_choose = {.emit = choose_emit};

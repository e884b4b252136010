/* SPDX-License-Identifier: MIT */
/* Ops that work token by token or element by element, and the table of all. */
#include "vk_ops.h"

#include <math.h>

enum { ADD, SOFTCAP, SLICE, CONCAT, REPEAT }; /* element.comp */

static uint32_t n_of(const struct bl_vk_builder *b, unsigned src)
{
    return bl_vk_src(b, src)->ne[0];
}

static uint32_t rows_of(const struct bl_vk_builder *b, unsigned src)
{
    return bl_vk_src(b, src)->ne[1];
}

/* ---- EMBED, GATHER_ROWS ---- */

static void embed_emit(struct bl_vk_builder *b)
{
    const struct bl_value *table = bl_vk_src(b, 0);
    const struct bl_embed_attr *at = bl_vk_attr(b);
    struct bl_vk_call c = {.kernel = "embed", .type = table->type};

    c.args = (struct bl_vk_args){.a = {bl_vk_weight(b, 0), bl_vk_writes(b, 0), b->params},
                                 .n = {table->ne[0],
                                       (uint32_t)bl_dtype_row_bytes(table->type, table->ne[0]),
                                       bl_vk_float(at->scale)}};
    c.groups[0] = bl_vk_groups(table->ne[0], 8 * 64);
    c.groups[1] = bl_vk_dst(b, 0)->ne[1];
    bl_vk_emit(b, &c);
}

static void gather_emit(struct bl_vk_builder *b)
{
    struct bl_vk_call c = {.kernel = "gather_rows", .type = BL_VK_NO_TYPE};

    c.args = (struct bl_vk_args){.a = {bl_vk_reads(b, 0), bl_vk_writes(b, 0), b->params},
                                 .n = {n_of(b, 0)}};
    c.groups[0] = bl_vk_groups(n_of(b, 0), BL_VK_GROUP);
    c.groups[1] = bl_vk_dst(b, 0)->ne[1];
    bl_vk_emit(b, &c);
}

/* ---- RMS_NORM ---- */

static void norm_emit(struct bl_vk_builder *b)
{
    const struct bl_norm_attr *at = bl_vk_attr(b);
    struct bl_vk_call c = {.kernel = "rms_norm", .type = BL_VK_NO_TYPE};

    c.args = (struct bl_vk_args){.a = {bl_vk_reads(b, 0), bl_vk_weight(b, 1), bl_vk_writes(b, 0)},
                                 .n = {at->run, bl_vk_float(at->eps)}};
    c.groups[0] = n_of(b, 0) / at->run;
    c.groups[1] = rows_of(b, 0);
    bl_vk_emit(b, &c);
}

/* ---- positions ---- */

/* n of rope_angles.comp that it cannot make itself: base^(-2 / n_dims) in double, pairs of the
 * axes. */
static void angle_numbers(const struct bl_angles_attr *at, uint32_t n[4])
{
    const double step = pow((double)at->base, -2.0 / at->n_dims);
    uint64_t bits;

    memcpy(&bits, &step, sizeof bits);
    n[0] = (uint32_t)bits;
    n[1] = (uint32_t)(bits >> 32);
    n[2] = at->sections[0] | at->sections[1] << 16;
    n[3] = at->sections[2] | at->sections[3] << 16;
}

static void angles_emit(struct bl_vk_builder *b)
{
    const struct bl_angles_attr *at = bl_vk_attr(b);
    struct bl_vk_call c = {.kernel = "rope_angles", .type = BL_VK_NO_TYPE};

    c.args = (struct bl_vk_args){.a = {bl_vk_weight(b, 1), bl_vk_writes(b, 0), b->params},
                                 .n = {at->n_dims, at->group ? at->group : 1, at->inverse, at->yarn,
                                       bl_vk_float(at->freq_scale), bl_vk_float(at->magnitude),
                                       bl_vk_float(at->lo), bl_vk_float(at->hi)}};
    angle_numbers(at, c.args.n + 8);
    c.groups[0] = bl_vk_groups(at->n_dims / 2, 64);
    c.groups[1] = bl_vk_dst(b, 0)->ne[1];
    bl_vk_emit(b, &c);
}

static void rope_emit(struct bl_vk_builder *b)
{
    const struct bl_rope_attr *at = bl_vk_attr(b);
    const uint32_t n = n_of(b, 0);
    struct bl_vk_call c = {.kernel = "rope", .type = BL_VK_NO_TYPE};

    c.args = (struct bl_vk_args){
        .a = {bl_vk_reads(b, 0), bl_vk_reads(b, 1), bl_vk_writes(b, 0)},
        .n = {n, at->head_elems, at->n_dims, at->first, at->mode == BL_ROPE_NEOX}};
    c.groups[0] = bl_vk_groups((uint64_t)n / at->head_elems * ((at->head_elems + 1) / 2), 64);
    c.groups[1] = rows_of(b, 0);
    bl_vk_emit(b, &c);
}

static void temper_emit(struct bl_vk_builder *b)
{
    const struct bl_temper_attr *at = bl_vk_attr(b);
    struct bl_vk_call c = {.kernel = "temper", .type = BL_VK_NO_TYPE};

    c.args = (struct bl_vk_args){.a = {bl_vk_reads(b, 0), bl_vk_writes(b, 0), b->params},
                                 .n = {n_of(b, 0), bl_vk_float(at->scale), at->every}};
    c.groups[0] = bl_vk_groups(n_of(b, 0), BL_VK_GROUP);
    c.groups[1] = rows_of(b, 0);
    bl_vk_emit(b, &c);
}

/* ---- KV_STORE ---- */

static void store_emit(struct bl_vk_builder *b)
{
    const struct bl_value *state = bl_vk_src(b, 1);
    const struct bl_store_attr *at = bl_vk_attr(b);
    struct bl_vk_call c = {.kernel = "kv_store", .type = state->type};

    c.args = (struct bl_vk_args){.a = {bl_vk_reads(b, 0), bl_vk_writes(b, 0), b->params},
                                 .n = {state->ne[0],
                                       (uint32_t)bl_dtype_row_bytes(state->type, state->ne[0]),
                                       state->ne[1], at->group}};
    c.groups[0] = bl_vk_groups(state->ne[0], 32 * 32);
    c.groups[1] = rows_of(b, 0);
    bl_vk_emit(b, &c);
}

/* ---- element by element ---- */

static void glu_emit(struct bl_vk_builder *b)
{
    const struct bl_glu_attr *at = bl_vk_attr(b);
    const uint32_t n = n_of(b, 1);
    struct bl_vk_call c = {.kernel = "glu", .type = BL_VK_NO_TYPE};

    c.args = (struct bl_vk_args){
        .a = {bl_vk_reads(b, 0), bl_vk_reads(b, 1), bl_vk_writes(b, 0)},
        .n = {n, n_of(b, 0), at->kind, bl_vk_float(at->alpha), bl_vk_float(at->limit)}};
    c.groups[0] = bl_vk_groups(n, BL_VK_GROUP);
    c.groups[1] = rows_of(b, 1);
    bl_vk_emit(b, &c);
}

/* n[1..5): of the kind, element.comp says which. */
static void element_emit(struct bl_vk_builder *b, uint32_t kind, const uint32_t n[4])
{
    const uint32_t elems = bl_vk_dst(b, 0)->ne[0];
    struct bl_vk_call c = {.kernel = "element", .type = BL_VK_NO_TYPE, .spec = {kind}};

    for (unsigned i = 0; i < bl_ops[b->node->op].max_src; i++)
        c.args.a[i] = bl_vk_reads(b, i);
    c.args.a[3] = bl_vk_writes(b, 0);
    c.args.n[0] = elems;
    memcpy(c.args.n + 1, n, 4 * sizeof *n);
    c.groups[0] = bl_vk_groups(elems, BL_VK_GROUP);
    c.groups[1] = bl_vk_dst(b, 0)->ne[1];
    bl_vk_emit(b, &c);
}

static void add_emit(struct bl_vk_builder *b)
{
    element_emit(b, ADD, (const uint32_t[4]){0});
}

static void softcap_emit(struct bl_vk_builder *b)
{
    const struct bl_softcap_attr *at = bl_vk_attr(b);
    element_emit(b, SOFTCAP, (const uint32_t[4]){bl_vk_float(at->cap)});
}

static void slice_emit(struct bl_vk_builder *b)
{
    const struct bl_slice_attr *at = bl_vk_attr(b);
    element_emit(b, SLICE, (const uint32_t[4]){n_of(b, 0), at->run, at->first, at->n});
}

static void concat_emit(struct bl_vk_builder *b)
{
    const uint32_t runs = ((const struct bl_concat_attr *)bl_vk_attr(b))->runs;
    uint32_t n[4] = {0, 0, 0, runs};

    for (unsigned i = 0; i < 3; i++)
        n[i] = bl_node_src(b->graph, b->node, i) ? n_of(b, i) / runs : 0;
    element_emit(b, CONCAT, n);
}

static void repeat_emit(struct bl_vk_builder *b)
{
    element_emit(b, REPEAT, (const uint32_t[4]){n_of(b, 0)});
}

/* ---- the table ---- */

static const struct bl_vk_op plain_ops[BL_N_OPS] = {
    [BL_OP_EMBED] = {.emit = embed_emit},    [BL_OP_GATHER_ROWS] = {.emit = gather_emit},
    [BL_OP_RMS_NORM] = {.emit = norm_emit},  [BL_OP_ROPE_ANGLES] = {.emit = angles_emit},
    [BL_OP_ROPE] = {.emit = rope_emit},      [BL_OP_TEMPER] = {.emit = temper_emit},
    [BL_OP_KV_STORE] = {.emit = store_emit}, [BL_OP_GLU] = {.emit = glu_emit},
    [BL_OP_ADD] = {.emit = add_emit},        [BL_OP_SOFTCAP] = {.emit = softcap_emit},
    [BL_OP_SLICE] = {.emit = slice_emit},    [BL_OP_CONCAT] = {.emit = concat_emit},
    [BL_OP_REPEAT] = {.emit = repeat_emit},
};

/* Ops of files of their own. */
static const struct bl_vk_op *const other_ops[BL_N_OPS] = {
    [BL_OP_MATMUL] = &bl_vk_matmul,
    [BL_OP_MATMUL_HEADS] = &bl_vk_matmul_heads,
    [BL_OP_ATTENTION] = &bl_vk_attention,
    [BL_OP_ATTENTION_GROUPS] = &bl_vk_attention,
    [BL_OP_ROUTE] = &bl_vk_route,
    [BL_OP_EXPERTS] = &bl_vk_experts,
    [BL_OP_SHORT_CONV] = &bl_vk_short_conv,
    [BL_OP_DELTA_RULE] = &bl_vk_delta_rule,
    [BL_OP_STREAM_WEIGHTS] = &bl_vk_stream_weights,
    [BL_OP_STREAM_READ] = &bl_vk_stream_read,
    [BL_OP_STREAM_WRITE] = &bl_vk_stream_write,
    [BL_OP_COMPRESS] = &bl_vk_compress,
    [BL_OP_ROUND] = &bl_vk_round,
    [BL_OP_HADAMARD] = &bl_vk_hadamard,
    [BL_OP_CHOOSE] = &bl_vk_choose,
};

const struct bl_vk_op *bl_vk_op_of(const struct bl_node *n)
{
    if (n->op >= BL_N_OPS)
        return NULL;
    const struct bl_vk_op *op = other_ops[n->op] ? other_ops[n->op] : &plain_ops[n->op];
    return op->emit ? op : NULL;
}

/* SPDX-License-Identifier: MIT */
/* SHORT_CONV, DELTA_RULE and COMPRESS: what keeps a state that every token changes. */
#include "vk_ops.h"

/* ---- SHORT_CONV ---- */

static void conv_call(struct bl_vk_builder *b, bool keep)
{
    const struct bl_value *w = bl_vk_src(b, 1), *state = bl_vk_src(b, 2);
    struct bl_vk_call c = {.kernel = "short_conv", .type = BL_VK_NO_TYPE, .spec = {keep}};

    c.args = (struct bl_vk_args){.a = {bl_vk_reads(b, 0), bl_vk_weight(b, 1),
                                       keep ? 0 : bl_vk_writes(b, 0),
                                       keep ? bl_vk_writes(b, 1) : bl_vk_reads(b, 2), b->params},
                                 .n = {w->ne[1], w->ne[0], state->ne[1],
                                       ((const struct bl_conv_attr *)bl_vk_attr(b))->silu}};
    c.groups[0] = bl_vk_groups(w->ne[1], BL_VK_GROUP);
    c.groups[1] = bl_vk_src(b, 0)->ne[1];
    bl_vk_emit(b, &c);
}

static void conv_emit(struct bl_vk_builder *b)
{
    conv_call(b, false);
    conv_call(b, true);
}

const struct bl_vk_op bl_vk_short_conv = {.emit = conv_emit};

/* ---- DELTA_RULE ---- */

static void delta_emit(struct bl_vk_builder *b)
{
    const struct bl_delta_attr *at = bl_vk_attr(b);
    struct bl_vk_call c = {.kernel = "delta_rule", .type = BL_VK_NO_TYPE};

    c.args = (struct bl_vk_args){
        .a = {bl_vk_reads(b, 0), bl_vk_reads(b, 1), bl_vk_reads(b, 2), bl_vk_weight(b, 3),
              bl_vk_weight(b, 4), bl_vk_writes(b, 0), bl_vk_writes(b, 1), b->params},
        .n = {at->n_head_k, at->n_head_v, at->dk, at->dv, at->tiled, bl_vk_float(at->eps),
              bl_vk_float(at->scale), bl_vk_src(b, 5)->ne[1], bl_vk_src(b, 0)->ne[0]}};
    c.groups[0] = bl_vk_groups(at->dv, BL_VK_GROUP / b->dev->facts.subgroup);
    c.groups[1] = at->n_head_v;
    /* a token: nine loops over what an invocation has of a row, each with the turn that ends it */
    bl_vk_turns(b, (uint64_t)bl_vk_src(b, 0)->ne[1] *
                       (9 * (uint64_t)(at->dk / b->dev->facts.subgroup + 2) + 1));
    bl_vk_emit(b, &c);
}

const struct bl_vk_op bl_vk_delta_rule = {.emit = delta_emit};

/* ---- COMPRESS ---- */

static void compress_emit(struct bl_vk_builder *b)
{
    const struct bl_compress_attr *at = bl_vk_attr(b);
    const struct bl_value *ape = bl_vk_src(b, 2);
    const uint32_t n = bl_vk_dst(b, 0)->ne[0];
    struct bl_vk_call c = {.kernel = "compress", .type = BL_VK_NO_TYPE, .spec = {ape->type}};

    c.args = (struct bl_vk_args){.a = {bl_vk_reads(b, 0), bl_vk_reads(b, 1), bl_vk_weight(b, 2),
                                       bl_vk_writes(b, 0), bl_vk_writes(b, 1), b->params},
                                 .n = {n, 1 + at->overlap, at->group, bl_vk_src(b, 3)->ne[1],
                                       (uint32_t)bl_dtype_row_bytes(ape->type, ape->ne[0])}};
    c.groups[0] = bl_vk_groups(n, 32);
    bl_vk_emit(b, &c);
}

const struct bl_vk_op bl_vk_compress = {.emit = compress_emit};

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

/* The state is in memory after every token, so a dispatch may go on where another ended. */
static void delta_emit(struct bl_vk_builder *b)
{
    const struct bl_delta_attr *at = bl_vk_attr(b);
    const uint32_t own = bl_vk_groups(at->dk, b->dev->facts.narrowest);
    const uint32_t n_tok = bl_vk_src(b, 0)->ne[1];
    const uint32_t each = bl_vk_groups(n_tok, bl_vk_passes(b, n_tok * (10 * (own + 1ull) + 1)));

    for (uint32_t first = 0; first < n_tok; first += each) {
        struct bl_vk_call c = {.kernel = "delta_rule", .type = BL_VK_NO_TYPE};
        c.spec[0] = own;
        c.args = (struct bl_vk_args){
            .a = {bl_vk_reads(b, 0), bl_vk_reads(b, 1), bl_vk_reads(b, 2), bl_vk_weight(b, 3),
                  bl_vk_weight(b, 4), bl_vk_writes(b, 0), bl_vk_writes(b, 1), b->params},
            .n = {at->n_head_k, at->n_head_v, at->dk, at->dv, at->tiled, bl_vk_float(at->eps),
                  bl_vk_float(at->scale), bl_vk_src(b, 5)->ne[1], bl_vk_src(b, 0)->ne[0], first,
                  each}};
        c.groups[0] = bl_vk_groups(at->dv, BL_VK_GROUP / b->dev->facts.subgroup);
        c.groups[1] = at->n_head_v;
        bl_vk_emit(b, &c);
    }
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

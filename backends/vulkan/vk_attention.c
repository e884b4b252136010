/* SPDX-License-Identifier: MIT */
/* ATTENTION and ATTENTION_GROUPS. */
#include "vk_ops.h"

enum { Q, K, V, SINKS, ROWS, CHOSEN }; /* sources */
enum { KEYS = 128 };                   /* attention.comp */

static void add_groups(struct bl_vk_builder *b, struct bl_vk_args *a)
{
    if (b->node->op != BL_OP_ATTENTION_GROUPS)
        return;
    a->a[4] = bl_vk_reads(b, ROWS);
    a->n[9] = bl_vk_src(b, ROWS)->ne[1];
    a->n[10] = ((const struct bl_groups_attr *)bl_vk_attr(b))->group;
    if (!bl_node_src(b->graph, b->node, CHOSEN))
        return;
    a->a[5] = bl_vk_reads(b, CHOSEN);
    a->n[11] = bl_vk_src(b, CHOSEN)->ne[0];
}

static void merge(struct bl_vk_builder *b, uint32_t splits)
{
    const struct bl_attention_attr *at = bl_vk_attr(b);
    struct bl_vk_call c = {.kernel = "attention_merge", .type = BL_VK_NO_TYPE};

    c.args = (struct bl_vk_args){
        .a = {bl_vk_scratch(b, 0, bl_vk_attention_bytes(b->graph, b->node), false),
              bl_vk_weight(b, SINKS), bl_vk_writes(b, 0), b->params},
        .n = {at->n_head, at->dv, splits}};
    c.groups[0] = at->n_head;
    c.groups[1] = bl_vk_src(b, Q)->ne[1];
    bl_vk_emit(b, &c);
}

/* Of one split, by the loops of attention.comp, each with the turn that ends it. */
static uint64_t turns(const struct bl_vk_builder *b, uint32_t splits)
{
    const struct bl_attention_attr *at = bl_vk_attr(b);
    const uint32_t rows = bl_vk_src(b, K)->ne[1], own = (at->dv + 127) / 128;
    uint64_t all = at->window && at->window < rows ? at->window : rows;
    if (bl_node_src(b->graph, b->node, CHOSEN))
        all += bl_vk_src(b, CHOSEN)->ne[0];
    else if (bl_node_src(b->graph, b->node, ROWS))
        all += bl_vk_src(b, ROWS)->ne[1];
    return (all / splits / KEYS + 1) *
           (KEYS * (2 + own) + own + at->dk + 3 * b->dev->facts.subgroup + 32);
}

static void attention_emit(struct bl_vk_builder *b)
{
    const struct bl_attention_attr *at = bl_vk_attr(b); /* ATTENTION_GROUPS begins with it */
    const struct bl_value *k = bl_vk_src(b, K), *v = bl_vk_src(b, V);
    const uint32_t splits = bl_vk_splits(b->graph, b->node);
    struct bl_vk_call c = {
        .kernel = "attention", .type = BL_VK_NO_TYPE, .spec = {k->type, v->type, splits}};

    c.args = (struct bl_vk_args){
        .a = {bl_vk_reads(b, Q), bl_vk_reads(b, K), bl_vk_reads(b, V), bl_vk_weight(b, SINKS)},
        .n = {at->n_head, at->n_head_kv, at->dk, at->dv, at->window, bl_vk_float(at->scale),
              k->ne[1], (uint32_t)bl_dtype_row_bytes(k->type, k->ne[0]),
              (uint32_t)bl_dtype_row_bytes(v->type, v->ne[0])}};
    add_groups(b, &c.args);
    c.args.a[7] = b->params;
    if (splits > 1)
        c.args.a[8] = bl_vk_scratch(b, 0, bl_vk_attention_bytes(b->graph, b->node), true);
    else
        c.args.a[6] = bl_vk_writes(b, 0);
    c.groups[0] = at->n_head;
    c.groups[1] = bl_vk_src(b, Q)->ne[1];
    c.groups[2] = splits;
    bl_vk_turns(b, turns(b, splits));
    bl_vk_emit(b, &c);
    if (splits > 1)
        merge(b, splits);
}

const struct bl_vk_op bl_vk_attention = {.emit = attention_emit};

/* SPDX-License-Identifier: MIT */
/* ATTENTION and ATTENTION_GROUPS. */
#include "vk_ops.h"

enum { Q, K, V, SINKS, ROWS, CHOSEN };                          /* sources */
enum { MOST_QUERIES = 32, KEYS = 32, DEPTH = 32, WIDTH = 128 }; /* attention.comp */

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

/* Of a work group. An invocation holds every WIDTH-th value of all its queries: 64 at most. */
struct queries {
    uint32_t heads, tokens, blocks; /* blocks: of heads, for each key head */
};

static struct queries queries_of(const struct bl_attention_attr *at, uint32_t n_tok)
{
    const uint32_t gqa = at->n_head / at->n_head_kv;
    const uint32_t most = at->dv <= 256 ? MOST_QUERIES : at->dv <= 512 ? 16 : 8;
    struct queries q = {.blocks = bl_vk_groups(gqa, most)};

    q.heads = bl_vk_groups(gqa, q.blocks);
    q.tokens = n_tok > BL_FEW_TOKENS ? most / q.heads : 1;
    return q;
}

/* Turns of loops of an invocation that goes over all that tokens of different sequences see. */
static uint64_t turns(const struct bl_attention_attr *at, const struct queries *q, uint64_t seen)
{
    const uint64_t blocks = bl_vk_groups(seen, KEYS) + 1;
    const uint32_t k_chunks = bl_vk_groups(at->dk, DEPTH), v_chunks = bl_vk_groups(at->dv, WIDTH);
    const uint32_t odd = at->dk % 8 || at->dv % 8 ? 60 : 0; /* element by element */
    return q->tokens *
           (blocks * (k_chunks * (DEPTH + 4 + odd) + v_chunks * (KEYS / 4 + 7 + odd) + 2) + 4);
}

static uint32_t n_passes(struct bl_vk_builder *b, const struct queries *q, uint32_t splits)
{
    const uint64_t seen = bl_vk_most_seen(b->graph, b->node);
    const uint32_t n = bl_vk_passes(b, turns(bl_vk_attr(b), q, bl_vk_groups(seen, splits)));

    if (splits == 1 && bl_vk_src(b, Q)->ne[1] > BL_FEW_TOKENS)
        return n;
    if (n > 1 && !b->status)
        b->status = bl_fail(BL_ELIMIT,
                            "%s: attention to %llu rows of %u elements is more than a driver that "
                            "computes on the CPU does at a time; use the CPU itself",
                            b->dev->base.name, (unsigned long long)seen,
                            ((const struct bl_attention_attr *)bl_vk_attr(b))->dk);
    return 1;
}

static void attention_emit(struct bl_vk_builder *b)
{
    const struct bl_attention_attr *at = bl_vk_attr(b);
    const struct bl_value *k = bl_vk_src(b, K), *v = bl_vk_src(b, V);
    const uint32_t splits = bl_vk_splits(b->graph, b->node), n_tok = bl_vk_src(b, Q)->ne[1];
    const uint64_t scratch = bl_vk_attention_bytes(b->graph, b->node);
    const struct queries q = queries_of(at, n_tok);
    const uint32_t passes = n_passes(b, &q, splits);

    for (uint32_t pass = 0; pass < passes; pass++) {
        struct bl_vk_call c = {
            .kernel = "attention",
            .type = BL_VK_NO_TYPE,
            .spec = {k->type, v->type, splits, q.heads, q.tokens, at->dk, at->dv}};
        c.args = (struct bl_vk_args){
            .a = {bl_vk_reads(b, Q), bl_vk_reads(b, K), bl_vk_reads(b, V), bl_vk_weight(b, SINKS)},
            .n = {at->n_head, at->n_head_kv, 0, 0, at->window, bl_vk_float(at->scale), k->ne[1],
                  (uint32_t)bl_dtype_row_bytes(k->type, k->ne[0]), pass | passes << 16}};
        add_groups(b, &c.args);
        if (splits == 1)
            c.args.a[6] = bl_vk_writes(b, 0);
        c.args.a[7] = b->params;
        if (scratch)
            c.args.a[8] = bl_vk_scratch(b, 0, scratch, true);
        c.groups[0] = at->n_head_kv * q.blocks;
        c.groups[1] = bl_vk_groups(n_tok, q.tokens);
        c.groups[2] = splits;
        bl_vk_emit(b, &c);
    }
    if (splits > 1)
        merge(b, splits);
}

const struct bl_vk_op bl_vk_attention = {.emit = attention_emit};

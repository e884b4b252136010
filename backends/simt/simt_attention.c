/* SPDX-License-Identifier: MIT */
/* ATTENTION and ATTENTION_GROUPS. */
#include "simt_rows.h"

#include "mem.h"

enum { Q, K, V, SINKS, ROWS, CHOSEN }; /* sources */
enum {
    LEAST_SPLIT = 256,
    MOST_SPLITS = 32,
    MOST_DV = 1024,
    THREADS = 256
}; /* rows; attention.cu */
enum { FEW_ROWS = 8, MANY_ROWS = 32, MERGE_THREADS = 128 };

static bool attention_supports(const struct bl_graph *g, const struct bl_node *n)
{
    const struct bl_attention_attr *at = bl_node_attr(g, n);
    const struct bl_value *k = &g->vals[bl_node_src(g, n, K)], *v = &g->vals[bl_node_src(g, n, V)];
    uint32_t kv;
    return bl_simt_kv(k->type, &kv) && bl_simt_kv(v->type, &kv) && at->dv <= MOST_DV &&
           bl_dtype_row_bytes(k->type, at->dk) && bl_dtype_row_bytes(v->type, at->dv);
}

/* Few tokens leave most of a device idle unless what they see is divided too. */
static uint32_t n_splits(const struct bl_graph *g, const struct bl_node *n)
{
    const uint32_t rows = g->vals[bl_node_src(g, n, K)].ne[1];
    const uint32_t splits = (rows + LEAST_SPLIT - 1) / LEAST_SPLIT;
    if (g->vals[bl_node_src(g, n, Q)].ne[1] > BL_FEW_TOKENS || splits < 2)
        return 1;
    return splits < MOST_SPLITS ? splits : MOST_SPLITS;
}

static uint64_t attention_scratch(const struct bl_graph *g, const struct bl_node *n)
{
    const struct bl_attention_attr *at = bl_node_attr(g, n);
    const uint32_t splits = n_splits(g, n);
    if (splits == 1)
        return 0;
    return (uint64_t)g->vals[bl_node_src(g, n, Q)].ne[1] * at->n_head * splits * (at->dv + 2) *
           sizeof(float);
}

static void merge(struct bl_simt_builder *b, uint32_t splits)
{
    const struct bl_attention_attr *at = bl_simt_attr(b);
    struct bl_simt_call c = {.kernel = "attention_merge",
                             .type = BL_SIMT_NO_TYPE,
                             .grid = {at->n_head, bl_simt_src(b, Q)->ne[1]},
                             .block = {MERGE_THREADS}};

    c.args =
        (struct bl_simt_args){.a = {bl_simt_scratch(b, 0, attention_scratch(b->graph, b->node)),
                                    bl_simt_src_addr(b, SINKS), bl_simt_dst_addr(b, 0), b->params},
                              .n = {at->n_head, at->dv, splits}};
    bl_simt_emit(b, &c);
}

/* ---- which kernel ---- */

struct shape { /* a block's rows, and the most elements of keys and values */
    const char *kernel;
    uint32_t rows, threads, dk, dv;
};
/* attention_halves.cu */
static const struct shape halves[] = {{"attendh_128", 64, 256, 128, 128},
                                      {"attendh_256", 32, 128, 256, 256},
                                      {"attendh_576", 16, 128, 576, 512}};
/* attention.cu */
static const struct shape many_floats[] = {{"attend32_128", MANY_ROWS, THREADS, UINT32_MAX, 128},
                                           {"attend32_512", MANY_ROWS, THREADS, UINT32_MAX, 512}};
static const struct shape few_floats[] = {{"attend8_128", FEW_ROWS, THREADS, UINT32_MAX, 128},
                                          {"attend8_512", FEW_ROWS, THREADS, UINT32_MAX, 512},
                                          {"attend8_1024", FEW_ROWS, THREADS, UINT32_MAX, MOST_DV}};

static const struct shape *first_that_fits(const struct shape *s, size_t n,
                                           const struct bl_attention_attr *at)
{
    for (size_t i = 0; i < n; i++)
        if (at->dk <= s[i].dk && at->dv <= s[i].dv)
            return &s[i];
    return NULL;
}

/* What halves and their products of a row of state cannot overflow or lose. */
static bool is_halved(const struct bl_value *v)
{
    return v->type == BL_F16 || v->type == BL_Q8_0 || v->type == BL_Q4_0;
}

static const struct shape *shape_of(const struct bl_simt_builder *b, bool many, bool chosen)
{
    const struct bl_attention_attr *at = bl_simt_attr(b);
    const bool floats = b->exact || !is_halved(bl_simt_src(b, K)) || !is_halved(bl_simt_src(b, V));
    const struct shape *s = NULL;

    many = many && (!chosen || at->n_head / at->n_head_kv > FEW_ROWS);
    if (many && !floats)
        s = first_that_fits(halves, BL_COUNT(halves), at);
    if (many && !s)
        s = first_that_fits(many_floats, BL_COUNT(many_floats), at);
    return s ? s : first_that_fits(few_floats, BL_COUNT(few_floats), at);
}

/* Rows of a block: heads that share a key head, and tokens where there are many and all see the
 * same. */
static void tile(const struct bl_simt_builder *b, struct bl_simt_call *c)
{
    const struct bl_attention_attr *at = bl_simt_attr(b);
    const uint32_t n_tok = bl_simt_src(b, Q)->ne[1], group = at->n_head / at->n_head_kv;
    const bool chosen = bl_node_src(b->graph, b->node, CHOSEN) != 0, many = n_tok > BL_FEW_TOKENS;
    const struct shape *s = shape_of(b, many, chosen);
    const uint32_t heads = group < s->rows ? group : s->rows;
    const uint32_t tokens = many && !chosen ? s->rows / heads : 1;
    const uint32_t head_tiles = bl_simt_groups(group, heads);

    c->kernel = s->kernel;
    c->block[0] = s->threads;
    c->args.n[13] = tokens;
    c->args.n[14] = heads;
    c->args.n[15] = head_tiles;
    c->grid[0] = at->n_head_kv * head_tiles;
    c->grid[1] = bl_simt_groups(n_tok, tokens);
}

static void add_groups(struct bl_simt_builder *b, struct bl_simt_args *a)
{
    if (b->node->op != BL_OP_ATTENTION_GROUPS)
        return;
    a->a[4] = bl_simt_src_addr(b, ROWS);
    a->n[9] = bl_simt_src(b, ROWS)->ne[1];
    a->n[10] = ((const struct bl_groups_attr *)bl_simt_attr(b))->group;
    if (!bl_node_src(b->graph, b->node, CHOSEN))
        return;
    a->a[5] = bl_simt_src_addr(b, CHOSEN);
    a->n[11] = bl_simt_src(b, CHOSEN)->ne[0];
}

static void attention_emit(struct bl_simt_builder *b)
{
    const struct bl_attention_attr *at = bl_simt_attr(b); /* ATTENTION_GROUPS begins with it */
    const struct bl_value *k = bl_simt_src(b, K), *v = bl_simt_src(b, V);
    const uint32_t splits = n_splits(b->graph, b->node);
    struct bl_simt_call c = {.type = BL_SIMT_NO_TYPE};

    c.args = (struct bl_simt_args){.a = {bl_simt_src_addr(b, Q), bl_simt_src_addr(b, K),
                                         bl_simt_src_addr(b, V), bl_simt_src_addr(b, SINKS)},
                                   .n = {at->n_head, at->n_head_kv, at->dk, at->dv, at->window,
                                         bl_simt_float(at->scale), k->ne[1], bl_simt_row_bytes(k),
                                         bl_simt_row_bytes(v)}};
    add_groups(b, &c.args);
    c.args.a[7] = b->params;
    c.args.n[12] = splits;
    c.args.n[16] = bl_simt_kv_of(k);
    c.args.n[17] = bl_simt_kv_of(v);
    if (splits > 1)
        c.args.a[8] = bl_simt_scratch(b, 0, attention_scratch(b->graph, b->node));
    else
        c.args.a[6] = bl_simt_dst_addr(b, 0);
    tile(b, &c);
    c.grid[2] = splits;
    bl_simt_emit(b, &c);
    if (splits > 1)
        merge(b, splits);
}

const struct bl_simt_op bl_simt_attention = {attention_supports, attention_scratch, attention_emit};

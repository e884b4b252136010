/* SPDX-License-Identifier: MIT */
#include "vk_plan.h"

#include "mem.h"

/* What kernels have room for. */
enum {
    MOST_EXPERTS = 1024,
    MOST_USED = 128,   /* route.comp */
    MOST_DV = 1024,    /* attention.comp */
    MOST_DK = 256,     /* delta_rule.comp: a subgroup keeps a row in registers */
    MOST_STREAMS = 16, /* stream_weights.comp */
    MOST_RUN = 4096    /* hadamard.comp */
};

static const struct bl_value *source(const struct bl_graph *g, const struct bl_node *n, unsigned i)
{
    return &g->vals[bl_node_src(g, n, i)];
}

struct bl_caps bl_vk_caps(const struct bl_device_config *c)
{
    return (struct bl_caps){.granule_bytes = BL_VK_GRANULE,
                            .threads = 1,
                            .exact = c->exact,
                            .copies_from = BL_COPIES_FROM_BLOCKS,
                            .block_bytes = c->block_bytes};
}

/* ---- types ---- */

bool bl_vk_decodes(uint8_t type)
{
    switch ((enum bl_dtype)type) {
    case BL_F32:
    case BL_F16:
    case BL_BF16:
    case BL_Q4_0:
    case BL_Q4_1:
    case BL_Q5_0:
    case BL_Q5_1:
    case BL_Q8_0:
    case BL_Q2_K:
    case BL_Q3_K:
    case BL_Q4_K:
    case BL_Q5_K:
    case BL_Q6_K:
    case BL_IQ4_NL:
    case BL_IQ4_XS:
    case BL_MXFP4:
    case BL_NVFP4:
    case BL_TQ1_0:
    case BL_TQ2_0:
    case BL_IQ1_S:
    case BL_IQ1_M:
    case BL_IQ2_XXS:
    case BL_IQ2_XS:
    case BL_IQ2_S:
    case BL_IQ3_XXS:
    case BL_IQ3_S:
    case BL_Q1_0:
    case BL_Q2_0:
        return true;
    default:
        return false;
    }
}

bool bl_vk_meets_bytes(const struct bl_caps *caps, uint8_t type)
{
    return !caps->exact && bl_vk_decodes(type) && bl_dtypes[type].block_elems > 1;
}

/* The bytes and three floats for each 32; rows begin at multiples of 8. */
uint64_t bl_vk_row_as_bytes(uint64_t k)
{
    return bl_align_up(k + k / 32 * 12, 8);
}

/* Of all rows that the node's activations make, heads being rows of their own. */
static uint64_t product_bytes(const struct bl_caps *caps, const struct bl_graph *g,
                              const struct bl_node *n)
{
    const struct bl_value *w = source(g, n, 0);
    const struct bl_heads_attr *at = n->op == BL_OP_MATMUL_HEADS ? bl_node_attr(g, n) : NULL;

    if (!bl_vk_meets_bytes(caps, w->type) || (at && at->transposed))
        return 0;
    return bl_vk_row_as_bytes(w->ne[0]) * source(g, n, 1)->ne[1] * (at ? w->ne[2] : 1);
}

static bool caches(const struct bl_value *v, uint64_t row)
{
    return bl_dtype_can_cache((enum bl_dtype)v->type) &&
           bl_dtype_row_bytes((enum bl_dtype)v->type, row);
}

/* ---- attention ---- */

/* The longest list that a token may see: rows of groups, positions. */
uint64_t bl_vk_most_seen(const struct bl_graph *g, const struct bl_node *n)
{
    const struct bl_attention_attr *at = bl_node_attr(g, n); /* ATTENTION_GROUPS begins with it */
    const uint32_t rows = source(g, n, 1)->ne[1];
    const uint64_t all = at->window && at->window < rows ? at->window : rows;

    if (n->op != BL_OP_ATTENTION_GROUPS)
        return all;
    return all + (bl_node_src(g, n, 5) ? source(g, n, 5)->ne[0] : source(g, n, 4)->ne[1]);
}

uint32_t bl_vk_splits(const struct bl_graph *g, const struct bl_node *n)
{
    enum { LEAST_SPLIT = 128, MOST_SPLITS = 32, LONG_SPLIT = 2048 };
    const uint64_t seen = bl_vk_most_seen(g, n), most = (seen + LONG_SPLIT - 1) / LONG_SPLIT,
                   splits = (seen + LEAST_SPLIT - 1) / LEAST_SPLIT;

    if (source(g, n, 0)->ne[1] > BL_FEW_TOKENS || splits < 2)
        return 1;
    return (uint32_t)(splits < MOST_SPLITS ? splits : most > MOST_SPLITS ? most : MOST_SPLITS);
}

/* Of a head and token: what each split leaves, or of many tokens {maximum, sum} between passes. */
uint64_t bl_vk_attention_bytes(const struct bl_graph *g, const struct bl_node *n)
{
    const struct bl_attention_attr *at = bl_node_attr(g, n);
    const uint32_t splits = bl_vk_splits(g, n), n_tok = source(g, n, 0)->ne[1];
    const uint64_t queries = (uint64_t)n_tok * at->n_head;

    if (splits > 1)
        return queries * splits * (at->dv + 2) * sizeof(float);
    return n_tok > BL_FEW_TOKENS ? queries * 2 * sizeof(float) : 0;
}

static bool attends(const struct bl_graph *g, const struct bl_node *n)
{
    const struct bl_attention_attr *at = bl_node_attr(g, n);

    return at->dv <= MOST_DV && caches(source(g, n, 1), at->dk) && caches(source(g, n, 2), at->dv);
}

/* ---- experts ---- */

static uint64_t place(uint64_t *at, uint64_t bytes)
{
    const uint64_t off = *at;
    *at = bl_align_up(off + bytes, 64);
    return off;
}

/* Of what a matrix with rows of k elements meets. */
static uint64_t expert_bytes(const struct bl_caps *caps, const struct bl_value *w, uint64_t rows)
{
    return bl_vk_meets_bytes(caps, w->type) ? rows * bl_vk_row_as_bytes(w->ne[0]) : 0;
}

struct bl_vk_experts_layout bl_vk_experts_layout(const struct bl_caps *caps,
                                                 const struct bl_graph *g, const struct bl_node *n)
{
    const struct bl_value *ids = source(g, n, 1), *gate = source(g, n, 3), *up = source(g, n, 4),
                          *down = source(g, n, 5);
    const uint64_t n_tok = ids->ne[1], pairs = ids->ne[0] * n_tok;
    const uint64_t met[] = {expert_bytes(caps, gate, n_tok), expert_bytes(caps, up, n_tok),
                            expert_bytes(caps, down, pairs)};
    struct bl_vk_experts_layout l = {0};

    for (unsigned i = 0; i < BL_COUNT(met); i++)
        l.bytes = met[i] > l.bytes ? met[i] : l.bytes;
    l.bytes = bl_align_up(l.bytes, 64);
    l.n_tiles = (uint32_t)(pairs / BL_VK_SIDE + (pairs < up->ne[2] ? pairs : up->ne[2]));
    l.hidden = place(&l.bytes, pairs * up->ne[1] * sizeof(float));
    l.part = place(&l.bytes, pairs * down->ne[1] * sizeof(float));
    if (ids->ne[1] > BL_FEW_TOKENS) {
        l.order = place(&l.bytes, pairs * sizeof(uint32_t));
        l.tiles = place(&l.bytes, (1 + 3 * (uint64_t)l.n_tiles) * sizeof(uint32_t));
    }
    return l;
}

static bool multiplies_experts(const struct bl_graph *g, const struct bl_node *n)
{
    for (unsigned i = 3; i <= 5; i++) /* gate, up, down */
        if (!bl_vk_decodes(source(g, n, i)->type))
            return false;
    return source(g, n, 4)->ne[2] <= MOST_EXPERTS;
}

/* ---- the choice among groups ---- */

struct bl_vk_choose_layout bl_vk_choose_layout(const struct bl_graph *g, const struct bl_node *n)
{
    const struct bl_choose_attr *at = bl_node_attr(g, n);
    const uint64_t n_tok = source(g, n, 0)->ne[1], rows = source(g, n, 2)->ne[1];
    struct bl_vk_choose_layout l = {0};

    l.heap = bl_align_up(n_tok * rows * sizeof(float), 64);
    l.bytes = l.heap + bl_align_up(n_tok * at->n * 2 * sizeof(float), 64);
    return l;
}

/* ---- all of them ---- */

static bool routes(const struct bl_graph *g, const struct bl_node *n)
{
    return source(g, n, 0)->ne[0] <= MOST_EXPERTS &&
           ((const struct bl_route_attr *)bl_node_attr(g, n))->n_used <= MOST_USED;
}

bool bl_vk_supports(const struct bl_caps *caps, const struct bl_graph *g, const struct bl_node *n)
{
    const void *at = bl_node_attr(g, n);

    (void)caps;
    switch ((enum bl_op)n->op) {
    case BL_OP_EMBED:
    case BL_OP_MATMUL:
    case BL_OP_MATMUL_HEADS:
        return bl_vk_decodes(source(g, n, 0)->type);
    case BL_OP_KV_STORE:
        return caches(source(g, n, 1), source(g, n, 1)->ne[0]);
    case BL_OP_ATTENTION:
    case BL_OP_ATTENTION_GROUPS:
        return attends(g, n);
    case BL_OP_ROUTE:
        return routes(g, n);
    case BL_OP_EXPERTS:
        return multiplies_experts(g, n);
    case BL_OP_DELTA_RULE:
        return ((const struct bl_delta_attr *)at)->dk <= MOST_DK;
    case BL_OP_COMPRESS:
    case BL_OP_CHOOSE:
        return bl_dtype_can_cache((enum bl_dtype)source(g, n, 2)->type);
    case BL_OP_STREAM_WEIGHTS:
        return ((const struct bl_streams_attr *)at)->n <= MOST_STREAMS;
    case BL_OP_HADAMARD:
        return ((const struct bl_hadamard_attr *)at)->run <= MOST_RUN;
    default:
        return n->op < BL_N_OPS;
    }
}

uint64_t bl_vk_scratch_bytes(const struct bl_caps *caps, const struct bl_graph *g,
                             const struct bl_node *n)
{
    switch ((enum bl_op)n->op) {
    case BL_OP_MATMUL:
    case BL_OP_MATMUL_HEADS:
        return product_bytes(caps, g, n);
    case BL_OP_ATTENTION:
    case BL_OP_ATTENTION_GROUPS:
        return bl_vk_attention_bytes(g, n);
    case BL_OP_EXPERTS:
        return bl_vk_experts_layout(caps, g, n).bytes;
    case BL_OP_CHOOSE:
        return bl_vk_choose_layout(g, n).bytes;
    default:
        return 0;
    }
}

/* SPDX-License-Identifier: MIT */
/* What a token costs, counted from the graph that computes it; and times by kind of step. */
#include "engine.h"

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static const struct bl_value *source(const struct bl_graph *g, const struct bl_node *n, unsigned i)
{
    return &g->vals[bl_node_src(g, n, i)];
}

/* ---- weights ---- */

/* Of its matrices, or rows, a token needs `part` out of `whole`. */
static void count_weight(struct bl_token_cost *c, const struct bl_node *n, const struct bl_value *w,
                         uint64_t part, uint64_t whole)
{
    bool head = n->part == BL_PART_HEAD;
    bool matrix = n->op == BL_OP_MATMUL || n->op == BL_OP_MATMUL_HEADS || n->op == BL_OP_EXPERTS;
    uint64_t elems = (uint64_t)w->ne[0] * w->ne[1] * w->ne[2];

    *(head ? &c->head_bytes : &c->weight_bytes) += bl_value_bytes(w) / whole * part;
    if (matrix && w->ne[1] > 1)
        *(head ? &c->head_macs : &c->weight_macs) += elems / whole * part;
}

static void count_weights(struct bl_token_cost *c, const struct bl_graph *g,
                          const struct bl_node *n)
{
    const struct bl_experts_attr *experts = bl_node_attr(g, n);

    for (unsigned i = 0; i < n->n_src; i++) {
        const struct bl_value *w = source(g, n, i);
        if (w->origin != BL_WEIGHT)
            continue;
        if (n->op == BL_OP_EMBED || (n->op == BL_OP_ROUTE && i == 2))
            count_weight(c, n, w, 1, w->ne[1]);
        else if (n->op == BL_OP_EXPERTS && i >= 3 && i <= 5)
            count_weight(c, n, w, experts->n_used, w->ne[2]);
        else
            count_weight(c, n, w, 1, 1);
    }
}

/* ---- state ---- */

static uint64_t rows_bytes(const struct bl_value *state, uint64_t rows)
{
    return least(rows, state->ne[1]) * bl_dtype_row_bytes((enum bl_dtype)state->type, state->ne[0]);
}

/* pos: of the token. */
static uint64_t attention_bytes(const struct bl_graph *g, const struct bl_node *n,
                                const struct bl_attention_attr *at, uint64_t pos)
{
    uint64_t seen = at->window ? least(pos + 1, at->window) : pos + 1;
    uint64_t sum = rows_bytes(source(g, n, 1), seen);

    if (bl_node_src(g, n, 2) != bl_node_src(g, n, 1))
        sum += rows_bytes(source(g, n, 2), seen);
    return sum;
}

static uint64_t groups_bytes(const struct bl_graph *g, const struct bl_node *n, uint64_t pos)
{
    const struct bl_groups_attr *a = bl_node_attr(g, n);
    uint64_t rows = (pos + 1) / a->group;

    if (bl_node_src(g, n, 5))
        rows = least(rows, source(g, n, 5)->ne[0]);
    return attention_bytes(g, n, &a->at, pos) + rows_bytes(source(g, n, 4), rows);
}

static uint64_t state_bytes(const struct bl_graph *g, const struct bl_node *n, uint64_t pos)
{
    switch (n->op) {
    case BL_OP_ATTENTION:
        return attention_bytes(g, n, bl_node_attr(g, n), pos);
    case BL_OP_ATTENTION_GROUPS:
        return groups_bytes(g, n, pos);
    case BL_OP_CHOOSE:
        return rows_bytes(source(g, n, 2),
                          (pos + 1) / ((const struct bl_choose_attr *)bl_node_attr(g, n))->group);
    case BL_OP_DELTA_RULE:
        return rows_bytes(source(g, n, 5), 1);
    default:
        return 0;
    }
}

enum bl_status bl_engine_token_cost(const struct bl_engine *e, uint64_t n_tokens,
                                    struct bl_token_cost *out)
{
    struct bl_shape one = bl_plan_bucket(&e->parts.plan, 1, 1);
    struct bl_token_cost c = {.layers = e->parts.model->hp.n_layer};
    struct bl_graph g;

    bl_graph_init(&g);
    enum bl_status st = bl_model_build(e->parts.model, &one, &g);
    for (uint32_t i = 0; !st && i < g.n_nodes; i++) {
        count_weights(&c, &g, &g.nodes[i]);
        c.state_bytes += state_bytes(&g, &g.nodes[i], n_tokens);
    }
    bl_graph_finish(&g);
    if (!st)
        *out = c;
    return st;
}

/* ---- times ---- */

void bl_engine_profile(struct bl_engine *e, bool on, bool from_zero)
{
    for (uint32_t d = 0; d < e->parts.machine.n_devices; d++) {
        struct bl_device *dev = e->parts.device[d];
        if (dev && dev->ops->profile)
            dev->ops->profile(dev, on, from_zero);
    }
}

uint32_t bl_engine_op_time(const struct bl_engine *e, uint32_t i, struct bl_op_time *out)
{
    uint32_t before = 0;

    for (uint32_t d = 0; d < e->parts.machine.n_devices; d++) {
        const struct bl_device *dev = e->parts.device[d];
        if (!dev || !dev->ops->op_time)
            continue;
        struct bl_op_time t;
        uint32_t n = dev->ops->op_time(dev, i - before, i < before ? &t : out);
        before += n;
    }
    return before;
}

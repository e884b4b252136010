/* SPDX-License-Identifier: MIT */
/* The work of a node: bytes, multiply-adds, what is moved besides. */
#include "node_cost.h"

#include <math.h>

static const struct bl_value *source(const struct bl_graph *g, const struct bl_node *n, unsigned i)
{
    return &g->vals[bl_node_src(g, n, i)];
}

/* Share of the experts that any of n tokens chose, if they choose at random. */
static double touched(double used, double of, double n)
{
    return of > 0 ? 1 - pow(1 - used / of, n) : 1;
}

/* Panels are made of whole blocks of columns. */
static double padding(double columns)
{
    return columns > 0 ? ceil(columns / 256) * 256 / columns : 1;
}

static void count_weight(struct bl_work *w, const struct bl_value *v, double share)
{
    double bytes = (double)bl_value_bytes(v) * share;
    double elems = (double)v->ne[0] * v->ne[1] * v->ne[2] * share;

    if (bytes > w->weight_bytes)
        w->type = v->type;
    w->weight_bytes += bytes;
    if (v->ne[1] > 1)
        w->weights += elems;
}

static void count_experts(struct bl_work *w, const struct bl_graph *g, const struct bl_node *n)
{
    const struct bl_experts_attr *a = bl_node_attr(g, n);
    const struct bl_value *down = source(g, n, 5);
    const double of = down->ne[2], share = touched(a->n_used, of, w->n_tok);

    for (unsigned i = 3; i <= 5; i++) {
        const struct bl_value *v = source(g, n, i);
        if (!bl_node_src(g, n, i))
            continue;
        count_weight(w, v, share);
        w->padded_macs += (double)v->ne[0] * v->ne[1] * padding(v->ne[0]) * a->n_used * w->n_tok;
    }
    w->macs = w->weights / share * a->n_used / of * w->n_tok;
    w->tok_per_matrix = w->n_tok * a->n_used / (of * share);
    w->ffn = down->ne[0];
    w->rows = down->ne[0];
    w->steps = 4; /* sort, gate and up, arrange, down, sum: one more than those between matrices of
                     a layer */
    /* Every pair of a token and an expert has its own input, inner activations and result. */
    const double pairs = (double)w->n_tok * a->n_used;
    w->arranged = pairs * ((double)down->ne[1] + down->ne[0]);
    w->moved_bytes = 2 * sizeof(float) * pairs * ((double)down->ne[1] + down->ne[0]);
}

static double rows_bytes(const struct bl_value *state, double rows)
{
    return fmin(rows, state->ne[1]) *
           (double)bl_dtype_row_bytes((enum bl_dtype)state->type, state->ne[0]);
}

/* What every token does with so many rows; one: values are part of the keys. */
static void count_rows(struct bl_work *w, const struct bl_attention_attr *a, double rows, bool one)
{
    const double pairs = rows * w->n_tok, macs = (double)a->n_head * (a->dk + a->dv) * pairs;

    w->attend_macs += macs;
    if (one) {
        w->latent_macs += macs;
        return;
    }
    w->scores += a->n_head * pairs;
    w->cache_values += (double)a->n_head_kv * (a->dk + a->dv) * pairs;
}

static void count_attention(struct bl_work *w, const struct bl_graph *g, const struct bl_node *n,
                            const struct bl_attention_attr *a, double ctx)
{
    const double seen = a->window ? fmin(ctx, a->window) : ctx;
    const bool one = bl_node_src(g, n, 2) == bl_node_src(g, n, 1);

    w->kv_type = source(g, n, 1)->type;
    w->state_bytes += rows_bytes(source(g, n, 1), seen);
    if (!one)
        w->state_bytes += rows_bytes(source(g, n, 2), seen);
    count_rows(w, a, seen, one);
}

static void count_groups(struct bl_work *w, const struct bl_graph *g, const struct bl_node *n,
                         double ctx)
{
    const struct bl_groups_attr *a = bl_node_attr(g, n);
    double rows = floor(ctx / a->group);

    if (bl_node_src(g, n, 5))
        rows = fmin(rows, source(g, n, 5)->ne[0]);
    count_attention(w, g, n, &a->at, ctx);
    w->state_bytes += rows_bytes(source(g, n, 4), rows);
    count_rows(w, &a->at, rows, true);
}

static void count_choose(struct bl_work *w, const struct bl_graph *g, const struct bl_node *n,
                         double ctx)
{
    const struct bl_choose_attr *a = bl_node_attr(g, n);
    const double rows = floor(ctx / a->group);

    w->kv_type = source(g, n, 2)->type;
    w->state_bytes += rows_bytes(source(g, n, 2), rows);
    w->scores += a->n_head * rows * w->n_tok;
    w->attend_macs += (double)a->n_head * a->dk * rows * w->n_tok;
    w->cache_values += a->dk * rows * w->n_tok;
    w->index_tok = ctx;
}

/* Activations are made ready once for all matrices that follow each other. */
static bool arranged_before(const struct bl_graph *g, const struct bl_node *n)
{
    enum { BACK = 4 };
    const uint32_t at = (uint32_t)(n - g->nodes);

    for (uint32_t i = 1; i <= BACK && i <= at; i++) {
        const struct bl_node *m = n - i;
        if (m->op == BL_OP_MATMUL && bl_node_src(g, m, 1) == bl_node_src(g, n, 1) &&
            (source(g, m, 0)->type == BL_F32) == (source(g, n, 0)->type == BL_F32))
            return true;
    }
    return false;
}

static void count_rest(struct bl_work *w, const struct bl_graph *g, const struct bl_node *n)
{
    const bool matrix = n->op == BL_OP_MATMUL || n->op == BL_OP_MATMUL_HEADS;

    for (unsigned i = 0; i < n->n_src; i++) {
        const struct bl_value *v = source(g, n, i);
        if (v->origin != BL_WEIGHT)
            continue;
        const bool rows = n->op == BL_OP_EMBED || (n->op == BL_OP_ROUTE && i == 2);
        count_weight(w, v, rows ? fmin(1, (double)w->n_tok / v->ne[1]) : 1);
    }
    if (!matrix)
        w->weights = 0;
    w->tok_per_matrix = matrix ? source(g, n, 1)->ne[1] : 0;
    w->macs = w->weights * w->tok_per_matrix;
    w->padded_macs = w->macs * padding(source(g, n, 0)->ne[0]);
    w->rows = source(g, n, 0)->ne[1];
    if (matrix && !arranged_before(g, n))
        w->arranged = (double)source(g, n, 1)->ne[0] * source(g, n, 1)->ne[1];
}

static double activation_bytes(const struct bl_value *v)
{
    return v->origin == BL_ACTIVATION ? (double)bl_value_bytes(v) : 0;
}

/* What goes through a node element by element: of products with matrices, results. A convolution
 * reads its input once for every tap. */
static double moved_bytes(const struct bl_graph *g, const struct bl_node *n)
{
    double bytes = 0;

    const bool matrix = n->op == BL_OP_MATMUL || n->op == BL_OP_MATMUL_HEADS;
    for (unsigned i = 0; i < n->n_src && !matrix; i++)
        bytes += activation_bytes(source(g, n, i));
    if (n->op == BL_OP_SHORT_CONV)
        bytes *= source(g, n, 1)->ne[0];
    for (unsigned i = 0; i < n->n_dst; i++)
        bytes += activation_bytes(&g->vals[n->dst[i]]);
    return bytes;
}

void bl_work_count(struct bl_work *w, const struct bl_graph *g, const struct bl_node *n,
                   uint32_t n_tok, uint64_t depth)
{
    const double ctx = (double)depth + (n_tok + 1) / 2.0; /* of the mean token */

    *w = (struct bl_work){.n_tok = n_tok, .steps = 1, .moved_bytes = moved_bytes(g, n)};
    switch (n->op) {
    case BL_OP_EXPERTS:
        count_experts(w, g, n);
        break;
    case BL_OP_ATTENTION:
        count_attention(w, g, n, bl_node_attr(g, n), ctx);
        break;
    case BL_OP_ATTENTION_GROUPS:
        count_groups(w, g, n, ctx);
        break;
    case BL_OP_CHOOSE:
        count_choose(w, g, n, ctx);
        break;
    case BL_OP_DELTA_RULE:
        w->state_bytes = 2 * rows_bytes(source(g, n, 5), 1);
        w->state_values = (double)source(g, n, 5)->ne[0] * n_tok;
        break;
    default:
        count_rest(w, g, n);
        break;
    }
}

/* Tokens choose at random: fewer experts are met by as many tokens each. */
void bl_work_share(struct bl_work *w, double share)
{
    w->weight_bytes *= share;
    w->weights *= share;
    w->macs *= share;
    w->padded_macs *= share;
    w->arranged *= share;
    w->moved_bytes *= share;
}

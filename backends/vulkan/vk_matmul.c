/* SPDX-License-Identifier: MIT */
/* MATMUL, MATMUL_HEADS, ROUTE and EXPERTS: what multiplies weights, and what says with which. */
#include "vk_ops.h"

#include "mem.h"

enum { ROWS = 2, SIDE = BL_VK_SIDE }; /* of dot.glsl, of tile.glsl */

uint32_t bl_vk_dot_rows(const struct bl_vk_device *d)
{
    return BL_VK_GROUP / d->facts.subgroup * ROWS;
}

/* ---- activations as bytes ---- */

bool bl_vk_by_bytes(const struct bl_vk_builder *b, uint8_t type)
{
    return b->dev->int_dot && bl_vk_meets_bytes(&b->dev->base.caps, type);
}

uint64_t bl_vk_quantise(struct bl_vk_builder *b, uint64_t x, uint32_t k, uint32_t rows,
                        uint32_t n_tok)
{
    enum { OF_A_GROUP = 4 * BL_VK_GROUP };
    const uint64_t all = (uint64_t)rows * n_tok, bytes = all * bl_vk_row_as_bytes(k),
                   from_end = x + all * k * sizeof(float);
    const struct bl_vk_quantised *have = &b->quantised;
    struct bl_vk_call c = {.kernel = "quantise", .type = BL_VK_NO_TYPE};

    if (have->from != x || have->from_end != from_end || have->k != k) {
        bl_vk_touch(b, x, from_end - x, false);
        c.args =
            (struct bl_vk_args){.a = {x, bl_vk_scratch(b, 0, bytes, true), b->params}, .n = {k}};
        c.groups[0] = bl_vk_groups(k, OF_A_GROUP);
        c.groups[1] = rows;
        c.groups[2] = n_tok;
        bl_vk_emit(b, &c);
        b->quantised = (struct bl_vk_quantised){x, from_end, b->scratch + bytes, k};
    }
    return bl_vk_scratch(b, 0, bytes, false);
}

/* ---- MATMUL, MATMUL_HEADS ---- */

struct product { /* y = w · x for every head */
    const struct bl_value *w;
    uint32_t in, out, n_tok, n_heads;
    uint32_t y_stride; /* floats of a token */
};

static uint32_t row_bytes(const struct bl_value *w)
{
    return (uint32_t)bl_dtype_row_bytes(w->type, w->ne[0]);
}

static struct bl_vk_call product_call(const struct product *p)
{
    struct bl_vk_call c = {.type = p->w->type};

    c.args = (struct bl_vk_args){
        .n = {p->in, p->out, p->n_tok, row_bytes(p->w), p->n_heads, p->y_stride}};
    c.groups[2] = p->n_heads;
    return c;
}

/* Tokens that share a reading of the weights. */
static uint32_t together(uint32_t n_tok)
{
    uint32_t n = 1;
    while (n < n_tok && n < BL_FEW_TOKENS)
        n *= 2;
    return n;
}

static void choose_kernel(const struct bl_vk_builder *b, const struct product *p,
                          struct bl_vk_call *c)
{
    const bool bytes = bl_vk_by_bytes(b, p->w->type);

    if (p->n_tok > BL_FEW_TOKENS) {
        c->kernel = bytes ? "matmul_bytes" : "matmul";
        c->groups[0] = bl_vk_groups(p->out, SIDE);
        c->groups[1] = bl_vk_groups(p->n_tok, SIDE);
        return;
    }
    c->kernel = bytes ? "matvec_bytes" : "matvec";
    c->spec[0] = together(p->n_tok);
    c->groups[0] = bl_vk_groups(p->out, bl_vk_dot_rows(b->dev));
    c->groups[1] = bl_vk_groups(p->n_tok, c->spec[0]);
}

/* The second source, as the kernel of the product takes it. */
static uint64_t activations(struct bl_vk_builder *b, const struct product *p)
{
    return bl_vk_by_bytes(b, p->w->type)
               ? bl_vk_quantise(b, b->bound->src[1], p->in, p->n_heads, p->n_tok)
               : bl_vk_reads(b, 1);
}

static void matmul_emit(struct bl_vk_builder *b)
{
    const struct bl_value *w = bl_vk_src(b, 0), *x = bl_vk_src(b, 1);
    const struct product p = {w, w->ne[0], w->ne[1], x->ne[1], 1, w->ne[1]};
    struct bl_vk_call c = product_call(&p);

    c.args.a[0] = bl_vk_weight(b, 0);
    c.args.a[1] = activations(b, &p);
    c.args.a[2] = bl_vk_writes(b, 0);
    c.args.a[3] = bl_vk_weight(b, 2);
    c.args.a[4] = bl_vk_weight(b, 3);
    choose_kernel(b, &p, &c);
    bl_vk_emit(b, &c);
}

const struct bl_vk_op bl_vk_matmul = {.emit = matmul_emit};

static void heads_emit(struct bl_vk_builder *b)
{
    const struct bl_heads_attr *at = bl_vk_attr(b);
    const struct bl_value *w = bl_vk_src(b, 0), *x = bl_vk_src(b, 1);
    const bl_val scale = bl_node_src(b->graph, b->node, 2);
    const struct product p = {w, w->ne[0], w->ne[1], x->ne[1], w->ne[2], bl_vk_dst(b, 0)->ne[0]};
    struct bl_vk_call c = product_call(&p);

    c.args.a[0] = bl_vk_weight(b, 0);
    c.args.a[1] = at->transposed ? bl_vk_reads(b, 1) : activations(b, &p);
    c.args.a[2] = bl_vk_writes(b, 0);
    c.args.a[4] = bl_vk_weight(b, 2);
    c.args.n[6] = at->head_rows * row_bytes(w);
    c.args.n[7] = scale && b->graph->vals[scale].ne[0] > 1;
    if (at->transposed) {
        c.kernel = "heads_t";
        c.args.n[4] = x->ne[0];
        c.groups[0] = bl_vk_groups(p.in, 64);
        c.groups[1] = p.n_tok;
    } else {
        choose_kernel(b, &p, &c);
    }
    bl_vk_emit(b, &c);
}

const struct bl_vk_op bl_vk_matmul_heads = {.emit = heads_emit};

/* ---- ROUTE ---- */

static void route_emit(struct bl_vk_builder *b)
{
    const struct bl_route_attr *at = bl_vk_attr(b);
    const struct bl_value *z = bl_vk_src(b, 0);
    struct bl_vk_call c = {.kernel = "route", .type = BL_VK_NO_TYPE};

    c.args = (struct bl_vk_args){.a = {bl_vk_reads(b, 0), bl_vk_weight(b, 1), bl_vk_weight(b, 2),
                                       bl_vk_writes(b, 0), bl_vk_writes(b, 1), b->params},
                                 .n = {z->ne[0], at->n_used, at->gating, at->normalise, at->n_group,
                                       at->n_group_used, at->group_by_max, bl_vk_float(at->scale)}};
    c.groups[0] = z->ne[1];
    bl_vk_emit(b, &c);
}

const struct bl_vk_op bl_vk_route = {.emit = route_emit};

/* ---- EXPERTS ---- */

enum { X, IDS, WEIGHTS, GATE, UP, DOWN }; /* sources; biases and scales follow, in the same order */

static void sort_pairs(struct bl_vk_builder *b, const struct bl_vk_experts_layout *l)
{
    const struct bl_value *ids = bl_vk_src(b, IDS), *up = bl_vk_src(b, UP);
    struct bl_vk_call c = {.kernel = "experts_sort", .type = BL_VK_NO_TYPE};

    c.args =
        (struct bl_vk_args){.a = {bl_vk_weight(b, UP), bl_vk_reads(b, IDS),
                                  bl_vk_scratch(b, l->order, l->tiles - l->order, true),
                                  bl_vk_scratch(b, l->tiles, l->bytes - l->tiles, true), b->params},
                            .n = {up->ne[2], ids->ne[0], l->n_tiles}};
    bl_vk_emit(b, &c);
}

struct matrix {
    unsigned src;
    uint64_t x, y;   /* addresses */
    uint32_t rows;   /* of x, for each token */
    bool after_gate; /* y holds products of gate, and gets act(those) * these */
};

static void multiply(struct bl_vk_builder *b, const struct bl_vk_experts_layout *l,
                     const struct matrix *m)
{
    const struct bl_experts_attr *at = bl_vk_attr(b);
    const struct bl_value *w = bl_vk_src(b, m->src), *ids = bl_vk_src(b, IDS);
    const bool many = ids->ne[1] > BL_FEW_TOKENS, bytes = bl_vk_by_bytes(b, w->type);
    const uint64_t n_x = (uint64_t)m->rows * ids->ne[1] * w->ne[0] * sizeof(float),
                   n_y = (uint64_t)ids->ne[0] * ids->ne[1] * w->ne[1] * sizeof(float);
    const uint64_t x = bytes ? bl_vk_quantise(b, m->x, w->ne[0], m->rows, ids->ne[1]) : m->x;
    struct bl_vk_call c = {.type = w->type, .spec = {1}};

    if (many)
        c.kernel = bytes ? "experts_mul_bytes" : "experts_mul";
    else
        c.kernel = bytes ? "experts_dot_bytes" : "experts_dot";
    if (!bytes)
        bl_vk_touch(b, x, n_x, false);
    bl_vk_touch(b, m->y, n_y, true);
    c.args = (struct bl_vk_args){
        .a = {bl_vk_weight(b, m->src), x, m->y, bl_vk_reads(b, IDS), b->params,
              bl_vk_weight(b, m->src + 3), bl_vk_weight(b, m->src + 6), m->after_gate ? m->y : 0},
        .n = {w->ne[0], w->ne[1], ids->ne[0], ids->ne[0] / m->rows, row_bytes(w), at->glu.kind,
              bl_vk_float(at->glu.alpha), bl_vk_float(at->glu.limit), w->ne[2]}};
    if (many) {
        c.args.a[8] = bl_vk_scratch(b, l->order, l->tiles - l->order, false);
        c.args.a[9] = bl_vk_scratch(b, l->tiles, l->bytes - l->tiles, false);
        c.groups[0] = bl_vk_groups(w->ne[1], SIDE);
        c.groups[1] = l->n_tiles;
    } else {
        c.groups[0] = bl_vk_groups(w->ne[1], bl_vk_dot_rows(b->dev));
        c.groups[1] = ids->ne[0] * ids->ne[1];
    }
    bl_vk_emit(b, &c);
}

static void sum_pairs(struct bl_vk_builder *b, const struct bl_vk_experts_layout *l)
{
    const struct bl_value *ids = bl_vk_src(b, IDS), *down = bl_vk_src(b, DOWN);
    struct bl_vk_call c = {.kernel = "experts_sum", .type = BL_VK_NO_TYPE};

    c.args = (struct bl_vk_args){
        .a = {bl_vk_weight(b, DOWN),
              bl_vk_scratch(b, l->part, l->order ? l->order - l->part : l->bytes - l->part, false),
              bl_vk_writes(b, 0), bl_vk_reads(b, IDS), b->params, bl_vk_reads(b, WEIGHTS)},
        .n = {down->ne[1], ids->ne[0], down->ne[2]}};
    c.groups[0] = bl_vk_groups(down->ne[1], BL_VK_GROUP);
    c.groups[1] = ids->ne[1];
    bl_vk_emit(b, &c);
}

static void experts_emit(struct bl_vk_builder *b)
{
    const struct bl_vk_experts_layout l =
        bl_vk_experts_layout(&b->dev->base.caps, b->graph, b->node);
    const uint64_t x = b->bound->src[X], hidden = b->scratch + l.hidden;

    if (l.order)
        sort_pairs(b, &l);
    multiply(b, &l, &(struct matrix){.src = GATE, .x = x, .y = hidden, .rows = 1});
    multiply(b, &l,
             &(struct matrix){.src = UP, .x = x, .y = hidden, .rows = 1, .after_gate = true});
    multiply(
        b, &l,
        &(struct matrix){
            .src = DOWN, .x = hidden, .y = b->scratch + l.part, .rows = bl_vk_src(b, IDS)->ne[0]});
    sum_pairs(b, &l);
}

const struct bl_vk_op bl_vk_experts = {.emit = experts_emit};

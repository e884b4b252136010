/* SPDX-License-Identifier: MIT */
/* MATMUL, MATMUL_HEADS, ROUTE and EXPERTS: what multiplies weights, and what says with which. */
#include "vk_ops.h"

#include "mem.h"

enum { ROWS = 2, SIDE = BL_VK_SIDE }; /* of dot.glsl, of tile.glsl */

uint32_t bl_vk_dot_rows(const struct bl_vk_device *d)
{
    return BL_VK_GROUP / d->facts.subgroup * ROWS;
}

/* ---- MATMUL, MATMUL_HEADS ---- */

struct product { /* y = w · x for every head */
    const struct bl_value *w;
    uint32_t in, out, n_tok, n_heads;
    uint32_t x_stride, y_stride; /* floats of a token */
};

static uint32_t row_bytes(const struct bl_value *w)
{
    return (uint32_t)bl_dtype_row_bytes(w->type, w->ne[0]);
}

static struct bl_vk_call product_call(const struct product *p)
{
    struct bl_vk_call c = {.type = p->w->type};

    c.args = (struct bl_vk_args){
        .n = {p->in, p->out, p->n_tok, row_bytes(p->w), p->x_stride, p->y_stride}};
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
    if (p->n_tok > BL_FEW_TOKENS) {
        c->kernel = "matmul";
        c->groups[0] = bl_vk_groups(p->out, SIDE);
        c->groups[1] = bl_vk_groups(p->n_tok, SIDE);
        return;
    }
    c->kernel = "matvec";
    c->spec[0] = together(p->n_tok);
    c->groups[0] = bl_vk_groups(p->out, bl_vk_dot_rows(b->dev));
    c->groups[1] = bl_vk_groups(p->n_tok, c->spec[0]);
}

static void matmul_emit(struct bl_vk_builder *b)
{
    const struct bl_value *w = bl_vk_src(b, 0), *x = bl_vk_src(b, 1);
    const struct product p = {w, w->ne[0], w->ne[1], x->ne[1], 1, w->ne[0], w->ne[1]};
    struct bl_vk_call c = product_call(&p);

    c.args.a[0] = bl_vk_weight(b, 0);
    c.args.a[1] = bl_vk_reads(b, 1);
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
    const struct product p = {
        w, w->ne[0], w->ne[1], x->ne[1], w->ne[2], x->ne[0], bl_vk_dst(b, 0)->ne[0]};
    struct bl_vk_call c = product_call(&p);

    c.args.a[0] = bl_vk_weight(b, 0);
    c.args.a[1] = bl_vk_reads(b, 1);
    c.args.a[2] = bl_vk_writes(b, 0);
    c.args.a[4] = bl_vk_weight(b, 2);
    c.args.n[6] = at->head_rows * row_bytes(w);
    c.args.n[7] = scale && b->graph->vals[scale].ne[0] > 1;
    if (at->transposed) {
        c.kernel = "heads_t";
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
    uint64_t x, y;    /* addresses */
    uint32_t divisor; /* row of x of a pair */
    bool after_gate;  /* y holds products of gate, and gets act(those) * these */
};

static void multiply(struct bl_vk_builder *b, const struct bl_vk_experts_layout *l,
                     const struct matrix *m)
{
    const struct bl_experts_attr *at = bl_vk_attr(b);
    const struct bl_value *w = bl_vk_src(b, m->src), *ids = bl_vk_src(b, IDS);
    const bool many = ids->ne[1] > BL_FEW_TOKENS;
    struct bl_vk_call c = {.kernel = many ? "experts_mul" : "experts_dot", .type = w->type};

    c.spec[0] = 1;
    c.args = (struct bl_vk_args){
        .a = {bl_vk_weight(b, m->src), m->x, m->y, bl_vk_reads(b, IDS), b->params,
              bl_vk_weight(b, m->src + 3), bl_vk_weight(b, m->src + 6), m->after_gate ? m->y : 0},
        .n = {w->ne[0], w->ne[1], ids->ne[0], m->divisor, row_bytes(w), at->glu.kind,
              bl_vk_float(at->glu.alpha), bl_vk_float(at->glu.limit)}};
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
        .n = {down->ne[1], ids->ne[0]}};
    c.groups[0] = bl_vk_groups(down->ne[1], BL_VK_GROUP);
    c.groups[1] = ids->ne[1];
    bl_vk_emit(b, &c);
}

static void experts_emit(struct bl_vk_builder *b)
{
    const struct bl_vk_experts_layout l = bl_vk_experts_layout(b->graph, b->node);
    const uint32_t used = bl_vk_src(b, IDS)->ne[0];
    const uint64_t part_bytes = (l.order ? l.order : l.bytes) - l.part;
    struct matrix m = {.src = GATE, .divisor = used};

    if (l.order)
        sort_pairs(b, &l);
    m.x = bl_vk_reads(b, X);
    m.y = bl_vk_scratch(b, l.hidden, l.part, true);
    multiply(b, &l, &m);
    m.src = UP;
    m.after_gate = true;
    m.x = bl_vk_reads(b, X);
    m.y = bl_vk_scratch(b, l.hidden, l.part, true);
    multiply(b, &l, &m);
    m = (struct matrix){.src = DOWN, .divisor = 1};
    m.x = bl_vk_scratch(b, l.hidden, l.part, false);
    m.y = bl_vk_scratch(b, l.part, part_bytes, true);
    multiply(b, &l, &m);
    sum_pairs(b, &l);
}

const struct bl_vk_op bl_vk_experts = {.emit = experts_emit};

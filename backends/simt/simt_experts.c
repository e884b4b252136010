/* SPDX-License-Identifier: MIT */
/* ROUTE and EXPERTS: which experts, and the experts. Nothing of it comes back to the host. */
#include "simt_rows.h"

#include "mem.h"

enum { THREADS = 256, MOST_EXPERTS = 1024, MOST_USED = 128 }; /* experts.cu */

/* ---- ROUTE ---- */

static bool route_supports(const struct bl_graph *g, const struct bl_node *n)
{
    const struct bl_route_attr *at = bl_node_attr(g, n);
    return g->vals[bl_node_src(g, n, 0)].ne[0] <= MOST_EXPERTS && at->n_used <= MOST_USED;
}

static void route_emit(struct bl_simt_builder *b)
{
    const struct bl_route_attr *at = bl_simt_attr(b);
    const struct bl_value *z = bl_simt_src(b, 0);
    struct bl_simt_call c = {
        .kernel = "route", .type = BL_SIMT_NO_TYPE, .grid = {z->ne[1]}, .block = {THREADS}};

    c.args = (struct bl_simt_args){
        .a = {bl_simt_src_addr(b, 0), bl_simt_src_addr(b, 1), bl_simt_src_addr(b, 2),
              bl_simt_dst_addr(b, 0), bl_simt_dst_addr(b, 1), b->params},
        .n = {z->ne[0], at->n_used, at->gating, at->normalise, at->n_group, at->n_group_used,
              at->group_by_max, bl_simt_float(at->scale)}};
    bl_simt_emit(b, &c);
}

const struct bl_simt_op bl_simt_route = {.supports = route_supports, .emit = route_emit};

/* ---- EXPERTS ---- */

enum { X, IDS, WEIGHTS, GATE, UP, DOWN }; /* sources; biases and scales follow, in the same order */

/* Scratch of the node: products of gate, then of up; results of the pairs; for many tokens pairs by
 * expert, their tiles, and rows of x or of those products as halves. */
struct layout {
    uint64_t hidden, part, order, tiles, halves, bytes;
    bool many;
};

static uint64_t place(uint64_t *at, uint64_t bytes)
{
    const uint64_t off = *at;
    *at = bl_align_up(off + bytes, 64);
    return off;
}

/* Tiles of `side` pairs that pairs of n experts make, at most. */
static uint32_t most_tiles(uint64_t pairs, uint32_t n, uint32_t side)
{
    return (uint32_t)(pairs / side + (pairs < n ? pairs : n));
}

static struct layout layout_of(const struct bl_graph *g, const struct bl_node *n)
{
    enum { LEAST_SIDE = 32 };
    const struct bl_value *ids = &g->vals[bl_node_src(g, n, IDS)],
                          *up = &g->vals[bl_node_src(g, n, UP)],
                          *down = &g->vals[bl_node_src(g, n, DOWN)];
    const uint64_t pairs = (uint64_t)ids->ne[0] * ids->ne[1];
    struct layout l = {.many = ids->ne[1] > BL_FEW_TOKENS};

    l.hidden = place(&l.bytes, pairs * up->ne[1] * sizeof(float));
    l.part = place(&l.bytes, pairs * down->ne[1] * sizeof(float));
    l.order = l.tiles = l.halves = l.bytes;
    if (!l.many)
        return l;
    const uint64_t x = bl_simt_halved_of(up->ne[0], ids->ne[1]).bytes,
                   hidden = bl_simt_halved_of(down->ne[0], pairs).bytes;
    l.order = place(&l.bytes, pairs * sizeof(uint32_t));
    l.tiles = place(&l.bytes, (1 + 3 * (uint64_t)most_tiles(pairs, up->ne[2], LEAST_SIDE)) *
                                  sizeof(uint32_t));
    l.halves = place(&l.bytes, x > hidden ? x : hidden);
    return l;
}

static bool experts_supports(const struct bl_graph *g, const struct bl_node *n)
{
    return bl_simt_multiplies(g, n, GATE) && bl_simt_multiplies(g, n, UP) &&
           bl_simt_multiplies(g, n, DOWN) && g->vals[bl_node_src(g, n, UP)].ne[2] <= MOST_EXPERTS;
}

static uint64_t experts_scratch(const struct bl_graph *g, const struct bl_node *n)
{
    return layout_of(g, n).bytes;
}

/* Arguments of a product of every pair with its matrix of source `src`. */
static void bind(struct bl_simt_builder *b, unsigned src, uint64_t x, uint64_t y, uint32_t divisor,
                 struct bl_simt_args *a)
{
    const struct bl_experts_attr *at = bl_simt_attr(b);

    a->a[BL_SIMT_W] = bl_simt_src_addr(b, src);
    a->a[BL_SIMT_X] = x;
    a->a[BL_SIMT_Y] = y;
    a->a[BL_SIMT_BIAS] = bl_simt_src_addr(b, src + 3);
    a->a[BL_SIMT_SCALE] = bl_simt_src_addr(b, src + 6);
    a->a[BL_SIMT_IDS] = bl_simt_src_addr(b, IDS);
    a->a[BL_SIMT_PARAMS] = b->params;
    a->n[BL_SIMT_USED] = bl_simt_src(b, IDS)->ne[0];
    a->n[BL_SIMT_N_EXPERTS] = bl_simt_src(b, src)->ne[2];
    a->n[BL_SIMT_DIVISOR] = divisor;
    a->n[BL_SIMT_KIND] = at->glu.kind;
    a->n[BL_SIMT_ALPHA] = bl_simt_float(at->glu.alpha);
    a->n[BL_SIMT_LIMIT] = bl_simt_float(at->glu.limit);
    a->n[BL_SIMT_X_STRIDE] = bl_simt_src(b, src)->ne[0];
}

/* ---- few tokens: each pair on its own, gate and up at once where they are of one type ---- */

static void few(struct bl_simt_builder *b, const struct layout *l)
{
    const struct bl_value *ids = bl_simt_src(b, IDS), *gate = bl_simt_src(b, GATE),
                          *up = bl_simt_src(b, UP), *down = bl_simt_src(b, DOWN);
    const uint32_t pairs = ids->ne[0] * ids->ne[1];
    const uint64_t hidden = bl_simt_scratch(b, l->hidden, l->part - l->hidden),
                   part = bl_simt_scratch(b, l->part, l->order - l->part);
    const bool twin = gate->type == up->type;
    struct bl_simt_call c = {.grid = {0, pairs}};

    bind(b, GATE, bl_simt_src_addr(b, X), hidden, ids->ne[0], &c.args);
    if (twin) {
        c.args.a[BL_SIMT_W_UP] = bl_simt_src_addr(b, UP);
        c.args.a[BL_SIMT_BIAS_UP] = bl_simt_src_addr(b, UP + 3);
        c.args.a[BL_SIMT_SCALE_UP] = bl_simt_src_addr(b, UP + 6);
    }
    bl_simt_few(b, gate, twin, pairs, &c);
    bl_simt_emit(b, &c);
    if (!twin) {
        c = (struct bl_simt_call){.grid = {0, pairs}};
        bind(b, UP, bl_simt_src_addr(b, X), hidden, ids->ne[0], &c.args);
        c.args.a[BL_SIMT_GATES] = hidden;
        bl_simt_few(b, up, false, pairs, &c);
        bl_simt_emit(b, &c);
    }
    c = (struct bl_simt_call){.grid = {0, pairs}};
    bind(b, DOWN, hidden, part, 1, &c.args);
    bl_simt_few(b, down, false, pairs, &c);
    bl_simt_emit(b, &c);
}

/* ---- many: all pairs of an expert together ---- */

/* Tiles have one size for all three matrices: halves and floats may differ in theirs. */
static uint32_t side_of(const struct bl_simt_builder *b, struct bl_simt_call *c)
{
    const struct bl_value *ids = bl_simt_src(b, IDS);
    const uint32_t each = (uint32_t)((uint64_t)ids->ne[0] * ids->ne[1] / bl_simt_src(b, UP)->ne[2]);
    uint32_t side = UINT32_MAX;

    for (unsigned src = GATE; src <= DOWN; src++) {
        const uint32_t own = bl_simt_many(b, bl_simt_src(b, src), each, c);
        side = own < side ? own : side;
    }
    return side;
}

static void sort_pairs(struct bl_simt_builder *b, const struct layout *l, uint32_t side)
{
    struct bl_simt_call c = {.kernel = "experts_sort", .type = BL_SIMT_NO_TYPE, .block = {THREADS}};

    c.args =
        (struct bl_simt_args){.a = {bl_simt_src_addr(b, UP), bl_simt_src_addr(b, IDS),
                                    bl_simt_scratch(b, l->order, l->tiles - l->order),
                                    bl_simt_scratch(b, l->tiles, l->halves - l->tiles), b->params},
                              .n = {bl_simt_src(b, UP)->ne[2], bl_simt_src(b, IDS)->ne[0], side}};
    bl_simt_emit(b, &c);
}

/* One matrix; `rows` of x, as halves where the kernel takes them. */
static void many_product(struct bl_simt_builder *b, const struct layout *l, unsigned src,
                         uint32_t side, uint32_t rows, bool halved, struct bl_simt_call *c)
{
    const struct bl_value *w = bl_simt_src(b, src), *ids = bl_simt_src(b, IDS);
    const struct bl_simt_halved h = bl_simt_halved_of(w->ne[0], rows);
    const uint64_t pairs = (uint64_t)ids->ne[0] * ids->ne[1];

    bl_simt_many(b, w, side, c);
    if (bl_simt_halves(b, w)) {
        if (!halved)
            bl_simt_halve(b, c->args.a[BL_SIMT_X], w->ne[0], w->ne[0], 1, rows, l->halves);
        c->args.a[BL_SIMT_X] = bl_simt_scratch(b, l->halves, h.scales);
        c->args.a[BL_SIMT_ROW_SCALES] =
            bl_simt_scratch(b, l->halves + h.scales, h.bytes - h.scales);
        c->args.n[BL_SIMT_X_STRIDE] = h.stride;
    }
    c->args.a[BL_SIMT_ORDER] = bl_simt_scratch(b, l->order, l->tiles - l->order);
    c->args.a[BL_SIMT_TILES] = bl_simt_scratch(b, l->tiles, l->halves - l->tiles);
    c->grid[1] = most_tiles(pairs, bl_simt_src(b, UP)->ne[2], side);
    bl_simt_emit(b, c);
}

static void many(struct bl_simt_builder *b, const struct layout *l)
{
    const struct bl_value *ids = bl_simt_src(b, IDS);
    const uint32_t used = ids->ne[0], n_tok = ids->ne[1];
    const uint64_t hidden = bl_simt_scratch(b, l->hidden, l->part - l->hidden),
                   part = bl_simt_scratch(b, l->part, l->order - l->part),
                   x = bl_simt_src_addr(b, X);
    struct bl_simt_call c = {0};
    const uint32_t side = side_of(b, &c);

    sort_pairs(b, l, side);
    c = (struct bl_simt_call){0};
    bind(b, GATE, x, hidden, used, &c.args);
    many_product(b, l, GATE, side, n_tok, false, &c);
    c = (struct bl_simt_call){0};
    bind(b, UP, x, hidden, used, &c.args);
    c.args.a[BL_SIMT_GATES] = hidden;
    many_product(b, l, UP, side, n_tok, bl_simt_halves(b, bl_simt_src(b, GATE)), &c);
    c = (struct bl_simt_call){0};
    bind(b, DOWN, hidden, part, 1, &c.args);
    many_product(b, l, DOWN, side, used * n_tok, false, &c);
}

/* y: where the sum goes, after it was added to `addend`, unless that is 0. */
static void sum_pairs(struct bl_simt_builder *b, const struct layout *l, uint64_t y,
                      uint64_t addend)
{
    const struct bl_value *ids = bl_simt_src(b, IDS), *down = bl_simt_src(b, DOWN);
    struct bl_simt_call c = {.kernel = "experts_sum",
                             .type = BL_SIMT_NO_TYPE,
                             .grid = {bl_simt_groups(down->ne[1], THREADS), ids->ne[1]},
                             .block = {THREADS}};

    c.args = (struct bl_simt_args){
        .a = {bl_simt_src_addr(b, DOWN), bl_simt_scratch(b, l->part, l->order - l->part), y,
              bl_simt_src_addr(b, IDS), b->params, bl_simt_src_addr(b, WEIGHTS), addend},
        .n = {down->ne[1], ids->ne[0], down->ne[2]}};
    bl_simt_emit(b, &c);
}

static void all_pairs(struct bl_simt_builder *b, const struct layout *l)
{
    if (l->many)
        many(b, l);
    else
        few(b, l);
}

static void experts_emit(struct bl_simt_builder *b)
{
    const struct layout l = layout_of(b->graph, b->node);

    all_pairs(b, &l);
    sum_pairs(b, &l, bl_simt_dst_addr(b, 0), 0);
}

void bl_simt_emit_experts_into(struct bl_simt_builder *b, const struct bl_bound *experts,
                               const struct bl_bound *add)
{
    const struct layout l = layout_of(b->graph, experts->node);
    const unsigned other = bl_node_src(b->graph, add->node, 0) == experts->node->dst[0] ? 1 : 0;

    bl_simt_stand(b, experts);
    all_pairs(b, &l);
    sum_pairs(b, &l, add->dst[0], add->src[other]);
}

const struct bl_simt_op bl_simt_experts = {experts_supports, experts_scratch, experts_emit};

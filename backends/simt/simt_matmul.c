/* SPDX-License-Identifier: MIT */
/* MATMUL and MATMUL_HEADS, and which kernel multiplies how many tokens. */
#include "simt_rows.h"

#include "mem.h"

enum { W, X, BIAS, SCALE };                 /* sources */
enum { FEW = 16, SMALL_TILE = 32, K = 64 }; /* tokens that matvec takes; matmul.hpp */

static bool is_plain(enum bl_dtype t)
{
    return bl_dtypes[t].block_elems == 1;
}

bool bl_simt_multiplies(const struct bl_graph *g, const struct bl_node *n, unsigned src)
{
    const uint8_t type = g->vals[bl_node_src(g, n, src)].type;
    return bl_simt_kernel_find("matvec", type) < BL_SIMT_N_KERNELS &&
           bl_simt_kernel_find("matmulx", type) < BL_SIMT_N_KERNELS;
}

/* ---- few tokens ---- */

/* Lanes that share a row: so many that each has two pieces of it or more, but no more. */
static uint32_t lanes_of(const struct bl_simt_builder *b, const struct bl_value *w)
{
    const uint32_t pieces = is_plain(w->type) ? w->ne[0] / 8
                            : b->exact        ? w->ne[0] / 32
                                              : w->ne[0] / 64;
    uint32_t lanes = b->limits->warp;
    while (lanes > 2 && pieces < 2 * lanes)
        lanes /= 2;
    return lanes;
}

/* Blocks for the rows of w, if each did one pass. */
static uint32_t blocks_of(const struct bl_simt_builder *b, const struct bl_value *w, bool twin)
{
    const uint32_t rows = BL_SIMT_PRODUCT_THREADS / lanes_of(b, w) * (twin ? 1 : 2);
    return bl_simt_groups(w->ne[1], rows);
}

/* Activations are turned into bytes once a block, so that a block of a large matrix has much to do.
 */
static uint32_t passes_of(const struct bl_simt_builder *b, uint64_t blocks)
{
    const uint32_t passes = (uint32_t)(blocks / (8 * (uint64_t)b->limits->units + 1)) + 1;
    return passes < 16 ? passes : 16;
}

void bl_simt_few(const struct bl_simt_builder *b, const struct bl_value *w, bool twin,
                 uint32_t groups, struct bl_simt_call *c)
{
    const uint32_t blocks = blocks_of(b, w, twin), passes = passes_of(b, (uint64_t)blocks * groups);

    c->type = w->type;
    c->block[0] = BL_SIMT_PRODUCT_THREADS;
    c->args.n[BL_SIMT_IN] = w->ne[0];
    c->args.n[BL_SIMT_OUT] = w->ne[1];
    c->args.n[BL_SIMT_ROW_BYTES] = bl_simt_row_bytes(w);
    c->args.n[BL_SIMT_LANES] = lanes_of(b, w);
    c->args.n[BL_SIMT_PASSES] = passes;
    c->args.n[BL_SIMT_WIDE] = w->ne[0] % 8 == 0 && bl_simt_row_bytes(w) % 16 == 0;
    c->grid[0] = bl_simt_groups(blocks, passes);
    c->kernel = is_plain(w->type) || !b->exact ? "matvec" : "matvecx";
}

/* ---- many ---- */

bool bl_simt_halves(const struct bl_simt_builder *b, const struct bl_value *w)
{
    return !b->exact && w->type != BL_F32;
}

uint32_t bl_simt_many(const struct bl_simt_builder *b, const struct bl_value *w, uint32_t n_tok,
                      struct bl_simt_call *c)
{
    const bool halves = bl_simt_halves(b, w), small = n_tok <= SMALL_TILE;

    c->type = w->type;
    c->block[0] = BL_SIMT_PRODUCT_THREADS;
    c->args.n[BL_SIMT_IN] = w->ne[0];
    c->args.n[BL_SIMT_OUT] = w->ne[1];
    c->args.n[BL_SIMT_ROW_BYTES] = bl_simt_row_bytes(w);
    c->args.n[BL_SIMT_WIDE] = w->ne[0] % 8 == 0 && bl_simt_row_bytes(w) % 16 == 0;
    c->kernel = !halves ? "matmulx" : small ? "matmul32" : "matmul";
    c->grid[0] = bl_simt_groups(w->ne[1], halves ? BL_SIMT_MATRIX_ROWS : BL_SIMT_EXACT_SIDE);
    return !halves ? BL_SIMT_EXACT_SIDE : small ? SMALL_TILE : BL_SIMT_MOST_TILE;
}

struct bl_simt_halved bl_simt_halved_of(uint32_t n, uint64_t rows)
{
    struct bl_simt_halved h = {.stride = (n + K - 1) / K * K};
    h.scales = bl_align_up(rows * h.stride * sizeof(uint16_t), 64);
    h.bytes = bl_align_up(h.scales + rows * sizeof(float), 64);
    return h;
}

void bl_simt_halve(struct bl_simt_builder *b, uint64_t x, uint32_t n, uint32_t stride,
                   uint32_t each, uint32_t n_tok, uint64_t off)
{
    const struct bl_simt_halved h = bl_simt_halved_of(n, (uint64_t)each * n_tok);
    struct bl_simt_call c = {.kernel = "halve_rows",
                             .type = BL_SIMT_NO_TYPE,
                             .grid = {each, n_tok},
                             .block = {BL_SIMT_PRODUCT_THREADS}};

    c.args = (struct bl_simt_args){.a = {x, bl_simt_scratch(b, off, h.scales),
                                         bl_simt_scratch(b, off + h.scales, h.bytes - h.scales)},
                                   .n = {n, stride, h.stride, each}};
    bl_simt_emit(b, &c);
}

/* ---- MATMUL ---- */

struct product { /* y = w · x for every head */
    const struct bl_value *w;
    uint32_t n_tok, n_heads, x_stride, y_stride; /* floats of a token */
};

static uint64_t product_scratch(const struct product *p)
{
    if (p->n_tok <= FEW || p->w->type == BL_F32)
        return 0;
    return bl_simt_halved_of(p->w->ne[0], (uint64_t)p->n_tok * p->n_heads).bytes;
}

/* All but the emission. */
static void product_few(const struct bl_simt_builder *b, const struct product *p, bool twin,
                        struct bl_simt_call *c)
{
    const bool fours = p->n_tok > 1 && (is_plain(p->w->type) || !b->exact);
    const uint32_t groups = fours ? bl_simt_groups(p->n_tok, 4) : p->n_tok;

    bl_simt_few(b, p->w, twin, groups * p->n_heads, c);
    if (fours)
        c->kernel = "matvec4";
    c->grid[1] = groups;
}

static void product_many(struct bl_simt_builder *b, const struct product *p, struct bl_simt_call *c)
{
    const uint32_t tile = bl_simt_many(b, p->w, p->n_tok, c);

    if (bl_simt_halves(b, p->w)) {
        const struct bl_simt_halved h =
            bl_simt_halved_of(p->w->ne[0], (uint64_t)p->n_tok * p->n_heads);
        bl_simt_halve(b, c->args.a[BL_SIMT_X], p->w->ne[0], p->x_stride, p->n_heads, p->n_tok, 0);
        c->args.a[BL_SIMT_X] = bl_simt_scratch(b, 0, h.scales);
        c->args.a[BL_SIMT_ROW_SCALES] = bl_simt_scratch(b, h.scales, h.bytes - h.scales);
        c->args.n[BL_SIMT_X_STRIDE] = h.stride;
        c->args.n[BL_SIMT_DIVISOR] = p->n_heads; /* rows of a token */
    }
    c->grid[1] = bl_simt_groups(p->n_tok, tile);
    bl_simt_emit(b, c);
}

static void product_bind(const struct bl_simt_builder *b, const struct product *p,
                         struct bl_simt_call *c)
{
    c->args.a[BL_SIMT_W] = bl_simt_src_addr(b, W);
    c->args.a[BL_SIMT_X] = bl_simt_src_addr(b, X);
    c->args.a[BL_SIMT_Y] = bl_simt_dst_addr(b, 0);
    c->args.n[BL_SIMT_TOKENS] = p->n_tok;
    c->args.n[BL_SIMT_X_STRIDE] = p->x_stride;
    c->args.n[BL_SIMT_Y_STRIDE] = p->y_stride;
    c->grid[2] = p->n_heads;
}

static void product_emit(struct bl_simt_builder *b, const struct product *p, struct bl_simt_call *c)
{
    product_bind(b, p, c);
    if (p->n_tok > FEW) {
        product_many(b, p, c);
        return;
    }
    product_few(b, p, false, c);
    bl_simt_emit(b, c);
}

static struct product matmul_of(const struct bl_graph *g, const struct bl_node *n)
{
    const struct bl_value *w = &g->vals[bl_node_src(g, n, W)], *x = &g->vals[bl_node_src(g, n, X)];
    return (struct product){w, x->ne[1], 1, w->ne[0], w->ne[1]};
}

static bool matmul_supports(const struct bl_graph *g, const struct bl_node *n)
{
    return bl_simt_multiplies(g, n, W);
}

static uint64_t matmul_scratch(const struct bl_graph *g, const struct bl_node *n)
{
    const struct product p = matmul_of(g, n);
    return product_scratch(&p);
}

static void matmul_emit(struct bl_simt_builder *b)
{
    const struct product p = matmul_of(b->graph, b->node);
    struct bl_simt_call c = {0};

    c.args.a[BL_SIMT_BIAS] = bl_simt_src_addr(b, BIAS);
    c.args.a[BL_SIMT_SCALE] = bl_simt_src_addr(b, SCALE);
    product_emit(b, &p, &c);
}

const struct bl_simt_op bl_simt_matmul = {matmul_supports, matmul_scratch, matmul_emit};

/* ---- several nodes of few tokens at once: simt_fuse.c says which ---- */

/* The call of a MATMUL, which the builder then stands at. */
static struct bl_simt_call call_of(struct bl_simt_builder *b, const struct bl_bound *matmul,
                                   bool twin)
{
    struct bl_simt_call c = {0};

    bl_simt_stand(b, matmul);
    const struct product p = matmul_of(b->graph, b->node);
    c.args.a[BL_SIMT_BIAS] = bl_simt_src_addr(b, BIAS);
    c.args.a[BL_SIMT_SCALE] = bl_simt_src_addr(b, SCALE);
    product_bind(b, &p, &c);
    product_few(b, &p, twin, &c);
    return c;
}

void bl_simt_emit_products(struct bl_simt_builder *b, const struct bl_bound *matmul, uint32_t n)
{
    struct bl_simt_call c = call_of(b, matmul, false);
    uint64_t blocks = 0;

    for (uint32_t j = 0; j < n; j++) {
        bl_simt_stand(b, &matmul[j]);
        blocks += blocks_of(b, bl_simt_src(b, W), false);
    }
    const uint32_t passes = passes_of(b, blocks * c.grid[1]);
    c.args.n[BL_SIMT_PRODUCTS] = n;
    c.args.n[BL_SIMT_PASSES] = passes;
    c.grid[0] = 0;
    for (uint32_t j = 0; j < n; j++) {
        uint64_t *a = &c.args.a[BL_SIMT_EACH_A * j];
        uint32_t *num = &c.args.n[BL_SIMT_EACH_N * j];
        bl_simt_stand(b, &matmul[j]);
        a[BL_SIMT_W] = bl_simt_src_addr(b, W);
        a[BL_SIMT_Y] = bl_simt_dst_addr(b, 0);
        a[BL_SIMT_BIAS] = bl_simt_src_addr(b, BIAS);
        a[BL_SIMT_SCALE] = bl_simt_src_addr(b, SCALE);
        num[BL_SIMT_OUT] = bl_simt_src(b, W)->ne[1];
        num[BL_SIMT_FIRST] = c.grid[0];
        c.grid[0] += bl_simt_groups(blocks_of(b, bl_simt_src(b, W), false), passes);
    }
    bl_simt_emit(b, &c);
}

void bl_simt_emit_gated(struct bl_simt_builder *b, const struct bl_bound *gate)
{
    const struct bl_bound *up = gate + 1, *glu = gate + 2;
    struct bl_simt_call c = call_of(b, gate, true);

    bl_simt_stand(b, up);
    c.args.a[BL_SIMT_W_UP] = bl_simt_src_addr(b, W);
    c.args.a[BL_SIMT_BIAS_UP] = bl_simt_src_addr(b, BIAS);
    c.args.a[BL_SIMT_SCALE_UP] = bl_simt_src_addr(b, SCALE);
    bl_simt_stand(b, glu);
    const struct bl_glu_attr *at = bl_simt_attr(b);
    c.args.a[BL_SIMT_Y] = bl_simt_dst_addr(b, 0);
    c.args.n[BL_SIMT_KIND] = at->kind;
    c.args.n[BL_SIMT_ALPHA] = bl_simt_float(at->alpha);
    c.args.n[BL_SIMT_LIMIT] = bl_simt_float(at->limit);
    bl_simt_emit(b, &c);
}

void bl_simt_emit_product_into(struct bl_simt_builder *b, const struct bl_bound *matmul,
                               const struct bl_bound *add, const struct bl_bound *write)
{
    struct bl_simt_call c = call_of(b, matmul, false);
    const bl_val y = b->node->dst[0];

    if (add) {
        bl_simt_stand(b, add);
        c.args.a[BL_SIMT_ADDEND] =
            bl_simt_src_addr(b, bl_node_src(b->graph, b->node, 0) == y ? 1 : 0);
        c.args.a[BL_SIMT_Y] = bl_simt_dst_addr(b, 0);
    }
    if (write) {
        bl_simt_stand(b, write);
        c.args.a[BL_SIMT_STREAMS] = bl_simt_src_addr(b, 0);
        c.args.a[BL_SIMT_MIX] = bl_simt_src_addr(b, 2);
        c.args.a[BL_SIMT_Y] = bl_simt_dst_addr(b, 0);
        c.args.n[BL_SIMT_N_STREAMS] = bl_simt_src(b, 0)->ne[0] / bl_simt_src(b, 1)->ne[0];
    }
    bl_simt_emit(b, &c);
}

/* ---- MATMUL_HEADS ---- */

static struct product heads_of(const struct bl_graph *g, const struct bl_node *n)
{
    const struct bl_value *w = &g->vals[bl_node_src(g, n, W)], *x = &g->vals[bl_node_src(g, n, X)];
    return (struct product){w, x->ne[1], w->ne[2], x->ne[0], g->vals[n->dst[0]].ne[0]};
}

static bool heads_supports(const struct bl_graph *g, const struct bl_node *n)
{
    const uint8_t type = g->vals[bl_node_src(g, n, W)].type;
    return bl_simt_multiplies(g, n, W) && bl_simt_kernel_find("heads_t", type) < BL_SIMT_N_KERNELS;
}

static uint64_t heads_scratch(const struct bl_graph *g, const struct bl_node *n)
{
    const struct product p = heads_of(g, n);
    return ((const struct bl_heads_attr *)bl_node_attr(g, n))->transposed ? 0 : product_scratch(&p);
}

static void transposed_emit(struct bl_simt_builder *b, const struct product *p,
                            struct bl_simt_call *c)
{
    enum { ROWS = 32, THREADS = 128 }; /* heads.cu */

    c->kernel = "heads_t";
    c->type = p->w->type;
    c->block[0] = THREADS;
    c->grid[0] = bl_simt_groups(p->w->ne[0], THREADS / ROWS * 32);
    c->grid[1] = p->n_tok;
    c->grid[2] = p->n_heads;
    c->args.a[BL_SIMT_W] = bl_simt_src_addr(b, W);
    c->args.a[BL_SIMT_X] = bl_simt_src_addr(b, X);
    c->args.a[BL_SIMT_Y] = bl_simt_dst_addr(b, 0);
    c->args.n[BL_SIMT_IN] = p->w->ne[0];
    c->args.n[BL_SIMT_OUT] = p->w->ne[1];
    c->args.n[BL_SIMT_ROW_BYTES] = bl_simt_row_bytes(p->w);
    c->args.n[BL_SIMT_X_STRIDE] = p->x_stride;
    c->args.n[BL_SIMT_Y_STRIDE] = p->y_stride;
    bl_simt_emit(b, c);
}

static void heads_emit(struct bl_simt_builder *b)
{
    const struct bl_heads_attr *at = bl_simt_attr(b);
    const struct product p = heads_of(b->graph, b->node);
    const bl_val scale = bl_node_src(b->graph, b->node, 2);
    struct bl_simt_call c = {0};

    c.args.a[BL_SIMT_SCALE] = bl_simt_src_addr(b, 2);
    c.args.n[BL_SIMT_HEAD_BYTES] = at->head_rows * bl_simt_row_bytes(p.w);
    c.args.n[BL_SIMT_OWN_SCALES] = scale && b->graph->vals[scale].ne[0] > 1;
    if (at->transposed)
        transposed_emit(b, &p, &c);
    else
        product_emit(b, &p, &c);
}

const struct bl_simt_op bl_simt_matmul_heads = {heads_supports, heads_scratch, heads_emit};

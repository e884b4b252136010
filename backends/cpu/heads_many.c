/* SPDX-License-Identifier: MIT */
/* MATMUL_HEADS for many tokens. As it lies, a head is a matrix of its own in panels. Transposed,
 * its columns are the rows of the product: pieces of decoded rows lie as panels of floats do. */
#include "heads.h"

enum { PIECE = 256 /* columns of a transposed piece: whole blocks of every type */ };

struct many_args {
    struct bl_heads_args few;      /* first */
    struct bl_panel_weight weight; /* of a head; transposed: k and rows are those of the product */
    uint8_t *tiles;                /* [heads][tokens that there is room for] */
    size_t head_bytes;             /* from head to head */
    struct bl_cpu_room *room;      /* [threads] */
    float *pieces;                 /* [threads][piece_floats] transposed */
    size_t piece_floats;
    struct bl_cpu_counter *counter; /* the step's own */
};

static struct bl_panel_tokens tokens_of(const struct many_args *a, uint32_t head, uint32_t n_tok)
{
    return bl_panel_tokens_of(&a->weight, a->tiles + head * a->head_bytes, n_tok);
}

/* ---- tiles ---- */

static void arrange_run(const void *args, const struct bl_cpu_job *job)
{
    const struct many_args *a = args;
    const uint32_t n_tok = bl_cpu_n_rows(job, a->few.rows);
    const struct bl_panel_kernel *kernel = bl_panel_for(a->weight.kernel, n_tok);
    const uint32_t n_tiles = bl_panel_tiles(n_tok, kernel->tokens);
    for (uint32_t i; bl_cpu_claim(a->counter, a->few.heads * n_tiles, &i);) {
        const uint32_t head = i / n_tiles, first = bl_panel_tile_first(n_tok, n_tiles, i % n_tiles),
                       end = bl_panel_tile_first(n_tok, n_tiles, i % n_tiles + 1);
        const void *x[BL_TILE_TOKENS];
        for (uint32_t t = first; t < end; t++)
            x[t - first] = a->few.x + t * a->few.x_stride + head * a->few.x_head;
        bl_panel_arrange(kernel, a->weight.act, a->tiles + head * a->head_bytes, n_tok, first,
                         end - first, a->weight.k, x);
    }
}

/* ---- products ---- */

/* A block of tokens of a head. */
struct block {
    uint32_t head, first_tile, end_tile;
};

static void store(const struct many_args *a, float (*sum)[BL_PANEL_ROWS], const struct block *b,
                  const struct bl_panel_tokens *x, uint32_t row)
{
    const uint32_t left = a->weight.rows - row, n = left < BL_PANEL_ROWS ? left : BL_PANEL_ROWS;
    const uint32_t first = bl_panel_tile_first(x->n_tok, x->n_tiles, b->first_tile),
                   end = bl_panel_tile_first(x->n_tok, x->n_tiles, b->end_tile);
    for (size_t t = first; t < end; t++) {
        bl_heads_scale(&a->few, b->head, n, sum[t - first]);
        bl_panel_put(a->few.y + (t * a->few.heads + b->head) * a->weight.rows + row, sum[t - first],
                     n);
    }
}

static void panel_run(const struct many_args *a, struct bl_cpu_room *room, const struct block *b,
                      const struct bl_panel_tokens *x, uint32_t panel)
{
    const uint32_t row = panel * BL_PANEL_ROWS;
    bl_panel_rows(&a->weight, &(struct bl_panel_sums){.at = room->sum[0]}, room->panel,
                  a->few.w + b->head * a->few.head_stride, row, x, b->first_tile, b->end_tile,
                  NULL);
    store(a, room->sum[0], b, x, row);
}

/* Every row of the file is a column of as many panels as it has 32 elements. */
static void decode_piece(const struct many_args *a, float *panels, uint32_t head, uint32_t first,
                         uint32_t n)
{
    const struct bl_heads_args *f = &a->few;
    const uint8_t *w = f->w + head * f->head_stride + (size_t)bl_dtype_row_bytes(f->type, first);
    float row[PIECE] = {0};
    for (uint32_t r = 0; r < f->n; r++) {
        bl_dtype_decode(f->type, n, row, w + r * f->w_stride);
        for (uint32_t i = 0; i < n; i += BL_PANEL_ROWS)
            memcpy(panels + ((size_t)i * f->n + r * BL_PANEL_ROWS), row + i,
                   BL_PANEL_ROWS * sizeof *row);
    }
}

static void piece_run(const struct many_args *a, float (*sum)[BL_PANEL_ROWS], float *panels,
                      const struct block *b, const struct bl_panel_tokens *x, uint32_t piece)
{
    const struct bl_panel_kernel *kernel = x->kernel;
    const uint32_t left = a->few.k - piece * PIECE, n = left < PIECE ? left : PIECE;
    const uint32_t base = bl_panel_tile_first(x->n_tok, x->n_tiles, b->first_tile);
    decode_piece(a, panels, b->head, piece * PIECE, n);
    for (uint32_t row = 0; row < n; row += BL_PANEL_ROWS) {
        for (uint32_t i = b->first_tile; i < b->end_tile; i++) {
            const uint32_t first = bl_panel_tile_first(x->n_tok, x->n_tiles, i),
                           n_tok = bl_panel_tile_first(x->n_tok, x->n_tiles, i + 1) - first;
            for (uint32_t r = 0; r < a->few.n; r += BL_PANEL_COLS)
                kernel->multiply(
                    sum[first - base], panels + ((size_t)row * a->few.n + r * BL_PANEL_ROWS),
                    x->tiles + bl_panel_tile_at(kernel, x->n_tok, a->few.n, r, first), n_tok,
                    a->few.n - r < BL_PANEL_COLS ? a->few.n - r : BL_PANEL_COLS, r > 0);
        }
        store(a, sum, b, x, piece * PIECE + row);
    }
}

static void many_run(const void *args, const struct bl_cpu_job *job)
{
    const struct many_args *a = args;
    const uint32_t n_tok = bl_cpu_n_rows(job, a->few.rows), heads = a->few.heads;
    if (n_tok < a->weight.kernel->from) {
        (a->few.transposed ? bl_heads_transposed : bl_heads_dots)(&a->few, job);
        return;
    }
    const uint32_t step = a->few.transposed ? PIECE : BL_PANEL_ROWS,
                   n_panels = (a->weight.rows + step - 1) / step;
    const struct bl_panel_tokens all = tokens_of(a, 0, n_tok);
    const uint32_t n_blocks = bl_panel_blocks(&all, a->weight.k, heads * n_panels, job->nth),
                   n = heads * n_blocks * n_panels;
    struct bl_cpu_room *room = &a->room[job->ith];
    for (uint32_t unit; bl_cpu_claim(a->counter, n, &unit);) {
        const uint32_t panel = unit % n_panels, i = unit / n_panels % n_blocks,
                       head = unit / n_panels / n_blocks;
        const struct bl_panel_tokens x = tokens_of(a, head, n_tok);
        const struct block b = {head, bl_panel_tile_first(x.n_tiles, n_blocks, i),
                                bl_panel_tile_first(x.n_tiles, n_blocks, i + 1)};
        if (a->few.transposed)
            piece_run(a, room->sum[0], a->pieces + job->ith * a->piece_floats, &b, &x, panel);
        else
            panel_run(a, room, &b, &x, panel);
    }
}

/* ---- build ---- */

/* The type whose panels serve. */
static enum bl_dtype panel_type(const struct bl_graph *g, const struct bl_node *n)
{
    const struct bl_heads_attr *at = bl_node_attr(g, n);
    return at->transposed ? BL_F32 : (enum bl_dtype)g->vals[bl_node_src(g, n, 0)].type;
}

bool bl_heads_are_many(const struct bl_caps *caps, const struct bl_graph *g,
                       const struct bl_node *n)
{
    return bl_cpu_is_many(caps, &g->vals[bl_node_src(g, n, 1)], panel_type(g, n));
}

static uint64_t tile_bytes(const struct bl_caps *caps, const struct bl_graph *g,
                           const struct bl_node *n)
{
    const struct bl_heads_attr *at = bl_node_attr(g, n);
    const struct bl_value *w = &g->vals[bl_node_src(g, n, 0)], *x = &g->vals[bl_node_src(g, n, 1)];
    const uint64_t k = w->ne[at->transposed ? 1 : 0];
    return x->ne[1] * bl_act_blocks(k) * caps->tiles[panel_type(g, n)].part_bytes; /* of a head */
}

static uint64_t piece_bytes(const struct bl_graph *g, const struct bl_node *n)
{
    const struct bl_heads_attr *at = bl_node_attr(g, n);
    const struct bl_value *w = &g->vals[bl_node_src(g, n, 0)];
    return at->transposed ? (uint64_t)w->ne[1] * PIECE * sizeof(float) : 0;
}

uint64_t bl_heads_many_bytes(const struct bl_caps *caps, const struct bl_graph *g,
                             const struct bl_node *n)
{
    return bl_cpu_own_bytes(caps) + caps->threads * piece_bytes(g, n) +
           bl_cpu_round(g->vals[bl_node_src(g, n, 0)].ne[2] * tile_bytes(caps, g, n));
}

/* Both steps have the same arguments but for the counter. */
static void fill(struct bl_cpu_builder *b, struct many_args *a, uint64_t vectors)
{
    const struct bl_value *w = bl_cpu_src(b, 0);
    const bool transposed = ((const struct bl_heads_attr *)bl_cpu_attr(b))->transposed;
    bl_heads_fill(b, &a->few, vectors);
    a->weight = bl_panel_weight_of(&b->dev->kernels, panel_type(b->graph, b->node), w);
    if (transposed) {
        a->weight.k = w->ne[1];
        a->weight.rows = w->ne[0];
    }
    a->counter = bl_cpu_counter_of(b);
}

void bl_heads_many(struct bl_cpu_builder *b)
{
    const struct bl_caps *caps = &b->dev->base.caps;
    const uint64_t head_bytes = tile_bytes(caps, b->graph, b->node),
                   bytes = bl_cpu_src(b, 0)->ne[2] * head_bytes,
                   own_bytes = piece_bytes(b->graph, b->node);
    bl_cpu_reserve(b, bl_cpu_op_of(b->node)->scratch(caps, b->graph, b->node));
    const uint64_t own = bl_cpu_own(b), vectors = bl_heads_vectors(b),
                   tiles = bl_cpu_take(b, bytes),
                   pieces = own_bytes ? bl_cpu_take(b, caps->threads * own_bytes) : 0;
    const struct many_args places = {.tiles = (uint8_t *)(uintptr_t)tiles,
                                     .head_bytes = (size_t)head_bytes,
                                     .room = (struct bl_cpu_room *)(uintptr_t)own,
                                     .pieces = (float *)(uintptr_t)pieces,
                                     .piece_floats = (size_t)own_bytes / sizeof(float)};
    struct many_args *a = bl_cpu_step(b, arrange_run, sizeof *a, BL_CPU_SPREAD);
    if (!a)
        return;
    *a = places;
    fill(b, a, vectors);
    bl_cpu_touch(b, tiles, bytes, 0, true);
    if (!(a = bl_cpu_step(b, many_run, sizeof *a, BL_CPU_SPREAD)))
        return;
    *a = places;
    fill(b, a, vectors);
    bl_cpu_touch(b, tiles, bytes, 0, false);
    bl_cpu_writes(b, 0);
    bl_cpu_touch_own(b, own, sizeof(struct bl_cpu_room));
    if (own_bytes)
        bl_cpu_touch_own(b, pieces, own_bytes);
}

/* SPDX-License-Identifier: MIT */
/* MATMUL for few tokens: rows of the weight, dealt to the threads. */
#include "matmul.h"

enum {
    TILE_BYTES = 256 << 10, /* activations that stay in the second-level cache while rows pass */
    CHUNKS_EACH = 4,        /* of a small matrix, so many for a thread at least */
    MOST_CHUNKS = 4,        /* of a unit */
    UNITS_EACH = 8          /* for a thread at least, or units of one chunk */
};

void bl_cpu_scale_and_bias(const struct bl_cpu_matmul_args *a, float *y, uint32_t row, uint32_t n)
{
    if (a->scale)
        for (uint32_t i = 0; i < n; i++)
            y[i] *= a->scale[0];
    if (a->bias)
        for (uint32_t i = 0; i < n; i++)
            y[i] += a->bias[row + i];
}

/* Rows [row, row + n) for the tokens of a tile: the rows come from memory once. */
static void chunk_run(const struct bl_cpu_matmul_args *a, struct bl_cpu_range tokens, uint32_t row,
                      uint32_t n, const uint8_t *next)
{
    const uint8_t *w = a->w + row * a->w_stride;
    for (uint32_t t = tokens.first; t < tokens.end; t++) {
        float *y = a->y + (size_t)t * a->n + row;
        a->kernel->dot(a->k, n, y, w, a->w_stride, a->x + t * a->x_stride, next);
        next = NULL;
        bl_cpu_scale_and_bias(a, y, row, n);
    }
}

static void unit_run(const struct bl_cpu_matmul_args *a, struct bl_cpu_range tokens,
                     struct bl_cpu_range rows, const uint8_t *next)
{
    for (uint32_t row = rows.first; row < rows.end; row += a->chunk) {
        const bool last = rows.end - row <= a->chunk;
        chunk_run(a, tokens, row, last ? rows.end - row : a->chunk,
                  last ? next : a->w + (row + a->chunk) * a->w_stride);
    }
}

/* Units of rows for each tile of tokens. */
struct units {
    uint32_t rows, per_tile, n;
};

static struct units units_of(const struct bl_cpu_matmul_args *a, const struct bl_cpu_job *job)
{
    const uint32_t n_tiles = (bl_cpu_n_rows(job, a->rows) + a->tile - 1) / a->tile;
    struct units u = {.rows = a->unit};
    while ((u.per_tile = (a->n + u.rows - 1) / u.rows) > BL_CPU_MOST_UNITS / (n_tiles + 1))
        u.rows *= 2;
    u.n = n_tiles * u.per_tile;
    return u;
}

static const uint8_t *first_rows(const struct bl_cpu_matmul_args *a, const struct bl_cpu_job *job)
{
    const struct units u = units_of(a, job);
    return a->w + bl_cpu_hand_first(job, u.n) % u.per_tile * u.rows * a->w_stride;
}

static struct bl_cpu_range piece(uint32_t at, uint32_t each, uint32_t n)
{
    return (struct bl_cpu_range){at * each, n - at * each < each ? n : (at + 1) * each};
}

void bl_cpu_matmul_dots(const void *args, const struct bl_cpu_job *job)
{
    const struct bl_cpu_matmul_args *a = args;
    const struct units u = units_of(a, job);
    const uint8_t *after = a->next ? first_rows(a->next, job) : NULL;
    struct bl_cpu_hand hand = bl_cpu_hand_of(job, u.n);
    for (struct bl_cpu_range some; bl_cpu_hand_next(&hand, &some);) {
        const uint32_t ahead = bl_cpu_hand_ahead(&hand, some);
        for (uint32_t unit = some.first; unit < some.end; unit++) {
            const uint32_t next = unit + 1 < some.end ? unit + 1 : ahead;
            unit_run(a, piece(unit / u.per_tile, a->tile, bl_cpu_n_rows(job, a->rows)),
                     piece(unit % u.per_tile, u.rows, a->n),
                     next < u.n ? a->w + next % u.per_tile * u.rows * a->w_stride : after);
        }
    }
}

/* ---- build ---- */

/* Chunks of a unit, and rows of a chunk, so few that threads share small matrices, too. */
static void cut(struct bl_cpu_matmul_args *a, uint32_t n_threads)
{
    a->chunk = bl_cpu_chunk_rows(a->w_stride, a->kernel->rows);
    while (a->chunk > a->kernel->rows && a->n / a->chunk < CHUNKS_EACH * n_threads)
        a->chunk /= 2;
    a->unit = a->chunk;
    while (a->unit < MOST_CHUNKS * a->chunk && a->n / a->unit >= 2 * UNITS_EACH * n_threads)
        a->unit *= 2;
}

struct bl_cpu_matmul_args bl_cpu_matmul_of(const struct bl_cpu_builder *b, struct bl_cpu_operand x)
{
    const struct bl_value *w = bl_cpu_src(b, 0);
    const struct bl_matmul_kernel *kernel = &b->dev->kernels.matmul[w->type];
    const size_t w_stride = (size_t)bl_dtype_row_bytes(w->type, w->ne[0]);
    struct bl_cpu_matmul_args a = {
        .kernel = kernel,
        .w = bl_cpu_weight(b, 0),
        .x = (const uint8_t *)(uintptr_t)x.addr,
        .bias = bl_cpu_weight(b, 2),
        .scale = bl_cpu_weight(b, 3),
        .w_stride = w_stride,
        .x_stride = (size_t)x.row_bytes,
        .k = w->ne[0],
        .n = w->ne[1],
        .tile = x.row_bytes < TILE_BYTES ? (uint32_t)(TILE_BYTES / x.row_bytes) : 1,
        .rows = bl_cpu_rows_of(b, 1)};
    cut(&a, b->dev->base.caps.threads);
    return a;
}

static void emit_few(struct bl_cpu_builder *b)
{
    const struct bl_value *w = bl_cpu_src(b, 0), *x = bl_cpu_src(b, 1);
    const struct bl_cpu_operand in = bl_cpu_operand(b, 1, b->dev->kernels.matmul[w->type].act);
    struct bl_cpu_matmul_args *a = bl_cpu_step(b, bl_cpu_matmul_dots, sizeof *a, BL_CPU_SPREAD);
    if (!a)
        return;
    *a = bl_cpu_matmul_of(b, in);
    bl_cpu_deals(b);
    bl_cpu_reads_operand(b, in, x->ne[1]);
    a->y = bl_cpu_writes(b, 0);
    if (b->last_matmul)
        b->last_matmul->next = a;
    b->last_matmul = a;
}

static void matmul_emit(struct bl_cpu_builder *b)
{
    if (bl_cpu_is_many(&b->dev->base.caps, bl_cpu_src(b, 1), bl_cpu_src(b, 0)->type))
        bl_cpu_matmul_many(b);
    else
        emit_few(b);
}

static bool matmul_supports(const struct bl_graph *g, const struct bl_node *n)
{
    return bl_dtypes[g->vals[bl_node_src(g, n, 0)].type].act != BL_ACT_NONE;
}

static uint64_t matmul_scratch(const struct bl_caps *caps, const struct bl_graph *g,
                               const struct bl_node *n)
{
    const struct bl_value *x = &g->vals[bl_node_src(g, n, 1)];
    const uint8_t type = g->vals[bl_node_src(g, n, 0)].type;
    return bl_cpu_is_many(caps, x, type) ? bl_cpu_many_bytes(caps, x, type)
                                         : bl_cpu_operand_bytes(caps, x, type);
}

const struct bl_cpu_op bl_cpu_matmul = {matmul_supports, matmul_scratch, matmul_emit};

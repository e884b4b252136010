/* SPDX-License-Identifier: MIT */
/* MATMUL for few tokens: every thread takes a contiguous share of the weight's rows. */
#include "matmul.h"

enum {
    TILE_BYTES = 256 << 10 /* activations that stay in the second-level cache while rows pass */
};

static struct bl_cpu_range share(const struct bl_cpu_matmul_args *a, const struct bl_cpu_job *job)
{
    return bl_cpu_groups(a->n, a->kernel->rows, job->ith, job->nth);
}

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

void bl_cpu_matmul_dots(const void *args, const struct bl_cpu_job *job)
{
    const struct bl_cpu_matmul_args *a = args;
    const struct bl_cpu_range r = share(a, job);
    const uint32_t n_tok = bl_cpu_n_rows(job, a->rows);
    const uint8_t *after =
        a->next ? a->next->w + share(a->next, job).first * a->next->w_stride : NULL;
    for (uint32_t t = 0; t < n_tok; t += a->tile) {
        const struct bl_cpu_range tokens = {t, n_tok - t < a->tile ? n_tok : t + a->tile};
        for (uint32_t row = r.first; row < r.end; row += a->chunk) {
            const bool last = r.end - row <= a->chunk;
            chunk_run(a, tokens, row, last ? r.end - row : a->chunk,
                      last ? after : a->w + (row + a->chunk) * a->w_stride);
        }
    }
}

/* ---- build ---- */

struct bl_cpu_matmul_args bl_cpu_matmul_of(const struct bl_cpu_builder *b, struct bl_cpu_operand x)
{
    const struct bl_value *w = bl_cpu_src(b, 0);
    const struct bl_matmul_kernel *kernel = &b->dev->kernels.matmul[w->type];
    const size_t w_stride = (size_t)bl_dtype_row_bytes(w->type, w->ne[0]);
    return (struct bl_cpu_matmul_args){
        .kernel = kernel,
        .w = bl_cpu_weight(b, 0),
        .x = (const uint8_t *)(uintptr_t)x.addr,
        .bias = bl_cpu_weight(b, 2),
        .scale = bl_cpu_weight(b, 3),
        .w_stride = w_stride,
        .x_stride = (size_t)x.row_bytes,
        .k = w->ne[0],
        .n = w->ne[1],
        .chunk = bl_cpu_chunk_rows(w_stride, kernel->rows),
        .tile = x.row_bytes < TILE_BYTES ? (uint32_t)(TILE_BYTES / x.row_bytes) : 1,
        .rows = bl_cpu_rows_of(b, 1)};
}

static void emit_few(struct bl_cpu_builder *b)
{
    const struct bl_value *w = bl_cpu_src(b, 0), *x = bl_cpu_src(b, 1);
    const struct bl_cpu_operand in = bl_cpu_operand(b, 1, b->dev->kernels.matmul[w->type].act);
    struct bl_cpu_matmul_args *a = bl_cpu_step(b, bl_cpu_matmul_dots, sizeof *a, BL_CPU_SPREAD);
    if (!a)
        return;
    *a = bl_cpu_matmul_of(b, in);
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

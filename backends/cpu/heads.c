/* SPDX-License-Identifier: MIT */
/* MATMUL_HEADS: a matrix for every head. As it lies, its rows are dealt as those of a MATMUL.
 * Transposed, rows are decoded and added up: no form of such a matrix has to be made at load. */
#include "heads.h"

enum {
    PIECE = 256,    /* columns of one piece of a transposed product: whole blocks of every type */
    TILE_TOKENS = 8 /* that share a decoded row */
};

/* ---- as it lies ---- */

struct quantize_args {
    const float *x;
    uint8_t *dst;
    uint32_t k, n; /* of a head; heads */
    uint8_t rows, act;
};

/* The heads of a token, each in blocks of its own. */
static void quantize_run(const void *args, const struct bl_cpu_job *job)
{
    const struct quantize_args *a = args;
    bl_quant_fn *const quantize = bl_cpu_quantizer(job->kernels, a->act);
    const struct bl_cpu_range r = bl_cpu_rows(job, a->rows);
    const size_t bytes = (size_t)bl_cpu_act_bytes(a->k);
    for (size_t i = (size_t)r.first * a->n; i < (size_t)r.end * a->n; i++)
        quantize(a->k, (struct bl_act_block *)(a->dst + i * bytes), a->x + i * a->k);
}

void bl_heads_scale(const struct bl_heads_args *a, uint32_t head, uint32_t n, float *y)
{
    if (a->scale)
        for (uint32_t i = 0; i < n; i++)
            y[i] *= a->scale[head * a->scale_step];
}

/* Rows [row, end) of a head's matrix for all tokens: the rows of a chunk come from memory once. */
static void head_run(const struct bl_heads_args *a, uint32_t n_tok, uint32_t head, uint32_t row,
                     uint32_t end)
{
    for (; row < end; row += a->chunk) {
        const uint32_t n = end - row < a->chunk ? end - row : a->chunk;
        const uint8_t *w = a->w + head * a->head_stride + row * a->w_stride;
        for (size_t t = 0; t < n_tok; t++) {
            float *y = a->y + (t * a->heads + head) * a->n + row;
            a->kernel->dot(a->k, n, y, w, a->w_stride, a->x + t * a->x_stride + head * a->x_head,
                           NULL);
            bl_heads_scale(a, head, n, y);
        }
    }
}

void bl_heads_dots(const void *args, const struct bl_cpu_job *job)
{
    const struct bl_heads_args *a = args;
    const uint32_t n_tok = bl_cpu_n_rows(job, a->rows), group = a->kernel->rows;
    const uint32_t groups = (a->n + group - 1) / group; /* of one head */
    struct bl_cpu_range r = bl_cpu_split(a->heads * groups, job->ith, job->nth);
    while (r.first < r.end) {
        const uint32_t head = r.first / groups, row = r.first % groups * group;
        const uint32_t left = (head + 1) * groups < r.end ? groups : r.end - head * groups;
        head_run(a, n_tok, head, row, left * group < a->n ? left * group : a->n);
        r.first = head * groups + left;
    }
}

/* ---- transposed ---- */

static void piece_run(const struct bl_heads_args *a, const struct bl_cpu_kernels *k, uint32_t head,
                      uint32_t piece, uint32_t t, uint32_t n_tok)
{
    const uint32_t first = piece * PIECE, n = a->k - first < PIECE ? a->k - first : PIECE;
    const size_t off = (size_t)bl_dtype_row_bytes(a->type, first);
    float row[PIECE], *y[TILE_TOKENS];
    for (uint32_t i = 0; i < n_tok; i++) {
        y[i] = a->y + ((size_t)(t + i) * a->heads + head) * a->k + first;
        memset(y[i], 0, n * sizeof *row);
    }
    for (uint32_t r = 0; r < a->n; r++) {
        bl_dtype_decode(a->type, n, row, a->w + head * a->head_stride + r * a->w_stride + off);
        for (uint32_t i = 0; i < n_tok; i++) {
            const uint8_t *x = a->x + (t + i) * a->x_stride + head * a->x_head;
            k->axpy(n, y[i], ((const float *)x)[r], row);
        }
    }
    for (uint32_t i = 0; i < n_tok; i++)
        bl_heads_scale(a, head, n, y[i]);
}

void bl_heads_transposed(const void *args, const struct bl_cpu_job *job)
{
    const struct bl_heads_args *a = args;
    const uint32_t n_tok = bl_cpu_n_rows(job, a->rows), pieces = (a->k + PIECE - 1) / PIECE;
    const struct bl_cpu_range r = bl_cpu_split(a->heads * pieces, job->ith, job->nth);
    for (uint32_t i = r.first; i < r.end; i++)
        for (uint32_t t = 0; t < n_tok; t += TILE_TOKENS)
            piece_run(a, job->kernels, i / pieces, i % pieces, t,
                      n_tok - t < TILE_TOKENS ? n_tok - t : TILE_TOKENS);
}

/* ---- build ---- */

/* x of a head is a row's length, or, transposed, a column's. */
static bool is_quantized(const struct bl_caps *caps, const struct bl_heads_attr *at,
                         enum bl_dtype weight)
{
    return !caps->exact && !at->transposed && bl_dtypes[weight].act != BL_ACT_F32;
}

uint64_t bl_heads_vector_bytes(const struct bl_caps *caps, const struct bl_heads_attr *at,
                               const struct bl_value *w)
{
    return is_quantized(caps, at, w->type) ? bl_cpu_act_bytes(w->ne[0])
                                           : w->ne[at->transposed ? 1 : 0] * sizeof(float);
}

static uint64_t vectors_bytes(const struct bl_caps *caps, const struct bl_graph *g,
                              const struct bl_node *n)
{
    const struct bl_heads_attr *at = bl_node_attr(g, n);
    const struct bl_value *w = &g->vals[bl_node_src(g, n, 0)], *x = &g->vals[bl_node_src(g, n, 1)];
    return is_quantized(caps, at, w->type)
               ? bl_cpu_round((uint64_t)x->ne[1] * w->ne[2] * bl_heads_vector_bytes(caps, at, w))
               : 0;
}

uint64_t bl_heads_vectors(struct bl_cpu_builder *b)
{
    const struct bl_caps *caps = &b->dev->base.caps;
    const struct bl_value *w = bl_cpu_src(b, 0), *x = bl_cpu_src(b, 1);
    const uint64_t bytes = vectors_bytes(caps, b->graph, b->node);
    if (!bytes)
        return b->bound->src[1];
    const uint64_t at = bl_cpu_take(b, bytes);
    const uint8_t rows = bl_cpu_rows_of(b, 1);
    struct quantize_args *a = bl_cpu_step(b, quantize_run, sizeof *a, rows);
    if (!a)
        return 0;
    a->x = bl_cpu_reads(b, 1);
    bl_cpu_touch(b, at, bytes, bytes / x->ne[1], true);
    a->dst = (uint8_t *)(uintptr_t)at;
    a->k = w->ne[0];
    a->n = w->ne[2];
    a->rows = rows;
    a->act = b->dev->kernels.matmul[w->type].act;
    return at;
}

void bl_heads_fill(struct bl_cpu_builder *b, struct bl_heads_args *a, uint64_t vectors)
{
    const struct bl_heads_attr *at = bl_cpu_attr(b);
    const struct bl_value *w = bl_cpu_src(b, 0), *x = bl_cpu_src(b, 1);
    a->x_head = (size_t)bl_heads_vector_bytes(&b->dev->base.caps, at, w);
    a->x_stride = w->ne[2] * a->x_head;
    bl_cpu_touch(b, vectors, x->ne[1] * a->x_stride, a->x_stride, false);
    a->kernel = &b->dev->kernels.matmul[w->type];
    a->w = bl_cpu_weight(b, 0);
    a->x = (const uint8_t *)(uintptr_t)vectors;
    a->scale = bl_cpu_weight(b, 2);
    a->scale_step = a->scale && bl_cpu_src(b, 2)->ne[0] > 1;
    a->y = (float *)(uintptr_t)b->bound->dst[0];
    a->w_stride = (size_t)bl_dtype_row_bytes(w->type, w->ne[0]);
    a->head_stride = at->head_rows * a->w_stride;
    a->k = w->ne[0];
    a->n = w->ne[1];
    a->heads = w->ne[2];
    a->chunk = bl_cpu_chunk_rows(a->w_stride, a->kernel->rows);
    a->rows = bl_cpu_rows_of(b, 1);
    a->type = w->type;
    a->transposed = at->transposed;
}

/* ---- op ---- */

static void heads_emit(struct bl_cpu_builder *b)
{
    const struct bl_heads_attr *at = bl_cpu_attr(b);
    if (bl_heads_are_many(&b->dev->base.caps, b->graph, b->node)) {
        bl_heads_many(b);
        return;
    }
    const uint64_t vectors = bl_heads_vectors(b);
    struct bl_heads_args *a = bl_cpu_step(b, at->transposed ? bl_heads_transposed : bl_heads_dots,
                                          sizeof *a, BL_CPU_SPREAD);
    if (!a)
        return;
    bl_heads_fill(b, a, vectors);
    bl_cpu_writes(b, 0);
}

static bool heads_supports(const struct bl_graph *g, const struct bl_node *n)
{
    return bl_dtypes[g->vals[bl_node_src(g, n, 0)].type].act != BL_ACT_NONE;
}

static uint64_t heads_scratch(const struct bl_caps *caps, const struct bl_graph *g,
                              const struct bl_node *n)
{
    return vectors_bytes(caps, g, n) +
           (bl_heads_are_many(caps, g, n) ? bl_heads_many_bytes(caps, g, n) : 0);
}

const struct bl_cpu_op bl_cpu_matmul_heads = {heads_supports, heads_scratch, heads_emit};

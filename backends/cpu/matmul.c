/* SPDX-License-Identifier: MIT */
/* MATMUL: quantise the activations, then every thread takes a contiguous share of the weight's
 * rows. */
#include "segment.h"

enum {
    CHUNK_BYTES =
        16 << 10, /* weights of one kernel call; also how far ahead the next chunk is prefetched */
    TILE_BYTES = 256 << 10, /* activations that stay in the second-level cache while rows pass by */
    LOOK_AHEAD = 8          /* nodes searched for another use of the same activations */
};

/* ---- operands: activations in the form a dot wants ---- */

struct quantize_args {
    const uint8_t *src;
    uint8_t *dst;
    size_t src_stride, dst_stride;
    uint32_t k;
    uint8_t rows, family;
};

static void quantize_run(const void *args, const struct bl_cpu_job *job)
{
    const struct quantize_args *a = args;
    bl_quant_fn *const quantize =
        a->family == BL_CPU_OF_32 ? job->kernels->quantize_32 : job->kernels->quantize_256;
    const struct bl_cpu_range r = bl_cpu_rows(job, a->rows);
    for (uint32_t t = r.first; t < r.end; t++)
        quantize(a->k, (struct bl_act_block *)(a->dst + t * a->dst_stride),
                 (const float *)(a->src + t * a->src_stride));
}

static uint8_t family_of(uint8_t act)
{
    return act == BL_ACT_F32 ? BL_CPU_FLOAT : act == BL_ACT_Q8_K ? BL_CPU_OF_256 : BL_CPU_OF_32;
}

uint64_t bl_cpu_operand_bytes(const struct bl_caps *caps, const struct bl_value *x,
                              enum bl_dtype weight)
{
    const uint8_t act = caps->exact ? BL_ACT_F32 : bl_dtypes[weight].act;
    return act == BL_ACT_F32 ? 0 : bl_cpu_round(x->ne[1] * bl_cpu_act_bytes(x->ne[0]));
}

static const struct bl_cpu_slot *find_slot(const struct bl_cpu_builder *b, uint64_t src, uint32_t k,
                                           uint8_t family)
{
    for (unsigned i = 0; i < BL_CPU_SLOTS; i++)
        if (b->slot[i].bytes && b->slot[i].src == src && b->slot[i].k == k &&
            b->slot[i].family == family)
            return &b->slot[i];
    return NULL;
}

/* Source `src` of the node in hand, quantised by a step of its own. */
static void emit_quantize(struct bl_cpu_builder *b, unsigned src, uint8_t family)
{
    const struct bl_value *x = bl_cpu_src(b, src);
    const uint64_t row_bytes = bl_cpu_act_bytes(x->ne[0]), bytes = x->ne[1] * row_bytes;
    const uint8_t rows = bl_cpu_rows_of(b, src);
    const uint64_t at = bl_cpu_take(b, bytes);
    struct quantize_args *a = bl_cpu_step(b, quantize_run, sizeof *a, rows);
    if (!a)
        return;
    a->src = bl_cpu_reads(b, src);
    bl_cpu_touch(b, at, bytes, row_bytes, true);
    a->dst = (uint8_t *)(uintptr_t)at;
    a->k = x->ne[0];
    a->src_stride = x->ne[0] * sizeof(float);
    a->dst_stride = row_bytes;
    a->rows = rows;
    a->family = family;
    b->slot[b->next_slot] =
        (struct bl_cpu_slot){b->bound->src[src], bl_value_bytes(x), at, bytes, x->ne[0], family};
    b->next_slot = (b->next_slot + 1) % BL_CPU_SLOTS;
}

/* Q4_K and Q8_0 matrices over one x: both forms are made before the first of them is used, as
 * otherwise a barrier would stand between the matrices. Only while there is room beside what is
 * already there. */
static void quantize_ahead(struct bl_cpu_builder *b, unsigned src)
{
    const bl_val x = bl_node_src(b->graph, b->node, src);
    const uint64_t bytes =
        bl_cpu_round(bl_cpu_src(b, src)->ne[1] * bl_cpu_act_bytes(bl_cpu_src(b, src)->ne[0]));
    for (uint32_t i = 1; i <= b->n_after && i <= LOOK_AHEAD; i++) {
        const struct bl_node *n = b->bound[i].node;
        if (n->op != BL_OP_MATMUL || bl_node_src(b->graph, n, 1) != x)
            continue;
        const uint8_t type = b->graph->vals[bl_node_src(b->graph, n, 0)].type;
        const uint8_t family = family_of(b->dev->kernels.matmul[type].act);
        if (family != BL_CPU_FLOAT &&
            !find_slot(b, b->bound->src[src], bl_cpu_src(b, src)->ne[0], family) &&
            b->scratch_used + bytes <= b->scratch_bytes)
            emit_quantize(b, src, family);
    }
}

struct bl_cpu_operand bl_cpu_operand(struct bl_cpu_builder *b, unsigned src, uint8_t act)
{
    const struct bl_value *x = bl_cpu_src(b, src);
    const uint8_t family = family_of(act);
    if (family == BL_CPU_FLOAT)
        return (struct bl_cpu_operand){b->bound->src[src], x->ne[0] * sizeof(float)};
    const struct bl_cpu_slot *s = find_slot(b, b->bound->src[src], x->ne[0], family);
    if (!s) {
        emit_quantize(b, src, family);
        quantize_ahead(b, src);
        s = find_slot(b, b->bound->src[src], x->ne[0], family);
    }
    return (struct bl_cpu_operand){s ? s->at : 0, bl_cpu_act_bytes(x->ne[0])};
}

void bl_cpu_reads_operand(struct bl_cpu_builder *b, struct bl_cpu_operand x, uint32_t n_rows)
{
    bl_cpu_touch(b, x.addr, n_rows * x.row_bytes, x.row_bytes, false);
}

uint32_t bl_cpu_chunk_rows(uint64_t row_bytes, uint32_t rows)
{
    uint32_t n = rows;
    while (2 * n * row_bytes <= CHUNK_BYTES + CHUNK_BYTES / 4)
        n *= 2;
    return n;
}

/* ---- rows ---- */

struct bl_cpu_matmul_args {
    const struct bl_matmul_kernel *kernel;
    const uint8_t *w, *x;
    float *y;
    const float *bias, *scale;
    size_t w_stride, x_stride;
    uint32_t k, n, chunk, tile;
    uint8_t rows;
    const struct bl_cpu_matmul_args *next; /* whose weights come after, NULL: not known */
};

static struct bl_cpu_range share(const struct bl_cpu_matmul_args *a, const struct bl_cpu_job *job)
{
    return bl_cpu_groups(a->n, a->kernel->rows, job->ith, job->nth);
}

static void scale_and_bias(const struct bl_cpu_matmul_args *a, float *y, uint32_t row, uint32_t n)
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
        if (a->scale || a->bias)
            scale_and_bias(a, y, row, n);
    }
}

static void matmul_run(const void *args, const struct bl_cpu_job *job)
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

static void matmul_emit(struct bl_cpu_builder *b)
{
    const struct bl_value *w = bl_cpu_src(b, 0), *x = bl_cpu_src(b, 1);
    const struct bl_matmul_kernel *kernel = &b->dev->kernels.matmul[w->type];
    const struct bl_cpu_operand in = bl_cpu_operand(b, 1, kernel->act);
    struct bl_cpu_matmul_args *a = bl_cpu_step(b, matmul_run, sizeof *a, BL_CPU_SPREAD);
    if (!a)
        return;
    bl_cpu_reads_operand(b, in, x->ne[1]);
    a->kernel = kernel;
    a->w = bl_cpu_weight(b, 0);
    a->x = (const uint8_t *)(uintptr_t)in.addr;
    a->y = bl_cpu_writes(b, 0);
    a->bias = bl_cpu_weight(b, 2);
    a->scale = bl_cpu_weight(b, 3);
    a->w_stride = (size_t)bl_dtype_row_bytes(w->type, w->ne[0]);
    a->x_stride = (size_t)in.row_bytes;
    a->k = w->ne[0];
    a->n = w->ne[1];
    a->chunk = bl_cpu_chunk_rows(a->w_stride, kernel->rows);
    a->tile = in.row_bytes < TILE_BYTES ? (uint32_t)(TILE_BYTES / in.row_bytes) : 1;
    a->rows = bl_cpu_rows_of(b, 1);
    if (b->last_matmul)
        b->last_matmul->next = a;
    b->last_matmul = a;
}

static bool matmul_supports(const struct bl_graph *g, const struct bl_node *n)
{
    return bl_dtypes[g->vals[bl_node_src(g, n, 0)].type].act != BL_ACT_NONE;
}

static uint64_t matmul_scratch(const struct bl_caps *caps, const struct bl_graph *g,
                               const struct bl_node *n)
{
    return bl_cpu_operand_bytes(caps, &g->vals[bl_node_src(g, n, 1)],
                                g->vals[bl_node_src(g, n, 0)].type);
}

const struct bl_cpu_op bl_cpu_matmul = {matmul_supports, matmul_scratch, matmul_emit};

/* SPDX-License-Identifier: MIT */
/* What matrices multiply with: vectors as dots want them, and tiles as panels do. */
#include "operand.h"

enum {
    CHUNK_BYTES =
        16 << 10,  /* weights of one kernel call; also how far ahead the next chunk is prefetched */
    LOOK_AHEAD = 8 /* nodes searched for another use of the same activations */
};

static uint8_t family_of(uint8_t act)
{
    return act == BL_ACT_F32 ? BL_CPU_FLOAT : act == BL_ACT_Q8_K ? BL_CPU_OF_256 : BL_CPU_OF_32;
}

bl_quant_fn *bl_cpu_quantizer(const struct bl_cpu_kernels *k, uint8_t act)
{
    bl_quant_fn *const of[] = {NULL, k->quantize_32, k->quantize_256};
    return of[family_of(act)];
}

uint32_t bl_cpu_chunk_rows(uint64_t row_bytes, uint32_t rows)
{
    uint32_t n = rows;
    while (2 * n * row_bytes <= CHUNK_BYTES + CHUNK_BYTES / 4)
        n *= 2;
    return n;
}

/* ---- the cache ---- */

static const struct bl_cpu_slot *find(const struct bl_cpu_builder *b,
                                      const struct bl_cpu_slot *want)
{
    for (unsigned i = 0; i < BL_CPU_SLOTS; i++) {
        const struct bl_cpu_slot *s = &b->slot[i];
        if (s->bytes && s->src == want->src && s->k == want->k && s->family == want->family &&
            s->tokens == want->tokens && s->arrange == want->arrange && s->fold == want->fold)
            return s;
    }
    return NULL;
}

static void keep(struct bl_cpu_builder *b, const struct bl_cpu_slot *s)
{
    unsigned i = 0;
    while (i < BL_CPU_SLOTS && b->slot[i].bytes)
        i++;
    if (i == BL_CPU_SLOTS) {
        i = b->next_slot;
        b->next_slot = (i + 1) % BL_CPU_SLOTS;
    }
    b->slot[i] = *s;
}

/* How the vectors of a source are looked for, and what they take. */
static struct bl_cpu_slot vectors_of(const struct bl_cpu_builder *b, unsigned src, uint8_t family)
{
    const struct bl_value *x = bl_cpu_src(b, src);
    return (struct bl_cpu_slot){.src = b->bound->src[src],
                                .src_bytes = bl_value_bytes(x),
                                .bytes = x->ne[1] * bl_cpu_act_bytes(x->ne[0]),
                                .k = x->ne[0],
                                .family = family};
}

/* ---- vectors ---- */

struct quantize_args {
    const uint8_t *src;
    uint8_t *dst;
    size_t src_stride, dst_stride;
    uint32_t k;
    uint8_t rows, act;
};

static void quantize_run(const void *args, const struct bl_cpu_job *job)
{
    const struct quantize_args *a = args;
    bl_quant_fn *const quantize = bl_cpu_quantizer(job->kernels, a->act);
    const struct bl_cpu_range r = bl_cpu_rows(job, a->rows);
    for (uint32_t t = r.first; t < r.end; t++)
        quantize(a->k, (struct bl_act_block *)(a->dst + t * a->dst_stride),
                 (const float *)(a->src + t * a->src_stride));
}

uint64_t bl_cpu_operand_bytes(const struct bl_caps *caps, const struct bl_value *x,
                              enum bl_dtype weight)
{
    const uint8_t act = caps->exact ? BL_ACT_F32 : bl_dtypes[weight].act;
    return act == BL_ACT_F32 ? 0 : bl_cpu_round(x->ne[1] * bl_cpu_act_bytes(x->ne[0]));
}

/* Source `src` of the node in hand, quantised by a step of its own. */
static void emit_quantize(struct bl_cpu_builder *b, unsigned src, uint8_t act)
{
    struct bl_cpu_slot s = vectors_of(b, src, family_of(act));
    const uint64_t row_bytes = bl_cpu_act_bytes(s.k);
    const uint8_t rows = bl_cpu_rows_of(b, src);
    s.at = bl_cpu_take(b, s.bytes);
    struct quantize_args *a = bl_cpu_step(b, quantize_run, sizeof *a, rows);
    if (!a)
        return;
    a->src = bl_cpu_reads(b, src);
    bl_cpu_touch(b, s.at, s.bytes, row_bytes, true);
    a->dst = (uint8_t *)(uintptr_t)s.at;
    a->k = s.k;
    a->src_stride = s.k * sizeof(float);
    a->dst_stride = row_bytes;
    a->rows = rows;
    a->act = act;
    keep(b, &s);
}

/* Q4_K and Q8_0 matrices over one x: both forms are made before the first of them is used, as
 * otherwise a barrier would stand between the matrices. Only while there is room beside what is
 * already there. */
static void quantize_ahead(struct bl_cpu_builder *b, unsigned src)
{
    const bl_val x = bl_node_src(b->graph, b->node, src);
    for (uint32_t i = 1; i <= b->n_after && i <= LOOK_AHEAD; i++) {
        const struct bl_node *n = b->bound[i].node;
        if (n->op != BL_OP_MATMUL || bl_node_src(b->graph, n, 1) != x)
            continue;
        const uint8_t type = b->graph->vals[bl_node_src(b->graph, n, 0)].type;
        const uint8_t act = b->dev->kernels.matmul[type].act;
        const struct bl_cpu_slot s = vectors_of(b, src, family_of(act));
        if (s.family != BL_CPU_FLOAT && !find(b, &s) &&
            b->scratch_used + bl_cpu_round(s.bytes) <= b->scratch_bytes)
            emit_quantize(b, src, act);
    }
}

struct bl_cpu_operand bl_cpu_operand(struct bl_cpu_builder *b, unsigned src, uint8_t act)
{
    const struct bl_cpu_slot want = vectors_of(b, src, family_of(act));
    if (want.family == BL_CPU_FLOAT)
        return (struct bl_cpu_operand){want.src, want.k * sizeof(float)};
    const struct bl_cpu_slot *s = find(b, &want);
    if (!s) {
        emit_quantize(b, src, act);
        quantize_ahead(b, src);
        s = find(b, &want);
    }
    return (struct bl_cpu_operand){s ? s->at : 0, bl_cpu_act_bytes(want.k)};
}

void bl_cpu_reads_operand(struct bl_cpu_builder *b, struct bl_cpu_operand x, uint32_t n_rows)
{
    bl_cpu_touch(b, x.addr, n_rows * x.row_bytes, x.row_bytes, false);
}

/* ---- tiles ---- */

struct arrange_args {
    struct quantize_args vectors; /* src NULL: they are there already; k, rows always */
    const struct bl_panel_kernel *kernel;
    uint8_t *dst;
    struct bl_cpu_counter *counter;
};

/* A tile at a time: its vectors are still in the first-level cache when they are arranged. */
static void arrange_run(const void *args, const struct bl_cpu_job *job)
{
    const struct arrange_args *a = args;
    const struct quantize_args *v = &a->vectors;
    bl_quant_fn *const quantize = v->src ? bl_cpu_quantizer(job->kernels, v->act) : NULL;
    const uint32_t n = bl_cpu_n_rows(job, v->rows);
    const struct bl_panel_kernel *kernel = bl_panel_for(a->kernel, n);
    const uint32_t n_tiles = bl_panel_tiles(n, kernel->tokens);
    const void *x[BL_TILE_TOKENS];
    for (uint32_t i; bl_cpu_claim(a->counter, n_tiles, &i);) {
        const uint32_t first = bl_panel_tile_first(n, n_tiles, i),
                       end = bl_panel_tile_first(n, n_tiles, i + 1);
        for (uint32_t t = first; t < end; t++) {
            uint8_t *vector = v->dst + t * v->dst_stride;
            if (quantize)
                quantize(v->k, (struct bl_act_block *)vector,
                         (const float *)(v->src + t * v->src_stride));
            x[t - first] = vector;
        }
        bl_panel_arrange(kernel, v->act, a->dst, n, first, end - first, v->k, x);
    }
}

static struct bl_cpu_slot tiles_of(const struct bl_cpu_builder *b, unsigned src, uint8_t act,
                                   const struct bl_panel_kernel *p)
{
    struct bl_cpu_slot s = vectors_of(b, src, family_of(act));
    s.bytes = bl_cpu_src(b, src)->ne[1] * bl_cpu_token_bytes(p, s.k);
    s.tokens = p->tokens;
    s.arrange = p->arrange;
    s.fold = p->fold ? p->fold->arrange : NULL;
    return s;
}

/* Tiles, and the vectors where they are not there yet, by one step. */
static void emit_arrange(struct bl_cpu_builder *b, unsigned src, uint8_t act,
                         const struct bl_panel_kernel *p)
{
    struct bl_cpu_slot v = vectors_of(b, src, family_of(act)), t = tiles_of(b, src, act, p);
    const struct bl_cpu_slot *there = find(b, &v);
    const bool quantize = v.family != BL_CPU_FLOAT && !there;
    v.at = quantize ? bl_cpu_take(b, v.bytes) : there ? there->at : v.src;
    t.at = bl_cpu_take(b, t.bytes);
    struct arrange_args *a = bl_cpu_step(b, arrange_run, sizeof *a, BL_CPU_SPREAD);
    if (!a)
        return;
    const void *x = v.family == BL_CPU_FLOAT || quantize ? bl_cpu_reads(b, src) : NULL;
    a->vectors = (struct quantize_args){.src = quantize ? x : NULL,
                                        .dst = (uint8_t *)(uintptr_t)v.at,
                                        .src_stride = v.k * sizeof(float),
                                        .dst_stride = v.family == BL_CPU_FLOAT
                                                          ? v.k * sizeof(float)
                                                          : (size_t)bl_cpu_act_bytes(v.k),
                                        .k = v.k,
                                        .rows = bl_cpu_rows_of(b, src),
                                        .act = act};
    a->kernel = p;
    a->dst = (uint8_t *)(uintptr_t)t.at;
    a->counter = bl_cpu_counter_of(b);
    if (v.family != BL_CPU_FLOAT)
        bl_cpu_touch(b, v.at, v.bytes, 0, quantize);
    bl_cpu_touch(b, t.at, t.bytes, 0, true);
    if (quantize)
        keep(b, &v);
    keep(b, &t);
}

/* ---- all that panels need ---- */

uint64_t bl_cpu_own_bytes(const struct bl_caps *caps)
{
    return (uint64_t)caps->threads * sizeof(struct bl_cpu_room);
}

static struct bl_cpu_slot own_of(const struct bl_cpu_builder *b)
{
    return (struct bl_cpu_slot){.bytes = bl_cpu_own_bytes(&b->dev->base.caps),
                                .family = BL_CPU_WORK};
}

uint64_t bl_cpu_own(struct bl_cpu_builder *b)
{
    struct bl_cpu_slot s = own_of(b);
    const struct bl_cpu_slot *there = find(b, &s);
    if (there)
        return there->at;
    s.at = bl_cpu_take(b, s.bytes);
    keep(b, &s);
    return s.at;
}

uint64_t bl_cpu_many_bytes(const struct bl_caps *caps, const struct bl_value *x,
                           enum bl_dtype weight)
{
    return bl_cpu_own_bytes(caps) + bl_cpu_operand_bytes(caps, x, weight) +
           bl_cpu_round(x->ne[1] * bl_act_blocks(x->ne[0]) * caps->tiles[weight].part_bytes);
}

/* What of it is not there yet is reserved in one piece: taking one part cannot cost another. */
struct bl_cpu_many bl_cpu_many(struct bl_cpu_builder *b, unsigned src, uint8_t act,
                               const struct bl_panel_kernel *p)
{
    const struct bl_cpu_slot v = vectors_of(b, src, family_of(act)), t = tiles_of(b, src, act, p),
                             own = own_of(b);
    const bool is_float = v.family == BL_CPU_FLOAT;
    bl_cpu_reserve(b, (find(b, &own) ? 0 : bl_cpu_round(own.bytes)) +
                          (is_float || find(b, &v) ? 0 : bl_cpu_round(v.bytes)) +
                          (find(b, &t) ? 0 : bl_cpu_round(t.bytes)));
    struct bl_cpu_many m = {.own = bl_cpu_own(b)};
    if (!find(b, &t))
        emit_arrange(b, src, act, p);
    m.vectors = bl_cpu_operand(b, src, act);
    const struct bl_cpu_slot *tiles = find(b, &t);
    m.tiles = (struct bl_cpu_tiles){tiles ? tiles->at : 0, bl_cpu_token_bytes(p, v.k)};
    return m;
}

void bl_cpu_uses_many(struct bl_cpu_builder *b, const struct bl_cpu_many *m, uint32_t n_rows)
{
    bl_cpu_reads_operand(b, m->vectors, n_rows);
    bl_cpu_touch(b, m->tiles.addr, n_rows * m->tiles.token_bytes, 0, false);
    bl_cpu_touch_own(b, m->own, sizeof(struct bl_cpu_room));
}

/* SPDX-License-Identifier: MIT */
/* Ops that work token by token or element by element, and the table of all. */
#include "simt_rows.h"

#include <math.h>

enum { THREADS = 256, SMALL = 64 }; /* of element.cu and row.cu; of position.cu and cache.cu */

static uint32_t n_of(const struct bl_simt_builder *b, unsigned src)
{
    return bl_simt_src(b, src)->ne[0];
}

static uint32_t rows_of(const struct bl_simt_builder *b, unsigned src)
{
    return bl_simt_src(b, src)->ne[1];
}

/* {elements, rows} in blocks of `threads`. */
static void cover(struct bl_simt_call *c, uint64_t elems, uint32_t each, uint32_t rows)
{
    c->grid[0] = bl_simt_groups(elems, each);
    c->grid[1] = rows;
}

/* ---- EMBED, GATHER_ROWS ---- */

static bool embed_supports(const struct bl_graph *g, const struct bl_node *n)
{
    return bl_simt_kernel_find("embed", g->vals[bl_node_src(g, n, 0)].type) < BL_SIMT_N_KERNELS;
}

static void embed_emit(struct bl_simt_builder *b)
{
    const struct bl_value *table = bl_simt_src(b, 0);
    const struct bl_embed_attr *at = bl_simt_attr(b);
    struct bl_simt_call c = {.kernel = "embed", .type = table->type, .block = {SMALL}};

    c.args = (struct bl_simt_args){
        .a = {bl_simt_src_addr(b, 0), bl_simt_dst_addr(b, 0), b->params},
        .n = {table->ne[0], bl_simt_row_bytes(table), bl_simt_float(at->scale)}};
    cover(&c, table->ne[0], 32 * SMALL, bl_simt_dst(b, 0)->ne[1]);
    bl_simt_emit(b, &c);
}

/* a: x, y, params */
static struct bl_simt_call with_params(const struct bl_simt_builder *b, const char *kernel)
{
    struct bl_simt_call c = {.kernel = kernel, .type = BL_SIMT_NO_TYPE, .block = {THREADS}};

    c.args.a[0] = bl_simt_src_addr(b, 0);
    c.args.a[1] = bl_simt_dst_addr(b, 0);
    c.args.a[2] = b->params;
    c.args.n[0] = n_of(b, 0);
    cover(&c, n_of(b, 0), THREADS, bl_simt_dst(b, 0)->ne[1]);
    return c;
}

static void gather_emit(struct bl_simt_builder *b)
{
    const struct bl_simt_call c = with_params(b, "gather_rows");
    bl_simt_emit(b, &c);
}

static void temper_emit(struct bl_simt_builder *b)
{
    const struct bl_temper_attr *at = bl_simt_attr(b);
    struct bl_simt_call c = with_params(b, "temper");

    c.args.n[1] = bl_simt_float(at->scale);
    c.args.n[2] = at->every;
    bl_simt_emit(b, &c);
}

/* ---- RMS_NORM ---- */

static void norm_emit(struct bl_simt_builder *b)
{
    const struct bl_norm_attr *at = bl_simt_attr(b);
    struct bl_simt_call c = {.kernel = "rms_norm", .type = BL_SIMT_NO_TYPE, .block = {THREADS}};

    c.grid[0] = n_of(b, 0) / at->run;
    c.grid[1] = rows_of(b, 0);
    c.args = (struct bl_simt_args){
        .a = {bl_simt_src_addr(b, 0), bl_simt_src_addr(b, 1), bl_simt_dst_addr(b, 0)},
        .n = {at->run, bl_simt_float(at->eps), c.grid[0]}};
    bl_simt_emit(b, &c);
}

/* ---- positions ---- */

static void angles_emit(struct bl_simt_builder *b)
{
    const struct bl_angles_attr *at = bl_simt_attr(b);
    const double step = pow((double)at->base, -2.0 / at->n_dims);
    struct bl_simt_call c = {.kernel = "rope_angles", .type = BL_SIMT_NO_TYPE, .block = {SMALL}};
    uint64_t bits;

    memcpy(&bits, &step, sizeof bits);
    c.args = (struct bl_simt_args){
        .a = {bl_simt_src_addr(b, 1), bl_simt_dst_addr(b, 0), b->params},
        .n = {at->n_dims, at->group ? at->group : 1, at->inverse, at->yarn,
              bl_simt_float(at->freq_scale), bl_simt_float(at->magnitude), bl_simt_float(at->lo),
              bl_simt_float(at->hi), (uint32_t)bits, (uint32_t)(bits >> 32),
              at->sections[0] | at->sections[1] << 16, at->sections[2] | at->sections[3] << 16}};
    cover(&c, at->n_dims / 2, SMALL, bl_simt_dst(b, 0)->ne[1]);
    bl_simt_emit(b, &c);
}

static void rope_emit(struct bl_simt_builder *b)
{
    const struct bl_rope_attr *at = bl_simt_attr(b);
    const uint32_t n = n_of(b, 0);
    struct bl_simt_call c = {.kernel = "rope", .type = BL_SIMT_NO_TYPE, .block = {SMALL}};

    c.args = (struct bl_simt_args){
        .a = {bl_simt_src_addr(b, 0), bl_simt_src_addr(b, 1), bl_simt_dst_addr(b, 0)},
        .n = {n, at->head_elems, at->n_dims, at->first, at->mode == BL_ROPE_NEOX}};
    cover(&c, (uint64_t)n / at->head_elems * ((at->head_elems + 1) / 2), SMALL, rows_of(b, 0));
    bl_simt_emit(b, &c);
}

/* ---- KV_STORE ---- */

bool bl_simt_kv(enum bl_dtype type, uint32_t *out)
{
    static const enum bl_dtype kv[] = {BL_F32, BL_F16, BL_BF16, BL_Q8_0, BL_Q4_0}; /* kv.hpp */

    for (*out = 0; *out < sizeof kv / sizeof *kv; (*out)++)
        if (kv[*out] == type)
            return true;
    return false;
}

uint32_t bl_simt_kv_of(const struct bl_value *state)
{
    uint32_t kv;
    return bl_simt_kv(state->type, &kv) ? kv : 0;
}

static bool store_supports(const struct bl_graph *g, const struct bl_node *n)
{
    const struct bl_value *state = &g->vals[bl_node_src(g, n, 1)];
    uint32_t kv;
    return bl_simt_kv(state->type, &kv) && bl_dtype_row_bytes(state->type, state->ne[0]);
}

static void store_emit(struct bl_simt_builder *b)
{
    const struct bl_value *state = bl_simt_src(b, 1);
    const struct bl_store_attr *at = bl_simt_attr(b);
    struct bl_simt_call c = {.kernel = "kv_store", .type = BL_SIMT_NO_TYPE, .block = {SMALL}};

    c.args = (struct bl_simt_args){.a = {bl_simt_src_addr(b, 0), bl_simt_dst_addr(b, 0), b->params},
                                   .n = {state->ne[0], bl_simt_row_bytes(state), state->ne[1],
                                         at->group, bl_simt_kv_of(state)}};
    cover(&c, state->ne[0], 32 * SMALL, rows_of(b, 0));
    bl_simt_emit(b, &c);
}

/* ---- element by element ---- */

static void glu_emit(struct bl_simt_builder *b)
{
    const struct bl_glu_attr *at = bl_simt_attr(b);
    struct bl_simt_call c = {.kernel = "glu", .type = BL_SIMT_NO_TYPE, .block = {THREADS}};

    c.args = (struct bl_simt_args){
        .a = {bl_simt_src_addr(b, 0), bl_simt_src_addr(b, 1), bl_simt_dst_addr(b, 0)},
        .n = {n_of(b, 1), n_of(b, 0), at->kind, bl_simt_float(at->alpha),
              bl_simt_float(at->limit)}};
    cover(&c, n_of(b, 1), THREADS, rows_of(b, 1));
    bl_simt_emit(b, &c);
}

/* n[1..5): element.cu says what they are. The destination comes behind the op's `n_src` sources. */
static void element_emit(struct bl_simt_builder *b, const char *kernel, unsigned n_src,
                         const uint32_t n[4])
{
    const uint32_t elems = bl_simt_dst(b, 0)->ne[0];
    struct bl_simt_call c = {.kernel = kernel, .type = BL_SIMT_NO_TYPE, .block = {THREADS}};

    for (unsigned i = 0; i < n_src; i++)
        c.args.a[i] = bl_simt_src_addr(b, i);
    c.args.a[n_src] = bl_simt_dst_addr(b, 0);
    c.args.n[0] = elems;
    memcpy(c.args.n + 1, n, 4 * sizeof *n);
    cover(&c, elems, THREADS, bl_simt_dst(b, 0)->ne[1]);
    bl_simt_emit(b, &c);
}

static void add_emit(struct bl_simt_builder *b)
{
    element_emit(b, "add", 2, (const uint32_t[4]){0});
}

static void softcap_emit(struct bl_simt_builder *b)
{
    const struct bl_softcap_attr *at = bl_simt_attr(b);
    element_emit(b, "softcap", 1, (const uint32_t[4]){bl_simt_float(at->cap)});
}

static void slice_emit(struct bl_simt_builder *b)
{
    const struct bl_slice_attr *at = bl_simt_attr(b);
    element_emit(b, "slice", 1, (const uint32_t[4]){n_of(b, 0), at->run, at->first, at->n});
}

static void concat_emit(struct bl_simt_builder *b)
{
    const uint32_t runs = ((const struct bl_concat_attr *)bl_simt_attr(b))->runs;
    uint32_t n[4] = {0, 0, 0, runs};

    for (unsigned i = 0; i < 3; i++)
        n[i] = bl_node_src(b->graph, b->node, i) ? n_of(b, i) / runs : 0;
    element_emit(b, "concat", 3, n);
}

static void repeat_emit(struct bl_simt_builder *b)
{
    element_emit(b, "repeat", 1, (const uint32_t[4]){n_of(b, 0)});
}

/* ---- the table ---- */

static const struct bl_simt_op plain_ops[BL_N_OPS] = {
    [BL_OP_EMBED] = {.supports = embed_supports, .emit = embed_emit},
    [BL_OP_GATHER_ROWS] = {.emit = gather_emit},
    [BL_OP_RMS_NORM] = {.emit = norm_emit},
    [BL_OP_ROPE_ANGLES] = {.emit = angles_emit},
    [BL_OP_ROPE] = {.emit = rope_emit},
    [BL_OP_TEMPER] = {.emit = temper_emit},
    [BL_OP_KV_STORE] = {.supports = store_supports, .emit = store_emit},
    [BL_OP_GLU] = {.emit = glu_emit},
    [BL_OP_ADD] = {.emit = add_emit},
    [BL_OP_SOFTCAP] = {.emit = softcap_emit},
    [BL_OP_SLICE] = {.emit = slice_emit},
    [BL_OP_CONCAT] = {.emit = concat_emit},
    [BL_OP_REPEAT] = {.emit = repeat_emit},
};

/* Ops of files of their own. */
static const struct bl_simt_op *const other_ops[BL_N_OPS] = {
    [BL_OP_MATMUL] = &bl_simt_matmul,
    [BL_OP_MATMUL_HEADS] = &bl_simt_matmul_heads,
    [BL_OP_ATTENTION] = &bl_simt_attention,
    [BL_OP_ATTENTION_GROUPS] = &bl_simt_attention,
    [BL_OP_ROUTE] = &bl_simt_route,
    [BL_OP_EXPERTS] = &bl_simt_experts,
    [BL_OP_SHORT_CONV] = &bl_simt_short_conv,
    [BL_OP_DELTA_RULE] = &bl_simt_delta_rule,
    [BL_OP_COMPRESS] = &bl_simt_compress,
    [BL_OP_CHOOSE] = &bl_simt_choose,
    [BL_OP_STREAM_WEIGHTS] = &bl_simt_stream_weights,
    [BL_OP_STREAM_READ] = &bl_simt_stream_read,
    [BL_OP_STREAM_WRITE] = &bl_simt_stream_write,
    [BL_OP_ROUND] = &bl_simt_round,
    [BL_OP_HADAMARD] = &bl_simt_hadamard,
};

const struct bl_simt_op *bl_simt_op_of(const struct bl_node *n)
{
    if (n->op >= BL_N_OPS)
        return NULL;
    const struct bl_simt_op *op = other_ops[n->op] ? other_ops[n->op] : &plain_ops[n->op];
    return op->emit ? op : NULL;
}

bool bl_simt_supports(const struct bl_caps *caps, const struct bl_graph *g, const struct bl_node *n)
{
    (void)caps;
    const struct bl_simt_op *op = bl_simt_op_of(n);
    return op && (!op->supports || op->supports(g, n));
}

uint64_t bl_simt_scratch_bytes(const struct bl_caps *caps, const struct bl_graph *g,
                               const struct bl_node *n)
{
    (void)caps;
    const struct bl_simt_op *op = bl_simt_op_of(n);
    return op && op->scratch ? op->scratch(g, n) : 0;
}

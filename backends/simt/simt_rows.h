/* SPDX-License-Identifier: MIT */
/* simt_rows.h — ops by file, and what those files share; private to backends/simt.
 *
 * Purpose   rows of the table in simt_ops.c.
 * Ownership none.
 * Units     bytes, elements.
 * Errors    as simt_ops.h.
 * Threads   building: one.
 */
#ifndef BL_SIMT_ROWS_H
#define BL_SIMT_ROWS_H

#include "simt_ops.h"

#include <string.h>

extern const struct bl_simt_op bl_simt_matmul, bl_simt_matmul_heads, bl_simt_attention, bl_simt_route, bl_simt_experts;
extern const struct bl_simt_op bl_simt_short_conv, bl_simt_delta_rule, bl_simt_compress;
extern const struct bl_simt_op bl_simt_stream_weights, bl_simt_stream_read, bl_simt_stream_write, bl_simt_round,
    bl_simt_hadamard, bl_simt_choose;

/* The number that kernels know a type of state by; false: they do not. */
bool bl_simt_kv(enum bl_dtype, uint32_t *out);
uint32_t bl_simt_kv_of(const struct bl_value *state); /* of a node that is supported */

static inline uint32_t bl_simt_row_bytes(const struct bl_value *v)
{
    return (uint32_t)bl_dtype_row_bytes(v->type, v->ne[0]);
}

/* ---- products: product.hpp ---- */

enum { BL_SIMT_MOST_PRODUCTS = 8 }; /* of one launch */
enum bl_simt_product_addr {
    BL_SIMT_W, BL_SIMT_Y, BL_SIMT_BIAS, BL_SIMT_SCALE, BL_SIMT_EACH_A,
    BL_SIMT_X = BL_SIMT_EACH_A * BL_SIMT_MOST_PRODUCTS, BL_SIMT_IDS, BL_SIMT_PARAMS, BL_SIMT_W_UP, BL_SIMT_GATES,
    BL_SIMT_BIAS_UP, BL_SIMT_SCALE_UP, BL_SIMT_ORDER, BL_SIMT_TILES, BL_SIMT_ROW_SCALES, BL_SIMT_ADDEND, BL_SIMT_MIX,
    BL_SIMT_STREAMS
};
enum bl_simt_product_num {
    BL_SIMT_OUT, BL_SIMT_FIRST, BL_SIMT_EACH_N,
    BL_SIMT_IN = BL_SIMT_EACH_N * BL_SIMT_MOST_PRODUCTS, BL_SIMT_TOKENS, BL_SIMT_ROW_BYTES, BL_SIMT_X_STRIDE,
    BL_SIMT_Y_STRIDE, BL_SIMT_HEAD_BYTES, BL_SIMT_OWN_SCALES, BL_SIMT_LANES, BL_SIMT_USED, BL_SIMT_DIVISOR, BL_SIMT_KIND,
    BL_SIMT_ALPHA, BL_SIMT_LIMIT, BL_SIMT_PASSES, BL_SIMT_WIDE, BL_SIMT_PRODUCTS, BL_SIMT_N_STREAMS,
    BL_SIMT_N_EXPERTS
};
enum { BL_SIMT_PRODUCT_THREADS = 256, BL_SIMT_MATRIX_ROWS = 128, BL_SIMT_EXACT_SIDE = 64, BL_SIMT_MOST_TILE = 128 };

/* Of weights that have kernels for few tokens and many. */
bool bl_simt_multiplies(const struct bl_graph *, const struct bl_node *, unsigned src);
/* Chooses how the rows of w lie on a device's lanes, and the kernel for few tokens; grid[0] follows. */
void bl_simt_few(const struct bl_simt_builder *, const struct bl_value *w, bool twin, uint32_t groups, struct bl_simt_call *);
/* Tokens of a tile of the kernel for many, which is chosen by how many share a matrix. */
uint32_t bl_simt_many(const struct bl_simt_builder *, const struct bl_value *w, uint32_t n_tok, struct bl_simt_call *);
/* Whether activations that meet w in tiles are halves; what those and their scales take: of `rows` of `n`. */
bool bl_simt_halves(const struct bl_simt_builder *, const struct bl_value *w);
struct bl_simt_halved {
    uint64_t rows, scales, bytes; /* offsets */
    uint32_t stride;              /* halves of a row */
};
struct bl_simt_halved bl_simt_halved_of(uint32_t n, uint64_t rows);
/* x: {n elements, each * tokens} floats, `stride` from token to token; into scratch at `off`. */
void bl_simt_halve(struct bl_simt_builder *, uint64_t x, uint32_t n, uint32_t stride, uint32_t each, uint32_t n_tok,
                   uint64_t off);

/* ---- several nodes at once: simt_fuse.c has seen to it that they can be ---- */

enum { BL_SIMT_MOST_RUN = 4096, BL_SIMT_MOST_JOBS = 6, BL_SIMT_MOST_RINGS = 2 }; /* rows.cu; recurrent.cu */

/* n MATMULs of one x and type of weights. */
void bl_simt_emit_products(struct bl_simt_builder *, const struct bl_bound *, uint32_t n);
/* The MATMULs of gate and of up, and their GLU. */
void bl_simt_emit_gated(struct bl_simt_builder *, const struct bl_bound *);
/* A MATMUL, the ADD of its result to another value, the STREAM_WRITE of that; one of the last two may be NULL. */
void bl_simt_emit_product_into(struct bl_simt_builder *, const struct bl_bound *matmul, const struct bl_bound *add,
                               const struct bl_bound *write);
/* EXPERTS and the ADD of its result to another value. */
void bl_simt_emit_experts_into(struct bl_simt_builder *, const struct bl_bound *experts, const struct bl_bound *add);
/* STREAM_WEIGHTS, STREAM_READ, RMS_NORM. */
void bl_simt_emit_enter(struct bl_simt_builder *, const struct bl_bound *);
/* n COMPRESSes. */
void bl_simt_emit_rings(struct bl_simt_builder *, const struct bl_bound *, uint32_t n);
/* RMS_NORM, ROPE, HADAMARD, ROUND, KV_STORE of one value, each after the one before; those that are left out are NULL. */
enum bl_simt_stage {
    BL_SIMT_NORM, BL_SIMT_ROPE, BL_SIMT_TURN, BL_SIMT_ROUND, BL_SIMT_STORE, BL_SIMT_N_STAGES
};
struct bl_simt_job {
    const struct bl_bound *stage[BL_SIMT_N_STAGES];
    const struct bl_bound *first, *last; /* of those that are there */
    uint32_t run;            /* elements of a block */
};
void bl_simt_emit_jobs(struct bl_simt_builder *, const struct bl_simt_job *, uint32_t n);

#endif

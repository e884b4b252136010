/* SPDX-License-Identifier: MIT */
/* Residuals of several streams, rounding, and the choice among rows of groups. */
#include "simt_rows.h"

#include "mem.h"

enum { THREADS = 256, SMALL = 64 };          /* row.cu, element.cu; round_groups */
enum { MOST_STREAMS = 16, MOST_RUN = 4096 }; /* row.cu */

/* ---- STREAM_WEIGHTS, STREAM_READ, STREAM_WRITE ---- */

static bool weights_supports(const struct bl_graph *g, const struct bl_node *n)
{
    return ((const struct bl_streams_attr *)bl_node_attr(g, n))->n <= MOST_STREAMS;
}

static void weights_emit(struct bl_simt_builder *b)
{
    const struct bl_streams_attr *at = bl_simt_attr(b);
    struct bl_simt_call c = {.kernel = "stream_weights",
                             .type = BL_SIMT_NO_TYPE,
                             .grid = {bl_simt_src(b, 0)->ne[1]},
                             .block = {THREADS}};

    c.args = (struct bl_simt_args){
        .a = {bl_simt_src_addr(b, 0), bl_simt_src_addr(b, 1), bl_simt_src_addr(b, 2),
              bl_simt_src_addr(b, 3), bl_simt_dst_addr(b, 0)},
        .n = {at->n, bl_simt_src(b, 0)->ne[0], bl_simt_src(b, 1)->ne[0], at->iterations,
              bl_simt_float(at->norm_eps), bl_simt_float(at->eps)}};
    bl_simt_emit(b, &c);
}

const struct bl_simt_op bl_simt_stream_weights = {.supports = weights_supports,
                                                  .emit = weights_emit};

static void mix(struct bl_simt_builder *b, const char *kernel, unsigned weights, uint32_t elems,
                uint64_t x)
{
    const struct bl_value *h = bl_simt_src(b, 0);
    struct bl_simt_call c = {.kernel = kernel,
                             .type = BL_SIMT_NO_TYPE,
                             .grid = {bl_simt_groups(elems, THREADS), h->ne[1]},
                             .block = {THREADS}};

    c.args = (struct bl_simt_args){
        .a = {bl_simt_src_addr(b, 0), bl_simt_src_addr(b, weights), bl_simt_dst_addr(b, 0), x},
        .n = {h->ne[0] / elems, elems, bl_simt_src(b, weights)->ne[0]}};
    bl_simt_emit(b, &c);
}

static void read_emit(struct bl_simt_builder *b)
{
    mix(b, "stream_read", 1, bl_simt_dst(b, 0)->ne[0], 0);
}

static void write_emit(struct bl_simt_builder *b)
{
    mix(b, "stream_write", 2, bl_simt_src(b, 1)->ne[0], bl_simt_src_addr(b, 1));
}

const struct bl_simt_op bl_simt_stream_read = {.emit = read_emit};
const struct bl_simt_op bl_simt_stream_write = {.emit = write_emit};

/* ---- ROUND, HADAMARD ---- */

static void round_emit(struct bl_simt_builder *b)
{
    const struct bl_round_attr *at = bl_simt_attr(b);
    const struct bl_value *x = bl_simt_src(b, 0);
    const uint32_t runs = x->ne[0] / at->run;
    struct bl_simt_call c = {.kernel = "round_groups",
                             .type = BL_SIMT_NO_TYPE,
                             .grid = {bl_simt_groups(at->run, SMALL * at->group), runs, x->ne[1]},
                             .block = {SMALL}};

    c.args = (struct bl_simt_args){.a = {bl_simt_src_addr(b, 0), bl_simt_dst_addr(b, 0)},
                                   .n = {at->kind, at->run, at->n, at->group, runs}};
    bl_simt_emit(b, &c);
}

const struct bl_simt_op bl_simt_round = {.emit = round_emit};

static bool hadamard_supports(const struct bl_graph *g, const struct bl_node *n)
{
    return ((const struct bl_hadamard_attr *)bl_node_attr(g, n))->run <= MOST_RUN;
}

static void hadamard_emit(struct bl_simt_builder *b)
{
    const struct bl_hadamard_attr *at = bl_simt_attr(b);
    const struct bl_value *x = bl_simt_src(b, 0);
    struct bl_simt_call c = {.kernel = "hadamard",
                             .type = BL_SIMT_NO_TYPE,
                             .grid = {x->ne[0] / at->run, x->ne[1]},
                             .block = {THREADS}};

    c.args = (struct bl_simt_args){.a = {bl_simt_src_addr(b, 0), bl_simt_dst_addr(b, 0)},
                                   .n = {at->run, c.grid[0]}};
    bl_simt_emit(b, &c);
}

const struct bl_simt_op bl_simt_hadamard = {.supports = hadamard_supports, .emit = hadamard_emit};

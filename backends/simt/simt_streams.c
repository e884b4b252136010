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

/* A block for what is read, another for the matrix, which takes as long. */
void bl_simt_emit_enter(struct bl_simt_builder *b, const struct bl_bound *nodes)
{
    const struct bl_bound *norm = nodes + 2;

    bl_simt_stand(b, norm);
    const uint32_t elems = bl_simt_src(b, 0)->ne[0];
    const float eps = ((const struct bl_norm_attr *)bl_simt_attr(b))->eps;
    const uint64_t w = bl_simt_src_addr(b, 1), y = bl_simt_dst_addr(b, 0);
    bl_simt_stand(b, nodes);
    const struct bl_streams_attr *at = bl_simt_attr(b);
    const uint32_t n_weights = bl_simt_src(b, 1)->ne[0];
    struct bl_simt_call c = {.kernel = "stream_enter",
                             .type = BL_SIMT_NO_TYPE,
                             .grid = {n_weights > at->n ? 2 : 1, bl_simt_src(b, 0)->ne[1]},
                             .block = {THREADS}};

    c.args = (struct bl_simt_args){
        .a = {bl_simt_src_addr(b, 0), bl_simt_src_addr(b, 1), bl_simt_src_addr(b, 2),
              bl_simt_src_addr(b, 3), bl_simt_dst_addr(b, 0), w, y},
        .n = {at->n, bl_simt_src(b, 0)->ne[0], n_weights, at->iterations,
              bl_simt_float(at->norm_eps), bl_simt_float(at->eps), elems, bl_simt_float(eps)}};
    bl_simt_emit(b, &c);
}

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

/* ---- CHOOSE ---- */

enum { ROW_BLOCKS = 64 }; /* that share the rows of a token, at most */

struct layout {
    uint64_t scores, heap, bytes;
};

static struct layout layout_of(const struct bl_graph *g, const struct bl_node *n)
{
    const struct bl_choose_attr *at = bl_node_attr(g, n);
    const uint64_t n_tok = g->vals[bl_node_src(g, n, 0)].ne[1],
                   rows = g->vals[bl_node_src(g, n, 2)].ne[1];
    struct layout l = {0};
    l.heap = bl_align_up(n_tok * rows * sizeof(float), 64);
    l.bytes = l.heap + bl_align_up(n_tok * at->n * 2 * sizeof(float), 64);
    return l;
}

static bool choose_supports(const struct bl_graph *g, const struct bl_node *n)
{
    uint32_t kv;
    return bl_simt_kv(g->vals[bl_node_src(g, n, 2)].type, &kv);
}

static uint64_t choose_scratch(const struct bl_graph *g, const struct bl_node *n)
{
    return layout_of(g, n).bytes;
}

static void score(struct bl_simt_builder *b, const struct layout *l)
{
    const struct bl_choose_attr *at = bl_simt_attr(b);
    const struct bl_value *rows = bl_simt_src(b, 2);
    const uint32_t all = bl_simt_groups(rows->ne[1], THREADS / b->limits->warp),
                   blocks = all < ROW_BLOCKS ? all : ROW_BLOCKS;
    struct bl_simt_call c = {.kernel = "choose_score",
                             .type = BL_SIMT_NO_TYPE,
                             .grid = {blocks, bl_simt_src(b, 0)->ne[1]},
                             .block = {THREADS}};

    c.args = (struct bl_simt_args){.a = {bl_simt_src_addr(b, 0), bl_simt_src_addr(b, 1),
                                         bl_simt_src_addr(b, 2),
                                         bl_simt_scratch(b, l->scores, l->heap), b->params},
                                   .n = {at->n_head, at->dk, at->n, at->group, rows->ne[1],
                                         bl_simt_row_bytes(rows), bl_simt_kv_of(rows), blocks}};
    bl_simt_emit(b, &c);
}

static void choose_emit(struct bl_simt_builder *b)
{
    const struct bl_choose_attr *at = bl_simt_attr(b);
    const struct layout l = layout_of(b->graph, b->node);
    struct bl_simt_call c = {.kernel = "choose_best",
                             .type = BL_SIMT_NO_TYPE,
                             .grid = {bl_simt_src(b, 0)->ne[1]},
                             .block = {THREADS}};

    score(b, &l);
    c.args =
        (struct bl_simt_args){.a = {bl_simt_scratch(b, l.scores, l.heap), bl_simt_dst_addr(b, 0),
                                    b->params, bl_simt_scratch(b, l.heap, l.bytes - l.heap)},
                              .n = {at->n, at->group, bl_simt_src(b, 2)->ne[1]}};
    bl_simt_emit(b, &c);
}

const struct bl_simt_op bl_simt_choose = {choose_supports, choose_scratch, choose_emit};

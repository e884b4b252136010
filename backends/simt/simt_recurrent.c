/* SPDX-License-Identifier: MIT */
/* SHORT_CONV, DELTA_RULE and COMPRESS: what keeps a state that every token changes. */
#include "simt_rows.h"

enum { THREADS = 128, RING_THREADS = 64, MOST_DK = 256 }; /* recurrent.cu */

/* ---- SHORT_CONV ---- */

static void conv_emit(struct bl_simt_builder *b)
{
    const struct bl_value *w = bl_simt_src(b, 1);
    struct bl_simt_call c = {.kernel = "short_conv",
                             .type = BL_SIMT_NO_TYPE,
                             .grid = {bl_simt_groups(w->ne[1], THREADS), bl_simt_src(b, 0)->ne[1]},
                             .block = {THREADS}};

    c.args = (struct bl_simt_args){.a = {bl_simt_src_addr(b, 0), bl_simt_src_addr(b, 1),
                                         bl_simt_dst_addr(b, 0), bl_simt_src_addr(b, 2), b->params},
                                   .n = {w->ne[1], w->ne[0], bl_simt_src(b, 2)->ne[1],
                                         ((const struct bl_conv_attr *)bl_simt_attr(b))->silu}};
    bl_simt_emit(b, &c);
    c.kernel = "short_conv_keep";
    c.args.a[3] = bl_simt_dst_addr(b, 1);
    bl_simt_emit(b, &c);
}

const struct bl_simt_op bl_simt_short_conv = {.emit = conv_emit};

/* ---- DELTA_RULE ---- */

static bool delta_supports(const struct bl_graph *g, const struct bl_node *n)
{
    return ((const struct bl_delta_attr *)bl_node_attr(g, n))->dk <= MOST_DK;
}

static void delta_emit(struct bl_simt_builder *b)
{
    const struct bl_delta_attr *at = bl_simt_attr(b);
    struct bl_simt_call c = {
        .kernel = "delta_rule",
        .type = BL_SIMT_NO_TYPE,
        .grid = {bl_simt_groups(at->dv, THREADS / b->limits->warp), at->n_head_v},
        .block = {THREADS}};

    c.args = (struct bl_simt_args){
        .a = {bl_simt_src_addr(b, 0), bl_simt_src_addr(b, 1), bl_simt_src_addr(b, 2),
              bl_simt_src_addr(b, 3), bl_simt_src_addr(b, 4), bl_simt_dst_addr(b, 0),
              bl_simt_dst_addr(b, 1), b->params},
        .n = {at->n_head_k, at->n_head_v, at->dk, at->dv, at->tiled, bl_simt_float(at->eps),
              bl_simt_float(at->scale), bl_simt_src(b, 5)->ne[1], bl_simt_src(b, 0)->ne[0]}};
    bl_simt_emit(b, &c);
}

const struct bl_simt_op bl_simt_delta_rule = {.supports = delta_supports, .emit = delta_emit};

/* ---- COMPRESS ---- */

static bool compress_supports(const struct bl_graph *g, const struct bl_node *n)
{
    uint32_t kv;
    return bl_simt_kv(g->vals[bl_node_src(g, n, 2)].type, &kv);
}

/* Addresses and numbers of a node, as the kernel has them for each. */
static uint32_t ring(const struct bl_simt_builder *b, uint64_t *a, uint32_t *num)
{
    const struct bl_compress_attr *at = bl_simt_attr(b);
    const struct bl_value *ape = bl_simt_src(b, 2);
    const uint32_t n = bl_simt_dst(b, 0)->ne[0];

    memcpy(a,
           (const uint64_t[5]){bl_simt_src_addr(b, 0), bl_simt_src_addr(b, 1),
                               bl_simt_src_addr(b, 2), bl_simt_dst_addr(b, 0),
                               bl_simt_dst_addr(b, 1)},
           5 * sizeof *a);
    memcpy(num,
           (const uint32_t[6]){n, 1 + at->overlap, at->group, bl_simt_src(b, 3)->ne[1],
                               bl_simt_row_bytes(ape), bl_simt_kv_of(ape)},
           6 * sizeof *num);
    return bl_simt_groups(n, RING_THREADS);
}

void bl_simt_emit_rings(struct bl_simt_builder *b, const struct bl_bound *at, uint32_t n)
{
    struct bl_simt_call c = {
        .kernel = "compress", .type = BL_SIMT_NO_TYPE, .grid = {1, n}, .block = {RING_THREADS}};

    c.args.a[0] = b->params;
    for (uint32_t i = 0; i < n; i++) {
        bl_simt_stand(b, &at[i]);
        const uint32_t blocks = ring(b, &c.args.a[1 + 5 * i], &c.args.n[6 * i]);
        c.grid[0] = blocks > c.grid[0] ? blocks : c.grid[0];
    }
    bl_simt_emit(b, &c);
}

static void compress_emit(struct bl_simt_builder *b)
{
    bl_simt_emit_rings(b, b->bound, 1);
}

const struct bl_simt_op bl_simt_compress = {.supports = compress_supports, .emit = compress_emit};

/* SPDX-License-Identifier: MIT */
/* Builders for a residual of several streams, and for groups of tokens: their rows and the choice
 * among them. */
#include "graph_impl.h"

/* ---- streams ---- */

enum { MOST_STREAMS = 16 };

bl_val bl_graph_repeat(struct bl_graph *g, bl_val x, uint32_t copies)
{
    const bl_val src[] = {x};
    if (!bl_graph_ready(g, BL_OP_REPEAT, src, 1))
        return 0;
    const struct bl_value *a = &g->vals[x];
    if (!bl_is_rows(a, BL_F32) || !copies || (uint64_t)copies * a->ne[0] > UINT32_MAX)
        return bl_graph_refuse(g, BL_OP_REPEAT, src, "f32 {n, tokens}, copies above 0");
    struct bl_value y = bl_floats(copies * a->ne[0], a->ne[1]);
    return bl_graph_emit(g, BL_OP_REPEAT, src, &(struct bl_repeat_attr){copies}, &y);
}

/* All three kinds of weights, or those of reading alone. */
static bool weights_fit(const struct bl_graph *g, const bl_val *src,
                        const struct bl_streams_attr *at)
{
    const struct bl_value *h = &g->vals[src[0]], *z = &g->vals[src[1]];
    const bool all = z->ne[0] == 2 * at->n + at->n * at->n;
    return bl_is_rows(h, BL_F32) && bl_is_rows(z, BL_F32) && h->ne[1] == z->ne[1] &&
           h->ne[0] % at->n == 0 && (all || z->ne[0] == at->n) &&
           bl_is_floats(&g->vals[src[2]], z->ne[0], 1) &&
           bl_is_floats(&g->vals[src[3]], all ? 3 : 1, 1);
}

bl_val bl_graph_stream_weights(struct bl_graph *g, bl_val streams, bl_val z, bl_val base,
                               bl_val scale, const struct bl_streams_attr *at)
{
    const bl_val src[] = {streams, z, base, scale};
    if (!bl_graph_ready(g, BL_OP_STREAM_WEIGHTS, src, 4))
        return 0;
    if (!at->n || at->n > MOST_STREAMS || !at->iterations || !bl_positive(at->norm_eps) ||
        !bl_positive(at->eps) || !weights_fit(g, src, at))
        return bl_graph_refuse(
            g, BL_OP_STREAM_WEIGHTS, src,
            "1 to 16 streams, z and base {n} or {2 n + n * n}, scale {1} or {3}");
    struct bl_value y = g->vals[z];
    return bl_graph_emit(g, BL_OP_STREAM_WEIGHTS, src, at, &y);
}

bl_val bl_graph_stream_read(struct bl_graph *g, bl_val streams, bl_val weights, uint32_t n_streams)
{
    const bl_val src[] = {streams, weights};
    if (!bl_graph_ready(g, BL_OP_STREAM_READ, src, 2))
        return 0;
    const struct bl_value *h = &g->vals[streams], *w = &g->vals[weights];
    if (!n_streams || n_streams > MOST_STREAMS || !bl_is_rows(h, BL_F32) ||
        !bl_is_rows(w, BL_F32) || h->ne[1] != w->ne[1] || h->ne[0] % n_streams ||
        w->ne[0] < n_streams)
        return bl_graph_refuse(g, BL_OP_STREAM_READ, src, "whole streams, a weight for each");
    struct bl_value y = bl_floats(h->ne[0] / n_streams, h->ne[1]);
    return bl_graph_emit(g, BL_OP_STREAM_READ, src, &(struct bl_stream_read_attr){n_streams}, &y);
}

bl_val bl_graph_stream_write(struct bl_graph *g, bl_val streams, bl_val y, bl_val weights)
{
    const bl_val src[] = {streams, y, weights};
    if (!bl_graph_ready(g, BL_OP_STREAM_WRITE, src, 3))
        return 0;
    const struct bl_value *h = &g->vals[streams], *a = &g->vals[y], *w = &g->vals[weights];
    const uint32_t n = bl_is_rows(a, BL_F32) ? h->ne[0] / a->ne[0] : 0;
    if (!bl_is_rows(h, BL_F32) || !bl_is_rows(w, BL_F32) || !n || n > MOST_STREAMS ||
        h->ne[0] % a->ne[0] || w->ne[0] != 2 * n + n * n || h->ne[1] != a->ne[1] ||
        h->ne[1] != w->ne[1])
        return bl_graph_refuse(g, BL_OP_STREAM_WRITE, src,
                               "streams {s * n}, y {n}, weights {2 s + s * s} of the same tokens");
    struct bl_value out = *h;
    return bl_graph_emit(g, BL_OP_STREAM_WRITE, src, &bl_no_attr, &out);
}

/* ---- groups ---- */

static bool compress_fits(const struct bl_graph *g, const bl_val *src,
                          const struct bl_compress_attr *at)
{
    const struct bl_value *x = &g->vals[src[0]], *gate = &g->vals[src[1]], *ape = &g->vals[src[2]],
                          *state = &g->vals[src[3]];
    const uint64_t span = (uint64_t)at->group * (at->overlap ? 2 : 1);
    return bl_is_rows(x, BL_F32) && bl_same_value(x, gate) && at->group && at->overlap <= 1 &&
           x->ne[0] % (1 + at->overlap) == 0 && bl_is_matrix(ape) && ape->ne[0] == x->ne[0] &&
           ape->ne[1] == at->group && state->origin == BL_STATE_ROWS && state->type == BL_F32 &&
           state->ne[0] == 2 * (uint64_t)x->ne[0] && state->ne[1] >= span;
}

bl_val bl_graph_compress(struct bl_graph *g, bl_val x, bl_val gate, bl_val ape, bl_val state,
                         const struct bl_compress_attr *at)
{
    const bl_val src[] = {x, gate, ape, state};
    if (!bl_graph_ready(g, BL_OP_COMPRESS, src, 4))
        return 0;
    if (!compress_fits(g, src, at))
        return bl_graph_refuse(
            g, BL_OP_COMPRESS, src,
            "x and gate {n}, ape {n, group}, a state of at least one group's (two"
            " groups') f32 rows {2 n}");
    const struct bl_value *a = &g->vals[x];
    const struct bl_value y[] = {bl_floats(a->ne[0] / (1 + at->overlap), a->ne[1]), g->vals[state]};
    return bl_graph_emit(g, BL_OP_COMPRESS, src, at, y);
}

bl_val bl_graph_choose(struct bl_graph *g, bl_val q, bl_val weights, bl_val rows,
                       const struct bl_choose_attr *at)
{
    const bl_val src[] = {q, weights, rows};
    if (!bl_graph_ready(g, BL_OP_CHOOSE, src, 3))
        return 0;
    const struct bl_value *a = &g->vals[q], *w = &g->vals[weights], *s = &g->vals[rows];
    if (!bl_is_rows(a, BL_F32) || !bl_is_rows(w, BL_F32) || a->ne[1] != w->ne[1] ||
        (uint64_t)at->n_head * at->dk != a->ne[0] || w->ne[0] != at->n_head ||
        s->origin != BL_STATE_ROWS || s->ne[0] != at->dk || !at->n || at->n > s->ne[1] ||
        !at->group)
        return bl_graph_refuse(g, BL_OP_CHOOSE, src,
                               "q {heads * dk}, weights {heads}, rows {dk}, 1 to rows chosen");
    struct bl_value y = bl_activation(BL_I32, at->n, a->ne[1]);
    return bl_graph_emit(g, BL_OP_CHOOSE, src, at, &y);
}

/* ---- as models were trained ---- */

bl_val bl_graph_round(struct bl_graph *g, bl_val x, const struct bl_round_attr *at)
{
    const bl_val src[] = {x};
    if (!bl_graph_ready(g, BL_OP_ROUND, src, 1))
        return 0;
    const struct bl_value *a = &g->vals[x];
    if (!bl_is_rows(a, BL_F32) || !at->run || a->ne[0] % at->run || !at->n || at->n > at->run ||
        !at->group || at->kind > BL_ROUND_E2M1)
        return bl_graph_refuse(g, BL_OP_ROUND, src,
                               "whole runs of f32, 1 to all of a run, group above 0");
    struct bl_value y = *a;
    return bl_graph_emit(g, BL_OP_ROUND, src, at, &y);
}

bl_val bl_graph_hadamard(struct bl_graph *g, bl_val x, uint32_t run)
{
    const bl_val src[] = {x};
    if (!bl_graph_ready(g, BL_OP_HADAMARD, src, 1))
        return 0;
    const struct bl_value *a = &g->vals[x];
    if (!bl_is_rows(a, BL_F32) || !run || (run & (run - 1)) || a->ne[0] % run)
        return bl_graph_refuse(g, BL_OP_HADAMARD, src, "whole runs of f32, a power of two long");
    struct bl_value y = *a;
    return bl_graph_emit(g, BL_OP_HADAMARD, src, &(struct bl_hadamard_attr){run}, &y);
}

/* SPDX-License-Identifier: MIT */
/* cpu_rig.h — nodes on the CPU device through the device contract, one malloc'ed block per value so that a sanitizer
 * sees every step over an edge.
 *
 *     rig_open, build r.g, rig_alloc, fill r.data[v], rig_params, rig_run, look at r.data[v], rig_close
 */
#ifndef BL_TEST_CPU_RIG_H
#define BL_TEST_CPU_RIG_H

#include "support.h"

#include "args.h"
#include "cpu/cpu.h"
#include "mem.h"

#include <math.h>

enum { RIG_VALUES = 512, RIG_TOKENS = 320, RIG_SEQS = 4 };
struct rig_config {
    uint32_t threads, mask;
    bool exact;
};
struct rig_step { /* what goes into the params block */
    uint32_t n_tok, n_seq, n_out;
    int32_t token[RIG_TOKENS];
    uint32_t pos[RIG_TOKENS], seq[RIG_TOKENS], out[RIG_TOKENS];
    struct bl_seq_params table[RIG_SEQS];
};
struct rig {
    struct bl_device *dev;
    struct bl_stream *stream;
    struct bl_graph g;
    void *data[RIG_VALUES];
    uint8_t *arena; /* where activations lie once packed */
    uint64_t *experts[RIG_VALUES];
    uint32_t absent; /* experts that the device does not have, a bit each */
    struct bl_mem mem_scratch, mem_params;
    struct bl_bound *bound;
    uint64_t *addr;
    struct rig_step step;
    uint32_t first;  /* node that the segment begins with */
    bl_val out[2];   /* what a test looks at; 0 = none */
    uint32_t random;
};

static inline void rig_ok(enum bl_status st)
{
    if (st)
        fail_msg("%s: %s", bl_status_name(st), bl_error());
}

static inline float rig_random(struct rig *r) /* -1 .. 1 */
{
    r->random = r->random * 1664525u + 1013904223u;
    return (float)((double)(r->random >> 8) / (1 << 23) - 1);
}

static inline uint32_t rig_pick(struct rig *r, uint32_t n)
{
    return (uint32_t)(((double)rig_random(r) + 1) / 2 * n) % n;
}

static inline void rig_open(struct rig *r, const struct rig_config *c)
{
    memset(r, 0, sizeof *r);
    r->random = 12345;
    const struct bl_device_config d = {.threads = c->threads, .cpu_mask = c->mask, .exact = c->exact};
    rig_ok(bl_cpu_backend.open(0, &d, &r->dev));
    rig_ok(r->dev->ops->stream_open(r->dev, &r->stream));
    bl_graph_init(&r->g);
}

static inline bool rig_packed(const struct rig *r, bl_val v)
{
    return r->arena && r->g.vals[v].origin == BL_ACTIVATION;
}

static inline void rig_close(struct rig *r)
{
    r->dev->ops->stream_close(r->stream);
    for (bl_val v = 0; v < r->g.n_vals; v++) {
        bool shared = false;
        for (bl_val u = 0; u < v; u++)
            shared |= r->data[u] == r->data[v];
        if (!shared && !rig_packed(r, v))
            free(r->data[v]);
        free(r->experts[v]);
    }
    free(r->arena);
    free(r->bound);
    free(r->addr);
    free(r->mem_scratch.host);
    free(r->mem_params.host);
    bl_graph_finish(&r->g);
    r->dev->ops->close(r->dev);
}

/* Memory for every value; what is not filled is NaN. */
static inline void rig_alloc(struct rig *r)
{
    rig_ok(bl_graph_check(&r->g));
    assert_true(r->g.n_vals <= RIG_VALUES);
    for (bl_val v = 1; v < r->g.n_vals; v++) {
        const struct bl_value *val = &r->g.vals[v];
        if (val->origin == BL_PARAM)
            continue;
        for (bl_val u = 1; u < v && val->origin == BL_STATE_ROWS; u++)
            if (r->g.vals[u].origin == BL_STATE_ROWS && r->g.vals[u].index == val->index)
                r->data[v] = r->data[u];
        if (r->data[v])
            continue;
        r->data[v] = malloc((size_t)bl_value_bytes(val));
        assert_non_null(r->data[v]);
        memset(r->data[v], val->origin == BL_STATE_ROWS ? 0 : 0xff, (size_t)bl_value_bytes(val));
    }
    uint64_t most = 64;
    for (uint32_t i = 0; i < r->g.n_nodes; i++) {
        const uint64_t n = bl_cpu_backend.scratch_bytes(&r->dev->caps, &r->g, &r->g.nodes[i]);
        most = n > most ? n : most;
    }
    void *p = aligned_alloc(64, (size_t)bl_align_up(most, 64));
    assert_non_null(p);
    memset(p, 0xff, (size_t)most);
    rig_ok(r->dev->ops->mem_import(r->dev, p, (size_t)bl_align_up(most, 64), &r->mem_scratch));
}

/* Nodes [first, last] between which a value must keep its place. */
static inline void rig_life(const struct rig *r, bl_val v, uint32_t life[2])
{
    life[0] = life[1] = 0;
    for (uint32_t i = 0; i < r->g.n_nodes; i++) {
        const struct bl_node *n = &r->g.nodes[i];
        for (unsigned d = 0; d < n->n_dst; d++)
            if (n->dst[d] == v)
                life[0] = life[1] = i;
        for (unsigned s = 0; s < n->n_src; s++)
            if (bl_node_src(&r->g, n, s) == v)
                life[1] = i;
    }
    if (v == r->out[0] || v == r->out[1])
        life[1] = r->g.n_nodes;
}

/* After rig_alloc: activations take turns in one block, each at the lowest place that is free while it lives. */
static inline void rig_pack(struct rig *r)
{
    uint64_t off[RIG_VALUES] = {0}, end = 0;
    for (bl_val v = 1; v < r->g.n_vals; v++) {
        uint32_t a[2], b[2];
        if (r->g.vals[v].origin != BL_ACTIVATION)
            continue;
        rig_life(r, v, a);
        const uint64_t bytes = bl_align_up(bl_value_bytes(&r->g.vals[v]), 64);
        for (bl_val u = 1; u < v; u++) {
            const uint64_t other = bl_align_up(bl_value_bytes(&r->g.vals[u]), 64);
            rig_life(r, u, b);
            if (r->g.vals[u].origin == BL_ACTIVATION && a[0] <= b[1] && b[0] <= a[1] && off[v] < off[u] + other &&
                off[u] < off[v] + bytes) {
                off[v] = off[u] + other;
                u = 0; /* look at all again */
            }
        }
        end = off[v] + bytes > end ? off[v] + bytes : end;
    }
    r->arena = malloc((size_t)end);
    memset(r->arena, 0xff, (size_t)end);
    for (bl_val v = 1; v < r->g.n_vals; v++)
        if (r->g.vals[v].origin == BL_ACTIVATION) {
            free(r->data[v]);
            r->data[v] = r->arena + off[v];
        }
}

static inline void rig_fill(struct rig *r, bl_val v, float scale)
{
    float *x = r->data[v];
    for (uint64_t i = 0; i < bl_value_bytes(&r->g.vals[v]) / sizeof *x; i++)
        x[i] = scale * rig_random(r);
}

/* Values of any weight type: encoded where there is an encoder, otherwise random bits under sane scales. */
static inline void rig_fill_weight(struct rig *r, bl_val v, float scale)
{
    const struct bl_value *w = &r->g.vals[v];
    const uint64_t row = bl_dtype_row_bytes(w->type, w->ne[0]), bytes = bl_value_bytes(w);
    uint8_t *at = r->data[v];
    float *x = malloc(w->ne[0] * sizeof *x);
    if (!bl_dtype_can_encode(w->type)) {
        const uint32_t block = bl_dtypes[w->type].block_bytes;
        const uint16_t d = bl_f32_to_f16(scale / 32), m = bl_f32_to_f16(-scale / 4);
        assert_true(w->type == BL_Q4_1 || w->type == BL_Q4_K || w->type == BL_Q6_K);
        for (uint64_t i = 0; i < bytes; i++)
            at[i] = (uint8_t)rig_pick(r, 256);
        for (uint64_t i = 0; i < bytes; i += block) {
            memcpy(at + i + (w->type == BL_Q6_K ? block - 2 : 0), &d, 2);
            if (w->type != BL_Q6_K)
                memcpy(at + i + 2, &m, 2);
        }
    }
    for (uint64_t off = 0; off < bytes && bl_dtype_can_encode(w->type); off += row) {
        for (uint32_t i = 0; i < w->ne[0]; i++)
            x[i] = scale * rig_random(r);
        bl_dtype_encode(w->type, w->ne[0], at + off, x);
    }
    free(x);
}

/* Row `row` of a weight as floats; the caller frees. */
static inline float *rig_row(const struct rig *r, bl_val v, uint64_t row)
{
    const struct bl_value *w = &r->g.vals[v];
    float *x = malloc(w->ne[0] * sizeof *x);
    assert_non_null(x);
    bl_dtype_decode(w->type, w->ne[0], x, (uint8_t *)r->data[v] + row * bl_dtype_row_bytes(w->type, w->ne[0]));
    return x;
}

/* n_tok tokens of one sequence from position first on, all of them wanted. */
static inline void rig_tokens(struct rig *r, uint32_t n_tok, uint32_t first)
{
    struct rig_step *s = &r->step;
    *s = (struct rig_step){.n_tok = n_tok, .n_seq = 1, .n_out = n_tok};
    for (uint32_t t = 0; t < n_tok; t++) {
        s->pos[t] = first + t;
        s->out[t] = t;
    }
    s->table[0] = (struct bl_seq_params){first + n_tok, 0};
}

/* Lays r->step out as a params block. */
static inline void rig_params(struct rig *r)
{
    const struct rig_step *s = &r->step;
    if (!r->mem_params.host) {
        const size_t bytes = sizeof(struct bl_params) + sizeof *s;
        rig_ok(r->dev->ops->mem_import(r->dev, calloc(1, bytes), bytes, &r->mem_params));
    }
    struct bl_params *p = r->mem_params.host;
    *p = (struct bl_params){.n_tok = s->n_tok, .n_seq = s->n_seq, .n_out = s->n_out};
    uint32_t at = sizeof *p;
#define PUT(field, from, n)                                                                                            \
    p->field = at;                                                                                                     \
    memcpy((char *)p + at, from, (n) * sizeof *(from));                                                                \
    at += (uint32_t)((n) * sizeof *(from))
    PUT(token_off, s->token, s->n_tok);
    PUT(pos_off, s->pos, s->n_tok);
    PUT(seq_off, s->seq, s->n_tok);
    PUT(out_off, s->out, s->n_out);
    PUT(table_off, s->table, s->n_seq);
#undef PUT
    p->n_bytes = at;
}

static inline uint64_t rig_address(struct rig *r, const struct bl_node *n, unsigned i)
{
    const bl_val v = bl_node_src(&r->g, n, i);
    const struct bl_value *w = &r->g.vals[v];
    if (n->op != BL_OP_EXPERTS || i < 3 || !v)
        return (uintptr_t)r->data[v];
    if (!r->experts[v]) {
        const uint32_t n_experts = r->g.vals[bl_node_src(&r->g, n, 5)].ne[2];
        r->experts[v] = malloc(n_experts * sizeof(uint64_t));
        for (uint32_t e = 0; e < n_experts; e++)
            r->experts[v][e] =
                r->absent >> e & 1 ? 0 : (uintptr_t)r->data[v] + e * (bl_value_bytes(w) / n_experts);
    }
    return (uintptr_t)r->experts[v];
}

/* Addresses for nodes [r->first, end). */
static inline void rig_bind(struct rig *r)
{
    const uint32_t n = r->g.n_nodes - r->first;
    free(r->bound);
    free(r->addr);
    r->bound = calloc(n, sizeof *r->bound);
    r->addr = calloc(n, 16 * sizeof *r->addr);
    for (uint32_t i = 0; i < n; i++) {
        const struct bl_node *node = &r->g.nodes[r->first + i];
        uint64_t *src = r->addr + 16 * i, *dst = src + 14;
        r->bound[i] = (struct bl_bound){node, src, dst};
        for (unsigned s = 0; s < node->n_src; s++)
            src[s] = rig_address(r, node, s);
        for (unsigned d = 0; d < node->n_dst; d++)
            dst[d] = (uintptr_t)r->data[node->dst[d]];
    }
}

/* Their segment, once bound; the caller frees it. */
static inline enum bl_status rig_build(struct rig *r, struct bl_segment **out)
{
    return r->dev->ops->segment_build(r->dev, &r->g, r->bound, r->g.n_nodes - r->first, &r->mem_scratch,
                                      &r->mem_params, out);
}

static inline enum bl_status rig_join(struct rig *r)
{
    struct bl_point p;
    rig_ok(r->dev->ops->signal(r->stream, &p));
    return r->dev->ops->join(p, 60000000000u);
}

static inline enum bl_status rig_run(struct rig *r)
{
    struct bl_segment *seg;
    rig_params(r);
    rig_bind(r);
    enum bl_status st = rig_build(r, &seg);
    if (st)
        return st;
    rig_ok(r->dev->ops->segment_run(r->stream, seg));
    st = rig_join(r);
    r->dev->ops->segment_free(seg);
    return st;
}

/* ---- one case on one to four threads ---- */

typedef void rig_make_fn(struct rig *, const void *arg);        /* graph, data, step, first, out */
typedef void rig_check_fn(const struct rig *, const void *arg); /* against plain loops */

static inline void rig_case(rig_make_fn *make, rig_check_fn *check, const void *arg, bool exact, uint32_t mask)
{
    void *one[2] = {0};
    for (uint32_t threads = 1; threads <= 4; threads++) {
        struct rig r;
        rig_open(&r, &(struct rig_config){threads, mask, exact});
        make(&r, arg);
        rig_ok(rig_run(&r));
        if (threads == 1 && check)
            check(&r, arg);
        for (unsigned i = 0; i < 2 && r.out[i]; i++) {
            const size_t bytes = (size_t)bl_value_bytes(&r.g.vals[r.out[i]]);
            if (threads == 1) {
                one[i] = malloc(bytes);
                memcpy(one[i], r.data[r.out[i]], bytes);
            } else if (memcmp(one[i], r.data[r.out[i]], bytes)) {
                fail_msg("%u threads give other bits than one", threads);
            }
        }
        rig_close(&r);
    }
    free(one[0]);
    free(one[1]);
}

/* Float reference, scalar kernels, and whatever this CPU gets. */
static inline void rig_cases(rig_make_fn *make, rig_check_fn *check, const void *arg)
{
    rig_case(make, check, arg, true, 0);
    rig_case(make, check, arg, false, 0);
    rig_case(make, check, arg, false, UINT32_MAX);
}

static inline void rig_near(double got, double want, double tolerance, const char *what, uint64_t at)
{
    if (!(fabs(got - want) <= tolerance))
        fail_msg("%s [%llu]: %.9g, want %.9g within %.3g", what, (unsigned long long)at, got, want, tolerance);
}

/* Rows beyond the step's real ones must not be written: still all ones, as rig_alloc left them. */
static inline void rig_untouched(const struct rig *r, bl_val v, uint32_t rows)
{
    const struct bl_value *val = &r->g.vals[v];
    const uint32_t *w = r->data[v];
    for (uint64_t i = (uint64_t)rows * val->ne[0]; i < (uint64_t)val->ne[1] * val->ne[0]; i++)
        if (w[i] != UINT32_MAX)
            fail_msg("element %llu behind the last row was written", (unsigned long long)i);
}

/* A source of activations: the result of an embedding node that is not run. */
static inline bl_val rig_input(struct rig *r, int32_t index, uint32_t n, uint32_t n_tok)
{
    const bl_val table = bl_graph_weight(&r->g, 1000 + index, BL_F32, (uint32_t[]){n, 3, 1});
    const bl_val x = bl_graph_embed(&r->g, table, bl_graph_param(&r->g, BL_PARAM_TOKENS, n_tok), 1);
    r->first = r->g.n_nodes;
    return x;
}

#endif

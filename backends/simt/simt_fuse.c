/* SPDX-License-Identifier: MIT */
/* Which neighbours of a step of few tokens become one launch: there a launch costs more than what
 * it does. Either a chain, whose inner results nobody else reads and which are then not written, or
 * nodes that do not depend on each other; nothing that is written may lie where another part of the
 * launch reads or writes. */
#include "simt_rows.h"

/* ---- what may go together ---- */

struct span { /* addresses; empty for what nobody writes */
    uint64_t from, end;
};

static struct span span_of(const struct bl_graph *g, bl_val v, uint64_t addr)
{
    const struct bl_value *val = &g->vals[v];
    const bool changes = v && (val->origin == BL_ACTIVATION || val->origin == BL_STATE_ROWS);
    return changes ? (struct span){addr, addr + bl_value_bytes(val)} : (struct span){0};
}

static bool meets_src(const struct bl_graph *g, struct span s, const struct bl_bound *b)
{
    for (unsigned i = 0; i < b->node->n_src; i++) {
        const struct span o = span_of(g, bl_node_src(g, b->node, i), b->src[i]);
        if (s.from < o.end && o.from < s.end)
            return true;
    }
    return false;
}

static bool meets_dst(const struct bl_graph *g, struct span s, const struct bl_bound *b)
{
    for (unsigned i = 0; i < b->node->n_dst; i++) {
        const struct span o = span_of(g, b->node->dst[i], b->dst[i]);
        if (s.from < o.end && o.from < s.end)
            return true;
    }
    return false;
}

/* Whether two nodes cannot run at once. silent: the first's results are not written. */
static bool clash(const struct bl_graph *g, const struct bl_bound *a, bool silent,
                  const struct bl_bound *b)
{
    for (unsigned i = 0; i < b->node->n_dst; i++) {
        const struct span s = span_of(g, b->node->dst[i], b->dst[i]);
        if (meets_src(g, s, a) || (!silent && meets_dst(g, s, a)))
            return true;
    }
    for (unsigned i = 0; i < a->node->n_dst && !silent; i++)
        if (meets_src(g, span_of(g, a->node->dst[i], a->dst[i]), b))
            return true;
    return false;
}

/* The last of n can run with all before it, whose results are written, or are not. */
static bool joins(const struct bl_graph *g, const struct bl_bound *b, uint32_t n, bool silent)
{
    for (uint32_t i = 0; i + 1 < n; i++)
        if (clash(g, &b[i], silent, &b[n - 1]))
            return false;
    return true;
}

static const struct bl_value *src_of(const struct bl_graph *g, const struct bl_bound *b, unsigned i)
{
    return &g->vals[bl_node_src(g, b->node, i)];
}

/* b takes the result of a as its source i, and nobody else does. */
static bool follows(const struct bl_simt_builder *s, const struct bl_bound *a,
                    const struct bl_bound *b, unsigned i)
{
    const bl_val v = a->node->dst[0];
    return bl_node_src(s->graph, b->node, i) == v && s->uses[v] == 1;
}

static bool is_op(const struct bl_bound *b, uint32_t n, uint32_t i, enum bl_op op)
{
    return i < n && b[i].node->op == op;
}

/* ---- products ---- */

enum { W, X };

/* The products of gate and up, and what is made of them. */
static bool is_gated(const struct bl_simt_builder *s, const struct bl_bound *b, uint32_t n)
{
    const struct bl_graph *g = s->graph;

    if (!is_op(b, n, 0, BL_OP_MATMUL) || !is_op(b, n, 1, BL_OP_MATMUL) ||
        !is_op(b, n, 2, BL_OP_GLU))
        return false;
    const struct bl_value *gate = src_of(g, &b[0], W), *up = src_of(g, &b[1], W);
    return follows(s, &b[0], &b[2], 0) && follows(s, &b[1], &b[2], 1) && gate->type == up->type &&
           gate->ne[1] == up->ne[1] &&
           bl_node_src(g, b[0].node, X) == bl_node_src(g, b[1].node, X) && joins(g, b, 3, true);
}

static uint32_t take_gated(struct bl_simt_builder *s, const struct bl_bound *b, uint32_t n)
{
    if (!is_gated(s, b, n))
        return 0;
    bl_simt_emit_gated(s, b);
    return 3;
}

/* Products of one x by weights of one type. */
static uint32_t take_products(struct bl_simt_builder *s, const struct bl_bound *b, uint32_t n)
{
    const struct bl_graph *g = s->graph;
    uint32_t k = 1;

    while (k < BL_SIMT_MOST_PRODUCTS && is_op(b, n, k, BL_OP_MATMUL) &&
           bl_node_src(g, b[k].node, X) == bl_node_src(g, b[0].node, X) &&
           src_of(g, &b[k], W)->type == src_of(g, &b[0], W)->type && joins(g, b, k + 1, false) &&
           !is_gated(s, &b[k], n - k))
        k++;
    if (k < 2)
        return 0;
    bl_simt_emit_products(s, b, k);
    return k;
}

static bool is_sum(const struct bl_simt_builder *s, const struct bl_bound *b, uint32_t n,
                   uint32_t i)
{
    return is_op(b, n, i, BL_OP_ADD) &&
           (follows(s, &b[i - 1], &b[i], 0) || follows(s, &b[i - 1], &b[i], 1)) &&
           joins(s->graph, b, i + 1, true);
}

static bool is_written(const struct bl_simt_builder *s, const struct bl_bound *b, uint32_t n,
                       uint32_t i)
{
    return is_op(b, n, i, BL_OP_STREAM_WRITE) && follows(s, &b[i - 1], &b[i], 1) &&
           joins(s->graph, b, i + 1, true);
}

/* A product, and where its result goes. */
static uint32_t take_product_into(struct bl_simt_builder *s, const struct bl_bound *b, uint32_t n)
{
    const bool sum = is_sum(s, b, n, 1);
    const uint32_t next = sum ? 2 : 1;
    const bool written = is_written(s, b, n, next);

    if (!sum && !written)
        return 0;
    bl_simt_emit_product_into(s, b, sum ? &b[1] : NULL, written ? &b[next] : NULL);
    return next + written;
}

static uint32_t take_experts_into(struct bl_simt_builder *s, const struct bl_bound *b, uint32_t n)
{
    if (!is_sum(s, b, n, 1))
        return 0;
    bl_simt_emit_experts_into(s, b, &b[1]);
    return 2;
}

/* ---- streams ---- */

static uint32_t take_enter(struct bl_simt_builder *s, const struct bl_bound *b, uint32_t n)
{
    const struct bl_graph *g = s->graph;

    if (!is_op(b, n, 1, BL_OP_STREAM_READ) || !is_op(b, n, 2, BL_OP_RMS_NORM) ||
        bl_node_src(g, b[1].node, 0) != bl_node_src(g, b[0].node, 0) ||
        bl_node_src(g, b[1].node, 1) != b[0].node->dst[0] || !follows(s, &b[1], &b[2], 0))
        return 0;
    const struct bl_norm_attr *at = bl_node_attr(g, b[2].node);
    if (at->run != src_of(g, &b[2], 0)->ne[0] || clash(g, &b[0], false, &b[2]))
        return 0;
    bl_simt_emit_enter(s, b);
    return 3;
}

static uint32_t take_rings(struct bl_simt_builder *s, const struct bl_bound *b, uint32_t n)
{
    uint32_t k = 1;

    while (k < BL_SIMT_MOST_RINGS && is_op(b, n, k, BL_OP_COMPRESS) &&
           joins(s->graph, b, k + 1, false))
        k++;
    if (k < 2)
        return 0;
    bl_simt_emit_rings(s, b, k);
    return k;
}

/* ---- norms, rotations, stores ---- */

enum { MOST_NODES = BL_SIMT_N_STAGES * BL_SIMT_MOST_JOBS, MOST_16 = 1 << 16 };

struct jobs {
    struct bl_simt_job job[BL_SIMT_MOST_JOBS];
    bool silent[MOST_NODES]; /* of the nodes taken: read by the next of its job alone */
    uint32_t n;
};

/* Elements that are worked on together; 0: not what the kernel does. */
static uint32_t rope_run(const struct bl_graph *g, const struct bl_bound *b)
{
    const struct bl_rope_attr *at = bl_node_attr(g, b->node);
    return at->head_elems < MOST_16 ? at->head_elems : 0; /* and so is what is in a head */
}

static uint32_t round_run(const struct bl_graph *g, const struct bl_bound *b)
{
    const struct bl_round_attr *at = bl_node_attr(g, b->node);
    return at->run < MOST_16 && at->group < MOST_16 ? at->run : 0;
}

static uint32_t store_run(const struct bl_graph *g, const struct bl_bound *b)
{
    const struct bl_store_attr *at = bl_node_attr(g, b->node);
    const uint32_t n = src_of(g, b, 0)->ne[0];
    return at->group >= MOST_16 ? 0 : n % 1024 == 0 ? 1024 : n;
}

static enum bl_simt_stage stage_of(const struct bl_graph *g, const struct bl_bound *b,
                                   uint32_t *run)
{
    switch (b->node->op) {
    case BL_OP_RMS_NORM:
        *run = ((const struct bl_norm_attr *)bl_node_attr(g, b->node))->run;
        return BL_SIMT_NORM;
    case BL_OP_ROPE:
        *run = rope_run(g, b);
        return BL_SIMT_ROPE;
    case BL_OP_HADAMARD:
        *run = ((const struct bl_hadamard_attr *)bl_node_attr(g, b->node))->run;
        return BL_SIMT_TURN;
    case BL_OP_ROUND:
        *run = round_run(g, b);
        return BL_SIMT_ROUND;
    case BL_OP_KV_STORE:
        *run = store_run(g, b);
        return BL_SIMT_STORE;
    default:
        *run = 0;
        return BL_SIMT_N_STAGES;
    }
}

static bool begin_job(struct jobs *j, const struct bl_graph *g, const struct bl_bound *b)
{
    uint32_t run;
    const enum bl_simt_stage stage = stage_of(g, b, &run);

    if (!run || run > BL_SIMT_MOST_RUN || j->n == BL_SIMT_MOST_JOBS)
        return false;
    struct bl_simt_job *job = &j->job[j->n++];
    *job = (struct bl_simt_job){.first = b, .last = b, .run = run};
    job->stage[stage] = b;
    return true;
}

/* Heads are rotated within a run; rows of states are encoded in whole blocks. */
static bool suits(const struct bl_simt_job *j, const struct bl_graph *g, const struct bl_bound *b,
                  enum bl_simt_stage stage, uint32_t run)
{
    if (stage == BL_SIMT_STORE)
        return j->run % bl_dtypes[src_of(g, b, 1)->type].block_elems == 0;
    return stage == BL_SIMT_ROPE ? j->run % run == 0 : j->run == run;
}

static bool go_on(struct bl_simt_job *j, const struct bl_graph *g, const struct bl_bound *b)
{
    uint32_t run;
    const enum bl_simt_stage stage = stage_of(g, b, &run);

    for (unsigned i = stage; i < BL_SIMT_N_STAGES; i++)
        if (j->stage[i])
            return false;
    if (!run || !suits(j, g, b, stage, run))
        return false;
    j->stage[stage] = j->last = b;
    return true;
}

/* The job that node b[i] continues, or a new one for it. */
static bool add_node(struct jobs *j, const struct bl_simt_builder *s, const struct bl_bound *b,
                     uint32_t i)
{
    const struct bl_graph *g = s->graph;
    uint32_t k = 0;

    if (src_of(g, &b[i], 0)->ne[1] != src_of(g, &b[0], 0)->ne[1])
        return false;
    while (k < j->n && !follows(s, j->job[k].last, &b[i], 0))
        k++;
    const uint32_t before = k < j->n ? (uint32_t)(j->job[k].last - b) : MOST_NODES;
    for (uint32_t a = 0; a < i; a++)
        if (clash(g, &b[a], j->silent[a] || a == before, &b[i]))
            return false;
    if (k == j->n)
        return begin_job(j, g, &b[i]);
    if (!go_on(&j->job[k], g, &b[i]))
        return false;
    j->silent[before] = true;
    return true;
}

static uint32_t take_jobs(struct bl_simt_builder *s, const struct bl_bound *b, uint32_t n)
{
    struct jobs j = {.n = 0};
    uint32_t k = 0;

    while (k < n && k < MOST_NODES && add_node(&j, s, b, k))
        k++;
    if (k < 2)
        return 0;
    bl_simt_emit_jobs(s, j.job, j.n);
    return k;
}

/* ---- the table ---- */

static const struct {
    uint8_t op; /* of the first node */
    uint32_t (*take)(struct bl_simt_builder *, const struct bl_bound *, uint32_t n);
} patterns[] = {
    {BL_OP_MATMUL, take_gated},         {BL_OP_MATMUL, take_products},
    {BL_OP_MATMUL, take_product_into},  {BL_OP_EXPERTS, take_experts_into},
    {BL_OP_STREAM_WEIGHTS, take_enter}, {BL_OP_COMPRESS, take_rings},
    {BL_OP_RMS_NORM, take_jobs},        {BL_OP_ROPE, take_jobs},
    {BL_OP_KV_STORE, take_jobs},        {BL_OP_HADAMARD, take_jobs},
    {BL_OP_ROUND, take_jobs},
};

static uint32_t tokens_of(const struct bl_graph *g, const struct bl_bound *b)
{
    return b->node->op == BL_OP_KV_STORE ? src_of(g, b, 0)->ne[1] : g->vals[b->node->dst[0]].ne[1];
}

uint32_t bl_simt_fuse(struct bl_simt_builder *s, const struct bl_bound *b, uint32_t n)
{
    uint32_t taken = 0;

    if (tokens_of(s->graph, b) > BL_FEW_TOKENS)
        return 0;
    for (unsigned i = 0; i < sizeof patterns / sizeof *patterns && !taken; i++)
        if (patterns[i].op == b->node->op)
            taken = patterns[i].take(s, b, n);
    return taken;
}

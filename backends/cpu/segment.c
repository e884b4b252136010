/* SPDX-License-Identifier: MIT */
/* How nodes become steps, and where threads wait. */
#include "segment.h"

#include <stdlib.h>

static const struct bl_cpu_op *const ops[BL_N_OPS] = {
    [BL_OP_EMBED] = &bl_cpu_embed,
    [BL_OP_GATHER_ROWS] = &bl_cpu_gather_rows,
    [BL_OP_RMS_NORM] = &bl_cpu_rms_norm,
    [BL_OP_MATMUL] = &bl_cpu_matmul,
    [BL_OP_MATMUL_HEADS] = &bl_cpu_matmul_heads,
    [BL_OP_ROPE_ANGLES] = &bl_cpu_rope_angles,
    [BL_OP_ROPE] = &bl_cpu_rope,
    [BL_OP_TEMPER] = &bl_cpu_temper,
    [BL_OP_KV_STORE] = &bl_cpu_kv_store,
    [BL_OP_ATTENTION] = &bl_cpu_attention,
    [BL_OP_ATTENTION_GROUPS] = &bl_cpu_attention,
    [BL_OP_GLU] = &bl_cpu_glu,
    [BL_OP_ADD] = &bl_cpu_add,
    [BL_OP_ROUTE] = &bl_cpu_route,
    [BL_OP_EXPERTS] = &bl_cpu_experts,
    [BL_OP_SOFTCAP] = &bl_cpu_softcap,
    [BL_OP_REPEAT] = &bl_cpu_repeat,
    [BL_OP_STREAM_WEIGHTS] = &bl_cpu_stream_weights,
    [BL_OP_STREAM_READ] = &bl_cpu_stream_read,
    [BL_OP_STREAM_WRITE] = &bl_cpu_stream_write,
    [BL_OP_COMPRESS] = &bl_cpu_compress,
    [BL_OP_ROUND] = &bl_cpu_round_op,
    [BL_OP_HADAMARD] = &bl_cpu_hadamard,
    [BL_OP_CHOOSE] = &bl_cpu_choose,
    [BL_OP_SLICE] = &bl_cpu_slice,
    [BL_OP_CONCAT] = &bl_cpu_concat,
    [BL_OP_SHORT_CONV] = &bl_cpu_short_conv,
    [BL_OP_DELTA_RULE] = &bl_cpu_delta_rule,
};

const struct bl_cpu_op *bl_cpu_op_of(const struct bl_node *n)
{
    return n->op < BL_N_OPS ? ops[n->op] : NULL;
}

/* ---- barriers ---- */

static bool overlap(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes)
{
    return a < b + b_bytes && b < a + a_bytes;
}

/* Must every thread have passed `a` before any may begin `b`? */
static bool conflict(const struct bl_cpu_access *a, const struct bl_cpu_access *b)
{
    if ((!a->write && !b->write) || !overlap(a->addr, a->bytes, b->addr, b->bytes))
        return false;
    if (a->thread0 && b->thread0)
        return false;
    /* The same rows of the same layout: every thread meets its own bytes only. Two values that take
     * turns in one place with rows of different length do not qualify. */
    return a->share == BL_CPU_SPREAD || a->share != b->share || a->addr != b->addr ||
           !a->row_bytes || a->row_bytes != b->row_bytes;
}

static void require_barrier(struct bl_cpu_builder *b)
{
    const uint32_t n_own = b->n_access - b->own_access;
    memmove(b->access, b->access + b->own_access, n_own * sizeof *b->access);
    b->n_access = n_own;
    b->own_access = 0;
    b->seg->step[b->seg->n_steps - 1].barrier = true;
}

struct bl_cpu_counter *bl_cpu_counter_of(struct bl_cpu_builder *b)
{
    struct bl_segment *s = b->seg;
    if (b->status)
        return NULL;
    struct bl_cpu_counter *c = bl_arena_alloc(&s->arena, sizeof *c);
    if (!c) {
        bl_cpu_fail(b, bl_fail(BL_ENOMEM, "cpu: out of memory after %u steps", s->n_steps));
        return NULL;
    }
    c->link = s->counters;
    s->counters = c;
    return c;
}

static void drop_slots(struct bl_cpu_builder *b, uint64_t addr, uint64_t bytes)
{
    for (unsigned i = 0; i < BL_CPU_SLOTS; i++) {
        struct bl_cpu_slot *s = &b->slot[i];
        if (overlap(addr, bytes, s->src, s->src_bytes) || overlap(addr, bytes, s->at, s->bytes))
            *s = (struct bl_cpu_slot){0};
    }
}

void bl_cpu_fail(struct bl_cpu_builder *b, enum bl_status status)
{
    if (!b->status)
        b->status = status;
}

/* Room for one more item, or NULL with the builder failed. */
static void *room(struct bl_cpu_builder *b, void *array, uint32_t n, uint32_t *cap, size_t item)
{
    if (n < *cap)
        return array;
    const uint32_t want = *cap ? 2 * *cap : 64;
    void *bigger = realloc(array, want * item);
    if (!bigger)
        bl_cpu_fail(b, bl_fail(BL_ENOMEM, "cpu: out of memory after %u steps", b->seg->n_steps));
    else
        *cap = want;
    return bigger;
}

static void touch(struct bl_cpu_builder *b, const struct bl_cpu_access *a)
{
    struct bl_cpu_access *grown = room(b, b->access, b->n_access, &b->cap_access, sizeof *grown);
    if (grown)
        b->access = grown; /* after an earlier failure, too: the old block is gone */
    if (!grown || b->status)
        return;
    for (uint32_t i = 0; i < b->own_access; i++)
        if (conflict(&b->access[i], a)) {
            require_barrier(b);
            break;
        }
    b->access[b->n_access++] = *a;
}

void bl_cpu_touch(struct bl_cpu_builder *b, uint64_t addr, uint64_t bytes, uint64_t row_bytes,
                  bool write)
{
    touch(b, &(struct bl_cpu_access){addr, bytes, row_bytes, b->share, write, b->thread0});
    if (write)
        drop_slots(b, addr, bytes);
}

void bl_cpu_touch_own(struct bl_cpu_builder *b, uint64_t addr, uint64_t each_bytes)
{
    const uint64_t bytes = b->dev->base.caps.threads * each_bytes;
    touch(b, &(struct bl_cpu_access){addr, bytes, each_bytes, BL_CPU_OWN, true, false});
}

void *bl_cpu_step(struct bl_cpu_builder *b, bl_cpu_step_fn *run, size_t arg_bytes,
                  enum bl_cpu_share share)
{
    struct bl_segment *s = b->seg;
    if (b->status)
        return NULL;
    struct bl_cpu_step *grown = room(b, s->step, s->n_steps, &s->cap_steps, sizeof *grown);
    if (!grown)
        return NULL;
    s->step = grown;
    void *args = bl_arena_alloc(&s->arena, arg_bytes);
    if (!args) {
        bl_cpu_fail(b, bl_fail(BL_ENOMEM, "cpu: out of memory after %u steps", s->n_steps));
        return NULL;
    }
    s->step[s->n_steps++] = (struct bl_cpu_step){
        .run = run, .args = args, .kind = bl_cpu_profile_kind(&b->dev->profile, b->graph, b->node)};
    b->own_access = b->n_access;
    b->share = (uint8_t)share;
    b->thread0 =
        share != BL_CPU_SPREAD && (share == BL_CPU_TOKENS ? s->limits.n_tok : s->limits.n_out) == 1;
    s->step[s->n_steps - 1].one = b->thread0;
    return args;
}

/* ---- values of the node in hand ---- */

const struct bl_value *bl_cpu_src(const struct bl_cpu_builder *b, unsigned src)
{
    return &b->graph->vals[bl_node_src(b->graph, b->node, src)];
}

const struct bl_value *bl_cpu_dst(const struct bl_cpu_builder *b, unsigned dst)
{
    return &b->graph->vals[b->node->dst[dst]];
}

uint8_t bl_cpu_rows_of(const struct bl_cpu_builder *b, unsigned src)
{
    return b->rows[bl_node_src(b->graph, b->node, src)];
}

const void *bl_cpu_weight(const struct bl_cpu_builder *b, unsigned src)
{
    return bl_node_src(b->graph, b->node, src) ? (const void *)(uintptr_t)b->bound->src[src] : NULL;
}

static void touch_value(struct bl_cpu_builder *b, uint64_t addr, const struct bl_value *v,
                        bool write)
{
    bl_cpu_touch(b, addr, bl_value_bytes(v), bl_dtype_row_bytes(v->type, v->ne[0]), write);
}

const void *bl_cpu_reads(struct bl_cpu_builder *b, unsigned src)
{
    touch_value(b, b->bound->src[src], bl_cpu_src(b, src), false);
    return (const void *)(uintptr_t)b->bound->src[src];
}

void *bl_cpu_writes(struct bl_cpu_builder *b, unsigned dst)
{
    touch_value(b, b->bound->dst[dst], bl_cpu_dst(b, dst), true);
    return (void *)(uintptr_t)b->bound->dst[dst];
}

/* ---- scratch ---- */

void bl_cpu_reserve(struct bl_cpu_builder *b, uint64_t bytes)
{
    if (b->scratch_used + bytes > b->scratch_bytes) {
        b->scratch_used = 0;
        memset(b->slot, 0, sizeof b->slot);
    }
    if (bytes > b->scratch_bytes)
        bl_cpu_fail(b, bl_fail(BL_EINVAL,
                               "cpu: node %s of layer %d needs %llu bytes of scratch, given %llu",
                               bl_ops[b->node->op].name, b->node->layer, (unsigned long long)bytes,
                               (unsigned long long)b->scratch_bytes));
}

uint64_t bl_cpu_take(struct bl_cpu_builder *b, uint64_t bytes)
{
    bytes = bl_cpu_round(bytes);
    bl_cpu_reserve(b, bytes);
    if (b->status)
        return 0;
    const uint64_t at = b->scratch + b->scratch_used;
    b->scratch_used += bytes;
    drop_slots(b, at, bytes);
    return at;
}

/* ---- build ---- */

/* How the rows of every activation are counted: as the step's tokens, or, from GATHER_ROWS on, as
 * its outputs. */
static void count_rows(struct bl_cpu_builder *b)
{
    const struct bl_graph *g = b->graph;
    struct bl_cpu_limits *l = &b->seg->limits;
    memset(b->rows, BL_CPU_TOKENS, g->n_vals);
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const struct bl_node *n = &g->nodes[i];
        const uint8_t rows =
            n->op == BL_OP_GATHER_ROWS ? BL_CPU_OUTPUTS : b->rows[bl_node_src(g, n, 0)];
        for (unsigned d = 0; d < n->n_dst; d++)
            b->rows[n->dst[d]] = rows;
    }
    for (bl_val v = 1; v < g->n_vals; v++) {
        uint32_t *most = b->rows[v] == BL_CPU_OUTPUTS ? &l->n_out : &l->n_tok;
        if (g->vals[v].origin == BL_ACTIVATION && g->vals[v].ne[1] > *most)
            *most = g->vals[v].ne[1];
    }
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* A state in which a token looks back over the last `window` tokens, 0: over all. Only a window's
 * ring may wrap, and only if a whole step fits beside the window. */
static void limit_ring(struct bl_cpu_limits *l, const struct bl_value *state, uint32_t window)
{
    l->n_slots = least(l->n_slots, state->ne[2]);
    if (!window || state->ne[1] < (uint64_t)window + l->n_tok - 1)
        l->n_pos = least(l->n_pos, state->ne[1]);
}

/* A state of one row for `group` tokens. */
static void limit_groups(struct bl_cpu_limits *l, const struct bl_value *state, uint32_t group)
{
    const uint64_t n_pos = (uint64_t)state->ne[1] * group;
    l->n_slots = least(l->n_slots, state->ne[2]);
    l->n_pos = n_pos < l->n_pos ? (uint32_t)n_pos : l->n_pos;
}

/* Rows of single tokens may be a ring: who reads them says how far it reaches. */
static void limit_store(struct bl_cpu_limits *l, const struct bl_value *state, uint32_t group)
{
    l->n_slots = least(l->n_slots, state->ne[2]);
    if (group > 1)
        limit_groups(l, state, group);
}

/* What this node lets a params block say. */
static void limit_params(struct bl_cpu_builder *b)
{
    struct bl_cpu_limits *l = &b->seg->limits;
    const struct bl_node *n = b->node;
    if (n->op == BL_OP_EMBED)
        l->n_ids = least(l->n_ids, bl_cpu_src(b, 0)->ne[1]);
    if (n->op == BL_OP_SHORT_CONV || n->op == BL_OP_DELTA_RULE) /* their rows are rings */
        l->n_slots = least(l->n_slots, bl_cpu_dst(b, 1)->ne[2]);
    if (n->op == BL_OP_KV_STORE)
        limit_store(l, bl_cpu_src(b, 1), ((const struct bl_store_attr *)bl_cpu_attr(b))->group);
    if (n->op == BL_OP_ROUTE && bl_node_src(b->graph, n, 2))
        l->n_ids = least(l->n_ids, bl_cpu_src(b, 2)->ne[1]);
    if (n->op == BL_OP_COMPRESS) /* reads a ring before it writes there */
        l->n_slots = least(l->n_slots, bl_cpu_dst(b, 1)->ne[2]);
    if (n->op == BL_OP_CHOOSE)
        limit_groups(l, bl_cpu_src(b, 2), ((const struct bl_choose_attr *)bl_cpu_attr(b))->group);
    if (n->op == BL_OP_ATTENTION || n->op == BL_OP_ATTENTION_GROUPS)
        limit_ring(l, bl_cpu_src(b, 1), ((const struct bl_attention_attr *)bl_cpu_attr(b))->window);
    if (n->op == BL_OP_ATTENTION_GROUPS)
        limit_groups(l, bl_cpu_src(b, 4), ((const struct bl_groups_attr *)bl_cpu_attr(b))->group);
}

static enum bl_status emit_nodes(struct bl_cpu_builder *b, const struct bl_bound *bound, uint32_t n)
{
    for (uint32_t i = 0; i < n && !b->status; i++) {
        b->bound = &bound[i];
        b->node = bound[i].node;
        b->n_after = n - 1 - i;
        const struct bl_cpu_op *op = bl_cpu_op_of(b->node);
        if (!op || (op->supports && !op->supports(b->graph, b->node)))
            return bl_fail(BL_EUNSUPPORTED, "cpu: node %s of layer %d has types this device lacks",
                           b->node->op < BL_N_OPS ? bl_ops[b->node->op].name : "?", b->node->layer);
        limit_params(b);
        op->emit(b);
    }
    return b->status;
}

/* ---- stretches ---- */

/* The first one is for all. */
static void add_stretch(struct bl_segment *s, uint32_t first, uint32_t end)
{
    bool alone = s->n_stretches > 0;
    for (uint32_t i = first; i < end; i++)
        alone &= s->step[i].one;
    if (alone)
        s->stretch[s->n_stretches - 1].alone_end = end;
    else
        s->stretch[s->n_stretches++] = (struct bl_cpu_stretch){first, end, end};
}

static enum bl_status find_stretches(struct bl_segment *s)
{
    uint32_t first = 0;
    s->stretch = bl_calloc(s->n_steps ? s->n_steps : 1, sizeof *s->stretch);
    if (!s->stretch)
        return bl_fail(BL_ENOMEM, "cpu: out of memory for %u steps", s->n_steps);
    for (uint32_t i = 1; i <= s->n_steps; i++)
        if (i == s->n_steps || s->step[i].barrier) {
            add_stretch(s, first, i);
            first = i;
        }
    return BL_OK;
}

enum bl_status bl_cpu_segment_build(struct bl_device *dev, const struct bl_graph *g,
                                    const struct bl_bound *bound, uint32_t n,
                                    const struct bl_mem *scratch, const struct bl_mem *params,
                                    struct bl_segment **out)
{
    struct bl_cpu_builder b = {.dev = (struct bl_cpu_device *)dev, .graph = g};
    enum bl_status st = BL_ENOMEM;
    b.seg = bl_calloc(1, sizeof *b.seg);
    b.rows = bl_calloc(g->n_vals, 1);
    if (!b.seg || !b.rows) {
        bl_fail(st, "cpu: out of memory for a segment of %u nodes", n);
        goto out;
    }
    b.seg->dev = b.dev;
    b.seg->block = params->host;
    b.seg->block_bytes = params->bytes;
    b.seg->limits = (struct bl_cpu_limits){0, 0, UINT32_MAX, UINT32_MAX, UINT32_MAX};
    b.scratch = bl_cpu_round(scratch->addr);
    if (b.scratch - scratch->addr < scratch->bytes)
        b.scratch_bytes = scratch->bytes - (b.scratch - scratch->addr);
    count_rows(&b);
    if ((st = emit_nodes(&b, bound, n)) || (st = find_stretches(b.seg)))
        goto out;
    *out = b.seg;
    b.seg = NULL;
out:
    free(b.rows);
    free(b.access);
    bl_cpu_segment_free(b.seg);
    return st;
}

void bl_cpu_segment_free(struct bl_segment *s)
{
    if (!s)
        return;
    bl_arena_finish(&s->arena);
    free(s->step);
    free(s->stretch);
    free(s);
}

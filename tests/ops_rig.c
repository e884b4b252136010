/* SPDX-License-Identifier: MIT */
#include "ops_rig.h"

#include "synth.h"

#include <math.h>

enum {
    MEM_BYTES = 48 << 20,
    GUARD_BYTES = 512, /* between values, which nobody writes */
    GUARD = 0xa5
};
static const uint64_t deadline_ns = 120000000000u;

struct ops_device ops;

/* ---- the device ---- */

void ops_start(const struct bl_backend *b, uint32_t index, const struct bl_device_config *c,
               bool all)
{
    ops = (struct ops_device){.backend = b, .all = all, .every = 1, .bound = 1e-10};
    rig_ok(bl_cpu_backend.open(0, &(struct bl_device_config){.threads = 1}, &ops.cpu));
    rig_ok(b->open(index, c, &ops.dev));
    rig_ok(ops.dev->ops->stream_open(ops.dev, &ops.stream));
    rig_ok(ops.dev->ops->mem_alloc(ops.dev, MEM_BYTES, false, &ops.mem));
    rig_ok(ops.cpu->ops->mem_alloc(ops.cpu, MEM_BYTES, true, &ops.host));
}

void ops_stop(void)
{
    ops.dev->ops->stream_close(ops.stream);
    ops.dev->ops->mem_free(&ops.mem);
    ops.cpu->ops->mem_free(&ops.host);
    ops.dev->ops->close(ops.dev);
    ops.cpu->ops->close(ops.cpu);
}

int ops_run(const char *name)
{
    return _cmocka_run_group_tests(name, ops_tests, ops_n_tests, NULL, NULL);
}

bool ops_is_weight(enum bl_dtype t)
{
    return bl_dtypes[t].act != BL_ACT_NONE;
}

/* ---- building ---- */

void ops_open(struct rig *r)
{
    rig_open(r, &(struct rig_config){.threads = 1, .exact = true});
    r->random += ops.n_cases * 77;
    ops.within = ops.bound;
}

static int32_t next_index(const struct rig *r)
{
    return (int32_t)r->g.n_vals;
}

bl_val ops_input(struct rig *r, uint32_t n, uint32_t n_tok)
{
    return rig_input(r, next_index(r), n, n_tok);
}

bl_val ops_ids(struct rig *r, uint32_t n_used, uint32_t n_experts, uint32_t n_tok)
{
    const bl_val z = ops_input(r, n_experts, n_tok);
    bl_val ids, weights;
    bl_graph_route(&r->g, z, 0,
                   &(struct bl_route_attr){.n_used = n_used, .gating = BL_GATE_SIGMOID}, &ids,
                   &weights);
    r->first = r->g.n_nodes;
    return ids;
}

bl_val ops_weight(struct rig *r, enum bl_dtype type, uint32_t n0, uint32_t n1, uint32_t n2)
{
    return bl_graph_weight(&r->g, next_index(r), type, (uint32_t[]){n0, n1, n2});
}

bl_val ops_state(struct rig *r, enum bl_dtype type, uint32_t elems, uint32_t rows, uint32_t n_seq)
{
    return bl_graph_state(&r->g, next_index(r), type, elems, rows, n_seq);
}

void ops_deal(struct rig *r, uint32_t n_tok, uint32_t n_seq, const uint32_t *from)
{
    struct rig_step *s = &r->step;
    uint32_t pos[RIG_SEQS];
    assert_true(n_tok <= RIG_TOKENS && n_seq <= RIG_SEQS);
    *s = (struct rig_step){.n_tok = n_tok, .n_seq = n_seq};
    memcpy(pos, from, n_seq * sizeof *pos);
    for (uint32_t t = 0; t < n_tok; t++) {
        s->seq[t] = rig_pick(r, n_seq);
        s->pos[t] = pos[s->seq[t]]++;
        s->token[t] = (int32_t)rig_pick(r, 3);
        if (rig_pick(r, 3) > 0)
            s->out[s->n_out++] = t;
    }
    for (uint32_t q = 0; q < n_seq; q++)
        s->table[q] = (struct bl_seq_params){pos[q], n_seq - 1 - q};
}

/* ---- contents ---- */

/* Heads may lie further apart than their rows: the value says only how many there are. */
static uint64_t bytes_of(const struct rig *r, bl_val v)
{
    const struct bl_value *w = &r->g.vals[v];
    for (uint32_t i = r->first; i < r->g.n_nodes; i++) {
        const struct bl_node *n = &r->g.nodes[i];
        if (n->op == BL_OP_MATMUL_HEADS && bl_node_src(&r->g, n, 0) == v)
            return bl_dtype_row_bytes(w->type, w->ne[0]) * w->ne[2] *
                   ((const struct bl_heads_attr *)bl_node_attr(&r->g, n))->head_rows;
    }
    return bl_value_bytes(w);
}

static void fill_blocks(struct rig *r, bl_val v, uint64_t bytes)
{
    const struct bl_value *w = &r->g.vals[v];
    struct bl_synth_fill *f;
    const void *piece;
    char name[32];
    snprintf(name, sizeof name, "blk.%u", rig_pick(r, 1 << 20));
    const struct bl_tensor_info t = {.name = name,
                                     .type_name = bl_dtypes[w->type].name,
                                     .type = w->type,
                                     .n_dims = 2,
                                     .ne = {w->ne[0], w->ne[1] * w->ne[2], 1, 1},
                                     .bytes = bytes};
    uint8_t *at = r->data[v];
    rig_ok(bl_synth_fill_create(&f, &t, 1, 0));
    for (uint64_t n; (n = bl_synth_fill_next(f, &piece)) != 0; at += n)
        memcpy(at, piece, n);
    bl_synth_fill_destroy(f);
}

static void fill_state(struct rig *r, bl_val v)
{
    const struct bl_value *w = &r->g.vals[v];
    const uint64_t row = bl_dtype_row_bytes(w->type, w->ne[0]);
    float *x = malloc(w->ne[0] * sizeof *x);
    assert_non_null(x);
    for (uint64_t i = 0; i < (uint64_t)w->ne[1] * w->ne[2]; i++) {
        for (uint32_t e = 0; e < w->ne[0]; e++)
            x[e] = rig_random(r);
        bl_dtype_encode(w->type, w->ne[0], (uint8_t *)r->data[v] + i * row, x);
    }
    free(x);
}

static bool shared_before(const struct rig *r, bl_val v)
{
    for (bl_val u = 1; u < v; u++)
        if (r->data[u] == r->data[v])
            return true;
    return false;
}

static bool made_before(const struct rig *r, bl_val v)
{
    for (uint32_t i = 0; i < r->first; i++)
        for (unsigned d = 0; d < r->g.nodes[i].n_dst; d++)
            if (r->g.nodes[i].dst[d] == v)
                return true;
    return false;
}

void ops_fill(struct rig *r)
{
    rig_alloc(r);
    for (bl_val v = 1; v < r->g.n_vals; v++) {
        const struct bl_value *w = &r->g.vals[v];
        const uint64_t bytes = bytes_of(r, v);
        if (!r->data[v] || shared_before(r, v))
            continue;
        if (bytes > bl_value_bytes(w)) {
            free(r->data[v]);
            r->data[v] = malloc((size_t)bytes);
            assert_non_null(r->data[v]);
        }
        if (w->origin == BL_STATE_ROWS)
            fill_state(r, v);
        else if (w->origin == BL_WEIGHT && w->type != BL_F32 && w->type != BL_I32)
            fill_blocks(r, v, bytes);
        else if (w->type == BL_F32 && (w->origin == BL_WEIGHT || made_before(r, v)))
            for (uint64_t i = 0; i < bytes / sizeof(float); i++)
                ((float *)r->data[v])[i] = rig_random(r);
    }
}

void ops_fill_ids(struct rig *r, bl_val ids, uint32_t limit)
{
    const struct bl_value *w = &r->g.vals[ids];
    for (uint32_t t = 0; t < w->ne[1]; t++) {
        const uint32_t first = rig_pick(r, limit), gap = limit / w->ne[0];
        for (uint32_t i = 0; i < w->ne[0]; i++)
            ((int32_t *)r->data[ids])[t * w->ne[0] + i] = (int32_t)((first + i * gap) % limit);
    }
}

/* ---- the case in hand, on the device ---- */

struct image { /* where values lie in ops.mem, and what they were before the run */
    const struct rig *r;
    const char *what;
    uint64_t off[RIG_VALUES], table[RIG_VALUES], end;
    struct gap { /* before each value, table, scratch and parameters, and at the end */
        uint64_t at, bytes;
    } gap[2 * RIG_VALUES + 3];
    uint32_t n_gaps;
    struct bl_mem scratch, params;
    uint8_t *before;
};

static void leave_gap(struct image *m, uint64_t to)
{
    assert_true(m->n_gaps < OPS_N(m->gap));
    m->gap[m->n_gaps++] = (struct gap){m->end, to - m->end};
    memset(m->before + m->end, GUARD, (size_t)(to - m->end));
    m->end = to;
}

static uint64_t place(struct image *m, uint64_t bytes, const void *from)
{
    const uint64_t off =
        bl_align_up(m->end + GUARD_BYTES, 64) + 32; /* what a file's data may count on */
    if (off + bytes + GUARD_BYTES > MEM_BYTES)
        fail_msg("%s: more than %d bytes", m->what, MEM_BYTES);
    leave_gap(m, off);
    m->end += bytes;
    if (from)
        memcpy(m->before + off, from, (size_t)bytes);
    else
        memset(m->before + off, 0xff, (size_t)bytes);
    return off;
}

static struct bl_mem part_of(const struct image *m, uint64_t off, uint64_t bytes)
{
    (void)m;
    struct bl_mem part = ops.mem;
    part.addr += off;
    part.bytes = (size_t)bytes;
    return part;
}

/* Addresses of the experts that the device has. */
static uint64_t place_table(struct image *m, bl_val v, uint32_t n_experts)
{
    uint64_t *t = calloc(n_experts, sizeof *t);
    assert_non_null(t);
    for (uint32_t e = 0; e < n_experts; e++)
        if (!(m->r->absent >> e & 1))
            t[e] = ops.mem.addr + m->off[v] + e * (bl_value_bytes(&m->r->g.vals[v]) / n_experts);
    const uint64_t off = place(m, n_experts * sizeof *t, t);
    free(t);
    return off;
}

static void place_all(struct image *m)
{
    const struct rig *r = m->r;
    uint64_t most = 64;
    for (bl_val v = 1; v < r->g.n_vals; v++) {
        if (!r->data[v])
            continue;
        m->off[v] = 0;
        for (bl_val u = 1; u < v; u++)
            if (r->data[u] == r->data[v])
                m->off[v] = m->off[u];
        if (!m->off[v])
            m->off[v] = place(m, bytes_of(r, v), r->data[v]);
    }
    for (uint32_t i = r->first; i < r->g.n_nodes; i++) {
        const struct bl_node *n = &r->g.nodes[i];
        const uint64_t bytes = ops.backend->scratch_bytes(&ops.dev->caps, &r->g, n);
        most = bytes > most ? bytes : most;
        for (unsigned s = 3; n->op == BL_OP_EXPERTS && s < n->n_src; s++) {
            const bl_val v = bl_node_src(&r->g, n, s);
            if (v && !m->table[v])
                m->table[v] = place_table(m, v, r->g.vals[bl_node_src(&r->g, n, 5)].ne[2]);
        }
    }
    m->scratch = part_of(m, place(m, most, NULL), most);
    const struct bl_params *p = r->mem_params.host;
    m->params = part_of(m, place(m, p->n_bytes, p), p->n_bytes);
    leave_gap(m, m->end + GUARD_BYTES);
}

static struct bl_bound *bind(const struct image *m, uint64_t *addr)
{
    const struct rig *r = m->r;
    const uint32_t n = r->g.n_nodes - r->first;
    struct bl_bound *bound = calloc(n, sizeof *bound);
    assert_non_null(bound);
    for (uint32_t i = 0; i < n; i++) {
        const struct bl_node *node = &r->g.nodes[r->first + i];
        uint64_t *src = addr + 16 * i, *dst = src + 14;
        bound[i] = (struct bl_bound){node, src, dst};
        for (unsigned s = 0; s < node->n_src; s++) {
            const bl_val v = bl_node_src(&r->g, node, s);
            const bool table = node->op == BL_OP_EXPERTS && s >= 3;
            if (v && r->data[v])
                src[s] = ops.mem.addr + (table ? m->table[v] : m->off[v]);
        }
        for (unsigned d = 0; d < node->n_dst; d++)
            dst[d] = ops.mem.addr + m->off[node->dst[d]];
    }
    return bound;
}

static void wait_for_stream(const struct image *m)
{
    struct bl_point p;
    rig_ok(ops.dev->ops->signal(ops.stream, &p));
    const enum bl_status st = ops.dev->ops->join(p, deadline_ns);
    if (st)
        fail_msg("%s: %s: %s", m->what, bl_status_name(st), bl_error());
}

/* Copies go over the gaps: they are closed for the segment alone. */
static void fence(const struct image *m, bool closed)
{
    if (!ops.fence)
        return;
    wait_for_stream(m);
    for (uint32_t i = 0; i < m->n_gaps; i++)
        ops.fence(ops.mem.addr + m->gap[i].at, m->gap[i].bytes, closed);
}

static void run_there(struct image *m)
{
    const struct bl_device_ops *o = ops.dev->ops;
    const uint32_t n = m->r->g.n_nodes - m->r->first;
    uint64_t *addr = calloc(n, 16 * sizeof *addr);
    assert_non_null(addr);
    struct bl_bound *bound = bind(m, addr);
    struct bl_segment *seg;
    memcpy(ops.host.host, m->before, (size_t)m->end);
    const enum bl_status st =
        o->segment_build(ops.dev, &m->r->g, bound, n, &m->scratch, &m->params, &seg);
    if (st)
        fail_msg("%s: %s: %s", m->what, bl_status_name(st), bl_error());
    rig_ok(o->copy(ops.stream, &ops.mem, 0, &ops.host, 0, (size_t)m->end));
    fence(m, true);
    rig_ok(o->segment_run(ops.stream, seg));
    fence(m, false);
    rig_ok(o->copy(ops.stream, &ops.host, 0, &ops.mem, 0, (size_t)m->end));
    wait_for_stream(m);
    o->segment_free(seg);
    free(bound);
    free(addr);
}

/* ---- what came of it ---- */

/* Values that are within one step of their type's rounding of each other. */
static bool one_step(enum bl_dtype type, const float *block, uint32_t n, float a, float b)
{
    float most = 0;
    for (uint32_t i = 0; i < n; i++)
        most = fmaxf(most, fabsf(block[i]));
    const float at = fmaxf(fabsf(a), fabsf(b));
    const float step = type == BL_F16    ? at * 0x1p-10f + 0x1p-24f
                       : type == BL_BF16 ? at * 0x1p-7f
                       : type == BL_Q8_0 ? most / 127
                                         : most / 8;
    return fabsf(a - b) <= step * 1.01f;
}

/* most: elements that may be rounded to the other side. */
static void compare_rows(const struct image *m, bl_val v, const uint8_t *got, uint64_t most)
{
    const struct bl_value *w = &m->r->g.vals[v];
    const uint64_t rows = (uint64_t)w->ne[1] * w->ne[2],
                   bytes = bl_dtype_row_bytes(w->type, w->ne[0]);
    const uint32_t block = bl_dtypes[w->type].block_elems;
    float *a = malloc(2 * w->ne[0] * sizeof *a), *b = a + w->ne[0];
    uint64_t other = 0;
    assert_non_null(a);
    for (uint64_t i = 0; i < rows; i++) {
        bl_dtype_decode(w->type, w->ne[0], a, (const uint8_t *)m->r->data[v] + i * bytes);
        bl_dtype_decode(w->type, w->ne[0], b, got + i * bytes);
        for (uint32_t e = 0; e < w->ne[0]; e++) {
            other += a[e] != b[e];
            if (!one_step(w->type, a + e / block * block, block, a[e], b[e]))
                fail_msg("%s: state [%llu][%u] is %g, want %g", m->what, (unsigned long long)i, e,
                         (double)b[e], (double)a[e]);
        }
    }
    if (other > most)
        fail_msg("%s: %llu elements of the state are rounded to their neighbours", m->what,
                 (unsigned long long)other);
    free(a);
}

static void compare_floats(const struct image *m, bl_val v, const float *got, uint64_t n)
{
    const float *want = m->r->data[v];
    double err = 0, sum = 0, worst = -1;
    uint64_t at = 0;
    for (uint64_t i = 0; i < n; i++) {
        const double d = (double)got[i] - (double)want[i];
        err += d * d;
        sum += (double)want[i] * (double)want[i];
        if (!isnan(worst) && !(d * d <= worst)) {
            worst = d * d;
            at = i;
        }
    }
    const double least = ops.least * (double)n;
    if (!(err <= ops.within * (sum > least ? sum : least)))
        fail_msg("%s: NMSE %.3g, worst [%llu] of {%u, %u}: %.9g, want %.9g", m->what, err / sum,
                 (unsigned long long)at, m->r->g.vals[v].ne[0], m->r->g.vals[v].ne[1],
                 (double)got[at], (double)want[at]);
}

static void compare(const struct image *m, const struct bl_node *n, unsigned d)
{
    const bl_val v = n->dst[d];
    const struct bl_value *w = &m->r->g.vals[v];
    const uint8_t *got = (const uint8_t *)ops.host.host + m->off[v];
    const uint64_t rows = n->op == BL_OP_GATHER_ROWS ? m->r->step.n_out : m->r->step.n_tok;
    if (w->origin == BL_STATE_ROWS && w->type != BL_F32) {
        /* Halves are made by whole numbers; scales of blocks by divisions, which drivers may round.
         */
        const bool sure =
            bl_dtypes[w->type].block_elems == 1 && made_before(m->r, bl_node_src(&m->r->g, n, 0));
        compare_rows(m, v, got, sure ? 0 : 4 + bl_value_bytes(w) / 256);
    } else if (w->type == BL_F32) {
        const uint64_t all = w->origin == BL_STATE_ROWS ? (uint64_t)w->ne[1] * w->ne[2] : rows;
        compare_floats(m, v, (const float *)(const void *)got, w->ne[0] * all);
    } else {
        for (uint64_t i = 0; i < w->ne[0] * rows; i++) {
            const int32_t a = ((const int32_t *)m->r->data[v])[i],
                          b = ((const int32_t *)(const void *)got)[i];
            if (a != b)
                fail_msg("%s: [%llu] of rows of %u is %d, want %d", m->what, (unsigned long long)i,
                         w->ne[0], b, a);
        }
    }
}

/* Everything but scratch and destinations is as it was. */
static void check_untouched(struct image *m)
{
    const uint64_t scratch = m->scratch.addr - ops.mem.addr;
    memcpy(m->before + scratch, (uint8_t *)ops.host.host + scratch, m->scratch.bytes);
    for (uint32_t i = m->r->first; i < m->r->g.n_nodes; i++)
        for (unsigned d = 0; d < m->r->g.nodes[i].n_dst; d++) {
            const bl_val v = m->r->g.nodes[i].dst[d];
            memcpy(m->before + m->off[v], (uint8_t *)ops.host.host + m->off[v],
                   (size_t)bl_value_bytes(&m->r->g.vals[v]));
        }
    for (uint64_t i = 0; i < m->end; i++)
        if (m->before[i] != ((uint8_t *)ops.host.host)[i])
            fail_msg("%s: byte %llu, which is no destination's, was written", m->what,
                     (unsigned long long)i);
}

static void check_case(struct rig *r, const char *what)
{
    struct image m = {.r = r, .what = what, .before = malloc(MEM_BYTES)};
    assert_non_null(m.before);
    rig_params(r);
    place_all(&m);
    run_there(&m);
    rig_ok(rig_run(r));
    for (uint32_t i = r->first; i < r->g.n_nodes; i++)
        for (unsigned d = 0; d < r->g.nodes[i].n_dst; d++)
            compare(&m, &r->g.nodes[i], d);
    check_untouched(&m);
    free(m.before);
}

void ops_check(struct rig *r, const char *what, ...)
{
    char text[200];
    va_list ap;
    va_start(ap, what);
    vsnprintf(text, sizeof text, what, ap);
    va_end(ap);
    if (ops.n_cases++ % ops.every == 0 || ops.kind != what)
        check_case(r, text);
    ops.kind = what;
    rig_close(r);
}

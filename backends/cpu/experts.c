/* SPDX-License-Identifier: MIT */
/* EXPERTS for few tokens, and what both forms share. */
#include "experts.h"

#include "deal.h"

#include <assert.h>

enum {
    GROUP_ROWS = 32, /* element-wise kernels then see the same vectors whatever a thread's share */
    MOST_ROWS = 256, /* of a piece, whose results wait on the stack */
    /* Rows that only one token meets are read in long streams: changing between gate and up every
     * 12 KiB costs an eighth of the speed, and so does preparing activations as often. */
    CALL_BYTES = 64 << 10,  /* of one kernel call, less than a second-level cache holds */
    UNIT_BYTES = 256 << 10, /* of one matrix before the other's turn */
    UNITS_EACH = 32         /* for a thread at least, or units of one chunk */
};

/* ---- sorting ---- */

/* An expert's pairs in nearly equal batches from number n on; returns the number after them. */
static uint32_t cut(const struct bl_experts_args *a, struct bl_experts_batch all, uint32_t n)
{
    const uint32_t pieces = bl_panel_tiles(all.n, a->most);
    for (uint32_t i = 0; i < pieces; i++, n++) {
        const uint32_t first = bl_panel_tile_first(all.n, pieces, i),
                       end = bl_panel_tile_first(all.n, pieces, i + 1);
        a->batch[n] = (struct bl_experts_batch){all.expert, all.first + first, end - first};
    }
    return n;
}

static bool is_here(const struct bl_experts_args *a, size_t pair)
{
    return a->gate.expert[a->ids[pair]] != 0;
}

/* A counting sort, in which an expert's counter first counts and then points. Counters stand at the
 * end of the table, where batches come to lie only after they were read. */
static void sort_run(const void *args, const struct bl_cpu_job *job)
{
    const struct bl_experts_args *a = args;
    const uint32_t n_pairs = bl_cpu_n_rows(job, a->rows) * a->n_used;
    struct bl_experts_batch *of = a->batch + a->spare + 1;
    if (job->ith)
        return;
    memset(of, 0, a->n_experts * sizeof *of);
    for (uint32_t p = 0; p < n_pairs; p++) {
        assert(a->ids[p] >= 0 && (uint32_t)a->ids[p] < a->n_experts);
        of[a->ids[p]].n += is_here(a, p);
    }
    uint32_t first = 0, n = 0;
    for (uint32_t e = 0; e < a->n_experts; e++) {
        of[e].first = first;
        first += of[e].n;
    }
    *a->n_pairs = first;
    for (uint32_t p = 0; p < n_pairs; p++)
        if (is_here(a, p))
            a->order[of[a->ids[p]].first++] = p;
    for (uint32_t e = 0; e < a->n_experts; e++)
        n = cut(a, (struct bl_experts_batch){e, of[e].first - of[e].n, of[e].n}, n);
    *a->n_batches = n;
}

/* ---- shares ---- */

/* A thread's way through a matrix of every expert: units of rows, in order inside a batch; for
 * several tokens in pieces that stay in the first-level cache. Units are whole groups. There are
 * units for as many batches as there could be: how many there are may be read only by a thread
 * that has taken one, as otherwise the stretch may be over and the place be another layer's. */
struct path {
    const struct bl_experts_args *a;
    const struct bl_experts_matrix *m;
    uint32_t unit_rows, per_batch;
    struct bl_cpu_hand hand;
    struct bl_cpu_range units; /* in hand, not begun */
    const struct bl_experts_batch *batch;
    uint32_t row, row_end; /* of it, left of the unit that is begun */
};

static struct path path_of(const struct bl_experts_args *a, const struct bl_experts_matrix *m,
                           const struct bl_cpu_job *job)
{
    const uint32_t n_pairs = bl_cpu_n_rows(job, a->rows) * a->n_used,
                   most = n_pairs < a->n_experts ? n_pairs : a->n_experts;
    struct path p = {a, m, .unit_rows = m->group > m->chunk ? m->group : m->chunk};
    while (2 * p.unit_rows <= MOST_ROWS && 2 * p.unit_rows * m->stride <= UNIT_BYTES &&
           most * (uint64_t)m->rows / (2 * p.unit_rows) >= UNITS_EACH * job->nth)
        p.unit_rows *= 2;
    while ((p.per_batch = (m->rows + p.unit_rows - 1) / p.unit_rows) >
           BL_CPU_MOST_UNITS / (most + 1))
        p.unit_rows *= 2;
    p.hand = bl_cpu_hand_of(job, most * p.per_batch);
    return p;
}

static bool path_next(struct path *p, struct bl_experts_piece *out)
{
    while (p->row == p->row_end) {
        if (p->units.first == p->units.end && !bl_cpu_hand_next(&p->hand, &p->units))
            return false;
        const uint32_t unit = p->units.first++, batch = unit / p->per_batch;
        if (batch >= *p->a->n_batches)
            continue;
        p->batch = p->a->batch + batch;
        p->row = unit % p->per_batch * p->unit_rows;
        p->row_end = p->m->rows - p->row < p->unit_rows ? p->m->rows : p->row + p->unit_rows;
    }
    const uint32_t left = p->row_end - p->row, most = bl_experts_piece_rows(p->m, p->batch);
    *out = (struct bl_experts_piece){p->batch, p->row, left < most ? left : most};
    p->row += out->n;
    return true;
}

/* ---- rows ---- */

void bl_experts_scale_and_bias(const struct bl_experts_matrix *m, const struct bl_experts_piece *p,
                               float *y)
{
    const uint32_t e = p->batch->expert;
    if (m->scale) {
        const float scale = *(const float *)(uintptr_t)m->scale[e];
        for (uint32_t i = 0; i < p->n; i++)
            y[i] *= scale;
    }
    if (m->bias) {
        const float *bias = (const float *)(uintptr_t)m->bias[e] + p->row;
        for (uint32_t i = 0; i < p->n; i++)
            y[i] += bias[i];
    }
}

uint32_t bl_experts_piece_rows(const struct bl_experts_matrix *m, const struct bl_experts_batch *b)
{
    return b->n == 1 ? MOST_ROWS : m->chunk;
}

static void dot(const struct bl_experts_matrix *m, const struct bl_experts_piece *p, float *y,
                const uint8_t *x, const uint8_t *next)
{
    const uint8_t *w = bl_experts_rows(m, p->batch, p->row);
    for (uint32_t i = 0, n; i < p->n; i += n, w += n * m->stride) {
        n = p->n - i < m->call ? p->n - i : m->call;
        m->kernel->dot(m->k, n, y + i, w, m->stride, x, i + n < p->n ? w + n * m->stride : next);
    }
    bl_experts_scale_and_bias(m, p, y);
}

void bl_experts_gate_up(const struct bl_experts_args *a, const struct bl_cpu_kernels *k,
                        const struct bl_experts_piece *p, const uint8_t *next)
{
    float g[MOST_ROWS], u[MOST_ROWS];
    const uint8_t *then = bl_experts_rows(&a->up, p->batch, p->row);
    for (size_t i = p->batch->first; i < p->batch->first + p->batch->n; i++) {
        const size_t t = a->order[i] / a->n_used;
        dot(&a->gate, p, g, a->x[0] + t * a->x_stride[0], then);
        dot(&a->up, p, u, a->x[1] + t * a->x_stride[1], next);
        bl_cpu_glu_run(k, &a->glu, p->n, a->h + i * a->gate.rows + p->row, g, u);
        then = next = NULL;
    }
}

void bl_experts_down(const struct bl_experts_args *a, const struct bl_experts_piece *p,
                     const uint8_t *next)
{
    for (size_t i = p->batch->first; i < p->batch->first + p->batch->n; i++, next = NULL)
        dot(&a->down, p, a->part + (size_t)a->order[i] * a->down.rows + p->row,
            a->hq + i * a->hq_stride, next);
}

/* ---- phases ---- */

static void gate_up_run(const void *args, const struct bl_cpu_job *job)
{
    const struct bl_experts_args *a = args;
    struct path path = path_of(a, &a->gate, job);
    struct bl_experts_piece p, q;
    for (bool more = path_next(&path, &p); more; p = q) {
        more = path_next(&path, &q);
        bl_experts_gate_up(a, job->kernels, &p,
                           more ? bl_experts_rows(&a->gate, q.batch, q.row) : NULL);
    }
}

static void quantize_run(const void *args, const struct bl_cpu_job *job)
{
    const struct bl_experts_args *a = args;
    const uint32_t k = a->down.k;
    const struct bl_cpu_range r = bl_cpu_split(*a->n_pairs, job->ith, job->nth);
    bl_quant_fn *const quantize = bl_cpu_quantizer(job->kernels, a->down.kernel->act);
    for (size_t p = r.first; p < r.end; p++)
        quantize(k, (struct bl_act_block *)(a->hq + p * a->hq_stride), a->h + p * k);
}

static void down_run(const void *args, const struct bl_cpu_job *job)
{
    const struct bl_experts_args *a = args;
    struct path path = path_of(a, &a->down, job);
    struct bl_experts_piece p, q;
    for (bool more = path_next(&path, &p); more; p = q) {
        more = path_next(&path, &q);
        bl_experts_down(a, &p, more ? bl_experts_rows(&a->down, q.batch, q.row) : NULL);
    }
}

static void sum_run(const void *args, const struct bl_cpu_job *job)
{
    const struct bl_experts_args *a = args;
    const struct bl_cpu_range r = bl_cpu_rows(job, a->rows);
    const uint32_t n = a->down.rows;
    for (size_t t = r.first; t < r.end; t++) {
        float *y = a->y + t * n;
        memset(y, 0, n * sizeof *y);
        for (size_t pair = t * a->n_used; pair < (t + 1) * a->n_used; pair++)
            if (!a->divided || is_here(a, pair))
                job->kernels->axpy(n, y, a->weights[pair], a->part + pair * n);
    }
}

/* ---- build: what both forms share ---- */

static struct bl_experts_matrix matrix_of(const struct bl_cpu_builder *b, unsigned src)
{
    const struct bl_value *w = bl_cpu_src(b, src);
    struct bl_experts_matrix m = {.kernel = &b->dev->kernels.matmul[w->type],
                                  .expert = bl_cpu_weight(b, src),
                                  .bias = bl_cpu_weight(b, src + 3),
                                  .scale = bl_cpu_weight(b, src + 6),
                                  .stride = (size_t)bl_dtype_row_bytes(w->type, w->ne[0]),
                                  .k = w->ne[0],
                                  .rows = w->ne[1]};
    m.group = m.kernel->rows;
    while (m.group < GROUP_ROWS)
        m.group *= 2;
    m.chunk = bl_cpu_chunk_rows(m.stride, m.kernel->rows);
    m.chunk = m.chunk < MOST_ROWS ? m.chunk : MOST_ROWS;
    m.call = m.chunk;
    while (2 * m.call * m.stride <= CALL_BYTES)
        m.call *= 2;
    return m;
}

/* Gate and up walk together: one grouping for both. */
static void share_pieces(struct bl_experts_matrix *a, struct bl_experts_matrix *b)
{
    a->group = b->group = a->group > b->group ? a->group : b->group;
    a->chunk = b->chunk = a->chunk < b->chunk ? a->chunk : b->chunk;
}

uint64_t bl_experts_pairs(const struct bl_graph *g, const struct bl_node *n)
{
    const struct bl_experts_attr *at = bl_node_attr(g, n);
    return (uint64_t)g->vals[bl_node_src(g, n, BL_EXPERTS_INPUT)].ne[1] * at->n_used;
}

static uint64_t batch_bytes(const struct bl_graph *g, const struct bl_node *n, uint32_t most)
{
    const uint64_t n_experts = g->vals[bl_node_src(g, n, BL_EXPERTS_DOWN)].ne[2];
    return bl_cpu_round(64 + (n_experts + bl_experts_pairs(g, n) / most + 1) *
                                 sizeof(struct bl_experts_batch));
}

uint64_t bl_experts_table_bytes(const struct bl_graph *g, const struct bl_node *n, uint32_t most)
{
    return batch_bytes(g, n, most) + bl_cpu_round(bl_experts_pairs(g, n) * sizeof(uint32_t));
}

struct bl_experts_args bl_experts_of(const struct bl_cpu_builder *b, uint64_t table, uint32_t most)
{
    const struct bl_experts_attr *at = bl_cpu_attr(b);
    struct bl_experts_args a = {
        .gate = matrix_of(b, BL_EXPERTS_GATE),
        .up = matrix_of(b, BL_EXPERTS_UP),
        .down = matrix_of(b, BL_EXPERTS_DOWN),
        .ids = (const int32_t *)(uintptr_t)b->bound->src[BL_EXPERTS_IDS],
        .weights = (const float *)(uintptr_t)b->bound->src[BL_EXPERTS_WEIGHTS],
        .y = (float *)(uintptr_t)b->bound->dst[0],
        .n_experts = bl_cpu_src(b, BL_EXPERTS_DOWN)->ne[2],
        .n_used = at->n_used,
        .most = most,
        .spare = (uint32_t)(bl_experts_pairs(b->graph, b->node) / most),
        .glu = at->glu,
        .rows = bl_cpu_rows_of(b, BL_EXPERTS_INPUT),
        .divided = at->parts > 1 || at->chunks,
        .table = table,
        .table_bytes = bl_experts_table_bytes(b->graph, b->node, most),
        .n_batches = (uint32_t *)(uintptr_t)table,
        .n_pairs = (uint32_t *)(uintptr_t)table + 1,
        .batch = (struct bl_experts_batch *)(uintptr_t)(table + 64),
        .order = (uint32_t *)(uintptr_t)(table + batch_bytes(b->graph, b->node, most)),
    };
    share_pieces(&a.gate, &a.up);
    return a;
}

bool bl_experts_step(struct bl_cpu_builder *b, const void *args, size_t arg_bytes,
                     bl_cpu_step_fn *run, enum bl_cpu_share share)
{
    void *copy = bl_cpu_step(b, run, arg_bytes, share);
    if (copy)
        memcpy(copy, args, arg_bytes);
    return copy;
}

void bl_experts_reads_table(struct bl_cpu_builder *b, const struct bl_experts_args *a)
{
    bl_cpu_touch(b, a->table, a->table_bytes, 0, false);
}

/* Sorted by thread 0, which with one token also made the ids: no barrier then. */
bool bl_experts_sort(struct bl_cpu_builder *b, const struct bl_experts_args *a)
{
    const uint32_t n_tok = bl_cpu_src(b, BL_EXPERTS_INPUT)->ne[1];
    if (!bl_experts_step(b, a, sizeof *a, sort_run,
                         n_tok == 1 ? (enum bl_cpu_share)a->rows : BL_CPU_SPREAD))
        return false;
    bl_cpu_reads(b, BL_EXPERTS_IDS);
    bl_cpu_touch(b, a->table, a->table_bytes, 0, true);
    return true;
}

bool bl_experts_sum(struct bl_cpu_builder *b, const struct bl_experts_args *a)
{
    if (!bl_experts_step(b, a, sizeof *a, sum_run, (enum bl_cpu_share)a->rows))
        return false;
    bl_cpu_touch(b, (uintptr_t)a->part,
                 bl_experts_pairs(b->graph, b->node) * a->down.rows * sizeof(float), 0, false);
    if (a->divided)
        bl_cpu_reads(b, BL_EXPERTS_IDS);
    bl_cpu_reads(b, BL_EXPERTS_WEIGHTS);
    bl_cpu_writes(b, 0);
    b->last_matmul = NULL; /* what comes after the router was not the matmul that follows here */
    return true;
}

/* ---- build: few tokens ---- */

enum { WHOLE = UINT16_MAX << 8 }; /* batches are not cut */

struct sizes {
    uint64_t h, hq, part, body; /* body: all of them */
};

static struct sizes sizes_of(const struct bl_caps *caps, const struct bl_graph *g,
                             const struct bl_node *n)
{
    const struct bl_value *down = &g->vals[bl_node_src(g, n, BL_EXPERTS_DOWN)];
    const uint64_t pairs = bl_experts_pairs(g, n);
    const bool is_float = caps->exact || bl_dtypes[down->type].act == BL_ACT_F32;
    struct sizes s;
    s.h = bl_cpu_round(pairs * down->ne[0] * sizeof(float));
    s.hq = is_float ? 0 : pairs * bl_cpu_act_bytes(down->ne[0]);
    s.part = bl_cpu_round(pairs * down->ne[1] * sizeof(float));
    /* Once h is quantised its place is free for the results. */
    s.body = is_float ? s.h + s.part : s.hq + (s.h > s.part ? s.h : s.part);
    return s;
}

static uint64_t few_bytes(const struct bl_caps *caps, const struct bl_graph *g,
                          const struct bl_node *n)
{
    const struct bl_value *x = &g->vals[bl_node_src(g, n, BL_EXPERTS_INPUT)];
    return bl_experts_table_bytes(g, n, WHOLE) + sizes_of(caps, g, n).body +
           bl_cpu_operand_bytes(caps, x, g->vals[bl_node_src(g, n, BL_EXPERTS_GATE)].type) +
           bl_cpu_operand_bytes(caps, x, g->vals[bl_node_src(g, n, BL_EXPERTS_UP)].type);
}

static void few_emit(struct bl_cpu_builder *b)
{
    const struct bl_caps *caps = &b->dev->base.caps;
    const uint32_t n_tok = bl_cpu_src(b, BL_EXPERTS_INPUT)->ne[1];
    const struct sizes s = sizes_of(caps, b->graph, b->node);
    bl_cpu_reserve(b, few_bytes(caps, b->graph, b->node));
    struct bl_experts_args a =
        bl_experts_of(b, bl_cpu_take(b, bl_experts_table_bytes(b->graph, b->node, WHOLE)), WHOLE);
    const uint64_t h = bl_cpu_take(b, s.body), part = s.hq ? h : h + s.h,
                   hq = s.hq ? h + (s.h > s.part ? s.h : s.part) : h;
    a.h = (float *)(uintptr_t)h;
    a.part = (float *)(uintptr_t)part;
    a.hq = (uint8_t *)(uintptr_t)hq;
    a.hq_stride = (size_t)(s.hq ? bl_cpu_act_bytes(a.down.k) : a.down.k * sizeof(float));
    const struct bl_cpu_operand x[2] = {bl_cpu_operand(b, BL_EXPERTS_INPUT, a.gate.kernel->act),
                                        bl_cpu_operand(b, BL_EXPERTS_INPUT, a.up.kernel->act)};
    for (unsigned i = 0; i < 2; i++) {
        a.x[i] = (const uint8_t *)(uintptr_t)x[i].addr;
        a.x_stride[i] = (size_t)x[i].row_bytes;
    }
    if (!bl_experts_sort(b, &a) || !bl_experts_step(b, &a, sizeof a, gate_up_run, BL_CPU_SPREAD))
        return;
    bl_cpu_deals(b);
    bl_experts_reads_table(b, &a);
    bl_cpu_reads_operand(b, x[0], n_tok);
    bl_cpu_reads_operand(b, x[1], n_tok);
    bl_cpu_touch(b, h, s.h, 0, true);
    if (s.hq) {
        if (!bl_experts_step(b, &a, sizeof a, quantize_run, BL_CPU_SPREAD))
            return;
        bl_cpu_touch(b, h, s.h, 0, false);
        bl_cpu_touch(b, hq, s.hq, 0, true);
    }
    if (!bl_experts_step(b, &a, sizeof a, down_run, BL_CPU_SPREAD))
        return;
    bl_cpu_deals(b);
    bl_experts_reads_table(b, &a);
    bl_cpu_touch(b, hq, s.hq ? s.hq : s.h, 0, false);
    bl_cpu_touch(b, part, s.part, 0, true);
    bl_experts_sum(b, &a);
}

/* ---- op ---- */

static void experts_emit(struct bl_cpu_builder *b)
{
    if (bl_experts_are_many(&b->dev->base.caps, b->graph, b->node))
        bl_experts_many(b);
    else
        few_emit(b);
}

static uint64_t experts_scratch(const struct bl_caps *caps, const struct bl_graph *g,
                                const struct bl_node *n)
{
    return bl_experts_are_many(caps, g, n) ? bl_experts_many_bytes(caps, g, n)
                                           : few_bytes(caps, g, n);
}

static bool experts_supports(const struct bl_graph *g, const struct bl_node *n)
{
    for (unsigned i = BL_EXPERTS_GATE; i <= BL_EXPERTS_DOWN; i++)
        if (bl_dtypes[g->vals[bl_node_src(g, n, i)].type].act == BL_ACT_NONE)
            return false;
    return true;
}

const struct bl_cpu_op bl_cpu_experts = {experts_supports, experts_scratch, experts_emit};

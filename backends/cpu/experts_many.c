/* SPDX-License-Identifier: MIT */
/* EXPERTS for many tokens. The pairs of an expert lie side by side in tiles; an expert with few of
 * them is served by dots. Threads claim runs of panels of about equal cost, short enough that the
 * last to end is late by little, long enough that the tiles stay in the second-level cache. */
#include "experts.h"

enum {
    PACK = 10,  /* tokens that cost as much as packing a panel, or bringing it from memory */
    SHARES = 32 /* runs for every thread */
};

struct many_args {
    struct bl_experts_args e; /* first */
    struct bl_panel_weight gate, up, down;
    uint32_t from;                  /* pairs of a batch that are worth panels */
    uint8_t *tiles[2];              /* for gate, for up; those of h are in e.hq */
    uint8_t *vectors;               /* h quantised, on the way to tiles */
    struct bl_cpu_room *room;       /* [threads] */
    struct bl_cpu_counter *counter; /* the step's own */
};

/* ---- units ---- */

/* Units of all batches are numbered in their order; who claims larger numbers walks forward. */
struct walk;
typedef uint32_t units_fn(const struct walk *, const struct bl_experts_batch *);
struct walk {
    const struct many_args *a;
    units_fn *units; /* of a batch */
    const struct bl_experts_batch *at, *end;
    uint32_t before;                      /* units of the batches before */
    const struct bl_panel_kernel *kernel; /* of tiles */
    uint32_t n_panels;                    /* of a matrix */
    uint64_t unit_cost;                   /* of a run of panels */
};

static struct walk walk_of(const struct many_args *a, units_fn *units)
{
    return (struct walk){
        .a = a, .units = units, .at = a->e.batch, .end = a->e.batch + *a->e.n_batches};
}

/* Claims the next unit: *i of w->at. */
static bool next_unit(struct walk *w, uint32_t *i)
{
    uint32_t unit;
    bl_cpu_claim(w->a->counter, UINT32_MAX, &unit);
    for (; w->at != w->end; w->at++) {
        const uint32_t n = w->units(w, w->at);
        if (unit - w->before < n) {
            *i = unit - w->before;
            return true;
        }
        w->before += n;
    }
    return false;
}

static uint32_t tiles(const struct walk *w, const struct bl_experts_batch *b)
{
    return bl_panel_tiles(b->n, bl_panel_for(w->kernel, b->n)->tokens);
}

static uint32_t tiles_of_many(const struct walk *w, const struct bl_experts_batch *b)
{
    return b->n < w->a->from ? 0 : tiles(w, b);
}

static uint32_t runs(const struct walk *w, const struct bl_experts_batch *b)
{
    const uint64_t panels = w->unit_cost / (b->n + PACK);
    return panels >= w->n_panels ? 1
           : panels              ? bl_panel_tiles(w->n_panels, (uint32_t)panels)
                                 : w->n_panels;
}

static struct walk walk_runs(const struct many_args *a, const struct bl_cpu_job *job,
                             uint32_t n_rows)
{
    struct walk w = walk_of(a, runs);
    const uint64_t n_pairs = *a->e.n_pairs;
    w.n_panels = (n_rows + BL_PANEL_ROWS - 1) / BL_PANEL_ROWS;
    w.unit_cost = w.n_panels * (n_pairs + (uint64_t)(w.end - w.at) * PACK) / (SHARES * job->nth);
    return w;
}

/* Rows [first, end) of a batch. */
struct run {
    const struct bl_experts_batch *batch;
    uint32_t first, end;
};

static bool next_run(struct walk *w, uint32_t n_rows, struct run *out)
{
    uint32_t i;
    if (!next_unit(w, &i))
        return false;
    const uint32_t n = runs(w, w->at),
                   first = bl_panel_tile_first(w->n_panels, n, i) * BL_PANEL_ROWS,
                   end = bl_panel_tile_first(w->n_panels, n, i + 1) * BL_PANEL_ROWS;
    *out = (struct run){w->at, first, end < n_rows ? end : n_rows};
    return true;
}

/* ---- tiles ---- */

/* Positions of tile i of a batch. */
static struct bl_cpu_range tile(const struct walk *w, uint32_t i)
{
    const struct bl_experts_batch *b = w->at;
    const uint32_t n = tiles(w, b);
    return (struct bl_cpu_range){b->first + bl_panel_tile_first(b->n, n, i),
                                 b->first + bl_panel_tile_first(b->n, n, i + 1)};
}

static size_t token_bytes(const struct bl_panel_weight *w)
{
    return (size_t)bl_cpu_token_bytes(w->kernel, w->k);
}

static void gather(const struct many_args *a, const struct bl_panel_weight *weight, unsigned m)
{
    struct walk w = walk_of(a, tiles_of_many);
    w.kernel = weight->kernel;
    for (uint32_t i; next_unit(&w, &i);) {
        const struct bl_cpu_range r = tile(&w, i);
        const void *x[BL_TILE_TOKENS];
        for (uint32_t p = r.first; p < r.end; p++)
            x[p - r.first] = a->e.x[m] + a->e.order[p] / a->e.n_used * a->e.x_stride[m];
        bl_panel_arrange(bl_panel_for(weight->kernel, w.at->n), weight->act,
                         a->tiles[m] + w.at->first * token_bytes(weight), w.at->n,
                         r.first - w.at->first, r.end - r.first, weight->k, x);
    }
}

static void gather_gate_run(const void *args, const struct bl_cpu_job *job)
{
    const struct many_args *a = args;
    (void)job;
    gather(a, &a->gate, 0);
}

static void gather_up_run(const void *args, const struct bl_cpu_job *job)
{
    const struct many_args *a = args;
    (void)job;
    gather(a, &a->up, 1);
}

/* h as the dots of down want it, for a batch that is served by them. */
static void place_vectors(const struct many_args *a, bl_quant_fn *quantize, struct bl_cpu_range r)
{
    const uint32_t k = a->down.k;
    for (size_t p = r.first; p < r.end; p++) {
        uint8_t *to = a->e.hq + p * a->e.hq_stride;
        if (quantize)
            quantize(k, (struct bl_act_block *)to, a->e.h + p * k);
        else
            memcpy(to, a->e.h + p * k, k * sizeof(float));
    }
}

static void place_tile(const struct many_args *a, bl_quant_fn *quantize,
                       const struct bl_experts_batch *b, struct bl_cpu_range r)
{
    const uint32_t k = a->down.k;
    const size_t vector_bytes = (size_t)bl_cpu_act_bytes(k);
    const void *x[BL_TILE_TOKENS];
    for (size_t p = r.first; p < r.end; p++) {
        const float *h = a->e.h + p * k;
        x[p - r.first] = h;
        if (quantize) {
            quantize(k, (struct bl_act_block *)(a->vectors + p * vector_bytes), h);
            x[p - r.first] = a->vectors + p * vector_bytes;
        }
    }
    bl_panel_arrange(bl_panel_for(a->down.kernel, b->n), a->down.act,
                     a->e.hq + b->first * a->e.hq_stride, b->n, r.first - b->first, r.end - r.first,
                     k, x);
}

static void place_run(const void *args, const struct bl_cpu_job *job)
{
    const struct many_args *a = args;
    bl_quant_fn *const quantize = bl_cpu_quantizer(job->kernels, a->e.down.kernel->act);
    struct walk w = walk_of(a, tiles);
    w.kernel = a->down.kernel;
    for (uint32_t i; next_unit(&w, &i);) {
        if (w.at->n < a->from)
            place_vectors(a, quantize, tile(&w, i));
        else
            place_tile(a, quantize, w.at, tile(&w, i));
    }
}

/* ---- panels ---- */

/* 32 rows for a batch. */
static void rows_of(const struct bl_panel_weight *weight, const struct bl_experts_matrix *m,
                    const struct bl_panel_sums *sums, void *panel, const struct bl_experts_piece *p,
                    const uint8_t *tiles_at, const uint8_t *next)
{
    const struct bl_panel_tokens x = bl_panel_tokens_of(weight, tiles_at, p->batch->n);
    bl_panel_rows(weight, sums, panel, bl_experts_rows(m, p->batch, 0), p->row, &x, 0, x.n_tiles,
                  next);
}

static void scale_and_bias(const struct bl_experts_matrix *m, const struct bl_experts_piece *p,
                           float (*sum)[BL_PANEL_ROWS], uint32_t n)
{
    for (uint32_t t = 0; t < n && (m->scale || m->bias); t++)
        bl_experts_scale_and_bias(m, p, sum[t]);
}

/* Beyond the last row sums are zeros, and so is what the activation makes of them. */
static void gate_up_panel(const struct many_args *a, const struct bl_cpu_kernels *k,
                          struct bl_cpu_room *room, const struct bl_experts_piece *p,
                          const uint8_t *next)
{
    const struct bl_experts_batch *b = p->batch;
    float(*g)[BL_PANEL_ROWS] = room->sum[0], (*u)[BL_PANEL_ROWS] = room->sum[1];
    rows_of(&a->gate, &a->e.gate, &(struct bl_panel_sums){.at = g}, room->panel, p,
            a->tiles[0] + b->first * token_bytes(&a->gate), bl_experts_rows(&a->e.up, b, p->row));
    rows_of(&a->up, &a->e.up, &(struct bl_panel_sums){.at = u}, room->panel, p,
            a->tiles[1] + b->first * token_bytes(&a->up), next);
    scale_and_bias(&a->e.gate, p, g, b->n);
    scale_and_bias(&a->e.up, p, u, b->n);
    bl_cpu_glu_run(k, &a->e.glu, b->n * BL_PANEL_ROWS, g[0], g[0], u[0]);
    float *h = a->e.h + (size_t)b->first * a->gate.rows + p->row;
    for (uint32_t t = 0; t < b->n; t++, h += a->gate.rows)
        bl_panel_put(h, g[t], p->n);
}

static void gate_up_piece(const struct many_args *a, const struct bl_cpu_kernels *k,
                          struct bl_cpu_room *room, const struct bl_experts_piece *p,
                          const uint8_t *next)
{
    if (p->batch->n < a->from)
        bl_experts_gate_up(&a->e, k, p, next);
    else
        gate_up_panel(a, k, room, p, next);
}

struct down {
    const struct many_args *a;
    const struct bl_experts_piece *piece;
};

static void down_store(const void *arg, float (*sum)[BL_PANEL_ROWS], uint32_t first, uint32_t n)
{
    const struct down *d = arg;
    const struct bl_experts_args *e = &d->a->e;
    const uint32_t *pair = e->order + d->piece->batch->first + first;
    scale_and_bias(&e->down, d->piece, sum, n);
    for (uint32_t t = 0; t < n; t++)
        bl_panel_put(e->part + (size_t)pair[t] * d->a->down.rows + d->piece->row, sum[t],
                     d->piece->n);
}

static void down_piece(const struct many_args *a, const struct bl_cpu_kernels *k,
                       struct bl_cpu_room *room, const struct bl_experts_piece *p,
                       const uint8_t *next)
{
    const struct bl_experts_batch *b = p->batch;
    (void)k;
    if (b->n < a->from) {
        bl_experts_down(&a->e, p, next);
        return;
    }
    rows_of(&a->down, &a->e.down,
            &(struct bl_panel_sums){room->sum[0], down_store, &(struct down){a, p}}, room->panel, p,
            a->e.hq + b->first * a->e.hq_stride, next);
}

typedef void piece_fn(const struct many_args *, const struct bl_cpu_kernels *, struct bl_cpu_room *,
                      const struct bl_experts_piece *, const uint8_t *next);

/* One run is claimed ahead, so that its first rows can be fetched. */
static void pieces_run(const struct many_args *a, const struct bl_cpu_job *job,
                       const struct bl_experts_matrix *m, piece_fn *fn)
{
    struct walk w = walk_runs(a, job, m->rows);
    struct run r, then;
    for (bool more = next_run(&w, m->rows, &r); more; r = then) {
        more = next_run(&w, m->rows, &then);
        const uint32_t most =
            r.batch->n < a->from ? bl_experts_piece_rows(m, r.batch) : BL_PANEL_ROWS;
        for (uint32_t row = r.first, n; row < r.end; row += n) {
            n = r.end - row < most ? r.end - row : most;
            const uint8_t *next = row + n < r.end ? bl_experts_rows(m, r.batch, row + n)
                                  : more          ? bl_experts_rows(m, then.batch, then.first)
                                                  : NULL;
            fn(a, job->kernels, &a->room[job->ith], &(struct bl_experts_piece){r.batch, row, n},
               next);
        }
    }
}

static void gate_up_run(const void *args, const struct bl_cpu_job *job)
{
    const struct many_args *a = args;
    pieces_run(a, job, &a->e.gate, gate_up_piece);
}

static void down_run(const void *args, const struct bl_cpu_job *job)
{
    const struct many_args *a = args;
    pieces_run(a, job, &a->e.down, down_piece);
}

/* ---- build ---- */

/* Which tiles a matrix wants. */
static const struct bl_tile_caps *tiles_for(const struct bl_caps *caps, const struct bl_graph *g,
                                            const struct bl_node *n, unsigned src)
{
    return &caps->tiles[g->vals[bl_node_src(g, n, src)].type];
}

/* Pairs of an expert that are worth panels of all its matrices, 0: none are. */
static uint32_t from_of(const struct bl_caps *caps, const struct bl_graph *g,
                        const struct bl_node *n)
{
    uint32_t most = 0;
    for (unsigned src = BL_EXPERTS_GATE; src <= BL_EXPERTS_DOWN; src++) {
        const uint32_t from = tiles_for(caps, g, n, src)->from;
        if (!from)
            return 0;
        most = from > most ? from : most;
    }
    return most;
}

/* Whether experts get enough pairs on average; which of them do is seen when they are there. */
bool bl_experts_are_many(const struct bl_caps *caps, const struct bl_graph *g,
                         const struct bl_node *n)
{
    const uint64_t n_experts = g->vals[bl_node_src(g, n, BL_EXPERTS_DOWN)].ne[2],
                   from = from_of(caps, g, n);
    return from && bl_experts_pairs(g, n) >= from * n_experts;
}

struct sizes {
    uint64_t x[2], h, vectors, tiles, part;
    uint64_t stride; /* of h as tiles or vectors, per position */
    uint64_t body;   /* tiles of h, then what it is made from; parts take that place */
};

static struct sizes sizes_of(const struct bl_caps *caps, const struct bl_graph *g,
                             const struct bl_node *n)
{
    const struct bl_tile_caps *for_gate = tiles_for(caps, g, n, BL_EXPERTS_GATE),
                              *for_up = tiles_for(caps, g, n, BL_EXPERTS_UP);
    const struct bl_value *down = &g->vals[bl_node_src(g, n, BL_EXPERTS_DOWN)];
    const uint64_t pairs = bl_experts_pairs(g, n), n_ff = down->ne[0],
                   k = g->vals[bl_node_src(g, n, BL_EXPERTS_INPUT)].ne[0];
    const bool is_float = bl_dtypes[down->type].act == BL_ACT_F32;
    const uint64_t vector = is_float ? n_ff * sizeof(float) : bl_cpu_act_bytes(n_ff),
                   token = bl_act_blocks(n_ff) * caps->tiles[down->type].part_bytes,
                   parts = pairs * bl_act_blocks(k);
    struct sizes s;
    s.x[0] = bl_cpu_round(parts * for_gate->part_bytes);
    s.x[1] = for_gate->same_as == for_up->same_as ? 0 : bl_cpu_round(parts * for_up->part_bytes);
    s.h = bl_cpu_round(pairs * n_ff * sizeof(float));
    s.vectors = is_float ? 0 : pairs * vector;
    s.stride = bl_cpu_round(vector > token ? vector : token);
    s.tiles = pairs * s.stride;
    s.part = bl_cpu_round(pairs * down->ne[1] * sizeof(float));
    const uint64_t before = s.x[0] + s.x[1] + s.h + s.vectors;
    s.body = s.tiles + (before > s.part ? before : s.part);
    return s;
}

uint64_t bl_experts_many_bytes(const struct bl_caps *caps, const struct bl_graph *g,
                               const struct bl_node *n)
{
    const struct bl_value *x = &g->vals[bl_node_src(g, n, BL_EXPERTS_INPUT)];
    return bl_cpu_own_bytes(caps) + bl_experts_table_bytes(g, n, BL_CPU_BLOCK) +
           sizes_of(caps, g, n).body +
           bl_cpu_operand_bytes(caps, x, g->vals[bl_node_src(g, n, BL_EXPERTS_GATE)].type) +
           bl_cpu_operand_bytes(caps, x, g->vals[bl_node_src(g, n, BL_EXPERTS_UP)].type);
}

static void place_body(struct many_args *a, const struct sizes *s, uint64_t at)
{
    uint8_t *p = (uint8_t *)(uintptr_t)at;
    a->e.hq = p;
    a->e.hq_stride = (size_t)s->stride;
    p += s->tiles;
    a->e.part = (float *)p;
    a->tiles[0] = p;
    p += s->x[0];
    a->tiles[1] = s->x[1] ? p : a->tiles[0];
    p += s->x[1];
    a->e.h = (float *)p;
    p += s->h;
    a->vectors = p;
}

static struct bl_panel_weight weight_of(const struct bl_cpu_builder *b, unsigned src)
{
    const struct bl_value *w = bl_cpu_src(b, src);
    return bl_panel_weight_of(&b->dev->kernels, w->type, w);
}

static struct many_args args_of(struct bl_cpu_builder *b, const struct sizes *s)
{
    const struct bl_caps *caps = &b->dev->base.caps;
    const uint64_t table_bytes = bl_experts_table_bytes(b->graph, b->node, BL_CPU_BLOCK);
    bl_cpu_reserve(b, bl_experts_many_bytes(caps, b->graph, b->node));
    struct many_args a = {.e = bl_experts_of(b, bl_cpu_take(b, table_bytes), BL_CPU_BLOCK),
                          .gate = weight_of(b, BL_EXPERTS_GATE),
                          .up = weight_of(b, BL_EXPERTS_UP),
                          .down = weight_of(b, BL_EXPERTS_DOWN),
                          .from = from_of(caps, b->graph, b->node)};
    place_body(&a, s, bl_cpu_take(b, s->body));
    a.room = (struct bl_cpu_room *)(uintptr_t)bl_cpu_own(b);
    return a;
}

/* A step whose units are claimed, after the sorting. */
static bool step(struct bl_cpu_builder *b, struct many_args *a, bl_cpu_step_fn *run)
{
    a->counter = bl_cpu_counter_of(b);
    if (!bl_experts_step(b, a, sizeof *a, run, BL_CPU_SPREAD))
        return false;
    bl_experts_reads_table(b, &a->e);
    return true;
}

static void touch(struct bl_cpu_builder *b, const void *at, uint64_t bytes, bool write)
{
    bl_cpu_touch(b, (uintptr_t)at, bytes, 0, write);
}

static bool emit_gather(struct bl_cpu_builder *b, struct many_args *a, const struct sizes *s,
                        const struct bl_cpu_operand *x)
{
    bl_cpu_step_fn *const run[] = {gather_gate_run, gather_up_run};
    for (unsigned m = 0; m < 2; m++) {
        if (!s->x[m])
            continue;
        if (!step(b, a, run[m]))
            return false;
        bl_cpu_reads_operand(b, x[m], bl_cpu_src(b, BL_EXPERTS_INPUT)->ne[1]);
        touch(b, a->tiles[m], s->x[m], true);
    }
    return true;
}

static bool emit_gate_up(struct bl_cpu_builder *b, struct many_args *a, const struct sizes *s,
                         const struct bl_cpu_operand *x)
{
    if (!step(b, a, gate_up_run))
        return false;
    for (unsigned m = 0; m < 2; m++) {
        bl_cpu_reads_operand(b, x[m], bl_cpu_src(b, BL_EXPERTS_INPUT)->ne[1]);
        touch(b, a->tiles[m], s->x[m], false);
    }
    touch(b, a->e.h, s->h, true);
    bl_cpu_touch_own(b, (uintptr_t)a->room, sizeof *a->room);
    return true;
}

void bl_experts_many(struct bl_cpu_builder *b)
{
    const struct sizes s = sizes_of(&b->dev->base.caps, b->graph, b->node);
    struct many_args a = args_of(b, &s);
    const struct bl_cpu_operand x[2] = {bl_cpu_operand(b, BL_EXPERTS_INPUT, a.e.gate.kernel->act),
                                        bl_cpu_operand(b, BL_EXPERTS_INPUT, a.e.up.kernel->act)};
    for (unsigned m = 0; m < 2; m++) {
        a.e.x[m] = (const uint8_t *)(uintptr_t)x[m].addr;
        a.e.x_stride[m] = (size_t)x[m].row_bytes;
    }
    if (!bl_experts_sort(b, &a.e) || !emit_gather(b, &a, &s, x) || !emit_gate_up(b, &a, &s, x) ||
        !step(b, &a, place_run))
        return;
    touch(b, a.e.h, s.h, false);
    touch(b, a.vectors, s.vectors, true);
    touch(b, a.e.hq, s.tiles, true);
    if (!step(b, &a, down_run))
        return;
    touch(b, a.e.hq, s.tiles, false);
    touch(b, a.e.part, s.part, true);
    bl_cpu_touch_own(b, (uintptr_t)a.room, sizeof *a.room);
    bl_experts_sum(b, &a.e);
}

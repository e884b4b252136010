/* SPDX-License-Identifier: MIT */
#include "program.h"

#include "mem.h"

#include <stdlib.h>

enum { VALUE_ALIGN = 64 };

/* ---- tables that grow ---- */

static enum bl_status grow(void **table, uint32_t *cap, uint32_t n, size_t item)
{
    if (n < *cap)
        return BL_OK;
    uint32_t want = *cap ? 2 * *cap : 16;
    void *bigger = realloc(*table, want * item);
    if (!bigger)
        return bl_fail(BL_ENOMEM, "out of memory for the program's steps");
    *table = bigger;
    *cap = want;
    return BL_OK;
}

static enum bl_status add_step(struct bl_program *p, enum bl_step_kind kind, uint16_t device,
                               uint32_t index)
{
    BL_TRY(grow((void **)&p->step, &p->cap_steps, p->n_steps, sizeof *p->step));
    p->step[p->n_steps++] = (struct bl_step){(uint8_t)kind, device, index};
    return BL_OK;
}

static enum bl_status allocate(struct bl_program *p, uint32_t n_devices)
{
    size_t homes = (size_t)p->graph.n_vals * n_devices;

    p->n_devices = n_devices;
    p->node_device = bl_calloc(p->graph.n_nodes + 1, sizeof *p->node_device);
    p->home = bl_calloc(homes, sizeof *p->home);
    p->arena_bytes = bl_calloc(n_devices, sizeof *p->arena_bytes);
    p->scratch_bytes = bl_calloc(n_devices, sizeof *p->scratch_bytes);
    p->used = bl_calloc(n_devices, sizeof *p->used);
    if (!p->node_device || !p->home || !p->arena_bytes || !p->scratch_bytes || !p->used)
        return bl_fail(BL_ENOMEM, "out of memory for a program of %u nodes", p->graph.n_nodes);
    for (size_t i = 0; i < homes; i++)
        p->home[i] = BL_NO_HOME;
    return BL_OK;
}

/* ---- which device runs what ---- */

static enum bl_status assign(struct bl_program *p, const struct bl_plan *plan,
                             const struct bl_machine *machine)
{
    for (uint32_t i = 0; i < p->graph.n_nodes; i++) {
        const struct bl_node *n = &p->graph.nodes[i];
        uint16_t d = bl_plan_device(plan, n->layer, n->part);
        const struct bl_machine_device *md = &machine->device[d];

        if (!md->backend->supports(&md->caps, &p->graph, n))
            return bl_fail(BL_EUNSUPPORTED, "%s cannot run %s of layer %d (%s)", md->id,
                           bl_ops[n->op].name, n->layer, bl_part_name(n->part));
        uint64_t scratch = md->backend->scratch_bytes(&md->caps, &p->graph, n);
        if (scratch > p->scratch_bytes[d])
            p->scratch_bytes[d] = scratch;
        p->node_device[i] = d;
        p->used[d] = true;
    }
    return BL_OK;
}

/* ---- steps: one walk over the nodes, keeping the open range of each device ---- */

struct walk {
    uint32_t *open;      /* [n_devices] range being extended, or UINT32_MAX */
    uint16_t *home_dev;  /* [n_vals] device that computed the value */
    uint32_t *signalled; /* [n_vals] signal after its producer, or UINT32_MAX */
    bool *present;       /* [n_vals * n_devices] */
};

static bool is_activation(const struct bl_graph *g, bl_val v)
{
    return v && g->vals[v].origin == BL_ACTIVATION;
}

/* A signal on the producer's stream after everything it was given so far; the value's range is
 * closed by it. */
static enum bl_status signal_value(struct bl_program *p, struct walk *w, bl_val v)
{
    uint16_t from = w->home_dev[v];

    if (w->signalled[v] != UINT32_MAX)
        return BL_OK;
    BL_TRY(
        grow((void **)&p->signal_device, &p->cap_signals, p->n_signals, sizeof *p->signal_device));
    p->signal_device[p->n_signals] = from;
    w->open[from] = UINT32_MAX;
    w->signalled[v] = p->n_signals;
    return add_step(p, BL_STEP_SIGNAL, from, p->n_signals++);
}

static enum bl_status bring(struct bl_program *p, struct walk *w, bl_val v, uint16_t to)
{
    uint16_t from = w->home_dev[v];

    if (w->present[(size_t)v * p->n_devices + to])
        return BL_OK;
    if (from != 0 && to != 0)
        return bl_fail(BL_EUNSUPPORTED, "no path for a value from device %u to device %u", from,
                       to);
    BL_TRY(signal_value(p, w, v));
    BL_TRY(add_step(p, BL_STEP_WAIT, to, w->signalled[v]));
    BL_TRY(grow((void **)&p->copy, &p->cap_copies, p->n_copies, sizeof *p->copy));
    p->copy[p->n_copies] = (struct bl_copy){v, from, to};
    w->present[(size_t)v * p->n_devices + to] = true;
    w->open[to] = UINT32_MAX;
    return add_step(p, BL_STEP_COPY, to, p->n_copies++);
}

static enum bl_status emit_node(struct bl_program *p, struct walk *w, uint32_t i)
{
    const struct bl_graph *g = &p->graph;
    const struct bl_node *n = &g->nodes[i];
    uint16_t d = p->node_device[i];

    for (unsigned s = 0; s < n->n_src; s++) {
        bl_val v = bl_node_src(g, n, s);
        if (is_activation(g, v))
            BL_TRY(bring(p, w, v, d));
    }
    for (unsigned k = 0; k < n->n_dst; k++) {
        w->home_dev[n->dst[k]] = d;
        w->present[(size_t)n->dst[k] * p->n_devices + d] = true;
    }
    /* A range is consecutive nodes: it goes on only while no other device's node came between. */
    if (w->open[d] != UINT32_MAX && p->range[w->open[d]].first + p->range[w->open[d]].n == i) {
        p->range[w->open[d]].n++;
        return BL_OK;
    }
    BL_TRY(grow((void **)&p->range, &p->cap_ranges, p->n_ranges, sizeof *p->range));
    p->range[p->n_ranges] = (struct bl_range){i, 1, d, NULL};
    w->open[d] = p->n_ranges;
    return add_step(p, BL_STEP_RUN, d, p->n_ranges++);
}

static enum bl_status emit_steps(struct bl_program *p)
{
    size_t n_vals = p->graph.n_vals;
    struct walk w = {
        .open = bl_calloc(p->n_devices, sizeof *w.open),
        .home_dev = bl_calloc(n_vals, sizeof *w.home_dev),
        .signalled = bl_calloc(n_vals, sizeof *w.signalled),
        .present = bl_calloc(n_vals * p->n_devices, sizeof *w.present),
    };
    enum bl_status st = BL_OK;

    if (!w.open || !w.home_dev || !w.signalled || !w.present)
        st = bl_fail(BL_ENOMEM, "out of memory while lowering");
    else {
        memset(w.open, 0xff, p->n_devices * sizeof *w.open);
        memset(w.signalled, 0xff, n_vals * sizeof *w.signalled);
    }
    for (uint32_t i = 0; !st && i < p->graph.n_nodes; i++)
        st = emit_node(p, &w, i);
    free(w.open);
    free(w.home_dev);
    free(w.signalled);
    free(w.present);
    return st;
}

/* ---- homes: first gap in the device's arena that is free while the value lives ---- */

struct block {
    uint64_t off, end;
    uint32_t last; /* node that reads it last */
};
struct arena {
    struct block *live; /* sorted by off */
    uint32_t n, cap;
};

static void release_before(struct arena *a, uint32_t node)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < a->n; i++)
        if (a->live[i].last >= node)
            a->live[kept++] = a->live[i];
    a->n = kept;
}

static enum bl_status place(struct arena *a, uint64_t bytes, uint32_t last, uint64_t *off)
{
    uint64_t at = 0;
    uint32_t i = 0;

    BL_TRY(grow((void **)&a->live, &a->cap, a->n, sizeof *a->live));
    while (i < a->n && a->live[i].off - at < bytes)
        at = a->live[i++].end;
    memmove(&a->live[i + 1], &a->live[i], (a->n - i) * sizeof *a->live);
    a->live[i] = (struct block){at, at + bytes, last};
    a->n++;
    *off = at;
    return BL_OK;
}

/* Last node on each device that reads each value. A value copied to another device lives to the end
 * where it was computed: the copy runs in another stream, and the step's end is the first point all
 * streams share. */
static void last_uses(const struct bl_program *p, uint32_t *last)
{
    const struct bl_graph *g = &p->graph;

    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const struct bl_node *n = &g->nodes[i];
        for (unsigned k = 0; k < n->n_dst; k++)
            last[(size_t)n->dst[k] * p->n_devices + p->node_device[i]] = i;
        for (unsigned s = 0; s < n->n_src; s++)
            last[(size_t)bl_node_src(g, n, s) * p->n_devices + p->node_device[i]] = i;
    }
    for (uint32_t c = 0; c < p->n_copies; c++)
        last[(size_t)p->copy[c].val * p->n_devices + p->copy[c].from] = UINT32_MAX;
    for (uint32_t d = 0; d < p->n_devices; d++)
        last[(size_t)g->result * p->n_devices + d] = UINT32_MAX;
}

static enum bl_status home_value(struct bl_program *p, struct arena *arena, const uint32_t *last,
                                 bl_val v, uint16_t d)
{
    size_t at = (size_t)v * p->n_devices + d;
    uint64_t bytes = bl_align_up(bl_value_bytes(&p->graph.vals[v]), VALUE_ALIGN);

    BL_TRY(place(&arena[d], bytes, last[at], &p->home[at]));
    if (p->home[at] + bytes > p->arena_bytes[d])
        p->arena_bytes[d] = p->home[at] + bytes;
    return BL_OK;
}

static enum bl_status home_node(struct bl_program *p, struct arena *arena, const uint32_t *last,
                                uint32_t i)
{
    const struct bl_graph *g = &p->graph;
    const struct bl_node *n = &g->nodes[i];
    uint16_t d = p->node_device[i];

    release_before(&arena[d], i);
    for (unsigned s = 0; s < n->n_src; s++) { /* arrivals from other devices */
        bl_val v = bl_node_src(g, n, s);
        if (is_activation(g, v) && p->home[(size_t)v * p->n_devices + d] == BL_NO_HOME)
            BL_TRY(home_value(p, arena, last, v, d));
    }
    for (unsigned k = 0; k < n->n_dst; k++)
        if (is_activation(g, n->dst[k]))
            BL_TRY(home_value(p, arena, last, n->dst[k], d));
    return BL_OK;
}

static enum bl_status place_values(struct bl_program *p)
{
    uint32_t *last = bl_calloc((size_t)p->graph.n_vals * p->n_devices, sizeof *last);
    struct arena *arena = bl_calloc(p->n_devices, sizeof *arena);
    enum bl_status st = BL_OK;

    if (!last || !arena)
        st = bl_fail(BL_ENOMEM, "out of memory while placing values");
    else
        last_uses(p, last);
    for (uint32_t i = 0; !st && i < p->graph.n_nodes; i++)
        st = home_node(p, arena, last, i);
    for (uint32_t d = 0; arena && d < p->n_devices; d++)
        free(arena[d].live);
    free(arena);
    free(last);
    return st;
}

/* ---- the whole ---- */

enum bl_status bl_program_lower(struct bl_program *out, const struct bl_model *m,
                                const struct bl_plan *plan, const struct bl_machine *machine,
                                const struct bl_shape *shape)
{
    struct bl_program p = {.shape = *shape};
    enum bl_status st;

    bl_graph_init(&p.graph);
    if ((st = bl_model_build(m, shape, &p.graph)) || (st = allocate(&p, machine->n_devices)) ||
        (st = assign(&p, plan, machine)) || (st = emit_steps(&p)) || (st = place_values(&p))) {
        bl_program_finish(&p);
        return st;
    }
    *out = p;
    return BL_OK;
}

uint64_t bl_program_heap_bytes(const struct bl_program *p)
{
    const struct bl_graph *g = &p->graph;
    uint64_t graph = g->cap_nodes * sizeof *g->nodes + g->cap_vals * sizeof *g->vals +
                     g->cap_srcs * sizeof *g->srcs + g->cap_attrs;
    uint64_t tables = p->cap_steps * sizeof *p->step + p->cap_copies * sizeof *p->copy +
                      p->cap_ranges * sizeof *p->range + p->cap_signals * sizeof *p->signal_device;
    uint64_t homes = (uint64_t)g->n_vals * p->n_devices * sizeof *p->home;
    uint64_t bound = g->n_nodes * (sizeof *p->bound + sizeof *p->node_device) +
                     (g->n_srcs + 2 * (uint64_t)g->n_nodes) * sizeof *p->addr;
    return sizeof *p + graph + tables + homes + bound + p->n_devices * 32;
}

void bl_program_finish(struct bl_program *p)
{
    for (uint32_t r = 0; r < p->n_ranges; r++)
        if (p->range[r].segment)
            p->ops[p->range[r].device]->segment_free(p->range[r].segment);
    bl_graph_finish(&p->graph);
    free(p->node_device);
    free(p->home);
    free(p->arena_bytes);
    free(p->scratch_bytes);
    free(p->used);
    free(p->signal_device);
    free(p->step);
    free(p->copy);
    free(p->range);
    free(p->bound);
    free(p->addr);
    free(p->ops);
    *p = (struct bl_program){0};
}

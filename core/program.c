/* SPDX-License-Identifier: MIT */
#include "program_impl.h"

#include "mem.h"

#include <stdlib.h>

enum { VALUE_ALIGN = 64, NEIGHBOURS = 24 };

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

enum bl_status bl_walk_step(struct bl_program *p, enum bl_step_kind kind, uint16_t device,
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

/* Experts of one layer come in as many parts as devices have some. What the host's would be comes
 * in chunks where they are sent. */
static struct bl_expert_parts parts_of(const struct bl_program *p, const struct bl_plan *plan,
                                       uint32_t layer, uint32_t n_experts)
{
    const struct bl_sending *s = bl_program_sending(p, (int)layer);
    const uint16_t home = bl_plan_device(plan, (int)layer, BL_PART_FFN);
    struct bl_expert_parts parts = {.chunks = s ? (uint16_t)s->cut.n_chunks : 0};

    for (uint16_t d, k = s ? 1 : 0;
         (d = bl_plan_expert_holder(plan, layer, n_experts, k)) != BL_NO_DEVICE; k++, parts.n++)
        if (d == home)
            parts.last = parts.n;
    parts.n = (uint16_t)(parts.n + parts.chunks);
    return parts;
}

static enum bl_status divide(struct bl_expert_parts **out, const struct bl_program *p,
                             const struct bl_model *m, const struct bl_plan *plan)
{
    if (!plan->n_ranges && !bl_plan_has_slots(plan) && !p->n_sendings)
        return BL_OK;
    struct bl_expert_parts *parts = bl_calloc(m->hp.n_layer, sizeof *parts);
    if (!(*out = parts))
        return bl_fail(BL_ENOMEM, "out of memory for the parts of %u layers", m->hp.n_layer);
    for (uint32_t l = 0; l < m->hp.n_layer; l++)
        parts[l] = parts_of(p, plan, l, m->hp.n_expert);
    return BL_OK;
}

static uint16_t device_of(const struct bl_program *p, const struct bl_node *n,
                          const struct bl_plan *plan)
{
    const struct bl_graph *g = &p->graph;

    if (n->op != BL_OP_EXPERTS)
        return bl_plan_device(plan, n->layer, n->part);
    const struct bl_experts_attr *at = bl_node_attr(g, n);
    const struct bl_sending *s = bl_program_sending(p, n->layer);
    if (at->chunks)
        return s->cut.card;
    const uint32_t n_experts = g->vals[bl_node_src(g, n, 5)].ne[2];
    return bl_plan_expert_holder(plan, (uint32_t)n->layer, n_experts, at->part + (s != NULL));
}

static enum bl_status assign(struct bl_program *p, const struct bl_plan *plan,
                             const struct bl_machine *machine)
{
    for (uint32_t i = 0; i < p->graph.n_nodes; i++) {
        const struct bl_node *n = &p->graph.nodes[i];
        uint16_t d = device_of(p, n, plan);
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

/* ---- what stays on the host, so that it can be counted who was chosen ---- */

static bl_val ids_of(const struct bl_graph *g, const struct bl_node *n)
{
    return n->op == BL_OP_EXPERTS ? bl_node_src(g, n, 1) : 0;
}

static enum bl_status keep_routes(struct bl_program *p, const struct bl_plan *plan)
{
    const struct bl_graph *g = &p->graph;

    if (!bl_plan_notes_experts(plan))
        return BL_OK;
    p->route = bl_calloc((size_t)plan->n_layers + 1, sizeof *p->route);
    if (!p->route)
        return bl_fail(BL_ENOMEM, "out of memory for the routes of %u layers", plan->n_layers);
    p->n_layers = plan->n_layers;
    for (uint32_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].op == BL_OP_EXPERTS)
            p->route[g->nodes[i].layer] = ids_of(g, &g->nodes[i]);
    return BL_OK;
}

/* ---- steps: one walk over the nodes, keeping the open range of each device ----
 *
 * Copies between a device and host memory run in the device's stream. From one device to another a
 * value goes in the stream of the latter where a link joins them, else through host memory. Whoever
 * reads what another stream wrote waits for a signal of it. */

static bool is_activation(const struct bl_graph *g, bl_val v)
{
    return v && g->vals[v].origin == BL_ACTIVATION;
}

static void written(const struct bl_program *p, struct bl_walk *w, bl_val v, uint16_t at,
                    uint16_t stream)
{
    size_t i = (size_t)v * p->n_devices + at;
    w->present[i] = true;
    w->writer[i] = stream;
    w->made[i] = p->n_signals;
}

enum bl_status bl_walk_number(struct bl_program *p, uint16_t device, uint32_t *out)
{
    BL_TRY(
        grow((void **)&p->signal_device, &p->cap_signals, p->n_signals, sizeof *p->signal_device));
    p->signal_device[p->n_signals] = device;
    *out = p->n_signals++;
    return BL_OK;
}

/* A signal closes the stream's range: it comes after everything the stream was given so far. */
enum bl_status bl_walk_signal(struct bl_program *p, struct bl_walk *w, uint16_t stream)
{
    uint32_t number;

    BL_TRY(bl_walk_number(p, stream, &number));
    w->open[stream] = UINT32_MAX;
    w->signal[stream] = number + 1;
    return bl_walk_step(p, BL_STEP_SIGNAL, stream, number);
}

/* What the stream does next comes after the value was put where it is. */
static enum bl_status order_after(struct bl_program *p, struct bl_walk *w, bl_val v, uint16_t at,
                                  uint16_t stream)
{
    size_t i = (size_t)v * p->n_devices + at;
    uint16_t writer = w->writer[i];
    uint32_t *waited = &w->waited[(size_t)stream * p->n_devices + writer];

    if (writer == stream || *waited > w->made[i])
        return BL_OK;
    if (w->signal[writer] <= w->made[i])
        BL_TRY(bl_walk_signal(p, w, writer));
    *waited = w->signal[writer];
    w->open[stream] = UINT32_MAX;
    return bl_walk_step(p, BL_STEP_WAIT, stream, *waited - 1);
}

static enum bl_status add_copy(struct bl_program *p, struct bl_walk *w, bl_val v, uint16_t from,
                               uint16_t to)
{
    uint16_t stream = to ? to : from;

    BL_TRY(order_after(p, w, v, from, stream));
    BL_TRY(grow((void **)&p->copy, &p->cap_copies, p->n_copies, sizeof *p->copy));
    p->copy[p->n_copies] = (struct bl_copy){v, from, to};
    w->open[stream] = UINT32_MAX;
    written(p, w, v, to, stream);
    p->used[0] |= !from || !to;
    return bl_walk_step(p, BL_STEP_COPY, stream, p->n_copies++);
}

enum bl_status bl_walk_bring(struct bl_program *p, struct bl_walk *w, bl_val v, uint16_t to)
{
    const bool *present = &w->present[(size_t)v * p->n_devices];
    uint16_t from = w->home[v];

    if (present[to])
        return BL_OK;
    if (bl_machine_direct(w->machine, from, to))
        return add_copy(p, w, v, from, to);
    if (from != 0 && !present[0])
        BL_TRY(add_copy(p, w, v, from, 0));
    return to ? add_copy(p, w, v, 0, to) : BL_OK;
}

static enum bl_status emit_node(struct bl_program *p, struct bl_walk *w, uint32_t i)
{
    const struct bl_graph *g = &p->graph;
    const struct bl_node *n = &g->nodes[i];
    uint16_t d = p->node_device[i];

    BL_TRY(bl_stream_before(p, w, i));
    for (unsigned s = 0; s < n->n_src; s++) {
        bl_val v = bl_node_src(g, n, s);
        if (!is_activation(g, v))
            continue;
        BL_TRY(bl_walk_bring(p, w, v, d));
        BL_TRY(order_after(p, w, v, d, d));
    }
    if (p->route && ids_of(g, n))
        BL_TRY(bl_walk_bring(p, w, ids_of(g, n), 0));
    for (unsigned k = 0; k < n->n_dst; k++) {
        w->home[n->dst[k]] = d;
        written(p, w, n->dst[k], d, d);
    }
    bl_stream_after(p, w, i);
    /* A range is consecutive nodes: it goes on only while no other device's node came between. */
    if (w->open[d] != UINT32_MAX && p->range[w->open[d]].first + p->range[w->open[d]].n == i) {
        p->range[w->open[d]].n++;
        return BL_OK;
    }
    BL_TRY(grow((void **)&p->range, &p->cap_ranges, p->n_ranges, sizeof *p->range));
    p->range[p->n_ranges] = (struct bl_range){i, 1, d, NULL};
    w->open[d] = p->n_ranges;
    return bl_walk_step(p, BL_STEP_RUN, d, p->n_ranges++);
}

static enum bl_status emit_steps(struct bl_program *p, const struct bl_machine *machine)
{
    size_t n_vals = p->graph.n_vals, n_dev = p->n_devices;
    struct bl_walk w = {
        .machine = machine,
        .open = bl_calloc(n_dev, sizeof *w.open),
        .signal = bl_calloc(n_dev, sizeof *w.signal),
        .waited = bl_calloc(n_dev * n_dev, sizeof *w.waited),
        .home = bl_calloc(n_vals, sizeof *w.home),
        .writer = bl_calloc(n_vals * n_dev, sizeof *w.writer),
        .made = bl_calloc(n_vals * n_dev, sizeof *w.made),
        .present = bl_calloc(n_vals * n_dev, sizeof *w.present),
        .pending = bl_calloc(n_dev, sizeof *w.pending),
    };
    enum bl_status st = BL_OK;

    if (!w.open || !w.signal || !w.waited || !w.home || !w.writer || !w.made || !w.present ||
        !w.pending)
        st = bl_fail(BL_ENOMEM, "out of memory while lowering");
    else
        memset(w.open, 0xff, n_dev * sizeof *w.open);
    if (!st)
        st = bl_stream_begin(p);
    for (uint32_t i = 0; !st && i < p->graph.n_nodes; i++)
        st = emit_node(p, &w, i);
    free(w.open);
    free(w.signal);
    free(w.waited);
    free(w.home);
    free(w.writer);
    free(w.made);
    free(w.present);
    free(w.pending);
    return st;
}

/* ---- homes: first gap in the device's arena that is free while the value lives ----
 *
 * Time is counted in nodes. In steps of few tokens, whose values are small, a gap is left alone for
 * a while longer, so that a device can run neighbouring nodes at once. What streams of other
 * devices read in an arena lives until its device has waited for them. They write in the host's
 * only, over nothing that the host may still be using as far as they know. */

struct block {
    uint64_t off, end;
    uint32_t last; /* node of the arena's device after which it is free */
};
struct arena {
    struct block *live; /* sorted by off; those that are free already may overlap others */
    uint32_t n, cap;
};
struct homing {
    struct bl_program *p;
    struct arena *arena; /* [n_devices] */
    uint32_t *last;      /* [n_vals * n_devices] */
    uint32_t *known;     /* [n_devices] nodes before this one are done on the host, as it knows */
    uint32_t *signalled; /* [n_signals] node before which the signal came */
};

static void forget_before(struct arena *a, uint32_t node)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < a->n; i++)
        if (a->live[i].last >= node)
            a->live[kept++] = a->live[i];
    a->n = kept;
}

/* Blocks whose last node comes before `from` may be written over. */
static enum bl_status place(struct arena *a, uint64_t bytes, uint32_t from, uint32_t last,
                            uint64_t *off)
{
    uint64_t at = 0;
    uint32_t i;

    BL_TRY(grow((void **)&a->live, &a->cap, a->n, sizeof *a->live));
    for (i = 0; i < a->n; i++) {
        const struct block *b = &a->live[i];
        if (b->last < from)
            continue;
        if (b->off >= at && b->off - at >= bytes)
            break;
        at = b->end > at ? b->end : at;
    }
    for (i = 0; i < a->n && a->live[i].off < at;)
        i++;
    memmove(&a->live[i + 1], &a->live[i], (a->n - i) * sizeof *a->live);
    a->live[i] = (struct block){at, at + bytes, last};
    a->n++;
    *off = at;
    return BL_OK;
}

/* After the step its reader signals; once the owner has waited for that, its next node comes last
 * but one. A card's stream also copies into its arena, before that node and maybe before the wait:
 * what it reads there is kept for one node more. */
static uint32_t released(const struct bl_program *p, uint32_t step, uint16_t owner, uint16_t reader)
{
    uint32_t signal = UINT32_MAX;
    bool waited = false;

    for (uint32_t s = step + 1; s < p->n_steps; s++) {
        const struct bl_step *t = &p->step[s];
        if (t->kind == BL_STEP_SIGNAL && t->device == reader && signal == UINT32_MAX)
            signal = t->index;
        if (t->kind == BL_STEP_WAIT && t->device == owner && signal != UINT32_MAX &&
            t->index >= signal && p->signal_device[t->index] == reader)
            waited = true;
        if (t->kind == BL_STEP_RUN && t->device == owner && waited)
            return p->range[t->index].first - !owner;
    }
    return UINT32_MAX;
}

static void stretch(uint32_t *last, uint32_t node)
{
    if (*last < node)
        *last = node;
}

static void last_uses(const struct bl_program *p, uint32_t *last)
{
    const struct bl_graph *g = &p->graph;
    uint32_t next = 0;

    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const struct bl_node *n = &g->nodes[i];
        for (unsigned k = 0; k < n->n_dst; k++)
            stretch(&last[(size_t)n->dst[k] * p->n_devices + p->node_device[i]], i);
        for (unsigned s = 0; s < n->n_src; s++)
            stretch(&last[(size_t)bl_node_src(g, n, s) * p->n_devices + p->node_device[i]], i);
    }
    for (uint32_t s = 0; s < p->n_steps; s++) {
        const struct bl_step *t = &p->step[s];
        if (t->kind == BL_STEP_RUN)
            next = p->range[t->index].first + p->range[t->index].n;
        if (t->kind == BL_STEP_PICK)
            stretch(&last[(size_t)p->sending[t->index].ids * p->n_devices], next);
        if (t->kind != BL_STEP_COPY)
            continue;
        const struct bl_copy *c = &p->copy[t->index];
        uint32_t *at = &last[(size_t)c->val * p->n_devices + c->from];
        stretch(at, t->device == c->from ? next : released(p, s, c->from, t->device));
        stretch(&last[(size_t)c->val * p->n_devices + c->to], next);
    }
    for (uint32_t d = 0; d < p->n_devices; d++)
        last[(size_t)g->result * p->n_devices + d] = UINT32_MAX;
    for (uint32_t l = 0; p->route && l < p->n_layers; l++)
        last[(size_t)p->route[l] * p->n_devices] = UINT32_MAX;
}

/* from: see place. */
static enum bl_status home_value(const struct homing *h, bl_val v, uint16_t d, uint32_t from)
{
    struct bl_program *p = h->p;
    size_t at = (size_t)v * p->n_devices + d;
    uint64_t bytes = bl_align_up(bl_value_bytes(&p->graph.vals[v]), VALUE_ALIGN);

    BL_TRY(place(&h->arena[d], bytes, from, h->last[at], &p->home[at]));
    if (p->home[at] + bytes > p->arena_bytes[d])
        p->arena_bytes[d] = p->home[at] + bytes;
    return BL_OK;
}

static enum bl_status home_range(const struct homing *h, const struct bl_range *r)
{
    const struct bl_graph *g = &h->p->graph;
    const uint32_t apart = r->device && h->p->shape.n_tok <= BL_FEW_TOKENS ? NEIGHBOURS : 0;

    for (uint32_t i = r->first; i < r->first + r->n; i++) {
        const struct bl_node *n = &g->nodes[i];
        uint32_t still = i;
        for (uint32_t d = 1; r->device == 0 && d < h->p->n_devices; d++)
            if (h->p->used[d] && h->known[d] < still)
                still = h->known[d];
        still -= still < apart ? still : apart;
        forget_before(&h->arena[r->device], still);
        for (unsigned k = 0; k < n->n_dst; k++)
            if (is_activation(g, n->dst[k]))
                BL_TRY(home_value(h, n->dst[k], r->device, i < apart ? 0 : i - apart));
    }
    return BL_OK;
}

static enum bl_status home_step(struct homing *h, const struct bl_step *s, uint32_t *next)
{
    const struct bl_program *p = h->p;
    const struct bl_copy *c;

    switch (s->kind) {
    case BL_STEP_RUN:
        *next = p->range[s->index].first + p->range[s->index].n;
        return home_range(h, &p->range[s->index]);
    case BL_STEP_SIGNAL:
        h->signalled[s->index] = *next;
        return BL_OK;
    case BL_STEP_WAIT:
        if (p->signal_device[s->index] == 0)
            h->known[s->device] = h->signalled[s->index];
        return BL_OK;
    case BL_STEP_COPY:
        c = &p->copy[s->index];
        return home_value(h, c->val, c->to, s->device == c->to ? *next : h->known[s->device]);
    default:
        return BL_OK;
    }
}

static enum bl_status place_values(struct bl_program *p)
{
    struct homing h = {
        .p = p,
        .arena = bl_calloc(p->n_devices, sizeof *h.arena),
        .last = bl_calloc((size_t)p->graph.n_vals * p->n_devices, sizeof *h.last),
        .known = bl_calloc(p->n_devices, sizeof *h.known),
        .signalled = bl_calloc(p->n_signals + 1, sizeof *h.signalled),
    };
    enum bl_status st = BL_OK;
    uint32_t next = 0;

    if (!h.arena || !h.last || !h.known || !h.signalled)
        st = bl_fail(BL_ENOMEM, "out of memory while placing values");
    else
        last_uses(p, h.last);
    for (uint32_t i = 0; !st && i < p->n_steps; i++)
        st = home_step(&h, &p->step[i], &next);
    for (uint32_t d = 0; h.arena && d < p->n_devices; d++)
        free(h.arena[d].live);
    free(h.arena);
    free(h.last);
    free(h.known);
    free(h.signalled);
    return st;
}

/* ---- the whole ---- */

enum bl_status bl_program_lower(struct bl_program *out, const struct bl_model *m,
                                const struct bl_plan *plan, const struct bl_machine *machine,
                                const struct bl_shape *shape)
{
    struct bl_program p = {.shape = *shape};
    struct bl_expert_parts *parts = NULL;
    enum bl_status st;

    bl_graph_init(&p.graph);
    st = bl_stream_plan(&p, m, plan, machine);
    if (!st)
        st = divide(&parts, &p, m, plan);
    p.graph.parts = parts;
    if (!st)
        st = bl_model_build(m, shape, &p.graph);
    p.graph.parts = NULL;
    free(parts);
    if (st || (st = allocate(&p, machine->n_devices)) || (st = assign(&p, plan, machine)) ||
        (st = keep_routes(&p, plan)) || (st = emit_steps(&p, machine)) || (st = place_values(&p))) {
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
    uint64_t sent = p->n_sendings * sizeof *p->sending + p->n_chunks * sizeof *p->chunk;
    uint64_t homes =
        (uint64_t)g->n_vals * p->n_devices * sizeof *p->home + p->n_layers * sizeof *p->route;
    uint64_t bound = g->n_nodes * (sizeof *p->bound + sizeof *p->node_device) +
                     (g->n_srcs + 2 * (uint64_t)g->n_nodes) * sizeof *p->addr;
    return sizeof *p + graph + tables + sent + homes + bound + p->n_devices * 32;
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
    free(p->route);
    free(p->signal_device);
    free(p->sending);
    free(p->chunk);
    free(p->step);
    free(p->copy);
    free(p->range);
    free(p->bound);
    free(p->addr);
    free(p->ops);
    *p = (struct bl_program){0};
}

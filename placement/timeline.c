/* SPDX-License-Identifier: MIT */
#include "timeline.h"

#include "expert_share.h"
#include "machine_file.h"
#include "mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct sim {
    const struct bl_program *prog;
    const struct bl_model *model;
    const struct bl_plan *plan;
    const struct bl_machine *machine;
    const struct bl_timeline_options *opt;
    struct bl_timeline *out;
    struct bl_pricing *price; /* [n_devices] */
    double *ready;            /* [n_devices] when the stream has done what it was given */
    double *signal;           /* [n_signals] */
    struct bl_wires wires;
    double *share;  /* [n_layers][n_devices] of a layer's experts */
    uint16_t *home; /* [n_layers] device of the layer's attention */
};

/* ---- copies ---- */

static void add_event(struct sim *s, const struct bl_event *e)
{
    struct bl_timeline *t = s->out;
    struct bl_event *last = t->n_events ? &t->event[t->n_events - 1] : NULL;

    if (!t->event || e->end_ns <= e->begin_ns)
        return;
    /* nodes of one part of a layer are one event */
    if (last && e->kind != BL_EVENT_COPY && last->kind == e->kind && last->index == e->index &&
        last->device == e->device && last->layer == e->layer && last->part == e->part) {
        last->end_ns = e->end_ns;
        last->bytes += e->bytes;
        last->macs += e->macs;
    } else
        t->event[t->n_events++] = *e;
}

static void copy(struct sim *s, const struct bl_step *step)
{
    const struct bl_copy *c = &s->prog->copy[step->index];
    const double bytes = (double)bl_value_bytes(&s->prog->graph.vals[c->val]);
    const struct bl_copy_time at =
        bl_wires_copy(&s->wires, s->price, c->from, c->to, bytes, s->ready[step->device]);

    s->ready[step->device] = at.end_ns;
    s->out->device[step->device].copy_ns += at.end_ns - at.begin_ns;
    add_event(s, &(struct bl_event){.begin_ns = at.begin_ns,
                                    .end_ns = at.end_ns,
                                    .index = step->index,
                                    .device = step->device,
                                    .kind = BL_EVENT_COPY,
                                    .from = c->from,
                                    .to = c->to,
                                    .bytes = bytes,
                                    .layer = -1});
}

/* ---- ranges ---- */

static bool can_run(const struct sim *s, const struct bl_node *n, uint16_t d)
{
    const struct bl_machine_device *md = &s->machine->device[d];
    return md->backend->supports(&md->caps, &s->prog->graph, n);
}

/* Experts of the host may be computed by the card of their layer, to which their weights are sent.
 */
static double stream_or_run(struct sim *s, const struct bl_node *n, const struct bl_work *w,
                            double ns, bool *streamed)
{
    const uint16_t card = n->layer >= 0 ? s->home[n->layer] : 0;
    const struct bl_link *l = bl_wires_link(s->machine, 0, card);

    if (n->op != BL_OP_EXPERTS || !s->opt->stream_from_tok || w->n_tok < s->opt->stream_from_tok ||
        !card || !l || !can_run(s, n, card))
        return ns;
    *streamed = true;
    const bool measured = (l->a == 0 ? l->ab_measured_bps : l->ba_measured_bps) > 0;
    return bl_stream_ns(&s->price[card], w, bl_link_bps(l, 0), measured);
}

/* Of the work with its layer's experts that a node's device has. */
static double share_of(const struct sim *s, const struct bl_node *n, uint16_t d)
{
    return n->op == BL_OP_EXPERTS ? s->share[(size_t)n->layer * s->machine->n_devices + d] : 1;
}

static double node_ns(struct sim *s, uint32_t i, struct bl_work *w, bool *streamed)
{
    const struct bl_graph *g = &s->prog->graph;
    const struct bl_node *n = &g->nodes[i];
    const uint16_t d = s->prog->node_device[i];
    const struct bl_node_step step = {s->model, s->prog->shape.n_tok, s->opt->depth_tokens,
                                      share_of(s, n, d)};
    const double ns = bl_node_ns(&s->price[d], g, n, &step, w);

    if (n->part == BL_PART_ATTN && n->layer >= 0 && s->home[n->layer] == BL_NO_DEVICE)
        s->home[n->layer] = d;
    return d == 0 ? stream_or_run(s, n, w, ns, streamed) : ns;
}

static void run(struct sim *s, const struct bl_step *step)
{
    const struct bl_range *r = &s->prog->range[step->index];
    struct bl_device_time *t = &s->out->device[step->device];
    const double begin = s->ready[step->device];
    double ns = s->price[step->device].device->launch_ns, sent = 0;

    for (uint32_t i = r->first; i < r->first + r->n; i++) {
        const struct bl_node *n = &s->prog->graph.nodes[i];
        const double before = i > r->first ? ns : 0; /* the first bears the launch */
        bool streamed = false;
        struct bl_work w;
        const double own = node_ns(s, i, &w, &streamed);
        ns += own;
        sent += streamed ? own : 0;
        add_event(s, &(struct bl_event){.begin_ns = begin + before,
                                        .end_ns = begin + ns,
                                        .index = step->index,
                                        .device = step->device,
                                        .kind = streamed ? BL_EVENT_STREAM : BL_EVENT_RUN,
                                        .part = n->part,
                                        .from = step->device,
                                        .to = streamed ? s->home[n->layer] : step->device,
                                        .bytes = w.weight_bytes + w.state_bytes,
                                        .macs = w.macs + w.attend_macs,
                                        .layer = n->layer});
    }
    s->ready[step->device] = begin + ns;
    t->run_ns += ns;
    t->stream_ns += sent;
}

/* A card that waits for another card waits for bytes that went through the host: the crossing is
 * between the two cards. */
static void wait(struct sim *s, const struct bl_step *step)
{
    const uint16_t from = s->prog->signal_device[step->index];
    const double due =
        s->signal[step->index] + bl_crossing_ns(s->price, s->machine, from, step->device);

    if (due <= s->ready[step->device])
        return;
    s->out->device[step->device].wait_ns += due - s->ready[step->device];
    s->ready[step->device] = due;
}

static void replay(struct sim *s)
{
    for (uint32_t i = 0; i < s->prog->n_steps; i++) {
        const struct bl_step *step = &s->prog->step[i];
        if (step->kind == BL_STEP_RUN)
            run(s, step);
        else if (step->kind == BL_STEP_COPY)
            copy(s, step);
        else if (step->kind == BL_STEP_SIGNAL)
            s->signal[step->index] = s->ready[step->device];
        else
            wait(s, step);
    }
}

/* Logits and the news that all is done reach the host. */
static void end(struct sim *s)
{
    for (uint16_t d = 0; d < s->machine->n_devices; d++)
        if (s->ready[d] > 0)
            s->out->ns = fmax(s->out->ns, s->ready[d] + bl_crossing_ns(s->price, s->machine, d, 0));
}

/* ---- the whole ---- */

static enum bl_status prepare(struct sim *s, const struct bl_plan *plan,
                              const struct bl_cost_table *table)
{
    const struct bl_machine *m = s->machine;
    const struct bl_graph *g = &s->prog->graph;

    s->price = bl_calloc(m->n_devices, sizeof *s->price);
    s->ready = bl_calloc(m->n_devices, sizeof *s->ready);
    s->signal = bl_calloc(s->prog->n_signals + 1, sizeof *s->signal);
    s->home = bl_calloc(s->model->hp.n_layer + 1, sizeof *s->home);
    s->share = bl_calloc((size_t)s->model->hp.n_layer * m->n_devices + 1, sizeof *s->share);
    s->out->device = bl_calloc(m->n_devices, sizeof *s->out->device);
    if (s->opt->keep_events)
        s->out->event = bl_calloc((size_t)s->prog->n_steps + g->n_nodes + 1, sizeof *s->out->event);
    if (!s->price || !s->ready || !s->signal || !s->home || !s->share || !s->out->device ||
        (s->opt->keep_events && !s->out->event))
        return bl_fail(BL_ENOMEM, "out of memory while predicting a plan's time");
    s->out->n_devices = m->n_devices;
    bl_expert_shares(plan, s->model, m->n_devices, s->share);
    memset(s->home, 0xff, s->model->hp.n_layer * sizeof *s->home);
    for (uint32_t d = 0; d < m->n_devices; d++)
        bl_pricing_init(&s->price[d], &m->device[d], s->model, plan, table);
    return bl_wires_init(&s->wires, m);
}

enum bl_status bl_timeline_make(struct bl_timeline *out, const struct bl_program *prog,
                                const struct bl_model *model, const struct bl_plan *plan,
                                const struct bl_machine *machine,
                                const struct bl_timeline_options *opt)
{
    struct bl_cost_table committed;
    struct bl_timeline t = {0};
    struct sim s = {
        .prog = prog, .model = model, .plan = plan, .machine = machine, .opt = opt, .out = &t};

    bl_cost_table_init(&committed);
    enum bl_status st = prepare(&s, plan, opt->table ? opt->table : &committed);
    if (!st)
        replay(&s);
    if (!st)
        end(&s);
    free(s.price);
    free(s.ready);
    free(s.signal);
    bl_wires_finish(&s.wires);
    free(s.home);
    free(s.share);
    if (st)
        bl_timeline_finish(&t);
    else
        *out = t;
    return st;
}

void bl_timeline_finish(struct bl_timeline *t)
{
    free(t->device);
    free(t->event);
    *t = (struct bl_timeline){0};
}

enum bl_status bl_timeline_predict(struct bl_timeline *out, const struct bl_model *model,
                                   const struct bl_plan *plan, const struct bl_machine *machine,
                                   uint32_t n_tok, const struct bl_timeline_options *opt)
{
    const struct bl_shape shape = bl_plan_bucket(plan, n_tok, 1);
    struct bl_program prog = {0};

    BL_TRY(bl_program_lower(&prog, model, plan, machine, &shape));
    enum bl_status st = bl_timeline_make(out, &prog, model, plan, machine, opt);
    bl_program_finish(&prog);
    return st;
}

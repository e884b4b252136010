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
    double *ready; /* [2 * n_devices] when the stream has done what it was given; then those beside
                      them */
    double *staged, *sent; /* [n_chunks] when it is there; 0: not yet sent for */
    double *picked;        /* [n_sendings] when it is known who was chosen; 0: not yet */
    double *signal;        /* [n_signals] */
    struct bl_wires wires;
    double *share; /* [n_layers][n_devices] of a layer's experts */
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

/* Of the work with its layer's experts: the device's, or those of the host that are sent to it. */
static double share_of(const struct sim *s, const struct bl_node *n, uint16_t d)
{
    if (n->op != BL_OP_EXPERTS)
        return 1;
    const struct bl_experts_attr *at = bl_node_attr(&s->prog->graph, n);
    return s->share[(size_t)n->layer * s->machine->n_devices + (at->chunks ? 0 : d)];
}

static double node_ns(struct sim *s, uint32_t i, struct bl_work *w)
{
    const struct bl_graph *g = &s->prog->graph;
    const struct bl_node *n = &g->nodes[i];
    const uint16_t d = s->prog->node_device[i];
    const struct bl_sending *sending = bl_program_sending(s->prog, n->layer);
    const struct bl_node_step step = {s->model, s->prog->shape.n_tok, s->opt->depth_tokens,
                                      share_of(s, n, d), sending ? &sending->cut : NULL};
    return bl_node_ns(&s->price[d], g, n, &step, w);
}

static void run(struct sim *s, const struct bl_step *step)
{
    const struct bl_range *r = &s->prog->range[step->index];
    struct bl_device_time *t = &s->out->device[step->device];
    const double begin = s->ready[step->device];
    double ns = s->price[step->device].device->launch_ns;

    for (uint32_t i = r->first; i < r->first + r->n; i++) {
        const struct bl_node *n = &s->prog->graph.nodes[i];
        const double before = i > r->first ? ns : 0; /* the first bears the launch */
        struct bl_work w;
        ns += node_ns(s, i, &w);
        add_event(s, &(struct bl_event){.begin_ns = begin + before,
                                        .end_ns = begin + ns,
                                        .index = step->index,
                                        .device = step->device,
                                        .kind = BL_EVENT_RUN,
                                        .part = n->part,
                                        .from = step->device,
                                        .to = step->device,
                                        .bytes = w.weight_bytes + w.state_bytes,
                                        .macs = w.macs + w.attend_macs,
                                        .layer = n->layer});
    }
    s->ready[step->device] = begin + ns;
    t->run_ns += ns;
}

/* ---- experts that are sent ---- */

static bool is_sure(const struct sim *s, const struct bl_sending *of, const struct bl_node *n)
{
    const struct bl_experts_attr *at = bl_node_attr(&s->prog->graph, n);
    return bl_chunk_sure(&of->cut, at->n_used, s->prog->shape.n_tok);
}

static void note_chunk(struct sim *s, const struct bl_step *step, double begin, double end,
                       double bytes)
{
    const struct bl_sending *of = &s->prog->sending[s->prog->chunk[step->index].sending];
    const bool stages = step->kind == BL_STEP_STAGE;

    s->out->device[step->device].sent_ns += end - begin;
    add_event(s, &(struct bl_event){.begin_ns = begin,
                                    .end_ns = end,
                                    .index = step->index,
                                    .device = step->device,
                                    .kind = stages ? BL_EVENT_STAGE : BL_EVENT_STREAM,
                                    .part = BL_PART_EXPERTS,
                                    .to = stages ? 0 : of->cut.card,
                                    .bytes = bytes,
                                    .layer = (int16_t)of->layer});
}

static double stage(struct sim *s, const struct bl_step *step, double begin, double bytes)
{
    const struct bl_chunk *c = &s->prog->chunk[step->index];

    if (c->before != BL_NO_CHUNK)
        begin = fmax(begin, s->sent[c->before]);
    const double end = begin + bl_host_copy_ns(&s->machine->device[0], bytes);
    note_chunk(s, step, begin, end, bytes);
    return end;
}

static double send(struct sim *s, const struct bl_step *step, double begin, double bytes)
{
    const struct bl_chunk *c = &s->prog->chunk[step->index];
    const struct bl_sending *of = &s->prog->sending[c->sending];
    const uint32_t n = bl_chunk_copies(&of->cut, of->staged);
    struct bl_copy_time at;

    if (c->before != BL_NO_CHUNK)
        begin = fmax(begin, s->signal[s->prog->chunk[c->before].freed]);
    if (of->staged)
        begin = fmax(begin, s->staged[step->index]);
    double first = 0, end = begin;
    for (uint32_t i = 0; i < n; i++, end = at.end_ns) {
        at = bl_wires_copy(&s->wires, s->price, 0, of->cut.card, bytes / n, end);
        first = i ? first : at.begin_ns;
    }
    note_chunk(s, step, first, end, bytes);
    return end;
}

/* Of the two times that a step may come, the first counts if experts are sure. */
static void beside(struct sim *s, const struct bl_step *step)
{
    const struct bl_chunk *c = &s->prog->chunk[step->index];
    const struct bl_sending *of = &s->prog->sending[c->sending];
    const struct bl_node *n = &s->prog->graph.nodes[c->node];
    const bool stages = step->kind == BL_STEP_STAGE;
    double *done = stages ? &s->staged[step->index] : &s->sent[step->index];
    double *ready = &s->ready[s->machine->n_devices + step->device];

    if (*done > 0 || (!(s->picked[c->sending] > 0) && !is_sure(s, of, n)))
        return;
    const double begin = fmax(*ready, s->picked[c->sending]),
                 bytes = bl_chunk_bytes(&of->cut, &s->prog->graph, n, s->prog->shape.n_tok);
    *ready = *done = stages ? stage(s, step, begin, bytes) : send(s, step, begin, bytes);
    if (!stages)
        s->signal[c->sent] = *done;
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
        else if (step->kind == BL_STEP_PICK)
            s->picked[step->index] = s->signal[s->prog->sending[step->index].signal] +
                                     bl_crossing_ns(s->price, s->machine, step->device, 0);
        else if (bl_step_is_beside(step))
            beside(s, step);
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
    s->ready = bl_calloc(2 * (size_t)m->n_devices, sizeof *s->ready);
    s->signal = bl_calloc(s->prog->n_signals + 1, sizeof *s->signal);
    s->staged = bl_calloc((size_t)s->prog->n_chunks + 1, sizeof *s->staged);
    s->sent = bl_calloc((size_t)s->prog->n_chunks + 1, sizeof *s->sent);
    s->picked = bl_calloc((size_t)s->prog->n_sendings + 1, sizeof *s->picked);
    s->share = bl_calloc((size_t)s->model->hp.n_layer * m->n_devices + 1, sizeof *s->share);
    s->out->device = bl_calloc(m->n_devices, sizeof *s->out->device);
    if (s->opt->keep_events)
        s->out->event = bl_calloc((size_t)s->prog->n_steps + g->n_nodes + 1, sizeof *s->out->event);
    if (!s->price || !s->ready || !s->signal || !s->staged || !s->sent || !s->picked || !s->share ||
        !s->out->device || (s->opt->keep_events && !s->out->event))
        return bl_fail(BL_ENOMEM, "out of memory while predicting a plan's time");
    s->out->n_devices = m->n_devices;
    bl_expert_shares(plan, s->model, m->n_devices, s->share);
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
    free(s.staged);
    free(s.sent);
    free(s.picked);
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
    struct bl_plan with = *plan;
    struct bl_program prog = {0};

    with.stream_from = opt->stream_from_tok ? opt->stream_from_tok : plan->stream_from;
    BL_TRY(bl_program_lower(&prog, model, &with, machine, &shape));
    enum bl_status st = bl_timeline_make(out, &prog, model, &with, machine, opt);
    bl_program_finish(&prog);
    return st;
}

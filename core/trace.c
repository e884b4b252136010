/* SPDX-License-Identifier: MIT */
/* What streams wrote down, put beside what they were given. */
#include "trace.h"

#include "mem.h"
#include "stage_ring.h"

#include <math.h>
#include <stdlib.h>

enum { MOST_EVENTS = 1 << 20 };

/* ---- before a step ---- */

/* Of a device's stream or of the one beside it, at most. */
static uint32_t count_commands(const struct bl_program *p, uint16_t d, bool beside)
{
    uint32_t n = 3; /* params, result, end */

    for (uint32_t i = 0; i < p->n_steps; i++) {
        const struct bl_step *s = &p->step[i];
        if (s->device != d || bl_step_is_beside(s) != beside)
            continue;
        const struct bl_chunking *c = beside ? &p->sending[p->chunk[s->index].sending].cut : NULL;
        n += c ? 4 + c->n_each * c->n_tensors : 1; /* waits, tables, pieces, signal */
    }
    return n;
}

static enum bl_status lend(const struct bl_program *p, const struct bl_place *place,
                           struct bl_stream *stream, uint16_t d, struct bl_lapse_log *log)
{
    if (!stream || !place->dev->ops->trace)
        return BL_OK;
    const uint32_t n = count_commands(p, d, stream == place->beside);
    if (n > log->cap) {
        struct bl_lapse *bigger = realloc(log->lapse, n * sizeof *bigger);
        if (!bigger)
            return bl_fail(BL_ENOMEM, "out of memory for a trace of %u commands", n);
        log->lapse = bigger;
        log->cap = n;
    }
    atomic_store(&log->n, 0);
    place->dev->ops->trace(stream, log);
    return BL_OK;
}

static struct bl_stream *beside(const struct bl_program *p, const struct bl_place *place)
{
    return p->n_sendings ? place->beside : NULL;
}

static void take_back(const struct bl_program *p, struct bl_place *place)
{
    for (uint16_t d = 0; d < p->n_devices; d++) {
        if (!p->used[d] || !place[d].dev->ops->trace)
            continue;
        place[d].dev->ops->trace(place[d].stream, NULL);
        if (beside(p, &place[d]))
            place[d].dev->ops->trace(place[d].beside, NULL);
    }
}

enum bl_status bl_trace_begin(struct bl_trace *t, const struct bl_program *p,
                              struct bl_place *place)
{
    enum bl_status st = BL_OK;

    if (!t->log && !(t->log = bl_calloc(2 * (size_t)p->n_devices, sizeof *t->log)))
        return bl_fail(BL_ENOMEM, "out of memory for a trace of %u devices", p->n_devices);
    if (t->lent)
        return bl_fail(BL_EDEVICE, "a step failed while it was traced; open the model anew");
    t->n_devices = p->n_devices;
    t->lent = true;
    for (uint16_t d = 0; !st && d < p->n_devices; d++) {
        if (!p->used[d])
            continue;
        st = lend(p, &place[d], place[d].stream, d, &t->log[d]);
        if (!st)
            st = lend(p, &place[d], beside(p, &place[d]), d, &t->log[p->n_devices + d]);
    }
    if (st) {
        take_back(p, place);
        t->lent = false;
    }
    return st;
}

/* ---- after it ---- */

enum bl_status bl_trace_note(struct bl_trace *t, const struct bl_event *e)
{
    if (t->n == MOST_EVENTS) {
        t->n_dropped++;
        return BL_OK;
    }
    if (t->n == t->cap) {
        const uint32_t cap = t->cap ? 2 * t->cap : 256;
        struct bl_event *bigger = realloc(t->event, cap * sizeof *bigger);
        if (!bigger)
            return bl_fail(BL_ENOMEM, "out of memory for a trace of %u events", cap);
        t->event = bigger;
        t->cap = cap;
    }
    t->event[t->n++] = *e;
    return BL_OK;
}

static void describe_range(const struct bl_program *p, const struct bl_range *r, struct bl_event *e)
{
    const struct bl_node *n = &p->graph.nodes[r->first];

    e->part = n->part;
    e->layer = e->last_layer = n->layer;
    for (uint32_t i = 1; i < r->n; i++) {
        if (n[i].part != e->part)
            e->part = (uint8_t)BL_N_PARTS;
        if (n[i].layer >= 0 && (e->layer < 0 || n[i].layer < e->layer))
            e->layer = n[i].layer;
        if (n[i].layer > e->last_layer)
            e->last_layer = n[i].layer;
    }
}

/* False: nothing that is shown. */
static bool describe(const struct bl_program *p, const struct bl_step *s, struct bl_event *e)
{
    *e = (struct bl_event){.device = s->device,
                           .from = s->device,
                           .to = s->device,
                           .index = s->index,
                           .layer = -1,
                           .last_layer = -1};
    switch (s->kind) {
    case BL_STEP_RUN:
        e->kind = BL_EVENT_RUN;
        describe_range(p, &p->range[s->index], e);
        return true;
    case BL_STEP_COPY:
        e->kind = BL_EVENT_COPY;
        e->from = p->copy[s->index].from;
        e->to = p->copy[s->index].to;
        e->bytes = (double)bl_value_bytes(&p->graph.vals[p->copy[s->index].val]);
        return true;
    case BL_STEP_WAIT:
        e->kind = BL_EVENT_WAIT;
        e->from = p->signal_device[s->index];
        return true;
    default:
        return false;
    }
}

struct reading {
    struct bl_trace *trace;
    uint32_t *next;          /* [2 * n_devices] lapse that is read next */
    double begin_ns, end_ns; /* of the step */
};

/* The next command of a device's stream, or of the one beside it; false: it wrote down no more. */
static bool read_lapse(struct reading *r, uint32_t stream, struct bl_event *e)
{
    const struct bl_lapse_log *log = &r->trace->log[stream];

    if (r->next[stream] >= atomic_load(&log->n))
        return false;
    const struct bl_lapse *l = &log->lapse[r->next[stream]++];
    e->begin_ns = (double)l->begin_ns;
    e->end_ns = (double)l->end_ns;
    e->host_bound = l->host_bound;
    r->begin_ns = fmin(r->begin_ns, e->begin_ns);
    r->end_ns = fmax(r->end_ns, e->end_ns);
    return true;
}

static enum bl_status note(struct reading *r, struct bl_event *e, bool shown)
{
    if (!read_lapse(r, e->device, e) || !shown || e->end_ns <= e->begin_ns)
        return BL_OK;
    return bl_trace_note(r->trace, e);
}

static enum bl_status note_extra(struct reading *r, uint16_t d, bool to_device, uint64_t bytes)
{
    struct bl_event e = {.kind = BL_EVENT_COPY,
                         .device = d,
                         .from = to_device ? 0 : d,
                         .to = to_device ? d : 0,
                         .index = UINT32_MAX,
                         .layer = -1,
                         .last_layer = -1,
                         .bytes = (double)bytes};
    return note(r, &e, true);
}

static enum bl_status note_result(struct reading *r, const struct bl_program *p, uint64_t bytes)
{
    for (uint16_t d = 0; bytes && d < p->n_devices; d++)
        if (p->home[(size_t)p->graph.result * p->n_devices + d] != BL_NO_HOME)
            return note_extra(r, d, false, bytes);
    return BL_OK;
}

/* From the first copy to the last; what came before them was waiting, behind them is a signal. */
static enum bl_status note_chunk(struct reading *r, const struct bl_program *p,
                                 const struct bl_trace_step *step, uint32_t i)
{
    const struct bl_step *s = &p->step[i];
    const struct bl_chunk *c = &p->chunk[s->index];
    const struct bl_sending *of = &p->sending[c->sending];
    const struct bl_cargo *cargo = &step->stage->cargo[s->index];
    const bool stages = s->kind == BL_STEP_STAGE;
    const uint32_t n = step->n_commands[i];
    const uint32_t n_copies = stages ? cargo->n_stage_copies : cargo->n_copies;
    const uint32_t first = n - n_copies - 1, end = n - 1;
    struct bl_event e = {.kind = stages ? BL_EVENT_STAGE : BL_EVENT_STREAM,
                         .begin_ns = INFINITY,
                         .index = s->index,
                         .device = s->device,
                         .part = BL_PART_EXPERTS,
                         .layer = (int16_t)of->layer,
                         .last_layer = (int16_t)of->layer,
                         .to = of->cut.card,
                         .bytes = (double)cargo->bytes};
    e.to = stages ? 0 : e.to;
    for (uint32_t k = 0; k < n; k++) {
        struct bl_event one = {0};
        if (!read_lapse(r, r->trace->n_devices + s->device, &one))
            return BL_OK;
        if (k < first || k >= end)
            continue;
        e.begin_ns = fmin(e.begin_ns, one.begin_ns);
        e.end_ns = fmax(e.end_ns, one.end_ns);
        e.host_bound |= one.host_bound;
    }
    return n && e.end_ns > e.begin_ns ? bl_trace_note(r->trace, &e) : BL_OK;
}

static enum bl_status note_step(struct reading *r, const struct bl_program *p,
                                const struct bl_trace_step *step, uint32_t i)
{
    struct bl_event e;

    if (bl_step_is_beside(&p->step[i]))
        return note_chunk(r, p, step, i);
    const bool shown = describe(p, &p->step[i], &e);
    return step->n_commands[i] ? note(r, &e, shown) : BL_OK;
}

static enum bl_status read_all(struct reading *r, const struct bl_program *p,
                               const struct bl_trace_step *step)
{
    for (uint16_t d = 0; d < p->n_devices; d++)
        if (p->used[d])
            BL_TRY(note_extra(r, d, true, step->params_bytes));
    for (uint32_t i = 0; i < p->n_steps; i++)
        BL_TRY(note_step(r, p, step, i));
    BL_TRY(note_result(r, p, step->out_bytes));
    return bl_trace_note(r->trace, &(struct bl_event){.kind = BL_EVENT_STEP,
                                                      .begin_ns = r->begin_ns,
                                                      .end_ns = r->end_ns,
                                                      .n_tok = p->shape.n_tok,
                                                      .device = BL_NO_DEVICE});
}

enum bl_status bl_trace_end(struct bl_trace *t, const struct bl_program *p, struct bl_place *place,
                            const struct bl_trace_step *step, bool done)
{
    struct reading r = {.trace = t, .begin_ns = INFINITY};

    if (!done) /* streams may still be writing, until they are closed */
        return BL_OK;
    take_back(p, place);
    t->lent = false;
    r.next = bl_calloc(2 * (size_t)p->n_devices, sizeof *r.next);
    if (!r.next)
        return bl_fail(BL_ENOMEM, "out of memory for a trace");
    const enum bl_status st = read_all(&r, p, step);
    free(r.next);
    return st;
}

void bl_trace_finish(struct bl_trace *t)
{
    for (uint32_t d = 0; t->log && d < 2 * t->n_devices; d++)
        free(t->log[d].lapse);
    free(t->log);
    free(t->event);
    *t = (struct bl_trace){0};
}

/* ---- summing up ---- */

struct stretch {
    double begin, end;
};

static int by_begin(const void *a, const void *b)
{
    const struct stretch *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

/* Sorted, of those that touch one made; returns how many are left. */
static uint32_t join_stretches(struct stretch *s, uint32_t n)
{
    uint32_t kept = 0;

    qsort(s, n, sizeof *s, by_begin);
    for (uint32_t i = 0; i < n; i++)
        if (kept && s[i].begin <= s[kept - 1].end)
            s[kept - 1].end = fmax(s[kept - 1].end, s[i].end);
        else
            s[kept++] = s[i];
    return kept;
}

static double common(const struct stretch *s, uint32_t n, double begin, double end)
{
    double ns = 0;
    uint32_t low = 0, high = n;

    while (low < high) { /* the first that ends behind begin */
        const uint32_t mid = (low + high) / 2;
        if (s[mid].end > begin)
            high = mid;
        else
            low = mid + 1;
    }
    for (; low < n && s[low].begin < end; low++)
        ns += fmin(end, s[low].end) - fmax(begin, s[low].begin);
    return ns;
}

static void add_bytes(struct bl_trace_device *d, const struct bl_event *e)
{
    if (e->from && e->to) {
        d[e->to].direct_bytes += (uint64_t)e->bytes;
        return;
    }
    d[e->to].in_bytes += (uint64_t)e->bytes;
    d[e->from].out_bytes += (uint64_t)e->bytes;
}

static void count(const struct bl_event *e, struct bl_trace_sum *sum, struct bl_trace_device *d)
{
    const double ns = e->end_ns - e->begin_ns;

    sum->n_host_bound += e->host_bound;
    switch (e->kind) {
    case BL_EVENT_STEP:
        sum->n_steps++;
        sum->ns += ns;
        return;
    case BL_EVENT_WAIT:
        d[e->device].wait_ns += ns;
        return;
    case BL_EVENT_STAGE:
        d[e->device].sent_ns += ns;
        return;
    case BL_EVENT_STREAM:
        d[e->device].sent_ns += ns;
        d[e->to].sent_bytes += (uint64_t)e->bytes;
        sum->copy_ns += ns;
        add_bytes(d, e);
        return;
    case BL_EVENT_MOVE:
    case BL_EVENT_COPY:
        d[e->device].copy_ns += e->kind == BL_EVENT_COPY ? ns : 0; /* moves are beside its steps */
        if (e->from != e->to) {
            sum->copy_ns += ns;
            add_bytes(d, e);
        }
        return;
    default:
        d[e->device].run_ns += ns;
        return;
    }
}

enum bl_status bl_trace_sum_up(const struct bl_trace *t, uint32_t n_devices,
                               struct bl_trace_sum *sum, struct bl_trace_device *device)
{
    struct stretch *run = bl_calloc((size_t)t->n + 1, sizeof *run);
    uint32_t n_runs = 0;

    if (!run)
        return bl_fail(BL_ENOMEM, "out of memory for the sum of %u events", t->n);
    *sum = (struct bl_trace_sum){0};
    memset(device, 0, n_devices * sizeof *device);
    for (uint32_t i = 0; i < t->n; i++) {
        const struct bl_event *e = &t->event[i];
        count(e, sum, device);
        if (e->kind == BL_EVENT_RUN)
            run[n_runs++] = (struct stretch){e->begin_ns, e->end_ns};
    }
    n_runs = join_stretches(run, n_runs);
    for (uint32_t i = 0; i < t->n; i++) {
        const struct bl_event *e = &t->event[i];
        if (((e->kind == BL_EVENT_COPY || e->kind == BL_EVENT_STREAM) && e->from != e->to) ||
            e->kind == BL_EVENT_MOVE)
            sum->hidden_ns += common(run, n_runs, e->begin_ns, e->end_ns);
    }
    free(run);
    return BL_OK;
}

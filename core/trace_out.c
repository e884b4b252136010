/* SPDX-License-Identifier: MIT */
/* A trace as Perfetto and Chrome show it.
 *
 * In a process a thread per device's stream and per direction of a link. Categories tell apart what
 * a stream does ("run", "copy", "wait") from what a link carries ("link"), so that overlap can be
 * computed from either. Beside a device's stream a second one may bring experts to it ("stream"),
 * or on the host to where they can be taken from ("stage"); a third
 * brings experts into slots ("move"). */
#include "trace.h"

#include <math.h>
#include <stdio.h>

enum { TRACE_FORMAT = 1, BESIDE_TID = 400, MOVE_TID = 500, STEP_TID = 999, LINK_TID = 1000 };

/* ---- tracks ---- */

static void put_name(struct bl_trace_out *t, const char *kind, uint32_t tid, const char *name)
{
    struct bl_json_out *o = &t->json;

    bl_json_open(o, NULL, '{', true);
    bl_json_put_text(o, "ph", "M");
    bl_json_put_text(o, "name", kind);
    bl_json_put_number(o, "pid", t->pid);
    bl_json_put_number(o, "tid", tid);
    bl_json_open(o, "args", '{', true);
    bl_json_put_text(o, "name", name);
    bl_json_close(o, '}');
    bl_json_close(o, '}');
}

static uint32_t stream_tid(uint16_t device)
{
    return device + 1u;
}

static uint32_t beside_tid(uint16_t device)
{
    return BESIDE_TID + device;
}

static uint32_t link_tid(uint32_t link, bool back)
{
    return LINK_TID + 2 * link + back;
}

void bl_trace_out_process(struct bl_trace_out *t, const char *name)
{
    const struct bl_machine *m = t->machine;
    char track[96];

    t->pid++;
    memset(t->end_ns, 0, sizeof t->end_ns);
    memset(t->beside, 0, sizeof t->beside);
    memset(t->moves, 0, sizeof t->moves);
    put_name(t, "process_name", 0, name);
    for (uint16_t d = 0; d < m->n_devices; d++)
        put_name(t, "thread_name", stream_tid(d), m->device[d].id);
    if (t->measured)
        put_name(t, "thread_name", STEP_TID, "steps");
    for (uint32_t i = 0; i < m->n_links; i++)
        for (unsigned back = 0; back < 2; back++) {
            const struct bl_link *l = &m->link[i];
            snprintf(track, sizeof track, "%s to %s", m->device[back ? l->b : l->a].id,
                     m->device[back ? l->a : l->b].id);
            put_name(t, "thread_name", link_tid(i, back), track);
        }
}

/* False: unified memory, nothing moves. */
static bool find_link(const struct bl_machine *m, const struct bl_event *e, uint32_t *tid)
{
    for (uint32_t i = 0; i < m->n_links; i++) {
        const struct bl_link *l = &m->link[i];
        if ((l->a != e->from || l->b != e->to) && (l->b != e->from || l->a != e->to))
            continue;
        *tid = link_tid(i, l->b == e->from);
        return true;
    }
    return false;
}

/* ---- events ---- */

/* Microseconds to the nanosecond; what a person reads need not be longer. */
static double us(double ns)
{
    return round(ns) * 1e-3;
}

static void open_event(struct bl_trace_out *t, const char *name, const char *category, uint32_t tid,
                       double begin_ns, double end_ns)
{
    struct bl_json_out *o = &t->json;
    const double begin = begin_ns - t->zero_ns, end = end_ns - t->zero_ns;

    bl_json_open(o, NULL, '{', true);
    bl_json_put_text(o, "ph", "X");
    bl_json_put_text(o, "name", name);
    bl_json_put_text(o, "cat", category);
    bl_json_put_number(o, "pid", t->pid);
    bl_json_put_number(o, "tid", tid);
    bl_json_put_number(o, "ts", us(begin));
    bl_json_put_number(o, "dur", us(round(end) - round(begin)));
    bl_json_open(o, "args", '{', true);
}

static void close_event(struct bl_trace_out *t)
{
    bl_json_close(&t->json, '}');
    bl_json_close(&t->json, '}');
}

static void put_transfer(struct bl_trace_out *t, const struct bl_event *e, const char *name)
{
    uint32_t tid;

    if (!find_link(t->machine, e, &tid))
        return;
    open_event(t, name, "link", tid, e->begin_ns, e->end_ns);
    bl_json_put_number(&t->json, "bytes", round(e->bytes));
    close_event(t);
}

static void put_gap(struct bl_trace_out *t, const struct bl_event *e)
{
    if (e->begin_ns > t->end_ns[e->device] + 0.5) {
        open_event(t, "wait", "wait", stream_tid(e->device), t->end_ns[e->device], e->begin_ns);
        close_event(t);
    }
    t->end_ns[e->device] = e->end_ns;
}

static void put_step(struct bl_trace_out *t, const struct bl_event *e)
{
    open_event(t, "step", "step", STEP_TID, e->begin_ns, e->end_ns);
    bl_json_put_number(&t->json, "tokens", e->n_tok);
    close_event(t);
}

/* The first one names its thread. */
static void put_chunk(struct bl_trace_out *t, const struct bl_event *e)
{
    const bool stages = e->kind == BL_EVENT_STAGE;
    const uint32_t tid = beside_tid(e->device);
    char track[96];

    if (!t->beside[e->device]) {
        snprintf(track, sizeof track, "%s, experts", t->machine->device[e->device].id);
        put_name(t, "thread_name", tid, track);
        t->beside[e->device] = true;
    }
    open_event(t, "experts", stages ? "stage" : "stream", tid, e->begin_ns, e->end_ns);
    bl_json_put_number(&t->json, "layer", e->layer);
    bl_json_put_number(&t->json, "bytes", round(e->bytes));
    if (e->host_bound)
        bl_json_put_flag(&t->json, "host_bound", true);
    close_event(t);
    if (!stages)
        put_transfer(t, e, "experts");
}

static void put_move(struct bl_trace_out *t, const struct bl_event *e)
{
    const uint32_t tid = MOVE_TID + e->device;
    char track[96];

    if (!t->moves[e->device]) {
        snprintf(track, sizeof track, "experts to %s", t->machine->device[e->device].id);
        put_name(t, "thread_name", tid, track);
        t->moves[e->device] = true;
    }
    open_event(t, "expert", "move", tid, e->begin_ns, e->end_ns);
    bl_json_put_number(&t->json, "layer", e->layer);
    bl_json_put_number(&t->json, "expert", e->index);
    bl_json_put_number(&t->json, "bytes", round(e->bytes));
    close_event(t);
}

static const char *event_name(const struct bl_event *e)
{
    return e->kind == BL_EVENT_COPY        ? "copy"
           : e->kind == BL_EVENT_WAIT      ? "wait"
           : e->part < (uint8_t)BL_N_PARTS ? bl_part_name((enum bl_part)e->part)
                                           : "layers";
}

void bl_trace_out_event(struct bl_trace_out *t, const struct bl_event *e)
{
    static const char *const category[] = {
        [BL_EVENT_RUN] = "run", [BL_EVENT_COPY] = "copy", [BL_EVENT_WAIT] = "wait"};
    struct bl_json_out *o = &t->json;
    const char *name = event_name(e);
    const bool runs = e->kind == BL_EVENT_RUN;

    if (e->kind == BL_EVENT_STEP || e->kind == BL_EVENT_MOVE) {
        (e->kind == BL_EVENT_STEP ? put_step : put_move)(t, e);
        return;
    }
    if (e->kind == BL_EVENT_STREAM || e->kind == BL_EVENT_STAGE) {
        put_chunk(t, e);
        return;
    }
    if (!t->measured)
        put_gap(t, e);
    open_event(t, name, category[e->kind], stream_tid(e->device), e->begin_ns, e->end_ns);
    if (e->layer >= 0)
        bl_json_put_number(o, "layer", e->layer);
    if (e->last_layer > e->layer && e->layer >= 0)
        bl_json_put_number(o, "last_layer", e->last_layer);
    if (!t->measured || e->kind == BL_EVENT_COPY)
        bl_json_put_number(o, "bytes", round(e->bytes));
    if (!t->measured && runs)
        bl_json_put_number(o, "macs", round(e->macs));
    if (e->host_bound)
        bl_json_put_flag(o, "host_bound", true);
    close_event(t);
    if (e->kind == BL_EVENT_COPY)
        put_transfer(t, e, name);
}

/* ---- the whole ---- */

void bl_trace_out_begin(struct bl_trace_out *t, const struct bl_machine *m)
{
    *t = (struct bl_trace_out){.machine = m};
    bl_json_open(&t->json, NULL, '{', false);
    bl_json_put_number(&t->json, "ballast_trace", TRACE_FORMAT);
    bl_json_put_text(&t->json, "displayTimeUnit", "ms");
    bl_json_open(&t->json, "traceEvents", '[', false);
}

enum bl_status bl_trace_out_end(struct bl_trace_out *t, char **text, size_t *n_bytes)
{
    bl_json_close(&t->json, ']');
    bl_json_close(&t->json, '}');
    BL_TRY(bl_json_out_end(&t->json));
    *text = t->json.text;
    *n_bytes = t->json.n;
    return BL_OK;
}

/* SPDX-License-Identifier: MIT */
/* trace.c — a placement's predicted steps in the form that Perfetto and Chrome show.
 *
 * A process per step; in it a thread per device's stream and per direction of a link. Categories
 * tell apart what a stream does ("run", "stream": experts sent to a card and multiplied there,
 * "copy", "wait") from what a link carries
 * ("link"), so that overlap can be computed from either.
 */
#include "json.h"
#include "machine_file.h"
#include "placement.h"
#include "timeline.h"

#include <math.h>
#include <stdio.h>

enum { TRACE_FORMAT = 1, LINK_TID = 1000 };

struct trace {
    const struct bl_placement *of;
    struct bl_json_out out;
    uint32_t pid;
    double end_ns[BL_MAX_DEVICES]; /* of the last event on the stream */
};

/* ---- tracks ---- */

static void put_name(struct trace *t, const char *kind, uint32_t tid, const char *name)
{
    struct bl_json_out *o = &t->out;

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

static uint32_t link_tid(uint32_t link, bool back)
{
    return LINK_TID + 2 * link + back;
}

static void name_tracks(struct trace *t, const char *step)
{
    const struct bl_machine *m = &t->of->machine;
    char name[96];

    put_name(t, "process_name", 0, step);
    for (uint16_t d = 0; d < m->n_devices; d++)
        put_name(t, "thread_name", stream_tid(d), m->device[d].id);
    for (uint32_t i = 0; i < m->n_links; i++)
        for (unsigned back = 0; back < 2; back++) {
            const struct bl_link *l = &m->link[i];
            snprintf(name, sizeof name, "%s to %s", m->device[back ? l->b : l->a].id,
                     m->device[back ? l->a : l->b].id);
            put_name(t, "thread_name", link_tid(i, back), name);
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

static void open_event(struct trace *t, const char *name, const char *category, uint32_t tid,
                       double begin_ns, double end_ns)
{
    struct bl_json_out *o = &t->out;

    bl_json_open(o, NULL, '{', true);
    bl_json_put_text(o, "ph", "X");
    bl_json_put_text(o, "name", name);
    bl_json_put_text(o, "cat", category);
    bl_json_put_number(o, "pid", t->pid);
    bl_json_put_number(o, "tid", tid);
    bl_json_put_number(o, "ts", us(begin_ns));
    bl_json_put_number(o, "dur", us(round(end_ns) - round(begin_ns)));
    bl_json_open(o, "args", '{', true);
}

static void close_event(struct trace *t)
{
    bl_json_close(&t->out, '}');
    bl_json_close(&t->out, '}');
}

static void put_transfer(struct trace *t, const struct bl_event *e, const char *name)
{
    uint32_t tid;

    if (!find_link(&t->of->machine, e, &tid))
        return;
    open_event(t, name, "link", tid, e->begin_ns, e->end_ns);
    bl_json_put_number(&t->out, "bytes", round(e->bytes));
    close_event(t);
}

static void put_event(struct trace *t, const struct bl_event *e)
{
    static const char *const category[] = {
        [BL_EVENT_RUN] = "run", [BL_EVENT_COPY] = "copy", [BL_EVENT_STREAM] = "stream"};
    const bool copy = e->kind == BL_EVENT_COPY;
    const char *name = copy ? "copy" : bl_part_name((enum bl_part)e->part);

    if (e->begin_ns > t->end_ns[e->device] + 0.5) {
        open_event(t, "wait", "wait", stream_tid(e->device), t->end_ns[e->device], e->begin_ns);
        close_event(t);
    }
    t->end_ns[e->device] = e->end_ns;
    open_event(t, name, category[e->kind], stream_tid(e->device), e->begin_ns, e->end_ns);
    if (e->layer >= 0)
        bl_json_put_number(&t->out, "layer", e->layer);
    bl_json_put_number(&t->out, "bytes", round(e->bytes));
    if (!copy)
        bl_json_put_number(&t->out, "macs", round(e->macs));
    close_event(t);
    if (e->kind != BL_EVENT_RUN)
        put_transfer(t, e, name);
}

/* ---- steps ---- */

static enum bl_status put_step(struct trace *t, const char *what, uint32_t n_tok)
{
    const struct bl_choice *c = &t->of->choice;
    const struct bl_timeline_options opt = {.depth_tokens = c->depth_tokens,
                                            .stream_from_tok = c->stream_from_tok,
                                            .keep_events = true};
    struct bl_timeline line = {0};
    char name[160];

    BL_TRY(bl_timeline_predict(&line, t->of->model, &c->plan, &t->of->machine, n_tok, &opt));
    enum bl_status st = BL_OK;
    if (!isfinite(line.ns))
        st = bl_fail(
            BL_EINVAL,
            "nothing is known of this machine's speed, so there is no timeline; 'ballast probe -o "
            "FILE' measures it for --machine FILE");
    snprintf(name, sizeof name, "%s: %u token%s after %llu, predicted", what, n_tok,
             n_tok == 1 ? "" : "s", (unsigned long long)c->depth_tokens);
    t->pid++;
    memset(t->end_ns, 0, sizeof t->end_ns);
    if (!st)
        name_tracks(t, name);
    for (uint32_t i = 0; !st && i < line.n_events; i++)
        put_event(t, &line.event[i]);
    bl_timeline_finish(&line);
    return st;
}

enum bl_status bl_placement_trace(const struct bl_placement *p, char **text, size_t *n_bytes)
{
    struct trace t = {.of = p};

    bl_json_open(&t.out, NULL, '{', false);
    bl_json_put_number(&t.out, "ballast_trace", TRACE_FORMAT);
    bl_json_put_text(&t.out, "displayTimeUnit", "ms");
    bl_json_open(&t.out, "traceEvents", '[', false);
    enum bl_status st = put_step(&t, "decode", 1);
    if (!st)
        st = put_step(&t, "prefill", p->choice.plan.ubatch_tokens);
    bl_json_close(&t.out, ']');
    bl_json_close(&t.out, '}');
    if (st) {
        free(t.out.text);
        return st;
    }
    BL_TRY(bl_json_out_end(&t.out));
    *text = t.out.text;
    *n_bytes = t.out.n;
    return BL_OK;
}

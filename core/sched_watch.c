/* SPDX-License-Identifier: MIT */
#include "sched_watch.h"

#include "blame.h"
#include "log.h"
#include "thread.h"

#include <stdio.h>

#define PATIENCE_NS 50000000u /* with a full queue, between looks at the others */

/* ---- progress ---- */

/* Of a program's devices the streams and, from n_devices on, those beside them; NULL: there is
 * none. */
static struct bl_stream *stream_at(const struct bl_program *p, const struct bl_place *place,
                                   uint32_t i)
{
    const uint32_t d = i % p->n_devices;

    if (i < p->n_devices)
        return p->used[d] ? place[d].stream : NULL;
    return p->n_sendings ? place[d].beside : NULL;
}

static void counts(const struct bl_device *dev, const struct bl_stream *stream, uint32_t *enqueued,
                   uint32_t *done)
{
    *enqueued = *done = 0;
    if (stream && dev->ops->progress)
        dev->ops->progress(stream, enqueued, done);
}

uint32_t bl_watch_enqueued(const struct bl_place *place, const struct bl_step *step)
{
    const struct bl_place *at = &place[step->device];
    uint32_t enqueued, done;

    counts(at->dev, bl_step_is_beside(step) ? at->beside : at->stream, &enqueued, &done);
    return step->kind == BL_STEP_PICK ? 0 : enqueued;
}

/* Of all streams; of one that does not count its commands, signals. */
static uint32_t done_so_far(const struct bl_sched *s, const struct bl_program *p,
                            const struct bl_place *place)
{
    uint32_t sum = 0;

    for (uint32_t i = 0; i < 2 * p->n_devices; i++) {
        uint32_t enqueued, done;
        const struct bl_stream *stream = stream_at(p, place, i);
        if (!stream)
            continue;
        counts(place[i % p->n_devices].dev, stream, &enqueued, &done);
        sum += done;
    }
    for (uint32_t i = 0; i < p->n_signals; i++) {
        const struct bl_point *at = &s->point[i];
        if (at->stream && !bl_point_ops(*at)->progress)
            sum += bl_point_ops(*at)->poll(*at);
    }
    return sum;
}

void bl_watch_begin(struct bl_sched *s, const struct bl_program *p, const struct bl_place *place,
                    uint64_t timeout_ns)
{
    for (uint32_t i = 0; i < 2 * p->n_devices; i++) {
        const struct bl_device *dev = place[i % p->n_devices].dev;
        struct bl_stream *stream = stream_at(p, place, i);
        uint32_t done;
        if (!stream)
            continue;
        counts(dev, stream, &s->before[i], &done);
        if (dev->ops->patience)
            dev->ops->patience(stream,
                               timeout_ns / 4 < PATIENCE_NS ? timeout_ns / 4 + 1 : PATIENCE_NS);
    }
    for (uint32_t i = 0; i < p->n_signals; i++)
        s->point[i] = (struct bl_point){0};
    memset(s->n_commands, 0, p->n_steps * sizeof *s->n_commands);
    s->moved_ns = bl_now_ns();
    s->done = UINT32_MAX;
}

bool bl_watch_is_busy(const struct bl_program *p, const struct bl_place *place)
{
    for (uint32_t i = 0; i < 2 * p->n_devices; i++) {
        uint32_t enqueued, done;
        counts(place[i % p->n_devices].dev, stream_at(p, place, i), &enqueued, &done);
        if (enqueued != done)
            return true;
    }
    return false;
}

bool bl_watch_stalled(struct bl_sched *s, const struct bl_program *p, const struct bl_place *place,
                      uint64_t timeout_ns)
{
    const uint32_t done = done_so_far(s, p, place);
    const uint64_t now = bl_now_ns();

    if (done != s->done) {
        s->done = done;
        s->moved_ns = now;
    }
    return now - s->moved_ns >= timeout_ns;
}

/* ---- which device ---- */

struct stand {
    uint32_t step; /* of the program, that its stream is at; UINT32_MAX: before or behind them */
    bool known;    /* its stream counts commands */
    bool finished; /* all that it was given */
    bool waits;    /* for a signal that has not come */
};

static bool has_come(struct bl_point p)
{
    return !p.stream || bl_point_ops(p)->poll(p);
}

static bool waits_for(const struct bl_sched *s, uint32_t signal)
{
    return signal != BL_NO_SIGNAL && !has_come(s->point[signal]);
}

/* What a step of a stream beside comes after. */
static bool chunk_waits(const struct bl_sched *s, const struct bl_program *p,
                        const struct bl_step *step)
{
    const struct bl_chunk *c = &p->chunk[step->index],
                          *b = c->before == BL_NO_CHUNK ? NULL : &p->chunk[c->before];

    if (step->kind == BL_STEP_STAGE)
        return b && waits_for(s, b->sent);
    return (b && waits_for(s, b->freed)) || waits_for(s, c->staged);
}

static bool step_waits(const struct bl_sched *s, const struct bl_program *p,
                       const struct bl_step *step)
{
    return bl_step_is_beside(step) ? chunk_waits(s, p, step)
                                   : step->kind == BL_STEP_WAIT && waits_for(s, step->index);
}

/* The first command of a step is the copy of its numbers. */
static struct stand stand_of(const struct bl_sched *s, const struct bl_program *p,
                             const struct bl_place *place, uint32_t i)
{
    const bool beside = i >= p->n_devices;
    const uint32_t d = i % p->n_devices;
    struct stand at = {.step = UINT32_MAX, .known = place[d].dev->ops->progress != NULL};
    uint32_t enqueued, done;

    counts(place[d].dev, stream_at(p, place, i), &enqueued, &done);
    at.finished = at.known && enqueued == done;
    uint32_t left = done - s->before[i] + beside;
    if (!at.known || at.finished || (int32_t)left <= 0)
        return at;
    for (uint32_t k = 0; k < p->n_steps; k++) {
        const struct bl_step *step = &p->step[k];
        if (step->device != d || bl_step_is_beside(step) != beside || !s->n_commands[k])
            continue;
        if (left > s->n_commands[k]) {
            left -= s->n_commands[k];
            continue;
        }
        at.step = k;
        at.waits = step_waits(s, p, step);
        break;
    }
    return at;
}

/* Embeddings and the head are in no layer. */
static const char *name_node(const struct bl_node *n, char text[32])
{
    const char *part = bl_part_name((enum bl_part)n->part);

    snprintf(text, 32, n->layer < 0 ? "%s" : "%s of layer %d", part, n->layer);
    return text;
}

static void name_range(const struct bl_program *p, const struct bl_range *r, char *text, size_t cap)
{
    const struct bl_node *first = &p->graph.nodes[r->first], *last = first + r->n - 1;
    char from[32], to[32];

    (void)name_node(first, from);
    (void)name_node(last, to);
    const bool one = !strcmp(from, to);
    snprintf(text, cap, " of %u node%s, %s%s%s", r->n, r->n == 1 ? "" : "s", from,
             one ? "" : " to ", one ? "" : to);
}

static void name_step(const struct bl_program *p, const struct bl_place *place,
                      const struct stand *at, char *text, size_t cap)
{
    static const char *const kind[BL_N_STEP_KINDS] = {"run",  "copy",  "signal", "wait",
                                                      "pick", "stage", "send"};
    const struct bl_step *step = at->step == UINT32_MAX ? NULL : &p->step[at->step];

    if (!step) {
        snprintf(text, cap,
                 at->finished ? "nothing left to do"
                 : at->known  ? "before or after the program's steps"
                              : "it does not say where");
        return;
    }
    const int n =
        snprintf(text, cap, "step %u of %u: %s", at->step + 1, p->n_steps, kind[step->kind]);
    if (n < 0 || (size_t)n >= cap)
        return;
    text += n;
    cap -= (size_t)n;
    if (step->kind == BL_STEP_RUN) {
        name_range(p, &p->range[step->index], text, cap);
    } else if (step->kind == BL_STEP_COPY) {
        const struct bl_copy *c = &p->copy[step->index];
        snprintf(text, cap, " of value %u from %s to %s", c->val, place[c->from].dev->name,
                 place[c->to].dev->name);
    } else if (bl_step_is_beside(step)) {
        const struct bl_chunk *c = &p->chunk[step->index];
        snprintf(text, cap, " of experts of layer %u, chunk %u", p->sending[c->sending].layer,
                 c->nth);
    } else {
        snprintf(text, cap, " %u", step->index);
    }
}

static void log_stand(const struct bl_program *p, const struct bl_place *place, uint32_t i,
                      const struct stand *stand)
{
    const struct bl_place *at = &place[i % p->n_devices];
    const struct bl_stream *stream = stream_at(p, place, i);
    char where[192];
    uint32_t enqueued, done;

    counts(at->dev, stream, &enqueued, &done);
    name_step(p, place, stand, where, sizeof where);
    bl_log(BL_LOG_ERROR, "%s%s: %u of %u commands done, %s%s", at->dev->name,
           stream == at->beside ? ", experts" : "", done, enqueued, where,
           stand->waits ? ", which has not come" : "");
}

void bl_watch_cancel(const struct bl_program *p, const struct bl_place *place)
{
    for (uint32_t i = 0; i < 2 * p->n_devices; i++) {
        const struct bl_device_ops *ops =
            place[i % p->n_devices].dev ? place[i % p->n_devices].dev->ops : NULL;
        struct bl_stream *stream = stream_at(p, place, i);
        if (stream && ops->cancel)
            ops->cancel(stream);
    }
}

/* The one that neither waits for another nor is done; of several the first. */
enum bl_status bl_watch_give_up(struct bl_sched *s, const struct bl_program *p,
                                const struct bl_place *place, uint64_t timeout_ns)
{
    struct stand worst = {0};
    uint32_t which = UINT32_MAX;
    char where[192];

    for (uint32_t i = 0; i < 2 * p->n_devices; i++) {
        if (!stream_at(p, place, i))
            continue;
        const struct stand at = stand_of(s, p, place, i);
        log_stand(p, place, i, &at);
        if (which == UINT32_MAX && !at.finished && !at.waits) {
            which = i;
            worst = at;
        }
    }
    bl_watch_cancel(p, place);
    if (which == UINT32_MAX)
        return bl_fail(BL_ETIMEDOUT,
                       "no device has finished anything for %.1f s; each waits for another",
                       (double)timeout_ns * 1e-9);
    name_step(p, place, &worst, where, sizeof where);
    return bl_fail(BL_ETIMEDOUT,
                   "%s has finished nothing for %.1f s; it is stuck in %s" BL_STUCK_ADVICE,
                   place[which % p->n_devices].dev->name, (double)timeout_ns * 1e-9, where);
}

/* SPDX-License-Identifier: MIT */
#include "sched_watch.h"

#include "log.h"
#include "thread.h"

#include <stdio.h>

/* ---- progress ---- */

static void counts(const struct bl_place *at, uint32_t *enqueued, uint32_t *done)
{
    *enqueued = *done = 0;
    if (at->dev->ops->progress)
        at->dev->ops->progress(at->stream, enqueued, done);
}

/* Of all streams; of one that does not count its commands, signals. */
static uint32_t done_so_far(const struct bl_sched *s, const struct bl_program *p,
                            const struct bl_place *place)
{
    uint32_t sum = 0;

    for (uint32_t d = 0; d < p->n_devices; d++) {
        uint32_t enqueued, done;
        if (!p->used[d])
            continue;
        counts(&place[d], &enqueued, &done);
        sum += done;
    }
    for (uint32_t i = 0; i < p->n_signals; i++) {
        const struct bl_point *at = &s->point[i];
        const struct bl_device_ops *ops = place[p->signal_device[i]].dev->ops;
        if (at->stream && !ops->progress)
            sum += ops->poll(*at);
    }
    return sum;
}

void bl_watch_begin(struct bl_sched *s, const struct bl_program *p, const struct bl_place *place,
                    uint64_t timeout_ns)
{
    for (uint32_t d = 0; d < p->n_devices; d++) {
        uint32_t done;
        if (!p->used[d])
            continue;
        counts(&place[d], &s->before[d], &done);
        if (place[d].dev->ops->patience)
            place[d].dev->ops->patience(place[d].stream, timeout_ns / 4 + 1);
    }
    for (uint32_t i = 0; i < p->n_signals; i++)
        s->point[i] = (struct bl_point){0};
    s->moved_ns = bl_now_ns();
    s->done = UINT32_MAX;
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

/* The first command of a step is the copy of its numbers. */
static struct stand stand_of(const struct bl_sched *s, const struct bl_program *p,
                             const struct bl_place *place, uint16_t d)
{
    struct stand at = {.step = UINT32_MAX, .known = place[d].dev->ops->progress != NULL};
    uint32_t enqueued, done;

    counts(&place[d], &enqueued, &done);
    at.finished = at.known && enqueued == done;
    uint32_t left = done - s->before[d];
    if (!at.known || at.finished || (int32_t)left <= 0)
        return at;
    for (uint32_t i = 0; i < p->n_steps; i++) {
        if (p->step[i].device != d || --left)
            continue;
        const struct bl_point *point = &s->point[p->step[i].index];
        at.step = i;
        at.waits = p->step[i].kind == BL_STEP_WAIT && point->stream &&
                   !place[p->signal_device[p->step[i].index]].dev->ops->poll(*point);
        break;
    }
    return at;
}

static void name_step(const struct bl_program *p, const struct stand *at, char *text, size_t cap)
{
    static const char *const kind[] = {"run", "copy", "signal", "wait"};
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
        const struct bl_range *r = &p->range[step->index];
        const struct bl_node *first = &p->graph.nodes[r->first], *last = first + r->n - 1;
        snprintf(text, cap, " of %u nodes, %s of layer %d to %s of layer %d", r->n,
                 bl_part_name((enum bl_part)first->part), first->layer,
                 bl_part_name((enum bl_part)last->part), last->layer);
    } else if (step->kind == BL_STEP_COPY) {
        const struct bl_copy *c = &p->copy[step->index];
        snprintf(text, cap, " of value %u from device %u to %u", c->val, c->from, c->to);
    } else {
        snprintf(text, cap, " %u", step->index);
    }
}

static void log_stand(const struct bl_program *p, const struct bl_place *at,
                      const struct stand *stand)
{
    char where[192];
    uint32_t enqueued, done;

    counts(at, &enqueued, &done);
    name_step(p, stand, where, sizeof where);
    bl_log(BL_LOG_ERROR, "%s: %u of %u commands done, %s%s", at->dev->name, done, enqueued, where,
           stand->waits ? ", which has not come" : "");
}

static void cancel_all(const struct bl_program *p, const struct bl_place *place)
{
    for (uint32_t d = 0; d < p->n_devices; d++)
        if (p->used[d] && place[d].dev->ops->cancel)
            place[d].dev->ops->cancel(place[d].stream);
}

/* The one that neither waits for another nor is done; of several the first. */
enum bl_status bl_watch_give_up(struct bl_sched *s, const struct bl_program *p,
                                const struct bl_place *place, uint64_t timeout_ns)
{
    struct stand worst = {0};
    uint16_t which = BL_NO_DEVICE;
    char where[192];

    for (uint16_t d = 0; d < p->n_devices; d++) {
        if (!p->used[d])
            continue;
        const struct stand at = stand_of(s, p, place, d);
        log_stand(p, &place[d], &at);
        if (which == BL_NO_DEVICE && !at.finished && !at.waits) {
            which = d;
            worst = at;
        }
    }
    cancel_all(p, place);
    if (which == BL_NO_DEVICE)
        return bl_fail(BL_ETIMEDOUT, "no device has finished anything for %.1f s; all wait",
                       (double)timeout_ns * 1e-9);
    name_step(p, &worst, where, sizeof where);
    return bl_fail(BL_ETIMEDOUT, "%s has finished nothing for %.1f s; it is stuck in %s",
                   place[which].dev->name, (double)timeout_ns * 1e-9, where);
}

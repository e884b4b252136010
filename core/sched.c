/* SPDX-License-Identifier: MIT */
#include "sched.h"

#include "blame.h"
#include "sched_watch.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define GRACE_NS 2000000000u /* for streams that are given up to end */
#define LOOK_NS 50000000u    /* between looks at whether there is still sense in waiting */
#define NAP_NS 1000000

struct run {
    struct bl_sched *sched;
    const struct bl_program *program;
    struct bl_place *place;
    const struct bl_step_io *io;
    uint64_t timeout_ns;
    bool calming; /* failed before: who does not move is not told any more */
};

static enum bl_status grow(void **table, uint32_t *cap, uint32_t n, size_t item)
{
    if (n <= *cap)
        return BL_OK;
    void *bigger = realloc(*table, n * item);
    if (!bigger)
        return bl_fail(BL_ENOMEM, "out of memory for the %u streams, steps or signals of a step",
                       n);
    *table = bigger;
    *cap = n;
    return BL_OK;
}

static enum bl_status reserve(struct bl_sched *s, const struct bl_program *p)
{
    BL_TRY(grow((void **)&s->point, &s->cap, p->n_signals, sizeof *s->point));
    BL_TRY(grow((void **)&s->n_commands, &s->cap_steps, p->n_steps, sizeof *s->n_commands));
    return grow((void **)&s->before, &s->cap_devices, 2 * p->n_devices, sizeof *s->before);
}

void bl_sched_finish(struct bl_sched *s)
{
    if (s->trace)
        bl_trace_finish(s->trace);
    free(s->trace);
    free(s->point);
    free(s->before);
    free(s->n_commands);
    *s = (struct bl_sched){0};
}

/* ---- enqueueing ---- */

/* In slices, so that what devices finish meanwhile counts, and that it can be stopped. */
static uint64_t slice_ns(const struct run *r)
{
    const uint64_t part = r->timeout_ns / 4 + 1;
    return part < LOOK_NS ? part : LOOK_NS;
}

static bool is_stopped(const struct run *r)
{
    return !r->calming && bl_stop_asked(r->io->stop);
}

static enum bl_status pick(const struct run *r, uint32_t sending)
{
    const struct bl_point known = r->sched->point[r->program->sending[sending].signal];

    BL_TRY(bl_point_ops(known)->join(known, slice_ns(r)));
    bl_stage_pick(r->io->stage, sending, &r->place[0].arena);
    return BL_OK;
}

static enum bl_status enqueue_step(const struct run *r, const struct bl_step *step)
{
    const struct bl_program *p = r->program;
    struct bl_place *place = r->place, *at = &place[step->device];
    const struct bl_device_ops *ops = at->dev->ops;

    switch (step->kind) {
    case BL_STEP_RUN:
        return ops->segment_run(at->stream, p->range[step->index].segment);
    case BL_STEP_SIGNAL:
        return ops->signal(at->stream, &r->sched->point[step->index]);
    case BL_STEP_WAIT:
        return ops->wait(at->stream, r->sched->point[step->index]);
    case BL_STEP_PICK:
        return pick(r, step->index);
    case BL_STEP_STAGE:
    case BL_STEP_SEND:
        return bl_stage_step(r->io->stage, step, r->sched->point);
    default:
        break;
    }
    const struct bl_copy *c = &p->copy[step->index];
    return ops->copy(at->stream, &place[c->to].arena,
                     p->home[(size_t)c->val * p->n_devices + c->to], &place[c->from].arena,
                     p->home[(size_t)c->val * p->n_devices + c->from],
                     bl_value_bytes(&p->graph.vals[c->val]));
}

/* While a queue is full and something is still being done, it is asked again. */
static enum bl_status check_full(const struct run *r, enum bl_status st, bool *again)
{
    *again = false;
    if (st != BL_ETIMEDOUT)
        return st;
    if (is_stopped(r))
        return bl_fail(BL_ECANCELLED, "stopped during a step");
    *again = !bl_watch_stalled(r->sched, r->program, r->place, r->timeout_ns);
    if (*again)
        return st;
    if (!r->calming)
        return bl_watch_give_up(r->sched, r->program, r->place, r->timeout_ns);
    bl_watch_cancel(r->program, r->place); /* or who closes them waits for good */
    return st;
}

static enum bl_status enqueue(const struct run *r, uint32_t i)
{
    const struct bl_step *step = &r->program->step[i];
    const uint32_t before = bl_watch_enqueued(r->place, step);
    enum bl_status st;
    bool again;

    if (is_stopped(r))
        return bl_fail(BL_ECANCELLED, "stopped during a step");
    do
        st = check_full(r, enqueue_step(r, step), &again);
    while (again);
    r->sched->n_commands[i] = bl_watch_enqueued(r->place, step) - before;
    return st;
}

static enum bl_status copy_params(const struct run *r)
{
    for (uint32_t d = 0; d < r->program->n_devices; d++)
        if (r->program->used[d])
            BL_TRY(r->place[d].dev->ops->copy(r->place[d].stream, &r->place[d].params, 0,
                                              r->io->params, 0, r->io->params_bytes));
    return BL_OK;
}

static enum bl_status copy_result_from(const struct run *r, uint32_t d, uint64_t home)
{
    struct bl_place *at = &r->place[d];
    enum bl_status st;
    bool again;

    do
        st = check_full(r,
                        at->dev->ops->copy(at->stream, r->io->out, r->io->out_off, &at->arena, home,
                                           r->io->out_bytes),
                        &again);
    while (again);
    return st;
}

static enum bl_status copy_result(const struct run *r)
{
    const struct bl_program *p = r->program;

    if (!r->io->out_bytes)
        return BL_OK;
    for (uint32_t d = 0; d < p->n_devices; d++) {
        const uint64_t home = p->home[(size_t)p->graph.result * p->n_devices + d];
        if (home != BL_NO_HOME)
            return copy_result_from(r, d, home);
    }
    return bl_fail(BL_EINVAL, "the program has no result");
}

/* ---- waiting ---- */

static enum bl_status signal_end(const struct run *r, const struct bl_place *at,
                                 struct bl_stream *stream, struct bl_point *end)
{
    enum bl_status st;
    bool again;

    do
        st = check_full(r, at->dev->ops->signal(stream, end), &again);
    while (again);
    return st;
}

static enum bl_status join_stream(const struct run *r, const struct bl_place *at,
                                  struct bl_stream *stream)
{
    struct bl_point end;
    enum bl_status st;
    bool again;

    BL_TRY(signal_end(r, at, stream, &end));
    do
        st = check_full(r, at->dev->ops->join(end, slice_ns(r)), &again);
    while (again);
    return st;
}

/* What goes wrong beside a device's own stream is why that one fails. */
static enum bl_status join_one(const struct run *r, const struct bl_place *at)
{
    enum bl_status beside = BL_OK;

    if (r->program->n_sendings && at->beside)
        beside = join_stream(r, at, at->beside);
    if (!beside || beside == BL_ETIMEDOUT)
        return beside ? beside : join_stream(r, at, at->stream);
    char why[512];
    snprintf(why, sizeof why, "%s", bl_error());
    const enum bl_status st = join_stream(r, at, at->stream);
    return st == BL_ETIMEDOUT ? st : bl_fail(beside, "%s", why);
}

static enum bl_status join_all(const struct run *r)
{
    enum bl_status first = BL_OK;

    for (uint32_t d = 0; d < r->program->n_devices; d++) {
        if (!r->program->used[d])
            continue;
        const enum bl_status st = join_one(r, &r->place[d]);
        if (st && !first)
            first = st == BL_ETIMEDOUT ? st : bl_blame(st, r->place[d].dev->name);
        if (st == BL_ETIMEDOUT)
            break;
    }
    return first;
}

/* After a failure the devices still finish what they were given or give it up, so that memory is
 * quiet on return. One that was stuck gets no more than a grace. */
static bool calm(const struct run *r, enum bl_status why)
{
    struct run last = *r;

    last.calming = true;
    if (why == BL_ETIMEDOUT)
        last.timeout_ns = GRACE_NS;
    if (why == BL_ECANCELLED)
        bl_watch_cancel(r->program, r->place);
    if (why == BL_ETIMEDOUT || why == BL_ECANCELLED)
        bl_watch_begin(r->sched, r->program, r->place, last.timeout_ns);
    (void)join_all(&last);
    while (why == BL_ECANCELLED && bl_watch_is_busy(r->program, r->place)) {
        if (bl_watch_stalled(r->sched, r->program, r->place, last.timeout_ns))
            return false;
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    }
    return true;
}

static enum bl_status run_all(const struct run *r)
{
    const struct bl_program *p = r->program;
    enum bl_status st = copy_params(r);

    for (uint32_t i = 0; !st && i < p->n_steps; i++)
        st = enqueue(r, i);
    if (!st)
        st = copy_result(r);
    if (!st)
        st = join_all(r);
    if (!st)
        return BL_OK;
    char why[512];
    snprintf(why, sizeof why, "%s", bl_error());
    const bool quiet = calm(r, st);
    return quiet || st != BL_ECANCELLED
               ? bl_fail(st, "%s", why)
               : bl_fail(BL_ETIMEDOUT, "%s, but a device goes on with what it was given", why);
}

enum bl_status bl_sched_run(struct bl_sched *s, const struct bl_program *p, struct bl_place *place,
                            const struct bl_step_io *io, uint64_t timeout_ns)
{
    const struct run r = {s, p, place, io, timeout_ns, false};

    BL_TRY(reserve(s, p));
    const struct bl_trace_step step = {io->params_bytes, io->out_bytes, s->n_commands, io->stage};
    if (s->trace)
        BL_TRY(bl_trace_begin(s->trace, p, place));
    bl_watch_begin(s, p, place, timeout_ns);
    const enum bl_status st = run_all(&r);
    if (!s->trace)
        return st;
    char why[512];
    snprintf(why, sizeof why, "%s", bl_error());
    const enum bl_status noted = bl_trace_end(s->trace, p, place, &step, !st);
    return st ? bl_fail(st, "%s", why) : noted;
}

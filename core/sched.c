/* SPDX-License-Identifier: MIT */
#include "sched.h"

#include <stdio.h>
#include <stdlib.h>

static enum bl_status reserve(struct bl_sched *s, uint32_t n)
{
    if (n <= s->cap)
        return BL_OK;
    struct bl_point *bigger = realloc(s->point, n * sizeof *bigger);
    if (!bigger)
        return bl_fail(BL_ENOMEM, "out of memory for %u signals", n);
    s->point = bigger;
    s->cap = n;
    return BL_OK;
}

void bl_sched_finish(struct bl_sched *s)
{
    free(s->point);
    *s = (struct bl_sched){0};
}

static enum bl_status enqueue(struct bl_sched *s, const struct bl_program *p,
                              struct bl_place *place, const struct bl_step *step)
{
    struct bl_place *at = &place[step->device];
    const struct bl_device_ops *ops = at->dev->ops;

    switch (step->kind) {
    case BL_STEP_RUN:
        return ops->segment_run(at->stream, p->range[step->index].segment);
    case BL_STEP_SIGNAL:
        return ops->signal(at->stream, &s->point[step->index]);
    case BL_STEP_WAIT:
        return ops->wait(at->stream, s->point[step->index]);
    default:
        break;
    }
    const struct bl_copy *c = &p->copy[step->index];
    return ops->copy(at->stream, &place[c->to].arena,
                     p->home[(size_t)c->val * p->n_devices + c->to], &place[c->from].arena,
                     p->home[(size_t)c->val * p->n_devices + c->from],
                     bl_value_bytes(&p->graph.vals[c->val]));
}

static enum bl_status copy_params(const struct bl_program *p, struct bl_place *place,
                                  const struct bl_step_io *io)
{
    for (uint32_t d = 0; d < p->n_devices; d++)
        if (p->used[d])
            BL_TRY(place[d].dev->ops->copy(place[d].stream, &place[d].params, 0, io->params, 0,
                                           io->params_bytes));
    return BL_OK;
}

static enum bl_status copy_result(const struct bl_program *p, struct bl_place *place,
                                  const struct bl_step_io *io)
{
    if (!io->out_bytes)
        return BL_OK;
    for (uint32_t d = 0; d < p->n_devices; d++) {
        uint64_t home = p->home[(size_t)p->graph.result * p->n_devices + d];
        if (home != BL_NO_HOME)
            return place[d].dev->ops->copy(place[d].stream, io->out, io->out_off, &place[d].arena,
                                           home, io->out_bytes);
    }
    return bl_fail(BL_EINVAL, "the program has no result");
}

static enum bl_status join_all(const struct bl_program *p, struct bl_place *place,
                               uint64_t timeout_ns)
{
    enum bl_status first = BL_OK;

    for (uint32_t d = 0; d < p->n_devices; d++) {
        struct bl_point end;
        enum bl_status st;
        if (!p->used[d])
            continue;
        if (!(st = place[d].dev->ops->signal(place[d].stream, &end)))
            st = place[d].dev->ops->join(end, timeout_ns);
        if (st && !first)
            first = bl_fail_in(st, "%s", place[d].dev->name);
    }
    return first;
}

/* After a failed enqueue the devices still finish what they were given, so that memory is quiet on
 * return. */
enum bl_status bl_sched_run(struct bl_sched *s, const struct bl_program *p, struct bl_place *place,
                            const struct bl_step_io *io, uint64_t timeout_ns)
{
    enum bl_status st;

    BL_TRY(reserve(s, p->n_signals));
    st = copy_params(p, place, io);
    for (uint32_t i = 0; !st && i < p->n_steps; i++)
        st = enqueue(s, p, place, &p->step[i]);
    if (!st)
        st = copy_result(p, place, io);
    if (!st)
        return join_all(p, place, timeout_ns);
    char why[256];
    snprintf(why, sizeof why, "%s", bl_error());
    join_all(p, place, timeout_ns);
    return bl_fail(st, "%s", why);
}

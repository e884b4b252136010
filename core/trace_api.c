/* SPDX-License-Identifier: MIT */
/* What the public API says of what happened when. */
#include "engine.h"

#include "mem.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum bl_status bl_engine_trace(struct bl_engine *e, bool on)
{
    struct bl_sched *s = &e->sched;

    if (s->trace && s->trace->lent)
        return bl_fail(BL_EDEVICE, "a step failed while it was traced; open the model anew");
    if (s->trace)
        bl_trace_finish(s->trace);
    free(s->trace);
    s->trace = on ? bl_calloc(1, sizeof *s->trace) : NULL;
    return s->trace || !on ? BL_OK : bl_fail(BL_ENOMEM, "out of memory for a trace");
}

static double first_ns(const struct bl_trace *t)
{
    double ns = INFINITY;

    for (uint32_t i = 0; i < t->n; i++)
        ns = fmin(ns, t->event[i].begin_ns);
    return t->n ? ns : 0;
}

enum bl_status bl_engine_trace_json(const struct bl_engine *e, char **text, size_t *n_bytes)
{
    static const struct bl_trace none;
    const struct bl_trace *t = e->sched.trace ? e->sched.trace : &none;
    struct bl_trace_out out;

    bl_trace_out_begin(&out, &e->parts.machine);
    out.measured = true;
    out.zero_ns = first_ns(t);
    bl_trace_out_process(&out, "measured");
    for (uint32_t i = 0; i < t->n; i++)
        bl_trace_out_event(&out, &t->event[i]);
    return bl_trace_out_end(&out, text, n_bytes);
}

struct line {
    char text[1024];
    size_t n;
};

static void append(struct line *l, const char *fmt, ...) BL_PRINTF(2, 3);
static void append(struct line *l, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    const int n = vsnprintf(l->text + l->n, sizeof l->text - l->n, fmt, ap);
    va_end(ap);
    l->n = n < 0 || (size_t)n >= sizeof l->text - l->n ? sizeof l->text - 1 : l->n + (size_t)n;
}

static double percent(double part, double whole)
{
    return whole > 0 ? 100 * part / whole : 0;
}

static void describe(struct line *l, const struct bl_engine *e, const struct bl_trace_sum *sum,
                     const struct bl_trace_device *device)
{
    const struct bl_machine *m = &e->parts.machine;
    const struct bl_experts *x = &e->residency.experts;

    append(l, "%u steps in %.1f ms", sum->n_steps, sum->ns * 1e-6);
    if (sum->copy_ns > 0)
        append(l, "; overlap %.0f %% of copying", percent(sum->hidden_ns, sum->copy_ns));
    append(l, "; idle");
    for (uint32_t d = 0; d < m->n_devices; d++)
        if (e->place[d].dev)
            append(l, " %s %.0f %%", m->device[d].id,
                   fmax(0, 100 - percent(device[d].run_ns + device[d].copy_ns, sum->ns)));
    for (uint32_t d = 1; d < m->n_devices; d++)
        if (e->place[d].dev)
            append(l, "; %s to %s %.3f MB, back %.3f MB", m->device[0].id, m->device[d].id,
                   (double)device[d].in_bytes * 1e-6, (double)device[d].out_bytes * 1e-6);
    for (uint32_t d = 1; d < m->n_devices; d++)
        if (device[d].direct_bytes)
            append(l, "; other cards to %s %.3f MB", m->device[d].id,
                   (double)device[d].direct_bytes * 1e-6);
    if (e->stage.sent_bytes)
        append(l, "; experts sent %.3f MB, of use %.3f MB", (double)e->stage.sent_bytes * 1e-6,
               (double)e->stage.used_bytes * 1e-6);
    if (x->n_uses)
        append(l, "; experts %s %.0f %% of %llu uses", x->n_sets ? "in slots" : "on cards",
               percent((double)x->n_hits, (double)x->n_uses), (unsigned long long)x->n_uses);
    if (x->n_uses && x->n_sets)
        append(l, ", %llu came, %.3f MB", (unsigned long long)x->n_moves,
               (double)e->residency.moved_bytes * 1e-6);
    if (sum->n_host_bound)
        append(l, "; %u simulated steps took longer here than what they stand for",
               sum->n_host_bound);
    if (e->sched.trace->n_dropped)
        append(l, "; %u events were left out", e->sched.trace->n_dropped);
}

void bl_engine_trace_describe(const struct bl_engine *e, void (*line)(void *arg, const char *text),
                              void *arg)
{
    const uint32_t n = e->parts.machine.n_devices;
    struct bl_trace_device *device = bl_calloc(n, sizeof *device);
    struct line l = {.n = 0};
    struct bl_trace_sum sum;

    if (e->sched.trace && device && !bl_trace_sum_up(e->sched.trace, n, &sum, device)) {
        describe(&l, e, &sum, device);
        line(arg, l.text);
    }
    free(device);
}

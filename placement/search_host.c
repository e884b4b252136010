/* SPDX-License-Identifier: MIT */
/* The threads and the memory nodes of a described host: those with which decode is predicted to be
 * quickest. Of the machine that this runs on they were timed, see bl_plan_choose_nodes. */
#include "search_impl.h"

#include "program.h"
#include "timeline.h"

#include <math.h>
#include <stdio.h>

enum { MOST_WAYS = 8 };

struct way {
    uint32_t nodes, threads;
    double ns; /* INFINITY: the weights do not fit there */
};

static uint32_t cores_beside(const struct bl_machine_device *d, uint32_t nodes)
{
    uint32_t sum = 0;

    for (uint32_t i = 0; i < nodes && i < d->n_domains; i++)
        sum += d->domain[i].n_cores;
    return sum ? sum : d->cores * nodes / (d->n_domains ? d->n_domains : 1);
}

static bool fits_on(const struct bl_choice *c, const struct bl_machine_device *d, uint32_t nodes)
{
    uint64_t has = 0;

    if (nodes >= d->n_domains)
        return true;
    for (uint32_t i = 0; i < nodes; i++)
        has += d->domain[i].usable_bytes;
    return bl_ledger_planned(&c->plan.ledger, 0) <= has;
}

static void use(struct bl_plan *p, const struct bl_machine_device *d, const struct way *w)
{
    p->threads = w->threads;
    p->nodes = 0;
    for (uint32_t i = 0; d->n_domains > 1 && i < w->nodes; i++)
        p->nodes |= (uint64_t)1 << (d->domain[i].node < 64 ? d->domain[i].node : i);
}

/* One node and all of them, every core and fewer. */
static uint32_t list_ways(const struct bl_choice *c, const struct bl_machine_device *d,
                          struct way *way)
{
    const uint32_t most = d->n_domains > 1 ? d->n_domains : 1;
    uint32_t n = 0;

    for (uint32_t nodes = 1; nodes <= most; nodes = nodes < most ? most : most + 1) {
        const uint32_t cores = most > 1 ? cores_beside(d, nodes) : d->cores;
        for (uint32_t part = 4; part >= 2 && n < MOST_WAYS; part--)
            if (cores * part / 4 && fits_on(c, d, nodes))
                way[n++] = (struct way){nodes, cores * part / 4, INFINITY};
    }
    return n;
}

static void describe(const struct bl_machine_device *d, const struct way *w, char *text, size_t cap)
{
    if (d->n_domains > 1)
        snprintf(text, cap, "%u threads on %u of %u memory nodes", w->threads, w->nodes,
                 d->n_domains);
    else
        snprintf(text, cap, "%u threads", w->threads);
}

/* The next best that differs in nodes, where there are several. */
static const struct way *runner_up(const struct way *way, uint32_t n, const struct way *best,
                                   bool other_nodes)
{
    const struct way *next = NULL;

    for (uint32_t i = 0; i < n; i++)
        if (&way[i] != best && (!other_nodes || way[i].nodes != best->nodes) &&
            (!next || way[i].ns < next->ns))
            next = &way[i];
    return next;
}

static enum bl_status explain(struct bl_choice *c, const struct bl_machine_device *d,
                              const struct way *way, uint32_t n, const struct way *best)
{
    const struct bl_reason about = {.first = -1, .last = -1, .part = BL_N_PARTS};
    const struct way *next = runner_up(way, n, best, d->n_domains > 1);
    char first[64], second[64];

    describe(d, best, first, sizeof first);
    if (!c->n_reasons)
        return BL_OK; /* nobody asks for any */
    if (!next)
        return bl_add_reason(c, &about, "%s decodes with %s: its weights fit nowhere else", d->id,
                             first);
    describe(d, next, second, sizeof second);
    return bl_add_reason(c, &about,
                         "%s decodes with %s: %.1f tokens/s predicted, against %.1f with %s", d->id,
                         first, 1e9 / best->ns, 1e9 / next->ns, second);
}

enum bl_status bl_choose_host(struct bl_choice *c, const struct bl_model *m,
                              const struct bl_machine *machine, const struct bl_search_options *opt)
{
    const struct bl_machine_device *d = &machine->device[0];
    const struct bl_shape one = bl_plan_bucket(&c->plan, 1, 1);
    const struct bl_timeline_options to = {.table = opt->table, .depth_tokens = opt->depth_tokens};
    struct bl_program prog = {0};
    struct way way[MOST_WAYS], *best = way;

    if (d->config.threads || c->plan.threads || !d->cores || machine->cpus)
        return BL_OK;
    const uint32_t n = list_ways(c, d, way);
    enum bl_status st = bl_program_lower(&prog, m, &c->plan, machine, &one);
    for (uint32_t i = 0; !st && i < n; i++) {
        struct bl_timeline t = {0};
        use(&c->plan, d, &way[i]);
        st = bl_timeline_make(&t, &prog, m, &c->plan, machine, &to);
        way[i].ns = t.ns;
        bl_timeline_finish(&t);
        if (way[i].ns < best->ns * (1 - 1e-6))
            best = &way[i];
    }
    bl_program_finish(&prog);
    if (st || !n)
        return st;
    use(&c->plan, d, best);
    return explain(c, d, way, n, best);
}

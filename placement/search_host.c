/* SPDX-License-Identifier: MIT */
/* The threads and the memory nodes of a described host: those with which decode is predicted to be
 * quickest, or those that were asked for beside them. Of the machine that this runs on they were
 * timed, see bl_plan_choose_nodes. */
#include "search_impl.h"

#include "mem.h"
#include "program.h"
#include "timeline.h"

#include <math.h>
#include <stdio.h>

enum { MOST_WAYS = 10 };

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

/* What lies in the host's memory, mapped files included. */
static enum bl_status host_bytes(const struct bl_choice *c, const struct bl_model *m, uint64_t *sum)
{
    const uint32_t n = bl_gguf_n_tensors(m->gguf);
    uint64_t *bytes = bl_calloc((size_t)n + 1, sizeof *bytes);

    if (!bytes)
        return bl_fail(BL_ENOMEM, "out of memory for the host's part of a plan");
    *sum = bl_ledger_planned(&c->plan.ledger, 0);
    bl_plan_tensor_bytes(&c->plan, m, 0, bytes);
    for (uint32_t i = 0; c->plan.mmap && i < n; i++)
        *sum += bytes[i];
    free(bytes);
    return BL_OK;
}

static bool fits_on(const struct bl_machine_device *d, uint32_t nodes, uint64_t bytes)
{
    uint64_t has = 0;

    if (nodes >= d->n_domains)
        return true;
    for (uint32_t i = 0; i < nodes; i++)
        has += d->domain[i].usable_bytes;
    return bytes <= has;
}

static void use(struct bl_plan *p, const struct bl_machine_device *d, const struct way *w)
{
    p->threads = w->threads;
    p->nodes = 0;
    for (uint32_t i = 0; d->n_domains > 1 && i < w->nodes; i++)
        p->nodes |= (uint64_t)1 << (d->domain[i].node < 64 ? d->domain[i].node : i);
}

/* One node, those of one socket and all of them; every core and fewer. */
static uint32_t list_ways(const struct bl_machine_device *d, uint64_t bytes, struct way *way)
{
    const uint32_t all = d->n_domains > 1 ? d->n_domains : 1,
                   socket = d->sockets > 1 ? all / d->sockets : all, nodes[] = {1, socket, all};
    uint32_t n = 0;

    for (unsigned i = 0; i < BL_COUNT(nodes); i++) {
        const uint32_t cores = all > 1 ? cores_beside(d, nodes[i]) : d->cores;
        if ((i && nodes[i] <= nodes[i - 1]) || !fits_on(d, nodes[i], bytes))
            continue;
        for (uint32_t part = 4; part >= 2; part--)
            if (cores * part / 4)
                way[n++] = (struct way){nodes[i], cores * part / 4, INFINITY};
    }
    return n;
}

/* The way that was asked for is one of them, or comes last. */
static struct way *asked_way(const struct bl_choice *c, const struct bl_model *m,
                             const struct bl_machine_device *d, struct way *way, uint32_t *n)
{
    struct bl_pricing p;

    bl_pricing_init(&p, d, m, &c->plan, NULL);
    for (uint32_t i = 0; i < *n; i++)
        if (way[i].threads == p.few.threads && way[i].nodes == p.few.domains)
            return &way[i];
    way[*n] = (struct way){p.few.domains, p.few.threads, INFINITY};
    return &way[(*n)++];
}

static void describe(const struct bl_machine_device *d, const struct way *w, char *text, size_t cap)
{
    if (d->n_domains > 1)
        snprintf(text, cap, "%u thread%s on %u of %u memory nodes", w->threads,
                 bl_plural(w->threads), w->nodes, d->n_domains);
    else
        snprintf(text, cap, "%u thread%s", w->threads, bl_plural(w->threads));
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

static enum bl_status time_ways(struct bl_choice *c, const struct bl_model *m,
                                const struct bl_machine *machine,
                                const struct bl_search_options *opt, struct way *way, uint32_t n)
{
    const struct bl_shape one = bl_plan_bucket(&c->plan, 1, 1);
    const struct bl_timeline_options to = {.table = opt->table, .depth_tokens = opt->depth_tokens};
    struct bl_program prog = {0};

    enum bl_status st = bl_program_lower(&prog, m, &c->plan, machine, &one);
    for (uint32_t i = 0; !st && i < n; i++) {
        struct bl_timeline t = {0};
        use(&c->plan, &machine->device[0], &way[i]);
        st = bl_timeline_make(&t, &prog, m, &c->plan, machine, &to);
        way[i].ns = t.ns;
        bl_timeline_finish(&t);
    }
    bl_program_finish(&prog);
    return st;
}

enum bl_status bl_choose_host(struct bl_choice *c, const struct bl_model *m,
                              const struct bl_machine *machine, const struct bl_search_options *opt)
{
    /* Fewer threads than cores must promise more than their costs are known to. */
    const double worth_idling = 0.95;
    const struct bl_machine_device *d = &machine->device[0];
    const uint32_t threads = c->plan.threads;
    const uint64_t nodes = c->plan.nodes;
    const bool asked = d->config.threads || threads;
    struct way way[MOST_WAYS], *best = way;
    uint64_t bytes = 0;

    if (!d->cores || machine->cpus)
        return BL_OK;
    BL_TRY(host_bytes(c, m, &bytes));
    uint32_t n = list_ways(d, bytes, way);
    if (asked)
        best = asked_way(c, m, d, way, &n);
    const enum bl_status st = time_ways(c, m, machine, opt, way, n);
    for (uint32_t i = 0; !asked && i < n; i++)
        if (way[i].ns < best->ns * (way[i].nodes == best->nodes ? worth_idling : 1 - 1e-6))
            best = &way[i];
    if (!st && n)
        use(&c->plan, d, best);
    if (asked) { /* as it was */
        c->plan.threads = threads;
        c->plan.nodes = nodes;
    }
    return st || !n ? st : explain(c, d, way, n, best);
}

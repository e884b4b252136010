/* SPDX-License-Identifier: MIT */
/* Why a plan is as it is, a line for each group. */
#include "search_impl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static const double gib = 1.0 / (1 << 30);

struct group { /* layers with everything at the same places */
    uint32_t first, last;
    uint16_t rest, experts;
};

static enum bl_status add(struct bl_choice *c, const struct bl_reason *about, const char *fmt, ...)
    BL_PRINTF(3, 4);

static enum bl_status add(struct bl_choice *c, const struct bl_reason *about, const char *fmt, ...)
{
    va_list args;

    if (c->n_reasons == c->cap_reasons) {
        const uint32_t cap = c->cap_reasons ? 2 * c->cap_reasons : 16;
        struct bl_reason *bigger = realloc(c->reason, cap * sizeof *bigger);
        if (!bigger)
            return bl_fail(BL_ENOMEM, "out of memory for the plan's reasons");
        c->reason = bigger;
        c->cap_reasons = cap;
    }
    struct bl_reason *r = &c->reason[c->n_reasons++];
    *r = *about;
    va_start(args, fmt);
    vsnprintf(r->text, sizeof r->text, fmt, args);
    va_end(args);
    return BL_OK;
}

static uint64_t free_bytes(const struct bl_choice *c, const struct bl_costs *k, uint16_t d)
{
    const uint64_t used = bl_ledger_planned(&c->plan.ledger, d);
    return k->budget[d] > used ? k->budget[d] - used : 0;
}

static enum bl_status explain_device(struct bl_choice *c, const struct bl_costs *k,
                                     const struct bl_machine *m, uint16_t d)
{
    const struct bl_reason about = {.first = -1, .last = -1, .device = d, .part = BL_N_PARTS};
    const struct bl_machine_device *md = &m->device[d];

    if (!bl_plan_uses(&c->plan, d) && c->by_rules)
        return add(c, &about, "%s is not used: the rules leave it out", md->id);
    if (!bl_plan_uses(&c->plan, d) && c->by_hand)
        return add(c, &about, "%s is not used: the plan leaves it out", md->id);
    if (!bl_plan_uses(&c->plan, d))
        return add(c, &about,
                   "%s is not used: what crossings to it cost is more than its %.0f GB/s save",
                   md->id, bl_device_read_bps(md) * 1e-9);
    return add(c, &about, "%s: %.2f of %.2f GiB planned, %.2f GiB left", md->id,
               (double)bl_ledger_planned(&c->plan.ledger, d) * gib, (double)k->budget[d] * gib,
               (double)free_bytes(c, k, d) * gib);
}

static enum bl_status explain_rest(struct bl_choice *c, const struct bl_costs *k,
                                   const struct bl_machine *m, const struct group *g)
{
    const struct bl_reason about = {.first = (int32_t)g->first,
                                    .last = (int32_t)g->last,
                                    .device = g->rest,
                                    .part = BL_PART_ATTN};
    uint64_t bytes = 0;

    for (uint32_t l = g->first; l <= g->last; l++)
        bytes += k->bytes[(size_t)l * BL_N_GROUPS + BL_GROUP_REST];
    return add(
        c, &about, "attention, its cache and the dense part on %s: %.2f GiB, read at %.0f GB/s",
        m->device[g->rest].id, (double)bytes * gib, bl_device_read_bps(&m->device[g->rest]) * 1e-9);
}

/* The smallest of the experts that the host has: would it fit? */
static uint64_t next_bytes(const struct bl_choice *c, const struct bl_costs *k)
{
    uint64_t least = 0;

    for (uint32_t l = 0; l < k->n_layers; l++) {
        const uint64_t bytes = k->bytes[(size_t)l * BL_N_GROUPS + BL_GROUP_EXPERTS];
        if (bytes && bl_plan_device(&c->plan, (int)l, BL_PART_EXPERTS) == 0 &&
            (!least || bytes < least))
            least = bytes;
    }
    return least;
}

static enum bl_status explain_experts(struct bl_choice *c, const struct bl_costs *k,
                                      const struct bl_machine *m, const struct group *g)
{
    const uint16_t d = g->experts;
    const struct bl_reason about = {
        .first = (int32_t)g->first, .last = (int32_t)g->last, .device = d, .part = BL_PART_EXPERTS};
    const uint64_t next = next_bytes(c, k);
    uint64_t bytes = 0;

    for (uint32_t l = g->first; l <= g->last; l++)
        bytes += k->bytes[(size_t)l * BL_N_GROUPS + BL_GROUP_EXPERTS];
    if (!bytes)
        return BL_OK;
    if (c->by_rules || c->by_hand)
        return add(c, &about, "experts on %s: %.2f GiB, as the %s", m->device[d].id,
                   (double)bytes * gib, c->by_rules ? "rules say" : "plan says");
    if (d == 0)
        return add(c, &about, "experts in RAM: %.2f GiB for which no card has room%s",
                   (double)bytes * gib, m->n_devices > 1 ? "" : " (there is none)");
    const char *then = !next                        ? "there are no others"
                       : next > free_bytes(c, k, d) ? "next one would not fit"
                                                    : "one more would fit but not help";
    return add(c, &about, "experts on %s: %.2f of %.2f GiB; %s", m->device[d].id,
               (double)bl_ledger_planned(&c->plan.ledger, d) * gib, (double)k->budget[d] * gib,
               then);
}

enum bl_status bl_explain(struct bl_choice *c, const struct bl_costs *k, const struct bl_model *m,
                          const struct bl_machine *machine)
{
    const struct bl_plan *p = &c->plan;
    struct group g = {0};

    for (uint32_t l = 0; l < m->hp.n_layer; l++) {
        const uint16_t rest = bl_plan_device(p, (int)l, BL_PART_ATTN),
                       experts = bl_plan_device(p, (int)l, BL_PART_EXPERTS);
        if (!l)
            g = (struct group){0, 0, rest, experts};
        const bool more = rest == g.rest && experts == g.experts;
        if (more)
            g.last = l;
        if (more && l + 1 < m->hp.n_layer)
            continue;
        BL_TRY(explain_rest(c, k, machine, &g));
        BL_TRY(explain_experts(c, k, machine, &g));
        g = (struct group){l, l, rest, experts};
        if (!more && l + 1 == m->hp.n_layer) {
            BL_TRY(explain_rest(c, k, machine, &g));
            BL_TRY(explain_experts(c, k, machine, &g));
        }
    }
    const struct bl_reason ctx = {.first = -1, .last = -1, .part = BL_PART_STATE};
    if (p->ctx_tokens < c->asked_ctx_tokens)
        BL_TRY(add(c, &ctx,
                   "context reduced from %llu to %llu tokens, as allowed: more does not fit",
                   (unsigned long long)c->asked_ctx_tokens, (unsigned long long)p->ctx_tokens));
    for (uint16_t d = 0; d < machine->n_devices; d++)
        BL_TRY(explain_device(c, k, machine, d));
    return BL_OK;
}

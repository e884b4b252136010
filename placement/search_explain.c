/* SPDX-License-Identifier: MIT */
/* Why a plan is as it is, a line for each group. */
#include "search_impl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static const double gib = 1.0 / (1 << 30);

struct group { /* layers with everything at the same places, for the same reasons */
    uint32_t first, last;
    uint16_t rest, state, experts;
    uint8_t rule; /* of experts; 0: none */
};

enum bl_status bl_add_reason(struct bl_choice *c, const struct bl_reason *about, const char *fmt,
                             ...)
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

const char *bl_range_text(uint32_t first, uint32_t last, char text[32])
{
    if (first == last)
        snprintf(text, 32, " %u", first);
    else
        snprintf(text, 32, "s %u-%u", first, last);
    return text;
}

static uint64_t free_bytes(const struct bl_choice *c, const struct bl_costs *k, uint16_t d)
{
    const uint64_t used = bl_ledger_planned(&c->plan.ledger, d);
    return k->budget[d] > used ? k->budget[d] - used : 0;
}

static bool left_out(const struct bl_costs *k, uint16_t d)
{
    return k->pins && (k->pins->complete || k->pins->left_out >> d & 1);
}

static const char *lack_name(const struct bl_lack *lack, char text[64])
{
    if (lack->bytes)
        snprintf(text, 64, "have %.1f MiB in one allocation", (double)lack->bytes / 0x1p20);
    else if (lack->type == BL_N_DTYPES)
        snprintf(text, 64, "run %s", bl_ops[lack->op - 1].name);
    else
        snprintf(text, 64, "run %s of %s", bl_ops[lack->op - 1].name, bl_dtypes[lack->type].name);
    return text;
}

/* That keeps the group of a layer off every card; NULL: one can run it. */
static const struct bl_lack *lack_of_all(const struct bl_costs *k, uint32_t l, enum bl_group g)
{
    const struct bl_lack *lack = NULL;

    for (uint16_t d = 1; d < k->n_devices; d++) {
        const struct bl_lack *one = &k->lack[bl_cost_at(k, l, g, d)];
        if (!one->op)
            return NULL;
        lack = lack ? lack : one;
    }
    return lack;
}

/* That keeps everything off the device; NULL: it can run something. */
static const struct bl_lack *lack_of_device(const struct bl_costs *k, uint16_t d)
{
    const struct bl_lack *lack = NULL;

    for (uint32_t l = 0; l < k->n_layers; l++)
        for (enum bl_group g = 0; g < BL_N_GROUPS; g++) {
            const struct bl_lack *one = &k->lack[bl_cost_at(k, l, g, d)];
            if (bl_group_bytes(k, l, g) && !one->op)
                return NULL;
            lack = lack || !one->op ? lack : one;
        }
    return lack;
}

static enum bl_status explain_device(struct bl_choice *c, const struct bl_costs *k,
                                     const struct bl_machine *m, uint16_t d)
{
    const struct bl_reason about = {.first = -1, .last = -1, .device = d, .part = BL_N_PARTS};
    const struct bl_machine_device *md = &m->device[d];

    if (bl_plan_uses(&c->plan, d))
        return bl_add_reason(c, &about, "%s: %.2f of %.2f GiB planned, %.2f GiB left", md->id,
                             (double)bl_ledger_planned(&c->plan.ledger, d) * gib,
                             (double)k->budget[d] * gib, (double)free_bytes(c, k, d) * gib);
    if (left_out(k, d))
        return bl_add_reason(c, &about, "%s is not used: the rules leave it out", md->id);
    const struct bl_lack *lack = lack_of_device(k, d);
    if (lack)
        return bl_add_reason(c, &about, "%s is not used: it cannot %s", md->id,
                             lack_name(lack, (char[64]){0}));
    if (!k->open[d] && md->kind == BL_KIND_GPU)
        return bl_add_reason(
            c, &about,
            "%s is not used: it would take the host's memory, and there are cards with "
            "memory of their own",
            md->id);
    return bl_add_reason(
        c, &about, "%s is not used: what crossings to it cost is more than its %.0f GB/s save",
        md->id, bl_device_read_bps(md) * 1e-9);
}

static enum bl_status explain_rest(struct bl_choice *c, const struct bl_costs *k,
                                   const struct bl_machine *m, const struct group *g)
{
    const struct bl_reason about = {.first = (int32_t)g->first,
                                    .last = (int32_t)g->last,
                                    .device = g->rest,
                                    .part = BL_PART_ATTN};
    const char *id = m->device[g->rest].id;
    const double read = bl_device_read_bps(&m->device[g->rest]) * 1e-9;
    uint64_t bytes = 0;

    for (uint32_t l = g->first; l <= g->last; l++)
        bytes += bl_group_bytes(k, l, BL_GROUP_REST);
    if (g->state != g->rest)
        return bl_add_reason(
            c, &about,
            "projections and the dense part on %s, read at %.0f GB/s; cached state and "
            "attention over it on %s",
            id, read, m->device[g->state].id);
    const struct bl_lack *lack = g->rest ? NULL : lack_of_all(k, g->first, BL_GROUP_REST);
    return bl_add_reason(
        c, &about, "attention, its cache and the dense part on %s: %.2f GiB, read at %.0f GB/s%s%s",
        id, (double)bytes * gib, read, lack ? "; no card can " : "",
        lack ? lack_name(lack, (char[64]){0}) : "");
}

/* The smallest of the experts that the host has by choice: would it fit? */
static uint64_t next_bytes(const struct bl_choice *c, const struct bl_costs *k)
{
    uint64_t least = 0;

    for (uint32_t l = 0; l < k->n_layers; l++) {
        const uint64_t bytes = bl_group_bytes(k, l, BL_GROUP_EXPERTS);
        if (bytes && bl_plan_device(&c->plan, (int)l, BL_PART_EXPERTS) == 0 &&
            k->pin[l * BL_N_GROUPS + BL_GROUP_EXPERTS] == BL_NO_DEVICE && (!least || bytes < least))
            least = bytes;
    }
    return least;
}

static const char *why_in_ram(const struct bl_choice *c, const struct bl_costs *k, uint32_t l,
                              uint64_t next, char text[96])
{
    const struct bl_lack *lack = lack_of_all(k, l, BL_GROUP_EXPERTS);
    bool card = false, room = false;

    for (uint16_t d = 1; d < k->n_devices; d++) {
        card = card || k->open[d];
        room = room || (k->open[d] && next <= free_bytes(c, k, d));
    }
    if (lack) {
        snprintf(text, 96, "; no card can %s", lack_name(lack, (char[64]){0}));
        return text;
    }
    return !card  ? ""
           : room ? ", which cards with room for some would not make faster"
                  : " for which no card has room";
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
        bytes += bl_group_bytes(k, l, BL_GROUP_EXPERTS);
    if (!bytes)
        return BL_OK;
    const char *where = d ? m->device[d].id : "cpu0";
    if (g->rule)
        return bl_add_reason(c, &about, "experts on %s: %.2f GiB, as %s says", where,
                             (double)bytes * gib, k->pins->said[g->rule - 1]);
    if (c->by_rules)
        return bl_add_reason(c, &about, "experts on %s: %.2f GiB, where the rules put the layer",
                             where, (double)bytes * gib);
    if (c->by_hand)
        return bl_add_reason(c, &about, "experts on %s: %.2f GiB, as the plan says", where,
                             (double)bytes * gib);
    if (d == 0)
        return bl_add_reason(c, &about, "experts in RAM: %.2f GiB%s", (double)bytes * gib,
                             why_in_ram(c, k, g->first, next, (char[96]){0}));
    const char *then = !next                        ? "there are no others"
                       : next > free_bytes(c, k, d) ? "next one would not fit"
                                                    : "one more would fit but not help";
    return bl_add_reason(c, &about, "experts on %s: %.2f of %.2f GiB; %s", where,
                         (double)bl_ledger_planned(&c->plan.ledger, d) * gib,
                         (double)k->budget[d] * gib, then);
}

static struct group group_of(const struct bl_choice *c, const struct bl_costs *k, uint32_t l)
{
    const struct bl_plan *p = &c->plan;
    return (struct group){l,
                          l,
                          bl_plan_device(p, (int)l, BL_PART_ATTN),
                          bl_plan_device(p, (int)l, BL_PART_STATE),
                          bl_plan_device(p, (int)l, BL_PART_EXPERTS),
                          k->pins ? k->pins->by[l * BL_N_PARTS + BL_PART_EXPERTS] : 0};
}

static enum bl_status explain_layers(struct bl_choice *c, const struct bl_costs *k,
                                     const struct bl_machine *m)
{
    struct group g = group_of(c, k, 0);

    for (uint32_t l = 1; l <= k->n_layers; l++) {
        const struct group next = l < k->n_layers ? group_of(c, k, l) : g;
        if (l < k->n_layers && next.rest == g.rest && next.state == g.state &&
            next.experts == g.experts && next.rule == g.rule) {
            g.last = l;
            continue;
        }
        BL_TRY(explain_rest(c, k, m, &g));
        BL_TRY(explain_experts(c, k, m, &g));
        g = next;
    }
    return BL_OK;
}

enum bl_status bl_explain(struct bl_choice *c, const struct bl_costs *k, const struct bl_model *m,
                          const struct bl_machine *machine)
{
    const struct bl_reason ctx = {.first = -1, .last = -1, .part = BL_PART_STATE};
    const struct bl_plan *p = &c->plan;

    BL_TRY(explain_layers(c, k, machine));
    if (p->ctx_tokens < c->asked_ctx_tokens)
        BL_TRY(bl_add_reason(
            c, &ctx, "context reduced from %llu to %llu tokens, as allowed: more does not fit",
            (unsigned long long)c->asked_ctx_tokens, (unsigned long long)p->ctx_tokens));
    for (uint16_t d = 0; d < machine->n_devices; d++)
        BL_TRY(explain_device(c, k, machine, d));
    if (m->hp.n_layer_nextn)
        BL_TRY(bl_add_reason(c, &ctx,
                             "not loaded, so that 0 bytes are planned: %u layer%s for drafting",
                             m->hp.n_layer_nextn, bl_plural(m->hp.n_layer_nextn)));
    return BL_OK;
}

bool bl_plan_sends_to(const struct bl_plan *p, const struct bl_model *m, uint16_t d)
{
    for (uint32_t l = 0; d && l < p->n_layers; l++)
        if (m->layer[l].moe && bl_plan_device(p, (int)l, BL_PART_ATTN) == d &&
            bl_plan_device(p, (int)l, BL_PART_EXPERTS) == 0)
            return true;
    return false;
}

enum bl_status bl_explain_sending(struct bl_choice *c, const struct bl_model *m,
                                  const struct bl_machine *machine)
{
    for (uint16_t d = 1; c->n_reasons && d < machine->n_devices; d++) {
        const struct bl_reason about = {
            .first = -1, .last = -1, .device = d, .part = BL_PART_EXPERTS};
        const char *id = machine->device[d].id;
        if (!bl_plan_sends_to(&c->plan, m, d))
            continue;
        if (c->sent_from_tok[d])
            BL_TRY(bl_add_reason(c, &about,
                                 "%s: from %u tokens a step on, experts in RAM are quicker sent "
                                 "there than computed by the host",
                                 id, c->sent_from_tok[d]));
        else
            BL_TRY(bl_add_reason(c, &about,
                                 "%s: experts in RAM are never quicker sent there than computed by "
                                 "the host",
                                 id));
    }
    return BL_OK;
}

/* SPDX-License-Identifier: MIT */
/* Why a plan is as it is, a line for each group. */
#include "search_impl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

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
        snprintf(text, 64, "have %s in one allocation", BL_SIZE(lack->bytes));
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

/* "11.59 of 11.60 GiB" */
static const char *share_text(uint64_t part, uint64_t whole, char text[64])
{
    const uint64_t large = (uint64_t)100 << 20; /* as bl_size_text has it */

    if (part >= large && whole >= large)
        snprintf(text, 64, "%.2f of %s", (double)part / (1 << 30), BL_SIZE(whole));
    else
        snprintf(text, 64, "%s of %s", BL_SIZE(part), BL_SIZE(whole));
    return text;
}

/* Of what a card could have, the least. */
static void place_least(struct bl_plan *p, const struct bl_costs *k, uint16_t d)
{
    const uint64_t least = bl_least_group(k, d);

    for (uint32_t l = 0; l < k->n_layers; l++)
        for (unsigned g = 0; g < BL_N_GROUPS; g++) {
            if (bl_group_bytes(k, l, g) != least || bl_able_or_host(k, l, g, d) != d)
                continue;
            for (unsigned part = 0; part < BL_N_PARTS; part++)
                if ((part == BL_PART_EXPERTS) == (g == BL_GROUP_EXPERTS))
                    p->slot[l * BL_N_PARTS + part] = d;
            return;
        }
}

/* With the least of the model and the buffers for it. */
static enum bl_status least_bytes(const struct bl_choice *c, const struct bl_costs *k,
                                  const struct bl_model *model, const struct bl_machine *m,
                                  uint16_t d, uint64_t *bytes)
{
    struct bl_plan p;

    BL_TRY(bl_plan_init(&p, model));
    uint16_t *const slot = p.slot;
    p = c->plan;
    p.slot = slot;
    p.ledger = (struct bl_ledger){0};
    p.range = NULL;
    p.slots = NULL;
    p.n_ranges = p.n_slot_sets = p.stream_from = 0;
    p.mmap = false;
    place_least(&p, k, d);
    const enum bl_status st = bl_plan_fill_memory(&p, model, m);
    *bytes = st ? 0 : bl_ledger_planned(&p.ledger, d);
    bl_plan_finish(&p);
    return st == BL_EUNSUPPORTED ? BL_OK : st;
}

static bool are_twins(const struct bl_machine *m, uint16_t a, uint16_t b)
{
    const struct bl_machine_device *x = &m->device[a], *y = &m->device[b];
    return x->kind == y->kind && x->backend == y->backend && x->driver_bytes == y->driver_bytes &&
           x->caps.granule_bytes == y->caps.granule_bytes;
}

/* What is known of cards that are not used. */
struct idle {
    uint16_t like; /* the last that was asked about; 0: none was */
    uint64_t least_bytes;
};

static enum bl_status explain_idle(struct bl_choice *c, const struct bl_costs *k,
                                   const struct bl_model *model, const struct bl_machine *m,
                                   uint16_t d, struct idle *idle)
{
    const struct bl_reason about = {.first = -1, .last = -1, .device = d, .part = BL_N_PARTS};
    const struct bl_machine_device *md = &m->device[d];

    if (!idle->like || !are_twins(m, idle->like, d))
        BL_TRY(least_bytes(c, k, model, m, d, &idle->least_bytes));
    idle->like = d;
    if (idle->least_bytes > k->budget[d])
        return bl_add_reason(c, &about,
                             "%s is not used: the least part of the model and buffers for it take "
                             "%s there, of %s that can be planned with",
                             md->id, BL_SIZE(idle->least_bytes), BL_SIZE(k->budget[d]));
    return bl_add_reason(
        c, &about, "%s is not used: what crossings to it cost is more than its %.0f GB/s save",
        md->id, bl_device_read_bps(md) * 1e-9);
}

static enum bl_status explain_device(struct bl_choice *c, const struct bl_costs *k,
                                     const struct bl_model *model, const struct bl_machine *m,
                                     uint16_t d, struct idle *idle)
{
    const struct bl_reason about = {.first = -1, .last = -1, .device = d, .part = BL_N_PARTS};
    const struct bl_machine_device *md = &m->device[d];

    if (bl_plan_uses(&c->plan, d))
        return bl_add_reason(
            c, &about, "%s: %s planned, %s left", md->id,
            share_text(bl_ledger_planned(&c->plan.ledger, d), k->budget[d], (char[64]){0}),
            BL_SIZE(free_bytes(c, k, d)));
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
    return explain_idle(c, k, model, m, d, idle);
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
    return bl_add_reason(c, &about,
                         "attention, its cache and the dense part on %s: %s, read at %.0f GB/s%s%s",
                         id, BL_SIZE(bytes), read, lack ? "; no card can " : "",
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
        return bl_add_reason(c, &about, "experts on %s: %s, as %s says", where, BL_SIZE(bytes),
                             k->pins->said[g->rule - 1]);
    if (c->by_rules)
        return bl_add_reason(c, &about, "experts on %s: %s, where the rules put the layer", where,
                             BL_SIZE(bytes));
    if (c->by_hand)
        return bl_add_reason(c, &about, "experts on %s: %s, as the plan says", where,
                             BL_SIZE(bytes));
    if (d == 0)
        return bl_add_reason(c, &about, "experts in RAM: %s%s", BL_SIZE(bytes),
                             why_in_ram(c, k, g->first, next, (char[96]){0}));
    const char *then = !next                        ? "there are no others"
                       : next > free_bytes(c, k, d) ? "next one would not fit"
                                                    : "one more would fit but not help";
    return bl_add_reason(
        c, &about, "experts on %s: %s; %s", where,
        share_text(bl_ledger_planned(&c->plan.ledger, d), k->budget[d], (char[64]){0}), then);
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
    struct idle idle = {0};

    BL_TRY(explain_layers(c, k, machine));
    if (p->ctx_tokens < c->asked_ctx_tokens)
        BL_TRY(bl_add_reason(
            c, &ctx, "context reduced from %llu to %llu tokens, as allowed: more does not fit",
            (unsigned long long)c->asked_ctx_tokens, (unsigned long long)p->ctx_tokens));
    for (uint16_t d = 0; d < machine->n_devices; d++)
        BL_TRY(explain_device(c, k, m, machine, d, &idle));
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

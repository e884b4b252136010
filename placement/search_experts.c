/* SPDX-License-Identifier: MIT */
/* Where statistics tell which experts are used most: rather those of all layers on a card than all
 * of some layers, or slots for those used last; whichever the simulation says is quickest. */
#include "expert_share.h"
#include "search_impl.h"

#include "mem.h"

#include <math.h>
#include <stdlib.h>

enum { MOST_RANGES = 8192, ROUNDS = 4 }; /* a plan file has room for twice as many rows */

/* ---- a plan's experts, to go back to --------------------------------------------------------- */

struct saved {
    uint16_t *slot;
    struct bl_expert_range *range;
    uint32_t n_ranges;
};

static void forget(struct saved *s)
{
    free(s->slot);
    free(s->range);
}

static enum bl_status save(struct saved *s, const struct bl_plan *p)
{
    const size_t n = ((size_t)p->n_layers + 1) * BL_N_PARTS;

    *s = (struct saved){.n_ranges = p->n_ranges};
    s->slot = bl_calloc(n, sizeof *s->slot);
    s->range = bl_calloc((size_t)p->n_ranges + 1, sizeof *s->range);
    if (!s->slot || !s->range) {
        forget(s);
        return bl_fail(BL_ENOMEM, "out of memory for a plan's experts");
    }
    memcpy(s->slot, p->slot, n * sizeof *s->slot);
    if (p->n_ranges)
        memcpy(s->range, p->range, p->n_ranges * sizeof *s->range);
    return BL_OK;
}

static enum bl_status restore(const struct saved *s, struct bl_plan *p)
{
    memcpy(p->slot, s->slot, ((size_t)p->n_layers + 1) * BL_N_PARTS * sizeof *s->slot);
    p->n_ranges = p->n_slot_sets = 0;
    for (uint32_t i = 0; i < s->n_ranges; i++)
        BL_TRY(bl_plan_add_range(p, s->range[i].layer, s->range[i].first, s->range[i].n,
                                 s->range[i].device));
    return BL_OK;
}

/* ---- a card and its layers ------------------------------------------------------------------- */

/* A layer of the card whose experts may be moved and are there or in RAM. */
static bool is_its(const struct bl_search_state *s, uint16_t d, uint32_t l)
{
    const uint16_t at = bl_plan_device(s->plan, (int)l, BL_PART_EXPERTS);

    return s->model->layer[l].moe && (at == d || at == 0) &&
           bl_plan_device(s->plan, (int)l, BL_PART_ATTN) == d &&
           bl_may_move(&s->costs, s->machine, l, BL_GROUP_EXPERTS, d);
}

/* Bytes for experts of these layers: those that are there, and what is left. */
static uint64_t room_for(const struct bl_search_state *s, uint16_t d)
{
    const uint64_t used = bl_ledger_planned(&s->plan->ledger, d), has = s->costs.budget[d];
    uint64_t bytes = used < has ? has - used : 0;

    for (uint32_t l = 0; l < s->costs.n_layers; l++)
        if (is_its(s, d, l))
            bytes += bl_plan_experts_on(s->plan, l, s->model->hp.n_expert, d) *
                     bl_expert_bytes(s->model, l);
    return bytes;
}

static void clear_layers(struct bl_search_state *s, uint16_t d)
{
    struct bl_plan *p = s->plan;
    uint32_t kept = 0;

    for (uint32_t i = 0; i < p->n_ranges; i++)
        if (!is_its(s, d, p->range[i].layer))
            p->range[kept++] = p->range[i];
    p->n_ranges = kept;
    for (uint32_t l = 0; l < s->costs.n_layers; l++)
        if (is_its(s, d, l))
            p->slot[(size_t)l * BL_N_PARTS + BL_PART_EXPERTS] = 0;
}

/* ---- the most used --------------------------------------------------------------------------- */

struct candidate {
    double gain; /* share of uses for a byte */
    uint64_t bytes;
    uint32_t layer, expert;
};

static int by_gain(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;

    if (x->gain < y->gain || x->gain > y->gain)
        return x->gain < y->gain ? 1 : -1;
    if (x->layer != y->layer)
        return x->layer < y->layer ? -1 : 1;
    return x->expert < y->expert ? -1 : x->expert > y->expert;
}

static uint32_t list(const struct bl_search_state *s, uint16_t d, struct candidate *c)
{
    const struct bl_expert_stats *k = s->plan->known;
    const uint32_t n_experts = s->model->hp.n_expert;
    uint32_t n = 0;

    for (uint32_t l = 0; l < s->costs.n_layers; l++) {
        const uint64_t *uses = k->uses + (size_t)l * n_experts;
        const uint64_t bytes = bl_expert_bytes(s->model, l);
        double all = 0;
        if (!is_its(s, d, l) || !bytes)
            continue;
        for (uint32_t e = 0; e < n_experts; e++)
            all += (double)uses[e];
        for (uint32_t e = 0; e < n_experts; e++, n++)
            c[n] = (struct candidate){(all > 0 ? (double)uses[e] / all : 0) / (double)bytes, bytes,
                                      l, e};
    }
    return n;
}

static int by_place(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;

    if (x->layer != y->layer)
        return x->layer < y->layer ? -1 : 1;
    return x->expert < y->expert ? -1 : x->expert > y->expert;
}

/* The first ones that fit, in runs. *fits false: more runs than plans hold. */
static enum bl_status put_best(struct bl_search_state *s, uint16_t d, uint64_t room, bool *fits)
{
    const size_t most = (size_t)s->costs.n_layers * s->model->hp.n_expert;
    struct candidate *c = bl_calloc(most + 1, sizeof *c);
    enum bl_status st = BL_OK;
    uint32_t n = 0, all;

    if (!c)
        return bl_fail(BL_ENOMEM, "out of memory for a search among experts");
    all = list(s, d, c);
    qsort(c, all, sizeof *c, by_gain);
    while (n < all && c[n].bytes <= room && c[n].gain > 0)
        room -= c[n++].bytes;
    qsort(c, n, sizeof *c, by_place);
    *fits = true;
    for (uint32_t i = 0, run; !st && i < n && *fits; i += run) {
        for (run = 1; i + run < n && c[i + run].layer == c[i].layer &&
                      c[i + run].expert == c[i].expert + run;)
            run++;
        *fits = s->plan->n_ranges < MOST_RANGES;
        if (run == s->model->hp.n_expert)
            s->plan->slot[(size_t)c[i].layer * BL_N_PARTS + BL_PART_EXPERTS] = d;
        else
            st = bl_plan_add_range(s->plan, c[i].layer, c[i].expert, run, d);
    }
    free(c);
    return st;
}

/* As many slots for each layer as there is room for. */
static enum bl_status put_slots(struct bl_search_state *s, uint16_t d, uint64_t room, bool *fits)
{
    uint64_t each = 0;

    for (uint32_t l = 0; l < s->costs.n_layers; l++)
        each += is_its(s, d, l) ? bl_expert_bytes(s->model, l) : 0;
    const uint64_t n = each ? room / each : 0;
    const uint32_t most = s->model->hp.n_expert;
    *fits = n > 0 && n < most; /* all of them need no slots */
    for (uint32_t l = 0; *fits && l < s->costs.n_layers; l++)
        if (is_its(s, d, l))
            BL_TRY(bl_plan_add_slots(s->plan, l, d, (uint32_t)n));
    s->plan->expert_policy = BL_EXPERTS_LRU;
    return BL_OK;
}

/* ---- trying ---------------------------------------------------------------------------------- */

typedef enum bl_status put_fn(struct bl_search_state *, uint16_t d, uint64_t room, bool *fits);

/* Tables and buffers take room as well, which shows only when it is counted. */
static enum bl_status fill_card(struct bl_search_state *s, uint16_t d, put_fn *put, bool *fits)
{
    uint64_t room = room_for(s, d);

    for (unsigned round = 0; round < ROUNDS; round++) {
        clear_layers(s, d);
        s->plan->n_slot_sets = 0;
        BL_TRY(put(s, d, room, fits));
        if (!*fits)
            return BL_OK;
        BL_TRY(bl_plan_fill_memory(s->plan, s->model, s->machine));
        *fits = bl_plan_fits(s->plan, &s->costs, s->machine);
        const uint64_t used = bl_ledger_planned(&s->plan->ledger, d), has = s->costs.budget[d];
        if (*fits || used <= has || room <= used - has)
            return BL_OK;
        room -= used - has;
    }
    return BL_OK;
}

static enum bl_status try_on(struct bl_search_state *s, uint16_t d, put_fn *put)
{
    double decode, prefill, score = INFINITY;
    struct saved before;
    bool fits;

    BL_TRY(save(&before, s->plan));
    enum bl_status st = fill_card(s, d, put, &fits);
    if (!st && fits && !(st = bl_price_slots(s->plan, s->model, s->machine, s->opt)) &&
        !(st = bl_search_simulate(s, &decode, &prefill)))
        score = bl_plan_score(decode, prefill, s->opt->prefill_weight);
    if (!st && score < s->best_score * (1 - 1e-6)) {
        s->best_score = score;
        s->decode_ns = decode;
        s->prefill_ns = prefill;
    } else if (!st && !(st = restore(&before, s->plan))) {
        st = bl_plan_fill_memory(s->plan, s->model, s->machine);
    }
    forget(&before);
    return st;
}

/* The plan as it stands, told by the same statistics. */
static enum bl_status score_now(struct bl_search_state *s)
{
    BL_TRY(bl_search_simulate(s, &s->decode_ns, &s->prefill_ns));
    s->best_score = bl_plan_score(s->decode_ns, s->prefill_ns, s->opt->prefill_weight);
    return BL_OK;
}

enum bl_status bl_search_experts(struct bl_search_state *s)
{
    uint32_t n_cards = 0;

    if (!s->plan->known || !s->model->hp.n_expert)
        return BL_OK;
    BL_TRY(score_now(s));
    for (uint16_t d = 1; d < s->costs.n_devices; d++) {
        if (!s->costs.open[d] || s->machine->device[d].shares == 0)
            continue;
        n_cards++;
        BL_TRY(try_on(s, d, put_best));
    }
    /* slots of several cards would have to be tried together */
    for (uint16_t d = 1; n_cards == 1 && d < s->costs.n_devices; d++)
        if (s->costs.open[d] && s->machine->device[d].shares != 0)
            BL_TRY(try_on(s, d, put_slots));
    return bl_plan_check(s->plan, s->model, s->machine);
}

/* ---- explaining ------------------------------------------------------------------------------ */

struct told {
    uint32_t first, last, experts, slots; /* of layers with some there */
    uint64_t bytes;
    double here, alike; /* shares of uses, summed over these layers */
    uint32_t n_layers;
};

/* A layer's single experts or slots on a device. */
static void tell_layer(struct told *t, const struct bl_plan *p, const struct bl_model *m,
                       uint16_t d, uint32_t l, double share)
{
    const uint32_t n = m->hp.n_expert, slots = bl_plan_slots_on(p, l, d);
    const uint32_t on = bl_plan_experts_on(p, l, n, d);

    if (!m->layer[l].moe || !(slots || (on && on < n)))
        return;
    t->first = t->n_layers ? t->first : l;
    t->last = l;
    t->n_layers++;
    t->slots = slots;
    t->experts += on;
    t->bytes += (uint64_t)(slots + on) * bl_expert_bytes(m, l);
    t->here += share;
    t->alike += (double)(slots + on) / n;
}

static enum bl_status add_told(struct bl_choice *c, const struct told *t, uint16_t d,
                               const char *id)
{
    const struct bl_reason about = {.first = -1, .last = -1, .device = d, .part = BL_PART_EXPERTS};
    char text[32];
    const char *layers = bl_range_text(t->first, t->last, text);
    const double gib = (double)t->bytes / (1 << 30), here = 100 * t->here / t->n_layers,
                 alike = 100 * t->alike / t->n_layers;

    if (t->slots)
        return bl_add_reason(c, &about,
                             "%u slot%s for experts of each of layer%s on %s: %.2f GiB, %s; "
                             "%.0f %% of uses are expected there, %.0f %% if all were used alike",
                             t->slots, bl_plural(t->slots), layers, id, gib,
                             c->plan.expert_policy == BL_EXPERTS_LRU ? "for those used last"
                                                                     : "for the most used",
                             here, alike);
    return bl_add_reason(c, &about,
                         "%u single expert%s of layer%s on %s: %.2f GiB; %.0f %% of uses of "
                         "experts there are expected of them, %.0f %% if all were used alike",
                         t->experts, bl_plural(t->experts), layers, id, gib, here, alike);
}

enum bl_status bl_explain_experts(struct bl_choice *c, const struct bl_model *m,
                                  const struct bl_machine *machine)
{
    const uint32_t n = machine->n_devices;
    double *share = bl_calloc((size_t)m->hp.n_layer * n + 1, sizeof *share);
    enum bl_status st = BL_OK;

    if (!share)
        return bl_fail(BL_ENOMEM, "out of memory for shares of experts");
    bl_expert_shares(&c->plan, m, n, share);
    for (uint16_t d = 1; !st && d < n; d++) {
        struct told t = {.n_layers = 0};
        for (uint32_t l = 0; l < c->plan.n_layers; l++)
            tell_layer(&t, &c->plan, m, d, l, share[(size_t)l * n + d]);
        if (t.n_layers)
            st = add_told(c, &t, d, machine->device[d].id);
    }
    free(share);
    return st;
}

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
    struct bl_slot_set *slots;
    uint32_t n_ranges, n_slot_sets;
    double slot_load;
    uint8_t policy;
};

static void forget(struct saved *s)
{
    free(s->slot);
    free(s->range);
    free(s->slots);
}

static void *copy_of(const void *items, size_t n, size_t size)
{
    void *p = bl_calloc(n + 1, size);
    if (p && n)
        memcpy(p, items, n * size);
    return p;
}

static enum bl_status save(struct saved *s, const struct bl_plan *p)
{
    const size_t n = ((size_t)p->n_layers + 1) * BL_N_PARTS;

    *s = (struct saved){.slot = copy_of(p->slot, n, sizeof *s->slot),
                        .range = copy_of(p->range, p->n_ranges, sizeof *s->range),
                        .slots = copy_of(p->slots, p->n_slot_sets, sizeof *s->slots),
                        .n_ranges = p->n_ranges,
                        .n_slot_sets = p->n_slot_sets,
                        .slot_load = p->slot_load,
                        .policy = p->expert_policy};
    if (s->slot && s->range && s->slots)
        return BL_OK;
    forget(s);
    return bl_fail(BL_ENOMEM, "out of memory for a plan's experts");
}

static enum bl_status restore(const struct saved *s, struct bl_plan *p)
{
    memcpy(p->slot, s->slot, ((size_t)p->n_layers + 1) * BL_N_PARTS * sizeof *s->slot);
    p->n_ranges = p->n_slot_sets = 0;
    for (uint32_t i = 0; i < s->n_ranges; i++)
        BL_TRY(bl_plan_add_range(p, s->range[i].layer, s->range[i].first, s->range[i].n,
                                 s->range[i].device));
    for (uint32_t i = 0; i < s->n_slot_sets; i++) {
        BL_TRY(bl_plan_add_slots(p, s->slots[i].layer, s->slots[i].device, s->slots[i].n));
        p->slots[i].hit = s->slots[i].hit;
    }
    p->slot_load = s->slot_load;
    p->expert_policy = s->policy;
    return BL_OK;
}

/* ---- whose layer's experts are whose --------------------------------------------------------- */

/* A share: of each layer, the card that may have experts of it; BL_NO_DEVICE: they stay where they
 * are. */
struct share {
    const struct bl_search_state *s;
    uint16_t *card;                /* [n_layers] */
    uint64_t room[BL_MAX_DEVICES]; /* bytes for experts, while they are shared out */
};

static bool is_card(const struct bl_search_state *s, uint16_t d)
{
    return d && s->costs.open[d] && s->machine->device[d].shares != 0;
}

/* Rules say nothing of its experts, and they are in RAM or on a card; host and card can run them.
 */
static bool may_go(const struct bl_search_state *s, uint32_t l, uint16_t to)
{
    const uint16_t at = bl_plan_device(s->plan, (int)l, BL_PART_EXPERTS);

    return s->model->layer[l].moe && (at == 0 || is_card(s, at)) &&
           bl_may_move(&s->costs, s->machine, l, BL_GROUP_EXPERTS, 0) &&
           bl_may_move(&s->costs, s->machine, l, BL_GROUP_EXPERTS, to);
}

/* Layers whose attention is on one of the cards, for that card. */
static void share_by_attention(struct share *h, uint16_t only)
{
    for (uint32_t l = 0; l < h->s->costs.n_layers; l++) {
        const uint16_t home = bl_plan_device(h->s->plan, (int)l, BL_PART_ATTN),
                       at = bl_plan_device(h->s->plan, (int)l, BL_PART_EXPERTS);
        const bool its = is_card(h->s, home) && (!only || (home == only && (!at || at == only)));
        h->card[l] = its && may_go(h->s, l, home) ? home : BL_NO_DEVICE;
    }
}

/* Bytes of a card that experts could have, those that they have now among them. */
static uint64_t room_of(const struct bl_search_state *s, uint16_t d)
{
    const uint64_t used = bl_ledger_planned(&s->plan->ledger, d), has = s->costs.budget[d];
    uint64_t bytes = used < has ? has - used : 0;

    for (uint32_t l = 0; is_card(s, d) && l < s->costs.n_layers; l++)
        if (may_go(s, l, d))
            bytes += (bl_plan_experts_on(s->plan, l, s->model->hp.n_expert, d) +
                      (uint64_t)bl_plan_slots_on(s->plan, l, d)) *
                     bl_expert_bytes(s->model, l);
    return is_card(s, d) ? bytes : 0;
}

/* As many layers for each card as its room is of that of all, in order, whoever has their
 * attention. */
static void share_by_room(struct share *h)
{
    const uint32_t n = h->s->costs.n_devices;
    double sum = 0, end, upto = 0;
    uint32_t movable = 0, seen = 0;
    uint16_t d = 0;

    for (uint16_t i = 1; i < n; i++)
        sum += (double)room_of(h->s, i);
    for (uint32_t l = 0; l < h->s->costs.n_layers; l++)
        movable += may_go(h->s, l, 0);
    for (uint32_t l = 0; l < h->s->costs.n_layers; l++) {
        h->card[l] = BL_NO_DEVICE;
        if (!may_go(h->s, l, 0) || !(sum > 0))
            continue;
        end = (seen++ + 0.5) / movable * sum;
        while (d + 1u < n && upto <= end)
            upto += (double)room_of(h->s, ++d);
        h->card[l] = may_go(h->s, l, d) ? d : BL_NO_DEVICE;
    }
}

static bool same_share(const struct share *a, const struct share *b)
{
    return !memcmp(a->card, b->card, a->s->costs.n_layers * sizeof *a->card);
}

/* Of layers that are shared out. */
static void clear_layers(const struct share *h, struct bl_plan *p)
{
    uint32_t kept = 0, sets = 0;

    for (uint32_t i = 0; i < p->n_ranges; i++)
        if (h->card[p->range[i].layer] == BL_NO_DEVICE)
            p->range[kept++] = p->range[i];
    for (uint32_t i = 0; i < p->n_slot_sets; i++)
        if (h->card[p->slots[i].layer] == BL_NO_DEVICE)
            p->slots[sets++] = p->slots[i];
    p->n_ranges = kept;
    p->n_slot_sets = sets;
    for (uint32_t l = 0; l < p->n_layers; l++)
        if (h->card[l] != BL_NO_DEVICE)
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

static uint32_t list(const struct share *h, uint16_t d, struct candidate *c)
{
    const struct bl_search_state *s = h->s;
    const struct bl_expert_stats *k = s->plan->known;
    const uint32_t n_experts = s->model->hp.n_expert;
    uint32_t n = 0;

    for (uint32_t l = 0; l < s->costs.n_layers; l++) {
        const uint64_t *uses = k->uses + (size_t)l * n_experts;
        const uint64_t bytes = bl_expert_bytes(s->model, l);
        double all = 0;
        if (h->card[l] != d || !bytes)
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
static enum bl_status put_best(const struct share *h, struct bl_plan *p, uint16_t d, bool *fits)
{
    const uint32_t n_experts = h->s->model->hp.n_expert;
    struct candidate *c = bl_calloc((size_t)h->s->costs.n_layers * n_experts + 1, sizeof *c);
    enum bl_status st = BL_OK;
    uint64_t room = h->room[d];
    uint32_t n = 0, all;

    if (!c)
        return bl_fail(BL_ENOMEM, "out of memory for a search among experts");
    all = list(h, d, c);
    qsort(c, all, sizeof *c, by_gain);
    while (n < all && c[n].bytes <= room && c[n].gain > 0)
        room -= c[n++].bytes;
    qsort(c, n, sizeof *c, by_place);
    for (uint32_t i = 0, run; !st && i < n && *fits; i += run) {
        for (run = 1; i + run < n && c[i + run].layer == c[i].layer &&
                      c[i + run].expert == c[i].expert + run;)
            run++;
        *fits = p->n_ranges < MOST_RANGES;
        if (run == n_experts)
            p->slot[(size_t)c[i].layer * BL_N_PARTS + BL_PART_EXPERTS] = d;
        else
            st = bl_plan_add_range(p, c[i].layer, c[i].expert, run, d);
    }
    free(c);
    return st;
}

/* As many slots for each layer as there is room for; where that is for all experts, it needs none.
 */
static enum bl_status put_slots(const struct share *h, struct bl_plan *p, uint16_t d, bool *fits)
{
    const uint32_t most = h->s->model->hp.n_expert;
    uint64_t each = 0;

    for (uint32_t l = 0; l < p->n_layers; l++)
        each += h->card[l] == d ? bl_expert_bytes(h->s->model, l) : 0;
    const uint64_t n = each ? h->room[d] / each : 0;
    for (uint32_t l = 0; n && l < p->n_layers; l++) {
        if (h->card[l] != d)
            continue;
        if (n < most)
            BL_TRY(bl_plan_add_slots(p, l, d, (uint32_t)n));
        else
            p->slot[(size_t)l * BL_N_PARTS + BL_PART_EXPERTS] = d;
    }
    *fits = *fits && (n > 0 || !each);
    p->expert_policy = BL_EXPERTS_LRU;
    return BL_OK;
}

/* ---- trying ---------------------------------------------------------------------------------- */

typedef enum bl_status put_fn(const struct share *, struct bl_plan *, uint16_t d, bool *fits);

static enum bl_status put_all(struct share *h, struct bl_search_state *s, put_fn *put, bool *fits)
{
    clear_layers(h, s->plan);
    for (uint16_t d = 1; d < s->costs.n_devices && *fits; d++)
        BL_TRY(put(h, s->plan, d, fits));
    return *fits ? bl_plan_fill_memory(s->plan, s->model, s->machine) : BL_OK;
}

/* Tables and buffers take room as well, which shows only when it is counted. */
static enum bl_status fill_cards(struct share *h, struct bl_search_state *s, put_fn *put,
                                 bool *fits)
{
    for (uint16_t d = 1; d < s->costs.n_devices; d++)
        h->room[d] = room_of(s, d);
    for (unsigned round = 0; round < ROUNDS; round++) {
        bool less = false;
        *fits = true;
        BL_TRY(put_all(h, s, put, fits));
        if (!*fits)
            return BL_OK;
        *fits = bl_plan_fits(s->plan, &s->costs, s->machine);
        for (uint16_t d = 1; !*fits && d < s->costs.n_devices; d++) {
            const uint64_t used = bl_ledger_planned(&s->plan->ledger, d), has = s->costs.budget[d],
                           over = used > has ? used - has : 0;
            less = less || over;
            h->room[d] -= over < h->room[d] ? over : h->room[d];
        }
        if (!less)
            return BL_OK;
    }
    return BL_OK;
}

/* Kept if it is better than what there is. */
static enum bl_status try_share(struct share *h, struct bl_search_state *s, put_fn *put)
{
    double decode, prefill, score = INFINITY;
    struct saved before;
    bool fits;

    BL_TRY(save(&before, s->plan));
    enum bl_status st = fill_cards(h, s, put, &fits);
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

static enum bl_status try_both(struct share *h, struct bl_search_state *s)
{
    BL_TRY(try_share(h, s, put_best));
    return s->opt->no_slots ? BL_OK : try_share(h, s, put_slots);
}

/* All cards together, by whose layers they are and by what fits there; then each on its own, since
 * what is right for one need not be for another. */
static enum bl_status try_all(struct share *h, struct share *other, struct bl_search_state *s)
{
    uint32_t n_cards = 0;

    for (uint16_t d = 1; d < s->costs.n_devices; d++)
        n_cards += is_card(s, d);
    share_by_attention(h, 0);
    share_by_room(other);
    BL_TRY(try_both(h, s));
    if (!same_share(h, other))
        BL_TRY(try_both(other, s));
    for (uint16_t d = 1; n_cards > 1 && d < s->costs.n_devices; d++) {
        if (!is_card(s, d))
            continue;
        share_by_attention(h, d);
        BL_TRY(try_both(h, s));
    }
    return BL_OK;
}

enum bl_status bl_search_experts(struct bl_search_state *s)
{
    struct share h = {.s = s}, other = {.s = s};

    if (!s->plan->known || !s->model->hp.n_expert)
        return BL_OK;
    h.card = bl_calloc((size_t)s->costs.n_layers + 1, sizeof *h.card);
    other.card = bl_calloc((size_t)s->costs.n_layers + 1, sizeof *other.card);
    enum bl_status st = h.card && other.card
                            ? try_all(&h, &other, s)
                            : bl_fail(BL_ENOMEM, "out of memory for a search among experts");
    free(h.card);
    free(other.card);
    return st ? st : bl_plan_check(s->plan, s->model, s->machine);
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
    const double here = 100 * t->here / t->n_layers, alike = 100 * t->alike / t->n_layers;

    if (t->slots)
        return bl_add_reason(
            c, &about,
            "%u slot%s for experts of each of layer%s on %s: %s, for those used last; "
            "%.0f %% of uses are expected there, %.0f %% if all were used alike",
            t->slots, bl_plural(t->slots), layers, id, BL_SIZE(t->bytes), here, alike);
    return bl_add_reason(c, &about,
                         "%u single expert%s of layer%s on %s: %s; %.0f %% of uses of "
                         "experts there are expected of them, %.0f %% if all were used alike",
                         t->experts, bl_plural(t->experts), layers, id, BL_SIZE(t->bytes), here,
                         alike);
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

/* SPDX-License-Identifier: MIT */
/* Candidates on cached costs: those worth simulating, in order. */
#include "search_impl.h"

#include <math.h>
#include <string.h>

enum { MOST_IMPROVED = 3 /* of the candidates of one blend */, FEW_PLANS = 1024 };

static void note_missing(struct bl_search_state *s)
{
    for (uint16_t d = 0; d < s->costs.n_devices; d++) {
        const uint64_t used = s->draft.used[d], has = s->costs.budget[d];
        if (used > has && (!s->least_missing || used - has < s->least_missing)) {
            s->least_missing = used - has;
            s->missing_on = d;
        }
    }
}

void bl_search_cached_ns(const struct bl_search_state *s, const struct bl_draft *d,
                         double ns[BL_N_PHASES])
{
    for (unsigned p = 0; p < BL_N_PHASES; p++)
        ns[p] = bl_draft_ns(d, &s->costs, p);
}

/* Into the pool, in order of cached times. */
static void offer(struct bl_search_state *s, const struct bl_draft *d)
{
    double ns[BL_N_PHASES];
    uint32_t at;

    bl_search_cached_ns(s, d, ns);
    const double score =
        bl_plan_score(ns[BL_DECODE], ns[bl_search_prefill(s)], s->opt->prefill_weight);
    for (at = 0; at < s->n_pool && s->pool[at].score <= score; at++)
        if (bl_draft_same(&s->pool[at].draft, d, &s->costs))
            return;
    if (at == BL_MOST_FINALISTS)
        return;
    if (s->n_pool < BL_MOST_FINALISTS)
        s->n_pool++;
    const struct bl_finalist last = s->pool[s->n_pool - 1]; /* its memory is used again */
    memmove(&s->pool[at + 1], &s->pool[at], (s->n_pool - 1 - at) * sizeof *s->pool);
    s->pool[at] = last;
    s->pool[at].score = score;
    bl_draft_copy(&s->pool[at].draft, d, &s->costs);
}

static enum bl_status try_fill(struct bl_search_state *s, const uint16_t *card, uint32_t n,
                               bool in_runs)
{
    bool fits;

    BL_TRY(bl_draft_fill(&s->draft, &s->costs, s->machine, card, n, in_runs, &fits));
    if (fits)
        offer(s, &s->draft);
    else
        note_missing(s);
    return BL_OK;
}

static enum bl_status try_prices(struct bl_search_state *s, const uint16_t *card, uint32_t n)
{
    bool fits;

    BL_TRY(bl_draft_price(&s->draft, &s->costs, s->machine, card, n, &fits));
    if (fits)
        offer(s, &s->draft);
    return BL_OK;
}

/* All of them, and without some: a buffer on every card that is used costs room. */
static enum bl_status try_sets(struct bl_search_state *s, const uint16_t *card, uint32_t n)
{
    enum { FEW = 3 };
    uint16_t some[BL_MAX_DEVICES];

    if (n > FEW) {
        for (uint32_t used = n; used; used = used > 2 ? used / 2 : used - 1)
            BL_TRY(try_prices(s, card, used));
        return BL_OK;
    }
    for (unsigned set = 1; set < 1u << n; set++) {
        uint32_t k = 0;
        for (uint32_t i = 0; i < n; i++)
            if (set >> i & 1)
                some[k++] = card[i];
        BL_TRY(try_prices(s, some, k));
    }
    return BL_OK;
}

/* Attention all on one card, which twins need not repeat. */
static enum bl_status try_homes(struct bl_search_state *s, const uint16_t *card, uint32_t n)
{
    uint16_t rest[BL_MAX_DEVICES];

    for (uint32_t first = 0; first < n; first++) {
        const struct bl_machine_device *d = &s->machine->device[card[first]];
        if (first && d->usable_bytes == s->machine->device[card[first - 1]].usable_bytes)
            continue;
        rest[0] = card[first];
        for (uint32_t i = 0, k = 1; i < n; i++)
            if (i != first)
                rest[k++] = card[i];
        BL_TRY(try_fill(s, rest, n, false));
    }
    return BL_OK;
}

/* Layers in runs over the quickest cards; the last run has the head. */
static enum bl_status try_runs(struct bl_search_state *s, const uint16_t *card, uint32_t n)
{
    uint16_t order[BL_MAX_DEVICES];

    for (uint32_t used = 1; used <= n; used++) {
        BL_TRY(try_fill(s, card, used, true));
        for (uint32_t i = 0; i < used; i++)
            order[i] = card[used - 1 - i];
        if (used > 1)
            BL_TRY(try_fill(s, order, used, true));
    }
    return BL_OK;
}

/* Groups that may be moved, as a number with a digit each; false: there are too many plans. */
static bool count_plans(const struct bl_search_state *s, uint32_t *n)
{
    *n = 1;
    for (uint32_t i = 0; i < s->costs.n_layers * BL_N_GROUPS; i++)
        if (bl_group_bytes(&s->costs, i / BL_N_GROUPS, i % BL_N_GROUPS) &&
            s->costs.pin[i] == BL_NO_DEVICE && (*n *= s->costs.n_devices) > FEW_PLANS)
            return false;
    return true;
}

/* Where there are few plans, none is left out. */
static void try_every(struct bl_search_state *s)
{
    struct bl_draft *d = &s->draft;
    uint32_t n;

    for (uint32_t code = 0; count_plans(s, &n) && code < n; code++) {
        uint32_t left = code;
        bool may = true;
        for (uint32_t i = 0; i < s->costs.n_layers * BL_N_GROUPS; i++) {
            const uint32_t l = i / BL_N_GROUPS, g = i % BL_N_GROUPS;
            d->at[i] = s->costs.pin[i] != BL_NO_DEVICE ? s->costs.pin[i] : 0;
            if (!bl_group_bytes(&s->costs, l, g) || s->costs.pin[i] != BL_NO_DEVICE)
                continue;
            d->at[i] = (uint16_t)(left % s->costs.n_devices);
            left /= s->costs.n_devices;
            may = may && bl_may_move(&s->costs, s->machine, l, g, d->at[i]);
        }
        bl_draft_count(d, &s->costs);
        if (may && bl_draft_fits(d, &s->costs, s->machine))
            offer(s, d);
    }
}

static enum bl_status try_all(struct bl_search_state *s, bool priced)
{
    uint16_t card[BL_MAX_DEVICES];
    const uint32_t n = bl_rank_cards(&s->costs, s->machine, card);

    BL_TRY(try_fill(s, card, 0, false));
    BL_TRY(try_runs(s, card, n));
    BL_TRY(try_homes(s, card, n));
    try_every(s);
    return priced ? try_sets(s, card, n) : BL_OK;
}

static enum bl_status improve_some(struct bl_search_state *s, uint32_t n)
{
    for (uint32_t i = 0; i < n && i < s->n_pool; i++) {
        bl_draft_copy(&s->draft, &s->pool[i].draft, &s->costs);
        bl_draft_score(&s->draft, &s->costs);
        BL_TRY(bl_draft_improve(&s->draft, &s->costs, s->machine));
        offer(s, &s->draft);
    }
    return BL_OK;
}

/* Blended costs are of a plan: first of all on the host, then of the best so far. */
enum bl_status bl_search_gather(struct bl_search_state *s)
{
    double ns[BL_N_PHASES];
    bool fits;

    s->n_pool = 0;
    BL_TRY(bl_draft_fill(&s->draft, &s->costs, s->machine, NULL, 0, false, &fits));
    bl_search_cached_ns(s, &s->draft, ns);
    for (unsigned round = 0; round < 2; round++) {
        if (round && s->n_pool)
            bl_search_cached_ns(s, &s->pool[0].draft, ns);
        bl_costs_blend(&s->costs, ns, bl_search_prefill(s), s->opt->prefill_weight);
        BL_TRY(try_all(s, round && !s->quick));
        if (round)
            BL_TRY(improve_some(s, s->quick ? 1 : MOST_IMPROVED));
    }
    return BL_OK;
}

/* All that blocks may be rounded up by: the largest to hope for when nothing is confirmed. */
uint64_t bl_search_rounding(const struct bl_search_state *s, uint16_t d)
{
    enum { BLOCKS = 6 };
    const uint64_t granule = s->machine->device[d].caps.granule_bytes;
    return granule ? BLOCKS * (granule - 1) : 0;
}

enum bl_status bl_search_any(struct bl_search_state *s, bool *fits)
{
    double ns[BL_N_PHASES];

    s->n_pool = 0;
    for (uint16_t d = 0; d < s->costs.n_devices; d++)
        s->costs.compute[d] += bl_search_rounding(s, d);
    if (s->on_cards)
        bl_search_empty_host(s);
    BL_TRY(bl_draft_fill(&s->draft, &s->costs, s->machine, NULL, 0, false, fits));
    bl_search_cached_ns(s, &s->draft, ns);
    bl_costs_blend(&s->costs, ns, BL_PREFILL, 0);
    BL_TRY(try_all(s, true));
    *fits = s->n_pool > 0;
    return BL_OK;
}

/* SPDX-License-Identifier: MIT */
/* A layer whose experts do not fit whole on a card: as many of them as do, where the simulation
 * says that this helps. */
#include "search_impl.h"

#include <math.h>

static bool has_room_for_some(const struct bl_search_state *s, uint16_t d, uint32_t l, uint32_t *n)
{
    const uint64_t used = bl_ledger_planned(&s->plan->ledger, d), has = s->costs.budget[d];
    const uint32_t all = s->model->hp.n_expert;
    const uint64_t each = bl_group_bytes(&s->costs, l, BL_GROUP_EXPERTS) / all + 1;

    *n = used < has ? (uint32_t)fmin((double)((has - used) / each), all - 1) : 0;
    return *n > 0;
}

static bool is_split(const struct bl_plan *p, uint32_t l)
{
    for (uint32_t i = 0; i < p->n_ranges; i++)
        if (p->range[i].layer == l)
            return true;
    return false;
}

/* The last layer at the card whose experts are in RAM by choice; n_layers: none. */
static uint32_t layer_to_split(const struct bl_search_state *s, uint16_t d)
{
    for (uint32_t l = s->costs.n_layers; l-- > 0;)
        if (bl_group_bytes(&s->costs, l, BL_GROUP_EXPERTS) &&
            bl_plan_device(s->plan, (int)l, BL_PART_EXPERTS) == 0 &&
            bl_plan_device(s->plan, (int)l, BL_PART_ATTN) == d &&
            s->costs.pin[l * BL_N_GROUPS + BL_GROUP_EXPERTS] == BL_NO_DEVICE &&
            bl_able_or_host(&s->costs, l, BL_GROUP_EXPERTS, d) == d && !is_split(s->plan, l))
            return l;
    return s->costs.n_layers;
}

static void drop_range(struct bl_plan *p, uint32_t i)
{
    p->n_ranges--;
    for (; i < p->n_ranges; i++)
        p->range[i] = p->range[i + 1];
}

static uint32_t range_of(const struct bl_plan *p, uint16_t d)
{
    uint32_t i = 0;
    while (i < p->n_ranges && p->range[i].device != d)
        i++;
    return i;
}

static enum bl_status try_split(struct bl_search_state *s, uint16_t d)
{
    const uint32_t l = layer_to_split(s, d);
    double decode, prefill;
    uint32_t n;

    if (l == s->costs.n_layers || !has_room_for_some(s, d, l, &n))
        return BL_OK;
    BL_TRY(bl_plan_add_range(s->plan, l, 0, n, d));
    BL_TRY(bl_search_simulate(s, &decode, &prefill));
    const double score = bl_plan_score(decode, prefill, s->opt->prefill_weight);
    if (score < s->best_score * (1 - 1e-6)) {
        s->best_score = score;
        s->decode_ns = decode;
        s->prefill_ns = prefill;
    } else
        drop_range(s->plan, range_of(s->plan, d));
    return BL_OK;
}

/* Buffers grow with the parts of a layer: fewer experts, then, or none. */
static void make_room(struct bl_search_state *s)
{
    for (uint16_t d = 0; d < s->costs.n_devices; d++) {
        const uint64_t used = bl_ledger_planned(&s->plan->ledger, d), has = s->costs.budget[d];
        const uint32_t i = range_of(s->plan, d);
        if (used <= has || i == s->plan->n_ranges)
            continue;
        struct bl_expert_range *r = &s->plan->range[i];
        const uint64_t each =
            bl_group_bytes(&s->costs, r->layer, BL_GROUP_EXPERTS) / s->model->hp.n_expert;
        const uint64_t less = (used - has) / (each + 1) + 1;
        if (less >= r->n)
            drop_range(s->plan, i);
        else
            r->n -= (uint32_t)less;
    }
}

enum bl_status bl_search_split(struct bl_search_state *s)
{
    enum { ROUNDS = 4 };
    bool fits = true;

    if (!s->model->hp.n_expert)
        return BL_OK;
    for (uint16_t d = 1; d < s->costs.n_devices; d++)
        if (s->costs.open[d] && s->machine->device[d].shares != 0)
            BL_TRY(try_split(s, d));
    for (unsigned round = 0; round < ROUNDS && s->plan->n_ranges; round++) {
        BL_TRY(bl_plan_fill_memory(s->plan, s->model, s->machine));
        fits = bl_plan_fits(s->plan, &s->costs, s->machine);
        if (fits)
            return bl_plan_check(s->plan, s->model, s->machine);
        make_room(s);
    }
    s->plan->n_ranges = 0;
    return bl_plan_fill_memory(s->plan, s->model, s->machine);
}

enum bl_status bl_explain_split(struct bl_choice *c, const struct bl_costs *k,
                                const struct bl_model *m, const struct bl_machine *machine)
{
    if (c->plan.known || bl_plan_has_slots(&c->plan))
        return bl_explain_experts(c, m, machine);
    for (uint32_t i = 0; i < c->plan.n_ranges; i++) {
        const struct bl_expert_range *r = &c->plan.range[i];
        const struct bl_reason about = {
            .first = -1, .last = -1, .device = r->device, .part = BL_PART_EXPERTS};
        const uint64_t bytes =
            bl_group_bytes(k, r->layer, BL_GROUP_EXPERTS) / m->hp.n_expert * r->n;
        BL_TRY(
            bl_add_reason(c, &about,
                          "expert%s of layer %u on %s: %s, all that was left there; which are used "
                          "most is not known, so no slots are planned",
                          bl_range_text(r->first, r->first + r->n - 1, (char[32]){0}), r->layer,
                          machine->device[r->device].id, BL_SIZE(bytes)));
    }
    return BL_OK;
}

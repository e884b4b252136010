/* SPDX-License-Identifier: MIT */
/* The longest context: with nothing displaced by it where cards can hold all weights, else any that
 * fits. */
#include "search_impl.h"

#include "mem.h"

enum { USUAL_CTX = 4096 }; /* tokens of state that weights make room for in any case */

static bool has_own_memory(const struct bl_costs *c, const struct bl_machine *m, uint16_t d)
{
    return d && c->open[d] && m->device[d].shares != 0;
}

void bl_search_empty_host(struct bl_search_state *s)
{
    uint16_t card = 0;

    for (uint16_t d = 1; d < s->costs.n_devices && !card; d++)
        card = has_own_memory(&s->costs, s->machine, d) ? d : 0;
    for (uint32_t i = 0; i < s->costs.n_layers * BL_N_GROUPS; i++)
        s->draft.at[i] = s->costs.pin[i] != BL_NO_DEVICE
                             ? s->costs.pin[i]
                             : bl_able_or_host(&s->costs, i / BL_N_GROUPS, i % BL_N_GROUPS, card);
    bl_draft_count(&s->draft, &s->costs);
    if (s->draft.used[0] < s->costs.budget[0])
        s->costs.budget[0] = s->draft.used[0];
}

static bool any_card(const struct bl_search_state *s)
{
    for (uint16_t d = 1; d < s->costs.n_devices; d++)
        if (has_own_memory(&s->costs, s->machine, d))
            return true;
    return false;
}

static enum bl_status fits_at(void *arg, uint64_t ctx, bool *fits)
{
    const struct bl_search_state *s = arg;
    return bl_search_fits(s, s->model, ctx, fits);
}

/* Buffers of the largest steps that will be tried are left room for, if that is possible. */
static enum bl_status find(struct bl_search_state *s, uint64_t *ctx)
{
    const bool larger = !s->opt->fixed_ubatch && s->opt->prefill_weight > 0;
    const uint32_t first = s->plan->ubatch_tokens;
    const uint64_t most = s->plan->ctx_tokens;
    bool fits = false;

    BL_TRY(bl_search_open(s));
    s->on_cards = any_card(s);
    for (uint32_t ub = larger ? s->plan->batch_tokens : first; s->on_cards && !fits && ub;
         ub = ub > first ? first : 0) {
        s->plan->ubatch_tokens = ub;
        BL_TRY(fits_at(s, most < USUAL_CTX ? most : USUAL_CTX, &fits));
    }
    s->on_cards = s->on_cards && fits;
    s->plan->ubatch_tokens = s->on_cards ? s->plan->ubatch_tokens : first;
    return bl_longest_ctx(most, fits_at, s, ctx);
}

enum bl_status bl_search_longest(struct bl_plan *sized, const struct bl_model *m,
                                 const struct bl_machine *machine,
                                 const struct bl_search_options *opt, bool *any, bool *on_cards)
{
    struct bl_plan plan;
    struct bl_search_state s = {.model = m, .machine = machine, .opt = opt, .plan = &plan};
    uint64_t ctx = 0;

    BL_TRY(bl_plan_init(&plan, m));
    uint16_t *const slot = plan.slot;
    plan = *sized;
    plan.slot = slot;
    plan.mmap = false;
    const enum bl_status st = find(&s, &ctx);
    if (!st && ctx)
        sized->ctx_tokens = ctx;
    *any = !st && ctx;
    *on_cards = s.on_cards;
    bl_search_close(&s);
    bl_plan_finish(&plan);
    return st;
}

enum bl_status bl_explain_longest(struct bl_choice *c, const struct bl_model *m,
                                  const struct bl_search_options *opt, bool on_cards)
{
    const struct bl_reason about = {.first = -1, .last = -1, .part = BL_PART_STATE};
    const unsigned long long ctx = c->plan.ctx_tokens, trained = m->hp.n_ctx_train;

    if (ctx == trained)
        return bl_add_reason(c, &about, "context %llu tokens: all that the model was trained with",
                             ctx);
    return bl_add_reason(
        c, &about, "context %llu tokens: the longest %s, of %llu that the model was trained with",
        ctx,
        !on_cards   ? "that fits"
        : opt->pins ? "with which cards hold all weights that rules let them"
                    : "with which cards hold all weights",
        trained);
}

/* SPDX-License-Identifier: MIT */
/* Placements that rules make: whether they fit, how long a context they leave, what they take. */
#include "constraints.h"

#include "machine_file.h"
#include "search_impl.h"

#include <stdio.h>
#include <string.h>

static enum bl_status check_room(const struct bl_plan *p, const struct bl_machine *m,
                                 const struct bl_search_options *opt)
{
    uint64_t shared = 0;

    for (uint16_t d = (uint16_t)m->n_devices; d-- > 0;) {
        const struct bl_machine_device *md = &m->device[d];
        const uint64_t has = bl_device_budget(md, opt->reserve_bytes);
        uint64_t need = bl_ledger_planned(&p->ledger, d);
        shared += md->shares == 0 ? need : 0;
        need += d ? 0 : shared;
        if (need <= has)
            continue;
        if (opt->lack) {
            snprintf(opt->lack->device, sizeof opt->lack->device, "%s", md->id);
            opt->lack->bytes = need - has;
        }
        return bl_fail(BL_ENOFIT,
                       "these rules need %s on %s, of which %s can be planned with "
                       "(%s): %s short",
                       BL_SIZE(need), md->id, BL_SIZE(has), md->mem_source, BL_SIZE(need - has));
    }
    return bl_plan_check_blocks(p, m);
}

struct judged {
    struct bl_plan *plan;
    const struct bl_model *model;
    const struct bl_machine *machine;
    const struct bl_search_options *opt;
};

static enum bl_status count_at(void *arg, uint64_t ctx, bool *fits)
{
    const struct judged *j = arg;

    bl_ledger_finish(&j->plan->ledger);
    j->plan->ctx_tokens = ctx;
    BL_TRY(bl_plan_fill_memory(j->plan, j->model, j->machine));
    *fits = !check_room(j->plan, j->machine, j->opt);
    return BL_OK;
}

/* The longest context with rules that leave nothing else to choose, where it may be shorter. */
static enum bl_status settle_ctx(struct judged *j, bool may_shrink)
{
    const uint64_t asked = j->plan->ctx_tokens;
    uint64_t ctx = 0;
    bool fits;

    BL_TRY(count_at(j, asked, &fits));
    if (!fits && may_shrink)
        BL_TRY(bl_longest_ctx(asked, count_at, j, &ctx));
    if (ctx && ctx >= j->opt->least_ctx_tokens)
        return count_at(j, ctx, &fits);
    return fits ? BL_OK : count_at(j, asked, &fits);
}

static enum bl_status judge(struct bl_choice *c, struct bl_costs *costs, const struct bl_model *m,
                            const struct bl_machine *machine, const struct bl_options *options,
                            const struct bl_search_options *opt)
{
    struct bl_plan *p = &c->plan;

    BL_TRY(bl_plan_size_steps(p, m, options));
    memcpy(p->slot, opt->pins->at, (size_t)(p->n_layers + 1) * BL_N_PARTS * sizeof *p->slot);
    BL_TRY(bl_plan_check(p, m, machine));
    p->mmap = p->mmap && machine->n_devices < 2;
    const bool longest = options->ctx_tokens == BL_CTX_MAX;
    const uint64_t asked = p->ctx_tokens;
    struct bl_search_options with = *opt;
    BL_TRY(settle_ctx(&(struct judged){p, m, machine, opt}, longest || opt->may_shrink_ctx));
    BL_TRY(check_room(p, machine, opt));
    c->asked_ctx_tokens = longest ? p->ctx_tokens : asked;
    if (with.depth_tokens >= p->ctx_tokens)
        with.depth_tokens = p->ctx_tokens / 2;
    c->depth_tokens = with.depth_tokens;
    BL_TRY(bl_costs_make(costs, m, machine, p, &with));
    BL_TRY(bl_explain(c, costs, m, machine));
    if (longest)
        BL_TRY(bl_explain_longest(c, m, opt, false));
    return bl_plan_speed(c, m, machine, &with);
}

static enum bl_status judge_whole(struct bl_choice *out, const struct bl_model *m,
                                  const struct bl_machine *machine,
                                  const struct bl_options *options,
                                  const struct bl_search_options *opt)
{
    struct bl_choice c = {.depth_tokens = opt->depth_tokens, .by_rules = true};
    struct bl_costs costs = {0};

    BL_TRY(bl_plan_init(&c.plan, m));
    const enum bl_status st = judge(&c, &costs, m, machine, options, opt);
    bl_costs_finish(&costs);
    if (st)
        bl_choice_finish(&c);
    else
        *out = c;
    return st;
}

enum bl_status bl_judge(struct bl_choice *out, const struct bl_model *m,
                        const struct bl_machine *machine, const struct bl_options *options,
                        const struct bl_search_options *opt, const struct bl_placement_rules *say)
{
    struct bl_search_options with = *opt;
    struct bl_pins pins = {0};

    BL_TRY(bl_pins_read(&pins, m, machine, say));
    with.pins = &pins;
    const enum bl_status st = pins.complete ? judge_whole(out, m, machine, options, &with)
                                            : bl_search(out, m, machine, options, &with);
    bl_pins_finish(&pins);
    return st;
}

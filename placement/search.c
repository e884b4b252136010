/* SPDX-License-Identifier: MIT */
/* Which step size, which context, and the plan for them. */
#include "search_impl.h"

#include "mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SIZES = 8 }; /* of steps */

/* One size of steps. */
struct trial {
    struct bl_search_state s;
    struct bl_search_options opt;
    struct bl_choice c;
    bool fits;
};

void bl_choice_finish(struct bl_choice *c)
{
    bl_plan_finish(&c->plan);
    free(c->reason);
    *c = (struct bl_choice){0};
}

/* ---- one size of steps ---- */

/* Speeds are predicted where there is something of the context left. */
static void set_ctx(struct trial *t, uint64_t ctx)
{
    t->c.plan.ctx_tokens = ctx;
    if (t->opt.depth_tokens >= ctx)
        t->opt.depth_tokens = ctx / 2;
    t->c.depth_tokens = t->opt.depth_tokens;
}

static enum bl_status shrink(struct trial *t)
{
    struct bl_search_state *s = &t->s;
    uint64_t nearest = 0;

    if (s->opt->may_shrink_ctx || !s->opt->lack)
        BL_TRY(bl_search_nearest(s, &nearest));
    if (!nearest || !s->opt->may_shrink_ctx || nearest < s->opt->least_ctx_tokens)
        return bl_search_no_room(s, nearest);
    set_ctx(t, nearest);
    bl_search_close(s);
    *s = (struct bl_search_state){
        .model = s->model, .machine = s->machine, .opt = s->opt, .plan = s->plan};
    BL_TRY(bl_search_open(s));
    return bl_search_settle(s, &t->fits);
}

static enum bl_status open_trial(struct trial *t, const struct bl_model *m,
                                 const struct bl_machine *machine,
                                 const struct bl_search_options *opt, const struct bl_plan *sized)
{
    *t = (struct trial){.s = {.model = m, .machine = machine, .opt = &t->opt, .plan = &t->c.plan},
                        .opt = *opt,
                        .c = {.asked_ctx_tokens = sized->ctx_tokens}};
    BL_TRY(bl_plan_init(&t->c.plan, m));
    uint16_t *slot = t->c.plan.slot;
    t->c.plan = *sized;
    t->c.plan.slot = slot;
    t->c.plan.mmap = false; /* every device holds what is its own */
    set_ctx(t, sized->ctx_tokens);
    return bl_search_open(&t->s);
}

static void close_trial(struct trial *t)
{
    bl_search_close(&t->s);
    bl_choice_finish(&t->c);
}

/* first: of the sizes; the others must not cost context. */
static enum bl_status try_size(struct trial *t, bool first)
{
    BL_TRY(bl_search_settle(&t->s, &t->fits));
    if (!t->fits && first)
        BL_TRY(shrink(t));
    return BL_OK;
}

/* ---- the best of them ---- */

static struct trial *quickest(struct trial *t, uint32_t n)
{
    struct trial *best = NULL;

    for (uint32_t i = 0; i < n; i++)
        if (t[i].fits && (!best || t[i].s.best_score < best->s.best_score * (1 - 1e-6)))
            best = &t[i];
    return best;
}

/* What had fitted by count may not do so by the ledger. */
static enum bl_status confirm_one(struct trial *t, uint32_t n, struct trial **chosen)
{
    while ((*chosen = quickest(t, n))) {
        BL_TRY(bl_search_finish(&(*chosen)->s));
        BL_TRY(bl_search_confirm(&(*chosen)->s, &(*chosen)->fits));
        if ((*chosen)->fits)
            return BL_OK;
    }
    return BL_OK;
}

/* Where the context was made shorter, buffers that only lowering knows may leave no room for the
 * last of it. */
static enum bl_status retreat(struct trial *t, struct trial **chosen)
{
    enum { STEP = 256, ROUNDS = 4 };
    struct bl_search_state *s = &t->s;
    const bool shorter = t->c.plan.ctx_tokens < t->c.asked_ctx_tokens;

    for (unsigned i = 0; shorter && !*chosen && i < ROUNDS && t->c.plan.ctx_tokens > STEP; i++) {
        set_ctx(t, t->c.plan.ctx_tokens - STEP);
        bl_search_close(s);
        *s = (struct bl_search_state){
            .model = s->model, .machine = s->machine, .opt = s->opt, .plan = s->plan};
        BL_TRY(bl_search_open(s));
        BL_TRY(bl_search_settle(s, &t->fits));
        if (t->fits)
            BL_TRY(confirm_one(t, 1, chosen));
    }
    if (*chosen && t->c.plan.ctx_tokens < s->opt->least_ctx_tokens)
        return bl_search_no_room(s, t->c.plan.ctx_tokens);
    return BL_OK;
}

static enum bl_status try_sizes(struct trial *t, uint32_t *n, const struct bl_model *m,
                                const struct bl_machine *machine,
                                const struct bl_search_options *opt, struct bl_plan *sized)
{
    const bool more = !opt->fixed_ubatch && opt->prefill_weight > 0;
    uint32_t ub = sized->ubatch_tokens;

    for (*n = 0; *n < MOST_SIZES && ub <= sized->batch_tokens; ub *= 2) {
        sized->ubatch_tokens = ub;
        if (*n)
            sized->ctx_tokens = t[0].c.plan.ctx_tokens;
        struct trial *one = &t[(*n)++];
        BL_TRY(open_trial(one, m, machine, opt, sized));
        BL_TRY(try_size(one, *n == 1));
        one->c.asked_ctx_tokens = t[0].c.asked_ctx_tokens;
        if (!more || !one->fits)
            return BL_OK;
    }
    return BL_OK;
}

/* What larger steps gain, with the quick plans that they were compared by. */
static enum bl_status explain_size(struct trial *best, const struct trial *t, uint32_t n)
{
    const struct bl_reason about = {.first = -1, .last = -1, .part = BL_PART_STATE};
    char others[160] = "";
    size_t at = 0;

    for (uint32_t i = 0; i < n && at < sizeof others; i++)
        if (&t[i] != best && isfinite(t[i].s.best_score))
            at +=
                (size_t)snprintf(others + at, sizeof others - at, "%s%.0f with %u", at ? ", " : "",
                                 1e9 / t[i].s.prefill_ns, t[i].c.plan.ubatch_tokens);
    if (!at)
        return BL_OK;
    return bl_add_reason(&best->c, &about,
                         "steps of %u tokens: prefill %.0f tokens/s by simulation, against %s",
                         best->c.plan.ubatch_tokens, 1e9 / best->s.prefill_ns, others);
}

static enum bl_status search_cards(struct bl_choice *out, struct trial *t, uint32_t *n,
                                   const struct bl_model *m, const struct bl_machine *machine,
                                   const struct bl_options *options,
                                   const struct bl_search_options *opt)
{
    struct bl_plan sized = {.n_layers = m->hp.n_layer};
    struct bl_search_options with = *opt;
    const bool longest = options->ctx_tokens == BL_CTX_MAX;
    bool on_cards = false;
    struct trial *best;

    BL_TRY(bl_plan_size_steps(&sized, m, options));
    sized.known = opt->known;
    if (longest)
        BL_TRY(bl_search_longest(&sized, m, machine, opt, &on_cards));
    with.may_shrink_ctx = opt->may_shrink_ctx || longest;
    BL_TRY(try_sizes(t, n, m, machine, &with, &sized));
    BL_TRY(confirm_one(t, *n, &best));
    if (!best)
        BL_TRY(retreat(&t[0], &best));
    if (!best)
        return bl_search_no_room(&t[0].s, 0);
    BL_TRY(
        bl_choose_sending(&best->c, m, machine, &best->opt)); /* before the last room is filled */
    BL_TRY(bl_search_split(&best->s));
    BL_TRY(bl_search_experts(&best->s));
    best->c.n_simulated = best->s.n_simulated;
    BL_TRY(bl_explain(&best->c, &best->s.costs, m, machine));
    BL_TRY(bl_explain_split(&best->c, &best->s.costs, m, machine));
    BL_TRY(explain_size(best, t, *n));
    if (longest)
        BL_TRY(bl_explain_longest(&best->c, m, opt, on_cards));
    BL_TRY(bl_plan_speed(&best->c, m, machine, &best->opt));
    *out = best->c;
    best->c = (struct bl_choice){0};
    return BL_OK;
}

/* Shorter where that is allowed; the ledger of what does not fit is what lacks. */
static enum bl_status plan_host(struct bl_choice *c, const struct bl_model *m,
                                const struct bl_machine *machine, const struct bl_options *options,
                                const struct bl_search_options *opt)
{
    struct bl_options shorter = *options;
    enum bl_status st = bl_plan_make(&c->plan, m, machine, options);

    if (st == BL_ENOFIT && opt->may_shrink_ctx) {
        shorter.ctx_tokens = BL_CTX_MAX;
        st = bl_plan_make(&c->plan, m, machine, &shorter);
        if (!st && c->plan.ctx_tokens < opt->least_ctx_tokens) {
            bl_plan_finish(&c->plan);
            st = bl_plan_make(&c->plan, m, machine, options);
        }
    }
    if (st == BL_ENOFIT && opt->lack)
        bl_plan_lack(opt->lack, m, machine, options);
    c->asked_ctx_tokens =
        options->ctx_tokens == BL_CTX_MAX ? c->plan.ctx_tokens : m->opt.ctx_tokens;
    return st;
}

/* Without cards there is nothing to choose: the plan that running makes. */
static enum bl_status search_host(struct bl_choice *out, const struct bl_model *m,
                                  const struct bl_machine *machine,
                                  const struct bl_options *options,
                                  const struct bl_search_options *opt)
{
    const bool longest = options->ctx_tokens == BL_CTX_MAX;
    struct bl_search_options with = *opt;
    struct bl_choice c = {0};
    struct bl_costs costs = {0};

    BL_TRY(plan_host(&c, m, machine, options, opt));
    if (with.depth_tokens >= c.plan.ctx_tokens)
        with.depth_tokens = c.plan.ctx_tokens / 2;
    c.depth_tokens = with.depth_tokens;
    enum bl_status st = bl_costs_make(&costs, m, machine, &c.plan, &with);
    if (!st)
        st = bl_explain(&c, &costs, m, machine);
    if (!st && longest)
        st = bl_explain_longest(&c, m, opt, false);
    if (!st)
        st = bl_plan_speed(&c, m, machine, &with);
    bl_costs_finish(&costs);
    if (st)
        bl_choice_finish(&c);
    else
        *out = c;
    return st;
}

enum bl_status bl_search(struct bl_choice *out, const struct bl_model *m,
                         const struct bl_machine *machine, const struct bl_options *options,
                         const struct bl_search_options *opt)
{
    uint32_t n = 0;

    if (machine->n_devices < 2)
        return search_host(out, m, machine, options, opt);
    struct trial *t = bl_calloc(MOST_SIZES, sizeof *t);
    if (!t)
        return bl_fail(BL_ENOMEM, "out of memory for a search");
    const enum bl_status st = search_cards(out, t, &n, m, machine, options, opt);
    for (uint32_t i = 0; i < n; i++)
        close_trial(&t[i]);
    free(t);
    return st;
}

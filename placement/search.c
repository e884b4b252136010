/* SPDX-License-Identifier: MIT */
/* Which step size, which context, and the plan for them. */
#include "search_impl.h"

#include "chunks.h"
#include "mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_TRIALS = 24,
    LEAST_UBATCH = 32,
    FEW_SIMULATED = 64 /* of large models */
};
/* By how much a quick plan of a large model may be worse than the best that was completed; of
 * others any may become better. */
#define WORTH_COMPLETING 1.15

/* One size of steps, with experts sent to cards or without; then with what was decided of that. */
struct trial {
    struct bl_search_state s;
    struct bl_search_options opt;
    struct bl_choice c;
    bool fits, complete;
    double ns[2]; /* of a token, as predicted in the end */
    double score;
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
                        .score = INFINITY,
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

/* ---- what is tried ---- */

struct trials {
    struct trial *t; /* [MOST_TRIALS] */
    uint32_t n;
    const struct bl_model *model;
    const struct bl_machine *machine;
    const struct bl_search_options *opt;
};

static struct trial *next_trial(struct trials *all)
{
    return all->n < MOST_TRIALS ? &all->t[all->n] : NULL;
}

static enum bl_status settle_one(struct trials *all, const struct bl_plan *sized)
{
    struct trial *t = &all->t[all->n++];

    BL_TRY(open_trial(t, all->model, all->machine, all->opt, sized));
    return bl_search_settle(&t->s, &t->fits);
}

/* Chunks that leave nearly all of a card to what stays there. */
static uint64_t modest_chunk(const struct trials *all)
{
    enum { SHARE = 16 }; /* of the least card, for a ring */
    uint64_t least = BL_CHUNK_BYTES * BL_RING_PARTS * SHARE;

    for (uint16_t d = 1; d < all->machine->n_devices; d++) {
        const uint64_t has = bl_device_budget(&all->machine->device[d], all->opt->reserve_bytes);
        least = has && has < least ? has : least;
    }
    const uint64_t chunk = least / (BL_RING_PARTS * SHARE);
    return chunk < BL_LEAST_CHUNK_BYTES ? BL_LEAST_CHUNK_BYTES : chunk;
}

/* What is sent needs room that other experts could have: both ways are searched to the end. */
static enum bl_status try_sending(struct trials *all, struct bl_plan *sized)
{
    if (!all->model->hp.n_expert || !(all->opt->prefill_weight > 0) || !next_trial(all))
        return BL_OK;
    struct bl_plan sends = *sized;
    sends.stream_from = 1;
    sends.chunk_bytes = modest_chunk(all);
    BL_TRY(settle_one(all, &sends));
    struct trial *t = &all->t[all->n - 1];
    t->fits = t->fits && !(fabs(t->s.best_score / t[-1].s.best_score - 1) < 1e-9); /* nothing is */
    return BL_OK;
}

static enum bl_status try_half(struct trials *all, struct bl_plan *small)
{
    small->ubatch_tokens /= 2;
    BL_TRY(settle_one(all, small));
    return all->t[all->n - 1].fits ? try_sending(all, small) : BL_OK;
}

/* Smaller steps than usual need smaller buffers: where the usual ones do not fit, and nobody asked
 * for them. */
static enum bl_status try_smaller(struct trials *all, const struct bl_plan *sized)
{
    struct bl_plan small = *sized;
    bool fits = false;

    if (LEAST_UBATCH >= sized->ubatch_tokens)
        return BL_OK;
    const uint32_t was = all->t[0].c.plan.ubatch_tokens;
    all->t[0].c.plan.ubatch_tokens = LEAST_UBATCH;
    const enum bl_status st = bl_search_fits(&all->t[0].s, all->model, sized->ctx_tokens, &fits);
    all->t[0].c.plan.ubatch_tokens = was;
    if (st || !fits)
        return st;
    for (fits = false; !fits && small.ubatch_tokens > LEAST_UBATCH && next_trial(all);) {
        const uint32_t n = all->n;
        BL_TRY(try_half(all, &small));
        fits = all->t[n].fits;
    }
    return BL_OK;
}

/* A card has room for something, but not beside buffers for such steps. */
static bool is_idle_for_buffers(const struct trial *t)
{
    const struct bl_costs *k = &t->s.costs;

    for (uint16_t d = 1; d < k->n_devices; d++) {
        const uint64_t driver = t->s.machine->device[d].driver_bytes;
        const uint64_t least = bl_least_group(k, d);
        if (k->open[d] && t->s.machine->device[d].shares != 0 && !t->s.best.used[d] && least &&
            k->compute[d] + least > k->budget[d] && driver + least < k->budget[d])
            return true;
    }
    return false;
}

static enum bl_status try_for_idle(struct trials *all, const struct bl_plan *sized)
{
    struct bl_plan small = *sized;
    bool idle = all->t[0].fits && is_idle_for_buffers(&all->t[0]);

    while (idle && small.ubatch_tokens > LEAST_UBATCH && next_trial(all)) {
        const uint32_t n = all->n;
        BL_TRY(try_half(all, &small));
        idle = all->t[n].fits && is_idle_for_buffers(&all->t[n]);
    }
    return BL_OK;
}

/* The first of the sizes may cost context; the others must not. */
static enum bl_status try_first(struct trials *all, struct bl_plan *sized, bool asked)
{
    BL_TRY(settle_one(all, sized));
    if (!all->t[0].fits && !asked)
        BL_TRY(try_smaller(all, sized));
    if (all->n > 1)
        return BL_OK;
    if (!all->t[0].fits)
        BL_TRY(shrink(&all->t[0]));
    sized->ctx_tokens = all->t[0].c.plan.ctx_tokens;
    BL_TRY(try_sending(all, sized));
    return asked ? BL_OK : try_for_idle(all, sized);
}

static enum bl_status try_sizes(struct trials *all, struct bl_plan *sized, bool asked)
{
    const bool more = !all->opt->fixed_ubatch && all->opt->prefill_weight > 0;
    const uint64_t ctx = sized->ctx_tokens;

    BL_TRY(try_first(all, sized, asked));
    while (more && all->t[0].fits && sized->ubatch_tokens <= sized->batch_tokens / 2 &&
           next_trial(all)) {
        sized->ubatch_tokens *= 2;
        BL_TRY(settle_one(all, sized));
        if (!all->t[all->n - 1].fits)
            break;
        BL_TRY(try_sending(all, sized));
    }
    for (uint32_t i = 0; i < all->n; i++)
        all->t[i].c.asked_ctx_tokens = ctx;
    return BL_OK;
}

/* ---- the best of them ---- */

/* All that is decided of a trial, and what it comes to. What had fitted by count may not do so by
 * the ledger. */
static enum bl_status complete(struct trial *t)
{
    const struct bl_model *m = t->s.model;
    const struct bl_machine *machine = t->s.machine;

    t->complete = true;
    BL_TRY(bl_search_finish(&t->s));
    BL_TRY(bl_search_confirm(&t->s, &t->fits));
    if (!t->fits)
        return BL_OK;
    BL_TRY(bl_choose_sending(&t->c, m, machine, &t->opt)); /* before the last room is filled */
    BL_TRY(bl_search_score_now(&t->s));
    BL_TRY(bl_search_split(&t->s));
    BL_TRY(bl_search_experts(&t->s));
    BL_TRY(bl_plan_rates(&t->c, m, machine, &t->opt, t->ns));
    t->score = bl_plan_score(t->ns[BL_DECODE], t->ns[BL_PREFILL], t->opt.prefill_weight);
    return BL_OK;
}

/* The one that looks best of those that are left. */
static struct trial *promising(const struct trials *all)
{
    struct trial *best = NULL;

    for (uint32_t i = 0; i < all->n; i++) {
        struct trial *t = &all->t[i];
        if (t->fits && !t->complete && (!best || t->s.best_score < best->s.best_score))
            best = t;
    }
    return best;
}

/* All that may turn out best. Ties: smaller steps, nothing sent. */
static enum bl_status complete_all(struct trials *all, struct trial **best)
{
    struct trial *t;

    *best = NULL;
    while ((t = promising(all))) {
        if (*best && t->s.most_simulated < FEW_SIMULATED &&
            t->s.best_score > (*best)->score * WORTH_COMPLETING)
            break;
        BL_TRY(complete(t));
        if (t->fits && (!*best || t->score < (*best)->score * (1 - 1e-6) ||
                        (t < *best && t->score < (*best)->score * (1 + 1e-6))))
            *best = t;
    }
    return BL_OK;
}

/* Where the context was made shorter, buffers that only lowering knows may leave no room for the
 * last of it. */
static enum bl_status retreat(struct trial *t, struct trial **best)
{
    enum { STEP = 256, ROUNDS = 4 };
    struct bl_search_state *s = &t->s;
    const bool shorter = t->c.plan.ctx_tokens < t->c.asked_ctx_tokens;

    for (unsigned i = 0; shorter && !*best && i < ROUNDS && t->c.plan.ctx_tokens > STEP; i++) {
        set_ctx(t, t->c.plan.ctx_tokens - STEP);
        bl_search_close(s);
        *s = (struct bl_search_state){
            .model = s->model, .machine = s->machine, .opt = s->opt, .plan = s->plan};
        BL_TRY(bl_search_open(s));
        BL_TRY(bl_search_settle(s, &t->fits));
        if (t->fits)
            BL_TRY(complete(t));
        *best = t->fits ? t : NULL;
    }
    if (*best && t->c.plan.ctx_tokens < s->opt->least_ctx_tokens)
        return bl_search_no_room(s, t->c.plan.ctx_tokens);
    return BL_OK;
}

/* What steps of other sizes would have come to. */
static enum bl_status explain_size(const struct trials *all, struct trial *best)
{
    const struct bl_reason about = {.first = -1, .last = -1, .part = BL_PART_STATE};
    struct trial *t = all->t;
    char others[160] = "";
    size_t at = 0;

    for (uint32_t i = 0; i < all->n && at < sizeof others; i++) {
        const uint32_t ub = t[i].c.plan.ubatch_tokens;
        const struct trial *of = &t[i];
        if (ub == best->c.plan.ubatch_tokens || (i && t[i - 1].c.plan.ubatch_tokens == ub))
            continue;
        if (i + 1 < all->n && t[i + 1].c.plan.ubatch_tokens == ub && t[i + 1].score < of->score)
            of = &t[i + 1];
        if (isfinite(of->score))
            at += (size_t)snprintf(others + at, sizeof others - at, "%s%.0f with %u",
                                   at ? ", " : "", 1e9 / of->ns[BL_PREFILL], ub);
    }
    if (!at)
        return BL_OK;
    return bl_add_reason(&best->c, &about,
                         "steps of %u tokens: prefill %.0f tokens/s predicted, against %s",
                         best->c.plan.ubatch_tokens, 1e9 / best->ns[BL_PREFILL], others);
}

static enum bl_status explain_smaller(const struct trials *all, struct trial *best)
{
    const struct bl_reason about = {.first = -1, .last = -1, .part = BL_PART_STATE};
    const uint32_t usual = all->t[0].c.plan.ubatch_tokens, ub = best->c.plan.ubatch_tokens;

    return ub >= usual || all->t[0].fits
               ? BL_OK
               : bl_add_reason(&best->c, &about,
                               "steps of %u tokens: there is no room for those of %u", ub, usual);
}

static enum bl_status explain_all(struct trials *all, struct trial *best)
{
    best->c.n_simulated = best->s.n_simulated;
    BL_TRY(bl_explain(&best->c, &best->s.costs, all->model, all->machine));
    BL_TRY(bl_explain_split(&best->c, &best->s.costs, all->model, all->machine));
    BL_TRY(explain_smaller(all, best));
    return explain_size(all, best);
}

/* The longest context, with smaller steps than usual where none fits with those. */
static enum bl_status size_longest(struct bl_plan *sized, const struct trials *all, bool asked,
                                   bool *on_cards)
{
    const uint64_t most = sized->ctx_tokens;
    const uint32_t usual = sized->ubatch_tokens;
    bool any;

    BL_TRY(bl_search_longest(sized, all->model, all->machine, all->opt, &any, on_cards));
    while (!any && !asked && sized->ubatch_tokens > LEAST_UBATCH) {
        sized->ubatch_tokens /= 2;
        sized->ctx_tokens = most;
        BL_TRY(bl_search_longest(sized, all->model, all->machine, all->opt, &any, on_cards));
    }
    sized->ubatch_tokens = any ? sized->ubatch_tokens : usual;
    return BL_OK;
}

static enum bl_status search_cards(struct bl_choice *out, struct trials *all,
                                   const struct bl_options *options)
{
    const bool longest = options->ctx_tokens == BL_CTX_MAX, asked = options->ubatch_tokens;
    struct bl_plan sized = {.n_layers = all->model->hp.n_layer};
    struct bl_search_options with = *all->opt;
    bool on_cards = false;
    struct trial *best;

    BL_TRY(bl_plan_size_steps(&sized, all->model, options));
    sized.known = with.known;
    if (longest)
        BL_TRY(size_longest(&sized, all, asked, &on_cards));
    with.may_shrink_ctx = with.may_shrink_ctx || longest;
    all->opt = &with;
    BL_TRY(try_sizes(all, &sized, asked || longest));
    BL_TRY(complete_all(all, &best));
    if (!best && !asked) {
        sized.ctx_tokens = all->t[0].c.plan.ctx_tokens;
        sized.ubatch_tokens = all->t[0].c.plan.ubatch_tokens;
        BL_TRY(try_smaller(all, &sized));
        for (uint32_t i = 1; i < all->n; i++)
            all->t[i].c.asked_ctx_tokens = all->t[0].c.asked_ctx_tokens;
        BL_TRY(complete_all(all, &best));
    }
    if (!best)
        BL_TRY(retreat(&all->t[0], &best));
    if (!best)
        return bl_search_no_room(&all->t[0].s, 0);
    BL_TRY(explain_all(all, best));
    if (longest)
        BL_TRY(bl_explain_longest(&best->c, all->model, &with, on_cards));
    BL_TRY(bl_plan_speed(&best->c, all->model, all->machine, &best->opt));
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
    struct trials all = {.model = m, .machine = machine, .opt = opt};

    if (machine->n_devices < 2)
        return search_host(out, m, machine, options, opt);
    all.t = bl_calloc(MOST_TRIALS, sizeof *all.t);
    if (!all.t)
        return bl_fail(BL_ENOMEM, "out of memory for a search");
    const enum bl_status st = search_cards(out, &all, options);
    for (uint32_t i = 0; i < all.n; i++)
        close_trial(&all.t[i]);
    free(all.t);
    return st;
}

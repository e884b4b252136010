/* SPDX-License-Identifier: MIT */
/* Steps of one size: candidates on cached costs, finalists by simulation, exact memory last. */
#include "search_impl.h"

#include "mem.h"
#include "program.h"
#include "timeline.h"
#include "vocab.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_IMPROVED = 3,   /* of the candidates of one blend */
    QUICK_FINALISTS = 4, /* while the size of steps is still open */
    MOST_NODES = 120000, /* lowered for finalists, all together */
    LEAST_SIMULATED = 6,
    MOST_SIMULATED = 400,
    FEW_PLANS = 1024,
    MOST_ROUNDS = 5,    /* of searching anew when lowering shows that buffers are larger */
    MOST_CONFIRMED = 12 /* likewise, when the ledger shows it */
};

/* What cached costs show to be worse by more than overlap could make up for is left out. */
#define WORTH_SIMULATING 1.1

enum bl_status bl_search_open(struct bl_search_state *s)
{
    enum bl_status st = bl_costs_make(&s->costs, s->model, s->machine, s->plan, s->opt);

    if (!st)
        st = bl_draft_init(&s->best, &s->costs);
    if (!st)
        st = bl_draft_init(&s->draft, &s->costs);
    for (uint32_t i = 0; !st && i < BL_MOST_FINALISTS; i++)
        st = bl_draft_init(&s->pool[i].draft, &s->costs);
    return st;
}

void bl_search_close(struct bl_search_state *s)
{
    for (uint32_t i = 0; i < BL_MOST_FINALISTS; i++)
        bl_draft_finish(&s->pool[i].draft);
    bl_draft_finish(&s->best);
    bl_draft_finish(&s->draft);
    bl_costs_finish(&s->costs);
}

/* ---- simulation ---- */

enum bl_status bl_simulate(const struct bl_model *m, const struct bl_plan *p,
                           const struct bl_machine *machine, const struct bl_search_options *opt,
                           uint32_t n_tok, uint32_t stream_from, double *ns)
{
    const struct bl_timeline_options to = {
        .table = opt->table, .depth_tokens = opt->depth_tokens, .stream_from_tok = stream_from};
    struct bl_timeline t = {0};

    BL_TRY(bl_timeline_predict(&t, m, p, machine, n_tok, &to));
    *ns = t.ns;
    bl_timeline_finish(&t);
    return BL_OK;
}

enum bl_status bl_search_simulate(struct bl_search_state *s, double *decode, double *prefill)
{
    const uint32_t ub = s->plan->ubatch_tokens;
    double sent = INFINITY;

    s->n_simulated++;
    BL_TRY(bl_simulate(s->model, s->plan, s->machine, s->opt, 1, 0, decode));
    *prefill = 1;
    if (!(s->opt->prefill_weight > 0))
        return BL_OK;
    BL_TRY(bl_simulate(s->model, s->plan, s->machine, s->opt, ub, 0, prefill));
    if (bl_plan_uses(s->plan, 0) && s->machine->n_devices > 1)
        BL_TRY(bl_simulate(s->model, s->plan, s->machine, s->opt, ub, 1, &sent));
    *prefill = fmin(*prefill, sent) / ub;
    return BL_OK;
}

static enum bl_status consider(struct bl_search_state *s, const struct bl_draft *d)
{
    double decode, prefill;

    if (s->n_simulated >= s->most_simulated)
        return BL_OK;
    bl_draft_to_plan(d, &s->costs, s->plan);
    BL_TRY(bl_search_simulate(s, &decode, &prefill));
    const double score = bl_plan_score(decode, prefill, s->opt->prefill_weight);
    if (score < s->best_score * (1 - 1e-9)) {
        s->best_score = score;
        s->decode_ns = decode;
        s->prefill_ns = prefill;
        bl_draft_copy(&s->best, d, &s->costs);
    }
    return BL_OK;
}

/* ---- candidates ---- */

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

static void cached_ns(const struct bl_search_state *s, const struct bl_draft *d,
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

    cached_ns(s, d, ns);
    const double score =
        bl_plan_score(ns[BL_DECODE], fmin(ns[BL_PREFILL], ns[BL_SENT]), s->opt->prefill_weight);
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
static enum bl_status gather(struct bl_search_state *s)
{
    const unsigned last = s->opt->prefill_weight > 0 ? BL_SENT : BL_PREFILL;
    double ns[BL_N_PHASES];
    bool fits;

    s->n_pool = 0;
    BL_TRY(bl_draft_fill(&s->draft, &s->costs, s->machine, NULL, 0, false, &fits));
    cached_ns(s, &s->draft, ns);
    for (unsigned round = 0; round < 2; round++)
        for (unsigned mode = BL_PREFILL; mode <= last; mode++) {
            if (round && s->n_pool)
                cached_ns(s, &s->pool[0].draft, ns);
            bl_costs_blend(&s->costs, ns, mode, s->opt->prefill_weight);
            BL_TRY(try_all(s, round && !s->quick));
            if (round)
                BL_TRY(improve_some(s, s->quick ? 1 : MOST_IMPROVED));
        }
    return BL_OK;
}

/* All that blocks may be rounded up by: the largest to hope for when nothing is confirmed. */
static uint64_t rounding(const struct bl_search_state *s, uint16_t d)
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
        s->costs.compute[d] += rounding(s, d);
    if (s->on_cards)
        bl_search_empty_host(s);
    BL_TRY(bl_draft_fill(&s->draft, &s->costs, s->machine, NULL, 0, false, fits));
    cached_ns(s, &s->draft, ns);
    bl_costs_blend(&s->costs, ns, BL_PREFILL, 0);
    BL_TRY(try_all(s, true));
    *fits = s->n_pool > 0;
    return BL_OK;
}

/* ---- single moves, judged by simulation, as overlap is what cached costs do not know ---- */

static bool may_change(const struct bl_search_state *s, uint32_t l, unsigned g, uint16_t d)
{
    return bl_draft_at(&s->best, l, g) != d && bl_group_bytes(&s->costs, l, g) &&
           bl_may_move(&s->costs, s->machine, l, g, d);
}

/* The state's draft, a change of the best. */
static enum bl_status try_draft(struct bl_search_state *s)
{
    bl_draft_count(&s->draft, &s->costs);
    bl_draft_score(&s->draft, &s->costs);
    bl_draft_score(&s->best, &s->costs);
    if (s->draft.score > s->best.score * WORTH_SIMULATING ||
        !bl_draft_fits(&s->draft, &s->costs, s->machine))
        return BL_OK;
    return consider(s, &s->draft);
}

static enum bl_status try_change(struct bl_search_state *s, uint32_t l, bool rest, bool experts,
                                 uint16_t d)
{
    uint16_t *at = &s->draft.at[(size_t)l * BL_N_GROUPS];

    if ((rest && !may_change(s, l, BL_GROUP_REST, d)) ||
        (experts && !may_change(s, l, BL_GROUP_EXPERTS, d)))
        return BL_OK;
    bl_draft_copy(&s->draft, &s->best, &s->costs);
    at[BL_GROUP_REST] = rest ? d : at[BL_GROUP_REST];
    at[BL_GROUP_EXPERTS] = experts ? d : at[BL_GROUP_EXPERTS];
    return try_draft(s);
}

/* Two cards change places. */
static enum bl_status try_exchange(struct bl_search_state *s, uint16_t a, uint16_t b)
{
    bl_draft_copy(&s->draft, &s->best, &s->costs);
    for (uint32_t l = 0; l < s->costs.n_layers; l++)
        for (unsigned g = 0; g < BL_N_GROUPS; g++) {
            const uint16_t is = bl_draft_at(&s->best, l, g), to = is == a ? b : is == b ? a : is;
            if (to != is && bl_may_move(&s->costs, s->machine, l, g, to))
                s->draft.at[(size_t)l * BL_N_GROUPS + g] = to;
        }
    return bl_draft_same(&s->draft, &s->best, &s->costs) ? BL_OK : try_draft(s);
}

/* The best sends experts or it does not: its changes are priced the same way. */
static void blend_near_best(struct bl_search_state *s)
{
    double ns[BL_N_PHASES];

    cached_ns(s, &s->best, ns);
    const bool sends = s->opt->prefill_weight > 0 && ns[BL_SENT] < ns[BL_PREFILL];
    bl_costs_blend(&s->costs, ns, sends ? BL_SENT : BL_PREFILL, s->opt->prefill_weight);
}

static enum bl_status polish(struct bl_search_state *s)
{
    bool moved = true;

    blend_near_best(s);
    while (moved && s->n_simulated < s->most_simulated) {
        const double before = s->best_score;
        for (uint32_t l = 0; l < s->costs.n_layers; l++)
            for (uint16_t d = 0; d < s->costs.n_devices; d++) {
                BL_TRY(try_change(s, l, true, false, d));
                BL_TRY(try_change(s, l, false, true, d));
                BL_TRY(try_change(s, l, true, true, d));
            }
        for (uint16_t a = 1; a < s->costs.n_devices; a++)
            for (uint16_t b = a + 1; b < s->costs.n_devices; b++)
                BL_TRY(try_exchange(s, a, b));
        moved = s->best_score < before;
    }
    return BL_OK;
}

/* ---- buffers: only lowering knows them ---- */

/* exact: also where it is less than was thought. */
static enum bl_status measure_compute(struct bl_search_state *s, const struct bl_draft *d,
                                      bool exact, bool *grew)
{
    struct bl_program prog = {0};
    const struct bl_shape shape =
        bl_plan_bucket(s->plan, s->plan->ubatch_tokens, s->plan->out_tokens);

    bl_draft_to_plan(d, &s->costs, s->plan);
    BL_TRY(bl_program_lower(&prog, s->model, s->plan, s->machine, &shape));
    *grew = false;
    for (uint32_t i = 0; i < s->costs.n_devices; i++) {
        const struct bl_machine_device *md = &s->machine->device[i];
        const uint64_t granule = md->caps.granule_bytes ? md->caps.granule_bytes : 1;
        /* What other blocks are rounded up by shows when the plan is confirmed. */
        const uint64_t bytes = bl_align_up(prog.arena_bytes[i] + prog.scratch_bytes[i], granule) +
                               bl_align_up(bl_params_bytes(s->plan), granule) + md->driver_bytes;
        *grew = *grew || (prog.used[i] && bytes > s->costs.compute[i]);
        if (prog.used[i] && (exact || bytes > s->costs.compute[i]))
            s->costs.compute[i] = bytes;
    }
    s->costs.host_bytes = bl_output_bytes(s->plan, s->model) + bl_gguf_heap_bytes(s->model->gguf) +
                          bl_vocab_plan_bytes(s->model->gguf) +
                          BL_PROGRAM_CAP * bl_program_heap_bytes(&prog);
    s->most_simulated = MOST_NODES / (prog.graph.n_nodes + 1);
    s->most_simulated = s->most_simulated < LEAST_SIMULATED  ? LEAST_SIMULATED
                        : s->most_simulated > MOST_SIMULATED ? MOST_SIMULATED
                                                             : s->most_simulated;
    bl_program_finish(&prog);
    return BL_OK;
}

/* Every kind of device as the only one, experts there and in RAM; twins need the same. */
static uint16_t twin_of(const struct bl_machine *m, uint16_t d)
{
    for (uint16_t i = 1; i < d; i++)
        if (m->device[i].kind == m->device[d].kind &&
            m->device[i].backend == m->device[d].backend &&
            m->device[i].caps.granule_bytes == m->device[d].caps.granule_bytes)
            return i;
    return d;
}

enum bl_status bl_search_guess(struct bl_search_state *s)
{
    bool grew;

    for (uint16_t d = 0; d < s->costs.n_devices; d++)
        for (unsigned split = 0; split < 2; split++) {
            const uint16_t twin = twin_of(s->machine, d);
            if (twin < d)
                s->costs.compute[d] = s->costs.compute[twin];
            if (twin < d || (d == 0 && split))
                continue;
            for (uint32_t i = 0; i < s->costs.n_layers * BL_N_GROUPS; i++) {
                const uint32_t g = i % BL_N_GROUPS;
                s->draft.at[i] = s->costs.pin[i] != BL_NO_DEVICE ? s->costs.pin[i]
                                 : split && g == BL_GROUP_EXPERTS
                                     ? 0
                                     : bl_able_or_host(&s->costs, i / BL_N_GROUPS, g, d);
            }
            BL_TRY(measure_compute(s, &s->draft, false, &grew));
        }
    return BL_OK;
}

/* ---- the whole ---- */

static enum bl_status search_steps(struct bl_search_state *s)
{
    bool again = true;

    for (unsigned round = 0; again && round < MOST_ROUNDS; round++) {
        s->best_score = INFINITY;
        s->n_simulated = 0;
        BL_TRY(gather(s));
        for (uint32_t i = 0; i < s->n_pool && (!s->quick || i < QUICK_FINALISTS); i++)
            BL_TRY(consider(s, &s->pool[i].draft));
        if (!isfinite(s->best_score))
            return BL_OK;
        if (!s->quick)
            BL_TRY(polish(s));
        BL_TRY(measure_compute(s, &s->best, false, &again));
    }
    return BL_OK;
}

/* Buffers as small as can be: searching shows what they grow to. */
static void hope(struct bl_search_state *s)
{
    for (uint16_t d = 0; d < s->costs.n_devices; d++)
        s->costs.compute[d] = s->machine->device[d].driver_bytes + bl_params_bytes(s->plan);
}

/* Buffers are first taken to be as large as the worst plan has them. What fits only by prices is
 * not found quickly. */
enum bl_status bl_search_settle(struct bl_search_state *s, bool *fits)
{
    BL_TRY(bl_search_guess(s));
    s->quick = true;
    BL_TRY(search_steps(s));
    s->quick = isfinite(s->best_score);
    if (!s->quick)
        BL_TRY(search_steps(s));
    if (!isfinite(s->best_score)) {
        const uint64_t missing = s->least_missing; /* with buffers */
        const uint16_t on = s->missing_on;
        hope(s);
        BL_TRY(search_steps(s));
        s->least_missing = missing;
        s->missing_on = on;
    }
    *fits = isfinite(s->best_score);
    return BL_OK;
}

/* Then as the plan that was found has them, which may leave room for more. */
enum bl_status bl_search_finish(struct bl_search_state *s)
{
    struct bl_draft kept = {0};
    bool grew;

    s->quick = false;
    BL_TRY(bl_draft_init(&kept, &s->costs));
    const double score = s->best_score, decode = s->decode_ns, prefill = s->prefill_ns;
    bl_draft_copy(&kept, &s->best, &s->costs);
    hope(s);
    enum bl_status st = measure_compute(s, &s->best, true, &grew);
    if (!st)
        st = search_steps(s);
    if (!st && !(s->best_score <= score)) {
        bl_draft_copy(&s->best, &kept, &s->costs);
        s->best_score = score;
        s->decode_ns = decode;
        s->prefill_ns = prefill;
    }
    bl_draft_finish(&kept);
    return st;
}

enum bl_status bl_plan_fill_memory(struct bl_plan *p, const struct bl_model *m,
                                   const struct bl_machine *machine)
{
    struct bl_block_bytes *blocks = bl_calloc(machine->n_devices, sizeof *blocks);

    if (!blocks)
        return bl_fail(BL_ENOMEM, "out of memory while planning");
    const enum bl_status st = bl_plan_memory(p, m, machine, blocks);
    free(blocks);
    return st;
}

bool bl_plan_fits(const struct bl_plan *p, const struct bl_costs *c, const struct bl_machine *m)
{
    uint64_t shared = 0;

    for (uint16_t d = 0; d < c->n_devices; d++) {
        const uint64_t used = bl_ledger_planned(&p->ledger, d);
        if (used > c->budget[d])
            return false;
        shared += d == 0 || m->device[d].shares == 0 ? used : 0;
    }
    return shared <= c->budget[0];
}

enum bl_status bl_search_confirm(struct bl_search_state *s, bool *fits)
{
    for (unsigned round = 0; round < MOST_CONFIRMED; round++) {
        bl_draft_count(&s->best, &s->costs);
        bl_draft_to_plan(&s->best, &s->costs, s->plan);
        BL_TRY(bl_plan_check(s->plan, s->model, s->machine));
        BL_TRY(bl_plan_fill_memory(s->plan, s->model, s->machine));
        *fits = bl_plan_fits(s->plan, &s->costs, s->machine);
        if (*fits)
            return BL_OK;
        for (uint16_t d = 0; d < s->costs.n_devices; d++) {
            const uint64_t used = bl_ledger_planned(&s->plan->ledger, d);
            if (used > s->best.used[d])
                s->costs.compute[d] += used - s->best.used[d] + (round ? rounding(s, d) : 0);
        }
        BL_TRY(search_steps(s));
        *fits = isfinite(s->best_score);
        if (!*fits)
            return BL_OK;
    }
    *fits = false;
    return BL_OK;
}

/* SPDX-License-Identifier: MIT */
/* Candidates on cached costs, finalists by simulation, exact memory last. */
#include "search_impl.h"

#include "mem.h"
#include "program.h"
#include "timeline.h"
#include "vocab.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_FINALISTS = 12,
    MOST_SIMULATED = 64, /* programs lowered for one step size */
    SMALL = 8,           /* layers up to which improvement goes on by simulation */
    MOST_ROUNDS = 5      /* of filling anew when lowering shows that buffers are larger */
};

struct search {
    const struct bl_model *model;
    const struct bl_machine *machine;
    const struct bl_search_options *opt;
    struct bl_plan *plan; /* sizes of steps; its table is the candidate being simulated */
    struct bl_costs costs;
    struct bl_draft best, draft; /* best: by simulation */
    double best_score;           /* INFINITY: none yet */
    uint32_t n_simulated;
    uint64_t least_missing; /* of candidates that do not fit */
    uint16_t missing_on;
};

void bl_choice_finish(struct bl_choice *c)
{
    bl_plan_finish(&c->plan);
    free(c->reason);
    *c = (struct bl_choice){0};
}

/* ---- simulation ---- */

static enum bl_status simulate(const struct bl_model *m, const struct bl_plan *p,
                               const struct bl_machine *machine,
                               const struct bl_search_options *opt, uint32_t n_tok,
                               uint32_t stream_from, double *ns)
{
    const struct bl_timeline_options to = {
        .table = opt->table, .depth_tokens = opt->depth_tokens, .stream_from_tok = stream_from};
    struct bl_timeline t = {0};

    BL_TRY(bl_timeline_predict(&t, m, p, machine, n_tok, &to));
    *ns = t.ns;
    bl_timeline_finish(&t);
    return BL_OK;
}

static enum bl_status simulated_score(struct search *s, const struct bl_draft *d, double *score)
{
    const uint32_t ub = s->plan->ubatch_tokens;
    double decode = 0, prefill = 0, sent = INFINITY;

    bl_draft_to_plan(d, s->plan);
    s->n_simulated++;
    BL_TRY(simulate(s->model, s->plan, s->machine, s->opt, 1, 0, &decode));
    if (s->opt->prefill_weight > 0) {
        BL_TRY(simulate(s->model, s->plan, s->machine, s->opt, ub, 0, &prefill));
        if (bl_plan_uses(s->plan, 0) && s->machine->n_devices > 1)
            BL_TRY(simulate(s->model, s->plan, s->machine, s->opt, ub, 1, &sent));
        prefill = fmin(prefill, sent) / ub;
    } else
        prefill = 1;
    *score = bl_plan_score(decode, prefill, s->opt->prefill_weight);
    return BL_OK;
}

static enum bl_status consider(struct search *s, const struct bl_draft *d)
{
    double score;

    if (s->n_simulated >= MOST_SIMULATED)
        return BL_OK;
    BL_TRY(simulated_score(s, d, &score));
    if (score < s->best_score * (1 - 1e-9)) {
        s->best_score = score;
        bl_draft_copy(&s->best, d, &s->costs);
    }
    return BL_OK;
}

/* ---- candidates ---- */

static void note_missing(struct search *s)
{
    for (uint16_t d = 0; d < s->costs.n_devices; d++) {
        const uint64_t used = s->draft.used[d], has = s->costs.budget[d];
        if (used > has && (!s->least_missing || used - has < s->least_missing)) {
            s->least_missing = used - has;
            s->missing_on = d;
        }
    }
}

static enum bl_status try_cards(struct search *s, const uint16_t *card, uint32_t n, bool in_runs)
{
    const double weight = s->opt->prefill_weight;

    if (!bl_draft_fill(&s->draft, &s->costs, s->machine, card, n, in_runs, weight)) {
        note_missing(s);
        return BL_OK;
    }
    BL_TRY(consider(s, &s->draft));
    BL_TRY(bl_draft_improve(&s->draft, &s->costs, s->machine, weight));
    return consider(s, &s->draft);
}

static enum bl_status try_all(struct search *s)
{
    uint16_t card[BL_MAX_DEVICES], rest[BL_MAX_DEVICES];
    const uint32_t n = bl_rank_cards(s->machine, card);

    BL_TRY(try_cards(s, card, 0, false));
    for (uint32_t used = 1; used <= n; used++)
        BL_TRY(try_cards(s, card, used, true));
    for (uint32_t first = 0; first < n && first < MOST_FINALISTS; first++) {
        const struct bl_machine_device *d = &s->machine->device[card[first]];
        if (first && d->usable_bytes == s->machine->device[card[first - 1]].usable_bytes)
            continue; /* its twin was the first already */
        rest[0] = card[first];
        for (uint32_t i = 0, k = 1; i < n; i++)
            if (i != first)
                rest[k++] = card[i];
        BL_TRY(try_cards(s, rest, n, false));
    }
    return BL_OK;
}

/* Small models: single moves, judged by simulation, as overlap is what cached costs do not know. */
static enum bl_status polish(struct search *s)
{
    const uint32_t cells = s->costs.n_layers * BL_N_GROUPS;
    bool moved = s->costs.n_layers <= SMALL;

    while (moved && s->n_simulated < MOST_SIMULATED) {
        const double before = s->best_score;
        for (uint32_t i = 0; i < cells; i++)
            for (uint16_t d = 0; d < s->costs.n_devices; d++) {
                bl_draft_copy(&s->draft, &s->best, &s->costs);
                if (s->draft.at[i] == d || !s->costs.bytes[i] || s->machine->device[d].shares == 0)
                    continue;
                s->draft.at[i] = d;
                bl_draft_count(&s->draft, &s->costs);
                if (bl_draft_fits(&s->draft, &s->costs, s->machine))
                    BL_TRY(consider(s, &s->draft));
            }
        moved = s->best_score < before;
    }
    return BL_OK;
}

/* ---- buffers: only lowering knows them ---- */

/* exact: also where it is less than was thought. */
static enum bl_status measure_compute(struct search *s, const struct bl_draft *d, bool exact,
                                      bool *grew)
{
    struct bl_program prog = {0};
    const struct bl_shape shape =
        bl_plan_bucket(s->plan, s->plan->ubatch_tokens, s->plan->out_tokens);

    bl_draft_to_plan(d, s->plan);
    BL_TRY(bl_program_lower(&prog, s->model, s->plan, s->machine, &shape));
    *grew = false;
    for (uint32_t i = 0; i < s->costs.n_devices; i++) {
        const struct bl_machine_device *md = &s->machine->device[i];
        const uint64_t granule = md->caps.granule_bytes ? md->caps.granule_bytes : 1;
        /* six blocks, each rounded up */
        const uint64_t bytes = prog.arena_bytes[i] + prog.scratch_bytes[i] +
                               bl_params_bytes(s->plan) + 6 * (granule - 1);
        *grew = *grew || (prog.used[i] && bytes > s->costs.compute[i]);
        if (prog.used[i] && (exact || bytes > s->costs.compute[i]))
            s->costs.compute[i] = bytes;
    }
    s->costs.host_bytes = bl_output_bytes(s->plan, s->model) + bl_gguf_heap_bytes(s->model->gguf) +
                          bl_vocab_plan_bytes(s->model->gguf) +
                          BL_PROGRAM_CAP * bl_program_heap_bytes(&prog);
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

static enum bl_status guess_compute(struct search *s)
{
    bool grew;

    for (uint16_t d = 0; d < s->costs.n_devices; d++)
        for (unsigned split = 0; split < 2; split++) {
            const uint16_t twin = twin_of(s->machine, d);
            if (twin < d)
                s->costs.compute[d] = s->costs.compute[twin];
            if (twin < d || (d == 0 && split))
                continue;
            for (uint32_t i = 0; i < s->costs.n_layers * BL_N_GROUPS; i++)
                s->draft.at[i] = split && i % BL_N_GROUPS == BL_GROUP_EXPERTS ? 0 : d;
            BL_TRY(measure_compute(s, &s->draft, false, &grew));
        }
    return BL_OK;
}

static enum bl_status search_steps(struct search *s)
{
    bool again = true;

    for (unsigned round = 0; again && round < MOST_ROUNDS; round++) {
        s->best_score = INFINITY;
        s->n_simulated = 0;
        BL_TRY(try_all(s));
        if (!isfinite(s->best_score))
            return BL_OK;
        BL_TRY(polish(s));
        BL_TRY(measure_compute(s, &s->best, false, &again));
    }
    return BL_OK;
}

/* ---- one size of steps ---- */

static enum bl_status open_search(struct search *s)
{
    BL_TRY(bl_costs_make(&s->costs, s->model, s->machine, s->plan, s->opt));
    BL_TRY(bl_draft_init(&s->best, &s->costs));
    return bl_draft_init(&s->draft, &s->costs);
}

static void close_search(struct search *s)
{
    bl_draft_finish(&s->best);
    bl_draft_finish(&s->draft);
    bl_costs_finish(&s->costs);
}

static enum bl_status fill_memory(struct bl_plan *p, const struct bl_model *m,
                                  const struct bl_machine *machine)
{
    struct bl_block_bytes *blocks = bl_calloc(machine->n_devices, sizeof *blocks);
    enum bl_status st = BL_ENOMEM;

    if (!blocks)
        return bl_fail(st, "out of memory while planning");
    st = bl_plan_memory(p, m, machine, blocks);
    free(blocks);
    return st;
}

static bool plan_fits(const struct search *s, const struct bl_plan *p)
{
    uint64_t shared = 0;

    for (uint16_t d = 0; d < s->costs.n_devices; d++) {
        const uint64_t used = bl_ledger_planned(&p->ledger, d);
        if (used > s->costs.budget[d])
            return false;
        shared += d == 0 || s->machine->device[d].shares == 0 ? used : 0;
    }
    return shared <= s->costs.budget[0];
}

/* Search, then the exact ledger; where it shows more than was counted, with less room. */
static enum bl_status settle_with(struct search *s, bool *fits)
{
    for (unsigned round = 0; round < MOST_ROUNDS; round++) {
        BL_TRY(search_steps(s));
        *fits = isfinite(s->best_score);
        if (!*fits)
            return BL_OK;
        bl_draft_to_plan(&s->best, s->plan);
        BL_TRY(bl_plan_check(s->plan, s->model, s->machine));
        BL_TRY(fill_memory(s->plan, s->model, s->machine));
        if (plan_fits(s, s->plan))
            return BL_OK;
        for (uint16_t d = 0; d < s->costs.n_devices; d++) {
            const uint64_t used = bl_ledger_planned(&s->plan->ledger, d);
            if (used > s->best.used[d])
                s->costs.compute[d] += used - s->best.used[d];
        }
    }
    *fits = false;
    return BL_OK;
}

/* Buffers are first taken to be as large as the worst plan has them; then, once, as the plan that
 * was found has them, which may leave room for more. */
static enum bl_status settle(struct search *s, bool *fits)
{
    const size_t n = (size_t)s->costs.n_layers * BL_N_GROUPS;
    bool grew, again;

    BL_TRY(guess_compute(s));
    BL_TRY(settle_with(s, fits));
    if (!*fits || s->machine->n_devices < 2)
        return BL_OK;
    uint16_t *kept = bl_calloc(n + 1, sizeof *kept);
    if (!kept)
        return bl_fail(BL_ENOMEM, "out of memory for a candidate plan");
    const double score = s->best_score;
    memcpy(kept, s->best.at, n * sizeof *kept);
    enum bl_status st = measure_compute(s, &s->best, true, &grew);
    if (!st)
        st = settle_with(s, &again);
    if (!st && (!again || s->best_score > score)) {
        memcpy(s->best.at, kept, n * sizeof *kept);
        s->best_score = score;
        bl_draft_to_plan(&s->best, s->plan);
        st = fill_memory(s->plan, s->model, s->machine);
    }
    free(kept);
    return st;
}

/* ---- context ---- */

static enum bl_status no_room(const struct search *s, uint64_t nearest)
{
    const struct bl_machine_device *d = &s->machine->device[s->missing_on];
    const double gib = 1.0 / (1 << 30);
    char way[160];

    if (nearest)
        snprintf(way, sizeof way, "a context of %llu tokens would fit (-c %llu)",
                 (unsigned long long)nearest, (unsigned long long)nearest);
    else
        snprintf(way, sizeof way,
                 "no context fits; a smaller quantisation, or that much more memory, would");
    return bl_fail(BL_ENOFIT,
                   "the model does not fit with a context of %llu tokens: the nearest plan lacks "
                   "%.2f GiB on %s, of which %.2f GiB can be planned with (%s); %s",
                   (unsigned long long)s->plan->ctx_tokens, (double)s->least_missing * gib, d->id,
                   (double)s->costs.budget[s->missing_on] * gib, d->mem_source, way);
}

static enum bl_status fits_with(const struct search *s, uint64_t ctx, bool *fits)
{
    struct search t = {.model = s->model, .machine = s->machine, .opt = s->opt, .plan = s->plan};
    uint16_t card[BL_MAX_DEVICES];
    const uint32_t n = bl_rank_cards(s->machine, card);
    const uint64_t was = s->plan->ctx_tokens;

    s->plan->ctx_tokens = ctx;
    enum bl_status st = open_search(&t);
    if (!st)
        st = guess_compute(&t);
    *fits = false;
    for (uint32_t used = 0; !st && used <= n && !*fits; used++)
        for (unsigned runs = 0; runs < 2 && !*fits; runs++)
            *fits = bl_draft_fill(&t.draft, &t.costs, t.machine, card, used, runs, 0);
    close_search(&t);
    s->plan->ctx_tokens = was;
    return st;
}

/* Largest multiple of 256 below the one asked for; 0: none. */
static enum bl_status nearest_context(const struct search *s, uint64_t *ctx)
{
    enum { STEP = 256 };
    uint64_t low = 0, high = (s->plan->ctx_tokens + STEP - 1) / STEP;
    bool fits;

    while (high - low > 1) {
        const uint64_t mid = (low + high) / 2;
        BL_TRY(fits_with(s, mid * STEP, &fits));
        *(fits ? &low : &high) = mid;
    }
    *ctx = low * STEP;
    return BL_OK;
}

/* ---- one size of steps, and the best of them ---- */

static enum bl_status shrink(struct search *s, bool *fits)
{
    uint64_t nearest = 0;

    BL_TRY(nearest_context(s, &nearest));
    if (!nearest || !s->opt->may_shrink_ctx)
        return no_room(s, nearest);
    s->plan->ctx_tokens = nearest;
    close_search(s);
    BL_TRY(open_search(s));
    BL_TRY(settle(s, fits));
    return *fits ? BL_OK : no_room(s, 0);
}

static enum bl_status search_in(struct search *s, struct bl_choice *out)
{
    bool fits = false;

    BL_TRY(open_search(s));
    BL_TRY(settle(s, &fits));
    if (!fits)
        BL_TRY(shrink(s, &fits));
    out->n_simulated = s->n_simulated;
    return bl_explain(out, &s->costs, s->model, s->machine);
}

static enum bl_status search_ubatch(struct bl_choice *out, double *score, const struct bl_model *m,
                                    const struct bl_machine *machine,
                                    const struct bl_search_options *opt,
                                    const struct bl_plan *sized)
{
    struct bl_choice c = {.depth_tokens = opt->depth_tokens, .asked_ctx_tokens = sized->ctx_tokens};
    struct search s = {.model = m, .machine = machine, .opt = opt, .plan = &c.plan};

    BL_TRY(bl_plan_init(&c.plan, m));
    uint16_t *slot = c.plan.slot;
    c.plan = *sized;
    c.plan.slot = slot;
    c.plan.mmap = false; /* every device holds what is its own */
    enum bl_status st = search_in(&s, &c);
    *score = s.best_score;
    close_search(&s);
    if (st)
        bl_choice_finish(&c);
    else
        *out = c;
    return st;
}

/* Without cards there is nothing to choose: the plan that running makes. */
static enum bl_status search_host(struct bl_choice *out, const struct bl_model *m,
                                  const struct bl_machine *machine,
                                  const struct bl_options *options,
                                  const struct bl_search_options *opt)
{
    struct bl_choice c = {.depth_tokens = opt->depth_tokens};
    struct bl_costs costs = {0};

    BL_TRY(bl_plan_make(&c.plan, m, machine, options));
    c.asked_ctx_tokens = c.plan.ctx_tokens;
    enum bl_status st = bl_costs_make(&costs, m, machine, &c.plan, opt);
    if (!st)
        st = bl_explain(&c, &costs, m, machine);
    if (!st)
        st = bl_plan_speed(&c, m, machine, opt);
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
    struct bl_plan sized = {.n_layers = m->hp.n_layer};
    struct bl_choice best = {0};
    double least = INFINITY, score;
    enum bl_status st = BL_OK;

    if (machine->n_devices < 2)
        return search_host(out, m, machine, options, opt);
    BL_TRY(bl_plan_size_steps(&sized, m, options));
    for (uint32_t ub = sized.ubatch_tokens; ub <= sized.batch_tokens; ub *= 2) {
        struct bl_choice c = {0};
        sized.ubatch_tokens = ub;
        st = search_ubatch(&c, &score, m, machine, opt, &sized);
        if (st && !best.plan.slot)
            return st;
        if (!st && (!best.plan.slot ||
                    (score < least * (1 - 1e-6) && c.plan.ctx_tokens == best.plan.ctx_tokens))) {
            bl_choice_finish(&best);
            best = c;
            least = score;
        } else if (!st)
            bl_choice_finish(&c);
        if (st || opt->fixed_ubatch || !(opt->prefill_weight > 0))
            break;
    }
    st = bl_plan_speed(&best, m, machine, opt);
    if (st)
        bl_choice_finish(&best);
    else
        *out = best;
    return st;
}

/* ---- speed ---- */

struct steps { /* lowered once, priced often */
    struct bl_program decode, prefill;
};

static enum bl_status price(const struct steps *t, const struct bl_choice *c,
                            const struct bl_model *m, const struct bl_machine *machine,
                            const struct bl_search_options *opt, double ns[BL_N_PHASES])
{
    const struct bl_program *prog[BL_N_PHASES] = {&t->decode, &t->prefill};

    for (unsigned phase = 0; phase < BL_N_PHASES; phase++) {
        const struct bl_timeline_options to = {.table = opt->table,
                                               .depth_tokens = opt->depth_tokens,
                                               .stream_from_tok = c->stream_from_tok};
        struct bl_timeline line = {0};
        BL_TRY(bl_timeline_make(&line, prog[phase], m, &c->plan, machine, &to));
        ns[phase] = line.ns / prog[phase]->shape.n_tok;
        bl_timeline_finish(&line);
    }
    return BL_OK;
}

/* Least step, in powers of two, from which sending experts to cards is quicker. */
static enum bl_status find_crossover(struct bl_choice *c, const struct bl_model *m,
                                     const struct bl_machine *machine,
                                     const struct bl_search_options *opt)
{
    c->stream_from_tok = 0;
    for (uint32_t tok = c->plan.ubatch_tokens; machine->n_devices > 1 && tok > BL_FEW_TOKENS;
         tok /= 2) {
        double there, sent;
        BL_TRY(simulate(m, &c->plan, machine, opt, tok, 0, &there));
        BL_TRY(simulate(m, &c->plan, machine, opt, tok, 1, &sent));
        if (sent >= there * (1 - 1e-9))
            break;
        c->stream_from_tok = tok;
    }
    return BL_OK;
}

/* Variances add up in logarithms: of each constant by its slope, and of what no description says.
 */
static enum bl_status spread(struct bl_choice *c, const struct steps *t, const struct bl_model *m,
                             const struct bl_machine *machine, const struct bl_search_options *opt,
                             const double ns[BL_N_PHASES])
{
    const double step = 0.02;
    double var[BL_N_PHASES] = {BL_COST_UNSAID_DECODE * BL_COST_UNSAID_DECODE,
                               BL_COST_UNSAID_PREFILL * BL_COST_UNSAID_PREFILL};
    struct bl_cost_table table;
    struct bl_search_options moved = *opt;

    if (opt->table)
        table = *opt->table;
    else
        bl_cost_table_init(&table);
    moved.table = &table;
    for (unsigned i = 0; i < BL_N_COST_CONSTANTS; i++) {
        const double was = table.value[i];
        double now[BL_N_PHASES];
        table.value[i] = was * exp(step);
        BL_TRY(price(t, c, m, machine, &moved, now));
        table.value[i] = was;
        for (unsigned p = 0; p < BL_N_PHASES; p++)
            var[p] += pow(log(now[p] / ns[p]) / step * table.sd[i], 2);
    }
    c->decode.sd = sqrt(var[BL_DECODE]);
    c->prefill.sd = sqrt(var[BL_PREFILL]);
    return BL_OK;
}

enum bl_status bl_plan_speed(struct bl_choice *c, const struct bl_model *m,
                             const struct bl_machine *machine, const struct bl_search_options *opt)
{
    const struct bl_shape one = bl_plan_bucket(&c->plan, 1, 1),
                          many = bl_plan_bucket(&c->plan, c->plan.ubatch_tokens, 1);
    struct steps t = {0};
    double ns[BL_N_PHASES] = {0};

    enum bl_status st = find_crossover(c, m, machine, opt);
    if (!st)
        st = bl_program_lower(&t.decode, m, &c->plan, machine, &one);
    if (!st)
        st = bl_program_lower(&t.prefill, m, &c->plan, machine, &many);
    if (!st)
        st = price(&t, c, m, machine, opt, ns);
    c->decode.tok_per_s = 1e9 / ns[BL_DECODE];
    c->prefill.tok_per_s = 1e9 / ns[BL_PREFILL];
    if (!st)
        st = spread(c, &t, m, machine, opt, ns);
    bl_program_finish(&t.decode);
    bl_program_finish(&t.prefill);
    return st;
}

/* SPDX-License-Identifier: MIT */
/* Steps of one size: candidates on cached costs, finalists by simulation, exact memory last. */
#include "search_impl.h"

#include "chunks.h"
#include "mem.h"
#include "program.h"
#include "timeline.h"
#include "vocab.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    QUICK_FINALISTS = 4, /* while the size of steps is still open */
    MOST_NODES = 120000, /* lowered for finalists, all together */
    LEAST_SIMULATED = 6,
    MOST_SIMULATED = 400,
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

/* Sending within one memory gains nothing. */
static bool sends_over_links(const struct bl_model *m, const struct bl_plan *p,
                             const struct bl_machine *machine)
{
    for (uint32_t l = 0; l < p->n_layers; l++) {
        struct bl_chunking c;
        bl_plan_chunks(p, m, l, &c);
        if (c.card != BL_NO_DEVICE && !bl_wires_link(machine, 0, c.card))
            return false;
    }
    return true;
}

enum bl_status bl_simulate(const struct bl_model *m, const struct bl_plan *p,
                           const struct bl_machine *machine, const struct bl_search_options *opt,
                           uint32_t n_tok, uint32_t stream_from, double *ns)
{
    const struct bl_timeline_options to = {.table = opt->table, .depth_tokens = opt->depth_tokens};
    struct bl_plan with = *p;
    struct bl_timeline t = {0};

    with.stream_from = stream_from;

    *ns = INFINITY;
    if (stream_from && !sends_over_links(m, p, machine))
        return BL_OK;
    const enum bl_status st = bl_timeline_predict(&t, m, &with, machine, n_tok, &to);
    if (!st)
        *ns = t.ns;
    bl_timeline_finish(&t);
    return stream_from && st == BL_EUNSUPPORTED ? BL_OK : st; /* a card without such kernels */
}

enum bl_status bl_search_simulate(struct bl_search_state *s, double *decode, double *prefill)
{
    const uint32_t ub = s->plan->ubatch_tokens;

    s->n_simulated++;
    BL_TRY(bl_simulate(s->model, s->plan, s->machine, s->opt, 1, 0, decode));
    *prefill = 1;
    if (!(s->opt->prefill_weight > 0))
        return BL_OK;
    BL_TRY(bl_simulate(s->model, s->plan, s->machine, s->opt, ub, s->plan->stream_from, prefill));
    *prefill /= ub;
    return BL_OK;
}

enum bl_status bl_search_score_now(struct bl_search_state *s)
{
    BL_TRY(bl_search_simulate(s, &s->decode_ns, &s->prefill_ns));
    s->best_score = bl_plan_score(s->decode_ns, s->prefill_ns, s->opt->prefill_weight);
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

static void blend_near_best(struct bl_search_state *s)
{
    double ns[BL_N_PHASES];

    bl_search_cached_ns(s, &s->best, ns);
    bl_costs_blend(&s->costs, ns, bl_search_prefill(s), s->opt->prefill_weight);
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

static uint64_t granted(const struct bl_machine_device *d, uint64_t bytes)
{
    return bytes ? bl_align_up(bytes, d->caps.granule_bytes ? d->caps.granule_bytes : 1) : 0;
}

/* Of experts on their way to a card, there and on the host; both: as large as its blocks may be. */
static uint64_t ring_bytes(struct bl_search_state *s, uint16_t d, uint64_t *on_host, bool *whole)
{
    const struct bl_machine_device *host = &s->machine->device[0], *md = &s->machine->device[d];
    struct bl_ring_bytes b;

    bl_plan_ring(s->plan, s->model, d, &b);
    const uint64_t window = bl_plan_window(s->machine, d), ring = BL_RING_PARTS * b.part,
                   here = bl_plan_stages(s->plan, s->machine, d) ? ring : 0;
    *whole = !window || ring <= window;
    *on_host += ring ? granted(host, b.tables) + granted(host, here) : 0;
    return granted(md, ring);
}

/* exact: also where it is less than was thought. */
static enum bl_status measure_compute(struct bl_search_state *s, const struct bl_draft *d,
                                      bool exact, bool *grew)
{
    struct bl_program prog = {0};
    const struct bl_shape shape =
        bl_plan_bucket(s->plan, s->plan->ubatch_tokens, s->plan->out_tokens);

    uint64_t rings_on_host = 0;

    bl_draft_to_plan(d, &s->costs, s->plan);
    BL_TRY(bl_program_lower(&prog, s->model, s->plan, s->machine, &shape));
    *grew = false;
    for (uint16_t i = 0; i < s->costs.n_devices; i++) {
        const struct bl_machine_device *md = &s->machine->device[i];
        /* What other blocks are rounded up by shows when the plan is confirmed. */
        const uint64_t window = bl_plan_window(s->machine, i);
        bool whole = true;
        uint64_t bytes = granted(md, prog.arena_bytes[i] + prog.scratch_bytes[i]) +
                         granted(md, bl_params_bytes(s->plan)) + md->driver_bytes;
        bytes += i && s->plan->stream_from ? ring_bytes(s, i, &rings_on_host, &whole) : 0;
        if (!whole || (window && (prog.arena_bytes[i] > window || prog.scratch_bytes[i] > window)))
            bytes += s->costs.budget[i]; /* no allocation is so large */
        *grew = *grew || (prog.used[i] && bytes > s->costs.compute[i]);
        if (prog.used[i] && (exact || bytes > s->costs.compute[i]))
            s->costs.compute[i] = bytes;
    }
    s->costs.host_bytes = rings_on_host + bl_output_bytes(s->plan, s->model) +
                          bl_gguf_heap_bytes(s->model->gguf) + bl_vocab_plan_bytes(s->model->gguf) +
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
            const enum bl_status st = measure_compute(s, &s->draft, false, &grew);
            if (st && !(st == BL_EUNSUPPORTED && s->plan->stream_from))
                return st; /* else it is a card that experts cannot be sent to */
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
        BL_TRY(bl_search_gather(s));
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
    return shared <= c->budget[0] && !p->ledger.excess.bytes;
}

/* What the ledger shows a device to need beyond what was thought, its twins do, too. */
static void raise_one(struct bl_search_state *s, uint16_t d, uint64_t by)
{
    const uint16_t kind = twin_of(s->machine, d);

    for (uint16_t i = 1; i < s->costs.n_devices; i++)
        if (i != d && twin_of(s->machine, i) == kind &&
            s->costs.compute[i] < s->costs.compute[d] + by)
            s->costs.compute[i] = s->costs.compute[d] + by;
    s->costs.compute[d] += by;
}

static void raise_all(struct bl_search_state *s, unsigned round)
{
    const struct bl_ledger *l = &s->plan->ledger;

    if (l->excess.bytes) /* what that is for is not there a second time */
        s->costs.compute[l->excess.device] += s->costs.budget[l->excess.device];
    for (uint16_t d = 0; d < s->costs.n_devices; d++) {
        const uint64_t used = bl_ledger_planned(l, d);
        if (used > s->best.used[d])
            raise_one(s, d, used - s->best.used[d] + (round ? bl_search_rounding(s, d) : 0));
    }
}

static enum bl_status check_best(struct bl_search_state *s, bool *fits)
{
    bl_draft_count(&s->best, &s->costs);
    bl_draft_to_plan(&s->best, &s->costs, s->plan);
    BL_TRY(bl_plan_check(s->plan, s->model, s->machine));
    BL_TRY(bl_plan_fill_memory(s->plan, s->model, s->machine));
    *fits = bl_plan_fits(s->plan, &s->costs, s->machine);
    return BL_OK;
}

/* In the end without cards, unless rules want them. */
enum bl_status bl_search_confirm(struct bl_search_state *s, bool *fits)
{
    for (unsigned round = 0; round <= MOST_CONFIRMED; round++) {
        BL_TRY(check_best(s, fits));
        if (*fits || round == MOST_CONFIRMED)
            return BL_OK;
        raise_all(s, round);
        for (uint16_t d = 1; round + 1 == MOST_CONFIRMED && d < s->costs.n_devices; d++)
            s->costs.open[d] = false;
        BL_TRY(search_steps(s));
        *fits = isfinite(s->best_score);
        if (!*fits)
            return BL_OK;
    }
    return BL_OK;
}

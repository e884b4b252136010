/* SPDX-License-Identifier: MIT */
/* How fast a plan is, and how well that is known. */
#include "search_impl.h"

#include "chunks.h"
#include "program.h"
#include "timeline.h"

#include <math.h>

uint64_t bl_usual_depth(uint64_t ctx_tokens)
{
    enum { MOST = 4096 };
    return ctx_tokens / 2 < MOST ? ctx_tokens / 2 : MOST;
}

struct steps { /* lowered once, priced often */
    struct bl_program decode, prefill;
};

static enum bl_status price(const struct steps *t, const struct bl_choice *c,
                            const struct bl_model *m, const struct bl_machine *machine,
                            const struct bl_search_options *opt, double ns[2])
{
    const struct bl_program *prog[2] = {&t->decode, &t->prefill};

    for (unsigned phase = 0; phase < 2; phase++) {
        const struct bl_timeline_options to = {.table = opt->table,
                                               .depth_tokens = opt->depth_tokens};
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
        BL_TRY(bl_simulate(m, &c->plan, machine, opt, tok, 0, &there));
        BL_TRY(bl_simulate(m, &c->plan, machine, opt, tok, 1, &sent));
        if (sent >= there * (1 - 1e-9))
            break;
        c->stream_from_tok = tok;
    }
    return BL_OK;
}

/* Cards that live in the host's memory take from it. */
static bool has_room(const struct bl_plan *p, const struct bl_machine *machine,
                     const struct bl_search_options *opt)
{
    uint64_t shared = 0;

    for (uint16_t d = 0; d < machine->n_devices; d++) {
        const uint64_t used = bl_ledger_planned(&p->ledger, d);
        if (used > bl_device_budget(&machine->device[d], opt->reserve_bytes))
            return false;
        shared += d == 0 || machine->device[d].shares == 0 ? used : 0;
    }
    return shared <= machine->device[0].usable_bytes && !p->ledger.excess.bytes;
}

/* What chunks of another size leave of the ledger's bytes, its own ring aside. */
static bool may_fit(const struct bl_plan *p, const struct bl_model *m,
                    const struct bl_machine *machine, const struct bl_search_options *opt,
                    const uint64_t *other)
{
    for (uint16_t d = 1; d < machine->n_devices; d++) {
        const uint64_t window = bl_plan_window(machine, d);
        struct bl_ring_bytes b;
        bl_plan_ring(p, m, d, &b);
        const uint64_t ring = BL_RING_PARTS * b.part;
        if ((window && ring > window) ||
            (ring && other[d] + ring > bl_device_budget(&machine->device[d], opt->reserve_bytes)))
            return false;
    }
    return true;
}

static uint64_t beside_ring(const struct bl_ledger *l, uint16_t d)
{
    uint64_t bytes = bl_ledger_planned(l, d);

    for (uint32_t i = 0; i < l->n; i++)
        bytes -= l->line[i].device == d && l->line[i].purpose == BL_MEM_STAGING
                     ? l->line[i].planned_bytes
                     : 0;
    return bytes;
}

/* With the largest chunks that there is room for. */
static enum bl_status fit_ring(struct bl_choice *c, const struct bl_model *m,
                               const struct bl_machine *machine,
                               const struct bl_search_options *opt, bool *fits)
{
    struct bl_plan *p = &c->plan;
    uint64_t other[BL_MAX_DEVICES] = {0};

    *fits = false;
    p->stream_from = c->stream_from_tok;
    for (uint64_t bytes = BL_CHUNK_BYTES; !*fits && bytes >= BL_LEAST_CHUNK_BYTES; bytes /= 2) {
        p->chunk_bytes = bytes < BL_CHUNK_BYTES ? bytes : 0;
        if (!may_fit(p, m, machine, opt, other))
            continue;
        BL_TRY(bl_plan_fill_memory(p, m, machine));
        *fits = has_room(p, machine, opt);
        for (uint16_t d = 1; d < machine->n_devices; d++)
            other[d] = beside_ring(&p->ledger, d);
    }
    return BL_OK;
}

/* Smaller chunks cost more of what each costs: from more tokens on, then, or never. */
enum bl_status bl_choose_sending(struct bl_choice *c, const struct bl_model *m,
                                 const struct bl_machine *machine,
                                 const struct bl_search_options *opt)
{
    struct bl_plan *p = &c->plan;
    bool fits = false;

    c->sending_chosen = true;
    p->stream_from = 0;
    p->chunk_bytes = 0;
    BL_TRY(find_crossover(c, m, machine, opt));
    if (c->stream_from_tok)
        BL_TRY(fit_ring(c, m, machine, opt, &fits));
    if (fits && p->chunk_bytes) {
        BL_TRY(find_crossover(c, m, machine, opt));
        p->stream_from = c->stream_from_tok;
        BL_TRY(bl_plan_fill_memory(p, m, machine));
        fits = c->stream_from_tok && has_room(p, machine, opt);
    }
    if (fits)
        return BL_OK;
    p->stream_from = c->stream_from_tok = 0;
    p->chunk_bytes = 0;
    return bl_plan_fill_memory(p, m, machine);
}

static bool all_measured(const struct bl_machine *machine)
{
    for (uint32_t d = 0; d < machine->n_devices; d++)
        if (!bl_kernels_measured(&machine->device[d]))
            return false;
    return true;
}

/* Variances add up in logarithms: of each constant by its slope, and of what no description says.
 */
static enum bl_status spread(struct bl_choice *c, const struct steps *t, const struct bl_model *m,
                             const struct bl_machine *machine, const struct bl_search_options *opt,
                             const double ns[2])
{
    const double step = 0.02;
    const bool measured = all_measured(machine);
    const double decode = measured ? BL_COST_PROBED_DECODE : BL_COST_UNSAID_DECODE,
                 prefill = measured ? BL_COST_PROBED_PREFILL : BL_COST_UNSAID_PREFILL;
    double var[2] = {decode * decode, prefill * prefill};
    struct bl_cost_table table;
    struct bl_search_options moved = *opt;

    if (opt->table)
        table = *opt->table;
    else
        bl_cost_table_init(&table);
    moved.table = &table;
    for (unsigned i = 0; i < BL_N_COST_CONSTANTS; i++) {
        const double was = table.value[i];
        double now[2];
        table.value[i] = was * exp(step);
        BL_TRY(price(t, c, m, machine, &moved, now));
        table.value[i] = was;
        for (unsigned p = 0; p < 2; p++)
            var[p] += pow(log(now[p] / ns[p]) / step * table.sd[i], 2);
    }
    c->decode.sd = sqrt(var[BL_DECODE]);
    c->prefill.sd = sqrt(var[BL_PREFILL]);
    return BL_OK;
}

static enum bl_status lower_steps(struct steps *t, const struct bl_choice *c,
                                  const struct bl_model *m, const struct bl_machine *machine)
{
    const struct bl_shape one = bl_plan_bucket(&c->plan, 1, 1),
                          many = bl_plan_bucket(&c->plan, c->plan.ubatch_tokens, 1);

    BL_TRY(bl_program_lower(&t->decode, m, &c->plan, machine, &one));
    return bl_program_lower(&t->prefill, m, &c->plan, machine, &many);
}

static void drop_steps(struct steps *t)
{
    bl_program_finish(&t->decode);
    bl_program_finish(&t->prefill);
}

enum bl_status bl_plan_rates(struct bl_choice *c, const struct bl_model *m,
                             const struct bl_machine *machine, const struct bl_search_options *opt,
                             double ns[2])
{
    const uint32_t threads = c->plan.threads;
    const uint64_t nodes = c->plan.nodes;
    struct steps t = {0};

    enum bl_status st = bl_choose_host(c, m, machine, opt);
    if (!st)
        st = lower_steps(&t, c, m, machine);
    if (!st)
        st = price(&t, c, m, machine, opt, ns);
    drop_steps(&t);
    c->plan.threads = threads; /* nobody has asked for any */
    c->plan.nodes = nodes;
    return st;
}

enum bl_status bl_plan_speed(struct bl_choice *c, const struct bl_model *m,
                             const struct bl_machine *machine, const struct bl_search_options *opt)
{
    struct steps t = {0};
    double ns[2] = {0};

    enum bl_status st = bl_choose_host(c, m, machine, opt);
    if (!st && !c->sending_chosen)
        st = bl_choose_sending(c, m, machine, opt);
    c->stream_from_tok = c->plan.stream_from;
    if (!st)
        st = bl_find_crossovers(c, m, machine, opt);
    if (!st)
        st = bl_explain_sending(c, m, machine);
    if (!st)
        st = lower_steps(&t, c, m, machine);
    if (!st)
        st = price(&t, c, m, machine, opt, ns);
    c->decode.tok_per_s = 1e9 / ns[BL_DECODE];
    c->prefill.tok_per_s = 1e9 / ns[BL_PREFILL];
    if (!st)
        st = spread(c, &t, m, machine, opt, ns);
    drop_steps(&t);
    return st;
}

/* SPDX-License-Identifier: MIT */
/* How fast a plan is, and how well that is known. */
#include "search_impl.h"

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

static bool has_room(const struct bl_plan *p, const struct bl_machine *machine,
                     const struct bl_search_options *opt)
{
    for (uint16_t d = 1; d < machine->n_devices; d++)
        if (bl_ledger_planned(&p->ledger, d) >
            bl_device_budget(&machine->device[d], opt->reserve_bytes))
            return false;
    return !p->ledger.excess.bytes;
}

enum bl_status bl_choose_sending(struct bl_choice *c, const struct bl_model *m,
                                 const struct bl_machine *machine,
                                 const struct bl_search_options *opt)
{
    const uint64_t least = 4 << 20;
    struct bl_plan *p = &c->plan;

    c->sending_chosen = true;
    p->stream_from = 0;
    p->chunk_bytes = 0;
    BL_TRY(find_crossover(c, m, machine, opt));
    if (!c->stream_from_tok)
        return BL_OK;
    for (uint64_t bytes = BL_CHUNK_BYTES; bytes >= least; bytes /= 2) {
        p->stream_from = c->stream_from_tok;
        p->chunk_bytes = bytes < BL_CHUNK_BYTES ? bytes : 0;
        BL_TRY(bl_plan_fill_memory(p, m, machine));
        if (has_room(p, machine, opt))
            return BL_OK;
    }
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

enum bl_status bl_plan_speed(struct bl_choice *c, const struct bl_model *m,
                             const struct bl_machine *machine, const struct bl_search_options *opt)
{
    const struct bl_shape one = bl_plan_bucket(&c->plan, 1, 1),
                          many = bl_plan_bucket(&c->plan, c->plan.ubatch_tokens, 1);
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

/* SPDX-License-Identifier: MIT */
#include "planner.h"

#include "log.h"
#include "mem.h"
#include "numa.h"
#include "vocab.h"

#include <stdio.h>
#include <stdlib.h>

static uint32_t least(uint32_t a, uint64_t b)
{
    return a < b ? a : (uint32_t)b;
}

enum bl_status bl_plan_size_steps(struct bl_plan *p, const struct bl_model *m,
                                  const struct bl_options *opt)
{
    uint32_t batch = opt->batch_tokens ? opt->batch_tokens : BL_BATCH_TOKENS;
    uint32_t ubatch = opt->ubatch_tokens ? opt->ubatch_tokens : least(BL_UBATCH_TOKENS, batch);

    if (ubatch > batch)
        return bl_fail(BL_EINVAL, "ubatch %u is larger than batch %u; lower -ub or raise -b",
                       ubatch, batch);
    p->max_sessions = opt->max_sessions ? opt->max_sessions : 1;
    p->ctx_tokens = p->ctx_tokens ? p->ctx_tokens : m->opt.ctx_tokens;
    p->batch_tokens = least(batch, p->ctx_tokens * p->max_sessions);
    p->ubatch_tokens = least(ubatch, p->batch_tokens);
    p->out_tokens = least(opt->out_tokens ? opt->out_tokens : p->max_sessions, p->batch_tokens);
    p->mmap = !opt->no_mmap;
    p->count_experts = opt->expert_file && m->hp.n_expert;
    return BL_OK;
}

static void list_purposes(const struct bl_plan *p, uint16_t device, char *text, size_t cap)
{
    size_t n = 0;
    for (uint32_t i = 0; i < p->ledger.n && n < cap; i++) {
        const struct bl_ledger_line *l = &p->ledger.line[i];
        if (l->device == device && l->planned_bytes >> 20)
            n += (size_t)snprintf(text + n, cap - n, "%s%s %llu", n ? ", " : "",
                                  bl_purpose_name(l->purpose),
                                  (unsigned long long)(l->planned_bytes >> 20));
    }
}

static enum bl_status check_fit(const struct bl_plan *p, const struct bl_machine *machine)
{
    for (uint16_t d = 0; d < machine->n_devices; d++) {
        const struct bl_machine_device *md = &machine->device[d];
        uint64_t need = bl_ledger_planned(&p->ledger, d);
        char parts[200] = "";

        if (need <= md->usable_bytes)
            continue;
        list_purposes(p, d, parts, sizeof parts);
        return bl_fail(BL_ENOFIT,
                       "%s needs %llu MiB (%s), %llu MiB are usable by %s: %llu MiB short; a "
                       "smaller -c or -ub, "
                       "or a smaller quantisation would help",
                       md->id, (unsigned long long)(need >> 20), parts,
                       (unsigned long long)(md->usable_bytes >> 20), md->mem_source,
                       (unsigned long long)((need - md->usable_bytes + (1 << 20) - 1) >> 20));
    }
    return BL_OK;
}

static double times(double a, double b)
{
    return b > 0 ? a / b : 0;
}

void bl_plan_choose_nodes(struct bl_plan *p, const struct bl_machine *machine,
                          const struct bl_options *opt)
{
    /* All nodes must promise more than reading shows: the threads also meet, over a longer way. */
    const double gain = 1.2, fill = 0.9;
    const struct bl_cpus *c = machine->cpus;
    const struct bl_decode_way *way = &machine->home;

    if (!c || c->n_nodes < 2 || opt->no_bind || machine->by_node)
        return;
    const struct bl_memory_node *home = &c->node[c->home];
    const double need = (double)bl_ledger_planned(&p->ledger, 0);
    if (need > fill * (double)home->free_bytes ||
        times(machine->spread.gb_per_s, machine->home.gb_per_s) > gain)
        way = &machine->spread;
    for (uint32_t i = 0; i < c->n_nodes; i++)
        if (c->node[i].id < BL_MAX_NODES && (way == &machine->spread || i == c->home))
            p->nodes |= (uint64_t)1 << c->node[i].id;
    p->threads = opt->threads ? opt->threads : way->threads;
    if (way == &machine->spread)
        bl_info("memory nodes: blocks take turns over all %u, %.0f MiB on each", c->n_nodes,
                need / c->n_nodes / (1 << 20));
    else
        bl_info("memory nodes: blocks lie on node %u, %.0f of %.0f MiB", home->id, need / (1 << 20),
                (double)home->free_bytes / (1 << 20));
}

static enum bl_status fill_memory(struct bl_plan *p, const struct bl_model *m,
                                  const struct bl_machine *machine)
{
    struct bl_block_bytes *blocks = bl_calloc(machine->n_devices, sizeof *blocks);
    enum bl_status st;

    if (!blocks)
        return bl_fail(BL_ENOMEM, "out of memory while planning");
    st = bl_plan_memory(p, m, machine, blocks);
    free(blocks);
    return st;
}

/* The system fills its page cache from whichever node reads first: with several of them weights are
 * read into blocks that can be placed, if there is room. */
static bool would_rather_read(const struct bl_machine *machine, const struct bl_options *opt)
{
    return !opt->no_mmap && machine->cpus && machine->cpus->n_nodes > 1 && !opt->no_bind &&
           !machine->by_node;
}

static enum bl_status prefer_reading(struct bl_plan *p, const struct bl_model *m,
                                     const struct bl_machine *machine)
{
    const struct bl_machine_device *host = &machine->device[0];

    for (unsigned mapped = 0; mapped < 2; mapped++) {
        p->mmap = mapped;
        bl_ledger_finish(&p->ledger);
        BL_TRY(fill_memory(p, m, machine));
        if (bl_ledger_planned(&p->ledger, 0) <= host->usable_bytes)
            break;
    }
    return BL_OK;
}

/* One device so far: everything lives on the host CPU, the table of bl_plan_init. ctx_tokens 0: the
 * model's. */
static enum bl_status make(struct bl_plan *out, const struct bl_model *m,
                           const struct bl_machine *machine, const struct bl_options *opt,
                           uint64_t ctx_tokens)
{
    struct bl_plan p;
    enum bl_status st = bl_plan_init(&p, m);

    if (st)
        return st;
    p.ctx_tokens = ctx_tokens;
    st = bl_plan_size_steps(&p, m, opt);
    if (!st)
        st = bl_plan_check(&p, m, machine);
    if (!st)
        st = would_rather_read(machine, opt) ? prefer_reading(&p, m, machine)
                                             : fill_memory(&p, m, machine);
    if (st)
        bl_plan_finish(&p);
    else
        *out = p;
    return st;
}

/* ---- the longest context -------------------------------------------------------------------- */

enum { CTX_STEP = 256 };

enum bl_status bl_longest_ctx(uint64_t most, bl_ctx_fits_fn *fits, void *arg, uint64_t *out)
{
    uint64_t low = 0, high = (most + CTX_STEP - 1) / CTX_STEP;
    bool yes;

    BL_TRY(fits(arg, most, &yes));
    while (!yes && high - low > 1) {
        const uint64_t mid = (low + high) / 2;
        bool some;
        BL_TRY(fits(arg, mid * CTX_STEP, &some));
        *(some ? &low : &high) = mid;
    }
    *out = yes ? most : low * CTX_STEP;
    return BL_OK;
}

struct fitting {
    const struct bl_model *model;
    const struct bl_machine *machine;
    const struct bl_options *opt;
};

static bool has_room(const struct bl_plan *p, const struct bl_machine *machine)
{
    for (uint16_t d = 0; d < machine->n_devices; d++)
        if (bl_ledger_planned(&p->ledger, d) > machine->device[d].usable_bytes)
            return false;
    return true;
}

static enum bl_status fits_with(void *arg, uint64_t ctx_tokens, bool *fits)
{
    const struct fitting *f = arg;
    struct bl_plan p;

    BL_TRY(make(&p, f->model, f->machine, f->opt, ctx_tokens));
    *fits = has_room(&p, f->machine);
    bl_plan_finish(&p);
    return BL_OK;
}

/* Where none fits, the least shows what is missing. */
static enum bl_status find_ctx(struct fitting *f, uint64_t *ctx_tokens)
{
    const uint64_t most = f->model->opt.ctx_tokens;

    BL_TRY(bl_longest_ctx(most, fits_with, f, ctx_tokens));
    if (!*ctx_tokens)
        *ctx_tokens = most < CTX_STEP ? most : CTX_STEP;
    return BL_OK;
}

enum bl_status bl_plan_make(struct bl_plan *out, const struct bl_model *m,
                            const struct bl_machine *machine, const struct bl_options *opt)
{
    struct fitting f = {m, machine, opt};
    uint64_t ctx_tokens = 0;
    struct bl_plan p;

    if (opt->ctx_tokens == BL_CTX_MAX)
        BL_TRY(find_ctx(&f, &ctx_tokens));
    BL_TRY(make(&p, m, machine, opt, ctx_tokens));
    if (would_rather_read(machine, opt))
        bl_info(p.mmap
                    ? "memory nodes: no room to read the weights; mapped, they lie where they were "
                      "first read"
                    : "memory nodes: weights are read, for a mapped file cannot be placed");
    bl_plan_choose_nodes(&p, machine, opt);
    const enum bl_status st = check_fit(&p, machine);
    if (st)
        bl_plan_finish(&p);
    else
        *out = p;
    return st;
}

void bl_plan_lack(struct bl_placement_lack *out, const struct bl_model *m,
                  const struct bl_machine *machine, const struct bl_options *opt)
{
    struct fitting f = {m, machine, opt};
    uint64_t ctx_tokens = 0;
    struct bl_plan p;

    *out = (struct bl_placement_lack){.bytes = 0};
    if (opt->ctx_tokens == BL_CTX_MAX && find_ctx(&f, &ctx_tokens))
        return;
    if (make(&p, m, machine, opt, ctx_tokens))
        return;
    for (uint16_t d = 0; d < machine->n_devices && !out->bytes; d++) {
        const struct bl_machine_device *md = &machine->device[d];
        const uint64_t need = bl_ledger_planned(&p.ledger, d);
        if (need <= md->usable_bytes)
            continue;
        snprintf(out->device, sizeof out->device, "%s", md->id);
        out->bytes = need - md->usable_bytes;
    }
    bl_plan_finish(&p);
}

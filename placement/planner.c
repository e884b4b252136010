/* SPDX-License-Identifier: MIT */
#include "planner.h"

#include "log.h"
#include "mem.h"
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
    p->ctx_tokens = m->opt.ctx_tokens;
    p->batch_tokens = least(batch, p->ctx_tokens * p->max_sessions);
    p->ubatch_tokens = least(ubatch, p->batch_tokens);
    p->out_tokens = least(opt->out_tokens ? opt->out_tokens : p->max_sessions, p->batch_tokens);
    p->mmap = !opt->no_mmap;
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

/* One device so far: everything lives on the host CPU, the table of bl_plan_init. */
enum bl_status bl_plan_make(struct bl_plan *out, const struct bl_model *m,
                            const struct bl_machine *machine, const struct bl_options *opt)
{
    struct bl_plan p;
    enum bl_status st = bl_plan_init(&p, m);

    if (!st)
        st = bl_plan_size_steps(&p, m, opt);
    if (!st)
        st = bl_plan_check(&p, m, machine);
    if (!st)
        st = fill_memory(&p, m, machine);
    if (!st)
        st = check_fit(&p, machine);
    if (st) {
        bl_plan_finish(&p);
        return st;
    }
    *out = p;
    return BL_OK;
}

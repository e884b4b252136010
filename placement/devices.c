/* SPDX-License-Identifier: MIT */
#include "devices.h"

#include "constraints.h"
#include "copy_check.h"
#include "direct.h"
#include "log.h"
#include "mem.h"
#include "pacing.h"

#include <stdlib.h>
#include <string.h>

/* ---- plan ---- */

enum bl_status bl_plan_for_devices(struct bl_plan *out, const struct bl_model *m,
                                   const struct bl_machine *machine, const struct bl_options *opt,
                                   const struct bl_expert_stats *known)
{
    const struct bl_search_options so = {.prefill_weight = 0.5,
                                         .depth_tokens = bl_usual_depth(m->opt.ctx_tokens),
                                         .known = known,
                                         .no_slots = opt->expert_policy &&
                                                     strcmp(opt->expert_policy, "lru"),
                                         .fixed_ubatch = true};
    struct bl_choice c;

    if (opt->rules)
        BL_TRY(bl_judge(&c, m, machine, opt, &so, opt->rules));
    else if (machine->n_devices < 2)
        return bl_plan_make(out, m, machine, opt);
    else
        BL_TRY(bl_search(&c, m, machine, opt, &so));
    *out = c.plan;
    c.plan = (struct bl_plan){0};
    bl_choice_finish(&c);
    return BL_OK;
}

/* ---- open ---- */

static bool is_simulated(const struct bl_machine_device *md)
{
    return !strcmp(md->backend->name, "sim");
}

static enum bl_status open_simulated(struct bl_pacer *pacer, const struct bl_machine_device *md,
                                     uint16_t d, struct bl_device_config *config,
                                     struct bl_device **out)
{
    struct bl_simulated sim = {.mem_bytes = d ? md->usable_bytes : 0, .fault = md->fault};

    if (md->fault.kind == BL_FAULT_MEMORY)
        sim.mem_bytes = md->fault.nth;

    BL_TRY(bl_pacer_pace(pacer, d, &sim.pace));
    config->sim = &sim;
    return md->backend->open(md->index, config, out);
}

static bool uses_others(const struct bl_engine_parts *p)
{
    for (uint16_t d = 1; d < p->machine.n_devices; d++)
        if (bl_plan_uses(&p->plan, d))
            return true;
    return false;
}

static enum bl_status open_one(struct bl_engine_parts *p, struct bl_pacer *pacer, uint16_t d)
{
    const struct bl_machine_device *md = &p->machine.device[d];
    struct bl_device_config config = md->config;

    config.number = d;
    config.block_bytes = d ? md->caps.block_bytes : 0;
    if (d == 0) {
        config.threads = p->plan.threads ? p->plan.threads : config.threads;
        config.nodes = p->machine.by_node ? config.nodes : p->plan.nodes;
        config.in_line = !uses_others(p);
    }
    config.unified = d && md->mem_kind == BL_MEMORY_UNIFIED;
    if (md->kernels[0])
        bl_info("%s (%s): %s", md->id, md->name, md->kernels);
    return is_simulated(md) ? open_simulated(pacer, md, d, &config, &p->device[d])
                            : md->backend->open(md->index, &config, &p->device[d]);
}

static void tell_nodes(const struct bl_engine_parts *p)
{
    for (uint16_t d = 0; p->machine.by_node && d < p->machine.n_devices; d++) {
        const struct bl_machine_device *md = &p->machine.device[d];
        if (md->kind == BL_KIND_CPU && p->device[d])
            bl_info("%s: memory node %u, %u of %u core%s, %llu bytes planned", md->id,
                    p->machine.cpus->node[md->index].id, md->config.threads, md->cores,
                    bl_plural(md->cores),
                    (unsigned long long)bl_ledger_planned(&p->plan.ledger, d));
    }
}

enum bl_status bl_devices_open(struct bl_engine_parts *p, const struct bl_options *opt)
{
    const uint32_t n = p->machine.n_devices;
    struct bl_pacer *pacer = NULL;
    enum bl_status st = BL_OK;

    p->device = bl_calloc(n, sizeof *p->device);
    if (!p->device)
        return bl_fail(BL_ENOMEM, "out of memory for %u devices", n);
    if (p->machine.cpus && p->machine.cpus->described)
        p->plan.nodes = 0; /* they are not this machine's */
    for (uint16_t d = 0; !st && !pacer && d < n; d++)
        if (is_simulated(&p->machine.device[d]))
            st = bl_pacer_make(&pacer, p->model, &p->plan, &p->machine, opt->virtual_clock);
    for (uint16_t d = 0; !st && d < n; d++)
        if (d == 0 || bl_plan_uses(&p->plan, d)) {
            st = open_one(p, pacer, d);
            if (!st && d)
                st = bl_copy_check(p->device[0], p->device[d],
                                   opt->watchdog_s * UINT64_C(1000000000));
            if (st == BL_ENOMEM && d)
                p->plan.ledger.shortage =
                    (struct bl_shortage){.device = d, .purpose = BL_MEM_DRIVER, .asked_bytes = 1};
        }
    bl_pacer_release(pacer);
    if (!st) {
        bl_direct_check(&p->machine, p->device);
        tell_nodes(p);
    }
    return st;
}

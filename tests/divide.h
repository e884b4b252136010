/* SPDX-License-Identifier: MIT */
/* divide.h — engines whose layers and experts are divided at random over several devices: all of them this CPU, or
 * those that the options name.
 *
 *     uint64_t seed = 7;
 *     divided_open(&engine, path, &opt, 3, &seed);
 *     opt.devices = "sim0,sim1";
 *     simulated_open(&engine, path, &opt, &seed);
 *
 * Purpose   every device has memory, streams and threads of its own, so what is copied, summed and waited for is as among
 *           real ones.
 * Ownership as bl_open.
 * Units     none.
 * Errors    as bl_open.
 * Threads   one.
 */
#ifndef BL_TEST_DIVIDE_H
#define BL_TEST_DIVIDE_H

#include "parts.h"

#include <stdio.h>
#include <stdlib.h>

static inline uint32_t divide_pick(uint64_t *seed, uint32_t n)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33) % n;
}

/* Runs of a few experts, single ones or all of a layer: by the layer. */
static inline enum bl_status divide_layer(struct bl_plan *p, uint32_t layer, uint32_t n_experts, uint32_t n_devices,
                                          uint64_t *seed)
{
    const uint32_t longest[] = {1, 4, n_experts}, most = longest[divide_pick(seed, 3)];

    p->slot[layer * BL_N_PARTS + BL_PART_EXPERTS] = (uint16_t)divide_pick(seed, n_devices);
    for (uint32_t e = 0, n; e < n_experts; e += n) {
        n = 1 + divide_pick(seed, most);
        n = n < n_experts - e ? n : n_experts - e;
        if (divide_pick(seed, n_devices + 1))
            BL_TRY(bl_plan_add_range(p, layer, e, n, (uint16_t)divide_pick(seed, n_devices)));
    }
    return BL_OK;
}

/* One layer in three is elsewhere as a whole before its experts are. */
static inline enum bl_status divide_plan(struct bl_plan *p, const struct bl_model *m, uint32_t n_devices, uint64_t *seed)
{
    for (uint32_t l = 0; l < p->n_layers; l++) {
        const uint32_t at = divide_pick(seed, 3) ? 0 : divide_pick(seed, n_devices);
        for (uint32_t part = 0; part < BL_N_PARTS; part++)
            p->slot[l * BL_N_PARTS + part] = (uint16_t)at;
        if (m->layer[l].moe)
            BL_TRY(divide_layer(p, l, m->hp.n_expert, n_devices, seed));
    }
    return BL_OK;
}

/* What rigs place plans with. Layers and runs of experts anywhere, the first and last rows of the plan too; arg: a seed. */
static inline enum bl_status divide_at_random(struct bl_plan *p, const struct bl_model *m, uint32_t n_devices, void *arg)
{
    uint64_t *seed = arg;
    p->slot[p->n_layers * BL_N_PARTS + BL_PART_EMBED] = (uint16_t)divide_pick(seed, n_devices);
    p->slot[p->n_layers * BL_N_PARTS + BL_PART_HEAD] = (uint16_t)divide_pick(seed, n_devices);
    return divide_plan(p, m, n_devices, seed);
}

static inline enum bl_status all_on_first(struct bl_plan *p, const struct bl_model *m, uint32_t n_devices, void *arg)
{
    (void)m, (void)n_devices, (void)arg;
    for (uint32_t i = 0; i < (p->n_layers + 1) * BL_N_PARTS; i++)
        p->slot[i] = 1;
    return BL_OK;
}

/* Parts of layers, and embed and head, on devices at random, then their experts. */
static inline enum bl_status scatter_plan(struct bl_plan *p, const struct bl_model *m, uint32_t n_devices,
                                          uint64_t *seed)
{
    for (uint32_t l = 0; l <= p->n_layers; l++)
        for (uint32_t part = 0; part < BL_N_PARTS; part++)
            p->slot[l * BL_N_PARTS + part] = (uint16_t)divide_pick(seed, n_devices);
    for (uint32_t l = 0; l < p->n_layers; l++) {
        uint16_t *slot = &p->slot[l * BL_N_PARTS];
        slot[BL_PART_STATE] = slot[BL_PART_ATTN];
        if (m->layer[l].moe)
            BL_TRY(divide_layer(p, l, m->hp.n_expert, n_devices, seed));
    }
    return BL_OK;
}

/* The options' devices, with a plan that knows no reason. */
static inline enum bl_status simulated_parts(struct bl_engine_parts *p, const char *path, const struct bl_options *opt,
                                             uint64_t *seed)
{
    BL_TRY(parts_model(p, path, opt));
    BL_TRY(bl_plan_init(&p->plan, p->model));
    BL_TRY(bl_plan_size_steps(&p->plan, p->model, opt));
    BL_TRY(scatter_plan(&p->plan, p->model, p->machine.n_devices, seed));
    BL_TRY(bl_plan_check(&p->plan, p->model, &p->machine));
    return bl_devices_open(p, opt);
}

static inline enum bl_status simulated_open(struct bl_engine **out, const char *path, const struct bl_options *opt,
                                            uint64_t *seed)
{
    struct bl_engine_parts p = {0};
    return parts_open(out, &p, opt, simulated_parts(&p, path, opt, seed));
}

static inline enum bl_status divide_devices(struct bl_machine *m, uint32_t n_devices)
{
    struct bl_machine_device *d = realloc(m->device, n_devices * sizeof *d);

    if (!d)
        return bl_fail(BL_ENOMEM, "out of memory for %u devices", n_devices);
    for (uint32_t i = 1; i < n_devices; i++) {
        d[i] = d[0];
        snprintf(d[i].id, sizeof d[i].id, "cpu%u", i);
    }
    m->device = d;
    m->n_devices = n_devices;
    return BL_OK;
}

static inline enum bl_status divide_parts(struct bl_engine_parts *p, const char *path, const struct bl_options *opt,
                                          uint32_t n_devices, uint64_t *seed)
{
    BL_TRY(parts_model(p, path, opt));
    BL_TRY(bl_plan_make(&p->plan, p->model, &p->machine, opt));
    BL_TRY(divide_devices(&p->machine, n_devices));
    BL_TRY(divide_plan(&p->plan, p->model, n_devices, seed));
    return parts_devices(p);
}

static inline enum bl_status divided_open(struct bl_engine **out, const char *path, const struct bl_options *opt,
                                          uint32_t n_devices, uint64_t *seed)
{
    struct bl_engine_parts p = {0};
    return parts_open(out, &p, opt, divide_parts(&p, path, opt, n_devices, seed));
}

#endif

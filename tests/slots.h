/* SPDX-License-Identifier: MIT */
/* slots.h — engines whose layers' experts are divided at random over several devices, with slots for those of the host.
 *
 *     slotted_open(&engine, path, &opt, 3, BL_EXPERTS_LRU, &seed);
 *     opt.devices = "sim0,vulkan0:1GiB";
 *     slots_on_open(&engine, path, &opt, BL_EXPERTS_LRU, 1, &seed);
 *
 * Purpose   as divide.h; slots number one to as many as the host has experts.
 * Ownership as bl_open.
 * Units     none.
 * Errors    as bl_open.
 * Threads   one.
 */
#ifndef BL_TEST_SLOTS_H
#define BL_TEST_SLOTS_H

#include "divide.h"

static inline enum bl_status slot_layer(struct bl_plan *p, uint32_t layer, uint32_t n_experts, uint32_t n_devices,
                                        uint64_t *seed)
{
    const uint32_t here = bl_plan_experts_on(p, layer, n_experts, 0);

    for (uint16_t d = 1; here && d < n_devices; d++) {
        const uint32_t most[] = {1, 2, here};
        const uint32_t n = 1 + divide_pick(seed, most[divide_pick(seed, 3)]);
        if (divide_pick(seed, 4))
            BL_TRY(bl_plan_add_slots(p, layer, d, n < here ? n : here));
    }
    return BL_OK;
}

static inline enum bl_status slotted_parts(struct bl_engine_parts *p, const char *path, const struct bl_options *opt,
                                           uint32_t n_devices, enum bl_expert_policy policy, uint64_t *seed)
{
    BL_TRY(divide_parts(p, path, opt, n_devices, seed));
    p->plan.expert_policy = (uint8_t)policy;
    for (uint32_t l = 0; l < p->plan.n_layers; l++)
        if (p->model->layer[l].moe)
            BL_TRY(slot_layer(&p->plan, l, p->model->hp.n_expert, n_devices, seed));
    BL_TRY(bl_plan_check(&p->plan, p->model, &p->machine));
    for (uint16_t d = 0; d < n_devices; d++)
        if (!p->device[d] && bl_plan_uses(&p->plan, d))
            BL_TRY(p->machine.device[d].backend->open(0, &p->machine.device[d].config, &p->device[d]));
    return BL_OK;
}

/* The options' devices, parts of layers and experts anywhere. most: slots of a layer on a device, 0: as many as the host
 * has of its experts. */
static inline enum bl_status slots_on_parts(struct bl_engine_parts *p, const char *path, const struct bl_options *opt,
                                            enum bl_expert_policy policy, uint32_t most, uint64_t *seed)
{
    struct bl_model_options mo;

    BL_TRY(bl_model_choose(&mo, opt));
    BL_TRY(bl_gguf_open(&p->gguf, path));
    BL_TRY(bl_model_open(&p->model, p->gguf, &mo));
    BL_TRY(bl_machine_probe(&p->machine, opt));
    BL_TRY(bl_plan_init(&p->plan, p->model));
    BL_TRY(bl_plan_size_steps(&p->plan, p->model, opt));
    BL_TRY(scatter_plan(&p->plan, p->model, p->machine.n_devices, seed));
    p->plan.expert_policy = (uint8_t)policy;
    for (uint32_t l = 0; l < p->plan.n_layers; l++)
        if (p->model->layer[l].moe)
            BL_TRY(slot_layer(&p->plan, l, p->model->hp.n_expert, p->machine.n_devices, seed));
    for (uint32_t i = 0; most && i < p->plan.n_slot_sets; i++)
        p->plan.slots[i].n = p->plan.slots[i].n < most ? p->plan.slots[i].n : most;
    BL_TRY(bl_plan_check(&p->plan, p->model, &p->machine));
    return bl_devices_open(p, opt);
}

static inline enum bl_status slots_on_open(struct bl_engine **out, const char *path, const struct bl_options *opt,
                                           enum bl_expert_policy policy, uint32_t most, uint64_t *seed)
{
    struct bl_engine_parts p = {0};
    const enum bl_status st = slots_on_parts(&p, path, opt, policy, most, seed);

    if (st) {
        bl_engine_parts_finish(&p);
        return st;
    }
    const enum bl_status made = bl_engine_create(out, &p, opt);
    bl_engine_parts_finish(&p); /* handed back where a device had less memory than was planned */
    return made;
}

static inline enum bl_status slotted_open(struct bl_engine **out, const char *path, const struct bl_options *opt,
                                          uint32_t n_devices, enum bl_expert_policy policy, uint64_t *seed)
{
    struct bl_engine_parts p = {0};
    const enum bl_status st = slotted_parts(&p, path, opt, n_devices, policy, seed);

    if (st) {
        bl_engine_parts_finish(&p);
        return st;
    }
    const enum bl_status made = bl_engine_create(out, &p, opt);
    bl_engine_parts_finish(&p); /* handed back where a device had less memory than was planned */
    return made;
}

#endif

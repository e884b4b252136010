/* SPDX-License-Identifier: MIT */
/* sending.h — engines whose layers lie on devices at random, and whose experts on the host are sent to them in long steps.
 *
 *     streamed_open(&engine, path, &opt, 3, &seed);
 *
 * Purpose   as slots.h; the size of chunks, the least step and whether chunks pass through the host's ring by the seed.
 * Ownership as bl_open.
 * Units     none.
 * Errors    as bl_open.
 * Threads   one.
 */
#ifndef BL_TEST_SENDING_H
#define BL_TEST_SENDING_H

#include "slots.h"

/* Most layers on a card, most experts on the host. */
static inline enum bl_status stream_layer(struct bl_plan *p, const struct bl_model *m, uint32_t layer,
                                          uint32_t n_devices, uint64_t *seed)
{
    const uint32_t at = divide_pick(seed, 5) ? 1 + divide_pick(seed, n_devices - 1) : 0;

    for (uint32_t part = 0; part < BL_N_PARTS; part++)
        p->slot[layer * BL_N_PARTS + part] = (uint16_t)at;
    if (!m->layer[layer].moe)
        return BL_OK;
    p->slot[layer * BL_N_PARTS + BL_PART_EXPERTS] = 0;
    return divide_pick(seed, 3) ? BL_OK : divide_layer(p, layer, m->hp.n_expert, n_devices, seed);
}

/* For rigs that place plans; arg: a seed. */
static inline enum bl_status sent_at_random(struct bl_plan *p, const struct bl_model *m, uint32_t n_devices, void *arg)
{
    uint64_t *seed = arg;

    p->stream_from = 2;
    p->chunk_bytes = divide_pick(seed, 2);
    for (uint32_t l = 0; l < p->n_layers; l++)
        BL_TRY(stream_layer(p, m, l, n_devices, seed));
    return BL_OK;
}

static inline enum bl_status stream_plan(struct bl_engine_parts *p, uint64_t *seed)
{
    const uint64_t chunk[] = {1, 20000, 0};
    const uint32_t n_devices = p->machine.n_devices;

    p->plan.n_ranges = 0;
    p->plan.stream_from = 1 + divide_pick(seed, 12);
    p->plan.chunk_bytes = chunk[divide_pick(seed, 3)];
    p->plan.expert_policy = divide_pick(seed, 2) ? BL_EXPERTS_LRU : BL_EXPERTS_OFF;
    for (uint32_t l = 0; l < p->plan.n_layers; l++) {
        BL_TRY(stream_layer(&p->plan, p->model, l, n_devices, seed));
        if (p->plan.expert_policy && p->model->layer[l].moe)
            BL_TRY(slot_layer(&p->plan, l, p->model->hp.n_expert, n_devices, seed));
    }
    for (uint32_t d = 1; d < n_devices; d++)
        p->machine.device[d].caps.copies_from =
            divide_pick(seed, 2) ? BL_COPIES_FROM_BLOCKS : BL_COPIES_FROM_ALL;
    return bl_plan_check(&p->plan, p->model, &p->machine);
}

static inline enum bl_status streamed_parts(struct bl_engine_parts *p, const char *path, const struct bl_options *opt,
                                            uint32_t n_devices, uint64_t *seed)
{
    BL_TRY(divide_parts(p, path, opt, n_devices, seed));
    BL_TRY(stream_plan(p, seed));
    for (uint16_t d = 0; d < n_devices; d++)
        if (!p->device[d] && bl_plan_uses(&p->plan, d))
            BL_TRY(p->machine.device[d].backend->open(0, &p->machine.device[d].config, &p->device[d]));
    return BL_OK;
}

static inline enum bl_status streamed_open(struct bl_engine **out, const char *path, const struct bl_options *opt,
                                           uint32_t n_devices, uint64_t *seed)
{
    struct bl_engine_parts p = {0};
    const enum bl_status st = streamed_parts(&p, path, opt, n_devices, seed);

    if (st) {
        bl_engine_parts_finish(&p);
        return st;
    }
    const enum bl_status made = bl_engine_create(out, &p, opt);
    bl_engine_parts_finish(&p); /* handed back where a device had less memory than was planned */
    return made;
}

typedef enum bl_status plan_fn(struct bl_engine_parts *, uint64_t *seed);

/* On the devices of the options, placed by `lay`. */
static inline enum bl_status laid_over(struct bl_engine **out, const char *path, const struct bl_options *opt,
                                       plan_fn *lay, uint64_t *seed)
{
    struct bl_engine_parts p = {0};
    struct bl_model_options mo;
    enum bl_status st = bl_model_choose(&mo, opt);

    if (!st)
        st = bl_gguf_open(&p.gguf, path);
    if (!st)
        st = bl_model_open(&p.model, p.gguf, &mo);
    if (!st)
        st = bl_machine_probe(&p.machine, opt);
    if (!st)
        st = bl_plan_init(&p.plan, p.model);
    if (!st)
        st = bl_plan_size_steps(&p.plan, p.model, opt);
    if (!st)
        st = lay(&p, seed);
    if (!st)
        st = bl_devices_open(&p, opt);
    if (st) {
        bl_engine_parts_finish(&p);
        return st;
    }
    const enum bl_status made = bl_engine_create(out, &p, opt);
    bl_engine_parts_finish(&p); /* handed back where a device had less memory than was planned */
    return made;
}

static inline enum bl_status streamed_over(struct bl_engine **out, const char *path, const struct bl_options *opt,
                                           uint64_t *seed)
{
    return laid_over(out, path, opt, stream_plan, seed);
}

#endif

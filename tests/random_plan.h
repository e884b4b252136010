/* SPDX-License-Identifier: MIT */
/* random_plan.h — engines on one to four devices of any kinds, with everything that a plan can say chosen at random.
 *
 *     struct random_plan r = random_plan_of(41, vulkan_here(), "cuda0,hip0");
 *     random_plan_open(&engine, path, &opt, &r);
 *
 * Purpose   layers whole or in parts, state apart from the weights it is used with, experts by layer, by range and in
 *           slots, experts sent in long steps, files mapped or read: as random_plan_describe says, by the seed alone.
 * Ownership as bl_open.
 * Units     none.
 * Errors    as bl_open.
 * Threads   one.
 */
#ifndef BL_TEST_RANDOM_PLAN_H
#define BL_TEST_RANDOM_PLAN_H

#include "slots.h"

#include "expert_share.h"
#include "search_impl.h"

enum random_style { RANDOM_SCATTERED, RANDOM_LAYERS, RANDOM_HOST_EXPERTS, RANDOM_STYLES };
struct random_plan {
    uint64_t first, seed;        /* as given; as it goes on */
    char devices[96];            /* besides the CPU; empty: none */
    bool no_mmap, rounds, nodes; /* rounds: one is a card, with its own rounding; nodes: the first is of the host's memory */
    enum random_style style;
    enum bl_expert_policy policy;
    uint32_t stream_from, most_slots;
    uint64_t block_bytes;        /* of cards, the largest, if nothing larger has to lie in one; 0: any */
};

/* Seeds that follow each other give plans that have nothing in common. */
static inline uint64_t random_start(uint64_t seed)
{
    seed = (seed ^ seed >> 30) * 0xbf58476d1ce4e5b9u + 0x9e3779b97f4a7c15u;
    return (seed ^ seed >> 27) * 0x94d049bb133111ebu;
}

/* Mostly one of the list that the plan does not name yet; false: none. cards: separated by commas, or NULL. */
static inline bool random_card(struct random_plan *r, const char *cards, char *out, size_t cap)
{
    uint32_t n_cards = cards ? 1 : 0;

    for (const char *c = cards; c && (c = strchr(c, ',')); c++)
        n_cards++;
    if (!n_cards || !divide_pick(&r->seed, 4))
        return false;
    for (uint32_t k = divide_pick(&r->seed, n_cards); k; k--)
        cards = strchr(cards, ',') + 1;
    snprintf(out, cap, "%.*s", (int)strcspn(cards, ","), cards);
    return !strstr(r->devices, out);
}

/* As fast as may be: times are not what is tested. */
static inline void random_device(struct random_plan *r, uint32_t i, bool vulkan_too, const char *cards, char *out, size_t cap)
{
    static const char *const simulated[] = {"sim%u@1TB/s", "sim%u:64MiB@1TB/s", "sim%u:shared:64MiB@1TB/s"};
    const bool node = r->nodes && !i, vulkan = !divide_pick(&r->seed, 4) && vulkan_too && !node;
    const bool card = !node && !vulkan && random_card(r, cards, out, cap);

    r->rounds = r->rounds || vulkan || card;
    if (node || vulkan)
        snprintf(out, cap, "%s", node ? "cpu1" : "vulkan0:1GiB");
    else if (!card)
        snprintf(out, cap, simulated[divide_pick(&r->seed, 3)], i);
}

static inline struct random_plan random_plan_of(uint64_t seed, bool vulkan_too, const char *cards)
{
    static const uint32_t most[] = {1, 2, 1000};
    static const uint64_t block[] = {0, 64 << 10, 512 << 10};
    struct random_plan r = {.first = seed, .seed = random_start(seed)};
    const uint32_t n = divide_pick(&r.seed, 16) ? 1 + divide_pick(&r.seed, 3) : 0;
    char one[48];

    r.nodes = n && !divide_pick(&r.seed, 5);
    for (uint32_t i = 0; i < n; i++) {
        random_device(&r, i, vulkan_too, cards, one, sizeof one);
        const size_t at = strlen(r.devices);
        snprintf(r.devices + at, sizeof r.devices - at, "%s%s", at ? "," : "", one);
    }
    r.no_mmap = divide_pick(&r.seed, 2);
    r.style = (enum random_style)divide_pick(&r.seed, RANDOM_STYLES);
    r.policy = (enum bl_expert_policy)divide_pick(&r.seed, BL_N_EXPERT_POLICIES);
    r.stream_from = divide_pick(&r.seed, 2) ? 1 + divide_pick(&r.seed, 12) : 0;
    r.most_slots = most[divide_pick(&r.seed, 3)];
    r.block_bytes = block[divide_pick(&r.seed, 3)];
    return r;
}

static inline void random_plan_describe(const struct random_plan *r, char *text, size_t cap)
{
    static const char *const style[] = {"parts anywhere", "whole layers", "experts on the host"};

    snprintf(text, cap, "seed %llu: cpu%s%s, %s, slots %s, at most %u, sent from %u tokens on, %s, blocks of %u KiB",
             (unsigned long long)r->first, *r->devices ? "," : "", r->devices, style[r->style],
             bl_expert_policy_name(r->policy), r->most_slots, r->stream_from, r->no_mmap ? "read" : "mapped",
             (unsigned)(r->block_bytes >> 10));
}

/* Most layers on a card, most experts on the host. */
static inline enum bl_status random_layer(struct random_plan *r, struct bl_plan *p, uint32_t layer, uint32_t n_devices)
{
    const uint16_t at = (uint16_t)(divide_pick(&r->seed, 5) ? n_devices - 1 : 0);

    for (uint32_t part = 0; part < BL_N_PARTS; part++)
        p->slot[layer * BL_N_PARTS + part] = (uint16_t)(at ? 1 + divide_pick(&r->seed, at) : 0);
    p->slot[layer * BL_N_PARTS + BL_PART_EXPERTS] = 0;
    return BL_OK;
}

static inline enum bl_status random_places(struct random_plan *r, struct bl_plan *p, const struct bl_model *m,
                                           uint32_t n_devices)
{
    enum bl_status st = BL_OK;

    if (r->style == RANDOM_SCATTERED)
        st = scatter_plan(p, m, n_devices, &r->seed);
    else if (r->style == RANDOM_LAYERS)
        st = divide_plan(p, m, n_devices, &r->seed);
    for (uint32_t l = 0; !st && r->style == RANDOM_HOST_EXPERTS && l < p->n_layers; l++) {
        st = random_layer(r, p, l, n_devices);
        if (!st && m->layer[l].moe && !divide_pick(&r->seed, 3))
            st = divide_layer(p, l, m->hp.n_expert, n_devices, &r->seed);
    }
    for (uint32_t l = 0; l < p->n_layers; l++)
        if (!divide_pick(&r->seed, 3))
            p->slot[l * BL_N_PARTS + BL_PART_STATE] = (uint16_t)divide_pick(&r->seed, n_devices);
    return st;
}

static inline enum bl_status random_experts(struct random_plan *r, struct bl_plan *p, const struct bl_model *m,
                                            struct bl_machine *machine)
{
    static const uint64_t chunk[] = {1, 20000, 0};
    const uint32_t n_devices = machine->n_devices;

    p->expert_policy = (uint8_t)r->policy;
    for (uint32_t l = 0; r->policy && l < p->n_layers; l++)
        if (m->layer[l].moe)
            BL_TRY(slot_layer(p, l, m->hp.n_expert, n_devices, &r->seed));
    for (uint32_t i = 0; i < p->n_slot_sets; i++)
        p->slots[i].n = p->slots[i].n < r->most_slots ? p->slots[i].n : r->most_slots;
    p->move_bytes = divide_pick(&r->seed, 2);
    p->stream_from = r->stream_from;
    p->chunk_bytes = chunk[divide_pick(&r->seed, 3)];
    for (uint32_t d = 1; d < n_devices; d++)
        if (divide_pick(&r->seed, 2) && !strcmp(machine->device[d].backend_name, "sim"))
            machine->device[d].caps.copies_from = BL_COPIES_FROM_ALL;
    BL_TRY(bl_plan_check(p, m, machine));
    return bl_fix_slots(p, m, machine, NULL);
}

/* As small as what cannot be cut allows. */
static inline enum bl_status random_blocks(const struct random_plan *r, struct bl_plan *p, const struct bl_model *m,
                                           struct bl_machine *machine)
{
    for (uint32_t d = 1; d < machine->n_devices; d++)
        machine->device[d].caps.block_bytes = r->block_bytes;
    for (;;) {
        BL_TRY(bl_plan_fill_memory(p, m, machine));
        const struct bl_excess *x = &p->ledger.excess;
        if (!x->bytes)
            return BL_OK;
        struct bl_caps *c = &machine->device[x->device].caps;
        c->block_bytes = bl_align_up(x->bytes, c->granule_bytes);
    }
}

static inline enum bl_status random_parts(struct bl_engine_parts *p, const char *path, const struct bl_options *opt,
                                          struct random_plan *r)
{
    BL_TRY(parts_model(p, path, opt));
    BL_TRY(bl_plan_init(&p->plan, p->model));
    BL_TRY(bl_plan_size_steps(&p->plan, p->model, opt));
    BL_TRY(random_places(r, &p->plan, p->model, p->machine.n_devices));
    BL_TRY(random_experts(r, &p->plan, p->model, &p->machine));
    if (r->block_bytes)
        BL_TRY(random_blocks(r, &p->plan, p->model, &p->machine));
    return bl_devices_open(p, opt);
}

/* Devices and mapping of the options are the plan's. */
static inline enum bl_status random_plan_open(struct bl_engine **out, const char *path, const struct bl_options *opt,
                                              const struct random_plan *plan)
{
    struct random_plan r = *plan;
    struct bl_options with = *opt;
    struct bl_engine_parts p = {0};

    with.devices = *r.devices ? r.devices : NULL;
    with.no_mmap = r.no_mmap;
    with.topology = r.nodes ? "numa:2 core:2 pu:1" : NULL;
    return parts_open(out, &p, &with, random_parts(&p, path, &with, &r));
}

#endif

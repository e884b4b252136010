/* SPDX-License-Identifier: MIT */
/* Slots of devices for experts of the host: the plan's sets. */
#include "plan.h"

#include "mem.h"

#include <stdlib.h>

/* The set, or the place where it would be. */
static uint32_t find(const struct bl_plan *p, uint32_t layer, uint16_t device)
{
    uint32_t low = 0, high = p->n_slot_sets;

    while (low < high) {
        const uint32_t mid = low + (high - low) / 2;
        const struct bl_slot_set *s = &p->slots[mid];
        if (s->layer < layer || (s->layer == layer && s->device < device))
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static bool is_set(const struct bl_plan *p, uint32_t at, uint32_t layer, uint16_t device)
{
    return at < p->n_slot_sets && p->slots[at].layer == layer && p->slots[at].device == device;
}

enum bl_status bl_plan_add_slots(struct bl_plan *p, uint32_t layer, uint16_t device, uint32_t n)
{
    const uint32_t at = find(p, layer, device);

    if (layer >= p->n_layers || !n)
        return bl_fail(BL_EINVAL, "plan: %u slot%s for layer %u of %u: no such slots", n,
                       bl_plural(n), layer, p->n_layers);
    if (is_set(p, at, layer, device))
        return bl_fail(BL_EINVAL, "plan: layer %u is to have %u slot%s on device %u; it has %u",
                       layer, n, bl_plural(n), device, p->slots[at].n);
    struct bl_slot_set *bigger = realloc(p->slots, (p->n_slot_sets + (size_t)1) * sizeof *bigger);
    if (!bigger)
        return bl_fail(BL_ENOMEM, "out of memory for the plan's slots");
    p->slots = bigger;
    memmove(&bigger[at + 1], &bigger[at], (p->n_slot_sets - at) * sizeof *bigger);
    bigger[at] = (struct bl_slot_set){.layer = layer, .n = n, .device = device};
    p->n_slot_sets++;
    return BL_OK;
}

uint32_t bl_plan_slots_on(const struct bl_plan *p, uint32_t layer, uint16_t device)
{
    const uint32_t at = find(p, layer, device);

    return bl_plan_has_slots(p) && is_set(p, at, layer, device) ? p->slots[at].n : 0;
}

void bl_plan_slot_offsets(const struct bl_plan *p, const struct bl_model *m, uint16_t device,
                          struct bl_layout *at, uint64_t *off)
{
    for (uint32_t t = 0; t < bl_gguf_n_tensors(m->gguf); t++)
        off[t] = UINT64_MAX;
    if (!bl_plan_has_slots(p))
        return;
    for (uint32_t i = 0; i < m->n_weights; i++) { /* two weights may be halves of one tensor */
        const struct bl_weight *w = &m->weight[i];
        const uint32_t n =
            bl_weight_has_table(w) ? bl_plan_slots_on(p, (uint32_t)w->layer, device) : 0;
        if (n && off[w->tensor] == UINT64_MAX)
            off[w->tensor] = bl_layout_add(at, bl_weight_expert_stride(w), n);
    }
}

/* ---- slots that are filled once ---- */

/* A layer's experts by device. */
static enum bl_status place_experts(struct bl_plan *p, uint32_t layer, const uint16_t *device,
                                    uint32_t n_experts)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < p->n_ranges; i++)
        if (p->range[i].layer != layer)
            p->range[kept++] = p->range[i];
    p->n_ranges = kept;
    for (uint32_t e = 0; e < n_experts; e++)
        if (device[e] != bl_plan_device(p, (int)layer, BL_PART_EXPERTS))
            BL_TRY(bl_plan_add_range(p, layer, e, 1, device[e]));
    return BL_OK;
}

/* The layer's sets are neighbours from the first on. */
static void fill_sets(const struct bl_plan *p, uint32_t first, const uint32_t *order,
                      uint16_t *device, uint32_t n_experts)
{
    uint32_t next = 0;

    for (uint32_t i = first; i < p->n_slot_sets && p->slots[i].layer == p->slots[first].layer; i++)
        for (uint32_t n = p->slots[i].n; n && next < n_experts; next++)
            if (device[order[next]] == 0) {
                device[order[next]] = p->slots[i].device;
                n--;
            }
}

static enum bl_status fix_layer(struct bl_plan *p, uint32_t first, uint32_t n_experts,
                                const struct bl_expert_stats *known)
{
    const uint32_t layer = p->slots[first].layer;
    uint32_t *order = bl_calloc((size_t)n_experts + 1, sizeof *order);
    uint16_t *device = bl_calloc((size_t)n_experts + 1, sizeof *device);
    enum bl_status st = BL_OK;

    if (!order || !device) {
        st = bl_fail(BL_ENOMEM, "out of memory for the places of %u experts", n_experts);
        goto out;
    }
    for (uint32_t e = 0; e < n_experts; e++) {
        order[e] = e;
        device[e] = bl_plan_expert_device(p, layer, e);
    }
    if (known)
        bl_expert_stats_order(known, layer, order);
    fill_sets(p, first, order, device, n_experts);
    st = place_experts(p, layer, device, n_experts);
out:
    free(order);
    free(device);
    return st;
}

enum bl_status bl_plan_fix_slots(struct bl_plan *p, const struct bl_model *m,
                                 const struct bl_expert_stats *known)
{
    if (p->expert_policy != BL_EXPERTS_FIXED)
        return BL_OK;
    for (uint32_t i = 0; i < p->n_slot_sets; i++)
        if (!i || p->slots[i].layer != p->slots[i - 1].layer)
            BL_TRY(fix_layer(p, i, m->hp.n_expert, known));
    p->count_experts = p->count_experts || p->n_slot_sets; /* how many of their uses are there */
    p->n_slot_sets = 0;
    return BL_OK;
}

/* ---- memory ---- */

/* The tables of struct bl_experts and, where there are slots, the addresses of struct bl_residency.
 */
uint64_t bl_plan_expert_notes_bytes(const struct bl_plan *p, const struct bl_model *m)
{
    const uint64_t experts = (uint64_t)m->hp.n_layer * m->hp.n_expert;
    uint64_t tables = 0;

    if (!bl_plan_notes_experts(p))
        return 0;
    for (uint32_t i = 0; i < m->n_weights; i++)
        tables += bl_plan_has_slots(p) && bl_weight_has_table(&m->weight[i]);
    return experts * (3 * sizeof(uint64_t) + sizeof(uint32_t) + sizeof(bool)) +
           tables * m->hp.n_expert * sizeof(uint64_t);
}

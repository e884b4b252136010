/* SPDX-License-Identifier: MIT */
/* Slots of devices for experts of the host: the plan's sets. */
#include "plan.h"

#include "mem.h"

#include <stdlib.h>

enum { SLOT_ALIGN = 64 }; /* of a tensor's slots: a cache line, a vector */

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
        return bl_fail(BL_EINVAL, "plan: %u slots for layer %u of %u: no such slots", n, layer,
                       p->n_layers);
    if (is_set(p, at, layer, device))
        return bl_fail(BL_EINVAL, "plan: layer %u is to have %u slots on device %u; it has %u",
                       layer, n, device, p->slots[at].n);
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

uint64_t bl_plan_slot_offsets(const struct bl_plan *p, const struct bl_model *m, uint16_t device,
                              uint64_t *off)
{
    uint64_t end = 0;

    for (uint32_t t = 0; t < bl_gguf_n_tensors(m->gguf); t++)
        off[t] = UINT64_MAX;
    if (!bl_plan_has_slots(p))
        return 0;
    for (uint32_t i = 0; i < m->n_weights; i++) { /* two weights may be halves of one tensor */
        const struct bl_weight *w = &m->weight[i];
        const uint32_t n =
            bl_weight_has_table(w) ? bl_plan_slots_on(p, (uint32_t)w->layer, device) : 0;
        if (!n || off[w->tensor] != UINT64_MAX)
            continue;
        off[w->tensor] = end;
        end = bl_align_up(end + n * bl_weight_expert_stride(w), SLOT_ALIGN);
    }
    return end;
}

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

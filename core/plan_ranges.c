/* SPDX-License-Identifier: MIT */
/* Experts of one layer divided over devices: the plan's ranges. */
#include "plan.h"

#include <stdlib.h>

/* First range that ends behind the expert; n_ranges: none. */
static uint32_t find(const struct bl_plan *p, uint32_t layer, uint32_t expert)
{
    uint32_t low = 0, high = p->n_ranges;

    while (low < high) {
        const uint32_t mid = low + (high - low) / 2;
        const struct bl_expert_range *r = &p->range[mid];
        if (r->layer < layer || (r->layer == layer && r->first + r->n <= expert))
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static bool follows(const struct bl_expert_range *a, const struct bl_expert_range *b)
{
    return a->layer == b->layer && a->device == b->device && a->first + a->n == b->first;
}

static void drop(struct bl_plan *p, uint32_t at)
{
    p->n_ranges--;
    memmove(&p->range[at], &p->range[at + 1], (p->n_ranges - at) * sizeof *p->range);
}

enum bl_status bl_plan_add_range(struct bl_plan *p, uint32_t layer, uint32_t first, uint32_t n,
                                 uint16_t device)
{
    const struct bl_expert_range added = {layer, first, n, device};

    if (layer >= p->n_layers || !n || n > UINT32_MAX - first)
        return bl_fail(BL_EINVAL, "plan: layer %u of %u, %u experts from %u on: no such experts",
                       layer, p->n_layers, n, first);
    const uint32_t at = find(p, layer, first);
    if (at < p->n_ranges && p->range[at].layer == layer && p->range[at].first < first + n)
        return bl_fail(BL_EINVAL,
                       "plan: layer %u experts %u-%u are to be on device %u; experts %u-%u are on "
                       "device %u already",
                       layer, first, first + n - 1, device, p->range[at].first,
                       p->range[at].first + p->range[at].n - 1, p->range[at].device);
    struct bl_expert_range *bigger = realloc(p->range, (p->n_ranges + (size_t)1) * sizeof *bigger);
    if (!bigger)
        return bl_fail(BL_ENOMEM, "out of memory for the plan's experts");
    p->range = bigger;
    memmove(&bigger[at + 1], &bigger[at], (p->n_ranges - at) * sizeof *bigger);
    bigger[at] = added;
    p->n_ranges++;
    if (at + 1 < p->n_ranges && follows(&bigger[at], &bigger[at + 1])) {
        bigger[at].n += bigger[at + 1].n;
        drop(p, at + 1);
    }
    if (at && follows(&bigger[at - 1], &bigger[at])) {
        bigger[at - 1].n += bigger[at].n;
        drop(p, at);
    }
    return BL_OK;
}

uint16_t bl_plan_expert_device(const struct bl_plan *p, uint32_t layer, uint32_t expert)
{
    const uint32_t at = find(p, layer, expert);

    if (at < p->n_ranges && p->range[at].layer == layer && p->range[at].first <= expert)
        return p->range[at].device;
    return bl_plan_device(p, (int)layer, BL_PART_EXPERTS);
}

/* Where the next range begins, or this one ends. */
static uint32_t boundary(const struct bl_plan *p, uint32_t layer, uint32_t expert,
                         uint32_t n_experts)
{
    const uint32_t at = find(p, layer, expert);

    if (at == p->n_ranges || p->range[at].layer != layer)
        return n_experts;
    const struct bl_expert_range *r = &p->range[at];
    const uint32_t next = r->first > expert ? r->first : r->first + r->n;
    return next < n_experts ? next : n_experts;
}

struct bl_expert_range bl_plan_expert_run(const struct bl_plan *p, uint32_t layer, uint32_t expert,
                                          uint32_t n_experts)
{
    const uint16_t device = bl_plan_expert_device(p, layer, expert);
    uint32_t end = expert;

    do
        end = boundary(p, layer, end, n_experts);
    while (end < n_experts && bl_plan_expert_device(p, layer, end) == device);
    return (struct bl_expert_range){layer, expert, end - expert, device};
}

uint32_t bl_plan_experts_on(const struct bl_plan *p, uint32_t layer, uint32_t n_experts,
                            uint16_t device)
{
    uint32_t on = 0, left = n_experts;

    for (uint32_t i = find(p, layer, 0); i < p->n_ranges && p->range[i].layer == layer; i++) {
        on += p->range[i].device == device ? p->range[i].n : 0;
        left -= p->range[i].n;
    }
    return bl_plan_device(p, (int)layer, BL_PART_EXPERTS) == device ? on + left : on;
}

/* A device that ranges, slots and the layer's place name is never beyond the largest of them. */
uint16_t bl_plan_expert_holder(const struct bl_plan *p, uint32_t layer, uint32_t n_experts,
                               uint32_t k)
{
    uint16_t last = bl_plan_device(p, (int)layer, BL_PART_EXPERTS);

    for (uint32_t i = find(p, layer, 0); i < p->n_ranges && p->range[i].layer == layer; i++)
        last = p->range[i].device > last ? p->range[i].device : last;
    for (uint32_t i = 0; i < p->n_slot_sets; i++)
        last = p->slots[i].device > last ? p->slots[i].device : last;
    for (uint32_t d = 0; d <= last; d++)
        if ((bl_plan_experts_on(p, layer, n_experts, (uint16_t)d) ||
             bl_plan_slots_on(p, layer, (uint16_t)d)) &&
            !k--)
            return (uint16_t)d;
    return BL_NO_DEVICE;
}

/* SPDX-License-Identifier: MIT */
#include "ledger.h"
#include "mem.h"

#include <assert.h>
#include <stdlib.h>

const char *bl_purpose_name(enum bl_purpose p)
{
    static const char *const name[BL_N_PURPOSES] = {"weights", "state",  "ring slack", "compute",
                                                    "params",  "output", "host",       "driver",
                                                    "staging", "draft",  "slots"};
    assert((unsigned)p < BL_N_PURPOSES);
    return name[p];
}

static bool grow(struct bl_ledger *l)
{
    uint32_t cap = l->cap ? 2 * l->cap : BL_N_PURPOSES;
    struct bl_ledger_line *line = realloc(l->line, cap * sizeof *line);
    if (!line)
        return false;
    l->line = line;
    l->cap = cap;
    return true;
}

/* The line of (device, purpose), added at the end when new; NULL when out of memory. */
static struct bl_ledger_line *line_of(struct bl_ledger *l, uint16_t device, enum bl_purpose p)
{
    assert((unsigned)p < BL_N_PURPOSES);
    for (uint32_t i = 0; i < l->n; i++)
        if (l->line[i].device == device && l->line[i].purpose == p)
            return &l->line[i];
    if (l->n == l->cap && !grow(l))
        return NULL;
    l->line[l->n] = (struct bl_ledger_line){.device = device, .purpose = (uint8_t)p};
    return &l->line[l->n++];
}

enum bl_status bl_ledger_plan(struct bl_ledger *l, uint16_t device, enum bl_purpose p,
                              uint64_t bytes)
{
    struct bl_ledger_line *line = line_of(l, device, p);
    uint64_t sum;
    if (!line)
        return bl_fail(BL_ENOMEM, "out of memory: ledger line %u", l->n);
    if (!bl_size_add(line->planned_bytes, bytes, &sum))
        return bl_fail(BL_ENOMEM, "device %u, %s: planned bytes exceed 2^64", device,
                       bl_purpose_name(p));
    line->planned_bytes = sum;
    return BL_OK;
}

enum bl_status bl_ledger_count(struct bl_ledger *l, uint16_t device, enum bl_purpose p,
                               int64_t bytes)
{
    struct bl_ledger_line *line = line_of(l, device, p);
    if (!line)
        return bl_fail(BL_ENOMEM, "out of memory: ledger line %u", l->n);
    /* unsigned arithmetic: a negative count wraps round to a subtraction */
    assert(bytes >= 0 || line->measured_bytes >= 0 - (uint64_t)bytes);
    line->measured_bytes += (uint64_t)bytes;
    return BL_OK;
}

uint64_t bl_ledger_planned(const struct bl_ledger *l, uint16_t device)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < l->n; i++)
        if (l->line[i].device == device && !bl_size_add(sum, l->line[i].planned_bytes, &sum))
            return UINT64_MAX; /* fits nowhere, which is the right answer */
    return sum;
}

uint64_t bl_ledger_measured(const struct bl_ledger *l, uint16_t device)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < l->n; i++)
        sum += l->line[i].device == device ? l->line[i].measured_bytes : 0;
    return sum;
}

void bl_ledger_finish(struct bl_ledger *l)
{
    free(l->line);
    *l = (struct bl_ledger){0};
}

/* SPDX-License-Identifier: MIT */
/* probe_impl.h — the parts of a measurement; private to probe_*.c.
 *
 * Purpose   one round measures everything once into the device in hand; probe_measure.c makes several and takes medians.
 * Ownership the probe borrows the machine; a block of weights lives from take to give.
 * Units     as probe.h.
 * Errors    as probe.h.
 * Threads   as probe.h.
 */
#ifndef BL_PROBE_IMPL_H
#define BL_PROBE_IMPL_H

#include "probe.h"

struct bl_probe {
    struct bl_machine *machine;
    struct bl_machine_device *dev;
    const struct bl_probe_plan *plan;
    uint64_t deadline_ns;
    bool first;                   /* round: says what it does */
    unsigned char *block;         /* weights */
    size_t block_bytes;
    uint64_t cpu_ns, wanted_ns;   /* processor time had while reading, and wanted */
};
bool bl_probe_late(const struct bl_probe *);
void bl_probe_say(const struct bl_probe *, const char *text);
struct bl_device_config bl_probe_config(const struct bl_probe *, uint32_t threads);
uint32_t bl_probe_few_threads(const struct bl_probe *); /* of decode */
uint32_t bl_probe_many_threads(const struct bl_probe *);
/* Thread counts by doubling up to `most`; 0 after it. */
uint32_t bl_probe_next_count(uint32_t n, uint32_t most);
static const uint64_t bl_probe_cell_ns = 15000000; /* for one figure of one round, or for two runs */
enum { BL_PROBE_RUNS = 9 };                        /* most, of which the median counts */

/* A round's parts, in this order. */
enum bl_status bl_probe_fixed(struct bl_probe *);
enum bl_status bl_probe_reading(struct bl_probe *);
enum bl_status bl_probe_steps(struct bl_probe *);
enum bl_status bl_probe_types(struct bl_probe *);

#endif

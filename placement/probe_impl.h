/* SPDX-License-Identifier: MIT */
/* probe_impl.h — the parts of a measurement; private to probe_*.c.
 *
 * Purpose   one round measures everything once into the device in hand; probe_measure.c makes several and takes medians.
 * Ownership the probe borrows the machine; blocks live from take to give.
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
    uint32_t round;               /* the first says what it does; what is rare is measured in every third */
    struct bl_rig_block weights;  /* in pages of a mapped file */
    struct bl_rig_block states;   /* in huge ones where the system grants them, as the program keeps its own */
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

/* ---- probe_blocks.c ---- */

/* nodes: memory nodes that it is spread over, 0: any. */
enum bl_status bl_probe_take(const struct bl_probe *, uint64_t nodes, struct bl_rig_block *out);
/* The same as a file has it that is mapped. To be read only. */
enum bl_status bl_probe_take_mapped(const struct bl_probe *, struct bl_rig_block *out);
void bl_probe_give(struct bl_rig_block *); /* zeroed is fine */
/* Parts of a block of states: of attention, and of recurrent layers, which write to theirs. */
struct bl_rig_block bl_probe_cache_of(const struct bl_rig_block *states);
struct bl_rig_block bl_probe_recurrent_of(const struct bl_rig_block *states);

uint64_t bl_probe_home_bit(const struct bl_probe *); /* the memory node that decodes; 0: there is one only */

/* Decode's reading of weights of a type from a block, by a chain of matrices. */
enum bl_status bl_probe_time_read(struct bl_probe *, struct bl_rig *, const struct bl_rig_block *, enum bl_dtype, double *bps);

/* On a rig that is open: layers too narrow to cost anything else; other steps of n_tok tokens; products with a type. */
enum bl_status bl_probe_narrow(struct bl_machine_device *, struct bl_rig *);
enum bl_status bl_probe_team(struct bl_probe *, struct bl_rig *, uint32_t n_tok, enum bl_step_team);
enum bl_status bl_probe_type(struct bl_probe *, struct bl_rig *few, struct bl_rig *many, enum bl_dtype);
uint32_t bl_probe_common(uint32_t i); /* types by how common they are; BL_N_DTYPES after the last */
double bl_probe_rounded(double);      /* three digits: what a second measurement may agree to */

/* A round's parts, in this order. */
enum bl_status bl_probe_fixed(struct bl_probe *);
enum bl_status bl_probe_reading(struct bl_probe *);
enum bl_status bl_probe_steps(struct bl_probe *);
enum bl_status bl_probe_types(struct bl_probe *);

#endif

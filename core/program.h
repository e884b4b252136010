/* SPDX-License-Identifier: MIT */
/* program.h — lowering: graph + plan → steps, buffer offsets; binding: steps → memory and segments.
 *
 * Purpose   the only place that inserts copies, splits and waits. CPU-only is the plan with one device.
 * Ownership a program owns its graph, steps and segments; arenas belong to the engine and are shared by its programs.
 * Units     bytes.
 * Errors    BL_EUNSUPPORTED: a node that its device cannot run, by name. BL_ENOMEM.
 * Threads   one thread per program.
 */
#ifndef BL_PROGRAM_H
#define BL_PROGRAM_H

#include "plan.h"

enum bl_step_kind { BL_STEP_RUN, BL_STEP_COPY, BL_STEP_SIGNAL, BL_STEP_WAIT };
struct bl_step {                 /* fixed size, ids into program tables */
    uint8_t kind;
    uint16_t stream, other;      /* device index = its stream; COPY, WAIT: the other device */
    uint32_t a, b;               /* RUN: segment. COPY: entry of copy[]. SIGNAL, WAIT: signal number */
};
struct bl_copy { bl_val val; uint16_t from, to; uint64_t from_off, to_off, bytes; };
struct bl_range { uint32_t first, n; uint16_t device; struct bl_segment *built; }; /* consecutive nodes */
struct bl_home { uint64_t off; }; /* place of an activation in a device's arena; UINT64_MAX: not there */

struct bl_program {
    struct bl_shape shape;
    struct bl_graph graph;
    struct bl_step *step;
    struct bl_copy *copy;
    struct bl_range *range;
    struct bl_home *home;        /* [n_vals][n_devices] */
    uint64_t *arena_bytes;       /* [n_devices]: activations, without scratch */
    uint64_t *scratch_bytes;     /* [n_devices] */
    uint64_t *addr;              /* bound addresses of all nodes' sources and destinations */
    struct bl_bound *bound;      /* [n_nodes] */
    uint32_t n_steps, n_copies, n_ranges, n_signals, n_devices;
    uint32_t cap_steps, cap_copies, cap_ranges;
    uint64_t heap_bytes;
};
/* No device is touched: the same call sizes plans and makes programs. */
enum bl_status bl_program_lower(struct bl_program *out, const struct bl_model *, const struct bl_plan *,
                                const struct bl_machine *, const struct bl_shape *);
/* Replays the steps symbolically: every read after its write, no two live values overlap, every wait has its signal. */
enum bl_status bl_program_verify(const struct bl_program *, const struct bl_plan *);
void bl_program_finish(struct bl_program *); /* zeroed is fine; frees segments */

/* Where things are, per device; filled by the engine. */
struct bl_place {
    struct bl_device *dev;
    struct bl_stream *stream;
    struct bl_mem arena;         /* activations, then scratch */
    struct bl_mem scratch;       /* part of it */
    struct bl_mem params;        /* the device's copy of the params block */
};
struct bl_binding {
    struct bl_place *place;      /* [n_devices] */
    const uint64_t *weight;      /* [n_weights] address, or of the expert table */
    const uint64_t *state;       /* [n_states] */
};
enum bl_status bl_program_bind(struct bl_program *, const struct bl_binding *);

#endif

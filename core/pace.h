/* SPDX-License-Identifier: MIT */
/* pace.h — what a simulated device is told when it is opened: its memory, how long things take, what goes wrong.
 *
 * Purpose   backends/sim computes with real kernels and then lets the time pass that a device of another kind would have
 *           taken. What that time is, is asked of whoever has the machine's figures (placement/pace.c).
 * Ownership a pace belongs to the device that was opened with it, on failure too; faults are copied; a virtual clock is
 *           shared by the paces of all devices of an engine and outlives none of them.
 * Units     bytes; nanoseconds, of bl_now_ns or of the virtual clock.
 * Errors    none: what is not known takes no time.
 * Threads   run_ns and cross_ns from the device's own thread; copy from threads of all devices.
 */
#ifndef BL_PACE_H
#define BL_PACE_H

#include "graph.h"

struct bl_device;
struct bl_pace;
struct bl_copy_time {
    double begin_ns, end_ns;
};
struct bl_pace_ops {
    /* n nodes of a graph in one go, in a step of n_tok tokens that follow `depth` others. */
    double (*run_ns)(struct bl_pace *, const struct bl_graph *, const struct bl_node *first, uint32_t n, uint32_t n_tok,
                     uint64_t depth);
    /* Between the device and the host, not before ready_ns; holds what it goes over until it is done. */
    struct bl_copy_time (*copy)(struct bl_pace *, double ready_ns, uint64_t bytes, bool to_device);
    /* From a point on another device until a stream that waits for it goes on. */
    double (*cross_ns)(struct bl_pace *, const struct bl_device *from);
    void (*close)(struct bl_pace *);
};
/* Time that passes only as modelled: nobody sleeps, work is done where it is enqueued, in its order. */
struct bl_virtual_clock {
    double now_ns; /* of the thread that enqueues */
};
struct bl_pace {
    const struct bl_pace_ops *ops;
    struct bl_virtual_clock *clock; /* NULL: real time */
};

/* The n-th call of its kind on a device goes wrong. */
enum bl_fault_kind {
    BL_FAULT_NONE,
    BL_FAULT_ALLOC,   /* no memory */
    BL_FAULT_COPY,    /* the copy fails once it is its turn */
    BL_FAULT_SUBMIT,  /* a segment is not taken */
    BL_FAULT_LOST,    /* from the n-th command on everything fails */
    BL_FAULT_STUCK,   /* the n-th command never ends */
    BL_FAULT_CORRUPT, /* a bit of what the n-th copy brought is wrong */
    BL_FAULT_MEMORY,  /* of the n-th byte on there is none, whatever the machine says */
    BL_N_FAULT_KINDS
};
struct bl_fault {
    uint8_t kind;
    uint64_t nth; /* from 1 */
};
struct bl_simulated {
    uint64_t mem_bytes;   /* all there is; 0: no limit */
    struct bl_pace *pace; /* NULL: as fast as the host computes */
    struct bl_fault fault;
};

#endif

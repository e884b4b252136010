/* SPDX-License-Identifier: MIT */
/* sched.h — runs a program: walks its flat step array; but for which experts are sent, nothing is decided.
 *
 * Purpose   enqueue every step, copy the result's rows out, wait for all devices of the program; notice one that does
 *           nothing any more.
 * Ownership borrows everything; keeps tables between runs, and a trace if there is to be one.
 * Units     bytes, nanoseconds.
 * Errors    the first enqueue failure, or the sticky error of a stream. BL_ETIMEDOUT: for the time given no device has
 *           finished anything; names the device and its step, and where the others stand goes to the log. All streams are
 *           cancelled then. BL_ECANCELLED: the step was asked to stop; streams are cancelled, and all is quiet.
 * Threads   submitting thread.
 */
#ifndef BL_SCHED_H
#define BL_SCHED_H

#include "stage_ring.h"
#include "trace.h"

struct bl_sched {
    struct bl_point *point;  /* of the running program's signals */
    uint32_t *before;        /* [2 * n_devices] commands of each stream enqueued before the step: each device's, then each
                              * one's beside */
    uint32_t *n_commands;    /* [n_steps] that a step of the program enqueued */
    struct bl_trace *trace;  /* NULL: nothing is noted */
    uint32_t cap, cap_devices, cap_steps;
    uint32_t done;           /* by all streams, when it was last looked at */
    uint64_t moved_ns;       /* when that changed */
};
struct bl_step_io {
    const struct bl_mem *params; /* host block, copied to every device first */
    size_t params_bytes;
    const struct bl_mem *out;    /* host memory for the result; bytes 0: not wanted */
    size_t out_off, out_bytes;
    struct bl_stage *stage;      /* of experts that are sent; NULL: the program sends none */
    const struct bl_stop *stop;  /* NULL: the step is not asked to end */
};
enum bl_status bl_sched_run(struct bl_sched *, const struct bl_program *, struct bl_place *, const struct bl_step_io *,
                            uint64_t timeout_ns);
void bl_sched_finish(struct bl_sched *);

#endif

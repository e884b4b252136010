/* SPDX-License-Identifier: MIT */
/* sched.h — runs a program: walks its flat step array; nothing is decided or allocated.
 *
 * Purpose   enqueue every step, then wait for the last point of the device that holds the result.
 * Ownership borrows everything.
 * Units     nanoseconds.
 * Errors    the first enqueue failure, or the sticky error of a stream; BL_ETIMEDOUT names the step.
 * Threads   submitting thread.
 */
#ifndef BL_SCHED_H
#define BL_SCHED_H

#include "program.h"

struct bl_sched {
    struct bl_point *point; /* [cap]: points of the running program's signals */
    uint32_t cap;
};
enum bl_status bl_sched_reserve(struct bl_sched *, uint32_t n_signals);
void bl_sched_finish(struct bl_sched *);
enum bl_status bl_sched_run(struct bl_sched *, const struct bl_program *, struct bl_place *, const struct bl_mem *params,
                            uint64_t timeout_ns);

#endif

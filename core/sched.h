/* SPDX-License-Identifier: MIT */
/* sched.h — runs a program: walks its flat step array; nothing is decided or allocated.
 *
 * Purpose   enqueue every step, copy the result's rows out, wait for all devices of the program.
 * Ownership borrows everything; keeps a table of points between runs.
 * Units     bytes, nanoseconds.
 * Errors    the first enqueue failure, or the sticky error of a stream; BL_ETIMEDOUT names the device.
 * Threads   submitting thread.
 */
#ifndef BL_SCHED_H
#define BL_SCHED_H

#include "program.h"

struct bl_sched {
    struct bl_point *point; /* of the running program's signals */
    uint32_t cap;
};
struct bl_step_io {
    const struct bl_mem *params; /* host block, copied to every device first */
    size_t params_bytes;
    const struct bl_mem *out;    /* host memory for the result; bytes 0: not wanted */
    size_t out_off, out_bytes;
};
enum bl_status bl_sched_run(struct bl_sched *, const struct bl_program *, struct bl_place *, const struct bl_step_io *,
                            uint64_t timeout_ns);
void bl_sched_finish(struct bl_sched *);

#endif

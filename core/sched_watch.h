/* SPDX-License-Identifier: MIT */
/* sched_watch.h — whether streams still do anything, and which does not; part of the scheduler.
 *
 * Purpose   a device that stops is told from one that is slow and from those that wait for it.
 * Ownership borrows everything.
 * Units     nanoseconds; commands.
 * Errors    none: a backend that does not count its commands is judged by its signals.
 * Threads   submitting thread.
 */
#ifndef BL_SCHED_WATCH_H
#define BL_SCHED_WATCH_H

#include "sched.h"

/* Of a step's stream, commands enqueued since it was opened; 0: it does not count them, or the step has none. */
uint32_t bl_watch_enqueued(const struct bl_place *, const struct bl_step *);
/* Before the first command of a step. */
void bl_watch_begin(struct bl_sched *, const struct bl_program *, const struct bl_place *, uint64_t timeout_ns);
/* Whether nothing has been done anywhere for timeout_ns. */
bool bl_watch_stalled(struct bl_sched *, const struct bl_program *, const struct bl_place *, uint64_t timeout_ns);
/* Whether a stream that counts its commands has some left to do. */
bool bl_watch_is_busy(const struct bl_program *, const struct bl_place *);
void bl_watch_cancel(const struct bl_program *, const struct bl_place *);
/* Says which device it is and in which step; logs where all of them stand. Cancels their streams. */
enum bl_status bl_watch_give_up(struct bl_sched *, const struct bl_program *, const struct bl_place *,
                                uint64_t timeout_ns);

#endif

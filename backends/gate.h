/* SPDX-License-Identifier: MIT */
/* gate.h — waits of a stream for other devices' points, which mean nothing to its driver.
 *
 * Purpose   a thread of the stream waits for them, in the order in which they were posted, and lets the driver go on with
 *           what came behind each; so who enqueues never waits.
 * Ownership part of a stream, zeroed; owns its thread, which is started with the first wait.
 * Units     nanoseconds.
 * Errors    open: BL_ENOMEM, no thread; BL_ETIMEDOUT, too many waits have not ended.
 * Threads   the stream's one producer; cancel from any; `pass` is called on the gate's thread.
 */
#ifndef BL_GATE_H
#define BL_GATE_H

#include "device.h"
#include "thread.h"

#include <pthread.h>

enum { BL_GATES = 64 }; /* waits in flight */
#define BL_GATE_SLICE_NS 50000000u /* between looks at whether there is still sense in waiting */

struct bl_gate_wait {
    struct bl_point point;
    uint64_t value;          /* what the stream is counted on to; not 0 */
    uint32_t mark;           /* the backend's own */
};
/* The point is reached, or, with a status and the line of why, never will be: the driver goes on after either, since what
 * it holds must end before its memory does. */
typedef void bl_gate_fn(struct bl_stream *, const struct bl_gate_wait *, enum bl_status);
struct bl_gate {
    struct bl_stream *stream;
    bl_gate_fn *pass;
    pthread_t thread;
    bool has_thread;
    struct bl_gate_wait wait[BL_GATES];
    struct bl_counter posted, passed;
    uint32_t n_posted;
    _Atomic bool closing;
};
/* Room for one more wait, which is then posted. */
enum bl_status bl_gate_open(struct bl_gate *, struct bl_stream *, bl_gate_fn *pass, uint64_t patience_ns);
void bl_gate_post(struct bl_gate *, const struct bl_gate_wait *);
/* Nothing is waited for any more. */
void bl_gate_cancel(struct bl_gate *);
bool bl_gate_is_cancelled(const struct bl_gate *);
void bl_gate_close(struct bl_gate *); /* cancels; what was posted is let through, then the thread ends */

#endif

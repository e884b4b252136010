/* SPDX-License-Identifier: MIT */
/* timeline.h — how long a lowered program takes: every step priced, every stream replayed in order.
 *
 * Purpose   the predicted time of a plan is the makespan of its program, so waits, copies and overlap are in it by
 *           construction. Streams of devices run side by side; copies take turns on a link and share what their links
 *           have in common; a stream that waits for another device pays for the crossing.
 * Ownership the caller finishes the timeline; it borrows nothing.
 * Units     nanoseconds from the start of the step, tokens.
 * Errors    BL_ENOMEM.
 * Threads   any.
 */
#ifndef BL_TIMELINE_H
#define BL_TIMELINE_H

#include "trace.h"
#include "wires.h"

struct bl_device_time {
    double run_ns, copy_ns, wait_ns; /* wait: crossings, and for others */
    double sent_ns;                  /* beside that: experts sent there; on the host, copied for it */
};
struct bl_timeline {
    double ns;                   /* until the last stream is done and the host knows */
    struct bl_device_time *device; /* [n_devices] */
    struct bl_event *event;      /* in the order they were enqueued; NULL unless asked for */
    uint32_t n_devices, n_events;
};
struct bl_timeline_options {
    const struct bl_cost_table *table; /* NULL: the committed constants */
    uint64_t depth_tokens;       /* context before the step */
    uint32_t stream_from_tok;    /* predict: the plan's stream_from, if not 0 */
    bool keep_events;
};
enum bl_status bl_timeline_make(struct bl_timeline *out, const struct bl_program *, const struct bl_model *,
                                const struct bl_plan *, const struct bl_machine *, const struct bl_timeline_options *);
void bl_timeline_finish(struct bl_timeline *); /* zeroed is fine */
/* Lowers the plan for the step and replays it: n_tok tokens after depth_tokens others, logits for the last. */
enum bl_status bl_timeline_predict(struct bl_timeline *out, const struct bl_model *, const struct bl_plan *,
                                   const struct bl_machine *, uint32_t n_tok, const struct bl_timeline_options *);

#endif

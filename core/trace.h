/* SPDX-License-Identifier: MIT */
/* trace.h — what devices and links did when: noted while steps run, summed up, written for Perfetto and Chrome.
 *
 * Purpose   one form for what is predicted (placement/timeline.h) and what was measured, so that the two can be laid side by
 *           side. configs/schema/trace.schema.json describes the file.
 * Ownership a trace owns its events and the logs that it lends to streams; finish it once those are closed.
 * Units     nanoseconds: from the start of the step where predicted, of bl_now_ns or a virtual clock where measured.
 * Errors    BL_ENOMEM.
 * Threads   submitting thread.
 */
#ifndef BL_TRACE_H
#define BL_TRACE_H

#include "json.h"
#include "program.h"

enum bl_event_kind {
    BL_EVENT_RUN,
    BL_EVENT_COPY,
    BL_EVENT_STREAM, /* a chunk of experts sent to a card, beside what it computes */
    BL_EVENT_STAGE,  /* a chunk of experts copied to where a card's copies can take it, beside what the host computes */
    BL_EVENT_MOVE,   /* an expert brought into a slot, on a stream of its own */
    BL_EVENT_WAIT,   /* for another device; of predictions, what lies between other events */
    BL_EVENT_STEP    /* a whole step, of no device */
};
struct bl_event {
    double begin_ns, end_ns;
    uint32_t index;              /* RUN: range of the program, an event for each part in it; COPY: copy; STREAM, STAGE:
                                  * chunk; MOVE: expert */
    uint32_t n_tok;              /* of a STEP */
    uint16_t device;             /* whose stream */
    uint8_t kind, part;          /* part: enum bl_part, of a RUN; BL_N_PARTS: several */
    int16_t layer, last_layer;   /* -1: outside of layers, or a copy */
    uint16_t from, to;           /* of a COPY, a MOVE, or experts sent, or a WAIT; else the device */
    bool host_bound;             /* simulated, and the host was slower than what it stands for */
    double bytes, macs;          /* copied, or of weights and state read; multiply-adds */
};

/* ---- noting ---- */

struct bl_trace {
    struct bl_event *event;      /* in the order of steps, then as enqueued */
    uint32_t n, cap;
    uint32_t n_dropped;          /* for which there was no room */
    struct bl_lapse_log *log;    /* [2 * n_devices] lent while a step runs to streams and those beside them */
    uint32_t n_devices;
    bool lent;                   /* still, by a step that failed: what it left running may write until it is closed */
};
struct bl_trace_step {           /* what a step enqueues besides its program's steps */
    uint64_t params_bytes;       /* copied to every device first */
    uint64_t out_bytes;          /* copied from the result's device last; 0: not */
    const uint32_t *n_commands;  /* [n_steps] that a step of the program enqueued */
    const struct bl_stage *stage;/* what was sent; NULL: nothing */
};
/* Streams are idle. After a failure nothing is noted of the step. */
enum bl_status bl_trace_begin(struct bl_trace *, const struct bl_program *, struct bl_place *);
/* done false: streams may still write into their logs, which stay theirs, and nothing is noted. */
enum bl_status bl_trace_end(struct bl_trace *, const struct bl_program *, struct bl_place *, const struct bl_trace_step *,
                            bool done);
enum bl_status bl_trace_note(struct bl_trace *, const struct bl_event *); /* of streams that it knows nothing of */
void bl_trace_finish(struct bl_trace *); /* zeroed is fine */

/* ---- summing up ---- */

struct bl_trace_device {
    double run_ns, copy_ns, wait_ns; /* of its own stream */
    double sent_ns;                  /* beside it: experts sent there, of the host copied for that */
    uint64_t in_bytes, out_bytes;    /* over its link with the host */
    uint64_t sent_bytes;             /* of them, experts with their tables */
    uint64_t direct_bytes;           /* from other cards, without the host */
};
struct bl_trace_sum {
    double ns;                   /* of all steps */
    double copy_ns, hidden_ns;   /* of all copies over links; of them, while some device computed */
    uint32_t n_steps, n_host_bound;
};
/* device: [n_devices]. */
enum bl_status bl_trace_sum_up(const struct bl_trace *, uint32_t n_devices, struct bl_trace_sum *,
                               struct bl_trace_device *device);

/* ---- writing ---- */

struct bl_trace_out {
    struct bl_json_out json;
    const struct bl_machine *machine;
    double zero_ns;              /* what counts as 0 */
    double end_ns[BL_MAX_DEVICES]; /* predicted: of the last event on the stream */
    bool beside[BL_MAX_DEVICES];   /* its second stream has a name */
    bool moves[BL_MAX_DEVICES];    /* experts came to it */
    uint32_t pid;
    bool measured;
};
void bl_trace_out_begin(struct bl_trace_out *, const struct bl_machine *);
/* The events that follow are of another process, with tracks of its own. */
void bl_trace_out_process(struct bl_trace_out *, const char *name);
void bl_trace_out_event(struct bl_trace_out *, const struct bl_event *);
enum bl_status bl_trace_out_end(struct bl_trace_out *, char **text, size_t *n_bytes);

#endif

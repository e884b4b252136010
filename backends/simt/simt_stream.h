/* SPDX-License-Identifier: MIT */
/* simt_stream.h — streams of cards; private to backends/simt.
 *
 * Purpose   the stream half of core/device.h over a driver's stream: points are events in a ring; what another kind of
 *           device has to reach first, a thread of the stream, the gate, waits for and then counts on a number in host
 *           memory that the card looks at, so that who enqueues never waits for a device.
 * Ownership a stream owns its events and its gate, and holds what was registered of the host's memory (pins.h). Host memory
 *           that it has copied with must stay until the stream is closed.
 * Units     bytes, nanoseconds.
 * Errors    as the contract.
 * Threads   as the contract.
 */
#ifndef BL_SIMT_STREAM_H
#define BL_SIMT_STREAM_H

#include "gate.h"
#include "pins.h"
#include "simt.h"
#include "thread.h"

#include <pthread.h>

enum {
    BL_SIMT_RING = 256,  /* points in flight */
    BL_SIMT_STAGES = 64, /* pieces in flight of copies with memory that the card does not reach */
    BL_SIMT_LINE = 160
};
struct bl_simt_hold {        /* of a block of the host's, or a window of it */
    struct bl_pins *of;
    struct bl_pin *pin;
};
struct bl_simt_piece {       /* of a staged copy, on its way through pinned memory */
    struct bl_stream *stream;
    void *dst;
    const void *src;
    size_t bytes;
};
struct bl_simt_stage {
    unsigned char *room;     /* pinned; NULL until it is needed */
    struct bl_simt_piece piece[BL_SIMT_STAGES];
    struct bl_counter done;  /* pieces that the host has moved */
    uint32_t n_posted;
};
struct bl_simt_times {       /* events after each command, while a trace is kept */
    struct bl_lapse_log *log;
    void **event;
    uint32_t n, n_made, cap;
    uint64_t zero_ns;        /* when the first was passed */
};
struct bl_stream {
    struct bl_device *dev;   /* first */
    void *handle;
    /* points */
    void *event[BL_SIMT_RING];
    uint32_t before[BL_SIMT_RING]; /* commands enqueued up to the point */
    uint32_t signals;        /* given out; producer only */
    _Atomic uint32_t reached;/* highest that is known of */
    uint32_t n_enqueued;
    uint64_t patience_ns;
    /* waits for devices of another kind */
    struct bl_gate gate;
    uint64_t n_counted;
    _Atomic uint64_t *number; /* pinned */
    uint64_t number_addr;
    /* the host's memory */
    struct bl_simt_hold *hold;
    uint32_t n_holds, cap_holds;
    struct bl_simt_stage stage;
    struct bl_simt_times times;
    /* first failure; msg is written before status */
    _Atomic int failing, status;
    char msg[BL_SIMT_LINE];
};

/* ---- the contract's ---- */

enum bl_status bl_simt_stream_open(struct bl_device *, struct bl_stream **out);
void bl_simt_stream_close(struct bl_stream *);
enum bl_status bl_simt_copy(struct bl_stream *, const struct bl_mem *dst, size_t dst_off, const struct bl_mem *src,
                            size_t src_off, size_t bytes);
enum bl_status bl_simt_fill(struct bl_stream *, const struct bl_mem *dst, size_t off, uint32_t word, size_t bytes);
enum bl_status bl_simt_signal(struct bl_stream *, struct bl_point *out);
enum bl_status bl_simt_wait(struct bl_stream *, struct bl_point);
bool bl_simt_poll(struct bl_point);
enum bl_status bl_simt_join(struct bl_point, uint64_t timeout_ns);
enum bl_status bl_simt_segment_run(struct bl_stream *, struct bl_segment *);
void bl_simt_progress(const struct bl_stream *, uint32_t *enqueued, uint32_t *done);
void bl_simt_cancel(struct bl_stream *);
void bl_simt_trace(struct bl_stream *, struct bl_lapse_log *);
void bl_simt_patience(struct bl_stream *, uint64_t ns);

/* ---- among the files of streams ---- */

/* Keeps the first failure for whoever joins; returns st. */
enum bl_status bl_simt_failed(struct bl_stream *, enum bl_status st);
enum bl_status bl_simt_still_good(const struct bl_stream *);
/* The driver's answer; a failure fails the stream. */
enum bl_status bl_simt_told(struct bl_stream *, int code, const char *what);
/* Good, and its card the calling thread's. */
enum bl_status bl_simt_ready(struct bl_stream *);
/* A command has been enqueued. */
void bl_simt_count_command(struct bl_stream *);

/* simt_gate.c */
enum bl_status bl_simt_gate_pass(struct bl_stream *, const struct bl_device_ops *, struct bl_point);

/* simt_host.c */
/* Whether copies can be with the block as it lies, which is tried when it is first met; *bytes from off on: how many of
 * them the answer is for. */
bool bl_simt_reaches(struct bl_stream *, const struct bl_mem *, size_t off, size_t *bytes);
/* patience_ns: with pieces of copies before. */
enum bl_status bl_simt_copy_staged(struct bl_stream *, uint64_t dst, void *dst_host, uint64_t src, const void *src_host,
                                   size_t bytes, uint64_t patience_ns);
void bl_simt_host_close(struct bl_stream *);

/* simt_trace.c */
void bl_simt_times_note(struct bl_stream *);
void bl_simt_times_close(struct bl_stream *);

#endif

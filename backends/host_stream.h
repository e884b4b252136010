/* SPDX-License-Identifier: MIT */
/* host_stream.h — streams of devices whose work threads of the host do: a ring of commands and a thread that executes them.
 *
 * Purpose   the stream half of core/device.h for backends in host memory; they say how a segment runs and, if things are to
 *           take a time of their own, when a command is over.
 * Ownership as the contract; a stream is part of what `size` asks for, zeroed, with the backend's own behind it.
 * Units     bytes, nanoseconds.
 * Errors    as the contract.
 * Threads   as the contract. `run` and `settle` are called on the executor, inline streams on the enqueuing thread.
 */
#ifndef BL_HOST_STREAM_H
#define BL_HOST_STREAM_H

#include "device.h"
#include "thread.h"

#include <pthread.h>

enum bl_command_kind {
    BL_COMMAND_COPY,
    BL_COMMAND_FILL,
    BL_COMMAND_SIGNAL,
    BL_COMMAND_WAIT,
    BL_COMMAND_RUN,
    BL_COMMAND_STOP
};
struct bl_command {
    uint8_t kind;
    bool to_device;            /* copy: else from it, or within it */
    bool from_device;
    uint64_t enqueued_ns;      /* only where commands are settled */
    union {
        struct {
            void *dst;
            const void *src;
            size_t bytes;
        } copy;
        struct {
            void *dst;
            size_t bytes;
            uint32_t word;
        } fill;
        uint32_t signal;
        struct bl_point wait;
        struct bl_segment *segment;
    };
};
struct bl_stream_work {
    size_t size;               /* of the backend's struct, which begins with struct bl_stream */
    const int *cpus;           /* [n_cpus] what the executor is kept to */
    uint32_t n_cpus;
    bool in_line;              /* no executor: commands are done where they are enqueued */
    enum bl_status (*run)(struct bl_stream *, struct bl_segment *);
    /* Before its work: a status fails the stream. NULL: nothing to say. */
    enum bl_status (*admit)(struct bl_stream *, const struct bl_command *);
    /* After its work, which took the span: returns when the command is over, the span as it is to be told. NULL: it is. */
    void (*settle)(struct bl_stream *, const struct bl_command *, struct bl_lapse *);
};

enum { BL_STREAM_QUEUE = 64 }; /* commands in flight; a step of one device is about five */
struct bl_stream {
    struct bl_device *dev; /* first, as in every backend's */
    const struct bl_stream_work *work;
    pthread_t thread;
    uint32_t signals;             /* given out; producer only */
    uint32_t n_posted;            /* producer's copy of posted */
    struct bl_counter posted;     /* commands in the ring so far */
    struct bl_counter taken;      /* commands finished so far */
    struct bl_counter reached;    /* value of the last signal passed */
    struct bl_counter cancelled;  /* 1: what has not begun is skipped */
    struct bl_lapse_log *log;      /* written while idle */
    uint64_t patience_ns;         /* producer only */
    /* First failure; msg is written before status. */
    _Atomic int status;
    char msg[160];
    struct bl_command ring[BL_STREAM_QUEUE];
};

/* work outlives the stream. */
enum bl_status bl_stream_open(struct bl_device *, const struct bl_stream_work *work, struct bl_stream **out);
/* Work already queued is done first, unless the stream failed. */
void bl_stream_close(struct bl_stream *);
/* Both blocks as the executor sees them: host memory, wherever a device says it lies. */
enum bl_status bl_stream_copy(struct bl_stream *, void *dst, const void *src, size_t bytes, bool to_device,
                              bool from_device);
enum bl_status bl_stream_fill(struct bl_stream *, void *dst, uint32_t word, size_t bytes);
enum bl_status bl_stream_signal(struct bl_stream *, struct bl_point *out);
enum bl_status bl_stream_wait(struct bl_stream *, struct bl_point);
bool bl_stream_poll(struct bl_point);
enum bl_status bl_stream_join(struct bl_point, uint64_t timeout_ns);
enum bl_status bl_stream_run(struct bl_stream *, struct bl_segment *);
void bl_stream_progress(const struct bl_stream *, uint32_t *enqueued, uint32_t *done);
void bl_stream_cancel(struct bl_stream *);
bool bl_stream_is_cancelled(const struct bl_stream *);
void bl_stream_trace(struct bl_stream *, struct bl_lapse_log *);
void bl_stream_patience(struct bl_stream *, uint64_t ns);

#endif

/* SPDX-License-Identifier: MIT */
/* vk_stream.h — what a Vulkan stream is made of; private to vk_stream.c, vk_gate.c and vk_window.c.
 *
 * Purpose   commands are gathered and handed over in vk_stream.c, waits for other devices are in vk_gate.c, the host's memory
 *           as buffers in vk_window.c.
 * Ownership a stream owns its semaphore, command buffers, gate and imported windows.
 * Units     nanoseconds, bytes.
 * Errors    the first failure of a stream stays, with its line.
 * Threads   the gate's thread counts the line on and may fail the stream; everything else is the stream's one producer.
 */
#ifndef BL_VK_STREAM_H
#define BL_VK_STREAM_H

#include "gate.h"
#include "thread.h"
#include "vk_device.h"

enum {
    BL_VK_RING = 64,   /* command buffers of copies in flight */
    BL_VK_BATCH = 64,  /* command buffers of a submission */
    BL_VK_MARKS = 128, /* values of which it is known what was enqueued before */
    BL_VK_LINE_BYTES = 160,
    BL_VK_SLICE_NS = 50000000 /* between looks at whether there is still sense in waiting */
};

struct bl_vk_imported {
    const void *host;
    size_t bytes;
    struct bl_vk_block block;
};
struct bl_vk_reached {
    uint64_t value;
    uint32_t enqueued; /* commands before the line reaches it */
};
struct bl_stream {
    struct bl_device *dev; /* first */
    VkSemaphore line;
    uint64_t last; /* value that everything handed over so far ends with */
    VkCommandPool pool;
    VkCommandBuffer ring[BL_VK_RING];
    uint64_t until[BL_VK_RING]; /* in use until the line reaches it */
    uint32_t next;
    VkCommandBuffer open; /* being recorded, or NULL */
    VkCommandBuffer batch[BL_VK_BATCH];
    uint32_t n_batch;
    struct bl_vk_reached mark[BL_VK_MARKS];
    uint32_t n_marks, n_enqueued;
    struct bl_vk_imported *import; /* windows of the host's memory that copies have met */
    uint32_t n_imports, cap_imports;
    struct bl_vk_trace trace;
    uint64_t patience_ns; /* with command buffers that do not become free; 0: without end */
    struct bl_gate gate;  /* marks of its waits are the trace's */
    _Atomic int failing; /* 1: who set it writes msg */
    _Atomic int status;  /* first failure; msg is written before */
    char msg[BL_VK_LINE_BYTES];
};
static inline struct bl_vk_device *bl_vk_stream_device(const struct bl_stream *s)
{
    return bl_vk_of(s->dev);
}

/* ---- vk_stream.c ---- */

enum bl_status bl_vk_stream_status(struct bl_stream *);
/* The stream has failed with this and the line of bl_error, unless it had before; returns the status given. */
enum bl_status bl_vk_stream_failed(struct bl_stream *, enum bl_status);
enum bl_status bl_vk_stream_check(struct bl_stream *, VkResult, const char *what);
VkResult bl_vk_wait_value(struct bl_stream *, uint64_t value, uint64_t timeout_ns);

/* ---- vk_gate.c ---- */

enum bl_status bl_vk_gate_open(struct bl_stream *); /* room for one more wait */

/* ---- vk_window.c: blocks as buffers ---- */

/* Where in which buffer a block's byte is, and how much of the block follows it there. */
struct bl_vk_piece {
    VkBuffer buffer;
    size_t off, bytes;
};
/* Windows of the host's memory are imported when a copy first meets them, and stay until the stream closes. */
enum bl_status bl_vk_piece_of(struct bl_stream *, const struct bl_mem *, size_t off, struct bl_vk_piece *out);
void bl_vk_windows_close(struct bl_stream *);

#endif

/* SPDX-License-Identifier: MIT */
/* Streams: what is enqueued is gathered into command buffers and handed to the queue at the next
 * signal or wait.
 *
 * A stream counts on one timeline semaphore. Every submission waits for the value before and leaves
 * the next, so points are values of it and signal costs nothing of its own. Waits for other devices
 * count on it too (vk_gate.c). */
#include "vk_stream.h"

#include "mem.h"

#include <stdio.h>
#include <stdlib.h>

enum { CLOCK_TRIES = 5 };
static const uint64_t clock_patience_ns = 10000000000;

enum bl_status bl_vk_stream_status(struct bl_stream *s)
{
    return (enum bl_status)atomic_load_explicit(&s->status, memory_order_acquire);
}

enum bl_status bl_vk_stream_failed(struct bl_stream *s, enum bl_status st)
{
    if (!atomic_exchange(&s->failing, 1)) {
        snprintf(s->msg, sizeof s->msg, "%s", bl_error());
        atomic_store_explicit(&s->status, st, memory_order_release);
    }
    return st;
}

enum bl_status bl_vk_stream_check(struct bl_stream *s, VkResult r, const char *what)
{
    const enum bl_status st = bl_vk_check(r, s->dev->name, what);
    return st ? bl_vk_stream_failed(s, st) : BL_OK;
}

static enum bl_status still_good(struct bl_stream *s)
{
    const enum bl_status st = bl_vk_stream_status(s);
    return st ? bl_fail(st, "%s", s->msg) : BL_OK;
}

void bl_vk_barrier(const struct bl_vk_device *d, VkCommandBuffer cmd)
{
    const VkAccessFlags all = VK_ACCESS_MEMORY_READ_BIT | VK_ACCESS_MEMORY_WRITE_BIT |
                              VK_ACCESS_HOST_READ_BIT | VK_ACCESS_HOST_WRITE_BIT;
    const VkPipelineStageFlags stages =
        VK_PIPELINE_STAGE_ALL_COMMANDS_BIT | VK_PIPELINE_STAGE_HOST_BIT;
    const VkMemoryBarrier b = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER, .srcAccessMask = all, .dstAccessMask = all};
    d->vk.CmdPipelineBarrier(cmd, stages, stages, 0, 1, &b, 0, NULL, 0, NULL);
}

/* ---- waiting ---- */

VkResult bl_vk_wait_value(struct bl_stream *s, uint64_t value, uint64_t timeout_ns)
{
    const struct bl_vk_device *d = bl_vk_stream_device(s);
    const VkSemaphoreWaitInfo w = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
                                   .semaphoreCount = 1,
                                   .pSemaphores = &s->line,
                                   .pValues = &value};
    return d->vk.WaitSemaphores(d->dev, &w, timeout_ns);
}

static uint64_t reached(const struct bl_stream *s)
{
    uint64_t v = 0;
    const VkResult r = bl_vk_stream_device(s)->vk.GetSemaphoreCounterValue(
        bl_vk_stream_device(s)->dev, s->line, &v);
    return r ? 0 : v;
}

/* Points keep the lower half of a value, which is never far from where the line is. */
static uint64_t whole_value(struct bl_stream *s, uint32_t half)
{
    const uint64_t now = reached(s);
    return now + (uint64_t)(int64_t)(int32_t)(half - (uint32_t)now);
}

static bool stream_poll(struct bl_point p)
{
    return !p.stream || (int32_t)((uint32_t)reached(p.stream) - p.value) >= 0;
}

static enum bl_status stream_join(struct bl_point p, uint64_t timeout_ns)
{
    struct bl_stream *s = p.stream;
    const uint64_t start = bl_now_ns();

    if (!s)
        return BL_OK;
    const uint64_t value = whole_value(s, p.value);
    for (VkResult r = VK_TIMEOUT; r == VK_TIMEOUT;) {
        const uint64_t gone = bl_now_ns() - start, left = gone < timeout_ns ? timeout_ns - gone : 0;
        r = bl_vk_wait_value(s, value, left < BL_VK_SLICE_NS ? left : BL_VK_SLICE_NS);
        if (r != VK_TIMEOUT && r != VK_SUCCESS)
            return bl_vk_stream_check(s, r, "waiting for it");
        BL_TRY(still_good(s));
        if (r == VK_TIMEOUT && bl_now_ns() - start >= timeout_ns)
            return bl_fail(BL_ETIMEDOUT, "%s: no answer within %.3f s (at %llu, waiting for %llu)",
                           s->dev->name, (double)timeout_ns * 1e-9, (unsigned long long)reached(s),
                           (unsigned long long)value);
    }
    return BL_OK;
}

/* ---- command buffers ---- */

static enum bl_status begin(struct bl_stream *s)
{
    const struct bl_vk_device *d = bl_vk_stream_device(s);
    const uint32_t k = s->next % BL_VK_RING;
    const VkCommandBufferBeginInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                           .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT};
    VkResult r = VK_TIMEOUT;

    if (s->open)
        return BL_OK;
    const uint64_t start = bl_now_ns();
    while (r == VK_TIMEOUT) {
        r = bl_vk_wait_value(s, s->until[k], BL_VK_SLICE_NS);
        BL_TRY(still_good(s));
        if (r == VK_TIMEOUT && s->patience_ns && bl_now_ns() - start > s->patience_ns)
            return bl_fail(BL_ETIMEDOUT, "%s: its queue stays full", s->dev->name);
    }
    BL_TRY(bl_vk_stream_check(s, r, "waiting for a command buffer"));
    BL_TRY(bl_vk_stream_check(s, d->vk.BeginCommandBuffer(s->ring[k], &info), "recording"));
    s->open = s->ring[k];
    bl_vk_barrier(d, s->open);
    return BL_OK;
}

static enum bl_status end(struct bl_stream *s)
{
    if (!s->open)
        return BL_OK;
    bl_vk_barrier(bl_vk_stream_device(s), s->open);
    BL_TRY(
        bl_vk_stream_check(s, bl_vk_stream_device(s)->vk.EndCommandBuffer(s->open), "recording"));
    s->batch[s->n_batch++] = s->open;
    s->until[s->next++ % BL_VK_RING] = s->last + 1;
    s->open = NULL;
    return BL_OK;
}

static void set_mark(struct bl_stream *s)
{
    s->mark[s->n_marks++ % BL_VK_MARKS] = (struct bl_vk_reached){s->last, s->n_enqueued};
}

static enum bl_status flush(struct bl_stream *s)
{
    struct bl_vk_device *d = bl_vk_stream_device(s);
    const VkPipelineStageFlags stage = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
    const uint64_t next = s->last + 1;

    BL_TRY(end(s));
    if (!s->n_batch)
        return BL_OK;
    const VkTimelineSemaphoreSubmitInfo values = {
        .sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
        .waitSemaphoreValueCount = 1,
        .pWaitSemaphoreValues = &s->last,
        .signalSemaphoreValueCount = 1,
        .pSignalSemaphoreValues = &next};
    const VkSubmitInfo submit = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                                 .pNext = &values,
                                 .waitSemaphoreCount = 1,
                                 .pWaitSemaphores = &s->line,
                                 .pWaitDstStageMask = &stage,
                                 .commandBufferCount = s->n_batch,
                                 .pCommandBuffers = s->batch,
                                 .signalSemaphoreCount = 1,
                                 .pSignalSemaphores = &s->line};
    pthread_mutex_lock(&d->turn);
    const VkResult r = d->vk.QueueSubmit(d->queue, 1, &submit, VK_NULL_HANDLE);
    pthread_mutex_unlock(&d->turn);
    s->n_batch = 0;
    BL_TRY(bl_vk_stream_check(s, r, "work is not taken"));
    s->last = next;
    set_mark(s);
    return BL_OK;
}

/* ---- what the contract asks ---- */

/* In the command buffer that is open. */
static uint32_t begin_command(struct bl_stream *s)
{
    const uint32_t k = bl_vk_trace_next(&s->trace, true);

    s->n_enqueued++;
    bl_vk_trace_stamp(bl_vk_stream_device(s), &s->trace, s->open, k, false);
    return k;
}

static void end_command(struct bl_stream *s, uint32_t k)
{
    bl_vk_barrier(bl_vk_stream_device(s), s->open);
    bl_vk_trace_stamp(bl_vk_stream_device(s), &s->trace, s->open, k, true);
}

static enum bl_status stream_copy(struct bl_stream *s, const struct bl_mem *dst, size_t dst_off,
                                  const struct bl_mem *src, size_t src_off, size_t bytes)
{
    struct bl_vk_piece from, to;

    if (!bl_mem_inside(dst, dst_off, bytes) || !bl_mem_inside(src, src_off, bytes))
        return bl_fail(BL_EINVAL, "%s: copy of %zu bytes runs over the end of a block",
                       s->dev->name, bytes);
    BL_TRY(still_good(s));
    if (!bytes)
        return BL_OK;
    uint32_t k = BL_VK_NO_MARK;
    for (size_t done = 0, n; done < bytes; done += n) {
        BL_TRY(bl_vk_piece_of(s, src, src_off + done, &from));
        BL_TRY(bl_vk_piece_of(s, dst, dst_off + done, &to));
        n = bytes - done;
        n = n < from.bytes ? n : from.bytes;
        n = n < to.bytes ? n : to.bytes;
        BL_TRY(begin(s));
        k = done ? k : begin_command(s);
        const VkBufferCopy region = {from.off, to.off, n};
        bl_vk_stream_device(s)->vk.CmdCopyBuffer(s->open, from.buffer, to.buffer, 1, &region);
    }
    end_command(s, k);
    return BL_OK;
}

static enum bl_status stream_fill(struct bl_stream *s, const struct bl_mem *dst, size_t off,
                                  uint32_t word, size_t bytes)
{
    struct bl_vk_piece to;

    if (!bl_mem_inside(dst, off, bytes) || off % 4 || bytes % 4)
        return bl_fail(BL_EINVAL, "%s: fill of %zu bytes at %zu is not whole words of a block",
                       s->dev->name, bytes, off);
    BL_TRY(still_good(s));
    if (!bytes)
        return BL_OK;
    uint32_t k = BL_VK_NO_MARK;
    for (size_t done = 0, n; done < bytes; done += n) {
        BL_TRY(bl_vk_piece_of(s, dst, off + done, &to));
        n = bytes - done < to.bytes ? bytes - done : to.bytes;
        BL_TRY(begin(s));
        k = done ? k : begin_command(s);
        bl_vk_stream_device(s)->vk.CmdFillBuffer(s->open, to.buffer, to.off, n, word);
    }
    end_command(s, k);
    return BL_OK;
}

static enum bl_status stream_signal(struct bl_stream *s, struct bl_point *out)
{
    BL_TRY(still_good(s));
    s->n_enqueued++;
    (void)bl_vk_trace_next(&s->trace, false);
    BL_TRY(flush(s));
    *out = (struct bl_point){s, (uint32_t)s->last};
    return BL_OK;
}

static enum bl_status stream_wait(struct bl_stream *s, struct bl_point p)
{
    if (p.stream == s || !p.stream) /* in order anyway */
        return BL_OK;
    const struct bl_device_ops *other = bl_point_ops(p);
    if (other->poll(p) && !other->join(p, 0))
        return BL_OK;
    BL_TRY(still_good(s));
    BL_TRY(bl_vk_gate_open(s));
    BL_TRY(flush(s));
    const struct bl_gate_wait w = {p, s->last + 1, bl_vk_trace_next(&s->trace, false)};
    bl_gate_post(&s->gate, &w);
    s->last = w.value;
    s->n_enqueued++;
    set_mark(s);
    return BL_OK;
}

/* Beside a segment, whose commands are recorded long since. */
static enum bl_status stamp_alone(struct bl_stream *s, uint32_t k, bool at_end)
{
    if (k == BL_VK_NO_MARK)
        return BL_OK;
    BL_TRY(begin(s));
    bl_vk_trace_stamp(bl_vk_stream_device(s), &s->trace, s->open, k, at_end);
    return BL_OK;
}

static enum bl_status segment_run(struct bl_stream *s, struct bl_segment *seg)
{
    BL_TRY(still_good(s));
    if (s->trace.log) /* before it has a number: who is asked again has one only */
        BL_TRY(begin(s));
    const uint32_t k = bl_vk_trace_next(&s->trace, true);
    BL_TRY(stamp_alone(s, k, false));
    BL_TRY(end(s));
    if (s->n_batch + 1 >= BL_VK_BATCH)
        BL_TRY(flush(s));
    s->batch[s->n_batch++] = bl_vk_segment_commands(seg);
    s->n_enqueued++;
    (void)stamp_alone(s, k, true); /* where there is no room for it the end is not known */
    return BL_OK;
}

/* An empty command, handed over and waited for, ties the two clocks together. */
static enum bl_status set_clock(struct bl_stream *s)
{
    const uint32_t k = bl_vk_trace_next(&s->trace, true);

    BL_TRY(stamp_alone(s, k, false));
    BL_TRY(stamp_alone(s, k, true));
    const uint64_t from = bl_now_ns();
    BL_TRY(flush(s));
    BL_TRY(stream_join((struct bl_point){s, (uint32_t)s->last}, clock_patience_ns));
    bl_vk_trace_set_clock(bl_vk_stream_device(s), &s->trace, k, from, bl_now_ns());
    s->trace.n = 0;
    s->trace.reset_due = true;
    return BL_OK;
}

static void stream_trace(struct bl_stream *s, struct bl_lapse_log *log)
{
    struct bl_vk_device *d = bl_vk_stream_device(s);

    bl_vk_trace_end(d, &s->trace);
    if (!log || !d->facts.tick_bits || bl_vk_stream_status(s) ||
        bl_vk_trace_begin(d, &s->trace, log))
        return;
    enum bl_status st = BL_OK;
    if (bl_vk_trace_clock_is_old(&s->trace)) /* more than once: the host may look too late */
        for (uint32_t i = 0; !st && i < CLOCK_TRIES; i++)
            st = set_clock(s);
    if (st)
        s->trace.log = NULL;
}

static void stream_patience(struct bl_stream *s, uint64_t ns)
{
    s->patience_ns = ns;
}

/* Of what the line has passed, the newest mark says how much that was. What a failed stream has
 * gathered is never handed over. */
static void stream_progress(const struct bl_stream *s, uint32_t *enqueued, uint32_t *done)
{
    const uint64_t now = reached(s);
    const uint32_t oldest = s->n_marks > BL_VK_MARKS ? s->n_marks - BL_VK_MARKS : 0;
    const bool failed = atomic_load_explicit(&s->status, memory_order_acquire);

    *enqueued = !failed      ? s->n_enqueued
                : s->n_marks ? s->mark[(s->n_marks - 1) % BL_VK_MARKS].enqueued
                             : 0;
    *done = 0;
    for (uint32_t i = s->n_marks; i-- > oldest;)
        if (s->mark[i % BL_VK_MARKS].value <= now) {
            *done = s->mark[i % BL_VK_MARKS].enqueued;
            return;
        }
}

/* What the driver has cannot be taken back; what it waits for is let through. */
static void stream_cancel(struct bl_stream *s)
{
    bl_vk_stream_failed(s, bl_fail(BL_ECANCELLED, "%s: cancelled", s->dev->name));
    bl_gate_cancel(&s->gate);
}

/* ---- opening and closing ---- */

static enum bl_status create(struct bl_stream *s)
{
    const struct bl_vk_device *d = bl_vk_stream_device(s);
    const VkSemaphoreTypeCreateInfo type = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
                                            .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE};
    const VkSemaphoreCreateInfo line = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO,
                                        .pNext = &type};
    const VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                          .flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT,
                                          .queueFamilyIndex = d->facts.family};
    BL_TRY(bl_vk_check(d->vk.CreateSemaphore(d->dev, &line, NULL, &s->line), s->dev->name,
                       "no semaphore"));
    BL_TRY(bl_vk_check(d->vk.CreateCommandPool(d->dev, &pool, NULL, &s->pool), s->dev->name,
                       "no command pool"));
    const VkCommandBufferAllocateInfo ring = {.sType =
                                                  VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                              .commandPool = s->pool,
                                              .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                              .commandBufferCount = BL_VK_RING};
    return bl_vk_check(d->vk.AllocateCommandBuffers(d->dev, &ring, s->ring), s->dev->name,
                       "no command buffers");
}

/* What was handed over is done first, unless it never will be. */
static void stream_close(struct bl_stream *s)
{
    if (!s)
        return;
    struct bl_vk_device *d = bl_vk_stream_device(s);
    if (s->line && !bl_vk_stream_status(s))
        (void)flush(s);
    bl_gate_close(&s->gate);
    pthread_mutex_lock(&d->turn);
    (void)d->vk.DeviceWaitIdle(d->dev);
    pthread_mutex_unlock(&d->turn);
    bl_vk_windows_close(s);
    bl_vk_trace_finish(d, &s->trace);
    if (s->pool)
        d->vk.DestroyCommandPool(d->dev, s->pool, NULL);
    if (s->line)
        d->vk.DestroySemaphore(d->dev, s->line, NULL);
    free(s);
}

static enum bl_status stream_open(struct bl_device *dev, struct bl_stream **out)
{
    struct bl_stream *s = bl_calloc(1, sizeof *s);

    if (!s)
        return bl_fail(BL_ENOMEM, "%s: out of memory for a stream", dev->name);
    s->dev = dev;
    const enum bl_status st = create(s);
    if (st)
        stream_close(s);
    else
        *out = s;
    return st;
}

const struct bl_device_ops bl_vk_ops = {
    .close = bl_vk_device_close,
    .mem_alloc = bl_vk_mem_alloc,
    .mem_free = bl_vk_mem_free,
    .stream_open = stream_open,
    .stream_close = stream_close,
    .copy = stream_copy,
    .fill = stream_fill,
    .signal = stream_signal,
    .wait = stream_wait,
    .poll = stream_poll,
    .join = stream_join,
    .segment_build = bl_vk_segment_build,
    .segment_run = segment_run,
    .segment_free = bl_vk_segment_free,
    .progress = stream_progress,
    .cancel = stream_cancel,
    .trace = stream_trace,
    .patience = stream_patience,
};

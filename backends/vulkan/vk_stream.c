/* SPDX-License-Identifier: MIT */
/* Streams: what is enqueued is gathered into command buffers and handed to the queue at the next
 * signal or wait.
 *
 * A stream counts on one timeline semaphore. Every submission waits for the value before and leaves
 * the next, so points are values of it and signal costs nothing of its own. Points of other devices
 * mean nothing to the driver: a thread of the stream, the gate, waits for them and then counts on
 * by hand, while what comes behind is already with the driver. */
#include "vk_device.h"

#include "mem.h"
#include "thread.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    RING = 64,  /* command buffers of copies in flight */
    BATCH = 64, /* command buffers of a submission */
    GATES = 64, /* waits in flight */
    WINDOW =
        1 << 28, /* of the host's memory imported in one go: drivers take no block of any size */
    MARKS = 128, /* values of which it is known what was enqueued before */
    CLOCK_TRIES = 5,
    LINE_BYTES = 160
};
static const uint64_t slice_ns =
    50000000; /* between looks at whether there is still sense in waiting */
static const uint64_t clock_patience_ns = 10000000000;

struct gate {
    const struct bl_device_ops *ops;
    struct bl_point point;
    uint64_t value; /* counted to once the point is reached; 0: the thread ends */
    uint32_t mark;  /* of the trace */
};
struct imported {
    const void *host;
    size_t bytes;
    struct bl_vk_block block;
};
struct mark {
    uint64_t value;
    uint32_t enqueued; /* commands before the line reaches it */
};
struct bl_stream {
    struct bl_device *dev; /* first */
    VkSemaphore line;
    uint64_t last; /* value that everything handed over so far ends with */
    VkCommandPool pool;
    VkCommandBuffer ring[RING];
    uint64_t until[RING]; /* in use until the line reaches it */
    uint32_t next;
    VkCommandBuffer open; /* being recorded, or NULL */
    VkCommandBuffer batch[BATCH];
    uint32_t n_batch;
    struct mark mark[MARKS];
    uint32_t n_marks, n_enqueued;
    struct imported *import; /* windows of the host's memory that copies have met */
    uint32_t n_imports, cap_imports;
    struct bl_vk_trace trace;
    uint64_t patience_ns; /* with command buffers that do not become free; 0: without end */
    pthread_t thread;
    bool has_thread;
    struct gate gate[GATES];
    struct bl_counter posted, passed;
    uint32_t n_posted;
    _Atomic bool closing;
    _Atomic int status; /* first failure; msg is written before */
    char msg[LINE_BYTES];
};

static struct bl_vk_device *device_of(const struct bl_stream *s)
{
    return bl_vk_of(s->dev);
}

static enum bl_status status_of(struct bl_stream *s)
{
    return (enum bl_status)atomic_load_explicit(&s->status, memory_order_acquire);
}

static enum bl_status failed(struct bl_stream *s, enum bl_status st)
{
    if (!status_of(s)) {
        snprintf(s->msg, sizeof s->msg, "%s", bl_error());
        atomic_store_explicit(&s->status, st, memory_order_release);
    }
    return st;
}

static enum bl_status check(struct bl_stream *s, VkResult r, const char *what)
{
    const enum bl_status st = bl_vk_check(r, s->dev->name, what);
    return st ? failed(s, st) : BL_OK;
}

static enum bl_status still_good(struct bl_stream *s)
{
    const enum bl_status st = status_of(s);
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

static VkResult wait_value(struct bl_stream *s, uint64_t value, uint64_t timeout_ns)
{
    const struct bl_vk_device *d = device_of(s);
    const VkSemaphoreWaitInfo w = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
                                   .semaphoreCount = 1,
                                   .pSemaphores = &s->line,
                                   .pValues = &value};
    return d->vk.WaitSemaphores(d->dev, &w, timeout_ns);
}

static uint64_t reached(const struct bl_stream *s)
{
    uint64_t v = 0;
    const VkResult r = device_of(s)->vk.GetSemaphoreCounterValue(device_of(s)->dev, s->line, &v);
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
        r = wait_value(s, value, left < slice_ns ? left : slice_ns);
        if (r != VK_TIMEOUT && r != VK_SUCCESS)
            return check(s, r, "waiting for it");
        BL_TRY(still_good(s));
        if (r == VK_TIMEOUT && bl_now_ns() - start >= timeout_ns)
            return bl_fail(BL_ETIMEDOUT, "%s: no answer within %.3f s (at %llu, waiting for %llu)",
                           s->dev->name, (double)timeout_ns * 1e-9, (unsigned long long)reached(s),
                           (unsigned long long)value);
    }
    return BL_OK;
}

/* ---- the gate ---- */

/* Until the point is reached, the stream closes or the other device fails. */
static enum bl_status wait_other(struct bl_stream *s, const struct gate *g)
{
    enum bl_status st = BL_ETIMEDOUT;
    while (st == BL_ETIMEDOUT && !atomic_load(&s->closing))
        st = g->ops->join(g->point, slice_ns);
    return st;
}

/* After a failure too: what the driver holds must end before its memory does. */
static void count_on(struct bl_stream *s, uint64_t value)
{
    const struct bl_vk_device *d = device_of(s);
    const VkSemaphoreSignalInfo to = {
        .sType = VK_STRUCTURE_TYPE_SEMAPHORE_SIGNAL_INFO, .semaphore = s->line, .value = value};
    VkResult r = VK_TIMEOUT;
    while (r == VK_TIMEOUT)
        r = wait_value(s, value - 1, slice_ns);
    if (!r)
        r = d->vk.SignalSemaphore(d->dev, &to);
    (void)check(s, r, "a signal from the host");
}

static void *gate_main(void *arg)
{
    struct bl_stream *s = arg;
    for (uint32_t n = 0;; n++) {
        bl_counter_wait(&s->posted, n + 1, slice_ns / 1000, UINT64_MAX);
        const struct gate g = s->gate[n % GATES];
        if (!g.value)
            return NULL;
        const enum bl_status st = wait_other(s, &g);
        if (st)
            failed(s, bl_fail_in(st, "%s waits for another device", s->dev->name));
        bl_vk_trace_passed(&s->trace, g.mark);
        count_on(s, g.value);
        bl_counter_set(&s->passed, n + 1);
    }
}

/* Room for one more wait. */
static enum bl_status open_gate(struct bl_stream *s, uint64_t patience_ns)
{
    if (!s->has_thread) {
        if (pthread_create(&s->thread, NULL, gate_main, s))
            return failed(s, bl_fail(BL_ENOMEM, "%s: the thread of a stream cannot be started",
                                     s->dev->name));
        s->has_thread = true;
    }
    if (!bl_counter_wait(&s->passed, s->n_posted - GATES + 1, 0, patience_ns))
        return bl_fail(BL_ETIMEDOUT, "%s: %d waits for other devices have not ended", s->dev->name,
                       GATES);
    return BL_OK;
}

static void post_gate(struct bl_stream *s, const struct gate *g)
{
    s->gate[s->n_posted % GATES] = *g;
    bl_counter_set(&s->posted, ++s->n_posted);
}

/* ---- command buffers ---- */

static enum bl_status begin(struct bl_stream *s)
{
    const struct bl_vk_device *d = device_of(s);
    const uint32_t k = s->next % RING;
    const VkCommandBufferBeginInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                           .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT};
    VkResult r = VK_TIMEOUT;

    if (s->open)
        return BL_OK;
    const uint64_t start = bl_now_ns();
    while (r == VK_TIMEOUT) {
        r = wait_value(s, s->until[k], slice_ns);
        BL_TRY(still_good(s));
        if (r == VK_TIMEOUT && s->patience_ns && bl_now_ns() - start > s->patience_ns)
            return bl_fail(BL_ETIMEDOUT, "%s: its queue stays full", s->dev->name);
    }
    BL_TRY(check(s, r, "waiting for a command buffer"));
    BL_TRY(check(s, d->vk.BeginCommandBuffer(s->ring[k], &info), "recording"));
    s->open = s->ring[k];
    bl_vk_barrier(d, s->open);
    return BL_OK;
}

static enum bl_status end(struct bl_stream *s)
{
    if (!s->open)
        return BL_OK;
    bl_vk_barrier(device_of(s), s->open);
    BL_TRY(check(s, device_of(s)->vk.EndCommandBuffer(s->open), "recording"));
    s->batch[s->n_batch++] = s->open;
    s->until[s->next++ % RING] = s->last + 1;
    s->open = NULL;
    return BL_OK;
}

static void set_mark(struct bl_stream *s)
{
    s->mark[s->n_marks++ % MARKS] = (struct mark){s->last, s->n_enqueued};
}

static enum bl_status flush(struct bl_stream *s)
{
    struct bl_vk_device *d = device_of(s);
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
    BL_TRY(check(s, r, "work is not taken"));
    s->last = next;
    set_mark(s);
    return BL_OK;
}

/* ---- what the contract asks ---- */

/* Where in which buffer a block's byte is, and how much of the block follows it there. */
struct piece {
    VkBuffer buffer;
    size_t off, bytes;
};

/* Imports stay until the stream closes. */
static enum bl_status import_window(struct bl_stream *s, uintptr_t at, size_t bytes, VkBuffer *out)
{
    for (uint32_t i = 0; i < s->n_imports; i++)
        if (s->import[i].host == (const void *)at && s->import[i].bytes == bytes) {
            *out = s->import[i].block.buffer;
            return BL_OK;
        }
    if (s->n_imports == s->cap_imports) {
        const uint32_t cap = s->cap_imports ? 2 * s->cap_imports : 16;
        struct imported *bigger = realloc(s->import, cap * sizeof *bigger);
        if (!bigger)
            return bl_fail(BL_ENOMEM, "%s: out of memory", s->dev->name);
        s->import = bigger;
        s->cap_imports = cap;
    }
    struct imported *i = &s->import[s->n_imports];
    *i = (struct imported){.host = (const void *)at, .bytes = bytes};
    BL_TRY(bl_vk_import(device_of(s), (void *)at, bytes, &i->block));
    s->n_imports++;
    *out = i->block.buffer;
    return BL_OK;
}

static enum bl_status piece_of(struct bl_stream *s, const struct bl_mem *m, size_t off,
                               struct piece *out)
{
    if (m->dev == s->dev) {
        *out = (struct piece){((const struct bl_vk_block *)m->impl)->buffer, off, m->bytes - off};
        return BL_OK;
    }
    if (!m->host)
        return bl_fail(BL_EINVAL, "%s: a copy with memory that neither it nor the host has",
                       s->dev->name);
    const uint64_t align = device_of(s)->facts.import_align, window = bl_align_up(WINDOW, align);
    const uintptr_t host = (uintptr_t)m->host, first = host & ~(uintptr_t)(align - 1),
                    begin = first + (host + off - first) / window * window,
                    end = (uintptr_t)bl_align_up(host + m->bytes, align);
    const size_t bytes = end - begin < window ? end - begin : (size_t)window;
    *out = (struct piece){.off = host + off - begin, .bytes = begin + bytes - (host + off)};
    return import_window(s, begin, bytes, &out->buffer);
}

/* In the command buffer that is open. */
static uint32_t begin_command(struct bl_stream *s)
{
    const uint32_t k = bl_vk_trace_next(&s->trace, true);

    s->n_enqueued++;
    bl_vk_trace_stamp(device_of(s), &s->trace, s->open, k, false);
    return k;
}

static void end_command(struct bl_stream *s, uint32_t k)
{
    bl_vk_barrier(device_of(s), s->open);
    bl_vk_trace_stamp(device_of(s), &s->trace, s->open, k, true);
}

static enum bl_status stream_copy(struct bl_stream *s, const struct bl_mem *dst, size_t dst_off,
                                  const struct bl_mem *src, size_t src_off, size_t bytes)
{
    struct piece from, to;

    if (!bl_mem_inside(dst, dst_off, bytes) || !bl_mem_inside(src, src_off, bytes))
        return bl_fail(BL_EINVAL, "%s: copy of %zu bytes runs over the end of a block",
                       s->dev->name, bytes);
    BL_TRY(still_good(s));
    if (!bytes)
        return BL_OK;
    uint32_t k = BL_VK_NO_MARK;
    for (size_t done = 0, n; done < bytes; done += n) {
        BL_TRY(piece_of(s, src, src_off + done, &from));
        BL_TRY(piece_of(s, dst, dst_off + done, &to));
        n = bytes - done;
        n = n < from.bytes ? n : from.bytes;
        n = n < to.bytes ? n : to.bytes;
        BL_TRY(begin(s));
        k = done ? k : begin_command(s);
        const VkBufferCopy region = {from.off, to.off, n};
        device_of(s)->vk.CmdCopyBuffer(s->open, from.buffer, to.buffer, 1, &region);
    }
    end_command(s, k);
    return BL_OK;
}

static enum bl_status stream_fill(struct bl_stream *s, const struct bl_mem *dst, size_t off,
                                  uint32_t word, size_t bytes)
{
    struct piece to;

    if (!bl_mem_inside(dst, off, bytes) || off % 4 || bytes % 4)
        return bl_fail(BL_EINVAL, "%s: fill of %zu bytes at %zu is not whole words of a block",
                       s->dev->name, bytes, off);
    BL_TRY(still_good(s));
    if (!bytes)
        return BL_OK;
    uint32_t k = BL_VK_NO_MARK;
    for (size_t done = 0, n; done < bytes; done += n) {
        BL_TRY(piece_of(s, dst, off + done, &to));
        n = bytes - done < to.bytes ? bytes - done : to.bytes;
        BL_TRY(begin(s));
        k = done ? k : begin_command(s);
        device_of(s)->vk.CmdFillBuffer(s->open, to.buffer, to.off, n, word);
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
    BL_TRY(open_gate(s, s->patience_ns ? s->patience_ns : UINT64_MAX));
    BL_TRY(flush(s));
    const struct gate g = {other, p, s->last + 1, bl_vk_trace_next(&s->trace, false)};
    post_gate(s, &g);
    s->last = g.value;
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
    bl_vk_trace_stamp(device_of(s), &s->trace, s->open, k, at_end);
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
    if (s->n_batch + 1 >= BATCH)
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
    bl_vk_trace_set_clock(device_of(s), &s->trace, k, from, bl_now_ns());
    s->trace.n = 0;
    s->trace.reset_due = true;
    return BL_OK;
}

static void stream_trace(struct bl_stream *s, struct bl_lapse_log *log)
{
    struct bl_vk_device *d = device_of(s);

    bl_vk_trace_end(d, &s->trace);
    if (!log || !d->facts.tick_bits || status_of(s) || bl_vk_trace_begin(d, &s->trace, log))
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

/* Of what the line has passed, the newest mark says how much that was. */
static void stream_progress(const struct bl_stream *s, uint32_t *enqueued, uint32_t *done)
{
    const uint64_t now = reached(s);
    const uint32_t oldest = s->n_marks > MARKS ? s->n_marks - MARKS : 0;

    *enqueued = s->n_enqueued;
    *done = 0;
    for (uint32_t i = s->n_marks; i-- > oldest;)
        if (s->mark[i % MARKS].value <= now) {
            *done = s->mark[i % MARKS].enqueued;
            return;
        }
}

/* What the driver has cannot be taken back; what it waits for is let through. */
static void stream_cancel(struct bl_stream *s)
{
    failed(s, bl_fail(BL_ECANCELLED, "%s: cancelled", s->dev->name));
    atomic_store(&s->closing, true);
}

/* ---- opening and closing ---- */

static enum bl_status create(struct bl_stream *s)
{
    const struct bl_vk_device *d = device_of(s);
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
                                              .commandBufferCount = RING};
    return bl_vk_check(d->vk.AllocateCommandBuffers(d->dev, &ring, s->ring), s->dev->name,
                       "no command buffers");
}

/* What was handed over is done first, unless it never will be. */
static void stream_close(struct bl_stream *s)
{
    if (!s)
        return;
    struct bl_vk_device *d = device_of(s);
    if (s->line && !status_of(s))
        (void)flush(s);
    atomic_store(&s->closing, true);
    if (s->has_thread) {
        (void)open_gate(s, UINT64_MAX);
        post_gate(s, &(struct gate){0});
        pthread_join(s->thread, NULL);
    }
    pthread_mutex_lock(&d->turn);
    (void)d->vk.DeviceWaitIdle(d->dev);
    pthread_mutex_unlock(&d->turn);
    for (uint32_t i = 0; i < s->n_imports; i++)
        bl_vk_block_free(d, &s->import[i].block);
    free(s->import);
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

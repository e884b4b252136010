/* SPDX-License-Identifier: MIT */
#include "host_stream.h"

#include "blame.h"
#include "mem.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    WORK_SPIN_NS = 150000, /* executor: the next step follows soon or not at all */
    HOST_SPIN_NS = 5000,   /* submitting thread: the workers need its core */
    CANCEL_NS = 50000000   /* a wait for another stream looks up so often */
};

/* ---- executor ---- */

static void fail_stream(struct bl_stream *s, enum bl_status status)
{
    (void)bl_blame(status, s->dev->name);
    snprintf(s->msg, sizeof s->msg, "%s", bl_error());
    atomic_store_explicit(&s->status, status, memory_order_release);
}

static void fill_words(void *dst, uint32_t word, size_t bytes)
{
    uint32_t *w = dst;
    for (size_t i = 0; i < bytes / 4; i++)
        w[i] = word;
}

bool bl_stream_is_cancelled(const struct bl_stream *s)
{
    return bl_counter_get(&s->cancelled) > 0;
}

/* Another device's stream may never get there. */
static enum bl_status wait_for(const struct bl_stream *s, struct bl_point p)
{
    enum bl_status st;

    do
        st = bl_point_ops(p)->join(p, CANCEL_NS);
    while (st == BL_ETIMEDOUT && !bl_stream_is_cancelled(s));
    return st;
}

static enum bl_status do_work(struct bl_stream *s, const struct bl_command *c)
{
    if (s->work->admit)
        BL_TRY(s->work->admit(s, c));
    switch (c->kind) {
    case BL_COMMAND_COPY:
        memmove(c->copy.dst, c->copy.src, c->copy.bytes);
        return BL_OK;
    case BL_COMMAND_FILL:
        fill_words(c->fill.dst, c->fill.word, c->fill.bytes);
        return BL_OK;
    case BL_COMMAND_WAIT:
        return wait_for(s, c->wait);
    case BL_COMMAND_RUN:
        return s->work->run(s, c->segment);
    default:
        return BL_OK;
    }
}

static void write_down(struct bl_stream *s, const struct bl_lapse *span)
{
    const uint32_t n = atomic_load_explicit(&s->log->n, memory_order_relaxed);

    if (n >= s->log->cap)
        return;
    s->log->lapse[n] = *span;
    atomic_store_explicit(&s->log->n, n + 1, memory_order_release);
}

static enum bl_status do_timed(struct bl_stream *s, const struct bl_command *c)
{
    struct bl_lapse span = {.begin_ns = bl_now_ns()};

    BL_TRY(do_work(s, c));
    span.end_ns = bl_now_ns();
    if (s->work->settle)
        s->work->settle(s, c, &span);
    if (s->log)
        write_down(s, &span);
    return BL_OK;
}

/* A failed stream only counts on, so that whoever joins learns of it at once. */
static void execute(struct bl_stream *s, const struct bl_command *c, uint32_t number)
{
    enum bl_status st = BL_OK;

    if (!atomic_load_explicit(&s->status, memory_order_relaxed)) {
        if (bl_stream_is_cancelled(s))
            st = bl_fail(BL_ECANCELLED, "cancelled");
        else
            st = s->log || s->work->settle ? do_timed(s, c) : do_work(s, c);
        if (st)
            fail_stream(s, bl_stream_is_cancelled(s) ? BL_ECANCELLED : st);
    }
    if (c->kind == BL_COMMAND_SIGNAL)
        bl_counter_set(&s->reached, c->signal);
    bl_counter_set(&s->taken, number);
}

static void *executor_main(void *arg)
{
    struct bl_stream *s = arg;
    bl_thread_bind(s->work->cpus, s->work->n_cpus);
    for (uint32_t n = 0;; n++) {
        bl_counter_wait(&s->posted, n + 1, WORK_SPIN_NS, UINT64_MAX);
        const struct bl_command *c = &s->ring[n % BL_STREAM_QUEUE];
        if (c->kind == BL_COMMAND_STOP)
            return NULL;
        execute(s, c, n + 1);
    }
}

/* ---- producer ---- */

static enum bl_status post(struct bl_stream *s, const struct bl_command *c)
{
    if (!bl_counter_wait(&s->taken, s->n_posted - BL_STREAM_QUEUE + 1, HOST_SPIN_NS,
                         s->patience_ns)) /* its slot is free */
        return bl_fail(BL_ETIMEDOUT, "%s: its queue is full and does not move", s->dev->name);
    struct bl_command *slot = &s->ring[s->n_posted % BL_STREAM_QUEUE];
    *slot = *c;
    if (s->work->settle && !s->work->in_line)
        slot->enqueued_ns = bl_now_ns();
    s->n_posted++;
    bl_counter_set(&s->posted, s->n_posted);
    if (s->work->in_line)
        execute(s, slot, s->n_posted);
    return BL_OK;
}

enum bl_status bl_stream_open(struct bl_device *dev, const struct bl_stream_work *work,
                              struct bl_stream **out)
{
    struct bl_stream *s = bl_calloc(1, work->size);
    if (!s)
        return bl_fail(BL_ENOMEM, "%s: out of memory for a stream", dev->name);
    s->dev = dev;
    s->work = work;
    s->patience_ns = UINT64_MAX;
    const int err = work->in_line ? 0 : pthread_create(&s->thread, NULL, executor_main, s);
    if (err) {
        free(s);
        return bl_fail(BL_ENOMEM, "%s: the thread of a stream cannot be started: %s", dev->name,
                       strerror(err));
    }
    *out = s;
    return BL_OK;
}

void bl_stream_close(struct bl_stream *s)
{
    if (!s)
        return;
    if (!s->work->in_line) {
        s->patience_ns = UINT64_MAX;
        (void)post(s, &(struct bl_command){.kind = BL_COMMAND_STOP});
        pthread_join(s->thread, NULL);
    }
    free(s);
}

enum bl_status bl_stream_copy(struct bl_stream *s, void *dst, const void *src, size_t bytes,
                              bool to_device, bool from_device)
{
    return post(s, &(struct bl_command){.kind = BL_COMMAND_COPY,
                                        .to_device = to_device,
                                        .from_device = from_device,
                                        .copy = {dst, src, bytes}});
}

enum bl_status bl_stream_fill(struct bl_stream *s, void *dst, uint32_t word, size_t bytes)
{
    return post(s, &(struct bl_command){.kind = BL_COMMAND_FILL, .fill = {dst, bytes, word}});
}

enum bl_status bl_stream_signal(struct bl_stream *s, struct bl_point *out)
{
    BL_TRY(post(s, &(struct bl_command){.kind = BL_COMMAND_SIGNAL, .signal = s->signals + 1}));
    *out = (struct bl_point){s, ++s->signals};
    return BL_OK;
}

enum bl_status bl_stream_wait(struct bl_stream *s, struct bl_point p)
{
    if (p.stream == s || !p.stream) /* in order anyway */
        return BL_OK;
    return post(s, &(struct bl_command){.kind = BL_COMMAND_WAIT, .wait = p});
}

bool bl_stream_poll(struct bl_point p)
{
    return !p.stream || (int32_t)(bl_counter_get(&p.stream->reached) - p.value) >= 0;
}

enum bl_status bl_stream_join(struct bl_point p, uint64_t timeout_ns)
{
    struct bl_stream *s = p.stream;
    if (!s)
        return BL_OK;
    if (!bl_counter_wait(&s->reached, p.value, HOST_SPIN_NS, timeout_ns))
        return bl_fail(BL_ETIMEDOUT, "%s: no answer within %.3f s (at point %u, waiting for %u)",
                       s->dev->name, (double)timeout_ns * 1e-9, bl_counter_get(&s->reached),
                       p.value);
    const enum bl_status st =
        (enum bl_status)atomic_load_explicit(&s->status, memory_order_acquire);
    return st ? bl_fail(st, "%s", s->msg) : BL_OK;
}

enum bl_status bl_stream_run(struct bl_stream *s, struct bl_segment *seg)
{
    return post(s, &(struct bl_command){.kind = BL_COMMAND_RUN, .segment = seg});
}

/* ---- watching ---- */

void bl_stream_progress(const struct bl_stream *s, uint32_t *enqueued, uint32_t *done)
{
    *enqueued = bl_counter_get(&s->posted);
    *done = bl_counter_get(&s->taken);
}

void bl_stream_cancel(struct bl_stream *s)
{
    bl_counter_set(&s->cancelled, 1);
}

void bl_stream_trace(struct bl_stream *s, struct bl_lapse_log *log)
{
    s->log = log;
}

void bl_stream_patience(struct bl_stream *s, uint64_t ns)
{
    s->patience_ns = ns;
}

/* SPDX-License-Identifier: MIT */
/* Memory, streams and the table of the CPU device. */
#include "cpu.h"

#include "numa.h"
#include "segment.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    QUEUE = 64, /* commands in flight; a step of one device is about five */
    MAX_THREADS = 1024,
    WORK_SPIN_NS = 150000, /* executor: the next step follows soon or not at all */
    HOST_SPIN_NS = 5000    /* submitting thread: the workers need its core */
};

enum command_kind { COPY, FILL, SIGNAL, WAIT, RUN, STOP };
struct command {
    enum command_kind kind;
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
        struct {
            const struct bl_device_ops *ops;
            struct bl_point point;
        } wait;
        struct bl_segment *segment;
    };
};

/* One producer, one executor. Every backend's streams begin with their device. */
struct bl_stream {
    struct bl_device *dev;
    pthread_t thread;
    uint32_t signals;          /* given out; producer only */
    uint32_t n_posted;         /* producer's copy of posted */
    struct bl_counter posted;  /* commands in the ring so far */
    struct bl_counter taken;   /* commands finished so far */
    struct bl_counter reached; /* value of the last signal passed */
    /* First failure; msg is written before status. */
    _Atomic int status;
    char msg[160];
    struct command ring[QUEUE];
};

static struct bl_cpu_device *cpu_of(struct bl_device *dev)
{
    return (struct bl_cpu_device *)dev;
}

/* ---- memory ---- */

static enum bl_status mem_alloc(struct bl_device *dev, size_t bytes, bool host_visible,
                                struct bl_mem *out)
{
    (void)host_visible; /* always is */
    void *p;
    BL_TRY(bl_pages_alloc(bytes, &p));
    if (cpu_of(dev)->nodes) /* a wish: what came of it is measured once the weights are there */
        (void)bl_numa_place(p, bytes, cpu_of(dev)->nodes);
    *out = (struct bl_mem){.dev = dev, .addr = (uintptr_t)p, .host = p, .bytes = bytes};
    out->granted_bytes = (size_t)bl_align_up(bytes ? bytes : 1, bl_page_bytes());
    return BL_OK;
}

static enum bl_status mem_import(struct bl_device *dev, void *host, size_t bytes,
                                 struct bl_mem *out)
{
    *out = (struct bl_mem){.dev = dev, .addr = (uintptr_t)host, .host = host, .bytes = bytes};
    return BL_OK;
}

static void mem_free(struct bl_mem *m)
{
    if (m->granted_bytes)
        bl_pages_free(m->host, m->bytes);
    *m = (struct bl_mem){0};
}

/* ---- executor ---- */

static void fail_stream(struct bl_stream *s, enum bl_status status)
{
    snprintf(s->msg, sizeof s->msg, "%s: %s", s->dev->name, bl_error());
    atomic_store_explicit(&s->status, status, memory_order_release);
}

static void fill_words(void *dst, uint32_t word, size_t bytes)
{
    uint32_t *w = dst;
    for (size_t i = 0; i < bytes / 4; i++)
        w[i] = word;
}

static enum bl_status execute(const struct command *c)
{
    switch (c->kind) {
    case COPY:
        memmove(c->copy.dst, c->copy.src, c->copy.bytes);
        return BL_OK;
    case FILL:
        fill_words(c->fill.dst, c->fill.word, c->fill.bytes);
        return BL_OK;
    case WAIT:
        return c->wait.ops->join(c->wait.point, UINT64_MAX);
    case RUN:
        return bl_cpu_segment_execute(c->segment);
    default:
        return BL_OK;
    }
}

static void *executor_main(void *arg)
{
    struct bl_stream *s = arg;
    bl_thread_bind(cpu_of(s->dev)->cpus, cpu_of(s->dev)->n_home);
    for (uint32_t n = 0;; n++) {
        bl_counter_wait(&s->posted, n + 1, WORK_SPIN_NS, UINT64_MAX);
        const struct command *c = &s->ring[n % QUEUE];
        if (c->kind == STOP)
            return NULL;
        /* A failed stream only counts on, so that whoever joins learns of it at once. */
        if (c->kind == SIGNAL) {
            bl_counter_set(&s->reached, c->signal);
        } else if (!atomic_load_explicit(&s->status, memory_order_relaxed)) {
            const enum bl_status st = execute(c);
            if (st)
                fail_stream(s, st);
        }
        bl_counter_set(&s->taken, n + 1);
    }
}

static void post(struct bl_stream *s, const struct command *c)
{
    bl_counter_wait(&s->taken, s->n_posted - QUEUE + 1, HOST_SPIN_NS,
                    UINT64_MAX); /* its slot is free */
    s->ring[s->n_posted % QUEUE] = *c;
    bl_counter_set(&s->posted, ++s->n_posted);
}

/* ---- streams ---- */

static enum bl_status stream_open(struct bl_device *dev, struct bl_stream **out)
{
    struct bl_stream *s = bl_calloc(1, sizeof *s);
    if (!s)
        return bl_fail(BL_ENOMEM, "%s: out of memory for a stream", dev->name);
    s->dev = dev;
    const int err = pthread_create(&s->thread, NULL, executor_main, s);
    if (err) {
        free(s);
        return bl_fail(BL_ENOMEM, "%s: the thread of a stream cannot be started: %s", dev->name,
                       strerror(err));
    }
    *out = s;
    return BL_OK;
}

/* Work already queued is done first. */
static void stream_close(struct bl_stream *s)
{
    if (!s)
        return;
    post(s, &(struct command){.kind = STOP});
    pthread_join(s->thread, NULL);
    free(s);
}

static bool inside(const struct bl_mem *m, size_t off, size_t bytes)
{
    return off <= m->bytes && bytes <= m->bytes - off;
}

static enum bl_status copy(struct bl_stream *s, const struct bl_mem *dst, size_t dst_off,
                           const struct bl_mem *src, size_t src_off, size_t bytes)
{
    if (!inside(dst, dst_off, bytes) || !inside(src, src_off, bytes))
        return bl_fail(BL_EINVAL, "%s: copy of %zu bytes runs over the end of a block",
                       s->dev->name, bytes);
    if (!bytes)
        return BL_OK;
    if (!dst->host || !src->host)
        return bl_fail(BL_EINVAL, "%s: copy with memory the host cannot touch", s->dev->name);
    post(s, &(struct command){
                .kind = COPY,
                .copy = {(char *)dst->host + dst_off, (const char *)src->host + src_off, bytes}});
    return BL_OK;
}

static enum bl_status fill(struct bl_stream *s, const struct bl_mem *dst, size_t off, uint32_t word,
                           size_t bytes)
{
    if (!inside(dst, off, bytes) || off % 4 || bytes % 4)
        return bl_fail(BL_EINVAL, "%s: fill of %zu bytes at %zu is not whole words of a block",
                       s->dev->name, bytes, off);
    if (!bytes)
        return BL_OK;
    post(s, &(struct command){.kind = FILL, .fill = {(char *)dst->host + off, bytes, word}});
    return BL_OK;
}

static enum bl_status stream_signal(struct bl_stream *s, struct bl_point *out)
{
    *out = (struct bl_point){s, ++s->signals};
    post(s, &(struct command){.kind = SIGNAL, .signal = s->signals});
    return BL_OK;
}

static enum bl_status stream_wait(struct bl_stream *s, struct bl_point p)
{
    if (p.stream == s || !p.stream) /* in order anyway */
        return BL_OK;
    struct bl_device *other;
    memcpy(&other, p.stream, sizeof other);
    post(s, &(struct command){.kind = WAIT, .wait = {other->ops, p}});
    return BL_OK;
}

static bool stream_poll(struct bl_point p)
{
    return !p.stream || (int32_t)(bl_counter_get(&p.stream->reached) - p.value) >= 0;
}

static enum bl_status stream_join(struct bl_point p, uint64_t timeout_ns)
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

static enum bl_status segment_run(struct bl_stream *s, struct bl_segment *seg)
{
    post(s, &(struct command){.kind = RUN, .segment = seg});
    return BL_OK;
}

/* ---- device ---- */

static void device_close(struct bl_device *dev)
{
    if (!dev)
        return;
    struct bl_cpu_device *d = cpu_of(dev);
    bl_pool_destroy(d->pool);
    pthread_mutex_destroy(&d->turn);
    free(d->deal);
    free(d);
}

static const struct bl_device_ops device_ops = {
    .close = device_close,
    .mem_alloc = mem_alloc,
    .mem_import = mem_import,
    .mem_free = mem_free,
    .stream_open = stream_open,
    .stream_close = stream_close,
    .copy = copy,
    .fill = fill,
    .signal = stream_signal,
    .wait = stream_wait,
    .poll = stream_poll,
    .join = stream_join,
    .segment_build = bl_cpu_segment_build,
    .segment_run = segment_run,
    .segment_free = bl_cpu_segment_free,
    .profile = bl_cpu_profile_set,
    .op_time = bl_cpu_profile_get,
};

static enum bl_status cpu_count(uint32_t *n)
{
    *n = 1;
    return BL_OK;
}

static bool same_tiles(const struct bl_panel_kernel *a, const struct bl_panel_kernel *b)
{
    return a->arrange == b->arrange && a->tokens == b->tokens && !a->fold == !b->fold &&
           (!a->fold || a->fold->arrange == b->fold->arrange);
}

/* What sizes of activations depend on, of kernels that only an open device has. */
static void tile_caps(struct bl_tile_caps *out, const struct bl_panel_kernel *p)
{
    for (unsigned t = 0; t < BL_N_DTYPES; t++) {
        uint8_t same = 0;
        while (!same_tiles(&p[same], &p[t]))
            same++;
        if (p[t].pack)
            out[t] = (struct bl_tile_caps){p[t].part_bytes, p[t].from, same};
    }
}

static void fill_kernels(struct bl_cpu_kernels *k, const struct bl_device_config *c)
{
    if (c->exact)
        bl_cpu_exact(k);
    else
        bl_cpu_select(k, bl_cpu_flags() & c->cpu_mask);
}

static enum bl_status cpu_caps(uint32_t index, const struct bl_device_config *c,
                               struct bl_caps *out)
{
    if (index >= 1)
        return bl_fail(BL_EUNAVAILABLE, "there is no cpu%u, only cpu0", index);
    const uint32_t threads = c->threads > c->threads_prefill ? c->threads : c->threads_prefill;
    if (threads > MAX_THREADS)
        return bl_fail(BL_EINVAL, "cpu%u: %u threads asked for, at most %d work", index, threads,
                       MAX_THREADS);
    *out = (struct bl_caps){.granule_bytes = (uint32_t)bl_page_bytes(),
                            .threads = threads ? threads : 1,
                            .exact = c->exact,
                            .import_host = 1};
    struct bl_cpu_kernels kernels;
    fill_kernels(&kernels, c);
    tile_caps(out->tiles, kernels.panel);
    return BL_OK;
}

static enum bl_status cpu_open(uint32_t index, const struct bl_device_config *c,
                               struct bl_device **out)
{
    struct bl_caps caps;
    BL_TRY(cpu_caps(index, c, &caps));
    struct bl_cpu_device *d = bl_calloc(1, sizeof *d);
    if (!d)
        return bl_fail(BL_ENOMEM, "cpu%u: out of memory", index);
    d->base.ops = &device_ops;
    d->base.caps = caps;
    snprintf(d->base.name, sizeof d->base.name, "cpu%u", index);
    d->cpus = c->cpus;
    d->n_home = c->cpus ? c->n_home : 0;
    d->nodes = c->nodes;
    d->threads = c->threads ? c->threads : 1;
    d->threads_prefill = c->threads_prefill ? c->threads_prefill : d->threads;
    fill_kernels(&d->kernels, c);
    pthread_mutex_init(&d->turn, NULL);
    const struct bl_pool_split split = {d->threads, c->cpus, d->n_home, c->cpus ? c->n_cpus : 0};
    enum bl_status st = bl_pool_create(&d->pool, caps.threads, &split);
    const size_t deal_bytes = sizeof *d->deal * BL_CPU_DEALS * caps.threads;
    d->deal = aligned_alloc(sizeof *d->deal, deal_bytes);
    if (d->deal)
        memset(d->deal, 0, deal_bytes);
    else if (!st)
        st = bl_fail(BL_ENOMEM, "cpu%u: out of memory", index);
    if (st) {
        device_close(&d->base);
        return st;
    }
    *out = &d->base;
    return BL_OK;
}

static bool cpu_supports(const struct bl_caps *caps, const struct bl_graph *g,
                         const struct bl_node *n)
{
    (void)caps;
    const struct bl_cpu_op *op = bl_cpu_op_of(n);
    return op && (!op->supports || op->supports(g, n));
}

static uint64_t cpu_scratch_bytes(const struct bl_caps *caps, const struct bl_graph *g,
                                  const struct bl_node *n)
{
    const struct bl_cpu_op *op = bl_cpu_op_of(n);
    return op && op->scratch ? op->scratch(caps, g, n) : 0;
}

const struct bl_backend bl_cpu_backend = {
    .name = "cpu",
    .count = cpu_count,
    .caps = cpu_caps,
    .open = cpu_open,
    .supports = cpu_supports,
    .scratch_bytes = cpu_scratch_bytes,
};

uint64_t bl_cpu_barriers(const struct bl_device *dev)
{
    return bl_pool_barriers(((const struct bl_cpu_device *)dev)->pool);
}

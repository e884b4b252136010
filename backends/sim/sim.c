/* SPDX-License-Identifier: MIT */
#include "sim.h"

#include "args.h"
#include "cpu/cpu.h"
#include "host_stream.h"
#include "mem.h"
#include "pace.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    GRANULE = 64 << 10, /* so that rounding shows in plans, and small budgets are possible */
    SIGNALS = 1 << 13   /* whose times are remembered: more than any step has on a stream */
};

struct sim_device {
    struct bl_device base;  /* first */
    struct bl_device *host; /* whose kernels compute */
    struct bl_pace *pace;   /* NULL: as fast as those are */
    struct bl_stream_work work;
    uint64_t mem_bytes, taken_bytes;
    struct bl_fault fault;
    uint32_t n_allocs, n_submits;
    _Atomic uint32_t n_commands, n_copies;
    _Atomic bool lost;
};
struct sim_stream {
    struct bl_stream base; /* first */
    double free_ns;        /* what it was given is done */
    double waits_ns;       /* virtual clock: when a wait was enqueued */
    _Atomic double passed_ns[SIGNALS];
};
struct bl_segment {
    struct bl_device *host;
    struct bl_segment *inner; /* the host's */
    const struct bl_graph *graph;
    const struct bl_node *first;
    const struct bl_params *params;
    uint32_t n;
};

static struct sim_device *sim_of(const struct bl_device *dev)
{
    return (struct sim_device *)(uintptr_t)dev;
}

static struct bl_virtual_clock *clock_of(const struct sim_device *d)
{
    return d->pace ? d->pace->clock : NULL;
}

static enum bl_status check_lost(const struct sim_device *d)
{
    return atomic_load(&d->lost) ? bl_fail(BL_EDEVICE, "%s is lost", d->base.name) : BL_OK;
}

/* ---- memory ---- */

static enum bl_status mem_alloc(struct bl_device *dev, size_t bytes, bool host_visible,
                                struct bl_mem *out)
{
    struct sim_device *d = sim_of(dev);
    const uint64_t left = d->mem_bytes - d->taken_bytes;
    void *p;

    BL_TRY(check_lost(d));
    if (dev->caps.block_bytes && bytes > dev->caps.block_bytes)
        return bl_fail(BL_ENOMEM, "%s: %zu bytes in one block, its largest has %llu", dev->name,
                       bytes, (unsigned long long)dev->caps.block_bytes);
    if (++d->n_allocs == d->fault.nth && d->fault.kind == BL_FAULT_ALLOC)
        return bl_fail(BL_ENOMEM, "%s: allocation %u failed, as asked for", dev->name, d->n_allocs);
    if (bytes > left || bl_align_up(bytes ? bytes : 1, GRANULE) > left)
        return bl_fail(BL_ENOMEM, "%s: %zu bytes do not fit, %llu of %llu are left", dev->name,
                       bytes, (unsigned long long)left, (unsigned long long)d->mem_bytes);
    BL_TRY(bl_pages_alloc(bytes, &p));
    *out = (struct bl_mem){.dev = dev,
                           .addr = (uintptr_t)p,
                           .host = host_visible ? p : NULL,
                           .bytes = bytes,
                           .granted_bytes = (size_t)bl_align_up(bytes ? bytes : 1, GRANULE),
                           .impl = p};
    d->taken_bytes += out->granted_bytes;
    return BL_OK;
}

static void mem_free(struct bl_mem *m)
{
    if (m->dev)
        sim_of(m->dev)->taken_bytes -= m->granted_bytes;
    bl_pages_free(m->impl, m->bytes);
    *m = (struct bl_mem){0};
}

/* ---- what goes wrong ---- */

static enum bl_status get_stuck(const struct sim_device *d, struct bl_stream *s)
{
    if (clock_of(d))
        return bl_fail(BL_EDEVICE, "stuck, as asked for");
    (void)bl_counter_wait(&s->cancelled, 1, 0, UINT64_MAX);
    return bl_fail(BL_ECANCELLED, "stuck, as asked for");
}

static enum bl_status admit(struct bl_stream *s, const struct bl_command *c)
{
    struct sim_device *d = sim_of(s->dev);
    const struct bl_fault *f = &d->fault;
    const bool nth_command = atomic_fetch_add(&d->n_commands, 1) + 1 == f->nth;
    struct sim_stream *t = (struct sim_stream *)(void *)s;

    if (clock_of(d) && c->kind == BL_COMMAND_WAIT)
        t->waits_ns = clock_of(d)->now_ns;
    if (c->kind == BL_COMMAND_COPY && atomic_fetch_add(&d->n_copies, 1) + 1 == f->nth &&
        f->kind == BL_FAULT_COPY)
        return bl_fail(BL_EDEVICE, "copy %llu failed, as asked for", (unsigned long long)f->nth);
    if (nth_command && f->kind == BL_FAULT_STUCK)
        return get_stuck(d, s);
    if (nth_command && f->kind == BL_FAULT_LOST)
        atomic_store(&d->lost, true);
    return check_lost(d);
}

static void spoil(const struct sim_device *d, const struct bl_command *c)
{
    if (d->fault.kind == BL_FAULT_CORRUPT && c->kind == BL_COMMAND_COPY &&
        atomic_load(&d->n_copies) == d->fault.nth)
        *(unsigned char *)c->copy.dst ^= 1;
}

/* ---- when a command is over ---- */

static const struct bl_device_ops device_ops;

static double passed_ns(struct bl_point p)
{
    struct sim_stream *t = (struct sim_stream *)(void *)p.stream;
    return atomic_load_explicit(&t->passed_ns[p.value % SIGNALS], memory_order_relaxed);
}

/* A device of another kind has no model of when it was ready: now, which is nothing on a virtual
 * clock. */
static double due_ns(const struct sim_device *d, struct bl_point p, double now_ns)
{
    struct bl_device *from;

    memcpy(&from, p.stream, sizeof from);
    const double crossing = d->pace->ops->cross_ns(d->pace, from);
    return crossing + (bl_point_ops(p) == &device_ops ? passed_ns(p) : now_ns);
}

/* Tokens before the step, as if all were one sequence's: what its mean token sees. */
static uint64_t depth_of(const struct bl_params *p)
{
    const uint32_t *pos = BL_PARAMS_ARRAY(const uint32_t, p, p->pos_off);
    double sum = 0;

    for (uint32_t i = 0; i < p->n_tok; i++)
        sum += pos[i];
    const double depth = p->n_tok ? sum / p->n_tok - (p->n_tok - 1) / 2.0 : 0;
    return depth > 0 ? (uint64_t)(depth + 0.5) : 0;
}

static struct bl_copy_time modelled(struct sim_stream *t, const struct bl_command *c,
                                    double ready_ns, double now_ns)
{
    const struct sim_device *d = sim_of(t->base.dev);
    const struct bl_segment *g = c->segment;
    struct bl_pace *pace = d->pace;
    struct bl_copy_time at = {ready_ns, ready_ns};

    switch (c->kind) {
    case BL_COMMAND_COPY:
        if (c->to_device != c->from_device)
            at = pace->ops->copy(pace, ready_ns, c->copy.bytes, c->to_device);
        break;
    case BL_COMMAND_RUN:
        at.end_ns += pace->ops->run_ns(pace, g->graph, g->first, g->n, g->params->n_tok,
                                       depth_of(g->params));
        break;
    case BL_COMMAND_WAIT:
        at.end_ns = fmax(ready_ns, due_ns(d, c->wait, now_ns));
        break;
    default:
        break;
    }
    return at;
}

/* Sleeps until the absolute time, so that one wake-up that comes late does not delay the next.
 * What the host could not do in time is as late as it is. */
static void let_pass(struct sim_stream *t, struct bl_lapse *span, struct bl_copy_time *at)
{
    const double end = (double)span->end_ns, took = end - (double)span->begin_ns;

    span->host_bound = span->host_bound && took > at->end_ns - at->begin_ns;
    if (at->end_ns > end)
        (void)bl_counter_wait(&t->base.cancelled, 1, 0, (uint64_t)(at->end_ns - end));
    else if (span->host_bound)
        at->end_ns = end;
}

static void settle(struct bl_stream *s, const struct bl_command *c, struct bl_lapse *span)
{
    struct sim_stream *t = (struct sim_stream *)(void *)s;
    const struct sim_device *d = sim_of(s->dev);
    struct bl_virtual_clock *clock = clock_of(d);

    spoil(d, c);
    if (!d->pace)
        return;
    if (clock && c->kind == BL_COMMAND_WAIT) /* the stream waits, whoever enqueues does not */
        clock->now_ns = t->waits_ns;
    const double enqueued = clock ? clock->now_ns : (double)c->enqueued_ns;
    struct bl_copy_time at =
        modelled(t, c, fmax(t->free_ns, enqueued), clock ? clock->now_ns : (double)span->end_ns);
    span->host_bound = c->kind == BL_COMMAND_RUN || c->kind == BL_COMMAND_COPY;
    if (!clock)
        let_pass(t, span, &at);
    t->free_ns = at.end_ns;
    if (c->kind == BL_COMMAND_SIGNAL)
        atomic_store_explicit(&t->passed_ns[c->signal % SIGNALS], at.end_ns, memory_order_relaxed);
    *span =
        (struct bl_lapse){(uint64_t)at.begin_ns, (uint64_t)at.end_ns, span->host_bound && !clock};
}

/* ---- streams ---- */

static enum bl_status stream_open(struct bl_device *dev, struct bl_stream **out)
{
    BL_TRY(check_lost(sim_of(dev)));
    return bl_stream_open(dev, &sim_of(dev)->work, out);
}

/* What is stuck would be waited for. */
static void stream_close(struct bl_stream *s)
{
    if (s && sim_of(s->dev)->fault.kind == BL_FAULT_STUCK)
        bl_stream_cancel(s);
    bl_stream_close(s);
}

/* Where the executor finds a block: NULL if it may not. */
static void *reach(const struct bl_stream *s, const struct bl_mem *m)
{
    return m->dev == s->dev ? m->impl : m->host;
}

static enum bl_status copy(struct bl_stream *s, const struct bl_mem *dst, size_t dst_off,
                           const struct bl_mem *src, size_t src_off, size_t bytes)
{
    char *to = reach(s, dst);
    const char *from = reach(s, src);

    BL_TRY(check_lost(sim_of(s->dev)));
    if (!bl_mem_inside(dst, dst_off, bytes) || !bl_mem_inside(src, src_off, bytes))
        return bl_fail(BL_EINVAL, "%s: copy of %zu bytes runs over the end of a block",
                       s->dev->name, bytes);
    if (!bytes)
        return BL_OK;
    if (!to || !from || (dst->dev != s->dev && src->dev != s->dev))
        return bl_fail(BL_EINVAL, "%s: copy with memory that is neither its own nor the host's",
                       s->dev->name);
    return bl_stream_copy(s, to + dst_off, from + src_off, bytes, dst->dev == s->dev,
                          src->dev == s->dev);
}

static enum bl_status fill(struct bl_stream *s, const struct bl_mem *dst, size_t off, uint32_t word,
                           size_t bytes)
{
    char *to = reach(s, dst);

    BL_TRY(check_lost(sim_of(s->dev)));
    if (!to || !bl_mem_inside(dst, off, bytes) || off % 4 || bytes % 4)
        return bl_fail(BL_EINVAL, "%s: fill of %zu bytes at %zu is not whole words of its block",
                       s->dev->name, bytes, off);
    return bytes ? bl_stream_fill(s, to + off, word, bytes) : BL_OK;
}

/* On a virtual clock everything has been done, but most of it not yet. */
static bool poll(struct bl_point p)
{
    if (!p.stream || !bl_stream_poll(p))
        return !p.stream;
    const struct bl_virtual_clock *clock = clock_of(sim_of(p.stream->dev));
    return !clock || atomic_load(&p.stream->status) || passed_ns(p) <= clock->now_ns;
}

static enum bl_status join(struct bl_point p, uint64_t timeout_ns)
{
    BL_TRY(bl_stream_join(p, timeout_ns));
    struct bl_virtual_clock *clock = p.stream ? clock_of(sim_of(p.stream->dev)) : NULL;
    if (clock)
        clock->now_ns = fmax(clock->now_ns, passed_ns(p));
    return BL_OK;
}

/* ---- segments ---- */

static enum bl_status segment_build(struct bl_device *dev, const struct bl_graph *g,
                                    const struct bl_bound *bound, uint32_t n,
                                    const struct bl_mem *scratch, const struct bl_mem *params,
                                    struct bl_segment **out)
{
    struct sim_device *d = sim_of(dev);

    BL_TRY(check_lost(d));
    struct bl_segment *s = bl_calloc(1, sizeof *s);
    if (!s)
        return bl_fail(BL_ENOMEM, "%s: out of memory for a segment", dev->name);
    *s = (struct bl_segment){
        .host = d->host, .graph = g, .first = bound->node, .n = n, .params = params->impl};
    struct bl_mem seen = *params; /* the kernels are on the host */
    seen.host = params->impl;
    const enum bl_status st =
        d->host->ops->segment_build(d->host, g, bound, n, scratch, &seen, &s->inner);
    if (st) {
        free(s);
        return st;
    }
    *out = s;
    return BL_OK;
}

static enum bl_status run_segment(struct bl_stream *s, struct bl_segment *segment)
{
    return bl_cpu_segment_execute(segment->inner, s);
}

static enum bl_status segment_run(struct bl_stream *s, struct bl_segment *segment)
{
    struct sim_device *d = sim_of(s->dev);

    BL_TRY(check_lost(d));
    if (++d->n_submits == d->fault.nth && d->fault.kind == BL_FAULT_SUBMIT)
        return bl_fail(BL_EDEVICE, "%s: segment %u was not taken, as asked for", s->dev->name,
                       d->n_submits);
    return bl_stream_run(s, segment);
}

static void segment_free(struct bl_segment *s)
{
    if (s)
        s->host->ops->segment_free(s->inner);
    free(s);
}

static void profile(struct bl_device *dev, bool on, bool from_zero)
{
    struct bl_device *host = sim_of(dev)->host;
    host->ops->profile(host, on, from_zero);
}

static uint32_t op_time(const struct bl_device *dev, uint32_t i, struct bl_op_time *out)
{
    const struct bl_device *host = sim_of(dev)->host;
    return host->ops->op_time(host, i, out);
}

/* ---- device ---- */

static void device_close(struct bl_device *dev)
{
    if (!dev)
        return;
    struct sim_device *d = sim_of(dev);
    if (d->host)
        d->host->ops->close(d->host);
    if (d->pace)
        d->pace->ops->close(d->pace);
    free(d);
}

static const struct bl_device_ops device_ops = {
    .close = device_close,
    .mem_alloc = mem_alloc,
    .mem_free = mem_free,
    .stream_open = stream_open,
    .stream_close = stream_close,
    .copy = copy,
    .fill = fill,
    .signal = bl_stream_signal,
    .wait = bl_stream_wait,
    .poll = poll,
    .join = join,
    .segment_build = segment_build,
    .segment_run = segment_run,
    .segment_free = segment_free,
    .progress = bl_stream_progress,
    .cancel = bl_stream_cancel,
    .trace = bl_stream_trace,
    .patience = bl_stream_patience,
    .profile = profile,
    .op_time = op_time,
};

static enum bl_status sim_count(uint32_t *n)
{
    *n = 0; /* none of this machine's devices is one */
    return BL_OK;
}

/* Its threads are on no cores in particular, its memory on no node. */
static struct bl_device_config host_config(const struct bl_device_config *c)
{
    return (struct bl_device_config){.threads = c->threads,
                                     .threads_prefill = c->threads_prefill,
                                     .cpu_mask = c->cpu_mask,
                                     .exact = c->exact};
}

static enum bl_status sim_caps(uint32_t index, const struct bl_device_config *c,
                               struct bl_caps *out)
{
    const struct bl_device_config config = host_config(c);

    (void)index;
    BL_TRY(bl_cpu_backend.caps(0, &config, out));
    out->granule_bytes = GRANULE;
    out->import_host = 0;
    out->block_bytes = c->block_bytes;
    out->copies_from = BL_COPIES_FROM_BLOCKS;
    return BL_OK;
}

static enum bl_status sim_open(uint32_t index, const struct bl_device_config *c,
                               struct bl_device **out)
{
    static const struct bl_simulated none;
    const struct bl_simulated *sim = c->sim ? c->sim : &none;
    const struct bl_device_config config = host_config(c);
    struct sim_device *d = bl_calloc(1, sizeof *d);

    if (!d) {
        if (sim->pace)
            sim->pace->ops->close(sim->pace);
        return bl_fail(BL_ENOMEM, "sim%u: out of memory", index);
    }
    d->base.ops = &device_ops;
    snprintf(d->base.name, sizeof d->base.name, "sim%u", index);
    d->base.number = c->number;
    d->base.unified = c->unified;
    d->pace = sim->pace;
    d->fault = sim->fault;
    d->mem_bytes = sim->mem_bytes ? sim->mem_bytes : UINT64_MAX;
    d->work = (struct bl_stream_work){.size = sizeof(struct sim_stream),
                                      .in_line = clock_of(d) != NULL,
                                      .run = run_segment,
                                      .admit = admit,
                                      .settle = settle};
    enum bl_status st = sim_caps(index, c, &d->base.caps);
    if (!st)
        st = bl_cpu_backend.open(0, &config, &d->host);
    if (st) {
        device_close(&d->base);
        return bl_fail_in(st, "sim%u", index);
    }
    *out = &d->base;
    return BL_OK;
}

static bool sim_supports(const struct bl_caps *caps, const struct bl_graph *g,
                         const struct bl_node *n)
{
    return bl_cpu_backend.supports(caps, g, n);
}

static uint64_t sim_scratch_bytes(const struct bl_caps *caps, const struct bl_graph *g,
                                  const struct bl_node *n)
{
    return bl_cpu_backend.scratch_bytes(caps, g, n);
}

const struct bl_backend bl_sim_backend = {
    .name = "sim",
    .count = sim_count,
    .caps = sim_caps,
    .open = sim_open,
    .supports = sim_supports,
    .scratch_bytes = sim_scratch_bytes,
};

uint64_t bl_sim_taken_bytes(const struct bl_device *dev)
{
    return sim_of(dev)->taken_bytes;
}

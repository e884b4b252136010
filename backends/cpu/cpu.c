/* SPDX-License-Identifier: MIT */
/* Memory, streams and the table of the CPU device. */
#include "cpu.h"

#include "numa.h"
#include "pins.h"
#include "segment.h"

#include <stdio.h>
#include <stdlib.h>

enum { MAX_THREADS = 1024, MOST_CPUS = 64 };

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

/* ---- streams ---- */

static enum bl_status run_segment(struct bl_stream *s, struct bl_segment *segment)
{
    return bl_cpu_segment_execute(segment, s);
}

static enum bl_status stream_open(struct bl_device *dev, struct bl_stream **out)
{
    return bl_stream_open(dev, &cpu_of(dev)->stream_work, out);
}

static enum bl_status copy(struct bl_stream *s, const struct bl_mem *dst, size_t dst_off,
                           const struct bl_mem *src, size_t src_off, size_t bytes)
{
    if (!bl_mem_inside(dst, dst_off, bytes) || !bl_mem_inside(src, src_off, bytes))
        return bl_fail(BL_EINVAL, "%s: copy of %zu bytes runs over the end of a block",
                       s->dev->name, bytes);
    if (!bytes)
        return BL_OK;
    if (!dst->host || !src->host)
        return bl_fail(BL_EINVAL, "%s: copy with memory the host cannot touch", s->dev->name);
    return bl_stream_copy(s, (char *)dst->host + dst_off, (const char *)src->host + src_off, bytes,
                          false, false);
}

static enum bl_status fill(struct bl_stream *s, const struct bl_mem *dst, size_t off, uint32_t word,
                           size_t bytes)
{
    if (!bl_mem_inside(dst, off, bytes) || off % 4 || bytes % 4)
        return bl_fail(BL_EINVAL, "%s: fill of %zu bytes at %zu is not whole words of a block",
                       s->dev->name, bytes, off);
    return bytes ? bl_stream_fill(s, (char *)dst->host + off, word, bytes) : BL_OK;
}

/* ---- device ---- */

static void device_close(struct bl_device *dev)
{
    if (!dev)
        return;
    struct bl_cpu_device *d = cpu_of(dev);
    bl_pool_destroy(d->pool);
    bl_pins_close(d->base.pins);
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
    .stream_close = bl_stream_close,
    .copy = copy,
    .fill = fill,
    .signal = bl_stream_signal,
    .wait = bl_stream_wait,
    .poll = bl_stream_poll,
    .join = bl_stream_join,
    .segment_build = bl_cpu_segment_build,
    .segment_run = bl_stream_run,
    .segment_free = bl_cpu_segment_free,
    .progress = bl_stream_progress,
    .cancel = bl_stream_cancel,
    .trace = bl_stream_trace,
    .patience = bl_stream_patience,
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
    if (index >= MOST_CPUS) /* one, or one for each memory node */
        return bl_fail(BL_EUNAVAILABLE, "there is no cpu%u, at most cpu%d", index, MOST_CPUS - 1);
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
    d->base.number = c->number;
    d->base.nodes = c->nodes;
    snprintf(d->base.name, sizeof d->base.name, "cpu%u", index);
    /* Handing a step to another thread and back costs a small model up to 20 % of its speed. A
     * caller's thread is not bound to processors; an executor is. */
    d->stream_work = (struct bl_stream_work){.size = sizeof(struct bl_stream),
                                             .cpus = c->cpus,
                                             .n_cpus = c->cpus ? c->n_home : 0,
                                             .in_line = c->in_line && !c->cpus,
                                             .run = run_segment};
    d->nodes = c->nodes;
    d->threads = c->threads ? c->threads : 1;
    d->threads_prefill = c->threads_prefill ? c->threads_prefill : d->threads;
    fill_kernels(&d->kernels, c);
    pthread_mutex_init(&d->turn, NULL);
    const struct bl_pool_split split = {d->threads, c->cpus, d->stream_work.n_cpus,
                                        c->cpus ? c->n_cpus : 0};
    enum bl_status st = bl_pool_create(&d->pool, caps.threads, &split);
    const size_t deal_bytes = sizeof *d->deal * BL_CPU_DEAL_ROWS * caps.threads;
    d->deal = aligned_alloc(sizeof *d->deal, deal_bytes);
    if (d->deal)
        memset(d->deal, 0, deal_bytes);
    else if (!st)
        st = bl_fail(BL_ENOMEM, "cpu%u: out of memory", index);
    if (!st)
        st = bl_pins_open(&d->base.pins);
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

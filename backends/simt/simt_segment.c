/* SPDX-License-Identifier: MIT */
/* A segment is a list of launches, and where the driver has graphs a graph captured of them. */
#include "simt.h"

#include "mem.h"

#include <stdlib.h>

struct bl_segment {
    struct bl_simt_device *dev;
    struct bl_simt_launch *launch;
    uint32_t n_launches;
    void *graph; /* ready to be launched, or NULL */
};

void bl_simt_segment_free(struct bl_segment *s)
{
    if (!s)
        return;
    const struct bl_simt_device *d = s->dev;
    if (s->graph && !atomic_load(&d->lost) && !bl_simt_use(d))
        d->fn->graph_free(d->driver, s->graph);
    free(s->launch);
    free(s);
}

/* ---- what ops ask of the builder ---- */

const struct bl_value *bl_simt_src(const struct bl_simt_builder *b, unsigned i)
{
    return &b->graph->vals[bl_node_src(b->graph, b->node, i)];
}

const struct bl_value *bl_simt_dst(const struct bl_simt_builder *b, unsigned i)
{
    return &b->graph->vals[b->node->dst[i]];
}

const void *bl_simt_attr(const struct bl_simt_builder *b)
{
    return bl_node_attr(b->graph, b->node);
}

uint64_t bl_simt_src_addr(const struct bl_simt_builder *b, unsigned src)
{
    return bl_node_src(b->graph, b->node, src) ? b->bound->src[src] : 0;
}

uint64_t bl_simt_dst_addr(const struct bl_simt_builder *b, unsigned dst)
{
    return b->bound->dst[dst];
}

uint64_t bl_simt_scratch(struct bl_simt_builder *b, uint64_t off, uint64_t bytes)
{
    if ((off > b->scratch_bytes || bytes > b->scratch_bytes - off) && !b->status)
        b->status = bl_fail(BL_EINVAL, "%s: %s takes more scratch than was planned", b->device,
                            bl_ops[b->node->op].name);
    return b->scratch + off;
}

/* ---- calls ---- */

static enum bl_status check_shape(const struct bl_simt_builder *b, const struct bl_simt_launch *l)
{
    const struct bl_simt_limits *m = b->limits;
    const char *name = bl_simt_kernels[l->kernel].name;
    const uint64_t threads = (uint64_t)l->block[0] * l->block[1] * l->block[2];

    for (unsigned i = 0; i < 3; i++)
        if (l->grid[i] > m->max_grid[i])
            return bl_fail(BL_ELIMIT, "%s: %s is a launch of %u blocks, at most %u work", b->device,
                           name, l->grid[i], m->max_grid[i]);
    if (threads > m->max_threads || l->shared_bytes > m->shared_bytes)
        return bl_fail(BL_ELIMIT,
                       "%s: a block of %s has %llu threads and %u bytes, at most %u and %u work",
                       b->device, name, (unsigned long long)threads, l->shared_bytes,
                       m->max_threads, m->shared_bytes);
    return BL_OK;
}

static enum bl_status make_room(struct bl_simt_builder *b)
{
    const uint32_t cap = b->cap_launches ? b->cap_launches + b->cap_launches / 2 : 64;

    if (b->n_launches < b->cap_launches)
        return BL_OK;
    struct bl_simt_launch *bigger = realloc(b->launch, cap * sizeof *bigger);
    if (!bigger)
        return bl_fail(BL_ENOMEM, "%s: out of memory for %u launches", b->device, cap);
    b->launch = bigger;
    b->cap_launches = cap;
    return BL_OK;
}

static enum bl_status add_launch(struct bl_simt_builder *b, const struct bl_simt_call *c)
{
    struct bl_simt_launch l = {.kernel = bl_simt_kernel_find(c->kernel, c->type),
                               .shared_bytes = c->shared_bytes,
                               .args = c->args};

    if (l.kernel == BL_SIMT_N_KERNELS)
        return bl_fail(BL_EUNSUPPORTED, "%s: there is no kernel %s for %s", b->device, c->kernel,
                       c->type < 0 ? "it" : bl_dtypes[c->type].name);
    for (unsigned i = 0; i < 3; i++) {
        l.grid[i] = c->grid[i] ? c->grid[i] : 1;
        l.block[i] = c->block[i] ? c->block[i] : 1;
    }
    BL_TRY(check_shape(b, &l));
    BL_TRY(make_room(b));
    b->launch[b->n_launches++] = l;
    return BL_OK;
}

void bl_simt_emit(struct bl_simt_builder *b, const struct bl_simt_call *c)
{
    if (!b->status)
        b->status = add_launch(b, c);
}

/* ---- building ---- */

static enum bl_status check_nodes(const struct bl_simt_builder *b, const struct bl_bound *bound,
                                  uint32_t n, const struct bl_caps *caps)
{
    for (uint32_t i = 0; i < n; i++)
        if (!bl_simt_supports(caps, b->graph, bound[i].node))
            return bl_fail(BL_EUNSUPPORTED, "%s: %s of these types is not known here", b->device,
                           bl_ops[bound[i].node->op].name);
    return BL_OK;
}

static enum bl_status list_launches(struct bl_simt_builder *b, const struct bl_bound *bound,
                                    uint32_t n, const struct bl_caps *caps)
{
    BL_TRY(check_nodes(b, bound, n, caps));
    for (uint32_t i = 0, taken; i < n && !b->status; i += taken) {
        taken = bl_simt_fuse(b, &bound[i], n - i);
        if (taken)
            continue;
        bl_simt_stand(b, &bound[i]);
        bl_simt_op_of(b->node)->emit(b);
        taken = 1;
    }
    return b->status;
}

/* Blocks with more shared memory than usual must be asked for once; drivers that load code when it
 * is first used do so here, not while a graph is captured. */
static enum bl_status prepare_kernels(const struct bl_segment *s)
{
    const struct bl_simt_device *d = s->dev;

    for (uint32_t i = 0; i < s->n_launches; i++) {
        const struct bl_simt_launch *l = &s->launch[i];
        const uint32_t threads = l->block[0] * l->block[1] * l->block[2];
        int most = 0, fixed = 0;
        BL_TRY(bl_simt_try(d, d->fn->kernel_limits(d->driver, d->kernel[l->kernel], &most, &fixed),
                           "a kernel cannot be asked"));
        if (threads > (uint32_t)most ||
            (uint64_t)l->shared_bytes + (uint32_t)fixed > d->card.limits.shared_bytes)
            return bl_fail(BL_ELIMIT,
                           "%s: blocks of %s have at most %d threads, and %d bytes already",
                           d->base.name, bl_simt_kernels[l->kernel].name, most, fixed);
        if (l->shared_bytes)
            BL_TRY(bl_simt_try(
                d, d->fn->kernel_dynamic(d->driver, d->kernel[l->kernel], (int)l->shared_bytes),
                "shared memory of a kernel"));
    }
    return BL_OK;
}

static int launch_all(const struct bl_segment *s, void *stream)
{
    const struct bl_simt_device *d = s->dev;
    int code = 0;

    for (uint32_t i = 0; i < s->n_launches && !code; i++) {
        struct bl_simt_launch *l = &s->launch[i];
        void *args[] = {&l->args};
        code = d->fn->launch(d->driver, d->kernel[l->kernel], l->grid, l->block, l->shared_bytes,
                             stream, args);
    }
    return code;
}

/* What cannot be captured is launched one by one, unless it could not be launched either. */
static enum bl_status capture(struct bl_segment *s)
{
    const struct bl_simt_device *d = s->dev;
    void *graph = NULL;
    int code = d->fn->capture_begin(d->driver, d->recorder);

    if (code == BL_SIMT_NOT_SUPPORTED)
        return BL_OK;
    BL_TRY(bl_simt_try(d, code, "launches cannot be captured"));
    code = launch_all(s, d->recorder);
    const int end = d->fn->capture_end(d->driver, d->recorder, &graph);
    enum bl_status st = bl_simt_try(d, code ? code : end, "launches cannot be captured");
    if (!st)
        st = bl_simt_try(d, d->fn->graph_make(d->driver, &s->graph, graph),
                         "a graph cannot be made");
    if (graph)
        d->fn->graph_forget(d->driver, graph);
    return st;
}

static uint32_t *count_uses(const struct bl_graph *g)
{
    uint32_t *uses = bl_calloc((size_t)g->n_vals + 1, sizeof *uses);

    for (uint32_t i = 0; uses && i < g->n_srcs; i++)
        uses[g->srcs[i]]++;
    if (uses)
        uses[g->result]++;
    return uses;
}

static enum bl_status build(struct bl_segment *s, struct bl_simt_builder *b,
                            const struct bl_bound *bound, uint32_t n)
{
    uint32_t *uses = count_uses(b->graph);

    if (!uses)
        return bl_fail(BL_ENOMEM, "%s: out of memory for a segment", b->device);
    b->uses = uses;
    const enum bl_status st = list_launches(b, bound, n, &s->dev->base.caps);
    free(uses);
    b->uses = NULL;
    s->launch = b->launch;
    s->n_launches = b->n_launches;
    BL_TRY(st);
    BL_TRY(bl_simt_use(s->dev));
    BL_TRY(prepare_kernels(s));
    return s->n_launches > 1 ? capture(s) : BL_OK;
}

enum bl_status bl_simt_segment_build(struct bl_device *dev, const struct bl_graph *g,
                                     const struct bl_bound *bound, uint32_t n,
                                     const struct bl_mem *scratch, const struct bl_mem *params,
                                     struct bl_segment **out)
{
    struct bl_segment *s = bl_calloc(1, sizeof *s);

    if (!s)
        return bl_fail(BL_ENOMEM, "%s: out of memory for a segment", dev->name);
    s->dev = bl_simt_of(dev);
    struct bl_simt_builder b = {.limits = &s->dev->card.limits,
                                .device = dev->name,
                                .exact = dev->caps.exact,
                                .graph = g,
                                .params = params->addr,
                                .scratch = scratch->addr,
                                .scratch_bytes = scratch->bytes};
    const enum bl_status st = build(s, &b, bound, n);
    if (st)
        bl_simt_segment_free(s);
    else
        *out = s;
    return st;
}

enum bl_status bl_simt_segment_enqueue(const struct bl_segment *s, void *stream)
{
    const struct bl_simt_device *d = s->dev;

    return bl_simt_try(
        d, s->graph ? d->fn->graph_launch(d->driver, s->graph, stream) : launch_all(s, stream),
        "a segment was not taken");
}

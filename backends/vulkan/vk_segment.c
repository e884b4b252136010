/* SPDX-License-Identifier: MIT */
/* A segment is a command buffer, recorded once. */
#include "vk_ops.h"

#include "mem.h"

#include <stdlib.h>

struct bl_segment {
    struct bl_vk_device *dev;
    VkCommandBuffer cmd;
};

VkCommandBuffer bl_vk_segment_commands(const struct bl_segment *s)
{
    return s->cmd;
}

void bl_vk_segment_free(struct bl_segment *s)
{
    if (!s)
        return;
    if (s->cmd)
        s->dev->vk.FreeCommandBuffers(s->dev->dev, s->dev->pool, 1, &s->cmd);
    free(s);
}

/* ---- what a call meets ---- */

/* Ranges of earlier calls, which a barrier puts behind us, stand before those of the call in hand.
 */
static void forget_earlier(struct bl_vk_builder *b)
{
    b->n_ranges -= b->n_earlier;
    memmove(b->range, b->range + b->n_earlier, b->n_ranges * sizeof *b->range);
    b->n_earlier = 0;
}

static bool overlap(const struct bl_vk_range *r, uint64_t first, uint64_t end)
{
    return r->first < end && first < r->end;
}

void bl_vk_touch(struct bl_vk_builder *b, uint64_t addr, uint64_t bytes, bool write)
{
    const struct bl_vk_range r = {addr, addr + bytes, write};
    struct bl_vk_quantised *q = &b->quantised;

    if (write && (overlap(&r, q->from, q->from_end) || overlap(&r, b->scratch, q->end)))
        *q = (struct bl_vk_quantised){0};
    if (b->n_ranges == BL_VK_RANGES) {
        b->barrier = true;
        forget_earlier(b);
    }
    for (uint32_t i = 0; i < b->n_earlier && !b->barrier; i++)
        b->barrier =
            (write || b->range[i].written) && overlap(&r, b->range[i].first, b->range[i].end);
    b->range[b->n_ranges++] = r;
}

const struct bl_value *bl_vk_src(const struct bl_vk_builder *b, unsigned i)
{
    return &b->graph->vals[bl_node_src(b->graph, b->node, i)];
}

const struct bl_value *bl_vk_dst(const struct bl_vk_builder *b, unsigned i)
{
    return &b->graph->vals[b->node->dst[i]];
}

const void *bl_vk_attr(const struct bl_vk_builder *b)
{
    return bl_node_attr(b->graph, b->node);
}

uint64_t bl_vk_weight(struct bl_vk_builder *b, unsigned src)
{
    return bl_node_src(b->graph, b->node, src) ? b->bound->src[src] : 0;
}

uint64_t bl_vk_reads(struct bl_vk_builder *b, unsigned src)
{
    if (!bl_node_src(b->graph, b->node, src))
        return 0;
    bl_vk_touch(b, b->bound->src[src], bl_value_bytes(bl_vk_src(b, src)), false);
    return b->bound->src[src];
}

uint64_t bl_vk_writes(struct bl_vk_builder *b, unsigned dst)
{
    bl_vk_touch(b, b->bound->dst[dst], bl_value_bytes(bl_vk_dst(b, dst)), true);
    return b->bound->dst[dst];
}

uint64_t bl_vk_scratch(struct bl_vk_builder *b, uint64_t off, uint64_t bytes, bool write)
{
    if (off + bytes > b->scratch_bytes && !b->status)
        b->status = bl_fail(BL_EINVAL, "%s: %s takes more scratch than was planned",
                            b->dev->base.name, bl_ops[b->node->op].name);
    bl_vk_touch(b, b->scratch + off, bytes, write);
    return b->scratch + off;
}

/* ---- calls ---- */

enum { MOST_SOFTWARE_TURNS = 60000 };

uint32_t bl_vk_passes(const struct bl_vk_builder *b, uint64_t n)
{
    return b->dev->facts.software ? bl_vk_groups(n, MOST_SOFTWARE_TURNS) : 1;
}

static enum bl_status check_groups(const struct bl_vk_builder *b, const struct bl_vk_call *c)
{
    for (unsigned i = 0; i < 3; i++)
        if (c->groups[i] > b->dev->facts.max_groups)
            return bl_fail(BL_ELIMIT, "%s: %s is a dispatch of %u work groups, at most %u work",
                           b->dev->base.name, c->kernel, c->groups[i], b->dev->facts.max_groups);
    return BL_OK;
}

static enum bl_status record(struct bl_vk_builder *b, const struct bl_vk_call *c)
{
    const struct bl_vk_fns *vk = &b->dev->vk;
    const uint32_t kernel = bl_vk_kernel_find(c->kernel, c->type);
    const uint64_t codebook = bl_vk_codebook(b->dev, c->type);
    struct bl_vk_args args = c->args;
    VkPipeline pipeline;

    if (kernel == bl_vk_n_sources)
        return bl_fail(BL_EUNSUPPORTED, "%s: there is no kernel %s for %s", b->dev->base.name,
                       c->kernel, c->type < 0 ? "it" : bl_dtypes[c->type].name);
    BL_TRY(check_groups(b, c));
    if (codebook)
        memcpy(args.n + BL_VK_NUMS - 2, &codebook, sizeof codebook);
    BL_TRY(bl_vk_pipeline_get(b->dev, kernel, c->spec, &pipeline));
    if (b->barrier)
        bl_vk_barrier(b->dev, b->cmd);
    vk->CmdBindPipeline(b->cmd, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
    vk->CmdPushConstants(b->cmd, b->dev->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof args,
                         &args);
    vk->CmdDispatch(b->cmd, c->groups[0] ? c->groups[0] : 1, c->groups[1] ? c->groups[1] : 1,
                    c->groups[2] ? c->groups[2] : 1);
    return BL_OK;
}

void bl_vk_emit(struct bl_vk_builder *b, const struct bl_vk_call *c)
{
    if (!b->status)
        b->status = record(b, c);
    if (b->barrier)
        forget_earlier(b);
    b->barrier = false;
    b->n_earlier = b->n_ranges;
}

/* ---- building ---- */

static enum bl_status record_nodes(struct bl_vk_builder *b, const struct bl_bound *bound,
                                   uint32_t n)
{
    bl_vk_barrier(b->dev, b->cmd);
    for (uint32_t i = 0; i < n && !b->status; i++) {
        b->node = bound[i].node;
        b->bound = &bound[i];
        bl_vk_op_of(b->node)->emit(b);
    }
    bl_vk_barrier(b->dev, b->cmd);
    return b->status;
}

static enum bl_status check_nodes(const struct bl_vk_device *d, const struct bl_graph *g,
                                  const struct bl_bound *bound, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!bl_vk_supports(&d->base.caps, g, bound[i].node))
            return bl_fail(BL_EUNSUPPORTED, "%s: %s of these types is not known here", d->base.name,
                           bl_ops[bound[i].node->op].name);
    return BL_OK;
}

static enum bl_status build(struct bl_segment *s, struct bl_vk_builder *b,
                            const struct bl_bound *bound, uint32_t n)
{
    const struct bl_vk_device *d = s->dev;
    const VkCommandBufferAllocateInfo one = {.sType =
                                                 VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                             .commandPool = d->pool,
                                             .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                             .commandBufferCount = 1};
    const VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                            .flags = VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT};

    BL_TRY(check_nodes(d, b->graph, bound, n));
    BL_TRY(bl_vk_check(d->vk.AllocateCommandBuffers(d->dev, &one, &s->cmd), d->base.name,
                       "no command buffer"));
    BL_TRY(bl_vk_check(d->vk.BeginCommandBuffer(s->cmd, &begin), d->base.name, "recording"));
    b->cmd = s->cmd;
    const enum bl_status st = record_nodes(b, bound, n);
    const VkResult r = d->vk.EndCommandBuffer(s->cmd);
    return st ? st : bl_vk_check(r, d->base.name, "recording");
}

enum bl_status bl_vk_segment_build(struct bl_device *dev, const struct bl_graph *g,
                                   const struct bl_bound *bound, uint32_t n,
                                   const struct bl_mem *scratch, const struct bl_mem *params,
                                   struct bl_segment **out)
{
    struct bl_segment *s = bl_calloc(1, sizeof *s);
    struct bl_vk_builder *b = bl_calloc(1, sizeof *b);
    enum bl_status st = BL_ENOMEM;

    if (s && b) {
        s->dev = bl_vk_of(dev);
        *b = (struct bl_vk_builder){.dev = s->dev,
                                    .graph = g,
                                    .params = params->addr,
                                    .scratch = scratch->addr,
                                    .scratch_bytes = scratch->bytes};
        st = build(s, b, bound, n);
    } else {
        bl_fail(BL_ENOMEM, "%s: out of memory for a segment", dev->name);
    }
    free(b);
    if (st)
        bl_vk_segment_free(s);
    else
        *out = s;
    return st;
}

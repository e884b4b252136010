/* SPDX-License-Identifier: MIT */
#include "null.h"

enum { GRANULE = 2 << 20 }; /* what drivers of large cards round allocations up to */

static enum bl_status null_count(uint32_t *n)
{
    *n = 0; /* none of this machine's devices is one */
    return BL_OK;
}

static enum bl_status null_caps(uint32_t index, const struct bl_device_config *c,
                                struct bl_caps *out)
{
    (void)index;
    *out = (struct bl_caps){.granule_bytes = GRANULE,
                            .threads = 1,
                            .exact = c->exact,
                            .copies_from = BL_COPIES_FROM_BLOCKS};
    return BL_OK;
}

static enum bl_status null_open(uint32_t index, const struct bl_device_config *c,
                                struct bl_device **out)
{
    (void)c, (void)out;
    return bl_fail(
        BL_EUNAVAILABLE,
        "null%u is only described: it can be planned for, not opened; leave out --machine "
        "to use the devices of this machine",
        index);
}

/* A described device is taken to be as able as the best of its kind; the backend that will open it
 * decides anew. */
static bool null_supports(const struct bl_caps *caps, const struct bl_graph *g,
                          const struct bl_node *n)
{
    (void)caps, (void)g;
    return n->op < BL_N_OPS;
}

/* Attention and experts split a row's work over groups of threads, whose partial results need one
 * more copy of what the node makes; other nodes keep theirs in registers. */
static uint64_t null_scratch_bytes(const struct bl_caps *caps, const struct bl_graph *g,
                                   const struct bl_node *n)
{
    uint64_t bytes = 0;
    (void)caps;
    if (bl_ops[n->op].split != BL_SPLIT_HEADS && bl_ops[n->op].split != BL_SPLIT_EXPERTS)
        return 0;
    for (unsigned d = 0; d < n->n_dst; d++)
        if (g->vals[n->dst[d]].origin == BL_ACTIVATION)
            bytes += bl_value_bytes(&g->vals[n->dst[d]]);
    return bytes;
}

const struct bl_backend bl_null_backend = {
    .name = "null",
    .count = null_count,
    .caps = null_caps,
    .open = null_open,
    .supports = null_supports,
    .scratch_bytes = null_scratch_bytes,
};

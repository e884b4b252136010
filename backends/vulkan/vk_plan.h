/* SPDX-License-Identifier: MIT */
/* vk_plan.h — what a plan needs to know of the Vulkan backend; private to backends/vulkan.
 *
 * Purpose   capabilities, nodes that can be run, their scratch and how it is divided: pure functions without headers, driver
 *           or shaders of Vulkan, so that every build plans alike for a machine that has it.
 * Ownership none.
 * Units     bytes.
 * Errors    none.
 * Threads   any.
 */
#ifndef BL_VK_PLAN_H
#define BL_VK_PLAN_H

#include "device.h"

enum {
    BL_VK_GRANULE = 64 << 10, /* allocations are rounded up to it */
    BL_VK_SIDE = 64           /* of tiles of matrices, tile.glsl */
};

/* The same for every device. */
struct bl_caps bl_vk_caps(const struct bl_device_config *);
bool bl_vk_supports(const struct bl_caps *, const struct bl_graph *, const struct bl_node *);
uint64_t bl_vk_scratch_bytes(const struct bl_caps *, const struct bl_graph *, const struct bl_node *);

/* Types of weights that kernels decode. */
bool bl_vk_decodes(uint8_t type);
/* Weights of the type may meet activations as signed bytes (as_bytes.glsl), where a device multiplies such at full speed:
 * scratch has room for them on every device, as a plan knows none. Bytes of a row of k elements. */
bool bl_vk_meets_bytes(const struct bl_caps *, uint8_t type);
uint64_t bl_vk_row_as_bytes(uint64_t k);

/* Attention: parts that what few tokens see is divided into, and bytes for their results. */
uint64_t bl_vk_most_seen(const struct bl_graph *, const struct bl_node *);
uint32_t bl_vk_splits(const struct bl_graph *, const struct bl_node *);
uint64_t bl_vk_attention_bytes(const struct bl_graph *, const struct bl_node *);

/* Experts: activations as bytes; products of gate, then of up; results of the pairs; pairs by expert, their tiles, of many
 * tokens. */
struct bl_vk_experts_layout {
    uint64_t hidden, part, order, tiles, bytes;
    uint32_t n_tiles; /* at most */
};
struct bl_vk_experts_layout bl_vk_experts_layout(const struct bl_caps *, const struct bl_graph *, const struct bl_node *);

/* The choice among groups: their scores; the best so far. */
struct bl_vk_choose_layout {
    uint64_t scores, heap, bytes;
};
struct bl_vk_choose_layout bl_vk_choose_layout(const struct bl_graph *, const struct bl_node *);

#endif

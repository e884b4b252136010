/* SPDX-License-Identifier: MIT */
/* The backend's table: planning is part of every build, devices of those with Vulkan. */
#include "vulkan.h"

#include "vk_plan.h"
#ifdef BL_VULKAN
#include "vk_device.h"
#else

static enum bl_status bl_vk_count(uint32_t *n)
{
    *n = 0;
    return bl_fail(BL_EUNAVAILABLE, "this build has no Vulkan");
}

static enum bl_status bl_vk_describe(uint32_t index, struct bl_device_facts *out)
{
    (void)out;
    return bl_fail(BL_EUNAVAILABLE, "there is no vulkan%u: this build has no Vulkan", index);
}

static enum bl_status bl_vk_open(uint32_t index, const struct bl_device_config *c,
                                 struct bl_device **out)
{
    (void)c, (void)out;
    return bl_fail(BL_EUNAVAILABLE,
                   "vulkan%u: this build has no Vulkan, which takes its headers and glslang",
                   index);
}
#endif

/* So that a plan for a device that is not here needs no driver. */
static enum bl_status caps(uint32_t index, const struct bl_device_config *c, struct bl_caps *out)
{
    (void)index;
    *out = bl_vk_caps(c);
    return BL_OK;
}

const struct bl_backend bl_vulkan_backend = {
    .name = "vulkan",
    .count = bl_vk_count,
    .facts = bl_vk_describe,
    .caps = caps,
    .open = bl_vk_open,
    .supports = bl_vk_supports,
    .scratch_bytes = bl_vk_scratch_bytes,
};

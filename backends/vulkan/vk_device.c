/* SPDX-License-Identifier: MIT */
/* Which physical devices can be used, and opening one. */
#include "vk_device.h"
#include "vk_ops.h"

#include "mem.h"
#include "variables.h"

#include <stdio.h>
#include <stdlib.h>

enum { MOST_DEVICES = 32 };
#define INT_DOT "BALLAST_VULKAN_INT_DOT"

/* ---- features ---- */

/* The chain in which they are asked for, first of a device, then for one. */
struct features {
    VkPhysicalDeviceFeatures2 core;
    VkPhysicalDeviceVulkan11Features v11;
    VkPhysicalDeviceVulkan12Features v12;
};

static void chain(struct features *f)
{
    *f = (struct features){
        .core.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
        .v11.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES,
        .v12.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES,
    };
    f->core.pNext = &f->v11;
    f->v11.pNext = &f->v12;
}

#define FEATURES(X)                                                                                \
    X(core.features.shaderInt64, "64-bit integers")                                                \
    X(core.features.shaderInt16, "16-bit integers")                                                \
    X(core.features.shaderFloat64, "64-bit floats")                                                \
    X(v11.storageBuffer16BitAccess, "16-bit storage")                                              \
    X(v12.storageBuffer8BitAccess, "8-bit storage")                                                \
    X(v12.shaderInt8, "8-bit integers")                                                            \
    X(v12.scalarBlockLayout, "scalar block layout")                                                \
    X(v12.bufferDeviceAddress, "buffer addresses")                                                 \
    X(v12.timelineSemaphore, "timeline semaphores")

/* An extension of 1.2 that newer drivers have as a part of 1.3; what lacks it is used all the same.
 */
static void find_dots(const struct bl_vk_instance *i, VkPhysicalDevice phys,
                      struct bl_vk_facts *out)
{
    VkPhysicalDeviceShaderIntegerDotProductFeaturesKHR can = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES_KHR};
    VkPhysicalDeviceFeatures2 core = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
                                      .pNext = &can};
    VkPhysicalDeviceShaderIntegerDotProductPropertiesKHR how = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_PROPERTIES_KHR};
    VkPhysicalDeviceProperties2 all = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                       .pNext = &how};

    if (!bl_vk_has(i, phys, VK_KHR_SHADER_INTEGER_DOT_PRODUCT_EXTENSION_NAME))
        return;
    i->GetPhysicalDeviceFeatures2(phys, &core);
    i->GetPhysicalDeviceProperties2(phys, &all);
    out->dots = can.shaderIntegerDotProduct;
    out->fast_dots = out->dots && how.integerDotProduct4x8BitPackedSignedAccelerated;
}

static void set_features(struct features *f)
{
    chain(f);
#define X(field, what) f->field = VK_TRUE;
    FEATURES(X)
#undef X
}

static const char *lacking(const struct features *f)
{
#define X(field, what)                                                                             \
    if (!f->field)                                                                                 \
        return what;
    FEATURES(X)
#undef X
    return NULL;
}

/* ---- facts ---- */

static void find_family(const struct bl_vk_instance *i, VkPhysicalDevice phys,
                        struct bl_vk_facts *out)
{
    VkQueueFamilyProperties family[16];
    uint32_t n = BL_COUNT(family);

    i->GetPhysicalDeviceQueueFamilyProperties(phys, &n, family);
    for (out->family = 0; out->family < n; out->family++)
        if (family[out->family].queueFlags & VK_QUEUE_COMPUTE_BIT) {
            out->tick_bits = family[out->family].timestampValidBits;
            return;
        }
    out->lacks = "a queue that computes";
}

static uint32_t least(const uint32_t *v, uint32_t n)
{
    uint32_t m = v[0];
    for (uint32_t i = 1; i < n; i++)
        m = v[i] < m ? v[i] : m;
    return m;
}

static void find_limits(const struct bl_vk_instance *i, VkPhysicalDevice phys,
                        struct bl_vk_facts *out)
{
    VkPhysicalDeviceSubgroupSizeControlProperties size = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES};
    VkPhysicalDeviceExternalMemoryHostPropertiesEXT host = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_MEMORY_HOST_PROPERTIES_EXT,
        .pNext = &size};
    VkPhysicalDeviceMaintenance4Properties buffers = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_4_PROPERTIES, .pNext = &host};
    VkPhysicalDeviceMaintenance3Properties limits = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES, .pNext = &buffers};
    VkPhysicalDeviceSubgroupProperties group = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES, .pNext = &limits};
    VkPhysicalDeviceProperties2 all = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                       .pNext = &group};
    const VkPhysicalDeviceProperties *p = &all.properties;

    i->GetPhysicalDeviceProperties2(phys, &all);
    snprintf(out->name, sizeof out->name, "%s", p->deviceName);
    out->tick_ns = (double)p->limits.timestampPeriod;
    out->software = p->deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU;
    out->subgroup =
        size.maxSubgroupSize > group.subgroupSize ? size.maxSubgroupSize : group.subgroupSize;
    out->narrowest = size.minSubgroupSize ? size.minSubgroupSize : group.subgroupSize;
    out->max_groups = least(p->limits.maxComputeWorkGroupCount, 3);
    out->max_alloc_bytes = limits.maxMemoryAllocationSize;
    if (buffers.maxBufferSize && buffers.maxBufferSize < out->max_alloc_bytes)
        out->max_alloc_bytes = buffers.maxBufferSize;
    out->import_align = bl_vk_has(i, phys, VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME)
                            ? host.minImportedHostPointerAlignment
                            : 0;
    if (p->apiVersion < VK_API_VERSION_1_2)
        out->lacks = "version 1.2";
    else if (!(group.supportedOperations & VK_SUBGROUP_FEATURE_ARITHMETIC_BIT) ||
             out->subgroup > BL_VK_GROUP)
        out->lacks = "sums over subgroups";
    else if (p->limits.maxComputeWorkGroupInvocations < 256)
        out->lacks = "work groups of 256";
    else if (!out->import_align)
        out->lacks = VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME;
}

static void find_facts(const struct bl_vk_instance *i, VkPhysicalDevice phys,
                       struct bl_vk_facts *out)
{
    struct features f;

    *out = (struct bl_vk_facts){0};
    find_limits(i, phys, out);
    if (!out->lacks)
        find_family(i, phys, out);
    if (!out->lacks) {
        chain(&f);
        i->GetPhysicalDeviceFeatures2(phys, &f.core);
        out->lacks = lacking(&f);
        find_dots(i, phys, out);
    }
    bl_vk_find_identity(i, phys, out);
}

static enum bl_status list(const struct bl_vk_instance *i, VkPhysicalDevice *phys, uint32_t *n)
{
    *n = MOST_DEVICES;
    const VkResult r = i->EnumeratePhysicalDevices(i->handle, n, phys);
    return r == VK_INCOMPLETE ? BL_OK : bl_vk_check(r, "vulkan", "devices cannot be listed");
}

static enum bl_status find_physical(const struct bl_vk_instance *i, uint32_t index,
                                    VkPhysicalDevice *out, struct bl_vk_facts *facts)
{
    VkPhysicalDevice phys[MOST_DEVICES];
    uint32_t n;

    BL_TRY(list(i, phys, &n));
    if (index >= n)
        return bl_fail(BL_EUNAVAILABLE, "there is no vulkan%u, only %u device%s", index, n,
                       n == 1 ? "" : "s");
    find_facts(i, phys[index], facts);
    if (facts->lacks)
        return bl_fail(BL_EUNAVAILABLE, "vulkan%u (%s) lacks %s", index, facts->name, facts->lacks);
    *out = phys[index];
    return BL_OK;
}

/* ---- backend ---- */

enum bl_status bl_vk_count(uint32_t *n)
{
    struct bl_vk_instance i;
    VkPhysicalDevice phys[MOST_DEVICES];

    *n = 0;
    BL_TRY(bl_vk_instance_open(&i));
    const enum bl_status st = list(&i, phys, n);
    bl_vk_instance_close(&i);
    return st;
}

/* Where the device multiplies bytes as fast as anything; or wherever it does so at all (1), or
 * nowhere (0). */
static bool wants_int_dot(const struct bl_vk_facts *f)
{
    const char *told = bl_variable(INT_DOT);
    return told ? f->dots && strcmp(told, "0") != 0 : f->fast_dots;
}

/* With which kernels, and why those. */
static void say_kernels(const struct bl_vk_facts *f, char *text, size_t cap)
{
    const bool told = bl_variable(INT_DOT), dots = wants_int_dot(f);
    const char *why = dots || !f->dots ? (dots ? "" : ", since it has no others")
                                       : ", since its products of bytes are not at full speed";
    int n = snprintf(text, cap, "products of %s%s, subgroups of ", dots ? "bytes" : "floats",
                     told && f->dots ? ", as " INT_DOT " has it" : why);

    if (n > 0 && (size_t)n < cap)
        snprintf(text + n, cap - (size_t)n, f->narrowest < f->subgroup ? "%u to %u" : "%u",
                 f->narrowest < f->subgroup ? f->narrowest : f->subgroup, f->subgroup);
}

enum bl_status bl_vk_describe(uint32_t index, struct bl_device_facts *out)
{
    struct bl_vk_instance i;
    struct bl_vk_facts f;
    VkPhysicalDevice phys;

    BL_TRY(bl_vk_instance_open(&i));
    const enum bl_status st = find_physical(&i, index, &phys, &f);
    bl_vk_instance_close(&i);
    BL_TRY(st);
    *out =
        (struct bl_device_facts){.integrated = f.integrated && !f.software, .software = f.software};
    snprintf(out->id, sizeof out->id, "%s", f.id);
    snprintf(out->name, sizeof out->name, "%.63s", f.name);
    bl_vk_memory_sum(&f, &out->mem_bytes, &out->free_bytes);
    out->block_bytes = f.max_alloc_bytes;
    say_kernels(&f, out->kernels, sizeof out->kernels);
    return BL_OK;
}

static enum bl_status create_device(struct bl_vk_device *d, VkPhysicalDevice phys)
{
    static const char *const extensions[] = {VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME,
                                             VK_KHR_SHADER_INTEGER_DOT_PRODUCT_EXTENSION_NAME};
    const float priority = 1;
    const VkDeviceQueueCreateInfo queue = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                           .queueFamilyIndex = d->facts.family,
                                           .queueCount = 1,
                                           .pQueuePriorities = &priority};
    VkPhysicalDeviceShaderIntegerDotProductFeaturesKHR dots = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES_KHR,
        .shaderIntegerDotProduct = VK_TRUE};
    struct features f;
    set_features(&f);
    if (d->facts.dots)
        f.v12.pNext = &dots;
    const VkDeviceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                     .pNext = &f.core,
                                     .queueCreateInfoCount = 1,
                                     .pQueueCreateInfos = &queue,
                                     .enabledExtensionCount = 1 + d->facts.dots,
                                     .ppEnabledExtensionNames = extensions};
    BL_TRY(bl_vk_check(d->instance.CreateDevice(phys, &info, NULL, &d->dev), d->base.name,
                       "the device cannot be opened"));
    BL_TRY(bl_vk_device_fns(&d->instance, d->dev, &d->vk));
    d->int_dot = wants_int_dot(&d->facts);
    d->vk.GetDeviceQueue(d->dev, d->facts.family, 0, &d->queue);
    return BL_OK;
}

static enum bl_status create_parts(struct bl_vk_device *d)
{
    const VkPushConstantRange push = {.stageFlags = VK_SHADER_STAGE_COMPUTE_BIT,
                                      .size = sizeof(struct bl_vk_args)};
    const VkPipelineLayoutCreateInfo layout = {.sType =
                                                   VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                                               .pushConstantRangeCount = 1,
                                               .pPushConstantRanges = &push};
    const VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                          .queueFamilyIndex = d->facts.family};
    BL_TRY(bl_vk_check(d->vk.CreatePipelineLayout(d->dev, &layout, NULL, &d->layout), d->base.name,
                       "no pipeline layout"));
    return bl_vk_check(d->vk.CreateCommandPool(d->dev, &pool, NULL, &d->pool), d->base.name,
                       "no command pool");
}

void bl_vk_device_close(struct bl_device *dev)
{
    struct bl_vk_device *d = bl_vk_of(dev);

    if (!d)
        return;
    if (d->dev && d->vk.DestroyDevice) {
        bl_vk_mem_free(&d->codebooks);
        for (uint32_t i = 0; i < d->n_pipelines; i++)
            d->vk.DestroyPipeline(d->dev, d->pipeline[i].handle, NULL);
        if (d->pool)
            d->vk.DestroyCommandPool(d->dev, d->pool, NULL);
        if (d->layout)
            d->vk.DestroyPipelineLayout(d->dev, d->layout, NULL);
        d->vk.DestroyDevice(d->dev, NULL);
    }
    bl_vk_instance_close(&d->instance);
    pthread_mutex_destroy(&d->turn);
    free(d->pipeline);
    free(d);
}

enum bl_status bl_vk_open(uint32_t index, const struct bl_device_config *c, struct bl_device **out)
{
    struct bl_vk_device *d = bl_calloc(1, sizeof *d);
    VkPhysicalDevice phys = VK_NULL_HANDLE;
    enum bl_status st;

    if (!d)
        return bl_fail(BL_ENOMEM, "vulkan%u: out of memory", index);
    d->base.ops = &bl_vk_ops;
    d->base.caps = bl_vk_caps(c);
    d->base.unified = c->unified;
    d->base.number = c->number;
    snprintf(d->base.name, sizeof d->base.name, "vulkan%u", index);
    pthread_mutex_init(&d->turn, NULL);
    if ((st = bl_vk_instance_open(&d->instance)) ||
        (st = find_physical(&d->instance, index, &phys, &d->facts)) ||
        (st = create_device(d, phys)) || (st = create_parts(d)) || (st = bl_vk_codebooks_open(d))) {
        bl_vk_device_close(&d->base);
        return st;
    }
    if (c->block_bytes && c->block_bytes < d->facts.max_alloc_bytes)
        d->facts.max_alloc_bytes = c->block_bytes;
    *out = &d->base;
    return BL_OK;
}

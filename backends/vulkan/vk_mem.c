/* SPDX-License-Identifier: MIT */
/* Blocks of memory: the device's own, and the host's as the device sees it. */
#include "vk_device.h"

#include "mem.h"

#include <stdlib.h>

static VkResult allocate_type(const struct bl_vk_device *d, const VkMemoryRequirements *need,
                              uint32_t type, const void *next, VkDeviceMemory *out)
{
    const VkMemoryAllocateFlagsInfo flags = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO,
                                             .pNext = next,
                                             .flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT};
    const VkMemoryAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                       .pNext = &flags,
                                       .allocationSize = need->size,
                                       .memoryTypeIndex = type};
    return d->vk.AllocateMemory(d->dev, &info, NULL, out);
}

static VkResult allocate(const struct bl_vk_device *d, const VkMemoryRequirements *need,
                         bool host_visible, VkDeviceMemory *out)
{
    uint32_t order[VK_MAX_MEMORY_TYPES];
    const uint32_t n = bl_vk_memory_order(&d->facts.memory, d->facts.integrated || d->base.unified,
                                          host_visible, need->memoryTypeBits, order);
    VkResult r = VK_ERROR_OUT_OF_DEVICE_MEMORY;

    for (uint32_t i = 0; r && i < n; i++)
        r = allocate_type(d, need, order[i], NULL, out);
    return r;
}

static VkResult create_buffer(const struct bl_vk_device *d, VkDeviceSize bytes, const void *next,
                              VkBuffer *out)
{
    const VkBufferCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
        .pNext = next,
        .size = bytes,
        .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT |
                 VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT};
    return d->vk.CreateBuffer(d->dev, &info, NULL, out);
}

void bl_vk_block_free(struct bl_vk_device *d, struct bl_vk_block *b)
{
    if (b->buffer)
        d->vk.DestroyBuffer(d->dev, b->buffer, NULL);
    if (b->memory)
        d->vk.FreeMemory(d->dev, b->memory, NULL);
    *b = (struct bl_vk_block){0};
}

static enum bl_status take(struct bl_vk_device *d, bool host_visible, struct bl_mem *out)
{
    struct bl_vk_block *b = out->impl;
    VkMemoryRequirements need;

    BL_TRY(bl_vk_check(create_buffer(d, out->granted_bytes, NULL, &b->buffer), d->base.name,
                       "no buffer"));
    d->vk.GetBufferMemoryRequirements(d->dev, b->buffer, &need);
    const VkResult r = allocate(d, &need, host_visible, &b->memory);
    if (r)
        return bl_fail(BL_ENOMEM, "%s: %zu MiB are not to be had: %s", d->base.name,
                       out->granted_bytes >> 20, bl_vk_result_name(r));
    out->granted_bytes = (size_t)need.size;
    BL_TRY(bl_vk_check(d->vk.BindBufferMemory(d->dev, b->buffer, b->memory, 0), d->base.name,
                       "memory cannot be bound"));
    if (host_visible)
        BL_TRY(bl_vk_check(d->vk.MapMemory(d->dev, b->memory, 0, VK_WHOLE_SIZE, 0, &out->host),
                           d->base.name, "memory cannot be mapped"));
    const VkBufferDeviceAddressInfo at = {.sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO,
                                          .buffer = b->buffer};
    out->addr = d->vk.GetBufferDeviceAddress(d->dev, &at);
    return BL_OK;
}

enum bl_status bl_vk_mem_alloc(struct bl_device *dev, size_t bytes, bool host_visible,
                               struct bl_mem *out)
{
    struct bl_vk_device *d = bl_vk_of(dev);
    const uint64_t granted = bl_align_up(bytes ? bytes : 1, BL_VK_GRANULE);

    if (granted > d->facts.max_alloc_bytes)
        return bl_fail(
            BL_ENOMEM, "%s: a block of %zu MiB is asked for, the driver gives at most %llu",
            dev->name, bytes >> 20, (unsigned long long)(d->facts.max_alloc_bytes >> 20));
    struct bl_mem m = {.dev = dev, .bytes = bytes, .granted_bytes = (size_t)granted};
    m.impl = bl_calloc(1, sizeof(struct bl_vk_block));
    if (!m.impl)
        return bl_fail(BL_ENOMEM, "%s: out of memory", dev->name);
    const enum bl_status st = take(d, host_visible, &m);
    if (st)
        bl_vk_mem_free(&m);
    else
        *out = m;
    return st;
}

void bl_vk_mem_free(struct bl_mem *m)
{
    if (m->impl)
        bl_vk_block_free(bl_vk_of(m->dev), m->impl);
    free(m->impl);
    *m = (struct bl_mem){0};
}

/* ---- the host's ---- */

static enum bl_status import(struct bl_vk_device *d, void *page, size_t bytes,
                             struct bl_vk_block *out)
{
    static const VkExternalMemoryHandleTypeFlagBits kind =
        VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT;
    const VkExternalMemoryBufferCreateInfo external = {
        .sType = VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO, .handleTypes = kind};
    const VkImportMemoryHostPointerInfoEXT pointer = {
        .sType = VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT,
        .handleType = kind,
        .pHostPointer = page};
    VkMemoryHostPointerPropertiesEXT may = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_HOST_POINTER_PROPERTIES_EXT};
    VkMemoryRequirements need;
    VkResult r;

    BL_TRY(bl_vk_check(d->vk.GetMemoryHostPointerPropertiesEXT(d->dev, kind, page, &may),
                       d->base.name, "host memory cannot be used"));
    BL_TRY(
        bl_vk_check(create_buffer(d, bytes, &external, &out->buffer), d->base.name, "no buffer"));
    d->vk.GetBufferMemoryRequirements(d->dev, out->buffer, &need);
    need.size = bytes;
    r = VK_ERROR_INVALID_EXTERNAL_HANDLE;
    for (uint32_t t = 0; r && t < d->facts.memory.memoryTypeCount; t++)
        if (need.memoryTypeBits & may.memoryTypeBits & UINT32_C(1) << t)
            r = allocate_type(d, &need, t, &pointer, &out->memory);
    BL_TRY(bl_vk_check(r, d->base.name, "host memory cannot be imported"));
    return bl_vk_check(d->vk.BindBufferMemory(d->dev, out->buffer, out->memory, 0), d->base.name,
                       "host memory cannot be bound");
}

enum bl_status bl_vk_import(struct bl_vk_device *d, void *host, size_t bytes,
                            struct bl_vk_block *out)
{
    *out = (struct bl_vk_block){0};
    const enum bl_status st = import(d, host, bytes, out);
    if (st)
        bl_vk_block_free(d, out);
    return st;
}

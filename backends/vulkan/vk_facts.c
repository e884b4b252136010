/* SPDX-License-Identifier: MIT */
/* What a device is and where its blocks lie. */
#include "vk_device.h"

#include <stdio.h>

enum {
    NEAR = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT,
    SEEN = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT,
    STRANGE = VK_MEMORY_PROPERTY_LAZILY_ALLOCATED_BIT | VK_MEMORY_PROPERTY_PROTECTED_BIT |
              VK_MEMORY_PROPERTY_DEVICE_COHERENT_BIT_AMD
};

/* ---- identity ---- */

static void name_id(const VkPhysicalDevicePCIBusInfoPropertiesEXT *bus,
                    const VkPhysicalDeviceIDProperties *ids, char *id, size_t cap)
{
    uint32_t hash = UINT32_C(2166136261); /* of 16 bytes, which would fill tables */

    if (bus) {
        snprintf(id, cap, "pci-%04x:%02x:%02x.%x", bus->pciDomain, bus->pciBus, bus->pciDevice,
                 bus->pciFunction);
        return;
    }
    for (uint32_t i = 0; i < VK_UUID_SIZE; i++)
        hash = (hash ^ ids->deviceUUID[i]) * UINT32_C(16777619);
    snprintf(id, cap, "uuid-%08x", hash);
}

static void find_budgets(const struct bl_vk_instance *i, VkPhysicalDevice phys,
                         struct bl_vk_facts *out)
{
    const bool told = bl_vk_has(i, phys, VK_EXT_MEMORY_BUDGET_EXTENSION_NAME);
    VkPhysicalDeviceMemoryBudgetPropertiesEXT budget = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT};
    VkPhysicalDeviceMemoryProperties2 memory = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2,
        .pNext = told ? &budget : NULL};

    i->GetPhysicalDeviceMemoryProperties2(phys, &memory);
    out->memory = memory.memoryProperties;
    for (uint32_t h = 0; told && h < out->memory.memoryHeapCount; h++) {
        const uint64_t used = budget.heapUsage[h], all = budget.heapBudget[h];
        out->budget_bytes[h] = all > used ? all - used : 0;
    }
}

void bl_vk_find_identity(const struct bl_vk_instance *i, VkPhysicalDevice phys,
                         struct bl_vk_facts *out)
{
    const bool on_bus = bl_vk_has(i, phys, VK_EXT_PCI_BUS_INFO_EXTENSION_NAME);
    VkPhysicalDevicePCIBusInfoPropertiesEXT bus = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PCI_BUS_INFO_PROPERTIES_EXT};
    VkPhysicalDeviceIDProperties ids = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES,
                                        .pNext = on_bus ? &bus : NULL};
    VkPhysicalDeviceProperties2 all = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                       .pNext = &ids};

    i->GetPhysicalDeviceProperties2(phys, &all);
    out->integrated = all.properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU ||
                      all.properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU;
    name_id(on_bus ? &bus : NULL, &ids, out->id, sizeof out->id);
    find_budgets(i, phys, out);
}

/* ---- memory types ---- */

/* What is wanted most first. Memory that the host sees is small and written by it (tables, params),
 * or all of it where host and device share theirs: the device's own where the host reaches it,
 * otherwise the host's. Everything else is the device's own, out of the host's sight where there is
 * such, as what the host sees of a card may be a small window. The host's memory never stands in
 * for a card's: a driver that offers it would hide that the card is full. */
static const struct wish {
    bool host_visible, integrated_only;
    uint32_t has, lacks;
} wishes[] = {
    {true, false, NEAR | SEEN, 0}, {true, false, SEEN, 0}, {false, false, NEAR, SEEN},
    {false, false, NEAR, 0},       {false, true, 0, 0},
};

static bool grants(const struct wish *w, uint32_t flags)
{
    return (flags & w->has) == w->has && !(w->lacks && (flags & w->lacks) == w->lacks);
}

uint32_t bl_vk_memory_order(const VkPhysicalDeviceMemoryProperties *m, bool integrated,
                            bool host_visible, uint32_t bits, uint32_t order[VK_MAX_MEMORY_TYPES])
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < BL_COUNT(wishes); i++)
        for (uint32_t t = 0; t < m->memoryTypeCount; t++) {
            const uint32_t flags = m->memoryTypes[t].propertyFlags;
            if (wishes[i].host_visible != host_visible ||
                (wishes[i].integrated_only && !integrated) || !(bits >> t & 1) || flags & STRANGE ||
                !grants(&wishes[i], flags))
                continue;
            order[n++] = t;
            bits &= ~(UINT32_C(1) << t);
        }
    return n;
}

void bl_vk_memory_sum(const struct bl_vk_facts *f, uint64_t *mem_bytes, uint64_t *free_bytes)
{
    const VkPhysicalDeviceMemoryProperties *m = &f->memory;
    uint32_t order[VK_MAX_MEMORY_TYPES], seen = 0;
    const uint32_t n = bl_vk_memory_order(m, f->integrated, f->integrated, UINT32_MAX, order);
    bool told = true;

    *mem_bytes = *free_bytes = 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t heap = m->memoryTypes[order[i]].heapIndex;
        if (seen >> heap & 1)
            continue;
        seen |= UINT32_C(1) << heap;
        /* a window is part of another heap of the same card */
        if (!f->integrated && *mem_bytes >= m->memoryHeaps[heap].size)
            continue;
        *mem_bytes = (f->integrated ? *mem_bytes : 0) + m->memoryHeaps[heap].size;
        *free_bytes = (f->integrated ? *free_bytes : 0) + f->budget_bytes[heap];
        told = told && f->budget_bytes[heap];
    }
    if (!told)
        *free_bytes = 0;
}

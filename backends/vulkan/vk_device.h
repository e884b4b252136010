/* SPDX-License-Identifier: MIT */
/* vk_device.h — an open Vulkan device; private to backends/vulkan.
 *
 * Purpose   what memory, streams and segments of one device share.
 * Ownership a device owns its instance, its pipelines and its pools.
 * Units     bytes.
 * Errors    as the device contract.
 * Threads   as the device contract: one thread at a time per device; submitting takes `turn`.
 */
#ifndef BL_VK_DEVICE_H
#define BL_VK_DEVICE_H

#include "device.h"
#include "vk_api.h"
#include "vk_plan.h"

#include <pthread.h>

enum { BL_VK_SPECS = 7, BL_VK_GROUP = 128 };

/* What is asked of a physical device before it is used, and what it is. */
struct bl_vk_facts {
    char name[VK_MAX_PHYSICAL_DEVICE_NAME_SIZE];
    const char *lacks;           /* NULL: nothing that kernels need */
    bool software;               /* a driver that computes on the CPU */
    uint32_t family;             /* of queues that compute */
    uint32_t subgroup, narrowest; /* largest and least size */
    uint32_t max_groups;         /* of a dispatch, along each axis */
    uint64_t max_alloc_bytes;
    uint64_t import_align;       /* of host memory; 0: cannot be imported */
    VkPhysicalDeviceMemoryProperties memory;
};
struct bl_vk_pipeline {
    uint32_t kernel;             /* index of its source */
    uint32_t spec[BL_VK_SPECS];
    VkPipeline handle;
};
struct bl_vk_device {
    struct bl_device base;       /* first */
    struct bl_vk_instance instance;
    struct bl_vk_fns vk;
    struct bl_vk_facts facts;
    VkDevice dev;
    VkQueue queue;
    pthread_mutex_t turn;        /* on the queue */
    VkCommandPool pool;          /* of segments */
    VkPipelineLayout layout;
    struct bl_vk_pipeline *pipeline;
    uint32_t n_pipelines, cap_pipelines;
    struct bl_mem codebooks;
};
static inline struct bl_vk_device *bl_vk_of(struct bl_device *dev)
{
    return (struct bl_vk_device *)dev;
}

void bl_vk_device_close(struct bl_device *);

/* ---- vk_mem.c ---- */

struct bl_vk_block {
    VkBuffer buffer;
    VkDeviceMemory memory;
};
enum bl_status bl_vk_mem_alloc(struct bl_device *, size_t bytes, bool host_visible, struct bl_mem *out);
void bl_vk_mem_free(struct bl_mem *);
/* Host memory as a buffer to copy from and to: whole pages around [host, host + bytes). *off: of host in the buffer. */
enum bl_status bl_vk_import(struct bl_vk_device *, void *host, size_t bytes, struct bl_vk_block *out);
void bl_vk_block_free(struct bl_vk_device *, struct bl_vk_block *);

/* ---- vk_device.c ---- */

enum bl_status bl_vk_count(uint32_t *n);
enum bl_status bl_vk_open(uint32_t index, const struct bl_device_config *, struct bl_device **out);

/* ---- vk_kernels.c: pipelines, made when first used ---- */

struct bl_vk_source {
    const char *name;            /* "matvec.q4_k" */
    const uint32_t *words;
    size_t bytes;
};
extern const struct bl_vk_source bl_vk_sources[];  /* sorted by name */
extern const uint32_t bl_vk_n_sources;
/* Of "name", or of "name.type" for a kernel that decodes one; bl_vk_n_sources: there is none. */
uint32_t bl_vk_kernel_find(const char *name, int type);
enum { BL_VK_NO_TYPE = -1 };
enum bl_status bl_vk_pipeline_get(struct bl_vk_device *, uint32_t kernel, const uint32_t spec[BL_VK_SPECS],
                                  VkPipeline *out);

/* ---- vk_codebooks.c ---- */

enum bl_status bl_vk_codebooks_open(struct bl_vk_device *);
uint64_t bl_vk_codebook(const struct bl_vk_device *, int type); /* address; 0: the type has none */

/* ---- vk_stream.c ---- */

extern const struct bl_device_ops bl_vk_ops;
/* Everything before comes before everything behind, on the device and on the host. */
void bl_vk_barrier(const struct bl_vk_device *, VkCommandBuffer);

/* ---- vk_segment.c ---- */

enum bl_status bl_vk_segment_build(struct bl_device *, const struct bl_graph *, const struct bl_bound *, uint32_t n,
                                   const struct bl_mem *scratch, const struct bl_mem *params, struct bl_segment **out);
void bl_vk_segment_free(struct bl_segment *);
VkCommandBuffer bl_vk_segment_commands(const struct bl_segment *);

#endif

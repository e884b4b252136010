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
    char id[32];                 /* stable: of the bus, or of the driver */
    bool software;               /* a driver that computes on the CPU */
    bool integrated;             /* its memory is the host's */
    bool dots, fast_dots;        /* it multiplies four bytes with four at once; as fast as anything */
    uint32_t family;             /* of queues that compute */
    uint32_t tick_bits;          /* of its timestamps; 0: there are none */
    double tick_ns;
    uint32_t subgroup, narrowest; /* largest and least size */
    uint32_t max_groups;         /* of a dispatch, along each axis */
    uint64_t max_alloc_bytes;
    uint64_t import_align;       /* of host memory; 0: cannot be imported */
    VkPhysicalDeviceMemoryProperties memory;
    uint64_t budget_bytes[VK_MAX_MEMORY_HEAPS]; /* of each heap, what is left; 0: not known */
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
    bool int_dot;                /* weights meet activations as bytes, unless the plan is exact */
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

/* ---- vk_facts.c ---- */

/* Which device it is, its heaps and what is left of them. */
void bl_vk_find_identity(const struct bl_vk_instance *, VkPhysicalDevice, struct bl_vk_facts *out);
/* The memory types of `bits` that a block may lie in, the best first; returns how many. Pure. */
uint32_t bl_vk_memory_order(const VkPhysicalDeviceMemoryProperties *, bool integrated, bool host_visible, uint32_t bits,
                            uint32_t order[VK_MAX_MEMORY_TYPES]);
/* Of what such blocks can have: all there is, and what is left as far as drivers tell (0). */
void bl_vk_memory_sum(const struct bl_vk_facts *, uint64_t *mem_bytes, uint64_t *free_bytes);

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
enum bl_status bl_vk_describe(uint32_t index, struct bl_device_facts *out);
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

/* ---- vk_trace.c: when commands of a stream were done ---- */

struct bl_vk_mark {              /* of a command, in the order they were enqueued */
    bool timed;                  /* begin and end are queries 2k, 2k + 1 of the pool */
    _Atomic uint64_t passed_ns;  /* otherwise: by the host's clock, when it was over; 0: at once */
};
struct bl_vk_trace {             /* zeroed: nothing is noted */
    struct bl_lapse_log *log;    /* NULL: off */
    VkQueryPool pool;
    struct bl_vk_mark *mark;     /* [cap] */
    uint32_t cap, n;             /* commands */
    bool reset_due;              /* the pool, before it is written again */
    uint64_t zero_tick, zero_ns, span_ns; /* the same moment on both clocks, known to half the span */
    uint64_t began_ns;           /* when noting began */
};
#define BL_VK_NO_MARK UINT32_MAX
/* Room for the log's commands and one that sets the clock. */
enum bl_status bl_vk_trace_begin(const struct bl_vk_device *, struct bl_vk_trace *, struct bl_lapse_log *);
/* Number of the next command; BL_VK_NO_MARK: it is not noted, and may be given to what follows. */
uint32_t bl_vk_trace_next(struct bl_vk_trace *, bool timed);
void bl_vk_trace_stamp(const struct bl_vk_device *, struct bl_vk_trace *, VkCommandBuffer, uint32_t k, bool end);
void bl_vk_trace_passed(struct bl_vk_trace *, uint32_t k);
/* Of the command that sets the clock, which is done: it was handed over and waited for between these times. */
void bl_vk_trace_set_clock(const struct bl_vk_device *, struct bl_vk_trace *, uint32_t k, uint64_t from_ns, uint64_t to_ns);
bool bl_vk_trace_clock_is_old(struct bl_vk_trace *);
void bl_vk_trace_end(const struct bl_vk_device *, struct bl_vk_trace *); /* into the log; the stream is idle */
void bl_vk_trace_finish(const struct bl_vk_device *, struct bl_vk_trace *);

/* ---- vk_segment.c ---- */

enum bl_status bl_vk_segment_build(struct bl_device *, const struct bl_graph *, const struct bl_bound *, uint32_t n,
                                   const struct bl_mem *scratch, const struct bl_mem *params, struct bl_segment **out);
void bl_vk_segment_free(struct bl_segment *);
VkCommandBuffer bl_vk_segment_commands(const struct bl_segment *);

#endif

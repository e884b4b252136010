/* SPDX-License-Identifier: MIT */
/* vk_ops.h — how nodes become dispatches; private to backends/vulkan.
 *
 * Purpose   every op has a row: the calls it is made of; vk_plan.h says which nodes can be run, and with what scratch. The
 *           builder puts a barrier before a call only where it would meet bytes of an earlier one.
 * Ownership none: addresses are borrowed.
 * Units     bytes.
 * Errors    emit reports through the builder, which keeps the first failure.
 * Threads   building: one.
 */
#ifndef BL_VK_OPS_H
#define BL_VK_OPS_H

#include "vk_device.h"
#include "vk_plan.h"

/* As shaders/vulkan/bl.glsl has them. The last two numbers are the address of the codebook of the call's type. */
enum { BL_VK_ADDRS = 10, BL_VK_NUMS = 12 };
struct bl_vk_args {
    uint64_t a[BL_VK_ADDRS];
    uint32_t n[BL_VK_NUMS];
};
static inline uint32_t bl_vk_float(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

enum { BL_VK_RANGES = 256 };
struct bl_vk_range { uint64_t first, end; bool written; };
/* Activations that lie as bytes at the start of scratch, until something is written over either. */
struct bl_vk_quantised {
    uint64_t from, from_end, end; /* x; end of the bytes, 0: there are none */
    uint32_t k;                   /* elements of a row */
};
struct bl_vk_builder {
    struct bl_vk_device *dev;
    const struct bl_graph *graph;
    const struct bl_node *node;
    const struct bl_bound *bound;
    uint64_t params, scratch, scratch_bytes;
    VkCommandBuffer cmd;
    struct bl_vk_range range[BL_VK_RANGES]; /* met since the last barrier */
    uint32_t n_ranges, n_earlier;           /* of them by earlier calls than the one in hand */
    bool barrier;                           /* one is due before the next call */
    struct bl_vk_quantised quantised;
    enum bl_status status;
};

const struct bl_value *bl_vk_src(const struct bl_vk_builder *, unsigned i);
const struct bl_value *bl_vk_dst(const struct bl_vk_builder *, unsigned i);
const void *bl_vk_attr(const struct bl_vk_builder *);
/* Addresses; of an absent source 0. reads and writes declare the whole value, scratch what a call touches of it. */
uint64_t bl_vk_weight(struct bl_vk_builder *, unsigned src);
uint64_t bl_vk_reads(struct bl_vk_builder *, unsigned src);
uint64_t bl_vk_writes(struct bl_vk_builder *, unsigned dst);
uint64_t bl_vk_scratch(struct bl_vk_builder *, uint64_t off, uint64_t bytes, bool write);
/* For addresses that the above gave before, and another call meets. */
void bl_vk_touch(struct bl_vk_builder *, uint64_t addr, uint64_t bytes, bool write);

struct bl_vk_call {
    const char *kernel;
    int type;                               /* of its weights, or BL_VK_NO_TYPE */
    uint32_t spec[BL_VK_SPECS];
    struct bl_vk_args args;
    uint32_t groups[3];                     /* 0 counts as 1 */
};
void bl_vk_emit(struct bl_vk_builder *, const struct bl_vk_call *);
static inline uint32_t bl_vk_groups(uint64_t n, uint32_t each)
{
    return (uint32_t)((n + each - 1) / each);
}
/* Dispatches that a call must be divided into whose invocations take n turns of loops in all, nested ones counted each:
 * drivers that compute on the CPU (gallivm) end every loop after some 65,000 and say nothing. Elsewhere 1. */
uint32_t bl_vk_passes(const struct bl_vk_builder *, uint64_t n);
/* Whether weights of the type meet activations as bytes here. */
bool bl_vk_by_bytes(const struct bl_vk_builder *, uint8_t type);
/* The address of n_tok times `rows` rows of k floats at x as bytes, at the start of scratch; made unless they are there. */
uint64_t bl_vk_quantise(struct bl_vk_builder *, uint64_t x, uint32_t k, uint32_t rows, uint32_t n_tok);
/* Rows of a matrix that a work group of dot.glsl takes, at the least. */
uint32_t bl_vk_dot_rows(const struct bl_vk_device *);

struct bl_vk_op {
    void (*emit)(struct bl_vk_builder *);   /* NULL: the op is not known here */
};
const struct bl_vk_op *bl_vk_op_of(const struct bl_node *);
extern const struct bl_vk_op bl_vk_matmul, bl_vk_matmul_heads, bl_vk_attention, bl_vk_route, bl_vk_experts;
extern const struct bl_vk_op bl_vk_short_conv, bl_vk_delta_rule, bl_vk_compress;
extern const struct bl_vk_op bl_vk_stream_weights, bl_vk_stream_read, bl_vk_stream_write, bl_vk_round, bl_vk_hadamard,
    bl_vk_choose;

#endif

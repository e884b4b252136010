/* SPDX-License-Identifier: MIT */
/* simt_ops.h — how nodes become launches; private to backends/simt.
 *
 * Purpose   every op has a row: whether the device can run the node, what scratch that takes, and the launches it is made
 *           of. Launches of a segment run in the order in which they are emitted, each after the one before has ended.
 * Ownership none: addresses are borrowed, arguments copied.
 * Units     bytes.
 * Errors    emit reports through the builder, which keeps the first failure.
 * Threads   building: one.
 */
#ifndef BL_SIMT_OPS_H
#define BL_SIMT_OPS_H

#include "device.h"
#include "simt/simt_args.h"

/* ---- kernels ---- */

/* Rows of shaders/simt/kernels.def, KERNEL(unit, name): name is the symbol, unit the .cu file that has it. A kernel for one
 * type of weights is called "name__type", the type as in dtype.def but in small letters. Rows are sorted by name. */
enum bl_simt_kernel {
#define KERNEL(unit, name) BL_SIMT_##name,
#include "simt/kernels.def"
#undef KERNEL
    BL_SIMT_N_KERNELS
};
struct bl_simt_kernel_row {
    const char *unit, *name;
};
extern const struct bl_simt_kernel_row bl_simt_kernels[BL_SIMT_N_KERNELS];
/* Of "name", or of "name__type"; BL_SIMT_N_KERNELS: there is none. */
enum { BL_SIMT_NO_TYPE = -1 };
uint32_t bl_simt_kernel_find(const char *name, int type);

/* ---- devices ---- */

enum bl_simt_dialect { BL_SIMT_CUDA, BL_SIMT_HIP };
/* Of an open device. What scratch a node takes depends on none of it. */
struct bl_simt_limits {
    uint8_t vendor;          /* enum bl_simt_dialect */
    uint8_t warp;            /* 32 or 64 */
    uint32_t arch;           /* CUDA: 10 * major + minor, 86. HIP: the digits behind gfx in base 16, 0x1100, 0x90a */
    uint32_t units;          /* multiprocessors */
    uint32_t max_threads;    /* of a block */
    uint32_t shared_bytes;   /* of a block, static and dynamic together, at the most that can be asked for */
    uint32_t max_grid[3];
};

/* ---- building ---- */

struct bl_simt_launch {      /* what a segment is made of */
    uint32_t kernel;         /* enum bl_simt_kernel */
    uint32_t grid[3], block[3], shared_bytes;
    struct bl_simt_args args;
};
struct bl_simt_builder {
    const struct bl_simt_limits *limits;
    const char *device;      /* its name, for messages */
    bool exact;              /* float weights and activations */
    const struct bl_graph *graph;
    const struct bl_node *node;
    const struct bl_bound *bound;
    uint64_t params, scratch, scratch_bytes;
    const uint32_t *uses;    /* [n_vals] sources of the graph that are the value; its result counts as one */
    struct bl_simt_launch *launch;
    uint32_t n_launches, cap_launches;
    enum bl_status status;
};
static inline void bl_simt_stand(struct bl_simt_builder *b, const struct bl_bound *at)
{
    b->node = at->node;
    b->bound = at;
}
const struct bl_value *bl_simt_src(const struct bl_simt_builder *, unsigned i);
const struct bl_value *bl_simt_dst(const struct bl_simt_builder *, unsigned i);
const void *bl_simt_attr(const struct bl_simt_builder *);
/* Addresses; of an absent source 0. scratch: fails where what is asked for exceeds what was planned. */
uint64_t bl_simt_src_addr(const struct bl_simt_builder *, unsigned src);
uint64_t bl_simt_dst_addr(const struct bl_simt_builder *, unsigned dst);
uint64_t bl_simt_scratch(struct bl_simt_builder *, uint64_t off, uint64_t bytes);

struct bl_simt_call {
    const char *kernel;
    int type;                /* of its weights, or BL_SIMT_NO_TYPE */
    uint32_t grid[3], block[3]; /* 0 counts as 1 */
    uint32_t shared_bytes;   /* dynamic */
    struct bl_simt_args args;
};
void bl_simt_emit(struct bl_simt_builder *, const struct bl_simt_call *);
static inline uint32_t bl_simt_groups(uint64_t n, uint32_t each)
{
    return (uint32_t)((n + each - 1) / each);
}
static inline uint32_t bl_simt_float(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

/* ---- simt_fuse.c ---- */

/* Emits as one launch, or as fewer, the nodes that the n begin with; returns how many, 0: the first is to go alone. */
uint32_t bl_simt_fuse(struct bl_simt_builder *, const struct bl_bound *, uint32_t n);

/* ---- the table ---- */

struct bl_simt_op {
    bool (*supports)(const struct bl_graph *, const struct bl_node *);    /* NULL: always */
    uint64_t (*scratch)(const struct bl_graph *, const struct bl_node *); /* NULL: none */
    void (*emit)(struct bl_simt_builder *);
};
const struct bl_simt_op *bl_simt_op_of(const struct bl_node *); /* NULL: the op is not known here */

bool bl_simt_supports(const struct bl_caps *, const struct bl_graph *, const struct bl_node *);
uint64_t bl_simt_scratch_bytes(const struct bl_caps *, const struct bl_graph *, const struct bl_node *);

#endif

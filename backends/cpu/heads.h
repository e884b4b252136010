/* SPDX-License-Identifier: MIT */
/* heads.h — the two forms of MATMUL_HEADS: for few tokens and, in panels, for many; private to backends/cpu.
 *
 * Purpose   what both share.
 * Ownership as segment.h.
 * Units     elements and bytes.
 * Errors    none.
 * Threads   as segment.h.
 */
#ifndef BL_CPU_HEADS_H
#define BL_CPU_HEADS_H

#include "operand.h"

struct bl_heads_args {
    const struct bl_matmul_kernel *kernel;
    const uint8_t *w, *x;
    const float *scale;
    float *y;
    size_t w_stride, head_stride; /* bytes from row to row, from head to head */
    size_t x_stride, x_head;      /* bytes from token to token, from head to head */
    uint32_t k, n, heads, chunk;  /* a head's elements of a row of w, rows of w */
    uint32_t scale_step;          /* 0: one scale for all heads */
    uint8_t rows, type;
    bool transposed;
};
void bl_heads_scale(const struct bl_heads_args *, uint32_t head, uint32_t n, float *y);
/* Steps: as it lies, transposed. */
void bl_heads_dots(const void *args, const struct bl_cpu_job *);
void bl_heads_transposed(const void *args, const struct bl_cpu_job *);

/* x with every head as dots want it, by a step of its own where it must be quantised; returns where. */
uint64_t bl_heads_vectors(struct bl_cpu_builder *);
/* Arguments of the step in hand, which reads those; that it writes y is yet to be declared. */
void bl_heads_fill(struct bl_cpu_builder *, struct bl_heads_args *, uint64_t vectors);
uint64_t bl_heads_vector_bytes(const struct bl_caps *, const struct bl_heads_attr *, const struct bl_value *w);

/* In panels. */
bool bl_heads_are_many(const struct bl_caps *, const struct bl_graph *, const struct bl_node *);
uint64_t bl_heads_many_bytes(const struct bl_caps *, const struct bl_graph *, const struct bl_node *); /* beside vectors */
void bl_heads_many(struct bl_cpu_builder *);

#endif

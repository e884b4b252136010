/* SPDX-License-Identifier: MIT */
/* matmul.h — the two forms of MATMUL: row by row for few tokens, in panels for many; private to backends/cpu.
 *
 * Purpose   what both share. Which form a node takes is decided when its segment is built; a segment made for many
 *           tokens that gets few, as for the logits of some of them, falls back.
 * Ownership as segment.h.
 * Units     elements and bytes.
 * Errors    none.
 * Threads   as segment.h.
 */
#ifndef BL_CPU_MATMUL_H
#define BL_CPU_MATMUL_H

#include "deal.h"
#include "operand.h"

struct bl_cpu_matmul_args {
    const struct bl_matmul_kernel *kernel;
    const uint8_t *w, *x;
    float *y;
    const float *bias, *scale;
    size_t w_stride, x_stride;
    uint32_t k, n, chunk, tile;
    uint32_t unit; /* rows taken at a time, whole chunks */
    uint8_t rows;
    const struct bl_cpu_matmul_args *next; /* whose weights come after, NULL: not known */
};
/* All but y, which the step in hand is yet to be said to write. */
struct bl_cpu_matmul_args bl_cpu_matmul_of(const struct bl_cpu_builder *, struct bl_cpu_operand);
void bl_cpu_matmul_dots(const void *args, const struct bl_cpu_job *);
void bl_cpu_scale_and_bias(const struct bl_cpu_matmul_args *, float *y, uint32_t row, uint32_t n);

/* In panels. */
void bl_cpu_matmul_many(struct bl_cpu_builder *);

#endif

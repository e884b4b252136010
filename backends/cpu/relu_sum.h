/* SPDX-License-Identifier: MIT */
/* relu_sum.h — what a tile of scores adds to its rows' scores; included by one file of each instruction set.
 *
 * Purpose   weighted sums of a tile's queries, what is negative left out: how CHOOSE scores rows.
 * Ownership as cpu_kernels.h.
 * Units     as cpu_kernels.h.
 * Errors    none.
 * Threads   pure.
 */
#ifndef BL_RELU_SUM_H
#define BL_RELU_SUM_H

#include "cpu_kernels.h"

/* x where x is positive or not a number, else 0. */
BL_ALWAYS_INLINE bl_lanes not_negative(bl_lanes x)
{
    typedef int32_t bits __attribute__((vector_size(sizeof x)));
    const bits negative = x < (bl_lanes){0};
    return (bl_lanes)((bits)x & ~negative);
}

static void relu_sum(uint32_t m, float *y, const float *a, const float *x)
{
    for (uint32_t i = 0; i < BL_TILE_PANEL; i += 2 * BL_LANES) {
        bl_lanes *out = (bl_lanes *)(void *)(y + i), s0 = out[0], s1 = out[1];
        for (uint32_t j = 0; j < m; j++) {
            const bl_lanes *row = (const bl_lanes *)(const void *)(x + (size_t)j * BL_TILE_KEYS + i);
            s0 += a[j] * not_negative(row[0]);
            s1 += a[j] * not_negative(row[1]);
        }
        out[0] = s0;
        out[1] = s1;
    }
}

#endif

/* SPDX-License-Identifier: MIT */
/* scalar.h — the portable dot products behind bl_cpu_scalar and bl_cpu_exact.
 *
 * Purpose   one loop for all weight types, in two files: with quantised and with float activations.
 * Ownership none.
 * Units     k in elements, w_stride in bytes.
 * Errors    none; as cpu_kernels.h.
 * Threads   pure.
 */
#ifndef BL_SCALAR_H
#define BL_SCALAR_H

#include "cpu_kernels.h"

/* Fills the entries of every type that is a weight, by its law. */
void bl_scalar_dots(struct bl_matmul_kernel matmul[BL_N_DTYPES]);
/* Fills delta_chunk, short_conv and relu_sum. */
void bl_scalar_recurrent(struct bl_cpu_kernels *);
/* Fills rows[] and tile. */
void bl_scalar_tiles(struct bl_cpu_kernels *);
/* Panels of floats for them. */
void bl_scalar_panels(struct bl_cpu_kernels *);

/* out[r] = dot(decoded row r of w, x), summed in double in a fixed order. */
void bl_scalar_dot_decoded(enum bl_dtype, uint32_t k, uint32_t rows, float *out, const void *w,
                           size_t w_stride, const float *x);
/* The sum of a[i] * b[i], in double; exact products, eight partial sums. */
double bl_scalar_dot_f32(uint32_t n, const float *a, const float *b);

#endif

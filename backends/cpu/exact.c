/* SPDX-License-Identifier: MIT */
/* The float reference, `--exact`: weights decoded, activations and sums never quantised. */
#include "scalar.h"

#define X(e, id, name, elems, bytes, law)                                                          \
    static void dot_##e(uint32_t k, uint32_t rows, float *out, const void *w, size_t w_stride,     \
                        const void *x, const void *next)                                           \
    {                                                                                              \
        (void)next;                                                                                \
        bl_scalar_dot_decoded(BL_##e, k, rows, out, w, w_stride, x);                               \
    }
#include "dtype.def"
#undef X

void bl_cpu_exact(struct bl_cpu_kernels *kernels)
{
    static const struct bl_matmul_kernel dots[BL_N_DTYPES] = {
#define X(e, id, name, elems, bytes, law)                                                          \
    [BL_##e] = {"dot_" name "_f32_1__exact", dot_##e, BL_ACT_F32, 1},
#include "dtype.def"
#undef X
    };
    bl_cpu_scalar(kernels);
    kernels->tile = (struct bl_tile_kernel){0}; /* attention by single queries */
    for (unsigned t = 0; t < BL_N_DTYPES; t++)
        if (kernels->matmul[t].dot)
            kernels->matmul[t] = dots[t];
    kernels->delta_chunk = (struct bl_delta_kernel){0};
    memset(kernels->panel, 0, sizeof kernels->panel); /* sums in float are no reference */
}

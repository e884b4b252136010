/* SPDX-License-Identifier: MIT */
/* The delta rule in chunks, short convolutions and scores of rows, in vectors that every compiler
 * knows; products and sums may be contracted here. */
#include "delta_chunk.h"
#include "relu_sum.h"
#include "scalar.h"
#include "short_conv.h"

void bl_scalar_recurrent(struct bl_cpu_kernels *t)
{
    t->delta_chunk_name = "delta_chunk_f32_f32_4__scalar";
    t->delta_chunk = delta_chunk;
    t->conv_name = "short_conv_f32_f32_1__scalar";
    t->short_conv = short_conv;
    t->relu_sum_name = "relu_sum_f32_f32_4__scalar";
    t->relu_sum = relu_sum;
}

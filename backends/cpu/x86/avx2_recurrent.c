/* SPDX-License-Identifier: MIT */
#include "../delta_chunk.h"
#include "../relu_sum.h"
#include "../short_conv.h"
#include "isa.h"

void bl_cpu_avx2_recurrent(struct bl_cpu_kernels *t)
{
    t->delta_chunk_name = "delta_chunk_f32_f32_4__avx2";
    t->delta_chunk = delta_chunk;
    t->conv_name = "short_conv_f32_f32_1__avx2";
    t->short_conv = short_conv;
    t->relu_sum_name = "relu_sum_f32_f32_8__avx2";
    t->relu_sum = relu_sum;
}

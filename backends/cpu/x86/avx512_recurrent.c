/* SPDX-License-Identifier: MIT */
#include "../delta_chunk.h"
#include "../short_conv.h"
#include "isa.h"

void bl_cpu_avx512_recurrent(struct bl_cpu_kernels *t)
{
    t->delta_chunk_name = "delta_chunk_f32_f32_8__avx512";
    t->delta_chunk = delta_chunk;
    t->conv_name = "short_conv_f32_f32_1__avx512";
    t->short_conv = short_conv;
}

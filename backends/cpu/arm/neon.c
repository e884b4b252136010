/* SPDX-License-Identifier: MIT */
/* The kernels of 64-bit Arm with dot products, over the scalar ones. */
#include "neon.h"

void bl_cpu_neon(struct bl_cpu_kernels *t)
{
    bl_cpu_neon_dot32(t);
    bl_cpu_neon_kquant(t);
    bl_cpu_neon_iquant(t);
    bl_cpu_neon_panel(t);
    bl_cpu_neon_panel_f32(t);
}

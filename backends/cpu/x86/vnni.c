/* SPDX-License-Identifier: MIT */
/* The tables of the tiers with vpdpbusd in 256 bits: over those of AVX2, whatever multiplies bytes.
 */
#include "isa.h"

void bl_cpu_avxvnni(struct bl_cpu_kernels *t)
{
    bl_cpu_avxvnni_dot32(t);
    bl_cpu_avxvnni_kquant(t);
    bl_cpu_avxvnni_iquant(t);
    bl_cpu_avxvnni_lowbit(t);
    bl_cpu_avxvnni_panel(t);
}
void bl_cpu_vnni256(struct bl_cpu_kernels *t)
{
    bl_cpu_vnni256_dot32(t);
    bl_cpu_vnni256_kquant(t);
    bl_cpu_vnni256_iquant(t);
    bl_cpu_vnni256_lowbit(t);
    bl_cpu_vnni256_panel(t);
}

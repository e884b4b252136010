/* SPDX-License-Identifier: MIT */
/* Panels of the float types, with fused multiplication and addition. */
#define BL_PANEL_ISA "12__neon"
#define BL_PANEL_TOKENS 12
#include "../panel_f32.h"
#include "neon.h"

void bl_cpu_neon_panel_f32(struct bl_cpu_kernels *t)
{
    /* the portable decoder of half floats takes longer than that of the others */
    t->panel[BL_F32] = panel_of(BL_F32, BL_ACT_F32, 12);
    t->panel[BL_BF16] = panel_of(BL_BF16, BL_ACT_F32, 16);
    t->panel[BL_F16] = panel_of(BL_F16, BL_ACT_F32, 24);
}

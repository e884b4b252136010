/* SPDX-License-Identifier: MIT */
#define BL_PANEL_ISA "6__avx2"
#define BL_PANEL_TOKENS 6
#include "../panel_f32.h"
#include "../scalar.h"
#include "isa.h"

/* From how many tokens on panels are faster than dots: Zen 5, one thread, 512 rows of 2048, G
 * multiplications a second. Panels of floats come to 20 with 16 tokens, 40 with 64, 53 with 256,
 * whatever the type; dots to 20 (F32) and 28 (BF16, F16), to 30 (Q5_0, Q5_1), 40 (Q4_0, Q4_1,
 * Q3_K), 45 (Q8_0, Q5_K, Q6_K), 56 (Q2_K, Q4_K: never), 2 where they are the scalar ones. */
enum { NEVER = UINT8_MAX, FROM_SCALAR = 2, FROM = 96 };
static const uint8_t from[BL_N_DTYPES] = {
    [BL_F32] = 12,   [BL_BF16] = 20,    [BL_F16] = 48,     [BL_Q5_0] = 64,  [BL_Q5_1] = 64,
    [BL_Q4_0] = 112, [BL_Q4_1] = 112,   [BL_Q3_K] = 112,   [BL_Q8_0] = 160, [BL_Q5_K] = 144,
    [BL_Q6_K] = 160, [BL_Q2_K] = NEVER, [BL_Q4_K] = NEVER,
};

void bl_cpu_avx2_panel_f32(struct bl_cpu_kernels *t)
{
    struct bl_matmul_kernel scalar[BL_N_DTYPES];
    bl_scalar_dots(scalar);
    for (unsigned type = 0; type < BL_N_DTYPES; type++) {
        const bool is_scalar = t->matmul[type].dot == scalar[type].dot;
        const uint8_t n = is_scalar ? FROM_SCALAR : from[type] ? from[type] : FROM;
        t->panel[type] = (struct bl_panel_kernel){0};
        if (t->matmul[type].dot && n != NEVER)
            t->panel[type] = panel_of(type, t->matmul[type].act, n);
    }
}

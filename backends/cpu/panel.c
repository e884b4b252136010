/* SPDX-License-Identifier: MIT */
/* Panels for any processor: rows are decoded once for all tokens, not once for each. */
#include "panel_f32.h"
#include "scalar.h"

enum { FROM = 2 };

void bl_scalar_panels(struct bl_cpu_kernels *t)
{
    for (unsigned type = 0; type < BL_N_DTYPES; type++)
        if (t->matmul[type].dot)
            t->panel[type] = panel_of(type, t->matmul[type].act, FROM);
}

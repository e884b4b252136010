/* SPDX-License-Identifier: MIT */
/* short_conv.h — sums over the last few tokens; included by one file of each instruction set.
 *
 * Purpose   a plain loop that compilers make into vectors: all models that are known have four taps.
 * Ownership as cpu_kernels.h.
 * Units     as cpu_kernels.h.
 * Errors    none.
 * Threads   pure.
 */
#ifndef BL_SHORT_CONV_H
#define BL_SHORT_CONV_H

#include "cpu_kernels.h"

static void conv_4(uint32_t n, float *restrict y, const float *const row[4], const float *w)
{
    const float *const a = row[0], *const b = row[1], *const c = row[2], *const d = row[3];
    for (uint32_t i = 0; i < n; i++)
        y[i] = w[4 * i] * a[i] + w[4 * i + 1] * b[i] + w[4 * i + 2] * c[i] + w[4 * i + 3] * d[i];
}

static void short_conv(uint32_t n, uint32_t taps, float *restrict y, const float *const *row, const float *w)
{
    if (taps == 4) {
        conv_4(n, y, row, w);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        y[i] = w[(size_t)i * taps] * row[0][i];
    for (uint32_t j = 1; j < taps; j++)
        for (uint32_t i = 0; i < n; i++)
            y[i] += w[(size_t)i * taps + j] * row[j][i];
}

#endif

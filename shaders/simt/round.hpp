/* SPDX-License-Identifier: MIT */
/* round.hpp — runs of elements as a model saw them in training.
 *
 * Purpose   HADAMARD and ROUND, for the kernels of their own and for those that take them along.
 * Ownership none.
 * Units     elements.
 * Errors    none.
 * Threads   as each says.
 */
#ifndef BL_SIMT_ROUND_HPP
#define BL_SIMT_ROUND_HPP

#include "simt/simt.hpp"

/* Shared v, whose elements i, i + THREADS, ... thread i has written, times the Walsh-Hadamard matrix in natural order, over the
 * root of its length, a power of two; thread i has written the same when it returns. */
template <uint32_t THREADS> BL_DEV void hadamard_run(float *v, uint32_t n)
{
    for (uint32_t half_n = 1; half_n < n; half_n *= 2) {
        sync();
        for (uint32_t pair = thread_x(); pair < n / 2; pair += THREADS) {
            const uint32_t i = pair / half_n * 2 * half_n + pair % half_n;
            const float a = v[i], b = v[i + half_n];
            v[i] = a + b;
            v[i + half_n] = a - b;
        }
    }
    sync();
    for (uint32_t i = thread_x(); i < n; i += THREADS)
        v[i] /= sqrtf(static_cast<float>(n));
}

BL_DEV int exponent_of(float x)
{
    return static_cast<int>(bits_as<uint32_t>(x) >> 23 & 255u) - 127;
}

/* To the nearest, of two equally near to the one that is even. */
BL_DEV float round_to(float most, int digits, int lowest, float x)
{
    const int own = exponent_of(x), e = (own > lowest ? own : lowest) - digits;
    return fminf(fmaxf(ldexpf(rintf(ldexpf(x, -e)), e), -most), most);
}

/* Elements [first, end), by one thread: to floats of kind 0, E4M3, or 1, E2M1, times a power of two. y may be x. */
BL_DEV void round_group(float *y, const float *x, uint32_t first, uint32_t end, uint32_t kind)
{
    const bool wide = kind == 0;
    const float most = wide ? 448 : 6;
    float amax = wide ? 1e-4f : ldexpf(6.0f, -126);
    for (uint32_t i = first; i < end; i++)
        amax = fmaxf(amax, fabsf(x[i]));
    const float scale = amax / most;
    const int e = exponent_of(scale) + ((bits_as<uint32_t>(scale) & 0x7fffffu) != 0 ? 1 : 0);
    for (uint32_t i = first; i < end; i++)
        y[i] = ldexpf(round_to(most, wide ? 3 : 1, wide ? -6 : 0, ldexpf(x[i], -e)), e);
}

#endif

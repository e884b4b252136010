/* SPDX-License-Identifier: MIT */
/* Ops that need a run of elements as a whole: RMS_NORM, STREAM_WEIGHTS, HADAMARD, ROUND. */
#include "simt/params.hpp"

constexpr uint32_t THREADS = 256;

/* a: x, [w], y   n: elements of a run, eps, runs   grid: runs, tokens */
BL_KERNEL(rms_norm, THREADS)
{
    BL_SHARED float part[THREADS / BL_WARP];
    const uint32_t n = p.n[0];
    const uint64_t first = static_cast<uint64_t>(n) * (block_y() * p.n[2] + block_x());
    const float *x = floats(p.a[0]) + first, *w = floats(p.a[1]);
    float *y = floats(p.a[2]) + first, sum = 0;
    for (uint32_t i = thread_x(); i < n; i += THREADS)
        sum = fmaf(x[i], x[i], sum);
    const float scale = 1 / sqrtf(sum_block<THREADS>(sum, part) / static_cast<float>(n) + num(p, 1));
    for (uint32_t i = thread_x(); i < n; i += THREADS)
        y[i] = x[i] * scale * (w ? w[i] : 1);
}

/* ---- STREAM_WEIGHTS ---- */

constexpr uint32_t MOST_STREAMS = 16;

BL_DEV void softmax_rows(float *c, uint32_t n, float eps)
{
    for (uint32_t r = 0; r < n; r++) {
        float most = c[r * n], sum = 0;
        for (uint32_t k = 1; k < n; k++)
            most = fmaxf(most, c[r * n + k]);
        for (uint32_t k = 0; k < n; k++)
            sum += c[r * n + k] = expf(c[r * n + k] - most);
        for (uint32_t k = 0; k < n; k++)
            c[r * n + k] = c[r * n + k] / sum + eps;
    }
}

/* Divides every run of n elements, `each` apart, by its sum. */
BL_DEV void divide(float *c, uint32_t n, uint32_t next, uint32_t each, float eps)
{
    for (uint32_t run = 0; run < n; run++) {
        float sum = eps;
        for (uint32_t i = 0; i < n; i++)
            sum += c[run * next + i * each];
        for (uint32_t i = 0; i < n; i++)
            c[run * next + i * each] /= sum;
    }
}

/* a: streams, z, base, scale, y   n: streams, elements of them all, of z, rounds, eps of the norm, eps   grid: tokens */
BL_KERNEL(stream_weights, THREADS)
{
    BL_SHARED float part[THREADS / BL_WARP], c[MOST_STREAMS * MOST_STREAMS];
    const uint32_t n = p.n[0], elems = p.n[1], m = p.n[2], t = block_x(), me = thread_x();
    const float *x = floats(p.a[0]) + static_cast<uint64_t>(elems) * t, *z = floats(p.a[1]) + static_cast<uint64_t>(m) * t;
    float *y = floats(p.a[4]) + static_cast<uint64_t>(m) * t, sum = 0;
    for (uint32_t i = me; i < elems; i += THREADS)
        sum = fmaf(x[i], x[i], sum);
    const float norm = 1 / sqrtf(sum_block<THREADS>(sum, part) / static_cast<float>(elems) + num(p, 4));
    for (uint32_t i = me; i < m; i += THREADS) {
        const uint32_t kind = i < 2 * n ? i / n : 2;
        const float v = norm * z[i] * floats(p.a[3])[kind] + floats(p.a[2])[i];
        if (kind == 2)
            c[i - 2 * n] = v;
        else
            y[i] = kind == 0 ? sigmoid(v) + num(p, 5) : 2 * sigmoid(v);
    }
    sync();
    if (m <= n || me != 0)
        return;
    softmax_rows(c, n, num(p, 5));
    for (uint32_t round = 0; round < p.n[3]; round++) {
        if (round > 0)
            divide(c, n, n, 1, num(p, 5));
        divide(c, n, 1, n, num(p, 5));
    }
    for (uint32_t i = 0; i < n * n; i++)
        y[2 * n + i] = c[i];
}

/* ---- HADAMARD ---- */

constexpr uint32_t MOST_RUN = 4096;

/* Every run times the Walsh-Hadamard matrix in natural order, over the root of its length.
 *   a: x, y   n: elements of a run, runs   grid: runs, tokens */
BL_KERNEL(hadamard, THREADS)
{
    BL_SHARED float v[MOST_RUN];
    const uint32_t n = p.n[0], me = thread_x();
    const uint64_t first = static_cast<uint64_t>(n) * (block_y() * p.n[1] + block_x());
    for (uint32_t i = me; i < n; i += THREADS)
        v[i] = floats(p.a[0])[first + i];
    for (uint32_t half_n = 1; half_n < n; half_n *= 2) {
        sync();
        for (uint32_t pair = me; pair < n / 2; pair += THREADS) {
            const uint32_t i = pair / half_n * 2 * half_n + pair % half_n;
            const float a = v[i], b = v[i + half_n];
            v[i] = a + b;
            v[i + half_n] = a - b;
        }
    }
    sync();
    for (uint32_t i = me; i < n; i += THREADS)
        floats(p.a[1])[first + i] = v[i] / sqrtf(static_cast<float>(n));
}

/* ---- ROUND ---- */

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

constexpr uint32_t ROUND_THREADS = 64;

/* Of every run the first n elements, in groups, to small floats times a power of two for each group. A thread has a group;
 * those behind the last copy what is not rounded.
 *   a: x, y   n: kind, elements of a run, of them rounded, of a group, runs   grid: groups, runs, tokens */
BL_KERNEL(round_groups, ROUND_THREADS)
{
    const uint32_t run = p.n[1], n = p.n[2], group = p.n[3], first = (block_x() * ROUND_THREADS + thread_x()) * group;
    const bool wide = p.n[0] == 0; /* E4M3, otherwise E2M1 */
    const float most = wide ? 448 : 6;
    const uint64_t row = static_cast<uint64_t>(run) * (block_z() * p.n[4] + block_y());
    const float *x = floats(p.a[0]) + row;
    float *y = floats(p.a[1]) + row, amax = wide ? 1e-4f : ldexpf(6.0f, -126);
    const uint32_t end = least(first + group, run);
    for (uint32_t i = first; i < least(end, n); i++)
        amax = fmaxf(amax, fabsf(x[i]));
    const float scale = amax / most;
    const int e = exponent_of(scale) + ((bits_as<uint32_t>(scale) & 0x7fffffu) != 0 ? 1 : 0);
    for (uint32_t i = first; i < end; i++)
        y[i] = i < n ? ldexpf(round_to(most, wide ? 3 : 1, wide ? -6 : 0, ldexpf(x[i], -e)), e) : x[i];
}

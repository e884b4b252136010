/* SPDX-License-Identifier: MIT */
/* Ops that need a run of elements as a whole: RMS_NORM, STREAM_WEIGHTS, HADAMARD, ROUND. */
#include "simt/params.hpp"
#include "simt/round.hpp"

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

static_assert(MOST_STREAMS * MOST_STREAMS <= THREADS, "a thread has an element of the matrix");

/* What a token's streams are divided by, inverse. */
BL_DEV float norm_of(const struct bl_simt_args &p, uint32_t t, float *part)
{
    const uint32_t elems = p.n[1];
    const float *x = floats(p.a[0]) + static_cast<uint64_t>(elems) * t;
    float sum = 0;
    for (uint32_t i = thread_x(); i < elems; i += THREADS)
        sum = fmaf(x[i], x[i], sum);
    return 1 / sqrtf(sum_block<THREADS>(sum, part) / static_cast<float>(elems) + num(p, 4));
}

/* Weight i, as z has it. */
BL_DEV float raw_weight(const struct bl_simt_args &p, uint32_t t, float norm, uint32_t i)
{
    const uint32_t n = p.n[0], kind = i < 2 * n ? i / n : 2;
    return norm * floats(p.a[1])[static_cast<uint64_t>(p.n[2]) * t + i] * floats(p.a[3])[kind] + floats(p.a[2])[i];
}

/* Those that are read by, and those that are written by. */
BL_DEV float vector_weight(const struct bl_simt_args &p, uint32_t t, float norm, uint32_t i)
{
    const float v = sigmoid(raw_weight(p, t, norm, i));
    return i < p.n[0] ? v + num(p, 5) : 2 * v;
}

/* eps and n values, `step` apart. */
BL_DEV float sum_of(const float *c, uint32_t n, uint32_t step, float eps)
{
    float sum = eps;
    for (uint32_t i = 0; i < n; i++)
        sum += c[i * step];
    return sum;
}

/* The matrix, of which every thread has an element: the softmax of its rows, and then its columns and its rows are divided by
 * their sums in turn. Threads tell each other by c and by d. */
BL_DEV void matrix_weights(const struct bl_simt_args &p, uint32_t t, float norm, float *c, float *d)
{
    const uint32_t n = p.n[0], m = p.n[2], i = thread_x(), row = i / n * n, column = i % n;
    const bool mine = i < n * n;
    const float eps = num(p, 5);
    float v = 0, most = -INFINITE;
    if (mine)
        c[i] = v = raw_weight(p, t, norm, 2 * n + i);
    sync();
    for (uint32_t k = 0; mine && k < n; k++)
        most = fmaxf(most, c[row + k]);
    if (mine)
        d[i] = v = expf(v - most);
    sync();
    if (mine)
        v = v / sum_of(d + row, n, 1, 0) + eps;
    for (uint32_t half_round = 1; half_round < 2 * p.n[3]; half_round++) {
        float *room = half_round % 2 ? c : d;
        if (mine)
            room[i] = v;
        sync();
        if (mine)
            v /= half_round % 2 ? sum_of(room + column, n, n, eps) : sum_of(room + row, n, 1, eps);
    }
    if (mine)
        floats(p.a[4])[static_cast<uint64_t>(m) * t + 2 * n + i] = v;
}

/* a: streams, z, base, scale, y   n: streams, elements of them all, of z, rounds, eps of the norm, eps   grid: tokens */
BL_KERNEL(stream_weights, THREADS)
{
    BL_SHARED float part[THREADS / BL_WARP], c[THREADS], d[THREADS];
    const uint32_t n = p.n[0], m = p.n[2], t = block_x();
    const float norm = norm_of(p, t, part);
    for (uint32_t i = thread_x(); i < least(2 * n, m); i += THREADS)
        floats(p.a[4])[static_cast<uint64_t>(m) * t + i] = vector_weight(p, t, norm, i);
    if (m > n)
        matrix_weights(p, t, norm, c, d);
}

/* STREAM_WEIGHTS, STREAM_READ by the first of them, RMS_NORM of that. The matrix has a block of its own: its rounds take long.
 *   a: as above, then [w], y   n: as above, then elements of a stream, eps of its norm   grid: 2 or, without matrix, 1; tokens */
BL_KERNEL(stream_enter, THREADS)
{
    BL_SHARED float part[THREADS / BL_WARP], more[THREADS / BL_WARP], c[THREADS], d[THREADS];
    const uint32_t n = p.n[0], m = p.n[2], elems = p.n[6], t = block_y();
    const float norm = norm_of(p, t, part);
    if (block_x() == 1) {
        matrix_weights(p, t, norm, c, d);
        return;
    }
    for (uint32_t i = thread_x(); i < least(2 * n, m); i += THREADS) {
        const float v = vector_weight(p, t, norm, i);
        floats(p.a[4])[static_cast<uint64_t>(m) * t + i] = v;
        if (i < n)
            c[i] = v;
    }
    sync();
    const float *h = floats(p.a[0]) + static_cast<uint64_t>(p.n[1]) * t, *w = floats(p.a[5]);
    float *y = floats(p.a[6]) + static_cast<uint64_t>(elems) * t, squares = 0;
    for (uint32_t i = thread_x(); i < elems; i += THREADS) {
        float sum = 0;
        for (uint32_t j = 0; j < n; j++)
            sum = fmaf(c[j], h[j * elems + i], sum);
        y[i] = sum;
        squares = fmaf(sum, sum, squares);
    }
    const float scale = 1 / sqrtf(sum_block<THREADS>(squares, more) / static_cast<float>(elems) + num(p, 7));
    for (uint32_t i = thread_x(); i < elems; i += THREADS)
        y[i] = y[i] * scale * (w ? w[i] : 1);
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
    hadamard_run<THREADS>(v, n);
    for (uint32_t i = me; i < n; i += THREADS)
        floats(p.a[1])[first + i] = v[i];
}

/* ---- ROUND ---- */

constexpr uint32_t ROUND_THREADS = 64;

/* Of every run the first n elements, in groups, to small floats times a power of two for each group. A thread has a group;
 * those behind the last copy what is not rounded.
 *   a: x, y   n: kind, elements of a run, of them rounded, of a group, runs   grid: groups, runs, tokens */
BL_KERNEL(round_groups, ROUND_THREADS)
{
    const uint32_t run = p.n[1], n = p.n[2], group = p.n[3], first = (block_x() * ROUND_THREADS + thread_x()) * group;
    const uint64_t row = static_cast<uint64_t>(run) * (block_z() * p.n[4] + block_y());
    const float *x = floats(p.a[0]) + row;
    float *y = floats(p.a[1]) + row;
    round_group(y, x, first, least(first + group, n), p.n[0]);
    for (uint32_t i = first < n ? n : first; i < least(first + group, run); i++)
        y[i] = x[i];
}

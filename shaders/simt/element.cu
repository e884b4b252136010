/* SPDX-License-Identifier: MIT */
/* Ops that work element by element: GATHER_ROWS, TEMPER, GLU, ADD, SOFTCAP, SLICE, CONCAT, REPEAT, STREAM_READ and
 * STREAM_WRITE. The grid is {elements, rows}. */
#include "simt/params.hpp"

constexpr uint32_t THREADS = 256;

BL_DEV uint32_t element()
{
    return block_x() * THREADS + thread_x();
}
BL_DEV uint64_t place(uint32_t n, uint32_t t, uint32_t i)
{
    return static_cast<uint64_t>(n) * t + i;
}

/* a: x, y, params   n: elements */
BL_KERNEL(gather_rows, THREADS)
{
    const uint32_t n = p.n[0], i = element(), t = block_y();
    if (i >= n || t >= step_of(p.a[2])->n_out)
        return;
    const uint32_t from = param(p.a[2], step_of(p.a[2])->out_off, t);
    floats(p.a[1])[place(n, t, i)] = floats(p.a[0])[place(n, from, i)];
}

/* a: x, y, params   n: elements, scale, every */
BL_KERNEL(temper, THREADS)
{
    const uint32_t n = p.n[0], i = element(), t = block_y();
    if (i >= n || t >= step_of(p.a[2])->n_tok)
        return;
    const float c = 1 + num(p, 1) * logf(static_cast<float>(pos_of(p.a[2], t) / p.n[2] + 1));
    floats(p.a[1])[place(n, t, i)] = c * floats(p.a[0])[place(n, t, i)];
}

/* a: gate, up, y   n: elements, of a gate, kind, alpha, limit; a gate of one element is for the whole row */
BL_KERNEL(glu, THREADS)
{
    const uint32_t n = p.n[0], i = element(), t = block_y();
    if (i >= n)
        return;
    const uint64_t j = place(n, t, i);
    const bool one = p.n[1] == 1 && n != 1;
    const float g = floats(p.a[0])[one ? t : j], u = floats(p.a[1])[j];
    floats(p.a[2])[j] = one ? glu_of(p.n[2], num(p, 3), num(p, 4), g, 1) * u
                            : glu_of(p.n[2], num(p, 3), num(p, 4), g, u);
}

/* a: a, b, y   n: elements */
BL_KERNEL(add, THREADS)
{
    const uint32_t i = element();
    const uint64_t j = place(p.n[0], block_y(), i);
    if (i < p.n[0])
        floats(p.a[2])[j] = floats(p.a[0])[j] + floats(p.a[1])[j];
}

/* a: x, y   n: elements, cap */
BL_KERNEL(softcap, THREADS)
{
    const uint32_t i = element();
    const uint64_t j = place(p.n[0], block_y(), i);
    if (i < p.n[0])
        floats(p.a[1])[j] = num(p, 1) * tanh_of(floats(p.a[0])[j] / num(p, 1));
}

/* a: x, y   n: elements of a row of y, of x, of a run of x, first, of a run of y */
BL_KERNEL(slice, THREADS)
{
    const uint32_t i = element(), t = block_y(), n = p.n[4];
    if (i < p.n[0])
        floats(p.a[1])[place(p.n[0], t, i)] = floats(p.a[0])[place(p.n[1], t, i / n * p.n[2] + p.n[3] + i % n)];
}

/* a: x, x1, [x2], y   n: elements of a row of y, of a run of x, of x1, of x2; runs */
BL_KERNEL(concat, THREADS)
{
    const uint32_t i = element(), t = block_y(), a = p.n[1], b = p.n[2], c = p.n[3], all = a + b + c;
    if (i >= p.n[0])
        return;
    const uint32_t j = i % all, run = p.n[4] * t + i / all;
    const float v = j < a       ? floats(p.a[0])[place(a, run, j)]
                    : j < a + b ? floats(p.a[1])[place(b, run, j - a)]
                                : floats(p.a[2])[place(c, run, j - a - b)];
    floats(p.a[3])[place(p.n[0], t, i)] = v;
}

/* a: x, y   n: elements of a row of y, of x */
BL_KERNEL(repeat, THREADS)
{
    const uint32_t i = element(), t = block_y();
    if (i < p.n[0])
        floats(p.a[1])[place(p.n[0], t, i)] = floats(p.a[0])[place(p.n[1], t, i % p.n[1])];
}

/* The weighted sum of a token's streams.
 *   a: streams, weights, y   n: streams, elements of one, weights of a token */
BL_KERNEL(stream_read, THREADS)
{
    const uint32_t s = p.n[0], n = p.n[1], i = element(), t = block_y();
    if (i >= n)
        return;
    const float *h = floats(p.a[0]) + place(s * n, t, i), *w = floats(p.a[1]) + place(p.n[2], t, 0);
    float sum = 0;
    for (uint32_t j = 0; j < s; j++)
        sum = fmaf(w[j], h[j * n], sum);
    floats(p.a[2])[place(n, t, i)] = sum;
}

/* A token's streams mixed, with x added to each by its weight.
 *   a: streams, weights, y, x   n: streams, elements of one, weights of a token */
BL_KERNEL(stream_write, THREADS)
{
    const uint32_t s = p.n[0], n = p.n[1], i = element(), t = block_y();
    if (i >= n)
        return;
    mix_streams(floats(p.a[2]) + place(s * n, t, i), floats(p.a[0]) + place(s * n, t, i),
                floats(p.a[1]) + place(p.n[2], t, 0), s, n, floats(p.a[3])[place(n, t, i)]);
}

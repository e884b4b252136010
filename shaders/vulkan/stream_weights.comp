#version 450
/* SPDX-License-Identifier: MIT */
/* STREAM_WEIGHTS: what the residual streams of a token are mixed by.
 *   a: streams, z, base, scale, y   n: streams, elements of them all, of z, rounds, eps of the norm, eps   groups: tokens */
#extension GL_GOOGLE_include_directive : require
#include "bl.glsl"
#include "sum.glsl"

layout(local_size_x = 128) in;
const uint MOST = 16;
shared float c[MOST * MOST];

float sigmoid(const float x) { return 1 / (1 + exp(-x)); }

void softmax_rows(const uint n, const float eps)
{
    for (uint r = 0; r < n; r++) {
        float most = c[r * n], sum = 0;
        for (uint k = 1; k < n; k++)
            most = max(most, c[r * n + k]);
        for (uint k = 0; k < n; k++)
            sum += c[r * n + k] = exp(c[r * n + k] - most);
        for (uint k = 0; k < n; k++)
            c[r * n + k] = c[r * n + k] / sum + eps;
    }
}

/* Divides every run of n elements, `step` apart, by its sum. */
void divide(const uint n, const uint next, const uint each, const float eps)
{
    for (uint run = 0; run < n; run++) {
        float sum = eps;
        for (uint i = 0; i < n; i++)
            sum += c[run * next + i * each];
        for (uint i = 0; i < n; i++)
            c[run * next + i * each] /= sum;
    }
}

void main()
{
    const uint n = arg.n[0], elems = arg.n[1], m = arg.n[2], t = gl_WorkGroupID.x, me = gl_LocalInvocationIndex;
    floats_at x = floats_at(arg.a[0] + 4 * uint64_t(elems) * t), z = floats_at(arg.a[1] + 4 * uint64_t(m) * t);
    floats_at y = floats_at(arg.a[4] + 4 * uint64_t(m) * t);
    float sum = 0;
    for (uint i = me; i < elems; i += 128)
        sum = fma(x.v[i], x.v[i], sum);
    const float norm = 1 / sqrt(group_sum(sum) / float(elems) + num(4));
    for (uint i = me; i < m; i += 128) {
        const uint kind = i < 2 * n ? i / n : 2;
        const float v = norm * z.v[i] * floats_at(arg.a[3]).v[kind] + floats_at(arg.a[2]).v[i];
        if (kind == 2)
            c[i - 2 * n] = v;
        else
            y.v[i] = kind == 0 ? sigmoid(v) + num(5) : 2 * sigmoid(v);
    }
    barrier();
    if (m <= n || me != 0)
        return;
    softmax_rows(n, num(5));
    for (uint round = 0; round < arg.n[3]; round++) {
        if (round > 0)
            divide(n, n, 1, num(5));
        divide(n, 1, n, num(5));
    }
    for (uint i = 0; i < n * n; i++)
        y.v[2 * n + i] = c[i];
}

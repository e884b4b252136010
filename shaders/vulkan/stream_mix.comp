#version 450
/* SPDX-License-Identifier: MIT */
/* STREAM_READ: the weighted sum of a token's streams; STREAM_WRITE: its streams mixed, with x added to each by its weight.
 *   a: streams, weights, y, [x]   n: streams, elements of one, weights of a token   groups: elements, tokens */
#extension GL_GOOGLE_include_directive : require
#include "bl.glsl"

layout(local_size_x = 128) in;

void main()
{
    const uint s = arg.n[0], n = arg.n[1], i = gl_GlobalInvocationID.x, t = gl_WorkGroupID.y;
    if (i >= n)
        return;
    floats_at h = floats_at(arg.a[0] + 4 * uint64_t(s) * n * t), w = floats_at(arg.a[1] + 4 * uint64_t(arg.n[2]) * t);
    if (arg.a[3] == 0) {
        float sum = 0;
        for (uint j = 0; j < s; j++)
            sum = fma(w.v[j], h.v[j * n + i], sum);
        floats_at(arg.a[2] + 4 * uint64_t(n) * t).v[i] = sum;
        return;
    }
    const float x = floats_at(arg.a[3] + 4 * uint64_t(n) * t).v[i];
    for (uint to = 0; to < s; to++) {
        float sum = w.v[s + to] * x;
        for (uint j = 0; j < s; j++)
            sum = fma(w.v[2 * s + j * s + to], h.v[j * n + i], sum);
        floats_at(arg.a[2] + 4 * uint64_t(s) * n * t).v[to * n + i] = sum;
    }
}

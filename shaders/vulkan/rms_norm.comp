#version 450
/* SPDX-License-Identifier: MIT */
/* RMS_NORM: every run normalised on its own, times w.
 *   a: x, [w], y   n: elements of a run, eps   groups: runs, tokens */
#extension GL_GOOGLE_include_directive : require
#include "bl.glsl"
#include "sum.glsl"

layout(local_size_x = 128) in;

void main()
{
    const uint run = arg.n[0];
    const uint64_t at = 4 * uint64_t(run) * (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x);
    floats_at x = floats_at(arg.a[0] + at), y = floats_at(arg.a[2] + at), w = floats_at(arg.a[1]);
    float sum = 0;
    for (uint i = gl_LocalInvocationIndex; i < run; i += 128)
        sum = fma(x.v[i], x.v[i], sum);
    const float scale = 1 / sqrt(group_sum(sum) / float(run) + num(1));
    for (uint i = gl_LocalInvocationIndex; i < run; i += 128)
        y.v[i] = x.v[i] * scale * (arg.a[1] != 0 ? w.v[i] : 1);
}

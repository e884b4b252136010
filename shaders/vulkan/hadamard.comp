#version 450
/* SPDX-License-Identifier: MIT */
/* HADAMARD: every run times the Walsh-Hadamard matrix in natural order, over the root of its length.
 *   a: x, y   n: elements of a run, at most MOST   groups: runs, tokens */
#extension GL_GOOGLE_include_directive : require
#include "bl.glsl"

layout(local_size_x = 128) in;
const uint MOST = 4096;
shared float v[MOST];

void main()
{
    const uint n = arg.n[0], me = gl_LocalInvocationIndex;
    const uint64_t at = 4 * uint64_t(n) * (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x);
    for (uint i = me; i < n; i += 128)
        v[i] = floats_at(arg.a[0] + at).v[i];
    for (uint half_n = 1; half_n < n; half_n *= 2) {
        barrier();
        for (uint p = me; p < n / 2; p += 128) {
            const uint i = p / half_n * 2 * half_n + p % half_n;
            const float a = v[i], b = v[i + half_n];
            v[i] = a + b;
            v[i + half_n] = a - b;
        }
    }
    barrier();
    for (uint i = me; i < n; i += 128)
        floats_at(arg.a[1] + at).v[i] = v[i] / sqrt(float(n));
}

#version 450
/* SPDX-License-Identifier: MIT */
/* ROUND: of every run the first n elements, in groups, to small floats times a power of two for each group. An invocation
 * has a group; those behind the last copy what is not rounded.
 *   a: x, y   n: kind, elements of a run, of them rounded, of a group   groups: groups, runs, tokens */
#extension GL_GOOGLE_include_directive : require
#include "bl.glsl"

layout(local_size_x = 32) in;

int exponent_of(const float x) { return int(floatBitsToUint(x) >> 23 & 255u) - 127; }

/* To the nearest, of two equally near to the one that is even. */
float round_to(const float most, const int bits, const int least, const float x)
{
    const int e = max(exponent_of(x), least) - bits;
    return clamp(ldexp(roundEven(ldexp(x, -e)), e), -most, most);
}

void main()
{
    const uint run = arg.n[1], n = arg.n[2], group = arg.n[3], first = gl_GlobalInvocationID.x * group;
    const bool wide = arg.n[0] == 0; /* E4M3, otherwise E2M1 */
    const float most = wide ? 448 : 6, least_amax = wide ? 1e-4 : ldexp(6.0, -126);
    const uint64_t at = 4 * uint64_t(run) * (gl_WorkGroupID.z * gl_NumWorkGroups.y + gl_WorkGroupID.y);
    floats_at x = floats_at(arg.a[0] + at), y = floats_at(arg.a[1] + at);
    const uint end = min(first + group, run);
    float amax = least_amax;
    for (uint i = first; i < min(end, n); i++)
        amax = max(amax, abs(x.v[i]));
    const float scale = amax / most;
    const int e = exponent_of(scale) + ((floatBitsToUint(scale) & 0x7fffffu) != 0 ? 1 : 0);
    for (uint i = first; i < end; i++)
        y.v[i] = i < n ? ldexp(round_to(most, wide ? 3 : 1, wide ? -6 : 0, ldexp(x.v[i], -e)), e) : x.v[i];
}

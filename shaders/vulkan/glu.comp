#version 450
/* SPDX-License-Identifier: MIT */
/* GLU: act(gate) * up; a gate of one element is for the whole row.
 *   a: gate, up, y   n: elements, of a gate, kind, alpha, limit   groups: elements, rows */
#extension GL_GOOGLE_include_directive : require
#include "bl.glsl"
#include "glu.glsl"

layout(local_size_x = 128) in;

void main()
{
    const uint n = arg.n[0], i = gl_GlobalInvocationID.x, t = gl_WorkGroupID.y;
    if (i >= n)
        return;
    const uint64_t at = 4 * (uint64_t(n) * t + i);
    const bool one = arg.n[1] == 1 && n != 1;
    const float g = floats_at(arg.a[0] + (one ? 4 * uint64_t(t) : at)).v[0], u = floats_at(arg.a[1] + at).v[0];
    floats_at(arg.a[2] + at).v[0] =
        one ? act(arg.n[2], num(3), num(4), g, 1) * u : act(arg.n[2], num(3), num(4), g, u);
}

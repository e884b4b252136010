#version 450
/* SPDX-License-Identifier: MIT */
/* TEMPER: x * (1 + scale * ln(floor(position / every) + 1)).
 *   a: x, y, params   n: elements, scale, every   groups: elements, tokens */
#extension GL_GOOGLE_include_directive : require
#include "bl.glsl"

layout(local_size_x = 128) in;

void main()
{
    const uint n = arg.n[0], i = gl_GlobalInvocationID.x, t = gl_WorkGroupID.y;
    if (i >= n || t >= params_at(arg.a[2]).n_tok)
        return;
    const float c = 1 + num(1) * log(float(pos_of(arg.a[2], t) / arg.n[2] + 1));
    const uint64_t at = 4 * (uint64_t(n) * t + i);
    floats_at(arg.a[1] + at).v[0] = c * floats_at(arg.a[0] + at).v[0];
}

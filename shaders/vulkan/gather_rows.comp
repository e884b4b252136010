#version 450
/* SPDX-License-Identifier: MIT */
/* GATHER_ROWS: the rows of the tokens whose logits are wanted.
 *   a: x, y, params   n: elements   groups: elements, outputs */
#extension GL_GOOGLE_include_directive : require
#include "bl.glsl"

layout(local_size_x = 128) in;

void main()
{
    const uint n = arg.n[0], i = gl_GlobalInvocationID.x, t = gl_WorkGroupID.y;
    if (i >= n || t >= params_at(arg.a[2]).n_out)
        return;
    const uint from = param(arg.a[2], params_at(arg.a[2]).out_off, t);
    floats_at(arg.a[1] + 4 * uint64_t(n) * t).v[i] = floats_at(arg.a[0] + 4 * uint64_t(n) * from).v[i];
}

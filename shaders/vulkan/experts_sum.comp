#version 450
/* SPDX-License-Identifier: MIT */
/* The weighted sum of a token's experts, of those that the device has, in the order they were chosen.
 *   a: table, products, y, ids, params, weights   n: elements, used, experts   groups: elements, tokens */
#extension GL_GOOGLE_include_directive : require
#include "bl.glsl"

layout(local_size_x = 128) in;

void main()
{
    const uint n = arg.n[0], used = arg.n[1], i = gl_GlobalInvocationID.x, t = gl_WorkGroupID.y;
    if (i >= n || t >= params_at(arg.a[4]).n_tok)
        return;
    float sum = 0;
    for (uint u = 0; u < used; u++) {
        const uint pair = used * t + u, id = words_at(arg.a[3]).v[pair];
        if (id < arg.n[2] && addrs_at(arg.a[0]).v[id] != 0)
            sum = fma(floats_at(arg.a[5]).v[pair], floats_at(arg.a[1] + 4 * uint64_t(n) * pair).v[i], sum);
    }
    floats_at(arg.a[2] + 4 * uint64_t(n) * t).v[i] = sum;
}

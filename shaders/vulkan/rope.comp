#version 450
/* SPDX-License-Identifier: MIT */
/* ROPE: n_dims of every head rotated, from `first` on; the rest copied. An invocation has two elements.
 *   a: x, angles, y   n: elements of a token, of a head, n_dims, first, neox   groups: pairs, tokens */
#extension GL_GOOGLE_include_directive : require
#include "bl.glsl"

layout(local_size_x = 64) in;

void main()
{
    const uint n = arg.n[0], head = arg.n[1], n_dims = arg.n[2], first = arg.n[3];
    const uint pair = gl_GlobalInvocationID.x, t = gl_WorkGroupID.y, half_head = (head + 1) / 2;
    if (pair >= n / head * half_head)
        return;
    const uint64_t at = 4 * (uint64_t(n) * t + pair / half_head * head);
    floats_at x = floats_at(arg.a[0] + at), y = floats_at(arg.a[2] + at);
    const uint i = pair % half_head;
    if (i < n_dims / 2) {
        const uint a = first + (arg.n[4] != 0 ? i : 2 * i), b = arg.n[4] != 0 ? a + n_dims / 2 : a + 1;
        floats_at angle = floats_at(arg.a[1] + 4 * (uint64_t(n_dims) * t + 2 * i));
        const float x0 = x.v[a], x1 = x.v[b], c = angle.v[0], s = angle.v[1];
        y.v[a] = x0 * c - x1 * s;
        y.v[b] = x0 * s + x1 * c;
        return;
    }
    /* what is not rotated, in twos: before `first`, then behind */
    for (uint j = 2 * i - n_dims; j < min(2 * i - n_dims + 2, head - n_dims); j++) {
        const uint e = j < first ? j : j + n_dims;
        y.v[e] = x.v[e];
    }
}

#version 450
/* SPDX-License-Identifier: MIT */
/* Parts of attention into one result, in their order.
 *   a: partials, [sinks], y, params   n: heads, dv, splits   groups: heads, tokens */
#extension GL_GOOGLE_include_directive : require
#include "bl.glsl"

layout(local_size_x = 128) in;

void main()
{
    const uint head = gl_WorkGroupID.x, t = gl_WorkGroupID.y, dv = arg.n[1], splits = arg.n[2];
    const uint64_t first = arg.a[0] + 4 * (uint64_t(arg.n[0]) * t + head) * splits * (dv + 2);
    if (t >= params_at(arg.a[3]).n_tok)
        return;
    float most = arg.a[1] != 0 ? floats_at(arg.a[1]).v[head] : -1.0 / 0.0, sum = 0;
    const float sink = most;
    for (uint s = 0; s < splits; s++)
        most = max(most, floats_at(first + 4 * uint64_t(s) * (dv + 2)).v[0]);
    if (arg.a[1] != 0)
        sum = exp(sink - most);
    for (uint s = 0; s < splits; s++) {
        floats_at part = floats_at(first + 4 * uint64_t(s) * (dv + 2));
        sum += part.v[1] > 0 ? part.v[1] * exp(part.v[0] - most) : 0;
    }
    for (uint d = gl_LocalInvocationIndex; d < dv; d += 128) {
        float acc = 0;
        for (uint s = 0; s < splits; s++) {
            floats_at part = floats_at(first + 4 * uint64_t(s) * (dv + 2));
            acc += part.v[1] > 0 ? part.v[2 + d] * exp(part.v[0] - most) : 0;
        }
        floats_at(arg.a[2] + 4 * (uint64_t(arg.n[0]) * t + head) * dv).v[d] = acc / sum;
    }
}

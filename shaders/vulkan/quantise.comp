#version 450
/* SPDX-License-Identifier: MIT */
/* Rows of floats as signed bytes: as_bytes.glsl says how they lie. Four elements to an invocation, eight of those to a scale.
 *   a: x, y, params   n: elements of a row, whole 32s   groups: elements, rows of a token, tokens */
#extension GL_GOOGLE_include_directive : require
#include "bl.glsl"
#include "as_bytes.glsl"

layout(local_size_x = 128) in;
shared float most[128], sums[128];

/* Below this, what it divides is no number any more. */
const float LEAST = 1e-30;

void main()
{
    const uint k = arg.n[0], me = gl_LocalInvocationIndex, i = 4 * gl_GlobalInvocationID.x;
    if (gl_WorkGroupID.z >= params_at(arg.a[2]).n_tok)
        return;
    const uint row = gl_WorkGroupID.z * gl_NumWorkGroups.y + gl_WorkGroupID.y;
    const uint64_t y = arg.a[1] + uint64_t(row_as_bytes(k)) * row;
    const vec4 v = i < k ? vec4s_at(arg.a[0] + 4 * (uint64_t(k) * row + i)).v[0] : vec4(0), size = abs(v);
    most[me] = max(max(size.x, size.y), max(size.z, size.w));
    barrier();
    float m = 0;
    [[unroll]] for (uint j = 0; j < 8; j++)
        m = max(m, most[me & ~7u | j]);
    const ivec4 q = ivec4(roundEven(v * (m > LEAST ? 127 / m : 0)));
    sums[me] = float(q.x + q.y + q.z + q.w);
    barrier();
    if (i >= k)
        return;
    words_at(y + i).v[0] = uint(q.x & 255 | (q.y & 255) << 8 | (q.z & 255) << 16 | q.w << 24);
    const float d = m / 127;
    if (me % 8 == 0)
        floats_at(scale_at(y, k, i / 8)).v[0] = d;
    if (me % 4 == 0)
        floats_at(sum_at(y, k, i / 8)).v[0] = d * (sums[me] + sums[me + 1] + sums[me + 2] + sums[me + 3]);
}

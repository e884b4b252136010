#version 450
/* SPDX-License-Identifier: MIT */
/* EXPERTS for many tokens: one matrix, all pairs of an expert together. groups: tiles of rows, of pairs */
#extension GL_GOOGLE_include_directive : require
#include "bl.glsl"
#include "types.glsl"
#include "tile.glsl"
#include "experts.glsl"

layout(local_size_x = 256) in;

void main()
{
    const uint k = arg.n[0], m = arg.n[1], side = load_side();
    words_at tile = words_at(arg.a[9]), order = words_at(arg.a[8]);
    if (gl_WorkGroupID.y >= tile.v[0])
        return;
    const uint e = tile.v[1 + 3 * gl_WorkGroupID.y], first = tile.v[2 + 3 * gl_WorkGroupID.y],
               n = tile.v[3 + 3 * gl_WorkGroupID.y], row0 = gl_WorkGroupID.x * SIDE;
    const uint64_t w = expert_at(0, e) + uint64_t(arg.n[4]) * (row0 + side);
    const uint64_t x = side < n ? row_of_x(order.v[first + side] / arg.n[3]) : 0;
    vec4 sum[SUB];
    multiply_tile(k, row0 + side < m ? w : 0, x, sum);
    [[unroll]] for (uint c = 0; c < SUB; c++)
        [[unroll]] for (uint r = 0; r < SUB; r++) {
            const uint i = row0 + SUB * sub_row() + r, j = SUB * sub_col() + c;
            if (i >= m || j >= n)
                continue;
            const uint64_t at = 4 * (uint64_t(m) * order.v[first + j] + i);
            floats_at(arg.a[2] + at).v[0] = finish(sum[c][r], e, i, at);
        }
}

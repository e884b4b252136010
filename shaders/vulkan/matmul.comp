#version 450
/* SPDX-License-Identifier: MIT */
/* MATMUL and MATMUL_HEADS for many tokens; arguments as for matvec.comp. */
#extension GL_GOOGLE_include_directive : require
#include "bl.glsl"
#include "types.glsl"
#include "tile.glsl"

layout(local_size_x = 256) in;

void main()
{
    const uint k = arg.n[0], m = arg.n[1], n_tok = arg.n[2], head = gl_WorkGroupID.z;
    const uint row0 = gl_WorkGroupID.x * SIDE, col0 = gl_WorkGroupID.y * SIDE;
    const uint row = row0 + load_side(), col = col0 + load_side();
    const uint64_t w = arg.a[0] + uint64_t(arg.n[6]) * head + uint64_t(arg.n[3]) * row;
    const uint64_t x = row_of_x(arg.n[4] * col + head);
    const float scale = arg.a[4] != 0 ? floats_at(arg.a[4]).v[arg.n[7] * head] : 1;
    vec4 sum[SUB];
    multiply_tile(k, row < m ? w : 0, col < n_tok ? x : 0, sum);
    [[unroll]] for (uint c = 0; c < SUB; c++)
        [[unroll]] for (uint r = 0; r < SUB; r++) {
            const uint i = row0 + SUB * sub_row() + r, t = col0 + SUB * sub_col() + c;
            if (i < m && t < n_tok)
                floats_at(arg.a[2] + 4 * (uint64_t(arg.n[5]) * t + m * head)).v[i] =
                    sum[c][r] * scale + (arg.a[3] != 0 ? floats_at(arg.a[3]).v[i] : 0);
        }
}

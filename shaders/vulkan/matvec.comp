#version 450
/* SPDX-License-Identifier: MIT */
/* MATMUL and MATMUL_HEADS for few tokens: y[t] = (w · x[t]) * scale + bias. A subgroup sums ROWS rows of w for up to TOKENS
 * tokens, so that every byte of w is read once for all of them.
 *   a: w, x, y, [bias], [scale]
 *   n: in, out, tokens, bytes of a row, rows of x of a token, floats of a row of y, bytes of a head's matrix, heads' own
 *      scales
 *   groups: rows, tokens, heads */
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#include "bl.glsl"
#include "types.glsl"
#include "dot.glsl"

layout(local_size_x = 128) in;

void main()
{
    const uint k = arg.n[0], m = arg.n[1], head = gl_WorkGroupID.z;
    const uint first = gl_WorkGroupID.y * TOKENS, n_tok = min(TOKENS, arg.n[2] - first);
    const uint row = (gl_WorkGroupID.x * gl_NumSubgroups + gl_SubgroupID) * ROWS;
    if (row >= m)
        return;
    uint64_t w[ROWS], x[TOKENS];
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        w[r] = arg.a[0] + uint64_t(arg.n[6]) * head + uint64_t(arg.n[3]) * min(row + r, m - 1);
    for (uint t = 0; t < TOKENS; t++)
        x[t] = row_of_x(arg.n[4] * (first + min(t, n_tok - 1)) + head);
    const float scale = arg.a[4] != 0 ? floats_at(arg.a[4]).v[arg.n[7] * head] : 1;
    float sum[ROWS][TOKENS];
    dot_rows(k, w, x, sum);
    for (uint t = 0; t < n_tok; t++)
        [[unroll]] for (uint r = 0; r < ROWS; r++)
            if (subgroupElect() && row + r < m)
                floats_at(arg.a[2] + 4 * (uint64_t(arg.n[5]) * (first + t) + m * head)).v[row + r] =
                    sum[r][t] * scale + (arg.a[3] != 0 ? floats_at(arg.a[3]).v[row + r] : 0);
}

#version 450
/* SPDX-License-Identifier: MIT */
/* EXPERTS for few tokens: one matrix, each pair on its own. groups: rows, pairs */
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#include "bl.glsl"
#include "types.glsl"
#include "dot.glsl"
#include "experts.glsl"

layout(local_size_x = 128) in;

void main()
{
    const uint k = arg.n[0], m = arg.n[1], pair = gl_WorkGroupID.y;
    const uint row = (gl_WorkGroupID.x * gl_NumSubgroups + gl_SubgroupID) * ROWS;
    if (pair >= params_at(arg.a[4]).n_tok * arg.n[2] || row >= m)
        return;
    const uint e = words_at(arg.a[3]).v[pair];
    const uint64_t base = expert_at(0, e);
    if (base == 0)
        return;
    uint64_t w[ROWS], x[TOKENS];
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        w[r] = base + uint64_t(arg.n[4]) * min(row + r, m - 1);
    for (uint t = 0; t < TOKENS; t++)
        x[t] = row_of_x(pair / arg.n[3]);
    float sum[ROWS][TOKENS];
    dot_rows(k, w, x, sum);
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        const uint64_t at = 4 * (uint64_t(m) * pair + row + r);
        if (subgroupElect() && row + r < m)
            floats_at(arg.a[2] + at).v[0] = finish(sum[r][0], e, row + r, at);
    }
}

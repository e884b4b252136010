#version 450
/* SPDX-License-Identifier: MIT */
/* CHOOSE, scores: of a row the sum over heads of weight * max(0, q · row). A subgroup has a row; each row is read once for
 * all heads.
 *   a: q, weights, rows, scores, params   n: heads, dk, kept, tokens of a group, rows of a sequence, bytes of a row
 *   groups: rows, tokens */
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#include "bl.glsl"
#include "kv.glsl"

layout(local_size_x = 128) in;
layout(constant_id = 0) const uint ROW_TYPE = BL_F16;

void main()
{
    const uint heads = arg.n[0], dk = arg.n[1], t = gl_WorkGroupID.y;
    if (t >= params_at(arg.a[4]).n_tok)
        return;
    const uint n = (pos_of(arg.a[4], t) + 1) / arg.n[3], slot = slot_of(arg.a[4], seq_of(arg.a[4], t));
    if (n <= arg.n[2])
        return;
    for (uint r = gl_WorkGroupID.x * gl_NumSubgroups + gl_SubgroupID; r < n; r += gl_NumWorkGroups.x * gl_NumSubgroups) {
        const uint64_t row = arg.a[2] + uint64_t(arg.n[5]) * (slot * arg.n[4] + r);
        float all = 0;
        for (uint h = 0; h < heads; h++) {
            floats_at q = floats_at(arg.a[0] + 4 * (uint64_t(heads) * t + h) * dk);
            float sum = 0;
            for (uint i = gl_SubgroupInvocationID; i < dk; i += gl_SubgroupSize)
                sum = fma(q.v[i], kv_element(ROW_TYPE, row, i), sum);
            sum = subgroupAdd(sum);
            all += floats_at(arg.a[1]).v[heads * t + h] * (sum < 0 ? 0 : sum);
        }
        if (subgroupElect())
            floats_at(arg.a[3]).v[t * arg.n[4] + r] = isnan(all) ? -1.0 / 0.0 : all;
    }
}

#version 450
/* SPDX-License-Identifier: MIT */
/* ATTENTION and ATTENTION_GROUPS: a work group is one query head of one token over one of SPLITS parts of what it sees,
 * KEYS rows at a time, by a running softmax.
 *   a: q, k, v, [sinks], [rows of groups], [chosen], y, params, [partials]
 *   n: heads, key heads, dk, dv, window, scale, rows of a sequence, bytes of a row of k, of v, group rows, tokens of a group,
 *      chosen of a token
 *   groups: heads, tokens, SPLITS
 * What a token sees is one list: rows of whole groups, all or the chosen, then positions of the window. With more than one
 * split, partials get {maximum, sum, dv values} for each; attention_merge.comp makes the result of them. */
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#include "bl.glsl"
#include "kv.glsl"
#include "sum.glsl"

layout(local_size_x = 128) in;
layout(constant_id = 0) const uint K_TYPE = BL_F16;
layout(constant_id = 1) const uint V_TYPE = BL_F16;
layout(constant_id = 2) const uint SPLITS = 1;
const uint KEYS = 128, MOST_DV = 1024, OWN = MOST_DV / 128;
shared float score[KEYS];

struct view { uint slot, first, end, n_rows, t; };

view view_of(const uint t)
{
    const uint64_t p = arg.a[7];
    const uint pos = pos_of(p, t), window = arg.n[4];
    view v;
    v.slot = slot_of(p, seq_of(p, t));
    v.first = window != 0 && pos >= window ? pos - window + 1 : 0;
    v.end = pos + 1;
    v.n_rows = arg.a[4] != 0 ? (pos + 1) / arg.n[10] : 0;
    if (arg.a[5] != 0)
        v.n_rows = min(v.n_rows, arg.n[11]);
    v.t = t;
    return v;
}

/* Row i of what is seen, as a number of a row of groups or of the window. */
uint row_of(const view v, const uint i)
{
    if (i >= v.n_rows)
        return v.slot * arg.n[6] + (v.first + i - v.n_rows) % arg.n[6];
    const uint row = arg.a[5] != 0 ? words_at(arg.a[5]).v[v.t * arg.n[11] + i] : i;
    return v.slot * arg.n[9] + row;
}

float dot_key(const uint64_t q, const uint64_t key, const uint dk)
{
    float sum = 0;
    for (uint i = gl_SubgroupInvocationID; i < dk; i += gl_SubgroupSize)
        sum = fma(floats_at(q).v[i], kv_element(K_TYPE, key, i), sum);
    return subgroupAdd(sum);
}

void main()
{
    const uint head = gl_WorkGroupID.x, t = gl_WorkGroupID.y, dk = arg.n[2], dv = arg.n[3];
    const uint me = gl_LocalInvocationIndex, kv = head / (arg.n[0] / arg.n[1]);
    if (t >= params_at(arg.a[7]).n_tok)
        return;
    const view v = view_of(t);
    const uint64_t q = arg.a[0] + 4 * (uint64_t(arg.n[0]) * t + head) * dk;
    const uint64_t k_head = kv_bytes(K_TYPE, dk) * kv, v_head = arg.a[1] == arg.a[2] ? k_head : kv_bytes(V_TYPE, dv) * kv;
    const uint all = v.n_rows + v.end - v.first;
    const uint begin = uint(uint64_t(all) * gl_WorkGroupID.z / SPLITS), end = uint(uint64_t(all) * (gl_WorkGroupID.z + 1) / SPLITS);
    float acc[OWN], most = -1.0 / 0.0, sum = 0;
    for (uint d = 0; d < OWN; d++)
        acc[d] = 0;
    for (uint at = begin; at < end; at += KEYS) {
        const uint n = min(KEYS, end - at);
        barrier();
        for (uint j = gl_SubgroupID; j < n; j += gl_NumSubgroups) {
            const uint64_t base = at + j < v.n_rows ? arg.a[4] : arg.a[1];
            const float s = dot_key(q, base + uint64_t(arg.n[7]) * row_of(v, at + j) + k_head, dk) * num(5);
            if (subgroupElect())
                score[j] = s;
        }
        barrier();
        const float mine = me < n ? score[me] : -1.0 / 0.0, next = max(most, group_max(mine));
        const float p = me < n ? exp(mine - next) : 0, keep = most < next ? exp(most - next) : 1;
        score[me] = p;
        sum = sum * keep + group_sum(p);
        most = next;
        for (uint d = 0; d < OWN && me + 128 * d < dv; d++)
            acc[d] *= keep;
        for (uint j = 0; j < n; j++) {
            const bool grouped = at + j < v.n_rows;
            const uint64_t row = (grouped ? arg.a[4] : arg.a[2]) + uint64_t(grouped ? arg.n[7] : arg.n[8]) * row_of(v, at + j) + v_head;
            for (uint d = 0; d < OWN && me + 128 * d < dv; d++)
                acc[d] = fma(score[j], kv_element(V_TYPE, row, me + 128 * d), acc[d]);
        }
    }
    if (SPLITS > 1) {
        floats_at part = floats_at(arg.a[8] + 4 * ((uint64_t(arg.n[0]) * t + head) * SPLITS + gl_WorkGroupID.z) * (dv + 2));
        if (me == 0) {
            part.v[0] = most;
            part.v[1] = sum;
        }
        for (uint d = 0; d < OWN && me + 128 * d < dv; d++)
            part.v[2 + me + 128 * d] = acc[d];
        return;
    }
    float c = 1;
    if (arg.a[3] != 0) { /* a sink is a score without a value */
        const float sink = floats_at(arg.a[3]).v[head], top = max(sink, most);
        c = exp(most - top);
        sum = sum * c + exp(sink - top);
    }
    for (uint d = 0; d < OWN && me + 128 * d < dv; d++)
        floats_at(arg.a[6] + 4 * (uint64_t(arg.n[0]) * t + head) * dv).v[me + 128 * d] = acc[d] * (c / sum);
}

#version 450
/* SPDX-License-Identifier: MIT */
/* DELTA_RULE: a subgroup takes one row of a head's state through the tokens of the batch, in their order.
 *   a: qkv, beta, alpha, a, dt, y, state, params
 *   n: key heads, value heads, dk, dv, tiled, eps, scale, versions of the state, elements of a token of qkv
 *   groups: rows, value heads */
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#include "bl.glsl"

layout(local_size_x = 128) in;
const uint OWN = 64; /* elements of a row that an invocation holds at most: dk of 256 with subgroups of 4 */
float s[OWN], q[OWN], k[OWN];

float softplus(const float x)
{
    const float e = exp(x);
    precise const float u = 1 + e;
    return x > 20 ? x : u == 1 ? e : log(u) * e / (u - 1);
}

void unit_length(const uint64_t at, const float times, const bool is_q)
{
    const uint dk = arg.n[2];
    float sum = 0;
    for (uint o = 0, i = gl_SubgroupInvocationID; i < dk; i += gl_SubgroupSize, o++) {
        const float v = floats_at(at).v[i];
        sum = fma(v, v, sum);
        if (is_q)
            q[o] = v;
        else
            k[o] = v;
    }
    const float c = times / max(sqrt(subgroupAdd(sum)), num(5));
    for (uint o = 0, i = gl_SubgroupInvocationID; i < dk; i += gl_SubgroupSize, o++)
        if (is_q)
            q[o] *= c;
        else
            k[o] *= c;
}

uint64_t state_at(const uint slot, const uint pos, const uint head, const uint row)
{
    const uint dk = arg.n[2], dv = arg.n[3];
    const uint64_t version = slot * arg.n[7] + pos % arg.n[7];
    return arg.a[6] + 4 * ((version * arg.n[1] + head) * dv + row) * dk;
}

/* The row as it stands before the token. */
void enter(const uint slot, const uint pos, const uint head, const uint row)
{
    floats_at from = floats_at(state_at(slot, pos - 1, head, row));
    for (uint o = 0, i = gl_SubgroupInvocationID; i < arg.n[2]; i += gl_SubgroupSize, o++)
        s[o] = pos == 0 ? 0 : from.v[i];
}

void leave(const uint slot, const uint pos, const uint head, const uint row)
{
    floats_at to = floats_at(state_at(slot, pos, head, row));
    for (uint o = 0, i = gl_SubgroupInvocationID; i < arg.n[2]; i += gl_SubgroupSize, o++)
        to.v[i] = s[o];
}

float dot_row(const bool with_q)
{
    float sum = 0;
    for (uint o = 0, i = gl_SubgroupInvocationID; i < arg.n[2]; i += gl_SubgroupSize, o++)
        sum = fma(s[o], with_q ? q[o] : k[o], sum);
    return subgroupAdd(sum);
}

void main()
{
    const uint heads_k = arg.n[0], heads_v = arg.n[1], dk = arg.n[2], dv = arg.n[3];
    const uint head = gl_WorkGroupID.y, row = gl_WorkGroupID.x * gl_NumSubgroups + gl_SubgroupID;
    const uint key = arg.n[4] != 0 ? head % heads_k : head / (heads_v / heads_k);
    if (row >= dv)
        return;
    const uint n_tok = params_at(arg.a[7]).n_tok;
    for (uint t = 0; t < n_tok; t++) {
        const uint64_t x = arg.a[0] + 4 * uint64_t(arg.n[8]) * t, gate = 4 * (uint64_t(heads_v) * t + head);
        const uint seq = seq_of(arg.a[7], t), slot = slot_of(arg.a[7], seq), pos = pos_of(arg.a[7], t);
        unit_length(x + 4 * key * dk, num(6), true);
        unit_length(x + 4 * (heads_k + key) * dk, 1, false);
        const float alpha = floats_at(arg.a[2] + gate).v[0] + floats_at(arg.a[4]).v[head];
        const float decay = exp(floats_at(arg.a[3]).v[head] * softplus(alpha));
        const float beta = 1 / (1 + exp(-floats_at(arg.a[1] + gate).v[0]));
        const float v = floats_at(x + 4 * (2 * heads_k * dk + head * dv)).v[row];
        enter(slot, pos, head, row);
        const float d = beta * (v - decay * dot_row(false));
        for (uint o = 0, i = gl_SubgroupInvocationID; i < dk; i += gl_SubgroupSize, o++)
            s[o] = decay * s[o] + k[o] * d;
        const float y = dot_row(true);
        if (subgroupElect())
            floats_at(arg.a[5] + 4 * (uint64_t(heads_v) * t + head) * dv).v[row] = y;
        leave(slot, pos, head, row);
    }
}

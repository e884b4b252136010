#version 450
/* SPDX-License-Identifier: MIT */
/* DELTA_RULE: a subgroup takes one row of a head's state through the tokens of a batch, in their order.
 *   a: qkv, beta, alpha, a, dt, y, state, params
 *   n: key heads, value heads, dk, dv, tiled, eps, scale, versions of the state, elements of a token of qkv, first token,
 *      tokens
 *   groups: rows, value heads */
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#include "bl.glsl"

layout(local_size_x = 128) in;
layout(constant_id = 0) const uint OWN = 64; /* elements of a row that an invocation of the narrowest subgroup holds */
float s[OWN], q[OWN], k[OWN]; /* what lies beyond the row is 0 */

float softplus(const float x)
{
    const float e = exp(x);
    precise const float u = 1 + e;
    return x > 20 ? x : u == 1 ? e : log(u) * e / (u - 1);
}

uint element(const uint o) { return o * gl_SubgroupSize + gl_SubgroupInvocationID; }

void load(const uint64_t at, out float v[OWN])
{
    [[unroll]] for (uint o = 0; o < OWN; o++)
        v[o] = element(o) < arg.n[2] ? floats_at(at).v[element(o)] : 0;
}

float dot_rows(const float a[OWN], const float b[OWN])
{
    float sum = 0;
    [[unroll]] for (uint o = 0; o < OWN; o++)
        sum = fma(a[o], b[o], sum);
    return subgroupAdd(sum);
}

void unit_length(inout float v[OWN], const float times)
{
    const float c = times / max(sqrt(dot_rows(v, v)), num(5));
    [[unroll]] for (uint o = 0; o < OWN; o++)
        v[o] *= c;
}

uint64_t state_at(const uint slot, const uint pos, const uint head, const uint row)
{
    const uint dk = arg.n[2], dv = arg.n[3];
    const uint64_t version = slot * arg.n[7] + pos % arg.n[7];
    return arg.a[6] + 4 * ((version * arg.n[1] + head) * dv + row) * dk;
}

/* Whether token t + 1 is the next of the sequence of t, so that the row can stay where it is. */
bool goes_on(const uint t)
{
    const uint64_t p = arg.a[7];
    return seq_of(p, t) == seq_of(p, t + 1) && pos_of(p, t) + 1 == pos_of(p, t + 1);
}

void main()
{
    const uint heads_k = arg.n[0], heads_v = arg.n[1], dk = arg.n[2], dv = arg.n[3];
    const uint head = gl_WorkGroupID.y, row = gl_WorkGroupID.x * gl_NumSubgroups + gl_SubgroupID;
    const uint key = arg.n[4] != 0 ? head % heads_k : head / (heads_v / heads_k);
    if (row >= dv)
        return;
    const uint first = arg.n[9], end = min(first + arg.n[10], params_at(arg.a[7]).n_tok);
    for (uint t = first; t < end; t++) {
        const uint64_t x = arg.a[0] + 4 * uint64_t(arg.n[8]) * t, gate = 4 * (uint64_t(heads_v) * t + head);
        const uint seq = seq_of(arg.a[7], t), slot = slot_of(arg.a[7], seq), pos = pos_of(arg.a[7], t);
        load(x + 4 * key * dk, q);
        load(x + 4 * (heads_k + key) * dk, k);
        unit_length(q, num(6));
        unit_length(k, 1);
        const float alpha = floats_at(arg.a[2] + gate).v[0] + floats_at(arg.a[4]).v[head];
        const float decay = exp(floats_at(arg.a[3]).v[head] * softplus(alpha));
        const float beta = 1 / (1 + exp(-floats_at(arg.a[1] + gate).v[0]));
        const float v = floats_at(x + 4 * (2 * heads_k * dk + head * dv)).v[row];
        if (pos == 0) {
            [[unroll]] for (uint o = 0; o < OWN; o++)
                s[o] = 0;
        } else if (t == first || !goes_on(t - 1)) {
            load(state_at(slot, pos - 1, head, row), s);
        }
        const float d = beta * (v - decay * dot_rows(s, k));
        [[unroll]] for (uint o = 0; o < OWN; o++)
            s[o] = decay * s[o] + k[o] * d;
        const float y = dot_rows(s, q);
        if (subgroupElect())
            floats_at(arg.a[5] + 4 * (uint64_t(heads_v) * t + head) * dv).v[row] = y;
        if (arg.n[7] > 1 || t + 1 == end || !goes_on(t)) {
            floats_at to = floats_at(state_at(slot, pos, head, row));
            [[unroll]] for (uint o = 0; o < OWN; o++)
                if (element(o) < dk)
                    to.v[element(o)] = s[o];
        }
    }
}

#version 450
/* SPDX-License-Identifier: MIT */
/* SHORT_CONV: every element convolved over the last tokens of its sequence, in the batch or, before them, in the state.
 *   a: x, w, y, state, params   n: elements, taps, rows of a sequence, silu   groups: elements, tokens
 * KEEP 1: the state instead, of what the next step may look back on; it runs behind. */
#extension GL_GOOGLE_include_directive : require
#include "bl.glsl"

layout(local_size_x = 128) in;
layout(constant_id = 0) const uint KEEP = 0;

/* The token before t of the same sequence in this batch, or t where there is none. Mostly its neighbour. */
uint before(const uint t)
{
    const uint seq = seq_of(arg.a[4], t);
    for (uint u = t; u > 0; u--)
        if (seq_of(arg.a[4], u - 1) == seq)
            return u - 1;
    return t;
}

uint64_t state_at(const uint slot, const uint pos, const uint i)
{
    return arg.a[3] + 4 * (uint64_t(arg.n[0]) * (slot * arg.n[2] + pos % arg.n[2]) + i);
}

void main()
{
    const uint n = arg.n[0], taps = arg.n[1], i = gl_GlobalInvocationID.x, t = gl_WorkGroupID.y;
    if (i >= n || t >= params_at(arg.a[4]).n_tok)
        return;
    const uint seq = seq_of(arg.a[4], t), slot = slot_of(arg.a[4], seq), pos = pos_of(arg.a[4], t);
    if (KEEP != 0) {
        if (n_kv_of(arg.a[4], seq) - pos <= arg.n[2])
            floats_at(state_at(slot, pos, i)).v[0] = floats_at(arg.a[0] + 4 * (uint64_t(n) * t + i)).v[0];
        return;
    }
    floats_at w = floats_at(arg.a[1] + 4 * uint64_t(taps) * i);
    float sum = 0;
    uint from = t;
    bool inside = true;
    for (uint back = 0; back < taps && back <= pos; back++) {
        if (back > 0 && inside) {
            const uint u = before(from);
            inside = u != from;
            from = u;
        }
        const uint64_t x = inside ? arg.a[0] + 4 * (uint64_t(n) * from + i) : state_at(slot, pos - back, i);
        sum = fma(w.v[taps - 1 - back], floats_at(x).v[0], sum);
    }
    floats_at(arg.a[2] + 4 * (uint64_t(n) * t + i)).v[0] = arg.n[3] != 0 ? sum / (1 + exp(-sum)) : sum;
}

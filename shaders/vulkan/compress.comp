#version 450
/* SPDX-License-Identifier: MIT */
/* COMPRESS: an invocation takes one element of the result through the tokens of the batch, in their order, as a ring holds
 * just what a group looks back on.
 *   a: x, gate, ape, y, state, params   n: elements, halves, tokens of a group, rows of a sequence, bytes of a row of ape
 *   groups: elements */
#extension GL_GOOGLE_include_directive : require
#include "bl.glsl"
#include "kv.glsl"

layout(local_size_x = 32) in;
layout(constant_id = 0) const uint APE_TYPE = BL_F32;

/* The ring's row of a position: x, then its gate. */
uint64_t row_of(const uint slot, const uint pos)
{
    return arg.a[4] + 4 * uint64_t(slot * arg.n[3] + pos % arg.n[3]) * 2 * arg.n[1] * arg.n[0];
}

void keep(const uint t, const uint slot, const uint pos, const uint i)
{
    const uint n = arg.n[0], halves = arg.n[1];
    const uint64_t from = 4 * uint64_t(halves * n) * t, ape = arg.a[2] + uint64_t(arg.n[4]) * (pos % arg.n[2]);
    floats_at row = floats_at(row_of(slot, pos));
    for (uint half_n = 0; half_n < halves; half_n++) {
        const uint e = half_n * n + i;
        row.v[e] = floats_at(arg.a[0] + from).v[e];
        row.v[halves * n + e] = floats_at(arg.a[1] + from).v[e] + kv_element(APE_TYPE, ape, e);
    }
}

float pool(const uint slot, const uint pos, const uint i)
{
    const uint n = arg.n[0], halves = arg.n[1], own = pos + 1 - arg.n[2];
    const uint first = halves == 2 && own > 0 ? own - arg.n[2] : own;
    float most = -1.0 / 0.0, sum = 0, y = 0;
    for (uint p = first; p <= pos; p++)
        most = max(most, floats_at(row_of(slot, p)).v[(halves + (p >= own ? halves - 1 : 0)) * n + i]);
    for (uint p = first; p <= pos; p++) {
        floats_at row = floats_at(row_of(slot, p));
        const uint at = (p >= own ? halves - 1 : 0) * n + i;
        const float e = exp(row.v[halves * n + at] - most);
        sum += e;
        y = fma(e, row.v[at], y);
    }
    return y / sum;
}

void main()
{
    const uint n = arg.n[0], i = gl_GlobalInvocationID.x;
    const uint64_t p = arg.a[5];
    if (i >= n)
        return;
    for (uint t = 0; t < params_at(p).n_tok; t++) {
        const uint slot = slot_of(p, seq_of(p, t)), pos = pos_of(p, t);
        keep(t, slot, pos, i);
        floats_at(arg.a[3] + 4 * uint64_t(n) * t).v[i] = (pos + 1) % arg.n[2] != 0 ? 0 : pool(slot, pos, i);
    }
}

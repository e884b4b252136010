/* SPDX-License-Identifier: MIT */
/* experts.glsl — a matrix of every expert, of which the device has those whose address is not 0.
 *   a: table, x, y, ids, params, [biases], [scales], [gate's products], [order], [tiles]
 *   n: in, out, used, row of x of a pair is pair / n[3], bytes of a row, glu kind, alpha, limit, experts
 * A pair is a token and one of the experts chosen for it; ids beyond the experts, such as where the device that chooses has
 * failed, are of none. Where gate's products are given, act(those) * these is written. */
#include "glu.glsl"

uint64_t expert_at(const uint a, const uint e) { return arg.a[a] != 0 && e < arg.n[8] ? addrs_at(arg.a[a]).v[e] : uint64_t(0); }

float finish(const float sum, const uint e, const uint row, const uint64_t at)
{
    const uint64_t scale = expert_at(6, e), bias = expert_at(5, e);
    float v = sum;
    if (scale != 0)
        v *= floats_at(scale).v[0];
    if (bias != 0)
        v += floats_at(bias).v[row];
    return arg.a[7] != 0 ? act(arg.n[5], num(6), num(7), floats_at(arg.a[7] + at).v[0], v) : v;
}

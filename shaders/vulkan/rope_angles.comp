#version 450
/* SPDX-License-Identifier: MIT */
/* ROPE_ANGLES: cosine and sine of position * base^(-2 pair / n_dims), of one pair of one token.
 *   a: [factors], y, params
 *   n: n_dims, group, inverse, yarn, freq_scale, magnitude, lo, hi, base^(-2 / n_dims) as a double, pairs of a section's axes
 * Angles are made in double and reduced to a part of a turn before sine and cosine, which drivers owe to 11 bits only, are
 * summed here: at position 100,000 a float angle is off by thousandths. */
#extension GL_GOOGLE_include_directive : require
#include "bl.glsl"
#extension GL_EXT_shader_explicit_arithmetic_types_float64 : require

layout(local_size_x = 64) in;

/* base^(-2 i / n_dims) */
double step_of(uint i)
{
    double x = packDouble2x32(uvec2(arg.n[8], arg.n[9])), r = 1;
    for (; i > 0; i >>= 1, x *= x)
        r = (i & 1u) != 0 ? r * x : r;
    return r;
}

/* High frequencies stay as they are, low ones are interpolated, with a ramp between lo and hi. */
double blend(const uint i)
{
    if (arg.n[3] == 0)
        return double(num(4));
    const double width = max(0.001lf, double(num(7)) - double(num(6)));
    const double plain = 1 - clamp((double(i) - double(num(6))) / width, 0.0lf, 1.0lf);
    return double(num(4)) * (1 - plain) + plain;
}

/* Sections are bytes of a word each; a text token stands at one position on the first three axes, and at 0 on the last. */
bool turns(const uint i)
{
    const uint a = arg.n[10] & 0xffffu, b = arg.n[10] >> 16, c = arg.n[11] & 0xffffu, d = arg.n[11] >> 16;
    const uint all = a + b + c + d;
    if (all == 0)
        return true;
    const uint at = i % all, axis = at % 3;
    return at < 3 * (axis == 0 ? a : axis == 1 ? b : c);
}

/* x in [-1/8, 1/8] of a turn */
vec2 small_turn(const double x)
{
    const double a = x * 6.283185307179586lf, s = a * a;
    const double sine = a * (1 - s / 6 * (1 - s / 20 * (1 - s / 42 * (1 - s / 72 * (1 - s / 110)))));
    const double cosine = 1 - s / 2 * (1 - s / 12 * (1 - s / 30 * (1 - s / 56 * (1 - s / 90))));
    return vec2(cosine, sine);
}

vec2 turn(double x)
{
    x -= floor(x + 0.5lf);
    const int quarter = int(floor(x * 4 + 0.5lf));
    const vec2 v = small_turn(x - double(quarter) / 4);
    switch (quarter & 3) {
    case 0:
        return v;
    case 1:
        return vec2(-v.y, v.x);
    case 2:
        return -v;
    default:
        return vec2(v.y, -v.x);
    }
}

void main()
{
    const uint n_dims = arg.n[0], i = gl_GlobalInvocationID.x, t = gl_WorkGroupID.y;
    if (2 * i >= n_dims || t >= params_at(arg.a[2]).n_tok)
        return;
    const uint pos = pos_of(arg.a[2], t), p = pos - pos % arg.n[1];
    const double f = arg.a[0] != 0 ? double(floats_at(arg.a[0]).v[i]) : 1;
    const double phi = turns(i) ? double(p) * step_of(i) / f * blend(i) : 0;
    const vec2 v = turn(phi * 0.15915494309189535lf);
    floats_at y = floats_at(arg.a[1] + 4 * uint64_t(n_dims) * t);
    y.v[2 * i] = v.x * num(5);
    y.v[2 * i + 1] = arg.n[2] != 0 ? -v.y * num(5) : v.y * num(5);
}

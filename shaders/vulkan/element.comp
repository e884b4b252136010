#version 450
/* SPDX-License-Identifier: MIT */
/* ADD, SOFTCAP, SLICE, CONCAT, REPEAT: an element of y from one place of x, or the same places of two.
 *   a: x, [x1], [x2], y   n: elements of a row of y; then by kind. groups: elements, rows */
#extension GL_GOOGLE_include_directive : require
#include "bl.glsl"

layout(local_size_x = 128) in;
layout(constant_id = 0) const uint KIND = 0;
const uint ADD = 0, SOFTCAP = 1, SLICE = 2, CONCAT = 3, REPEAT = 4;

float x_at(const uint a, const uint64_t i) { return floats_at(arg.a[a] + 4 * i).v[0]; }

/* n: cap */
float softcap(const uint64_t at)
{
    return num(1) * tanh(clamp(x_at(0, at) / num(1), -15.0, 15.0));
}

/* n: elements of a row of x, run, first, of a run of y */
float slice(const uint i, const uint t)
{
    return x_at(0, uint64_t(arg.n[1]) * t + i / arg.n[4] * arg.n[2] + arg.n[3] + i % arg.n[4]);
}

/* n: of a run of x, x1, x2; runs */
float concat(const uint i, const uint t)
{
    const uint a = arg.n[1], b = arg.n[2], c = arg.n[3], all = a + b + c;
    const uint j = i % all;
    const uint64_t run = uint64_t(arg.n[4]) * t + i / all;
    return j < a ? x_at(0, run * a + j) : j < a + b ? x_at(1, run * b + j - a) : x_at(2, run * c + j - a - b);
}

void main()
{
    const uint n = arg.n[0], i = gl_GlobalInvocationID.x, t = gl_WorkGroupID.y;
    if (i >= n)
        return;
    const uint64_t at = uint64_t(n) * t + i;
    float v;
    switch (KIND) {
    case ADD:
        v = x_at(0, at) + x_at(1, at);
        break;
    case SOFTCAP:
        v = softcap(at);
        break;
    case SLICE:
        v = slice(i, t);
        break;
    case CONCAT:
        v = concat(i, t);
        break;
    default: /* n: elements of a row of x */
        v = x_at(0, uint64_t(arg.n[1]) * t + i % arg.n[1]);
        break;
    }
    floats_at(arg.a[3] + 4 * at).v[0] = v;
}

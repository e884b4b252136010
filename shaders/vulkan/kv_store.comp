#version 450
/* SPDX-License-Identifier: MIT */
/* KV_STORE: the step's rows into the cache; of groups of tokens a row for each that a token completes. An invocation
 * encodes a block of 32 elements.
 *   a: x, state, params   n: elements, bytes of a row, rows of a sequence, tokens of a group   groups: blocks, tokens
 * Rounding is to nearest, of two equally near to the even: core/dtype.c. */
#extension GL_GOOGLE_include_directive : require
#include "bl.glsl"

layout(local_size_x = 32) in;

/* Subnormal halves included. */
uint to_half(const float x)
{
    const uint b = floatBitsToUint(x), s = b >> 16 & 0x8000u, a = b & 0x7fffffffu;
    if (a >= 0x7f800000u)
        return s | (a > 0x7f800000u ? 0x7e00u | (a >> 13 & 0x3ffu) : 0x7c00u);
    if (a >= 0x477ff000u)
        return s | 0x7c00u;
    if (a < 0x38800000u) {
        const uint shift = 126 - (a >> 23);
        if (shift > 24)
            return s;
        const uint m = (a & 0x7fffffu) | 0x800000u, q = m >> shift, rest = m & ((1u << shift) - 1), tie = 1u << (shift - 1);
        return s | (q + uint(rest > tie || (rest == tie && (q & 1u) != 0)));
    }
    return s | ((a - 0x38000000u + 0xfffu + (a >> 13 & 1u)) >> 13);
}

uint to_bf16(const float x)
{
    const uint b = floatBitsToUint(x);
    return (b & 0x7fffffffu) > 0x7f800000u ? b >> 16 | 64u : (b + 0x7fffu + (b >> 16 & 1u)) >> 16;
}

#if TYPE == BL_Q8_0
void encode(const uint64_t row, const uint64_t x, const uint i)
{
    const uint64_t y = row + 34 * i;
    floats_at v = floats_at(x + 128 * i);
    float most = 0;
    for (uint j = 0; j < 32; j++)
        most = max(most, abs(v.v[j]));
    precise const float d = most / 127;
    halves_at(y).v[0] = uint16_t(to_half(d));
    for (uint j = 0; j < 32; j++)
        bytes_at(y + 2).v[j] = uint8_t(d != 0 ? int(roundEven(clamp(v.v[j] / d, -127, 127))) : 0);
}
#elif TYPE == BL_Q4_0
void encode(const uint64_t row, const uint64_t x, const uint i)
{
    const uint64_t y = row + 18 * i;
    floats_at v = floats_at(x + 128 * i);
    float most = 0, signed_most = 0;
    for (uint j = 0; j < 32; j++)
        if (abs(v.v[j]) > most) {
            most = abs(v.v[j]);
            signed_most = v.v[j];
        }
    precise const float d = signed_most / -8;
    precise const float inverse = d != 0 ? 1 / d : 0;
    halves_at(y).v[0] = uint16_t(to_half(d));
    for (uint j = 0; j < 16; j++) {
        precise const float lo = v.v[j] * inverse + 8.5, hi = v.v[j + 16] * inverse + 8.5;
        bytes_at(y + 2).v[j] = uint8_t(min(15, int(lo)) | min(15, int(hi)) << 4);
    }
}
#else
void encode(const uint64_t row, const uint64_t x, const uint i)
{
    for (uint j = 32 * i; j < min(32 * i + 32, arg.n[0]); j++) {
        const float v = floats_at(x).v[j];
#if TYPE == BL_F32
        floats_at(row).v[j] = v;
#elif TYPE == BL_F16
        halves_at(row).v[j] = uint16_t(to_half(v));
#else
        halves_at(row).v[j] = uint16_t(to_bf16(v));
#endif
    }
}
#endif

void main()
{
    const uint n = arg.n[0], i = gl_GlobalInvocationID.x, t = gl_WorkGroupID.y;
    if (32 * i >= n || t >= params_at(arg.a[2]).n_tok)
        return;
    const uint pos = pos_of(arg.a[2], t), group = arg.n[3];
    if ((pos + 1) % group != 0)
        return;
    const uint row = slot_of(arg.a[2], seq_of(arg.a[2], t)) * arg.n[2] + pos / group % arg.n[2];
    encode(arg.a[1] + uint64_t(arg.n[1]) * row, arg.a[0] + 4 * uint64_t(n) * t, i);
}

/* SPDX-License-Identifier: MIT */
/* encode.hpp — floats into rows of state.
 *
 * Purpose   what KV_STORE writes; rounding is to nearest, of two equally near to the even: core/dtype.c.
 * Ownership none.
 * Units     elements, bytes.
 * Errors    none.
 * Threads   any.
 */
#ifndef BL_SIMT_ENCODE_HPP
#define BL_SIMT_ENCODE_HPP

#include "simt/kv.hpp"

BL_DEV uint16_t to_bf16(float x)
{
    const uint32_t b = bits_as<uint32_t>(x);
    return static_cast<uint16_t>((b & 0x7fffffffu) > 0x7f800000u ? b >> 16 | 64u : (b + 0x7fffu + (b >> 16 & 1u)) >> 16);
}

BL_DEV void encode_q8_0(uint8_t *y, const float *v)
{
    float most = 0;
    for (uint32_t j = 0; j < 32; j++)
        most = fmaxf(most, fabsf(v[j]));
    const float d = most / 127;
    *reinterpret_cast<uint16_t *>(y) = float_to_half(d);
    for (uint32_t j = 0; j < 32; j++)
        y[2 + j] = static_cast<uint8_t>(d != 0 ? static_cast<int>(rintf(fminf(fmaxf(v[j] / d, -127.0f), 127.0f))) : 0);
}

BL_DEV void encode_q4_0(uint8_t *y, const float *v)
{
    float most = 0, signed_most = 0;
    for (uint32_t j = 0; j < 32; j++)
        if (fabsf(v[j]) > most) {
            most = fabsf(v[j]);
            signed_most = v[j];
        }
    const float d = signed_most / -8, inverse = d != 0 ? 1 / d : 0;
    *reinterpret_cast<uint16_t *>(y) = float_to_half(d);
    for (uint32_t j = 0; j < 16; j++) {
        const int low = static_cast<int>(v[j] * inverse + 8.5f), high = static_cast<int>(v[j + 16] * inverse + 8.5f);
        y[2 + j] = static_cast<uint8_t>((low < 15 ? low : 15) | (high < 15 ? high : 15) << 4);
    }
}

/* Element j of a row that is not in blocks. */
BL_DEV void encode_one(uint32_t type, uint8_t *y, float v, uint32_t j)
{
    if (type == KV_F32)
        reinterpret_cast<float *>(y)[j] = v;
    else
        reinterpret_cast<uint16_t *>(y)[j] = type == KV_F16 ? float_to_half(v) : to_bf16(v);
}

/* Elements [32 i, 32 i + 32) of a row of n, which begins at y. */
BL_DEV void encode(uint32_t type, uint8_t *y, const float *x, uint32_t i, uint32_t n)
{
    if (type == KV_Q8_0)
        encode_q8_0(y + 34 * i, x + 32 * i);
    else if (type == KV_Q4_0)
        encode_q4_0(y + 18 * i, x + 32 * i);
    else
        for (uint32_t j = 32 * i; j < least(32 * i + 32, n); j++)
            encode_one(type, y, x[j], j);
}

#endif

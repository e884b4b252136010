/* SPDX-License-Identifier: MIT */
/* kv.glsl — elements of cached rows; `type` is a specialisation constant, so one branch remains. */
#include "bytes.glsl"

uint kv_bytes(const uint type, const uint n)
{
    switch (type) {
    case BL_F32:
        return 4 * n;
    case BL_Q8_0:
        return n / 32 * 34;
    case BL_Q4_0:
        return n / 32 * 18;
    default:
        return 2 * n;
    }
}

float kv_element(const uint type, const uint64_t row, const uint i)
{
    switch (type) {
    case BL_F32:
        return floats_at(row).v[i];
    case BL_F16:
        return half_at(row + 2 * i);
    case BL_BF16:
        return uintBitsToFloat(uint(halves_at(row).v[i]) << 16);
    case BL_Q8_0: {
        const uint64_t b = row + 34 * (i / 32);
        return half_at(b) * float(bitfieldExtract(int(bytes_at(b + 2).v[i % 32]), 0, 8));
    }
    default: { /* Q4_0 */
        const uint64_t b = row + 18 * (i / 32);
        return half_at(b) * float(int(uint(bytes_at(b + 2).v[i % 16]) >> 4 * (i % 32 / 16) & 15u) - 8);
    }
    }
}

/* Elements [8 e, 8 e + 8) of a row of n, 0 beyond. Rows of whole eights begin at multiples of 16 bytes, or are blocks. */
void kv_eight(const uint type, const uint64_t row, const uint e, const uint n, out float v[8])
{
    if (n % 8 != 0) {
        for (uint j = 0; j < 8; j++)
            v[j] = 8 * e + j < n ? kv_element(type, row, 8 * e + j) : 0;
        return;
    }
    if (8 * e >= n) {
        v = float[8](0, 0, 0, 0, 0, 0, 0, 0);
        return;
    }
    if (type == BL_F32) {
        floats8_at(row + 32 * e, v);
    } else if (type == BL_F16 || type == BL_BF16) {
        const uvec4 x = uvec4(pair_at(row + 16 * e), pair_at(row + 16 * e + 8));
        [[unroll]] for (uint j = 0; j < 4; j++) {
            const vec2 two = type == BL_F16 ? unpackHalf2x16(x[j]) : uintBitsToFloat(uvec2(x[j] << 16, x[j] & 0xffff0000u));
            v[2 * j] = two.x;
            v[2 * j + 1] = two.y;
        }
    } else {
        const uint64_t b = row + kv_bytes(type, 32) * (e / 4);
        uvec2 q;
        if (type == BL_Q8_0)
            q = bytes8_at(b + 2 + 8 * (e % 4));
        else
            q = less(bytes8_at(b + 2 + 8 * (e % 2)) >> 4 * (e / 2 % 2) & 0x0f0f0f0fu, 8);
        floats_of(q, v);
        [[unroll]] for (uint j = 0; j < 8; j++)
            v[j] *= half_at(b);
    }
}

/* SPDX-License-Identifier: MIT */
/* kv.glsl — elements of cached rows; `type` is a specialisation constant, so one branch remains. */
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

float kv_half(const uint64_t at) { return unpackHalf2x16(uint(halves_at(at).v[0])).x; }

float kv_element(const uint type, const uint64_t row, const uint i)
{
    switch (type) {
    case BL_F32:
        return floats_at(row).v[i];
    case BL_F16:
        return kv_half(row + 2 * i);
    case BL_BF16:
        return uintBitsToFloat(uint(halves_at(row).v[i]) << 16);
    case BL_Q8_0: {
        const uint64_t b = row + 34 * (i / 32);
        return kv_half(b) * float(bitfieldExtract(int(bytes_at(b + 2).v[i % 32]), 0, 8));
    }
    default: { /* Q4_0 */
        const uint64_t b = row + 18 * (i / 32);
        return kv_half(b) * float(int(uint(bytes_at(b + 2).v[i % 16]) >> 4 * (i % 32 / 16) & 15u) - 8);
    }
    }
}

/* SPDX-License-Identifier: MIT */
/* types_rare.glsl — types whose elements come from codebooks, or are digits: core/dtype_iq.c. Included by types.glsl. */

/* Seven of eight signs are stored; the eighth makes the number of minuses even. */
uint signs_of(const uint code)
{
    return code | uint(bitCount(code) & 1) << 7;
}

/* An entry of the type's codebook: backends/vulkan/vk_codebooks.c. */
uint book(const uint entry) { return uint(halves_at(packUint2x32(uvec2(arg.n[10], arg.n[11]))).v[entry]); }

float with_sign(const int v, const uint negative) { return float((negative & 1u) != 0 ? -v : v); }

#if TYPE == BL_IQ4_XS
#include "iq4.glsl"
void decode8(const uint64_t row, const uint i, out float w[8])
{
    const uint64_t b = row + 136 * (i / 32);
    const uint s = i % 32 / 4, part = i % 4; /* of 32 elements; eight of them */
    const uint scale = (byte_at(b + 4 + s / 2) >> 4 * (s % 2) & 15u) | (half_word(b + 2) >> 2 * s & 3u) << 4;
    const float d = half_at(b) * float(int(scale) - 32);
    [[unroll]] for (uint j = 0; j < 8; j++)
        w[j] = d * float(iq4_levels[byte_at(b + 8 + 16 * s + 8 * (part % 2) + j) >> 4 * (part / 2) & 15u]);
}

#elif TYPE == BL_IQ2_XXS || TYPE == BL_IQ2_XS || TYPE == BL_IQ2_S
const int iq2_levels[4] = {8, 25, 43, 0};
void decode8(const uint64_t row, const uint i, out float w[8])
{
    const uint g = i % 32; /* of eight elements */
#if TYPE == BL_IQ2_XXS
    const uint64_t b = row + 66 * (i / 32), index = b + 2 + 8 * (g / 4);
    const uint a = word_at(index + 4), signs = signs_of(a >> 7 * (g % 4) & 127u), scale = a >> 28;
    const uint entry = book(byte_at(index + g % 4));
#elif TYPE == BL_IQ2_XS
    const uint64_t b = row + 74 * (i / 32);
    const uint code = half_word(b + 2 + 2 * g), signs = signs_of(code >> 9);
    const uint scale = byte_at(b + 66 + g / 4) >> 4 * (g / 2 % 2) & 15u;
    const uint entry = book(code & 511u);
#else
    const uint64_t b = row + 82 * (i / 32);
    const uint high = byte_at(b + 66 + g / 4) >> 2 * (g % 4) & 3u, signs = byte_at(b + 34 + g);
    const uint scale = byte_at(b + 74 + g / 4) >> 4 * (g / 2 % 2) & 15u;
    const uint entry = book(byte_at(b + 2 + g) | high << 8);
#endif
    const float d = half_at(b) * (0.5 + float(scale)) * 0.25;
    [[unroll]] for (uint j = 0; j < 8; j++)
        w[j] = d * with_sign(iq2_levels[entry >> 2 * j & 3u], signs >> j);
}

#elif TYPE == BL_IQ3_XXS || TYPE == BL_IQ3_S
#if TYPE == BL_IQ3_XXS
const int levels[8] = {4, 12, 20, 28, 36, 44, 52, 62};
#else
const int levels[8] = {1, 3, 5, 7, 9, 11, 13, 15};
#endif
void decode8(const uint64_t row, const uint i, out float w[8])
{
    const uint g = i % 32;
#if TYPE == BL_IQ3_XXS
    const uint64_t b = row + 98 * (i / 32);
    const uint a = word_at(b + 66 + 4 * (g / 4)), signs = signs_of(a >> 7 * (g % 4) & 127u);
    const float d = half_at(b) * (0.5 + float(a >> 28)) * 0.5;
    const uint e0 = book(byte_at(b + 2 + 2 * g)), e1 = book(byte_at(b + 3 + 2 * g));
#else
    const uint64_t b = row + 110 * (i / 32);
    const uint signs = byte_at(b + 74 + g), high = byte_at(b + 66 + g / 4) >> 2 * (g % 4);
    const float d = half_at(b) * float(1 + 2 * (byte_at(b + 106 + g / 8) >> 4 * (g / 4 % 2) & 15u));
    const uint e0 = book(byte_at(b + 2 + 2 * g) | (high & 1u) << 8), e1 = book(byte_at(b + 3 + 2 * g) | (high >> 1 & 1u) << 8);
#endif
    [[unroll]] for (uint j = 0; j < 4; j++) {
        w[j] = d * with_sign(levels[e0 >> 3 * j & 7u], signs >> j);
        w[j + 4] = d * with_sign(levels[e1 >> 3 * j & 7u], signs >> (j + 4));
    }
}

#elif TYPE == BL_IQ1_S || TYPE == BL_IQ1_M
void decode8(const uint64_t row, const uint i, out float w[8])
{
    const uint g = i % 32;
#if TYPE == BL_IQ1_S
    const uint64_t b = row + 50 * (i / 32), codes = b + 2;
    const uint h = half_word(b + 34 + 2 * (g / 4)), high = h >> 3 * (g % 4) & 7u;
    const bool minus = (h & 0x8000u) != 0;
    const float d = half_at(b) * float(2 * (h >> 12 & 7u) + 1) * 0.125;
#else
    const uint64_t b = row + 56 * (i / 32), codes = b;
    const uint h = byte_at(b + 32 + g / 2) >> 4 * (g % 2) & 15u, high = h & 7u;
    const bool minus = (h & 8u) != 0;
    uint bits = 0; /* a nibble of the scale is on top of each word of scales */
    for (uint k = 0; k < 4; k++)
        bits |= half_word(b + 48 + 2 * k) >> 12 << 4 * k;
    const uint run = g / 2, s = half_word(b + 48 + 2 * (run / 4)) >> 3 * (run % 4) & 7u;
    const float d = unpackHalf2x16(bits).x * float(2 * s + 1) * 0.125;
#endif
    const uint entry = book(byte_at(codes + g) | high << 8);
    [[unroll]] for (uint j = 0; j < 8; j++)
        w[j] = d * float(8 * (int(entry >> 2 * j & 3u) - 1) + (minus ? -1 : 1));
}

#elif TYPE == BL_TQ1_0
/* Base-3 digits as a fraction of 256: times 3^n and modulo 256, the next digit is the carry of times 3. */
float trit(const uint byte, const uint digit)
{
    const uint power[5] = {1, 3, 9, 27, 81};
    return float(int((byte * power[digit] & 255u) * 3 >> 8) - 1);
}
void decode8(const uint64_t row, const uint i, out float w[8])
{
    const uint64_t b = row + 54 * (i / 32);
    const float d = half_at(b + 52);
    [[unroll]] for (uint j = 0; j < 8; j++) {
        const uint e = 8 * (i % 32) + j;
        if (e < 160)
            w[j] = d * trit(byte_at(b + e % 32), e / 32);
        else if (e < 240)
            w[j] = d * trit(byte_at(b + 32 + (e - 160) % 16), (e - 160) / 16);
        else
            w[j] = d * trit(byte_at(b + 48 + (e - 240) % 4), (e - 240) / 4);
    }
}

#elif TYPE == BL_Q1_0
void decode8(const uint64_t row, const uint i, out float w[8])
{
    const uint64_t b = row + 18 * (i / 16);
    const float d = half_at(b);
    const uint bits = byte_at(b + 2 + i % 16);
    [[unroll]] for (uint j = 0; j < 8; j++)
        w[j] = d * float(2 * int(bits >> j & 1u) - 1);
}

#else /* Q2_0 */
void decode8(const uint64_t row, const uint i, out float w[8])
{
    const uint64_t b = row + 18 * (i / 8);
    const float d = half_at(b);
    const uint bits = half_word(b + 2 + 2 * (i % 8));
    [[unroll]] for (uint j = 0; j < 8; j++)
        w[j] = d * float(int(bits >> 2 * j & 3u) - 1);
}
#endif

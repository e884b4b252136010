/* SPDX-License-Identifier: MIT */
/* types_rare.glsl — types whose elements come from codebooks, or are digits: core/dtype_iq.c. Included by types.glsl. */

/* Seven of eight signs are stored; the eighth makes the number of minuses even. */
uint signs_of(const uint code) { return code | uint(bitCount(code) & 1) << 7; }
uvec2 with_signs(const uvec2 x, const uint signs) { return uvec2(negate(x.x, spread1(signs)), negate(x.y, spread1(signs >> 4))); }

/* An entry of the type's codebook: backends/vulkan/vk_codebooks.c. */
uint book(const uint entry) { return uint(halves_at(packUint2x32(uvec2(arg.n[10], arg.n[11]))).v[entry]); }

#if TYPE == BL_IQ4_XS
#include "iq4.glsl"
void unpack(const uint64_t row, const uint u, out uvec2 q[EIGHTS], out float d[EIGHTS], out float m[EIGHTS])
{
    const uint64_t b = row + 136 * (u / 16);
    const uint s = u / 2 % 8; /* of 32 elements */
    const uvec2 head = pair_at(b), x = pair_at(b + 8 + 8 * (u % 16));
    const uint scale = head.y >> 4 * s & 15u | (head.x >> 16 + 2 * s & 3u) << 4;
    d[0] = d[1] = unpackHalf2x16(head.x).x * float(int(scale) - 32);
    q[0] = iq4(x & 0x0f0f0f0fu);
    q[1] = iq4(x >> 4 & 0x0f0f0f0fu);
}

#elif TYPE == BL_IQ2_XXS || TYPE == BL_IQ2_XS || TYPE == BL_IQ2_S
/* 8, 25, 43 */
uint levels(const uint code) { return 8 * ONES + 17 * code + (code >> 1 & ONES); }

void unpack(const uint64_t row, const uint g, out uvec2 q[EIGHTS], out float d[EIGHTS], out float m[EIGHTS])
{
    const uint i = g % 32;
#if TYPE == BL_IQ2_XXS
    const uint64_t b = row + 66 * (g / 32), index = b + 2 + 8 * (i / 4);
    const uint a = word_at(index + 4), signs = signs_of(a >> 7 * (i % 4) & 127u), scale = a >> 28;
    const uint entry = book(byte_at(index + i % 4));
#elif TYPE == BL_IQ2_XS
    const uint64_t b = row + 74 * (g / 32);
    const uint code = half_word(b + 2 + 2 * i), signs = signs_of(code >> 9);
    const uint scale = byte_at(b + 66 + i / 4) >> 4 * (i / 2 % 2) & 15u;
    const uint entry = book(code & 511u);
#else
    const uint64_t b = row + 82 * (g / 32);
    const uint high = byte_at(b + 66 + i / 4) >> 2 * (i % 4) & 3u, signs = byte_at(b + 34 + i);
    const uint scale = byte_at(b + 74 + i / 4) >> 4 * (i / 2 % 2) & 15u;
    const uint entry = book(byte_at(b + 2 + i) | high << 8);
#endif
    const uvec2 code2 = spread2x2(entry);
    d[0] = half_at(b) * (0.5 + float(scale)) * 0.25;
    q[0] = with_signs(uvec2(levels(code2.x), levels(code2.y)), signs);
}

#elif TYPE == BL_IQ3_XXS || TYPE == BL_IQ3_S
uint levels(const uint code)
{
#if TYPE == BL_IQ3_XXS /* 4, 12, ... 52, 62 */
    return 4 * ONES + 8 * code + 2 * (code & code >> 1 & code >> 2 & ONES);
#else /* 1, 3, ... 15 */
    return ONES + 2 * code;
#endif
}

void unpack(const uint64_t row, const uint g, out uvec2 q[EIGHTS], out float d[EIGHTS], out float m[EIGHTS])
{
    const uint i = g % 32;
#if TYPE == BL_IQ3_XXS
    const uint64_t b = row + 98 * (g / 32);
    const uint a = word_at(b + 66 + 4 * (i / 4)), signs = signs_of(a >> 7 * (i % 4) & 127u), two = half_word(b + 2 + 2 * i);
    d[0] = half_at(b) * (0.5 + float(a >> 28)) * 0.5;
    const uint e0 = book(two & 255u), e1 = book(two >> 8);
#else
    const uint64_t b = row + 110 * (g / 32);
    const uint signs = byte_at(b + 74 + i), high = byte_at(b + 66 + i / 4) >> 2 * (i % 4), two = half_word(b + 2 + 2 * i);
    d[0] = half_at(b) * float(1 + 2 * (byte_at(b + 106 + i / 8) >> 4 * (i / 4 % 2) & 15u));
    const uint e0 = book(two & 255u | (high & 1u) << 8), e1 = book(two >> 8 | (high & 2u) << 7);
#endif
    q[0] = with_signs(uvec2(levels(spread3(e0)), levels(spread3(e1))), signs);
}

#elif TYPE == BL_IQ1_S || TYPE == BL_IQ1_M
void unpack(const uint64_t row, const uint g, out uvec2 q[EIGHTS], out float d[EIGHTS], out float m[EIGHTS])
{
    const uint i = g % 32;
#if TYPE == BL_IQ1_S
    const uint64_t b = row + 50 * (g / 32), codes = b + 2;
    const uint h = half_word(b + 34 + 2 * (i / 4)), high = h >> 3 * (i % 4) & 7u;
    const bool minus = (h & 0x8000u) != 0;
    d[0] = half_at(b) * float(2 * (h >> 12 & 7u) + 1) * 0.125;
#else
    const uint64_t b = row + 56 * (g / 32), codes = b;
    const uint h = byte_at(b + 32 + i / 2) >> 4 * (i % 2) & 15u, high = h & 7u;
    const bool minus = (h & 8u) != 0;
    const uvec2 scales = words2_at(b + 48); /* a nibble of the scale of all is on top of each half of them */
    const uint all = scales.x >> 12 & 15u | scales.x >> 24 & 0xf0u | scales.y >> 4 & 0xf00u | scales.y >> 16 & 0xf000u;
    const uint run = i / 2, s = scales[run / 8] >> 16 * (run / 4 % 2) + 3 * (run % 4) & 7u;
    d[0] = unpackHalf2x16(all).x * float(2 * s + 1) * 0.125;
#endif
    /* 8 (code - 1) and one more or less */
    q[0] = spread2x2(book(byte_at(codes + i) | high << 8)) * 8 + (minus ? 0x77 : 0x79) * ONES ^ TOPS;
}

#elif TYPE == BL_TQ1_0
/* Base-3 digits as a fraction of 256: times 3^n and modulo 256, the next digit is the carry of times 3. */
uint trits(const uint x, const uint digit)
{
    const uint power = digit < 2 ? 1 + 2 * digit : digit < 4 ? 18 * digit - 27 : 81;
    const uint even = (x & 0x00ff00ffu) * power & 0x00ff00ffu, odd = (x >> 8 & 0x00ff00ffu) * power & 0x00ff00ffu;
    return less(even * 3 >> 8 & 0x00030003u | odd * 3 & 0x03000300u, 1);
}

void unpack(const uint64_t row, const uint g, out uvec2 q[EIGHTS], out float d[EIGHTS], out float m[EIGHTS])
{
    const uint64_t b = row + 54 * (g / 32);
    const uint i = g % 32;
    uint at, digit, next = 0; /* next: how much higher the digits of the second four are */
    if (i < 20) {
        at = 8 * (i % 4);
        digit = i / 4;
    } else if (i < 30) {
        at = 32 + 8 * (i % 2);
        digit = (i - 20) / 2;
    } else {
        at = 48;
        digit = 2 * (i - 30);
        next = 1;
    }
    const uint x = word_at(b + at), y = next != 0 ? x : word_at(b + at + 4);
    d[0] = half_at(b + 52);
    q[0] = uvec2(trits(x, digit), trits(y, digit + next));
}

#elif TYPE == BL_Q1_0
void unpack(const uint64_t row, const uint g, out uvec2 q[EIGHTS], out float d[EIGHTS], out float m[EIGHTS])
{
    const uint64_t b = row + 18 * (g / 16);
    d[0] = half_at(b);
    q[0] = less(spread1x2(byte_at(b + 2 + g % 16)) * 2, 1);
}

#else /* Q2_0 */
void unpack(const uint64_t row, const uint g, out uvec2 q[EIGHTS], out float d[EIGHTS], out float m[EIGHTS])
{
    const uint64_t b = row + 18 * (g / 8);
    d[0] = half_at(b);
    q[0] = less(spread2x2(half_word(b + 2 + 2 * (g % 8))), 1);
}
#endif

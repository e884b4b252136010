/* SPDX-License-Identifier: MIT */
/* types.glsl — elements of a row of TYPE, as floats: core/dtype_unpack.c is the specification.
 *
 *   decode8(row, i, w)   w[0..8): elements [8 i, 8 i + 8) of the row that begins at address `row`
 *   decode1(row, i)      one element; rows of F32, F16 and BF16 need not be whole eights
 *
 * TYPE is a number of the enum that the build makes of core/dtype.def (BL_Q4_K, ...). */

float half_at(const uint64_t at) { return unpackHalf2x16(uint(halves_at(at).v[0])).x; }
uint byte_at(const uint64_t at) { return uint(bytes_at(at).v[0]); }
uint half_word(const uint64_t at) { return uint(halves_at(at).v[0]); }
/* A word at an even address. */
uint word_at(const uint64_t at) { return uint(halves_at(at).v[0]) | uint(halves_at(at).v[1]) << 16; }
int signed8(const uint b) { return bitfieldExtract(int(b), 0, 8); }

#if TYPE == BL_F32
float decode1(const uint64_t row, const uint i) { return floats_at(row).v[i]; }
#elif TYPE == BL_F16
float decode1(const uint64_t row, const uint i) { return half_at(row + 2 * i); }
#elif TYPE == BL_BF16
float decode1(const uint64_t row, const uint i) { return uintBitsToFloat(half_word(row + 2 * i) << 16); }
#endif

#if TYPE == BL_F32 || TYPE == BL_F16 || TYPE == BL_BF16
void decode8(const uint64_t row, const uint i, out float w[8])
{
    [[unroll]] for (uint j = 0; j < 8; j++)
        w[j] = decode1(row, 8 * i + j);
}

#else

/* Nibbles of n bytes: low ones are elements 0..n-1, high ones n..2n-1. `at`: of the first byte, e: first element. */
uint nibble(const uint64_t at, const uint n, const uint e) { return byte_at(at + e % n) >> 4 * (e / n) & 15u; }

#if TYPE == BL_Q8_0
void decode8(const uint64_t row, const uint i, out float w[8])
{
    const uint64_t b = row + 34 * (i / 4);
    const float d = half_at(b);
    [[unroll]] for (uint j = 0; j < 8; j += 2) {
        const uint two = half_word(b + 2 + 8 * (i % 4) + j);
        w[j] = d * float(signed8(two));
        w[j + 1] = d * float(signed8(two >> 8));
    }
}

#elif TYPE == BL_Q4_0 || TYPE == BL_Q4_1 || TYPE == BL_Q5_0 || TYPE == BL_Q5_1 || TYPE == BL_IQ4_NL
#if TYPE == BL_Q4_0 || TYPE == BL_IQ4_NL
const uint SIZE = 18, HEAD = 2;
#elif TYPE == BL_Q4_1
const uint SIZE = 20, HEAD = 4;
#elif TYPE == BL_Q5_0
const uint SIZE = 22, HEAD = 6;
#else
const uint SIZE = 24, HEAD = 8;
#endif
#if TYPE == BL_IQ4_NL
#include "iq4.glsl"
#endif
void decode8(const uint64_t row, const uint i, out float w[8])
{
    const uint64_t b = row + SIZE * (i / 4);
    const uint part = i % 4, at = 8 * (part % 2), shift = 4 * (part / 2);
    const float d = half_at(b);
#if TYPE == BL_Q5_0 || TYPE == BL_Q5_1
    const uint high = word_at(b + HEAD - 4) >> 8 * part;
#endif
#if TYPE == BL_Q4_1 || TYPE == BL_Q5_1
    const float m = half_at(b + 2);
#endif
    [[unroll]] for (uint j = 0; j < 8; j++) {
        uint q = half_word(b + HEAD + at + (j & 6u)) >> (8 * (j & 1u) + shift) & 15u;
#if TYPE == BL_Q5_0 || TYPE == BL_Q5_1
        q |= (high >> j & 1u) << 4;
#endif
#if TYPE == BL_Q4_0
        w[j] = d * float(int(q) - 8);
#elif TYPE == BL_Q5_0
        w[j] = d * float(int(q) - 16);
#elif TYPE == BL_IQ4_NL
        w[j] = d * float(iq4_levels[q]);
#else
        w[j] = d * float(q) + m;
#endif
    }
}

#elif TYPE == BL_MXFP4 || TYPE == BL_NVFP4
/* Twice the value of E2M1 times half the scale. */
float fp4(const uint q)
{
    const uint e = q >> 1 & 3u, m = q & 1u;
    const float v = e == 0 ? float(m) : float((2 + m) << (e - 1));
    return (q & 8u) != 0 ? -v : v;
}
#if TYPE == BL_MXFP4
void decode8(const uint64_t row, const uint i, out float w[8])
{
    const uint64_t b = row + 17 * (i / 4);
    const uint e = byte_at(b), part = i % 4;
    const float d = uintBitsToFloat(e < 2 ? 0x00200000u << e : (e - 1) << 23);
    [[unroll]] for (uint j = 0; j < 8; j++)
        w[j] = d * fp4(byte_at(b + 1 + 8 * (part % 2) + j) >> 4 * (part / 2) & 15u);
}
#else
void decode8(const uint64_t row, const uint i, out float w[8])
{
    const uint64_t b = row + 36 * (i / 8);
    const uint part = i % 8, x = byte_at(b + part / 2), e = x >> 3 & 15u;
    float d = e == 0 ? float(x & 7u) * 0.001953125 : uintBitsToFloat((e + 120) << 23 | (x & 7u) << 20);
    d = x == 0x7f ? 0 : 0.5 * d;
    [[unroll]] for (uint j = 0; j < 8; j++)
        w[j] = d * fp4(byte_at(b + 4 + 8 * (part / 2) + j) >> 4 * (part % 2) & 15u);
}
#endif

#elif TYPE == BL_Q4_K || TYPE == BL_Q5_K
void decode8(const uint64_t row, const uint i, out float w[8])
{
#if TYPE == BL_Q4_K
    const uint64_t b = row + 144 * (i / 32), qs = b + 16;
#else
    const uint64_t b = row + 176 * (i / 32), qs = b + 48;
#endif
    const uint part = i % 32, s = part / 4, at = 8 * (part % 4); /* of 32 elements; its bytes */
    const uint64_t sc = b + 4;
    uint scale, low;
    if (s < 4) {
        scale = byte_at(sc + s) & 63u;
        low = byte_at(sc + s + 4) & 63u;
    } else {
        scale = (byte_at(sc + s + 4) & 15u) | byte_at(sc + s - 4) >> 6 << 4;
        low = byte_at(sc + s + 4) >> 4 | byte_at(sc + s) >> 6 << 4;
    }
    const float d = half_at(b) * float(scale), m = -(half_at(b + 2) * float(low));
    const uint64_t q = qs + 32 * (s / 2) + at;
    [[unroll]] for (uint j = 0; j < 8; j += 2) {
        const uint two = half_word(q + j) >> 4 * (s % 2);
        uint q0 = two & 15u, q1 = two >> 8 & 15u;
#if TYPE == BL_Q5_K
        const uint high = half_word(b + 16 + at + j) >> s;
        q0 |= (high & 1u) << 4;
        q1 |= (high >> 8 & 1u) << 4;
#endif
        w[j] = d * float(q0) + m;
        w[j + 1] = d * float(q1) + m;
    }
}

#elif TYPE == BL_Q6_K
void decode8(const uint64_t row, const uint i, out float w[8])
{
    const uint64_t b = row + 210 * (i / 32);
    const uint part = i % 32, s = part / 4, at = 8 * (part % 4); /* 32 elements from 32 s on */
    const float d = half_at(b + 208) * float(signed8(byte_at(b + 192 + 2 * s + at / 16)));
    const uint64_t low = b + 64 * (s / 4) + 32 * (s % 2) + at, high = b + 128 + 32 * (s / 4) + at;
    const uint shift = 4 * (s / 2 % 2), up = 2 * (s % 4);
    [[unroll]] for (uint j = 0; j < 8; j += 2) {
        const uint l = half_word(low + j) >> shift, h = half_word(high + j) >> up;
        w[j] = d * float(int((l & 15u) | (h & 3u) << 4) - 32);
        w[j + 1] = d * float(int((l >> 8 & 15u) | (h >> 8 & 3u) << 4) - 32);
    }
}

#elif TYPE == BL_Q2_K || TYPE == BL_Q3_K || TYPE == BL_TQ2_0
/* Bits 2s, 2s + 1 of 32 bytes are 32 elements in a row, then the next 32 bytes follow. */
void decode8(const uint64_t row, const uint i, out float w[8])
{
    const uint part = i % 32, s = part / 4, at = 8 * (part % 4), run = part / 2; /* run: of 16 elements */
#if TYPE == BL_Q2_K
    const uint64_t b = row + 84 * (i / 32), qs = b + 16;
    const uint x = byte_at(b + run);
    const float d = half_at(b + 80) * float(x & 15u), m = -(half_at(b + 82) * float(x >> 4));
#elif TYPE == BL_Q3_K
    const uint64_t b = row + 110 * (i / 32), qs = b + 32;
    const uint low = byte_at(b + 96 + run % 8) >> 4 * (run / 8) & 15u;
    const uint high = byte_at(b + 104 + run % 4) >> 2 * (run / 4) & 3u;
    const float d = half_at(b + 108) * float(int(low | high << 4) - 32);
#else
    const uint64_t b = row + 66 * (i / 32), qs = b;
    const float d = half_at(b + 64);
#endif
    [[unroll]] for (uint j = 0; j < 8; j += 2) {
        const uint two = half_word(qs + 32 * (s / 4) + at + j) >> 2 * (s % 4);
        const uint q0 = two & 3u, q1 = two >> 8 & 3u;
#if TYPE == BL_Q2_K
        w[j] = d * float(q0) + m;
        w[j + 1] = d * float(q1) + m;
#elif TYPE == BL_Q3_K
        const uint mask = half_word(b + at + j) >> s;
        w[j] = d * float(int(q0 | (mask & 1u) << 2) - 4);
        w[j + 1] = d * float(int(q1 | (mask >> 8 & 1u) << 2) - 4);
#else
        w[j] = d * float(int(q0) - 1);
        w[j + 1] = d * float(int(q1) - 1);
#endif
    }
}

#else
#include "types_rare.glsl"
#endif
#endif

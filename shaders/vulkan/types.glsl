/* SPDX-License-Identifier: MIT */
/* types.glsl — rows of TYPE: core/dtype_unpack.c is the specification.
 *
 * A unit is what one invocation takes of a row at a time: neighbouring bytes of quants, read once, and all that they stand
 * for. Unit u is EIGHTS runs of eight elements; run n is elements [8 e, 8 e + 8) with e = eight_of(u, n).
 *
 *   unpack(row, u, q, d, m)  element j of run n is d[n] * (signed byte j of q[n]) + m[n], m being left alone but for HAS_MIN
 *   decode(row, u, w)        the same, as floats
 *   decode1(row, i)          one element of F32, F16, BF16, whose rows need not be whole eights and which have no unpack
 *
 * TYPE is a number of the enum that the build makes of core/dtype.def (BL_Q4_K, ...). Rows begin where blocks of the type
 * may: at multiples of 8 bytes for Q4_K, Q5_K and IQ4_XS, of 4 where a block is whole words, else of 2 or 1. Quants are
 * loaded as words in every case, and only as words that hold a byte of what is asked for. */
#include "bytes.glsl"

#define IS_FLOAT (TYPE == BL_F32 || TYPE == BL_F16 || TYPE == BL_BF16)
#define HAS_MIN (TYPE == BL_Q4_1 || TYPE == BL_Q5_1 || TYPE == BL_Q4_K || TYPE == BL_Q5_K || TYPE == BL_Q2_K)

/* ---- units ---- */

#if TYPE == BL_Q6_K || TYPE == BL_Q2_K || TYPE == BL_Q3_K || TYPE == BL_TQ2_0
const uint EIGHTS = 4, STEP = 4;
#elif TYPE == BL_Q4_K || TYPE == BL_Q5_K
const uint EIGHTS = 2, STEP = 4;
#elif TYPE == BL_Q8_0 || TYPE == BL_Q4_0 || TYPE == BL_Q4_1 || TYPE == BL_Q5_0 || TYPE == BL_Q5_1 || TYPE == BL_IQ4_NL || \
    TYPE == BL_IQ4_XS || TYPE == BL_MXFP4
const uint EIGHTS = 2, STEP = 2;
#elif TYPE == BL_NVFP4
const uint EIGHTS = 2, STEP = 1;
#else
const uint EIGHTS = 1, STEP = 1;
#endif

uint eight_of(const uint u, const uint n) { return u / STEP * (STEP * EIGHTS) + u % STEP + n * STEP; }
/* Of a row of k elements. */
uint units_of(const uint k) { return k / (8 * EIGHTS); }

#if IS_FLOAT
float decode1(const uint64_t row, const uint i)
{
#if TYPE == BL_F32
    return floats_at(row).v[i];
#elif TYPE == BL_F16
    return half_at(row + 2 * i);
#else
    return uintBitsToFloat(half_word(row + 2 * i) << 16);
#endif
}

void decode(const uint64_t row, const uint u, out float w[EIGHTS][8])
{
#if TYPE == BL_F32
    float v[8];
    floats8_at(row + 32 * u, v);
    w[0] = v;
#else
    if ((uint(row) & 7u) != 0) { /* not whole eights */
        [[unroll]] for (uint j = 0; j < 8; j++)
            w[0][j] = decode1(row, 8 * u + j);
        return;
    }
    const uvec4 x = uvec4(pair_at(row + 16 * u), pair_at(row + 16 * u + 8));
    [[unroll]] for (uint j = 0; j < 4; j++) {
#if TYPE == BL_F16
        const vec2 v = unpackHalf2x16(x[j]);
        w[0][2 * j] = v.x;
        w[0][2 * j + 1] = v.y;
#else
        w[0][2 * j] = uintBitsToFloat(x[j] << 16);
        w[0][2 * j + 1] = uintBitsToFloat(x[j] & 0xffff0000u);
#endif
    }
#endif
}

#else

void unpack(const uint64_t row, const uint u, out uvec2 q[EIGHTS], out float d[EIGHTS], out float m[EIGHTS]);

void decode(const uint64_t row, const uint u, out float w[EIGHTS][8])
{
    uvec2 q[EIGHTS];
    float d[EIGHTS], m[EIGHTS];
    unpack(row, u, q, d, m);
    [[unroll]] for (uint n = 0; n < EIGHTS; n++) {
        floats_of(q[n], w[n]);
        [[unroll]] for (uint j = 0; j < 8; j++)
#if HAS_MIN
            w[n][j] = d[n] * w[n][j] + m[n];
#else
            w[n][j] *= d[n];
#endif
    }
}

#if TYPE == BL_Q8_0
void unpack(const uint64_t row, const uint u, out uvec2 q[EIGHTS], out float d[EIGHTS], out float m[EIGHTS])
{
    const uint64_t b = row + 34 * (u / 2), at = b + 2 + 8 * (u % 2);
    d[0] = d[1] = half_at(b);
    q[0] = bytes8_at(at);
    q[1] = bytes8_at(at + 16);
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
/* Low nibbles of 16 bytes are elements 0 to 15, high ones the rest. */
void unpack(const uint64_t row, const uint u, out uvec2 q[EIGHTS], out float d[EIGHTS], out float m[EIGHTS])
{
    const uint64_t b = row + SIZE * (u / 2), at = b + HEAD + 8 * (u % 2);
#if TYPE == BL_Q4_1 || TYPE == BL_Q5_1
    const uvec2 x = words2_at(at);
#else
    const uvec2 x = bytes8_at(at);
#endif
    d[0] = d[1] = half_at(b);
    q[0] = x & 0x0f0f0f0fu;
    q[1] = x >> 4 & 0x0f0f0f0fu;
#if TYPE == BL_Q4_1 || TYPE == BL_Q5_1
    m[0] = m[1] = half_at(b + 2);
#endif
#if TYPE == BL_Q5_0 || TYPE == BL_Q5_1
    const uint high = word_at(b + HEAD - 4) >> 8 * (u % 2);
    q[0] |= spread1x2(high) << 4;
    q[1] |= spread1x2(high >> 16) << 4;
#endif
#if TYPE == BL_Q4_0
    q[0] = less(q[0], 8);
    q[1] = less(q[1], 8);
#elif TYPE == BL_Q5_0
    q[0] = less(q[0], 16);
    q[1] = less(q[1], 16);
#elif TYPE == BL_IQ4_NL
    q[0] = iq4(q[0]);
    q[1] = iq4(q[1]);
#endif
}

#elif TYPE == BL_MXFP4 || TYPE == BL_NVFP4
/* Twice the values of E2M1; half the scale goes with them. */
uint fp4(const uint x)
{
    uint v = 0;
    [[unroll]] for (uint j = 0; j < 32; j += 8)
        v |= (0xc8643210u >> (x >> j & 7u) * 4 & 15u) << j;
    return negate(v, x >> 3 & ONES);
}
uvec2 fp4(const uvec2 x) { return uvec2(fp4(x.x), fp4(x.y)); }

void unpack(const uint64_t row, const uint u, out uvec2 q[EIGHTS], out float d[EIGHTS], out float m[EIGHTS])
{
#if TYPE == BL_MXFP4
    const uint64_t b = row + 17 * (u / 2);
    const uvec2 x = bytes8_at(b + 1 + 8 * (u % 2));
    const uint e = byte_at(b);
    d[0] = uintBitsToFloat(e < 2 ? 0x00200000u << e : (e - 1) << 23);
#else
    const uint64_t b = row + 36 * (u / 4);
    const uvec2 x = words2_at(b + 4 + 8 * (u % 4));
    const uint s = byte_of(words_at(b).v[0], u % 4), e = s >> 3 & 15u;
    const float v = e == 0 ? float(s & 7u) * 0.001953125 : uintBitsToFloat(e + 120 << 23 | (s & 7u) << 20);
    d[0] = s == 0x7f ? 0 : 0.5 * v;
#endif
    d[1] = d[0];
    q[0] = fp4(x & 0x0f0f0f0fu);
    q[1] = fp4(x >> 4 & 0x0f0f0f0fu);
}

#elif TYPE == BL_Q4_K || TYPE == BL_Q5_K
/* Low nibbles of 32 bytes are 32 elements, high ones the next 32; scales and minima have six bits each. */
void unpack(const uint64_t row, const uint u, out uvec2 q[EIGHTS], out float d[EIGHTS], out float m[EIGHTS])
{
#if TYPE == BL_Q4_K
    const uint64_t b = row + 144 * (u / 16), qs = b + 16;
#else
    const uint64_t b = row + 176 * (u / 16), qs = b + 48;
#endif
    const uint s = u / 4 % 4 * 2, at = 8 * (u % 4), shift = 8 * (s % 4);
    const uvec4 head = uvec4(pair_at(b), pair_at(b + 8));
    uint scale, low; /* two bytes of each are wanted */
    if (s < 4) {
        scale = head.y >> shift & 0x3f3fu;
        low = head.z >> shift & 0x3f3fu;
    } else {
        scale = head.w >> shift & 0x0f0fu | (head.y >> shift & 0xc0c0u) >> 2;
        low = head.w >> shift + 4 & 0x0f0fu | (head.z >> shift & 0xc0c0u) >> 2;
    }
    const vec2 both = unpackHalf2x16(head.x);
    const uvec2 x = pair_at(qs + 16 * s + at);
    [[unroll]] for (uint n = 0; n < EIGHTS; n++) {
        d[n] = both.x * float(byte_of(scale, n));
        m[n] = -(both.y * float(byte_of(low, n)));
        q[n] = x >> 4 * n & 0x0f0f0f0fu;
    }
#if TYPE == BL_Q5_K
    const uvec2 high = pair_at(b + 16 + at) >> s;
    q[0] |= (high & ONES) << 4;
    q[1] |= (high >> 1 & ONES) << 4;
#endif
}

#elif TYPE == BL_Q6_K
/* Four runs of 32 elements: low nibbles of 32 bytes and of the next, then their high ones; two bits of each on top. */
void unpack(const uint64_t row, const uint u, out uvec2 q[EIGHTS], out float d[EIGHTS], out float m[EIGHTS])
{
    const uint64_t b = row + 210 * (u / 8);
    const uint part = u / 4 % 2, at = 8 * (u % 4);
    const uvec2 x = bytes8_at(b + 64 * part + at), y = bytes8_at(b + 64 * part + 32 + at),
                high = bytes8_at(b + 128 + 32 * part + at), scale = bytes8_at(b + 192 + 8 * part);
    const float all = half_at(b + 208);
    [[unroll]] for (uint n = 0; n < EIGHTS; n++) {
        const uvec2 nibbles = (n % 2 == 0 ? x : y) >> 4 * (n / 2) & 0x0f0f0f0fu;
        q[n] = less(nibbles | (high >> 2 * n & 0x03030303u) << 4, 32);
        d[n] = all * float(signed_byte(scale[n / 2], n % 2 * 2 + at / 16));
    }
}

#elif TYPE == BL_Q2_K || TYPE == BL_Q3_K || TYPE == BL_TQ2_0
/* Bits 2 n and 2 n + 1 of 32 bytes are 32 elements, four times; then the next 32 bytes follow. */
void unpack(const uint64_t row, const uint u, out uvec2 q[EIGHTS], out float d[EIGHTS], out float m[EIGHTS])
{
    const uint part = u / 4 % 2, at = 8 * (u % 4), side = at / 16;
#if TYPE == BL_Q2_K
    const uint64_t b = row + 84 * (u / 8);
    const uvec2 x = words2_at(b + 16 + 32 * part + at), scale = words2_at(b + 8 * part);
    const vec2 both = unpackHalf2x16(words_at(b).v[20]);
#elif TYPE == BL_Q3_K
    const uint64_t b = row + 110 * (u / 8);
    const uvec2 x = bytes8_at(b + 32 + 32 * part + at), top = bytes8_at(b + at), low = bytes8_at(b + 96);
    const uint high = word_at(b + 104);
    const float all = half_at(b + 108);
#else
    const uint64_t b = row + 66 * (u / 8);
    const uvec2 x = bytes8_at(b + 32 * part + at);
    const float all = half_at(b + 64);
#endif
    [[unroll]] for (uint n = 0; n < EIGHTS; n++) {
        q[n] = x >> 2 * n & 0x03030303u;
#if TYPE == BL_Q2_K
        const uint s = byte_of(scale[n / 2], n % 2 * 2 + side);
        d[n] = both.x * float(s & 15u);
        m[n] = -(both.y * float(s >> 4));
#elif TYPE == BL_Q3_K
        q[n] = less(q[n] | (top >> 4 * part + n & ONES) << 2, 4);
        const uint l = byte_of(low[n / 2], n % 2 * 2 + side) >> 4 * part & 15u,
                   h = byte_of(high, n % 2 * 2 + side) >> 2 * (2 * part + n / 2) & 3u;
        d[n] = all * float(int(l | h << 4) - 32);
#else
        q[n] = less(q[n], 1);
        d[n] = all;
#endif
    }
}

#else
#include "types_rare.glsl"
#endif
#endif

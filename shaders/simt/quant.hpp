/* SPDX-License-Identifier: MIT */
/* quant.hpp — weights as files hold them, taken apart: core/dtype_unpack.c is the specification.
 *
 * Purpose   a type of weights is a struct with
 *               ELEMS, BYTES   of a block
 *               SCALES, MINS   scales (1 or 2) and minima (0, 1 or 2) of 32 elements
 *               piece(p, row, i)   elements [32 i, 32 i + 32) of the row at `row`
 *           value of element e: q[e] * scale[e / 16 if there are two] + min[likewise]
 * Ownership none.
 * Units     elements, bytes. Rows begin where a file's data may: at multiples of 32 plus whole rows.
 * Errors    none.
 * Threads   any.
 */
#ifndef BL_SIMT_QUANT_HPP
#define BL_SIMT_QUANT_HPP

#include "simt/simt.hpp"

struct piece {
    uint32_t q[8];       /* signed bytes, element 0 lowest */
    float scale[2], min[2];
};

BL_DEV uint32_t byte_at(const uint8_t *b)
{
    return *b;
}
BL_DEV uint32_t pair_at(const uint8_t *b) /* at an even address */
{
    return *reinterpret_cast<const uint16_t *>(b);
}
BL_DEV float half_at(const uint8_t *b)
{
    return half_to_float(*reinterpret_cast<const uint16_t *>(b));
}

/* Of every byte of both: a - b, where no byte of a is below that of b by more than 128. */
BL_DEV uint32_t less_each(uint32_t a, uint32_t b)
{
    return ((a | 0x80808080u) - b) ^ 0x80808080u;
}
/* One bit each to the lowest of four bytes. */
BL_DEV uint32_t spread_bits(uint32_t four)
{
    return (four & 15u) * 0x00204081u & 0x01010101u;
}
/* Two bits each to four bytes. */
BL_DEV uint32_t spread_twos(uint32_t eight)
{
    const uint32_t v = (eight & 0x0fu) | (eight & 0xf0u) << 12;
    return (v & 0x00030003u) | (v << 6 & 0x03000300u);
}
/* Nibbles of N words: low ones are q[0..N), high ones q[N..2N). */
template <uint32_t N> BL_DEV void put_nibbles(uint32_t (&q)[2 * N], const uint32_t (&w)[N])
{
    BL_UNROLL for (uint32_t i = 0; i < N; i++) {
        q[i] = w[i] & 0x0f0f0f0fu;
        q[i + N] = w[i] >> 4 & 0x0f0f0f0fu;
    }
}
/* A byte of the table for each code 0 to 15. */
BL_DEV uint32_t look_up(const uint32_t (&table)[4], uint32_t codes)
{
    const uint32_t low = pick_bytes(table[1], table[0], codes & 0x07070707u),
                   high = pick_bytes(table[3], table[2], codes & 0x07070707u),
                   mask = (codes >> 3 & 0x01010101u) * 255u;
    return (low & ~mask) | (high & mask);
}

/* ---- 32 elements ---- */

struct Q4_0 {
    static constexpr uint32_t ELEMS = 32, BYTES = 18, SCALES = 1, MINS = 0;
    BL_MEMBER void piece_of(piece &p, const uint8_t *row, uint32_t i)
    {
        const uint8_t *b = row + BYTES * i;
        uint32_t w[4];
        load_words<2>(w, b + 2);
        put_nibbles<4>(p.q, w);
        BL_UNROLL for (uint32_t j = 0; j < 8; j++)
            p.q[j] = less_each(p.q[j], 0x08080808u);
        p.scale[0] = half_at(b);
    }
};

struct Q4_1 {
    static constexpr uint32_t ELEMS = 32, BYTES = 20, SCALES = 1, MINS = 1;
    BL_MEMBER void piece_of(piece &p, const uint8_t *row, uint32_t i)
    {
        const uint8_t *b = row + BYTES * i;
        uint32_t w[4];
        load_words<4>(w, b + 4);
        put_nibbles<4>(p.q, w);
        p.scale[0] = half_at(b);
        p.min[0] = half_at(b + 2);
    }
};

BL_DEV void put_fifth_bits(piece &p, uint32_t high)
{
    BL_UNROLL for (uint32_t j = 0; j < 8; j++)
        p.q[j] |= spread_bits(high >> 4 * j) << 4;
}

struct Q5_0 {
    static constexpr uint32_t ELEMS = 32, BYTES = 22, SCALES = 1, MINS = 0;
    BL_MEMBER void piece_of(piece &p, const uint8_t *row, uint32_t i)
    {
        const uint8_t *b = row + BYTES * i;
        uint32_t w[4], high[1];
        load_words<2>(high, b + 2);
        load_words<2>(w, b + 6);
        put_nibbles<4>(p.q, w);
        put_fifth_bits(p, high[0]);
        BL_UNROLL for (uint32_t j = 0; j < 8; j++)
            p.q[j] = less_each(p.q[j], 0x10101010u);
        p.scale[0] = half_at(b);
    }
};

struct Q5_1 {
    static constexpr uint32_t ELEMS = 32, BYTES = 24, SCALES = 1, MINS = 1;
    BL_MEMBER void piece_of(piece &p, const uint8_t *row, uint32_t i)
    {
        const uint8_t *b = row + BYTES * i;
        uint32_t all[6], w[4];
        load_words<8>(all, b);
        BL_UNROLL for (uint32_t j = 0; j < 4; j++)
            w[j] = all[2 + j];
        put_nibbles<4>(p.q, w);
        put_fifth_bits(p, all[1]);
        p.scale[0] = half_to_float(static_cast<uint16_t>(all[0]));
        p.min[0] = half_to_float(static_cast<uint16_t>(all[0] >> 16));
    }
};

struct Q8_0 {
    static constexpr uint32_t ELEMS = 32, BYTES = 34, SCALES = 1, MINS = 0;
    BL_MEMBER void piece_of(piece &p, const uint8_t *row, uint32_t i)
    {
        const uint8_t *b = row + BYTES * i;
        load_words<2>(p.q, b + 2);
        p.scale[0] = half_at(b);
    }
};

/* ---- 256 elements: `s` is the piece of the block ---- */

/* Scale and minimum of Q4_K and Q5_K, whose first 16 bytes are the head. */
BL_DEV void k4_scales(piece &p, const uint32_t (&head)[4], uint32_t s)
{
    const uint32_t shift = 8 * (s % 4), a = head[1] >> shift, b = head[2] >> shift, c = head[3] >> shift;
    const uint32_t scale = s < 4 ? a & 63u : (c & 15u) | (a >> 2 & 48u);
    const uint32_t low = s < 4 ? b & 63u : (c >> 4 & 15u) | (b >> 2 & 48u);
    p.scale[0] = half_to_float(static_cast<uint16_t>(head[0])) * static_cast<float>(scale);
    p.min[0] = -(half_to_float(static_cast<uint16_t>(head[0] >> 16)) * static_cast<float>(low));
}

struct Q4_K {
    static constexpr uint32_t ELEMS = 256, BYTES = 144, SCALES = 1, MINS = 1;
    BL_MEMBER void piece_of(piece &p, const uint8_t *row, uint32_t i)
    {
        const uint8_t *b = row + BYTES * (i / 8);
        const uint32_t s = i % 8;
        uint32_t head[4];
        load_words<16>(head, b);
        k4_scales(p, head, s);
        load_words<16>(p.q, b + 16 + 32 * (s / 2));
        BL_UNROLL for (uint32_t j = 0; j < 8; j++)
            p.q[j] = p.q[j] >> 4 * (s % 2) & 0x0f0f0f0fu;
    }
};

struct Q5_K {
    static constexpr uint32_t ELEMS = 256, BYTES = 176, SCALES = 1, MINS = 1;
    BL_MEMBER void piece_of(piece &p, const uint8_t *row, uint32_t i)
    {
        const uint8_t *b = row + BYTES * (i / 8);
        const uint32_t s = i % 8;
        uint32_t head[4], high[8];
        load_words<16>(head, b);
        k4_scales(p, head, s);
        load_words<16>(high, b + 16);
        load_words<16>(p.q, b + 48 + 32 * (s / 2));
        BL_UNROLL for (uint32_t j = 0; j < 8; j++)
            p.q[j] = (p.q[j] >> 4 * (s % 2) & 0x0f0f0f0fu) | (high[j] >> s & 0x01010101u) << 4;
    }
};

struct Q6_K {
    static constexpr uint32_t ELEMS = 256, BYTES = 210, SCALES = 2, MINS = 0;
    BL_MEMBER void piece_of(piece &p, const uint8_t *row, uint32_t i)
    {
        const uint8_t *b = row + BYTES * (i / 8);
        const uint32_t s = i % 8, scales = pair_at(b + 192 + 2 * s);
        const float d = half_at(b + 208);
        uint32_t high[8];
        load_words<2>(p.q, b + 64 * (s / 4) + 32 * (s % 2));
        load_words<2>(high, b + 128 + 32 * (s / 4));
        BL_UNROLL for (uint32_t j = 0; j < 8; j++)
            p.q[j] = less_each((p.q[j] >> 4 * (s / 2 % 2) & 0x0f0f0f0fu) |
                                   (high[j] >> 2 * (s % 4) & 0x03030303u) << 4, 0x20202020u);
        p.scale[0] = d * static_cast<float>(static_cast<int8_t>(scales));
        p.scale[1] = d * static_cast<float>(static_cast<int8_t>(scales >> 8));
    }
};

/* Bits 2s, 2s + 1 of 32 bytes are 32 elements in a row, then the next 32 bytes follow. */
template <uint32_t ALIGN> BL_DEV void put_planes(piece &p, const uint8_t *qs, uint32_t s)
{
    load_words<ALIGN>(p.q, qs + 32 * (s / 4));
    BL_UNROLL for (uint32_t j = 0; j < 8; j++)
        p.q[j] = p.q[j] >> 2 * (s % 4) & 0x03030303u;
}

struct Q2_K {
    static constexpr uint32_t ELEMS = 256, BYTES = 84, SCALES = 2, MINS = 2;
    BL_MEMBER void piece_of(piece &p, const uint8_t *row, uint32_t i)
    {
        const uint8_t *b = row + BYTES * (i / 8);
        const uint32_t s = i % 8, x = pair_at(b + 2 * s);
        const float d = half_at(b + 80), m = half_at(b + 82);
        put_planes<4>(p, b + 16, s);
        p.scale[0] = d * static_cast<float>(x & 15u);
        p.scale[1] = d * static_cast<float>(x >> 8 & 15u);
        p.min[0] = -(m * static_cast<float>(x >> 4 & 15u));
        p.min[1] = -(m * static_cast<float>(x >> 12 & 15u));
    }
};

struct Q3_K {
    static constexpr uint32_t ELEMS = 256, BYTES = 110, SCALES = 2, MINS = 0;
    BL_MEMBER void piece_of(piece &p, const uint8_t *row, uint32_t i)
    {
        const uint8_t *b = row + BYTES * (i / 8);
        const uint32_t s = i % 8, run = 2 * s; /* of 16 elements; two of them have their scales beside each other */
        const uint32_t low = pair_at(b + 96 + run % 8) >> 4 * (run / 8),
                       high = pair_at(b + 104 + run % 4) >> 2 * (run / 4);
        const float d = half_at(b + 108);
        uint32_t mask[8];
        put_planes<2>(p, b + 32, s);
        load_words<2>(mask, b);
        BL_UNROLL for (uint32_t j = 0; j < 8; j++)
            p.q[j] = less_each(p.q[j] | (mask[j] >> s & 0x01010101u) << 2, 0x04040404u);
        p.scale[0] = d * static_cast<float>(static_cast<int>((low & 15u) | (high & 3u) << 4) - 32);
        p.scale[1] = d * static_cast<float>(static_cast<int>((low >> 8 & 15u) | (high >> 8 & 3u) << 4) - 32);
    }
};

struct TQ2_0 {
    static constexpr uint32_t ELEMS = 256, BYTES = 66, SCALES = 1, MINS = 0;
    BL_MEMBER void piece_of(piece &p, const uint8_t *row, uint32_t i)
    {
        const uint8_t *b = row + BYTES * (i / 8);
        put_planes<2>(p, b, i % 8);
        BL_UNROLL for (uint32_t j = 0; j < 8; j++)
            p.q[j] = less_each(p.q[j], 0x01010101u);
        p.scale[0] = half_at(b + 64);
    }
};

/* ---- 4-bit floats: twice the value of E2M1, half the scale ---- */

BL_DEV void put_fp4(uint32_t (&q)[8])
{
    const uint32_t twice[4] = {0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu};
    BL_UNROLL for (uint32_t j = 0; j < 8; j++)
        q[j] = look_up(twice, q[j]);
}

struct MXFP4 {
    static constexpr uint32_t ELEMS = 32, BYTES = 17, SCALES = 1, MINS = 0;
    BL_MEMBER void piece_of(piece &p, const uint8_t *row, uint32_t i)
    {
        const uint8_t *b = row + BYTES * i;
        const uint32_t e = byte_at(b);
        uint32_t w[4];
        load_words<1>(w, b + 1);
        put_nibbles<4>(p.q, w);
        put_fp4(p.q);
        p.scale[0] = bits_as<float>(e < 2 ? 0x00200000u << e : (e - 1) << 23);
    }
};

BL_DEV float half_ue4m3(uint32_t x)
{
    const uint32_t e = x >> 3 & 15u;
    const float v = e == 0 ? static_cast<float>(x & 7u) * 0.001953125f
                           : bits_as<float>((e + 120) << 23 | (x & 7u) << 20);
    return x == 0x7f ? 0 : 0.5f * v;
}

struct NVFP4 {
    static constexpr uint32_t ELEMS = 64, BYTES = 36, SCALES = 2, MINS = 0;
    BL_MEMBER void piece_of(piece &p, const uint8_t *row, uint32_t i)
    {
        const uint8_t *b = row + BYTES * (i / 2);
        const uint32_t s = i % 2, scales = pair_at(b + 2 * s);
        uint32_t w[4];
        load_words<4>(w, b + 4 + 16 * s);
        BL_UNROLL for (uint32_t j = 0; j < 8; j++) /* eight bytes hold 16 elements */
            p.q[j] = w[j / 4 * 2 + j % 2] >> 4 * (j / 2 % 2) & 0x0f0f0f0fu;
        put_fp4(p.q);
        p.scale[0] = half_ue4m3(scales & 255u);
        p.scale[1] = half_ue4m3(scales >> 8);
    }
};

/* ---- one and two bits ---- */

struct Q1_0 {
    static constexpr uint32_t ELEMS = 128, BYTES = 18, SCALES = 1, MINS = 0;
    BL_MEMBER void piece_of(piece &p, const uint8_t *row, uint32_t i)
    {
        const uint8_t *b = row + BYTES * (i / 4);
        uint32_t w[1];
        load_words<2>(w, b + 2 + 4 * (i % 4));
        BL_UNROLL for (uint32_t j = 0; j < 8; j++)
            p.q[j] = less_each(spread_bits(w[0] >> 4 * j) << 1, 0x01010101u);
        p.scale[0] = half_at(b);
    }
};

struct Q2_0 {
    static constexpr uint32_t ELEMS = 64, BYTES = 18, SCALES = 1, MINS = 0;
    BL_MEMBER void piece_of(piece &p, const uint8_t *row, uint32_t i)
    {
        const uint8_t *b = row + BYTES * (i / 2);
        uint32_t w[2];
        load_words<2>(w, b + 2 + 8 * (i % 2));
        BL_UNROLL for (uint32_t j = 0; j < 8; j++)
            p.q[j] = less_each(spread_twos(w[j / 4] >> 8 * (j % 4)), 0x01010101u);
        p.scale[0] = half_at(b);
    }
};

struct TQ1_0 {
    static constexpr uint32_t ELEMS = 256, BYTES = 54, SCALES = 1, MINS = 0;
    /* Base-3 digits as a fraction of 256: times 3^n and modulo 256, the next digit is the carry of times 3. Of two bytes at
     * a time, 16 bits apart. */
    BL_MEMBER uint32_t digits(uint32_t four, uint32_t power)
    {
        const uint32_t a = (four & 0x00ff00ffu) * power & 0x00ff00ffu,
                       b = (four >> 8 & 0x00ff00ffu) * power & 0x00ff00ffu;
        return less_each((a * 3 >> 8 & 0x00030003u) | (b * 3 & 0x03000300u), 0x01010101u);
    }
    BL_MEMBER uint32_t power_of(uint32_t n)
    {
        return n == 0 ? 1 : n == 1 ? 3 : n == 2 ? 9 : n == 3 ? 27 : 81;
    }
    BL_MEMBER void piece_of(piece &p, const uint8_t *row, uint32_t i)
    {
        const uint8_t *b = row + BYTES * (i / 8);
        const uint32_t s = i % 8;
        p.scale[0] = half_at(b + 52);
        BL_UNROLL for (uint32_t j = 0; j < 8; j++) {
            /* words of four elements: 0 to 39 from 32 bytes, to 59 from 16, to 63 from 4 */
            const uint32_t word = 8 * s + j, rest = word - 40;
            const uint32_t off = word < 40 ? word % 8 : word < 60 ? 8 + rest % 4 : 12;
            const uint32_t digit = word < 40 ? word / 8 : word < 60 ? rest / 4 : word - 60;
            uint32_t w[1];
            load_words<2>(w, b + 4 * off);
            p.q[j] = digits(w[0], power_of(digit));
        }
    }
};

#include "simt/quant_iq.hpp"

/* ---- floats, whose rows need no whole pieces ---- */

struct F32 {
    static constexpr uint32_t BYTES = 4;
    BL_MEMBER float one(const uint8_t *row, uint32_t i)
    {
        return reinterpret_cast<const float *>(row)[i];
    }
    BL_MEMBER void eight(float (&v)[8], const uint8_t *row, uint32_t i) /* rows at multiples of 16 */
    {
        uint32_t w[8];
        load_words<16>(w, row + 32 * i);
        BL_UNROLL for (uint32_t j = 0; j < 8; j++)
            v[j] = bits_as<float>(w[j]);
    }
};

struct F16 {
    static constexpr uint32_t BYTES = 2;
    BL_MEMBER float one(const uint8_t *row, uint32_t i)
    {
        return half_at(row + 2 * i);
    }
    BL_MEMBER void eight(float (&v)[8], const uint8_t *row, uint32_t i)
    {
        uint32_t w[4];
        load_words<16>(w, row + 16 * i);
        BL_UNROLL for (uint32_t j = 0; j < 4; j++) {
            v[2 * j] = half_to_float(static_cast<uint16_t>(w[j]));
            v[2 * j + 1] = half_to_float(static_cast<uint16_t>(w[j] >> 16));
        }
    }
};

struct BF16 {
    static constexpr uint32_t BYTES = 2;
    BL_MEMBER float one(const uint8_t *row, uint32_t i)
    {
        return bits_as<float>(pair_at(row + 2 * i) << 16);
    }
    BL_MEMBER void eight(float (&v)[8], const uint8_t *row, uint32_t i)
    {
        uint32_t w[4];
        load_words<16>(w, row + 16 * i);
        BL_UNROLL for (uint32_t j = 0; j < 4; j++) {
            v[2 * j] = bits_as<float>(w[j] << 16);
            v[2 * j + 1] = bits_as<float>(w[j] & 0xffff0000u);
        }
    }
};

/* ---- values ---- */

BL_DEV float scale_of(const piece &p, uint32_t scales, uint32_t j)
{
    return p.scale[scales == 2 ? j / 4 : 0];
}
/* Four values of word j of a piece. */
template <class W> BL_DEV void values(float (&v)[4], const piece &p, uint32_t j)
{
    const float s = scale_of(p, W::SCALES, j);
    BL_UNROLL for (uint32_t e = 0; e < 4; e++) {
        const float q = static_cast<float>(static_cast<int8_t>(p.q[j] >> 8 * e));
        if constexpr (W::MINS > 0)
            v[e] = s * q + p.min[W::MINS == 2 ? j / 4 : 0];
        else
            v[e] = s * q;
    }
}

/* Types that come in pieces, and those of single values. */
#define BL_QUANT_A(X) X(Q4_0, q4_0) X(Q4_1, q4_1) X(Q5_0, q5_0) X(Q5_1, q5_1) X(Q8_0, q8_0) X(MXFP4, mxfp4)
#define BL_QUANT_B(X) X(Q2_K, q2_k) X(Q3_K, q3_k) X(Q4_K, q4_k) X(Q5_K, q5_k) X(Q6_K, q6_k) X(NVFP4, nvfp4)
#define BL_QUANT_C(X)                                                                              \
    X(IQ1_S, iq1_s) X(IQ1_M, iq1_m) X(IQ2_XXS, iq2_xxs) X(IQ2_XS, iq2_xs) X(IQ2_S, iq2_s) X(IQ3_XXS, iq3_xxs)
#define BL_QUANT_D(X)                                                                              \
    X(IQ3_S, iq3_s) X(IQ4_NL, iq4_nl) X(IQ4_XS, iq4_xs) X(TQ1_0, tq1_0) X(TQ2_0, tq2_0) X(Q1_0, q1_0) X(Q2_0, q2_0)
#define BL_PLAIN(X) X(F32, f32) X(F16, f16) X(BF16, bf16)

#endif

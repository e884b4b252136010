/* SPDX-License-Identifier: MIT */
/* quant_iq.hpp — types whose elements come from codebooks: core/dtype_iq.c. Included by quant.hpp. */

#define G(...) __VA_ARGS__,
BL_TABLE uint16_t book_iq2_xxs[256] = {
#include "core/grid_iq2_xxs.def"
};
BL_TABLE uint16_t book_iq2_xs[512] = {
#include "core/grid_iq2_xs.def"
};
BL_TABLE uint16_t book_iq2_s[1024] = {
#include "core/grid_iq2_s.def"
};
BL_TABLE uint16_t book_iq3_xxs[256] = {
#include "core/grid_iq3_xxs.def"
};
BL_TABLE uint16_t book_iq3_s[512] = {
#include "core/grid_iq3_s.def"
};
BL_TABLE uint16_t book_iq1_s[2048] = {
#include "core/grid_iq1_s.def"
};
#undef G

/* Seven of eight signs are stored; the eighth makes the number of minuses even. */
BL_DEV uint32_t signs_of(uint32_t code)
{
    return code | (count_bits(code) & 1u) << 7;
}
/* Bytes above 0, negative where a bit of four is set. */
BL_DEV uint32_t with_signs(uint32_t v, uint32_t four)
{
    const uint32_t ones = spread_bits(four), mask = ones * 255u;
    return (v ^ mask) + ones;
}
/* Eight elements: 2-bit codes of an entry to levels of a byte. */
BL_DEV void put_iq2(uint32_t *q, uint32_t entry, uint32_t signs)
{
    const uint32_t levels = 0x002b1908u; /* 8, 25, 43 */
    q[0] = with_signs(pick_bytes(0, levels, spread_twos(entry & 255u)), signs);
    q[1] = with_signs(pick_bytes(0, levels, spread_twos(entry >> 8)), signs >> 4);
}
/* Four elements: 3-bit codes. */
BL_DEV uint32_t iq3(uint32_t high, uint32_t low, uint32_t entry, uint32_t signs)
{
    const uint32_t codes = (entry & 7u) | (entry & 0x38u) << 5 | (entry & 0x1c0u) << 10 | (entry & 0xe00u) << 15;
    return with_signs(pick_bytes(high, low, codes), signs);
}

struct IQ2_XXS {
    static constexpr uint32_t ELEMS = 256, BYTES = 66, SCALES = 1, MINS = 0;
    BL_MEMBER void piece_of(piece &p, const uint8_t *row, uint32_t i)
    {
        const uint8_t *b = row + BYTES * (i / 8);
        uint32_t w[2];
        load_words<2>(w, b + 2 + 8 * (i % 8));
        BL_UNROLL for (uint32_t l = 0; l < 4; l++)
            put_iq2(p.q + 2 * l, book_iq2_xxs[w[0] >> 8 * l & 255u], signs_of(w[1] >> 7 * l & 127u));
        p.scale[0] = half_at(b) * (0.5f + static_cast<float>(w[1] >> 28)) * 0.25f;
    }
};

/* Two 4-bit scales a byte, one for each 16 elements. */
BL_DEV void iq2_scales(piece &p, float d, uint32_t both)
{
    p.scale[0] = d * (0.5f + static_cast<float>(both & 15u)) * 0.25f;
    p.scale[1] = d * (0.5f + static_cast<float>(both >> 4)) * 0.25f;
}

struct IQ2_XS {
    static constexpr uint32_t ELEMS = 256, BYTES = 74, SCALES = 2, MINS = 0;
    BL_MEMBER void piece_of(piece &p, const uint8_t *row, uint32_t i)
    {
        const uint8_t *b = row + BYTES * (i / 8);
        uint32_t w[2];
        load_words<2>(w, b + 2 + 8 * (i % 8));
        BL_UNROLL for (uint32_t l = 0; l < 4; l++) {
            const uint32_t code = w[l / 2] >> 16 * (l % 2) & 0xffffu;
            put_iq2(p.q + 2 * l, book_iq2_xs[code & 511u], signs_of(code >> 9));
        }
        iq2_scales(p, half_at(b), byte_at(b + 66 + i % 8));
    }
};

struct IQ2_S {
    static constexpr uint32_t ELEMS = 256, BYTES = 82, SCALES = 2, MINS = 0;
    BL_MEMBER void piece_of(piece &p, const uint8_t *row, uint32_t i)
    {
        const uint8_t *b = row + BYTES * (i / 8);
        const uint32_t s = i % 8, high = byte_at(b + 66 + s);
        uint32_t low[1], signs[1];
        load_words<2>(low, b + 2 + 4 * s);
        load_words<2>(signs, b + 34 + 4 * s);
        BL_UNROLL for (uint32_t l = 0; l < 4; l++)
            put_iq2(p.q + 2 * l, book_iq2_s[(low[0] >> 8 * l & 255u) | (high >> 2 * l & 3u) << 8], signs[0] >> 8 * l);
        iq2_scales(p, half_at(b), byte_at(b + 74 + s));
    }
};

struct IQ3_XXS {
    static constexpr uint32_t ELEMS = 256, BYTES = 98, SCALES = 1, MINS = 0;
    BL_MEMBER void piece_of(piece &p, const uint8_t *row, uint32_t i)
    {
        const uint8_t *b = row + BYTES * (i / 8);
        uint32_t w[2], a[1];
        load_words<2>(w, b + 2 + 8 * (i % 8));
        load_words<2>(a, b + 66 + 4 * (i % 8));
        BL_UNROLL for (uint32_t j = 0; j < 8; j++) /* 4, 12, 20, 28, 36, 44, 52, 62 */
            p.q[j] = iq3(0x3e342c24u, 0x1c140c04u, book_iq3_xxs[w[j / 4] >> 8 * (j % 4) & 255u],
                         signs_of(a[0] >> 7 * (j / 2) & 127u) >> 4 * (j % 2));
        p.scale[0] = half_at(b) * (0.5f + static_cast<float>(a[0] >> 28)) * 0.5f;
    }
};

struct IQ3_S {
    static constexpr uint32_t ELEMS = 256, BYTES = 110, SCALES = 1, MINS = 0;
    BL_MEMBER void piece_of(piece &p, const uint8_t *row, uint32_t i)
    {
        const uint8_t *b = row + BYTES * (i / 8);
        const uint32_t s = i % 8, high = byte_at(b + 66 + s);
        uint32_t w[2], signs[1];
        load_words<2>(w, b + 2 + 8 * s);
        load_words<2>(signs, b + 74 + 4 * s);
        BL_UNROLL for (uint32_t j = 0; j < 8; j++) /* 1, 3, ... 15 */
            p.q[j] = iq3(0x0f0d0b09u, 0x07050301u,
                         book_iq3_s[(w[j / 4] >> 8 * (j % 4) & 255u) | (high >> j & 1u) << 8], signs[0] >> 4 * j);
        p.scale[0] = half_at(b) * static_cast<float>(1 + 2 * (byte_at(b + 106 + s / 2) >> 4 * (s % 2) & 15u));
    }
};

/* Element + delta with delta = 1/8 or -1/8, as eighths. */
BL_DEV void put_iq1(uint32_t *q, uint32_t entry, bool minus)
{
    const uint32_t levels = minus ? 0x0007fff7u : 0x000901f9u; /* 8 (code - 1) - 1; + 1 */
    q[0] = pick_bytes(0, levels, spread_twos(entry & 255u));
    q[1] = pick_bytes(0, levels, spread_twos(entry >> 8));
}

struct IQ1_S {
    static constexpr uint32_t ELEMS = 256, BYTES = 50, SCALES = 1, MINS = 0;
    BL_MEMBER void piece_of(piece &p, const uint8_t *row, uint32_t i)
    {
        const uint8_t *b = row + BYTES * (i / 8);
        const uint32_t s = i % 8, h = pair_at(b + 34 + 2 * s);
        uint32_t w[1];
        load_words<2>(w, b + 2 + 4 * s);
        BL_UNROLL for (uint32_t l = 0; l < 4; l++)
            put_iq1(p.q + 2 * l, book_iq1_s[(w[0] >> 8 * l & 255u) | (h >> 3 * l & 7u) << 8], (h & 0x8000u) != 0);
        p.scale[0] = half_at(b) * static_cast<float>(2 * (h >> 12 & 7u) + 1) * 0.125f;
    }
};

struct IQ1_M {
    static constexpr uint32_t ELEMS = 256, BYTES = 56, SCALES = 2, MINS = 0;
    BL_MEMBER void piece_of(piece &p, const uint8_t *row, uint32_t i)
    {
        const uint8_t *b = row + BYTES * (i / 8);
        const uint32_t s = i % 8, h = pair_at(b + 32 + 2 * s);
        uint32_t w[1], scales[2];
        load_words<4>(w, b + 4 * s);
        load_words<8>(scales, b + 48);
        BL_UNROLL for (uint32_t l = 0; l < 4; l++) {
            const uint32_t high = h >> 4 * l;
            put_iq1(p.q + 2 * l, book_iq1_s[(w[0] >> 8 * l & 255u) | (high & 7u) << 8], (high & 8u) != 0);
        }
        /* a nibble of the block's scale is on top of each 16 bits, below it four scales of 3 bits */
        const uint32_t bits = (scales[0] >> 12 & 0xfu) | (scales[0] >> 24 & 0xf0u) | (scales[1] >> 4 & 0xf00u) |
                              (scales[1] >> 16 & 0xf000u);
        const uint32_t own = (s < 4 ? scales[0] : scales[1]) >> 16 * (s / 2 % 2) >> 6 * (s % 2);
        const float d = half_to_float(static_cast<uint16_t>(bits));
        p.scale[0] = d * static_cast<float>(2 * (own & 7u) + 1) * 0.125f;
        p.scale[1] = d * static_cast<float>(2 * (own >> 3 & 7u) + 1) * 0.125f;
    }
};

BL_DEV void put_iq4(uint32_t (&q)[8])
{
    /* -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 */
    const uint32_t levels[4] = {0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u};
    BL_UNROLL for (uint32_t j = 0; j < 8; j++)
        q[j] = look_up(levels, q[j]);
}

struct IQ4_NL {
    static constexpr uint32_t ELEMS = 32, BYTES = 18, SCALES = 1, MINS = 0;
    BL_MEMBER void piece_of(piece &p, const uint8_t *row, uint32_t i)
    {
        const uint8_t *b = row + BYTES * i;
        uint32_t w[4];
        load_words<2>(w, b + 2);
        put_nibbles<4>(p.q, w);
        put_iq4(p.q);
        p.scale[0] = half_at(b);
    }
};

struct IQ4_XS {
    static constexpr uint32_t ELEMS = 256, BYTES = 136, SCALES = 1, MINS = 0;
    BL_MEMBER void piece_of(piece &p, const uint8_t *row, uint32_t i)
    {
        const uint8_t *b = row + BYTES * (i / 8);
        const uint32_t s = i % 8;
        uint32_t head[2], w[4];
        load_words<8>(head, b);
        load_words<8>(w, b + 8 + 16 * s);
        put_nibbles<4>(p.q, w);
        put_iq4(p.q);
        const uint32_t scale = (head[1] >> 4 * s & 15u) | (head[0] >> 16 >> 2 * s & 3u) << 4;
        p.scale[0] = half_to_float(static_cast<uint16_t>(head[0])) * static_cast<float>(static_cast<int>(scale) - 32);
    }
};

/* SPDX-License-Identifier: MIT */
/* neon_codebook.h — the types with codebooks as signed bytes and scales, in NEON registers. Included by kernel files only.
 *
 * Purpose   IQ1_S to IQ3_S: sixteen weights at a time, by loads of whole entries.
 * Ownership none.
 * Units     elements; sizes in bytes.
 * Errors    none.
 * Threads   pure.
 */
#ifndef BL_ARM_NEON_CODEBOOK_H
#define BL_ARM_NEON_CODEBOOK_H

#include "neon.h"
#include "../x86/codebooks.h" /* made by the preprocessor, for any processor */

BL_ALWAYS_INLINE int codebook_bytes(enum bl_dtype t)
{
    return t == BL_IQ1_S     ? 50
           : t == BL_IQ1_M   ? 56
           : t == BL_IQ2_XXS ? 66
           : t == BL_IQ2_XS  ? 74
           : t == BL_IQ2_S   ? 82
           : t == BL_IQ3_XXS ? 98
                             : 110;
}

/* ---- scales of 16 weights each, as floats ---- */

BL_ALWAYS_INLINE unsigned nibble_at(const uint8_t *p, int i)
{
    return p[i / 2] >> 4 * (i % 2) & 15u;
}
BL_ALWAYS_INLINE float iq1_m_d(const uint8_t *p)
{
    const unsigned bits = bl_load_u16(p + 48) >> 12 | (bl_load_u16(p + 50) >> 12) << 4 |
                          (bl_load_u16(p + 52) >> 12) << 8 | (bl_load_u16(p + 54) >> 12) << 12;
    const uint16_t d = (uint16_t)bits;
    return load_f16(&d);
}
BL_ALWAYS_INLINE void codebook_scales(enum bl_dtype t, float scale[16], const uint8_t *p)
{
    const float d = t == BL_IQ1_M ? iq1_m_d(p) : load_f16(p);
    for (int i = 0; i < 16; i++)
        switch (t) {
        case BL_IQ1_S:
            scale[i] = d * (float)(2 * (bl_load_u16(p + 34 + 2 * (i / 2)) >> 12 & 7) + 1) * 0.125f;
            break;
        case BL_IQ1_M:
            scale[i] = d * (float)(2 * (bl_load_u16(p + 48 + 2 * (i / 4)) >> 3 * (i % 4) & 7) + 1) * 0.125f;
            break;
        case BL_IQ2_XXS:
            scale[i] = d * (0.5f + (float)(p[2 + 8 * (i / 2) + 7] >> 4)) * 0.25f;
            break;
        case BL_IQ2_XS:
            scale[i] = d * (0.5f + (float)nibble_at(p + 66, i)) * 0.25f;
            break;
        case BL_IQ2_S:
            scale[i] = d * (0.5f + (float)nibble_at(p + 74, i)) * 0.25f;
            break;
        case BL_IQ3_XXS:
            scale[i] = d * (0.5f + (float)(p[66 + 4 * (i / 2) + 3] >> 4)) * 0.5f;
            break;
        default: /* IQ3_S */
            scale[i] = d * (float)(1 + 2 * nibble_at(p + 106, i / 2));
        }
}

/* ---- weights ---- */

/* Bit i of each half of v: is byte i negative? */
BL_ALWAYS_INLINE int8x16_t negated(int8x16_t v, unsigned first, unsigned second)
{
    const uint8x16_t select = vreinterpretq_u8_u64(vdupq_n_u64(UINT64_C(0x8040201008040201)));
    const uint8x16_t bits = vcombine_u8(vdup_n_u8((uint8_t)first), vdup_n_u8((uint8_t)second));
    const int8x16_t minus_one = vreinterpretq_s8_u8(vtstq_u8(bits, select));
    return vsubq_s8(veorq_s8(v, minus_one), minus_one);
}
/* Seven signs, and the eighth that makes their number even. */
BL_ALWAYS_INLINE unsigned even_signs(unsigned code)
{
    unsigned p = code ^ code >> 4;
    p ^= p >> 2;
    p ^= p >> 1;
    return code | (p & 1) << 7;
}
BL_ALWAYS_INLINE int8x16_t two_entries(uint64_t a, uint64_t b)
{
    return vreinterpretq_s8_u64(vcombine_u64(vcreate_u64(a), vcreate_u64(b)));
}
BL_ALWAYS_INLINE int8x16_t four_entries(const uint32_t *grid, const unsigned index[4])
{
    return two_entries(grid[index[0]] | (uint64_t)grid[index[1]] << 32,
                       grid[index[2]] | (uint64_t)grid[index[3]] << 32);
}
/* Eighths: the entry's values 0, 8, 16 minus 8, plus or minus one for each half. */
BL_ALWAYS_INLINE int8x16_t iq1_entries(unsigned a, unsigned b, bool minus_a, bool minus_b)
{
    const int8x16_t shift = vcombine_s8(vdup_n_s8(minus_a ? -9 : -7), vdup_n_s8(minus_b ? -9 : -7));
    return vaddq_s8(two_entries(iq1_bytes[a], iq1_bytes[b]), shift);
}
/* The i-th sixteen of a block. */
BL_ALWAYS_INLINE int8x16_t codebook16(enum bl_dtype t, const uint8_t *p, int i)
{
    const int g = 2 * i, side = i % 2; /* of entries of eight: the first; of 32 weights: which half */
    switch (t) {
    case BL_IQ1_S: {
        const unsigned h = bl_load_u16(p + 34 + 2 * (i / 2)), at = h >> 6 * side;
        return iq1_entries(p[2 + g] | (at & 7) << 8, p[3 + g] | (at >> 3 & 7) << 8, h & 0x8000, h & 0x8000);
    }
    case BL_IQ1_M: {
        const unsigned h = p[32 + i];
        return iq1_entries(p[g] | (h & 7) << 8, p[g + 1] | (h >> 4 & 7) << 8, h & 8, h & 0x80);
    }
    case BL_IQ2_XXS: {
        const uint8_t *index = p + 2 + 8 * (i / 2);
        const uint32_t signs = bl_load_u32(index + 4) >> 14 * side;
        return negated(two_entries(iq2_xxs_bytes[index[2 * side]], iq2_xxs_bytes[index[2 * side + 1]]),
                       even_signs(signs & 127), even_signs(signs >> 7 & 127));
    }
    case BL_IQ2_XS: {
        const unsigned a = bl_load_u16(p + 2 + 2 * g), b = bl_load_u16(p + 4 + 2 * g);
        return negated(two_entries(iq2_xs_bytes[a & 511], iq2_xs_bytes[b & 511]), even_signs(a >> 9),
                       even_signs(b >> 9));
    }
    case BL_IQ2_S: {
        const unsigned high = p[66 + i / 2] >> 4 * side;
        return negated(two_entries(iq2_s_bytes[p[2 + g] | (high & 3) << 8], iq2_s_bytes[p[3 + g] | (high >> 2 & 3) << 8]),
                       p[34 + g], p[35 + g]);
    }
    case BL_IQ3_XXS: {
        const uint8_t *q = p + 2 + 4 * i;
        const uint32_t signs = bl_load_u32(p + 66 + 4 * (i / 2)) >> 14 * side;
        const unsigned index[4] = {q[0], q[1], q[2], q[3]};
        return negated(four_entries(iq3_xxs_bytes, index), even_signs(signs & 127), even_signs(signs >> 7 & 127));
    }
    default: { /* IQ3_S */
        const uint8_t *q = p + 2 + 4 * i;
        const unsigned h = (unsigned)p[66 + i / 2] >> 4 * side;
        const unsigned index[4] = {q[0] | (h & 1) << 8, q[1] | (h >> 1 & 1) << 8, q[2] | (h >> 2 & 1) << 8,
                                   q[3] | (h >> 3 & 1) << 8};
        return negated(four_entries(iq3_s_bytes, index), p[74 + g], p[75 + g]);
    }
    }
}

#endif

/* SPDX-License-Identifier: MIT */
/* neon_decode.h — blocks of weights as signed bytes and scales, in NEON registers. Included by kernel files only.
 *
 * Purpose   the types with blocks of 32, and those with blocks of 256 and integer scales (Q2_K to Q6_K, IQ4_XS, TQ2_0);
 *           dots and packers decode by the same functions.
 * Ownership none.
 * Units     elements; sizes in bytes.
 * Errors    none.
 * Threads   pure.
 */
#ifndef BL_ARM_NEON_DECODE_H
#define BL_ARM_NEON_DECODE_H

#include "neon.h"

struct floats8 {
    float32x4_t lo, hi;
};
BL_ALWAYS_INLINE struct floats8 load_floats(const float *p)
{
    return (struct floats8){vld1q_f32(p), vld1q_f32(p + 4)};
}

/* ---- blocks of 32 ---- */

/* Everything that differs between these types; constant in each kernel, so the tests on it vanish.
 */
struct block_type {
    int bytes;     /* of a block */
    int skip;      /* bytes before the codes */
    int bias;      /* code minus bias = value */
    bool has_high; /* a fifth bit: 32 bits just before the nibbles */
    bool has_min;  /* value = d * code + m, the f16 m after d */
    bool signed8;  /* codes are signed bytes, not nibbles */
    bool e8m0;     /* the scale is one byte, 2^(e - 128) */
    bool table;    /* nibbles go through values */
    int8_t values[16];
};
static const struct block_type q8_0_type = {.bytes = 34, .skip = 2, .signed8 = true};
static const struct block_type q4_0_type = {.bytes = 18, .skip = 2, .bias = 8};
static const struct block_type q4_1_type = {.bytes = 20, .skip = 4, .has_min = true};
static const struct block_type q5_0_type = {.bytes = 22, .skip = 6, .bias = 16, .has_high = true};
static const struct block_type q5_1_type = {
    .bytes = 24, .skip = 8, .has_high = true, .has_min = true};
static const struct block_type iq4_nl_type = {
    .bytes = 18,
    .skip = 2,
    .table = true,
    .values = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}};
static const struct block_type mxfp4_type = {
    .bytes = 17,
    .skip = 1,
    .e8m0 = true,
    .table = true,
    .values = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}};

/* The f16 fields of n blocks as eight floats, zero for the blocks that are not there. */
BL_ALWAYS_INLINE struct floats8 load_scales(const char *p, int bytes, int n)
{
    uint16_t h[8] = {0};
    for (int i = 0; i < 8 && i < n; i++)
        h[i] = bl_load_u16(p + i * bytes);
    return (struct floats8){half_to_float(vld1_u16(h)), half_to_float(vld1_u16(h + 4))};
}
/* 2^(e - 128) of each word; 0 and 1 give subnormal floats */
BL_ALWAYS_INLINE float32x4_t e8m0_to_float(uint16x4_t e)
{
    const uint32x4_t twice =
        vmaxq_u32(vshlq_n_u32(vmovl_u16(e), 23), vdupq_n_u32(UINT32_C(0x00400000)));
    return vmulq_n_f32(vreinterpretq_f32_u32(twice), 0.5f);
}
BL_ALWAYS_INLINE struct floats8 load_e8m0(const char *p, int bytes, int n)
{
    uint16_t e[8] = {0};
    for (int i = 0; i < 8 && i < n; i++)
        e[i] = (uint8_t)p[i * bytes];
    return (struct floats8){e8m0_to_float(vld1_u16(e)), e8m0_to_float(vld1_u16(e + 4))};
}
/* 16 bits -> 16 in each byte whose bit is set */
BL_ALWAYS_INLINE uint8x16_t spread_bits(const char *p)
{
    const uint8x16_t select = vreinterpretq_u8_u64(vdupq_n_u64(UINT64_C(0x8040201008040201)));
    const uint8x16_t v = vcombine_u8(vdup_n_u8((uint8_t)p[0]), vdup_n_u8((uint8_t)p[1]));
    return and_bytes(vtstq_u8(v, select), 16);
}
BL_ALWAYS_INLINE struct bytes32 unpack_block(const struct block_type *t, const char *p)
{
    if (t->signed8)
        return load_bytes32(p + t->skip);
    const uint8x16_t q = load_u8(p + t->skip);
    uint8x16_t lo = and_bytes(q, 15), hi = vshrq_n_u8(q, 4);
    if (t->table) {
        const int8x16_t values = vld1q_s8(t->values);
        return (struct bytes32){vqtbl1q_s8(values, lo), vqtbl1q_s8(values, hi)};
    }
    if (t->has_high) {
        lo = vorrq_u8(lo, spread_bits(p + t->skip - 4));
        hi = vorrq_u8(hi, spread_bits(p + t->skip - 2));
    }
    return (struct bytes32){minus(lo, t->bias), minus(hi, t->bias)};
}

/* ---- blocks of 256 ---- */

/* What a row's block has beside its codes. */
struct k_header {
    int32_t scale[16]; /* of 16 elements each, or the first eight of 32 each */
    int16_t min[16];
    float d, dmin;
};
BL_ALWAYS_INLINE bool has_min(enum bl_dtype t)
{
    return t == BL_Q2_K || t == BL_Q4_K || t == BL_Q5_K;
}
BL_ALWAYS_INLINE bool scale_of_16(enum bl_dtype t)
{
    return t == BL_Q2_K || t == BL_Q3_K || t == BL_Q6_K;
}
BL_ALWAYS_INLINE int block_bytes(enum bl_dtype t)
{
    return t == BL_Q2_K     ? 84
           : t == BL_Q3_K   ? 110
           : t == BL_Q4_K   ? 144
           : t == BL_Q5_K   ? 176
           : t == BL_Q6_K   ? 210
           : t == BL_IQ4_XS ? 136
                            : 66;
}

/* ---- headers ---- */

BL_ALWAYS_INLINE void store_bytes16(int32_t *dst, int8x16_t v)
{
    const int16x8_t lo = vmovl_s8(vget_low_s8(v)), hi = vmovl_high_s8(v);
    vst1q_s32(dst, vmovl_s16(vget_low_s16(lo)));
    vst1q_s32(dst + 4, vmovl_high_s16(lo));
    vst1q_s32(dst + 8, vmovl_s16(vget_low_s16(hi)));
    vst1q_s32(dst + 12, vmovl_high_s16(hi));
}
/* Q4_K, Q5_K: eight 6-bit scales and minima in 12 bytes */
BL_ALWAYS_INLINE void k45_header(struct k_header *h, const char *p)
{
    const uint32_t a = bl_load_u32(p + 4), b = bl_load_u32(p + 8), c = bl_load_u32(p + 12);
    const uint32_t scale_hi = (c & 0x0f0f0f0f) | (a >> 2 & 0x30303030);
    const uint32_t min_hi = (c >> 4 & 0x0f0f0f0f) | (b >> 2 & 0x30303030);
    const uint64_t scale = (a & 0x3f3f3f3f) | (uint64_t)scale_hi << 32;
    const uint64_t min = (b & 0x3f3f3f3f) | (uint64_t)min_hi << 32;
    const uint8x16_t both =
        vreinterpretq_u8_u64(vcombine_u64(vcreate_u64(scale), vcreate_u64(min)));
    const uint16x8_t s = vmovl_u8(vget_low_u8(both));
    vst1q_s32(h->scale, vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(s))));
    vst1q_s32(h->scale + 4, vreinterpretq_s32_u32(vmovl_high_u16(s)));
    vst1q_s16(h->min, vreinterpretq_s16_u16(vmovl_high_u8(both)));
    h->d = load_f16(p);
    h->dmin = load_f16(p + 2);
}
/* Q2_K: a nibble each */
BL_ALWAYS_INLINE void k2_header(struct k_header *h, const char *p)
{
    const uint8x16_t v = load_u8(p), m = vshrq_n_u8(v, 4);
    store_bytes16(h->scale, vreinterpretq_s8_u8(and_bytes(v, 15)));
    vst1q_s16(h->min, vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(m))));
    vst1q_s16(h->min + 8, vreinterpretq_s16_u16(vmovl_high_u8(m)));
    h->d = load_f16(p + 80);
    h->dmin = load_f16(p + 82);
}
/* Q3_K: low nibbles in 8 bytes, two high bits in 4, stored plus 32 */
BL_ALWAYS_INLINE void k3_header(struct k_header *h, const char *p)
{
    const uint64_t nibbles = bl_load_u64(p + 96), m4 = 0x0f0f0f0f0f0f0f0f;
    const uint32_t high = bl_load_u32(p + 104), m2 = 0x03030303;
    const uint64_t lo = (high & m2) | (uint64_t)(high >> 2 & m2) << 32;
    const uint64_t hi = (high >> 4 & m2) | (uint64_t)(high >> 6 & m2) << 32;
    const uint64x2_t six = vcombine_u64(vcreate_u64((nibbles & m4) | lo << 4),
                                        vcreate_u64((nibbles >> 4 & m4) | hi << 4));
    store_bytes16(h->scale, minus(vreinterpretq_u8_u64(six), 32));
    h->d = load_f16(p + 108);
}
/* IQ4_XS: low nibbles in four bytes, two high bits each in a word, stored plus 32 */
BL_ALWAYS_INLINE void iq4_header(struct k_header *h, const char *p)
{
    const uint32_t low = bl_load_u32(p + 4), high = bl_load_u16(p + 2);
    for (int s = 0; s < 8; s++)
        h->scale[s] = (int32_t)((low >> 4 * s & 15) | (high >> 2 * s & 3) << 4) - 32;
    h->d = load_f16(p);
}
BL_ALWAYS_INLINE void load_header(enum bl_dtype t, struct k_header *h, const char *p)
{
    switch (t) {
    case BL_Q2_K:
        k2_header(h, p);
        break;
    case BL_Q3_K:
        k3_header(h, p);
        break;
    case BL_Q4_K:
    case BL_Q5_K:
        k45_header(h, p);
        break;
    case BL_Q6_K:
        store_bytes16(h->scale, vld1q_s8((const int8_t *)p + 192));
        h->d = load_f16(p + 208);
        break;
    case BL_IQ4_XS:
        iq4_header(h, p);
        break;
    default: /* TQ2_0 */
        h->d = load_f16(p + 64);
    }
}

/* ---- 32 weights, the s-th of eight ---- */

BL_ALWAYS_INLINE uint8x16_t nibble_of(uint8x16_t v, bool high)
{
    return high ? vshrq_n_u8(v, 4) : and_bytes(v, 15);
}
/* Two bits from bit `from` of v on, moved to bit `to`. */
BL_ALWAYS_INLINE uint8x16_t bits_of(uint8x16_t v, int from, uint8_t mask, int to)
{
    const uint8x16_t bits = and_bytes(shift_right(v, from), mask);
    return vshlq_u8(bits, vdupq_n_s8((int8_t)to));
}
BL_ALWAYS_INLINE int8x16_t unpack16(enum bl_dtype t, const char *p, int s, int half)
{
    const int at = 16 * half;
    switch (t) {
    case BL_Q4_K:
        return vreinterpretq_s8_u8(nibble_of(load_u8(p + 16 + 32 * (s / 2) + at), s % 2));
    case BL_Q5_K: {
        const uint8x16_t q = nibble_of(load_u8(p + 48 + 32 * (s / 2) + at), s % 2);
        return vreinterpretq_s8_u8(vorrq_u8(q, bits_of(load_u8(p + 16 + at), s, 1, 4)));
    }
    case BL_Q6_K: {
        const uint8x16_t q = nibble_of(load_u8(p + 64 * (s / 4) + 32 * (s % 2) + at), s % 4 > 1);
        const uint8x16_t high = load_u8(p + 128 + 32 * (s / 4) + at);
        return minus(vorrq_u8(q, bits_of(high, 2 * (s % 4), 3, 4)), 32);
    }
    case BL_Q2_K:
        return vreinterpretq_s8_u8(bits_of(load_u8(p + 16 + 32 * (s / 4) + at), 2 * (s % 4), 3, 0));
    case BL_Q3_K: {
        const uint8x16_t q = bits_of(load_u8(p + 32 + 32 * (s / 4) + at), 2 * (s % 4), 3, 0);
        return minus(vorrq_u8(q, bits_of(load_u8(p + at), s, 1, 2)), 4);
    }
    case BL_IQ4_XS: {
        static const int8_t values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                          1,    13,   25,  38,  53,  69,  89,  113};
        return vqtbl1q_s8(vld1q_s8(values), nibble_of(load_u8(p + 8 + 16 * s), half));
    }
    default: /* TQ2_0 */
        return minus(bits_of(load_u8(p + 32 * (s / 4) + at), 2 * (s % 4), 3, 0), 1);
    }
}
/* The minima times the sums of their activations. */
BL_ALWAYS_INLINE int32x4_t min_sums(enum bl_dtype t, const struct k_header *h,
                                    const struct bl_act_block *x)
{
    const int16x8_t a = vld1q_s16(x->sum), b = vld1q_s16(x->sum + 8), m = vld1q_s16(h->min);
    const int16x8_t first = scale_of_16(t) ? a : vpaddq_s16(a, b);
    int32x4_t v = vmull_s16(vget_low_s16(m), vget_low_s16(first));
    v = vmlal_high_s16(v, m, first);
    if (!scale_of_16(t))
        return v;
    const int16x8_t n = vld1q_s16(h->min + 8);
    return vmlal_high_s16(vmlal_s16(v, vget_low_s16(n), vget_low_s16(b)), n, b);
}

#endif

/* SPDX-License-Identifier: MIT */
/* NEON dots of the types with blocks of 256 and integer scales: Q2_K to Q6_K, IQ4_XS, TQ2_0. Four
 * rows are taken together.
 *
 * One loop for all: weights are unpacked 32 at a time to signed bytes, sums of four products are
 * multiplied by their scales as integers, and a block needs one conversion and one FMA a row. */
#include "neon.h"

enum { ROWS = 4, BLOCK = 256 };

/* What a row's block has beside its codes. */
struct header {
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
BL_ALWAYS_INLINE void k45_header(struct header *h, const char *p)
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
BL_ALWAYS_INLINE void k2_header(struct header *h, const char *p)
{
    const uint8x16_t v = load_u8(p), m = vshrq_n_u8(v, 4);
    store_bytes16(h->scale, vreinterpretq_s8_u8(and_bytes(v, 15)));
    vst1q_s16(h->min, vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(m))));
    vst1q_s16(h->min + 8, vreinterpretq_s16_u16(vmovl_high_u8(m)));
    h->d = load_f16(p + 80);
    h->dmin = load_f16(p + 82);
}
/* Q3_K: low nibbles in 8 bytes, two high bits in 4, stored plus 32 */
BL_ALWAYS_INLINE void k3_header(struct header *h, const char *p)
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
BL_ALWAYS_INLINE void iq4_header(struct header *h, const char *p)
{
    const uint32_t low = bl_load_u32(p + 4), high = bl_load_u16(p + 2);
    for (int s = 0; s < 8; s++)
        h->scale[s] = (int32_t)((low >> 4 * s & 15) | (high >> 2 * s & 3) << 4) - 32;
    h->d = load_f16(p);
}
BL_ALWAYS_INLINE void load_header(enum bl_dtype t, struct header *h, const char *p)
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

/* ---- rows ---- */

/* acc + the s-th 32 weights times activations, by their scales */
BL_ALWAYS_INLINE int32x4_t add_step(enum bl_dtype t, int32x4_t acc, const char *p, int s,
                                    const struct header *h, struct bytes32 x)
{
    const struct bytes32 q = {unpack16(t, p, s, 0), unpack16(t, p, s, 1)};
    const int32x4_t zero = vdupq_n_s32(0);
    if (t == BL_TQ2_0)
        return dot4(dot4(acc, q.lo, x.lo), q.hi, x.hi);
    if (!scale_of_16(t))
        return vmlaq_n_s32(acc, dot32(q, x), h->scale[s]);
    acc = vmlaq_n_s32(acc, dot4(zero, q.lo, x.lo), h->scale[2 * s]);
    return vmlaq_n_s32(acc, dot4(zero, q.hi, x.hi), h->scale[2 * s + 1]);
}
/* The minima times the sums of their activations. */
BL_ALWAYS_INLINE int32x4_t min_sums(enum bl_dtype t, const struct header *h,
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
BL_ALWAYS_INLINE void k_group(enum bl_dtype t, int R, uint32_t k, float *out,
                              const struct row_group *g, const struct bl_act_block *x)
{
    const int size = block_bytes(t);
    const char *w = g->w;
    float32x4_t acc[ROWS], mins[ROWS];
    for (int r = 0; r < R; r++)
        acc[r] = mins[r] = vdupq_n_f32(0);
    for (uint32_t b = 0; b < k / BLOCK; b++, x++, w += size) {
        prefetch(g, (size_t)b * (size_t)(R * size), R * size);
        struct header h[ROWS];
        int32x4_t v[ROWS];
        for (int r = 0; r < R; r++) {
            load_header(t, &h[r], w + (size_t)r * g->stride);
            v[r] = vdupq_n_s32(0);
        }
        for (int s = 0; s < 8; s++) {
            const struct bytes32 q8 = load_bytes32(x->q + 32 * s);
            for (int r = 0; r < R; r++)
                v[r] = add_step(t, v[r], w + (size_t)r * g->stride, s, &h[r], q8);
        }
        for (int r = 0; r < R; r++) {
            acc[r] = vfmaq_n_f32(acc[r], vcvtq_f32_s32(v[r]), h[r].d * x->d[0]);
            if (has_min(t))
                mins[r] =
                    vfmaq_n_f32(mins[r], vcvtq_f32_s32(min_sums(t, &h[r], x)), h[r].dmin * x->d[0]);
        }
    }
    for (int r = 0; r < R; r++)
        acc[r] = vsubq_f32(acc[r], mins[r]);
    store_sums(R, out, acc);
}
#define K_GROUP(name, type)                                                                        \
    BL_ALWAYS_INLINE void name##_group(int R, uint32_t k, float *out, const struct row_group *g,   \
                                       const void *x)                                              \
    {                                                                                              \
        k_group(type, R, k, out, g, x);                                                            \
    }
K_GROUP(q2_k, BL_Q2_K)
K_GROUP(q3_k, BL_Q3_K)
K_GROUP(q4_k, BL_Q4_K)
K_GROUP(q5_k, BL_Q5_K)
K_GROUP(q6_k, BL_Q6_K)
K_GROUP(iq4_xs, BL_IQ4_XS)
K_GROUP(tq2_0, BL_TQ2_0)

DOT_ENTRY(dot_q2_k_act_4__neon, q2_k_group, ROWS)
DOT_ENTRY(dot_q3_k_act_4__neon, q3_k_group, ROWS)
DOT_ENTRY(dot_q4_k_act_4__neon, q4_k_group, ROWS)
DOT_ENTRY(dot_q5_k_act_4__neon, q5_k_group, ROWS)
DOT_ENTRY(dot_q6_k_act_4__neon, q6_k_group, ROWS)
DOT_ENTRY(dot_iq4_xs_act_4__neon, iq4_xs_group, ROWS)
DOT_ENTRY(dot_tq2_0_act_4__neon, tq2_0_group, ROWS)

void bl_cpu_neon_kquant(struct bl_cpu_kernels *t)
{
    DOT_SET(t, BL_Q2_K, dot_q2_k_act_4__neon, ROWS);
    DOT_SET(t, BL_Q3_K, dot_q3_k_act_4__neon, ROWS);
    DOT_SET(t, BL_Q4_K, dot_q4_k_act_4__neon, ROWS);
    DOT_SET(t, BL_Q5_K, dot_q5_k_act_4__neon, ROWS);
    DOT_SET(t, BL_Q6_K, dot_q6_k_act_4__neon, ROWS);
    DOT_SET(t, BL_IQ4_XS, dot_iq4_xs_act_4__neon, ROWS);
    DOT_SET(t, BL_TQ2_0, dot_tq2_0_act_4__neon, ROWS);
}

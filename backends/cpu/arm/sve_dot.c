/* SPDX-License-Identifier: MIT */
/* Dots of the main types with vectors of 256 bits or more (SVE): 32 weights are one register,
 * whatever its length. With 128 bits the NEON dots, four rows together, are as wide; those stay.
 *
 * One row at a time: registers of unknown length make no arrays, and out-of-order cores overlap the
 * blocks of a row as well as those of several. Headers and scales are decoded by the NEON
 * functions. */
#include "neon_decode.h"

#include <arm_sve.h>

enum { ROWS = 1 };

/* The first 32 bytes, the first eight words, and of those the first four. */
BL_ALWAYS_INLINE svbool_t bytes_32(void)
{
    return svwhilelt_b8_u32(0, 32);
}
BL_ALWAYS_INLINE svbool_t words(uint32_t n)
{
    return svwhilelt_b32_u32(0, n);
}
BL_ALWAYS_INLINE svuint8_t load_32(const char *p)
{
    return svld1_u8(bytes_32(), (const uint8_t *)p);
}
BL_ALWAYS_INLINE svuint8_t nibbles(svuint8_t v, bool high)
{
    return high ? svlsr_n_u8_x(svptrue_b8(), v, 4) : svand_n_u8_x(svptrue_b8(), v, 15);
}
BL_ALWAYS_INLINE svint8_t less(svuint8_t v, int8_t c)
{
    return svsub_n_s8_x(svptrue_b8(), svreinterpret_s8_u8(v), c);
}
/* 16 bytes: their low nibbles, then their high ones. */
BL_ALWAYS_INLINE svuint8_t spread_nibbles(const char *p)
{
    const svuint8_t v = svld1rq_u8(svptrue_b8(), (const uint8_t *)p);
    return svsel_u8(svwhilelt_b8_u32(0, 16), nibbles(v, false), nibbles(v, true));
}
BL_ALWAYS_INLINE svint8_t look_up(const int8_t values[16], svuint8_t index)
{
    return svtbl_s8(svld1rq_s8(svptrue_b8(), values), index);
}
/* Sums of four products of 32, in eight words. Lanes beyond are zeros in x. */
BL_ALWAYS_INLINE svint32_t dot_32(svint8_t w, const int8_t *x)
{
    return svdot_s32(svdup_n_s32(0), w, svld1_s8(bytes_32(), x));
}

/* ---- blocks of 32 ---- */

BL_ALWAYS_INLINE svint8_t unpack_32(const struct block_type *t, const char *p)
{
    if (t->signed8)
        return svreinterpret_s8_u8(load_32(p + t->skip));
    const svuint8_t q = spread_nibbles(p + t->skip);
    return t->table ? look_up(t->values, q) : less(q, (int8_t)t->bias);
}
/* acc + n blocks */
BL_ALWAYS_INLINE svfloat32_t add_blocks(const struct block_type *t, svfloat32_t acc, const char *p,
                                        const struct bl_act_block *x, int n)
{
    const struct floats8 dw = t->e8m0 ? load_e8m0(p, t->bytes, n) : load_scales(p, t->bytes, n);
    const struct floats8 dx = load_floats(x->d);
    float d[8];
    vst1q_f32(d, vmulq_f32(dw.lo, dx.lo));
    vst1q_f32(d + 4, vmulq_f32(dw.hi, dx.hi));
    for (int b = 0; b < n; b++) {
        const svint32_t v = dot_32(unpack_32(t, p + b * t->bytes), x->q + 32 * b);
        acc = svmla_n_f32_x(words(8), acc, svcvt_f32_s32_x(words(8), v), d[b]);
    }
    return acc;
}
BL_ALWAYS_INLINE void block_row(const struct block_type *t, uint32_t k, float *out,
                                const struct row_group *g, const struct bl_act_block *x)
{
    const int step = 8 * t->bytes;
    const char *w = g->w;
    svfloat32_t acc = svdup_n_f32(0);
    uint32_t b = 0;
    for (; b < k / 256; b++, w += step) {
        prefetch(g, (size_t)b * (size_t)step, step);
        acc = add_blocks(t, acc, w, x + b, 8);
    }
    if (k % 256)
        acc = add_blocks(t, acc, w, x + b, (int)(k % 256 / 32));
    *out = svaddv_f32(words(8), acc);
}

/* ---- blocks of 256 ---- */

/* Bits 2 i and 2 i + 1, at bits 4 and 5; others at random. */
BL_ALWAYS_INLINE svuint8_t pairs_of_bits(svuint8_t v, int i)
{
    const svbool_t all = svptrue_b8();
    return i == 0   ? svlsl_n_u8_x(all, v, 4)
           : i == 1 ? svlsl_n_u8_x(all, v, 2)
           : i == 2 ? v
                    : svlsr_n_u8_x(all, v, 2);
}
/* the s-th of eight */
BL_ALWAYS_INLINE svint8_t unpack_k(enum bl_dtype t, const char *p, int s)
{
    if (t == BL_Q4_K)
        return svreinterpret_s8_u8(nibbles(load_32(p + 16 + 32 * (s / 2)), s % 2));
    if (t == BL_IQ4_XS)
        return look_up(iq4_nl_type.values, spread_nibbles(p + 8 + 16 * s));
    const svuint8_t low = nibbles(load_32(p + 64 * (s / 4) + 32 * (s % 2)), s % 4 > 1);
    const svuint8_t high = pairs_of_bits(load_32(p + 128 + 32 * (s / 4)), s % 4);
    return less(svorr_u8_x(svptrue_b8(), low, svand_n_u8_x(svptrue_b8(), high, 0x30)), 32);
}
BL_ALWAYS_INLINE svint32_t scale_k(enum bl_dtype t, const struct k_header *h, int s)
{
    if (!scale_of_16(t))
        return svdup_n_s32(h->scale[s]);
    return svsel_s32(words(4), svdup_n_s32(h->scale[2 * s]), svdup_n_s32(h->scale[2 * s + 1]));
}
BL_ALWAYS_INLINE void k_row(enum bl_dtype t, uint32_t k, float *out, const struct row_group *g,
                            const struct bl_act_block *x)
{
    const int size = block_bytes(t);
    const char *w = g->w;
    svfloat32_t acc = svdup_n_f32(0);
    float minima = 0;
    for (uint32_t b = 0; b < k / 256; b++, x++, w += size) {
        prefetch(g, (size_t)b * (size_t)size, size);
        struct k_header h;
        load_header(t, &h, w);
        svint32_t v = svdup_n_s32(0);
        for (int s = 0; s < 8; s++)
            v = svmla_s32_x(words(8), v, dot_32(unpack_k(t, w, s), x->q + 32 * s),
                            scale_k(t, &h, s));
        acc = svmla_n_f32_x(words(8), acc, svcvt_f32_s32_x(words(8), v), h.d * x->d[0]);
        if (has_min(t))
            minima += (float)vaddvq_s32(min_sums(t, &h, x)) * (h.dmin * x->d[0]);
    }
    *out = svaddv_f32(words(8), acc) - minima;
}

/* ---- entries ---- */

#define BLOCK_ROW(type)                                                                            \
    BL_ALWAYS_INLINE void type##_row(int R, uint32_t k, float *out, const struct row_group *g,     \
                                     const void *x)                                                \
    {                                                                                              \
        (void)R;                                                                                   \
        block_row(&type##_type, k, out, g, x);                                                     \
    }                                                                                              \
    DOT_ENTRY(dot_##type##_act_1__sve, type##_row, ROWS)
#define K_ROW(name, type)                                                                          \
    BL_ALWAYS_INLINE void name##_row(int R, uint32_t k, float *out, const struct row_group *g,     \
                                     const void *x)                                                \
    {                                                                                              \
        (void)R;                                                                                   \
        k_row(type, k, out, g, x);                                                                 \
    }                                                                                              \
    DOT_ENTRY(dot_##name##_act_1__sve, name##_row, ROWS)
BLOCK_ROW(q8_0)
BLOCK_ROW(q4_0)
BLOCK_ROW(iq4_nl)
BLOCK_ROW(mxfp4)
K_ROW(q4_k, BL_Q4_K)
K_ROW(q6_k, BL_Q6_K)
K_ROW(iq4_xs, BL_IQ4_XS)

void bl_cpu_sve(struct bl_cpu_kernels *t)
{
    DOT_SET(t, BL_Q8_0, dot_q8_0_act_1__sve, ROWS);
    DOT_SET(t, BL_Q4_0, dot_q4_0_act_1__sve, ROWS);
    DOT_SET(t, BL_IQ4_NL, dot_iq4_nl_act_1__sve, ROWS);
    DOT_SET(t, BL_MXFP4, dot_mxfp4_act_1__sve, ROWS);
    DOT_SET(t, BL_Q4_K, dot_q4_k_act_1__sve, ROWS);
    DOT_SET(t, BL_Q6_K, dot_q6_k_act_1__sve, ROWS);
    DOT_SET(t, BL_IQ4_XS, dot_iq4_xs_act_1__sve, ROWS);
}

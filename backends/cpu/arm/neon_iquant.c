/* SPDX-License-Identifier: MIT */
/* NEON dots of the types with codebooks, and of the rest by way of their portable unpackers. Two
 * rows are taken together. */
#include "neon_codebook.h"
#include "dtype_unpack.h"

enum { ROWS = 2 };

/* ---- sums: one FMA for 16 weights ---- */

BL_ALWAYS_INLINE float32x4_t add16(float32x4_t acc, int8x16_t w, const int8_t *x, float scale)
{
    const int32x4_t v = dot4(vdupq_n_s32(0), w, vld1q_s8(x));
    return vfmaq_n_f32(acc, vcvtq_f32_s32(v), scale);
}

/* ---- codebooks ---- */

BL_ALWAYS_INLINE void codebook_group(enum bl_dtype t, int R, uint32_t k, float *out,
                                     const struct row_group *g, const struct bl_act_block *x)
{
    const int size = codebook_bytes(t);
    const char *w = g->w;
    float32x4_t acc[ROWS];
    for (int r = 0; r < R; r++)
        acc[r] = vdupq_n_f32(0);
    for (uint32_t b = 0; b < k / 256; b++, x++, w += size) {
        prefetch(g, (size_t)b * (size_t)(R * size), R * size);
        for (int r = 0; r < R; r++) {
            const uint8_t *p = (const uint8_t *)w + (size_t)r * g->stride;
            float scale[16];
            float32x4_t sum[2] = {vdupq_n_f32(0), vdupq_n_f32(0)};
            codebook_scales(t, scale, p);
            for (int i = 0; i < 16; i++)
                sum[i % 2] = add16(sum[i % 2], codebook16(t, p, i), x->q + 16 * i, scale[i]);
            acc[r] = vfmaq_n_f32(acc[r], vaddq_f32(sum[0], sum[1]), x->d[0]);
        }
    }
    store_sums(R, out, acc);
}
#define CODEBOOK_GROUP(name, type)                                                                 \
    BL_ALWAYS_INLINE void name##_group(int R, uint32_t k, float *out, const struct row_group *g,   \
                                       const void *x)                                              \
    {                                                                                              \
        codebook_group(type, R, k, out, g, x);                                                     \
    }                                                                                              \
    DOT_ENTRY(dot_##name##_act_2__neon, name##_group, ROWS)
CODEBOOK_GROUP(iq1_s, BL_IQ1_S)
CODEBOOK_GROUP(iq1_m, BL_IQ1_M)
CODEBOOK_GROUP(iq2_xxs, BL_IQ2_XXS)
CODEBOOK_GROUP(iq2_xs, BL_IQ2_XS)
CODEBOOK_GROUP(iq2_s, BL_IQ2_S)
CODEBOOK_GROUP(iq3_xxs, BL_IQ3_XXS)
CODEBOOK_GROUP(iq3_s, BL_IQ3_S)

/* ---- by way of unpackers: the types that are rare ---- */

BL_ALWAYS_INLINE void unpacked_group(enum bl_dtype t, int R, uint32_t k, float *out,
                                     const struct row_group *g, const struct bl_act_block *x)
{
    const uint32_t elems = bl_dtypes[t].block_elems;
    const int size = bl_dtypes[t].block_bytes;
    const char *w = g->w;
    float32x4_t acc[ROWS];
    for (int r = 0; r < R; r++)
        acc[r] = vdupq_n_f32(0);
    for (uint32_t at = 0; at < k; at += elems, w += size) {
        prefetch(g, (size_t)(at / elems) * (size_t)(R * size), R * size);
        const struct bl_act_block *a = x + at / 256;
        for (int r = 0; r < R; r++) {
            struct bl_unpacked u;
            bl_unpackers[t].unpack(&u, (const uint8_t *)w + (size_t)r * g->stride);
            for (uint32_t i = 0; i < elems / 16; i++) {
                const uint32_t col = at % 256 + 16 * i;
                acc[r] =
                    add16(acc[r], vld1q_s8(u.q + 16 * i), a->q + col, u.scale[i] * a->d[col / 32]);
            }
        }
    }
    store_sums(R, out, acc);
}
#define UNPACKED_GROUP(name, type)                                                                 \
    BL_ALWAYS_INLINE void name##_group(int R, uint32_t k, float *out, const struct row_group *g,   \
                                       const void *x)                                              \
    {                                                                                              \
        unpacked_group(type, R, k, out, g, x);                                                     \
    }                                                                                              \
    DOT_ENTRY(dot_##name##_act_2__neon, name##_group, ROWS)
UNPACKED_GROUP(tq1_0, BL_TQ1_0)
UNPACKED_GROUP(nvfp4, BL_NVFP4)
UNPACKED_GROUP(q1_0, BL_Q1_0)
UNPACKED_GROUP(q2_0, BL_Q2_0)

void bl_cpu_neon_iquant(struct bl_cpu_kernels *t)
{
    DOT_SET(t, BL_IQ1_S, dot_iq1_s_act_2__neon, ROWS);
    DOT_SET(t, BL_IQ1_M, dot_iq1_m_act_2__neon, ROWS);
    DOT_SET(t, BL_IQ2_XXS, dot_iq2_xxs_act_2__neon, ROWS);
    DOT_SET(t, BL_IQ2_XS, dot_iq2_xs_act_2__neon, ROWS);
    DOT_SET(t, BL_IQ2_S, dot_iq2_s_act_2__neon, ROWS);
    DOT_SET(t, BL_IQ3_XXS, dot_iq3_xxs_act_2__neon, ROWS);
    DOT_SET(t, BL_IQ3_S, dot_iq3_s_act_2__neon, ROWS);
    DOT_SET(t, BL_TQ1_0, dot_tq1_0_act_2__neon, ROWS);
    DOT_SET(t, BL_NVFP4, dot_nvfp4_act_2__neon, ROWS);
    DOT_SET(t, BL_Q1_0, dot_q1_0_act_2__neon, ROWS);
    DOT_SET(t, BL_Q2_0, dot_q2_0_act_2__neon, ROWS);
}

/* SPDX-License-Identifier: MIT */
/* NEON dots of the types with blocks of 256 and integer scales: Q2_K to Q6_K, IQ4_XS, TQ2_0. Four
 * rows are taken together.
 *
 * One loop for all: weights are unpacked 32 at a time to signed bytes, sums of four products are
 * multiplied by their scales as integers, and a block needs one conversion and one FMA a row. */
#include "neon_decode.h"

enum { ROWS = 4 };

/* ---- rows ---- */

/* acc + the s-th 32 weights times activations, by their scales */
BL_ALWAYS_INLINE int32x4_t add_step(enum bl_dtype t, int32x4_t acc, const char *p, int s,
                                    const struct k_header *h, struct bytes32 x)
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
BL_ALWAYS_INLINE void k_group(enum bl_dtype t, int R, uint32_t k, float *out,
                              const struct row_group *g, const struct bl_act_block *x)
{
    const int size = block_bytes(t);
    const char *w = g->w;
    float32x4_t acc[ROWS], mins[ROWS];
    for (int r = 0; r < R; r++)
        acc[r] = mins[r] = vdupq_n_f32(0);
    for (uint32_t b = 0; b < k / 256; b++, x++, w += size) {
        prefetch(g, (size_t)b * (size_t)(R * size), R * size);
        struct k_header h[ROWS];
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

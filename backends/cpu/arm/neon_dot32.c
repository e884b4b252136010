/* SPDX-License-Identifier: MIT */
/* NEON dots of the float types and of the types with blocks of 32. Four rows are taken together. */
#include "neon_decode.h"

enum { ROWS = 4 };

/* ---- float types: float activations ---- */

BL_ALWAYS_INLINE int float_bytes(enum bl_dtype t)
{
    return t == BL_F32 ? 4 : 2;
}
BL_ALWAYS_INLINE struct floats8 load_weights(enum bl_dtype t, const char *p)
{
    if (t == BL_F32)
        return load_floats((const float *)(const void *)p);
    const uint16x8_t h = vreinterpretq_u16_u8(load_u8(p));
    if (t == BL_F16)
        return (struct floats8){half_to_float(vget_low_u16(h)), half_to_float(vget_high_u16(h))};
    return (struct floats8){vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(h), 16)),
                            vreinterpretq_f32_u32(vshll_high_n_u16(h, 16))};
}
/* The last k % 8 weights and activations by way of a zeroed copy: nothing behind the row is read.
 */
BL_ALWAYS_INLINE float32x4_t float_tail(enum bl_dtype t, const char *p, const float *x, uint32_t n,
                                        float32x4_t acc)
{
    char w[32] = {0};
    float xs[8] = {0};
    memcpy(w, p, n * (size_t)float_bytes(t));
    memcpy(xs, x, n * sizeof *x);
    const struct floats8 a = load_weights(t, w), b = load_floats(xs);
    return vfmaq_f32(vfmaq_f32(acc, a.lo, b.lo), a.hi, b.hi);
}
BL_ALWAYS_INLINE void float_group(enum bl_dtype t, int R, uint32_t k, float *out,
                                  const struct row_group *g, const float *x)
{
    enum { STEP = 16 };
    const int size = float_bytes(t);
    float32x4_t acc[ROWS][4]; /* chains hide the latency of the FMA */
    for (int r = 0; r < R; r++)
        acc[r][0] = acc[r][1] = acc[r][2] = acc[r][3] = vdupq_n_f32(0);
    uint32_t i = 0;
    for (; i + STEP <= k; i += STEP) {
        prefetch(g, (size_t)i * (size_t)(size * R), STEP * size * R);
        const struct floats8 a = load_floats(x + i), b = load_floats(x + i + 8);
        for (int r = 0; r < R; r++) {
            const char *p = g->w + (size_t)r * g->stride + (size_t)i * (size_t)size;
            const struct floats8 u = load_weights(t, p), v = load_weights(t, p + 8 * size);
            acc[r][0] = vfmaq_f32(acc[r][0], u.lo, a.lo);
            acc[r][1] = vfmaq_f32(acc[r][1], u.hi, a.hi);
            acc[r][2] = vfmaq_f32(acc[r][2], v.lo, b.lo);
            acc[r][3] = vfmaq_f32(acc[r][3], v.hi, b.hi);
        }
    }
    for (; i < k; i += 8)
        for (int r = 0; r < R; r++) {
            const char *p = g->w + (size_t)r * g->stride + (size_t)i * (size_t)size;
            acc[r][0] = float_tail(t, p, x + i, k - i < 8 ? k - i : 8, acc[r][0]);
        }
    for (int r = 0; r < R; r++)
        out[r] =
            vaddvq_f32(vaddq_f32(vaddq_f32(acc[r][0], acc[r][1]), vaddq_f32(acc[r][2], acc[r][3])));
}
#define FLOAT_GROUP(name, type)                                                                    \
    BL_ALWAYS_INLINE void name##_group(int R, uint32_t k, float *out, const struct row_group *g,   \
                                       const void *x)                                              \
    {                                                                                              \
        float_group(type, R, k, out, g, x);                                                        \
    }
FLOAT_GROUP(f32, BL_F32)
FLOAT_GROUP(f16, BL_F16)
FLOAT_GROUP(bf16, BL_BF16)

/* ---- blocks of 32: eight at a time, as many as an activation block has scales ---- */

/* n blocks of R rows. Each step sums by itself, so that its FMAs do not wait for those of the step
 * before. */
BL_ALWAYS_INLINE void block_step(const struct block_type *t, int R, int n, const char *w,
                                 size_t stride, const struct bl_act_block *x, float32x4_t *acc)
{
    const struct floats8 dx = load_floats(x->d);
    float d[ROWS][8];
    float32x4_t part[ROWS];
    for (int r = 0; r < R; r++) {
        const char *p = w + (size_t)r * stride;
        const struct floats8 dw = t->e8m0 ? load_e8m0(p, t->bytes, n) : load_scales(p, t->bytes, n);
        vst1q_f32(d[r], vmulq_f32(dw.lo, dx.lo));
        vst1q_f32(d[r] + 4, vmulq_f32(dw.hi, dx.hi));
        part[r] = vdupq_n_f32(0);
        if (t->has_min) { /* the minima of eight blocks against the sums of their activations */
            const int16x8_t sum = vpaddq_s16(vld1q_s16(x->sum), vld1q_s16(x->sum + 8));
            const struct floats8 m = load_scales(p + 2, t->bytes, n);
            const float32x4_t lo = vcvtq_f32_s32(vmovl_s16(vget_low_s16(sum)));
            const float32x4_t hi = vcvtq_f32_s32(vmovl_high_s16(sum));
            part[r] = vfmaq_f32(vmulq_f32(m.lo, vmulq_f32(lo, dx.lo)), m.hi, vmulq_f32(hi, dx.hi));
        }
    }
    for (int b = 0; b < 8 && b < n; b++) {
        const struct bytes32 q8 = load_bytes32(x->q + 32 * b);
        for (int r = 0; r < R; r++) {
            const char *p = w + (size_t)r * stride + b * t->bytes;
            const float32x4_t v = vcvtq_f32_s32(dot32(unpack_block(t, p), q8));
            part[r] = vfmaq_n_f32(part[r], v, d[r][b]);
        }
    }
    for (int r = 0; r < R; r++)
        acc[r] = vaddq_f32(acc[r], part[r]);
}
BL_ALWAYS_INLINE void block_group(const struct block_type *t, int R, uint32_t k, float *out,
                                  const struct row_group *g, const struct bl_act_block *x)
{
    const int step = 8 * t->bytes;
    const char *w = g->w;
    float32x4_t acc[ROWS];
    for (int r = 0; r < R; r++)
        acc[r] = vdupq_n_f32(0);
    uint32_t b = 0;
    for (; b < k / 256; b++, w += step) {
        prefetch(g, (size_t)b * (size_t)(R * step), R * step);
        block_step(t, R, 8, w, g->stride, x + b, acc);
    }
    if (k % 256) {
        const int n = (int)(k % 256 / 32);
        prefetch(g, (size_t)b * (size_t)(R * step), R * n * t->bytes);
        block_step(t, R, n, w, g->stride, x + b, acc);
    }
    store_sums(R, out, acc);
}
#define BLOCK_GROUP(type)                                                                          \
    BL_ALWAYS_INLINE void type##_group(int R, uint32_t k, float *out, const struct row_group *g,   \
                                       const void *x)                                              \
    {                                                                                              \
        block_group(&type##_type, R, k, out, g, x);                                                \
    }
BLOCK_GROUP(q8_0)
BLOCK_GROUP(q4_0)
BLOCK_GROUP(q4_1)
BLOCK_GROUP(q5_0)
BLOCK_GROUP(q5_1)
BLOCK_GROUP(iq4_nl)
BLOCK_GROUP(mxfp4)

DOT_ENTRY(dot_f32_f32_4__neon, f32_group, ROWS)
DOT_ENTRY(dot_f16_f32_4__neon, f16_group, ROWS)
DOT_ENTRY(dot_bf16_f32_4__neon, bf16_group, ROWS)
DOT_ENTRY(dot_q8_0_act_4__neon, q8_0_group, ROWS)
DOT_ENTRY(dot_q4_0_act_4__neon, q4_0_group, ROWS)
DOT_ENTRY(dot_q4_1_act_4__neon, q4_1_group, ROWS)
DOT_ENTRY(dot_q5_0_act_4__neon, q5_0_group, ROWS)
DOT_ENTRY(dot_q5_1_act_4__neon, q5_1_group, ROWS)
DOT_ENTRY(dot_iq4_nl_act_4__neon, iq4_nl_group, ROWS)
DOT_ENTRY(dot_mxfp4_act_4__neon, mxfp4_group, ROWS)

void bl_cpu_neon_dot32(struct bl_cpu_kernels *t)
{
    DOT_SET(t, BL_F32, dot_f32_f32_4__neon, ROWS);
    DOT_SET(t, BL_F16, dot_f16_f32_4__neon, ROWS);
    DOT_SET(t, BL_BF16, dot_bf16_f32_4__neon, ROWS);
    DOT_SET(t, BL_Q8_0, dot_q8_0_act_4__neon, ROWS);
    DOT_SET(t, BL_Q4_0, dot_q4_0_act_4__neon, ROWS);
    DOT_SET(t, BL_Q4_1, dot_q4_1_act_4__neon, ROWS);
    DOT_SET(t, BL_Q5_0, dot_q5_0_act_4__neon, ROWS);
    DOT_SET(t, BL_Q5_1, dot_q5_1_act_4__neon, ROWS);
    DOT_SET(t, BL_IQ4_NL, dot_iq4_nl_act_4__neon, ROWS);
    DOT_SET(t, BL_MXFP4, dot_mxfp4_act_4__neon, ROWS);
}

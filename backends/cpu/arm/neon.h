/* SPDX-License-Identifier: MIT */
/* neon.h — small steps shared by the NEON kernels (Armv8.2 with dot products). Included by those files only.
 *
 * Purpose   loads, byte dot products, half floats, sums of rows; and the functions that the table's pieces are filled by.
 * Ownership none.
 * Units     lanes.
 * Errors    none.
 * Threads   pure.
 */
#ifndef BL_ARM_NEON_H
#define BL_ARM_NEON_H

#include "../dot_rows.h"

#include <arm_neon.h>

void bl_cpu_neon_dot32(struct bl_cpu_kernels *);  /* float types and blocks of 32 */
void bl_cpu_neon_kquant(struct bl_cpu_kernels *); /* Q2_K to Q6_K, IQ4_XS, TQ2_0 */
void bl_cpu_neon_iquant(struct bl_cpu_kernels *); /* the other quantised types */
void bl_cpu_neon_panel(struct bl_cpu_kernels *);  /* panels of all quantised types */
void bl_cpu_neon_panel_f32(struct bl_cpu_kernels *); /* of float types */

/* 32 weights as signed bytes */
struct bytes32 {
    int8x16_t lo, hi;
};
BL_ALWAYS_INLINE uint8x16_t load_u8(const void *p)
{
    return vld1q_u8(p);
}
BL_ALWAYS_INLINE struct bytes32 load_bytes32(const void *p)
{
    const int8_t *q = p;
    return (struct bytes32){vld1q_s8(q), vld1q_s8(q + 16)};
}
BL_ALWAYS_INLINE uint8x16_t and_bytes(uint8x16_t v, uint8_t mask)
{
    return vandq_u8(v, vdupq_n_u8(mask));
}
/* v >> n in each byte; a shift by a vector takes any n */
BL_ALWAYS_INLINE uint8x16_t shift_right(uint8x16_t v, int n)
{
    return vshlq_u8(v, vdupq_n_s8((int8_t)-n));
}
/* v - c as signed bytes */
BL_ALWAYS_INLINE int8x16_t minus(uint8x16_t v, int c)
{
    return vsubq_s8(vreinterpretq_s8_u8(v), vdupq_n_s8((int8_t)c));
}
/* acc + sums of four products */
BL_ALWAYS_INLINE int32x4_t dot4(int32x4_t acc, int8x16_t a, int8x16_t b)
{
    return vdotq_s32(acc, a, b);
}
BL_ALWAYS_INLINE int32x4_t dot32(struct bytes32 a, struct bytes32 b)
{
    return dot4(dot4(vdupq_n_s32(0), a.lo, b.lo), a.hi, b.hi);
}
BL_ALWAYS_INLINE float32x4_t half_to_float(uint16x4_t h)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(h));
}
BL_ALWAYS_INLINE float load_f16(const void *p)
{
    return vgetq_lane_f32(half_to_float(vdup_n_u16(bl_load_u16(p))), 0);
}
BL_ALWAYS_INLINE void store_sums(int R, float *out, const float32x4_t *acc)
{
    for (int r = 0; r < R; r++)
        out[r] = vaddvq_f32(acc[r]);
}

#endif

/* SPDX-License-Identifier: MIT */
/* AVX2 dots of the float types. One row is taken at a time, because a single stream is read from
 * memory at 100 % of a plain read, two at 80 % (Zen 5). */
#include "avx2.h"

enum { ROWS = 1 };

/* ---- float types: float activations ----
 *
 * These loops do little beside loading, so the hardware brings L2 to L1 by itself. */

BL_ALWAYS_INLINE int float_bytes(enum bl_dtype t)
{
    return t == BL_F32 ? 4 : 2;
}
BL_ALWAYS_INLINE __m256 load_weights(enum bl_dtype t, const char *p)
{
    if (t == BL_F32)
        return _mm256_loadu_ps((const float *)(const void *)p);
    if (t == BL_F16)
        return _mm256_cvtph_ps(load128(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(p)), 16));
}
/* The last k % 8 weights and activations by way of a zeroed copy: nothing behind the row is read.
 */
BL_ALWAYS_INLINE __m256 float_tail(enum bl_dtype t, const char *p, const float *x, uint32_t n,
                                   __m256 acc)
{
    char w[32] = {0};
    float xs[8] = {0};
    memcpy(w, p, n * (size_t)float_bytes(t));
    memcpy(xs, x, n * sizeof *x);
    return _mm256_fmadd_ps(load_weights(t, w), _mm256_loadu_ps(xs), acc);
}

BL_ALWAYS_INLINE void float_group(enum bl_dtype t, int R, uint32_t k, float *out,
                                  const struct row_group *g, const float *x)
{
    enum { STEP = 32, CHAINS = 4 };
    const int size = float_bytes(t);
    __m256 acc[ROWS][CHAINS] = {{_mm256_setzero_ps()}}; /* chains hide the latency of the FMA */
    uint32_t i = 0;
    for (; i + STEP <= k; i += STEP) {
        prefetch_far(g, (size_t)i * (size_t)(size * R), STEP * size * R);
        for (int c = 0; c < CHAINS; c++) {
            const __m256 xs = _mm256_loadu_ps(x + i + 8 * c);
            for (int r = 0; r < R; r++) {
                const char *p =
                    g->w + (size_t)r * g->stride + (i + 8u * (unsigned)c) * (size_t)size;
                acc[r][c] = _mm256_fmadd_ps(load_weights(t, p), xs, acc[r][c]);
            }
        }
    }
    for (; i + 8 <= k; i += 8)
        for (int r = 0; r < R; r++) {
            const char *p = g->w + (size_t)r * g->stride + i * (size_t)size;
            acc[r][0] = _mm256_fmadd_ps(load_weights(t, p), _mm256_loadu_ps(x + i), acc[r][0]);
        }
    if (i < k)
        for (int r = 0; r < R; r++) {
            const char *p = g->w + (size_t)r * g->stride + i * (size_t)size;
            acc[r][0] = float_tail(t, p, x + i, k - i, acc[r][0]);
        }
    for (int r = 0; r < R; r++)
        out[r] = sum_lanes(_mm256_add_ps(_mm256_add_ps(acc[r][0], acc[r][1]),
                                         _mm256_add_ps(acc[r][2], acc[r][3])));
}
BL_ALWAYS_INLINE void f32_group(int R, uint32_t k, float *out, const struct row_group *g,
                                const void *x)
{
    float_group(BL_F32, R, k, out, g, x);
}
BL_ALWAYS_INLINE void f16_group(int R, uint32_t k, float *out, const struct row_group *g,
                                const void *x)
{
    float_group(BL_F16, R, k, out, g, x);
}
BL_ALWAYS_INLINE void bf16_group(int R, uint32_t k, float *out, const struct row_group *g,
                                 const void *x)
{
    float_group(BL_BF16, R, k, out, g, x);
}

DOT_ENTRY(dot_f32_f32_1__avx2, f32_group, ROWS)
DOT_ENTRY(dot_f16_f32_1__avx2, f16_group, ROWS)
DOT_ENTRY(dot_bf16_f32_1__avx2, bf16_group, ROWS)

void bl_cpu_avx2_float(struct bl_cpu_kernels *t)
{
    DOT_SET(t, BL_F32, dot_f32_f32_1__avx2, ROWS);
    DOT_SET(t, BL_F16, dot_f16_f32_1__avx2, ROWS);
    DOT_SET(t, BL_BF16, dot_bf16_f32_1__avx2, ROWS);
}

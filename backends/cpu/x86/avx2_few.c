/* SPDX-License-Identifier: MIT */
/* AVX2 attention of few queries over rows where they lie: four queries, eight sums in registers. */
#include "avx2_rows.h"

#include <stdbool.h>

#define FEW_ISA "avx2"
#define FEW_MOST_ROWS 4
enum { MOST_ROWS = FEW_MOST_ROWS, MOST_SUMS = 8 };
typedef __m256 vec;

BL_ALWAYS_INLINE vec zero(void)
{
    return _mm256_setzero_ps();
}
BL_ALWAYS_INLINE vec fill(float x)
{
    return _mm256_set1_ps(x);
}
BL_ALWAYS_INLINE vec fma3(vec a, vec b, vec c)
{
    return _mm256_fmadd_ps(a, b, c);
}
BL_ALWAYS_INLINE vec load_vec(const float *p)
{
    return _mm256_load_ps(p);
}
BL_ALWAYS_INLINE void store_vec(float *p, vec v)
{
    _mm256_store_ps(p, v);
}
BL_ALWAYS_INLINE vec load_queries(const float *p)
{
    return _mm256_loadu_ps(p);
}
BL_ALWAYS_INLINE vec queries_part(const float *p, uint32_t left)
{
    return load_some(BL_F32, (const char *)(const void *)p, 0, left);
}
BL_ALWAYS_INLINE vec row_whole(enum bl_dtype t, const char *row, uint32_t i)
{
    return load_row(t, row, i);
}
BL_ALWAYS_INLINE vec row_part(enum bl_dtype t, const char *row, uint32_t i, uint32_t left)
{
    return load_some(t, row, i, left);
}
/* By transposing. A vector without a second is folded with itself. */
BL_ALWAYS_INLINE vec sum_all(int n, const vec *acc)
{
    vec a[4], b[2];
    for (int i = 0; 2 * i < n; i++) {
        const vec x = acc[2 * i], y = acc[2 * i + 1 < n ? 2 * i + 1 : 2 * i];
        a[i] = _mm256_add_ps(_mm256_unpacklo_ps(x, y), _mm256_unpackhi_ps(x, y));
    }
    for (int i = 0; 4 * i < n; i++) {
        const vec x = a[2 * i], y = a[4 * i + 2 < n ? 2 * i + 1 : 2 * i];
        b[i] = _mm256_add_ps(_mm256_shuffle_ps(x, y, 0x44), _mm256_shuffle_ps(x, y, 0xee));
    }
    const vec x = b[0], y = b[n > 4 ? 1 : 0];
    return _mm256_add_ps(_mm256_permute2f128_ps(x, y, 0x20), _mm256_permute2f128_ps(x, y, 0x31));
}
BL_ALWAYS_INLINE void put_sums(int R, int K, uint32_t n, float *score, const vec *acc)
{
    BL_ALIGNED(32) float sums[MOST_SUMS];
    _mm256_store_ps(sums, sum_all(R * K, acc));
    for (int r = 0; r < R; r++)
        for (uint32_t c = 0; c < n; c++)
            score[(uint32_t)r * BL_TILE_KEYS + c] = sums[(uint32_t)(r * K) + c];
}

#include "few_rows.inc"

void bl_cpu_avx2_few(struct bl_cpu_kernels *t)
{
    set_few(t);
}

/* SPDX-License-Identifier: MIT */
/* AVX-512 attention of few queries over rows where they lie: eight queries, 16 sums in registers.
 */
#include "avx512_rows.h"

#include <stdbool.h>

#define FEW_ISA "avx512"
#define FEW_MOST_ROWS 8
enum { MOST_ROWS = FEW_MOST_ROWS, MOST_SUMS = 16 };
typedef __m512 vec;

BL_ALWAYS_INLINE vec zero(void)
{
    return _mm512_setzero_ps();
}
BL_ALWAYS_INLINE vec fill(float x)
{
    return _mm512_set1_ps(x);
}
BL_ALWAYS_INLINE vec fma3(vec a, vec b, vec c)
{
    return _mm512_fmadd_ps(a, b, c);
}
BL_ALWAYS_INLINE vec load_vec(const float *p)
{
    return _mm512_load_ps(p);
}
BL_ALWAYS_INLINE void store_vec(float *p, vec v)
{
    _mm512_store_ps(p, v);
}
BL_ALWAYS_INLINE vec load_queries(const float *p)
{
    return _mm512_loadu_ps(p);
}
BL_ALWAYS_INLINE vec queries_part(const float *p, uint32_t left)
{
    return load_floats(p, lanes(left));
}
BL_ALWAYS_INLINE vec row_whole(enum bl_dtype t, const char *row, uint32_t i)
{
    return load_row(t, row, i, 0xffff);
}
BL_ALWAYS_INLINE vec row_part(enum bl_dtype t, const char *row, uint32_t i, uint32_t left)
{
    return load_row(t, row, i, lanes(left));
}
BL_ALWAYS_INLINE void put_sums(int R, int K, uint32_t n, float *score, const vec *acc)
{
    const vec v = fold_all(false, R * K, acc);
    const uint32_t first = (1u << n) - 1;
    for (int r = 0; r < R; r++) /* lane r K is the row's first */
        _mm512_mask_storeu_ps(score + r * (BL_TILE_KEYS - K), (__mmask16)(first << r * K), v);
}

#include "few_rows.inc"

void bl_cpu_avx512_few(struct bl_cpu_kernels *t)
{
    set_few(t);
}

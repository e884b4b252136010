/* SPDX-License-Identifier: MIT */
/* avx2.h — small steps shared by the kernels of 256 bits (AVX2, FMA, F16C). Included by those files only.
 *
 * Purpose   loads, shifts of bytes, sums of rows.
 * Ownership none.
 * Units     lanes.
 * Errors    none.
 * Threads   pure.
 */
#ifndef BL_X86_AVX2_H
#define BL_X86_AVX2_H

#include "avx2_tier.h"

BL_ALWAYS_INLINE __m256i load256(const void *p)
{
    return _mm256_loadu_si256(p);
}
BL_ALWAYS_INLINE __m128i load128(const void *p)
{
    return _mm_loadu_si128(p);
}
BL_ALWAYS_INLINE __m256i load_twice(const void *p)
{
    return _mm256_broadcastsi128_si256(load128(p));
}
BL_ALWAYS_INLINE __m256i and_bytes(__m256i v, int mask)
{
    return _mm256_and_si256(v, _mm256_set1_epi8((char)mask));
}
/* v >> n in each byte, where the mask of the caller removes what crosses from the byte above */
BL_ALWAYS_INLINE __m256i shift_bytes(__m256i v, int n)
{
    return _mm256_srli_epi16(v, n);
}
BL_ALWAYS_INLINE float sum_lanes(__m256 v)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
BL_ALWAYS_INLINE void store_sums(int R, float *out, const __m256 *acc)
{
    for (int r = 0; r < R; r++)
        out[r] = sum_lanes(acc[r]);
}
/* The f16 at p, broadcast or alone. */
BL_ALWAYS_INLINE float load_f16(const void *p)
{
    return _cvtsh_ss(bl_load_u16(p));
}

#endif

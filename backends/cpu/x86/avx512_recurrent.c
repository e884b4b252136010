/* SPDX-License-Identifier: MIT */
#include "../delta_chunk.h"
#include "../relu_sum.h"
#include "../short_conv.h"
#include "avx512.h"
#include "isa.h"

/* Sixteen channels: their taps lie together, channel after channel, and are sorted by tap. */
static void conv_of_4(uint32_t n, float *y, const float *const *row, const float *w)
{
    const __m512i early =
        _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
    const __m512i late = _mm512_add_epi32(early, _mm512_set1_epi32(2));
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16, w += 64) {
        const __m512 a = _mm512_loadu_ps(w), b = _mm512_loadu_ps(w + 16);
        const __m512 c = _mm512_loadu_ps(w + 32), d = _mm512_loadu_ps(w + 48);
        const __m512 early_lo = _mm512_permutex2var_ps(a, early, b);
        const __m512 early_hi = _mm512_permutex2var_ps(c, early, d);
        const __m512 late_lo = _mm512_permutex2var_ps(a, late, b);
        const __m512 late_hi = _mm512_permutex2var_ps(c, late, d);
        __m512 sum = _mm512_mul_ps(_mm512_shuffle_f32x4(early_lo, early_hi, 0x44),
                                   _mm512_loadu_ps(row[0] + i));
        sum = _mm512_fmadd_ps(_mm512_shuffle_f32x4(early_lo, early_hi, 0xee),
                              _mm512_loadu_ps(row[1] + i), sum);
        sum = _mm512_fmadd_ps(_mm512_shuffle_f32x4(late_lo, late_hi, 0x44),
                              _mm512_loadu_ps(row[2] + i), sum);
        sum = _mm512_fmadd_ps(_mm512_shuffle_f32x4(late_lo, late_hi, 0xee),
                              _mm512_loadu_ps(row[3] + i), sum);
        _mm512_storeu_ps(y + i, sum);
    }
    for (; i < n; i++, w += 4)
        y[i] = w[0] * row[0][i] + w[1] * row[1][i] + w[2] * row[2][i] + w[3] * row[3][i];
}
static void conv(uint32_t n, uint32_t taps, float *y, const float *const *row, const float *w)
{
    if (taps == 4)
        conv_of_4(n, y, row, w);
    else
        short_conv(n, taps, y, row, w);
}

void bl_cpu_avx512_recurrent(struct bl_cpu_kernels *t)
{
    t->delta_chunk_name = "delta_chunk_f32_f32_8__avx512";
    t->delta_chunk = delta_chunk;
    t->conv_name = "short_conv_f32_f32_16__avx512";
    t->short_conv = conv;
    t->relu_sum_name = "relu_sum_f32_f32_16__avx512";
    t->relu_sum = relu_sum;
}

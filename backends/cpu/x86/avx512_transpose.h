/* SPDX-License-Identifier: MIT */
/* avx512_transpose.h — rows become columns. Included by the files of attention by tiles only.
 *
 * Purpose   what both sorts of panels are made with.
 * Ownership none.
 * Units     lanes.
 * Errors    none.
 * Threads   pure.
 */
#ifndef BL_X86_AVX512_TRANSPOSE_H
#define BL_X86_AVX512_TRANSPOSE_H

#include "avx512_rows.h"

/* Rows and columns of 16 x 16 change places. */
BL_ALWAYS_INLINE void transpose(__m512 v[LANES])
{
    __m512 a[LANES], b[LANES];
    for (int i = 0; i < LANES; i += 2) {
        a[i] = _mm512_unpacklo_ps(v[i], v[i + 1]);
        a[i + 1] = _mm512_unpackhi_ps(v[i], v[i + 1]);
    }
    for (int i = 0; i < LANES; i += 4)
        for (int h = 0; h < 2; h++) {
            b[i + 2 * h] = _mm512_shuffle_ps(a[i + h], a[i + 2 + h], 0x44);
            b[i + 2 * h + 1] = _mm512_shuffle_ps(a[i + h], a[i + 2 + h], 0xee);
        }
    /* b[4 g + c]: columns c, c + 4, c + 8, c + 12 of rows 4 g .. 4 g + 3 */
    for (int c = 0; c < 4; c++) {
        const __m512 lo01 = _mm512_shuffle_f32x4(b[c], b[4 + c], 0x88);
        const __m512 hi01 = _mm512_shuffle_f32x4(b[c], b[4 + c], 0xdd);
        const __m512 lo23 = _mm512_shuffle_f32x4(b[8 + c], b[12 + c], 0x88);
        const __m512 hi23 = _mm512_shuffle_f32x4(b[8 + c], b[12 + c], 0xdd);
        v[c] = _mm512_shuffle_f32x4(lo01, lo23, 0x88);
        v[c + 8] = _mm512_shuffle_f32x4(lo01, lo23, 0xdd);
        v[c + 4] = _mm512_shuffle_f32x4(hi01, hi23, 0x88);
        v[c + 12] = _mm512_shuffle_f32x4(hi01, hi23, 0xdd);
    }
}

#endif

/* SPDX-License-Identifier: MIT */
/* Dots of the ternary types, of one and two bits a weight, and of NVFP4, in 256 bits. Two rows are
 * taken together, of the smallest four: there, what belongs to the activations weighs more. */
#include "avx2.h"

enum { ROWS = 2, MANY = 4, BLOCK = 256 };

/* ---- ternary: blocks of 256, codes 0 to 2 stand for -1 to 1 ---- */

/* What a bias of one in every code adds, in some order of the lanes. */
BL_ALWAYS_INLINE __m256i minus_sums(const struct bl_act_block *x)
{
    return _mm256_madd_epi16(load256(x->sum), _mm256_set1_epi16(-1));
}
/* Planes of two bits, as Q2_K has them. */
BL_ALWAYS_INLINE __m256i tq2_0_row(const char *p, const struct bl_act_block *x, __m256i start)
{
    __m256i v = _mm256_setzero_si256();
    for (int half = 0; half < 2; half++) {
        const __m256i q = load256(p + 32 * half);
        for (int s = 0; s < 4; s++)
            v = add_small(v, and_bytes(shift_bytes(q, 2 * s), 3),
                          load256(x->q + 128 * half + 32 * s));
    }
    return _mm256_add_epi32(widen_small(v), start);
}
BL_ALWAYS_INLINE void tq2_0_group(int R, uint32_t k, float *out, const struct row_group *g,
                                  const void *xv)
{
    enum { SIZE = 66 };
    const struct bl_act_block *x = xv;
    const char *w = g->w;
    __m256 acc[MANY] = {_mm256_setzero_ps()};
    for (uint32_t b = 0; b < k / BLOCK; b++, x++, w += SIZE) {
        prefetch(g, (size_t)b * (size_t)(R * SIZE), R * SIZE);
        const __m256i start = minus_sums(x);
        for (int r = 0; r < R; r++) {
            const char *p = w + (size_t)r * g->stride;
            const __m256 d = _mm256_set1_ps(load_f16(p + 64) * x->d[0]);
            acc[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(tq2_0_row(p, x, start)), d, acc[r]);
        }
    }
    store_sums(R, out, acc);
}

/* Five digits of base 3 in a byte, a fraction of 256: the carry of three times it is a digit, what
 * remains has the next. Minus 128 the fraction is a signed byte; three times that is, modulo 256,
 * three times the fraction minus 128 again, and the carry takes two signed comparisons. */
BL_ALWAYS_INLINE __m256i next_digit(__m256i *v)
{
    const __m256i one = _mm256_set1_epi8(85 - 128), two = _mm256_set1_epi8(170 - 128);
    const __m256i less = _mm256_add_epi8(_mm256_cmpgt_epi8(*v, one), _mm256_cmpgt_epi8(*v, two));
    *v = _mm256_add_epi8(*v, _mm256_add_epi8(*v, *v));
    return _mm256_abs_epi8(less);
}
/* Of bytes 32 to 51, digit n: elements 160 + 16 n to 175 + 16 n, and 240 + 4 n to 243 + 4 n; there
 * is no fifth digit in the last four bytes. */
BL_ALWAYS_INLINE __m256i tq1_0_acts(const struct bl_act_block *x, int n)
{
    const int last = n < 4 ? (int)bl_load_u32(x->q + 240 + 4 * n) : 0;
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load128(x->q + 160 + 16 * n)),
                                   _mm_cvtsi32_si128(last), 1);
}
BL_ALWAYS_INLINE __m256i tq1_0_row(const char *p, const struct bl_act_block *x,
                                   const __m256i tail[5], __m256i start)
{
    const __m256i flip = _mm256_set1_epi8(-128);
    const __m128i last = _mm_cvtsi32_si128((int)bl_load_u32(p + 48));
    __m256i a = _mm256_xor_si256(load256(p), flip), v = _mm256_setzero_si256();
    __m256i b = _mm256_xor_si256(
        _mm256_inserti128_si256(_mm256_castsi128_si256(load128(p + 32)), last, 1), flip);
    for (int n = 0; n < 5; n++) {
        v = add_small(v, next_digit(&a), load256(x->q + 32 * n));
        v = add_small(v, next_digit(&b), tail[n]);
    }
    return _mm256_add_epi32(widen_small(v), start);
}
BL_ALWAYS_INLINE void tq1_0_group(int R, uint32_t k, float *out, const struct row_group *g,
                                  const void *xv)
{
    enum { SIZE = 54 };
    const struct bl_act_block *x = xv;
    const char *w = g->w;
    __m256 acc[ROWS] = {_mm256_setzero_ps()};
    for (uint32_t b = 0; b < k / BLOCK; b++, x++, w += SIZE) {
        prefetch(g, (size_t)b * (size_t)(R * SIZE), R * SIZE);
        const __m256i start = minus_sums(x);
        __m256i tail[5];
        for (int n = 0; n < 5; n++)
            tail[n] = tq1_0_acts(x, n);
        for (int r = 0; r < R; r++) {
            const char *p = w + (size_t)r * g->stride;
            const __m256 d = _mm256_set1_ps(load_f16(p + 52) * x->d[0]);
            acc[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(tq1_0_row(p, x, tail, start)), d, acc[r]);
        }
    }
    store_sums(R, out, acc);
}

/* ---- Q1_0: a sign a bit, blocks of 128 in 18 bytes ---- */

/* Bits as bytes of 2, where the activations of 32 have a scale of their own. */
BL_ALWAYS_INLINE __m256i q1_0_codes(const char *p)
{
    const __m256i which =
        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i select = _mm256_set1_epi64x((long long)0x8040201008040201u);
    const __m256i v = _mm256_shuffle_epi8(_mm256_set1_epi32((int)bl_load_u32(p)), which);
    return and_bytes(_mm256_cmpeq_epi8(_mm256_and_si256(v, select), select), 2);
}
BL_ALWAYS_INLINE void q1_0_group(int R, uint32_t k, float *out, const struct row_group *g,
                                 const void *xv)
{
    enum { SIZE = 18 };
    const __m256i one = _mm256_set1_epi8(1);
    const struct bl_act_block *x = xv;
    const char *w = g->w;
    __m256 acc[MANY] = {_mm256_setzero_ps()};
    for (uint32_t b = 0; b < k / 128; b++, w += SIZE) {
        prefetch(g, (size_t)b * (size_t)(R * SIZE), R * SIZE);
        const struct bl_act_block *xb = x + b / 2;
        const int at = 128 * (int)(b % 2);
        __m256 part[MANY] = {_mm256_setzero_ps()};
        for (int i = 0; i < 4; i++) {
            const __m256i q8 = load256(xb->q + at + 32 * i), bias = dot_small(one, q8);
            const __m256 dx = _mm256_set1_ps(xb->d[at / 32 + i]);
            for (int r = 0; r < R; r++) {
                const __m256i code = q1_0_codes(w + (size_t)r * g->stride + 2 + 4 * i);
                const __m256i v = widen_small(sub_small(dot_small(code, q8), bias));
                part[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(v), dx, part[r]);
            }
        }
        for (int r = 0; r < R; r++) {
            const __m256 d = _mm256_set1_ps(load_f16(w + (size_t)r * g->stride));
            acc[r] = _mm256_fmadd_ps(part[r], d, acc[r]);
        }
    }
    store_sums(R, out, acc);
}

/* ---- Q2_0: codes minus 1, blocks of 64 in 18 bytes; two blocks at a time ---- */

/* 128 activations by their place in a byte of codes: vector j has elements 4 i + j, a block in each
 * lane, so that a dword belongs to 16 elements. */
BL_ALWAYS_INLINE void deal_acts(const int8_t *x, __m256i out[4])
{
    const __m256i by_place = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const __m256i halves = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i v[4];
    for (int i = 0; i < 4; i++)
        v[i] = _mm256_shuffle_epi8(load256(x + 32 * i), by_place);
    const __m256i a = _mm256_unpacklo_epi32(v[0], v[1]), b = _mm256_unpackhi_epi32(v[0], v[1]);
    const __m256i c = _mm256_unpacklo_epi32(v[2], v[3]), d = _mm256_unpackhi_epi32(v[2], v[3]);
    out[0] = _mm256_permutevar8x32_epi32(_mm256_unpacklo_epi64(a, c), halves);
    out[1] = _mm256_permutevar8x32_epi32(_mm256_unpackhi_epi64(a, c), halves);
    out[2] = _mm256_permutevar8x32_epi32(_mm256_unpacklo_epi64(b, d), halves);
    out[3] = _mm256_permutevar8x32_epi32(_mm256_unpackhi_epi64(b, d), halves);
}
/* The bytes at p and p1 in a lane each. */
BL_ALWAYS_INLINE __m256i load_lanes(const char *p, const char *p1)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load128(p)), load128(p1), 1);
}
/* The scales at p and p1 in a lane each. */
BL_ALWAYS_INLINE __m256 load_two_f16(const char *p, const char *p1)
{
    return _mm256_cvtph_ps(_mm_unpacklo_epi64(_mm_set1_epi16((short)bl_load_u16(p)),
                                              _mm_set1_epi16((short)bl_load_u16(p1))));
}
/* Blocks 2 i and 2 i + 1 of a block of activations; of the second where there is one. */
BL_ALWAYS_INLINE void q2_0_step(int R, bool two, const char *w, size_t stride,
                                const struct bl_act_block *x, int i, __m256 *acc)
{
    enum { SIZE = 18 };
    const __m256i pairs = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    const __m256 d4 = _mm256_castps128_ps256(_mm_load_ps(x->d + 4 * i));
    const __m256 dx = _mm256_permutevar8x32_ps(d4, pairs);
    const __m256i bias = _mm256_cvtepi16_epi32(load128(x->sum + 8 * i));
    __m256i q8[4];
    deal_acts(x->q + 128 * i, q8);
    for (int r = 0; r < R; r++) {
        const char *p = w + (size_t)r * stride, *p1 = two ? p + SIZE : p;
        const __m256i q = load_lanes(p + 2, p1 + 2);
        __m256i v = dot_small(and_bytes(q, 3), q8[0]);
        for (int j = 1; j < 4; j++)
            v = add_small(v, and_bytes(shift_bytes(q, 2 * j), 3), q8[j]);
        const __m256i sum = _mm256_sub_epi32(widen_small(v), bias);
        acc[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(load_two_f16(p, p1), dx),
                                 acc[r]);
    }
}
BL_ALWAYS_INLINE void q2_0_group(int R, uint32_t k, float *out, const struct row_group *g,
                                 const void *xv)
{
    enum { STEP = 2 * 18 };
    const struct bl_act_block *x = xv;
    const char *w = g->w;
    __m256 acc[MANY] = {_mm256_setzero_ps()};
    uint32_t b = 0;
    for (; b < k / 128; b++, w += STEP) {
        prefetch(g, (size_t)b * (size_t)(R * STEP), R * STEP);
        q2_0_step(R, true, w, g->stride, x + b / 2, (int)(b % 2), acc);
    }
    if (k % 128) /* activations behind the last block are zero */
        q2_0_step(R, false, w, g->stride, x + b / 2, (int)(b % 2), acc);
    store_sums(R, out, acc);
}

/* ---- NVFP4: blocks of 64; four scales of 16 elements, then 8 bytes for each ---- */

/* Activations by the half of the byte their code is in: elements 0 to 7 of the four sixteens, and
 * elements 8 to 15. */
struct nvfp4_acts {
    __m256i lo, hi, bias; /* a small sum */
    __m256 d;
};
BL_ALWAYS_INLINE struct nvfp4_acts nvfp4_load_acts(const struct bl_act_block *x, int i)
{
    const __m256i a = load256(x->q + 64 * i), b = load256(x->q + 64 * i + 32);
    const __m256i twelve = _mm256_set1_epi8(12);
    const __m128 d = _mm_set1_ps(x->d[2 * i]), d1 = _mm_set1_ps(x->d[2 * i + 1]);
    struct nvfp4_acts v;
    v.lo = _mm256_permute4x64_epi64(_mm256_unpacklo_epi64(a, b), 0xd8);
    v.hi = _mm256_permute4x64_epi64(_mm256_unpackhi_epi64(a, b), 0xd8);
    v.bias = add_small(dot_small(twelve, v.lo), twelve, v.hi);
    v.d = _mm256_insertf128_ps(_mm256_castps128_ps256(d), d1, 1);
    return v;
}
/* Four bytes of four bits of exponent and three of mantissa, twice each; half the value, the other
 * half is in the codes. Exponent 0 is subnormal here as there; the largest value is none and counts
 * as 0. */
BL_ALWAYS_INLINE __m256 half_ue4m3(const char *p)
{
    const __m256i twice =
        _mm256_setr_epi8(0, -1, -1, -1, 0, -1, -1, -1, 1, -1, -1, -1, 1, -1, -1, -1, 2, -1, -1, -1,
                         2, -1, -1, -1, 3, -1, -1, -1, 3, -1, -1, -1);
    const __m256i e = _mm256_shuffle_epi8(_mm256_set1_epi32((int)bl_load_u32(p)), twice);
    const __m256i none = _mm256_cmpeq_epi32(e, _mm256_set1_epi32(0x7f));
    const __m256i bits = _mm256_slli_epi32(_mm256_and_si256(e, _mm256_set1_epi32(0x7f)), 20);
    const __m256 v = _mm256_castsi256_ps(_mm256_andnot_si256(none, bits));
    return _mm256_mul_ps(v, _mm256_set1_ps(0x1p119f));
}
BL_ALWAYS_INLINE void nvfp4_group(int R, uint32_t k, float *out, const struct row_group *g,
                                  const void *xv)
{
    enum { SIZE = 36 };
    const __m256i table = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    const struct bl_act_block *x = xv;
    const char *w = g->w;
    __m256 acc[MANY] = {_mm256_setzero_ps()};
    for (uint32_t b = 0; b < k / 64; b++, w += SIZE) {
        prefetch(g, (size_t)b * (size_t)(R * SIZE), R * SIZE);
        const struct nvfp4_acts a = nvfp4_load_acts(x + b / 4, (int)(b % 4));
        for (int r = 0; r < R; r++) {
            const char *p = w + (size_t)r * g->stride;
            const __m256i q = load256(p + 4);
            const __m256i lo = _mm256_shuffle_epi8(table, and_bytes(q, 15));
            const __m256i hi = _mm256_shuffle_epi8(table, and_bytes(shift_bytes(q, 4), 15));
            const __m256i sum = sub_small(add_small(dot_small(lo, a.lo), hi, a.hi), a.bias);
            const __m256 d = _mm256_mul_ps(half_ue4m3(p), a.d);
            acc[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(widen_small(sum)), d, acc[r]);
        }
    }
    store_sums(R, out, acc);
}

DOT_ENTRY(TIER(dot_tq1_0_act_2), tq1_0_group, ROWS)
DOT_ENTRY(TIER(dot_tq2_0_act_4), tq2_0_group, MANY)
DOT_ENTRY(TIER(dot_q1_0_act_4), q1_0_group, MANY)
DOT_ENTRY(TIER(dot_q2_0_act_4), q2_0_group, MANY)
DOT_ENTRY(TIER(dot_nvfp4_act_4), nvfp4_group, MANY)

void TIER_FN(lowbit)(struct bl_cpu_kernels *t)
{
    TIER_SET(t, BL_TQ1_0, dot_tq1_0_act_2, ROWS);
    TIER_SET(t, BL_TQ2_0, dot_tq2_0_act_4, MANY);
    TIER_SET(t, BL_Q1_0, dot_q1_0_act_4, MANY);
    TIER_SET(t, BL_Q2_0, dot_q2_0_act_4, MANY);
    TIER_SET(t, BL_NVFP4, dot_nvfp4_act_4, MANY);
}

/* SPDX-License-Identifier: MIT */
/* AVX-512 dots of the types of one to two bits that are not K-quants: IQ1_S, IQ1_M, TQ1_0, Q1_0,
 * Q2_0. Four rows are taken together. */
#include "avx512_codebook.h"

enum { ROWS = 4, BLOCK = 256 };

/* ---- IQ1_S, IQ1_M: values -1, 0, 1 and a shift of all eight by an eighth up or down ---- */

struct iq1_acts {
    __m512i q[4]; /* dealt */
    __m512i sum;  /* of the eight of a group, a word each */
};
BL_ALWAYS_INLINE struct iq1_acts iq1_load_acts(const struct bl_act_block *x)
{
    const __m512i one = _mm512_set1_epi8(1);
    struct iq1_acts a;
    deal_acts(x, a.q);
    a.sum = _mm512_add_epi16(
        _mm512_add_epi16(_mm512_maddubs_epi16(one, a.q[0]), _mm512_maddubs_epi16(one, a.q[1])),
        _mm512_add_epi16(_mm512_maddubs_epi16(one, a.q[2]), _mm512_maddubs_epi16(one, a.q[3])));
    return a;
}
/* Eighths: 8 (code - 1) and 1 more, or less in the words of `minus`. scale3: three bits from bit 1
 * of each lane. */
BL_ALWAYS_INLINE __m512 iq1_row(__m512i codes, __mmask32 minus, __m512i scale3,
                                const struct iq1_acts *x)
{
    const __m512i shift =
        _mm512_mask_blend_epi16(minus, _mm512_set1_epi16(-7), _mm512_set1_epi16(-9));
    __m512i v = _mm512_madd_epi16(shift, x->sum);
    for (int j = 0; j < 4; j++)
        v = dot4(v, gf_bits(codes, GF_BIT(3, 2 * j) | GF_BIT(4, 2 * j + 1)), x->q[j]);
    const __m512i scale =
        _mm512_ternarylogic_epi64(scale3, _mm512_set1_epi32(0xe), _mm512_set1_epi32(1), 0xea);
    return _mm512_mul_ps(to_float(v), to_float(scale));
}
/* Two rows' 16 bytes that tell of four groups every two: one qword a pair of these, the first row's
 * in bits 0-15. */
BL_ALWAYS_INLINE __m512i iq1_words(const char *p, const char *other)
{
    const __m128i a = load128(p), b = load128(other);
    const __m256i words = _mm256_setr_m128i(_mm_unpacklo_epi16(a, b), _mm_unpackhi_epi16(a, b));
    return _mm512_cvtepu32_epi64(words);
}
BL_ALWAYS_INLINE struct index iq1_index(const char *p, const char *other, __m512i high)
{
    const __m512i idx = load_woven(p, other);
    return (struct index){idx,
                          {_mm512_movepi8_mask(idx),
                           _mm512_test_epi8_mask(high, _mm512_set1_epi8(1)),
                           _mm512_test_epi8_mask(high, _mm512_set1_epi8(2)),
                           _mm512_test_epi8_mask(high, _mm512_set1_epi8(4))}};
}
/* 16 scales: three of three bits and one in each of four words */
BL_ALWAYS_INLINE __m512i iq1_m_scales(const char *p)
{
    const __m512i bit =
        _mm512_setr_epi32(63, 2, 5, 8, 15, 18, 21, 24, 31, 34, 37, 40, 47, 50, 53, 56);
    return _mm512_multishift_epi64_epi8(bit, _mm512_set1_epi64((long long)bl_load_u64(p)));
}
/* One block of R rows. `top`: nibbles woven like the groups, whose fourth bit is the sign of the
 * shift; those of IQ1_S have the scale below it. */
BL_ALWAYS_INLINE void iq1_block(bool with_m, int R, const char *w, size_t stride,
                                const struct iq1_acts *x, const float *d, __m512 *acc)
{
    /* of IQ1_S: four times three bits of index in a word, then the nibble; of IQ1_M: four nibbles,
     * of which the low three bits are index */
    const __m512i index_bit = _mm512_set1_epi64(with_m ? 0x1c0c180814041000 : 0x1909160613031000);
    const __m512i top_bit = _mm512_set1_epi64(0x1c0c1c0c1c0c1c0c);
    const int at_qs = with_m ? 0 : 2, at_high = with_m ? 32 : 34, n = (R + 1) / 2;
    struct index pair[2];
    __m512i top[2];
    for (int i = 0; i < n; i++) {
        const char *p = w + (size_t)(2 * i) * stride, *p1 = R > 1 ? p + stride : p;
        const __m512i words = iq1_words(p + at_high, p1 + at_high);
        const __m512i high = _mm512_multishift_epi64_epi8(index_bit, words);
        top[i] = with_m ? high : _mm512_multishift_epi64_epi8(top_bit, words);
        pair[i] = iq1_index(p + at_qs, p1 + at_qs, high);
    }
    const struct entries c0 = lookup2048(iq1_codes[0], n, pair),
                         c1 = lookup2048(iq1_codes[1], n, pair);
    for (int r = 0; r < R; r++) {
        const int i = r / 2, odd = r % 2;
        const __mmask32 minus =
            _mm512_test_epi16_mask(top[i], _mm512_set1_epi16(odd ? 0x0800 : 0x0008));
        const __m512i scale = with_m ? iq1_m_scales(w + (size_t)r * stride + 48)
                              : odd  ? _mm512_srli_epi32(top[i], 7)
                                     : _mm512_slli_epi32(top[i], 1);
        const __m512 v = iq1_row(unweave(c0.at[i], c1.at[i], odd), minus, scale, x);
        acc[r] = _mm512_fmadd_ps(v, _mm512_set1_ps(d[r]), acc[r]);
    }
}
/* IQ1_M keeps a nibble of d on top of each of its four words of scales. */
BL_ALWAYS_INLINE void iq1_m_factors(int R, float *d, const char *w, size_t stride, float factor)
{
    uint16_t h[4] = {0};
    for (int r = 0; r < R; r++)
        h[r] = (uint16_t)_pext_u64(bl_load_u64(w + (size_t)r * stride + 48), 0xf000f000f000f000);
    const __m128i v =
        _mm_setr_epi16((short)h[0], (short)h[1], (short)h[2], (short)h[3], 0, 0, 0, 0);
    _mm_store_ps(d, _mm_mul_ps(_mm_cvtph_ps(v), _mm_set1_ps(factor)));
}
BL_ALWAYS_INLINE void iq1_group(bool with_m, int R, uint32_t k, float *out,
                                const struct row_group *g, const struct bl_act_block *x)
{
    const int size = with_m ? 56 : 50;
    const char *w = g->w;
    __m512 acc[ROWS] = {_mm512_setzero_ps()};
    for (uint32_t b = 0; b < k / BLOCK; b++, x++, w += size) {
        prefetch(g, (size_t)b * (size_t)(R * size), R * size);
        const struct iq1_acts a = iq1_load_acts(x);
        float d[4] BL_ALIGNED(16);
        if (with_m)
            iq1_m_factors(R, d, w, g->stride, 0.125f * x->d[0]);
        else
            row_factors(R, d, w, g->stride, 0.125f * x->d[0]);
        THROUGH_MEMORY(d);
        iq1_block(with_m, R, w, g->stride, &a, d, acc);
    }
    store_sums(R, out, acc);
}
BL_ALWAYS_INLINE void iq1_s_group(int R, uint32_t k, float *out, const struct row_group *g,
                                  const void *x)
{
    iq1_group(false, R, k, out, g, x);
}
BL_ALWAYS_INLINE void iq1_m_group(int R, uint32_t k, float *out, const struct row_group *g,
                                  const void *x)
{
    iq1_group(true, R, k, out, g, x);
}

/* ---- TQ1_0: five digits of base 3 in a byte ---- */

/* Byte m of digit n: element 32 n + m, 160 + 16 n + m - 32, 240 + 4 n + m - 48; there is no fifth
 * digit in the last four bytes. */
BL_ALWAYS_INLINE __m512i tq1_load_acts(const struct bl_act_block *x, int n)
{
    const __m512i v = _mm512_mask_broadcast_i32x4(_mm512_castsi256_si512(load256(x->q + 32 * n)),
                                                  0x0f00, load128(x->q + 160 + 16 * n));
    const int last = n < 4 ? (int)bl_load_u32(x->q + 240 + 4 * n) : 0;
    return _mm512_inserti32x4(v, _mm_cvtsi32_si128(last), 3);
}
/* The digit is 3 v / 256 rounded down, v times 3 modulo 256 has the next one. 3 v / 4 is the mean
 * of v and v / 2; with all bits inverted the mean that rounds up rounds down, and inverting costs
 * nothing in a bit matrix. */
BL_ALWAYS_INLINE __m512i tq1_row(const char *p, const __m512i *x, __m512i start)
{
    const __m512i ones = _mm512_set1_epi8(-1), two = _mm512_set1_epi8(2);
    __m512i u = _mm512_xor_si512(_mm512_maskz_loadu_epi8((1ull << 52) - 1, p), ones), v = start;
    for (int n = 0; n < 5; n++) {
        const uint64_t half = GF_BIT(0, 1) | GF_BIT(1, 2) | GF_BIT(2, 3) | GF_BIT(3, 4) |
                              GF_BIT(4, 5) | GF_BIT(5, 6) | GF_BIT(6, 7);
        const __m512i h =
            _mm512_gf2p8affine_epi64_epi8(u, _mm512_set1_epi64((long long)half), 0x80);
        const __m512i mean = _mm512_avg_epu8(u, h);
        v = dot4(v,
                 _mm512_gf2p8affine_epi64_epi8(
                     mean, _mm512_set1_epi64((long long)(GF_BIT(0, 6) | GF_BIT(1, 7))), 3),
                 x[n]);
        u = _mm512_add_epi8(_mm512_add_epi8(u, u), _mm512_add_epi8(u, two));
    }
    return v;
}
BL_ALWAYS_INLINE void tq1_0_group(int R, uint32_t k, float *out, const struct row_group *g,
                                  const void *xv)
{
    enum { SIZE = 54 };
    const struct bl_act_block *x = xv;
    const char *w = g->w;
    __m512 acc[ROWS] = {_mm512_setzero_ps()};
    for (uint32_t b = 0; b < k / BLOCK; b++, x++, w += SIZE) {
        prefetch(g, (size_t)b * (size_t)(R * SIZE), R * SIZE);
        __m512i q8[5], start = _mm512_setzero_si512();
        for (int n = 0; n < 5; n++) {
            q8[n] = tq1_load_acts(x, n);
            start = _mm512_add_epi32(start, bias_start(q8[n], 1));
        }
        float d[4] BL_ALIGNED(16);
        row_factors(R, d, w + 52, g->stride, x->d[0]);
        THROUGH_MEMORY(d);
        for (int r = 0; r < R; r++)
            acc[r] = _mm512_fmadd_ps(to_float(tq1_row(w + (size_t)r * g->stride, q8, start)),
                                     _mm512_set1_ps(d[r]), acc[r]);
    }
    store_sums(R, out, acc);
}

/* ---- Q1_0: a sign a bit, blocks of 128 in 18 bytes ---- */

/* One block's sum; the scales of the activations are for 32 each. x: 128 activations, dx: their
 * scales, 32 lanes. */
BL_ALWAYS_INLINE __m512 q1_0_block(const char *p, const __m512i *x, const __m512i *start,
                                   const __m512 *dx)
{
    const __m512i two = _mm512_set1_epi8(2);
    const __m512i a = dot4(start[0], _mm512_maskz_mov_epi8(bl_load_u64(p + 2), two), x[0]);
    const __m512i b = dot4(start[1], _mm512_maskz_mov_epi8(bl_load_u64(p + 10), two), x[1]);
    return _mm512_fmadd_ps(to_float(b), dx[1], _mm512_mul_ps(to_float(a), dx[0]));
}
BL_ALWAYS_INLINE void q1_0_group(int R, uint32_t k, float *out, const struct row_group *g,
                                 const void *xv)
{
    enum { SIZE = 18 };
    const __m512i idx_lo = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const __m512i idx_hi = _mm512_add_epi32(idx_lo, _mm512_set1_epi32(2));
    const struct bl_act_block *x = xv;
    const char *w = g->w;
    __m512 acc[ROWS] = {_mm512_setzero_ps()};
    for (uint32_t b = 0; b < k / 128; b++, w += SIZE) {
        prefetch(g, (size_t)b * (size_t)(R * SIZE), R * SIZE);
        const struct bl_act_block *xb = x + b / 2;
        const __m512i q8[2] = {load512(xb->q + 128 * (b % 2)), load512(xb->q + 128 * (b % 2) + 64)};
        const __m512i start[2] = {bias_start(q8[0], 1), bias_start(q8[1], 1)};
        const __m512 d4 = _mm512_broadcast_f32x4(_mm_loadu_ps(xb->d + 4 * (b % 2)));
        const __m512 dx[2] = {_mm512_permutexvar_ps(idx_lo, d4), _mm512_permutexvar_ps(idx_hi, d4)};
        float d[4] BL_ALIGNED(16);
        row_factors(R, d, w, g->stride, 1);
        THROUGH_MEMORY(d);
        for (int r = 0; r < R; r++)
            acc[r] = _mm512_fmadd_ps(q1_0_block(w + (size_t)r * g->stride, q8, start, dx),
                                     _mm512_set1_ps(d[r]), acc[r]);
    }
    store_sums(R, out, acc);
}

/* ---- Q2_0: codes minus 1, blocks of 64 in 18 bytes; four blocks at a time ---- */

/* The 16 bytes of codes of n blocks, a block in each lane, and their scales in the lanes' four
 * floats. */
struct q2_0_codes {
    __m512i q;
    __m512 d;
};
BL_ALWAYS_INLINE struct q2_0_codes q2_0_load(const char *p, int n)
{
    enum { SIZE = 18 };
    const __m512i idx = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    struct q2_0_codes c = {_mm512_castsi128_si512(load128(p + 2)), _mm512_setzero_ps()};
    __m128i h = _mm_cvtsi32_si128(bl_load_u16(p));
    if (n > 1) {
        c.q = _mm512_mask_broadcast_i32x4(c.q, 0x00f0, load128(p + SIZE + 2));
        h = _mm_insert_epi16(h, bl_load_u16(p + SIZE), 1);
    }
    if (n > 2) {
        c.q = _mm512_mask_broadcast_i32x4(c.q, 0x0f00, load128(p + 2 * SIZE + 2));
        h = _mm_insert_epi16(h, bl_load_u16(p + 2 * SIZE), 2);
    }
    if (n > 3) {
        c.q = _mm512_mask_broadcast_i32x4(c.q, 0xf000, load128(p + 3 * SIZE + 2));
        h = _mm_insert_epi16(h, bl_load_u16(p + 3 * SIZE), 3);
    }
    c.d = _mm512_permutexvar_ps(idx, _mm512_castps128_ps512(_mm_cvtph_ps(h)));
    return c;
}
/* n blocks of R rows; activations behind the last block are zero. Lane i of the sums is elements 16
 * i to 16 i + 15. */
BL_ALWAYS_INLINE void q2_0_step(int R, int n, const char *w, size_t stride,
                                const struct bl_act_block *x, __m512 *acc)
{
    const __m512i pairs = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const __m512 dx = _mm512_permutexvar_ps(pairs, _mm512_castps256_ps512(_mm256_load_ps(x->d)));
    __m512i q8[4], start = _mm512_setzero_si512();
    deal_acts(x, q8);
    for (int j = 0; j < 4; j++)
        start = _mm512_add_epi32(start, bias_start(q8[j], 1));
    for (int r = 0; r < R; r++) {
        const struct q2_0_codes c = q2_0_load(w + (size_t)r * stride, n);
        __m512i v = dot4(start, _mm512_and_si512(c.q, _mm512_set1_epi8(3)), q8[0]);
        for (int j = 1; j < 4; j++)
            v = dot4(v, gf_bits(c.q, GF_BIT(0, 2 * j) | GF_BIT(1, 2 * j + 1)), q8[j]);
        acc[r] = _mm512_fmadd_ps(to_float(v), _mm512_mul_ps(c.d, dx), acc[r]);
    }
}
BL_ALWAYS_INLINE void q2_0_group(int R, uint32_t k, float *out, const struct row_group *g,
                                 const void *xv)
{
    enum { SIZE = 18, STEP = 4 * SIZE };
    const struct bl_act_block *x = xv;
    const char *w = g->w;
    __m512 acc[ROWS] = {_mm512_setzero_ps()};
    uint32_t b = 0;
    for (; b < k / BLOCK; b++, w += STEP) {
        prefetch(g, (size_t)b * (size_t)(R * STEP), R * STEP);
        q2_0_step(R, 4, w, g->stride, x + b, acc);
    }
    if (k % BLOCK)
        q2_0_step(R, (int)(k % BLOCK / 64), w, g->stride, x + b, acc);
    store_sums(R, out, acc);
}

DOT_ENTRY(dot_iq1_s_act_4__avx512, iq1_s_group, ROWS)
DOT_ENTRY(dot_iq1_m_act_4__avx512, iq1_m_group, ROWS)
DOT_ENTRY(dot_tq1_0_act_4__avx512, tq1_0_group, ROWS)
DOT_ENTRY(dot_q1_0_act_4__avx512, q1_0_group, ROWS)
DOT_ENTRY(dot_q2_0_act_4__avx512, q2_0_group, ROWS)

void bl_cpu_avx512_lowbit(struct bl_cpu_kernels *t)
{
    DOT_SET(t, BL_IQ1_S, dot_iq1_s_act_4__avx512, ROWS);
    DOT_SET(t, BL_IQ1_M, dot_iq1_m_act_4__avx512, ROWS);
    DOT_SET(t, BL_TQ1_0, dot_tq1_0_act_4__avx512, ROWS);
    DOT_SET(t, BL_Q1_0, dot_q1_0_act_4__avx512, ROWS);
    DOT_SET(t, BL_Q2_0, dot_q2_0_act_4__avx512, ROWS);
}

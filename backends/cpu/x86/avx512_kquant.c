/* SPDX-License-Identifier: MIT */
/* AVX-512 dots of Q2_K to Q6_K: blocks of 256 with integer scales. Four rows are taken together, of
 * Q6_K two: its header gives rows nothing to share, and two streams are read from memory at 96 % of
 * a plain read, four at 83 % (Zen 5).
 *
 * Sums of four products fit 16 bits, so two of them are packed and one vpdpwssd multiplies both by
 * their scales and accumulates: integers all through a block, one conversion and FMA per row and
 * block. The f32 factor of each row goes over the stack, from where the FMA broadcasts it without a
 * shuffle. */
#include "avx512.h"

enum { ROWS = 4, Q6_ROWS = 2, BLOCK = 256 };

/* Byte i, zero-extended, as the four words of a qword: an index for shuffle_epi8. */
#define SPREAD(i) ((long long)(0xff00ff00ff00ff00u | 0x0001000100010001u * (i)))
/* Eight sums of four products as words (4 of a, 4 of b in each lane) times their scales. */
BL_ALWAYS_INLINE __m512i scale_sums(__m512i acc, __m512i a, __m512i b, __m512i scales)
{
    return _mm512_dpwssd_epi32(acc, _mm512_packs_epi32(a, b), scales);
}

/* ---- Q4_K, Q5_K ---- */

/* The headers of four rows, one a lane: d, dmin, eight 6-bit scales and minima in 12 bytes. */
struct k45_header {
    __m512i scale_min; /* per lane 8 scale bytes, 8 minimum bytes */
    __m512 d;          /* per lane d four times */
    __m512 dmin;
};
BL_ALWAYS_INLINE struct k45_header k45_unpack(__m512i h)
{
    const __m512i gather = _mm512_broadcast_i32x4(
        _mm_setr_epi8(4, 5, 6, 7, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15));
    const __m512i low = _mm512_broadcast_i32x4(
        _mm_setr_epi8(0, 8, 16, 24, 32, 40, 48, 56, 0, 8, 16, 24, 36, 44, 52, 60));
    const __m512i high =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 0, 0, 0, 2, 10, 18, 26, 0, 0, 0, 0, 2, 10, 18, 26));
    const __m512i low_mask = _mm512_set1_epi64(0x0f0f0f0f3f3f3f3f);
    const __m512i high_mask = _mm512_set1_epi64(0x3030303000000000);
    const __m512i idx_d =
        _mm512_setr_epi32(0x00000000, 0, 0x00080008, 0x00080008, 0x00100010, 0x00100010, 0x00180018,
                          0x00180018, 0x00010001, 0x00010001, 0x00090009, 0x00090009, 0x00110011,
                          0x00110011, 0x00190019, 0x00190019);
    const __m512i a = _mm512_shuffle_epi8(h, gather);
    const __m512i hi = _mm512_and_si512(_mm512_multishift_epi64_epi8(high, a), high_mask);
    const __m512i dd = _mm512_permutexvar_epi16(idx_d, h);
    struct k45_header r;
    r.scale_min =
        _mm512_ternarylogic_epi64(_mm512_multishift_epi64_epi8(low, a), low_mask, hi, 0xea);
    r.d = _mm512_cvtph_ps(_mm512_castsi512_si256(dd));
    r.dmin = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(dd, 1));
    return r;
}
/* The fifth bits of sub-blocks j and j + 2, moved to bit 4 of the lower and the upper half. */
BL_ALWAYS_INLINE __m512i k5_high(__m512i qh, int j)
{
    return _mm512_gf2p8affine_epi64_epi8(qh, gf_halves(GF_BIT(4, j), GF_BIT(4, j + 2)), 0);
}
/* One row: 64 bytes of nibbles are sub-blocks 0, 2 (low) and 1, 3 (high), the next 64 are 4, 6 and
 * 5, 7. x[] are the activations of those pairs, s the row's eight scale bytes in every lane. */
BL_ALWAYS_INLINE __m512i k45_row(bool q5, const char *p, __m512i s, const __m512i *x)
{
    const __m512i idx_a = _mm512_setr_epi64(SPREAD(0), SPREAD(1), SPREAD(0), SPREAD(1), SPREAD(2),
                                            SPREAD(3), SPREAD(2), SPREAD(3));
    const __m512i idx_b = _mm512_setr_epi64(SPREAD(4), SPREAD(5), SPREAD(4), SPREAD(5), SPREAD(6),
                                            SPREAD(7), SPREAD(6), SPREAD(7));
    const __m512i zero = _mm512_setzero_si512();
    const char *qs = p + (q5 ? 48 : 16);
    const __m512i q0 = load512(qs), q1 = load512(qs + 64);
    __m512i c0 = nibble_lo(q0), c1 = nibble_hi(q0), c2 = nibble_lo(q1), c3 = nibble_hi(q1);
    if (q5) {
        const __m512i qh = _mm512_broadcast_i64x4(load256(p + 16));
        c0 = _mm512_or_si512(c0, k5_high(qh, 0));
        c1 = _mm512_or_si512(c1, k5_high(qh, 1));
        c2 = _mm512_or_si512(c2, k5_high(qh, 4));
        c3 = _mm512_or_si512(c3, k5_high(qh, 5));
    }
    const __m512i v =
        scale_sums(zero, dot4(zero, c0, x[0]), dot4(zero, c1, x[1]), _mm512_shuffle_epi8(s, idx_a));
    return scale_sums(v, dot4(zero, c2, x[2]), dot4(zero, c3, x[3]), _mm512_shuffle_epi8(s, idx_b));
}
BL_ALWAYS_INLINE void k45_group(bool q5, int R, uint32_t k, float *out, const struct row_group *g,
                                const struct bl_act_block *x)
{
    const int size = q5 ? 176 : 144;
    const char *w = g->w;
    __m512 acc[ROWS] = {_mm512_setzero_ps()}, mins = _mm512_setzero_ps();
    for (uint32_t b = 0; b < k / BLOCK; b++, x++, w += size) {
        prefetch(g, (size_t)b * (size_t)(R * size), R * size);
        const __m512i q8[4] = {load_halves(x->q, x->q + 64), load_halves(x->q + 32, x->q + 96),
                               load_halves(x->q + 128, x->q + 192),
                               load_halves(x->q + 160, x->q + 224)};
        const __m512i sums =
            _mm512_broadcast_i32x4(_mm_hadd_epi16(load128(x->sum), load128(x->sum + 8)));
        const __m512 dx = _mm512_set1_ps(x->d[0]);
        const struct k45_header h = k45_unpack(load_lanes(R, w, g->stride));
        /* four rows' minima against the block's sums in one instruction */
        const __m512i m = _mm512_unpackhi_epi8(h.scale_min, _mm512_setzero_si512());
        mins =
            _mm512_fnmadd_ps(to_float(_mm512_madd_epi16(m, sums)), _mm512_mul_ps(h.dmin, dx), mins);
        uint8_t scales[64] BL_ALIGNED(64);
        float d[16] BL_ALIGNED(64);
        _mm512_store_si512(scales, h.scale_min);
        _mm512_store_ps(d, _mm512_mul_ps(h.d, dx));
        THROUGH_MEMORY(scales);
        THROUGH_MEMORY(d);
        for (int r = 0; r < R; r++) {
            const __m512i s = _mm512_broadcast_i32x4(load128(scales + 16 * r));
            const __m512i v = k45_row(q5, w + (size_t)r * g->stride, s, q8);
            acc[r] = _mm512_fmadd_ps(to_float(v), _mm512_set1_ps(d[4 * r]), acc[r]);
        }
    }
    add_lanes(R, acc, mins);
    store_sums(R, out, acc);
}
BL_ALWAYS_INLINE void q4_k_group(int R, uint32_t k, float *out, const struct row_group *g,
                                 const void *x)
{
    k45_group(false, R, k, out, g, x);
}
BL_ALWAYS_INLINE void q5_k_group(int R, uint32_t k, float *out, const struct row_group *g,
                                 const void *x)
{
    k45_group(true, R, k, out, g, x);
}

/* ---- Q6_K ---- */

/* Scales as 16 words. Packed lane l of half n: sums of scale 8n + l (four words), of scale 8n + 4 +
 * l (four words). */
BL_ALWAYS_INLINE __m512i q6_k_row(const char *p, const __m512i *x, const __m512i *start)
{
    const __m512i idx_a =
        _mm512_cvtepu8_epi16(_mm256_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 1, 1, 1, 1, 5, 5, 5, 5, 2, 2,
                                              2, 2, 6, 6, 6, 6, 3, 3, 3, 3, 7, 7, 7, 7));
    const __m512i idx_b = _mm512_add_epi16(idx_a, _mm512_set1_epi16(8));
    /* the two high bits of planes 0, 1 and 2, 3, moved to bits 4 and 5 */
    const __m512i high01 = gf_halves(GF_BIT(4, 0) | GF_BIT(5, 1), GF_BIT(4, 2) | GF_BIT(5, 3));
    const __m512i high23 = gf_halves(GF_BIT(4, 4) | GF_BIT(5, 5), GF_BIT(4, 6) | GF_BIT(5, 7));
    const __m512i scales = _mm512_castsi256_si512(_mm256_cvtepi8_epi16(load128(p + 192)));
    __m512i v = _mm512_setzero_si512();
    for (int n = 0; n < 2; n++) {
        const __m512i ql = load512(p + 64 * n);
        const __m512i qh = _mm512_broadcast_i64x4(load256(p + 128 + 32 * n));
        const __m512i lo =
            _mm512_or_si512(nibble_lo(ql), _mm512_gf2p8affine_epi64_epi8(qh, high01, 0));
        const __m512i hi =
            _mm512_or_si512(nibble_hi(ql), _mm512_gf2p8affine_epi64_epi8(qh, high23, 0));
        v = scale_sums(v, dot4(start[2 * n], lo, x[2 * n]),
                       dot4(start[2 * n + 1], hi, x[2 * n + 1]),
                       _mm512_permutexvar_epi16(n ? idx_b : idx_a, scales));
    }
    return v;
}
BL_ALWAYS_INLINE void q6_k_group(int R, uint32_t k, float *out, const struct row_group *g,
                                 const void *xv)
{
    enum { SIZE = 210 };
    const struct bl_act_block *x = xv;
    const char *w = g->w;
    __m512 acc[ROWS] = {_mm512_setzero_ps()};
    for (uint32_t b = 0; b < k / BLOCK; b++, x++, w += SIZE) {
        prefetch(g, (size_t)b * (size_t)(R * SIZE), R * SIZE);
        __m512i q8[4], start[4];
        for (int i = 0; i < 4; i++) {
            q8[i] = load512(x->q + 64 * i);
            start[i] = bias_start(q8[i], 32);
        }
        float d[4] BL_ALIGNED(16);
        _mm_store_ps(d, _mm_mul_ps(load_f16x4(R, w + 208, g->stride), _mm_set1_ps(x->d[0])));
        THROUGH_MEMORY(d);
        for (int r = 0; r < R; r++) {
            const __m512i v = q6_k_row(w + (size_t)r * g->stride, q8, start);
            acc[r] = _mm512_fmadd_ps(to_float(v), _mm512_set1_ps(d[r]), acc[r]);
        }
    }
    store_sums(R, out, acc);
}

/* ---- Q2_K, Q3_K: four planes of two bits; plane s of 64 bytes = sub-block s of both halves of 128
 * ---- */

BL_ALWAYS_INLINE void k23_load_acts(const struct bl_act_block *x, __m512i *q8)
{
    for (int s = 0; s < 4; s++)
        q8[s] = load_halves(x->q + 32 * s, x->q + 128 + 32 * s);
}
BL_ALWAYS_INLINE __m512i k23_plane(__m512i qs, int s)
{
    if (s == 0)
        return _mm512_and_si512(qs, _mm512_set1_epi8(3));
    return gf_bits(qs, GF_BIT(0, 2 * s) | GF_BIT(1, 2 * s + 1));
}
/* 16 scales of a row in every lane -> the words that belong to the packed sums of planes `first`
 * and `first` + 1: lane l holds sums of 16-element groups 8 (l / 2) + 2 s + l % 2. The bytes go to
 * the low or the high half of the words. */
#define K23_GROUPS(base, spread)                                                                   \
    _mm512_setr_epi64(spread(base), spread((base) + 2), spread((base) + 1), spread((base) + 3),    \
                      spread((base) + 8), spread((base) + 10), spread((base) + 9),                 \
                      spread((base) + 11))
#define SPREAD_HIGH(i) ((long long)(0x00ff00ff00ff00ffu | 0x0100010001000100u * (i)))

BL_ALWAYS_INLINE __m512i q2_k_row(const char *p, __m512i scales, const __m512i *x)
{
    const __m512i zero = _mm512_setzero_si512(), qs = load512(p + 16);
    const __m512i v =
        scale_sums(zero, dot4(zero, k23_plane(qs, 0), x[0]), dot4(zero, k23_plane(qs, 1), x[1]),
                   _mm512_shuffle_epi8(scales, K23_GROUPS(0, SPREAD)));
    return scale_sums(v, dot4(zero, k23_plane(qs, 2), x[2]), dot4(zero, k23_plane(qs, 3), x[3]),
                      _mm512_shuffle_epi8(scales, K23_GROUPS(4, SPREAD)));
}
/* d and dmin of the rows, eight floats d0 m0 d1 m1 .. */
BL_ALWAYS_INLINE __m256 q2_k_factors(int R, const char *p, size_t stride)
{
    __m128i v = _mm_cvtsi32_si128((int)bl_load_u32(p));
    if (R > 1) {
        v = _mm_insert_epi32(v, (int)bl_load_u32(p + stride), 1);
        v = _mm_insert_epi32(v, (int)bl_load_u32(p + 2 * stride), 2);
        v = _mm_insert_epi32(v, (int)bl_load_u32(p + 3 * stride), 3);
    }
    return _mm256_cvtph_ps(v);
}
BL_ALWAYS_INLINE void q2_k_group(int R, uint32_t k, float *out, const struct row_group *g,
                                 const void *xv)
{
    enum { SIZE = 84 };
    const __m512i idx_min = _mm512_setr_epi32(1, 1, 1, 1, 3, 3, 3, 3, 5, 5, 5, 5, 7, 7, 7, 7);
    const __m512i zero = _mm512_setzero_si512();
    const struct bl_act_block *x = xv;
    const char *w = g->w;
    __m512 acc[ROWS] = {_mm512_setzero_ps()}, mins = _mm512_setzero_ps();
    for (uint32_t b = 0; b < k / BLOCK; b++, x++, w += SIZE) {
        prefetch(g, (size_t)b * (size_t)(R * SIZE), R * SIZE);
        __m512i q8[4];
        k23_load_acts(x, q8);
        /* low nibbles are scales, high ones minima of the groups of 16, a row in each lane */
        const __m512i h = load_lanes(R, w, g->stride), m = nibble_hi(h);
        const __m512i sum_lo = _mm512_broadcast_i32x4(load128(x->sum));
        const __m512i sum_hi = _mm512_broadcast_i32x4(load128(x->sum + 8));
        const __m512i mv =
            _mm512_dpwssd_epi32(_mm512_madd_epi16(_mm512_unpacklo_epi8(m, zero), sum_lo),
                                _mm512_unpackhi_epi8(m, zero), sum_hi);
        const __m256 f = _mm256_mul_ps(q2_k_factors(R, w + 80, g->stride), _mm256_set1_ps(x->d[0]));
        const __m512 dmin = _mm512_permutexvar_ps(idx_min, _mm512_castps256_ps512(f));
        mins = _mm512_fnmadd_ps(to_float(mv), dmin, mins);
        uint8_t scales[64] BL_ALIGNED(64);
        float d[8] BL_ALIGNED(32);
        _mm512_store_si512(scales, nibble_lo(h));
        _mm256_store_ps(d, f);
        THROUGH_MEMORY(scales);
        THROUGH_MEMORY(d);
        for (int r = 0; r < R; r++) {
            const __m512i s = _mm512_broadcast_i32x4(load128(scales + 16 * r));
            const __m512i v = q2_k_row(w + (size_t)r * g->stride, s, q8);
            acc[r] = _mm512_fmadd_ps(to_float(v), _mm512_set1_ps(d[2 * r]), acc[r]);
        }
    }
    add_lanes(R, acc, mins);
    store_sums(R, out, acc);
}

/* The scales of four rows, one a lane as they end the block: 2 other bytes, 8 with the low nibbles
 * of scales 0..7 and 8..15, 4 with the two high bits, d. -> 16 signed bytes a lane. */
BL_ALWAYS_INLINE __m512i q3_k_scales(__m512i h)
{
    const __m512i gather_low =
        _mm512_broadcast_i32x4(_mm_setr_epi8(2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4, 5, 6, 7, 8, 9));
    const __m512i gather_high = _mm512_broadcast_i32x4(
        _mm_setr_epi8(10, 11, 12, 13, 10, 11, 12, 13, 10, 11, 12, 13, 10, 11, 12, 13));
    const __m512i low = _mm512_broadcast_i32x4(
        _mm_setr_epi8(0, 8, 16, 24, 32, 40, 48, 56, 4, 12, 20, 28, 36, 44, 52, 60));
    /* bits 2i and 2i + 1 of the bytes to bits 4 and 5: a rotation by 2i - 4 */
    const __m512i high = _mm512_broadcast_i32x4(
        _mm_setr_epi8(60, 4, 12, 20, 62, 6, 14, 22, 0, 8, 16, 24, 2, 10, 18, 26));
    const __m512i lo = _mm512_multishift_epi64_epi8(low, _mm512_shuffle_epi8(h, gather_low));
    const __m512i hi = _mm512_multishift_epi64_epi8(high, _mm512_shuffle_epi8(h, gather_high));
    const __m512i six = _mm512_ternarylogic_epi64(_mm512_and_si512(lo, _mm512_set1_epi8(15)), hi,
                                                  _mm512_set1_epi8(0x30), 0xf8);
    return _mm512_sub_epi8(six, _mm512_set1_epi8(32));
}
/* The third bit of plane s: bit s of the mask bytes for the first 128 elements, bit 4 + s for the
 * others. */
BL_ALWAYS_INLINE __m512i q3_k_code(__m512i qs, __m512i hmask, int s)
{
    const __m512i matrix = gf_halves(GF_BIT(2, s), GF_BIT(2, 4 + s));
    return _mm512_or_si512(k23_plane(qs, s), _mm512_gf2p8affine_epi64_epi8(hmask, matrix, 0));
}
/* Scales come times 256, which spares their sign extension: 2032 * 32 * 256 * 4 fits 32 bits. */
BL_ALWAYS_INLINE __m512i q3_k_row(const char *p, __m512i scales, const __m512i *x,
                                  const __m512i *start)
{
    const __m512i qs = load512(p + 32), hmask = _mm512_broadcast_i64x4(load256(p));
    const __m512i v =
        scale_sums(_mm512_setzero_si512(), dot4(start[0], q3_k_code(qs, hmask, 0), x[0]),
                   dot4(start[1], q3_k_code(qs, hmask, 1), x[1]),
                   _mm512_shuffle_epi8(scales, K23_GROUPS(0, SPREAD_HIGH)));
    return scale_sums(v, dot4(start[2], q3_k_code(qs, hmask, 2), x[2]),
                      dot4(start[3], q3_k_code(qs, hmask, 3), x[3]),
                      _mm512_shuffle_epi8(scales, K23_GROUPS(4, SPREAD_HIGH)));
}
BL_ALWAYS_INLINE void q3_k_group(int R, uint32_t k, float *out, const struct row_group *g,
                                 const void *xv)
{
    enum { SIZE = 110 };
    const struct bl_act_block *x = xv;
    const char *w = g->w;
    __m512 acc[ROWS] = {_mm512_setzero_ps()};
    for (uint32_t b = 0; b < k / BLOCK; b++, x++, w += SIZE) {
        prefetch(g, (size_t)b * (size_t)(R * SIZE), R * SIZE);
        __m512i q8[4], start[4];
        k23_load_acts(x, q8);
        for (int s = 0; s < 4; s++)
            start[s] = bias_start(q8[s], 4);
        uint8_t scales[64] BL_ALIGNED(64);
        float d[4] BL_ALIGNED(16);
        _mm512_store_si512(scales, q3_k_scales(load_lanes(R, w + 94, g->stride)));
        _mm_store_ps(d,
                     _mm_mul_ps(load_f16x4(R, w + 108, g->stride), _mm_set1_ps(x->d[0] * 0x1p-8f)));
        THROUGH_MEMORY(scales);
        THROUGH_MEMORY(d);
        for (int r = 0; r < R; r++) {
            const __m512i s = _mm512_broadcast_i32x4(load128(scales + 16 * r));
            const __m512i v = q3_k_row(w + (size_t)r * g->stride, s, q8, start);
            acc[r] = _mm512_fmadd_ps(to_float(v), _mm512_set1_ps(d[r]), acc[r]);
        }
    }
    store_sums(R, out, acc);
}

/* ---- TQ2_0: the planes of Q2_K with one scale, values stored plus 1 ---- */

BL_ALWAYS_INLINE void tq2_0_group(int R, uint32_t k, float *out, const struct row_group *g,
                                  const void *xv)
{
    enum { SIZE = 66 };
    const struct bl_act_block *x = xv;
    const char *w = g->w;
    __m512 acc[ROWS] = {_mm512_setzero_ps()};
    for (uint32_t b = 0; b < k / BLOCK; b++, x++, w += SIZE) {
        prefetch(g, (size_t)b * (size_t)(R * SIZE), R * SIZE);
        __m512i q8[4], start = _mm512_setzero_si512();
        k23_load_acts(x, q8);
        for (int s = 0; s < 4; s++)
            start = _mm512_add_epi32(start, bias_start(q8[s], 1));
        float d[4] BL_ALIGNED(16);
        _mm_store_ps(d, _mm_mul_ps(load_f16x4(R, w + 64, g->stride), _mm_set1_ps(x->d[0])));
        THROUGH_MEMORY(d);
        for (int r = 0; r < R; r++) {
            const __m512i qs = load512(w + (size_t)r * g->stride);
            __m512i v = start;
            for (int s = 0; s < 4; s++)
                v = dot4(v, k23_plane(qs, s), q8[s]);
            acc[r] = _mm512_fmadd_ps(to_float(v), _mm512_set1_ps(d[r]), acc[r]);
        }
    }
    store_sums(R, out, acc);
}

DOT_ENTRY(dot_q2_k_act_4__avx512, q2_k_group, ROWS)
DOT_ENTRY(dot_q3_k_act_4__avx512, q3_k_group, ROWS)
DOT_ENTRY(dot_q4_k_act_4__avx512, q4_k_group, ROWS)
DOT_ENTRY(dot_q5_k_act_4__avx512, q5_k_group, ROWS)
DOT_ENTRY(dot_q6_k_act_2__avx512, q6_k_group, Q6_ROWS)
DOT_ENTRY(dot_tq2_0_act_4__avx512, tq2_0_group, ROWS)

DOT_ENTRY(dot_q4_k_act_1__avx512, q4_k_group, 1)
DOT_ENTRY(dot_q5_k_act_1__avx512, q5_k_group, 1)

void bl_cpu_avx512_kquant(struct bl_cpu_kernels *t)
{
    DOT_SET(t, BL_Q2_K, dot_q2_k_act_4__avx512, ROWS);
    DOT_SET(t, BL_Q3_K, dot_q3_k_act_4__avx512, ROWS);
    DOT_SET(t, BL_Q4_K, dot_q4_k_act_4__avx512, ROWS);
    DOT_SET(t, BL_Q5_K, dot_q5_k_act_4__avx512, ROWS);
    DOT_SET(t, BL_Q6_K, dot_q6_k_act_2__avx512, Q6_ROWS);
    DOT_SET(t, BL_TQ2_0, dot_tq2_0_act_4__avx512, ROWS);
}
void bl_cpu_avx512_kquant_one(struct bl_cpu_kernels *t)
{
    DOT_SET(t, BL_Q4_K, dot_q4_k_act_1__avx512, 1);
    DOT_SET(t, BL_Q5_K, dot_q5_k_act_1__avx512, 1);
}

/* SPDX-License-Identifier: MIT */
/* Dots of Q2_K to Q6_K in 256 bits: blocks of 256 with integer scales. Two rows are taken together.
 *
 * vpmaddubsw gives sums of two products in 16 bits, vpmaddwd multiplies them by their scales and
 * adds in 32 bits, so a block needs one conversion and one FMA a row. */
#include "avx2.h"

enum { ROWS = 2, BLOCK = 256 };

/* ---- Q4_K, Q5_K ---- */

/* Eight 6-bit scales and minima from their 12 bytes, on the scalar ports, which have nothing else
 * to do. */
struct k45_header {
    __m256i pairs;  /* each scale twice, as words */
    __m128i mins;   /* words */
    __m128 factors; /* d, dmin */
};
BL_ALWAYS_INLINE struct k45_header k45_unpack(const char *p)
{
    const uint32_t a = bl_load_u32(p + 4), b = bl_load_u32(p + 8), c = bl_load_u32(p + 12);
    const uint32_t scale_hi = (c & 0x0f0f0f0f) | (a >> 2 & 0x30303030);
    const uint32_t min_hi = (c >> 4 & 0x0f0f0f0f) | (b >> 2 & 0x30303030);
    const uint64_t scale = (a & 0x3f3f3f3f) | (uint64_t)scale_hi << 32;
    const uint64_t min = (b & 0x3f3f3f3f) | (uint64_t)min_hi << 32;
    const __m256i s = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)scale));
    struct k45_header h;
    h.pairs = _mm256_or_si256(s, _mm256_slli_epi32(s, 16));
    h.mins = _mm_cvtepu8_epi16(_mm_cvtsi64_si128((long long)min));
    h.factors = _mm_cvtph_ps(_mm_cvtsi32_si128((int)bl_load_u32(p)));
    return h;
}
/* One row's sum of scale * products. Byte l of chunk c: low nibble sub-block 2c, high nibble 2c +
 * 1; the fifth bit of sub-block j is bit j of qh. The scales are broadcast from memory, which costs
 * no shuffle. */
BL_ALWAYS_INLINE __m256i k45_row(bool q5, const char *p, const uint32_t *scales,
                                 const struct bl_act_block *x)
{
    const char *qs = p + (q5 ? 48 : 16);
    const __m256i qh = q5 ? load256(p + 16) : _mm256_setzero_si256();
    __m256i u = _mm256_setzero_si256(), v = u;
    for (int c = 0; c < 4; c++) {
        const __m256i q = load256(qs + 32 * c);
        __m256i lo = and_bytes(q, 15), hi = and_bytes(_mm256_srli_epi16(q, 4), 15);
        if (q5) {
            const __m256i h = and_bytes(shift_bytes(qh, 2 * c), 3); /* two bits, of lo and hi */
            lo = _mm256_or_si256(lo, and_bytes(_mm256_slli_epi16(h, 4), 16));
            hi = _mm256_or_si256(hi, and_bytes(_mm256_slli_epi16(h, 3), 16));
        }
        const __m256i a = dot2(lo, load256(x->q + 64 * c));
        const __m256i b = dot2(hi, load256(x->q + 64 * c + 32));
        u = add_words(u, a, _mm256_set1_epi32((int)scales[2 * c]));
        v = add_words(v, b, _mm256_set1_epi32((int)scales[2 * c + 1]));
    }
    return _mm256_add_epi32(u, v);
}
BL_ALWAYS_INLINE void k45_group(bool q5, int R, uint32_t k, float *out, const struct row_group *g,
                                const struct bl_act_block *x)
{
    const int size = q5 ? 176 : 144;
    const char *w = g->w;
    __m256 acc[ROWS] = {_mm256_setzero_ps()};
    __m128 mins[ROWS] = {_mm_setzero_ps()};
    for (uint32_t b = 0; b < k / BLOCK; b++, x++, w += size) {
        prefetch(g, (size_t)b * (size_t)(R * size), R * size);
        const __m128i sums = _mm_hadd_epi16(load128(x->sum), load128(x->sum + 8));
        for (int r = 0; r < R; r++) {
            const char *p = w + (size_t)r * g->stride;
            const struct k45_header h = k45_unpack(p);
            const __m128 f = _mm_mul_ps(h.factors, _mm_set1_ps(x->d[0]));
            uint32_t scales[8] BL_ALIGNED(32);
            _mm256_store_si256((__m256i *)(void *)scales, h.pairs);
            THROUGH_MEMORY(scales);
            mins[r] = _mm_fmadd_ps(_mm_cvtepi32_ps(_mm_madd_epi16(h.mins, sums)),
                                   _mm_shuffle_ps(f, f, 0x55), mins[r]);
            const __m256 v = _mm256_cvtepi32_ps(k45_row(q5, p, scales, x));
            acc[r] = _mm256_fmadd_ps(v, _mm256_broadcastss_ps(f), acc[r]);
        }
    }
    for (int r = 0; r < R; r++)
        acc[r] = _mm256_sub_ps(acc[r], _mm256_zextps128_ps256(mins[r]));
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

/* ---- types with a scale for 16 elements: Q6_K, Q2_K, Q3_K ---- */

/* 16 scale bytes as words: the even ones in the lower lane, the odd ones in the upper, so that one
 * shuffle broadcasts an even scale beside its neighbour, for sums of two products. */
BL_ALWAYS_INLINE __m256i deal_scales(__m128i scales)
{
    const __m128i idx = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    return _mm256_cvtepi8_epi16(_mm_shuffle_epi8(scales, idx));
}
BL_ALWAYS_INLINE __m256i scale_pair(__m256i dealt, int first)
{
    return _mm256_shuffle_epi8(dealt, _mm256_set1_epi16((short)(first | (first + 1) << 8)));
}
/* Sum over the block of scale * activations: what a bias of one in every code adds. */
BL_ALWAYS_INLINE __m256i bias_sums(__m128i scales, const struct bl_act_block *x)
{
    return _mm256_madd_epi16(_mm256_cvtepi8_epi16(scales), load256(x->sum));
}
BL_ALWAYS_INLINE __m256i add_scaled(__m256i acc, __m256i codes, const int8_t *x, __m256i scales)
{
    return add_words(acc, dot2(codes, load256(x)), scales);
}

/* 128 elements: groups 0..3 of 32 from two low-nibble and two high-nibble vectors, two more bits
 * each from qh */
BL_ALWAYS_INLINE __m256i q6_k_half(__m256i acc, const char *ql, const char *qh, __m256i scales,
                                   int first, const int8_t *x)
{
    const __m256i a = load256(ql), b = load256(ql + 32), h = load256(qh);
    const __m256i g0 = _mm256_or_si256(and_bytes(a, 15), and_bytes(_mm256_slli_epi16(h, 4), 0x30));
    const __m256i g1 = _mm256_or_si256(and_bytes(b, 15), and_bytes(_mm256_slli_epi16(h, 2), 0x30));
    const __m256i g2 = _mm256_or_si256(and_bytes(_mm256_srli_epi16(a, 4), 15), and_bytes(h, 0x30));
    const __m256i g3 = _mm256_or_si256(and_bytes(_mm256_srli_epi16(b, 4), 15),
                                       and_bytes(_mm256_srli_epi16(h, 2), 0x30));
    acc = add_scaled(acc, g0, x, scale_pair(scales, first));
    acc = add_scaled(acc, g1, x + 32, scale_pair(scales, first + 2));
    acc = add_scaled(acc, g2, x + 64, scale_pair(scales, first + 4));
    return add_scaled(acc, g3, x + 96, scale_pair(scales, first + 6));
}
BL_ALWAYS_INLINE __m256i q6_k_row(const char *p, const struct bl_act_block *x)
{
    const __m128i scales = load128(p + 192);
    const __m256i dealt = deal_scales(scales);
    __m256i v = _mm256_setzero_si256();
    v = q6_k_half(v, p, p + 128, dealt, 0, x->q);
    v = q6_k_half(v, p + 64, p + 160, dealt, 8, x->q + 128);
    return _mm256_sub_epi32(v,
                            _mm256_slli_epi32(bias_sums(scales, x), 5)); /* codes are value + 32 */
}
BL_ALWAYS_INLINE void q6_k_group(int R, uint32_t k, float *out, const struct row_group *g,
                                 const void *xv)
{
    enum { SIZE = 210 };
    const struct bl_act_block *x = xv;
    const char *w = g->w;
    __m256 acc[ROWS] = {_mm256_setzero_ps()};
    for (uint32_t b = 0; b < k / BLOCK; b++, x++, w += SIZE) {
        prefetch(g, (size_t)b * (size_t)(R * SIZE), R * SIZE);
        for (int r = 0; r < R; r++) {
            const char *p = w + (size_t)r * g->stride;
            const __m256 d = _mm256_set1_ps(load_f16(p + 208) * x->d[0]);
            acc[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(q6_k_row(p, x)), d, acc[r]);
        }
    }
    store_sums(R, out, acc);
}

/* Sums of planes 0 and 2, and of planes 1 and 3, whose codes are two bits up: four times the sum.
 */
struct plane_sums {
    __m256i once, four_times;
};
BL_ALWAYS_INLINE __m256i sum_planes(const struct plane_sums *s)
{
    return _mm256_add_epi32(s->once, _mm256_srai_epi32(s->four_times, 2));
}
/* 128 elements of Q2_K: four planes of two bits in 32 bytes */
BL_ALWAYS_INLINE void q2_k_half(struct plane_sums *s, const char *qs, __m256i scales, int first,
                                const int8_t *x)
{
    const __m256i q = load256(qs), up = _mm256_srli_epi16(q, 4);
    s->once = add_scaled(s->once, and_bytes(q, 3), x, scale_pair(scales, first));
    s->four_times =
        add_scaled(s->four_times, and_bytes(q, 12), x + 32, scale_pair(scales, first + 2));
    s->once = add_scaled(s->once, and_bytes(up, 3), x + 64, scale_pair(scales, first + 4));
    s->four_times =
        add_scaled(s->four_times, and_bytes(up, 12), x + 96, scale_pair(scales, first + 6));
}
BL_ALWAYS_INLINE void q2_k_group(int R, uint32_t k, float *out, const struct row_group *g,
                                 const void *xv)
{
    enum { SIZE = 84 };
    const __m128i m15 = _mm_set1_epi8(15);
    const struct bl_act_block *x = xv;
    const char *w = g->w;
    __m256 acc[ROWS] = {_mm256_setzero_ps()}, mins[ROWS] = {_mm256_setzero_ps()};
    for (uint32_t b = 0; b < k / BLOCK; b++, x++, w += SIZE) {
        prefetch(g, (size_t)b * (size_t)(R * SIZE), R * SIZE);
        for (int r = 0; r < R; r++) {
            const char *p = w + (size_t)r * g->stride;
            const __m128i h = load128(p), scales = _mm_and_si128(h, m15);
            const __m128i m = _mm_and_si128(_mm_srli_epi16(h, 4), m15);
            const __m256i dealt = deal_scales(scales);
            struct plane_sums s = {_mm256_setzero_si256(), _mm256_setzero_si256()};
            q2_k_half(&s, p + 16, dealt, 0, x->q);
            q2_k_half(&s, p + 48, dealt, 8, x->q + 128);
            const __m256 d = _mm256_set1_ps(load_f16(p + 80) * x->d[0]);
            const __m256 dmin = _mm256_set1_ps(load_f16(p + 82) * x->d[0]);
            acc[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum_planes(&s)), d, acc[r]);
            mins[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(bias_sums(m, x)), dmin, mins[r]);
        }
    }
    for (int r = 0; r < R; r++)
        acc[r] = _mm256_sub_ps(acc[r], mins[r]);
    store_sums(R, out, acc);
}

/* Sixteen 6-bit scales minus 32: low nibbles in 8 bytes, high bits in 4. */
BL_ALWAYS_INLINE __m128i q3_k_scales(const char *p)
{
    const uint64_t nibbles = bl_load_u64(p), m4 = 0x0f0f0f0f0f0f0f0f;
    const uint32_t high = bl_load_u32(p + 8), m2 = 0x03030303;
    const uint64_t lo = (high & m2) | (uint64_t)(high >> 2 & m2) << 32;
    const uint64_t hi = (high >> 4 & m2) | (uint64_t)(high >> 6 & m2) << 32;
    const __m128i six = _mm_set_epi64x((long long)((nibbles >> 4 & m4) | hi << 4),
                                       (long long)((nibbles & m4) | lo << 4));
    return _mm_sub_epi8(six, _mm_set1_epi8(32));
}
/* 128 elements of Q3_K; the third bit of plane s is bit s of h */
BL_ALWAYS_INLINE void q3_k_half(struct plane_sums *s, const char *qs, __m256i h, __m256i scales,
                                int first, const int8_t *x)
{
    const __m256i q = load256(qs), up = _mm256_srli_epi16(q, 4);
    const __m256i p0 = _mm256_or_si256(and_bytes(q, 3), and_bytes(_mm256_slli_epi16(h, 2), 4));
    const __m256i p1 = _mm256_or_si256(and_bytes(q, 12), and_bytes(_mm256_slli_epi16(h, 3), 16));
    const __m256i p2 = _mm256_or_si256(and_bytes(up, 3), and_bytes(h, 4));
    const __m256i p3 = _mm256_or_si256(and_bytes(up, 12), and_bytes(_mm256_slli_epi16(h, 1), 16));
    s->once = add_scaled(s->once, p0, x, scale_pair(scales, first));
    s->four_times = add_scaled(s->four_times, p1, x + 32, scale_pair(scales, first + 2));
    s->once = add_scaled(s->once, p2, x + 64, scale_pair(scales, first + 4));
    s->four_times = add_scaled(s->four_times, p3, x + 96, scale_pair(scales, first + 6));
}
BL_ALWAYS_INLINE void q3_k_group(int R, uint32_t k, float *out, const struct row_group *g,
                                 const void *xv)
{
    enum { SIZE = 110 };
    const struct bl_act_block *x = xv;
    const char *w = g->w;
    __m256 acc[ROWS] = {_mm256_setzero_ps()};
    for (uint32_t b = 0; b < k / BLOCK; b++, x++, w += SIZE) {
        prefetch(g, (size_t)b * (size_t)(R * SIZE), R * SIZE);
        for (int r = 0; r < R; r++) {
            const char *p = w + (size_t)r * g->stride;
            const __m128i scales = q3_k_scales(p + 96);
            const __m256i h = load256(p);
            const __m256i dealt = deal_scales(scales);
            struct plane_sums s = {_mm256_setzero_si256(), _mm256_setzero_si256()};
            q3_k_half(&s, p + 32, h, dealt, 0, x->q);
            q3_k_half(&s, p + 64, _mm256_srli_epi16(h, 4), dealt, 8, x->q + 128);
            const __m256i v = _mm256_sub_epi32(
                sum_planes(&s), _mm256_slli_epi32(bias_sums(scales, x), 2)); /* value + 4 */
            const __m256 d = _mm256_set1_ps(load_f16(p + 108) * x->d[0]);
            acc[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(v), d, acc[r]);
        }
    }
    store_sums(R, out, acc);
}

DOT_ENTRY(TIER(dot_q2_k_act_2), q2_k_group, ROWS)
DOT_ENTRY(TIER(dot_q3_k_act_2), q3_k_group, ROWS)
DOT_ENTRY(TIER(dot_q4_k_act_2), q4_k_group, ROWS)
DOT_ENTRY(TIER(dot_q5_k_act_2), q5_k_group, ROWS)
DOT_ENTRY(TIER(dot_q6_k_act_2), q6_k_group, ROWS)

void TIER_FN(kquant)(struct bl_cpu_kernels *t)
{
    TIER_SET(t, BL_Q2_K, dot_q2_k_act_2, ROWS);
    TIER_SET(t, BL_Q3_K, dot_q3_k_act_2, ROWS);
    TIER_SET(t, BL_Q4_K, dot_q4_k_act_2, ROWS);
    TIER_SET(t, BL_Q5_K, dot_q5_k_act_2, ROWS);
    TIER_SET(t, BL_Q6_K, dot_q6_k_act_2, ROWS);
}

/* SPDX-License-Identifier: MIT */
/* Dots of the types with blocks of 32, in 256 bits. Two rows are taken together, as with 16
 * registers more rows spill. */
#include "avx2.h"

enum { ROWS = 2 };

/* ---- blocks of 32: eight at a time, as many as an activation block has scales ---- */

/* Everything that differs between these types; constant in each kernel, so the tests on it vanish.
 */
struct block_type {
    int bytes;     /* of a block */
    int skip;      /* bytes before the codes */
    int bias;      /* code minus bias = value */
    bool has_high; /* a fifth bit: 32 bits just before the nibbles */
    bool has_min;  /* value = d * code + m, the f16 m after d */
    bool signed8;  /* codes are signed bytes, not nibbles */
    bool e8m0;     /* the scale is one byte, 2^(e - 128) */
    bool table;    /* nibbles go through values */
    int8_t values[16];
};
static const struct block_type q8_0_type = {.bytes = 34, .skip = 2, .signed8 = true};
static const struct block_type q4_0_type = {.bytes = 18, .skip = 2, .bias = 8};
static const struct block_type q4_1_type = {.bytes = 20, .skip = 4, .has_min = true};
static const struct block_type q5_0_type = {.bytes = 22, .skip = 6, .bias = 16, .has_high = true};
static const struct block_type q5_1_type = {
    .bytes = 24, .skip = 8, .has_high = true, .has_min = true};
static const struct block_type iq4_nl_type = {
    .bytes = 18,
    .skip = 2,
    .table = true,
    .values = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}};
static const struct block_type mxfp4_type = {
    .bytes = 17,
    .skip = 1,
    .bias = 12,
    .e8m0 = true,
    .table = true,
    .values = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0}};

/* The f16 fields of n blocks as eight floats, zero for the blocks that are not there. */
BL_ALWAYS_INLINE __m256 load_scales(const char *p, int bytes, int n)
{
    uint16_t h[8] = {0};
    for (int i = 0; i < 8 && i < n; i++)
        h[i] = bl_load_u16(p + i * bytes);
    return _mm256_cvtph_ps(_mm_setr_epi16((short)h[0], (short)h[1], (short)h[2], (short)h[3],
                                          (short)h[4], (short)h[5], (short)h[6], (short)h[7]));
}
/* The E8M0 bytes of n blocks as eight floats, 2^(e - 128); 0 and 1 give subnormal ones. */
BL_ALWAYS_INLINE __m256 load_e8m0(const char *p, int bytes, int n)
{
    uint64_t e = 0;
    for (int i = 0; i < 8 && i < n; i++)
        e |= (uint64_t)(uint8_t)p[i * bytes] << (8 * i);
    const __m256i v = _mm256_slli_epi32(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)e)), 23);
    const __m256i twice = _mm256_max_epu32(v, _mm256_set1_epi32(0x00400000));
    return _mm256_mul_ps(_mm256_castsi256_ps(twice), _mm256_set1_ps(0.5f));
}
BL_ALWAYS_INLINE __m256i load_pair(const char *lo, const char *hi)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load128(lo)), load128(hi), 1);
}
/* 16 bits of each half, from byte `first` -> 16 in each byte whose bit is set */
BL_ALWAYS_INLINE __m256i spread_bits(__m256i bits, int first)
{
    const long long a = 0x0101010101010101 * first, b = a + 0x0101010101010101;
    const __m256i which = _mm256_setr_epi64x(a, b, a, b);
    const __m256i select = _mm256_set1_epi64x((long long)0x8040201008040201u);
    const __m256i v = _mm256_shuffle_epi8(bits, which);
    return and_bytes(_mm256_cmpeq_epi8(_mm256_and_si256(v, select), select), 16);
}
/* acc + sums of four products, both signed. */
BL_ALWAYS_INLINE __m256i dot4_signed(__m256i acc, __m256i a, __m256i b)
{
    return dot4(acc, _mm256_abs_epi8(a), _mm256_sign_epi8(b, a));
}

/* The activations of two blocks as their codes lie: elements 0 to 15 of both, 16 to 31 of both. The
 * bias is taken off as integers: in float what is left of two large numbers would be wrong by more
 * than the terms allow. */
struct pair_acts {
    __m256i lo, hi;
    __m256i bias; /* a small sum */
};
BL_ALWAYS_INLINE struct pair_acts load_acts(const struct block_type *t, const int8_t *q)
{
    const __m256i a = load256(q), b = load256(q + 32), c = _mm256_set1_epi8((char)t->bias);
    struct pair_acts x;
    x.lo = _mm256_permute2x128_si256(a, b, 0x20);
    x.hi = _mm256_permute2x128_si256(a, b, 0x31);
    x.bias = add_small(dot_small(c, x.lo), c, x.hi);
    return x;
}
/* Sums of eight products, four of the block at p and four of that at p1. */
BL_ALWAYS_INLINE __m256i pair_sums(const struct block_type *t, const char *p, const char *p1,
                                   const struct pair_acts *x)
{
    const __m256i q = load_pair(p + t->skip, p1 + t->skip);
    __m256i lo = and_bytes(q, 15), hi = and_bytes(_mm256_srli_epi16(q, 4), 15);
    if (t->has_high) {
        /* and some of the nibbles behind them: loads that insert take no shuffle */
        const __m256i bits = load_pair(p + t->skip - 4, p1 + t->skip - 4);
        lo = _mm256_or_si256(lo, spread_bits(bits, 0));
        hi = _mm256_or_si256(hi, spread_bits(bits, 2));
    }
    if (t->table) {
        lo = _mm256_shuffle_epi8(load_twice(t->values), lo);
        hi = _mm256_shuffle_epi8(load_twice(t->values), hi);
    }
    if (t->table && !t->bias) /* signed values whose sums of four do not fit 16 bits */
        return dot4_signed(dot4_signed(_mm256_setzero_si256(), x->lo, lo), x->hi, hi);
    const __m256i v = add_small(dot_small(lo, x->lo), hi, x->hi);
    return widen_small(t->bias ? sub_small(v, x->bias) : v);
}
/* n blocks of R rows. Each step sums by itself, so that its FMAs do not wait for those of the step
 * before. Whether the factors d are broadcast by shuffles or by loads is left to the compiler: here
 * loads are as scarce as shuffles. */
BL_ALWAYS_INLINE void block_step(const struct block_type *t, int R, int n, const char *w,
                                 size_t stride, const struct bl_act_block *x, __m256 *acc,
                                 __m256 *mins)
{
    const __m256 dx = _mm256_loadu_ps(x->d);
    float d[ROWS][8] BL_ALIGNED(32);
    for (int r = 0; r < R; r++) {
        const char *p = w + (size_t)r * stride;
        const __m256 dw = t->e8m0 ? load_e8m0(p, t->bytes, n) : load_scales(p, t->bytes, n);
        _mm256_store_ps(d[r], _mm256_mul_ps(dw, dx));
        if (t->has_min) { /* the minima of eight blocks against the sums of their activations */
            const __m256i sum = _mm256_madd_epi16(load256(x->sum), _mm256_set1_epi16(1));
            const __m256 sum_x = _mm256_mul_ps(_mm256_cvtepi32_ps(sum), dx);
            mins[r] = _mm256_fmadd_ps(load_scales(p + 2, t->bytes, n), sum_x, mins[r]);
        }
    }
    __m256 part[ROWS] = {_mm256_setzero_ps()};
    for (int b = 0; t->signed8 && b < 8 && b < n; b++) {
        const __m256i q8 = load256(x->q + 32 * b);
        for (int r = 0; r < R; r++) {
            const __m256i q = load256(w + (size_t)r * stride + b * t->bytes + t->skip);
            const __m256 v = _mm256_cvtepi32_ps(dot4_signed(_mm256_setzero_si256(), q, q8));
            part[r] = _mm256_fmadd_ps(v, _mm256_set1_ps(d[r][b]), part[r]);
        }
    }
    for (int b = 0; !t->signed8 && b < 8 && b < n; b += 2) {
        /* a block that is not there has activations of zero */
        const struct pair_acts xs = load_acts(t, x->q + 32 * b);
        const __m256i idx =
            _mm256_add_epi32(_mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1), _mm256_set1_epi32(b));
        for (int r = 0; r < R; r++) {
            const char *p = w + (size_t)r * stride + b * t->bytes;
            const __m256 v = _mm256_cvtepi32_ps(pair_sums(t, p, b + 1 < n ? p + t->bytes : p, &xs));
            part[r] =
                _mm256_fmadd_ps(v, _mm256_permutevar8x32_ps(_mm256_load_ps(d[r]), idx), part[r]);
        }
    }
    for (int r = 0; r < R; r++)
        acc[r] = _mm256_add_ps(acc[r], part[r]);
}
BL_ALWAYS_INLINE void block_group(const struct block_type *t, int R, uint32_t k, float *out,
                                  const struct row_group *g, const struct bl_act_block *x)
{
    const int step = 8 * t->bytes;
    const char *w = g->w;
    __m256 acc[ROWS] = {_mm256_setzero_ps()}, mins[ROWS] = {_mm256_setzero_ps()};
    uint32_t b = 0;
    for (; b < k / 256; b++, w += step) {
        prefetch(g, (size_t)b * (size_t)(R * step), R * step);
        block_step(t, R, 8, w, g->stride, x + b, acc, mins);
    }
    if (k % 256) {
        const int n = (int)(k % 256 / 32);
        prefetch(g, (size_t)b * (size_t)(R * step), R * n * t->bytes);
        block_step(t, R, n, w, g->stride, x + b, acc, mins);
    }
    for (int r = 0; r < R; r++)
        acc[r] = _mm256_add_ps(acc[r], mins[r]);
    store_sums(R, out, acc);
}
#define BLOCK_GROUP(type)                                                                          \
    BL_ALWAYS_INLINE void type##_group(int R, uint32_t k, float *out, const struct row_group *g,   \
                                       const void *x)                                              \
    {                                                                                              \
        block_group(&type##_type, R, k, out, g, x);                                                \
    }
BLOCK_GROUP(q8_0)
BLOCK_GROUP(q4_0)
BLOCK_GROUP(q4_1)
BLOCK_GROUP(q5_0)
BLOCK_GROUP(q5_1)
BLOCK_GROUP(iq4_nl)
BLOCK_GROUP(mxfp4)

DOT_ENTRY(TIER(dot_q8_0_act_2), q8_0_group, ROWS)
DOT_ENTRY(TIER(dot_q4_0_act_2), q4_0_group, ROWS)
DOT_ENTRY(TIER(dot_q4_1_act_2), q4_1_group, ROWS)
DOT_ENTRY(TIER(dot_q5_0_act_2), q5_0_group, ROWS)
DOT_ENTRY(TIER(dot_q5_1_act_2), q5_1_group, ROWS)
DOT_ENTRY(TIER(dot_iq4_nl_act_2), iq4_nl_group, ROWS)
DOT_ENTRY(TIER(dot_mxfp4_act_2), mxfp4_group, ROWS)

void TIER_FN(dot32)(struct bl_cpu_kernels *t)
{
    TIER_SET(t, BL_Q8_0, dot_q8_0_act_2, ROWS);
    TIER_SET(t, BL_Q4_0, dot_q4_0_act_2, ROWS);
    TIER_SET(t, BL_Q4_1, dot_q4_1_act_2, ROWS);
    TIER_SET(t, BL_Q5_0, dot_q5_0_act_2, ROWS);
    TIER_SET(t, BL_Q5_1, dot_q5_1_act_2, ROWS);
    TIER_SET(t, BL_IQ4_NL, dot_iq4_nl_act_2, ROWS);
    TIER_SET(t, BL_MXFP4, dot_mxfp4_act_2, ROWS);
}

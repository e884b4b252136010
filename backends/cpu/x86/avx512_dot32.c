/* SPDX-License-Identifier: MIT */
/* AVX-512 dots of the float types and of the types with blocks of 32, and NVFP4. Four rows are
 * taken together, but one of the float types and Q8_0: these do little beside loading, and one
 * stream is read from memory at 96 to 99 % of a plain read, four at 80 to 86 % (Zen 5). */
#include "avx512.h"

enum { ROWS = 4 };

/* ---- float types: float activations ----
 *
 * These loops do little beside loading, so the hardware brings L2 to L1 by itself. */

BL_ALWAYS_INLINE int float_bytes(enum bl_dtype t)
{
    return t == BL_F32 ? 4 : 2;
}
/* 16 weights as floats, those of the mask; nothing else is read */
BL_ALWAYS_INLINE __m512 load_weights(enum bl_dtype t, const char *p, __mmask16 m)
{
    if (t == BL_F32)
        return _mm512_maskz_loadu_ps(m, p);
    const __m256i half = _mm256_maskz_loadu_epi16(m, p);
    if (t == BL_F16)
        return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

BL_ALWAYS_INLINE void float_group(enum bl_dtype t, int R, uint32_t k, float *out,
                                  const struct row_group *g, const float *x)
{
    const int size = float_bytes(t);
    const __mmask16 all = 0xffff;
    /* two chains a row hide the latency of the FMA */
    __m512 acc[ROWS] = {_mm512_setzero_ps()}, odd[ROWS] = {_mm512_setzero_ps()};
    uint32_t i = 0;
    for (; i + 32 <= k; i += 32) {
        prefetch_far(g, (size_t)i * (size_t)(size * R), 32 * size * R);
        const __m512 x0 = _mm512_loadu_ps(x + i), x1 = _mm512_loadu_ps(x + i + 16);
        for (int r = 0; r < R; r++) {
            const char *p = g->w + (size_t)r * g->stride + (size_t)i * (size_t)size;
            acc[r] = _mm512_fmadd_ps(load_weights(t, p, all), x0, acc[r]);
            odd[r] = _mm512_fmadd_ps(load_weights(t, p + 16 * size, all), x1, odd[r]);
        }
    }
    for (; i < k; i += 16) {
        const __mmask16 m = k - i < 16 ? (__mmask16)((1u << (k - i)) - 1) : all;
        const __m512 x0 = _mm512_maskz_loadu_ps(m, x + i);
        for (int r = 0; r < R; r++) {
            const char *p = g->w + (size_t)r * g->stride + (size_t)i * (size_t)size;
            acc[r] = _mm512_fmadd_ps(load_weights(t, p, m), x0, acc[r]);
        }
    }
    for (int r = 0; r < R; r++)
        acc[r] = _mm512_add_ps(acc[r], odd[r]);
    store_sums(R, out, acc);
}
BL_ALWAYS_INLINE void f32_group(int R, uint32_t k, float *out, const struct row_group *g,
                                const void *x)
{
    float_group(BL_F32, R, k, out, g, x);
}
BL_ALWAYS_INLINE void f16_group(int R, uint32_t k, float *out, const struct row_group *g,
                                const void *x)
{
    float_group(BL_F16, R, k, out, g, x);
}
BL_ALWAYS_INLINE void bf16_group(int R, uint32_t k, float *out, const struct row_group *g,
                                 const void *x)
{
    float_group(BL_BF16, R, k, out, g, x);
}

/* ---- Q8_0: two blocks (68 bytes) at a time ---- */

BL_ALWAYS_INLINE void q8_0_last_block(int R, const char *w, size_t stride, __m256i x, float dx,
                                      __m512 *acc)
{
    const __m256i flip = _mm256_set1_epi8(-128), zero = _mm256_setzero_si256();
    const __m256i start = _mm256_sub_epi32(zero, _mm256_dpbusd_epi32(zero, flip, x));
    for (int r = 0; r < R; r++, w += stride) {
        const __m256i q = _mm256_xor_si256(load256(w + 2), flip);
        const __m256 v = _mm256_cvtepi32_ps(_mm256_dpbusd_epi32(start, q, x));
        const __m256 d = _mm256_set1_ps(_cvtsh_ss(bl_load_u16(w)) * dx);
        acc[r] = _mm512_add_ps(acc[r], _mm512_zextps256_ps512(_mm256_mul_ps(v, d)));
    }
}
BL_ALWAYS_INLINE void q8_0_group(int R, uint32_t k, float *out, const struct row_group *g,
                                 const void *xv)
{
    enum { STEP = 68 };
    const struct bl_act_block *x = xv;
    const __m512i flip = _mm512_set1_epi8(-128); /* signed byte + 128 */
    const __m512i idx_d =
        _mm512_zextsi256_si512(_mm256_setr_epi64x(0, 0, 0x0011001100110011, 0x0011001100110011));
    const __m512i idx_x = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const char *w = g->w;
    __m512 acc[ROWS] = {_mm512_setzero_ps()};
    for (uint32_t b = 0; b < k / 64; b++, w += STEP) {
        prefetch(g, (size_t)b * (size_t)(R * STEP), R * STEP);
        const struct bl_act_block *xb = x + b / 4;
        const __m512i q8 = load512(xb->q + 64 * (b % 4)), start = bias_start(q8, 128);
        const __m128i d2 = _mm_loadl_epi64((const void *)(xb->d + 2 * (b % 4)));
        const __m512 dx =
            _mm512_permutexvar_ps(idx_x, _mm512_castps128_ps512(_mm_castsi128_ps(d2)));
        for (int r = 0; r < R; r++) {
            const char *p = w + (size_t)r * g->stride;
            const __m512i q = _mm512_xor_si512(load_halves(p + 2, p + 36), flip);
            const __m512i h = _mm512_permutexvar_epi16(idx_d, load512(p));
            const __m512 d = _mm512_cvtph_ps(_mm512_castsi512_si256(h));
            acc[r] = _mm512_fmadd_ps(to_float(dot4(start, q, q8)), _mm512_mul_ps(d, dx), acc[r]);
        }
    }
    if (k % 64) {
        const struct bl_act_block *xb = x + k / 256;
        const uint32_t at = k % 256 - 32;
        prefetch(g, (size_t)(k / 64) * (size_t)(R * STEP), R * STEP / 2);
        q8_0_last_block(R, w, g->stride, load256(xb->q + at), xb->d[at / 32], acc);
    }
    store_sums(R, out, acc);
}

/* ---- 4 and 5 bit types: four blocks at a time; byte i of a block holds elements i and 16 + i ----
 */

#define X4(a) a, a, a, a
#define X16(a) X4(a), X4(a), X4(a), X4(a)
#define RUN4(a) a, a + 1, a + 2, a + 3
#define RUN16(a) RUN4(a), RUN4(a + 4), RUN4(a + 8), RUN4(a + 12)
/* Where the nibbles of blocks 1 to 3 lie in the last 64 bytes of the four blocks; block 0 is loaded
 * in place. For blocks of `b` bytes with `s` bytes before the nibbles. */
#define GATHER(b, s)                                                                               \
    {                                                                                              \
        RUN16(0), RUN16(64 - 3 * (b) + (s)), RUN16(64 - 2 * (b) + (s)), RUN16(64 - (b) + (s))      \
    }
/* Which 16-bit words of the first 64 bytes are d (and, 16 lanes later, the minimum) of each block,
 * four lanes each. */
#define WORDS(b, m)                                                                                \
    {                                                                                              \
        X4(0), X4((b) / 2), X4((b)), X4(((b) / 2 * 3) & 31), X4(m), X4((b) / 2 + (m)),             \
            X4((b) + (m)), X4(((b) / 2 * 3 + (m)) & 31)                                            \
    }
/* 64-entry byte tables, values stored plus a bias: the first looks only at the low nibble of its
 * index, the second only at index bits 2..5 (the index is the byte >> 2). vpermb ignores index bits
 * 6 and 7, so no lookup needs a mask. */
#define TABLE_LO(...)                                                                              \
    {                                                                                              \
        __VA_ARGS__, __VA_ARGS__, __VA_ARGS__, __VA_ARGS__                                         \
    }
#define TABLE_HI(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p)                                   \
    {                                                                                              \
        X4(a), X4(b), X4(c), X4(d), X4(e), X4(f), X4(g), X4(h), X4(i), X4(j), X4(k), X4(l), X4(m), \
            X4(n), X4(o), X4(p)                                                                    \
    }

/* Everything that differs between these types; constant in each kernel, so the tests on it vanish.
 */
struct nibble_type {
    int bytes;     /* of a block */
    int skip;      /* bytes before the nibbles */
    int bias;      /* code minus bias = value */
    bool has_high; /* a fifth bit: 32 bits just before the nibbles */
    bool has_min;  /* value = d * code + m, the f16 m after d */
    bool table;    /* codes go through lo and hi */
    bool e8m0;     /* the scale is one byte, 2^(e - 128) */
    uint8_t gather[64] BL_ALIGNED(64);
    uint16_t words[32];
    uint8_t lo[64], hi[64];
};
static const struct nibble_type q4_0_type = {
    .bytes = 18, .skip = 2, .bias = 8, .gather = GATHER(18, 2), .words = WORDS(18, 0)};
static const struct nibble_type q4_1_type = {
    .bytes = 20, .skip = 4, .has_min = true, .gather = GATHER(20, 4), .words = WORDS(20, 1)};
static const struct nibble_type q5_0_type = {.bytes = 22,
                                             .skip = 6,
                                             .bias = 16,
                                             .has_high = true,
                                             .gather = GATHER(22, 6),
                                             .words = WORDS(22, 0)};
static const struct nibble_type q5_1_type = {.bytes = 24,
                                             .skip = 8,
                                             .has_high = true,
                                             .has_min = true,
                                             .gather = GATHER(24, 8),
                                             .words = WORDS(24, 1)};
static const struct nibble_type iq4_nl_type = {
    .bytes = 18,
    .skip = 2,
    .bias = 128,
    .table = true,
    .gather = GATHER(18, 2),
    .words = WORDS(18, 0),
    .lo = TABLE_LO(1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241),
    .hi = TABLE_HI(1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241)};
static const struct nibble_type mxfp4_type = {
    .bytes = 17,
    .skip = 1,
    .bias = 12,
    .table = true,
    .e8m0 = true,
    .gather = GATHER(17, 1),
    .lo = TABLE_LO(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0),
    .hi = TABLE_HI(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0)};

/* The activations of four blocks, shaped like the codes: what all rows of a step share. */
struct nibble_acts {
    __m512i lo, hi; /* lanes 4b..4b+3: elements 0..15 and 16..31 of block b */
    __m512i start;  /* undoes the bias */
    __m512 d, sum;  /* scale; scale times the lane's sum of activations, for minima */
};
BL_ALWAYS_INLINE struct nibble_acts nibble_load_acts(const struct nibble_type *t, const int8_t *q,
                                                     const float *d)
{
    const __m512i idx_d = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    const __m512i a = load512(q), b = load512(q + 64);
    struct nibble_acts x;
    x.lo = _mm512_shuffle_i64x2(a, b, 0x88);
    x.hi = _mm512_shuffle_i64x2(a, b, 0xdd);
    x.d = _mm512_permutexvar_ps(idx_d, _mm512_broadcast_f32x4(_mm_loadu_ps(d)));
    const __m512i zero = _mm512_setzero_si512();
    const __m512i c = _mm512_set1_epi8((char)(t->has_min ? 1 : t->bias));
    const __m512i sum = dot4(dot4(zero, c, x.lo), c, x.hi);
    x.start = t->has_min ? zero : _mm512_sub_epi32(zero, sum);
    x.sum = _mm512_mul_ps(to_float(sum), x.d); /* vanishes where there is no minimum */
    if (t->e8m0)                               /* the exponent is placed for 2^(e - 127) */
        x.d = _mm512_mul_ps(x.d, _mm512_set1_ps(0.5f));
    return x;
}

/* One row's four blocks as two overlapping registers: the first and the last 64 bytes. */
struct nibble_row {
    __m512i head, tail;
};
BL_ALWAYS_INLINE struct nibble_row nibble_load_row(const struct nibble_type *t, const char *p,
                                                   int n_blocks)
{
    const int skip = 4 * t->bytes - 64;
    if (n_blocks == 4)
        return (struct nibble_row){load512(p), load512(p + skip)};
    /* the end of a row: what is there, zeros behind it (3 blocks may pass 64 bytes, 1 block may end
     * before skip) */
    const int there = n_blocks * t->bytes, after = there > skip ? there - skip : 0;
    return (struct nibble_row){
        _mm512_maskz_loadu_epi8(there < 64 ? (1ull << there) - 1 : ~0ull, p),
        _mm512_maskz_loadu_epi8((1ull << after) - 1, p + skip),
    };
}
/* d of each block in lanes 0..15, m in lanes 16..31, as f16 */
BL_ALWAYS_INLINE __m512i nibble_headers(const struct nibble_type *t, struct nibble_row row)
{
    const __m512i h = _mm512_permutexvar_epi16(load512(t->words), row.head);
    if (3 * t->bytes < 62)
        return h;
    /* the last block's header lies beyond the first 64 bytes */
    const short at = (short)((64 - t->bytes) / 2);
    const __m512i idx =
        _mm512_inserti64x4(_mm512_set1_epi16(at), _mm256_set1_epi16((short)(at + t->has_min)), 1);
    return _mm512_mask_permutexvar_epi16(h, 0xf000f000, idx, row.tail);
}
BL_ALWAYS_INLINE __m512 nibble_e8m0(__m512i head)
{
    const __m512i idx =
        _mm512_setr_epi32(0, 0, 0, 0, 17, 17, 17, 17, 34, 34, 34, 34, 51, 51, 51, 51);
    const __m512i e = _mm512_maskz_permutexvar_epi8(0x1111111111111111, idx, head);
    /* 2^(e - 127); e = 0 gives the denormal 2^-127 */
    return _mm512_castsi512_ps(
        _mm512_max_epu32(_mm512_slli_epi32(e, 23), _mm512_set1_epi32(0x00400000)));
}
/* The fifth bits of the low (`half` 0) or high nibbles as 16 in their bytes. Eight bits to eight
 * bytes is one GFNI product: the bits are row 4 of the matrix (its byte 3), the other factor holds
 * the unit vectors. */
BL_ALWAYS_INLINE __m512i nibble_high(const struct nibble_type *t, struct nibble_row row, int half)
{
    const __m512i units = _mm512_set1_epi64((long long)0x8040201008040201u);
    const long long first = t->skip - 4 + 2 * half, b = t->bytes, last = first + 64 - b;
    const __m512i in_head =
        _mm512_setr_epi64(first << 24, (first + 1) << 24, (first + b) << 24, (first + b + 1) << 24,
                          (first + 2 * b) << 24, (first + 2 * b + 1) << 24, 0, 0);
    const __m512i in_tail = _mm512_setr_epi64(0, 0, 0, 0, 0, 0, last << 24, (last + 1) << 24);
    const __m512i m = _mm512_maskz_permutexvar_epi8(0x0000080808080808, in_head, row.head);
    return _mm512_gf2p8affine_epi64_epi8(
        units, _mm512_mask_permutexvar_epi8(m, 0x0808000000000000, in_tail, row.tail), 0);
}

BL_ALWAYS_INLINE __m512 nibble_step(const struct nibble_type *t, const char *p, int n_blocks,
                                    const struct nibble_acts *x, __m512 acc)
{
    /* loaded first: behind the wider load of the same bytes, clang cuts it out of that with scalar
     * shifts */
    const __m128i first = load128(p + t->skip);
    const struct nibble_row row = nibble_load_row(t, p, n_blocks);
    const __m512i q =
        _mm512_inserti32x4(_mm512_permutexvar_epi8(load512(t->gather), row.tail), first, 0);
    __m512i lo, hi;
    if (t->table) {
        lo = _mm512_permutexvar_epi8(q, load512(t->lo));
        hi = _mm512_permutexvar_epi8(_mm512_srli_epi16(q, 2), load512(t->hi));
    } else {
        lo = nibble_lo(q);
        hi = nibble_hi(q);
    }
    if (t->has_high) {
        lo = _mm512_or_si512(lo, nibble_high(t, row, 0));
        hi = _mm512_or_si512(hi, nibble_high(t, row, 1));
    }
    const __m512 v = to_float(dot4(dot4(x->start, lo, x->lo), hi, x->hi));
    if (t->e8m0)
        return _mm512_fmadd_ps(v, _mm512_mul_ps(nibble_e8m0(row.head), x->d), acc);
    const __m512i h = nibble_headers(t, row);
    const __m512 d = _mm512_cvtph_ps(_mm512_castsi512_si256(h));
    if (t->has_min)
        acc = _mm512_fmadd_ps(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(h, 1)), x->sum, acc);
    return _mm512_fmadd_ps(v, _mm512_mul_ps(d, x->d), acc);
}
BL_ALWAYS_INLINE void nibble_group(const struct nibble_type *t, int R, uint32_t k, float *out,
                                   const struct row_group *g, const struct bl_act_block *x)
{
    const int step = 4 * t->bytes;
    const char *w = g->w;
    __m512 acc[ROWS] = {_mm512_setzero_ps()};
    uint32_t b = 0;
    for (; b < k / 128; b++, w += step) {
        prefetch(g, (size_t)b * (size_t)(R * step), R * step);
        const struct nibble_acts xs =
            nibble_load_acts(t, x[b / 2].q + 128 * (b % 2), x[b / 2].d + 4 * (b % 2));
        for (int r = 0; r < R; r++)
            acc[r] = nibble_step(t, w + (size_t)r * g->stride, 4, &xs, acc[r]);
    }
    if (k % 128) { /* the activations behind k are zero */
        const int n_blocks = (int)(k % 128 / 32);
        prefetch(g, (size_t)b * (size_t)(R * step), R * n_blocks * t->bytes);
        const struct nibble_acts xs =
            nibble_load_acts(t, x[b / 2].q + 128 * (b % 2), x[b / 2].d + 4 * (b % 2));
        for (int r = 0; r < R; r++)
            acc[r] = nibble_step(t, w + (size_t)r * g->stride, n_blocks, &xs, acc[r]);
    }
    store_sums(R, out, acc);
}

/* ---- MXFP4, one row at a time ----
 *
 * What belongs to the activations alone would then be done again for every row, a third of all
 * instructions: it is prepared for the rows of a call. The other types wait for memory anyway, and
 * reading what was prepared slows that: Q4_0 to 0.89 for rows of 4096, MXFP4 to 0.96 (Zen 5). */

enum { PREPARED = 3072 / 128 }; /* steps of the longest rows */

BL_ALWAYS_INLINE void nibble_prepare(const struct nibble_type *t, uint32_t k,
                                     struct nibble_acts *xs, const struct bl_act_block *x)
{
    for (uint32_t b = 0; b * 128 < k; b++)
        xs[b] = nibble_load_acts(t, x[b / 2].q + 128 * (b % 2), x[b / 2].d + 4 * (b % 2));
}
/* Two steps together: they share a line to prefetch, and their sums do not wait for each other. */
BL_ALWAYS_INLINE void nibble_one(const struct nibble_type *t, uint32_t k, float *out,
                                 const struct row_group *g, const struct nibble_acts *xs)
{
    const int step = 4 * t->bytes;
    const uint32_t whole = k / 128;
    const char *w = g->w;
    __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
    uint32_t b = 0;
    for (; b + 2 <= whole; b += 2, w += 2 * step) {
        prefetch(g, (size_t)b * (size_t)step, step);
        even = nibble_step(t, w, 4, xs + b, even);
        prefetch(g, (size_t)(b + 1) * (size_t)step, step);
        odd = nibble_step(t, w + step, 4, xs + b + 1, odd);
    }
    const int n_blocks = (int)(k % 256 / 32), n_last = n_blocks % 4;
    prefetch(g, (size_t)b * (size_t)step, n_blocks * t->bytes);
    if (b < whole) {
        even = nibble_step(t, w, 4, xs + b++, even);
        w += step;
    }
    if (n_last)
        odd = nibble_step(t, w, n_last, xs + b, odd);
    even = _mm512_add_ps(even, odd);
    store_sums(1, out, &even);
}

#define NIBBLE_GROUP(type)                                                                         \
    BL_ALWAYS_INLINE void type##_group(int R, uint32_t k, float *out, const struct row_group *g,   \
                                       const void *x)                                              \
    {                                                                                              \
        nibble_group(&type##_type, R, k, out, g, x);                                               \
    }
NIBBLE_GROUP(q4_0)
NIBBLE_GROUP(q4_1)
NIBBLE_GROUP(q5_0)
NIBBLE_GROUP(q5_1)
NIBBLE_GROUP(iq4_nl)
NIBBLE_GROUP(mxfp4)

/* ---- NVFP4: blocks of 64 with a scale for 16; byte i of eight holds elements i and 8 + i ---- */

/* Eight bytes of unsigned E4M3 times 2^-8, each in two lanes. As the exponent and mantissa of an
 * f16 they convert subnormal values too; 7f is zero. */
BL_ALWAYS_INLINE __m512 nvfp4_scales(uint64_t bytes)
{
    const __m256i spread = _mm256_setr_epi8(0, -1, 0, -1, 1, -1, 1, -1, 2, -1, 2, -1, 3, -1, 3, -1,
                                            4, -1, 4, -1, 5, -1, 5, -1, 6, -1, 6, -1, 7, -1, 7, -1);
    const __m256i e = _mm256_shuffle_epi8(_mm256_set1_epi64x((long long)bytes), spread);
    const __mmask16 some = _mm256_cmpneq_epi16_mask(e, _mm256_set1_epi16(0x7f));
    const __m256i h = _mm256_slli_epi16(_mm256_and_si256(e, _mm256_set1_epi16(0x7f)), 7);
    return _mm512_cvtph_ps(_mm256_maskz_mov_epi16(some, h));
}
/* One or two blocks of R rows; activations behind the last block are zero. */
BL_ALWAYS_INLINE void nvfp4_step(int R, int n, const char *w, size_t stride, const int8_t *q,
                                 const float *dx, __m512 *acc)
{
    enum { SIZE = 36 };
    const __m512i even = _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14);
    const __m512i odd = _mm512_add_epi64(even, _mm512_set1_epi64(1));
    const __m512i idx_d = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    const __m512i a = load512(q), b = load512(q + 64);
    const __m512i lo = _mm512_permutex2var_epi64(a, even, b);
    const __m512i hi = _mm512_permutex2var_epi64(a, odd, b);
    const __m512i start = _mm512_add_epi32(bias_start(lo, 12), bias_start(hi, 12));
    /* 2^8 of the scales, half because the table holds twice the values */
    const __m512 d =
        _mm512_mul_ps(_mm512_permutexvar_ps(idx_d, _mm512_broadcast_f32x4(_mm_loadu_ps(dx))),
                      _mm512_set1_ps(128));
    for (int r = 0; r < R; r++, w += stride) {
        const char *second = n > 1 ? w + SIZE : w;
        const __m512i v = load_halves(w + 4, second + 4);
        const uint64_t scales = bl_load_u32(w) | (n > 1 ? (uint64_t)bl_load_u32(second) << 32 : 0);
        const __m512i v_lo = _mm512_permutexvar_epi8(v, load512(mxfp4_type.lo));
        const __m512i v_hi =
            _mm512_permutexvar_epi8(_mm512_srli_epi16(v, 2), load512(mxfp4_type.hi));
        acc[r] = _mm512_fmadd_ps(to_float(dot4(dot4(start, v_lo, lo), v_hi, hi)),
                                 _mm512_mul_ps(nvfp4_scales(scales), d), acc[r]);
    }
}
BL_ALWAYS_INLINE void nvfp4_group(int R, uint32_t k, float *out, const struct row_group *g,
                                  const void *xv)
{
    enum { STEP = 72 };
    const struct bl_act_block *x = xv;
    const char *w = g->w;
    __m512 acc[ROWS] = {_mm512_setzero_ps()};
    uint32_t b = 0;
    for (; b < k / 128; b++, w += STEP) {
        prefetch(g, (size_t)b * (size_t)(R * STEP), R * STEP);
        nvfp4_step(R, 2, w, g->stride, x[b / 2].q + 128 * (b % 2), x[b / 2].d + 4 * (b % 2), acc);
    }
    if (k % 128)
        nvfp4_step(R, 1, w, g->stride, x[b / 2].q + 128 * (b % 2), x[b / 2].d + 4 * (b % 2), acc);
    store_sums(R, out, acc);
}

DOT_ENTRY(dot_f32_f32_1__avx512, f32_group, 1)
DOT_ENTRY(dot_f16_f32_1__avx512, f16_group, 1)
DOT_ENTRY(dot_bf16_f32_1__avx512, bf16_group, 1)
DOT_ENTRY(dot_q8_0_act_1__avx512, q8_0_group, 1)
DOT_ENTRY(dot_q4_0_act_4__avx512, q4_0_group, ROWS)
DOT_ENTRY(dot_q4_1_act_4__avx512, q4_1_group, ROWS)
DOT_ENTRY(dot_q5_0_act_4__avx512, q5_0_group, ROWS)
DOT_ENTRY(dot_q5_1_act_4__avx512, q5_1_group, ROWS)
DOT_ENTRY(dot_iq4_nl_act_4__avx512, iq4_nl_group, ROWS)
DOT_ENTRY(dot_mxfp4_act_4__avx512, mxfp4_group, ROWS)
DOT_ENTRY(dot_nvfp4_act_4__avx512, nvfp4_group, ROWS)

DOT_ENTRY(dot_q4_0_act_1__avx512, q4_0_group, 1)
DOT_ENTRY(dot_q4_1_act_1__avx512, q4_1_group, 1)
DOT_ENTRY(dot_iq4_nl_act_1__avx512, iq4_nl_group, 1)

BL_ALWAYS_INLINE void mxfp4_one(int R, uint32_t k, float *out, const struct row_group *g,
                                const void *xs)
{
    (void)R;
    nibble_one(&mxfp4_type, k, out, g, xs);
}
/* apart: beside the other loop this one took 1.05 times as long */
BL_NOINLINE DOT_ENTRY(long_mxfp4, mxfp4_group,
                      1) static void dot_mxfp4_act_1__avx512(uint32_t k, uint32_t rows, float *out,
                                                             const void *w, size_t w_stride,
                                                             const void *x, const void *next)
{
    if (k > PREPARED * 128) {
        long_mxfp4(k, rows, out, w, w_stride, x, next);
        return;
    }
    struct dot_rows a = dot_rows_of(k, rows, out, w, w_stride, x, next);
    struct nibble_acts xs[PREPARED];
    nibble_prepare(&mxfp4_type, k, xs, x);
    a.x = xs;
    walk_rows(mxfp4_one, 1, &a);
}

void bl_cpu_avx512_dot32(struct bl_cpu_kernels *t)
{
    DOT_SET(t, BL_F32, dot_f32_f32_1__avx512, 1);
    DOT_SET(t, BL_F16, dot_f16_f32_1__avx512, 1);
    DOT_SET(t, BL_BF16, dot_bf16_f32_1__avx512, 1);
    DOT_SET(t, BL_Q8_0, dot_q8_0_act_1__avx512, 1);
    DOT_SET(t, BL_Q4_0, dot_q4_0_act_4__avx512, ROWS);
    DOT_SET(t, BL_Q4_1, dot_q4_1_act_4__avx512, ROWS);
    DOT_SET(t, BL_Q5_0, dot_q5_0_act_4__avx512, ROWS);
    DOT_SET(t, BL_Q5_1, dot_q5_1_act_4__avx512, ROWS);
    DOT_SET(t, BL_IQ4_NL, dot_iq4_nl_act_4__avx512, ROWS);
    DOT_SET(t, BL_MXFP4, dot_mxfp4_act_4__avx512, ROWS);
    DOT_SET(t, BL_NVFP4, dot_nvfp4_act_4__avx512, ROWS);
}
void bl_cpu_avx512_dot32_one(struct bl_cpu_kernels *t)
{
    DOT_SET(t, BL_Q4_0, dot_q4_0_act_1__avx512, 1);
    DOT_SET(t, BL_Q4_1, dot_q4_1_act_1__avx512, 1);
    DOT_SET(t, BL_IQ4_NL, dot_iq4_nl_act_1__avx512, 1);
    DOT_SET(t, BL_MXFP4, dot_mxfp4_act_1__avx512, 1);
}

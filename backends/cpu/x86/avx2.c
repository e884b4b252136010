/* SPDX-License-Identifier: MIT */
/* AVX2: activations, norms, gates and rotations; and the one door to all kernels of this
 * instruction set. */
#include "avx2.h"

/* Loops run over whole vectors and end with a short one by way of a copy: masked stores are
 * microcoded on some CPUs, and masked loads are not emulated without touching what is masked. */
BL_ALWAYS_INLINE __m256 load_some(const float *p, uint32_t left)
{
    if (left >= 8)
        return _mm256_loadu_ps(p);
    float tail[8] = {0};
    memcpy(tail, p, left * sizeof *p);
    return _mm256_loadu_ps(tail);
}
BL_ALWAYS_INLINE void store_some(float *p, uint32_t left, __m256 v)
{
    if (left >= 8) {
        _mm256_storeu_ps(p, v);
        return;
    }
    float tail[8];
    _mm256_storeu_ps(tail, v);
    memcpy(p, tail, left * sizeof *p);
}
/* v with zeros from lane `left` on */
BL_ALWAYS_INLINE __m256 first_lanes(__m256 v, uint32_t left)
{
    const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i in = _mm256_cmpgt_epi32(_mm256_set1_epi32(left < 8 ? (int)left : 8), index);
    return _mm256_and_ps(v, _mm256_castsi256_ps(in));
}

/* ---- activations: bit for bit what the scalar quantisers give ---- */

/* The largest |x| as bits: without sign floats are ordered as integers, NaN last. */
BL_ALWAYS_INLINE __m256i max_bits(__m256i most, const float *x)
{
    const __m256i bits = _mm256_and_si256(load256(x), _mm256_set1_epi32(0x7fffffff));
    return _mm256_max_epu32(most, bits);
}
BL_ALWAYS_INLINE float step_of(__m256i most)
{
    __m128i m = _mm_max_epu32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1));
    return _mm_cvtss_f32(_mm_castsi128_ps(m)) / 127.0f;
}
/* x / d to the nearest integer. A division and not a product with 1 / d, which would now and then
 * round to another integer than the specification. The limits act only where d is subnormal, or
 * NaN, which gives the lower one. */
BL_ALWAYS_INLINE __m256i quantize_8(const float *x, __m256 d)
{
    const __m256 v = _mm256_max_ps(_mm256_div_ps(_mm256_loadu_ps(x), d), _mm256_set1_ps(-127.0f));
    return _mm256_cvtps_epi32(_mm256_min_ps(v, _mm256_set1_ps(127.0f)));
}
BL_ALWAYS_INLINE void quantize_32_values(int8_t *q, const float *x, float d)
{
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256 ds = _mm256_set1_ps(d);
    const __m256i a = _mm256_packs_epi32(quantize_8(x, ds), quantize_8(x + 8, ds));
    const __m256i b = _mm256_packs_epi32(quantize_8(x + 16, ds), quantize_8(x + 24, ds));
    __m256i v = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(a, b), order);
    if (d == 0) /* where x / d is not a number */
        v = _mm256_setzero_si256();
    _mm256_storeu_si256((__m256i *)(void *)q, v);
}
/* Sums of two in words of the 32 values at q. */
BL_ALWAYS_INLINE __m256i pair_sums(const int8_t *q)
{
    return _mm256_maddubs_epi16(_mm256_set1_epi8(1), load256(q));
}
/* Sums of eight of 128 values, in each half the even or the odd half of 16: a tree of horizontal
 * adds. */
BL_ALWAYS_INLINE __m256i quarter_sums(const int8_t *q)
{
    return _mm256_hadd_epi16(_mm256_hadd_epi16(pair_sums(q), pair_sums(q + 32)),
                             _mm256_hadd_epi16(pair_sums(q + 64), pair_sums(q + 96)));
}
BL_ALWAYS_INLINE void sums_of_16(struct bl_act_block *b)
{
    /* lower half: sums 0, 2, .. 14; upper half: sums 1, 3, .. 15 */
    const __m256i s = _mm256_hadd_epi16(quarter_sums(b->q), quarter_sums(b->q + 128));
    const __m128i even = _mm256_castsi256_si128(s), odd = _mm256_extracti128_si256(s, 1);
    _mm_store_si128((__m128i *)(void *)b->sum, _mm_unpacklo_epi16(even, odd));
    _mm_store_si128((__m128i *)(void *)(b->sum + 8), _mm_unpackhi_epi16(even, odd));
}
BL_ALWAYS_INLINE void quantize_block(struct bl_act_block *b, const float *x, int group)
{
    for (int at = 0; at < 256; at += group) {
        __m256i most = _mm256_setzero_si256();
        for (int i = at; i < at + group; i += 8)
            most = max_bits(most, x + i);
        const float d = step_of(most);
        for (int i = at; i < at + group; i += 32) {
            quantize_32_values(b->q + i, x + i, d);
            b->d[i / 32] = d;
        }
    }
    sums_of_16(b);
}
BL_ALWAYS_INLINE void quantize(uint32_t k, struct bl_act_block *dst, const float *src, int group)
{
    for (; k >= 256; k -= 256, dst++, src += 256)
        quantize_block(dst, src, group);
    if (k) {
        float x[256] = {0};
        memcpy(x, src, k * sizeof *x);
        quantize_block(dst, x, group);
    }
}
static void quantize_32(uint32_t k, struct bl_act_block *dst, const float *src)
{
    quantize(k, dst, src, 32);
}
static void quantize_256(uint32_t k, struct bl_act_block *dst, const float *src)
{
    quantize(k, dst, src, 256);
}

/* ---- norm, sum ---- */

/* Sums that run over a whole row are kept in double, as the specification does. */
BL_ALWAYS_INLINE __m256d lower_half(__m256 v)
{
    return _mm256_cvtps_pd(_mm256_castps256_ps128(v));
}
BL_ALWAYS_INLINE __m256d upper_half(__m256 v)
{
    return _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1));
}
BL_ALWAYS_INLINE double sum_doubles(__m256d v)
{
    const __m128d s = _mm_add_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd(v, 1));
    return _mm_cvtsd_f64(_mm_add_sd(s, _mm_unpackhi_pd(s, s)));
}
static void rms_norm(uint32_t n, float *y, const float *x, const float *w, float eps)
{
    __m256d sum_lo[2] = {_mm256_setzero_pd(), _mm256_setzero_pd()},
            sum_hi[2] = {sum_lo[0], sum_lo[0]};
    for (uint32_t i = 0; i < n;)
        for (int c = 0; c < 2; c++, i += 8) { /* chains that do not wait for each other */
            const __m256 v = load_some(x + i, i < n ? n - i : 0);
            const __m256d lo = lower_half(v), hi = upper_half(v);
            sum_lo[c] = _mm256_fmadd_pd(lo, lo, sum_lo[c]);
            sum_hi[c] = _mm256_fmadd_pd(hi, hi, sum_hi[c]);
        }
    const __m256d lo = _mm256_add_pd(sum_lo[0], sum_lo[1]),
                  hi = _mm256_add_pd(sum_hi[0], sum_hi[1]);
    const double mean = sum_doubles(_mm256_add_pd(lo, hi)) / n;
    const __m128d root = _mm_sqrt_sd(_mm_setzero_pd(), _mm_set_sd(mean + (double)eps));
    const __m256 scale = _mm256_set1_ps((float)(1 / _mm_cvtsd_f64(root)));
    for (uint32_t i = 0; i < n; i += 8) {
        const __m256 v = _mm256_mul_ps(load_some(x + i, n - i), scale);
        store_some(y + i, n - i, _mm256_mul_ps(v, load_some(w + i, n - i)));
    }
}

/* 2^n for n in -126 .. 127 */
BL_ALWAYS_INLINE __m256 power_of_two(__m256i n)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
/* e^x = 2^n e^r with |r| <= ln 2 / 2 and a polynomial of degree 6, whose own relative error is 3e-9
 * (minimax, computed for this file). Within 1.1 ulp where the result is normal; below -104 exactly
 * 0, above 89 infinity; NaN stays NaN. 2^n is applied in two halves, so that results may be
 * subnormal or overflow. */
BL_ALWAYS_INLINE __m256 exp_vector(__m256 x)
{
    x = _mm256_max_ps(_mm256_set1_ps(-104.0f), _mm256_min_ps(_mm256_set1_ps(100.0f), x));
    const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(0x1.715476p+0f)),
                                     _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0x1.62e43p-1f), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-0x1.05c61p-29f), r);
    __m256 p = _mm256_set1_ps(0x1.6a2434p-10f);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.1239e2p-7f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.5558f2p-5f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.555492p-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.fffffcp-2f));
    p = _mm256_fmadd_ps(_mm256_mul_ps(r, r), p, r);
    p = _mm256_add_ps(p, _mm256_set1_ps(1.0f));
    const __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
    p = _mm256_mul_ps(p, power_of_two(half));
    return _mm256_mul_ps(p, power_of_two(_mm256_sub_epi32(whole, half)));
}
static float exp_sum(uint32_t n, float *x, float max)
{
    const __m256 top = _mm256_set1_ps(max);
    __m256d sum_lo = _mm256_setzero_pd(), sum_hi = sum_lo;
    for (uint32_t i = 0; i < n; i += 8) {
        __m256 e = exp_vector(_mm256_sub_ps(load_some(x + i, n - i), top));
        store_some(x + i, n - i, e);
        e = first_lanes(e, n - i);
        sum_lo = _mm256_add_pd(sum_lo, lower_half(e));
        sum_hi = _mm256_add_pd(sum_hi, upper_half(e));
    }
    return (float)sum_doubles(_mm256_add_pd(sum_lo, sum_hi));
}

/* ---- gates ---- */

/* g / (1 + e^-z) */
BL_ALWAYS_INLINE __m256 gated(__m256 g, __m256 z)
{
    const __m256 e = exp_vector(_mm256_sub_ps(_mm256_setzero_ps(), z));
    return _mm256_div_ps(g, _mm256_add_ps(_mm256_set1_ps(1.0f), e));
}
static void silu_mul(uint32_t n, float *y, const float *gate, const float *up)
{
    for (uint32_t i = 0; i < n; i += 8) {
        const __m256 g = load_some(gate + i, n - i), u = load_some(up + i, n - i);
        store_some(y + i, n - i, _mm256_mul_ps(gated(g, g), u));
    }
}
/* 0.5 g (1 + tanh(z)) = g / (1 + e^-2z), z = sqrt(2 / pi) g (1 + 0.044715 g^2) */
static void gelu_mul(uint32_t n, float *y, const float *gate, const float *up)
{
    const __m256 twice_root = _mm256_set1_ps(2 * 0.797884560802865355879892f);
    const __m256 cubic = _mm256_set1_ps(0.044715f), one = _mm256_set1_ps(1.0f);
    for (uint32_t i = 0; i < n; i += 8) {
        const __m256 g = load_some(gate + i, n - i), u = load_some(up + i, n - i);
        const __m256 bend = _mm256_fmadd_ps(_mm256_mul_ps(cubic, g), g, one);
        const __m256 z = _mm256_mul_ps(_mm256_mul_ps(twice_root, g), bend);
        store_some(y + i, n - i, _mm256_mul_ps(gated(g, z), u));
    }
}
static void sigmoid_mul(uint32_t n, float *y, const float *gate, const float *up)
{
    for (uint32_t i = 0; i < n; i += 8) {
        const __m256 g = load_some(gate + i, n - i), u = load_some(up + i, n - i);
        store_some(y + i, n - i, gated(u, g));
    }
}
static void swiglu_oai(uint32_t n, float *y, const float *gate, const float *up, float alpha,
                       float limit)
{
    const __m256 high = _mm256_set1_ps(limit), low = _mm256_set1_ps(-limit);
    const __m256 slope = _mm256_set1_ps(alpha), one = _mm256_set1_ps(1.0f);
    for (uint32_t i = 0; i < n; i += 8) {
        const __m256 g = _mm256_min_ps(high, load_some(gate + i, n - i));
        const __m256 u = _mm256_max_ps(low, _mm256_min_ps(high, load_some(up + i, n - i)));
        const __m256 v = gated(g, _mm256_mul_ps(slope, g));
        store_some(y + i, n - i, _mm256_mul_ps(v, _mm256_add_ps(u, one)));
    }
}

/* ---- additions, rotations ---- */

static void add(uint32_t n, float *y, const float *a, const float *b)
{
    for (uint32_t i = 0; i < n; i += 8)
        store_some(y + i, n - i, _mm256_add_ps(load_some(a + i, n - i), load_some(b + i, n - i)));
}
static void axpy(uint32_t n, float *y, float a, const float *x)
{
    const __m256 factor = _mm256_set1_ps(a);
    for (uint32_t i = 0; i < n; i += 8)
        store_some(y + i, n - i,
                   _mm256_fmadd_ps(factor, load_some(x + i, n - i), load_some(y + i, n - i)));
}
static void mix(uint32_t n, uint32_t m, float *y, const float *a, const float *const *x)
{
    for (uint32_t i = 0; i < n; i += 8) {
        __m256 sum = _mm256_mul_ps(_mm256_set1_ps(a[0]), load_some(x[0] + i, n - i));
        for (uint32_t j = 1; j < m; j++)
            sum = _mm256_fmadd_ps(_mm256_set1_ps(a[j]), load_some(x[j] + i, n - i), sum);
        store_some(y + i, n - i, sum);
    }
}
/* Neighbours are pairs: even lanes x0 c - x1 s, odd lanes x1 c + x0 s. */
static void rope_norm(uint32_t n_dims, float *y, const float *x, const float *angles)
{
    for (uint32_t i = 0; i < n_dims; i += 8) {
        const uint32_t left = n_dims - i;
        const __m256 v = load_some(x + i, left), a = load_some(angles + i, left);
        const __m256 cross = _mm256_mul_ps(_mm256_permute_ps(v, 0xb1), _mm256_movehdup_ps(a));
        store_some(y + i, left, _mm256_fmaddsub_ps(v, _mm256_moveldup_ps(a), cross));
    }
}
/* Pairs lie half a head apart. */
static void rope_neox(uint32_t n_dims, float *y, const float *x, const float *angles)
{
    const __m256i order = _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7);
    const uint32_t half = n_dims / 2;
    for (uint32_t i = 0; i < half; i += 8) {
        const uint32_t left = half - i;
        const __m256 a = load_some(angles + 2 * i, 2 * left);
        const __m256 b = left > 4 ? load_some(angles + 2 * i + 8, 2 * left - 8) : a;
        /* even and odd lanes of both; the in-lane shuffle leaves quarters 0 2 1 3 */
        const __m256 c = _mm256_permutevar8x32_ps(_mm256_shuffle_ps(a, b, 0x88), order);
        const __m256 s = _mm256_permutevar8x32_ps(_mm256_shuffle_ps(a, b, 0xdd), order);
        const __m256 x0 = load_some(x + i, left), x1 = load_some(x + i + half, left);
        store_some(y + i, left, _mm256_fmsub_ps(x0, c, _mm256_mul_ps(x1, s)));
        store_some(y + i + half, left, _mm256_fmadd_ps(x0, s, _mm256_mul_ps(x1, c)));
    }
}

/* ---- delta rule ---- */

BL_ALWAYS_INLINE float sum_floats(__m256 v)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
/* Rows side by side, so that their sums do not wait for each other; each as if it were alone. While
 * they are written, rows that lie 4 KiB on are fetched: four rows in turns are nothing that
 * hardware would foresee, and from memory a row of 128 then takes 45 ns, not 100. */
BL_ALWAYS_INLINE void delta_rows(uint32_t dk, int rows, float *y, float *s, const float *v,
                                 const struct bl_delta_token *t)
{
    const __m256 decay = _mm256_set1_ps(t->decay);
    __m256 sum[4], d[4];
    for (int r = 0; r < rows; r++)
        sum[r] = _mm256_setzero_ps();
    for (uint32_t i = 0; i < dk; i += 8) {
        const __m256 k = load_some(t->k + i, dk - i);
        for (int r = 0; r < rows; r++)
            sum[r] = _mm256_fmadd_ps(load_some(s + (size_t)r * dk + i, dk - i), k, sum[r]);
    }
    for (int r = 0; r < rows; r++) {
        float value = v[r];
        /* In a register: emulators read 16 bytes for the memory operand of a scalar FMA. */
        __asm__("" : "+x"(value));
        d[r] = _mm256_set1_ps(t->beta * (value - t->decay * sum_floats(sum[r])));
        sum[r] = _mm256_setzero_ps();
    }
    for (uint32_t i = 0; i < dk; i += 8) {
        const __m256 k = load_some(t->k + i, dk - i), q = load_some(t->q + i, dk - i);
        for (int r = 0; r < rows; r++) {
            float *at = s + (size_t)r * dk + i;
            _mm_prefetch((const void *)((uintptr_t)at + 4096), _MM_HINT_T0);
            const __m256 kept = _mm256_mul_ps(decay, load_some(at, dk - i));
            const __m256 now = _mm256_fmadd_ps(k, d[r], kept);
            store_some(at, dk - i, now);
            sum[r] = _mm256_fmadd_ps(now, q, sum[r]);
        }
    }
    for (int r = 0; r < rows; r++)
        y[r] = sum_floats(sum[r]);
}
static void delta_rule(uint32_t dk, uint32_t rows, float *y, float *s, const float *v,
                       const struct bl_delta_token *t)
{
    uint32_t r = 0;
    for (; r + 4 <= rows; r += 4)
        delta_rows(dk, 4, y + r, s + (size_t)r * dk, v + r, t);
    for (; r < rows; r++)
        delta_rows(dk, 1, y + r, s + (size_t)r * dk, v + r, t);
}

void bl_cpu_avx2(struct bl_cpu_kernels *t)
{
    t->quantize_name = "quantize_f32_act_256__avx2";
    t->quantize_32 = quantize_32;
    t->quantize_256 = quantize_256;
    t->norm_name = "rms_norm_f32_f32_8__avx2";
    t->rms_norm = rms_norm;
    t->softmax_name = "exp_sum_f32_f32_8__avx2";
    t->exp_sum = exp_sum;
    t->glu_name = "glu_f32_f32_8__avx2";
    t->silu_mul = silu_mul;
    t->gelu_mul = gelu_mul;
    t->swiglu_oai = swiglu_oai;
    t->sigmoid_mul = sigmoid_mul;
    t->add_name = "add_f32_f32_8__avx2";
    t->add = add;
    t->axpy = axpy;
    t->mix = mix;
    t->rope_name = "rope_f32_f32_8__avx2";
    t->rope_norm = rope_norm;
    t->rope_neox = rope_neox;
    t->delta_name = "delta_rule_f32_f32_4__avx2";
    t->delta_rule = delta_rule;
    bl_cpu_avx2_float(t);
    bl_cpu_avx2_dot32(t);
    bl_cpu_avx2_kquant(t);
    bl_cpu_avx2_iquant(t);
    bl_cpu_avx2_lowbit(t);
    bl_cpu_avx2_panel_f32(t);
    bl_cpu_avx2_panel(t);
    bl_cpu_avx2_attend(t);
    bl_cpu_avx2_few(t);
    bl_cpu_avx2_recurrent(t);
}

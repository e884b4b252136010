/* SPDX-License-Identifier: MIT */
/* AVX-512: activations, norms, gates and rotations; and the one door to all kernels of this
 * instruction set. */
#include "avx512.h"

/* Lanes of the last, short vector. */
BL_ALWAYS_INLINE __mmask16 lanes(uint32_t left)
{
    return left < 16 ? (__mmask16)((1u << left) - 1) : 0xffff;
}

/* ---- activations: bit for bit what the scalar quantisers give ---- */

/* The largest |x| as bits: without sign floats are ordered as integers, NaN last. */
BL_ALWAYS_INLINE __m512i max_bits(__m512i most, const float *x)
{
    const __m512i bits = _mm512_and_si512(load512(x), _mm512_set1_epi32(0x7fffffff));
    return _mm512_max_epu32(most, bits);
}
BL_ALWAYS_INLINE float step_of(__m512i most)
{
    const uint32_t bits = _mm512_reduce_max_epu32(most);
    float m;
    memcpy(&m, &bits, sizeof m);
    return m / 127.0f;
}
/* q = x / d to the nearest integer. A division and not a product with 1 / d, which would now and
 * then round to another integer than the specification. d = 0 gives zeros; otherwise the limits act
 * only where d is subnormal, or NaN. */
BL_ALWAYS_INLINE void quantize_16(int8_t *q, const float *x, float d)
{
    const __mmask16 some = d != 0 ? 0xffff : 0;
    const __m512 v = _mm512_div_ps(_mm512_loadu_ps(x), _mm512_set1_ps(d));
    const __m512 low = _mm512_max_ps(v, _mm512_set1_ps(-127.0f)); /* NaN gives the limit */
    const __m512i i = _mm512_maskz_cvtps_epi32(some, _mm512_min_ps(low, _mm512_set1_ps(127.0f)));
    _mm_storeu_si128((__m128i *)(void *)q, _mm512_cvtepi32_epi8(i));
}
/* Half sums of 16 by vpsadbw on values + 128, eight in a register. */
BL_ALWAYS_INLINE __m128i half_sums(const int8_t *q)
{
    const __m512i u = _mm512_xor_si512(load512(q), _mm512_set1_epi8(-128));
    return _mm512_cvtepi64_epi16(_mm512_sad_epu8(u, _mm512_setzero_si512()));
}
BL_ALWAYS_INLINE void sums_of_16(struct bl_act_block *b)
{
    for (int i = 0; i < 2; i++) {
        const __m128i s = _mm_hadd_epi16(half_sums(b->q + 128 * i), half_sums(b->q + 128 * i + 64));
        _mm_store_si128((__m128i *)(void *)(b->sum + 8 * i),
                        _mm_sub_epi16(s, _mm_set1_epi16(16 * 128)));
    }
}
BL_ALWAYS_INLINE void quantize_block(struct bl_act_block *b, const float *x, int group)
{
    for (int at = 0; at < 256; at += group) {
        __m512i most = _mm512_setzero_si512();
        for (int i = at; i < at + group; i += 16)
            most = max_bits(most, x + i);
        const float d = step_of(most);
        for (int i = at; i < at + group; i += 16)
            quantize_16(b->q + i, x + i, d);
        for (int i = at; i < at + group; i += 32)
            b->d[i / 32] = d;
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
struct wide {
    __m512d lo, hi;
};
BL_ALWAYS_INLINE __m512d upper_half(__m512 v)
{
    return _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1));
}
BL_ALWAYS_INLINE __m512d lower_half(__m512 v)
{
    return _mm512_cvtps_pd(_mm512_castps512_ps256(v));
}
static void rms_norm(uint32_t n, float *y, const float *x, const float *w, float eps)
{
    struct wide sum[2] = {{_mm512_setzero_pd(), _mm512_setzero_pd()},
                          {_mm512_setzero_pd(), _mm512_setzero_pd()}};
    for (uint32_t i = 0; i < n;)
        for (int c = 0; c < 2; c++, i += 16) { /* chains that do not wait for each other */
            const __m512 v = _mm512_maskz_loadu_ps(i < n ? lanes(n - i) : 0, x + i);
            const __m512d lo = lower_half(v), hi = upper_half(v);
            sum[c].lo = _mm512_fmadd_pd(lo, lo, sum[c].lo);
            sum[c].hi = _mm512_fmadd_pd(hi, hi, sum[c].hi);
        }
    const __m512d lo = _mm512_add_pd(sum[0].lo, sum[1].lo),
                  hi = _mm512_add_pd(sum[0].hi, sum[1].hi);
    const double mean = _mm512_reduce_add_pd(_mm512_add_pd(lo, hi)) / n;
    const __m128d root = _mm_sqrt_sd(_mm_setzero_pd(), _mm_set_sd(mean + (double)eps));
    const __m512 scale = _mm512_set1_ps((float)(1 / _mm_cvtsd_f64(root)));
    for (uint32_t i = 0; i < n; i += 16) {
        const __mmask16 m = lanes(n - i);
        const __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(m, x + i), scale);
        _mm512_mask_storeu_ps(y + i, m, _mm512_mul_ps(v, _mm512_maskz_loadu_ps(m, w + i)));
    }
}

/* e^x = 2^n e^r with |r| <= ln 2 / 2 and a polynomial of degree 6, whose own relative error is 3e-9
 * (minimax, computed for this file). Within 1.1 ulp where the result is normal; below -104 exactly
 * 0, above 89 infinity; NaN stays NaN. */
BL_ALWAYS_INLINE __m512 exp_vector(__m512 x)
{
    x = _mm512_max_ps(_mm512_set1_ps(-104.0f), _mm512_min_ps(_mm512_set1_ps(100.0f), x));
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(0x1.715476p+0f)),
                                          _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0x1.62e43p-1f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-0x1.05c61p-29f), r);
    __m512 p = _mm512_set1_ps(0x1.6a2434p-10f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.1239e2p-7f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.5558f2p-5f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.555492p-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.fffffcp-2f));
    p = _mm512_fmadd_ps(_mm512_mul_ps(r, r), p, r);
    return _mm512_scalef_ps(_mm512_add_ps(p, _mm512_set1_ps(1.0f)), n);
}
static float exp_sum(uint32_t n, float *x, float max)
{
    const __m512 top = _mm512_set1_ps(max);
    struct wide sum = {_mm512_setzero_pd(), _mm512_setzero_pd()};
    for (uint32_t i = 0; i < n; i += 16) {
        const __mmask16 m = lanes(n - i);
        const __m512 e = exp_vector(_mm512_sub_ps(_mm512_maskz_loadu_ps(m, x + i), top));
        _mm512_mask_storeu_ps(x + i, m, e);
        const __m512 counted = _mm512_maskz_mov_ps(m, e);
        sum.lo = _mm512_add_pd(sum.lo, lower_half(counted));
        sum.hi = _mm512_add_pd(sum.hi, upper_half(counted));
    }
    return (float)_mm512_reduce_add_pd(_mm512_add_pd(sum.lo, sum.hi));
}

/* ---- gates ---- */

/* g / (1 + e^-z) */
BL_ALWAYS_INLINE __m512 gated(__m512 g, __m512 z)
{
    const __m512 e = exp_vector(_mm512_sub_ps(_mm512_setzero_ps(), z));
    return _mm512_div_ps(g, _mm512_add_ps(_mm512_set1_ps(1.0f), e));
}
static void silu_mul(uint32_t n, float *y, const float *gate, const float *up)
{
    for (uint32_t i = 0; i < n; i += 16) {
        const __mmask16 m = lanes(n - i);
        const __m512 g = _mm512_maskz_loadu_ps(m, gate + i), u = _mm512_maskz_loadu_ps(m, up + i);
        _mm512_mask_storeu_ps(y + i, m, _mm512_mul_ps(gated(g, g), u));
    }
}
/* 0.5 g (1 + tanh(z)) = g / (1 + e^-2z), z = sqrt(2 / pi) g (1 + 0.044715 g^2) */
static void gelu_mul(uint32_t n, float *y, const float *gate, const float *up)
{
    const __m512 twice_root = _mm512_set1_ps(2 * 0.797884560802865355879892f);
    const __m512 cubic = _mm512_set1_ps(0.044715f), one = _mm512_set1_ps(1.0f);
    for (uint32_t i = 0; i < n; i += 16) {
        const __mmask16 m = lanes(n - i);
        const __m512 g = _mm512_maskz_loadu_ps(m, gate + i), u = _mm512_maskz_loadu_ps(m, up + i);
        const __m512 bend = _mm512_fmadd_ps(_mm512_mul_ps(cubic, g), g, one);
        const __m512 z = _mm512_mul_ps(_mm512_mul_ps(twice_root, g), bend);
        _mm512_mask_storeu_ps(y + i, m, _mm512_mul_ps(gated(g, z), u));
    }
}
static void sigmoid_mul(uint32_t n, float *y, const float *gate, const float *up)
{
    for (uint32_t i = 0; i < n; i += 16) {
        const __mmask16 m = lanes(n - i);
        const __m512 g = _mm512_maskz_loadu_ps(m, gate + i), u = _mm512_maskz_loadu_ps(m, up + i);
        _mm512_mask_storeu_ps(y + i, m, gated(u, g));
    }
}
static void swiglu_oai(uint32_t n, float *y, const float *gate, const float *up, float alpha,
                       float limit)
{
    const __m512 high = _mm512_set1_ps(limit), low = _mm512_set1_ps(-limit);
    const __m512 slope = _mm512_set1_ps(alpha), one = _mm512_set1_ps(1.0f);
    for (uint32_t i = 0; i < n; i += 16) {
        const __mmask16 m = lanes(n - i);
        const __m512 g = _mm512_min_ps(high, _mm512_maskz_loadu_ps(m, gate + i));
        const __m512 u = _mm512_max_ps(low, _mm512_min_ps(high, _mm512_maskz_loadu_ps(m, up + i)));
        const __m512 v = gated(g, _mm512_mul_ps(slope, g));
        _mm512_mask_storeu_ps(y + i, m, _mm512_mul_ps(v, _mm512_add_ps(u, one)));
    }
}

/* ---- additions, rotations ---- */

static void add(uint32_t n, float *y, const float *a, const float *b)
{
    for (uint32_t i = 0; i < n; i += 16) {
        const __mmask16 m = lanes(n - i);
        const __m512 v = _mm512_maskz_loadu_ps(m, a + i), u = _mm512_maskz_loadu_ps(m, b + i);
        _mm512_mask_storeu_ps(y + i, m, _mm512_add_ps(v, u));
    }
}
static void axpy(uint32_t n, float *y, float a, const float *x)
{
    const __m512 factor = _mm512_set1_ps(a);
    for (uint32_t i = 0; i < n; i += 16) {
        const __mmask16 m = lanes(n - i);
        const __m512 v = _mm512_maskz_loadu_ps(m, x + i), u = _mm512_maskz_loadu_ps(m, y + i);
        _mm512_mask_storeu_ps(y + i, m, _mm512_fmadd_ps(factor, v, u));
    }
}
static void mix(uint32_t n, uint32_t m, float *y, const float *a, const float *const *x)
{
    for (uint32_t i = 0; i < n; i += 16) {
        const __mmask16 some = lanes(n - i);
        __m512 sum = _mm512_mul_ps(_mm512_set1_ps(a[0]), _mm512_maskz_loadu_ps(some, x[0] + i));
        for (uint32_t j = 1; j < m; j++)
            sum = _mm512_fmadd_ps(_mm512_set1_ps(a[j]), _mm512_maskz_loadu_ps(some, x[j] + i), sum);
        _mm512_mask_storeu_ps(y + i, some, sum);
    }
}
/* Neighbours are pairs: even lanes x0 c - x1 s, odd lanes x1 c + x0 s. */
static void rope_norm(uint32_t n_dims, float *y, const float *x, const float *angles)
{
    for (uint32_t i = 0; i < n_dims; i += 16) {
        const __mmask16 m = lanes(n_dims - i);
        const __m512 v = _mm512_maskz_loadu_ps(m, x + i), a = _mm512_maskz_loadu_ps(m, angles + i);
        const __m512 cross = _mm512_mul_ps(_mm512_permute_ps(v, 0xb1), _mm512_movehdup_ps(a));
        _mm512_mask_storeu_ps(y + i, m, _mm512_fmaddsub_ps(v, _mm512_moveldup_ps(a), cross));
    }
}
/* Pairs lie half a head apart. */
static void rope_neox(uint32_t n_dims, float *y, const float *x, const float *angles)
{
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    const uint32_t half = n_dims / 2;
    for (uint32_t i = 0; i < half; i += 16) {
        const uint32_t left = half - i;
        const __mmask16 m = lanes(left);
        const __m512 a = _mm512_maskz_loadu_ps(lanes(2 * left), angles + 2 * i);
        const __m512 b = left > 8 ? _mm512_maskz_loadu_ps(lanes(2 * left - 16), angles + 2 * i + 16)
                                  : _mm512_setzero_ps();
        const __m512 c = _mm512_permutex2var_ps(a, even, b), s = _mm512_permutex2var_ps(a, odd, b);
        const __m512 x0 = _mm512_maskz_loadu_ps(m, x + i);
        const __m512 x1 = _mm512_maskz_loadu_ps(m, x + i + half);
        _mm512_mask_storeu_ps(y + i, m, _mm512_fmsub_ps(x0, c, _mm512_mul_ps(x1, s)));
        _mm512_mask_storeu_ps(y + i + half, m, _mm512_fmadd_ps(x0, s, _mm512_mul_ps(x1, c)));
    }
}

/* ---- delta rule ---- */

/* Rows side by side, so that their sums do not wait for each other; each as if it were alone. While
 * they are written, rows that lie 4 KiB on are fetched: four rows in turns are nothing that
 * hardware would foresee, and from memory a row of 128 then takes 42 ns, not 160. */
BL_ALWAYS_INLINE void delta_rows(uint32_t dk, int rows, float *y, float *s, const float *v,
                                 const struct bl_delta_token *t)
{
    const __m512 decay = _mm512_set1_ps(t->decay);
    __m512 sum[4], d[4];
    for (int r = 0; r < rows; r++)
        sum[r] = _mm512_setzero_ps();
    for (uint32_t i = 0; i < dk; i += 16) {
        const __mmask16 m = lanes(dk - i);
        const __m512 k = _mm512_maskz_loadu_ps(m, t->k + i);
        for (int r = 0; r < rows; r++)
            sum[r] = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(m, s + (size_t)r * dk + i), k, sum[r]);
    }
    for (int r = 0; r < rows; r++) {
        d[r] = _mm512_set1_ps(t->beta * (v[r] - t->decay * _mm512_reduce_add_ps(sum[r])));
        sum[r] = _mm512_setzero_ps();
    }
    for (uint32_t i = 0; i < dk; i += 16) {
        const __mmask16 m = lanes(dk - i);
        const __m512 k = _mm512_maskz_loadu_ps(m, t->k + i), q = _mm512_maskz_loadu_ps(m, t->q + i);
        for (int r = 0; r < rows; r++) {
            float *at = s + (size_t)r * dk + i;
            _mm_prefetch((const void *)((uintptr_t)at + 4096), _MM_HINT_T0);
            const __m512 kept = _mm512_mul_ps(decay, _mm512_maskz_loadu_ps(m, at));
            const __m512 now = _mm512_fmadd_ps(k, d[r], kept);
            _mm512_mask_storeu_ps(at, m, now);
            sum[r] = _mm512_fmadd_ps(now, q, sum[r]);
        }
    }
    for (int r = 0; r < rows; r++)
        y[r] = _mm512_reduce_add_ps(sum[r]);
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

void bl_cpu_avx512(struct bl_cpu_kernels *t)
{
    t->quantize_name = "quantize_f32_act_256__avx512";
    t->quantize_32 = quantize_32;
    t->quantize_256 = quantize_256;
    t->norm_name = "rms_norm_f32_f32_16__avx512";
    t->rms_norm = rms_norm;
    t->softmax_name = "exp_sum_f32_f32_16__avx512";
    t->exp_sum = exp_sum;
    t->glu_name = "glu_f32_f32_16__avx512";
    t->silu_mul = silu_mul;
    t->gelu_mul = gelu_mul;
    t->swiglu_oai = swiglu_oai;
    t->sigmoid_mul = sigmoid_mul;
    t->add_name = "add_f32_f32_16__avx512";
    t->add = add;
    t->axpy = axpy;
    t->mix = mix;
    t->rope_name = "rope_f32_f32_16__avx512";
    t->rope_norm = rope_norm;
    t->rope_neox = rope_neox;
    t->delta_name = "delta_rule_f32_f32_4__avx512";
    t->delta_rule = delta_rule;
    bl_cpu_avx512_dot32(t);
    bl_cpu_avx512_kquant(t);
    bl_cpu_avx512_iquant(t);
    bl_cpu_avx512_lowbit(t);
    bl_cpu_avx512_panel(t);
    bl_cpu_avx512_attend(t);
    bl_cpu_avx512_few(t);
    bl_cpu_avx512_recurrent(t);
}
void bl_cpu_avx512_one(struct bl_cpu_kernels *t)
{
    bl_cpu_avx512_dot32_one(t);
    bl_cpu_avx512_kquant_one(t);
    bl_cpu_avx512_iquant_one(t);
}

/* SPDX-License-Identifier: MIT */
/* The portable kernels: every entry of the table, in plain C, each the specification of its faster
 * versions. */
#include <math.h>

#include "scalar.h"
#include "dtype_unpack.h"

/* ---- activations --------------------------------------------------------------------------- */

static void sums_of_16(struct bl_act_block *b)
{
    for (unsigned s = 0; s < 16; s++) {
        int sum = 0;
        for (unsigned i = 0; i < 16; i++)
            sum += b->q[16 * s + i];
        b->sum[s] = (int16_t)sum;
    }
}

/* group: 32, a scale for each d of the block, or 256, one for all. What x does not reach is zero.
 */
static void quantize_block(uint32_t n, struct bl_act_block *b, const float *x, uint32_t group)
{
    memset(b, 0, sizeof *b);
    for (uint32_t at = 0; at < n; at += group) {
        float d = bl_quantize_i8(group < n - at ? group : n - at, b->q + at, x + at);
        for (uint32_t i = at; i < at + group; i += 32)
            b->d[i / 32] = d;
    }
    sums_of_16(b);
}

static void quantize(uint32_t k, struct bl_act_block *dst, const float *src, uint32_t group)
{
    for (uint32_t at = 0; at < k; at += 256)
        quantize_block(k - at < 256 ? k - at : 256, dst++, src + at, group);
}

static void quantize_32(uint32_t k, struct bl_act_block *dst, const float *src)
{
    quantize(k, dst, src, 32);
}

static void quantize_256(uint32_t k, struct bl_act_block *dst, const float *src)
{
    quantize(k, dst, src, 256);
}

/* ---- attention ----------------------------------------------------------------------------- */

static void score_rows(enum bl_dtype type, uint32_t dk, uint32_t n, float *score, const float *q,
                       const void *base, const uint64_t *row, float scale)
{
    for (uint32_t j = 0; j < n; j++) {
        bl_scalar_dot_decoded(type, dk, 1, &score[j], (const uint8_t *)base + row[j], 0, q);
        score[j] *= scale;
    }
}

static void mix_rows(enum bl_dtype type, uint32_t dv, uint32_t n, float *acc, const float *p,
                     const void *base, const uint64_t *row)
{
    const size_t piece_bytes = (size_t)bl_dtype_row_bytes(type, 256);
    float v[256];
    for (uint32_t j = 0; j < n; j++) {
        const uint8_t *src = (const uint8_t *)base + row[j];
        for (uint32_t at = 0; at < dv; at += 256, src += piece_bytes) {
            uint32_t len = dv - at < 256 ? dv - at : 256;
            bl_dtype_decode(type, len, v, src);
            for (uint32_t i = 0; i < len; i++)
                acc[at + i] += p[j] * v[i];
        }
    }
}

/* As for dots, a kernel has no type argument. */
#define KV(e)                                                                                      \
    static void qk_##e(uint32_t dk, uint32_t n, float *score, const float *q, const void *base,    \
                       const uint64_t *row, float scale)                                           \
    {                                                                                              \
        score_rows(BL_##e, dk, n, score, q, base, row, scale);                                     \
    }                                                                                              \
    static void pv_##e(uint32_t dv, uint32_t n, float *acc, const float *p, const void *base,      \
                       const uint64_t *row)                                                        \
    {                                                                                              \
        mix_rows(BL_##e, dv, n, acc, p, base, row);                                                \
    }
KV(F32)
KV(F16)
KV(BF16)
KV(Q8_0)
KV(Q4_0)

static float exp_sum(uint32_t n, float *x, float max)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        x[i] = expf(x[i] - max);
        sum += (double)x[i];
    }
    return (float)sum;
}

/* ---- the rest of a layer ------------------------------------------------------------------- */

static void rms_norm(uint32_t n, float *y, const float *x, const float *w, float eps)
{
    double mean = bl_scalar_dot_f32(n, x, x) / n;
    float scale = (float)(1 / sqrt(mean + (double)eps));
    for (uint32_t i = 0; i < n; i++)
        y[i] = x[i] * scale * w[i];
}

static void silu_mul(uint32_t n, float *y, const float *gate, const float *up)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = gate[i] / (1 + expf(-gate[i])) * up[i];
}

static void gelu_mul(uint32_t n, float *y, const float *gate, const float *up)
{
    const float root = 0.797884560802865355879892f; /* sqrt(2 / pi) */
    for (uint32_t i = 0; i < n; i++) {
        float g = gate[i];
        y[i] = 0.5f * g * (1 + tanhf(root * g * (1 + 0.044715f * g * g))) * up[i];
    }
}

static void swiglu_oai(uint32_t n, float *y, const float *gate, const float *up, float alpha,
                       float limit)
{
    for (uint32_t i = 0; i < n; i++) {
        float g = gate[i] > limit ? limit : gate[i];
        float u = up[i] > limit ? limit : up[i] < -limit ? -limit : up[i];
        y[i] = g / (1 + expf(-alpha * g)) * (u + 1);
    }
}

static void sigmoid_mul(uint32_t n, float *y, const float *gate, const float *up)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = up[i] / (1 + expf(-gate[i]));
}

static void add(uint32_t n, float *y, const float *a, const float *b)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = a[i] + b[i];
}

static void axpy(uint32_t n, float *y, float a, const float *x)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] += a * x[i];
}

static void mix(uint32_t n, uint32_t m, float *y, const float *a, const float *const *x)
{
    for (uint32_t i = 0; i < n; i++) {
        float sum = a[0] * x[0][i];
        for (uint32_t j = 1; j < m; j++)
            sum += a[j] * x[j][i];
        y[i] = sum;
    }
}

static void rotate(float *y0, float *y1, float x0, float x1, const float *angle)
{
    *y0 = x0 * angle[0] - x1 * angle[1];
    *y1 = x0 * angle[1] + x1 * angle[0];
}

static void rope_norm(uint32_t n_dims, float *y, const float *x, const float *angles)
{
    for (uint32_t i = 0; i < n_dims; i += 2)
        rotate(&y[i], &y[i + 1], x[i], x[i + 1], &angles[i]);
}

static void rope_neox(uint32_t n_dims, float *y, const float *x, const float *angles)
{
    const uint32_t half = n_dims / 2;
    for (uint32_t i = 0; i < half; i++)
        rotate(&y[i], &y[i + half], x[i], x[i + half], &angles[2 * i]);
}

static void delta_rule(uint32_t dk, uint32_t rows, float *y, float *s, const float *v,
                       const struct bl_delta_token *t)
{
    for (uint32_t r = 0; r < rows; r++, s += dk) {
        double old = (double)t->decay * bl_scalar_dot_f32(dk, s, t->k);
        float d = (float)((double)t->beta * ((double)v[r] - old));
        for (uint32_t i = 0; i < dk; i++)
            s[i] = t->decay * s[i] + t->k[i] * d;
        y[r] = (float)bl_scalar_dot_f32(dk, s, t->q);
    }
}

void bl_cpu_scalar(struct bl_cpu_kernels *kernels)
{
    *kernels = (struct bl_cpu_kernels){
        .kv =
            {
                [BL_F32] = {"kv_f32_f32_1__scalar", qk_F32, pv_F32},
                [BL_F16] = {"kv_f16_f32_1__scalar", qk_F16, pv_F16},
                [BL_BF16] = {"kv_bf16_f32_1__scalar", qk_BF16, pv_BF16},
                [BL_Q8_0] = {"kv_q8_0_f32_1__scalar", qk_Q8_0, pv_Q8_0},
                [BL_Q4_0] = {"kv_q4_0_f32_1__scalar", qk_Q4_0, pv_Q4_0},
            },
        .quantize_name = "quantize_f32_act_256__scalar",
        .norm_name = "rms_norm_f32_f32_1__scalar",
        .softmax_name = "exp_sum_f32_f32_1__scalar",
        .glu_name = "glu_f32_f32_1__scalar",
        .add_name = "add_f32_f32_1__scalar",
        .rope_name = "rope_f32_f32_2__scalar",
        .delta_name = "delta_rule_f32_f32_1__scalar",
        .quantize_32 = quantize_32,
        .quantize_256 = quantize_256,
        .rms_norm = rms_norm,
        .exp_sum = exp_sum,
        .silu_mul = silu_mul,
        .gelu_mul = gelu_mul,
        .swiglu_oai = swiglu_oai,
        .sigmoid_mul = sigmoid_mul,
        .add = add,
        .axpy = axpy,
        .mix = mix,
        .rope_norm = rope_norm,
        .rope_neox = rope_neox,
        .delta_rule = delta_rule,
    };
    bl_scalar_dots(kernels->matmul);
    bl_scalar_tiles(kernels);
    bl_scalar_recurrent(kernels);
    bl_scalar_panels(kernels);
}

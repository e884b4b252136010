/* SPDX-License-Identifier: MIT */
/* The scalar kernels and the float reference against the same sums in double. */
#include "support.h"

#include <float.h>
#include <math.h>

#include "cpu/cpu_kernels.h"

static struct bl_cpu_kernels scalar, exact;
static uint64_t seed;

static uint32_t next_random(void)
{
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(seed >> 32);
}

/* Uniform in -1 to 1. */
static float next_float(void)
{
    return (float)(next_random() >> 8) * 0x1p-23f - 1;
}

static int fill_tables(void **state)
{
    (void)state;
    bl_cpu_scalar(&scalar);
    bl_cpu_exact(&exact);
    return 0;
}

static int reseed(void **state)
{
    (void)state;
    seed = 2;
    return 0;
}

/* Heap blocks of the exact size, so that the address sanitizer sees a read or write too far. */
static void *take(size_t bytes)
{
    void *p = malloc(bytes);
    assert_non_null(p);
    return p;
}

static float *random_floats(uint32_t n)
{
    float *x = take(n * sizeof *x);
    for (uint32_t i = 0; i < n; i++)
        x[i] = next_float();
    return x;
}

/* |got - want| <= c * eps * sum of |terms|, or a step of the subnormal floats */
static void assert_near(const char *what, float got, double want, double terms, double c)
{
    if (!(fabs((double)got - want) <= c * (double)FLT_EPSILON * terms + 0x1p-149))
        fail_msg("%s: %.9g instead of %.17g, terms %.9g", what, (double)got, want, terms);
}

static void every_entry_is_filled(void **state)
{
    (void)state;
    for (unsigned t = 0; t < BL_N_DTYPES; t++) {
        const struct bl_matmul_kernel *s = &scalar.matmul[t], *e = &exact.matmul[t];
        const bool weight = bl_dtypes[t].act != BL_ACT_NONE;
        const bool kv = t == BL_F32 || t == BL_F16 || t == BL_BF16 || t == BL_Q8_0 || t == BL_Q4_0;
        assert_int_equal(s->dot != NULL, weight);
        assert_int_equal(e->dot != NULL, weight);
        assert_int_equal(scalar.kv[t].qk && scalar.kv[t].pv && scalar.kv[t].name, kv);
        if (!weight)
            continue;
        assert_int_equal(s->act, bl_dtypes[t].act);
        assert_int_equal(e->act, BL_ACT_F32);
        assert_non_null(strstr(s->dot_name, bl_dtypes[t].name));
        assert_non_null(
            strstr(s->dot_name, s->act == BL_ACT_F32 ? "_f32_1__scalar" : "_act_1__scalar"));
        assert_non_null(strstr(e->dot_name, "_f32_1__exact"));
        assert_true(s->rows == 1 && e->rows == 1);
    }
    assert_true(scalar.quantize_32 && scalar.quantize_256 && scalar.rms_norm && scalar.exp_sum);
    assert_true(scalar.silu_mul && scalar.gelu_mul && scalar.swiglu_oai && scalar.add);
    assert_true(scalar.axpy && scalar.rope_norm && scalar.rope_neox);
    assert_true(scalar.sigmoid_mul && scalar.delta_rule);
    assert_true(scalar.quantize_name && scalar.norm_name && scalar.softmax_name);
    assert_true(scalar.glu_name && scalar.add_name && scalar.rope_name && scalar.delta_name);
}

/* ---- activations --------------------------------------------------------------------------- */

static const uint32_t act_k[] = {32, 96, 224, 256, 288, 576, 2880};

/* Blocks for k elements, filled with 0x55 first: padding must be written. */
static struct bl_act_block *quantized(bl_quant_fn *quantize, uint32_t k, const float *x)
{
    struct bl_act_block *a = aligned_alloc(64, bl_act_blocks(k) * sizeof *a);
    assert_non_null(a);
    memset(a, 0x55, bl_act_blocks(k) * sizeof *a);
    quantize(k, a, x);
    return a;
}

static void assert_sums(const struct bl_act_block *a, uint32_t k)
{
    for (uint32_t s = 0; s < bl_act_blocks(k) * 16; s++) {
        int sum = 0;
        for (uint32_t i = 0; i < 16; i++)
            sum += a[s / 16].q[s % 16 * 16 + i];
        assert_int_equal(a[s / 16].sum[s % 16], sum);
    }
}

static void assert_padding(const struct bl_act_block *a, uint32_t k)
{
    for (uint32_t i = k; i < bl_act_blocks(k) * 256; i++)
        assert_int_equal(a[i / 256].q[i % 256], 0);
    for (uint32_t i = 0; i < bl_act_blocks(k) * 8; i++)
        assert_true(isfinite(a[i / 8].d[i % 8]));
}

static void quantize_32_is_the_law_of_q8_0_and_q8_1(void **state)
{
    (void)state;
    for (size_t n = 0; n < BL_COUNT(act_k); n++) {
        const uint32_t k = act_k[n];
        float *x = random_floats(k);
        uint8_t q8_0[34], q8_1[36];
        memset(x, 0, 16 * sizeof *x);
        if (k > 32)
            memset(x + 32, 0, 32 * sizeof *x);
        struct bl_act_block *a = quantized(scalar.quantize_32, k, x);
        for (uint32_t at = 0; at < k; at += 32) {
            const struct bl_act_block *b = &a[at / 256];
            const uint32_t g = at % 256 / 32;
            bl_dtype_encode(BL_Q8_0, 32, q8_0, x + at);
            bl_dtype_encode(BL_Q8_1, 32, q8_1, x + at);
            assert_memory_equal(b->q + 32 * g, q8_0 + 2, 32);
            assert_memory_equal(b->q + 32 * g, q8_1 + 4, 32);
            assert_int_equal(bl_f32_to_f16(b->d[g]), bl_load_u16(q8_0));
            int sum = b->sum[2 * g] + b->sum[2 * g + 1];
            assert_int_equal(bl_f32_to_f16(b->d[g] * (float)sum), bl_load_u16(q8_1 + 2));
        }
        assert_sums(a, k);
        assert_padding(a, k);
        free(a);
        free(x);
    }
}

/* Q8_K's scale is negative where the extreme is positive, and it multiplies by an inverse: where x
 * / d is nearly halfway between two integers either may come out. */
static void quantize_256_is_the_law_of_q8_k_with_positive_scale(void **state)
{
    (void)state;
    for (int round = 0; round < 40; round++) {
        const uint32_t k = 1024;
        float *x = random_floats(k);
        uint8_t q8_k[292];
        memset(x, 0, 256 * sizeof *x);
        struct bl_act_block *a = quantized(scalar.quantize_256, k, x);
        for (uint32_t b = 0; b < k / 256; b++) {
            float d;
            bl_dtype_encode(BL_Q8_K, 256, q8_k, x + 256 * b);
            memcpy(&d, q8_k, sizeof d);
            assert_float_equal(a[b].d[0], fabsf(d), fabsf(d) * FLT_EPSILON);
            for (uint32_t i = 0; i < 8; i++)
                assert_true(a[b].d[i] == a[b].d[0]);
            for (uint32_t i = 0; i < 256; i++) {
                int want = d < 0 ? -(int8_t)q8_k[4 + i] : (int8_t)q8_k[4 + i];
                double steps = d == 0 ? 0 : (double)x[256 * b + i] / (double)a[b].d[0];
                bool tie = fabs(fabs(steps - trunc(steps)) - 0.5) < 1e-4;
                assert_true(a[b].q[i] == want || tie);
                assert_true(fabs(a[b].q[i] - steps) <= 0.5 + 1e-5);
            }
        }
        assert_sums(a, k);
        free(a);
        free(x);
    }
}

static void quantize_256_pads_a_short_block(void **state)
{
    (void)state;
    for (size_t n = 0; n < BL_COUNT(act_k); n++) {
        float *x = random_floats(act_k[n]);
        struct bl_act_block *a = quantized(scalar.quantize_256, act_k[n], x);
        assert_sums(a, act_k[n]);
        assert_padding(a, act_k[n]);
        for (uint32_t i = 0; i < act_k[n]; i++)
            assert_true(fabs((double)a[i / 256].d[0] * a[i / 256].q[i % 256] - (double)x[i]) <=
                        (double)a[i / 256].d[0] * 0.5001);
        free(a);
        free(x);
    }
}

/* ---- dots ---------------------------------------------------------------------------------- */

/* Random blocks whose values are numbers of ordinary size; the scales lie in different places in
 * each type. */
static void random_row(enum bl_dtype type, uint32_t k, uint8_t *row)
{
    const struct bl_dtype_info *t = &bl_dtypes[type];
    for (uint32_t at = 0; at < k; at += t->block_elems, row += t->block_bytes) {
        float y[256], most;
        do {
            for (uint32_t i = 0; i < t->block_bytes; i++)
                row[i] = (uint8_t)(next_random() >> 24);
            bl_dtype_decode(type, t->block_elems, y, row);
            most = 0;
            for (uint32_t i = 0; i < t->block_elems; i++)
                most = fabsf(y[i]) <= most ? most : fabsf(y[i]); /* keeps a NaN */
        } while (!(most < 1e6f));
    }
}

struct dot_case {
    enum bl_dtype type;
    uint32_t k, rows;
    const struct bl_matmul_kernel *kernel;
};

/* x as the kernel gets it, and as the numbers it stands for. */
static void *activations(const struct dot_case *c, double *value)
{
    float *x = random_floats(c->k);
    struct bl_act_block *a;
    for (uint32_t i = 0; i < c->k; i++)
        value[i] = (double)x[i];
    if (c->kernel->act == BL_ACT_F32)
        return x;
    a = quantized(c->kernel->act == BL_ACT_Q8_K ? scalar.quantize_256 : scalar.quantize_32, c->k,
                  x);
    for (uint32_t i = 0; i < c->k; i++)
        value[i] = (double)a[i / 256].d[i % 256 / 32] * a[i / 256].q[i % 256];
    free(x);
    return a;
}

/* One rounding at the end, and one in each decoded weight: |err| <= eps * sum |terms|. Where the
 * type has addends the kernel skips the rounding of scale * q + add, and that is all. */
static void check_dot(const struct dot_case *c)
{
    const size_t bytes = bl_dtype_row_bytes(c->type, c->k), stride = bytes + 6;
    uint8_t *w = take((c->rows - 1) * stride + bytes);
    float *out = take(c->rows * sizeof *out), *decoded = take(c->k * sizeof *decoded);
    double *value = take(c->k * sizeof *value);
    void *x = activations(c, value);
    for (uint32_t r = 0; r < c->rows; r++)
        random_row(c->type, c->k, w + r * stride);
    c->kernel->dot(c->k, c->rows, out, w, stride, x, NULL);
    for (uint32_t r = 0; r < c->rows; r++) {
        double want = 0, terms = 0;
        bl_dtype_decode(c->type, c->k, decoded, w + r * stride);
        for (uint32_t i = 0; i < c->k; i++) {
            want += (double)decoded[i] * value[i];
            terms += fabs((double)decoded[i] * value[i]);
        }
        assert_near(c->kernel->dot_name, out[r], want, terms, 1);
    }
    free(x);
    free(value);
    free(decoded);
    free(out);
    free(w);
}

static void check_dots(const struct bl_cpu_kernels *kernels)
{
    static const uint32_t lengths[] = {32, 64, 96, 128, 224, 256, 512, 576, 1024, 2880, 1, 7, 300};
    for (unsigned t = 0; t < BL_N_DTYPES; t++)
        for (size_t i = 0; kernels->matmul[t].dot && i < BL_COUNT(lengths); i++)
            for (uint32_t rows = 1; rows <= 5; rows += 2) {
                const struct dot_case c = {(enum bl_dtype)t, lengths[i], rows, &kernels->matmul[t]};
                if (lengths[i] % bl_dtypes[t].block_elems == 0)
                    check_dot(&c);
            }
}

static void scalar_dots_agree_with_double(void **state)
{
    (void)state;
    check_dots(&scalar);
}

static void exact_dots_agree_with_double(void **state)
{
    (void)state;
    check_dots(&exact);
}

/* ---- attention ----------------------------------------------------------------------------- */

enum { N_ROWS = 5 };

/* Rows of d values, scattered in a block of the exact size; value[j * d + i] is what they decode
 * to. */
static uint8_t *random_cache(enum bl_dtype type, uint32_t d, uint64_t row[N_ROWS], float *value)
{
    static const unsigned place[N_ROWS] = {3, 0, 4, 1, 2};
    const uint64_t bytes = bl_dtype_row_bytes(type, d);
    uint8_t *base = take(N_ROWS * bytes);
    for (unsigned j = 0; j < N_ROWS; j++) {
        float *x = random_floats(d);
        row[j] = place[j] * bytes;
        bl_dtype_encode(type, d, base + row[j], x);
        bl_dtype_decode(type, d, value + j * d, base + row[j]);
        free(x);
    }
    return base;
}

static void check_kv(enum bl_dtype type, uint32_t d)
{
    const struct bl_kv_kernel *kernel = &scalar.kv[type];
    float *value = take(N_ROWS * d * sizeof *value), *q = random_floats(d), *acc = random_floats(d);
    float score[N_ROWS], p[N_ROWS];
    uint64_t row[N_ROWS];
    uint8_t *base = random_cache(type, d, row, value);
    float *before = take(d * sizeof *before);
    memcpy(before, acc, d * sizeof *acc);
    kernel->qk(d, N_ROWS, score, q, base, row, 0.125f);
    for (unsigned j = 0; j < N_ROWS; j++) {
        double want = 0, terms = 0;
        p[j] = next_float();
        for (uint32_t i = 0; i < d; i++) {
            want += 0.125 * (double)q[i] * (double)value[j * d + i];
            terms += fabs(0.125 * (double)q[i] * (double)value[j * d + i]);
        }
        assert_near(kernel->name, score[j], want, terms, 1);
    }
    kernel->pv(d, N_ROWS, acc, p, base, row);
    for (uint32_t i = 0; i < d; i++) {
        double want = (double)before[i], terms = fabs((double)before[i]);
        for (unsigned j = 0; j < N_ROWS; j++) {
            want += (double)p[j] * (double)value[j * d + i];
            terms += fabs((double)p[j] * (double)value[j * d + i]);
        }
        assert_near(kernel->name, acc[i], want, terms, N_ROWS);
    }
    free(before);
    free(base);
    free(acc);
    free(q);
    free(value);
}

static void attention_reads_every_cache_type(void **state)
{
    static const uint32_t widths[] = {32, 64, 96, 256, 320, 576};
    (void)state;
    for (unsigned t = 0; t < BL_N_DTYPES; t++)
        for (size_t i = 0; scalar.kv[t].qk && i < BL_COUNT(widths); i++)
            check_kv((enum bl_dtype)t, widths[i]);
}

static void exp_sum_is_softmax_without_the_division(void **state)
{
    float x[70], before[70];
    double sum = 0;
    (void)state;
    for (unsigned i = 0; i < 70; i++)
        before[i] = x[i] = 20 * next_float();
    before[3] = x[3] = 21;
    before[5] = x[5] = -INFINITY;
    float got = scalar.exp_sum(70, x, 21);
    for (unsigned i = 0; i < 70; i++) {
        double want = exp((double)before[i] - 21);
        assert_near("exp", x[i], want, want * 42,
                    1); /* the argument, up to 41, is rounded before exp */
        sum += (double)x[i];
    }
    assert_true(x[3] == 1 && x[5] == 0);
    assert_near("sum", got, sum, sum, 0.5);
}

/* ---- the rest of a layer ------------------------------------------------------------------- */

static void rms_norm_agrees_with_double(void **state)
{
    static const uint32_t lengths[] = {1, 7, 64, 576, 2880};
    (void)state;
    for (size_t n = 0; n < BL_COUNT(lengths); n++) {
        const uint32_t k = lengths[n];
        float *x = random_floats(k), *w = random_floats(k), *y = take(k * sizeof *y);
        double squares = 0;
        x[0] = 1000; /* beside it float sums would lose the rest */
        for (uint32_t i = 0; i < k; i++)
            squares += (double)x[i] * (double)x[i];
        double scale = 1 / sqrt(squares / k + 1e-5);
        scalar.rms_norm(k, y, x, w, 1e-5f);
        for (uint32_t i = 0; i < k; i++) {
            double want = (double)x[i] * scale * (double)w[i];
            assert_near("rms_norm", y[i], want, fabs(want), 2);
        }
        scalar.rms_norm(k, x, x, w, 1e-5f); /* in place */
        assert_memory_equal(x, y, k * sizeof *y);
        free(x);
        free(w);
        free(y);
    }
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double gelu(double x)
{
    const double root = sqrt(2 / acos(-1));
    return 0.5 * x * (1 + tanh(root * (x + 0.044715 * x * x * x)));
}

static void gates_agree_with_double(void **state)
{
    enum { K = 203 };
    float *up = random_floats(K), gate[K], silu[K], gelus[K], oai[K];
    (void)state;
    for (int i = 0; i < K; i++) {
        gate[i] = (float)(i - 101) * 0.1f; /* past the clamp on both sides, and 0 */
        up[i] *= 12;
    }
    gate[0] = -200;
    gate[1] = 200;
    scalar.silu_mul(K, silu, gate, up);
    scalar.gelu_mul(K, gelus, gate, up);
    scalar.swiglu_oai(K, oai, gate, up, 1.702f, 7);
    for (int i = 0; i < K; i++) {
        double g = (double)gate[i], u = (double)up[i], low = fmin(g, 7),
               held = fmax(-7, fmin(u, 7));
        assert_near("silu", silu[i], g * sigmoid(g) * u, fabs(g * sigmoid(g) * u) * (1 + fabs(g)),
                    2);
        assert_near("gelu", gelus[i], gelu(g) * u, fabs(g * u), 4);
        double want = low * sigmoid((double)1.702f * low) * (held + 1);
        assert_near("swiglu_oai", oai[i], want,
                    fabs(low * sigmoid((double)1.702f * low)) * (fabs(held) + 1) * (1 + fabs(low)),
                    4);
    }
    free(up);
}

static void sums_are_single_roundings(void **state)
{
    enum { K = 37 };
    float *a = random_floats(K), *b = random_floats(K), y[K];
    (void)state;
    scalar.add(K, y, a, b);
    for (int i = 0; i < K; i++)
        assert_true(y[i] == a[i] + b[i]);
    scalar.axpy(K, y, -0.75f, a);
    for (int i = 0; i < K; i++)
        assert_near("axpy", y[i], (double)(a[i] + b[i]) - 0.75 * (double)a[i],
                    fabs((double)a[i]) + 1, 1);
    scalar.add(K, a, a, b); /* in place */
    for (int i = 0; i < K; i++)
        assert_near("add", a[i], (double)y[i] + 0.75 * ((double)a[i] - (double)b[i]), 4, 2);
    free(a);
    free(b);
}

static void rope_rotates_pairs_of_either_layout(void **state)
{
    enum { DIMS = 24, HEAD = 32 };
    float *x = random_floats(HEAD), angles[DIMS], norm[HEAD], neox[HEAD];
    (void)state;
    for (unsigned i = 0; i < DIMS; i += 2) {
        angles[i] = cosf((float)i);
        angles[i + 1] = sinf((float)i);
    }
    memcpy(norm, x, sizeof norm); /* in place */
    for (unsigned i = 0; i < HEAD; i++)
        neox[i] = 5;
    scalar.rope_norm(DIMS, norm, norm, angles);
    scalar.rope_neox(DIMS, neox, x, angles);
    for (unsigned p = 0; p < DIMS / 2; p++) {
        double c = (double)angles[2 * p], s = (double)angles[2 * p + 1];
        double a = (double)x[2 * p], b = (double)x[2 * p + 1];
        assert_near("rope_norm", norm[2 * p], a * c - b * s, 2, 1);
        assert_near("rope_norm", norm[2 * p + 1], a * s + b * c, 2, 1);
        a = (double)x[p], b = (double)x[p + DIMS / 2];
        assert_near("rope_neox", neox[p], a * c - b * s, 2, 1);
        assert_near("rope_neox", neox[p + DIMS / 2], a * s + b * c, 2, 1);
    }
    for (unsigned i = DIMS; i < HEAD; i++)
        assert_true(norm[i] == x[i] && neox[i] == 5);
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_entry_is_filled),
        cmocka_unit_test_setup(quantize_32_is_the_law_of_q8_0_and_q8_1, reseed),
        cmocka_unit_test_setup(quantize_256_is_the_law_of_q8_k_with_positive_scale, reseed),
        cmocka_unit_test_setup(quantize_256_pads_a_short_block, reseed),
        cmocka_unit_test_setup(scalar_dots_agree_with_double, reseed),
        cmocka_unit_test_setup(exact_dots_agree_with_double, reseed),
        cmocka_unit_test_setup(attention_reads_every_cache_type, reseed),
        cmocka_unit_test_setup(exp_sum_is_softmax_without_the_division, reseed),
        cmocka_unit_test_setup(rms_norm_agrees_with_double, reseed),
        cmocka_unit_test_setup(gates_agree_with_double, reseed),
        cmocka_unit_test_setup(sums_are_single_roundings, reseed),
        cmocka_unit_test_setup(rope_rotates_pairs_of_either_layout, reseed),
    };
    return cmocka_run_group_tests(tests, fill_tables, NULL);
}

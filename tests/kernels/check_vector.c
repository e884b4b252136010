/* SPDX-License-Identifier: MIT */
/* Activations, norms, gates, additions, rotations against the scalar entries. */
#include <float.h>
#include <math.h>

#include "check.h"

enum { MAX_N = 5120, HEAD_LIMIT = 576 };

void check_vector_shapes(struct context *c, const struct subject *s, bool quick, visit_fn *visit)
{
    static const uint32_t wide[] = {63,  64,  65,  96,  128,  130,  224,  256,
                                    288, 300, 511, 576, 2880, 4096, MAX_N};
    const bool rope = s->kind == ROPE_NORM || s->kind == ROPE_NEOX;
    const bool quantize = s->kind == QUANTIZE_32 || s->kind == QUANTIZE_256;
    const uint32_t n_alias = quantize || s->kind == EXP_SUM || s->kind == AXPY ? 1 : 2;
    uint32_t turn = 0;
    for (uint32_t i = 1; i <= 50 + BL_COUNT(wide); i++) {
        const uint32_t n = i <= 50 ? i : wide[i - 51];
        if (rope && (n % 2 || n > HEAD_LIMIT))
            continue;
        for (uint32_t alias = 0; alias < n_alias; alias++)
            for (uint32_t fill = 0; fill < N_FILLS; fill++, turn++) {
                const struct shape shape = {n, 1, 0, alias, fill};
                if (!(quick && turn % 3) && !visit(c, s, &shape))
                    return;
            }
    }
}

/* The arrays of a case: inputs a, b, output y (which may be a), the scalar output. */
struct arrays {
    uint32_t n;
    float *a, *b, *y;
    float first[MAX_N]; /* a before the call, as y may overwrite it */
    float want[MAX_N];
};
static struct arrays *make_arrays(struct context *c, const struct shape *shape, bool in_place)
{
    static struct arrays v;
    const bool from_start = check_random(c) & 1;
    const size_t bytes = shape->k * sizeof *v.a;
    v.n = shape->k;
    v.a = memory_take(c->mem, REGION_X, bytes, from_start);
    v.b = memory_take(c->mem, REGION_Y, bytes, from_start);
    v.y = memory_take(c->mem, REGION_OUT, bytes, from_start);
    check_fill_floats(c, v.a, v.n, shape->fill);
    check_fill_floats(c, v.b, v.n, shape->fill == FILL_ZERO_INPUT ? FILL_RANDOM : shape->fill);
    if (in_place || shape->place) { /* the frame that is looked at belongs to the output */
        memcpy(v.y, v.a, bytes);
        v.a = v.y;
    }
    memcpy(v.first, v.a, bytes);
    return &v;
}

/* ---- activations: bit for bit ---- */

/* Values within a rounding of the middle between two integers, for steps that are no power of two:
 * who multiplies with the inverse of the step rounds some of them differently. */
static void fill_ties(struct context *c, float *x, uint32_t n)
{
    const float step = check_uniform(c, 0.01f, 1);
    for (uint32_t i = 0; i < n; i++) {
        const float middle = (float)(int)(check_random(c) % 253) - 126.5f;
        x[i] = step * (i % 32 ? middle : 127);
    }
}
static bool check_quantize(struct context *c, const struct subject *s, const struct shape *shape)
{
    static struct bl_act_block want[MAX_N / 256 + 1];
    const bool from_start = check_random(c) & 1, by_32 = s->kind == QUANTIZE_32;
    const size_t bytes = bl_act_blocks(shape->k) * sizeof *want;
    float *x = memory_take(c->mem, REGION_X, shape->k * sizeof *x, from_start);
    struct bl_act_block *got = memory_take(c->mem, REGION_OUT, bytes, from_start);
    check_fill_floats(c, x, shape->k, shape->fill);
    if (shape->fill == FILL_TINY) /* steps that are subnormal, or vanish */
        for (uint32_t i = 0; i < shape->k; i++)
            x[i] *= 0x1p-130f;
    if (shape->fill == FILL_SPECIAL)
        fill_ties(c, x, shape->k);
    (by_32 ? c->ref->quantize_32 : c->ref->quantize_256)(shape->k, want, x);
    (by_32 ? c->now->quantize_32 : c->now->quantize_256)(shape->k, got, x);
    if (!memory_frame_intact(c->mem, REGION_OUT))
        return check_fail(c, "wrote beside the blocks");
    for (uint32_t b = 0; b < bl_act_blocks(shape->k); b++)
        if (memcmp(&got[b], &want[b], sizeof *want) != 0)
            return check_fail(c, "block %u differs (q[0] %d, scalar %d; d[0] %g, scalar %g)", b,
                              got[b].q[0], want[b].q[0], (double)got[b].d[0], (double)want[b].d[0]);
    return true;
}

/* ---- norm, softmax ---- */

static bool check_rms_norm(struct context *c, struct arrays *v)
{
    const float eps = 1e-6f;
    c->ref->rms_norm(v->n, v->want, v->first, v->b, eps);
    c->now->rms_norm(v->n, v->y, v->a, v->b, eps);
    for (uint32_t i = 0; i < v->n; i++)
        if (!check_close(c, "y", i, v->y[i], v->want[i], fabs((double)v->want[i]), 2, FLT_TRUE_MIN))
            return false;
    return true;
}

/* From the largest down to where e^x is subnormal and nothing, and the -infinity of a mask. */
static void fill_scores(struct context *c, struct arrays *v, enum fill fill)
{
    for (uint32_t i = 0; i < v->n; i++) {
        v->a[i] = check_uniform(c, fill == FILL_LARGE ? -120 : -10, 0);
        if (fill == FILL_TINY)
            v->a[i] = check_uniform(c, -0x1p-10f, 0);
        if (fill == FILL_SPECIAL && check_random(c) % 4 == 0)
            v->a[i] = -INFINITY;
    }
    v->a[check_random(c) % v->n] = 0;
    memcpy(v->want, v->a, v->n * sizeof *v->a);
}
static bool check_exp_sum(struct context *c, struct arrays *v, enum fill fill)
{
    const float max = fill == FILL_RANDOM ? 0.75f : 0; /* a sink may be larger than every score */
    double sum = 0;
    fill_scores(c, v, fill);
    const float want = c->ref->exp_sum(v->n, v->want, max), got = c->now->exp_sum(v->n, v->a, max);
    for (uint32_t i = 0; i < v->n; i++) {
        const double e = v->want[i];
        if (!check_close(c, "x", i, v->a[i], e, e, 2, FLT_TRUE_MIN))
            return false;
        sum += e;
    }
    return check_close(c, "sum", 0, got, want, sum, 2, 0);
}

/* ---- gates ---- */

/* Gates that saturate both ways, besides what the fill gives. */
static void spread_gates(struct context *c, struct arrays *v, enum fill fill)
{
    if (fill != FILL_SPECIAL)
        return;
    for (uint32_t i = 0; i < v->n; i++)
        v->first[i] = v->a[i] = check_uniform(c, -100, 100);
}
static bool check_gates(struct context *c, enum subject_kind kind, struct arrays *v, enum fill fill)
{
    const float alpha = 1.702f, limit = 7;
    spread_gates(c, v, fill);
    if (kind == SILU_MUL) {
        c->ref->silu_mul(v->n, v->want, v->first, v->b);
        c->now->silu_mul(v->n, v->y, v->a, v->b);
    } else if (kind == GELU_MUL) {
        c->ref->gelu_mul(v->n, v->want, v->first, v->b);
        c->now->gelu_mul(v->n, v->y, v->a, v->b);
    } else if (kind == SIGMOID_MUL) {
        c->ref->sigmoid_mul(v->n, v->want, v->first, v->b);
        c->now->sigmoid_mul(v->n, v->y, v->a, v->b);
    } else {
        c->ref->swiglu_oai(v->n, v->want, v->first, v->b, alpha, limit);
        c->now->swiglu_oai(v->n, v->y, v->a, v->b, alpha, limit);
    }
    for (uint32_t i = 0; i < v->n; i++) {
        const double want = v->want[i], g = v->first[i], size = fabs(want);
        /* scalar's 1 + tanh cancels for negative gates: there the error counts against gate * up */
        const double terms = kind == GELU_MUL ? fabs(g * (double)v->b[i]) : size;
        /* the exponent alpha * gate is rounded, which e^z turns into a relative error */
        const double limit_c = kind == SWIGLU_OAI ? 4 + fabs((double)alpha * g) : 4;
        if (!check_close(c, "y", i, v->y[i], want, terms, limit_c,
                         4 * FLT_MIN * (double)FLT_EPSILON))
            return false;
    }
    return true;
}

/* ---- additions, rotations ---- */

static bool check_sums(struct context *c, enum subject_kind kind, struct arrays *v)
{
    const float factor = check_uniform(c, -3, 3);
    if (kind == ADD) {
        c->ref->add(v->n, v->want, v->first, v->b);
        c->now->add(v->n, v->y, v->a, v->b);
    } else {
        memcpy(v->want, v->first, v->n * sizeof *v->want);
        c->ref->axpy(v->n, v->want, factor, v->b);
        c->now->axpy(v->n, v->y, factor, v->b);
    }
    for (uint32_t i = 0; i < v->n; i++) {
        const double terms = fabs((double)v->first[i]) + fabs((double)factor * (double)v->b[i]);
        if (!check_close(c, "y", i, v->y[i], v->want[i], kind == ADD ? 0 : terms, 1, FLT_TRUE_MIN))
            return false;
    }
    return true;
}

static bool check_rope(struct context *c, enum subject_kind kind, struct arrays *v)
{
    for (uint32_t i = 0; i < v->n; i += 2) {
        const double angle = (double)check_uniform(c, -10, 10);
        v->b[i] = (float)cos(angle);
        v->b[i + 1] = (float)sin(angle);
    }
    (kind == ROPE_NORM ? c->ref->rope_norm : c->ref->rope_neox)(v->n, v->want, v->first, v->b);
    (kind == ROPE_NORM ? c->now->rope_norm : c->now->rope_neox)(v->n, v->y, v->a, v->b);
    for (uint32_t i = 0; i < v->n; i++) {
        const uint32_t half = v->n / 2;
        const uint32_t other = kind == ROPE_NORM ? i ^ 1 : i < half ? i + half : i - half;
        const double terms = fabs((double)v->first[i]) + fabs((double)v->first[other]);
        if (!check_close(c, "y", i, v->y[i], v->want[i], terms, 1, FLT_TRUE_MIN))
            return false;
    }
    return true;
}

static bool check_arrays(struct context *c, const struct subject *s, const struct shape *shape)
{
    struct arrays *v = make_arrays(c, shape, s->kind == AXPY || s->kind == EXP_SUM);
    switch (s->kind) {
    case RMS_NORM:
        return check_rms_norm(c, v);
    case EXP_SUM:
        return check_exp_sum(c, v, shape->fill);
    case SILU_MUL:
    case GELU_MUL:
    case SWIGLU_OAI:
    case SIGMOID_MUL:
        return check_gates(c, s->kind, v, shape->fill);
    case ADD:
    case AXPY:
        return check_sums(c, s->kind, v);
    default:
        return check_rope(c, s->kind, v);
    }
}

bool check_vector(struct context *c, const struct subject *s, const struct shape *shape)
{
    if (s->kind == QUANTIZE_32 || s->kind == QUANTIZE_256)
        return check_quantize(c, s, shape);
    if (!check_arrays(c, s, shape))
        return false;
    return memory_frame_intact(c->mem, REGION_OUT) || check_fail(c, "wrote beside the output");
}

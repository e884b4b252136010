/* SPDX-License-Identifier: MIT */
/* The delta rule: state rows and results against the scalar ones. */
#include <float.h>
#include <math.h>

#include "check.h"

enum { MAX_K = 256, MAX_ROWS = 9 };

/* Sums of k terms in float where scalar has double; the state is rounded twice more. */
static const double C_STATE = 3, C_RESULT = 6;

void check_delta_shapes(struct context *c, const struct subject *s, bool quick, visit_fn *visit)
{
    static const uint32_t wide[] = {63, 64, 65, 96, 127, 128, 200, MAX_K};
    uint32_t turn = 0;
    for (uint32_t i = 1; i <= 40 + BL_COUNT(wide); i++)
        for (uint32_t rows = 1; rows <= MAX_ROWS; rows++)
            for (uint32_t fill = 0; fill < N_FILLS; fill++, turn++) {
                const struct shape shape = {i <= 40 ? i : wide[i - 41], rows, 0, 0, fill};
                if (!(quick && turn % 7) && !visit(c, s, &shape))
                    return;
            }
}

struct delta_case {
    uint32_t k, rows;
    float *s, *v, *y, *first; /* first: the state before */
    struct bl_delta_token t;
};

/* q and k of about length 1, a state of the fill's kind. */
static struct delta_case make_case(struct context *c, const struct shape *shape)
{
    static float first[MAX_K * MAX_ROWS];
    const bool from_start = check_random(c) & 1;
    const uint32_t n = shape->k;
    float *q = memory_take(c->mem, REGION_X, n * sizeof *q, from_start);
    float *k = memory_take(c->mem, REGION_Z, n * sizeof *k, from_start);
    struct delta_case d = {n, shape->rows, .first = first};
    d.v = memory_take(c->mem, REGION_Y, d.rows * sizeof *d.v, from_start);
    d.s = memory_take(c->mem, REGION_W, (size_t)d.rows * n * sizeof *d.s, from_start);
    d.y = memory_take(c->mem, REGION_OUT, d.rows * sizeof *d.y, from_start);
    for (uint32_t i = 0; i < n; i++) {
        q[i] = check_uniform(c, -1, 1) / sqrtf((float)n);
        k[i] = check_uniform(c, -1, 1) / sqrtf((float)n);
    }
    check_fill_floats(c, d.v, d.rows, shape->fill);
    check_fill_floats(c, d.s, d.rows * n,
                      shape->fill == FILL_ZERO_INPUT ? FILL_RANDOM : shape->fill);
    d.t = (struct bl_delta_token){q, k, check_uniform(c, 0, 1), check_uniform(c, 0, 1)};
    if (shape->fill == FILL_SPECIAL) { /* nothing forgotten, everything replaced */
        d.t.decay = 1;
        d.t.beta = 1;
    }
    memcpy(first, d.s, (size_t)d.rows * n * sizeof *first);
    return d;
}

/* What goes into the difference of a row: its terms by magnitude. */
static double difference_terms(const struct delta_case *d, uint32_t row)
{
    double sum = fabs((double)d->v[row]);
    for (uint32_t i = 0; i < d->k; i++)
        sum += fabs((double)d->t.decay * (double)d->first[row * d->k + i] * (double)d->t.k[i]);
    return (double)d->t.beta * sum;
}

static bool check_row(struct context *c, const struct delta_case *d, uint32_t row,
                      const float *want_s, const float *want_y)
{
    const double diff = difference_terms(d, row);
    double result = 0;
    for (uint32_t i = 0; i < d->k; i++) {
        const uint32_t at = row * d->k + i;
        const double terms =
            fabs((double)d->t.decay * (double)d->first[at]) + fabs((double)d->t.k[i]) * diff;
        if (!check_close(c, "s", at, d->s[at], want_s[at], terms, C_STATE, FLT_MIN))
            return false;
        result += terms * fabs((double)d->t.q[i]);
    }
    return check_close(c, "y", row, d->y[row], want_y[row], result, C_RESULT, FLT_MIN);
}

bool check_delta(struct context *c, const struct subject *s, const struct shape *shape)
{
    static float want_s[MAX_K * MAX_ROWS], want_y[MAX_ROWS];
    const struct delta_case d = make_case(c, shape);
    (void)s;
    memcpy(want_s, d.s, (size_t)d.rows * d.k * sizeof *want_s);
    c->ref->delta_rule(d.k, d.rows, want_y, want_s, d.v, &d.t);
    c->now->delta_rule(d.k, d.rows, d.y, d.s, d.v, &d.t);
    for (uint32_t r = 0; r < d.rows; r++)
        if (!check_row(c, &d, r, want_s, want_y))
            return false;
    if (!memory_frame_intact(c->mem, REGION_OUT) || !memory_frame_intact(c->mem, REGION_W))
        return check_fail(c, "wrote beside the result or the state");
    return true;
}

/* SPDX-License-Identifier: MIT */
/* Attention kernels: scores and weighted sums over rows that lie anywhere, against the scalar ones.
 */
#include <float.h>
#include <math.h>

#include "check.h"

/* qk sums in float what scalar sums in double; pv adds row after row in float, as scalar does, each
 * with one rounding. */
static const double C_QK = 3, C_PV_FIXED = 2, C_PV_PER_ROW = 0.25;

enum { MAX_ROWS = 40, MAX_K = 576 };

void check_kv_shapes(struct context *c, const struct subject *s, bool quick, visit_fn *visit)
{
    static const uint32_t rows[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, MAX_ROWS};
    static const uint32_t wide[] = {64, 80, 96, 128, 160, 192, 256, 288, MAX_K};
    static const uint32_t pads[] = {0, 6, 512};
    const uint32_t block = bl_dtypes[s->type].block_elems;
    const uint32_t fine = 40 / block; /* every tail of the float types */
    uint32_t turn = 0;
    for (uint32_t i = 1; i <= fine + BL_COUNT(wide); i++) {
        const uint32_t k = i <= fine ? i * block : wide[i - fine - 1];
        if (k % block)
            continue;
        for (size_t r = 0; r < BL_COUNT(rows); r++)
            for (uint32_t fill = 0; fill < N_FILLS; fill++, turn++) {
                const struct shape shape = {k, rows[r], pads[turn % 3], 0, fill};
                if (!(quick && turn % 7) && !visit(c, s, &shape))
                    return;
            }
    }
}

/* The decoded row, so that scalar terms can be summed by magnitude. */
static const float *decoded(const struct subject *s, const uint8_t *base, uint64_t at, uint32_t k)
{
    static float v[MAX_K];
    bl_dtype_decode(s->type, k, v, base + at);
    return v;
}

/* Rows in a shuffled order. */
static const uint64_t *make_rows(struct context *c, const struct subject *s,
                                 const struct shape *shape, uint8_t *base, size_t stride)
{
    uint64_t *row = memory_take(c->mem, REGION_ROWS, shape->rows * sizeof *row, false);
    for (uint32_t j = 0; j < shape->rows; j++) {
        check_fill_weights(c, s->type, base + j * stride, shape->k, shape->fill);
        row[j] = j * stride;
    }
    for (uint32_t j = shape->rows; j > 1; j--) {
        const uint32_t other = check_random(c) % j;
        const uint64_t swap = row[j - 1];
        row[j - 1] = row[other];
        row[other] = swap;
    }
    return row;
}

static bool check_qk(struct context *c, const struct subject *s, const struct shape *shape,
                     const uint8_t *base, const uint64_t *row, bool from_start)
{
    const float scale = check_uniform(c, 0.05f, 2);
    float want[MAX_ROWS];
    float *q = memory_take(c->mem, REGION_X, shape->k * sizeof *q, from_start);
    float *got = memory_take(c->mem, REGION_OUT, shape->rows * sizeof *got, from_start);
    check_fill_floats(c, q, shape->k, shape->fill);
    c->ref->kv[s->type].qk(shape->k, shape->rows, want, q, base, row, scale);
    c->now->kv[s->type].qk(shape->k, shape->rows, got, q, base, row, scale);
    if (!memory_frame_intact(c->mem, REGION_OUT))
        return check_fail(c, "wrote beside score[]");
    /* below the normal floats: every product rounds by itself and is scaled, in whichever order */
    const double floor = (shape->k * (1 + (double)scale) + 16) * (double)FLT_TRUE_MIN;
    for (uint32_t j = 0; j < shape->rows; j++) {
        const float *v = decoded(s, base, row[j], shape->k);
        double terms = 0;
        for (uint32_t i = 0; i < shape->k; i++)
            terms += fabs((double)v[i] * (double)q[i] * (double)scale);
        if (!check_close(c, "score", j, got[j], want[j], terms, C_QK, floor))
            return false;
    }
    return true;
}

static bool check_pv(struct context *c, const struct subject *s, const struct shape *shape,
                     const uint8_t *base, const uint64_t *row, bool from_start)
{
    float want[MAX_K];
    double terms[MAX_K];
    float *p = memory_take(c->mem, REGION_X, shape->rows * sizeof *p, from_start);
    float *acc = memory_take(c->mem, REGION_OUT, shape->k * sizeof *acc, from_start);
    check_fill_floats(c, p, shape->rows, shape->fill);
    check_fill_floats(c, acc, shape->k, FILL_RANDOM);
    for (uint32_t i = 0; i < shape->k; i++) {
        want[i] = acc[i];
        terms[i] = fabs((double)acc[i]);
    }
    for (uint32_t j = 0; j < shape->rows; j++) {
        const float *v = decoded(s, base, row[j], shape->k);
        for (uint32_t i = 0; i < shape->k; i++)
            terms[i] += fabs((double)p[j] * (double)v[i]);
    }
    c->ref->kv[s->type].pv(shape->k, shape->rows, want, p, base, row);
    c->now->kv[s->type].pv(shape->k, shape->rows, acc, p, base, row);
    if (!memory_frame_intact(c->mem, REGION_OUT))
        return check_fail(c, "wrote beside acc[]");
    const double limit = C_PV_FIXED + C_PV_PER_ROW * shape->rows;
    for (uint32_t i = 0; i < shape->k; i++)
        if (!check_close(c, "acc", i, acc[i], want[i], terms[i], limit,
                         shape->rows * (double)FLT_TRUE_MIN))
            return false;
    return true;
}

bool check_kv(struct context *c, const struct subject *s, const struct shape *shape)
{
    const size_t stride = (size_t)bl_dtype_row_bytes(s->type, shape->k) + shape->pad;
    const bool from_start = check_random(c) & 1;
    uint8_t *base = memory_take(c->mem, REGION_W, stride * shape->rows - shape->pad, from_start);
    const uint64_t *row = make_rows(c, s, shape, base, stride);
    return s->kind == QK ? check_qk(c, s, shape, base, row, from_start)
                         : check_pv(c, s, shape, base, row, from_start);
}

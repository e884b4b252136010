/* SPDX-License-Identifier: MIT */
/* Attention by tiles: rows decoded for it, scores, weights and sums of up to eight queries.
 * Decoding must be exact; the rest is compared with the portable kernels within rounding. A query
 * must give the same bits in a tile of its own. */
#include <float.h>
#include <math.h>

#include "check.h"

/* Sums of products in float on both sides, in the order of the terms; powers within an ulp or two.
 */
static const double C_SCORE = 6, C_WEIGHT = 4, C_SUM = 6;
/* Against doubles: additions to a sum that may be far larger round one by one. */
static const double C_ROW_SUM = 6, C_ROW_SUM_PER_KEY = 0.1;

enum { MAX_K = 576, ALL = BL_TILE_ROWS * BL_TILE_KEYS, MOST = BL_TILE_ROWS * MAX_K };

void check_tile_shapes(struct context *c, const struct subject *s, bool quick, visit_fn *visit)
{
    static const uint32_t wide[] = {64, 80, 96, 112, 128, 160, 192, 256, 288, MAX_K};
    const uint32_t block = bl_dtypes[s->type].block_elems, fine = 40 / block;
    uint32_t turn = 0;
    for (uint32_t i = 1; i <= fine + BL_COUNT(wide); i++) {
        const uint32_t k = i <= fine ? i * block : wide[i - fine - 1];
        if (k % block)
            continue;
        for (uint32_t rows = 1; rows <= BL_TILE_ROWS; rows++)
            for (uint32_t fill = 0; fill < N_FILLS; fill++, turn++) {
                const struct shape shape = {k, rows, turn % 3 * 6, turn % BL_TILE_KEYS, fill};
                if (!(quick && turn % 7) && !visit(c, s, &shape))
                    return;
            }
    }
}

void *check_aligned(struct context *c, enum region which, size_t bytes)
{
    return memory_take(c->mem, which, (bytes + 63) / 64 * 64, check_random(c) & 1);
}

static float *take_aligned(struct context *c, enum region which, size_t n)
{
    return check_aligned(c, which, n * sizeof(float));
}

static bool same_bits(const float *a, const float *b, size_t n)
{
    return memcmp(a, b, n * sizeof *a) == 0;
}

/* ---- rows ---- */

const uint64_t *check_rows_of(struct context *c, const struct subject *s, const struct shape *shape,
                              uint32_t n, uint8_t **base)
{
    const size_t bytes = (size_t)bl_dtype_row_bytes(s->type, shape->k), stride = bytes + shape->pad;
    const bool from_start = check_random(c) & 1;
    *base = memory_take(c->mem, REGION_W, stride * n - shape->pad, from_start);
    uint64_t *row = memory_take(c->mem, REGION_ROWS, n * sizeof *row, from_start);
    for (uint32_t j = 0; j < n; j++) {
        check_fill_weights(c, s->type, *base + j * stride, shape->k, shape->fill);
        row[j] = (uint64_t)(n % 5 ? j * 5 % n : n - 1 - j) * stride;
    }
    return row;
}

static bool check_rows(struct context *c, const struct subject *s, const struct shape *shape)
{
    static BL_ALIGNED(64) float want[MAX_K * BL_TILE_PANEL];
    uint8_t *base;
    const uint64_t *row = check_rows_of(c, s, shape, BL_TILE_PANEL, &base);
    const bool keys = s->kind == TILE_KEYS;
    const uint32_t n = shape->rows * 4 - shape->place % 3;
    const size_t all =
        keys ? (size_t)shape->k * BL_TILE_PANEL : (size_t)n * bl_tile_padded(shape->k);
    float *got = take_aligned(c, REGION_OUT, all);
    if (keys) {
        c->ref->rows[s->type].keys(shape->k, want, base, row);
        c->now->rows[s->type].keys(shape->k, got, base, row);
    } else {
        c->ref->rows[s->type].values(shape->k, n, want, base, row);
        c->now->rows[s->type].values(shape->k, n, got, base, row);
    }
    if (!memory_frame_intact(c->mem, REGION_OUT))
        return check_fail(c, "wrote beside the rows");
    for (size_t i = 0; i < all; i++)
        if (got[i] != want[i])
            return check_fail(c, "element %zu is %.9g, scalar %.9g", i, (double)got[i],
                              (double)want[i]);
    return true;
}

/* ---- scores ---- */

static bool check_scores(struct context *c, const struct shape *shape)
{
    static BL_ALIGNED(64) float want[ALL], alone[ALL];
    static const void *ahead[MAX_K];
    const uint32_t k = shape->k, n = shape->rows;
    float *panel = take_aligned(c, REGION_W, (size_t)k * BL_TILE_PANEL);
    float *q = memory_take(c->mem, REGION_X, (size_t)n * k * sizeof *q, check_random(c) & 1);
    float *got = take_aligned(c, REGION_OUT, (size_t)n * BL_TILE_KEYS);
    check_fill_floats(c, panel, k * BL_TILE_PANEL, shape->fill);
    check_fill_floats(c, q, n * k, shape->fill);
    for (uint32_t i = 0; i < k; i++)
        ahead[i] = (const void *)(4096 * (uintptr_t)i); /* nobody's memory: never a fault */
    c->ref->tile.scores(k, n, want, q, panel, NULL);
    c->now->tile.scores(k, n, got, q, panel, shape->place % 2 ? ahead : NULL);
    if (!memory_frame_intact(c->mem, REGION_OUT))
        return check_fail(c, "wrote beside score[]");
    for (uint32_t r = 0; r < n; r++) {
        c->now->tile.scores(k, 1, alone, q + (size_t)r * k, panel, NULL);
        if (!same_bits(alone, got + r * BL_TILE_KEYS, BL_TILE_PANEL))
            return check_fail(c, "query %u gives other scores alone", r);
        for (uint32_t j = 0; j < BL_TILE_PANEL; j++) {
            double terms = 0;
            for (uint32_t i = 0; i < k; i++)
                terms += fabs((double)q[r * k + i] * (double)panel[i * BL_TILE_PANEL + j]);
            if (!check_close(c, "score", r * BL_TILE_KEYS + j, got[r * BL_TILE_KEYS + j],
                             want[r * BL_TILE_KEYS + j], terms, C_SCORE, k * (double)FLT_TRUE_MIN))
                return false;
        }
    }
    return true;
}

/* ---- rows where they lie ---- */

static struct bl_tile_source take_source(struct context *c, const struct subject *s,
                                         const struct shape *shape, float *decoded)
{
    static uint64_t nobodys[BL_TILE_KEYS]; /* memory: never a fault */
    uint8_t *base;
    struct bl_tile_source from = {.n_keys = shape->place + 1};
    from.row = check_rows_of(c, s, shape, from.n_keys, &base);
    from.base = base;
    for (uint32_t j = 0; j < from.n_keys; j++, decoded += shape->k) {
        nobodys[j] = 4096 * (uint64_t)j;
        bl_dtype_decode(s->type, shape->k, decoded, base + from.row[j]);
    }
    from.next = shape->place % 2 ? nobodys : NULL;
    return from;
}

static bool check_row_scores(struct context *c, const struct subject *s, const struct shape *shape)
{
    static float key[MAX_K * BL_TILE_KEYS];
    static BL_ALIGNED(64) float alone[BL_TILE_KEYS];
    const uint32_t k = shape->k, n = shape->rows;
    const struct bl_tile_source from = take_source(c, s, shape, key);
    float *q = memory_take(c->mem, REGION_X, (size_t)n * k * sizeof *q, check_random(c) & 1);
    float *got = memory_take(c->mem, REGION_OUT,
                             ((size_t)(n - 1) * BL_TILE_KEYS + from.n_keys) * sizeof *got,
                             check_random(c) & 1);
    check_fill_floats(c, q, n * k, shape->fill);
    c->now->rows[s->type].scores(k, n, got, q, &from);
    if (!memory_frame_intact(c->mem, REGION_OUT))
        return check_fail(c, "wrote beside score[]");
    for (uint32_t r = 0; r < n; r++) {
        const float *x = q + (size_t)r * k;
        c->now->rows[s->type].scores(k, 1, alone, x, &from);
        if (!same_bits(alone, got + r * BL_TILE_KEYS, from.n_keys))
            return check_fail(c, "query %u gives other scores alone", r);
        for (uint32_t j = 0; j < from.n_keys; j++) {
            double terms = 0, want = 0;
            for (uint32_t i = 0; i < k; i++) {
                want += (double)x[i] * (double)key[j * k + i];
                terms += fabs((double)x[i] * (double)key[j * k + i]);
            }
            if (!check_close(c, "score", r * BL_TILE_KEYS + j, (double)got[r * BL_TILE_KEYS + j],
                             want, terms, C_SCORE, k * (double)FLT_TRUE_MIN))
                return false;
        }
    }
    return true;
}

static bool check_row_sum(struct context *c, const struct subject *s, const struct shape *shape)
{
    static float value[MAX_K * BL_TILE_KEYS];
    static BL_ALIGNED(64) float first[MOST];
    const uint32_t k = shape->k, n = shape->rows, width = bl_tile_padded(k);
    const struct bl_tile_source from = take_source(c, s, shape, value);
    const bool kept = check_random(c) & 1;
    float *p =
        memory_take(c->mem, REGION_X, ((size_t)(n - 1) * BL_TILE_KEYS + from.n_keys) * sizeof *p,
                    check_random(c) & 1);
    float *keep = memory_take(c->mem, REGION_Y, n * sizeof *keep, check_random(c) & 1);
    float *acc = take_aligned(c, REGION_OUT, (size_t)n * width);
    check_fill_floats(c, p, (n - 1) * BL_TILE_KEYS + from.n_keys, shape->fill);
    check_fill_floats(c, acc, n * width, FILL_RANDOM);
    for (uint32_t r = 0; r < n; r++)
        keep[r] = check_uniform(c, 0, 1);
    memcpy(first, acc, (size_t)n * width * sizeof *acc);
    c->now->rows[s->type].sum(k, n, acc, p, kept ? keep : NULL, &from);
    if (!memory_frame_intact(c->mem, REGION_OUT))
        return check_fail(c, "wrote beside acc[]");
    for (uint32_t r = 0; r < n; r++) {
        float *alone = first + r * width;
        for (uint32_t i = 0; i < k; i++) {
            double want = (double)alone[i] * (kept ? (double)keep[r] : 1), terms = fabs(want);
            for (uint32_t j = 0; j < from.n_keys; j++) {
                want += (double)p[r * BL_TILE_KEYS + j] * (double)value[j * k + i];
                terms += fabs((double)p[r * BL_TILE_KEYS + j] * (double)value[j * k + i]);
            }
            if (!check_close(c, "acc", r * width + i, (double)acc[r * width + i], want, terms,
                             C_ROW_SUM + C_ROW_SUM_PER_KEY * from.n_keys,
                             from.n_keys * (double)FLT_TRUE_MIN))
                return false;
        }
        c->now->rows[s->type].sum(k, 1, alone, p + r * BL_TILE_KEYS, kept ? keep + r : NULL, &from);
        if (!same_bits(alone, acc + r * width, k))
            return check_fail(c, "query %u gives another sum alone", r);
    }
    return true;
}

/* ---- weights ---- */

struct bl_tile check_tile_state(struct context *c, uint32_t n)
{
    struct bl_tile t = {.max = {0}};
    for (uint32_t r = 0; r < n; r++) {
        const uint32_t kind = check_random(c) % 4;
        t.max[r] = kind == 0 ? -INFINITY : check_uniform(c, -20, 20);
        t.sum[r] = kind == 0 ? 0 : check_uniform(c, 1, 50);
        t.first[r] = check_random(c) % 2 ? 0 : check_random(c) % BL_TILE_KEYS;
        t.end[r] = check_random(c) % 2 ? BL_TILE_KEYS : check_random(c) % (BL_TILE_KEYS + 1);
    }
    return t;
}

void check_fill_scores(struct context *c, float *score, uint32_t n, uint32_t fill)
{
    const float limit = fill == FILL_LARGE ? 400 : fill == FILL_TINY ? 1e-3f : 12;
    for (uint32_t i = 0; i < n; i++) {
        score[i] = fill == FILL_ZERO_INPUT ? 0 : check_uniform(c, -limit, limit);
        if (fill == FILL_SPECIAL && check_random(c) % 8 == 0)
            score[i] = check_random(c) % 8 ? -INFINITY : NAN;
    }
}

static bool check_state(struct context *c, const struct bl_tile *got, const struct bl_tile *want,
                        uint32_t r)
{
    return check_close(c, "max", r, got->max[r], want->max[r], 0, 0, 0) &&
           check_close(c, "keep", r, got->keep[r], want->keep[r], fabs((double)want->keep[r]),
                       C_WEIGHT, FLT_MIN) &&
           check_close(c, "sum", r, got->sum[r], want->sum[r], fabs((double)want->sum[r]),
                       2 * C_WEIGHT, BL_TILE_KEYS * (double)FLT_MIN);
}

static bool check_weights(struct context *c, const struct shape *shape)
{
    static BL_ALIGNED(64) float want[ALL], alone[BL_TILE_KEYS];
    const uint32_t n = shape->rows;
    float *got = take_aligned(c, REGION_OUT, (size_t)n * BL_TILE_KEYS);
    const struct bl_tile before = check_tile_state(c, n);
    struct bl_tile ref = before, now = before;
    check_fill_scores(c, got, n * BL_TILE_KEYS, shape->fill);
    memcpy(want, got, n * BL_TILE_KEYS * sizeof *want);
    const uint32_t chosen = shape->place % n;
    struct bl_tile one = {.max = {before.max[chosen]},
                          .sum = {before.sum[chosen]},
                          .first = {before.first[chosen]},
                          .end = {before.end[chosen]}};
    memcpy(alone, got + chosen * BL_TILE_KEYS, sizeof alone);
    c->ref->tile.weights(n, want, &ref);
    c->now->tile.weights(n, got, &now);
    if (!memory_frame_intact(c->mem, REGION_OUT))
        return check_fail(c, "wrote beside score[]");
    for (uint32_t r = 0; r < n; r++) {
        if (!check_state(c, &now, &ref, r))
            return false;
        for (uint32_t j = 0; j < BL_TILE_KEYS; j++)
            if (!check_close(c, "weight", r * BL_TILE_KEYS + j, got[r * BL_TILE_KEYS + j],
                             want[r * BL_TILE_KEYS + j], fabs((double)want[r * BL_TILE_KEYS + j]),
                             C_WEIGHT, FLT_MIN))
                return false;
    }
    c->now->tile.weights(1, alone, &one);
    const bool same = same_bits(alone, got + chosen * BL_TILE_KEYS, BL_TILE_KEYS) &&
                      same_bits(&one.sum[0], &now.sum[chosen], 1);
    return same || check_fail(c, "query %u gives other weights alone", chosen);
}

/* ---- sums ---- */

static bool check_sums(struct context *c, const struct shape *shape)
{
    static BL_ALIGNED(64) float want[MOST], first[MOST];
    const uint32_t n = shape->rows, width = bl_tile_padded(shape->k), n_keys = shape->place + 1;
    const bool kept = check_random(c) & 1;
    float *values = take_aligned(c, REGION_W, (size_t)n_keys * width);
    float *p = memory_take(c->mem, REGION_X, ((size_t)(n - 1) * BL_TILE_KEYS + n_keys) * sizeof *p,
                           check_random(c) & 1);
    float *keep = memory_take(c->mem, REGION_Y, n * sizeof *keep, check_random(c) & 1);
    float *acc = take_aligned(c, REGION_OUT, (size_t)n * width);
    check_fill_floats(c, values, n_keys * width, shape->fill);
    check_fill_floats(c, p, (n - 1) * BL_TILE_KEYS + n_keys, shape->fill);
    check_fill_floats(c, acc, n * width, FILL_RANDOM);
    for (uint32_t r = 0; r < n; r++)
        keep[r] = check_uniform(c, 0, 1);
    memcpy(first, acc, n * width * sizeof *acc);
    memcpy(want, acc, n * width * sizeof *acc);
    c->ref->tile.sum(shape->k, n, n_keys, want, p, values, kept ? keep : NULL, NULL);
    c->now->tile.sum(shape->k, n, n_keys, acc, p, values, kept ? keep : NULL, NULL);
    if (!memory_frame_intact(c->mem, REGION_OUT))
        return check_fail(c, "wrote beside acc[]");
    for (uint32_t r = 0; r < n; r++) {
        for (uint32_t i = 0; i < width; i++) {
            double terms = fabs((double)first[r * width + i]);
            for (uint32_t j = 0; j < n_keys; j++)
                terms += fabs((double)p[r * BL_TILE_KEYS + j] * (double)values[j * width + i]);
            if (!check_close(c, "acc", r * width + i, acc[r * width + i], want[r * width + i],
                             terms, C_SUM, n_keys * (double)FLT_TRUE_MIN))
                return false;
        }
        float *alone = first + r * width;
        c->now->tile.sum(shape->k, 1, n_keys, alone, p + r * BL_TILE_KEYS, values,
                         kept ? keep + r : NULL, NULL);
        if (!same_bits(alone, acc + r * width, width))
            return check_fail(c, "query %u gives another sum alone", r);
    }
    return true;
}

bool check_tile(struct context *c, const struct subject *s, const struct shape *shape)
{
    switch (s->kind) {
    case TILE_SCORES:
        return check_scores(c, shape);
    case TILE_WEIGHTS:
        return check_weights(c, shape);
    case TILE_SUM:
        return check_sums(c, shape);
    case ROW_SCORES:
        return check_row_scores(c, s, shape);
    case ROW_SUM:
        return check_row_sum(c, s, shape);
    default:
        return check_rows(c, s, shape);
    }
}

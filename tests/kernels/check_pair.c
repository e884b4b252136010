/* SPDX-License-Identifier: MIT */
/* Attention by tiles in pairs, beside doubles: vectors as integers, values as bfloat16, scores,
 * weights and sums. What fits in no rounding must be exact. A query must give the same bits in a
 * tile of its own. */
#include <float.h>
#include <math.h>

#include "check.h"

enum {
    MAX_K = 576,
    ALL = BL_TILE_ROWS * BL_TILE_KEYS,
    MOST = BL_TILE_ROWS * MAX_K,
    MOST_LENGTH = 32767 /* of integers: its square is below 2^31 */
};

/* Sums of products in float, in the order of the terms. */
static const double C_SUM = 12;
/* A polynomial for numbers of eight bits. */
static const double POWER = 1e-4;

static float of_bf16(uint16_t h)
{
    const uint32_t bits = (uint32_t)h << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* As processors round: to nearest, subnormals are zeros. */
static uint16_t to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (isnan(x))
        return (uint16_t)(bits >> 16 | 0x40);
    if (fabsf(x) < FLT_MIN)
        return (uint16_t)(bits >> 16 & 0x8000);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* ---- integers ---- */

/* Elements of x as integers, where out says. */
static bool check_integers(struct context *c, const char *what, uint32_t row, uint32_t k,
                           const float *x, const int16_t *const out[MAX_K], float unit)
{
    double squares = 0, length = 0, largest = 0;
    for (uint32_t i = 0; i < k; i++) {
        squares += (double)x[i] * (double)x[i];
        length += (double)*out[i] * (double)*out[i];
        largest = fmax(largest, fabs((double)x[i]));
        if (!isfinite(x[i]))
            return isnan(unit) || check_fail(c, "%s %u is finite", what, row);
    }
    if (largest > 0x1p63) /* too long to be measured */
        return isnan(unit) || check_fail(c, "%s %u is finite", what, row);
    if (squares < 0x1p-121)
        return (unit == 0 && length == 0) || check_fail(c, "%s %u has a length", what, row);
    if (length > (double)MOST_LENGTH * MOST_LENGTH)
        return check_fail(c, "%s %u is too long: %.9g", what, row, sqrt(length));
    const double least = sqrt(squares) / MOST_LENGTH;
    if (squares > 0x1p-119 && (double)unit > 1.002 * least)
        return check_fail(c, "%s %u has unit %.9g where %.9g would do", what, row, (double)unit,
                          least);
    for (uint32_t i = 0; i < k; i++)
        if (fabs((double)unit * *out[i] - (double)x[i]) > 0.51 * (double)unit)
            return check_fail(c, "%s %u[%u] = %d * %.9g, not %.9g", what, row, i, *out[i],
                              (double)unit, (double)x[i]);
    return true;
}

/* Vectors whose squares are no subnormal numbers, and sometimes one that is not finite. */
static void fill_vectors(struct context *c, float *x, uint32_t n, enum fill fill)
{
    static const float special[] = {INFINITY, -INFINITY, NAN, 0x1p100f};
    check_fill_floats(c, x, n, fill);
    if (fill == FILL_SPECIAL)
        x[check_random(c) % n] = special[check_random(c) % 4];
    if (fill == FILL_RANDOM && check_random(c) % 4 == 0) /* larger than all others */
        x[check_random(c) % n] *= 200;
}

static bool check_queries(struct context *c, const struct shape *shape)
{
    static float alone_unit[1];
    static int16_t alone[MAX_K + 1];
    const uint32_t k = shape->k, n = shape->rows + shape->place % 16, width = bl_pair_padded(k);
    const int16_t *at[MAX_K];
    float *q = memory_take(c->mem, REGION_X, (size_t)n * k * sizeof *q, check_random(c) & 1);
    float *unit = memory_take(c->mem, REGION_Y, n * sizeof *unit, check_random(c) & 1);
    int16_t *out =
        memory_take(c->mem, REGION_OUT, (size_t)n * width * sizeof *out, check_random(c) & 1);
    fill_vectors(c, q, n * k, shape->fill);
    c->now->pair.queries(k, n, out, unit, q);
    if (!memory_frame_intact(c->mem, REGION_OUT) || !memory_frame_intact(c->mem, REGION_Y))
        return check_fail(c, "wrote beside the integers or units");
    for (uint32_t r = 0; r < n; r++) {
        for (uint32_t i = 0; i < k; i++)
            at[i] = out + (size_t)r * width + i;
        if (width > k && out[(size_t)r * width + k])
            return check_fail(c, "query %u is not padded with zero", r);
        if (!check_integers(c, "query", r, k, q + (size_t)r * k, at, unit[r]))
            return false;
        c->now->pair.queries(k, 1, alone, alone_unit, q + (size_t)r * k);
        if (memcmp(alone, out + (size_t)r * width, width * sizeof *alone) ||
            memcmp(alone_unit, unit + r, sizeof *unit))
            return check_fail(c, "query %u gives other integers alone", r);
    }
    return true;
}

/* An element that is not finite in one of the rows, where the type has such. */
static void spoil(struct context *c, enum bl_dtype t, uint8_t *row, uint32_t k)
{
    const uint32_t i = check_random(c) % k;
    const float infinite = INFINITY;
    if (t == BL_F32)
        memcpy(row + 4 * (size_t)i, &infinite, 4);
    else if (t == BL_F16)
        memcpy(row + 2 * (size_t)i, &(uint16_t){0x7e00}, 2);
    else if (t == BL_BF16)
        memcpy(row + 2 * (size_t)i, &(uint16_t){0xff80}, 2);
    else
        memcpy(row, &(uint16_t){0x7c00}, 2);
}

static bool check_keys(struct context *c, const struct subject *s, const struct shape *shape)
{
    static float x[MAX_K];
    const uint32_t k = shape->k, width = bl_pair_padded(k);
    const int16_t *at[MAX_K];
    uint8_t *base;
    const uint64_t *row = check_rows_of(c, s, shape, BL_TILE_PANEL, &base);
    int16_t *panel = check_aligned(c, REGION_OUT, (size_t)width * BL_TILE_PANEL * sizeof *panel);
    float *unit = check_aligned(c, REGION_Y, BL_TILE_PANEL * sizeof *unit);
    if (shape->fill == FILL_SPECIAL)
        spoil(c, s->type, base + row[check_random(c) % BL_TILE_PANEL], k);
    c->now->pair_rows[s->type].keys(k, panel, unit, base, row);
    if (!memory_frame_intact(c->mem, REGION_OUT) || !memory_frame_intact(c->mem, REGION_Y))
        return check_fail(c, "wrote beside the panel or units");
    for (uint32_t j = 0; j < BL_TILE_PANEL; j++) {
        bl_dtype_decode(s->type, k, x, base + row[j]);
        for (uint32_t i = 0; i < k; i++)
            at[i] = panel + ((size_t)(i / 2) * BL_TILE_PANEL + j) * 2 + i % 2;
        if (width > k && panel[((size_t)(k / 2) * BL_TILE_PANEL + j) * 2 + 1])
            return check_fail(c, "key %u is not padded with zero", j);
        if (!check_integers(c, "key", j, k, x, at, unit[j]))
            return false;
    }
    return true;
}

/* ---- values ---- */

static bool check_values(struct context *c, const struct subject *s, const struct shape *shape)
{
    static float x[2][MAX_K];
    const uint32_t k = shape->k, n = shape->rows * 4 - shape->place % 3, width = bl_tile_padded(k);
    uint8_t *base;
    const uint64_t *row = check_rows_of(c, s, shape, n, &base);
    uint16_t *out = check_aligned(c, REGION_OUT, (size_t)(n + 1) / 2 * width * 2 * sizeof *out);
    bool finite = true;
    if (shape->fill == FILL_SPECIAL)
        spoil(c, s->type, base + row[check_random(c) % n], k);
    const bool got = c->now->pair_rows[s->type].values(k, n, out, base, row);
    if (!memory_frame_intact(c->mem, REGION_OUT))
        return check_fail(c, "wrote beside the rows");
    for (uint32_t j = 0; j < n; j += 2) {
        memset(x, 0, sizeof x);
        for (uint32_t h = 0; h < 2 && j + h < n; h++)
            bl_dtype_decode(s->type, k, x[h], base + row[j + h]);
        for (uint32_t i = 0; i < 2 * width; i++) {
            const uint16_t want = i / 2 < k ? to_bf16(x[i % 2][i / 2]) : 0;
            const uint16_t is = out[(size_t)j * width + i];
            finite = finite && (want & 0x7f80) != 0x7f80;
            if (is != want && !(isnan(of_bf16(is)) && isnan(of_bf16(want))))
                return check_fail(c, "element %u of row %u is %.9g, not %.9g", i / 2, j + i % 2,
                                  (double)of_bf16(is), (double)of_bf16(want));
        }
    }
    return got == finite || check_fail(c, "finite: %d", got);
}

/* ---- scores ---- */

/* As long as they may be. */
static void fill_integers(struct context *c, int16_t *x, uint32_t k, uint32_t fill)
{
    const float limit = fminf(32767, floorf(MOST_LENGTH / sqrtf((float)k)));
    for (uint32_t i = 0; i < k; i++)
        x[i] = (int16_t)(fill == FILL_LARGE        ? limit
                         : fill == FILL_ZERO_INPUT ? 0
                                                   : check_uniform(c, -limit, limit));
}

static bool check_scores(struct context *c, const struct shape *shape)
{
    static BL_ALIGNED(64) float alone[ALL];
    static const void *ahead[MAX_K];
    static int16_t key[BL_TILE_PANEL][MAX_K + 1];
    const uint32_t k = shape->k, n = shape->rows, width = bl_pair_padded(k);
    int16_t *panel = check_aligned(c, REGION_W, (size_t)width * BL_TILE_PANEL * sizeof *panel);
    int16_t *q = memory_take(c->mem, REGION_X, (size_t)n * width * sizeof *q, check_random(c) & 1);
    float *unit = check_aligned(c, REGION_Y, BL_TILE_PANEL * sizeof *unit);
    float *got = check_aligned(c, REGION_OUT, (size_t)n * BL_TILE_KEYS * sizeof *got);
    memset(key, 0, sizeof key);
    for (uint32_t j = 0; j < BL_TILE_PANEL; j++) {
        fill_integers(c, key[j], k, shape->fill);
        unit[j] = check_uniform(c, 0.5f, 2);
        for (uint32_t i = 0; i < width; i++)
            panel[((size_t)(i / 2) * BL_TILE_PANEL + j) * 2 + i % 2] = key[j][i];
    }
    memset(q, 0, (size_t)n * width * sizeof *q);
    for (uint32_t r = 0; r < n; r++)
        fill_integers(c, q + (size_t)r * width, k, shape->fill);
    for (uint32_t i = 0; i < k; i++)
        ahead[i] = (const void *)(4096 * (uintptr_t)i); /* nobody's memory: never a fault */
    c->now->pair.scores(k, n, got, q, panel, unit, shape->place % 2 ? ahead : NULL);
    if (!memory_frame_intact(c->mem, REGION_OUT))
        return check_fail(c, "wrote beside score[]");
    for (uint32_t r = 0; r < n; r++) {
        c->now->pair.scores(k, 1, alone, q + (size_t)r * width, panel, unit, NULL);
        for (uint32_t j = 0; j < BL_TILE_PANEL; j++) {
            int64_t sum = 0;
            for (uint32_t i = 0; i < k; i++)
                sum += (int32_t)q[(size_t)r * width + i] * key[j][i];
            const float want = (float)sum * unit[j], is = got[r * BL_TILE_KEYS + j];
            if (is != want || is != alone[j])
                return check_fail(c, "score[%u][%u] = %.9g, alone %.9g, not %.9g", r, j, (double)is,
                                  (double)alone[j], (double)want);
        }
    }
    return true;
}

/* ---- weights ---- */

static bool check_row_weights(struct context *c, uint32_t r, const float *score, float unit,
                              const uint16_t *got, const struct bl_tile *before,
                              const struct bl_tile *now)
{
    float top = -INFINITY;
    double sum = 0;
    for (uint32_t j = before->first[r]; j < before->end[r]; j++)
        top = score[j] > top ? score[j] : top;
    top *= unit;
    const bool up = top > before->max[r] + BL_PAIR_SLACK;
    const float max = up ? top : before->max[r];
    const double keep = up ? exp2((double)before->max[r] - (double)max) : 1;
    if (now->max[r] != max)
        return check_fail(c, "max[%u] = %.9g, not %.9g", r, (double)now->max[r], (double)max);
    if (fabs((double)now->keep[r] - keep) > POWER * keep + FLT_MIN)
        return check_fail(c, "keep[%u] = %.9g, not %.9g", r, (double)now->keep[r], keep);
    for (uint32_t j = 0; j < BL_TILE_KEYS; j++) {
        const bool seen = j >= before->first[r] && j < before->end[r];
        const double from = isinf(max) ? 0 : (double)max, is = (double)of_bf16(got[j]);
        const double want = seen ? exp2((double)score[j] * (double)unit - from) : 0;
        const double scores =
            !isfinite(score[j]) ? 0 : fabs((double)score[j] * (double)unit) * (double)FLT_EPSILON;
        sum += is;
        if (!(fabs(is - want) <= want * (0x1p-8 + POWER + scores) + FLT_MIN) && !isnan(want))
            return check_fail(c, "weight[%u][%u] = %.9g, not %.9g", r, j, is, want);
        if (isnan(want) != isnan(is))
            return check_fail(c, "weight[%u][%u] = %.9g", r, j, is);
    }
    return check_close(c, "sum", r, (double)now->sum[r],
                       (double)before->sum[r] * (double)now->keep[r] + sum,
                       fabs((double)before->sum[r]) + sum, 8, FLT_MIN);
}

static bool check_weights(struct context *c, const struct shape *shape)
{
    static BL_ALIGNED(64) float scores[ALL], alone[BL_TILE_KEYS];
    const uint32_t n = shape->rows, chosen = shape->place % n;
    float *got = check_aligned(c, REGION_OUT, (size_t)n * BL_TILE_KEYS * sizeof *got);
    float *unit = memory_take(c->mem, REGION_Y, n * sizeof *unit, check_random(c) & 1);
    const struct bl_tile before = check_tile_state(c, n);
    struct bl_tile now = before;
    struct bl_tile one = {.max = {before.max[chosen]},
                          .sum = {before.sum[chosen]},
                          .first = {before.first[chosen]},
                          .end = {before.end[chosen]}};
    bool any = false;
    check_fill_scores(c, got, n * BL_TILE_KEYS, shape->fill);
    for (uint32_t r = 0; r < n; r++)
        unit[r] = check_uniform(c, 0.5f, 1.5f);
    memcpy(scores, got, (size_t)n * BL_TILE_KEYS * sizeof *got);
    memcpy(alone, got + chosen * BL_TILE_KEYS, sizeof alone);
    const bool kept = !c->now->pair.weights(n, got, unit, &now);
    if (!memory_frame_intact(c->mem, REGION_OUT))
        return check_fail(c, "wrote beside score[]");
    for (uint32_t r = 0; r < n; r++) {
        any = any || now.keep[r] != 1;
        if (!check_row_weights(c, r, scores + r * BL_TILE_KEYS, unit[r],
                               (const uint16_t *)(got + r * BL_TILE_KEYS), &before, &now))
            return false;
    }
    if (kept == any)
        return check_fail(c, "said that sums are %s", kept ? "kept" : "changed");
    c->now->pair.weights(1, alone, unit + chosen, &one);
    const bool same = memcmp(alone, got + chosen * BL_TILE_KEYS, BL_TILE_KEYS * 2) == 0 &&
                      memcmp(&one.sum[0], &now.sum[chosen], sizeof(float)) == 0;
    return same || check_fail(c, "query %u gives other weights alone", chosen);
}

/* ---- sums ---- */

static void fill_bf16(struct context *c, uint16_t *x, uint32_t n, enum fill fill)
{
    float v;
    for (uint32_t i = 0; i < n; i++) {
        check_fill_floats(c, &v, 1, fill);
        x[i] = to_bf16(v);
    }
}

static bool check_sums(struct context *c, const struct shape *shape)
{
    static BL_ALIGNED(64) float first[MOST];
    static const void *ahead[BL_TILE_KEYS * MAX_K / 32];
    static const uint32_t masks[] = {UINT32_MAX, UINT32_MAX, 0xffff, 0xffff0000};
    const uint32_t n = shape->rows, width = bl_tile_padded(shape->k),
                   n_pairs = shape->place / 2 + 1, mask = masks[check_random(c) % 4];
    const bool kept = check_random(c) & 1;
    uint16_t *values = check_aligned(c, REGION_W, (size_t)n_pairs * width * 2 * sizeof *values);
    const uint32_t weights = (n - 1) * 2 * BL_TILE_KEYS + 2 * n_pairs;
    uint16_t *p = memory_take(c->mem, REGION_X, weights * sizeof *p, check_random(c) & 1);
    float *keep = memory_take(c->mem, REGION_Y, n * sizeof *keep, check_random(c) & 1);
    float *acc = check_aligned(c, REGION_OUT, (size_t)n * width * sizeof *acc);
    fill_bf16(c, values, n_pairs * width * 2, shape->fill);
    fill_bf16(c, p, weights, shape->fill);
    check_fill_floats(c, acc, n * width, FILL_RANDOM);
    for (uint32_t r = 0; r < n; r++)
        keep[r] = check_uniform(c, 0, 1);
    for (uint32_t i = 0; i < 2 * n_pairs * (width / 32); i++)
        ahead[i] = (const void *)(4096 * (uintptr_t)i); /* nobody's memory: never a fault */
    memcpy(first, acc, (size_t)n * width * sizeof *acc);
    c->now->pair.sum(shape->k, n, n_pairs, acc, p, values, kept ? keep : NULL, mask,
                     shape->place % 4 == 1 ? ahead : NULL);
    if (!memory_frame_intact(c->mem, REGION_OUT))
        return check_fail(c, "wrote beside acc[]");
    for (uint32_t r = 0; r < n; r++) {
        float *alone = first + (size_t)r * width;
        for (uint32_t i = 0; i < width; i++) {
            double want = (double)alone[i] * (kept ? (double)keep[r] : 1), terms = fabs(want);
            for (uint32_t j = 0; j < 2 * n_pairs; j++) {
                const uint16_t v = values[((size_t)(j / 2) * width + i) * 2 + j % 2];
                const double product = (double)of_bf16(p[r * 2 * BL_TILE_KEYS + j]) *
                                       (double)of_bf16((uint16_t)(v & (j % 2 ? mask >> 16 : mask)));
                want += product;
                terms += fabs(product);
            }
            if (!check_close(c, "acc", r * width + i, (double)acc[r * width + i], want, terms,
                             C_SUM, 2 * n_pairs * (double)FLT_MIN))
                return false;
        }
        c->now->pair.sum(shape->k, 1, n_pairs, alone, p + (size_t)r * 2 * BL_TILE_KEYS, values,
                         kept ? keep + r : NULL, mask, NULL);
        if (memcmp(alone, acc + (size_t)r * width, width * sizeof *acc))
            return check_fail(c, "query %u gives another sum alone", r);
    }
    return true;
}

bool check_pair(struct context *c, const struct subject *s, const struct shape *shape)
{
    switch (s->kind) {
    case PAIR_KEYS:
        return check_keys(c, s, shape);
    case PAIR_VALUES:
        return check_values(c, s, shape);
    case PAIR_QUERIES:
        return check_queries(c, shape);
    case PAIR_SCORES:
        return check_scores(c, shape);
    case PAIR_WEIGHTS:
        return check_weights(c, shape);
    default:
        return check_sums(c, shape);
    }
}

/* SPDX-License-Identifier: MIT */
/* The delta rule in chunks against the scalar rule token by token; sums of a few rows,
 * and those of scores that are not negative. */
#include <float.h>
#include <math.h>

#include "check.h"

enum { N = BL_DELTA_CHUNK, COLUMNS = BL_DELTA_COLUMNS, MAX_K = 136, MAX_N = 1030, MAX_TAPS = 16 };

/* ---- chunks ---- */

/* A system of N unknowns is solved in float: errors of early tokens pass through the later ones. */
static const double C_CHUNK = 8;

void check_chunk_shapes(struct context *c, const struct subject *s, bool quick, visit_fn *visit)
{
    static const uint32_t size[] = {1, 8, 13, 32, 64, 128, 131};
    uint32_t turn = 0;
    for (uint32_t i = 0; i < BL_COUNT(size); i++)
        for (uint32_t n = 1; n <= N; n++)
            for (uint32_t fill = 0; fill < N_FILLS; fill++, turn++) {
                const uint32_t width = 1 + (n * 11 + i * 5 + fill) % COLUMNS;
                const struct shape shape = {size[i], n, 0, n % 3 ? COLUMNS : width, fill};
                if (!(quick && turn % 7) && !visit(c, s, &shape))
                    return;
            }
}

/* k and q [n][dk] of length 1, gates, values [n][width], the state before [width][dk]. */
struct story {
    uint32_t dk, n, width;
    float k[N * MAX_K], q[N * MAX_K], v[N * COLUMNS], decay[N], beta[N], s[COLUMNS * MAX_K];
};

/* A longer key would make of the rule a sum that grows. */
static void unit_length(struct context *c, uint32_t n, float *x)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        x[i] = check_uniform(c, -1, 1);
        sum += (double)x[i] * (double)x[i];
    }
    for (uint32_t i = 0; i < n; i++)
        x[i] = (float)((double)x[i] / sqrt(sum));
}

static void make_story(struct context *c, const struct shape *shape, struct story *t)
{
    t->dk = shape->k;
    t->n = shape->rows;
    t->width = shape->place;
    for (uint32_t i = 0; i < t->n; i++) {
        unit_length(c, t->dk, t->k + (size_t)i * t->dk);
        unit_length(c, t->dk, t->q + (size_t)i * t->dk);
        t->decay[i] = shape->fill == FILL_SPECIAL ? 1 : check_uniform(c, 0, 1);
        if (shape->fill == FILL_TINY)
            t->decay[i] *= 0x1p-40f; /* ratios that vanish */
        t->beta[i] = shape->fill == FILL_SPECIAL ? 1 : check_uniform(c, 0, 1);
    }
    check_fill_floats(c, t->v, t->n * t->width, shape->fill);
    check_fill_floats(c, t->s, t->width * t->dk,
                      shape->fill == FILL_ZERO_INPUT ? FILL_RANDOM : shape->fill);
}

/* lower and mix from the products that lie there. */
static void weigh(const struct story *t, struct bl_delta_chunk *c, float *lower, float *mix,
                  float *rest)
{
    for (uint32_t row = 0; row < c->n; row++)
        for (uint32_t i = 0; i < N; i++) {
            const bool there = row < t->n && i <= row;
            double ratio = 1;
            for (uint32_t j = i + 1; j <= row && j < t->n; j++)
                ratio *= (double)t->decay[j];
            float *l = &lower[row * N + i], *m = &mix[row * N + i];
            *l = there && i < row ? (float)(-(double)t->beta[row] * ratio * (double)*l) : 0;
            *m = there ? (float)(ratio * (double)*m) : 0;
            if (row == c->n - 1 && i <= row)
                rest[i] = (float)ratio;
        }
}

static float *taken(struct context *c, enum region r, size_t floats)
{
    return memory_take(c->mem, r, floats * sizeof(float), true); /* aligned */
}

static void run_chunk(struct context *c, const struct story *t, float *y, float *s)
{
    static BL_ALIGNED(64) float lower[N * N], mix[N * N], gate[3][N], work[N * MAX_K];
    struct bl_delta_chunk k = {(t->n + 7) / 8 * 8, (t->dk + 7) / 8 * 8, .lower = lower, .mix = mix};
    float *keys = taken(c, REGION_X, (size_t)k.n * k.dk),
          *queries = taken(c, REGION_Z, (size_t)k.n * k.dk);
    memset(keys, 0, (size_t)k.n * k.dk * sizeof *keys);
    memset(queries, 0, (size_t)k.n * k.dk * sizeof *queries);
    for (uint32_t i = 0; i < t->n; i++) {
        memcpy(keys + (size_t)i * k.dk, t->k + (size_t)i * t->dk, t->dk * sizeof *keys);
        memcpy(queries + (size_t)i * k.dk, t->q + (size_t)i * t->dk, t->dk * sizeof *keys);
    }
    double total = 1;
    for (uint32_t i = 0; i < k.n; i++) {
        total *= i < t->n ? (double)t->decay[i] : 1;
        gate[0][i] = i < t->n ? t->beta[i] : 0;
        gate[1][i] = (float)total;
    }
    k.keys = keys;
    k.queries = queries;
    k.beta = gate[0];
    k.total = gate[1];
    k.rest = gate[2];
    k.d = taken(c, REGION_Y, (size_t)k.n * COLUMNS);
    k.y = taken(c, REGION_OUT, (size_t)k.n * COLUMNS);
    k.s = taken(c, REGION_W, (size_t)k.dk * COLUMNS);
    memset(k.d, 0, (size_t)k.n * COLUMNS * sizeof *k.d);
    for (uint32_t i = 0; i < t->n; i++)
        memcpy(k.d + (size_t)i * COLUMNS, t->v + (size_t)i * t->width, t->width * sizeof *k.d);
    c->now->delta_chunk.load(t->dk, k.dk, t->width, k.s, t->s);
    c->now->delta_chunk.products(k.dk, k.n, lower, mix, keys, queries, work);
    weigh(t, &k, lower, mix, gate[2]);
    c->now->delta_chunk.columns(&k);
    for (uint32_t i = 0; i < t->n; i++)
        memcpy(y + (size_t)i * t->width, k.y + (size_t)i * COLUMNS, t->width * sizeof *y);
    c->now->delta_chunk.store(t->dk, t->width, s, k.s);
}

static double largest(uint32_t n, const float *x)
{
    double most = 0;
    for (uint32_t i = 0; i < n; i++)
        most = fabs((double)x[i]) > most ? fabs((double)x[i]) : most;
    return most;
}

bool check_chunk(struct context *c, const struct subject *s, const struct shape *shape)
{
    static struct story t;
    static float want_s[COLUMNS * MAX_K], want_y[N * COLUMNS], got_s[COLUMNS * MAX_K],
        got_y[N * COLUMNS];
    (void)s;
    make_story(c, shape, &t);
    const uint32_t n_s = t.width * t.dk, n_y = t.n * t.width;
    const double size = largest(n_s, t.s) + largest(n_y, t.v);
    run_chunk(c, &t, got_y, got_s);
    memcpy(want_s, t.s, n_s * sizeof *want_s);
    for (uint32_t i = 0; i < t.n; i++) {
        const struct bl_delta_token token = {t.q + i * t.dk, t.k + i * t.dk, t.decay[i], t.beta[i]};
        c->ref->delta_rule(t.dk, t.width, want_y + i * t.width, want_s, t.v + i * t.width, &token);
    }
    for (uint32_t i = 0; i < n_y; i++)
        if (!check_close(c, "y", i, got_y[i], want_y[i], size * sqrt(t.dk), C_CHUNK, FLT_MIN))
            return false;
    for (uint32_t i = 0; i < n_s; i++)
        if (!check_close(c, "s", i, got_s[i], want_s[i], size, C_CHUNK, FLT_MIN))
            return false;
    return memory_frame_intact(c->mem, REGION_OUT) && memory_frame_intact(c->mem, REGION_W)
               ? true
               : check_fail(c, "wrote beside the result or the state");
}

/* ---- sums of a few rows ---- */

void check_conv_shapes(struct context *c, const struct subject *s, bool quick, visit_fn *visit)
{
    static const uint32_t wide[] = {63, 64, 65, 128, 200, 256, 1000, 1024, MAX_N};
    uint32_t turn = 0;
    for (uint32_t i = 1; i <= 40 + BL_COUNT(wide); i++)
        for (uint32_t taps = 1; taps <= MAX_TAPS; taps++)
            for (uint32_t fill = 0; fill < N_FILLS; fill++, turn++) {
                const struct shape shape = {i <= 40 ? i : wide[i - 41], taps, 0, 0, fill};
                if (!(quick && turn % 7) && !visit(c, s, &shape))
                    return;
            }
}

bool check_conv(struct context *c, const struct subject *s, const struct shape *shape)
{
    static float want[MAX_N];
    const bool from_start = check_random(c) & 1;
    const uint32_t n = shape->k, taps = shape->rows, each = s->kind == MIX ? 1 : n;
    float *x = memory_take(c->mem, REGION_X, (size_t)n * taps * sizeof *x, from_start);
    float *w = memory_take(c->mem, REGION_W, (size_t)each * taps * sizeof *w, from_start);
    float *y = memory_take(c->mem, REGION_OUT, n * sizeof *y, from_start);
    const float *row[MAX_TAPS];
    check_fill_floats(c, x, n * taps, shape->fill);
    check_fill_floats(c, w, each * taps,
                      shape->fill == FILL_ZERO_INPUT ? FILL_RANDOM : shape->fill);
    for (uint32_t j = 0; j < taps; j++)
        row[j] = x + (size_t)j * n;
    if (s->kind == MIX) {
        c->ref->mix(n, taps, want, w, row);
        c->now->mix(n, taps, y, w, row);
    } else {
        c->ref->short_conv(n, taps, want, row, w);
        c->now->short_conv(n, taps, y, row, w);
    }
    for (uint32_t i = 0; i < n; i++) {
        double terms = 0;
        for (uint32_t j = 0; j < taps; j++)
            terms += fabs((double)w[s->kind == MIX ? j : i * taps + j] * (double)row[j][i]);
        if (!check_close(c, "y", i, y[i], want[i], terms, 2 + taps / 4, FLT_MIN))
            return false;
    }
    return memory_frame_intact(c->mem, REGION_OUT) || check_fail(c, "wrote beside the output");
}

/* ---- sums of what is not negative ---- */

void check_relu_shapes(struct context *c, const struct subject *s, bool quick, visit_fn *visit)
{
    for (uint32_t turn = 0; turn < (quick ? 2u : 40u); turn++)
        for (uint32_t m = 1; m <= BL_TILE_ROWS; m++)
            for (uint32_t fill = 0; fill < N_FILLS; fill++) {
                const struct shape shape = {BL_TILE_PANEL, m, 0, turn, fill};
                if (!visit(c, s, &shape))
                    return;
            }
}

/* FILL_SPECIAL: scores that are no numbers, signs of zero. */
static void make_scores(struct context *c, const struct shape *shape, float *x)
{
    static const float special[] = {NAN, -NAN, 0.0f, -0.0f, -FLT_MIN, FLT_MIN, -INFINITY, 1};
    const uint32_t n = shape->rows * BL_TILE_KEYS;
    check_fill_floats(c, x, n, shape->fill == FILL_SPECIAL ? FILL_RANDOM : shape->fill);
    for (uint32_t i = 0; shape->fill == FILL_SPECIAL && i < n; i++)
        if (check_random(c) % 4 == 0)
            x[i] = special[check_random(c) % BL_COUNT(special)];
}

bool check_relu(struct context *c, const struct subject *s, const struct shape *shape)
{
    const uint32_t m = shape->rows;
    float *x = taken(c, REGION_X, (size_t)m * BL_TILE_KEYS), *y = taken(c, REGION_OUT, shape->k);
    float *a = memory_take(c->mem, REGION_W, m * sizeof *a, check_random(c) & 1);
    float before[BL_TILE_PANEL];
    (void)s;
    make_scores(c, shape, x);
    check_fill_floats(c, a, m, FILL_RANDOM);
    check_fill_floats(c, before, shape->k, FILL_RANDOM);
    memcpy(y, before, sizeof before);
    c->now->relu_sum(m, y, a, x);
    for (uint32_t i = 0; i < shape->k; i++) {
        double want = (double)before[i], terms = fabs(want);
        for (uint32_t j = 0; j < m; j++) {
            const double score = (double)x[j * BL_TILE_KEYS + i];
            want += (double)a[j] * (score < 0 ? 0 : score);
            terms += fabs((double)a[j] * score);
        }
        if (!check_close(c, "y", i, y[i], want, isfinite(terms) ? terms : FLT_MAX, 2 + m / 4,
                         FLT_MIN))
            return false;
    }
    return memory_frame_intact(c->mem, REGION_OUT) || check_fail(c, "wrote beside the result");
}

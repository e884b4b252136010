/* SPDX-License-Identifier: MIT */
/* ROUND and HADAMARD: what models that were trained on small floats did to what they keep. */
#include "segment.h"

#include <math.h>

/* ---- ROUND ---- */

/* A float of few bits: its largest value, bits behind the first, least exponent of a normal one;
 * and the least that a group's largest element counts for. */
struct small_float {
    float most;
    int bits, least;
    float least_amax;
};
static const struct small_float small_floats[] = {
    [BL_ROUND_E4M3] = {448, 3, -6, 1e-4f},
    [BL_ROUND_E2M1] = {6, 1, 0, 6 * 0x1p-126f},
};

struct round_args {
    const float *x;
    float *y;
    uint32_t n; /* elements of a token */
    struct bl_round_attr at;
    uint8_t rows;
};

/* The power of two that is x or, where x is none, the next above. */
static int exponent_above(float x)
{
    int e;
    return frexpf(x, &e) == 0.5f ? e - 1 : e;
}

/* To the nearest, of two equally near to the one that is even. */
static float round_to(const struct small_float *f, float x)
{
    int e;
    frexpf(x, &e);
    e = (e - 1 > f->least ? e - 1 : f->least) - f->bits; /* of a step between two values */
    x = ldexpf(rintf(ldexpf(x, -e)), e);
    return x > f->most ? f->most : x < -f->most ? -f->most : x;
}

static void round_group(const struct small_float *f, uint32_t n, float *y, const float *x)
{
    float amax = f->least_amax;
    for (uint32_t i = 0; i < n; i++)
        amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
    const int e = exponent_above(amax / f->most);
    for (uint32_t i = 0; i < n; i++)
        y[i] = ldexpf(round_to(f, ldexpf(x[i], -e)), e);
}

static void round_run(const void *args, const struct bl_cpu_job *job)
{
    const struct round_args *a = args;
    const struct bl_cpu_range r = bl_cpu_rows(job, a->rows);
    for (size_t at = (size_t)r.first * a->n; at < (size_t)r.end * a->n; at += a->at.run) {
        for (uint32_t i = 0; i < a->at.n; i += a->at.group)
            round_group(&small_floats[a->at.kind],
                        a->at.n - i < a->at.group ? a->at.n - i : a->at.group, a->y + at + i,
                        a->x + at + i);
        memcpy(a->y + at + a->at.n, a->x + at + a->at.n, (a->at.run - a->at.n) * sizeof *a->y);
    }
}

static void round_emit(struct bl_cpu_builder *b)
{
    const uint8_t rows = bl_cpu_rows_of(b, 0);
    struct round_args *a = bl_cpu_step(b, round_run, sizeof *a, rows);
    if (!a)
        return;
    a->x = bl_cpu_reads(b, 0);
    a->y = bl_cpu_writes(b, 0);
    a->n = bl_cpu_src(b, 0)->ne[0];
    a->at = *(const struct bl_round_attr *)bl_cpu_attr(b);
    a->rows = rows;
}

const struct bl_cpu_op bl_cpu_round_op = {.emit = round_emit};

/* ---- HADAMARD ---- */

struct hadamard_args {
    const float *x;
    float *y;
    uint32_t n, run;
    uint8_t rows;
};

static void hadamard(uint32_t n, float *y)
{
    for (uint32_t half = 1; half < n; half *= 2)
        for (uint32_t at = 0; at < n; at += 2 * half)
            for (uint32_t i = at; i < at + half; i++) {
                const float a = y[i], b = y[i + half];
                y[i] = a + b;
                y[i + half] = a - b;
            }
    const float scale = 1 / sqrtf((float)n);
    for (uint32_t i = 0; i < n; i++)
        y[i] *= scale;
}

static void hadamard_run(const void *args, const struct bl_cpu_job *job)
{
    const struct hadamard_args *a = args;
    const struct bl_cpu_range r = bl_cpu_rows(job, a->rows);
    for (size_t at = (size_t)r.first * a->n; at < (size_t)r.end * a->n; at += a->run) {
        memcpy(a->y + at, a->x + at, a->run * sizeof *a->y);
        hadamard(a->run, a->y + at);
    }
}

static void hadamard_emit(struct bl_cpu_builder *b)
{
    const uint8_t rows = bl_cpu_rows_of(b, 0);
    struct hadamard_args *a = bl_cpu_step(b, hadamard_run, sizeof *a, rows);
    if (!a)
        return;
    a->x = bl_cpu_reads(b, 0);
    a->y = bl_cpu_writes(b, 0);
    a->n = bl_cpu_src(b, 0)->ne[0];
    a->run = ((const struct bl_hadamard_attr *)bl_cpu_attr(b))->run;
    a->rows = rows;
}

const struct bl_cpu_op bl_cpu_hadamard = {.emit = hadamard_emit};

/* SPDX-License-Identifier: MIT */
/* RMS_NORM, ROPE_ANGLES, ROPE and TEMPER: token by token. */
#include "segment.h"

#include <math.h>

/* ---- RMS_NORM ---- */

struct norm_args {
    const float *x, *w;
    float *y;
    uint32_t n, run; /* elements of a token, of a run */
    float eps;
    uint8_t rows;
    float ones[]; /* [run] where there is no w */
};

static void norm_run(const void *args, const struct bl_cpu_job *job)
{
    const struct norm_args *a = args;
    const struct bl_cpu_range r = bl_cpu_rows(job, a->rows);
    for (uint32_t t = r.first; t < r.end; t++)
        for (size_t i = 0; i < a->n; i += a->run) {
            const size_t at = (size_t)t * a->n + i;
            job->kernels->rms_norm(a->run, a->y + at, a->x + at, a->w, a->eps);
        }
}

static void norm_emit(struct bl_cpu_builder *b)
{
    const struct bl_norm_attr *at = bl_cpu_attr(b);
    const bool plain = !bl_node_src(b->graph, b->node, 1);
    const uint8_t rows = bl_cpu_rows_of(b, 0);
    struct norm_args *a = NULL;
    a = bl_cpu_step(b, norm_run, sizeof *a + (plain ? at->run * sizeof a->ones[0] : 0), rows);
    if (!a)
        return;
    a->x = bl_cpu_reads(b, 0);
    a->w = plain ? a->ones : bl_cpu_weight(b, 1);
    a->y = bl_cpu_writes(b, 0);
    a->n = bl_cpu_src(b, 0)->ne[0];
    a->run = at->run;
    a->eps = at->eps;
    a->rows = rows;
    for (uint32_t i = 0; plain && i < at->run; i++)
        a->ones[i] = 1;
}

const struct bl_cpu_op bl_cpu_rms_norm = {.emit = norm_emit};

/* ---- ROPE_ANGLES ---- */

struct angles_args {
    const float *factors;
    float *y;
    uint32_t n_dims, group;
    double magnitude, direction;
    struct {
        double step; /* angle from one position to the next, without factor and blend */
        double keep; /* what the blend of scaled and plain angles makes of it */
    } pair[];
};

/* The table is small and made once a step, so it is made in double: at position 100,000 a float
 * angle is off by thousandths. */
static void angles_run(const void *args, const struct bl_cpu_job *job)
{
    const struct angles_args *a = args;
    const struct bl_cpu_range r = bl_cpu_rows(job, BL_CPU_TOKENS);
    const uint32_t *pos = BL_PARAMS_ARRAY(const uint32_t, job->params, job->params->pos_off);
    for (uint32_t t = r.first; t < r.end; t++) {
        const uint32_t p = pos[t] - pos[t] % a->group;
        float *y = a->y + (size_t)t * a->n_dims;
        for (uint32_t i = 0; i < a->n_dims / 2; i++) {
            const double f = a->factors ? (double)a->factors[i] : 1;
            const double phi = p * a->pair[i].step / f * a->pair[i].keep;
            y[2 * i] = (float)(cos(phi) * a->magnitude);
            y[2 * i + 1] = (float)(sin(phi) * a->magnitude * a->direction);
        }
    }
}

/* High frequencies stay as they are, low ones are interpolated, with a ramp between lo and hi. */
static double blend(const struct bl_angles_attr *at, uint32_t i)
{
    if (!at->yarn)
        return (double)at->freq_scale;
    const double width = fmax(0.001, (double)at->hi - (double)at->lo);
    const double plain = 1 - fmin(1, fmax(0, (i - (double)at->lo) / width));
    return (double)at->freq_scale * (1 - plain) + plain;
}

/* A text token stands at one position on the first three axes, and at 0 on the last. */
static bool turns(const uint32_t sections[4], uint32_t i)
{
    const uint32_t sum = sections[0] + sections[1] + sections[2] + sections[3];
    const uint32_t c = sum ? i % sum : 0;
    return !sum || c < 3 * sections[c % 3];
}

static void angles_emit(struct bl_cpu_builder *b)
{
    const struct bl_angles_attr *at = bl_cpu_attr(b);
    struct angles_args *a = NULL;
    a = bl_cpu_step(b, angles_run, sizeof *a + at->n_dims / 2 * sizeof a->pair[0], BL_CPU_TOKENS);
    if (!a)
        return;
    a->factors = bl_cpu_weight(b, 1);
    a->y = bl_cpu_writes(b, 0);
    a->n_dims = at->n_dims;
    a->group = at->group ? at->group : 1;
    a->magnitude = (double)at->magnitude;
    a->direction = at->inverse ? -1 : 1;
    for (uint32_t i = 0; i < at->n_dims / 2; i++) {
        if (turns(at->sections, i))
            a->pair[i].step = pow((double)at->base, -2.0 * i / at->n_dims);
        a->pair[i].keep = blend(at, i);
    }
}

const struct bl_cpu_op bl_cpu_rope_angles = {.emit = angles_emit};

/* ---- ROPE ---- */

struct rope_args {
    const float *x, *angles;
    float *y;
    uint32_t n, head, n_dims, first;
    uint8_t mode;
};

static void rope_run(const void *args, const struct bl_cpu_job *job)
{
    const struct rope_args *a = args;
    const struct bl_cpu_range r = bl_cpu_rows(job, BL_CPU_TOKENS);
    for (uint32_t t = r.first; t < r.end; t++) {
        const float *angles = a->angles + (size_t)t * a->n_dims;
        for (uint32_t i = 0; i < a->n; i += a->head) {
            const float *x = a->x + (size_t)t * a->n + i;
            float *y = a->y + (size_t)t * a->n + i;
            if (y != x)
                memcpy(y, x, a->head * sizeof *y);
            if (a->mode == BL_ROPE_NEOX)
                job->kernels->rope_neox(a->n_dims, y + a->first, x + a->first, angles);
            else
                job->kernels->rope_norm(a->n_dims, y + a->first, x + a->first, angles);
        }
    }
}

static void rope_emit(struct bl_cpu_builder *b)
{
    const struct bl_rope_attr *at = bl_cpu_attr(b);
    struct rope_args *a = bl_cpu_step(b, rope_run, sizeof *a, BL_CPU_TOKENS);
    if (!a)
        return;
    a->x = bl_cpu_reads(b, 0);
    a->angles = bl_cpu_reads(b, 1);
    a->y = bl_cpu_writes(b, 0);
    a->n = bl_cpu_src(b, 0)->ne[0];
    a->head = at->head_elems;
    a->n_dims = at->n_dims;
    a->first = at->first;
    a->mode = (uint8_t)at->mode;
}

const struct bl_cpu_op bl_cpu_rope = {.emit = rope_emit};

/* ---- TEMPER ---- */

struct temper_args {
    const float *x;
    float *y;
    uint32_t n;
    struct bl_temper_attr at;
};

static void temper_run(const void *args, const struct bl_cpu_job *job)
{
    const struct temper_args *a = args;
    const struct bl_cpu_range r = bl_cpu_rows(job, BL_CPU_TOKENS);
    const uint32_t *pos = BL_PARAMS_ARRAY(const uint32_t, job->params, job->params->pos_off);
    for (uint32_t t = r.first; t < r.end; t++) {
        const float c = 1 + a->at.scale * logf((float)(pos[t] / a->at.every + 1));
        for (size_t i = (size_t)t * a->n; i < (t + (size_t)1) * a->n; i++)
            a->y[i] = c * a->x[i];
    }
}

static void temper_emit(struct bl_cpu_builder *b)
{
    struct temper_args *a = bl_cpu_step(b, temper_run, sizeof *a, BL_CPU_TOKENS);
    if (!a)
        return;
    a->x = bl_cpu_reads(b, 0);
    a->y = bl_cpu_writes(b, 0);
    a->n = bl_cpu_src(b, 0)->ne[0];
    a->at = *(const struct bl_temper_attr *)bl_cpu_attr(b);
}

const struct bl_cpu_op bl_cpu_temper = {.emit = temper_emit};

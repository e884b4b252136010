/* SPDX-License-Identifier: MIT */
/* REPEAT, STREAM_WEIGHTS, STREAM_READ and STREAM_WRITE: a residual of several streams. */
#include "segment.h"

#include <math.h>

enum {
    MOST_STREAMS = 16,
    ELEMENTS = 64, /* dealt together: whole vectors, whatever a thread's share */
    PIECE = 1024   /* of one call of a kernel: all streams in the first-level cache */
};

/* ---- REPEAT ---- */

struct repeat_args {
    const float *x;
    float *y;
    uint32_t n, copies;
    uint8_t rows;
};

static void repeat_run(const void *args, const struct bl_cpu_job *job)
{
    const struct repeat_args *a = args;
    const struct bl_cpu_range r = bl_cpu_rows(job, a->rows);
    for (size_t t = r.first; t < r.end; t++)
        for (uint32_t i = 0; i < a->copies; i++)
            memcpy(a->y + (t * a->copies + i) * a->n, a->x + t * a->n, a->n * sizeof *a->y);
}

static void repeat_emit(struct bl_cpu_builder *b)
{
    const uint8_t rows = bl_cpu_rows_of(b, 0);
    struct repeat_args *a = bl_cpu_step(b, repeat_run, sizeof *a, rows);
    if (!a)
        return;
    a->x = bl_cpu_reads(b, 0);
    a->y = bl_cpu_writes(b, 0);
    a->n = bl_cpu_src(b, 0)->ne[0];
    a->copies = ((const struct bl_repeat_attr *)bl_cpu_attr(b))->copies;
    a->rows = rows;
}

const struct bl_cpu_op bl_cpu_repeat = {.emit = repeat_emit};

/* ---- STREAM_WEIGHTS ---- */

struct weights_args {
    const float *h, *z, *base, *scale;
    float *y;
    uint32_t n, m; /* elements of a token, of z */
    struct bl_streams_attr at;
    uint8_t rows;
};

static float inverse_length(const struct bl_cpu_kernels *k, uint32_t n, const float *x, float eps)
{
    float sum;
    k->matmul[BL_F32].dot(n, 1, &sum, x, 0, x, NULL);
    return (float)(1 / sqrt((double)sum / n + (double)eps));
}

static float sigmoid(float x)
{
    return 1 / (1 + expf(-x));
}

/* Over each row, then eps for every element. */
static void softmax_rows(uint32_t n, float *c, float eps)
{
    for (float *row = c; row < c + n * n; row += n) {
        float max = row[0], sum = 0;
        for (uint32_t k = 1; k < n; k++)
            max = row[k] > max ? row[k] : max;
        for (uint32_t k = 0; k < n; k++)
            sum += row[k] = expf(row[k] - max);
        for (uint32_t k = 0; k < n; k++)
            row[k] = row[k] / sum + eps;
    }
}

/* Divides every run of n elements, `step` apart, by its sum. */
static void divide(uint32_t n, float *c, uint32_t next, uint32_t step, float eps)
{
    for (uint32_t run = 0; run < n; run++) {
        float *x = c + run * next, sum = eps;
        for (uint32_t i = 0; i < n; i++)
            sum += x[i * step];
        for (uint32_t i = 0; i < n; i++)
            x[i * step] /= sum;
    }
}

static void balance(const struct bl_streams_attr *at, float *c)
{
    softmax_rows(at->n, c, at->eps);
    for (uint32_t round = 0; round < at->iterations; round++) {
        if (round)
            divide(at->n, c, at->n, 1, at->eps);
        divide(at->n, c, 1, at->n, at->eps);
    }
}

static void weights_run(const void *args, const struct bl_cpu_job *job)
{
    const struct weights_args *a = args;
    const uint32_t n = a->at.n;
    const struct bl_cpu_range r = bl_cpu_rows(job, a->rows);
    for (uint32_t t = r.first; t < r.end; t++) {
        const float *z = a->z + (size_t)t * a->m;
        const float norm =
            inverse_length(job->kernels, a->n, a->h + (size_t)t * a->n, a->at.norm_eps);
        float *y = a->y + (size_t)t * a->m;
        for (uint32_t i = 0; i < a->m; i++) {
            const uint32_t kind = i < 2 * n ? i / n : 2;
            const float v = norm * z[i] * a->scale[kind] + a->base[i];
            y[i] = kind == 0 ? sigmoid(v) + a->at.eps : kind == 1 ? 2 * sigmoid(v) : v;
        }
        if (a->m > n)
            balance(&a->at, y + 2 * n);
    }
}

static void weights_emit(struct bl_cpu_builder *b)
{
    const uint8_t rows = bl_cpu_rows_of(b, 0);
    struct weights_args *a = bl_cpu_step(b, weights_run, sizeof *a, rows);
    if (!a)
        return;
    a->h = bl_cpu_reads(b, 0);
    a->z = bl_cpu_reads(b, 1);
    a->base = bl_cpu_weight(b, 2);
    a->scale = bl_cpu_weight(b, 3);
    a->y = bl_cpu_writes(b, 0);
    a->n = bl_cpu_src(b, 0)->ne[0];
    a->m = bl_cpu_src(b, 1)->ne[0];
    a->at = *(const struct bl_streams_attr *)bl_cpu_attr(b);
    a->rows = rows;
}

const struct bl_cpu_op bl_cpu_stream_weights = {.emit = weights_emit};

/* ---- STREAM_READ, STREAM_WRITE ---- */

struct mix_args {
    const float *h, *x, *weights;
    float *y;
    uint32_t n, streams, m; /* elements of a stream; weights of a token */
    uint8_t rows;
};

static void read_run(const void *args, const struct bl_cpu_job *job)
{
    const struct mix_args *a = args;
    const struct bl_cpu_range r = bl_cpu_rows(job, a->rows);
    for (size_t t = r.first; t < r.end; t++) {
        const float *stream[MOST_STREAMS];
        for (uint32_t j = 0; j < a->streams; j++)
            stream[j] = a->h + (t * a->streams + j) * a->n;
        job->kernels->mix(a->n, a->streams, a->y + t * a->n, a->weights + t * a->m, stream);
    }
}

static void read_emit(struct bl_cpu_builder *b)
{
    const uint8_t rows = bl_cpu_rows_of(b, 0);
    struct mix_args *a = bl_cpu_step(b, read_run, sizeof *a, rows);
    if (!a)
        return;
    a->h = bl_cpu_reads(b, 0);
    a->weights = bl_cpu_reads(b, 1);
    a->y = bl_cpu_writes(b, 0);
    a->streams = ((const struct bl_stream_read_attr *)bl_cpu_attr(b))->n;
    a->n = bl_cpu_dst(b, 0)->ne[0];
    a->m = bl_cpu_src(b, 1)->ne[0];
    a->rows = rows;
}

const struct bl_cpu_op bl_cpu_stream_read = {.emit = read_emit};

/* Elements [i, i + n) of every stream of a token. */
static void write_piece(const struct mix_args *a, const struct bl_cpu_kernels *k, size_t t,
                        uint32_t i, uint32_t n)
{
    const uint32_t s = a->streams;
    const float *w = a->weights + t * a->m, *post = w + s, *mix = w + 2 * s;
    const float *from[MOST_STREAMS + 1] = {a->x + t * a->n + i};
    for (uint32_t j = 0; j < s; j++)
        from[1 + j] = a->h + (t * s + j) * a->n + i;
    for (uint32_t to = 0; to < s; to++) {
        float factor[MOST_STREAMS + 1] = {post[to]};
        for (uint32_t j = 0; j < s; j++)
            factor[1 + j] = mix[j * s + to];
        k->mix(n, 1 + s, a->y + (t * s + to) * a->n + i, factor, from);
    }
}

/* Threads share elements: what follows is a product over all of them, which waits for all anyway.
 */
static void write_run(const void *args, const struct bl_cpu_job *job)
{
    const struct mix_args *a = args;
    const uint32_t n_rows = bl_cpu_n_rows(job, a->rows);
    const struct bl_cpu_range r = bl_cpu_groups(a->n, ELEMENTS, job->ith, job->nth);
    for (uint32_t t = 0; t < n_rows; t++)
        for (uint32_t i = r.first; i < r.end; i += PIECE)
            write_piece(a, job->kernels, t, i, r.end - i < PIECE ? r.end - i : PIECE);
}

static void write_emit(struct bl_cpu_builder *b)
{
    struct mix_args *a = bl_cpu_step(b, write_run, sizeof *a, BL_CPU_SPREAD);
    if (!a)
        return;
    a->h = bl_cpu_reads(b, 0);
    a->x = bl_cpu_reads(b, 1);
    a->weights = bl_cpu_reads(b, 2);
    a->y = bl_cpu_writes(b, 0);
    a->n = bl_cpu_src(b, 1)->ne[0];
    a->streams = bl_cpu_src(b, 0)->ne[0] / a->n;
    a->m = bl_cpu_src(b, 2)->ne[0];
    a->rows = bl_cpu_rows_of(b, 0);
}

const struct bl_cpu_op bl_cpu_stream_write = {.emit = write_emit};

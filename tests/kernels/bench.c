/* SPDX-License-Identifier: MIT */
/* Speed of the selected kernels, from data that stays in the L2 cache and from a matrix that fits
 * no cache.
 *
 * Best of the passes that fit the time: other load only ever makes a pass slower. GB/s count bytes
 * of weights or cached rows; the large matrix is compared with a plain read of the same bytes. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include "check.h"

enum {
    BENCH_K = 4096,
    SMALL_BYTES = 512 << 10, /* of L2-resident weights */
    CHUNK_BYTES = 16 << 10,  /* rows given to one call on the large matrix, as the frames do */
    VECTOR_N = 4096,
    HEAD = 128,
    HEADS = 8 /* whose rows lie between two rows of one head */
};

/* Of this thread: when another has the core, the clock stands. */
static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- passes ---- */

struct pass {
    const struct subject *s;
    const struct bl_cpu_kernels *k;
    uint32_t rows, chunk_rows; /* of the matrix; of one call */
    size_t row_bytes;
    const uint8_t *w;
    const void *x;
    float *out;
    const uint64_t *row; /* of cached rows */
};
typedef void pass_fn(const struct pass *);

static void pass_dot(const struct pass *p)
{
    const struct bl_matmul_kernel *kernel = &p->k->matmul[p->s->type];
    for (uint32_t r = 0; r < p->rows; r += p->chunk_rows) {
        const uint32_t n = p->rows - r < p->chunk_rows ? p->rows - r : p->chunk_rows;
        const uint8_t *w = p->w + r * p->row_bytes;
        kernel->dot(BENCH_K, n, p->out, w, p->row_bytes, p->x, w + n * p->row_bytes);
    }
}

static void pass_kv(const struct pass *p)
{
    const struct bl_kv_kernel *kernel = &p->k->kv[p->s->type];
    if (p->s->kind == QK)
        kernel->qk(HEAD, p->rows, p->out, p->x, p->w, p->row, 0.125f);
    else
        kernel->pv(HEAD, p->rows, p->out, p->x, p->w, p->row);
}

static uint64_t plain_sum;
static void pass_read(const struct pass *p)
{
    const uint8_t *end = p->w + p->rows * p->row_bytes;
    uint64_t sum[8] = {0};
    for (const uint8_t *at = p->w; at + 64 <= end; at += 64)
        for (int i = 0; i < 8; i++)
            sum[i] += bl_load_u64(at + 8 * i);
    for (int i = 0; i < 8; i++)
        plain_sum += sum[i];
}

static void pass_vector(const struct pass *p)
{
    static struct bl_act_block act[VECTOR_N / 256];
    const float *x = p->x, *b = (const float *)(const void *)p->w;
    const struct bl_cpu_kernels *k = p->k;
    float *y = p->out;
    switch (p->s->kind) {
    case QUANTIZE_32:
        k->quantize_32(VECTOR_N, act, x);
        return;
    case QUANTIZE_256:
        k->quantize_256(VECTOR_N, act, x);
        return;
    case RMS_NORM:
        k->rms_norm(VECTOR_N, y, x, b, 1e-6f);
        return;
    case EXP_SUM: /* works in place: what it has made of the last pass is as good */
        k->exp_sum(VECTOR_N, y, 1);
        return;
    case SILU_MUL:
        k->silu_mul(VECTOR_N, y, x, b);
        return;
    case GELU_MUL:
        k->gelu_mul(VECTOR_N, y, x, b);
        return;
    case SWIGLU_OAI:
        k->swiglu_oai(VECTOR_N, y, x, b, 1.702f, 7);
        return;
    case SIGMOID_MUL:
        k->sigmoid_mul(VECTOR_N, y, x, b);
        return;
    case ADD:
        k->add(VECTOR_N, y, x, b);
        return;
    case AXPY:
        k->axpy(VECTOR_N, y, 1e-6f, x);
        return;
    case RELU_SUM:
        for (uint32_t i = 0; i < VECTOR_N; i += BL_TILE_ROWS * BL_TILE_KEYS)
            k->relu_sum(BL_TILE_ROWS, y, b, x + i);
        return;
    case ROPE_NORM:
        k->rope_norm(VECTOR_N, y, x, b);
        return;
    default:
        k->rope_neox(VECTOR_N, y, x, b);
    }
}

/* One token after another: the state is small enough to stay, or comes from memory once. */
static void pass_delta(const struct pass *p)
{
    const float *x = p->x;
    const struct bl_delta_token t = {x, x + HEAD, 0.99f, 0.5f};
    for (uint32_t r = 0; r < p->rows; r += p->chunk_rows)
        p->k->delta_rule(HEAD, p->chunk_rows, p->out, (float *)(uintptr_t)p->w + (size_t)r * HEAD,
                         x + 2 * HEAD, &t);
}

static double timed(pass_fn *fn, const struct pass *p, uint32_t repeat)
{
    const double start = seconds();
    for (uint32_t i = 0; i < repeat; i++)
        fn(p);
    return (seconds() - start) / repeat;
}

/* Seconds of the fastest pass; one shorter than the clock resolves is repeated inside. */
static double best(pass_fn *fn, const struct pass *p, double budget)
{
    uint32_t repeat = 1;
    while (timed(fn, p, repeat) * repeat < 2e-4 && repeat < 1u << 20)
        repeat *= 2;
    double shortest = timed(fn, p, repeat);
    for (const double end = seconds() + budget; seconds() < end;) {
        const double took = timed(fn, p, repeat);
        shortest = took < shortest ? took : shortest;
    }
    return shortest;
}

/* A kernel and a plain read of the same matrix in turns, so that both meet the same load of the
 * machine. */
static double best_beside_read(pass_fn *fn, const struct pass *p, double budget, double *read)
{
    double shortest = timed(fn, p, 1);
    *read = timed(pass_read, p, 1);
    for (const double end = seconds() + 8 * budget; seconds() < end;) {
        const double took = timed(fn, p, 1), reading = timed(pass_read, p, 1);
        shortest = took < shortest ? took : shortest;
        *read = reading < *read ? reading : *read;
    }
    return shortest;
}

/* ---- data ---- */

/* Pages for the large matrix, huge ones where the system gives them. */
static uint8_t *large_matrix(size_t bytes)
{
    static uint8_t *p;
    static size_t have;
    if (have >= bytes)
        return p;
    p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        perror("kernel_check: large matrix");
        exit(2);
    }
    madvise(p, bytes, MADV_HUGEPAGE);
    have = bytes;
    return p;
}

/* `rows` rows: 64 different ones over and over. */
static void fill_matrix(struct context *c, enum bl_dtype t, uint8_t *w, uint32_t k, uint32_t rows,
                        size_t row_bytes)
{
    const uint32_t different = rows < 64 ? rows : 64;
    for (uint32_t r = 0; r < different; r++)
        check_fill_weights(c, t, w + r * row_bytes, k, FILL_RANDOM);
    for (uint32_t r = different; r < rows; r++)
        memcpy(w + r * row_bytes, w + (r - different) * row_bytes, row_bytes);
}

/* ---- numbers ---- */

void bench_header(const struct bench_options *o)
{
    const size_t bytes = o->matrix_bytes;
    uint8_t *w = large_matrix(bytes);
    memset(w, 1, bytes);
    const struct pass p = {.w = w, .rows = (uint32_t)(bytes >> 12), .row_bytes = 4096};
    printf("plain read of %zu MiB: %.1f GB/s\n", bytes >> 20,
           (double)bytes * 1e-9 / best(pass_read, &p, 0.3));
    printf("%-44s %9s %9s %9s %9s %6s\n", "weights by kernel", "L2 GB/s", "GMAC/s", "RAM GB/s",
           "GMAC/s", "read");
}

static void bench_dot(struct context *c, const struct subject *s, const struct bench_options *o)
{
    static struct bl_act_block act[BENCH_K / 256];
    static float x[BENCH_K], out[1 << 16];
    const size_t row_bytes = (size_t)bl_dtype_row_bytes(s->type, BENCH_K);
    const uint8_t law = c->now->matmul[s->type].act;
    const uint32_t chunk = (uint32_t)(CHUNK_BYTES / row_bytes) + 1;
    uint8_t *w = large_matrix(o->matrix_bytes);
    struct pass p = {.s = s, .k = c->now, .w = w, .row_bytes = row_bytes, .out = out};
    check_fill_floats(c, x, BENCH_K, FILL_RANDOM);
    (law == BL_ACT_Q8_K ? c->now->quantize_256 : c->now->quantize_32)(BENCH_K, act, x);
    p.x = law == BL_ACT_F32 ? (const void *)x : (const void *)act;
    p.rows = (uint32_t)(o->matrix_bytes / row_bytes);
    p.chunk_rows = (chunk + 7) / 8 * 8; /* whole groups of rows, as the frames cut */
    fill_matrix(c, s->type, w, BENCH_K, p.rows, row_bytes);
    double read, ram = best_beside_read(pass_dot, &p, o->seconds, &read);
    const double ram_bytes = (double)p.rows * (double)row_bytes,
                 ram_macs = (double)p.rows * BENCH_K;
    p.rows = (uint32_t)(SMALL_BYTES / row_bytes) / 8 * 8;
    p.chunk_rows = p.rows;
    const double l2 = best(pass_dot, &p, o->seconds);
    printf("%-44s %9.1f %9.1f %9.1f %9.1f %5.0f%%\n", s->name,
           (double)p.rows * (double)row_bytes * 1e-9 / l2, (double)p.rows * BENCH_K * 1e-9 / l2,
           ram_bytes * 1e-9 / ram, ram_macs * 1e-9 / ram, 100 * read / ram);
}

/* One head of a cache whose rows hold HEADS of them. */
static void bench_kv(struct context *c, const struct subject *s, const struct bench_options *o)
{
    static float x[1 << 20], out[1 << 20];
    const size_t head_bytes = (size_t)bl_dtype_row_bytes(s->type, HEAD);
    uint32_t rows = (uint32_t)(o->matrix_bytes / (head_bytes * HEADS));
    rows = rows < BL_COUNT(x) ? rows : (uint32_t)BL_COUNT(x);
    uint8_t *w = large_matrix(o->matrix_bytes);
    uint64_t *row = calloc(rows, sizeof *row);
    struct pass p = {.s = s, .k = c->now, .w = w, .x = x, .out = out, .row = row};
    if (!row)
        return;
    check_fill_floats(c, x, rows, FILL_RANDOM);
    fill_matrix(c, s->type, w, HEAD * HEADS, rows, head_bytes * HEADS);
    for (uint32_t j = 0; j < rows; j++)
        row[j] = j * head_bytes * HEADS;
    p.rows = rows;
    const double ram = best(pass_kv, &p, o->seconds) / rows;
    p.rows = (uint32_t)(SMALL_BYTES / (head_bytes * HEADS));
    const double l2 = best(pass_kv, &p, o->seconds) / p.rows;
    printf("%-44s %9.1f %9.1f %9.1f %9.1f\n", s->name, (double)head_bytes * 1e-9 / l2,
           HEAD * 1e-9 / l2, (double)head_bytes * 1e-9 / ram, HEAD * 1e-9 / ram);
    free(row);
}

/* Bytes are counted as read and written. */
static void bench_delta(struct context *c, const struct subject *s, const struct bench_options *o)
{
    static float x[3 * HEAD], out[HEAD];
    const size_t row_bytes = HEAD * sizeof(float);
    const uint32_t rows = (uint32_t)(o->matrix_bytes / row_bytes) / 32 * 32;
    struct pass p = {
        .s = s, .k = c->now, .w = large_matrix(o->matrix_bytes), .x = x, .out = out, .rows = rows};
    p.chunk_rows = 32;
    check_fill_floats(c, x, 3 * HEAD, FILL_RANDOM);
    for (uint32_t i = 0; i < 2 * HEAD; i++) /* q and k of length 1 */
        x[i] /= 12;
    memset(large_matrix(o->matrix_bytes), 0, o->matrix_bytes);
    const double ram = best(pass_delta, &p, o->seconds) / rows;
    p.rows = 32;
    const double l1 = best(pass_delta, &p, o->seconds) / p.rows;
    printf("%-44s %6.1f ns a row of %d, %.1f from memory\n", s->name, l1 * 1e9, HEAD, ram * 1e9);
}

/* A head of 128 by 128 through a chunk, without its products of keys. */
static void pass_chunk(const struct pass *p)
{
    struct bl_delta_chunk c = *(const struct bl_delta_chunk *)p->x;
    for (uint32_t i = 0; i < HEAD; i += BL_DELTA_COLUMNS, c.s += HEAD * BL_DELTA_COLUMNS)
        p->k->delta_chunk.columns(&c);
}
static void pass_products(const struct pass *p)
{
    static BL_ALIGNED(64) float kk[BL_DELTA_CHUNK * BL_DELTA_CHUNK], work[HEAD * BL_DELTA_CHUNK];
    const struct bl_delta_chunk *c = p->x;
    p->k->delta_chunk.products(HEAD, c->n, kk, kk, c->keys, c->queries, work);
}
static void bench_chunk(struct context *c, const struct subject *s, const struct bench_options *o)
{
    enum { N = BL_DELTA_CHUNK };
    static BL_ALIGNED(64) float x[N * HEAD], pairs[N * N], gate[N], d[N * BL_DELTA_COLUMNS],
        y[N * BL_DELTA_COLUMNS], state[HEAD * HEAD];
    const struct bl_delta_chunk chunk = {N,    HEAD, x,    x, pairs, pairs,
                                         gate, gate, gate, d, y,     state};
    const struct pass p = {.s = s, .k = c->now, .x = &chunk};
    check_fill_floats(c, x, N * HEAD, FILL_RANDOM);
    for (uint32_t i = 0; i < N; i++)
        gate[i] = 0.5f;
    const double each = 1e9 / N, columns = best(pass_chunk, &p, o->seconds) * each,
                 products = best(pass_products, &p, o->seconds) * each;
    printf("%-44s %6.1f ns a token of a head, %.1f for products of keys\n", s->name, columns,
           products);
}

static void pass_conv(const struct pass *p)
{
    static const float factor[4] = {0.1f, 0.2f, 0.3f, 0.4f};
    const float *row[4], *x = p->x;
    for (int i = 0; i < 4; i++)
        row[i] = x + i;
    if (p->s->kind == MIX)
        p->k->mix(VECTOR_N, 4, p->out, factor, row);
    else
        p->k->short_conv(VECTOR_N, 4, p->out, row, (const float *)p->w);
}
static void bench_conv(struct context *c, const struct subject *s, const struct bench_options *o)
{
    static float x[VECTOR_N + 4], w[4 * VECTOR_N], y[VECTOR_N];
    const struct pass p = {.s = s, .k = c->now, .w = (const uint8_t *)w, .x = x, .out = y};
    check_fill_floats(c, x, VECTOR_N + 4, FILL_RANDOM);
    check_fill_floats(c, w, 4 * VECTOR_N, FILL_RANDOM);
    const double t = best(pass_conv, &p, o->seconds);
    printf("%-44s %6.2f us for 4 of %d\n", s->name, t * 1e6, VECTOR_N);
}

static void bench_vector(struct context *c, const struct subject *s, const struct bench_options *o)
{
    static BL_ALIGNED(64) float a[VECTOR_N], b[VECTOR_N], y[VECTOR_N];
    const struct pass p = {.s = s, .k = c->now, .w = (const uint8_t *)b, .x = a, .out = y};
    check_fill_floats(c, a, VECTOR_N, FILL_RANDOM);
    check_fill_floats(c, b, VECTOR_N, FILL_RANDOM);
    const double t = best(pass_vector, &p, o->seconds);
    printf("%-44s %6.2f us for %d, %.1f G elements/s\n", s->name, t * 1e6, VECTOR_N,
           VECTOR_N * 1e-9 / t);
}

void bench_subject(struct context *c, const struct subject *s, const struct bench_options *o)
{
    c->random = 1;
    if (s->kind == DOT)
        bench_dot(c, s, o);
    else if (s->kind == QK || s->kind == PV)
        bench_kv(c, s, o);
    else if (s->kind == PANEL || s->kind == FOLD)
        bench_panel(c, s);
    else if (s->kind == DELTA)
        bench_delta(c, s, o);
    else if (s->kind == DELTA_CHUNK)
        bench_chunk(c, s, o);
    else if (s->kind == MIX || s->kind == CONV)
        bench_conv(c, s, o);
    else
        bench_vector(c, s, o);
    fflush(stdout);
}

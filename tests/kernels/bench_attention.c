/* SPDX-License-Identifier: MIT */
/* Speed of attention as a whole: a prompt against the float peak, one token at a depth against a
 * plain read of its keys and values. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include "attention.h"
#include "check.h"

struct attention_shape {
    uint32_t dk, dv, n_head_kv, group; /* dv < dk: values are the front of keys */
    enum bl_dtype type;
    uint32_t n_tok, depth;
};

static const struct attention_shape shapes[] = {
    {64, 64, 2, 4, BL_F16, 512, 0},     {64, 64, 8, 1, BL_F16, 2048, 0},
    {80, 80, 4, 1, BL_F16, 2048, 0},    {128, 128, 2, 1, BL_F16, 2048, 0},
    {128, 128, 2, 4, BL_F16, 2048, 0},  {128, 128, 1, 8, BL_F16, 512, 0},
    {128, 128, 1, 8, BL_F16, 2048, 0},  {128, 128, 1, 8, BL_F16, 8192, 0},
    {128, 128, 1, 8, BL_F32, 2048, 0},  {128, 128, 1, 8, BL_Q8_0, 2048, 0},
    {128, 128, 1, 8, BL_Q4_0, 2048, 0}, {256, 256, 1, 4, BL_F16, 2048, 0},
    {576, 512, 1, 128, BL_F16, 512, 0}, {64, 64, 8, 8, BL_F16, 1, 8192},
    {128, 128, 8, 1, BL_F16, 1, 8192},  {128, 128, 8, 4, BL_F16, 1, 8192},
    {128, 128, 8, 8, BL_F16, 1, 8192},  {128, 128, 8, 16, BL_F16, 1, 8192},
    {128, 128, 8, 8, BL_BF16, 1, 8192}, {128, 128, 8, 8, BL_Q8_0, 1, 8192},
    {128, 128, 8, 8, BL_Q4_0, 1, 8192}, {256, 256, 2, 4, BL_F16, 1, 8192},
    {576, 512, 1, 16, BL_F16, 1, 8192}, {576, 512, 1, 128, BL_F16, 1, 8192},
};

enum { MOST_KEY_HEADS = 8 };

/* One sequence in a cache of its own. */
struct rig {
    struct bl_cpu_attention_args args;
    struct bl_cpu_counter counter, done[MOST_KEY_HEADS], *all_done[MOST_KEY_HEADS];
    struct bl_params *params;
    void *cache, *v, *q, *y, *work, *partial;
    size_t cache_bytes; /* that are read: K and V */
};

static void *room(size_t bytes)
{
    const size_t huge = 2 << 20, round = bytes < huge ? 64 : huge;
    void *p = aligned_alloc(round, (bytes + round - 1) / round * round);
    if (!p) {
        perror("kernel_check: bench");
        exit(2);
    }
    if (round == huge) /* as the device's blocks */
        madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static struct bl_params *make_params(const struct attention_shape *s)
{
    const size_t n = s->n_tok;
    struct bl_params *p = room(sizeof *p + 8 * n + sizeof(struct bl_seq_params));
    *p = (struct bl_params){.n_tok = s->n_tok, .n_seq = 1};
    p->pos_off = sizeof *p;
    p->seq_off = p->pos_off + 4 * s->n_tok;
    p->table_off = p->seq_off + 4 * s->n_tok;
    for (uint32_t t = 0; t < s->n_tok; t++) {
        BL_PARAMS_ARRAY(uint32_t, p, p->pos_off)[t] = s->depth + t;
        BL_PARAMS_ARRAY(uint32_t, p, p->seq_off)[t] = 0;
    }
    *BL_PARAMS_ARRAY(struct bl_seq_params, p, p->table_off) =
        (struct bl_seq_params){s->depth + s->n_tok, 0};
    return p;
}

static void *fill_cache(struct context *c, enum bl_dtype t, uint32_t n, uint32_t rows)
{
    const size_t bytes = (size_t)bl_dtype_row_bytes(t, n);
    uint8_t *p = room(bytes * rows);
    float *x = room(n * sizeof *x);
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t i = 0; i < n && r < 64; i++)
            x[i] = check_uniform(c, -1, 1);
        if (r < 64)
            bl_dtype_encode(t, n, p + r * bytes, x);
        else
            memcpy(p + r * bytes, p + (r - 64) * bytes, bytes);
    }
    free(x);
    return p;
}

static void make_rig(struct context *c, const struct attention_shape *s, struct rig *r)
{
    const uint32_t n_head = s->n_head_kv * s->group, rows = s->depth + s->n_tok;
    struct bl_cpu_attention_args *a = &r->args;
    const bool own_v = s->dk == s->dv;
    r->params = make_params(s);
    a->at =
        (struct bl_attention_attr){n_head, s->n_head_kv, s->dk, s->dv, 0, 1 / sqrtf((float)s->dk)};
    r->cache = fill_cache(c, s->type, s->dk * s->n_head_kv, rows);
    r->v = own_v ? fill_cache(c, s->type, s->dv * s->n_head_kv, rows) : NULL;
    a->k = r->cache;
    a->v = own_v ? r->v : r->cache;
    a->q = r->q = room((size_t)s->n_tok * n_head * s->dk * sizeof(float));
    for (size_t i = 0; i < (size_t)s->n_tok * n_head * s->dk; i++)
        ((float *)r->q)[i] = check_uniform(c, -3, 3);
    a->y = r->y = room((size_t)s->n_tok * n_head * s->dv * sizeof(float));
    a->keys = c->now->rows[s->type].keys;
    a->values = c->now->rows[s->type].values;
    if (s->n_tok == 1 && s->group <= (c->now->pair.queries ? 8 : 16)) {
        a->row_scores = c->now->rows[s->type].scores;
        a->row_sum = c->now->rows[s->type].sum;
    } else {
        a->pair_keys = c->now->pair_rows[s->type].keys;
        a->pair_values = c->now->pair_rows[s->type].values;
    }
    a->counter = &r->counter;
    a->done = r->all_done;
    for (uint32_t i = 0; i < MOST_KEY_HEADS; i++)
        r->all_done[i] = &r->done[i];
    a->k_row_bytes = (size_t)bl_dtype_row_bytes(s->type, s->dk * s->n_head_kv);
    a->v_row_bytes =
        own_v ? (size_t)bl_dtype_row_bytes(s->type, s->dv * s->n_head_kv) : a->k_row_bytes;
    a->k_head_bytes = (size_t)bl_dtype_row_bytes(s->type, s->dk);
    a->v_head_bytes = own_v ? (size_t)bl_dtype_row_bytes(s->type, s->dv) : a->k_head_bytes;
    r->cache_bytes = (a->k_row_bytes + (own_v ? a->v_row_bytes : 0)) * rows;
    a->group = s->group;
    a->rows_per_seq = rows;
    a->n_splits = rows / 128 + 2;
    a->partial_floats = (uint32_t)bl_align_up(s->dv + 2, 16);
    a->tile_rows = bl_cpu_tile_rows(&a->at, s->n_tok);
    a->split = 256;
    a->most_parts = 24;
    a->work_bytes = (size_t)bl_cpu_tile_work_bytes(&a->at, a->tile_rows);
    a->work = r->work = room(a->work_bytes);
    a->partial = r->partial =
        room((s->depth ? (size_t)n_head * a->n_splits : 1) * a->partial_floats * 4);
}

static void free_rig(struct rig *r)
{
    void *all[] = {r->params, r->cache, r->v, r->q, r->y, r->work, r->partial};
    for (size_t i = 0; i < BL_COUNT(all); i++)
        free(all[i]);
}

static double timed(const struct context *c, struct rig *r)
{
    const struct bl_cpu_job job = {.kernels = c->now, .params = r->params, .nth = 1};
    const double start = seconds();
    r->counter.next = 0;
    for (uint32_t i = 0; i < MOST_KEY_HEADS; i++)
        r->done[i].next = 0;
    if (r->params->n_tok > 1)
        bl_cpu_tile_many(&r->args, &job);
    else
        bl_cpu_tile_few(&r->args, &job);
    return seconds() - start;
}

/* The same by way of panels. */
static double timed_panels(const struct context *c, struct rig *r)
{
    const struct bl_cpu_attention_args rows = r->args;
    r->args.row_scores = NULL;
    r->args.row_sum = NULL;
    const double time = timed(c, r);
    r->args = rows;
    return time;
}

static uint64_t plain_sum;
static double read_cache(const struct rig *r)
{
    const uint8_t *parts[] = {r->cache, r->v};
    const double start = seconds();
    uint64_t sum[8] = {0};
    for (size_t i = 0; i < (r->v ? 2 : 1); i++)
        for (size_t at = 0; at + 64 <= r->cache_bytes / (r->v ? 2 : 1); at += 64)
            for (int j = 0; j < 8; j++)
                sum[j] += bl_load_u64(parts[i] + at + 8 * j);
    for (int j = 0; j < 8; j++)
        plain_sum += sum[j];
    return seconds() - start;
}

static void keep_least(double *least, double x)
{
    *least = x < *least ? x : *least;
}

static void bench_prompt(const struct context *c, const struct attention_shape *s, struct rig *r,
                         unsigned flags)
{
    double peak = 0, least = INFINITY;
    const double macs =
        (double)(s->dk + s->dv) * s->n_head_kv * s->group * s->n_tok * (s->n_tok + 1) / 2;
    for (int i = 0; i < 5; i++) {
        const double now = bench_peak(flags, true);
        peak = now > peak ? now : peak;
        keep_least(&least, timed(c, r));
    }
    printf("  prompt  dk %3u dv %3u, %3u x %u heads, %-5s %5u tokens: %7.1f GMAC/s", s->dk, s->dv,
           s->group, s->n_head_kv, bl_dtypes[s->type].name, s->n_tok, macs * 1e-9 / least);
    if (peak > 0)
        printf(", %3.0f%% of the peak", 100 * macs / least / peak);
    printf("\n");
}

static void bench_decode(const struct context *c, const struct attention_shape *s, struct rig *r)
{
    double read = INFINITY, least = INFINITY, panels = INFINITY;
    for (int i = 0; i < 15; i++) {
        keep_least(&read, read_cache(r));
        keep_least(&least, timed(c, r));
        if (r->args.row_scores)
            keep_least(&panels, timed_panels(c, r));
    }
    printf("  decode  dk %3u dv %3u, %3u x %u heads, %-5s depth %5u: %6.1f GB/s, %3.0f%% of a "
           "plain read",
           s->dk, s->dv, s->group, s->n_head_kv, bl_dtypes[s->type].name, s->depth,
           (double)r->cache_bytes * 1e-9 / least, 100 * read / least);
    if (r->args.row_scores)
        printf(", panels take %.1f times as long", panels / least);
    printf("\n");
}

void bench_attention(struct context *c, unsigned flags, bool prompts, bool decode)
{
    c->random = 1;
    if (prompts || decode)
        printf("attention, one thread:\n");
    for (size_t i = 0; i < BL_COUNT(shapes); i++) {
        struct rig r = {0};
        if (!(shapes[i].depth ? decode : prompts))
            continue;
        make_rig(c, &shapes[i], &r);
        if (shapes[i].depth)
            bench_decode(c, &shapes[i], &r);
        else
            bench_prompt(c, &shapes[i], &r, flags);
        fflush(stdout);
        free_rig(&r);
    }
}

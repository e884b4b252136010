/* SPDX-License-Identifier: MIT */
/* Speed of panels: 256 rows of weights in cache times many tokens, as the frames go about it.
 *
 * Every sample is compared with the yardstick measured just before it, as clocks and neighbours
 * change; of the samples the median counts. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "check.h"

enum { BENCH_ROWS = 256, MAX_K = 4096, MAX_N = 2048, TOKEN_BLOCK = 256, SAMPLES = 7 };

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

struct product {
    const struct subject *s;
    const struct bl_panel_kernel *kernel;
    const struct bl_matmul_kernel *dot;
    uint32_t k, n;
    uint8_t *w;
    size_t stride;
    const void *x[MAX_N];
    uint8_t *tile, *panel;
    float *c;
};
typedef void product_fn(const struct product *);

/* Tiles lie side by side for 512 columns, then for the next 512: a panel meets them in that order.
 */
static uint8_t *tile_at(const struct product *p, uint32_t at, uint32_t token)
{
    const uint32_t parts = BL_PANEL_COLS / BL_PANEL_STEP;
    return p->tile +
           ((size_t)at / BL_PANEL_STEP * p->n + (size_t)parts * token) * p->kernel->part_bytes;
}
static void arrange(const struct product *p)
{
    const uint32_t tiles = bl_panel_tiles(p->n, p->kernel->tokens);
    const size_t value = p->dot->act == BL_ACT_F32 ? sizeof(float) : 0;
    for (uint32_t i = 0; i < tiles; i++) {
        const uint32_t t = bl_panel_tile_first(p->n, tiles, i);
        const uint32_t n = bl_panel_tile_first(p->n, tiles, i + 1) - t;
        for (uint32_t at = 0; at < p->k; at += BL_PANEL_COLS) {
            const size_t skip = value ? at * value : at / 256 * sizeof(struct bl_act_block);
            const void *x[BL_TILE_TOKENS];
            for (uint32_t j = 0; j < n; j++)
                x[j] = (const uint8_t *)p->x[t + j] + skip;
            p->kernel->arrange(tile_at(p, at, t), n, BL_PANEL_COLS, x);
        }
    }
}
static void pack(const struct product *p)
{
    for (uint32_t r = 0; r < BENCH_ROWS; r += BL_PANEL_ROWS)
        for (uint32_t at = 0; at < p->k; at += BL_PANEL_COLS)
            p->kernel->pack(p->panel, BL_PANEL_ROWS, BL_PANEL_COLS,
                            p->w + r * p->stride + bl_dtype_row_bytes(p->s->type, at), p->stride);
}
/* Panels for a block of tokens at a time; without packing, the last panel over and over. */
static void multiply(const struct product *p, bool packing)
{
    const uint32_t tiles = bl_panel_tiles(p->n, p->kernel->tokens);
    const uint32_t blocks = (p->n + TOKEN_BLOCK - 1) / TOKEN_BLOCK;
    for (uint32_t b = 0; b < blocks; b++)
        for (uint32_t r = 0; r < BENCH_ROWS; r += BL_PANEL_ROWS)
            for (uint32_t at = 0; at < p->k; at += BL_PANEL_COLS) {
                const uint8_t *w = p->w + r * p->stride + bl_dtype_row_bytes(p->s->type, at);
                if (packing)
                    p->kernel->pack(p->panel, BL_PANEL_ROWS, BL_PANEL_COLS, w, p->stride);
                for (uint32_t i = tiles * b / blocks; i < tiles * (b + 1) / blocks; i++) {
                    const uint32_t t = bl_panel_tile_first(p->n, tiles, i);
                    const uint32_t n = bl_panel_tile_first(p->n, tiles, i + 1) - t;
                    p->kernel->multiply(p->c + (size_t)BL_PANEL_ROWS * t, p->panel,
                                        tile_at(p, at, t), n, BL_PANEL_COLS, at > 0);
                }
            }
}
static void pack_and_multiply(const struct product *p)
{
    multiply(p, true);
}
static void multiply_only(const struct product *p)
{
    multiply(p, false);
}
static void dots(const struct product *p)
{
    for (uint32_t t = 0; t < p->n; t++)
        p->dot->dot(p->k, BENCH_ROWS, p->c, p->w, p->stride, p->x[t], NULL);
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
/* Seconds times the yardstick: the multiply-adds there would have been time for. */
static double cost(product_fn *fn, const struct product *p, unsigned flags, bool floats)
{
    double sample[SAMPLES];
    fn(p);
    for (int i = 0; i < SAMPLES; i++) {
        const double peak = bench_peak(flags, floats), start = seconds();
        uint32_t times = 0;
        do {
            fn(p);
            times++;
        } while (seconds() - start < 3e-4);
        sample[i] = (seconds() - start) / times * peak;
    }
    qsort(sample, SAMPLES, sizeof *sample, ascending);
    return sample[SAMPLES / 2];
}

/* The least number of tokens from which panels win over dots. */
static uint32_t crossing(struct product *p, unsigned flags, bool floats)
{
    for (p->n = 2; p->n <= 16; p->n++) {
        arrange(p);
        const double tile = cost(arrange, p, flags, floats);
        if (tile + cost(pack_and_multiply, p, flags, floats) < cost(dots, p, flags, floats))
            return p->n;
    }
    return 17;
}

static void *get(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!memory) {
        perror("kernel_check: panel bench");
        exit(2);
    }
    return memset(memory, 0, bytes);
}
static void fill(struct context *c, struct product *p, uint8_t *x, size_t x_bytes)
{
    static float values[MAX_K];
    for (uint32_t r = 0; r < BENCH_ROWS; r++)
        check_fill_weights(c, p->s->type, p->w + r * p->stride, p->k, FILL_RANDOM);
    for (uint32_t t = 0; t < MAX_N; t++) {
        uint8_t *to = x + t * x_bytes;
        p->x[t] = to;
        if (t > 63) {
            memcpy(to, x + (t - 64) * x_bytes, x_bytes);
            continue;
        }
        check_fill_floats(c, values, p->k, FILL_RANDOM);
        if (p->dot->act == BL_ACT_F32)
            memcpy(to, values, x_bytes);
        else
            (p->dot->act == BL_ACT_Q8_K ? c->now->quantize_256 : c->now->quantize_32)(
                p->k, (struct bl_act_block *)(void *)to, values);
    }
}

void bench_panel(struct context *c, const struct subject *s)
{
    static const uint32_t lengths[] = {2048, MAX_K}, counts[] = {8, 16, 32, 64, 128, 512, MAX_N};
    static struct product p;
    const unsigned flags = c->flags;
    if (bench_peak(flags, false) <= 0) {
        printf("%-28s no yardstick\n", s->name);
        return;
    }
    for (size_t i = 0; i < BL_COUNT(lengths); i++) {
        p = (struct product){.s = s,
                             .kernel = check_panel_kernel(c->now, s),
                             .dot = &c->now->matmul[s->type],
                             .k = lengths[i]};
        const bool floats = p.dot->act == BL_ACT_F32;
        const size_t x_bytes =
            floats ? p.k * sizeof(float) : bl_act_blocks(p.k) * sizeof(struct bl_act_block);
        uint8_t *x = get(x_bytes * MAX_N);
        p.stride = (size_t)bl_dtype_row_bytes(s->type, p.k);
        p.w = get(p.stride * BENCH_ROWS);
        p.tile = get((size_t)p.kernel->part_bytes * (p.k / 256) * MAX_N);
        p.panel = get(BL_PANEL_BYTES);
        p.c = get((size_t)MAX_N * BL_PANEL_ROWS * sizeof(float));
        fill(c, &p, x, x_bytes);
        const double weights = (double)p.k * BENCH_ROWS;
        printf("%-28s %4u", s->name, p.k);
        for (size_t j = 0; j < BL_COUNT(counts); j++) {
            p.n = counts[j];
            arrange(&p);
            printf(" %3.0f%%", 100 * weights * p.n / cost(pack_and_multiply, &p, flags, floats));
        }
        p.n = 2 * p.kernel->tokens;
        printf("  alone %3.0f%%, pack %5.1f, arrange %4.1f",
               100 * weights * p.n / cost(multiply_only, &p, flags, floats),
               cost(pack, &p, flags, floats) / weights,
               cost(arrange, &p, flags, floats) / (p.n * (double)p.k));
        printf(", from %2u\n", crossing(&p, flags, floats));
        fflush(stdout);
        free(x), free(p.w), free(p.tile), free(p.panel), free(p.c);
    }
}

/* SPDX-License-Identifier: MIT */
/* Results as a table of Markdown: llama-bench's columns, ours behind them. */
#include "bench.h"

#include <inttypes.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

struct column {
    const char *name;
    int width;    /* negative: to the left */
    size_t shown; /* offset of the flag in the table, 0: always */
    void (*text)(const struct bl_bench_result *, char *text, size_t cap);
};

static void put_model(const struct bl_bench_result *r, char *text, size_t cap)
{
    snprintf(text, cap, "%s", r->model.type);
}

static void put_size(const struct bl_bench_result *r, char *text, size_t cap)
{
    const double mib = (double)r->model.bytes / 1048576;

    snprintf(text, cap, mib < 1024 ? "%.2f MiB" : "%.2f GiB", mib < 1024 ? mib : mib / 1024);
}

static void put_params(const struct bl_bench_result *r, char *text, size_t cap)
{
    const double n = (double)r->model.n_params;

    snprintf(text, cap, n < 1e9 ? "%.2f M" : "%.2f B", n < 1e9 ? n * 1e-6 : n * 1e-9);
}

static void put_backend(const struct bl_bench_result *r, char *text, size_t cap)
{
    (void)r;
    snprintf(text, cap, "CPU");
}

static void put_threads(const struct bl_bench_result *r, char *text, size_t cap)
{
    snprintf(text, cap, "%u", r->c.threads);
}

static void put_threads_batch(const struct bl_bench_result *r, char *text, size_t cap)
{
    snprintf(text, cap, "%u", r->c.threads_batch ? r->c.threads_batch : r->c.threads);
}

static void put_batch(const struct bl_bench_result *r, char *text, size_t cap)
{
    snprintf(text, cap, "%u", r->c.batch);
}

static void put_ubatch(const struct bl_bench_result *r, char *text, size_t cap)
{
    snprintf(text, cap, "%u", r->c.ubatch);
}

static void put_type_k(const struct bl_bench_result *r, char *text, size_t cap)
{
    snprintf(text, cap, "%s", r->c.type_k);
}

static void put_type_v(const struct bl_bench_result *r, char *text, size_t cap)
{
    snprintf(text, cap, "%s", r->c.type_v);
}

static void put_load(const struct bl_bench_result *r, char *text, size_t cap)
{
    snprintf(text, cap, "%s", r->no_mmap ? "none" : "mmap");
}

static void put_exact(const struct bl_bench_result *r, char *text, size_t cap)
{
    snprintf(text, cap, "%d", r->exact);
}

static void put_mask(const struct bl_bench_result *r, char *text, size_t cap)
{
    snprintf(text, cap, "0x%" PRIx64, (uint64_t)r->cpu_mask);
}

static void put_test(const struct bl_bench_result *r, char *text, size_t cap)
{
    char name[64];

    bl_bench_name(&r->c, name);
    snprintf(text, cap, "%s", name);
}

static void put_rate(const struct bl_bench_result *r, char *text, size_t cap)
{
    snprintf(text, cap, "%.2f \xc2\xb1 %.2f", r->avg_ts, r->stddev_ts);
}

static void put_median(const struct bl_bench_result *r, char *text, size_t cap)
{
    if (r->median_ts > 0)
        snprintf(text, cap, "%.2f", r->median_ts);
}

static void put_best(const struct bl_bench_result *r, char *text, size_t cap)
{
    snprintf(text, cap, "%.2f", r->best_ts);
}

static void put_weight_bytes(const struct bl_bench_result *r, char *text, size_t cap)
{
    if (r->weight_bytes)
        snprintf(text, cap, "%.2f", (double)r->weight_bytes * 1e-6);
}

static void put_state_bytes(const struct bl_bench_result *r, char *text, size_t cap)
{
    if (r->weight_bytes)
        snprintf(text, cap, "%.2f", (double)r->state_bytes * 1e-6);
}

static void put_read(const struct bl_bench_result *r, char *text, size_t cap)
{
    if (r->weight_bytes)
        snprintf(text, cap, "%.2f", r->read_gbs);
}

static void put_share(const struct bl_bench_result *r, char *text, size_t cap)
{
    if (r->weight_bytes && r->read_share > 0)
        snprintf(text, cap, "%.0f %%", r->read_share * 100);
}

static void put_macs(const struct bl_bench_result *r, char *text, size_t cap)
{
    if (r->weight_gmacs > 0)
        snprintf(text, cap, "%.2f", r->weight_gmacs);
}

static void put_planned(const struct bl_bench_result *r, char *text, size_t cap)
{
    snprintf(text, cap, "%.2f", (double)r->planned_bytes / 1048576);
}

#define SHOWN(flag) offsetof(struct bl_bench_table, flag)
static const struct column columns[] = {
    {"model", -30, 0, put_model},
    {"size", 10, 0, put_size},
    {"params", 10, 0, put_params},
    {"backend", -10, 0, put_backend},
    {"threads", 7, 0, put_threads},
    {"t_batch", 7, SHOWN(threads_batch), put_threads_batch},
    {"n_batch", 7, SHOWN(batch), put_batch},
    {"n_ubatch", 8, SHOWN(ubatch), put_ubatch},
    {"type_k", 6, SHOWN(type_k), put_type_k},
    {"type_v", 6, SHOWN(type_v), put_type_v},
    {"load_mode", 9, SHOWN(load), put_load},
    {"test", 15, 0, put_test},
    {"t/s", 20, 0, put_rate},
    {"exact", 5, SHOWN(exact), put_exact},
    {"features", 8, SHOWN(mask), put_mask},
    {"median", 9, 0, put_median},
    {"best", 9, 0, put_best},
    {"weights MB/t", 12, 0, put_weight_bytes},
    {"KV MB/t", 8, 0, put_state_bytes},
    {"GB/s", 7, 0, put_read},
    {"of read", 7, 0, put_share},
    {"GMAC/s", 8, 0, put_macs},
    {"plan MiB", 9, 0, put_planned},
};

static bool column_shown(const struct bl_bench_table *t, const struct column *c)
{
    return !c->shown || *(const bool *)((const char *)t + c->shown);
}

/* Continuation bytes of UTF-8 take no room on the screen. */
static int screen_width(const char *text)
{
    int n = 0;

    for (; *text; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

static void print_cell(FILE *out, const struct column *c, const char *text)
{
    const int width = c->width < 0 ? -c->width : c->width, pad = width - screen_width(text);
    const int space = pad > 0 ? pad : 0;

    fprintf(out, " %*s%s%*s |", c->width > 0 ? space : 0, "", text, c->width < 0 ? space : 0, "");
}

void bl_bench_md_head(FILE *out, const struct bl_bench_table *t)
{
    fputc('|', out);
    for (size_t i = 0; i < COUNT(columns); i++)
        if (column_shown(t, &columns[i]))
            print_cell(out, &columns[i], columns[i].name);
    fputs("\n|", out);
    for (size_t i = 0; i < COUNT(columns); i++) {
        const int width = columns[i].width;
        if (!column_shown(t, &columns[i]))
            continue;
        fputc(' ', out);
        for (int n = width < 0 ? -width : width - 1; n > 0; n--)
            fputc('-', out);
        fputs(width < 0 ? " |" : ": |", out);
    }
    fputc('\n', out);
}

void bl_bench_md_row(FILE *out, const struct bl_bench_table *t, const struct bl_bench_result *r)
{
    char text[128];

    fputc('|', out);
    for (size_t i = 0; i < COUNT(columns); i++) {
        if (!column_shown(t, &columns[i]))
            continue;
        text[0] = 0;
        columns[i].text(r, text, sizeof text);
        print_cell(out, &columns[i], text);
    }
    fputc('\n', out);
}

void bl_bench_columns(struct bl_bench_table *t, const struct bl_bench_case *c, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        t->batch |= c[i].batch != 2048;
        t->ubatch |= c[i].ubatch != 512;
        t->threads_batch |= c[i].threads_batch != 0;
        t->type_k |= strcmp(c[i].type_k, "f16") != 0;
        t->type_v |= strcmp(c[i].type_v, "f16") != 0;
    }
}

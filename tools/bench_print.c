/* SPDX-License-Identifier: MIT */
/* The formats of llama-bench, with its names first and ours behind them; tables for people are in
 * bench_table.c. */
#include "bench.h"

#include <inttypes.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* ---- fields of csv, json and sql ---- */

enum kind { TEXT, WHOLE, REAL, TRUTH, SAMPLES_NS, SAMPLES_TS, TESTS_GBS, NOTHING /* not known */ };
struct field {
    const char *name;
    enum kind kind;
    enum kind column; /* kind when it is known: sql declares by it */
    char text[512];   /* TEXT */
    uint64_t whole;   /* WHOLE, TRUTH */
    double real;
};
enum { MAX_FIELDS = 48 };
struct fields {
    struct field f[MAX_FIELDS];
    size_t n;
};

static struct field *add(struct fields *l, const char *name, enum kind kind)
{
    struct field *f = &l->f[l->n++];

    f->name = name;
    f->kind = f->column = kind;
    return f;
}

static void add_text(struct fields *l, const char *name, const char *text)
{
    bl_clean_text(add(l, name, TEXT)->text, sizeof l->f[0].text, text, strlen(text), false);
}

static void add_whole(struct fields *l, const char *name, uint64_t v)
{
    add(l, name, WHOLE)->whole = v;
}

static void add_real(struct fields *l, const char *name, double v, bool known)
{
    struct field *f = add(l, name, REAL);

    f->real = v;
    f->kind = known ? REAL : NOTHING;
}

/* The commit in "0.1.0 (abc1234)". */
static void commit(char *text, size_t cap)
{
    const char *open = strchr(bl_version(), '(');
    const size_t n = open ? strcspn(open + 1, ")") : 0;

    snprintf(text, cap, "%.*s", n ? (int)n : 7, n ? open + 1 : "unknown");
}

static void cpu_name(char *text, size_t cap)
{
    FILE *f = fopen("/proc/cpuinfo", "re");
    char line[256];

    snprintf(text, cap, "%s", "");
    while (f && fgets(line, sizeof line, f)) {
        const char *colon = strchr(line, ':');
        if (!colon || strncmp(line, "model name", strlen("model name")))
            continue;
        colon += 1 + strspn(colon + 1, " ");
        snprintf(text, cap, "%.*s", (int)strcspn(colon, "\n"), colon);
        break;
    }
    if (f)
        fclose(f);
}

static void their_fields(struct fields *l, const struct bl_bench_result *r)
{
    char text[128];

    commit(text, sizeof text);
    add_text(l, "build_commit", text);
    add_whole(l, "build_number", 0);
    cpu_name(text, sizeof text);
    add_text(l, "cpu_info", text);
    add_text(l, "gpu_info", "");
    add_text(l, "backends", "CPU");
    add_text(l, "model_filename", r->c.model);
    add_text(l, "model_type", r->model.type);
    add_whole(l, "model_size", r->model.bytes);
    add_whole(l, "model_n_params", r->model.n_params);
    add_whole(l, "n_batch", r->c.batch);
    add_whole(l, "n_ubatch", r->c.ubatch);
    add_whole(l, "n_threads", r->c.threads);
    add_text(l, "type_k", r->c.type_k);
    add_text(l, "type_v", r->c.type_v);
    add_text(l, "load_mode", r->no_mmap ? "none" : "mmap");
    add_whole(l, "n_prompt", r->c.prompt);
    add_whole(l, "n_gen", r->c.gen);
    add_whole(l, "n_depth", r->c.depth);
    add_text(l, "test_time", r->time);
    add_whole(l, "avg_ns", (uint64_t)r->avg_ns);
    add_whole(l, "stddev_ns", (uint64_t)r->stddev_ns);
    add_real(l, "avg_ts", r->avg_ts, true);
    add_real(l, "stddev_ts", r->stddev_ts, true);
    add(l, "samples_ns", SAMPLES_NS);
    add(l, "samples_ts", SAMPLES_TS);
}

static void our_fields(struct fields *l, const struct bl_bench_result *r)
{
    const bool read = r->weight_bytes > 0;
    char mask[24] = "all";

    if (r->cpu_mask >= 0)
        snprintf(mask, sizeof mask, "0x%" PRIx64, (uint64_t)r->cpu_mask);
    add_text(l, "cpu_features", mask);
    add(l, "exact", TRUTH)->whole = r->exact;
    add_whole(l, "n_ctx", r->ctx_tokens);
    add_whole(l, "planned_bytes", r->planned_bytes);
    add_whole(l, "n_samples", r->n_samples);
    add_real(l, "median_ts", r->median_ts, r->median_ts > 0);
    add_real(l, "best_ts", r->best_ts, true);
    add_whole(l, "weight_bytes", r->weight_bytes);
    add_whole(l, "state_bytes", r->state_bytes);
    for (size_t i = l->n - 2; i < l->n; i++)
        l->f[i].kind = read ? WHOLE : NOTHING;
    add_real(l, "read_gbs", r->read_gbs, read);
    add_real(l, "machine_read_gbs", r->machine_gbs, r->machine_gbs > 0);
    add_real(l, "read_share", r->read_share, read && r->read_share > 0);
    add_real(l, "weight_gmacs", r->weight_gmacs, r->weight_gmacs > 0);
    add_whole(l, "n_threads_batch", r->c.threads_batch ? r->c.threads_batch : r->c.threads);
    add(l, "read_tests_gbs", TESTS_GBS);
}

static void all_fields(struct fields *l, const struct bl_bench_result *r)
{
    l->n = 0;
    their_fields(l, r);
    our_fields(l, r);
}

static bool is_list(const struct field *f)
{
    return f->column == SAMPLES_NS || f->column == SAMPLES_TS || f->column == TESTS_GBS;
}

/* ---- csv and sql ---- */

/* Doubles every `quote` inside. */
static void print_quoted(FILE *f, const char *text, char quote)
{
    fputc(quote, f);
    for (; *text; text++) {
        if (*text == quote)
            fputc(quote, f);
        fputc(*text, f);
    }
    fputc(quote, f);
}

static void value_text(const struct field *f, char *text, size_t cap)
{
    if (f->kind == TEXT)
        snprintf(text, cap, "%s", f->text);
    else if (f->kind == REAL)
        snprintf(text, cap, "%f", f->real);
    else if (f->kind == NOTHING)
        snprintf(text, cap, "%s", "");
    else
        snprintf(text, cap, "%" PRIu64, f->whole);
}

static void print_names(FILE *out, const struct fields *l, const char *between)
{
    bool first = true;

    for (size_t i = 0; i < l->n; i++)
        if (!is_list(&l->f[i])) {
            fprintf(out, "%s%s", first ? "" : between, l->f[i].name);
            first = false;
        }
}

static void print_values(FILE *out, const struct fields *l, const char *between, char quote)
{
    char text[512];
    bool first = true;

    for (size_t i = 0; i < l->n; i++) {
        if (is_list(&l->f[i]))
            continue;
        fputs(first ? "" : between, out);
        first = false;
        value_text(&l->f[i], text, sizeof text);
        if (quote == '\'' && l->f[i].kind == NOTHING)
            fputs("NULL", out);
        else
            print_quoted(out, text, quote);
    }
}

static void print_sql_table(FILE *out, const struct fields *l)
{
    bool first = true;

    fputs("CREATE TABLE IF NOT EXISTS llama_bench (\n", out);
    for (size_t i = 0; i < l->n; i++) {
        const struct field *f = &l->f[i];
        if (is_list(f))
            continue;
        fprintf(out, "%s  %s %s", first ? "" : ",\n", f->name,
                f->column == TEXT   ? "TEXT"
                : f->column == REAL ? "REAL"
                                    : "INTEGER");
        first = false;
    }
    fputs("\n);\n\n", out);
}

static void print_sql_row(FILE *out, const struct fields *l)
{
    fputs("INSERT INTO llama_bench (", out);
    print_names(out, l, ", ");
    fputs(") VALUES (", out);
    print_values(out, l, ", ", '\'');
    fputs(");\n", out);
}

/* ---- json ---- */

static void print_json_text(FILE *out, const char *text)
{
    fputc('"', out);
    for (const unsigned char *p = (const unsigned char *)text; *p; p++)
        if (*p == '"' || *p == '\\')
            fprintf(out, "\\%c", *p);
        else if (*p < 0x20)
            fprintf(out, "\\u%04x", *p);
        else
            fputc(*p, out);
    fputc('"', out);
}

static void print_samples(FILE *out, const struct bl_bench_result *r, bool rates)
{
    const double tokens = (double)r->c.prompt + r->c.gen;

    fputs("[ ", out);
    for (uint32_t i = 0; i < r->n_samples; i++) {
        fputs(i ? ", " : "", out);
        if (rates)
            fprintf(out, "%g", tokens * 1e9 / (double)r->ns[i]);
        else
            fprintf(out, "%" PRIu64, r->ns[i]);
    }
    fputs(" ]", out);
}

static void print_tests(FILE *out, const struct bl_bench_result *r)
{
    const uint32_t n = r->test_gbs && r->test_gbs[0] > 0 ? r->n_samples + 1 : 0;

    fputs("[ ", out);
    for (uint32_t i = 0; i < n; i++)
        fprintf(out, "%s%g", i ? ", " : "", r->test_gbs[i]);
    fputs(n ? " ]" : "]", out);
}

static void print_json_value(FILE *out, const struct field *f, const struct bl_bench_result *r)
{
    switch (f->kind) {
    case TEXT:
        print_json_text(out, f->text);
        break;
    case WHOLE:
        fprintf(out, "%" PRIu64, f->whole);
        break;
    case REAL:
        fprintf(out, "%f", f->real);
        break;
    case TRUTH:
        fputs(f->whole ? "true" : "false", out);
        break;
    case SAMPLES_NS:
    case SAMPLES_TS:
        print_samples(out, r, f->kind == SAMPLES_TS);
        break;
    case TESTS_GBS:
        print_tests(out, r);
        break;
    case NOTHING:
        fputs("null", out);
        break;
    }
}

static void print_json_row(FILE *out, const struct fields *l, const struct bl_bench_result *r,
                           bool one_line)
{
    fputs(one_line ? "{" : "  {\n", out);
    for (size_t i = 0; i < l->n; i++) {
        fprintf(out, "%s\"%s\": ", one_line ? "" : "    ", l->f[i].name);
        print_json_value(out, &l->f[i], r);
        fputs(i + 1 < l->n ? "," : "", out);
        fputs(!one_line ? "\n" : i + 1 < l->n ? " " : "", out);
    }
    fputs(one_line ? "}\n" : "  }", out);
}

void bl_bench_print_head(FILE *out, struct bl_bench_table *t)
{
    if (t->format == BL_BENCH_MD)
        bl_bench_md_head(out, t);
    else if (t->format == BL_BENCH_JSON)
        fputs("[\n", out);
}

void bl_bench_print_row(FILE *out, struct bl_bench_table *t, const struct bl_bench_result *r)
{
    struct fields l;

    all_fields(&l, r);
    switch (t->format) {
    case BL_BENCH_CSV:
        if (!t->n_rows) {
            print_names(out, &l, ",");
            fputc('\n', out);
        }
        print_values(out, &l, ",", '"');
        fputc('\n', out);
        break;
    case BL_BENCH_JSON:
        fputs(t->n_rows ? ",\n" : "", out);
        print_json_row(out, &l, r, false);
        break;
    case BL_BENCH_JSONL:
        print_json_row(out, &l, r, true);
        break;
    case BL_BENCH_MD:
        bl_bench_md_row(out, t, r);
        break;
    case BL_BENCH_SQL:
        if (!t->n_rows)
            print_sql_table(out, &l);
        print_sql_row(out, &l);
        break;
    case BL_BENCH_SILENT:
        break;
    }
    t->n_rows++;
}

void bl_bench_print_foot(FILE *out, struct bl_bench_table *t, uint32_t samples)
{
    char text[32];

    if (t->format == BL_BENCH_JSON)
        fputs(t->n_rows ? "\n]\n" : "]\n", out);
    if (t->format != BL_BENCH_MD)
        return;
    commit(text, sizeof text);
    fprintf(out, "\nbuild: %s (0)\n", text);
    if (t->n_rows)
        fprintf(out, "samples of each row: %u\n", samples);
}

/* SPDX-License-Identifier: MIT */
/* bench.c — `ballast bench`: speed by rows of prompt, generation and depth. */
#include "bench.h"
#include "common/bandwidth.h"
#include "common/engine_args.h"
#include "common/io.h"
#include "common/progress.h"
#include "verbs.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

enum { MAX_TOKENS = 1 << 24, MAX_THREADS = 1024 };

struct bench_args {
    struct bl_arg_texts model, prompt, gen, pair, depth, batch, ubatch, type_k, type_v, threads,
        threads_batch;
    const char *plan, *expert_file, *devices, *trace;
    struct bl_arg_texts device_set;
    int64_t repetitions, delay, cpu_mask, watchdog;
    int format, format_err, flash_attention, progress;
    bool no_warmup, no_mmap, mlock, exact, no_read_test, read_tests, profile, verbose;
    struct bl_rule_args rules;
};
#define AT(member) offsetof(struct bench_args, member)

static const struct bl_arg test_rows[] = {
    {"-m,--model", BL_ARG_TEXTS, AT(model), "FILE", .instead = BL_INSTEAD_OF_MODEL,
     .required = true, .help = "GGUF file; of a split model, any of its files"},
    {"-p,--n-prompt", BL_ARG_TEXTS, AT(prompt), "N",
     .help = "rows that evaluate N tokens at once; 0: none (default 512)"},
    {"-n,--n-gen", BL_ARG_TEXTS, AT(gen), "N",
     .help = "rows that evaluate N tokens one by one; 0: none (default 128)"},
    {"-pg", BL_ARG_TEXTS, AT(pair), "P,N",
     .help = "a row of P tokens at once and then N one by one"},
    {"-d,--n-depth", BL_ARG_TEXTS, AT(depth), "N",
     .help = "tokens that the session holds before, not timed (default 0)"},
    {"-b,--batch-size", BL_ARG_TEXTS, AT(batch), "N",
     .help = "most tokens of one step (default 2048)"},
    {"-ub,--ubatch-size", BL_ARG_TEXTS, AT(ubatch), "N",
     .help = "tokens computed at a time within a step, at most the batch (default 512)"},
    {"-ctk,--cache-type-k", BL_ARG_TEXTS, AT(type_k), "TYPE",
     .help = "type of cached keys, such as f16, f32, q8_0 (default f16; f32 with --exact)"},
    {"-ctv,--cache-type-v", BL_ARG_TEXTS, AT(type_v), "TYPE",
     .help = "type of cached values, likewise"},
    {"-t,--threads", BL_ARG_TEXTS, AT(threads), "N",
     .help = "threads (default 0: physical cores, limited by affinity and cgroup quota)"},
    {"-tb,--threads-batch,--threads-prefill", BL_ARG_TEXTS, AT(threads_batch), "N",
     .help = "threads for steps of many tokens (default 0: as -t)"},
};

static const struct bl_arg how_rows[] = {
    {"--plan", BL_ARG_TEXT, AT(plan), "FILE",
     .help = "place everything as this plan of 'ballast plan -o FILE' says; batches, types and "
             "threads are the "
             "plan's, its context must hold the rows"},
    {"--devices", BL_ARG_TEXT, AT(devices), "NAME,...",
     .help = "devices besides the CPU, as 'ballast run' has them"},
    {"--device-set", BL_ARG_TEXTS, AT(device_set), "DEVICE.MEMBER=VALUE",
     .help = "take one figure to be another, likewise"},
    {"--watchdog", BL_ARG_INT, AT(watchdog), "SECONDS", 0, 1 << 20,
     .help = "give up a step when no device finishes anything for so long, likewise"},
    {"-r,--repetitions", BL_ARG_INT, AT(repetitions), "N", 1, 10000,
     .help = "timed runs of each row (default 5)"},
    {"--delay", BL_ARG_INT, AT(delay), "SECONDS", 0, 86400,
     .help = "pause between rows (default 0)"},
    {"--no-warmup", BL_ARG_FLAG, AT(no_warmup), .help = "no untimed run before those of a row"},
    {"--no-read-test", BL_ARG_FLAG, AT(no_read_test),
     .help = "do not measure how fast memory can be read; the share of it is left out"},
    {"--read-tests", BL_ARG_FLAG, AT(read_tests),
     .help =
         "measure it before, between and behind the runs of every row, each run's share against "
         "those around it: for machines that change their speed (0.2 s and 256 MiB each)"},
    {"--profile", BL_ARG_FLAG, AT(profile),
     .help = "after each row, on standard error: time by kind of step and waiting for threads; "
             "timing costs about 0.1 us a step"},
    {"--no-mmap", BL_ARG_FLAG, AT(no_mmap),
     .help = "read the weights into memory instead of mapping the file"},
    {"--mlock", BL_ARG_FLAG, AT(mlock), .help = "keep the weights from being paged out"},
    {"--exact", BL_ARG_FLAG, AT(exact),
     .help = "the float reference: decoded weights, float activations and cache; slow"},
    {"--cpu-mask", BL_ARG_INT, AT(cpu_mask), "MASK", 0, 4294967295.0,
     .help = "CPU features that kernels may use: " BL_CPU_MASKS_HELP " (default: all there are)"},
    {"-fa,--flash-attn", BL_ARG_CHOICE, AT(flash_attention), "auto|on|off|1|0",
     .help = "taken for the sake of copied command lines; attention is always computed in blocks"},
};

static const struct bl_arg output_rows[] = {
    {"-o,--output", BL_ARG_CHOICE, AT(format), BL_BENCH_FORMATS,
     .help = "on standard output (default md)"},
    {"--trace", BL_ARG_TEXT, AT(trace), "FILE", .out = BL_ARG_OUT,
     .help = "write what each device and link did when, for ui.perfetto.dev, in the rows that "
             "shared the last opened model, and print a line that sums it up"},
    {"-oe,--output-err", BL_ARG_CHOICE, AT(format_err), BL_BENCH_FORMATS,
     .help = "the same in another format on standard error"},
    {"--expert-stats", BL_ARG_TEXT, AT(expert_file), "FILE", .out = BL_ARG_OUT_FILE,
     .goes_on = true,
     .help =
         "count how often experts are used, by random tokens: go on from FILE, if there is one, "
         "and write it at the end"},
    {"--progress", BL_ARG_CHOICE, AT(progress), BL_PROGRESS_WORDS,
     .help = "how loading is shown on standard error; json makes every line there a JSON object"},
    {"-v,--verbose", BL_ARG_FLAG, AT(verbose),
     .help = "print threads, kernels, and memory planned and measured"},
};

struct bench {
    struct bl_command *command;
    struct bl_report *report;
    const struct bench_args *args;
    struct bl_bench_lists lists;
    struct bl_plan_settings usual; /* for rows without options; ctx_tokens: of a plan, else 0 */
    struct bl_bench_case *cases;
    size_t n_cases;
    struct bl_bench_table out, err;
    struct bl_engine *engine;
    struct bl_bench_case of; /* what the engine was opened for */
    struct bl_bench_model model;
    uint64_t planned_bytes;
    uint32_t read_threads; /* of the last read test, 0: none yet */
    double read_gbs;
    int code; /* of the first row that failed */
    size_t n_failed;
};

/* ---- command line ---- */

static bool add_numbers(struct bench *b, const char *name, const struct bl_arg_texts *texts,
                        int64_t usual, int64_t min, int64_t max, struct bl_ranges *out)
{
    char error[160];

    for (size_t i = 0; i < texts->n; i++)
        if (!bl_ranges_add(out, texts->item[i], min, max, error)) {
            bl_args_fail(b->command, "%s: %s", name, error);
            return false;
        }
    if (!texts->n)
        out->item[out->n++] = usual;
    return true;
}

static bool add_words(struct bench *b, const struct bl_arg_texts *texts, const char *usual,
                      struct bl_bench_words *out)
{
    for (size_t i = 0; i < texts->n; i++)
        if (!bl_bench_words_add(out, texts->item[i]))
            return false;
    (void)b;
    return texts->n || bl_bench_words_add(out, usual);
}

static bool add_pairs(struct bench *b)
{
    char error[160];

    for (size_t i = 0; i < b->args->pair.n; i++)
        if (!bl_bench_pair_add(&b->lists, b->args->pair.item[i], error)) {
            bl_args_fail(b->command, "-pg: %s", error);
            return false;
        }
    return true;
}

/* 0 threads are as many as this machine should use: rows say how many that is. */
static int choose_threads(struct bench *b)
{
    struct bl_threads t;
    struct bl_ranges *l = &b->lists.threads;

    for (size_t i = 0; i < l->n; i++) {
        if (l->item[i])
            continue;
        const enum bl_status st = bl_threads_choose(&t, NULL, NULL);
        if (st)
            return bl_engine_args_machine_code(b->report, st);
        l->item[i] = t.n;
    }
    return BL_EXIT_OK;
}

static int out_of_memory(const struct bench *b)
{
    bl_report_error(b->report, "out of memory");
    return BL_EXIT_FAILURE;
}

/* What rows are without options: of a plan, its own. */
static int usual_settings(const struct bench *b, struct bl_plan_settings *out)
{
    const struct bench_args *a = b->args;

    *out = (struct bl_plan_settings){
        .batch_tokens = 2048, .ubatch_tokens = 512, .exact = a->exact, .no_mmap = a->no_mmap};
    snprintf(out->type_k, sizeof out->type_k, "%s", a->exact ? "f32" : "f16");
    memcpy(out->type_v, out->type_k, sizeof out->type_v);
    const enum bl_status st = a->plan ? bl_plan_settings_read(out, a->plan) : BL_OK;
    return st ? bl_report_status(b->report, BL_STAGE_OPEN, st) : BL_EXIT_OK;
}

static int read_lists(struct bench *b)
{
    const struct bench_args *a = b->args;
    struct bl_bench_lists *l = &b->lists;
    const struct bl_plan_settings *u = &b->usual;
    int code = usual_settings(b, &b->usual);

    if (code)
        return code;

    if (!add_numbers(b, "-p", &a->prompt, 512, 0, MAX_TOKENS, &l->prompt) ||
        !add_numbers(b, "-n", &a->gen, 128, 0, MAX_TOKENS, &l->gen) ||
        !add_numbers(b, "-d", &a->depth, 0, 0, MAX_TOKENS, &l->depth) ||
        !add_numbers(b, "-b", &a->batch, u->batch_tokens, 1, 1 << 20, &l->batch) ||
        !add_numbers(b, "-ub", &a->ubatch, u->ubatch_tokens, 1, 1 << 20, &l->ubatch) ||
        !add_numbers(b, "-t", &a->threads, u->threads, 0, MAX_THREADS, &l->threads) ||
        !add_numbers(b, "-tb", &a->threads_batch, 0, 0, MAX_THREADS, &l->threads_batch) ||
        !add_pairs(b))
        return BL_EXIT_USAGE;
    if (!add_words(b, &a->model, "", &l->model) ||
        !add_words(b, &a->type_k, u->type_k, &l->type_k) ||
        !add_words(b, &a->type_v, u->type_v, &l->type_v))
        return out_of_memory(b);
    if ((code = choose_threads(b)))
        return code;
    if (!bl_bench_cases(l, &b->cases, &b->n_cases))
        return out_of_memory(b);
    return b->n_cases ? BL_EXIT_OK
                      : bl_args_fail(b->command, "nothing to do: -p, -n and -pg give no row");
}

/* ---- engine ---- */

static bool same_engine(const struct bl_bench_case *a, const struct bl_bench_case *b)
{
    return a->model == b->model && a->type_k == b->type_k && a->type_v == b->type_v &&
           a->batch == b->batch && a->ubatch == b->ubatch && a->threads == b->threads &&
           a->threads_batch == b->threads_batch;
}

static uint64_t tokens_of(const struct bl_bench_case *c)
{
    return (uint64_t)c->depth + c->prompt + c->gen;
}

/* The largest context that this row and those after it with the same engine need. */
static uint64_t common_tokens(const struct bench *b, size_t i)
{
    uint64_t most = 0;

    for (size_t j = i; j < b->n_cases && same_engine(&b->cases[j], &b->cases[i]); j++)
        most = tokens_of(&b->cases[j]) > most ? tokens_of(&b->cases[j]) : most;
    return most;
}

static struct bl_engine_args engine_args(const struct bench *b, const struct bl_bench_case *c,
                                         uint64_t ctx)
{
    const struct bench_args *a = b->args;
    struct bl_engine_args e;

    bl_engine_args_init(&e);
    e.model = c->model;
    e.type_k = c->type_k;
    e.type_v = c->type_v;
    e.plan_file = a->plan;
    e.devices = a->devices;
    e.device_set = a->device_set;
    e.watchdog_s = a->watchdog;
    e.trace = a->trace;
    e.ctx_tokens = a->plan ? 0 : (int64_t)ctx;
    e.batch_tokens = c->batch;
    e.ubatch_tokens = c->ubatch;
    e.asked_ubatch = c->ubatch;
    e.threads = a->plan && !a->threads.n ? 0 : c->threads; /* a plan has two numbers of them */
    e.threads_prefill = c->threads_batch;
    e.cpu_mask = a->cpu_mask;
    e.exact = a->exact;
    e.no_mmap = a->no_mmap;
    e.mlock = a->mlock;
    e.verbose = a->verbose;
    e.expert_file = a->expert_file;
    e.progress = a->progress;
    e.rules = a->rules;
    return e;
}

static int save_trace(const struct bench *b)
{
    if (!b->engine)
        return BL_EXIT_OK;
    const struct bl_engine_args e = engine_args(b, &b->of, 0);
    return bl_engine_args_trace(b->report, &e, b->engine);
}

static void close_engine(struct bench *b)
{
    if (b->engine) {
        const struct bl_engine_args e = engine_args(b, &b->of, 0);
        const int code = bl_engine_args_experts(b->report, &e, b->engine);
        b->code = b->code ? b->code : code;
    }
    bl_close(b->engine);
    b->engine = NULL;
}

static int try_open(struct bench *b, size_t i, uint64_t ctx)
{
    const struct bl_engine_args e = engine_args(b, &b->cases[i], ctx);
    struct bl_memory_line m;
    const int code = bl_engine_args_open(b->report, &e, &b->engine);

    if (code)
        return code;
    b->of = b->cases[i];
    bl_bench_describe(bl_engine_gguf(b->engine), &b->model);
    b->planned_bytes = 0;
    for (uint32_t k = 0; k < bl_engine_memory(b->engine, k, &m); k++)
        b->planned_bytes += m.planned_bytes;
    return BL_EXIT_OK;
}

/* Rows that differ only in their tokens share an engine, so that weights are loaded once. If their
 * largest context does not fit, each tries its own. */
static int open_engine(struct bench *b, size_t i)
{
    const uint64_t own = tokens_of(&b->cases[i]), common = common_tokens(b, i);
    const uint64_t planned = b->usual.ctx_tokens;

    if (planned && own > planned) {
        bl_report_error(b->report, "a row of %" PRIu64 " tokens; the plan's context holds %" PRIu64,
                        own, planned);
        return BL_EXIT_FAILURE;
    }
    if (b->engine && same_engine(&b->of, &b->cases[i]) && bl_engine_ctx(b->engine) >= own)
        return BL_EXIT_OK;
    close_engine(b);
    const int code = try_open(b, i, common);
    return code == BL_EXIT_NOFIT && common > own ? try_open(b, i, own) : code;
}

/* Before the engine takes memory; once for each number of threads in a row. */
static void test_reading(struct bench *b, uint32_t threads)
{
    if (b->args->no_read_test || b->read_threads == threads)
        return;
    b->read_threads = threads;
    b->read_gbs = 0;
    if (!bl_bandwidth_read(threads, &b->read_gbs))
        bl_report_note(b->report, "no memory for the read test; its share is left out");
    else if (b->args->progress != BL_PROGRESS_NONE)
        bl_report_note(b->report, "read test: %.1f GB/s with %" PRIu32 " thread%s", b->read_gbs,
                       threads, bl_report_plural(threads));
}

/* ---- rows ---- */

static bool stopped(void)
{
    return bl_interrupt_code();
}

/* Formats into memory first, so that a row appears whole. */
static int show(struct bench *b, void (*print)(FILE *, struct bl_bench_table *, const void *),
                const void *what)
{
    struct bl_bench_table *const table[] = {&b->out, &b->err};

    for (size_t i = 0; i < COUNT(table); i++) {
        char *text = NULL;
        size_t n = 0;
        FILE *f = open_memstream(&text, &n);
        if (!f)
            return out_of_memory(b);
        print(f, table[i], what);
        bool good = !ferror(f);
        good = !fclose(f) && good;
        if (good && i == 0)
            good = bl_out_write(b->report, text, n);
        else if (good)
            fwrite(text, 1, n, stderr);
        free(text);
        if (!good)
            return BL_EXIT_FAILURE;
    }
    return BL_EXIT_OK;
}

static void show_head(FILE *f, struct bl_bench_table *t, const void *unused)
{
    (void)unused;
    bl_bench_print_head(f, t);
}

static void show_row(FILE *f, struct bl_bench_table *t, const void *result)
{
    bl_bench_print_row(f, t, result);
}

static void show_foot(FILE *f, struct bl_bench_table *t, const void *samples)
{
    bl_bench_print_foot(f, t, *(const uint32_t *)samples);
}

static void say_row(const struct bench *b, size_t i, const char *name)
{
    /* On a terminal the rows themselves tell how far it is. */
    if (b->args->progress == BL_PROGRESS_NONE ||
        (b->args->progress == BL_PROGRESS_AUTO && isatty(STDOUT_FILENO)))
        return;
    bl_report_note(b->report, "row %zu of %zu: %s, %u thread%s, %u run%s", i + 1, b->n_cases, name,
                   b->cases[i].threads, bl_report_plural(b->cases[i].threads),
                   (unsigned)b->args->repetitions,
                   bl_report_plural((uint64_t)b->args->repetitions));
}

static void fail_row(struct bench *b, const char *name, int code)
{
    bl_report_error(b->report, "%s is left out: it failed", name);
    b->n_failed++;
    b->code = b->code ? b->code : code;
}

static void stamp(char text[24])
{
    const time_t now = time(NULL);
    struct tm t;

    text[0] = 0;
    if (gmtime_r(&now, &t))
        strftime(text, 24, "%Y-%m-%dT%H:%M:%SZ", &t);
}

/* 0: go on, whether the row succeeded or not. */
static int run_row(struct bench *b, size_t i)
{
    const struct bench_args *a = b->args;
    const struct bl_bench_how how = {.repetitions = (uint32_t)a->repetitions,
                                     .no_warmup = a->no_warmup,
                                     .profile = a->profile,
                                     .read_tests = a->read_tests,
                                     .stopped = stopped};
    struct bl_bench_result r = {
        .c = b->cases[i], .no_mmap = a->no_mmap, .exact = a->exact, .cpu_mask = a->cpu_mask};
    char name[64];

    bl_bench_name(&r.c, name);
    say_row(b, i, name);
    if (!b->engine || !same_engine(&b->of, &r.c)) {
        close_engine(b);
        test_reading(b, r.c.threads);
    }
    int code = open_engine(b, i);
    if (code) {
        if (!bl_interrupt_code())
            fail_row(b, name, code);
        return BL_EXIT_OK;
    }
    r.model = b->model;
    r.ctx_tokens = bl_engine_ctx(b->engine);
    bl_engine_types(b->engine, &r.c.type_k, &r.c.type_v); /* that were asked for, or found */
    r.planned_bytes = b->planned_bytes;
    r.machine_gbs = b->read_gbs;
    stamp(r.time);
    const enum bl_status st = bl_bench_measure(&r, b->engine, &how);
    if (st && !bl_interrupt_code())
        fail_row(b, name, bl_report_status(b->report, BL_STAGE_RUN, st));
    if (!st)
        code = show(b, show_row, &r);
    if (!st && !code && a->profile)
        bl_bench_print_profile(b->report, &r, b->engine);
    bl_bench_result_finish(&r);
    return code;
}

static int run_rows(struct bench *b)
{
    const uint32_t samples = (uint32_t)b->args->repetitions;
    int code = show(b, show_head, NULL);

    for (size_t i = 0; i < b->n_cases && !code && !bl_interrupt_code(); i++) {
        if (i && b->args->delay)
            sleep((unsigned)b->args->delay);
        if (!bl_interrupt_code())
            code = run_row(b, i);
    }
    if (!code)
        code = show(b, show_foot, &samples);
    if (b->n_failed)
        bl_report_error(b->report, "%zu of %zu rows failed", b->n_failed, b->n_cases);
    if (!code)
        code = save_trace(b);
    close_engine(b);
    const int end = code ? code : bl_out_close(b->report);
    return end ? end : bl_interrupt_code() ? bl_interrupt_code() : b->code;
}

static void finish(struct bench *b)
{
    close_engine(b);
    bl_bench_lists_finish(&b->lists);
    free(b->cases);
}

int bl_verb_bench(int argc, char **argv)
{
    struct bench_args args = {
        .repetitions = 5, .cpu_mask = -1, .format = BL_BENCH_MD, .format_err = BL_BENCH_SILENT};
    bl_rule_args_init(&args.rules);
    const struct bl_arg_group groups[] = {{"Rows", test_rows, COUNT(test_rows), &args},
                                          {"Runs", how_rows, COUNT(how_rows), &args},
                                          bl_rule_group(&args.rules),
                                          {"Output", output_rows, COUNT(output_rows), &args}};
    struct bl_command command = {
        .report = {.verb = "bench"},
        .usage = "-m FILE [options]",
        .about = "Measures speed as llama-bench does: the same rows, columns and formats, ours "
                 "behind them.\n"
                 "Options of rows take lists (1,2,4), ranges (10-40+10, 1-64*2) and may be "
                 "repeated; every\ncombination becomes a row. Tokens are random, from a fixed "
                 "seed.",
        .groups = groups,
        .n_groups = COUNT(groups),
        .more = "Examples:\n"
                "  ballast bench -m model.gguf\n"
                "  ballast bench -m model.gguf -p 512,2048 -n 64 -d 0,8192 -t 1-16*2 -o csv\n\n"
                "A row that fails is named on standard error, the others go on, and the exit code "
                "is that\nof the first failure.\n" BL_EXIT_CODES_HELP,
    };
    struct bench b = {.command = &command, .report = &command.report, .args = &args};
    const enum bl_parsed parsed = bl_args_parse(&command, argc, argv);
    if (parsed != BL_PARSED)
        return bl_args_code(&command, parsed);

    command.report.json = args.progress == BL_PROGRESS_JSON;
    int code = read_lists(&b);
    if (!code) {
        struct bl_engine_args first = engine_args(&b, &b.cases[0], 0);
        code = bl_engine_args_check(&command, &first);
    }
    if (!code) {
        b.out = (struct bl_bench_table){.format = (enum bl_bench_format)args.format,
                                        .load = b.usual.no_mmap,
                                        .exact = b.usual.exact,
                                        .mask = args.cpu_mask >= 0};
        bl_bench_columns(&b.out, b.cases, b.n_cases);
        b.err = b.out;
        b.err.format = (enum bl_bench_format)args.format_err;
        bl_interrupt_catch();
        code = run_rows(&b);
    }
    finish(&b);
    return code;
}

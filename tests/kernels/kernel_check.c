/* SPDX-License-Identifier: MIT */
/* kernel_check — every kernel the flags of this CPU select, beside the scalar one; and how fast it
 * is.
 *
 * For each flag mask in ascending order the table is filled anew, and the entries that changed are
 * run on every shape: a new kernel is tested because it is in the table. A fault of the processor
 * is a failure of the function at work. The line printed for a failure, given as arguments, runs
 * that case alone. */
#include <float.h>
#include <fnmatch.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "check.h"

struct options {
    uint64_t seed;
    const char *func;   /* pattern, NULL = all */
    struct shape shape; /* k = 0: all */
    uint32_t mask;      /* UINT32_MAX: all masks */
    bool bench, list, quick, verbose;
    struct bench_options speed;
};
static struct options options = {
    .seed = 1, .mask = UINT32_MAX, .speed = {.matrix_bytes = (size_t)256 << 20, .seconds = 0.05}};

/* ---- subjects ---- */

typedef void any_fn(void);

static void add_subject(struct subject *out, uint32_t *n, enum subject_kind kind,
                        enum bl_dtype type, const char *prefix, const char *name, any_fn *fn)
{
    struct subject *s = &out[*n];
    if (!fn)
        return;
    *s = (struct subject){.kind = kind, .type = type, .fn = fn};
    snprintf(s->name, sizeof s->name, "%s%s", prefix, name);
    ++*n;
}

uint32_t check_subjects(struct subject out[MAX_SUBJECTS], const struct bl_cpu_kernels *k)
{
    uint32_t n = 0;
    for (unsigned t = 0; t < BL_N_DTYPES; t++)
        add_subject(out, &n, DOT, t, "", k->matmul[t].dot_name, (any_fn *)k->matmul[t].dot);
    for (unsigned t = 0; t < BL_N_DTYPES; t++)
        add_subject(out, &n, PANEL, t, "", k->panel[t].name, (any_fn *)k->panel[t].pack);
    for (unsigned t = 0; t < BL_N_DTYPES; t++)
        if (k->panel[t].fold)
            add_subject(out, &n, FOLD, t, "", k->panel[t].fold->name,
                        (any_fn *)k->panel[t].fold->pack);
    for (unsigned t = 0; t < BL_N_DTYPES; t++) {
        add_subject(out, &n, QK, t, "qk.", k->kv[t].name, (any_fn *)k->kv[t].qk);
        add_subject(out, &n, PV, t, "pv.", k->kv[t].name, (any_fn *)k->kv[t].pv);
    }
    for (unsigned t = 0; t < BL_N_DTYPES; t++) {
        add_subject(out, &n, TILE_KEYS, t, "keys.", k->rows[t].name, (any_fn *)k->rows[t].keys);
        add_subject(out, &n, TILE_VALUES, t, "values.", k->rows[t].name,
                    (any_fn *)k->rows[t].values);
        add_subject(out, &n, ROW_SCORES, t, "scores.", k->rows[t].name,
                    (any_fn *)k->rows[t].scores);
        add_subject(out, &n, ROW_SUM, t, "sum.", k->rows[t].name, (any_fn *)k->rows[t].sum);
        add_subject(out, &n, PAIR_KEYS, t, "keys.", k->pair_rows[t].name,
                    (any_fn *)k->pair_rows[t].keys);
        add_subject(out, &n, PAIR_VALUES, t, "values.", k->pair_rows[t].name,
                    (any_fn *)k->pair_rows[t].values);
    }
    const struct {
        enum subject_kind kind;
        const char *prefix, *name;
        any_fn *fn;
    } others[] = {
        {QUANTIZE_32, "quantize_32.", k->quantize_name, (any_fn *)k->quantize_32},
        {QUANTIZE_256, "quantize_256.", k->quantize_name, (any_fn *)k->quantize_256},
        {RMS_NORM, "", k->norm_name, (any_fn *)k->rms_norm},
        {EXP_SUM, "", k->softmax_name, (any_fn *)k->exp_sum},
        {SILU_MUL, "silu_mul.", k->glu_name, (any_fn *)k->silu_mul},
        {GELU_MUL, "gelu_mul.", k->glu_name, (any_fn *)k->gelu_mul},
        {SWIGLU_OAI, "swiglu_oai.", k->glu_name, (any_fn *)k->swiglu_oai},
        {SIGMOID_MUL, "sigmoid_mul.", k->glu_name, (any_fn *)k->sigmoid_mul},
        {ADD, "add.", k->add_name, (any_fn *)k->add},
        {AXPY, "axpy.", k->add_name, (any_fn *)k->axpy},
        {ROPE_NORM, "rope_norm.", k->rope_name, (any_fn *)k->rope_norm},
        {ROPE_NEOX, "rope_neox.", k->rope_name, (any_fn *)k->rope_neox},
        {DELTA, "", k->delta_name, (any_fn *)k->delta_rule},
        {DELTA_CHUNK, "", k->delta_chunk_name, (any_fn *)k->delta_chunk.columns},
        {MIX, "mix.", k->add_name, (any_fn *)k->mix},
        {CONV, "", k->conv_name, (any_fn *)k->short_conv},
        {RELU_SUM, "", k->relu_sum_name, (any_fn *)k->relu_sum},
        {TILE_SCORES, "scores.", k->tile.name, (any_fn *)k->tile.scores},
        {TILE_WEIGHTS, "weights.", k->tile.name, (any_fn *)k->tile.weights},
        {TILE_SUM, "sum.", k->tile.name, (any_fn *)k->tile.sum},
        {PAIR_QUERIES, "queries.", k->pair.name, (any_fn *)k->pair.queries},
        {PAIR_SCORES, "scores.", k->pair.name, (any_fn *)k->pair.scores},
        {PAIR_WEIGHTS, "weights.", k->pair.name, (any_fn *)k->pair.weights},
        {PAIR_SUM, "sum.", k->pair.name, (any_fn *)k->pair.sum},
    };
    for (size_t i = 0; i < BL_COUNT(others); i++)
        add_subject(out, &n, others[i].kind, BL_F32, others[i].prefix, others[i].name,
                    others[i].fn);
    return n;
}

/* ---- comparison ---- */

bool check_fail(struct context *c, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(c->reason, sizeof c->reason, fmt, args);
    va_end(args);
    return false;
}

bool check_close(struct context *c, const char *what, uint32_t i, double got, double want,
                 double magnitude, double limit, double floor)
{
    const double err = fabs(got - want), allowed = limit * (double)FLT_EPSILON * magnitude + floor;
    if (got == want || (isnan(got) && isnan(want)))
        return true;
    if (err > floor && magnitude > 0) {
        const double ratio = (err - floor) / ((double)FLT_EPSILON * magnitude);
        c->worst = ratio > c->worst ? ratio : c->worst;
    }
    if (err <= allowed)
        return true;
    return check_fail(c, "%s[%u] = %.9g, scalar %.9g: error %.3g, allowed %.3g", what, i, got, want,
                      err, allowed);
}

/* ---- running ---- */

static sigjmp_buf fault_exit;
static volatile sig_atomic_t fault_expected; /* inside a case */

static void on_fault(int sig)
{
    if (fault_expected)
        siglongjmp(fault_exit, sig);
    signal(sig, SIG_DFL); /* a bug of this program */
    raise(sig);
}

static void catch_faults(void)
{
    struct sigaction action = {.sa_handler = on_fault, .sa_flags = SA_NODEFER};
    const int signals[] = {SIGILL, SIGSEGV, SIGBUS, SIGFPE};
    for (size_t i = 0; i < BL_COUNT(signals); i++)
        sigaction(signals[i], &action, NULL);
}

/* The state of the random numbers belongs to the case, not to what ran before it. */
static uint64_t case_state(const struct subject *s, const struct shape *shape)
{
    const uint32_t words[] = {shape->k, shape->rows, shape->pad, shape->place, shape->fill};
    uint64_t h = 0xcbf29ce484222325 ^ options.seed * 0x9e3779b97f4a7c15;
    for (const char *p = s->name; *p; p++)
        h = (h ^ (uint8_t)*p) * 0x100000001b3;
    for (size_t i = 0; i < BL_COUNT(words); i++)
        h = (h ^ words[i]) * 0x100000001b3;
    return h ? h : 1;
}

static bool run_kind(struct context *c, const struct subject *s, const struct shape *shape)
{
    if (s->kind == DOT)
        return check_dot(c, s, shape);
    if (s->kind == PANEL || s->kind == FOLD)
        return check_panel(c, s, shape);
    if (s->kind == DELTA)
        return check_delta(c, s, shape);
    if (s->kind == DELTA_CHUNK)
        return check_chunk(c, s, shape);
    if (s->kind == MIX || s->kind == CONV)
        return check_conv(c, s, shape);
    if (s->kind == RELU_SUM)
        return check_relu(c, s, shape);
    if (s->kind >= PAIR_KEYS)
        return check_pair(c, s, shape);
    if (s->kind >= TILE_KEYS)
        return check_tile(c, s, shape);
    return s->kind == QK || s->kind == PV ? check_kv(c, s, shape) : check_vector(c, s, shape);
}

static bool run_guarded(struct context *c, const struct subject *s, const struct shape *shape)
{
    const int sig = sigsetjmp(fault_exit, 1);
    if (sig) {
        fault_expected = 0;
        return check_fail(c, "%s", sig == SIGILL ? "illegal instruction" : strsignal(sig));
    }
    fault_expected = 1;
    const bool good = run_kind(c, s, shape);
    fault_expected = 0;
    return good;
}

static struct {
    uint64_t cases, subjects, failed;
    unsigned mask;
} tally;

static bool wanted(const struct shape *shape)
{
    return !options.shape.k || memcmp(shape, &options.shape, sizeof *shape) == 0;
}

/* One case; false stops the subject, whose other shapes would fail alike. */
static bool visit(struct context *c, const struct subject *s, const struct shape *shape)
{
    if (!wanted(shape))
        return true;
    c->random = case_state(s, shape);
    tally.cases++;
    if (run_guarded(c, s, shape))
        return true;
    tally.failed++;
    printf(
        "FAIL %s: %s\n     kernel_check --mask %u --seed %llu --func %s --shape %u,%u,%u,%u,%u\n",
        s->name, c->reason, tally.mask, (unsigned long long)options.seed, s->name, shape->k,
        shape->rows, shape->pad, shape->place, shape->fill);
    fflush(stdout);
    return false;
}

static void test_subject(struct context *c, const struct subject *s)
{
    c->worst = 0;
    if (s->kind == DOT)
        check_dot_shapes(c, s, options.quick, visit);
    else if (s->kind == PANEL || s->kind == FOLD)
        check_panel_shapes(c, s, options.quick, visit);
    else if (s->kind >= TILE_KEYS)
        check_tile_shapes(c, s, options.quick, visit);
    else if (s->kind == QK || s->kind == PV)
        check_kv_shapes(c, s, options.quick, visit);
    else if (s->kind == DELTA)
        check_delta_shapes(c, s, options.quick, visit);
    else if (s->kind == DELTA_CHUNK)
        check_chunk_shapes(c, s, options.quick, visit);
    else if (s->kind == MIX || s->kind == CONV)
        check_conv_shapes(c, s, options.quick, visit);
    else if (s->kind == RELU_SUM)
        check_relu_shapes(c, s, options.quick, visit);
    else
        check_vector_shapes(c, s, options.quick, visit);
    if (options.verbose)
        printf("  %-42s worst error %.2f eps\n", s->name, c->worst);
}

/* A pattern without wildcards matches anywhere in the name. */
static bool name_matches(const char *name)
{
    if (!options.func)
        return true;
    return strpbrk(options.func, "*?[") ? fnmatch(options.func, name, 0) == 0
                                        : strstr(name, options.func) != NULL;
}

static bool changed(const struct subject *s, const struct subject *before, uint32_t n_before)
{
    for (uint32_t i = 0; i < n_before; i++)
        if (before[i].kind == s->kind && before[i].type == s->type)
            return before[i].fn != s->fn || strcmp(before[i].name, s->name) != 0;
    return true;
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void run_subject(struct context *c, const struct subject *s)
{
    tally.subjects++;
    if (options.list)
        printf("  %s\n", s->name);
    else if (options.bench && s->kind >= TILE_KEYS)
        return; /* as parts of attention */
    else if (options.bench)
        bench_subject(c, s, &options.speed);
    else
        test_subject(c, s);
}

/* Flags of this program beside those of the CPU: AMX panels on tiles in plain C. */
enum { EMULATED_AMX = 1 << 30 };

static void select_table(struct bl_cpu_kernels *table, unsigned mask)
{
    bl_cpu_select(table, mask & ~(unsigned)EMULATED_AMX);
#ifdef __x86_64__
    if (!(mask & EMULATED_AMX))
        return;
    bl_cpu_amx_emulated(table);
    if (!bl_cpu_amx_works_emulated()) {
        printf("FAIL bl_cpu_amx_works: not in plain C\n");
        tally.failed++;
    }
#endif
}

/* Entries that differ from what the smaller mask gave. */
static void run_mask(unsigned mask, struct memory *mem, struct bl_cpu_kernels *table,
                     struct subject *before, uint32_t *n_before)
{
    static struct bl_cpu_kernels scalar, wide;
    static struct subject now[MAX_SUBJECTS];
    struct context c = {.ref = &scalar, .now = table, .flags = mask, .mem = mem};
    const double start = seconds();
    bl_cpu_scalar(&scalar);
    select_table(table, mask);
    if (mask & (BL_CPU_AMX | EMULATED_AMX)) {
        bl_cpu_select(&wide, BL_CPU_AVX2 | BL_CPU_AVX512);
        c.same = &wide;
    }
    const uint32_t n = check_subjects(now, table);
    tally.cases = tally.subjects = 0;
    tally.mask = mask;
    printf("mask %u:\n", mask);
    for (uint32_t i = 0; i < n; i++)
        if (changed(&now[i], before, *n_before) && name_matches(now[i].name))
            run_subject(&c, &now[i]);
    if (options.bench && !options.list)
        bench_attention(&c, mask, name_matches("attention.prompt"),
                        name_matches("attention.decode"));
    if (!options.list && !options.bench)
        printf("  %llu kernels, %llu cases, %.1f s\n", (unsigned long long)tally.subjects,
               (unsigned long long)tally.cases, seconds() - start);
    memcpy(before, now, n * sizeof *now);
    *n_before = n;
}

/* ---- arguments ---- */

static int usage(int code)
{
    fprintf(
        code ? stderr : stdout,
        "usage: kernel_check [--mask M] [--seed N] [--func PATTERN] [--shape "
        "K,ROWS,PAD,PLACE,FILL]\n"
        "                    [--quick] [--verbose] [--list] [--bench [--matrix MIB] [--time S]]\n"
        "  --mask M    only this set of CPU flags: 0 scalar, 1 AVX2, 65 and AVX-VNNI,\n"
        "              129 and VNNI in 256 bits, 3 AVX2 and AVX-512, 19 and one row at a time,\n"
        "              515 and bfloat16,\n"
        "              259 and AMX, 1073741827 and AMX in plain C,\n"
        "              4 NEON, 12 NEON and i8mm, 44 and SVE\n"
        "  --quick     a part of the shapes, for slow builds\n"
        "  --bench     speed of the selected kernels instead of the check\n");
    return code;
}

static bool parse_shape(const char *text)
{
    struct shape *s = &options.shape;
    return sscanf(text, "%u,%u,%u,%u,%u", &s->k, &s->rows, &s->pad, &s->place, &s->fill) == 5 &&
           s->k > 0;
}

static bool parse_value(const char *name, const char *value)
{
    char *end = NULL;
    if (strcmp(name, "--func") == 0) {
        options.func = value;
        return true;
    }
    if (strcmp(name, "--shape") == 0)
        return parse_shape(value);
    const double number = strtod(value, &end);
    if (*end || end == value || number < 0)
        return false;
    if (strcmp(name, "--mask") == 0)
        options.mask = (uint32_t)number;
    else if (strcmp(name, "--seed") == 0)
        options.seed = strtoull(value, NULL, 10);
    else if (strcmp(name, "--matrix") == 0)
        options.speed.matrix_bytes = (size_t)(number * 1048576);
    else if (strcmp(name, "--time") == 0)
        options.speed.seconds = number;
    else
        return false;
    return true;
}

static bool parse_switch(const char *name)
{
    const struct {
        const char *name;
        bool *on;
    } switches[] = {{"--bench", &options.bench},
                    {"--list", &options.list},
                    {"--quick", &options.quick},
                    {"--verbose", &options.verbose}};
    for (size_t i = 0; i < BL_COUNT(switches); i++)
        if (strcmp(name, switches[i].name) == 0)
            return *switches[i].on = true;
    return false;
}

int main(int argc, char **argv)
{
#ifdef __aarch64__
    static const unsigned masks[] = {0, BL_CPU_NEON, BL_CPU_NEON | BL_CPU_I8MM,
                                     BL_CPU_NEON | BL_CPU_I8MM | BL_CPU_SVE};
#else
    static const unsigned masks[] = {0,
                                     BL_CPU_AVX2,
                                     BL_CPU_AVX2 | BL_CPU_AVXVNNI,
                                     BL_CPU_AVX2 | BL_CPU_VNNI256,
                                     BL_CPU_AVX2 | BL_CPU_AVX512,
                                     BL_CPU_AVX2 | BL_CPU_AVX512 | BL_CPU_ONE_STREAM,
                                     BL_CPU_AVX2 | BL_CPU_AVX512 | BL_CPU_BF16,
                                     BL_CPU_AVX2 | BL_CPU_AVX512 | EMULATED_AMX,
                                     BL_CPU_AVX2 | BL_CPU_AVX512 | BL_CPU_AMX};
#endif
    static struct subject before[MAX_SUBJECTS];
    static struct bl_cpu_kernels table;
    uint32_t n_before = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-h") == 0 || strcmp(argv[i], "--help") == 0)
            return usage(0);
        if (parse_switch(argv[i]))
            continue;
        if (i + 1 >= argc || !parse_value(argv[i], argv[i + 1]))
            return usage(2);
        i++;
    }
    catch_faults();
    struct memory *mem = memory_open();
    if (options.bench && !options.list)
        bench_header(&options.speed);
    for (size_t i = 0; i < BL_COUNT(masks); i++) {
        /* of an emulation the speed says nothing */
        const bool any = options.mask == UINT32_MAX && !(options.bench && masks[i] & EMULATED_AMX);
        const bool selected = any || options.mask == masks[i];
        if (!selected)
            continue;
        const unsigned needed = masks[i] & ~(unsigned)EMULATED_AMX;
        if ((needed & bl_cpu_flags()) != needed)
            printf("mask %u: not on this CPU\n", masks[i]);
        else
            run_mask(masks[i], mem, &table, before, &n_before);
    }
    if (tally.failed)
        printf("seed %llu: %llu kernels FAILED\n", (unsigned long long)options.seed,
               (unsigned long long)tally.failed);
    return tally.failed ? 1 : 0;
}

/* SPDX-License-Identifier: MIT */
/* The parts of `ballast bench`: lists, the order of rows, figures, formats, and a row of a real
 * model. */
#include "support.h"

#include "bench.h"
#include "common/bandwidth.h"

#include <math.h>
#include <string.h>

/* ---- lists ---- */

static void check_list(const char *text, size_t n, const int64_t *want)
{
    struct bl_ranges l = {.n = 0};
    char error[160];

    assert_true(bl_ranges_add(&l, text, 0, 1 << 30, error));
    assert_int_equal(l.n, n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(l.item[i], want[i]);
}

static void lists_and_ranges(void **state)
{
    (void)state;
    check_list("512", 1, (const int64_t[]){512});
    check_list("1,2,4", 3, (const int64_t[]){1, 2, 4});
    check_list("3-5", 3, (const int64_t[]){3, 4, 5});
    check_list("10-40+10", 4, (const int64_t[]){10, 20, 30, 40});
    check_list("10-45+10,7", 5, (const int64_t[]){10, 20, 30, 40, 7});
    check_list("1-64*2", 7, (const int64_t[]){1, 2, 4, 8, 16, 32, 64});
    check_list("0-1", 2, (const int64_t[]){0, 1});
    check_list("1-1000000000*1000000000", 2, (const int64_t[]){1, 1000000000});
}

static void wrong_lists(void **state)
{
    static const char *const wrong[] = {
        "",      "x",     "1,",    ",1",     "5-4",    "1-8*1",
        "0-8*2", "1-8+0", "-1",    "1-8*2+", "1 2",    "0-1000",
        "2000",  "1--2",  "1-8*x", "1.5",    "1-8*-2", "9999999999999999999"};
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct bl_ranges l = {.n = 0};
        char error[160] = "";
        if (bl_ranges_add(&l, wrong[i], 0, 1024, error))
            fail_msg("'%s' was taken", wrong[i]);
        assert_true(error[0]);
    }
}

/* ---- rows ---- */

static void order_of_rows(void **state)
{
    struct bl_bench_lists l = {.batch = {{2048}, 1},
                               .ubatch = {{512, 4096}, 2},
                               .threads = {{1, 2}, 2},
                               .depth = {{0, 32}, 2},
                               .prompt = {{16, 0}, 2},
                               .gen = {{4}, 1}};
    struct bl_bench_case *c;
    char error[160], name[64];
    size_t n;

    (void)state;
    assert_true(bl_bench_words_add(&l.model, "no-file-a,no-file-b"));
    assert_true(bl_bench_words_add(&l.type_k, "f16"));
    assert_true(bl_bench_words_add(&l.type_v, "f16"));
    assert_true(bl_bench_pair_add(&l, "16,4", error));
    assert_false(bl_bench_pair_add(&l, "16", error));
    assert_false(bl_bench_pair_add(&l, "1-2", error));
    assert_false(bl_bench_pair_add(&l, "0,0", error));
    assert_true(bl_bench_cases(&l, &c, &n));
    assert_int_equal(n, 2 * 2 * 2 * 2 * 3);
    static const char *const want[] = {"pp16",       "tg4",       "pp16+tg4",
                                       "pp16 @ d32", "tg4 @ d32", "pp16+tg4 @ d32"};
    for (size_t i = 0; i < n; i++) {
        bl_bench_name(&c[i], name);
        assert_string_equal(name, want[i % 6]);
        assert_int_equal(c[i].threads, i / 6 % 2 + 1);
        assert_int_equal(c[i].ubatch, i / 12 % 2 ? 2048 : 512); /* never more than the batch */
        assert_string_equal(c[i].model, i / 24 ? "no-file-b" : "no-file-a");
    }
    free(c);
    bl_bench_lists_finish(&l);
}

/* ---- figures ---- */

static struct bl_bench_result two_samples(uint64_t *ns)
{
    ns[0] = 1000000000;
    ns[1] = 2000000000;
    return (struct bl_bench_result){
        .c = {.model = "a \"b\".gguf",
              .type_k = "f16",
              .type_v = "q8_0",
              .batch = 2048,
              .ubatch = 512,
              .threads = 2,
              .gen = 100},
        .model = {.type = "llama 8B Q4_0", .bytes = 4u << 20, .n_params = 8000000000u},
        .cpu_mask = -1,
        .ns = ns,
        .n_samples = 2,
        .machine_gbs = 1.0};
}

static void figures_of_samples(void **state)
{
    const struct bl_token_cost cost = {.weight_bytes = 4000000,
                                       .head_bytes = 1000000,
                                       .weight_macs = 8000000,
                                       .head_macs = 2000000,
                                       .state_bytes = 2500000};
    uint64_t ns[2];
    struct bl_bench_result r = two_samples(ns);

    (void)state;
    bl_bench_figures(&r, &cost);
    assert_float_equal(r.avg_ns, 1.5e9, 1);
    assert_float_equal(r.stddev_ns, 1e9 / sqrt(2), 1);
    assert_float_equal(r.avg_ts, 75, 1e-9);
    assert_float_equal(r.stddev_ts, 50 / sqrt(2), 1e-9);
    assert_float_equal(r.median_ts, 100 / 1.5, 1e-9);
    assert_float_equal(r.best_ts, 100, 1e-9);
    assert_int_equal(r.weight_bytes, 5000000);
    assert_float_equal(r.read_gbs, 7.5e6 * 100 / 1.5e9, 1e-9);
    assert_float_equal(r.read_share, 0.5, 1e-9);
    assert_float_equal(r.weight_gmacs, 1e7 * 100 / 1.5e9, 1e-9);
    /* Each against the tests around it: 0.75 of 1.0 and 0.375 of 1.5, whatever the row's own test
     * says. */
    double tests[] = {0.5, 1.5, 1.5};
    r.test_gbs = tests;
    bl_bench_figures(&r, &cost);
    assert_float_equal(r.read_share, (0.75 / 1.0 + 0.375 / 1.5) / 2, 1e-9);
    r.test_gbs = NULL;
    /* A prompt reads weights once for many tokens, and has logits once a batch. */
    r.c.prompt = 3000;
    r.c.gen = 0;
    r.weight_bytes = 0;
    bl_bench_figures(&r, &cost);
    assert_int_equal(r.weight_bytes, 0);
    assert_float_equal(r.weight_gmacs, (8e6 * 3000 + 2e6 * 2) / 1.5e9, 1e-9);
}

/* ---- formats ---- */

static char *printed(enum bl_bench_format format)
{
    static char text[16384];
    uint64_t ns[2];
    struct bl_bench_result r = two_samples(ns);
    const struct bl_token_cost cost = {.weight_bytes = 4000000, .weight_macs = 8000000};
    struct bl_bench_table t = {.format = format};
    text[0] = 0;
    FILE *f = fmemopen(text, sizeof text, "w");

    bl_bench_figures(&r, &cost);
    bl_bench_columns(&t, &r.c, 1);
    bl_bench_print_head(f, &t);
    bl_bench_print_row(f, &t, &r);
    bl_bench_print_row(f, &t, &r);
    bl_bench_print_foot(f, &t, 2);
    fclose(f);
    return text;
}

static void markdown(void **state)
{
    const char *text = printed(BL_BENCH_MD);

    (void)state;
    assert_non_null(strstr(text, "| model                          |       size |     params | "
                                 "backend    | threads | type_v |            test |"
                                 "                  t/s |"));
    assert_non_null(strstr(text, "| ------------------------------ | ---------: | ---------: | "
                                 "---------- | ------: | -----: | --------------: | "
                                 "-------------------: |"));
    assert_non_null(strstr(text, "| llama 8B Q4_0                  |   4.00 MiB |     8.00 B | "
                                 "CPU        |       2 |   q8_0 |           tg100 |"
                                 "        75.00 \xc2\xb1 35.36 |"));
    assert_null(strstr(text, "type_k"));
}

static void other_formats(void **state)
{
    (void)state;
    const char *text = printed(BL_BENCH_CSV);
    assert_non_null(strstr(text, "\"a \"\"b\"\".gguf\",\"llama 8B Q4_0\""));
    assert_int_equal(strncmp(text, "build_commit,build_number,cpu_info,", 34), 0);
    text = printed(BL_BENCH_JSON);
    assert_non_null(strstr(text, "\"model_filename\": \"a \\\"b\\\".gguf\",\n"));
    assert_non_null(strstr(text, "\"samples_ns\": [ 1000000000, 2000000000 ]"));
    assert_non_null(strstr(text, "  },\n  {\n"));
    text = printed(BL_BENCH_SQL);
    assert_non_null(strstr(text, "  avg_ts REAL,\n"));
    assert_non_null(strstr(text, "INSERT INTO llama_bench (build_commit, "));
    text = printed(BL_BENCH_JSONL);
    assert_int_equal(strncmp(text, "{\"build_commit\": ", 17), 0);
    assert_string_equal(printed(BL_BENCH_SILENT), "");
}

/* ---- a model ---- */

static bool go_on(void)
{
    return false;
}

static bool stop_at_once(void)
{
    return true;
}

static void open_model(struct bl_engine **e)
{
    const struct bl_options opt = {.ctx_tokens = 64, .threads = 2};

    assert_int_equal(bl_open(e, BL_TEST_DATA "/reference/models/llama-f32.gguf", &opt), BL_OK);
}

static void row_of_a_model(void **state)
{
    const struct bl_bench_how how = {.repetitions = 3, .profile = true, .stopped = go_on};
    struct bl_bench_result r = {
        .c = {.batch = 16, .threads = 2, .prompt = 20, .gen = 5, .depth = 7}};
    struct bl_engine *e;
    struct bl_op_time t;
    uint64_t steps = 0, ns = 0, all = 0, barriers = 0;

    (void)state;
    open_model(&e);
    assert_int_equal(bl_bench_measure(&r, e, &how), BL_OK);
    assert_int_equal(r.n_samples, 3);
    for (uint32_t i = 0; i < bl_engine_op_time(e, i, &t); i++) {
        if (!strcmp(t.name, "embed f32"))       /* 16 + 4 tokens, then 5 times one; less what the */
            assert_in_range(t.steps, 1, 3 * 7); /* other thread did while this one was away */
        steps += t.steps;
        barriers += t.barriers;
        ns += t.run_ns + t.wait_ns;
    }
    for (uint32_t i = 0; i < 3; i++)
        all += r.ns[i];
    assert_true(steps > 3 * 7 * 10 && barriers > 3 * 7);
    assert_true(ns > 0 && ns <= all);
    bl_bench_result_finish(&r);
    bl_close(e);
}

static void stopping(void **state)
{
    const struct bl_bench_how how = {.repetitions = 3, .stopped = stop_at_once};
    struct bl_bench_result r = {.c = {.batch = 16, .threads = 2, .gen = 5}};
    struct bl_engine *e;

    (void)state;
    open_model(&e);
    assert_int_equal(bl_bench_measure(&r, e, &how), BL_ECANCELLED);
    bl_bench_result_finish(&r);
    bl_close(e);
}

/* The file's own numbers: all matrices but the embedding's rows, and keys and values so far. */
static void cost_of_a_token(void **state)
{
    struct bl_token_cost none, later;
    struct bl_engine *e;
    uint64_t bytes = 0, macs = 0, embedding = 0, row = 0;

    (void)state;
    open_model(&e);
    const struct bl_gguf *g = bl_engine_gguf(e);
    for (uint32_t i = 0; i < bl_gguf_n_tensors(g); i++) {
        const struct bl_tensor_info *t = bl_gguf_tensor(g, i);
        bytes += t->bytes;
        macs += t->ne[1] > 1 ? t->ne[0] * t->ne[1] : 0;
        if (!strcmp(t->name, "token_embd.weight")) {
            embedding = t->ne[0] * t->ne[1];
            row = t->ne[0];
        }
    }
    assert_int_equal(bl_engine_token_cost(e, 0, &none), BL_OK);
    assert_int_equal(bl_engine_token_cost(e, 9, &later), BL_OK);
    assert_int_equal(none.weight_macs + none.head_macs, macs - embedding);
    assert_int_equal(none.weight_bytes + none.head_bytes, bytes - 4 * embedding + 4 * row);
    assert_true(none.state_bytes > 0);
    assert_int_equal(later.state_bytes, 10 * none.state_bytes);
    bl_close(e);
}

static void reading(void **state)
{
    double gbs = 0;

    (void)state;
    assert_true(bl_bandwidth_read(1, &gbs));
    assert_true(gbs > 0.01 && gbs < 10000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_and_ranges), cmocka_unit_test(wrong_lists),
        cmocka_unit_test(order_of_rows),    cmocka_unit_test(figures_of_samples),
        cmocka_unit_test(markdown),         cmocka_unit_test(other_formats),
        cmocka_unit_test(row_of_a_model),   cmocka_unit_test(stopping),
        cmocka_unit_test(cost_of_a_token),  cmocka_unit_test(reading),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

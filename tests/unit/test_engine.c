/* SPDX-License-Identifier: MIT */
/* The engine over real tiny models: sessions, batches, memory, and plans over two devices against
 * one. */
#include "engine_rig.h"

#include <unistd.h>

static void sessions_in_one_batch_do_not_mix(void **state)
{
    (void)state;
    struct bl_options opt = small();
    struct bl_engine *e = opened("llama-f32", &opt);
    float *alone = last_logits(e);
    struct bl_session *a, *b, *of[2 * N_PROMPT];
    int32_t ids[2 * N_PROMPT];

    assert_int_equal(bl_session_create(&a, e), BL_OK);
    assert_int_equal(bl_session_create(&b, e), BL_OK);
    assert_int_equal(feed(e, b, prompt + 3, 5), BL_OK); /* b is ahead and holds other tokens */
    for (uint32_t i = 0; i < N_PROMPT; i++) {
        ids[2 * i] = prompt[i];
        ids[2 * i + 1] = prompt[N_PROMPT - 1 - i];
        of[2 * i] = a;
        of[2 * i + 1] = b;
    }
    assert_int_equal(bl_decode(e, &(struct bl_batch){2 * N_PROMPT, ids, of, NULL}), BL_OK);
    assert_null(bl_logits(e, 0));
    assert_non_null(bl_logits(e, 2 * N_PROMPT - 1));
    assert_true(nmse(bl_logits(e, 2 * N_PROMPT - 2), alone, bl_engine_n_vocab(e)) < 1e-12);
    assert_int_equal(bl_session_n_tokens(b), N_PROMPT + 5);
    free(alone);
    bl_session_destroy(a);
    bl_session_destroy(b);
    bl_close(e);
}

static void rewound_session_continues_as_if_never_fed(void **state)
{
    (void)state;
    static const char *const names[] = {"llama-f32", "gemma3-f32"};
    for (size_t i = 0; i < 2; i++) {
        struct bl_options opt = small();
        struct bl_engine *e = opened(names[i], &opt);
        float *alone = last_logits(e);
        struct bl_session *s;

        assert_int_equal(bl_session_create(&s, e), BL_OK);
        assert_int_equal(feed(e, s, prompt, 10), BL_OK);
        assert_int_equal(feed(e, s, prompt, 9), BL_OK); /* wrong tokens */
        assert_int_equal(bl_session_rewind(s, 20), BL_EINVAL);
        assert_int_equal(bl_session_rewind(s, 10), BL_OK);
        assert_int_equal(feed(e, s, prompt + 10, N_PROMPT - 10), BL_OK);
        assert_true(nmse(bl_logits(e, N_PROMPT - 11), alone, bl_engine_n_vocab(e)) < 1e-12);
        free(alone);
        bl_session_destroy(s);
        bl_close(e);
    }
}

static void a_window_that_has_moved_on_refuses_to_rewind(void **state)
{
    (void)state;
    struct bl_options opt = small();
    struct bl_engine *e = opened("gemma3-f32", &opt);
    struct bl_session *s;
    uint64_t rows = 0;

    for (uint32_t i = 0; i < e->parts.model->n_states; i++)
        if (e->parts.model->state[i].law == BL_WINDOW) {
            struct bl_shape shape = bl_plan_bucket(&e->parts.plan, 1, 1);
            rows = bl_state_rows(&e->parts.model->state[i], &shape);
        }
    assert_true(rows > 0 && rows < 100);
    assert_int_equal(bl_session_create(&s, e), BL_OK);
    while (bl_session_n_tokens(s) + N_PROMPT <= 128)
        assert_int_equal(feed(e, s, prompt, N_PROMPT), BL_OK);
    assert_int_equal(bl_session_rewind(s, 5), BL_ELIMIT);
    assert_non_null(strstr(bl_error(), "feed them again"));
    assert_int_equal(bl_session_n_tokens(s), 120);
    assert_int_equal(bl_session_rewind(s, 119), BL_OK);
    assert_int_equal(bl_session_rewind(s, 0), BL_OK);
    assert_int_equal(feed(e, s, prompt, 3), BL_OK);
    bl_session_destroy(s);
    bl_close(e);
}

static void bad_batches_leave_sessions_alone(void **state)
{
    (void)state;
    struct bl_options opt = small();
    struct bl_engine *e = opened("llama-f32", &opt);
    struct bl_session *s, *more[3];
    int32_t bad[] = {1, -1, 2}, big[] = {1, (int32_t)bl_engine_n_vocab(e)};

    assert_int_equal(bl_session_create(&s, e), BL_OK);
    assert_int_equal(feed(e, s, bad, 3), BL_EINVAL);
    assert_int_equal(feed(e, s, big, 2), BL_EINVAL);
    assert_int_equal(feed(e, s, bad, 0), BL_EINVAL);
    assert_int_equal(bl_session_n_tokens(s), 0);
    while (bl_session_n_tokens(s) + N_PROMPT <= 128)
        assert_int_equal(feed(e, s, prompt, N_PROMPT), BL_OK);
    assert_int_equal(feed(e, s, prompt, N_PROMPT), BL_ELIMIT);
    assert_non_null(strstr(bl_error(), "context full"));
    assert_int_equal(bl_session_n_tokens(s), 120);
    assert_int_equal(bl_session_create(&more[0], e), BL_OK);
    assert_int_equal(bl_session_create(&more[1], e), BL_OK);
    assert_int_equal(bl_session_create(&more[2], e), BL_ELIMIT);
    bl_session_destroy(more[0]);
    bl_session_destroy(more[1]);
    bl_session_destroy(s);
    bl_close(e);
}

static void planned_memory_is_what_was_taken(void **state)
{
    (void)state;
    static const char *const names[] = {"llama-f32", "qwen3moe-iq3", "gemma3-f32", "gpt-oss-mxfp4"};
    for (size_t i = 0; i < 8; i++) {
        struct bl_options opt = small();
        opt.no_mmap = i >= 4;
        struct bl_engine *e = opened(names[i % 4], &opt);
        struct bl_memory_line line;

        free(last_logits(e));
        for (uint32_t k = 0; k < bl_engine_memory(e, k, &line); k++) {
            if (strcmp(line.purpose, "host"))
                assert_int_equal(line.planned_bytes, line.measured_bytes);
            else
                assert_true(line.measured_bytes <= line.planned_bytes);
            assert_true(line.measured_bytes > 0);
        }
        bl_close(e);
    }
}

static void too_little_memory_is_refused_before_allocation(void **state)
{
    (void)state;
    struct bl_options opt = small();
    struct bl_model_options mo = {.ctx_tokens = 128, .type_k = BL_F16, .type_v = BL_F16};
    struct bl_gguf *g;
    struct bl_model *m;
    struct bl_machine machine;
    struct bl_plan plan;

    assert_int_equal(bl_gguf_open(&g, MODELS "llama-f32.gguf"), BL_OK);
    assert_int_equal(bl_model_open(&m, g, &mo), BL_OK);
    assert_int_equal(bl_machine_probe(&machine, &opt), BL_OK);
    machine.device[0].usable_bytes = 100 << 10;
    assert_int_equal(bl_plan_make(&plan, m, &machine, &opt), BL_ENOFIT);
    assert_non_null(strstr(bl_error(), "cpu0 needs"));
    bl_machine_finish(&machine);
    bl_model_close(m);
    bl_gguf_close(g);
}

/* ---- two devices ---- */

static void a_split_plan_equals_the_one_device_plan(void **state)
{
    (void)state;
    static const char *const names[] = {"llama-f32",     "mixtral-f32",   "qwen3moe-iq3",
                                        "gemma3-f32",    "gpt-oss-mxfp4", "glm4moe-f32",
                                        "deepseek2-f32", "deepseek4-f32"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (uint32_t second = 1; second < 4; second++) {
            struct bl_options opt = small();
            opt.no_mmap = second == 2;
            struct bl_engine *one = opened(names[i], &opt),
                             *two = split_engine(names[i], second, second & 1, &opt);
            float *a = last_logits(one), *b = last_logits(two);

            assert_true(nmse(b, a, bl_engine_n_vocab(one)) < 1e-9);
            free(a);
            free(b);
            bl_close(one);
            bl_close(two);
        }
}

static void copy_model(const char *name, const char *to)
{
    char path[512], bytes[4096];
    size_t n;

    snprintf(path, sizeof path, MODELS "%s.gguf", name);
    FILE *in = fopen(path, "rb"), *out = fopen(to, "wb");
    assert_true(in && out);
    while ((n = fread(bytes, 1, sizeof bytes, in)))
        assert_int_equal(fwrite(bytes, 1, n, out), n);
    fclose(in);
    assert_int_equal(fclose(out), 0);
}

/* Reading what is gone of a mapping would end the process. Read into memory, the file is free. */
static void a_model_cut_short_is_noticed(void **state)
{
    (void)state;
    for (int no_mmap = 0; no_mmap < 2; no_mmap++) {
        char path[] = "/tmp/ballast-test-XXXXXX";
        struct bl_options opt = small();
        struct bl_engine *e;
        struct bl_session *s;
        int fd = mkstemp(path);

        assert_true(fd >= 0);
        copy_model("llama-f32", path);
        opt.no_mmap = no_mmap;
        assert_int_equal(bl_open(&e, path, &opt), BL_OK);
        assert_int_equal(bl_session_create(&s, e), BL_OK);
        assert_int_equal(feed(e, s, prompt, 5), BL_OK);
        assert_int_equal(ftruncate(fd, 20000), 0);
        assert_int_equal(feed(e, s, prompt, 5), no_mmap ? BL_OK : BL_EIO);
        assert_int_equal(bl_session_n_tokens(s), no_mmap ? 10 : 5);
        if (!no_mmap)
            assert_non_null(strstr(bl_error(), "has 20000 bytes now"));
        bl_session_destroy(s);
        bl_close(e);
        close(fd);
        unlink(path);
    }
}

/* ---- loading ---- */

static bool stop_at_once(void *n_asked)
{
    ++*(uint32_t *)n_asked;
    return true;
}

static void loading_can_be_stopped(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        struct bl_options opt = small();
        struct bl_engine *e = NULL;
        uint32_t n_asked = 0;
        opt.no_mmap = i & 1;
        opt.devices = i & 2 ? "sim0" : NULL;
        opt.stop = stop_at_once;
        opt.stop_arg = &n_asked;
        assert_int_equal(bl_open(&e, MODELS "llama-f32.gguf", &opt), BL_ECANCELLED);
        assert_null(e);
        assert_int_equal(n_asked, 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loading_can_be_stopped),
        cmocka_unit_test(sessions_in_one_batch_do_not_mix),
        cmocka_unit_test(rewound_session_continues_as_if_never_fed),
        cmocka_unit_test(a_window_that_has_moved_on_refuses_to_rewind),
        cmocka_unit_test(bad_batches_leave_sessions_alone),
        cmocka_unit_test(planned_memory_is_what_was_taken),
        cmocka_unit_test(too_little_memory_is_refused_before_allocation),
        cmocka_unit_test(a_split_plan_equals_the_one_device_plan),
        cmocka_unit_test(a_model_cut_short_is_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

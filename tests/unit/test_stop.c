/* SPDX-License-Identifier: MIT */
/* Steps that are asked to stop end there, whatever computes them, and the engine goes on as if they
 * had not begun; devices that are stuck while weights are loaded are given up in time. */
#include "engine_rig.h"

#include "divide.h"
#include "log.h"
#include "sending.h"
#include "thread.h"
#include "vulkan_rig.h"

#include <stdatomic.h>

/* ---- stopping ---- */

struct asked {
    _Atomic uint32_t n;
    uint32_t from; /* yes from the so many-th time on; 0: never */
};

static bool count_and_say(void *arg)
{
    struct asked *a = arg;
    const uint32_t n = atomic_fetch_add(&a->n, 1) + 1;

    return a->from && n >= a->from;
}

static void ask_anew(struct asked *a, uint32_t from)
{
    atomic_store(&a->n, 0);
    a->from = from;
}

static void must_be(enum bl_status st, enum bl_status want, const char *where, uint32_t n)
{
    if (st != want)
        fail_msg("%s, %u: %s: %s", where, n, bl_status_name(st), bl_error());
}

/* A prompt that is stopped again and again comes out as one that never was. Where state was written
 * over it is fed from the beginning. */
static void goes_on(struct bl_engine *e, struct asked *a, const char *where)
{
    const size_t bytes = bl_engine_n_vocab(e) * sizeof(float);
    struct bl_session *s;
    uint32_t n_stops = 0, most;

    ask_anew(a, 0);
    float *want = last_logits(e);
    most = atomic_load(&a->n);
    assert_true(most > 0);
    assert_int_equal(bl_session_create(&s, e), BL_OK);
    for (uint32_t from = 1; from <= most; from += 1 + from / 3, n_stops++) {
        ask_anew(a, from);
        const enum bl_status st = feed(e, s, prompt, N_PROMPT);
        if (!st && atomic_load(&a->n) < from) /* while others are waited for, by time */
            break;
        must_be(st, BL_ECANCELLED, where, from);
        assert_null(bl_logits(e, N_PROMPT - 1));
        assert_true(bl_session_n_tokens(s) < N_PROMPT);
        ask_anew(a, 0);
        must_be(bl_session_rewind(s, 0), BL_OK, where, from);
    }
    ask_anew(a, 0);
    must_be(bl_session_rewind(s, 0), BL_OK, where, 0);
    must_be(feed(e, s, prompt, N_PROMPT), BL_OK, where, 0);
    assert_true(n_stops > 5);
    assert_true(nmse(bl_logits(e, N_PROMPT - 1), want, (uint32_t)(bytes / sizeof(float))) < 1e-9);
    print_message("%s: asked %u times, stopped %u times\n", where, most, n_stops);
    memory_is_as_planned(e);
    free(want);
    bl_session_destroy(s);
    bl_close(e);
}

static void on_the_host(void **state)
{
    (void)state;
    static const char *const names[] = {"llama-f32", "qwen3moe-iq3", "gemma3-f32"};
    for (uint32_t i = 0; i < 2 * BL_COUNT(names); i++) {
        struct asked a = {0};
        struct bl_options opt = small();
        opt.threads = 1 + i % 2;
        opt.exact = i % 2;
        opt.stop = count_and_say;
        opt.stop_arg = &a;
        goes_on(opened(names[i / 2], &opt), &a, names[i / 2]);
    }
}

/* Between units of its steps, too: those are what takes long. */
static void long_steps_are_asked_between_units(void **state)
{
    (void)state;
    struct asked a = {0};
    struct bl_options opt = small();
    uint32_t n[2];

    opt.stop = count_and_say;
    opt.stop_arg = &a;
    opt.threads = 1;
    opt.exact = false;
    struct bl_engine *e = opened("qwen3moe-iq3", &opt);
    for (uint32_t i = 0; i < 2; i++) {
        struct bl_session *s;
        assert_int_equal(bl_session_create(&s, e), BL_OK);
        ask_anew(&a, 0);
        assert_int_equal(feed(e, s, prompt, i ? 16 : 1), BL_OK);
        n[i] = atomic_load(&a.n);
        bl_session_destroy(s);
    }
    print_message("asked %u times for 1 token, %u for 16\n", n[0], n[1]);
    assert_true(n[1] > n[0] + 50);
    bl_close(e);
}

static void over(const char *devices)
{
    static const char *const names[] = {"llama-f32", "qwen3moe-iq3"};
    for (uint32_t i = 0; i < BL_COUNT(names); i++) {
        struct asked a = {0};
        struct bl_options opt = small();
        struct bl_engine *e;
        uint64_t seed = 5 + i;
        char path[512];
        opt.devices = devices;
        opt.stop = count_and_say;
        opt.stop_arg = &a;
        snprintf(path, sizeof path, MODELS "%s.gguf", names[i]);
        must_be(simulated_open(&e, path, &opt, &seed), BL_OK, devices, i);
        goes_on(e, &a, devices);
    }
}

static void on_simulated_devices(void **state)
{
    (void)state;
    over("sim0");
    over("sim0,sim1");
}

static void on_vulkan(void **state)
{
    (void)state;
    if (!vulkan_here())
        skip();
    over("vulkan0:1GiB,sim0");
}

static void while_experts_are_sent(void **state)
{
    (void)state;
    for (uint64_t first = 1; first <= 3; first++) {
        struct asked a = {0};
        struct bl_options opt = small();
        struct bl_engine *e;
        uint64_t seed = first;
        opt.devices = "sim0,sim1";
        opt.stop = count_and_say;
        opt.stop_arg = &a;
        must_be(streamed_over(&e, MODELS "qwen3moe-iq3.gguf", &opt, &seed), BL_OK, "sent", 0);
        goes_on(e, &a, "experts sent");
    }
}

/* What sleeps for the time of a slow device is woken. */
static void slow_devices_are_not_waited_for(void **state)
{
    (void)state;
    struct asked a = {0};
    struct bl_options opt = small();
    struct bl_engine *e;
    struct bl_session *s;
    uint64_t seed = 5;

    opt.devices = "sim0@1MB/s";
    opt.stop = count_and_say;
    opt.stop_arg = &a;
    must_be(simulated_open(&e, MODELS "llama-f32.gguf", &opt, &seed), BL_OK, "slow", 0);
    assert_int_equal(bl_session_create(&s, e), BL_OK);
    ask_anew(&a, 30);
    const uint64_t start = bl_now_ns();
    must_be(feed(e, s, prompt, N_PROMPT), BL_ECANCELLED, "slow", 0);
    print_message("stopped after %.3f s\n", (double)(bl_now_ns() - start) * 1e-9);
    bl_session_destroy(s);
    bl_close(e);
}

/* ---- stuck while weights are loaded ---- */

struct dump {
    char text[2048];
};

static void keep(void *arg, enum bl_log_level level, const char *line)
{
    struct dump *d = arg;
    const size_t n = strlen(d->text);

    if (level == BL_LOG_ERROR)
        snprintf(d->text + n, sizeof d->text - n, "%s\n", line);
}

static void stuck_loading_is_noticed(void **state)
{
    (void)state;
    uint32_t n_loading = 0;

    for (uint32_t nth = 1; nth < 400 && n_loading < 3; nth += 1 + nth / 2) {
        struct dump dump = {0};
        char devices[64];
        struct bl_options opt = small();
        struct bl_engine *e = NULL;
        uint64_t seed = 5;
        snprintf(devices, sizeof devices, "sim0+stuck=%u", nth);
        opt.devices = devices;
        opt.watchdog_s = 1;
        bl_log_set(keep, &dump, BL_LOG_ERROR);
        const uint64_t start = bl_now_ns();
        const enum bl_status st = simulated_open(&e, MODELS "llama-f32.gguf", &opt, &seed);
        const double took = (double)(bl_now_ns() - start) * 1e-9;
        bl_log_set(NULL, NULL, BL_LOG_ERROR);
        bl_close(e);
        if (!st)
            break;
        must_be(st, BL_ETIMEDOUT, devices, nth);
        assert_int_equal(strncmp(bl_error(), "sim0 ", 5), 0);
        assert_true(took < 1.9); /* one deadline, not one after the other */
        if (!strstr(bl_error(), "while weights were loaded; it is stuck in a copy of "))
            continue;
        n_loading++;
        assert_non_null(strstr(bl_error(), "leave it out of --devices"));
        assert_non_null(strstr(dump.text, "sim0, weights: "));
        assert_non_null(strstr(dump.text, " commands done, copy of "));
    }
    assert_true(n_loading > 0);
}

/* Of a step: every line names a device once, and no layer where there is none. */
static void stuck_in_a_step_is_told_clearly(void **state)
{
    (void)state;
    uint32_t n_told = 0;
    bool head = false;

    for (uint32_t nth = 60; nth < 400 && !(head && n_told > 1); nth += 1) {
        struct dump dump = {0};
        char devices[64];
        struct bl_options opt = small();
        struct bl_engine *e = NULL;
        struct bl_session *s;
        uint64_t seed = 5;
        snprintf(devices, sizeof devices, "sim0+stuck=%u", nth);
        opt.devices = devices;
        opt.watchdog_s = 1;
        if (simulated_open(&e, MODELS "llama-f32.gguf", &opt, &seed))
            continue;
        e->patience_ns = 50000000;
        assert_int_equal(bl_session_create(&s, e), BL_OK);
        bl_log_set(keep, &dump, BL_LOG_ERROR);
        const enum bl_status st = feed(e, s, prompt, N_PROMPT);
        bl_log_set(NULL, NULL, BL_LOG_ERROR);
        if (st) {
            must_be(st, BL_ETIMEDOUT, devices, nth);
            assert_non_null(
                strstr(bl_error(), "sim0 has finished nothing for 0.1 s; it is stuck "));
            assert_non_null(strstr(bl_error(), "leave it out of --devices"));
            assert_null(strstr(bl_error(), "layer -1"));
            assert_null(strstr(dump.text, "layer -1"));
            assert_null(strstr(dump.text, "from device "));
            assert_non_null(strstr(dump.text, "sim0: "));
            head = head || strstr(dump.text, "head");
            n_told++;
        }
        bl_session_destroy(s);
        bl_close(e);
        if (!st)
            break;
    }
    print_message("%u told%s\n", n_told, head ? ", of the head" : "");
    assert_true(n_told > 1);
}

/* Logs of a step that failed stay where what still runs may write; a stopped one leaves none. */
static void logs_outlive_failed_steps(void **state)
{
    (void)state;
    for (uint32_t stuck = 0; stuck < 2; stuck++) {
        struct asked a = {0};
        struct bl_options opt = small();
        struct bl_engine *e;
        struct bl_session *s;
        uint64_t seed = 5;
        opt.devices = stuck ? "sim0+stuck=70" : "sim0";
        opt.watchdog_s = 1;
        opt.stop = count_and_say;
        opt.stop_arg = &a;
        must_be(simulated_open(&e, MODELS "llama-f32.gguf", &opt, &seed), BL_OK, "traced", stuck);
        e->patience_ns = 50000000;
        assert_int_equal(bl_session_create(&s, e), BL_OK);
        assert_int_equal(bl_engine_trace(e, true), BL_OK);
        ask_anew(&a, stuck ? 0 : 20);
        enum bl_status st = BL_OK;
        for (uint32_t i = 0; i < 20 && !st; i++)
            if (!(st = feed(e, s, prompt, N_PROMPT)))
                assert_int_equal(bl_session_rewind(s, 0), BL_OK);
        must_be(st, stuck ? BL_ETIMEDOUT : BL_ECANCELLED, "traced", stuck);
        assert_int_equal(bl_engine_trace(e, false), stuck ? BL_EDEVICE : BL_OK);
        assert_int_equal(bl_engine_trace(e, true), stuck ? BL_EDEVICE : BL_OK);
        ask_anew(&a, 0);
        assert_int_equal(feed(e, s, prompt, N_PROMPT) == BL_OK, !stuck);
        bl_session_destroy(s);
        bl_close(e);
    }
}

static void a_lost_device_is_named_once(void **state)
{
    (void)state;
    uint32_t n_lost = 0;

    for (uint32_t nth = 1; nth < 400; nth += 1 + nth / 4) {
        char devices[64];
        struct bl_options opt = small();
        struct bl_engine *e = NULL;
        struct bl_session *s;
        uint64_t seed = 5;
        snprintf(devices, sizeof devices, "sim0+lost=%u", nth);
        opt.devices = devices;
        enum bl_status st = simulated_open(&e, MODELS "llama-f32.gguf", &opt, &seed);
        if (!st) {
            assert_int_equal(bl_session_create(&s, e), BL_OK);
            st = feed(e, s, prompt, N_PROMPT);
            bl_session_destroy(s);
        }
        if (st) {
            must_be(st, BL_EDEVICE, devices, nth);
            const char *once = strstr(bl_error(), "sim0");
            assert_non_null(once);
            if (strstr(once + 1, "sim0"))
                fail_msg("%s: %s", devices, bl_error());
            n_lost++;
        }
        bl_close(e);
        if (!st)
            break;
    }
    assert_true(n_lost > 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(on_the_host),
        cmocka_unit_test(long_steps_are_asked_between_units),
        cmocka_unit_test(on_simulated_devices),
        cmocka_unit_test(on_vulkan),
        cmocka_unit_test(while_experts_are_sent),
        cmocka_unit_test(slow_devices_are_not_waited_for),
        cmocka_unit_test(stuck_loading_is_noticed),
        cmocka_unit_test(stuck_in_a_step_is_told_clearly),
        cmocka_unit_test(logs_outlive_failed_steps),
        cmocka_unit_test(a_lost_device_is_named_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

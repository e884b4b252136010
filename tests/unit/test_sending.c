/* SPDX-License-Identifier: MIT */
/* Experts sent to cards for one step: results, memory, order, bytes, faults. */
#include "engine_rig.h"

#include "native.h"
#include "program.h"
#include "sending.h"
#include "vulkan_rig.h"

static const char *const models[] = {"mixtral-f32",  "gpt-oss-mxfp4",    "deepseek4-f32",
                                     "qwen3moe-iq3", "ernie4_5-moe-f32", "qwen3next-f32"};

static const char *path_of(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, MODELS "%s.gguf", name);
    return path;
}

/* ---- results ---- */

static void same_as(struct bl_engine *one, struct bl_engine *e, const char *name, uint64_t *seed)
{
    struct bl_session *want, *got;
    const uint64_t from = *seed;

    assert_int_equal(bl_session_create(&want, one), BL_OK);
    assert_int_equal(bl_session_create(&got, e), BL_OK);
    for (uint32_t round = 0; round < 3; round++)
        for (uint32_t i = 0, n; i < N_PROMPT; i += n) {
            n = 1 + divide_pick(seed, N_PROMPT - i);
            assert_int_equal(feed(one, want, &prompt[i], n), BL_OK);
            if (feed(e, got, &prompt[i], n))
                fail_msg("%s, seed %llu: %s", name, (unsigned long long)from, bl_error());
            const double err = nmse(bl_logits(e, n - 1), bl_logits(one, n - 1), //
                                    bl_engine_n_vocab(e));
            if (!(err < 1e-9))
                fail_msg("%s, seed %llu, token %u of %u: NMSE %.2e", name, (unsigned long long)from,
                         round * N_PROMPT + i, n, err);
        }
    bl_session_destroy(want);
    bl_session_destroy(got);
}

static void sent_experts_are_as_one_device(void **state)
{
    (void)state;
    uint64_t seed = 3, sent = 0, used = 0, wasted = 0;

    for (uint32_t i = 0; i < 6 * BL_COUNT(models); i++) {
        const char *name = models[i % BL_COUNT(models)];
        struct bl_options opt = small();
        opt.no_mmap = i & 1;
        struct bl_engine *one = opened(name, &opt), *e;
        if (streamed_open(&e, path_of(name), &opt, 2 + i / BL_COUNT(models) % 3, &seed))
            fail_msg("%s: %s", name, bl_error());
        memory_is_as_planned(e);
        e->stage.sure_tokens = i & 2 ? BL_SURE_TOKENS : 0.5; /* the latter is wrong at times */
        same_as(one, e, name, &seed);
        memory_is_as_planned(e);
        sent += e->stage.sent_bytes;
        used += e->stage.used_bytes;
        wasted += e->stage.wasted_bytes;
        bl_close(one);
        bl_close(e);
    }
    print_message("sent %llu bytes, of use %llu, not %llu\n", (unsigned long long)sent,
                  (unsigned long long)used, (unsigned long long)wasted);
    assert_true(used > 1000000 && wasted > 0);
}

/* ---- programs ---- */

static void programs_are_in_order(void **state)
{
    (void)state;
    uint64_t seed = 5;
    uint32_t n_chunks = 0;

    for (uint32_t k = 0; k < 40; k++) {
        struct bl_options opt = small();
        struct bl_engine_parts p = {0};
        assert_int_equal(
            streamed_parts(&p, path_of(models[k % BL_COUNT(models)]), &opt, 2 + k % 3, &seed),
            BL_OK);
        for (uint32_t n_tok = 1; n_tok <= 16; n_tok += 15) {
            struct bl_program prog;
            const struct bl_shape s = bl_plan_bucket(&p.plan, n_tok, 1);
            assert_int_equal(bl_program_lower(&prog, p.model, &p.plan, &p.machine, &s), BL_OK);
            if (bl_program_verify(&prog))
                fail_msg("plan %u: %s", k, bl_error());
            if (n_tok < p.plan.stream_from)
                assert_int_equal(prog.n_chunks, 0);
            n_chunks += prog.n_chunks;
            bl_program_finish(&prog);
        }
        bl_engine_parts_finish(&p);
    }
    assert_true(n_chunks > 500);
}

/* ---- simulated and Vulkan cards ---- */

static enum bl_status speak(struct bl_engine *e, const float **logits)
{
    struct bl_session *s;
    enum bl_status st = bl_session_create(&s, e);

    for (uint32_t i = 0; !st && i < N_PROMPT; i += 8)
        st = feed(e, s, &prompt[i], 8);
    if (!st)
        *logits = bl_logits(e, 7);
    bl_session_destroy(s);
    return st;
}

static void simulated_cards_are_as_one_device(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 8; seed++) {
        struct bl_options opt = small();
        struct bl_engine *one = opened("mixtral-f32", &opt), *e;
        const float *want, *got;
        uint64_t s = seed;
        opt.devices = seed & 1 ? "sim0,sim1" : "sim0,sim1,sim2";
        opt.no_mmap = seed & 2;
        if (streamed_over(&e, path_of("mixtral-f32"), &opt, &s))
            fail_msg("seed %llu: %s", (unsigned long long)seed, bl_error());
        assert_int_equal(speak(one, &want), BL_OK);
        if (speak(e, &got))
            fail_msg("seed %llu: %s", (unsigned long long)seed, bl_error());
        assert_true(nmse(got, want, bl_engine_n_vocab(e)) < 1e-9);
        memory_is_as_planned(e);
        bl_close(one);
        bl_close(e);
    }
}

static void vulkan_cards_are_as_one_device(void **state)
{
    (void)state;
    uint64_t seed = 2, sent = 0;

    if (!vulkan_here())
        return;
    for (uint32_t i = 0; i < 8; i++) {
        const char *name = models[i % BL_COUNT(models)];
        struct bl_options opt = small();
        opt.no_mmap = i & 1;
        struct bl_engine *one = opened(name, &opt), *e;
        const float *want, *got;
        if (vulkan_open(&e, path_of(name), &opt, 1 + i % 2, sent_at_random, &seed))
            fail_msg("%s: %s", name, bl_error());
        memory_is_as_planned(e);
        assert_int_equal(speak(one, &want), BL_OK);
        if (speak(e, &got))
            fail_msg("%s: %s", name, bl_error());
        const double err = nmse(got, want, bl_engine_n_vocab(e));
        if (!(err < 1e-9))
            fail_msg("%s: NMSE %.2e", name, err);
        sent += e->stage.used_bytes;
        bl_close(one);
        bl_close(e);
    }
    assert_true(sent > 0);
}

/* ---- quantised arithmetic ---- */

static struct bl_options native(void)
{
    struct bl_options opt = small();

    opt.exact = false;
    opt.type_k = opt.type_v = "f16";
    return opt;
}

/* In steps of 8 and of 1 tokens, of which the latter send nothing. */
static void is_near(const char *name, struct bl_engine *e)
{
    const struct bl_options opt = small();
    struct bl_engine *one = opened(name, &opt);

    for (uint32_t n_each = 1; n_each <= 8; n_each += 7) {
        float *want = prompt_logits(one, n_each), *got = prompt_logits(e, n_each);
        if (!want || !got)
            fail_msg("%s: %s", name, bl_error());
        near_enough(name, got, want, bl_engine_n_vocab(e));
        free(want);
        free(got);
    }
    assert_true(e->stage.used_bytes > 0);
    memory_is_as_planned(e);
    bl_close(one);
}

static enum bl_status always_sent(struct bl_plan *p, const struct bl_model *m, uint32_t n_devices,
                                  void *arg)
{
    (void)n_devices;
    p->stream_from = 2;
    p->chunk_bytes = divide_pick(arg, 2);
    for (uint32_t l = 0; l < p->n_layers; l++)
        for (uint32_t part = 0; part < BL_N_PARTS; part++)
            p->slot[l * BL_N_PARTS + part] = !(part == BL_PART_EXPERTS && m->layer[l].moe);
    return BL_OK;
}

static void sent_natively_is_near(void **state)
{
    const struct bl_options opt = native();
    const bool vulkan = vulkan_here();
    uint64_t seed = 6;
    (void)state;

    for (uint32_t i = 0; i < BL_COUNT(native_models); i++) {
        struct bl_engine *e;
        struct bl_engine_parts p = {0};
        enum bl_status st = divide_parts(&p, path_of(native_models[i]), &opt, 2, &seed);
        p.plan.n_ranges = 0;
        if (!st)
            st = always_sent(&p.plan, p.model, 2, &seed);
        if (!st && !p.device[1])
            st = p.machine.device[1].backend->open(0, &p.machine.device[1].config, &p.device[1]);
        if (parts_open(&e, &p, &opt, st))
            fail_msg("%s: %s", native_models[i], bl_error());
        is_near(native_models[i], e);
        bl_close(e);
        if (!vulkan)
            continue;
        if (vulkan_open(&e, path_of(native_models[i]), &opt, 1, always_sent, &seed))
            fail_msg("%s: %s", native_models[i], bl_error());
        is_near(native_models[i], e);
        bl_close(e);
    }
}

/* ---- what goes wrong ---- */

/* A plan that sends to the card. */
static uint64_t seed_that_sends(void)
{
    for (uint64_t seed = 1;; seed++) {
        struct bl_options opt = small();
        struct bl_engine *e;
        const float *logits;
        uint64_t s = seed;
        opt.devices = "sim0";
        if (streamed_over(&e, path_of("mixtral-f32"), &opt, &s) || speak(e, &logits))
            fail_msg("%s", bl_error());
        const bool sends = e->stage.sent_bytes > 0;
        bl_close(e);
        if (sends)
            return seed;
    }
}

/* Of each kind the n-th for a growing n, until there are no more: told, and nothing hangs or is
 * left behind. */
static void every_fault_is_told(void **state)
{
    (void)state;
    static const char *const kinds[] = {"alloc", "copy", "submit", "lost"};
    const uint64_t sends = seed_that_sends();

    for (size_t k = 0; k < BL_COUNT(kinds); k++) {
        enum bl_status st = BL_EDEVICE;
        uint32_t n_told = 0;
        for (uint32_t n = 1; st && n < 4000; n += 1 + n / 4) {
            struct bl_options opt = small();
            struct bl_engine *e = NULL;
            const float *logits;
            char devices[64];
            uint64_t seed = sends;
            snprintf(devices, sizeof devices, "sim0+%s=%u", kinds[k], n);
            opt.devices = devices;
            st = streamed_over(&e, path_of("mixtral-f32"), &opt, &seed);
            if (!st)
                st = speak(e, &logits);
            if (st) {
                n_told++;
                assert_true(strlen(bl_error()) > 0);
            } else
                assert_true(e->stage.sent_bytes > 0);
            bl_close(e);
        }
        print_message("  %s: %u faults\n", kinds[k], n_told);
        assert_int_equal(st, BL_OK);
        assert_true(n_told > 2);
    }
}

/* Everything on the first card but the experts, which are on the second. */
static enum bl_status experts_apart(struct bl_engine_parts *p, uint64_t *seed)
{
    (void)seed;
    for (uint32_t l = 0; l <= p->plan.n_layers; l++)
        for (unsigned part = 0; part < BL_N_PARTS; part++)
            p->plan.slot[l * BL_N_PARTS + part] = part == BL_PART_EXPERTS ? 2 : 1;
    return bl_plan_check(&p->plan, p->model, &p->machine);
}

/* Steps of several sizes: what one left lies where another has its choices. */
static enum bl_status speak_unevenly(struct bl_engine *e)
{
    struct bl_session *s;
    enum bl_status st = bl_session_create(&s, e);

    for (uint32_t i = 0, n = 3; !st && i + n <= N_PROMPT; i += n, n = 4 - n)
        st = feed(e, s, &prompt[i], n);
    bl_session_destroy(s);
    return st;
}

/* Who chooses experts fails while the card that has them has all its work already: what it finds
 * in place of their numbers must not lead it astray. */
static void who_chooses_fails(void **state)
{
    (void)state;
    static const char *const kinds[] = {"copy", "lost"};
    uint32_t n_told = 0;

    if (!vulkan_here())
        skip();
    for (size_t k = 0; k < BL_COUNT(kinds); k++) {
        for (uint32_t n = 20; n < 120; n += 10) {
            struct bl_options opt = small();
            struct bl_engine *e = NULL;
            char devices[64];
            snprintf(devices, sizeof devices, "sim0:64MiB@8GB/s+%s=%u,vulkan0", kinds[k], n);
            opt.devices = devices;
            enum bl_status st = laid_over(&e, path_of("glm4moe-f32"), &opt, experts_apart, NULL);
            if (!st)
                st = speak_unevenly(e);
            n_told += st == BL_EDEVICE;
            bl_close(e);
        }
    }
    print_message("%u faults\n", n_told);
    assert_true(n_told >= 5);
}

/* A card that stops is named with where it is, also beside what it computes. */
static void stuck_cards_are_named(void **state)
{
    (void)state;
    const uint64_t sends = seed_that_sends();
    bool beside = false;

    for (uint32_t n = 60; n < 110; n += 7) {
        struct bl_options opt = small();
        struct bl_engine *e = NULL;
        const float *logits;
        char devices[64];
        uint64_t seed = sends;
        snprintf(devices, sizeof devices, "sim0+stuck=%u", n);
        opt.devices = devices;
        opt.watchdog_s = 1;
        enum bl_status st = streamed_over(&e, path_of("mixtral-f32"), &opt, &seed);
        if (!st)
            st = speak(e, &logits);
        assert_true(st != BL_OK);
        beside |= strstr(bl_error(), "of experts of layer") != NULL;
        bl_close(e);
    }
    assert_true(beside);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sent_experts_are_as_one_device),
        cmocka_unit_test(programs_are_in_order),
        cmocka_unit_test(simulated_cards_are_as_one_device),
        cmocka_unit_test(vulkan_cards_are_as_one_device),
        cmocka_unit_test(sent_natively_is_near),
        cmocka_unit_test(every_fault_is_told),
        cmocka_unit_test(who_chooses_fails),
        cmocka_unit_test(stuck_cards_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: MIT */
/* Models on cards of CUDA and HIP against the same on the CPU, in float: one card, several, of both
 * kinds; natively as near to it as the recorded reference's.
 *
 *     test_simt_models LIBRARY|cuda|hip... [--one-of N]
 *                          emulated drivers, or those of this machine; one model of N */
#include "native.h"

#include "cards_rig.h"

static uint32_t n_apart; /* models that are not as on the CPU */

static void compare(const char *name, uint32_t n, place_fn *place, void *arg)
{
    const struct bl_options opt = small();
    struct bl_engine *one = opened(name, &opt);

    fresh_cards();
    struct bl_engine *e = on_cards(name, &opt, n, place, arg);
    memory_is_as_planned(e);
    float *want = last_logits(one), *got = last_logits(e);
    const double err = nmse(got, want, bl_engine_n_vocab(e));
    const bool apart = !(err < 1e-9);
    n_apart += apart;
    printf("%-20s %u card%s NMSE %.2e%s\n", name, n, n == 1 ? " " : "s", err,
           apart ? ", which is too much" : "");
    assert_int_equal(cards_counts().pageable_copies, 0);
    free(want);
    free(got);
    bl_close(one);
    bl_close(e);
    fresh_cards();
}

static void compare_on_one(const char *name)
{
    if (!cards_leave_out())
        compare(name, 1, all_on_first, NULL);
}

static void models_are_as_on_the_cpu(void **state)
{
    (void)state;
    n_apart = 0;
    each_model(compare_on_one);
    assert_int_equal(n_apart, 0);
}

/* Prompts in pieces that are many tokens. */
static void natively_they_are_near(void **state)
{
    enum { N_EACH = 12 };
    const struct bl_options exact = small();
    struct bl_options native = exact;
    (void)state;
    native.exact = false;
    for (uint32_t i = 0; i < BL_COUNT(native_models); i++) {
        if (cards_leave_out())
            continue;
        struct bl_engine *one = opened(native_models[i], &exact);
        fresh_cards();
        struct bl_engine *e = on_cards(native_models[i], &native, 1, all_on_first, NULL);
        float *want = prompt_logits(one, N_EACH), *got = prompt_logits(e, N_EACH);
        assert_non_null(want);
        assert_non_null(got);
        near_enough(native_models[i], got, want, bl_engine_n_vocab(e));
        free(want);
        free(got);
        bl_close(one);
        bl_close(e);
    }
    fresh_cards();
}

static void any_plan_is_as_on_the_cpu(void **state)
{
    static const char *const models[] = {"mixtral-f32",  "gpt-oss-mxfp4",    "deepseek4-f32",
                                         "qwen3moe-iq3", "ernie4_5-moe-f32", "qwen3next-f32"};
    uint64_t seed = 11;
    (void)state;
    n_apart = 0;
    for (uint32_t i = 0; i < BL_COUNT(models); i++) {
        const uint32_t n = 2 + i % 2, most = n_cards * n_faces;
        if (cards_leave_out())
            continue;
        printf("seed %llu: ", (unsigned long long)seed);
        compare(models[i], n < most ? n : most, divide_at_random, &seed);
    }
    assert_int_equal(n_apart, 0);
}

static uint32_t n_layers_of(const struct bl_engine *e)
{
    return e->parts.model->hp.n_layer;
}

/* Steps of one token: what the driver is asked for. most: launches for each layer, mean over them;
 * outside: for the embedding, the angles and the head. */
static void count_step_of(const char *name, const struct bl_options *opt, uint32_t most,
                          uint32_t outside)
{
    struct bl_session *s;
    struct emu_counts before, after;

    fresh_cards();
    struct bl_engine *e = on_cards(name, opt, 1, all_on_first, NULL);
    ok(bl_session_create(&s, e));
    ok(feed(e, s, prompt, 4));
    ok(feed(e, s, prompt + 4, 1)); /* makes the program */
    face[0].read(&before);
    ok(feed(e, s, prompt + 5, 1));
    face[0].read(&after);
    const uint32_t launches = after.launches - before.launches, layers = n_layers_of(e);
    printf("%-20s a step of one token: %u launches for %u layers, %u replays, %u copies\n", name,
           launches, layers, after.graph_launches - before.graph_launches,
           after.copies - before.copies);
    assert_int_equal(after.graph_launches - before.graph_launches, 1);
    assert_int_equal(after.copies - before.copies, 2);
    if (launches > most * layers + outside)
        fail_msg("%s: more than %u launches for each layer and %u for the rest", name, most,
                 outside);
    bl_session_destroy(s);
    bl_close(e);
    fresh_cards();
}

static void count_step(const char *name, uint32_t most, uint32_t outside)
{
    const struct bl_options opt = small();
    if (!cards_leave_out())
        count_step_of(name, &opt, most, outside);
}

static void a_step_is_one_replay(void **state)
{
    struct bl_options rounded = small();
    (void)state;
    if (face[0].is_real)
        skip(); /* it does not tell what it was asked for */
    rounded.round_kv = rounded.round_index = true;
    count_step("llama-f32", 8, 5);
    count_step("qwen3moe-iq3", 12, 5);
    count_step("gpt-oss-mxfp4", 13, 5);
    count_step("qwen3next-f32", 22, 5);
    count_step("deepseek4-f32", 25, 14);
    count_step_of("deepseek4-f32", &rounded, 25, 14);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_is_one_replay), cmocka_unit_test(any_plan_is_as_on_the_cpu),
        cmocka_unit_test(natively_they_are_near), cmocka_unit_test(models_are_as_on_the_cpu)};

    if (!cards_load(argc, argv))
        return 2;
    /* of both kinds at once: plans only, the rest was seen with each */
    return n_faces > 1 ? cmocka_run_group_tests_name(
                             "mixed", ((const struct CMUnitTest[]){tests[1]}), NULL, NULL)
                       : cmocka_run_group_tests(tests, NULL, NULL);
}

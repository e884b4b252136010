/* SPDX-License-Identifier: MIT */
/* Emulated cards of CUDA and HIP with Vulkan devices and the CPU in one plan: in float the CPU's
 * results, natively as near to them as the recorded reference's. */
#include "cards_rig.h"
#include "native.h"
#include "vulkan_rig.h"

/* With something on each of the devices. */
static enum bl_status over_all(struct bl_plan *p, const struct bl_model *m, uint32_t n_devices,
                               void *arg)
{
    for (bool all = false; !all;) {
        p->n_ranges = 0;
        BL_TRY(divide_at_random(p, m, n_devices, arg));
        all = true;
        for (uint16_t d = 0; d < n_devices; d++)
            all = all && bl_plan_uses(p, d);
    }
    return BL_OK;
}

static void every_row_is_as(const char *name, struct bl_engine *e, struct bl_engine *one)
{
    const uint32_t n_vocab = bl_engine_n_vocab(e);
    float *want = prompt_logits(one, 7), *got = prompt_logits(e, 7);

    if (!want || !got)
        fail_msg("%s: %s", name, bl_error());
    const double err = nmse(got, want, N_PROMPT * n_vocab);
    printf("%-20s exact  NMSE %.2e\n", name, err);
    if (!(err < 1e-9))
        fail_msg("%s: NMSE %.2e", name, err);
    for (size_t i = 0; i < N_PROMPT; i++)
        assert_true(native_best(got + i * n_vocab, n_vocab) ==
                        native_best(want + i * n_vocab, n_vocab) ||
                    native_margin(want + i * n_vocab, n_vocab) < 0.01f);
    free(want);
    free(got);
}

static void compare_mixed(const char *name, uint32_t n, uint64_t *seed)
{
    const uint64_t from = *seed;
    struct bl_options opt = small();
    struct bl_engine *one = opened(name, &opt);
    float *want = prompt_logits(one, 7);

    printf("seed %llu: ", (unsigned long long)from);
    struct bl_engine *e = on_cards(name, &opt, n, over_all, seed);
    memory_is_as_planned(e);
    every_row_is_as(name, e, one);
    memory_is_as_planned(e);
    bl_close(e);
    fresh_cards();

    opt.exact = false;
    opt.type_k = opt.type_v = "f16";
    *seed = from;
    e = on_cards(name, &opt, n, over_all, seed);
    memory_is_as_planned(e);
    float *got = prompt_logits(e, 7);
    if (!want || !got)
        fail_msg("%s: %s", name, bl_error());
    near_enough(name, got, want, bl_engine_n_vocab(e));
    memory_is_as_planned(e);
    bl_close(e);
    assert_int_equal(cards_counts().pageable_copies, 0);
    fresh_cards();
    bl_close(one);
    free(want);
    free(got);
}

static void cards_of_all_kinds_are_as_the_cpu(void **state)
{
    uint64_t seed = 11;
    (void)state;

    fresh_cards();
    for (uint32_t i = 0; i < BL_COUNT(native_models); i++)
        if (!cards_leave_out())
            compare_mixed(native_models[i], n_faces + i % 2, &seed);
}

static void with_vulkan_too(void **state)
{
    uint64_t seed = 12;
    (void)state;

    if (!vulkan_here())
        skip();
    fresh_cards();
    last_card = vulkan_backend();
    for (uint32_t i = 0; i < BL_COUNT(native_models); i++)
        if (!cards_leave_out())
            compare_mixed(native_models[i], n_faces + 1, &seed);
    last_card = NULL;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(cards_of_all_kinds_are_as_the_cpu),
                                       cmocka_unit_test(with_vulkan_too)};

    return cards_load(argc, argv) ? cmocka_run_group_tests(tests, NULL, NULL) : 2;
}

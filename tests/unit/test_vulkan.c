/* SPDX-License-Identifier: MIT */
/* Models on Vulkan devices against the same on the CPU, in float. */
#include "engine_rig.h"

#include "divide.h"
#include "vulkan_rig.h"

#include <dirent.h>

static enum bl_status all_on_first(struct bl_plan *p, const struct bl_model *m, uint32_t n_devices,
                                   void *arg)
{
    (void)m, (void)n_devices, (void)arg;
    for (uint32_t i = 0; i < (p->n_layers + 1) * BL_N_PARTS; i++)
        p->slot[i] = 1;
    return BL_OK;
}

/* Layers and runs of experts anywhere, the first and last rows of the plan too. */
static enum bl_status at_random(struct bl_plan *p, const struct bl_model *m, uint32_t n_devices,
                                void *arg)
{
    uint64_t *seed = arg;
    p->slot[p->n_layers * BL_N_PARTS + BL_PART_EMBED] = (uint16_t)divide_pick(seed, n_devices);
    p->slot[p->n_layers * BL_N_PARTS + BL_PART_HEAD] = (uint16_t)divide_pick(seed, n_devices);
    return divide_plan(p, m, n_devices, seed);
}

static void compare(const char *name, uint32_t n, vulkan_place_fn *place, void *arg)
{
    const struct bl_options opt = small();
    struct bl_engine *one = opened(name, &opt), *e;
    char path[512];

    snprintf(path, sizeof path, MODELS "%s.gguf", name);
    if (vulkan_open(&e, path, &opt, n, place, arg))
        fail_msg("%s: %s", name, bl_error());
    memory_is_as_planned(e);
    float *want = last_logits(one), *got = last_logits(e);
    const double err = nmse(got, want, bl_engine_n_vocab(e));
    printf("%-20s %u device%s NMSE %.2e\n", name, n, n == 1 ? " " : "s", err);
    if (!(err < 1e-9))
        fail_msg("%s: NMSE %.2e", name, err);
    free(want);
    free(got);
    bl_close(one);
    bl_close(e);
}

static void models_are_as_on_the_cpu(void **state)
{
    DIR *dir = opendir(MODELS);
    char name[64];
    (void)state;
    assert_non_null(dir);
    for (const struct dirent *f; (f = readdir(dir));) {
        const char *dot = strstr(f->d_name, ".gguf");
        if (!dot)
            continue;
        snprintf(name, sizeof name, "%.*s", (int)(dot - f->d_name), f->d_name);
        compare(name, 1, all_on_first, NULL);
    }
    closedir(dir);
}

/* Two and three devices beside the CPU. */
static void any_plan_is_as_on_the_cpu(void **state)
{
    static const char *const models[] = {"mixtral-f32",  "gpt-oss-mxfp4",    "deepseek4-f32",
                                         "qwen3moe-iq3", "ernie4_5-moe-f32", "qwen3next-f32"};
    uint64_t seed = 7;
    (void)state;
    for (uint32_t i = 0; i < 2 * BL_COUNT(models); i++) {
        printf("seed %llu: ", (unsigned long long)seed);
        compare(models[i % BL_COUNT(models)], 2 + i / BL_COUNT(models), at_random, &seed);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(models_are_as_on_the_cpu),
                                       cmocka_unit_test(any_plan_is_as_on_the_cpu)};

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!vulkan_here())
        return 77;
    for (int i = 1; i < argc; i++)
        compare(argv[i], 1, all_on_first, NULL);
    if (argc > 1)
        return 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}

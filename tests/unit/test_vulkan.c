/* SPDX-License-Identifier: MIT */
/* Models on Vulkan devices against the same on the CPU, in float. */
#include "engine_rig.h"

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

static void compare(const char *name)
{
    const struct bl_options opt = small();
    struct bl_engine *one = opened(name, &opt), *e;
    char path[512];

    snprintf(path, sizeof path, MODELS "%s.gguf", name);
    if (vulkan_open(&e, path, &opt, 1, all_on_first, NULL))
        fail_msg("%s: %s", name, bl_error());
    float *want = last_logits(one), *got = last_logits(e);
    const double err = nmse(got, want, bl_engine_n_vocab(e));
    printf("%-20s NMSE %.2e\n", name, err);
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
        if (!dot || !strncmp(f->d_name, "type-iq", 7)) /* codebooks: one model has them */
            continue;
        snprintf(name, sizeof name, "%.*s", (int)(dot - f->d_name), f->d_name);
        compare(name);
    }
    closedir(dir);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(models_are_as_on_the_cpu)};

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!vulkan_here())
        return 77;
    for (int i = 1; i < argc; i++)
        compare(argv[i]);
    if (argc > 1)
        return 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}

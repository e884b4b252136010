/* SPDX-License-Identifier: MIT */
/* Models on Vulkan devices against the same on the CPU, in float. */
#include "engine_rig.h"

#include "divide.h"
#include "vulkan_rig.h"

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

static void compare_on_one(const char *name)
{
    compare(name, 1, all_on_first, NULL);
}

static void models_are_as_on_the_cpu(void **state)
{
    (void)state;
    each_model(compare_on_one);
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
        compare(models[i % BL_COUNT(models)], 2 + i / BL_COUNT(models), divide_at_random, &seed);
    }
}

static void good(enum bl_status st)
{
    if (st)
        fail_msg("%s", bl_error());
}

/* A block of the host so large that no driver takes it as one: what lies over the end of a window
 * comes whole, there and back. */
static void large_blocks_are_copied_by_windows(void **state)
{
    const size_t window = 256u << 20, bytes = 3 * window, n = 1u << 20, at = 2 * window - 12345;
    const struct bl_device_config config = {.threads = 1};
    struct bl_device *host, *dev;
    struct bl_stream *s;
    struct bl_mem far, near;
    struct bl_point end;

    (void)state;
    good(bl_backend_find("cpu")->open(0, &config, &host));
    good(vulkan_backend()->open(0, &config, &dev));
    good(host->ops->mem_alloc(host, bytes, true, &far)); /* most of it is never touched */
    good(dev->ops->mem_alloc(dev, n, false, &near));
    good(dev->ops->stream_open(dev, &s));
    unsigned char *from = (unsigned char *)far.host + at,
                  *to = (unsigned char *)far.host + window - n / 2;
    for (size_t i = 0; i < n; i++)
        from[i] = (unsigned char)(i * 2654435761u >> 13);
    good(dev->ops->copy(s, &near, 0, &far, at, n));
    good(dev->ops->copy(s, &far, window - n / 2, &near, 0, n));
    good(dev->ops->signal(s, &end));
    good(dev->ops->join(end, UINT64_MAX));
    assert_memory_equal(from, to, n);
    good(dev->ops->fill(s, &far, window - 8, 0x5a5a5a5a, 16));
    good(dev->ops->signal(s, &end));
    good(dev->ops->join(end, UINT64_MAX));
    for (size_t i = 0; i < n; i++)
        assert_int_equal(to[i], i >= n / 2 - 8 && i < n / 2 + 8 ? 0x5a : from[i]);
    dev->ops->stream_close(s);
    dev->ops->mem_free(&near);
    host->ops->mem_free(&far);
    dev->ops->close(dev);
    host->ops->close(host);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(models_are_as_on_the_cpu),
                                       cmocka_unit_test(any_plan_is_as_on_the_cpu),
                                       cmocka_unit_test(large_blocks_are_copied_by_windows)};

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!vulkan_here())
        return 77;
    for (int i = 1; i < argc; i++)
        compare(argv[i], 1, all_on_first, NULL);
    if (argc > 1)
        return 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}

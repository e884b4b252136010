/* SPDX-License-Identifier: MIT */
#include "support.h"

#include "planner.h"
#include "variables.h"

#include <stdlib.h>

static const char *const names[] = {"BALLAST_CUDA_KERNELS", "BALLAST_CUDA_LIBRARY",
                                    "BALLAST_HIP_KERNELS", "BALLAST_HIP_LIBRARY",
                                    "BALLAST_VULKAN_INT_DOT"};

static int unset_all(void **state)
{
    (void)state;
    for (size_t i = 0; i < BL_COUNT(names); i++)
        unsetenv(names[i]);
    return 0;
}

static void no_value_is_none(void **state)
{
    (void)state;
    assert_int_equal(bl_variables_check(), BL_OK);
    for (size_t i = 0; i < BL_COUNT(names); i++) {
        assert_null(bl_variable(names[i]));
        assert_int_equal(setenv(names[i], "", 1), 0);
        assert_null(bl_variable(names[i]));
    }
    assert_int_equal(bl_variables_check(), BL_OK);
}

static void values_are_checked(void **state)
{
    static const struct {
        const char *name, *value, *says; /* NULL: good */
    } cases[] = {
        {"BALLAST_VULKAN_INT_DOT", "0", NULL},
        {"BALLAST_VULKAN_INT_DOT", "1", NULL},
        {"BALLAST_VULKAN_INT_DOT", "zzz",
         "the variable BALLAST_VULKAN_INT_DOT is 'zzz'; it must be 0 or 1"},
        {"BALLAST_VULKAN_INT_DOT", "01", "it must be 0 or 1"},
        {"BALLAST_VULKAN_INT_DOT", "1\n", "it must be 0 or 1"},
        {"BALLAST_CUDA_LIBRARY", "libcuda.so.1", NULL}, /* the loader looks for it */
        {"BALLAST_CUDA_LIBRARY", "/nowhere/libcuda.so", "cannot be read: No such file"},
        {"BALLAST_HIP_LIBRARY", "./libamdhip64.so", "cannot be read: No such file"},
        {"BALLAST_HIP_LIBRARY", "/", NULL}, /* what the loader says of it comes when it is used */
        {"BALLAST_CUDA_KERNELS", "/", NULL},
        {"BALLAST_CUDA_KERNELS", "/nowhere", "it must be a folder with kernels"},
        {"BALLAST_HIP_KERNELS", "/dev/null", "it must be a folder with kernels"},
    };
    (void)state;

    for (size_t i = 0; i < BL_COUNT(cases); i++) {
        const enum bl_status want = cases[i].says ? BL_EINVAL : BL_OK;
        assert_int_equal(setenv(cases[i].name, cases[i].value, 1), 0);
        assert_string_equal(bl_variable(cases[i].name), cases[i].value);
        if (bl_variables_check() != want || (want && !strstr(bl_error(), cases[i].says)))
            fail_msg("%s=%s: %s", cases[i].name, cases[i].value, bl_error());
        unset_all(NULL);
    }
}

/* Before a device is looked for by what a variable says. */
static void machines_want_good_ones(void **state)
{
    const struct bl_options here = {.threads = 1}, there = {.machine_file = "turin-80"};
    struct bl_machine m;
    (void)state;

    assert_int_equal(setenv("BALLAST_VULKAN_INT_DOT", "yes", 1), 0);
    assert_int_equal(bl_machine_probe(&m, &here), BL_EINVAL);
    assert_int_equal(bl_machine_choose(&m, &there), BL_EINVAL);
    unset_all(NULL);
    assert_int_equal(bl_machine_probe(&m, &here), BL_OK);
    bl_machine_finish(&m);
    assert_int_equal(bl_machine_choose(&m, &there), BL_OK);
    bl_machine_finish(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(no_value_is_none, unset_all, unset_all),
        cmocka_unit_test_setup_teardown(values_are_checked, unset_all, unset_all),
        cmocka_unit_test_setup_teardown(machines_want_good_ones, unset_all, unset_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

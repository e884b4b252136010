/* SPDX-License-Identifier: MIT */
#include "support.h"

#include "alloc_fail.h"
#include "ledger.h"

static void test_names(void **state)
{
    static const char *const want[] = {"weights", "state",  "ring slack", "compute",
                                       "params",  "output", "host",       "driver",
                                       "staging", "draft",  "slots"};
    (void)state;
    assert_int_equal(BL_COUNT(want), BL_N_PURPOSES);
    for (unsigned i = 0; i < BL_N_PURPOSES; i++)
        assert_string_equal(bl_purpose_name((enum bl_purpose)i), want[i]);
}

static void test_sums(void **state)
{
    struct bl_ledger l = {0};
    (void)state;
    assert_int_equal(bl_ledger_planned(&l, 0), 0);
    assert_int_equal(bl_ledger_plan(&l, 0, BL_MEM_WEIGHTS, 100), BL_OK);
    assert_int_equal(bl_ledger_plan(&l, 0, BL_MEM_WEIGHTS, 11), BL_OK);
    assert_int_equal(bl_ledger_plan(&l, 0, BL_MEM_STATE, 7), BL_OK);
    assert_int_equal(bl_ledger_plan(&l, 3, BL_MEM_STATE, 1000), BL_OK);
    assert_int_equal(bl_ledger_count(&l, 3, BL_MEM_STATE, 900), BL_OK);
    assert_int_equal(bl_ledger_count(&l, 3, BL_MEM_STATE, -400), BL_OK);
    assert_int_equal(bl_ledger_count(&l, 3, BL_MEM_HOST, 1), BL_OK);
    assert_int_equal(bl_ledger_planned(&l, 0), 118);
    assert_int_equal(bl_ledger_planned(&l, 1), 0);
    assert_int_equal(bl_ledger_planned(&l, 3), 1000);
    assert_int_equal(l.n, 4);
    assert_int_equal(l.line[0].planned_bytes, 111);
    assert_int_equal(l.line[0].measured_bytes, 0);
    assert_int_equal(l.line[2].device, 3);
    assert_int_equal(l.line[2].purpose, BL_MEM_STATE);
    assert_int_equal(l.line[2].measured_bytes, 500);
    assert_int_equal(l.line[3].planned_bytes, 0);
    assert_int_equal(l.line[3].measured_bytes, 1);
    bl_ledger_finish(&l);
    assert_int_equal(l.n, 0);
    bl_ledger_finish(&l);
}

static void test_overflow(void **state)
{
    struct bl_ledger l = {0};
    (void)state;
    assert_int_equal(bl_ledger_plan(&l, 0, BL_MEM_WEIGHTS, UINT64_MAX), BL_OK);
    assert_int_equal(bl_ledger_plan(&l, 0, BL_MEM_WEIGHTS, 1), BL_ENOMEM);
    assert_non_null(strstr(bl_error(), "weights"));
    assert_int_equal(l.line[0].planned_bytes, UINT64_MAX);
    assert_int_equal(bl_ledger_plan(&l, 0, BL_MEM_STATE, 1), BL_OK);
    assert_int_equal(bl_ledger_planned(&l, 0), UINT64_MAX); /* saturates */
    bl_ledger_finish(&l);
}

static void test_out_of_memory(void **state)
{
    struct bl_ledger l = {0};
    uint32_t failed = 0;
    (void)state;
    for (uint16_t device = 0; device < 20; device++)
        for (unsigned p = 0; p < BL_N_PURPOSES; p++) {
            alloc_fail_at(1);
            if (bl_ledger_plan(&l, device, (enum bl_purpose)p, 1)) {
                assert_true(alloc_fail_stop());
                assert_int_equal(bl_ledger_planned(&l, device), p);
                assert_int_equal(bl_ledger_count(&l, device, (enum bl_purpose)p, 1), BL_OK);
                assert_int_equal(bl_ledger_plan(&l, device, (enum bl_purpose)p, 1), BL_OK);
                failed++;
            }
            alloc_fail_stop();
        }
    assert_int_equal(l.n, 20 * BL_N_PURPOSES);
    assert_true(failed > 2 && failed < 12); /* growth is geometric */
    bl_ledger_finish(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_names), cmocka_unit_test(test_sums),
                                       cmocka_unit_test(test_overflow),
                                       cmocka_unit_test(test_out_of_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

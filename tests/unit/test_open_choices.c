/* SPDX-License-Identifier: MIT */
/* What a command line may leave open: a context as long as fits, a type of cache. */
#include "support.h"

#include "cache_type.h"
#include "planner.h"

struct limit {
    uint64_t most;
    unsigned asked, fail_at;
};

static enum bl_status fits_up_to(void *arg, uint64_t ctx, bool *fits)
{
    struct limit *l = arg;

    if (++l->asked == l->fail_at)
        return bl_fail(BL_ENOMEM, "no more");
    *fits = ctx <= l->most;
    return BL_OK;
}

static uint64_t longest(uint64_t most, uint64_t limit)
{
    struct limit l = {.most = limit};
    uint64_t ctx = 1;

    assert_int_equal(bl_longest_ctx(most, fits_up_to, &l, &ctx), BL_OK);
    assert_true(l.asked <= 33);
    return ctx;
}

static void longest_is_all_or_a_multiple(void **state)
{
    (void)state;
    assert_int_equal(longest(40960, 40960), 40960);
    assert_int_equal(longest(40960, 1 << 30), 40960);
    assert_int_equal(longest(40961, 40960), 40960);
    assert_int_equal(longest(1000, 1000), 1000); /* all of it need not be a multiple */
    assert_int_equal(longest(1000, 999), 768);
    assert_int_equal(longest(131072, 70000), 69888);
    assert_int_equal(longest(131072, 256), 256);
    assert_int_equal(longest(131072, 255), 0);
    assert_int_equal(longest(100, 99), 0);
    assert_int_equal(longest(1 << 30, 123456789), 123456768);
}

static void longest_passes_failures_on(void **state)
{
    (void)state;
    for (unsigned at = 1; at < 5; at++) {
        struct limit l = {.most = 5000, .fail_at = at};
        uint64_t ctx = 7;
        assert_int_equal(bl_longest_ctx(131072, fits_up_to, &l, &ctx), BL_ENOMEM);
        assert_int_equal(ctx, 7);
    }
}

static void smaller_types_must_earn_it(void **state)
{
    const struct bl_cache_outcome full = {true, 32768, 10}, none = {false, 0, 0},
                                  slow = {true, 32768, 11.1}, slower = {true, 32768, 10.9},
                                  unknown = {true, 32768, 0}, two_thirds = {true, 22000, 10},
                                  nearly = {true, 30000, 10};
    (void)state;
    assert_int_equal(bl_cache_compare(&full, &none, 32768, true), BL_CACHE_KEEP);
    assert_int_equal(bl_cache_compare(&none, &none, 32768, true), BL_CACHE_KEEP);
    assert_int_equal(bl_cache_compare(&none, &full, 32768, true), BL_CACHE_ROOM);
    assert_int_equal(bl_cache_compare(&none, &full, 32768, false), BL_CACHE_ROOM);
    assert_int_equal(bl_cache_compare(&slow, &full, 32768, true), BL_CACHE_SPEED);
    assert_int_equal(bl_cache_compare(&slow, &full, 32768, false), BL_CACHE_KEEP);
    assert_int_equal(bl_cache_compare(&slower, &full, 32768, true), BL_CACHE_KEEP);
    assert_int_equal(bl_cache_compare(&unknown, &full, 32768, true), BL_CACHE_KEEP);
    assert_int_equal(bl_cache_compare(&full, &unknown, 32768, true), BL_CACHE_KEEP);
    /* what was asked for, in full; the longest, if that is much longer */
    assert_int_equal(bl_cache_compare(&nearly, &full, 32768, true), BL_CACHE_CONTEXT);
    assert_int_equal(bl_cache_compare(&nearly, &full, 0, true), BL_CACHE_KEEP);
    assert_int_equal(bl_cache_compare(&two_thirds, &full, 0, true), BL_CACHE_CONTEXT);
    assert_int_equal(bl_cache_compare(&two_thirds, &full, 0, false), BL_CACHE_KEEP);
    assert_int_equal(bl_cache_compare(&full, &two_thirds, 0, true), BL_CACHE_KEEP);
}

static void only_the_word_leaves_it_open(void **state)
{
    (void)state;
    assert_false(bl_cache_is_auto(&(struct bl_options){0}));
    assert_false(bl_cache_is_auto(&(struct bl_options){.type_k = "f16", .type_v = "autos"}));
    assert_true(bl_cache_is_auto(&(struct bl_options){.type_k = "auto"}));
    assert_true(bl_cache_is_auto(&(struct bl_options){.type_k = "f16", .type_v = "auto"}));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(longest_is_all_or_a_multiple),
        cmocka_unit_test(longest_passes_failures_on),
        cmocka_unit_test(smaller_types_must_earn_it),
        cmocka_unit_test(only_the_word_leaves_it_open),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

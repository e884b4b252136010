/* SPDX-License-Identifier: MIT */
/* How often the threads of a CPU device meet for one token, in whole models whose values take turns
 * in memory. What is for one thread is done by the last to come to a meeting, while the others wait
 * there (in brackets here). A layer of attention and experts:
 *
 *     (norm, quantise) q k v (heads' norms, rotate, store) attention (quantise) output
 *     (add, norm, quantise) router (route, sort) gate up | quantise | down (sum, add)
 *
 * A gated delta net has its products, convolution, rule and gate in place of the first six. Shared
 * experts add their products, gate and product; rows of groups and the choice among them two each.
 * A number here may fall; one that rises is time for every layer of every token. */
#include "engine_rig.h"

static uint64_t meetings_of_a_token(const char *name)
{
    struct bl_options opt = small();
    struct bl_op_time t;
    struct bl_session *s;
    uint64_t sum = 0;
    opt.exact = false;
    struct bl_engine *e = opened(name, &opt);
    assert_int_equal(bl_session_create(&s, e), BL_OK);
    assert_int_equal(feed(e, s, prompt, N_PROMPT / 2), BL_OK);
    bl_engine_profile(e, true, true);
    assert_int_equal(feed(e, s, prompt + N_PROMPT / 2, 1), BL_OK);
    for (uint32_t i = 0; i < bl_engine_op_time(e, i, &t); i++)
        sum += t.barriers;
    bl_session_destroy(s);
    bl_close(e);
    return sum;
}

static void expect(const char *name, uint64_t want)
{
    const uint64_t n = meetings_of_a_token(name);
    if (n != want)
        fail_msg("%s: %llu meetings a token, not %llu", name, (unsigned long long)n,
                 (unsigned long long)want);
}

/* The head has one more. */
static void attention(void **state)
{
    (void)state;
    expect("llama-f32", 2 * 5 + 1);
}

static void attention_and_experts(void **state)
{
    (void)state;
    expect("qwen3moe-iq3", 7 + 1);
    expect("gpt-oss-mxfp4", 2 * 7 + 1);
}

/* Three layers of delta nets, one of attention, the head; a shared expert in each. */
static void delta_nets(void **state)
{
    (void)state;
    expect("qwen3next-f32", 36);
}

/* A layer of a window, two of groups of 4 with choice, two of groups of 128; angles of three kinds;
 * the head. */
static void streams_and_groups(void **state)
{
    (void)state;
    expect("deepseek4-f32", 78);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention),
        cmocka_unit_test(attention_and_experts),
        cmocka_unit_test(delta_nets),
        cmocka_unit_test(streams_and_groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

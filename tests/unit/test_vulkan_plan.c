/* SPDX-License-Identifier: MIT */
/* Plans for Vulkan are made alike by every build; where kernels are, they are those that plans
 * count on. */
#include "search_rig.h"

#include "backends.h"
#include "vulkan/vk_plan.h"
#ifdef BL_VULKAN
#include "vulkan/vk_ops.h"
#endif

static void every_build_plans_for_it(void **state)
{
    (void)state;
    const struct bl_backend *b = bl_backend_find("vulkan");
    const struct bl_device_config config = {.threads = 1};
    struct bl_caps caps;
    struct rig r;

    assert_non_null(b);
    assert_int_equal(b->caps(0, &config, &caps), BL_OK);
    assert_int_equal(caps.granule_bytes, BL_VK_GRANULE);
    open_rig(&r, "gpt-oss-120b", 4, 4096, "strix-halo-128");
    assert_ptr_equal(r.machine.device[1].backend, b);
    assert_int_equal(bl_search(&r.c, r.model, &r.machine, &r.opt, &r.so), BL_OK);
    assert_true(bl_plan_uses(&r.c.plan, 1));
    close_rig(&r);
}

/* Experts of many tokens: products and results of every pair; unless the plan is exact, what they
 * multiply as bytes too, and what other matrices do. */
static void count_scratch(bool exact)
{
    const struct bl_caps caps = {.exact = exact};
    struct bl_graph g;
    struct rig r;
    uint32_t n = 0;

    open_model(&r, "qwen3-30b-a3b", 2, 4096);
    r.opt.ubatch_tokens = 512;
    assert_int_equal(bl_plan_init(&r.c.plan, r.model), BL_OK);
    assert_int_equal(bl_plan_size_steps(&r.c.plan, r.model, &r.opt), BL_OK);
    const struct bl_shape s = bl_plan_bucket(&r.c.plan, 512, 1);
    bl_graph_init(&g);
    assert_int_equal(bl_model_build(r.model, &s, &g), BL_OK);
    for (uint32_t i = 0; i < g.n_nodes; i++) {
        const struct bl_node *node = &g.nodes[i];
        assert_true(bl_vk_supports(NULL, &g, node));
        const uint64_t bytes = bl_vk_scratch_bytes(&caps, &g, node);
        if (node->op == BL_OP_MATMUL &&
            bl_dtypes[g.vals[bl_node_src(&g, node, 0)].type].block_elems > 1)
            assert_true(bytes ==
                        (exact ? 0 : 11 * bl_value_bytes(&g.vals[bl_node_src(&g, node, 1)]) / 32));
        if (node->op != BL_OP_EXPERTS)
            continue;
        const uint64_t pairs = 512 * 8, least = pairs * (768 + 2048) * sizeof(float) +
                                                (exact ? 0 : pairs * 768 * 11 / 8);
        assert_true(bytes > least && (double)bytes < 1.01 * (double)least);
        n++;
    }
    assert_int_equal(n, 2);
    bl_graph_finish(&g);
    close_rig(&r);
}

static void scratch_is_counted(void **state)
{
    (void)state;
    count_scratch(true);
    count_scratch(false);
}

static void kernels_are_those_of_plans(void **state)
{
    (void)state;
#ifndef BL_VULKAN
    printf("  skipped: this build has no Vulkan\n");
    skip();
#else
    static const char *const decode[] = {"embed",   "matvec",      "matmul",
                                         "heads_t", "experts_dot", "experts_mul"};
    static const char *const by_bytes[] = {"matvec_bytes", "matmul_bytes", "experts_dot_bytes",
                                           "experts_mul_bytes"};
    const struct bl_caps native = {.exact = false};
    for (int t = 0; t < BL_N_DTYPES; t++) {
        for (size_t i = 0; i < BL_COUNT(by_bytes); i++)
            if ((bl_vk_kernel_find(by_bytes[i], t) < bl_vk_n_sources) !=
                bl_vk_meets_bytes(&native, (uint8_t)t))
                fail_msg("%s of %s: plans and kernels disagree", by_bytes[i], bl_dtypes[t].name);
        for (size_t i = 0; i < BL_COUNT(decode); i++)
            if ((bl_vk_kernel_find(decode[i], t) < bl_vk_n_sources) != bl_vk_decodes((uint8_t)t))
                fail_msg("%s of %s: plans and kernels disagree", decode[i], bl_dtypes[t].name);
        if ((bl_vk_kernel_find("kv_store", t) < bl_vk_n_sources) !=
            bl_dtype_can_cache((enum bl_dtype)t))
            fail_msg("kv_store of %s: plans and kernels disagree", bl_dtypes[t].name);
    }
    for (unsigned op = 0; op < BL_N_OPS; op++) /* no op is refused as a whole */
        if (!bl_vk_op_of(&(struct bl_node){.op = (uint8_t)op}))
            fail_msg("%s: plans count on it", bl_ops[op].name);
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_build_plans_for_it),
        cmocka_unit_test(scratch_is_counted),
        cmocka_unit_test(kernels_are_those_of_plans),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: MIT */
/* Placements by llama.cpp's options: what they mean, and what is wrong with them. */
#include "support.h"

#include "constraints.h"
#include "machine_file.h"

static struct bl_synth *synth;
static struct bl_model *model;
static struct bl_machine machine;
static struct bl_plan plan;

static void open_rig(const char *shape, uint32_t layers, uint64_t ctx, enum bl_dtype kv,
                     const char *rig)
{
    const struct bl_synth_options so = {.shape = shape, .layers = layers, .no_data = true};
    const struct bl_model_options mo = {
        .ctx_tokens = ctx, .type_k = (uint8_t)kv, .type_v = (uint8_t)kv};
    char path[512];

    snprintf(path, sizeof path, BL_TEST_MACHINES "/%s.json", rig);
    if (bl_synth_open(&synth, &so) || bl_model_open(&model, bl_synth_gguf(synth), &mo) ||
        bl_machine_load(&machine, path) || bl_plan_init(&plan, model))
        fail_msg("%s", bl_error());
}

static void close_rig(void)
{
    bl_plan_finish(&plan);
    bl_machine_finish(&machine);
    bl_model_close(model);
    bl_synth_close(synth);
}

static enum bl_status place(const struct bl_placement_rules *rules)
{
    memset(plan.slot, 0, (plan.n_layers + 1) * BL_N_PARTS * sizeof *plan.slot);
    return bl_constrain(&plan, model, &machine, rules);
}

static void placed(const struct bl_placement_rules *rules)
{
    if (place(rules))
        fail_msg("%s", bl_error());
}

static void refused(const struct bl_placement_rules *rules, enum bl_status st, const char *why)
{
    assert_int_equal(place(rules), st);
    if (!strstr(bl_error(), why))
        fail_msg("'%s' is not in: %s", why, bl_error());
}

static uint32_t count(unsigned part, uint16_t device)
{
    uint32_t n = 0;
    for (uint32_t l = 0; l < plan.n_layers; l++)
        n += bl_plan_device(&plan, (int)l, part) == device;
    return n;
}

#define OT(...)                                                                                    \
    .override = (const char *const[]){__VA_ARGS__},                                                \
    .n_overrides = BL_COUNT(((const char *[]){__VA_ARGS__}))

static void layers_by_share(void **state)
{
    (void)state;
    open_rig("gpt-oss-120b", 12, 4096, BL_F16, "4x-rtx-3060-ddr4-4ch");
    placed(&(struct bl_placement_rules){.n_gpu_layers = -1});
    for (uint16_t d = 1; d <= 4; d++)
        assert_in_range(count(BL_PART_ATTN, d), 2, 4); /* the head is the thirteenth */
    placed(&(struct bl_placement_rules){.n_gpu_layers = 0});
    assert_int_equal(count(BL_PART_ATTN, 0), 12);
    /* One: the head alone. */
    placed(&(struct bl_placement_rules){.n_gpu_layers = 1});
    assert_int_equal(count(BL_PART_ATTN, 0), 12);
    assert_true(bl_plan_device(&plan, -1, BL_PART_HEAD) != 0);
    placed(&(struct bl_placement_rules){.n_gpu_layers = 5, .tensor_split = "3,1"});
    assert_int_equal(count(BL_PART_ATTN, 0), 8);
    assert_int_equal(count(BL_PART_ATTN, 1), 3 + 1);
    assert_int_equal(bl_plan_device(&plan, -1, BL_PART_HEAD), 2);
    close_rig();
}

static void one_card_by_either_option(void **state)
{
    (void)state;
    uint16_t first[13 * BL_N_PARTS];
    open_rig("gpt-oss-120b", 12, 4096, BL_F16, "4x-rtx-3060-ddr4-4ch");
    placed(&(struct bl_placement_rules){.n_gpu_layers = -1, .split_mode = "none"});
    memcpy(first, plan.slot, sizeof first);
    placed(&(struct bl_placement_rules){.n_gpu_layers = -1, .tensor_split = "100,0,0"});
    assert_memory_equal(first, plan.slot, sizeof first);
    assert_int_equal(count(BL_PART_ATTN, 1), 12);
    placed(&(struct bl_placement_rules){.n_gpu_layers = -1, .split_mode = "none", .main_gpu = 2});
    assert_int_equal(count(BL_PART_ATTN, 3), 12);
    placed(&(struct bl_placement_rules){.n_gpu_layers = -1, .devices = "CUDA3"});
    assert_int_equal(count(BL_PART_ATTN, 4), 12);
    close_rig();
}

static void the_first_rule_wins(void **state)
{
    (void)state;
    open_rig("gpt-oss-120b", 12, 4096, BL_F16, "4x-rtx-3060-ddr4-4ch");
    placed(&(struct bl_placement_rules){
        .n_gpu_layers = -1, .tensor_split = "1", OT("blk\\.(1|2)\\.ffn_.*_exps=CUDA1,_exps=CPU")});
    assert_int_equal(count(BL_PART_EXPERTS, 2), 2);
    assert_int_equal(count(BL_PART_EXPERTS, 0), 10);
    assert_int_equal(count(BL_PART_ATTN, 1), 12);
    placed(&(struct bl_placement_rules){.n_gpu_layers = -1,
                                        .n_cpu_moe = 11}); /* by number, not by digits */
    assert_int_equal(count(BL_PART_EXPERTS, 0), 11);
    placed(&(struct bl_placement_rules){.n_gpu_layers = -1, .cpu_moe = true});
    assert_int_equal(count(BL_PART_EXPERTS, 0), 12);
    assert_int_equal(count(BL_PART_ATTN, 0), 0);
    close_rig();
}

/* Its first layer is dense: there is nothing to move, and the second is one of the first two. */
static void layers_without_experts_count(void **state)
{
    (void)state;
    open_rig("glm-4.5-air", 4, 4096, BL_F16, "4x-rtx-3060-ddr4-4ch");
    assert_true(!model->layer[0].moe && model->layer[1].moe);
    for (uint32_t n = 1; n <= 4; n++) {
        placed(&(struct bl_placement_rules){.n_gpu_layers = -1, .n_cpu_moe = n});
        assert_int_equal(count(BL_PART_ATTN, 0), 0);
        for (uint32_t l = 1; l < 4; l++)
            assert_true((bl_plan_device(&plan, (int)l, BL_PART_EXPERTS) == 0) == (l < n));
    }
    close_rig();
    open_rig("llama-3-8b", 4, 4096, BL_F16, "4x-rtx-3060-ddr4-4ch");
    refused(&(struct bl_placement_rules){.n_cpu_moe = 3}, BL_EINVAL, "-ncmoe 3: matches no tensor");
    close_rig();
    open_rig("llama-3-8b", 4, 4096, BL_F16, "turin-80");
    refused(&(struct bl_placement_rules){.split_mode = "none", .main_gpu = 1}, BL_EINVAL,
            "-mg 1: cards are counted from 0, and their number is 0");
    close_rig();
}

static void what_is_wrong_is_named(void **state)
{
    (void)state;
    open_rig("gpt-oss-120b", 12, 4096, BL_F16, "4x-rtx-3060-ddr4-4ch");
    refused(&(struct bl_placement_rules){OT("blk\\.99\\.=CPU")}, BL_EINVAL,
            "-ot blk\\.99\\.=CPU: matches no tensor");
    refused(&(struct bl_placement_rules){OT("exps=CPU,blk\\.1\\.ffn_up_exps=CUDA1")}, BL_EINVAL,
            "earlier rules took");
    refused(&(struct bl_placement_rules){OT("exps=CUDA4")}, BL_EINVAL, "'CUDA4' is no device");
    refused(&(struct bl_placement_rules){OT("(exps=CPU")}, BL_EINVAL, "no regular expression");
    refused(&(struct bl_placement_rules){OT("exps")}, BL_EINVAL, "must be PATTERN=DEVICE");
    refused(&(struct bl_placement_rules){OT("ffn_up_exps=CUDA1,ffn_gate_exps=CUDA2")}, BL_EINVAL,
            "placed whole");
    refused(&(struct bl_placement_rules){.cpu_moe = true, .n_cpu_moe = 3}, BL_EINVAL,
            "-cmoe and -ncmoe 3");
    refused(&(struct bl_placement_rules){.split_mode = "none", .tensor_split = "1,1"}, BL_EINVAL,
            "-sm none and -ts");
    refused(&(struct bl_placement_rules){.split_mode = "row"}, BL_EINVAL, "-sm row");
    refused(&(struct bl_placement_rules){.main_gpu = 1}, BL_EINVAL, "-mg 1");
    refused(&(struct bl_placement_rules){.split_mode = "none", .main_gpu = 4}, BL_EINVAL, "-mg 4");
    refused(&(struct bl_placement_rules){.tensor_split = "1,1,1,1,1"}, BL_EINVAL, "more shares");
    refused(&(struct bl_placement_rules){.tensor_split = "0,0"}, BL_EINVAL, "gives nothing");
    refused(&(struct bl_placement_rules){.tensor_split = "a"}, BL_EINVAL, "must be a share");
    refused(&(struct bl_placement_rules){.devices = "CUDA9"}, BL_EINVAL, "-dev");
    char late[310];
    snprintf(late, sizeof late, "CUDA0%300s", "CUDA9");
    for (char *at = late + 5; *at == ' '; at++)
        *at = ',';
    refused(&(struct bl_placement_rules){.devices = late}, BL_EINVAL, "'CUDA9' is no device");
    refused(&(struct bl_placement_rules){.n_gpu_layers = -1, OT("ffn_(up|gate)_exps=CPU")},
            BL_EINVAL, "leaves blk.0.ffn_down_exps.weight where it is");
    refused(&(struct bl_placement_rules){OT("ffn_up_exps=CUDA1,exps=CPU")}, BL_EINVAL,
            "-ot ffn_up_exps=CUDA1 and -ot exps=CPU contradict");
    refused(&(struct bl_placement_rules){OT("attn_sinks=CPU")}, BL_EINVAL,
            "stays with the cached state");
    refused(&(struct bl_placement_rules){.devices = "CUDA0,CUDA2", OT("exps=CUDA1")}, BL_EINVAL,
            "-dev CUDA0,CUDA2 contradict");
    close_rig();
}

/* KV and the attention over it, but not the projections; -ot moves those and leaves the cache. */
static void cached_state_may_be_apart(void **state)
{
    (void)state;
    open_rig("gpt-oss-120b", 12, 4096, BL_F16, "4x-rtx-3060-ddr4-4ch");
    placed(&(struct bl_placement_rules){.n_gpu_layers = -1, .no_kv_offload = true});
    assert_int_equal(count(BL_PART_STATE, 0), 12);
    assert_int_equal(count(BL_PART_ATTN, 0), 0);
    placed(&(struct bl_placement_rules){.n_gpu_layers = -1, OT("blk\\.3\\.attn=CPU")});
    assert_int_equal(count(BL_PART_ATTN, 0), 1);
    assert_int_equal(count(BL_PART_STATE, 0), 0);
    close_rig();
}

static struct bl_choice searched(const struct bl_placement_rules *rules)
{
    const struct bl_options opt = {.ctx_tokens = 4096};
    const struct bl_search_options so = {.prefill_weight = 0.3, .depth_tokens = 1024};
    struct bl_choice c = {0};

    if (bl_judge(&c, model, &machine, &opt, &so, rules))
        fail_msg("%s", bl_error());
    return c;
}

static bool says(const struct bl_choice *c, const char *text)
{
    for (uint32_t i = 0; i < c->n_reasons; i++)
        if (strstr(c->reason[i].text, text))
            return true;
    return false;
}

/* Rules fix what they name; the search does the rest, and does not become better by them. */
static void the_rest_is_searched(void **state)
{
    (void)state;
    open_rig("gpt-oss-120b", 0, 4096, BL_F16, "4x-rtx-3060-ddr4-4ch");
    struct bl_choice open = searched(
        &(struct bl_placement_rules){.n_gpu_layers = -1, .devices = "CUDA0,CUDA1,CUDA2,CUDA3"});
    struct bl_choice some =
        searched(&(struct bl_placement_rules){.n_gpu_layers = -1, .n_cpu_moe = 30});
    for (int l = 0; l < 36; l++)
        assert_true((bl_plan_device(&some.plan, l, BL_PART_EXPERTS) == 0) == (l < 30));
    for (int l = 0; l < 36; l++)
        assert_true(bl_plan_device(&some.plan, l, BL_PART_ATTN) > 0);
    assert_true(says(&some, "as -ncmoe 30 says"));
    assert_true(open.decode.tok_per_s >= some.decode.tok_per_s);
    bl_choice_finish(&some);

    some = searched(&(struct bl_placement_rules){.n_gpu_layers = -1, .devices = "CUDA2"});
    for (uint16_t d = 1; d <= 4; d++)
        assert_true(bl_plan_uses(&some.plan, d) == (d == 3));
    assert_true(says(&some, "gpu0 is not used: the rules leave it out"));
    bl_choice_finish(&some);

    some = searched(&(struct bl_placement_rules){.n_gpu_layers = -1, .no_kv_offload = true});
    for (int l = 0; l < 36; l++)
        assert_int_equal(bl_plan_device(&some.plan, l, BL_PART_STATE), 0);
    assert_true(bl_plan_uses(&some.plan, 1));
    assert_true(open.decode.tok_per_s > some.decode.tok_per_s);
    bl_choice_finish(&some);

    /* One that divides layers leaves nothing: the same with or without what it does by default. */
    const struct bl_placement_rules whole = {.n_gpu_layers = 99, .n_cpu_moe = 30};
    some = searched(&whole);
    placed(&whole);
    assert_memory_equal(plan.slot, some.plan.slot,
                        (plan.n_layers + 1) * BL_N_PARTS * sizeof *plan.slot);
    assert_true(some.by_rules);
    bl_choice_finish(&some);
    bl_choice_finish(&open);
    close_rig();
}

/* The published layout of a rig with four small cards, against a plan without any flag. */
static void a_published_layout_is_no_faster(void **state)
{
    (void)state;
    const struct bl_options opt = {
        .ctx_tokens = 368640, .batch_tokens = 2048, .ubatch_tokens = 2048};
    const struct bl_search_options so = {
        .prefill_weight = 0.3, .depth_tokens = 4096, .fixed_ubatch = true};
    const struct bl_placement_rules hand = {.n_gpu_layers = -1,
                                            .n_cpu_moe = 34,
                                            .tensor_split = "100,1,1,1",
                                            OT("blk.(3[4-6]).ffn_.*_exps=CUDA1,blk.(3[7-9]).ffn_.*_"
                                               "exps=CUDA2,blk.(4[0-2]).ffn_.*_exps=CUDA3")};
    struct bl_choice made, found;

    open_rig("deepseek-v4-flash", 0, 368640, BL_Q8_0, "4x-rtx-3060-ddr4-4ch");
    if (bl_judge(&made, model, &machine, &opt, &so, &hand) ||
        bl_search(&found, model, &machine, &opt, &so))
        fail_msg("%s", bl_error());
    printf("  by hand %.2f and %.1f tokens/s, found %.2f and %.1f\n", made.decode.tok_per_s,
           made.prefill.tok_per_s, found.decode.tok_per_s, found.prefill.tok_per_s);
    assert_true(found.decode.tok_per_s >= made.decode.tok_per_s);
    assert_true(found.prefill.tok_per_s >= 0.98 * made.prefill.tok_per_s);
    assert_true(
        bl_plan_score(1 / found.decode.tok_per_s, 1 / found.prefill.tok_per_s, so.prefill_weight) <=
        bl_plan_score(1 / made.decode.tok_per_s, 1 / made.prefill.tok_per_s, so.prefill_weight));
    bl_choice_finish(&made);
    bl_choice_finish(&found);
    /* What does not fit says where. */
    assert_int_equal(bl_judge(&made, model, &machine, &opt, &so,
                              &(struct bl_placement_rules){.n_gpu_layers = 99, .n_cpu_moe = 20}),
                     BL_ENOFIT);
    assert_non_null(strstr(bl_error(), "GiB on gpu"));
    assert_non_null(strstr(bl_error(), "short"));
    close_rig();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_by_share),        cmocka_unit_test(one_card_by_either_option),
        cmocka_unit_test(the_first_rule_wins),    cmocka_unit_test(layers_without_experts_count),
        cmocka_unit_test(what_is_wrong_is_named), cmocka_unit_test(cached_state_may_be_apart),
        cmocka_unit_test(the_rest_is_searched),   cmocka_unit_test(a_published_layout_is_no_faster),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

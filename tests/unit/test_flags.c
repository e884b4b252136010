/* SPDX-License-Identifier: MIT */
/* Placements as other programs' flags: read back by constraints.c they are the same placements. */
#include "support.h"

#include "ballast.h"

struct rig {
    struct bl_synth *synth;
    struct bl_options opt;
    struct bl_placement *placement;
};

static void open_rig(struct rig *r, const char *shape, const char *machine, uint64_t ctx,
                     const struct bl_placement_rules *rules)
{
    const struct bl_synth_options so = {.shape = shape, .no_data = true};
    const struct bl_placement_options po = {.prefill_weight = 0.3};

    *r = (struct rig){.opt = {.machine_file = machine, .rules = rules, .ctx_tokens = ctx}};
    if (bl_synth_open(&r->synth, &so) ||
        bl_placement_make(&r->placement, bl_synth_gguf(r->synth), &r->opt, &po))
        fail_msg("%s on %s: %s", shape, machine, bl_error());
}

static void close_rig(struct rig *r)
{
    bl_placement_close(r->placement);
    bl_synth_close(r->synth);
}

static const char *value_of(const struct bl_peer_flags *f, const char *flag)
{
    for (uint32_t i = 0; i + 1 < f->n_args; i++)
        if (!strcmp(f->arg[i], flag))
            return f->arg[i + 1];
    return NULL;
}

static struct bl_placement_rules rules_of(const struct bl_peer_flags *f, const char **override)
{
    struct bl_placement_rules r = {
        .n_gpu_layers = -1, .tensor_split = value_of(f, "-ts"), .devices = value_of(f, "-dev")};
    const char *ngl = value_of(f, "-ngl"), *ncmoe = value_of(f, "-ncmoe");

    if (ngl)
        r.n_gpu_layers = (int32_t)strtol(ngl, NULL, 10);
    if (ncmoe)
        r.n_cpu_moe = (uint32_t)strtoul(ncmoe, NULL, 10);
    for (uint32_t i = 0; i < f->n_args; i++)
        r.cpu_moe = r.cpu_moe || !strcmp(f->arg[i], "-cmoe");
    *override = value_of(f, "-ot");
    if (*override) {
        r.override = override;
        r.n_overrides = 1;
    }
    return r;
}

static void same_groups(const struct bl_placement *a, const struct bl_placement *b)
{
    struct bl_placement_group x, y;
    const uint32_t n = bl_placement_group(a, 0, &x);

    assert_int_equal(bl_placement_group(b, 0, &y), n);
    for (uint32_t i = 0; i < n; i++) {
        bl_placement_group(a, i, &x);
        bl_placement_group(b, i, &y);
        assert_int_equal(x.first, y.first);
        assert_int_equal(x.last, y.last);
        assert_string_equal(x.attention, y.attention);
        assert_int_equal(x.experts != NULL, y.experts != NULL);
        if (x.experts)
            assert_string_equal(x.experts, y.experts);
    }
}

/* Whatever constraints.c cannot follow is in the notes; here there must be nothing of that. */
static void comes_back(const struct rig *r, enum bl_peer peer)
{
    struct bl_peer_flags f = {0};
    struct bl_placement *back = NULL;
    struct bl_placement_info was;
    const char *override;

    if (bl_placement_flags(r->placement, peer, &f))
        fail_msg("%s", bl_error());
    for (uint32_t i = 0; i < f.n_notes; i++)
        if (strstr(f.note[i], " goes to "))
            fail_msg("%s", f.note[i]);
    bl_placement_describe(r->placement, &was);
    const struct bl_placement_rules rules = rules_of(&f, &override);
    const struct bl_placement_options po = {.prefill_weight = 0.3};
    struct bl_options opt = r->opt;
    opt.rules = &rules;
    opt.batch_tokens = (uint32_t)strtoul(value_of(&f, "-b"), NULL, 10);
    opt.ubatch_tokens = (uint32_t)strtoul(value_of(&f, "-ub"), NULL, 10);
    assert_int_equal(opt.ubatch_tokens, was.ubatch_tokens);
    assert_int_equal(strtoull(value_of(&f, "-c"), NULL, 10), was.ctx_tokens);
    if (bl_placement_make(&back, bl_synth_gguf(r->synth), &opt, &po))
        fail_msg("%s", bl_error());
    same_groups(r->placement, back);
    bl_placement_close(back);
    bl_peer_flags_finish(&f);
}

static void searched_placements_come_back(void **state)
{
    (void)state;
    static const struct {
        const char *shape, *machine;
        uint64_t ctx;
    } rigs[] = {{"gpt-oss-120b", "rtx-3090-ddr5-2ch", 32768},
                {"deepseek-v4-flash", "4x-rtx-3060-ddr4-4ch", 368640},
                {"glm-4.5-air", "2x-rtx-pro-4000", 65536},
                {"minimax-m2", "rtx-pro-5000-72-48", 65536},
                {"qwen3-235b-a22b", "4x-r9700-threadripper", 32768},
                {"gpt-oss-20b", "2x-rtx-pro-4000", 8192},
                {"qwen3-8b", "rtx-4090-ddr5-2ch", 8192}};

    for (size_t i = 0; i < sizeof rigs / sizeof rigs[0]; i++) {
        struct rig r;
        open_rig(&r, rigs[i].shape, rigs[i].machine, rigs[i].ctx, NULL);
        comes_back(&r, BL_PEER_LLAMACPP);
        comes_back(&r, BL_PEER_IK);
        close_rig(&r);
    }
}

/* Sets of layers that no range describes, cards out of order, a card in two places. */
static void scattered_placements_come_back(void **state)
{
    (void)state;
    static const char *const overrides[] = {
        "blk\\.(1|3|5|7|9|11|22|33|40|41|45)\\.ffn_.*_exps=CUDA1",
        "blk\\.([0-9]|1[0-9]|2[0-135-9]|3[0-24-9]|4[0-6])\\.ffn_.*_exps=CPU",
        "blk\\.(10|20|30|31)\\.=CUDA1",
        "blk\\.(4|14|24|34|44)\\.=CPU",
    };

    for (size_t n = 1; n <= sizeof overrides / sizeof overrides[0]; n++) {
        const struct bl_placement_rules rules = {.n_gpu_layers = 40,
                                                 .override = overrides,
                                                 .n_overrides = (uint32_t)n,
                                                 .devices = n & 1 ? "CUDA1,CUDA0" : NULL,
                                                 .tensor_split = "2,3"};
        struct rig r;
        open_rig(&r, "glm-4.5-air", "rtx-pro-5000-72-48", 4096, &rules);
        comes_back(&r, BL_PEER_LLAMACPP);
        comes_back(&r, BL_PEER_IK);
        close_rig(&r);
    }
}

static bool has(char *const *text, uint32_t n, const char *what)
{
    for (uint32_t i = 0; i < n; i++)
        if (strstr(text[i], what))
            return true;
    return false;
}

static void flags_are_short_where_they_can_be(void **state)
{
    (void)state;
    struct rig r;
    struct bl_peer_flags f = {0};

    const struct bl_placement_rules rules = {.n_gpu_layers = -1, .n_cpu_moe = 30};
    open_rig(&r, "gpt-oss-120b", "rtx-3090-ddr5-2ch", 4096, &rules);
    assert_int_equal(bl_placement_flags(r.placement, BL_PEER_LLAMACPP, &f), BL_OK);
    assert_string_equal(value_of(&f, "-ncmoe"), "30");
    assert_string_equal(value_of(&f, "-ngl"), "37");
    assert_null(value_of(&f, "-ot"));
    assert_null(value_of(&f, "-ts"));
    bl_peer_flags_finish(&f);
    /* there -ncmoe means something else where there are several cards */
    assert_int_equal(bl_placement_flags(r.placement, BL_PEER_IK, &f), BL_OK);
    assert_string_equal(value_of(&f, "-ot"), "blk\\.([0-9]|[12][0-9])\\.ffn_.*_exps=CPU");
    bl_peer_flags_finish(&f);
    close_rig(&r);
}

static void what_flags_cannot_say_is_said(void **state)
{
    (void)state;
    static const char *const apart[] = {"blk\\.(2|3)\\.=CUDA0"};
    const struct bl_placement_rules rules = {
        .n_gpu_layers = -1, .override = apart, .n_overrides = 1, .tensor_split = "1,40"};
    struct rig r;
    struct bl_peer_flags f = {0};

    open_rig(&r, "qwen3-8b", "2x-rtx-pro-4000", 4096, &rules);
    assert_int_equal(bl_placement_flags(r.placement, BL_PEER_LLAMACPP, &f), BL_OK);
    assert_false(
        has(f.note, f.n_notes, "cached state of layers")); /* -ot leaves it, there and here */
    bl_peer_flags_finish(&f);
    assert_int_equal(bl_placement_flags(r.placement, BL_PEER_DS4, &f), BL_EUNSUPPORTED);
    assert_non_null(strstr(bl_error(), "ds4"));
    close_rig(&r);

    open_rig(&r, "qwen3-30b-a3b", "4x-r9700-threadripper", 4096, NULL);
    assert_int_equal(bl_placement_flags(r.placement, BL_PEER_IK, &f), BL_OK);
    assert_true(has(f.note, f.n_notes, "CUDA, not these cards"));
    bl_peer_flags_finish(&f);
    close_rig(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(searched_placements_come_back),
        cmocka_unit_test(scattered_placements_come_back),
        cmocka_unit_test(flags_are_short_where_they_can_be),
        cmocka_unit_test(what_flags_cannot_say_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: MIT */
/* Plans that go by how often experts are used: which are on the card, which sit in slots, and what
 * that is said to gain. */
#include "search_known.h"

#include "expert_share.h"
#include "plan_file.h"

#include <math.h>

static void open_one_card(struct rig *r)
{
    open_rig(r, "gpt-oss-120b", 0, 32768, "rtx-3090-ddr5-2ch");
}

static double decode_without(void)
{
    struct rig r;
    open_one_card(&r);
    search(&r, NULL);
    const double tok_per_s = r.c.decode.tok_per_s;
    assert_int_equal(r.c.plan.n_slot_sets, 0);
    close_rig(&r);
    return tok_per_s;
}

static bool says(const struct rig *r, const char *words)
{
    for (uint32_t i = 0; i < r->c.n_reasons; i++)
        if (strstr(r->c.reason[i].text, words))
            return true;
    return false;
}

/* Of every layer the most used are on the card, and none that is used less than one in RAM. */
static void the_most_used_are_on_the_card(void **state)
{
    (void)state;
    struct rig r;
    open_one_card(&r);
    struct bl_expert_stats s = made(r.model, 1.2, 0.999);
    const uint32_t n = s.n_experts;

    search(&r, &s);
    assert_int_equal(r.c.plan.n_slot_sets, 0);
    uint64_t least = UINT64_MAX, most = 0;
    for (uint32_t l = 0; l < s.n_layers; l++)
        for (uint32_t e = 0; e < n; e++) {
            const uint64_t uses = s.uses[l * n + e];
            if (bl_plan_expert_device(&r.c.plan, l, e) == 1)
                least = uses < least ? uses : least;
            else
                most = uses > most ? uses : most;
        }
    assert_true(least >= most);
    /* a layer's sum is that of the others, so the share is the sum over the best of one */
    double *share = calloc((size_t)s.n_layers * 2, sizeof *share);
    bl_expert_shares(&r.c.plan, r.model, 2, share);
    for (uint32_t l = 0; l < s.n_layers; l++) {
        const uint32_t on = bl_plan_experts_on(&r.c.plan, l, n, 1);
        assert_true(fabs(share[2 * l + 1] - bl_expert_stats_best(&s, l, on)) < 1e-9);
        assert_true(fabs(share[2 * l] + share[2 * l + 1] - 1) < 1e-9);
    }
    free(share);
    assert_true(says(&r, "single experts of layers 0-35"));
    assert_true(r.c.decode.tok_per_s > 1.5 * decode_without());
    bl_expert_stats_finish(&s);
    close_rig(&r);
}

/* No expert is used more than others, but the last used are used again. */
static void slots_where_the_last_used_come_again(void **state)
{
    (void)state;
    struct rig r;
    open_one_card(&r);
    struct bl_expert_stats s = made(r.model, 0, 0.95);

    search(&r, &s);
    assert_int_equal(r.c.plan.n_slot_sets, r.model->hp.n_layer);
    assert_int_equal(r.c.plan.expert_policy, BL_EXPERTS_LRU);
    for (uint32_t i = 0; i < r.c.plan.n_slot_sets; i++) {
        const struct bl_slot_set *at = &r.c.plan.slots[i];
        assert_int_equal(at->device, 1);
        assert_true(at->hit > (double)at->n / s.n_experts);
        assert_true(at->hit <= bl_expert_stats_recent(&s, at->layer, at->n) + 1e-9);
    }
    assert_true(says(&r, "slots for experts of each of layers 0-35"));
    assert_true(says(&r, "for those used last"));
    assert_true(r.c.decode.tok_per_s > 1.5 * decode_without());
    bl_expert_stats_finish(&s);
    close_rig(&r);
}

/* By a policy that leaves alone what is in them there are none to plan. */
static void no_slots_where_nothing_moves(void **state)
{
    (void)state;
    struct rig r;
    open_one_card(&r);
    struct bl_expert_stats s = made(r.model, 0, 0.95);

    r.so.no_slots = true;
    search(&r, &s);
    assert_int_equal(r.c.plan.n_slot_sets, 0);
    assert_false(says(&r, "for those used last"));
    bl_expert_stats_finish(&s);
    close_rig(&r);
}

/* Statistics that tell nothing change nothing. */
static void alike_is_as_not_known(void **state)
{
    (void)state;
    struct rig r;
    open_one_card(&r);
    struct bl_expert_stats s = made(r.model, 0, 0.9999);

    search(&r, &s);
    assert_int_equal(r.c.plan.n_slot_sets, 0);
    assert_true(fabs(r.c.decode.tok_per_s / decode_without() - 1) < 0.01);
    bl_expert_stats_finish(&s);
    close_rig(&r);
}

/* A slower link lets fewer of the last used come in time. */
static void hits_need_the_link(void **state)
{
    (void)state;
    double before = 1;

    for (double bps = 30e9; bps > 1e8; bps /= 3) {
        struct rig r;
        open_one_card(&r);
        struct bl_expert_stats s = made(r.model, 0, 0.95);
        search(&r, NULL);
        for (uint32_t i = 0; i < r.machine.n_links; i++)
            r.machine.link[i].ab_measured_bps = r.machine.link[i].ba_measured_bps = bps;
        r.c.plan.known = &s;
        r.c.plan.n_ranges = 0;
        for (uint32_t l = 0; l < r.c.plan.n_layers; l++)
            if (bl_plan_device(&r.c.plan, (int)l, BL_PART_EXPERTS) == 0)
                assert_int_equal(bl_plan_add_slots(&r.c.plan, l, 1, 20), BL_OK);
        r.c.plan.expert_policy = BL_EXPERTS_LRU;
        assert_int_equal(bl_price_slots(&r.c.plan, r.model, &r.machine, &r.so), BL_OK);
        const double hit = r.c.plan.slots[0].hit;
        assert_true(hit <= before + 1e-9);
        assert_true(hit >= 20. / s.n_experts - 1e-9);
        before = hit;
        r.c.plan.expert_policy = BL_EXPERTS_FIXED;
        assert_int_equal(bl_price_slots(&r.c.plan, r.model, &r.machine, &r.so), BL_OK);
        assert_true(fabs(r.c.plan.slots[0].hit - 20. / s.n_experts) < 1e-6);
        bl_expert_stats_finish(&s);
        close_rig(&r);
    }
    assert_true(before < 0.3); /* with a tenth of a GB/s hardly anything comes */
}

static void several_cards_fit(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r, "deepseek-v4-flash", 0, 65536, "4x-rtx-3060-ddr4-4ch");
    struct bl_expert_stats s = made(r.model, 1, 0.99);

    search(&r, NULL);
    const double without = r.c.decode.tok_per_s;
    bl_choice_finish(&r.c);
    search(&r, &s);
    assert_true(r.c.decode.tok_per_s > without);
    bl_expert_stats_finish(&s);
    close_rig(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_most_used_are_on_the_card),
        cmocka_unit_test(slots_where_the_last_used_come_again),
        cmocka_unit_test(no_slots_where_nothing_moves),
        cmocka_unit_test(alike_is_as_not_known),
        cmocka_unit_test(hits_need_the_link),
        cmocka_unit_test(several_cards_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

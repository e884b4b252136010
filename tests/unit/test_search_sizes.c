/* SPDX-License-Identifier: MIT */
/* Sizes of steps and rings: the one that is chosen is, by the plan's own prediction, no slower than
 * any other that was considered; what is too large for a card's memory or its largest allocation
 * becomes smaller; cards of no use are left out. */
#include "search_rig.h"

static const uint32_t sizes[] = {512, 1024, 2048};

/* A host that reads slowly, and a card beside it. */
static void open_pair(struct rig *r, const char *shape, uint32_t layers, double card_mib,
                      double link_bps, double weight)
{
    char text[1024];

    open_model(r, shape, layers, 4096);
    snprintf(text, sizeof text,
             "{\"ballast_machine\": 1, \"name\": \"typed\", \"devices\": [{\"id\": \"cpu0\", "
             "\"kind\": \"cpu\", \"cores\": 2, \"mem_bytes\": \"64GiB\", \"read_rated_bps\": 8e9, "
             "\"isa\": \"avx2\", \"clock_hz\": 3e9}, {\"id\": \"gpu0\", \"kind\": \"gpu\", "
             "\"backend\": \"cuda\", \"mem_bytes\": \"%.0fMiB\", \"usable_bytes\": \"%.0fMiB\", "
             "\"read_rated_bps\": 300e9, \"f16_macs_per_s\": 1e13}], \"links\": [{\"a\": "
             "\"cpu0\", \"b\": \"gpu0\", \"ab_rated_bps\": %.0f, \"ba_rated_bps\": %.0f}]}",
             card_mib, card_mib, link_bps, link_bps);
    parse_machine(r, text);
    r->machine.device[0].config.threads = r->machine.device[0].config.threads_prefill = 2;
    r->so.depth_tokens = 2048;
    r->so.prefill_weight = weight;
}

static void found(struct rig *r)
{
    if (bl_search(&r->c, r->model, &r->machine, &r->opt, &r->so))
        fail_msg("%s", bl_error());
    for (uint16_t d = 0; d < r->machine.n_devices; d++)
        assert_true(bl_ledger_planned(&r->c.plan.ledger, d) <=
                    bl_device_budget(&r->machine.device[d], 0));
}

/* What it says itself. */
static double rate_of(const struct rig *r)
{
    return 1 / bl_plan_score(1 / r->c.decode.tok_per_s, 1 / r->c.prefill.tok_per_s,
                             r->so.prefill_weight);
}

static double rate_with(struct rig *r, uint32_t ubatch)
{
    r->opt.ubatch_tokens = ubatch;
    r->so.fixed_ubatch = ubatch;
    bl_choice_finish(&r->c);
    found(r);
    return rate_of(r);
}

struct pair {
    const char *shape;
    uint32_t layers;
    double mib[4];
    double link_bps;
};

/* Where it is chosen it is as when it is asked for, to the last bit, or there would be two plans.
 */
static void check_pair(const struct pair *p, double mib, double weight, unsigned *sends)
{
    struct rig r;
    open_pair(&r, p->shape, p->layers, mib, p->link_bps, weight);
    const double chosen = rate_with(&r, 0);
    const uint32_t ub = r.c.plan.ubatch_tokens;

    *sends += r.c.plan.stream_from > 0;
    for (size_t i = 0; i < BL_COUNT(sizes); i++) {
        const double other = rate_with(&r, sizes[i]);
        if (chosen < other * 0.99)
            fail_msg("%s, %.0f MiB, %g: %.5g with steps of %u, %.5g with %u", p->shape, mib, weight,
                     chosen, ub, other, sizes[i]);
    }
    close_rig(&r);
}

static void no_size_is_quicker_than_the_chosen(void **state)
{
    (void)state;
    static const struct pair pairs[] = {
        {"qwen3-30b-a3b", 4, {200, 300, 400, 800}, 8e9},
        {"gpt-oss-20b", 4, {300, 500, 900, 1400}, 16e9},
        {"ernie-4.5-21b-a3b", 4, {250, 400, 600, 1300}, 4e9},
        {"llama-3-8b", 4, {300, 500, 700, 1200}, 8e9},
    };
    static const double weights[] = {0.3, 1};
    unsigned sends = 0;

    for (size_t i = 0; i < BL_COUNT(pairs); i++)
        for (size_t k = 0; k < BL_COUNT(pairs[i].mib); k++)
            for (size_t w = 0; w < BL_COUNT(weights); w++)
                check_pair(&pairs[i], pairs[i].mib[k], weights[w], &sends);
    printf("  %u plans send experts\n", sends);
    assert_true(sends > 10); /* or rings would not be in question */
}

/* ---- what is too large becomes smaller ---- */

static bool says(const struct rig *r, const char *what)
{
    for (uint32_t i = 0; i < r->c.n_reasons; i++)
        if (strstr(r->c.reason[i].text, what))
            return true;
    return false;
}

static void set_block(struct rig *r, uint32_t mib)
{
    char text[48];

    snprintf(text, sizeof text, "gpu0.block_bytes=%uMiB", mib);
    assert_int_equal(bl_machine_set(&r->machine, text), BL_OK);
    bl_choice_finish(&r->c);
    found(r);
    assert_true(!r->c.plan.ledger.excess.bytes);
}

/* Buffers of usual steps are larger than the card's largest allocation, which holds any tensor. */
static void steps_that_a_block_holds(void **state)
{
    (void)state;
    unsigned smaller = 0, usual = 0;
    struct rig r;
    open_pair(&r, "llama-3-8b", 4, 4000, 16e9, 0.3);
    r.so.fixed_ubatch = true;
    for (uint32_t mib = 34; mib < 1000; mib += mib / 2) {
        set_block(&r, mib);
        printf("  blocks of %u MiB: steps of %u, %s\n", mib, r.c.plan.ubatch_tokens,
               bl_plan_uses(&r.c.plan, 1) ? "card used" : "card not used");
        smaller += bl_plan_uses(&r.c.plan, 1) && r.c.plan.ubatch_tokens < 512;
        usual += bl_plan_uses(&r.c.plan, 1) && r.c.plan.ubatch_tokens == 512;
    }
    assert_true(smaller && usual);
    /* What somebody asked for stays. */
    r.opt.ubatch_tokens = 512;
    set_block(&r, 34);
    assert_int_equal(r.c.plan.ubatch_tokens, 512);
    close_rig(&r);
}

static uint64_t ring_of(const struct rig *r)
{
    for (uint32_t i = 0; i < r->c.plan.ledger.n; i++)
        if (r->c.plan.ledger.line[i].device == 1 &&
            r->c.plan.ledger.line[i].purpose == BL_MEM_STAGING)
            return r->c.plan.ledger.line[i].planned_bytes;
    return 0;
}

static void a_ring_that_a_block_holds(void **state)
{
    (void)state;
    struct rig r;
    open_pair(&r, "qwen3-30b-a3b", 12, 2500, 16e9, 1);
    r.opt.ubatch_tokens = 256;
    r.so.fixed_ubatch = true;
    set_block(&r, 156);
    assert_true(ring_of(&r) > (uint64_t)78 << 20);
    set_block(&r, 78);
    assert_true(ring_of(&r) && ring_of(&r) <= (uint64_t)78 << 20);
    close_rig(&r);
}

static void smaller_steps_rather_than_none(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r, "gpt-oss-120b", 0, 131072, "rtx-3090-ddr5-2ch");
    assert_int_equal(bl_machine_set(&r.machine, "cpu0.usable=40GiB"), BL_OK);
    assert_int_equal(bl_machine_set(&r.machine, "gpu0.usable=24GiB"), BL_OK);
    found(&r);
    assert_true(r.c.plan.ubatch_tokens < 512);
    assert_int_equal(r.c.plan.ctx_tokens, 131072);
    assert_true(says(&r, "there is no room for those of 512"));
    close_rig(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_size_is_quicker_than_the_chosen),
        cmocka_unit_test(steps_that_a_block_holds),
        cmocka_unit_test(a_ring_that_a_block_holds),
        cmocka_unit_test(smaller_steps_rather_than_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

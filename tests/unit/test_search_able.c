/* SPDX-License-Identifier: MIT */
/* Cards that cannot run something: what they lack stays on the host or goes to another card, and
 * the reasons say what it is. */
#include "search_rig.h"

#include "null/null.h"

/* ---- what a card lacks ---- */

static bool is_of_layer(const struct bl_node *n, int layer)
{
    return n->layer == layer;
}

static bool no_experts(const struct bl_caps *caps, const struct bl_graph *g,
                       const struct bl_node *n)
{
    (void)caps, (void)g;
    return n->op != BL_OP_EXPERTS;
}

static bool no_attention(const struct bl_caps *caps, const struct bl_graph *g,
                         const struct bl_node *n)
{
    (void)caps, (void)g;
    return n->op != BL_OP_ATTENTION;
}

static bool no_delta_rule(const struct bl_caps *caps, const struct bl_graph *g,
                          const struct bl_node *n)
{
    (void)caps, (void)g;
    return n->op != BL_OP_DELTA_RULE;
}

static bool no_head(const struct bl_caps *caps, const struct bl_graph *g, const struct bl_node *n)
{
    (void)caps, (void)g;
    return !(is_of_layer(n, -1) && n->part == BL_PART_HEAD);
}

static bool not_layer_1(const struct bl_caps *caps, const struct bl_graph *g,
                        const struct bl_node *n)
{
    (void)caps, (void)g;
    return !is_of_layer(n, 1);
}

static bool no_mxfp4(const struct bl_caps *caps, const struct bl_graph *g, const struct bl_node *n)
{
    (void)caps;
    for (unsigned i = 0; i < n->n_src; i++)
        if (g->vals[bl_node_src(g, n, i)].type == BL_MXFP4)
            return false;
    return true;
}

static bool nothing(const struct bl_caps *caps, const struct bl_graph *g, const struct bl_node *n)
{
    (void)caps, (void)g, (void)n;
    return false;
}

static void lack(struct rig *r, uint16_t device, struct bl_backend *lacking,
                 bool (*supports)(const struct bl_caps *, const struct bl_graph *,
                                  const struct bl_node *))
{
    *lacking = bl_null_backend;
    lacking->supports = supports;
    r->machine.device[device].backend = lacking;
}

/* ---- what becomes of it ---- */

static bool said(const struct rig *r, const char *what)
{
    for (uint32_t i = 0; i < r->c.n_reasons; i++)
        if (strstr(r->c.reason[i].text, what))
            return true;
    return false;
}

static void search(struct rig *r)
{
    if (bl_search(&r->c, r->model, &r->machine, &r->opt, &r->so))
        fail_msg("%s", bl_error());
    for (uint16_t d = 0; d < r->machine.n_devices; d++)
        assert_true(bl_ledger_planned(&r->c.plan.ledger, d) <=
                    bl_device_budget(&r->machine.device[d], 0));
    assert_true(r->c.decode.tok_per_s > 0 && r->c.prefill.tok_per_s > 0);
}

static uint32_t n_on(const struct rig *r, unsigned part, uint16_t d)
{
    uint32_t n = 0;
    for (uint32_t l = 0; l < r->c.plan.n_layers; l++)
        n += (part != BL_PART_EXPERTS || r->model->layer[l].moe) &&
             bl_plan_device(&r->c.plan, (int)l, part) == d;
    return n;
}

static void open_one_card(struct rig *r, const char *shape, uint32_t layers)
{
    open_rig(r, shape, layers, 4096, "rtx-3090-ddr5-2ch");
    r->machine.device[0].config.threads = 16;
}

static void experts_stay_in_ram(void **state)
{
    (void)state;
    for (unsigned weight = 0; weight < 2; weight++) {
        struct bl_backend lacking;
        struct rig r;
        open_one_card(&r, "qwen3-30b-a3b", 6);
        r.so.prefill_weight = weight;
        lack(&r, 1, &lacking, no_experts);
        search(&r);
        assert_int_equal(n_on(&r, BL_PART_EXPERTS, 0), 6);
        if (weight) /* crossings are dear when decoding */
            assert_int_equal(n_on(&r, BL_PART_ATTN, 1), 6);
        assert_int_equal(r.c.plan.n_ranges, 0);
        assert_int_equal(r.c.stream_from_tok, 0); /* they are not sent there either */
        assert_int_equal(r.c.sent_from_tok[1], 0);
        assert_true(said(&r, "no card can run experts of "));
        close_rig(&r);
    }
}

static void types_stay_in_ram(void **state)
{
    (void)state;
    struct bl_backend lacking;
    struct rig r;
    open_one_card(&r, "gpt-oss-20b", 6);
    lack(&r, 1, &lacking, no_mxfp4);
    search(&r);
    assert_int_equal(n_on(&r, BL_PART_EXPERTS, 0), 6);
    assert_true(said(&r, "no card can run experts of mxfp4"));
    close_rig(&r);
}

/* Experts without the attention of their layer are worth having, or not; attention is not there. */
static void attention_stays_on_the_host(void **state)
{
    (void)state;
    struct bl_backend lacking;
    struct rig r;
    open_one_card(&r, "qwen3-30b-a3b", 6);
    lack(&r, 1, &lacking, no_attention);
    search(&r);
    assert_int_equal(n_on(&r, BL_PART_ATTN, 0), 6);
    assert_true(said(&r, "no card can run attention"));
    close_rig(&r);
}

static void some_layers_stay_on_the_host(void **state)
{
    (void)state;
    struct bl_backend lacking;
    struct rig r;
    open_one_card(&r, "qwen3-next-80b", 8);
    lack(&r, 1, &lacking, no_delta_rule);
    search(&r);
    for (uint32_t l = 0; l < 8; l++)
        if (r.model->layer[l].recurrent)
            assert_int_equal(bl_plan_device(&r.c.plan, (int)l, BL_PART_ATTN), 0);
    close_rig(&r);
    open_one_card(&r, "llama-3-8b", 4);
    lack(&r, 1, &lacking, not_layer_1);
    search(&r);
    assert_int_equal(n_on(&r, BL_PART_ATTN, 1), 3);
    assert_int_equal(bl_plan_device(&r.c.plan, 1, BL_PART_ATTN), 0);
    close_rig(&r);
}

static void the_head_stays_on_the_host(void **state)
{
    (void)state;
    struct bl_backend lacking;
    struct rig r;
    open_one_card(&r, "llama-3-8b", 4);
    lack(&r, 1, &lacking, no_head);
    search(&r);
    assert_int_equal(bl_plan_device(&r.c.plan, -1, BL_PART_HEAD), 0);
    assert_int_equal(n_on(&r, BL_PART_ATTN, 1), 3); /* the head is where the last layer is */
    close_rig(&r);
}

static void another_card_can(void **state)
{
    (void)state;
    struct bl_backend lacking;
    struct rig r;
    open_rig(&r, "qwen3-30b-a3b", 8, 4096, "4x-rtx-3060-ddr4-4ch");
    lack(&r, 1, &lacking, no_experts);
    lack(&r, 3, &lacking, no_experts);
    search(&r);
    assert_int_equal(n_on(&r, BL_PART_EXPERTS, 1) + n_on(&r, BL_PART_EXPERTS, 3), 0);
    assert_true(n_on(&r, BL_PART_EXPERTS, 2) + n_on(&r, BL_PART_EXPERTS, 4) > 0);
    assert_false(said(&r, "no card can run"));
    close_rig(&r);
}

static void a_card_that_can_nothing_is_not_used(void **state)
{
    (void)state;
    static const char *const machines[] = {"rtx-3090-ddr5-2ch", "strix-halo-128",
                                           "4x-rtx-3060-ddr4-4ch"};

    for (size_t i = 0; i < BL_COUNT(machines); i++) {
        struct bl_backend lacking;
        struct rig r;
        open_rig(&r, "qwen3-30b-a3b", 6, 4096, machines[i]);
        lack(&r, 1, &lacking, nothing);
        search(&r);
        assert_false(bl_plan_uses(&r.c.plan, 1));
        assert_true(said(&r, " is not used: it cannot run "));
        close_rig(&r);
    }
}

static void the_longest_context(void **state)
{
    (void)state;
    struct bl_backend lacking;
    struct rig r;
    open_rig(&r, "qwen3-30b-a3b", 6, 32768, "rtx-3090-ddr5-2ch");
    r.opt.ctx_tokens = BL_CTX_MAX;
    lack(&r, 1, &lacking, no_experts);
    search(&r);
    assert_int_equal(r.c.plan.ctx_tokens, 32768);
    assert_int_equal(n_on(&r, BL_PART_EXPERTS, 1), 0);
    close_rig(&r);
}

static void near_the_best_that_cards_can(void **state)
{
    (void)state;
    struct bl_backend lacking;
    struct rig r;
    open_one_card(&r, "gpt-oss-20b", 3);
    r.machine.device[1].mem_bytes = r.machine.device[1].usable_bytes = (uint64_t)3 << 30;
    r.opt.ubatch_tokens = r.opt.batch_tokens = 64;
    lack(&r, 1, &lacking, not_layer_1);
    search(&r);
    const double found = score_of(&r, &r.c.plan);
    double best = INFINITY;
    const uint32_t all = 1 << n_groups(&r);
    struct bl_plan p;
    assert_int_equal(bl_plan_init(&p, r.model), BL_OK);
    assert_int_equal(bl_plan_size_steps(&p, r.model, &r.opt), BL_OK);
    p.mmap = false;
    for (uint32_t code = 0; code < all; code++) {
        place(&r, &p, code);
        if (bl_plan_device(&p, 1, BL_PART_ATTN) || bl_plan_device(&p, 1, BL_PART_EXPERTS))
            continue;
        const double score = score_of(&r, &p);
        if (score < best && fits(&r, &p))
            best = score;
    }
    printf("  %.4g, best %.4g\n", found, best);
    assert_true(isfinite(best) && found <= 1.01 * best);
    bl_plan_finish(&p);
    close_rig(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_stay_in_ram),
        cmocka_unit_test(types_stay_in_ram),
        cmocka_unit_test(attention_stays_on_the_host),
        cmocka_unit_test(some_layers_stay_on_the_host),
        cmocka_unit_test(the_head_stays_on_the_host),
        cmocka_unit_test(another_card_can),
        cmocka_unit_test(a_card_that_can_nothing_is_not_used),
        cmocka_unit_test(the_longest_context),
        cmocka_unit_test(near_the_best_that_cards_can),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

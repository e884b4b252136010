/* SPDX-License-Identifier: MIT */
/* Plans for rigs one does not own: they fit, are near the best there is, use what helps and say
 * why. */
#include "search_rig.h"

#include <time.h>

static void print_choice(const struct rig *r)
{
    for (uint32_t i = 0; i < r->c.n_reasons; i++)
        printf("  %3d-%3d %s\n", r->c.reason[i].first, r->c.reason[i].last, r->c.reason[i].text);
    printf("  ubatch %u, decode %.1f t/s (%.2f), prefill %.1f t/s (%.2f), stream from %u, %u "
           "simulated\n",
           r->c.plan.ubatch_tokens, r->c.decode.tok_per_s, r->c.decode.sd, r->c.prefill.tok_per_s,
           r->c.prefill.sd, r->c.stream_from_tok, r->c.n_simulated);
}

static void search(struct rig *r)
{
    const clock_t start = clock();
    if (bl_search(&r->c, r->model, &r->machine, &r->opt, &r->so))
        fail_msg("%s", bl_error());
    printf("  %.2f s\n", (double)(clock() - start) / CLOCKS_PER_SEC);
    print_choice(r);
    for (uint16_t d = 0; d < r->machine.n_devices; d++)
        assert_true(bl_ledger_planned(&r->c.plan.ledger, d) <=
                    bl_device_budget(&r->machine.device[d], r->so.reserve_bytes));
}

static uint32_t experts_on(const struct rig *r, uint16_t d)
{
    uint32_t n = 0;
    for (uint32_t l = 0; l < r->c.plan.n_layers; l++)
        n += r->model->layer[l].moe && bl_plan_device(&r->c.plan, (int)l, BL_PART_EXPERTS) == d;
    return n;
}

static void four_small_cards(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r, "deepseek-v4-flash", 0, 368640, "4x-rtx-3060-ddr4-4ch");
    search(&r);
    assert_int_equal(r.c.plan.ctx_tokens, 368640);
    close_rig(&r);
}

static void one_card_and_a_large_model(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r, "gpt-oss-120b", 0, 32768, "rtx-3090-ddr5-2ch");
    search(&r);
    assert_true(experts_on(&r, 1) > 8 && experts_on(&r, 0) > 8);
    /* What is left holds some of one more layer, which the notes say. */
    assert_int_equal(r.c.plan.n_ranges, 1);
    assert_int_equal(r.c.plan.range[0].device, 1);
    bool said = false;
    for (uint32_t i = 0; i < r.c.n_reasons; i++)
        said = said || strstr(r.c.reason[i].text, "experts 0-");
    assert_true(said);
    assert_true(r.c.decode.tok_per_s > 20 && r.c.decode.tok_per_s < 80);
    close_rig(&r);
}

static void unified_memory_is_not_split(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r, "gpt-oss-120b", 0, 32768, "strix-halo-128");
    search(&r);
    assert_int_equal(experts_on(&r, 0), 0);
    assert_true(r.c.decode.tok_per_s > 25 && r.c.decode.tok_per_s < 90);
    close_rig(&r);
}

/* ---- small instances, all of whose plans can be tried ---- */

#define CPU_OF(mem, read)                                                                          \
    "{\"ballast_machine\": 1, \"name\": \"typed\", \"devices\": [{\"id\": \"cpu0\", \"kind\": "    \
    "\"cpu\", \"cores\": 8, \"mem_bytes\": \"" mem "\", \"read_rated_bps\": " read                 \
    ", \"isa\": \"avx512-vnni\", \"clock_hz\": 4e9}"
#define CARD(id, mem, read)                                                                        \
    ", {\"id\": \"" id "\", \"kind\": \"gpu\", \"backend\": \"cuda\", \"mem_bytes\": \"" mem       \
    "\", \"usable_bytes\": \"" mem "\", \"read_rated_bps\": " read ", \"f16_macs_per_s\": 40e12}"
#define LINK(id, bps)                                                                              \
    "{\"a\": \"cpu0\", \"b\": \"" id "\", \"ab_rated_bps\": " bps ", \"ba_rated_bps\": " bps "}"

static void near_the_best_of_all_plans(void **state)
{
    (void)state;
    static const struct {
        const char *shape, *machine;
        double prefill_weight;
    } cases[] = {
        {"gpt-oss-20b",
         CPU_OF("64GiB", "60e9") CARD("gpu0", "2GiB", "800e9")
             CARD("gpu1", "2GiB",
                  "300e9") "], \"links\": [" LINK("gpu0", "16e9") ", " LINK("gpu1", "8e9") "]}",
         0},
        {"gpt-oss-20b",
         CPU_OF("64GiB", "60e9") CARD("gpu0", "3GiB", "400e9")
             CARD("gpu1", "1536MiB",
                  "900e9") "], \"links\": [" LINK("gpu0", "16e9") ", " LINK("gpu1", "1e9") "]}",
         0.3},
        {"glm-4.5-air",
         CPU_OF("64GiB", "200e9") CARD("gpu0", "4GiB", "800e9")
             CARD("gpu1", "6GiB",
                  "250e9") "], \"links\": [" LINK("gpu0", "32e9") ", " LINK("gpu1", "4e9") "]}",
         0.3},
        {"llama-3-8b",
         CPU_OF("64GiB", "60e9") CARD("gpu0", "1GiB", "800e9")
             CARD("gpu1", "2GiB",
                  "700e9") "], \"links\": [" LINK("gpu0", "16e9") ", " LINK("gpu1", "8e9") "]}",
         0},
        {"qwen3-30b-a3b",
         CPU_OF("64GiB", "400e9") CARD("gpu0", "8GiB", "100e9")
             CARD("gpu1", "1GiB",
                  "90e9") "], \"links\": [" LINK("gpu0", "4e9") ", " LINK("gpu1", "8e9") "]}",
         1},
    };

    for (size_t i = 0; i < BL_COUNT(cases); i++) {
        struct rig r;
        open_model(&r, cases[i].shape, 3, 2048);
        parse_machine(&r, cases[i].machine);
        r.machine.device[0].config.threads = 8; /* only places are chosen */
        r.so.prefill_weight = cases[i].prefill_weight;
        r.opt.ubatch_tokens = r.opt.batch_tokens = 64;
        search(&r);
        const double found = score_of(&r, &r.c.plan);
        struct best best;
        exhaustive(&r, &best);
        printf("  %s: %.4g, best %.4g\n", cases[i].shape, found, best.score);
        assert_true(isfinite(best.score) && found <= 1.01 * best.score);
        bl_plan_finish(&best.plan);
        close_rig(&r);
    }
}

/* ---- speed of planning, and plans that repeat ---- */

static void eight_cards_and_five_thousand_tensors(void **state)
{
    (void)state;
    struct rig r;
    char text[4096];
    int n = snprintf(text, sizeof text, "%s", CPU_OF("512GiB", "200e9"));
    for (int i = 0; i < 8; i++)
        n += snprintf(text + n, sizeof text - (size_t)n,
                      ", {\"id\": \"gpu%d\", \"kind\": \"gpu\", \"backend\": \"cuda\", "
                      "\"mem_bytes\": \"%dGiB\", \"read_rated_bps\": %de9, \"f16_macs_per_s\": "
                      "40e12}",
                      i, 12 + 4 * (i % 3), 300 + 100 * (i % 4));
    n += snprintf(text + n, sizeof text - (size_t)n, "], \"links\": [");
    for (int i = 0; i < 8; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%s" LINK("gpu%d", "16e9"), i ? ", " : "",
                      i);
    snprintf(text + n, sizeof text - (size_t)n, "]}");
    open_model(&r, "qwen3-235b-a22b", 400, 16384);
    assert_true(bl_gguf_n_tensors(bl_synth_gguf(r.synth)) > 4800);
    parse_machine(&r, text);
    assert_int_equal(bl_machine_set(&r.machine, "cpu0.mem=2TB"), BL_OK);
    const clock_t start = clock();
    assert_int_equal(bl_search(&r.c, r.model, &r.machine, &r.opt, &r.so), BL_OK);
    const double s = (double)(clock() - start) / CLOCKS_PER_SEC;
    printf("  %.2f s, %u simulated\n", s, r.c.n_simulated);
#if defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_true(s < 2);
#endif
    struct bl_choice again;
    assert_int_equal(bl_search(&again, r.model, &r.machine, &r.opt, &r.so), BL_OK);
    assert_memory_equal(again.plan.slot, r.c.plan.slot,
                        (r.c.plan.n_layers + 1) * BL_N_PARTS * sizeof *again.plan.slot);
    assert_true(!(again.decode.tok_per_s < r.c.decode.tok_per_s) &&
                !(again.decode.tok_per_s > r.c.decode.tok_per_s));
    bl_choice_finish(&again);
    close_rig(&r);
}

/* ---- what does not fit, and cards of unequal worth ---- */

static void says_what_would_fit(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r, "gpt-oss-120b", 0, 131072, "rtx-3090-ddr5-2ch");
    assert_int_equal(bl_machine_set(&r.machine, "cpu0.usable=40GiB"), BL_OK);
    assert_int_equal(bl_machine_set(&r.machine, "gpu0.usable=24GiB"), BL_OK);
    r.opt.ubatch_tokens = 512; /* smaller steps would fit */
    assert_int_equal(bl_search(&r.c, r.model, &r.machine, &r.opt, &r.so), BL_ENOFIT);
    const char *at = strstr(bl_error(), "(-c ");
    printf("  %s\n", bl_error());
    assert_non_null(at);
    const unsigned long long nearest = strtoull(at + 4, NULL, 10);
    assert_true(nearest >= 256 && nearest < 131072);
    /* Reduced only where that is allowed, and then to the same. */
    r.so.may_shrink_ctx = true;
    search(&r);
    assert_true(r.c.plan.ctx_tokens == nearest && r.c.asked_ctx_tokens == 131072);
    bool said = false;
    for (uint32_t i = 0; i < r.c.n_reasons; i++)
        said = said || strstr(r.c.reason[i].text, "context reduced from 131072");
    assert_true(said);
    close_rig(&r);

    open_rig(&r, "qwen3-235b-a22b", 0, 4096,
             "rtx-3090-ddr5-2ch"); /* by all parameters, not active ones */
    assert_int_equal(bl_machine_set(&r.machine, "cpu0.usable=24GiB"), BL_OK);
    r.so.may_shrink_ctx = true;
    assert_int_equal(bl_search(&r.c, r.model, &r.machine, &r.opt, &r.so), BL_ENOFIT);
    assert_non_null(strstr(bl_error(), "no context fits"));
    close_rig(&r);
}

static void a_slow_small_card_gets_the_least(void **state)
{
    (void)state;
    struct rig r;
    open_model(&r, "gpt-oss-120b", 0, 16384);
    parse_machine(
        &r, CPU_OF("128GiB", "80e9") CARD("gpu0", "24GiB", "900e9") CARD("gpu1", "24GiB", "900e9")
                CARD("gpu2", "24GiB", "900e9")
                    CARD("slow", "12GiB", "150e9") "], \"links\": [" LINK("gpu0", "16e9") ", " LINK(
                        "gpu1", "16e9") ", " LINK("gpu2", "16e9") ", " LINK("slow", "2e9") "]}");
    search(&r);
    for (uint16_t d = 1; d < 4; d++)
        assert_true(experts_on(&r, 4) < experts_on(&r, d) || experts_on(&r, 4) == 0);
    /* The three hold all of it: the slow one would only cost. */
    assert_int_equal(experts_on(&r, 0) + experts_on(&r, 4), 0);
    close_rig(&r);
}

static void reserve_and_context_take_room(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r, "gpt-oss-120b", 0, 8192, "rtx-3090-ddr5-2ch");
    r.so.fixed_ubatch = true;
    search(&r);
    const uint32_t before = experts_on(&r, 1);
    bl_choice_finish(&r.c);
    r.so.reserve_bytes = (uint64_t)6 << 30;
    search(&r);
    assert_true(experts_on(&r, 1) < before);
    close_rig(&r);
}

static void without_cards_the_plan_is_that_of_running(void **state)
{
    (void)state;
    struct rig r;
    struct bl_plan p;
    open_model(&r, "qwen3-8b", 0, 4096);
    parse_machine(&r, CPU_OF("64GiB", "80e9") "]}");
    search(&r);
    assert_int_equal(bl_plan_make(&p, r.model, &r.machine, &r.opt), BL_OK);
    assert_true(p.mmap == r.c.plan.mmap && p.ubatch_tokens == r.c.plan.ubatch_tokens);
    assert_true(bl_ledger_planned(&p.ledger, 0) == bl_ledger_planned(&r.c.plan.ledger, 0));
    bl_plan_finish(&p);
    close_rig(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(four_small_cards),
        cmocka_unit_test(one_card_and_a_large_model),
        cmocka_unit_test(unified_memory_is_not_split),
        cmocka_unit_test(says_what_would_fit),
        cmocka_unit_test(a_slow_small_card_gets_the_least),
        cmocka_unit_test(reserve_and_context_take_room),
        cmocka_unit_test(without_cards_the_plan_is_that_of_running),
        cmocka_unit_test(near_the_best_of_all_plans),
        cmocka_unit_test(eight_cards_and_five_thousand_tensors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

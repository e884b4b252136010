/* SPDX-License-Identifier: MIT */
/* Threads and memory nodes of described hosts, crossovers of their cards, and what the planner says
 * of what does not fit. */
#include "search_rig.h"

#include "ballast.h"
#include "search_impl.h"

static const char *reason_with(const struct rig *r, const char *word)
{
    for (uint32_t i = 0; i < r->c.n_reasons; i++)
        if (strstr(r->c.reason[i].text, word))
            return r->c.reason[i].text;
    return NULL;
}

static void search(struct rig *r)
{
    if (bl_search(&r->c, r->model, &r->machine, &r->opt, &r->so))
        fail_msg("%s", bl_error());
}

/* ---- threads and nodes ---- */

/* Published: 96 threads over both nodes decode at a tenth of 48 on one. */
static void one_node_of_two(void **state)
{
    (void)state;
    static const char *const shapes[] = {"deepseek-v4-flash", "qwen3-next-80b", "gpt-oss-120b"};
    double decode[2];

    for (size_t i = 0; i < BL_COUNT(shapes); i++) {
        struct rig r;
        for (unsigned both = 0; both < 2; both++) {
            open_rig(&r, shapes[i], 0, 4096, "cobalt-100-96");
            r.opt.threads = r.machine.device[0].config.threads = both ? 96 : 0;
            search(&r);
            decode[both] = r.c.decode.tok_per_s;
            printf("  %s\n", reason_with(&r, "decodes with"));
            if (!both) {
                assert_int_equal(r.c.plan.threads, 48);
                assert_true(r.c.plan.nodes == 1);
            }
            close_rig(&r);
        }
        assert_true(decode[0] > decode[1]);
    }
}

/* Two sockets of three nodes each are slower than a part of one; and than a socket of Turin. */
static void one_socket_of_two(void **state)
{
    (void)state;
    struct rig xeon, turin;

    open_rig(&xeon, "deepseek-v4-flash", 0, 4096, "granite-rapids-2s");
    open_rig(&turin, "deepseek-v4-flash", 0, 4096, "turin-80");
    search(&xeon);
    search(&turin);
    printf("  %s\n  %s\n", reason_with(&xeon, "decodes with"), reason_with(&turin, "decodes with"));
    assert_true((xeon.c.plan.nodes & ~(uint64_t)7) == 0 && xeon.c.plan.nodes);
    assert_true(xeon.c.plan.threads <= 93);
    assert_true(xeon.c.decode.tok_per_s < turin.c.decode.tok_per_s);
    close_rig(&xeon);
    close_rig(&turin);
}

/* Mapped weights count: what a node does not hold goes to more of them. */
static void weights_choose_nodes(void **state)
{
    (void)state;
    struct rig r;

    open_rig(&r, "deepseek-v3", 0, 4096, "cobalt-100-96"); /* 377 GiB, 187 a node */
    assert_int_equal(bl_machine_set(&r.machine, "cpu0.usable=600GiB"), BL_OK);
    search(&r);
    assert_true(r.c.plan.mmap && r.c.plan.nodes == 3);
    assert_non_null(reason_with(&r, "its weights fit nowhere else"));
    close_rig(&r);

    open_rig(&r, "deepseek-v3", 0, 4096, "granite-rapids-2s"); /* 465 GiB a node */
    r.machine.device[0].domain[0].usable_bytes = (uint64_t)200 << 30;
    search(&r);
    printf("  %s\n", reason_with(&r, "decodes with"));
    assert_true(r.c.plan.nodes == 7); /* a socket */
    close_rig(&r);
}

/* Threads that were asked for stay, and stand beside the best. */
static void asked_for_threads_are_judged(void **state)
{
    (void)state;
    struct rig r;

    open_rig(&r, "qwen3-30b-a3b", 0, 4096, "cobalt-100-96");
    r.machine.device[0].config.threads = 12;
    search(&r);
    assert_int_equal(r.c.plan.threads, 0);
    const char *said = reason_with(&r, "decodes with 12 threads");
    assert_non_null(said);
    assert_non_null(strstr(said, "against"));
    close_rig(&r);
}

/* ---- crossovers ---- */

static uint32_t crossover_of(struct rig *r)
{
    bl_choice_finish(&r->c);
    search(r);
    return r->c.sent_from_tok[1];
}

static void crossovers_move_with_link_and_host(void **state)
{
    (void)state;
    struct rig r;

    open_rig(&r, "qwen3-235b-a22b", 0, 4096, "rtx-4090-ddr5-2ch");
    assert_int_equal(bl_machine_set(&r.machine, "cpu0.usable=400GiB"), BL_OK);
    const uint32_t as_is = crossover_of(&r);
    assert_true(as_is > BL_FEW_TOKENS && bl_plan_sends_to(&r.c.plan, r.model, 1));
    r.machine.link[0].ab_rated_bps *= 2;
    const uint32_t fast = crossover_of(&r);
    r.machine.link[0].ab_rated_bps /= 8;
    const uint32_t slow = crossover_of(&r);
    r.machine.link[0].ab_rated_bps *= 4;
    r.machine.device[0].cores /= 2;
    const uint32_t weak = crossover_of(&r);
    printf("  from %u tokens; link twice as fast %u, a quarter %u; half the cores %u\n", as_is,
           fast, slow, weak);
    assert_true(fast < as_is && (slow > as_is || !slow) && weak < as_is);
    close_rig(&r);
}

/* The step where it says so is where simulation has it. */
static void crossovers_are_those_of_simulation(void **state)
{
    (void)state;
    struct rig r;

    open_rig(&r, "gpt-oss-120b", 0, 16384, "rtx-3090-ddr5-2ch");
    r.opt.batch_tokens = 8192;
    search(&r);
    const uint32_t from = r.c.sent_from_tok[1];
    r.c.plan.ubatch_tokens = 8192;
    for (unsigned i = 0; i < 2; i++) {
        const uint32_t tok = i ? 4 * from : from / 4;
        double there, sent;
        assert_int_equal(bl_simulate(r.model, &r.c.plan, &r.machine, &r.so, tok, 0, &there), BL_OK);
        assert_int_equal(bl_simulate(r.model, &r.c.plan, &r.machine, &r.so, tok, 1, &sent), BL_OK);
        printf("  %u tokens: %.1f ms by the host, %.1f sent\n", tok, there * 1e-6, sent * 1e-6);
        assert_true((sent < there) == (i == 1));
    }
    close_rig(&r);
}

static void nothing_to_send_no_crossover(void **state)
{
    (void)state;
    static const char *const shapes[] = {"llama-3-8b", "gpt-oss-20b", "ernie-4.5-21b-a3b"};

    for (size_t i = 0; i < BL_COUNT(shapes); i++) { /* the last has a dense layer */
        struct rig r;
        open_rig(&r, shapes[i], 0, 4096, "rtx-5090-ddr5-2ch");
        search(&r);
        assert_false(bl_plan_sends_to(&r.c.plan, r.model, 1));
        assert_int_equal(r.c.sent_from_tok[1], 0);
        assert_null(reason_with(&r, "quicker sent"));
        close_rig(&r);
    }
}

/* ---- what does not fit ---- */

static void says_the_nearest_of_each_kind(void **state)
{
    (void)state;
    struct rig r;
    char *end;

    open_rig(&r, "gpt-oss-120b", 0, 131072, "rtx-3090-ddr5-2ch");
    assert_int_equal(bl_machine_set(&r.machine, "cpu0.usable=40GiB"), BL_OK);
    assert_int_equal(bl_search(&r.c, r.model, &r.machine, &r.opt, &r.so), BL_ENOFIT);
    char text[1024];
    snprintf(text, sizeof text, "%s", bl_error());
    printf("  %s\n", text);
    /* the context that it names fits, 256 tokens more do not */
    const char *at = strstr(text, "(-c ");
    assert_non_null(at);
    const uint64_t ctx = strtoull(at + 4, &end, 10);
    assert_non_null(strstr(text, "(-ctk q8_0 -ctv q8_0)"));
    /* the memory that it names is enough on the device that it names */
    const char *lacks = strstr(text, "lacks ");
    assert_non_null(lacks);
    const double gib = strtod(lacks + 6, &end);
    assert_memory_equal(end, " GiB on ", 8);
    char id[32], set[64];
    assert_int_equal(sscanf(end + 8, "%31[^,]", id), 1);
    snprintf(set, sizeof set, "%s.usable=%.2fGiB", id,
             (strcmp(id, "cpu0") ? 23.5 : 40) + gib + 0.05);
    assert_int_equal(bl_machine_set(&r.machine, set), BL_OK);
    search(&r);
    close_rig(&r);

    for (unsigned more = 0; more < 2; more++) {
        open_rig(&r, "gpt-oss-120b", 0, ctx + 512 * more, "rtx-3090-ddr5-2ch");
        assert_int_equal(bl_machine_set(&r.machine, "cpu0.usable=40GiB"), BL_OK);
        r.so.fixed_ubatch = true;
        const enum bl_status st = bl_search(&r.c, r.model, &r.machine, &r.opt, &r.so);
        if (!more)
            assert_int_equal(st, BL_OK);
        close_rig(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_node_of_two),
        cmocka_unit_test(one_socket_of_two),
        cmocka_unit_test(weights_choose_nodes),
        cmocka_unit_test(asked_for_threads_are_judged),
        cmocka_unit_test(crossovers_move_with_link_and_host),
        cmocka_unit_test(crossovers_are_those_of_simulation),
        cmocka_unit_test(nothing_to_send_no_crossover),
        cmocka_unit_test(says_the_nearest_of_each_kind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

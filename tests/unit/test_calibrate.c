/* SPDX-License-Identifier: MIT */
/* How many threads decode with: the rule for what was timed, a trial on this machine, and where a
 * plan puts blocks on machines with several memory nodes. */
#include "support.h"

#include "calibrate.h"
#include "engine_rig.h"
#include "mem.h"
#include "numa.h"
#include "thread.h"

static void least_threads_near_the_best(void **state)
{
    static const struct {
        double speed[4];
        uint32_t n, pick;
    } way[] = {
        {{100, 98, 90, 50}, 4, 1},
        {{100, 96, 90, 50}, 4, 0},
        {{100, 101, 99, 98}, 4, 3},
        {{50, 100, 98.5, 60}, 4, 2},
        {{10}, 1, 0},
        {{0, 0, 0, 0}, 4, 3},
        {{97, 100, 60, 97}, 4, 3},
    };
    (void)state;
    for (size_t i = 0; i < BL_COUNT(way); i++)
        assert_int_equal(bl_calibrate_pick(way[i].speed, way[i].n), way[i].pick);
}

static void doubt(void **state)
{
    static const struct {
        const char *text;
        bool in_doubt;
    } machine[] = {
        {"core:4 pu:1", false},
        {"core:8 pu:1", false},
        {"core:9 pu:1", true},
        {"core:2 pu:2", true},
        {"[numa] pack:2 core:4 pu:1", false},
        {"pack:2 [numa] core:2 pu:1", true},
    };
    struct bl_cpus c;
    (void)state;
    for (size_t i = 0; i < BL_COUNT(machine); i++) {
        assert_int_equal(bl_topology_cpus(&c, machine[i].text, NULL), BL_OK);
        assert_int_equal(bl_calibrate_in_doubt(&c), machine[i].in_doubt);
    }
}

/* Within its time, with a number of threads that was tried; or it says why it cannot tell. */
static void a_trial_here(void **state)
{
    struct bl_cpus c;
    struct bl_decode_way home = {0}, spread = {0};
    (void)state;
    assert_int_equal(bl_topology_cpus(&c, NULL, NULL), BL_OK);
    const uint64_t start = bl_now_ns();
    const enum bl_status st =
        bl_calibrate(&c, 0, false, (uint64_t)4 << 30, 200000000, &home, &spread);
    const double took = (double)(bl_now_ns() - start) * 1e-9;
    print_message("%.2f s: %s, %u threads, %.1f GB/s\n", took, bl_status_name(st), home.threads,
                  home.gb_per_s);
    assert_true(took < 5); /* 0.2 on a machine of one's own */
    if (st) {
        assert_int_equal(st, BL_EUNAVAILABLE);
        assert_memory_equal(bl_error(), "calibration: ", 13);
        assert_int_equal(home.threads, 0);
        return;
    }
    assert_in_range(home.threads, 1, c.n_home);
    assert_in_range(spread.threads, 1, c.n_cpus);
    assert_true(home.gb_per_s > 0.1 && home.gb_per_s < 10000);
}

static void no_trial_without_memory(void **state)
{
    struct bl_cpus c;
    struct bl_decode_way home = {0}, spread = {0};
    (void)state;
    assert_int_equal(bl_topology_cpus(&c, NULL, NULL), BL_OK);
    assert_int_equal(bl_calibrate(&c, 0, false, 1 << 20, 200000000, &home, &spread),
                     BL_EUNAVAILABLE);
    assert_non_null(strstr(bl_error(), "memory"));
}

/* ---- plans ---- */

struct wish {
    double home_gbs, spread_gbs;
    uint64_t free_bytes; /* of every node, 0 = as described */
    uint32_t threads;
    bool no_bind, no_mmap;
};

static struct bl_plan plan_for(const char *topology, const struct wish *w)
{
    struct bl_options opt = small();
    struct bl_model_options mo = {.ctx_tokens = 128, .type_k = BL_F32, .type_v = BL_F32};
    struct bl_gguf *gguf;
    struct bl_model *model;
    struct bl_machine machine;
    struct bl_plan plan;

    opt.topology = topology;
    opt.threads = w->threads;
    opt.no_bind = w->no_bind;
    opt.no_mmap = w->no_mmap;
    assert_int_equal(bl_gguf_open(&gguf, MODELS "llama-f32.gguf"), BL_OK);
    assert_int_equal(bl_model_open(&model, gguf, &mo), BL_OK);
    assert_int_equal(bl_machine_probe(&machine, &opt), BL_OK);
    machine.home.gb_per_s = w->home_gbs;
    machine.spread.gb_per_s = w->spread_gbs;
    if (w->spread_gbs > 0)
        machine.spread.threads = machine.cpus->n_cpus;
    for (uint32_t i = 0; w->free_bytes && i < machine.cpus->n_nodes; i++)
        machine.cpus->node[i].free_bytes = w->free_bytes;
    assert_int_equal(bl_plan_make(&plan, model, &machine, &opt), BL_OK);
    assert_int_equal(bl_ledger_planned(&plan.ledger, 0) > 100000, 1);
    bl_machine_finish(&machine);
    bl_model_close(model);
    bl_gguf_close(gguf);
    return plan;
}

#define TWO_NODES "pack:2 [numa(memory=8GiB)] core:4 pu:2"

static void blocks_lie_where_they_fit(void **state)
{
    static const struct {
        const char *topology;
        struct wish wish;
        uint64_t nodes;
        uint32_t threads;
        bool mmap;
    } c[] = {
        {"pack:2 core:4 pu:2", {.threads = 0}, 0, 0, true},
        {TWO_NODES, {.threads = 0}, 1, 4, false},
        {TWO_NODES, {.no_bind = true}, 0, 0, true},
        {TWO_NODES, {.no_mmap = true}, 1, 4, false},
        {TWO_NODES, {.free_bytes = 4096}, 3, 4, false},
        {TWO_NODES, {.threads = 3}, 1, 3, false},
        {TWO_NODES, {.home_gbs = 100, .spread_gbs = 110}, 1, 4, false},
        {TWO_NODES, {.home_gbs = 100, .spread_gbs = 130}, 3, 8, false},
        {TWO_NODES, {.home_gbs = 100, .spread_gbs = 130, .threads = 2}, 3, 2, false},
    };
    (void)state;
    for (size_t i = 0; i < BL_COUNT(c); i++) {
        struct bl_plan p = plan_for(c[i].topology, &c[i].wish);
        if (p.nodes != c[i].nodes || p.threads != c[i].threads || p.mmap != c[i].mmap)
            fail_msg("machine %zu: nodes %llx, %u threads, %s", i, (unsigned long long)p.nodes,
                     p.threads, p.mmap ? "mapped" : "read");
        bl_plan_finish(&p);
    }
}

/* ---- pages ---- */

static void pages_are_counted(void **state)
{
    const size_t bytes = (size_t)8 << 20;
    uint64_t on_node[BL_MAX_NODES], sum = 0;
    void *p;
    (void)state;
    assert_int_equal(bl_pages_alloc(bytes, &p), BL_OK);
    assert_int_equal((uintptr_t)p % (2 << 20), 0);
    assert_false(bl_numa_place(p, bytes, 0));
    const bool placed = bl_numa_place(p, bytes, 1);
    memset(p, 1, bytes / 2);
    if (!bl_numa_count(p, bytes, on_node)) {
        bl_pages_free(p, bytes);
        skip();
    }
    for (size_t i = 0; i < BL_MAX_NODES; i++)
        sum += on_node[i];
    assert_in_range(sum, bytes / 2, bytes / 2 + (2 << 20)); /* the untouched half is nowhere */
    if (placed)
        assert_int_equal(on_node[0], sum);
    bl_pages_free(p, bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(least_threads_near_the_best),
        cmocka_unit_test(doubt),
        cmocka_unit_test(a_trial_here),
        cmocka_unit_test(no_trial_without_memory),
        cmocka_unit_test(blocks_lie_where_they_fit),
        cmocka_unit_test(pages_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

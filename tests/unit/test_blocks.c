/* SPDX-License-Identifier: MIT */
/* Blocks that a device's largest allocation makes of what is laid out on it: offsets, memory, what
 * cannot be cut, and that plans keep that elsewhere (field case 59). */
#include "engine_rig.h"

#include "blocks.h"
#include "search_rig.h"
#include "sim/sim.h"
#include "slots.h"
#include "vulkan_rig.h"

/* ---- offsets ---- */

/* One by one, as they are counted. */
static void units_are_where_walking_finds_them(void **state)
{
    (void)state;
    uint64_t seed = 9;

    for (uint32_t i = 0; i < 2000; i++) {
        const uint64_t window = 64 * (1 + divide_pick(&seed, 40));
        const uint64_t each = 1 + divide_pick(&seed, (uint32_t)window);
        const uint64_t first = bl_unit_begin(divide_pick(&seed, 5000), each, window);
        uint64_t at = first;
        for (uint64_t k = 0; k < 40; k++) {
            assert_int_equal(bl_unit_at(first, each, k, window), at);
            assert_true(at / window == (at + each - 1) / window);
            const uint64_t together = bl_units_together(at, each, window);
            assert_true(together >= 1);
            assert_int_equal(bl_unit_at(first, each, k + together - 1, window),
                             at + (together - 1) * each);
            assert_true(bl_unit_at(first, each, k + together, window) != at + together * each ||
                        (at + together * each) % window == 0);
            at = bl_unit_begin(at + each, each, window);
        }
    }
    assert_int_equal(bl_unit_at(7, 100, 3, 0), 307);
    assert_int_equal(bl_unit_begin(7, 100, 0), 7);
}

static void layouts_count_what_is_left_free(void **state)
{
    (void)state;
    struct bl_layout at = {.window = 1024};

    assert_int_equal(bl_layout_add(&at, 1000, 1), 0);
    assert_int_equal(at.end, 1024);
    assert_int_equal(bl_layout_add(&at, 300, 4), 1024); /* three fit, the fourth is in the third */
    assert_int_equal(at.end, 2048 + 320);
    assert_int_equal(bl_layout_add(&at, 700, 1), 2048 + 320);
    assert_int_equal(bl_layout_add(&at, 10, 1), 3072);
    assert_int_equal(at.largest, 1000);
}

/* ---- memory ---- */

static void blocks_are_taken_and_given_back(void **state)
{
    (void)state;
    const struct bl_simulated limits = {.mem_bytes = 1 << 20};
    const struct bl_device_config config = {.block_bytes = 256 << 10, .sim = &limits};
    const struct bl_backend *sim = bl_backend_find("sim");
    struct bl_ledger ledger = {0};
    struct bl_blocks b = {0};
    struct bl_device *dev;
    struct bl_mem m;
    uint64_t inside;

    assert_int_equal(sim->open(0, &config, &dev), BL_OK);
    assert_int_equal(dev->caps.block_bytes, 256 << 10);
    assert_int_equal(dev->ops->mem_alloc(dev, (256 << 10) + 1, false, &m), BL_ENOMEM);
    assert_int_equal(
        bl_blocks_take(&b, &ledger, 1, dev, BL_MEM_WEIGHTS, 600 << 10, 256 << 10, false), BL_OK);
    assert_int_equal(b.n, 3);
    assert_int_equal(bl_ledger_measured(&ledger, 1), bl_align_up(600 << 10, 64 << 10));
    assert_ptr_equal(bl_blocks_at(&b, (256 << 10) + 5, &inside), &b.mem[1]);
    assert_int_equal(inside, 5);
    assert_int_equal(bl_blocks_addr(&b, (512 << 10) + 9), b.mem[2].addr + 9);
    bl_blocks_free(&b);
    assert_int_equal(bl_sim_taken_bytes(dev), 0);
    /* the fifth is not there: the four are the caller's to free */
    assert_int_equal(
        bl_blocks_take(&b, &ledger, 1, dev, BL_MEM_WEIGHTS, 1280 << 10, 256 << 10, false),
        BL_ENOMEM);
    assert_int_equal(b.n, 4);
    assert_int_equal(ledger.shortage.asked_bytes, 256 << 10);
    bl_blocks_free(&b);
    assert_int_equal(bl_sim_taken_bytes(dev), 0);
    assert_int_equal(bl_blocks_take(&b, &ledger, 1, dev, BL_MEM_WEIGHTS, 0, 256 << 10, false),
                     BL_OK);
    assert_int_equal(b.n, 0);
    bl_ledger_finish(&ledger);
    dev->ops->close(dev);
}

/* ---- engines ---- */

static void spread_is_as_one_block_on(const char *devices)
{
    static const char *const set[] = {"gpu0.block_bytes=128KiB"};
    struct bl_options opt = small(), with = small();
    struct bl_session *s;

    with.devices = devices;
    with.device_set = set;
    with.n_device_set = 1;
    for (uint32_t i = 0; i < 2; i++) {
        static const char *const models[] = {"qwen3moe-iq3", "llama-f32"};
        struct bl_engine *one = opened(models[i], &opt), *e;
        struct bl_engine_parts p = {0};
        char path[512];
        uint64_t seed = 4 + i;
        snprintf(path, sizeof path, MODELS "%s.gguf", models[i]);
        if (parts_open(&e, &p, &with, simulated_parts(&p, path, &with, &seed)))
            fail_msg("%s: %s", models[i], bl_error());
        print_message("%s on %s: %u blocks of weights, %u of state\n", models[i], devices,
                      e->weights.block[1].n, e->state_mem[1].n);
        assert_true(e->weights.block[1].n > 1);
        memory_is_as_planned(e);
        float *want = last_logits(one), *got = last_logits(e);
        assert_true(nmse(got, want, bl_engine_n_vocab(e)) < 1e-9);
        /* what is cached is found again, too */
        assert_int_equal(bl_session_create(&s, e), BL_OK);
        assert_int_equal(feed(e, s, prompt, N_PROMPT - 1), BL_OK);
        struct bl_session *twin;
        assert_int_equal(bl_session_fork(&twin, s), BL_OK);
        assert_int_equal(feed(e, twin, &prompt[N_PROMPT - 1], 1), BL_OK);
        assert_true(nmse(bl_logits(e, 0), want, bl_engine_n_vocab(e)) < 1e-9);
        bl_session_destroy(twin);
        bl_session_destroy(s);
        free(want);
        free(got);
        bl_close(one);
        bl_close(e);
    }
}

static void spread_on_a_simulated_card(void **state)
{
    (void)state;
    spread_is_as_one_block_on("sim0");
}

static void spread_on_vulkan(void **state)
{
    (void)state;
    if (!vulkan_here())
        skip();
    spread_is_as_one_block_on("vulkan0:1GiB");
}

/* ---- plans ---- */

/* Field case 59: a tensor of 5 GiB where 4 are the most; here 537 MiB and 256. */
static void what_cannot_be_cut_stays_on_the_host(void **state)
{
    (void)state;
    enum { LAYERS = 6 };
    const uint64_t most = 256 << 20;
    struct rig r;
    bool told = false;

    open_rig(&r, "deepseek-v4-flash", LAYERS, 8192, "4x-rtx-3060-ddr4-4ch");
    for (uint32_t d = 1; d < r.machine.n_devices; d++)
        r.machine.device[d].caps.block_bytes = most;
    if (bl_search(&r.c, r.model, &r.machine, &r.opt, &r.so))
        fail_msg("%s", bl_error());
    const struct bl_plan *p = &r.c.plan;
    assert_int_equal(bl_plan_device(p, -1, BL_PART_HEAD), 0);
    assert_int_equal(bl_plan_check_blocks(p, &r.machine), BL_OK);
    uint64_t on_cards = 0;
    for (uint16_t d = 1; d < r.machine.n_devices; d++) {
        assert_true(bl_ledger_planned(&p->ledger, d) <= bl_device_budget(&r.machine.device[d], 0));
        on_cards += bl_ledger_planned(&p->ledger, d);
    }
    assert_true(on_cards > 8 * most);
    for (uint32_t i = 0; i < r.c.n_reasons; i++)
        told = told || strstr(r.c.reason[i].text, "no card can have 0.52 GiB in one allocation");
    assert_true(told);
    /* put there by hand it is refused, and said why */
    struct bl_block_bytes blocks[BL_MAX_DEVICES];
    r.c.plan.slot[p->n_layers * BL_N_PARTS + BL_PART_HEAD] = 1;
    assert_int_equal(bl_plan_memory(&r.c.plan, r.model, &r.machine, blocks), BL_OK);
    assert_int_equal(bl_plan_check_blocks(p, &r.machine), BL_ENOFIT);
    assert_non_null(strstr(bl_error(), "gpu0 cannot have 0.52 GiB for weights in one piece"));
    close_rig(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(units_are_where_walking_finds_them),
        cmocka_unit_test(layouts_count_what_is_left_free),
        cmocka_unit_test(blocks_are_taken_and_given_back),
        cmocka_unit_test(spread_on_a_simulated_card),
        cmocka_unit_test(spread_on_vulkan),
        cmocka_unit_test(what_cannot_be_cut_stays_on_the_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: MIT */
/* Slots on several cards: which number of them is found against all numbers there are, and what
 * feeding them costs. */
#include "search_known.h"

#include "expert_share.h"
#include "plan_file.h"
#include "thread.h"

#include <math.h>

/* ---- against all numbers of slots ------------------------------------------------------------ */

struct instance {
    double card_bytes[2], card_bps[2], link_bps[2], host_bps, skew, again;
};

static void open_instance(struct rig *r, const struct instance *x)
{
    char text[2048];

    open_model(r, "gpt-oss-20b", 4, 2048);
    snprintf(text, sizeof text,
             "{\"ballast_machine\": 1, \"name\": \"typed\", \"devices\": [{\"id\": \"cpu0\", "
             "\"kind\": \"cpu\", \"cores\": 8, \"mem_bytes\": 64e9, \"usable_bytes\": 64e9, "
             "\"read_rated_bps\": %.0f, \"isa\": \"avx2\", \"clock_hz\": 4e9}, "
             "{\"id\": \"gpu0\", \"kind\": \"gpu\", \"backend\": \"cuda\", \"mem_bytes\": %.0f, "
             "\"usable_bytes\": %.0f, \"read_rated_bps\": %.0f, \"f16_macs_per_s\": 30e12}, "
             "{\"id\": \"gpu1\", \"kind\": \"gpu\", \"backend\": \"cuda\", \"mem_bytes\": %.0f, "
             "\"usable_bytes\": %.0f, \"read_rated_bps\": %.0f, \"f16_macs_per_s\": 30e12}], "
             "\"links\": [{\"a\": \"cpu0\", \"b\": \"gpu0\", \"ab_rated_bps\": %.0f, "
             "\"ba_rated_bps\": %.0f}, {\"a\": \"cpu0\", \"b\": \"gpu1\", \"ab_rated_bps\": %.0f, "
             "\"ba_rated_bps\": %.0f}]}",
             x->host_bps, x->card_bytes[0], x->card_bytes[0], x->card_bps[0], x->card_bytes[1],
             x->card_bytes[1], x->card_bps[1], x->link_bps[0], x->link_bps[0], x->link_bps[1],
             x->link_bps[1]);
    parse_machine(r, text);
    r->machine.device[0].config.threads = r->machine.device[0].config.threads_prefill = 8;
    r->so.prefill_weight = 0;
    r->so.fixed_ubatch = true;
    r->opt.ubatch_tokens = r->opt.batch_tokens = 16;
}

/* n slots for each layer of a card's attention; or the n most used experts of each. */
static void fill_layers(struct rig *r, struct bl_plan *p, const uint32_t n[2], const bool best[2])
{
    uint32_t order[256];

    p->n_ranges = p->n_slot_sets = 0;
    p->expert_policy = BL_EXPERTS_LRU;
    for (uint32_t l = 0; l < p->n_layers; l++) {
        const uint16_t home = bl_plan_device(p, (int)l, BL_PART_ATTN);
        uint16_t *at = &p->slot[l * BL_N_PARTS + BL_PART_EXPERTS];
        *at = 0;
        if (!home || !n[home - 1])
            continue;
        if (n[home - 1] == r->model->hp.n_expert) {
            *at = home;
        } else if (!best[home - 1]) {
            assert_int_equal(bl_plan_add_slots(p, l, home, n[home - 1]), BL_OK);
        } else {
            bl_expert_stats_order(p->known, l, order);
            for (uint32_t i = 0; i < n[home - 1]; i++)
                assert_int_equal(bl_plan_add_range(p, l, order[i], 1, home), BL_OK);
        }
    }
}

static double price(struct rig *r, struct bl_plan *p)
{
    assert_int_equal(bl_price_slots(p, r->model, &r->machine, &r->so), BL_OK);
    return score_of(r, p);
}

static double best_of_all(struct rig *r, uint32_t best_n[2])
{
    const uint32_t most = r->model->hp.n_expert, step = 2;
    struct bl_plan *p = &r->c.plan;
    double least = INFINITY;

    for (unsigned kinds = 0; kinds < 4; kinds++)
        for (uint32_t a = 0; a <= most; a += step)
            for (uint32_t b = 0; b <= most; b += step) {
                const uint32_t n[2] = {a, b};
                const bool best[2] = {kinds & 1, kinds >> 1};
                fill_layers(r, p, n, best);
                if (!fits(r, p))
                    break; /* more do not either */
                const double score = price(r, p);
                if (score < least) {
                    least = score;
                    best_n[0] = a + 100 * best[0];
                    best_n[1] = b + 100 * best[1];
                }
            }
    return least;
}

static void near_the_best_of_all(void **state)
{
    static const struct instance some[] = {
        {{0.8e9, 1.0e9}, {400e9, 400e9}, {12e9, 12e9}, 40e9, 0, 0.9},
        {{1.1e9, 0.9e9}, {900e9, 400e9}, {25e9, 3e9}, 60e9, 0.3, 0.85},
        {{0.9e9, 0.9e9}, {400e9, 400e9}, {0.5e9, 0.5e9}, 40e9, 1.2, 0.99},
        {{0.7e9, 1.2e9}, {400e9, 800e9}, {0.4e9, 30e9}, 50e9, 0.9, 0.85}};
    uint32_t with_slots = 0;

    (void)state;
    for (size_t i = 0; i < BL_COUNT(some); i++) {
        struct rig r;
        uint32_t n[2] = {0}, on[3] = {0};
        open_instance(&r, &some[i]);
        struct bl_expert_stats s = made(r.model, some[i].skew, some[i].again);
        search(&r, &s);
        const double found = price(&r, &r.c.plan);
        for (uint32_t k = 0; k < r.c.plan.n_slot_sets; k++)
            on[r.c.plan.slots[k].device]++;
        with_slots += on[1] && on[2];
        const uint32_t ranges = r.c.plan.n_ranges;
        const double least = best_of_all(&r, n);
        print_message("  %zu: sets of slots on the cards %u and %u, %u ranges: %.3f of the best, "
                      "which has %u and %u\n",
                      i, on[1], on[2], ranges, found / least, n[0], n[1]);
        assert_true(found <= least * 1.01);
        bl_expert_stats_finish(&s);
        close_rig(&r);
    }
    assert_true(with_slots > 0);
}

/* ---- what feeding costs ---------------------------------------------------------------------- */

static void open_slotted(struct rig *r, struct bl_expert_stats *s)
{
    const struct instance x = {{2.2e9, 1.2e9}, {400e9, 400e9}, {30e9, 30e9}, 40e9, 0, 0.9};
    uint32_t sets = 0;

    open_instance(r, &x);
    *s = made(r->model, x.skew, x.again);
    search(r, NULL);
    r->c.plan.known = s;
    r->c.plan.n_ranges = r->c.plan.n_slot_sets = 0;
    for (uint32_t l = 0; l < r->c.plan.n_layers; l++) {
        r->c.plan.slot[l * BL_N_PARTS + BL_PART_EXPERTS] = 0;
        for (uint16_t d = 1; d < 3; d++, sets++)
            assert_int_equal(bl_plan_add_slots(&r->c.plan, l, d, 4 * d), BL_OK);
    }
    r->c.plan.expert_policy = BL_EXPERTS_LRU;
    assert_int_equal(r->c.plan.n_slot_sets, sets);
}

/* Two sets of a layer have together what one of as many slots would have. */
static void sets_of_a_layer_share_its_hits(void **state)
{
    (void)state;
    struct bl_expert_stats s;
    struct rig r;

    open_slotted(&r, &s);
    for (uint32_t i = 0; i < r.machine.n_links; i++)
        r.machine.link[i].ab_measured_bps = r.machine.link[i].ba_measured_bps = 1e15;
    r.machine.device[0].read_rated_bps = 1e15;
    assert_int_equal(bl_price_slots(&r.c.plan, r.model, &r.machine, &r.so), BL_OK);
    const struct bl_slot_set *at = r.c.plan.slots;
    assert_int_equal(at[0].layer, at[1].layer);
    const double all = bl_expert_stats_recent(&s, 0, 12);
    assert_true(fabs(at[0].hit - all / 3) < 1e-6 && fabs(at[1].hit - all * 2 / 3) < 1e-6);
    r.c.plan.expert_policy = BL_EXPERTS_FIXED;
    assert_int_equal(bl_price_slots(&r.c.plan, r.model, &r.machine, &r.so), BL_OK);
    const double first = bl_expert_stats_best(&s, 0, 4), both = bl_expert_stats_best(&s, 0, 12);
    assert_true(fabs(at[0].hit - first) < 1e-6 && fabs(at[1].hit - (both - first)) < 1e-6);
    assert_true(!(r.c.plan.slot_load > 0)); /* nothing moves */
    bl_expert_stats_finish(&s);
    close_rig(&r);
}

/* What comes is read where the host reads what it computes with. */
static void copies_take_of_the_hosts_reading(void **state)
{
    (void)state;
    struct bl_expert_stats s;
    struct rig r;
    double load[2], with[2], without[2];

    open_slotted(&r, &s);
    for (unsigned i = 0; i < 2; i++) {
        struct bl_plan *p = &r.c.plan;
        r.machine.device[0].read_rated_bps = i ? 20e9 : 40e9;
        with[i] = price(&r, p);
        load[i] = p->slot_load;
        p->slot_load = 0;
        without[i] = score_of(&r, p);
        p->slot_load = load[i];
    }
    print_message("  %.2f and %.2f of the host's reading; %.2f and %.2f times as long for it\n",
                  load[0], load[1], with[0] / without[0], with[1] / without[1]);
    assert_true(load[0] > 0.02 && load[0] < 0.9);
    for (unsigned i = 0; i < 2; i++) {
        assert_true(with[i] > without[i] * (1 + load[i] / 4));
        assert_true(with[i] < without[i] / (1 - load[i]) * (1 + 1e-9));
    }
    /* bytes per token are as many, and a step takes nearly twice as long */
    assert_true(load[1] / load[0] > 0.8 && load[1] / load[0] < 1.6);
    bl_expert_stats_finish(&s);
    close_rig(&r);
}

/* Cards behind one hub come to less together than each alone would. */
static void hubs_are_shared(void **state)
{
    (void)state;
    struct bl_expert_stats s;
    struct rig r;
    double hit[3];

    open_slotted(&r, &s);
    struct bl_hub hub = {.id = "switch", .up = BL_NO_DEVICE, .bps = 3e9};
    r.machine.hub = calloc(1, sizeof hub);
    r.machine.hub[0] = hub;
    r.machine.n_hubs = 1;
    for (unsigned i = 0; i < 3; i++) {
        for (uint32_t k = 0; k < r.machine.n_links; k++)
            r.machine.link[k].via = i > k ? 0 : BL_NO_DEVICE;
        assert_int_equal(bl_price_slots(&r.c.plan, r.model, &r.machine, &r.so), BL_OK);
        hit[i] = r.c.plan.slots[0].hit;
    }
    print_message("  hits of %.3f without a hub, %.3f behind it, %.3f with another card there\n",
                  hit[0], hit[1], hit[2]);
    assert_true(hit[0] > hit[1] + 0.01);
    assert_true(hit[1] > hit[2] + 1e-4);
    bl_expert_stats_finish(&s);
    close_rig(&r);
}

/* No more than may move between two steps. */
static void moves_may_be_bounded(void **state)
{
    (void)state;
    struct bl_expert_stats s;
    struct rig r;
    double before = 1;

    open_slotted(&r, &s);
    for (uint64_t bytes = 64 << 20; bytes > 1 << 20; bytes /= 4) {
        r.c.plan.move_bytes = bytes;
        assert_int_equal(bl_price_slots(&r.c.plan, r.model, &r.machine, &r.so), BL_OK);
        const double hit = r.c.plan.slots[1].hit;
        assert_true(hit < before);
        before = hit;
    }
    bl_expert_stats_finish(&s);
    close_rig(&r);
}

/* ---- a real rig ------------------------------------------------------------------------------ */

static void several_cards_get_slots(void **state)
{
    (void)state;
    struct rig r;
    uint32_t sets[BL_MAX_DEVICES] = {0}, cards = 0;

    open_rig(&r, "deepseek-v4-flash", 0, 65536, "4x-rtx-3060-ddr4-4ch");
    struct bl_expert_stats s = made(r.model, 0, 0.97);
    search(&r, NULL);
    const double without = r.c.decode.tok_per_s;
    bl_choice_finish(&r.c);
    const uint64_t begin = bl_now_ns();
    search(&r, &s);
    const double took = (double)(bl_now_ns() - begin) * 1e-9;
    for (uint32_t i = 0; i < r.c.plan.n_slot_sets; i++)
        sets[r.c.plan.slots[i].device]++;
    for (uint16_t d = 1; d < r.machine.n_devices; d++)
        cards += sets[d] > 0;
    print_message("  slots on %u of 4 cards; %.2f tokens/s, %.2f without statistics; %.2f s\n",
                  cards, r.c.decode.tok_per_s, without, took);
    assert_true(cards > 1);
    assert_true(r.c.decode.tok_per_s > without);
    bl_expert_stats_finish(&s);
    close_rig(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(near_the_best_of_all),
        cmocka_unit_test(sets_of_a_layer_share_its_hits),
        cmocka_unit_test(copies_take_of_the_hosts_reading),
        cmocka_unit_test(hubs_are_shared),
        cmocka_unit_test(moves_may_be_bounded),
        cmocka_unit_test(several_cards_get_slots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

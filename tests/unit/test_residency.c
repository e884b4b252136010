/* SPDX-License-Identifier: MIT */
/* Which expert comes into which slot: policies, ties, eviction under pressure, statistics. */
#include "support.h"

#include "alloc_fail.h"
#include "experts.h"

#include <math.h>

enum { N_EXPERTS = 8 };

static struct bl_experts made(enum bl_expert_policy policy, uint32_t n_layers)
{
    struct bl_experts x;
    assert_int_equal(bl_experts_init(&x, n_layers, N_EXPERTS, policy), BL_OK);
    return x;
}

static void use(struct bl_experts *x, uint32_t layer, const int32_t *ids, uint32_t n_tok,
                uint32_t n_used)
{
    bl_experts_note(x, layer, ids, n_tok, n_used);
    bl_experts_end_step(x, n_tok);
}

/* Every expert sits in at most one slot, and both tables say the same. */
static void check(const struct bl_experts *x)
{
    for (uint32_t l = 0; l < x->stats.n_layers; l++)
        for (uint32_t e = 0; e < N_EXPERTS; e++) {
            uint32_t found = 0, where = BL_NO_EXPERT;
            for (uint32_t s = 0; s < x->n_sets; s++)
                for (uint32_t i = 0; x->set[s].layer == l && i < x->set[s].n; i++)
                    if (x->set[s].expert[i] == e) {
                        found++;
                        where = s;
                    }
            assert_true(found <= 1);
            assert_int_equal(x->at[l * N_EXPERTS + e], where);
        }
}

/* All moves there are, done at once; returns how many. */
static uint32_t settle(struct bl_experts *x)
{
    struct bl_expert_move m;
    uint32_t n = 0;

    for (; bl_experts_next(x, &m); n++) {
        assert_false(bl_experts_is_in(x, m.set, m.in));
        bl_experts_arrived(x, &m);
        assert_true(bl_experts_is_in(x, m.set, m.in));
        assert_true(n < 1000);
    }
    check(x);
    return n;
}

static void lru_keeps_the_last_used(void **state)
{
    (void)state;
    struct bl_experts x = made(BL_EXPERTS_LRU, 1);
    assert_int_equal(bl_experts_add_set(&x, 0, 1, 3), BL_OK);

    assert_int_equal(settle(&x), 3); /* nothing is known: the first ones */
    for (int32_t e = 2; e < N_EXPERTS; e++)
        use(&x, 0, &e, 1, 1), settle(&x);
    for (uint32_t e = 0; e < N_EXPERTS; e++)
        assert_int_equal(bl_experts_is_in(&x, 0, e), e >= 5);
    use(&x, 0, (const int32_t[]){5}, 1, 1);
    assert_int_equal(settle(&x), 0);
    use(&x, 0, (const int32_t[]){0}, 1, 1); /* 6 was used before 7 and 5 */
    struct bl_expert_move m;
    assert_true(bl_experts_next(&x, &m));
    assert_int_equal(m.in, 0);
    assert_int_equal(m.out, 6);
    assert_false(bl_experts_is_in(&x, 0, 0));
    assert_false(bl_experts_is_in(&x, 0, 6)); /* gone at once: its slot is written */
    bl_experts_arrived(&x, &m);
    assert_int_equal(x.n_uses, 8);
    assert_int_equal(x.n_hits, 2); /* 2 at the start, 5 */
    bl_experts_finish(&x);
}

/* One slot and four experts a token: whoever is in stays while it is used. */
static void one_slot_under_pressure(void **state)
{
    (void)state;
    struct bl_experts x = made(BL_EXPERTS_LRU, 1);
    assert_int_equal(bl_experts_add_set(&x, 0, 1, 1), BL_OK);

    assert_int_equal(settle(&x), 1);
    use(&x, 0, (const int32_t[]){4, 5, 6, 7}, 1, 4);
    assert_int_equal(settle(&x), 1);
    assert_true(bl_experts_is_in(&x, 0, 4));
    use(&x, 0, (const int32_t[]){7, 6, 5, 4}, 1, 4);
    assert_int_equal(settle(&x), 0);
    use(&x, 0, (const int32_t[]){7, 6, 5, 3}, 1, 4);
    assert_int_equal(settle(&x), 1);
    assert_true(
        bl_experts_is_in(&x, 0, 5)); /* used as often as 6 and 7, which have higher numbers */
    bl_experts_finish(&x);
}

/* In a step of many tokens the later ones count. */
static void prefill_keeps_what_its_end_used(void **state)
{
    (void)state;
    struct bl_experts x = made(BL_EXPERTS_LRU, 1);
    assert_int_equal(bl_experts_add_set(&x, 0, 1, 2), BL_OK);

    use(&x, 0, (const int32_t[]){0, 1, 2, 3, 4, 5}, 3, 2);
    settle(&x);
    assert_true(bl_experts_is_in(&x, 0, 4) && bl_experts_is_in(&x, 0, 5));
    assert_int_equal(x.stats.alone[0], 0);
    bl_experts_finish(&x);
}

static void fixed_is_filled_once(void **state)
{
    (void)state;
    struct bl_experts x = made(BL_EXPERTS_FIXED, 1);
    assert_int_equal(bl_experts_add_set(&x, 0, 1, 2), BL_OK);
    assert_int_equal(bl_experts_add_set(&x, 0, 2, 1), BL_OK);
    const uint64_t known[N_EXPERTS] = {0, 3, 9, 9, 1, 7, 0, 0};
    memcpy(x.stats.uses, known, sizeof known);
    x.stays[3] = true;

    assert_int_equal(settle(&x), 3);
    for (uint32_t e = 0; e < N_EXPERTS; e++) {
        assert_int_equal(bl_experts_is_in(&x, 0, e), e == 2 || e == 1);
        assert_int_equal(bl_experts_is_in(&x, 1, e), e == 5);
    }
    use(&x, 0, (const int32_t[]){0, 6, 7, 0, 6, 7}, 2, 3);
    assert_int_equal(settle(&x), 0);
    assert_int_equal(x.n_uses, 6);
    assert_int_equal(x.n_hits, 0);
    bl_experts_finish(&x);
}

static void off_moves_nothing(void **state)
{
    (void)state;
    struct bl_experts x = made(BL_EXPERTS_OFF, 1);
    assert_int_equal(bl_experts_add_set(&x, 0, 1, 2), BL_OK);
    use(&x, 0, (const int32_t[]){0, 1}, 2, 1);
    assert_int_equal(settle(&x), 0);
    bl_experts_finish(&x);
}

/* A slot on its way is neither used nor given away, and a bounded step does not starve a set. */
static void sets_take_turns(void **state)
{
    (void)state;
    struct bl_experts x = made(BL_EXPERTS_LRU, 3);
    struct bl_expert_move m[3];

    for (uint32_t l = 0; l < 3; l++)
        assert_int_equal(bl_experts_add_set(&x, l, 1, 1), BL_OK);
    for (uint32_t i = 0; i < 3; i++) {
        assert_true(bl_experts_next(&x, &m[i]));
        assert_int_equal(m[i].set, i);
    }
    for (uint32_t l = 0; l < 3; l++)
        bl_experts_note(&x, l, (const int32_t[]){5}, 1, 1);
    bl_experts_end_step(&x, 1);
    struct bl_expert_move none;
    assert_false(bl_experts_next(&x, &none));
    bl_experts_arrived(&x, &m[2]);
    assert_true(bl_experts_next(&x, &none));
    assert_int_equal(none.set, 2);
    assert_int_equal(none.in, 5);
    bl_experts_finish(&x);
}

/* Against a list kept by hand: random uses, bounded moves that arrive late. */
static void random_uses(void **state)
{
    (void)state;
    uint64_t seed = 1;

    for (uint32_t run = 0; run < 50; run++) {
        struct bl_experts x = made(BL_EXPERTS_LRU, 2);
        struct bl_expert_move late[4];
        uint32_t n_late = 0;
        for (uint32_t s = 0; s < 3; s++)
            assert_int_equal(bl_experts_add_set(&x, s % 2, (uint16_t)(1 + s / 2), 1 + run % 3),
                             BL_OK);
        for (uint32_t step = 0; step < 100; step++) {
            for (uint32_t l = 0; l < 2; l++) {
                int32_t ids[2];
                for (uint32_t k = 0; k < 2; k++) {
                    seed = seed * 6364136223846793005u + 1442695040888963407u;
                    ids[k] = (int32_t)(seed >> 60) % N_EXPERTS;
                }
                ids[1] = ids[1] == ids[0] ? (ids[0] + 1) % N_EXPERTS : ids[1];
                bl_experts_note(&x, l, ids, 1, 2);
            }
            bl_experts_end_step(&x, 1);
            while (n_late)
                bl_experts_arrived(&x, &late[--n_late]);
            while (n_late < 1 + step % 4 && bl_experts_next(&x, &late[n_late]))
                n_late++;
            check(&x);
        }
        while (n_late)
            bl_experts_arrived(&x, &late[--n_late]);
        settle(&x);
        /* every expert that sits nowhere was used no later than any that sits */
        for (uint32_t s = 0; s < x.n_sets; s++)
            for (uint32_t i = 0; i < x.set[s].n; i++)
                for (uint32_t e = 0; e < N_EXPERTS; e++) {
                    const size_t first = (size_t)x.set[s].layer * N_EXPERTS;
                    if (x.at[first + e] == BL_NO_EXPERT)
                        assert_true(x.last[first + e] <= x.last[first + x.set[s].expert[i]]);
                }
        bl_experts_finish(&x);
    }
}

static void garbage_is_not_counted(void **state)
{
    (void)state;
    struct bl_experts x = made(BL_EXPERTS_LRU, 1);
    use(&x, 0, (const int32_t[]){-1, N_EXPERTS, INT32_MAX, INT32_MIN}, 1, 4);
    for (uint32_t e = 0; e < N_EXPERTS; e++)
        assert_int_equal(x.stats.uses[e], 0);
    bl_experts_finish(&x);
}

/* ---- statistics ---- */

static void statistics_tell_hit_rates(void **state)
{
    (void)state;
    struct bl_experts x = made(BL_EXPERTS_OFF, 1);
    assert_true(bl_expert_stats_best(&x.stats, 0, 3) < 0);
    assert_true(bl_expert_stats_recent(&x.stats, 0, 3) < 0);
    /* 0 1 0 1 2 2 2 0: reuse after 1, 1, -, 0, 0, 2 others */
    for (const char *p = "01012220"; *p; p++)
        use(&x, 0, (const int32_t[]){*p - '0'}, 1, 1);
    assert_true(fabs(bl_expert_stats_recent(&x.stats, 0, 1) - 2 / 8.) < 1e-12);
    assert_true(fabs(bl_expert_stats_recent(&x.stats, 0, 2) - 4 / 8.) < 1e-12);
    assert_true(fabs(bl_expert_stats_recent(&x.stats, 0, 3) - 5 / 8.) < 1e-12);
    assert_true(fabs(bl_expert_stats_recent(&x.stats, 0, 99) - 5 / 8.) < 1e-12);
    assert_true(fabs(bl_expert_stats_best(&x.stats, 0, 1) - 3 / 8.) < 1e-12);
    assert_true(fabs(bl_expert_stats_best(&x.stats, 0, 2) - 6 / 8.) < 1e-12);
    uint32_t order[N_EXPERTS];
    bl_expert_stats_order(&x.stats, 0, order);
    const uint32_t want[N_EXPERTS] = {0, 2, 1, 3, 4, 5, 6, 7};
    assert_memory_equal(order, want, sizeof want);
    assert_int_equal(x.stats.n_tok, 8);
    bl_expert_stats_add(&x.stats, &x.stats);
    assert_int_equal(x.stats.uses[0], 6);
    x.stats.uses[0] = UINT64_MAX - 1;
    bl_expert_stats_add(&x.stats, &x.stats);
    assert_int_equal(x.stats.uses[0], UINT64_MAX);
    bl_experts_finish(&x);
}

/* What the statistics foretell is what slots of that number then have. */
static void foretold_is_what_comes(void **state)
{
    (void)state;

    for (uint32_t n = 1; n < N_EXPERTS; n++) {
        struct bl_experts x = made(BL_EXPERTS_LRU, 1);
        uint64_t seed = n;
        assert_int_equal(bl_experts_add_set(&x, 0, 1, n), BL_OK);
        for (uint32_t i = 0; i < 4000; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            const uint32_t r = (uint32_t)(seed >> 60), s = (uint32_t)(seed >> 56) & 15;
            use(&x, 0, (const int32_t[]){(int32_t)(r < s ? r : s) % N_EXPERTS}, 1, 1);
            settle(&x);
        }
        const double rate = (double)x.n_hits / (double)x.n_uses;
        assert_true(fabs(rate - bl_expert_stats_recent(&x.stats, 0, n)) < 0.01);
        bl_experts_finish(&x);
    }
}

static void out_of_memory(void **state)
{
    (void)state;
    for (uint64_t n = 1;; n++) {
        struct bl_experts x = {0};
        alloc_fail_at(n);
        enum bl_status st = bl_experts_init(&x, 2, N_EXPERTS, BL_EXPERTS_LRU);
        if (!st)
            st = bl_experts_add_set(&x, 0, 1, 2);
        if (!st)
            st = bl_experts_add_set(&x, 1, 1, 2);
        const bool failed = alloc_fail_stop();
        bl_experts_finish(&x);
        assert_int_equal(st, failed ? BL_ENOMEM : BL_OK);
        if (!failed)
            return;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lru_keeps_the_last_used),
        cmocka_unit_test(one_slot_under_pressure),
        cmocka_unit_test(prefill_keeps_what_its_end_used),
        cmocka_unit_test(fixed_is_filled_once),
        cmocka_unit_test(off_moves_nothing),
        cmocka_unit_test(sets_take_turns),
        cmocka_unit_test(random_uses),
        cmocka_unit_test(garbage_is_not_counted),
        cmocka_unit_test(statistics_tell_hit_rates),
        cmocka_unit_test(foretold_is_what_comes),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

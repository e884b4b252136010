/* SPDX-License-Identifier: MIT */
/* Experts that come to devices and go: results, memory, and that each is computed exactly once. */
#include "slots_rig.h"

#include "alloc_fail.h"

static struct bl_engine *slotted(const char *name, const struct bl_options *opt, uint32_t n_devices,
                                 enum bl_expert_policy policy, uint64_t *seed)
{
    struct bl_engine *e;
    if (slotted_open(&e, path_of(name), opt, n_devices, policy, seed))
        fail_msg("%s: %s", name, bl_error());
    return e;
}

static void slots_are_as_one_device(void **state)
{
    (void)state;
    uint64_t seed = 11, moves = 0, hits = 0;

    for (uint32_t i = 0; i < 4 * BL_COUNT(models); i++) {
        const char *name = models[i % BL_COUNT(models)];
        struct bl_options opt = small();
        opt.no_mmap = i & 1;
        struct bl_engine *one = opened(name, &opt);
        struct bl_engine *e =
            slotted(name, &opt, 2 + i / BL_COUNT(models) % 2, BL_EXPERTS_LRU, &seed);
        each_is_computed_once(e);
        slots_hold_what_they_say(e);
        memory_is_as_planned(e);
        assert_int_equal(bytes_for_slots(e) > 0, bl_plan_has_slots(&e->parts.plan));
        same_as(one, e, name, &seed);
        memory_is_as_planned(e);
        moves += e->residency.experts.n_moves;
        hits += e->residency.experts.n_hits;
        bl_close(one);
        bl_close(e);
    }
    print_message("%llu moves, %llu hits\n", (unsigned long long)moves, (unsigned long long)hits);
    assert_true(moves > 300);
    assert_true(hits > 1000);
}

/* What is known fills slots before the first step, and nothing moves. */
static void fixed_slots_stay(void **state)
{
    (void)state;
    struct bl_options opt = small();
    uint64_t seed = 2;
    struct bl_engine *one = opened("mixtral-f32", &opt), *e;
    struct bl_engine_parts p = {0};

    assert_int_equal(slotted_parts(&p, path_of("mixtral-f32"), &opt, 2, BL_EXPERTS_FIXED, &seed),
                     BL_OK);
    const uint32_t n = p.model->hp.n_expert;
    p.plan.n_ranges = p.plan.n_slot_sets = 0;
    for (uint32_t l = 0; l < p.plan.n_layers; l++) {
        p.plan.slot[l * BL_N_PARTS + BL_PART_EXPERTS] = 0;
        assert_int_equal(bl_plan_add_slots(&p.plan, l, 1, 1 + l % 2), BL_OK);
    }
    assert_int_equal(bl_plan_check(&p.plan, p.model, &p.machine), BL_OK);
    if (!p.device[1])
        assert_int_equal(p.machine.device[1].backend->open(0, &p.machine.device[1].config, //
                                                           &p.device[1]),
                         BL_OK);
    assert_int_equal(bl_expert_stats_init(&p.experts, p.plan.n_layers, n), BL_OK);
    for (uint32_t l = 0; l < p.plan.n_layers; l++)
        p.experts.uses[l * n + 3] = 5;
    assert_int_equal(bl_engine_create(&e, &p, &opt), BL_OK);
    for (uint32_t l = 0; l < e->parts.plan.n_layers; l++)
        for (uint32_t x = 0; x < n; x++)
            assert_int_equal(has(e, 1, l, x), x == 3 || (l % 2 && x == 0));
    same_as(one, e, "mixtral-f32", &seed);
    assert_int_equal(e->residency.experts.n_moves, 0);
    bl_close(one);
    bl_close(e);
}

/* What is filled once is placed instead: the host has no copy, nothing is kept in order, and the
 * experts elsewhere are those that slots would have had. */
/* Of those divided, which are filled by now, some are always used. */
static void hits_are_those_on_cards(const struct bl_engine *e, bool any)
{
    struct bl_expert_use use = {0};

    assert_int_equal(bl_engine_expert_use(e, &use), any);
    assert_true(!use.slots && !use.moves && use.hits <= use.uses);
    if (!any)
        return;
    const struct bl_plan *p = &e->parts.plan;
    const uint32_t n = e->parts.model->hp.n_expert;
    uint64_t uses = 0, hits = 0;
    for (uint32_t l = 0; l < p->n_layers; l++) {
        const uint32_t here = bl_plan_experts_on(p, l, n, 0);
        for (uint32_t x = 0; here && here < n && x < n; x++) {
            const size_t at = (size_t)l * n + x;
            const uint64_t known = at * 7919 % 101;
            const uint64_t since = e->residency.experts.stats.uses[at] -
                                   (e->parts.experts.uses && e->parts.experts.uses[1] ? known : 0);
            uses += since;
            hits += bl_plan_expert_device(p, l, x) ? since : 0;
        }
    }
    assert_int_equal(use.uses, uses);
    assert_int_equal(use.hits, hits);
}

static void fixed_slots_need_no_copies(void **state)
{
    (void)state;
    struct bl_options opt = small();
    opt.no_mmap = true;
    for (uint64_t seed = 1; seed < 9; seed++) {
        const char *name = models[seed % BL_COUNT(models)];
        uint64_t by = seed;
        struct bl_engine_parts p[2] = {{0}};
        struct bl_engine *one = opened(name, &opt), *e[2];
        struct bl_expert_stats known;
        for (unsigned i = 0; i < 2; i++) {
            by = seed;
            assert_int_equal(slotted_parts(&p[i], path_of(name), &opt, 3, BL_EXPERTS_FIXED, &by),
                             BL_OK);
            const uint32_t n = p[i].model->hp.n_expert;
            assert_int_equal(bl_expert_stats_init(&known, p[i].plan.n_layers, n), BL_OK);
            for (uint32_t x = 0; seed % 2 && x < known.n_layers * n; x++)
                known.uses[x] = x * 7919 % 101;
            p[i].experts = known;
            if (i)
                assert_int_equal(bl_plan_fix_slots(&p[i].plan, p[i].model, &known), BL_OK);
            assert_int_equal(bl_plan_check(&p[i].plan, p[i].model, &p[i].machine), BL_OK);
            assert_int_equal(bl_engine_create(&e[i], &p[i], &opt), BL_OK);
            memory_is_as_planned(e[i]);
        }
        for (uint32_t l = 0; l < e[0]->parts.plan.n_layers; l++)
            for (uint32_t x = 0; x < e[0]->parts.model->hp.n_expert; x++)
                assert_int_equal(has(e[0], 0, l, x), has(e[1], 0, l, x));
        assert_int_equal(e[1]->residency.experts.n_sets, 0);
        const bool slots = bl_plan_has_slots(&e[0]->parts.plan);
        assert_int_equal(e[1]->blocks[0].weights < e[0]->blocks[0].weights, slots);
        same_as(one, e[1], name, &by);
        hits_are_those_on_cards(e[1], slots);
        bl_close(one);
        bl_close(e[0]);
        bl_close(e[1]);
    }
}

static void off_takes_no_memory(void **state)
{
    (void)state;
    struct bl_options opt = small();
    uint64_t seed = 4;
    struct bl_engine *one = opened("mixtral-f32", &opt),
                     *e = slotted("mixtral-f32", &opt, 3, BL_EXPERTS_OFF, &seed);

    memory_is_as_planned(e);
    assert_int_equal(bytes_for_slots(e), 0);
    assert_null(e->residency.block);
    same_as(one, e, "mixtral-f32", &seed);
    bl_close(one);
    bl_close(e);
}

/* A step brings no more than it may, but always something. */
static void moves_are_bounded(void **state)
{
    (void)state;
    struct bl_options opt = small();
    uint64_t seed = 9;
    struct bl_engine_parts p = {0};
    struct bl_engine *e;
    struct bl_session *s;

    assert_int_equal(slotted_parts(&p, path_of("qwen3moe-iq3"), &opt, 2, BL_EXPERTS_LRU, &seed), //
                     BL_OK);
    for (uint32_t i = 0; i < p.plan.n_slot_sets; i++)
        p.plan.slots[i].n = 1;
    p.plan.move_bytes = 1;
    assert_int_equal(bl_engine_create(&e, &p, &opt), BL_OK);
    assert_int_equal(bl_session_create(&s, e), BL_OK);
    for (uint32_t i = 0; i < N_PROMPT; i++) {
        const uint64_t before = e->residency.experts.n_moves;
        assert_int_equal(feed(e, s, &prompt[i], 1), BL_OK);
        wait_for_all(e);
        assert_true(e->residency.experts.n_moves <= before + 1);
    }
    assert_true(e->residency.experts.n_moves > 0);
    bl_session_destroy(s);
    bl_close(e);
}

/* Counting alone needs no slots and no second device; counts are of tokens, not of padded rows. */
static void uses_are_counted(void **state)
{
    (void)state;
    for (uint32_t m = 0; m < BL_COUNT(models); m++) {
        struct bl_options opt = small();
        struct bl_engine_parts p = {0};
        struct bl_engine *e;
        struct bl_session *s;
        uint64_t seed = 1;
        assert_int_equal(slotted_parts(&p, path_of(models[m]), &opt, 2, BL_EXPERTS_OFF, &seed),
                         BL_OK);
        p.plan.count_experts = true;
        assert_int_equal(bl_engine_create(&e, &p, &opt), BL_OK);
        memory_is_as_planned(e);
        assert_int_equal(bl_session_create(&s, e), BL_OK);
        assert_int_equal(feed(e, s, prompt, 11), BL_OK);
        assert_int_equal(feed(e, s, prompt, 1), BL_OK);
        const struct bl_expert_stats *x = &e->residency.experts.stats;
        assert_int_equal(x->n_tok, 12);
        for (uint32_t l = 0; l < x->n_layers; l++) {
            uint64_t sum = 0;
            for (uint32_t k = 0; k < x->n_experts; k++)
                sum += x->uses[l * x->n_experts + k];
            const uint32_t used =
                e->parts.model->layer[l].moe ? e->parts.model->hp.n_expert_used : 0;
            assert_int_equal(sum, 12 * used);
            assert_int_equal(x->alone[l], used);
        }
        bl_session_destroy(s);
        bl_close(e);
    }
}

/* ---- plans ---- */

static void programs_with_slots_are_in_order(void **state)
{
    (void)state;
    uint64_t seed = 5;

    for (uint32_t k = 0; k < 40; k++) {
        struct bl_options opt = small();
        struct bl_engine_parts p = {0};
        assert_int_equal(slotted_parts(&p, path_of(models[k % BL_COUNT(models)]), &opt, 2 + k % 3,
                                       BL_EXPERTS_LRU, &seed),
                         BL_OK);
        for (uint32_t n_tok = 1; n_tok <= 16; n_tok += 15) {
            struct bl_program prog;
            const struct bl_shape s = bl_plan_bucket(&p.plan, n_tok, 1);
            assert_int_equal(bl_program_lower(&prog, p.model, &p.plan, &p.machine, &s), BL_OK);
            if (bl_program_verify(&prog))
                fail_msg("plan %u: %s", k, bl_error());
            bl_program_finish(&prog);
        }
        bl_engine_parts_finish(&p);
    }
}

static void refuse(struct bl_engine_parts *p, const struct bl_slot_set *s, const char *words)
{
    p->plan.slots = calloc(1, sizeof *s);
    p->plan.slots[0] = *s;
    p->plan.n_slot_sets = 1;
    if (!bl_plan_check(&p->plan, p->model, &p->machine))
        fail_msg("nothing is wrong with %u slots on device %u for layer %u", s->n, s->device,
                 s->layer);
    if (!strstr(bl_error(), words))
        fail_msg("'%s' lacks '%s'", bl_error(), words);
    free(p->plan.slots);
    p->plan.slots = NULL;
    p->plan.n_slot_sets = 0;
}

static void wrong_slots_are_refused(void **state)
{
    (void)state;
    struct bl_options opt = small();
    struct bl_engine_parts p = {0};
    uint64_t seed = 1;

    assert_int_equal(divide_parts(&p, path_of("mixtral-f32"), &opt, 2, &seed), BL_OK);
    p.plan.n_ranges = 0;
    p.plan.slot[BL_PART_EXPERTS] = 0;
    p.plan.slot[BL_N_PARTS + BL_PART_EXPERTS] = 1;
    refuse(&p, &(struct bl_slot_set){.layer = 99, .n = 1, .device = 1}, "which has none");
    refuse(&p, &(struct bl_slot_set){.layer = 0, .n = 1, .device = 0}, "must be another device");
    refuse(&p, &(struct bl_slot_set){.layer = 0, .n = 1, .device = 2}, "on device 2");
    refuse(&p, &(struct bl_slot_set){.layer = 0, .n = p.model->hp.n_expert + 1, .device = 1},
           "must be 1 to");
    refuse(&p, &(struct bl_slot_set){.layer = 1, .n = 1, .device = 1}, "must be 1 to 0");
    assert_int_equal(bl_plan_add_slots(&p.plan, 0, 1, 2), BL_OK);
    assert_int_equal(bl_plan_add_slots(&p.plan, 0, 1, 2), BL_EINVAL);
    assert_int_equal(bl_plan_add_slots(&p.plan, 0, 2, 0), BL_EINVAL);
    assert_int_equal(bl_plan_add_slots(&p.plan, 99, 1, 2), BL_EINVAL);
    alloc_fail_at(1);
    assert_int_equal(bl_plan_add_slots(&p.plan, 1, 1, 2), BL_ENOMEM);
    assert_true(alloc_fail_stop());
    p.plan.expert_policy = BL_EXPERTS_FIXED;
    for (uint32_t n = 1; n < 4; n++) {
        alloc_fail_at(n);
        assert_int_equal(bl_plan_fix_slots(&p.plan, p.model, NULL), BL_ENOMEM);
        assert_true(alloc_fail_stop());
    }
    p.plan.expert_policy = BL_N_EXPERT_POLICIES;
    assert_int_equal(bl_plan_check(&p.plan, p.model, &p.machine), BL_EINVAL);
    bl_engine_parts_finish(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_are_as_one_device),
        cmocka_unit_test(fixed_slots_stay),
        cmocka_unit_test(fixed_slots_need_no_copies),
        cmocka_unit_test(off_takes_no_memory),
        cmocka_unit_test(moves_are_bounded),
        cmocka_unit_test(uses_are_counted),
        cmocka_unit_test(programs_with_slots_are_in_order),
        cmocka_unit_test(wrong_slots_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

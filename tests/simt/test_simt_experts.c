/* SPDX-License-Identifier: MIT */
/* Experts of the host on emulated cards: sent to them for one step, or in slots that they come to
 * and leave. Results, memory, bytes over the link, and calls of the driver that fail.
 *
 *     test_simt_experts LIBRARY [--every | --one-of N]
 *                          --every: each call fails once, not only some; one case of N
 */
#include "cards_rig.h"
#include "native.h"
#include "program.h"
#include "sending.h"
#include "slots_rig.h"

enum { MOST_CALLS = 100000 };
static bool every;

static struct bl_engine *reference(const char *name, float **logits, uint32_t n_each)
{
    const struct bl_options opt = small();
    struct bl_engine *one = opened(name, &opt);

    *logits = prompt_logits(one, n_each);
    assert_non_null(*logits);
    return one;
}

static void same_rows(const char *name, struct bl_engine *e, uint32_t n_each, const float *want)
{
    float *got = prompt_logits(e, n_each);

    if (!got)
        fail_msg("%s: %s", name, bl_error());
    const double err = nmse(got, want, N_PROMPT * bl_engine_n_vocab(e));
    if (!(err < 1e-9))
        fail_msg("%s: NMSE %.2e", name, err);
    free(got);
}

/* ---- experts that are sent ---- */

static void send_natively(const char *name, uint32_t n, uint64_t seed, const float *want)
{
    struct bl_options opt = small();

    opt.exact = false;
    opt.type_k = opt.type_v = "f16";
    struct bl_engine *e = on_cards(name, &opt, n, sent_at_random, &seed);
    float *got = prompt_logits(e, 8);
    if (!got)
        fail_msg("%s: %s", name, bl_error());
    near_enough(name, got, want, bl_engine_n_vocab(e));
    memory_is_as_planned(e);
    free(got);
    bl_close(e);
    fresh_cards();
}

static void sent_experts_are_as_on_the_cpu(void **state)
{
    static const char *const of[] = {"mixtral-f32", "gpt-oss-mxfp4", "qwen3moe-iq3", "mixtral-f32"};
    uint64_t seed = 4, used = 0, staged = 0, direct = 0;

    (void)state;
    for (uint32_t i = 0; i < BL_COUNT(of); i++) {
        const uint64_t from = seed;
        struct bl_options opt = small();
        float *want;
        if (cards_leave_out())
            continue;
        struct bl_engine *one = reference(of[i], &want, 8);
        opt.no_mmap = i & 1;
        fresh_cards();
        struct bl_engine *e = on_cards(of[i], &opt, 1 + i % 2, sent_at_random, &seed);
        memory_is_as_planned(e);
        same_rows(of[i], e, 8, want);
        memory_is_as_planned(e);
        used += e->stage.used_bytes;
        staged += e->stage.ring[1].host.bytes;
        direct += opt.no_mmap ? e->stage.ring[1].mem.bytes : 0;
        bl_close(e);
        fresh_cards();
        send_natively(of[i], 1 + i % 2, from, want);
        free(want);
        bl_close(one);
    }
    assert_true(used > 0 && (staged > 0 || one_of > 1) && (direct > 0 || one_of > 1));
}

/* ---- slots ---- */

/* All but the experts on the first card. */
static void dense_on_first(struct bl_plan *p, const struct bl_model *m)
{
    (void)all_on_first(p, m, 2, NULL);
    for (uint32_t l = 0; l < p->n_layers; l++)
        if (m->layer[l].moe)
            p->slot[l * BL_N_PARTS + BL_PART_EXPERTS] = 0;
}

/* One or two for a layer on every card, so that experts come and go; one expert stays on the last.
 */
static enum bl_status with_slots(struct bl_plan *p, const struct bl_model *m, uint32_t n_devices,
                                 void *arg)
{
    (void)arg;
    dense_on_first(p, m);
    p->expert_policy = BL_EXPERTS_LRU;
    for (uint32_t l = 0; l < p->n_layers; l++) {
        if (!m->layer[l].moe)
            continue;
        BL_TRY(bl_plan_add_range(p, l, 1, 1, (uint16_t)(n_devices - 1)));
        for (uint16_t d = 1; d < n_devices; d++)
            BL_TRY(bl_plan_add_slots(p, l, d, 1 + (l + d) % 2));
    }
    return BL_OK;
}

static void slots_are_as_on_the_cpu(void **state)
{
    static const char *const of[] = {"qwen3moe-iq3", "gpt-oss-mxfp4", "mixtral-f32"};
    uint64_t moves = 0;

    (void)state;
    for (uint32_t i = 0; i < BL_COUNT(of); i++) {
        struct bl_options opt = small();
        float *want;
        if (cards_leave_out())
            continue;
        struct bl_engine *one = reference(of[i], &want, 1);
        opt.no_mmap = i & 1;
        fresh_cards();
        struct bl_engine *e = on_cards(of[i], &opt, 1 + i % 2, with_slots, NULL);
        memory_is_as_planned(e);
        same_rows(of[i], e, 1, want);
        wait_for_all(e);
        each_is_computed_once(e);
        slots_hold_what_they_say(e);
        same_rows(of[i], e, 1, want);
        memory_is_as_planned(e);
        moves += e->residency.experts.n_moves;
        free(want);
        bl_close(one);
        bl_close(e);
    }
    printf("%llu moves\n", (unsigned long long)moves);
    assert_true(moves > 20 || one_of > 1);
    fresh_cards();
}

static enum bl_status one_slot_each(struct bl_plan *p, const struct bl_model *m, uint32_t n_devices,
                                    void *arg)
{
    (void)n_devices, (void)arg;
    dense_on_first(p, m);
    p->expert_policy = BL_EXPERTS_LRU;
    for (uint32_t l = 0; l < p->n_layers; l++)
        if (m->layer[l].moe)
            BL_TRY(bl_plan_add_slots(p, l, 1, 1));
    return BL_OK;
}

/* ---- bytes ---- */

static enum bl_status sent_to_first(struct bl_plan *p, const struct bl_model *m, uint32_t n_devices,
                                    void *arg)
{
    (void)n_devices, (void)arg;
    dense_on_first(p, m);
    p->stream_from = 2;
    return BL_OK;
}

/* The driver says so, too. */
static void one_card_has_what_is_planned(const struct bl_engine *e)
{
    struct emu_counts c;

    memory_is_as_planned(e);
    face[0].read(&c);
    assert_int_equal(c.mem_bytes, bl_ledger_planned(&e->parts.plan.ledger, 1));
}

/* What a step copies to the card beside experts. */
static uint64_t other_bytes(struct bl_engine *e, uint32_t n_tok)
{
    const struct bl_shape s = bl_plan_bucket(&e->parts.plan, n_tok, n_tok);
    const struct bl_program *p;
    uint64_t bytes = e->params.bytes;

    ok(bl_engine_program(e, &s, &p));
    for (uint32_t i = 0; i < p->n_copies; i++)
        bytes += p->copy[i].to ? bl_value_bytes(&p->graph.vals[p->copy[i].val]) : 0;
    return bytes;
}

/* Experts that the engine says it gave to the card. */
static uint64_t given_bytes(const struct bl_engine *e)
{
    return e->stage.sent_bytes + e->residency.moved_bytes;
}

static void link_carries(const char *name, place_fn *place, uint32_t n_each, bool no_mmap)
{
    struct bl_options opt = small();
    struct bl_session *s;

    opt.no_mmap = no_mmap;
    fresh_cards();
    struct bl_engine *e = on_cards(name, &opt, 1, place, NULL);
    one_card_has_what_is_planned(e);
    ok(bl_session_create(&s, e));
    for (uint32_t i = 0; i < N_PROMPT; i += n_each) {
        const uint64_t before = cards_counts().to_card_bytes, given = given_bytes(e);
        ok(feed(e, s, &prompt[i], n_each));
        wait_for_all(e);
        assert_int_equal(cards_counts().to_card_bytes - before,
                         given_bytes(e) - given + other_bytes(e, n_each));
    }
    printf("%llu bytes were sent, of use %llu; %llu moved\n",
           (unsigned long long)e->stage.sent_bytes, (unsigned long long)e->stage.used_bytes,
           (unsigned long long)e->residency.moved_bytes);
    assert_true(given_bytes(e) > 0);
    assert_true((double)e->stage.sent_bytes <= 1.02 * (double)e->stage.used_bytes);
    bl_session_destroy(s);
    bl_close(e);
}

static void links_carry_what_is_used(void **state)
{
    (void)state;
    for (uint32_t no_mmap = 0; no_mmap < 2 && !cards_leave_out(); no_mmap++) {
        link_carries("mixtral-f32", sent_to_first, 8, no_mmap);
        link_carries("qwen3moe-iq3", one_slot_each, 1, no_mmap);
    }
    fresh_cards();
}

/* ---- calls that fail ---- */

static enum bl_status both_ways(struct bl_plan *p, const struct bl_model *m, uint32_t n_devices,
                                void *arg)
{
    BL_TRY(one_slot_each(p, m, n_devices, arg));
    p->stream_from = 4;
    return BL_OK;
}

/* Opens, sends experts for a step, then moves some. */
static enum bl_status use(bool no_mmap)
{
    struct bl_options opt = small();
    struct bl_engine *e = NULL;
    struct bl_session *s = NULL;

    opt.no_mmap = no_mmap;
    opt.watchdog_s = 20;
    BL_TRY(cards_open(&e, "mixtral-f32", &opt, 1, both_ways, NULL));
    enum bl_status st = bl_session_create(&s, e);
    if (!st)
        st = feed(e, s, prompt, 4);
    for (uint32_t i = 4; !st && i < 7; i++) {
        st = feed(e, s, &prompt[i], 1);
        if (!st)
            st = bl_residency_arrive(&e->residency, NULL, true);
    }
    bl_session_destroy(s);
    bl_close(e);
    return st;
}

static void fail_calls(bool no_mmap)
{
    struct emu_config c = *usual_cards();
    uint32_t n_failed = 0, n_tried = 0, n = 1;

    c.late_us = 0;
    for (enum bl_status st = BL_EDEVICE; n < MOST_CALLS; n += every ? 1 : 1 + one_of * n / 8) {
        c.fail_nth = n;
        fresh_cards_like(&c);
        st = use(no_mmap);
        n_tried++;
        n_failed += st != BL_OK;
        if (st && (strlen(bl_error()) < 8 || st == BL_ETIMEDOUT))
            fail_msg("call %u: '%s'", n, bl_error());
        if (!st && cards_counts().calls < n)
            break;
    }
    fresh_cards();
    printf("%u of %u calls that failed were told, of up to %u\n", n_failed, n_tried - 1, n);
    assert_true(n < MOST_CALLS && n_failed * 10 > n_tried * 8);
    ok(use(no_mmap));
    fresh_cards();
}

static void any_call_may_fail(void **state)
{
    (void)state;
    fail_calls(false);
    fail_calls(true);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sent_experts_are_as_on_the_cpu),
        cmocka_unit_test(slots_are_as_on_the_cpu),
        cmocka_unit_test(links_carry_what_is_used),
        cmocka_unit_test(any_call_may_fail),
    };

    every = argc > 2 && !strcmp(argv[2], "--every");
    return cards_load(argc, argv) ? cmocka_run_group_tests(tests, NULL, NULL) : 2;
}

/* SPDX-License-Identifier: MIT */
/* Emulated cards that reach each other: what goes from one to the other does not pass the host, as
 * it was predicted; where what arrives is not what was sent, it does. */
#include "cards_rig.h"
#include "native.h"
#include "program.h"
#include "timeline.h"

static const struct emu_config peers = {.n_cards = 3, .late_us = 50, .seed = 5, .peers = true};
static const struct emu_config liars = {
    .n_cards = 3, .late_us = 50, .seed = 5, .peers = true, .peers_lie = true};

/* Layers by turns on all cards, nothing on the host. */
static enum bl_status by_turns(struct bl_plan *p, const struct bl_model *m, uint32_t n_devices,
                               void *arg)
{
    (void)m, (void)arg;
    for (uint32_t l = 0; l <= p->n_layers; l++)
        for (uint32_t part = 0; part < BL_N_PARTS; part++)
            p->slot[l * BL_N_PARTS + part] = (uint16_t)(1 + l % (n_devices - 1));
    p->slot[p->n_layers * BL_N_PARTS + BL_PART_EMBED] = 1;
    return BL_OK;
}

static enum bl_status anywhere(struct bl_plan *p, const struct bl_model *m, uint32_t n_devices,
                               void *arg)
{
    return scatter_plan(p, m, n_devices, arg);
}

static void same_logits(struct bl_engine *e, const char *name)
{
    const struct bl_options opt = small();
    struct bl_engine *one = opened(name, &opt);
    float *want = prompt_logits(one, 5), *got = prompt_logits(e, 5);

    if (!want || !got)
        fail_msg("%s: %s", name, bl_error());
    const double err = nmse(got, want, N_PROMPT * bl_engine_n_vocab(e));
    if (!(err < 1e-9))
        fail_msg("%s: NMSE %.2e", name, err);
    free(want);
    free(got);
    bl_close(one);
}

static uint32_t n_direct(const struct bl_machine *m)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < m->n_links; i++)
        n += m->link[i].a && m->link[i].b;
    return n;
}

static void one_token_more(struct bl_engine *e, struct bl_session *s, struct emu_counts *used)
{
    struct emu_counts before, after;

    face[0].read(&before);
    ok(feed(e, s, &prompt[1], 1));
    face[0].read(&after);
    used->to_card_bytes = after.to_card_bytes - before.to_card_bytes;
    used->from_card_bytes = after.from_card_bytes - before.from_card_bytes;
    used->peer_copies = after.peer_copies - before.peer_copies;
}

/* Of the last steps, as a trace tells it. */
static void trace_tells_of_them(const struct bl_engine *e, const struct emu_counts *used)
{
    const uint32_t n = e->parts.machine.n_devices;
    struct bl_trace_device *d = calloc(n, sizeof *d);
    struct bl_trace_sum sum;
    uint64_t in = 0, out = 0, direct = 0;

    assert_non_null(d);
    ok(bl_trace_sum_up(e->sched.trace, n, &sum, d));
    for (uint32_t i = 1; i < n; i++) {
        in += d[i].in_bytes;
        out += d[i].out_bytes;
        direct += d[i].direct_bytes;
    }
    assert_int_equal(in, used->to_card_bytes);
    assert_int_equal(out, used->from_card_bytes);
    assert_true(direct > 0);
    free(d);
}

static void the_host_carries_no_activations(void **state)
{
    const struct bl_options opt = small();
    struct emu_counts used;
    struct bl_session *s;
    (void)state;

    for (uint32_t n = 2; n <= 3; n++) {
        fresh_cards_like(&peers);
        struct bl_engine *e = on_cards("llama-f32", &opt, n, by_turns, NULL);
        assert_int_equal(n_direct(&e->parts.machine), n * (n - 1) / 2);
        memory_is_as_planned(e);
        same_logits(e, "llama-f32");
        ok(bl_session_create(&s, e));
        ok(feed(e, s, prompt, 1));
        ok(bl_engine_trace(e, true));
        one_token_more(e, s, &used);
        trace_tells_of_them(e, &used);
        /* params go to each card, logits come back */
        assert_int_equal(used.to_card_bytes, n * e->params.bytes);
        assert_int_equal(used.from_card_bytes, bl_engine_n_vocab(e) * sizeof(float));
        assert_true(used.peer_copies >= e->parts.plan.n_layers - 1);
        bl_session_destroy(s);
        memory_is_as_planned(e);
        bl_close(e);
    }
    fresh_cards();
}

/* The program that is run is the one that times are predicted for. */
static void copies_are_as_predicted(void **state)
{
    const struct bl_options opt = small();
    const struct bl_timeline_options to = {.keep_events = true};
    struct emu_counts used;
    struct bl_timeline t;
    struct bl_session *s;
    uint32_t n = 0;
    (void)state;

    fresh_cards_like(&peers);
    struct bl_engine *e = on_cards("llama-f32", &opt, 2, by_turns, NULL);
    const struct bl_engine_parts *p = &e->parts;
    for (uint32_t d = 0; d < p->machine.n_devices; d++) {
        struct bl_machine_device *md = &p->machine.device[d];
        md->read_rated_bps = 100e9;
        md->f32_macs_per_s = md->f16_macs_per_s = md->i8_macs_per_s = 1e12;
    }
    ok(bl_timeline_predict(&t, p->model, &p->plan, &p->machine, 1, &to));
    for (uint32_t i = 0; i < t.n_events; i++)
        if (t.event[i].kind == BL_EVENT_COPY) {
            assert_true(t.event[i].from && t.event[i].to &&
                        t.event[i].end_ns > t.event[i].begin_ns);
            n++;
        }
    bl_timeline_finish(&t);
    ok(bl_session_create(&s, e));
    ok(feed(e, s, prompt, 1));
    one_token_more(e, s, &used);
    assert_true(n > 0);
    assert_int_equal(used.peer_copies, n);
    bl_session_destroy(s);
    bl_close(e);
    fresh_cards();
}

static void any_plan_is_as_on_the_cpu(void **state)
{
    static const char *const of[] = {"mixtral-f32", "gpt-oss-mxfp4", "qwen3moe-iq3",
                                     "qwen3next-f32", "deepseek4-f32"};
    uint64_t seed = 17;
    uint32_t n_copies = 0, n = 0;
    (void)state;

    for (uint32_t i = 0; i < BL_COUNT(of); i++) {
        const struct bl_options opt = small();
        const uint64_t from = seed;
        const struct bl_program *p;
        if (cards_leave_out())
            continue;
        n++;
        fresh_cards_like(&peers);
        struct bl_engine *e = on_cards(of[i], &opt, 2 + i % 2, anywhere, &seed);
        const struct bl_shape shape = bl_plan_bucket(&e->parts.plan, 5, 5);
        printf("seed %llu: %s\n", (unsigned long long)from, of[i]);
        memory_is_as_planned(e);
        ok(bl_engine_program(e, &shape, &p));
        ok(bl_program_verify(p));
        same_logits(e, of[i]);
        memory_is_as_planned(e);
        n_copies += cards_counts().peer_copies;
        bl_close(e);
    }
    assert_true(n_copies > 20 * n);
    fresh_cards();
}

static void one_that_lies_is_passed_by(void **state)
{
    const struct bl_options opt = small();
    struct emu_counts used;
    struct bl_session *s;
    (void)state;

    fresh_cards_like(&liars);
    struct bl_engine *e = on_cards("llama-f32", &opt, 2, by_turns, NULL);
    assert_int_equal(n_direct(&e->parts.machine), 0);
    memory_is_as_planned(e);
    same_logits(e, "llama-f32");
    ok(bl_session_create(&s, e));
    one_token_more(e, s, &used);
    assert_int_equal(used.peer_copies, 0);
    assert_true(used.to_card_bytes > 2 * e->params.bytes);
    bl_session_destroy(s);
    memory_is_as_planned(e);
    bl_close(e);
    fresh_cards();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_host_carries_no_activations),
        cmocka_unit_test(copies_are_as_predicted),
        cmocka_unit_test(any_plan_is_as_on_the_cpu),
        cmocka_unit_test(one_that_lies_is_passed_by),
    };

    return cards_load(argc, argv) ? cmocka_run_group_tests(tests, NULL, NULL) : 2;
}

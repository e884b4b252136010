/* SPDX-License-Identifier: MIT */
/* Predicted times: what a bandwidth, a link and a second device change, and by how much. */
#include "support.h"

#include "machine_file.h"
#include "planner.h"
#include "timeline.h"

#include <math.h>

/* step_ns takes the place of what a layer costs besides bytes. */
static const char machine_text[] =
    "{\"ballast_machine\": 1, \"name\": \"two cards\", \"devices\": ["
    "{\"id\": \"cpu0\", \"kind\": \"cpu\", \"cores\": 8, \"mem_bytes\": \"256GiB\", "
    "\"read_rated_bps\": 50e9, \"isa\": \"avx512-vnni\", \"clock_hz\": 4e9},"
    "{\"id\": \"gpu0\", \"kind\": \"gpu\", \"backend\": \"cuda\", \"mem_bytes\": \"48GiB\", "
    "\"read_rated_bps\": 800e9, \"f16_macs_per_s\": 50e12, \"step_ns\": 1},"
    "{\"id\": \"gpu1\", \"kind\": \"gpu\", \"backend\": \"cuda\", \"mem_bytes\": \"48GiB\", "
    "\"read_rated_bps\": 800e9, \"f16_macs_per_s\": 50e12, \"step_ns\": 1}],"
    "\"links\": [{\"a\": \"cpu0\", \"b\": \"gpu0\", \"ab_rated_bps\": 16e9, \"ba_rated_bps\": "
    "16e9},"
    "{\"a\": \"cpu0\", \"b\": \"gpu1\", \"ab_rated_bps\": 16e9, \"ba_rated_bps\": 16e9}]}";

/* What a probe gives, in round numbers. */
static const char measured_text[] =
    "{\"ballast_machine\": 1, \"name\": \"measured\", \"devices\": ["
    "{\"id\": \"cpu0\", \"kind\": \"cpu\", \"cores\": 2, \"mem_bytes\": \"64GiB\", "
    "\"read_measured_bps\": 40e9, \"step_ns\": 500, \"rates\": {\"default\": "
    "{\"decode_bps\": 40e9, \"macs_per_s_8\": 400e9, \"macs_per_s_64\": 640e9, "
    "\"macs_per_s_512\": 703e9}}, \"step_rates\": {\"few\": {\"moved_bps\": 200e9}, "
    "\"many\": {\"moved_bps\": 40e9, \"arranged_per_s\": 8e9}}, \"kv_rates\": {\"few\": {"
    "\"f16\": {\"scores_per_s\": 2e9, \"macs_per_s\": 400e9, \"values_per_s\": 50e9}}, "
    "\"many\": {\"f16\": {\"scores_per_s\": 7e9, \"macs_per_s\": 200e9}}}}]}";

struct rig {
    struct bl_synth *synth;
    struct bl_model *model;
    struct bl_machine machine;
    struct bl_plan plan;
};

static void open_rig_with(struct rig *r, const char *shape, const char *machine, enum bl_dtype kv)
{
    const struct bl_synth_options so = {
        .shape = shape, .layers = 6, .vocab = 4096, .no_data = true};
    const struct bl_model_options mo = {.ctx_tokens = 16384, .type_k = kv, .type_v = kv};
    const struct bl_options opt = {.ubatch_tokens = 512, .batch_tokens = 512};

    memset(r, 0, sizeof *r);
    assert_int_equal(bl_synth_open(&r->synth, &so), BL_OK);
    assert_int_equal(bl_model_open(&r->model, bl_synth_gguf(r->synth), &mo), BL_OK);
    if (bl_machine_parse(&r->machine, "test", machine, strlen(machine)))
        fail_msg("%s", bl_error());
    assert_int_equal(bl_plan_init(&r->plan, r->model), BL_OK);
    assert_int_equal(bl_plan_size_steps(&r->plan, r->model, &opt), BL_OK);
}

static void open_rig_on(struct rig *r, const char *shape, const char *machine)
{
    open_rig_with(r, shape, machine, BL_F16);
}

static void open_rig(struct rig *r, const char *shape)
{
    open_rig_on(r, shape, machine_text);
}

static void close_rig(struct rig *r)
{
    bl_plan_finish(&r->plan);
    bl_machine_finish(&r->machine);
    bl_model_close(r->model);
    bl_synth_close(r->synth);
}

static void put(struct rig *r, uint16_t rest, uint16_t experts)
{
    for (uint32_t l = 0; l < r->plan.n_layers; l++)
        for (uint32_t part = 0; part < BL_N_PARTS; part++)
            r->plan.slot[l * BL_N_PARTS + part] = part == BL_PART_EXPERTS ? experts : rest;
    r->plan.slot[r->plan.n_layers * BL_N_PARTS + BL_PART_HEAD] = rest;
}

static double predict(struct rig *r, uint32_t n_tok, uint64_t depth, struct bl_timeline *keep)
{
    const struct bl_timeline_options opt = {.depth_tokens = depth, .keep_events = keep != NULL};
    struct bl_timeline t = {0};

    if (bl_timeline_predict(&t, r->model, &r->plan, &r->machine, n_tok, &opt))
        fail_msg("%s", bl_error());
    const double ns = t.ns;
    assert_true(isfinite(ns) && ns > 0);
    if (keep)
        *keep = t;
    else
        bl_timeline_finish(&t);
    return ns;
}

static double set(struct rig *r, const char *assignment, uint32_t n_tok)
{
    if (bl_machine_set(&r->machine, assignment))
        fail_msg("%s", bl_error());
    return predict(r, n_tok, 0, NULL);
}

#define assert_near(a, b) assert_true(fabs((a) - (b)) <= 1e-3 * fabs(b))

/* Half the bandwidth: what was bytes takes twice as long, what was not stays. */
static void decode_follows_the_memory_of_a_card(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r, "gpt-oss-20b");
    put(&r, 1, 1);
    const double whole = predict(&r, 1, 0, NULL);
    const double half = set(&r, "gpu0.read=400GB/s", 1), quarter = set(&r, "gpu0.read=200GB/s", 1);
    assert_true(half > 1.5 * whole);
    assert_near(quarter - half, 2 * (half - whole));
    /* The other card's memory does not matter. */
    assert_true(set(&r, "gpu1.read=200GB/s", 1) == quarter);
    close_rig(&r);
}

static void decode_follows_ram_where_experts_lie_there(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r, "gpt-oss-20b");
    put(&r, 1, 0);
    struct bl_timeline t = {0};
    const double whole = predict(&r, 1, 0, &t), in_ram = t.device[0].run_ns;
    assert_true(in_ram > 0.5 * whole && in_ram < whole);
    const double half = set(&r, "cpu0.read=25GB/s", 1);
    /* Unpacking, which overlaps with reading, hides a little of it. */
    assert_true(half - whole > 0.8 * in_ram && half - whole < 1.01 * in_ram);
    bl_timeline_finish(&t);
    close_rig(&r);
}

static void attention_costs_more_at_depth(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r, "qwen3-30b-a3b");
    put(&r, 1, 1);
    const double at_0 = predict(&r, 1, 0, NULL), at_4k = predict(&r, 1, 4096, NULL),
                 at_8k = predict(&r, 1, 8192, NULL);
    assert_near(at_8k - at_4k, at_4k - at_0);
    assert_true(at_4k > at_0);
    assert_true(predict(&r, 512, 8192, NULL) > predict(&r, 512, 0, NULL));
    close_rig(&r);
}

/* Experts of every token on the card, chosen ones in RAM: both work at the same time. */
static void two_devices_overlap(void **state)
{
    (void)state;
    struct rig r;
    struct bl_timeline t = {0};
    open_rig(&r, "glm-4.5-air");
    put(&r, 1, 0);
    assert_int_equal(bl_machine_set(&r.machine, "gpu0.read=20GB/s"), BL_OK);
    const double ns = predict(&r, 1, 0, &t);
    double sum = 0, alone = 0;
    for (uint32_t d = 0; d < t.n_devices; d++)
        sum += t.device[d].run_ns + t.device[d].copy_ns;
    for (uint32_t i = 0; i < t.n_events; i++) { /* while the host computes, the card begins */
        const struct bl_event *a = &t.event[i];
        for (uint32_t k = 0; a->device == 0 && k < t.n_events; k++) {
            const struct bl_event *b = &t.event[k];
            if (b->device == 1 && b->kind == BL_EVENT_RUN && b->begin_ns < a->end_ns &&
                b->end_ns > a->begin_ns)
                alone += fmin(a->end_ns, b->end_ns) - fmax(a->begin_ns, b->begin_ns);
        }
    }
    assert_true(alone > 0 && ns >= sum - alone - 1);
    bl_timeline_finish(&t);
    close_rig(&r);
}

static void a_slow_link_shows(void **state)
{
    (void)state;
    struct rig r;
    struct bl_timeline t = {0};
    open_rig(&r, "gpt-oss-20b");
    put(&r, 1, 2); /* every layer's experts on the other card: there and back by way of the host */
    const double fast = predict(&r, 512, 0, &t);
    const double on_link = t.device[2].copy_ns;
    bl_timeline_finish(&t);
    const double slow = set(&r, "link1.bps=1GB/s", 512);
    assert_true(on_link > 0);
    assert_near(slow - fast, 15 * on_link);
    /* Two cards pay for every crossing, one does not. */
    put(&r, 1, 1);
    const double together = predict(&r, 1, 0, NULL);
    put(&r, 1, 2);
    assert_true(predict(&r, 1, 0, NULL) > together + 12 * 100e3);
    close_rig(&r);
}

/* Sending experts to the card depends on its link and its arithmetic, not on the processor. */
static void experts_can_be_sent_to_the_card(void **state)
{
    (void)state;
    struct rig r;
    struct bl_timeline t = {0};
    const struct bl_timeline_options opt = {.stream_from_tok = 64};
    open_rig(&r, "gpt-oss-20b");
    put(&r, 1, 0);
    assert_int_equal(bl_timeline_predict(&t, r.model, &r.plan, &r.machine, 512, &opt), BL_OK);
    const double sent = t.ns, sending = t.device[1].sent_ns;
    bl_timeline_finish(&t);
    assert_true(sending > 0.5 * sent);
    assert_int_equal(bl_machine_set(&r.machine, "link0.bps=8GB/s"), BL_OK);
    assert_int_equal(bl_timeline_predict(&t, r.model, &r.plan, &r.machine, 512, &opt), BL_OK);
    assert_true(t.ns - sent > 0.8 * sending && t.ns - sent < 1.2 * sending);
    bl_timeline_finish(&t);
    assert_int_equal(bl_timeline_predict(&t, r.model, &r.plan, &r.machine, 32, &opt), BL_OK);
    assert_true(t.device[1].sent_ns == 0);
    bl_timeline_finish(&t);
    close_rig(&r);
}

/* On a CPU whose kernels were measured the time of a token is bytes over the rate, and what does
 * not depend on it: with half the rate the bytes take twice as long, all of them. */
static void decode_follows_what_was_measured(void **state)
{
    (void)state;
    struct rig r;
    uint64_t bytes = 0;
    open_rig_on(&r, "llama-3-8b", measured_text);
    put(&r, 0, 0);
    for (uint32_t i = 0; i < r.model->n_weights; i++) {
        const struct bl_weight *w = &r.model->weight[i];
        if (w->part != BL_PART_EMBED)
            bytes += bl_dtype_row_bytes(w->type, w->ne[0]) * w->ne[1] * w->ne[2];
    }
    const double whole = predict(&r, 1, 0, NULL), read = (double)bytes / 40e9 * 1e9;
    assert_true(whole > read && whole < 1.05 * read);
    const double half = set(&r, "cpu0.read=20GB/s", 1), twice = set(&r, "cpu0.read=80GB/s", 1);
    assert_true(fabs(half - whole - read) < 0.005 * read);
    assert_true(fabs(whole - twice - read / 2) < 0.005 * read);
    close_rig(&r);
}

/* A prompt takes multiply-adds over their rate, and less than a tenth more for all else. */
static void prefill_follows_what_was_measured(void **state)
{
    (void)state;
    struct rig r;
    double macs = 0;
    open_rig_on(&r, "llama-3-8b", measured_text);
    put(&r, 0, 0);
    for (uint32_t i = 0; i < r.model->n_weights; i++) {
        const struct bl_weight *w = &r.model->weight[i];
        if (w->layer >= 0 && w->ne[1] > 1)
            macs += (double)w->ne[0] * w->ne[1] * 512;
    }
    const double whole = predict(&r, 512, 0, NULL), products = macs / 703e9 * 1e9;
    assert_true(whole > products && whole < 1.15 * products);
    struct bl_type_rate *rate = &r.machine.device[0].rate_default;
    for (unsigned i = 0; i < BL_N_RATE_TOKENS; i++)
        rate->macs_per_s[i] *= 2;
    const double faster = predict(&r, 512, 0, NULL);
    assert_true(fabs(whole - faster - products / 2) < 0.03 * products);
    /* A quarter of the tokens: a quarter of the time, and what unpacking costs whatever their
     * number. */
    for (unsigned i = 0; i < BL_N_RATE_TOKENS; i++)
        rate->macs_per_s[i] /= 2;
    const double fewer = predict(&r, 128, 0, NULL);
    assert_true(fewer > whole / 4 && fewer < 1.1 * whole / 4);
    close_rig(&r);
}

/* Scores, products and values of 32 heads of 128 that share 8, in 6 layers, each at its rate; where
 * the cache's own type was not measured, at those of f16. */
static void attention_follows_the_type_of_the_cache(void **state)
{
    (void)state;
    const double rows = 6 * 4096.0, scores = 32 / 2e9, macs = 32 * 256 / 400e9,
                 values = 8 * 256 / 50e9;
    for (unsigned eight = 0; eight < 2; eight++) {
        struct rig r;
        open_rig_with(&r, "llama-3-8b", measured_text, eight ? BL_Q8_0 : BL_F16);
        put(&r, 0, 0);
        struct bl_kv_rate *kv = r.machine.device[0].kv_rate[BL_STEP_FEW];
        const double both = predict(&r, 1, 8191, NULL) - predict(&r, 1, 4095, NULL);
        assert_near(both, rows * (scores + macs + values) * 1e9);
        kv[BL_Q8_0] = (struct bl_kv_rate){1e9, 200e9, 25e9, 0};
        const double own = predict(&r, 1, 8191, NULL) - predict(&r, 1, 4095, NULL);
        assert_near(own, (eight ? 2 : 1) * both);
        /* memory that is twice as fast hastens values alone */
        (void)set(&r, "cpu0.read=80GB/s", 1);
        const double now = predict(&r, 1, 8191, NULL) - predict(&r, 1, 4095, NULL);
        assert_near(own - now, (eight ? 2 : 1) * rows * values * 1e9 / 2);
        close_rig(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decode_follows_what_was_measured),
        cmocka_unit_test(prefill_follows_what_was_measured),
        cmocka_unit_test(attention_follows_the_type_of_the_cache),
        cmocka_unit_test(decode_follows_the_memory_of_a_card),
        cmocka_unit_test(decode_follows_ram_where_experts_lie_there),
        cmocka_unit_test(attention_costs_more_at_depth),
        cmocka_unit_test(two_devices_overlap),
        cmocka_unit_test(a_slow_link_shows),
        cmocka_unit_test(experts_can_be_sent_to_the_card),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

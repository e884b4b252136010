/* SPDX-License-Identifier: MIT */
/* Experts that are sent to a card while it computes: what is hidden, what is predicted, what goes
 * over the link. On the virtual clock all of it is exact; once more in real time, with room for a
 * busy machine. */
#include "support.h"

#include "backends.h"
#include "devices.h"
#include "mem.h"
#include "timeline.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { N_PROMPT = 2048, UBATCH = 512 };

static const char shape[] =
    "{\"about\": \"small experts\", \"architecture\": \"qwen3moe\", \"layers\": 6, \"vocab\": 300,"
    " \"tokenizer\": \"qwen2\", \"metadata\": {\"context_length\": 4096, \"embedding_length\": 256,"
    " \"feed_forward_length\": 256, \"attention.head_count\": 4, \"attention.head_count_kv\": 2,"
    " \"attention.key_length\": 32, \"attention.value_length\": 32,"
    " \"attention.layer_norm_rms_epsilon\": 1e-6, \"rope.freq_base\": {\"f32\": 1000000},"
    " \"expert_count\": 32, \"expert_used_count\": 8, \"expert_feed_forward_length\": 128},"
    " \"tensors\": [\"output.weight\"]}";
static char path[] = "/tmp/ballast-overlap-XXXXXX";

static void ok(enum bl_status st)
{
    if (st)
        fail_msg("%s: %s", bl_status_name(st), bl_error());
}

static int write_model(void **state)
{
    (void)state;
    const struct bl_synth_options so = {
        .shape = "small experts", .json = shape, .json_bytes = sizeof shape - 1};
    struct bl_synth *s;
    const int fd = mkstemp(path);

    if (fd < 0)
        return -1;
    close(fd);
    unlink(path); /* only the name is wanted */
    if (bl_synth_open(&s, &so))
        return -1;
    const enum bl_status st = bl_synth_write(s, path);
    bl_synth_close(s);
    return st ? -1 : 0;
}

static int remove_model(void **state)
{
    (void)state;
    return unlink(path);
}

/* ---- a card whose copies take as long as what it computes ---- */

struct setup {
    const char *devices;
    double macs_per_s, link_factor;
    bool real_time, mapped;
    uint32_t stream_from;
};

static struct bl_timeline_options at_depth(uint64_t tokens)
{
    return (struct bl_timeline_options){.depth_tokens = tokens};
}

static void prepare(struct bl_engine_parts *p, const struct setup *s, const struct bl_options *opt)
{
    struct bl_model_options mo;

    ok(bl_model_choose(&mo, opt));
    ok(bl_gguf_open(&p->gguf, path));
    ok(bl_model_open(&p->model, p->gguf, &mo));
    ok(bl_machine_probe(&p->machine, opt));
    ok(bl_plan_init(&p->plan, p->model));
    ok(bl_plan_size_steps(&p->plan, p->model, opt));
    for (uint32_t l = 0; l <= p->plan.n_layers; l++)
        for (uint32_t part = 0; part < BL_N_PARTS; part++)
            p->plan.slot[l * BL_N_PARTS + part] = part != BL_PART_EXPERTS;
    p->plan.stream_from = s->stream_from;
    p->plan.mmap = s->mapped;
    for (uint32_t d = 0; d < p->machine.n_devices; d++)
        for (unsigned i = 0; i < BL_N_RATE_TOKENS; i++)
            p->machine.device[d].rate_default.macs_per_s[i] = s->macs_per_s;
    p->machine.link[0].latency_ns = 1000;
}

static void set_link(struct bl_machine *m, double bps)
{
    m->link[0].ab_measured_bps = m->link[0].ba_measured_bps = bps;
}

/* So that in a step in the middle of the prompt experts are as long on their way as the card
 * computes. */
static void balance(struct bl_engine_parts *p, const struct setup *s)
{
    const struct bl_timeline_options to = at_depth(N_PROMPT / 2);

    for (unsigned i = 0; i < 4; i++) {
        struct bl_timeline t;
        ok(bl_timeline_predict(&t, p->model, &p->plan, &p->machine, UBATCH, &to));
        set_link(&p->machine,
                 p->machine.link[0].ab_measured_bps * t.device[1].sent_ns / t.device[1].run_ns);
        bl_timeline_finish(&t);
    }
    set_link(&p->machine, p->machine.link[0].ab_measured_bps * s->link_factor);
}

static struct bl_engine *open_with(const struct setup *s)
{
    struct bl_options opt = {.ctx_tokens = N_PROMPT,
                             .batch_tokens = UBATCH,
                             .ubatch_tokens = UBATCH,
                             .threads = 2,
                             .max_sessions = 2,
                             .devices = s->devices,
                             .virtual_clock = !s->real_time};
    struct bl_engine_parts p = {0};
    struct bl_engine *e;

    prepare(&p, s, &opt);
    balance(&p, s);
    ok(bl_plan_check(&p.plan, p.model, &p.machine));
    ok(bl_devices_open(&p, &opt));
    ok(bl_engine_create(&e, &p, &opt));
    return e;
}

/* ---- a prompt, step by step ---- */

struct run {
    double ns, predicted_ns, copy_ns,
        hidden_ns; /* of all steps but the first, before which nothing is known */
    double first_ns,
        worst; /* worst: largest relative difference from the prediction of any of them */
    uint64_t link_bytes, n_host_bound, n_events;
};

static void feed(struct bl_engine *e, struct bl_session *s, uint32_t first)
{
    struct bl_session *of[UBATCH];
    int32_t id[UBATCH];

    for (uint32_t i = 0; i < UBATCH; i++) {
        of[i] = s;
        id[i] = (int32_t)((first + i) * 2654435761u % 299);
    }
    ok(bl_decode(e, &(struct bl_batch){UBATCH, id, of, NULL}));
}

/* What is hidden is recomputed from the events: of each chunk's way over the link the part during
 * which the card ran. */
static double hidden_of(const struct bl_trace *t, const struct bl_event *c)
{
    double ns = 0;
    for (uint32_t i = 0; i < t->n; i++) {
        const struct bl_event *r = &t->event[i];
        if (r->kind == BL_EVENT_RUN && r->device == c->to)
            ns += fmax(0, fmin(r->end_ns, c->end_ns) - fmax(r->begin_ns, c->begin_ns));
    }
    return ns;
}

static double predict(const struct bl_engine *e, uint64_t depth)
{
    const struct bl_timeline_options to = at_depth(depth);
    struct bl_timeline t;

    ok(bl_timeline_predict(&t, e->parts.model, &e->parts.plan, &e->parts.machine, UBATCH, &to));
    const double ns = t.ns;
    bl_timeline_finish(&t);
    return ns;
}

static void add_step(struct run *r, const struct bl_engine *e, uint32_t first)
{
    const struct bl_trace *t = e->sched.trace;
    double ns = 0;

    for (uint32_t i = 0; i < t->n; i++) {
        const struct bl_event *v = &t->event[i];
        r->n_host_bound += v->host_bound;
        r->n_events++;
        if (v->kind == BL_EVENT_STEP)
            ns = v->end_ns - v->begin_ns;
        if (v->kind != BL_EVENT_STREAM)
            continue;
        r->link_bytes += (uint64_t)v->bytes;
        if (!first)
            continue;
        r->copy_ns += v->end_ns - v->begin_ns;
        r->hidden_ns += hidden_of(t, v);
    }
    if (!first) {
        r->first_ns = ns;
        return;
    }
    const double predicted = predict(e, first);
    r->ns += ns;
    r->predicted_ns += predicted;
    r->worst = fmax(r->worst, fabs(ns / predicted - 1));
}

static struct run prompt_with(struct bl_engine *e)
{
    struct bl_session *s;
    struct run r = {0};

    ok(bl_session_create(&s, e));
    for (uint32_t first = 0; first < N_PROMPT; first += UBATCH) {
        ok(bl_engine_trace(e, true));
        feed(e, s, first);
        add_step(&r, e, first);
    }
    bl_session_destroy(s);
    print_message("  %.2f ms, %.2f predicted (worst %.1f %%), the first %.2f; %.1f %% of %.2f ms "
                  "of copies hidden\n",
                  r.ns * 1e-6, r.predicted_ns * 1e-6, 100 * r.worst, r.first_ns * 1e-6,
                  100 * r.hidden_ns / r.copy_ns, r.copy_ns * 1e-6);
    return r;
}

/* ---- tests ---- */

static const struct setup balanced = {
    .devices = "sim0:1GiB@1GB/s", .macs_per_s = 1e11, .link_factor = 1, .stream_from = 64};

static void copies_hide_behind_computing(void **state)
{
    (void)state;
    struct bl_engine *e = open_with(&balanced);
    const struct run r = prompt_with(e);

    assert_true(r.hidden_ns >= 0.8 * r.copy_ns);
    assert_true(r.worst <= 0.1);
    const struct bl_stage *s = &e->stage;
    print_message("  %.3f MB over the link, used experts %.3f MB\n", (double)r.link_bytes * 1e-6,
                  (double)s->used_bytes * 1e-6);
    assert_true(r.link_bytes == s->sent_bytes && s->used_bytes > 0);
    assert_true((double)r.link_bytes <= 1.02 * (double)s->used_bytes);
    bl_close(e);
}

static void a_slower_link_is_as_predicted(void **state)
{
    (void)state;
    struct setup slow = balanced;
    slow.link_factor = 0.5;
    struct bl_engine *e = open_with(&balanced), *half = open_with(&slow);
    const struct run a = prompt_with(e), b = prompt_with(half);

    assert_true(b.ns > 1.3 * a.ns);
    assert_true(fabs(b.ns / a.ns / (b.predicted_ns / a.predicted_ns) - 1) < 0.08);
    assert_true(b.worst <= 0.1);
    bl_close(e);
    bl_close(half);
}

/* The same, waited for. A machine that is too busy to compute in a third of the time that is stood
 * for says so in the trace, and only what was sent is judged. */
static void copies_hide_in_real_time(void **state)
{
    (void)state;
    struct setup s = balanced;
    s.real_time = true;
    s.macs_per_s = 6e9;
    struct bl_engine *e = open_with(&s);
    const struct run r = prompt_with(e);

    assert_true((double)r.link_bytes <= 1.02 * (double)e->stage.used_bytes);
    if (r.n_host_bound * 20 > r.n_events)
        print_message("  %llu commands took longer here than what they stand for: not judged\n",
                      (unsigned long long)r.n_host_bound);
    else {
        assert_true(r.hidden_ns >= 0.7 * r.copy_ns);
        assert_true(r.ns < 1.3 * r.predicted_ns);
    }
    bl_close(e);
}

/* From the mapped file through the host's ring: slower by the host's copies where those are, never
 * wrong in bytes. */
static void mapped_experts_are_staged(void **state)
{
    (void)state;
    struct setup s = balanced;
    s.real_time = s.mapped = true;
    s.macs_per_s = 1e12;
    struct bl_engine *e = open_with(&s);
    const struct run r = prompt_with(e);
    uint32_t staged = 0, sent = 0;

    (void)r;
    for (uint32_t i = 0; i < e->sched.trace->n; i++) {
        staged += e->sched.trace->event[i].kind == BL_EVENT_STAGE;
        sent += e->sched.trace->event[i].kind == BL_EVENT_STREAM;
    }
    assert_true(sent > 0 && staged == sent);
    bl_close(e);
}

/* Half of each layer's experts on a second card: it takes the time of the slower card, and
 * crossings. */
static void decode_takes_the_slower_part(void **state)
{
    (void)state;
    const struct setup s = {.devices = "sim0:1GiB@16GB/s,sim1:1GiB@16GB/s", .macs_per_s = 1e11};
    const struct bl_options opt = {.ctx_tokens = N_PROMPT,
                                   .batch_tokens = UBATCH,
                                   .ubatch_tokens = UBATCH,
                                   .threads = 2,
                                   .devices = s.devices,
                                   .virtual_clock = true};
    struct bl_engine_parts p = {0};
    struct bl_trace_device device[3];
    struct bl_trace_sum sum;
    struct bl_session *session;
    struct bl_engine *e;

    prepare(&p, &s, &opt);
    for (uint32_t l = 0; l < p.plan.n_layers; l++) {
        p.plan.slot[l * BL_N_PARTS + BL_PART_EXPERTS] = 1;
        ok(bl_plan_add_range(&p.plan, l, 16, 16, 2));
    }
    for (uint32_t d = 1; d < 3; d++)
        p.machine.device[d].rate_default.decode_bps = 2e7;
    ok(bl_devices_open(&p, &opt));
    ok(bl_engine_create(&e, &p, &opt));
    ok(bl_session_create(&session, e));
    ok(bl_engine_trace(e, true));
    for (int32_t i = 0; i < 4; i++)
        ok(bl_decode(e, &(struct bl_batch){1, &i, &session, NULL}));
    ok(bl_trace_sum_up(e->sched.trace, 3, &sum, device));
    const double slower = fmax(device[1].run_ns, device[2].run_ns);
    print_message("  %.2f ms; the cards compute for %.2f and %.2f\n", sum.ns * 1e-6,
                  device[1].run_ns * 1e-6, device[2].run_ns * 1e-6);
    assert_true(device[2].run_ns > 0.3 * slower && sum.ns <= 1.05 * slower);
    bl_session_destroy(session);
    bl_close(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_hide_behind_computing),
        cmocka_unit_test(a_slower_link_is_as_predicted),
        cmocka_unit_test(copies_hide_in_real_time),
        cmocka_unit_test(mapped_experts_are_staged),
        cmocka_unit_test(decode_takes_the_slower_part),
    };
    return cmocka_run_group_tests(tests, write_model, remove_model);
}

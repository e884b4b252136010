/* SPDX-License-Identifier: MIT */
/* What a Vulkan device did when, on the host's clock. */
#include "support.h"

#include "devices.h"
#include "thread.h"
#include "vulkan_rig.h"

#define MODEL BL_TEST_DATA "/reference/models/gpt-oss-mxfp4.gguf"
enum { N_PROMPT = 16, N_STEPS = 4 };

static void ok(enum bl_status st)
{
    if (st)
        fail_msg("%s: %s", bl_status_name(st), bl_error());
}

/* The experts of one layer are on the card, so that both compute and wait for each other. */
static enum bl_status experts_there(struct bl_plan *p, const struct bl_model *m, uint32_t n_devices,
                                    void *arg)
{
    (void)m, (void)n_devices, (void)arg;
    p->slot[BL_PART_EXPERTS] = 1;
    p->slot[BL_N_PARTS + BL_PART_ATTN] = p->slot[BL_N_PARTS + BL_PART_STATE] = 1;
    return BL_OK;
}

static void decode(struct bl_engine *e, struct bl_session *s, uint32_t n)
{
    struct bl_session *of[N_PROMPT];
    int32_t id[N_PROMPT];

    for (uint32_t i = 0; i < n; i++) {
        id[i] = (int32_t)(5 * i + 2);
        of[i] = s;
    }
    ok(bl_decode(e, &(struct bl_batch){n, id, of, NULL}));
}

/* Copies that are known by the host wait for nothing of others; the clocks may differ by what a
 * command takes to be handed over. */
static void check(const struct bl_trace *t, double from_ns, double to_ns)
{
    const double slack = 20e6;
    uint32_t n[4] = {0};
    double last[2] = {0, 0};

    for (uint32_t i = 0; i < t->n; i++) {
        const struct bl_event *v = &t->event[i];
        if (v->begin_ns < from_ns - slack || v->end_ns > to_ns + slack || v->end_ns < v->begin_ns)
            fail_msg("event %u of kind %u: %.0f to %.0f ns, all took %.0f", i, v->kind,
                     v->begin_ns - from_ns, v->end_ns - from_ns, to_ns - from_ns);
        if (v->kind == BL_EVENT_STEP) /* the clock may be set anew */
            last[0] = last[1] = 0;
        if (v->device > 1)
            continue;
        if (v->begin_ns + 1000 < last[v->device])
            fail_msg("event %u of kind %u begins %.0f ns before the one before it ends", i, v->kind,
                     last[v->device] - v->begin_ns);
        last[v->device] = v->end_ns;
        n[0] += v->device == 1 && v->kind == BL_EVENT_RUN;
        n[1] += v->device == 1 && v->kind == BL_EVENT_COPY;
        n[2] += v->device == 1 && v->kind == BL_EVENT_WAIT;
    }
    if (n[0] < 2 * N_STEPS || n[1] < N_STEPS || n[2] < 1)
        fail_msg("%u runs, %u copies, %u waits of the card", n[0], n[1], n[2]);
}

static void events_are_where_the_step_is(void **state)
{
    (void)state;
    const struct bl_options opt = {.ctx_tokens = 64,
                                   .batch_tokens = 16,
                                   .ubatch_tokens = 16,
                                   .threads = 1,
                                   .no_calibrate = true,
                                   .exact = true};
    struct bl_engine *e;
    struct bl_session *s;
    char *text;
    size_t n_bytes;

    if (!vulkan_here())
        return;
    ok(vulkan_open(&e, MODEL, &opt, 1, experts_there, NULL));
    ok(bl_session_create(&s, e));
    decode(e, s, N_PROMPT); /* pipelines are made now */
    ok(bl_engine_trace(e, true));
    const double from = (double)bl_now_ns();
    for (uint32_t i = 0; i < N_STEPS; i++)
        decode(e, s, i ? 1 : N_PROMPT);
    check(e->sched.trace, from, (double)bl_now_ns());
    ok(bl_engine_trace_json(e, &text, &n_bytes));
    assert_non_null(strstr(text, "vulkan0"));
    free(text);
    ok(bl_engine_trace(e, false));
    decode(e, s, 1);
    bl_session_destroy(s);
    bl_close(e);
}

/* A wait for what has come already is no command: what follows keeps its place in the log. */
static void waits_for_what_has_come_take_no_place(void **state)
{
    (void)state;
    const struct bl_device_config config = {.threads = 1};
    const struct bl_backend *cpu = bl_backend_find("cpu");
    struct bl_lapse lapse[8];
    struct bl_lapse_log log = {.lapse = lapse, .cap = 8};
    uint32_t before, after, done;
    struct bl_device *host, *dev;
    struct bl_stream *other, *s;
    struct bl_point came, end;
    struct bl_mem m = {0};

    if (!vulkan_here())
        return;
    ok(cpu->open(0, &config, &host));
    ok(vulkan_backend()->open(0, &config, &dev));
    ok(host->ops->stream_open(host, &other));
    ok(dev->ops->stream_open(dev, &s));
    ok(dev->ops->mem_alloc(dev, 1 << 20, false, &m));
    ok(host->ops->signal(other, &came));
    ok(host->ops->join(came, UINT64_MAX));
    dev->ops->trace(s, &log);
    dev->ops->progress(s, &before, &done);
    ok(dev->ops->wait(s, came));
    ok(dev->ops->fill(s, &m, 0, 1, 1 << 20));
    ok(dev->ops->signal(s, &end));
    ok(dev->ops->join(end, UINT64_MAX));
    dev->ops->progress(s, &after, &done);
    dev->ops->trace(s, NULL);
    assert_int_equal(after - before, 2);
    assert_int_equal(log.n, 2);
    dev->ops->stream_close(s);
    host->ops->stream_close(other);
    dev->ops->mem_free(&m);
    dev->ops->close(dev);
    host->ops->close(host);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(waits_for_what_has_come_take_no_place),
        cmocka_unit_test(events_are_where_the_step_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

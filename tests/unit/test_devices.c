/* SPDX-License-Identifier: MIT */
/* Engines over simulated devices: results, memory, times as predicted, faults at every point. */
#include "support.h"

#include "devices.h"
#include "divide.h"
#include "sim/sim.h"
#include "timeline.h"

#include <math.h>
#include <unistd.h>

#define MODEL BL_TEST_DATA "/reference/models/gpt-oss-mxfp4.gguf"
enum { N_PROMPT = 16 };

static void ok(enum bl_status st)
{
    if (st)
        fail_msg("%s: %s", bl_status_name(st), bl_error());
}

static struct bl_options small(const char *devices)
{
    return (struct bl_options){.ctx_tokens = 64,
                               .batch_tokens = 16,
                               .ubatch_tokens = 16,
                               .threads = 1,
                               .exact = true,
                               .devices = devices};
}

/* A prompt and a few tokens; the last logits are the caller's. */
static enum bl_status speak(struct bl_engine *e, float **logits)
{
    struct bl_session *s, *of[N_PROMPT];
    int32_t id[N_PROMPT];
    enum bl_status st = bl_session_create(&s, e);

    for (uint32_t i = 0; i < N_PROMPT; i++) {
        id[i] = (int32_t)(7 * i + 3);
        of[i] = s;
    }
    if (!st)
        st = bl_decode(e, &(struct bl_batch){N_PROMPT, id, of, NULL});
    for (uint32_t i = 0; !st && i < 3; i++)
        st = bl_decode(e, &(struct bl_batch){1, &id[i], &s, NULL});
    if (!st && logits) {
        const size_t bytes = bl_engine_n_vocab(e) * sizeof **logits;
        *logits = malloc(bytes);
        memcpy(*logits, bl_logits(e, 0), bytes);
    }
    bl_session_destroy(s);
    return st;
}

static double nmse(const float *x, const float *y, uint32_t n)
{
    double err = 0, sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        err += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
        sum += (double)y[i] * y[i];
    }
    return err / sum;
}

static void lists_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *list, *says;
    } bad[] = {{"", "a name is missing"},
               {"sim0,", "a name is missing"},
               {"sin0", "the nearest is sim"},
               {"foo", "there are cpu, sim"},
               {"sim0x", "must end in a number"},
               {"sim64", "must end in a number"},
               {"sim0:much", "memory of"},
               {"sim0:1GiB:1GiB", "memory is SIZE, shared or"},
               {"pci-0000:77:00.0:1GiB", "there is no device 'pci-0000:77:00.0' here"},
               {"sim0@fast", "link of"},
               {"sim0+stuck", "must end in alloc"},
               {"sim0+stuck=0", "must end in alloc"},
               {"sim0+stuck=1x", "must end in alloc"},
               {"sim0,sim0", "is named twice"},
               {"cpu0,cpu", "is named twice"},
               {"cpu9", "of which cpu0 is the first"},
               {"null0", "say how much of its memory"}};
    for (size_t i = 0; i < BL_COUNT(bad); i++) {
        const struct bl_options opt = small(bad[i].list);
        struct bl_machine m;
        assert_int_equal(bl_machine_probe(&m, &opt), BL_EINVAL);
        if (!strstr(bl_error(), bad[i].says))
            fail_msg("'%s': %s", bad[i].list, bl_error());
    }
    const struct bl_options opt = small("sim3:12GiB@4GB/s+lost=7,cpu,sim1");
    struct bl_machine m;
    ok(bl_machine_probe(&m, &opt));
    assert_int_equal(m.n_devices, 3);
    assert_string_equal(m.device[1].id, "sim3");
    assert_true(m.device[1].usable_bytes == UINT64_C(12) << 30);
    assert_int_equal(m.device[1].fault.kind, BL_FAULT_LOST);
    assert_int_equal(m.device[1].fault.nth, 7);
    assert_string_equal(m.device[2].id, "sim1");
    assert_int_equal(m.n_links, 2);
    assert_true(bl_link_bps(&m.link[0], 0) == 4e9);
    bl_machine_finish(&m);
}

static void planned_is_taken(void **state)
{
    (void)state;
    const struct bl_options one = small(NULL), opt = small("sim0,sim1:64MiB@1GB/s");
    struct bl_engine *e;
    struct bl_memory_line m;
    float *want, *got;

    ok(bl_open(&e, MODEL, &one));
    ok(speak(e, &want));
    const uint32_t n_vocab = bl_engine_n_vocab(e);
    bl_close(e);
    for (uint64_t seed = 1; seed <= 4; seed++) {
        uint64_t s = seed, taken[3] = {0};
        ok(simulated_open(&e, MODEL, &opt, &s));
        ok(speak(e, &got));
        assert_true(nmse(got, want, n_vocab) <= 1e-9);
        for (uint32_t i = 0; i < bl_engine_memory(e, i, &m); i++) {
            if (strcmp(m.purpose, "host") ? m.planned_bytes != m.measured_bytes
                                          : m.planned_bytes < m.measured_bytes)
                fail_msg("seed %llu: %s %s", (unsigned long long)seed, m.device, m.purpose);
            for (uint32_t d = 1; d < 3; d++)
                if (!strcmp(m.device, e->parts.machine.device[d].id))
                    taken[d] += m.measured_bytes;
        }
        for (uint32_t d = 1; d < 3; d++)
            assert_true(taken[d] && bl_sim_taken_bytes(e->parts.device[d]) == taken[d]);
        bl_close(e);
        free(got);
    }
    free(want);
}

/* On the virtual clock a step takes what is predicted, and the copies that no prediction counts:
 * of its numbers and of the result. */
static void times_are_those_predicted(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 6; seed++) {
        struct bl_options opt = small("sim0@2GB/s,sim1@1GB/s");
        uint64_t s = seed;
        struct bl_engine *e;
        struct bl_session *session, *of[N_PROMPT];
        int32_t id[N_PROMPT] = {1};
        opt.virtual_clock = true;
        ok(simulated_open(&e, MODEL, &opt, &s));
        ok(bl_engine_trace(e, true));
        ok(bl_session_create(&session, e));
        for (uint32_t i = 0; i < N_PROMPT; i++)
            of[i] = session;
        ok(bl_decode(e, &(struct bl_batch){N_PROMPT, id, of, NULL}));
        const struct bl_timeline_options to = {.depth_tokens = 0};
        struct bl_timeline line;
        ok(bl_timeline_predict(&line, e->parts.model, &e->parts.plan, &e->parts.machine, N_PROMPT,
                               &to));
        struct bl_trace_device device[3];
        struct bl_trace_sum sum;
        ok(bl_trace_sum_up(e->sched.trace, 3, &sum, device));
        double extra = 0;
        for (uint32_t i = 0; i < e->sched.trace->n; i++) {
            const struct bl_event *v = &e->sched.trace->event[i];
            if (v->kind == BL_EVENT_COPY && v->index == UINT32_MAX)
                extra += v->end_ns - v->begin_ns;
        }
        assert_int_equal(sum.n_host_bound, 0);
        /* what the host learns last is a crossing of the prediction's; a nanosecond of rounding */
        const double cross = 10000;
        if (sum.ns < line.ns - cross - 10 || sum.ns > line.ns + extra + 10)
            fail_msg("seed %llu: %.0f ns, %.0f predicted, %.0f of other copies",
                     (unsigned long long)seed, sum.ns, line.ns, extra);
        bl_timeline_finish(&line);
        bl_session_destroy(session);
        bl_close(e);
    }
}

/* ---- faults ---- */

static enum bl_status with_fault(const char *fault, uint32_t n)
{
    char devices[64];
    struct bl_options opt;
    struct bl_engine *e;
    uint64_t seed = 3;

    snprintf(devices, sizeof devices, "sim0+%s=%u,sim1", fault, n);
    opt = small(devices);
    opt.watchdog_s = 1;
    BL_TRY(simulated_open(&e, MODEL, &opt, &seed));
    const enum bl_status st = speak(e, NULL);
    char why[256];
    snprintf(why, sizeof why, "%s", bl_error());
    bl_close(e);
    return st ? bl_fail(st, "%s", why) : st;
}

static void every_fault_is_told(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint32_t step; /* all of them where they are quick to find */
        enum bl_status st;
    } faults[] = {{"alloc", 1, BL_ENOMEM},
                  {"copy", 1, BL_EDEVICE},
                  {"submit", 1, BL_EDEVICE},
                  {"lost", 1, BL_EDEVICE},
                  {"stuck", 17, BL_ETIMEDOUT}};
    for (size_t i = 0; i < BL_COUNT(faults); i++) {
        uint32_t n = 1;
        for (enum bl_status st; (st = with_fault(faults[i].name, n)); n += faults[i].step) {
            if (st != faults[i].st || !strstr(bl_error(), "sim0"))
                fail_msg("%s %u: %s: %s", faults[i].name, n, bl_status_name(st), bl_error());
            assert_true(n < 1000);
        }
        assert_true(n > 1);
    }
    const struct bl_options opt = small("sim0,sim1"); /* the next one opens */
    struct bl_engine *e;
    uint64_t seed = 3;
    ok(simulated_open(&e, MODEL, &opt, &seed));
    ok(speak(e, NULL));
    bl_close(e);
}

static void wrong_bytes_are_found_at_the_start(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 4; n++) {
        assert_int_equal(with_fault("corrupt", n), BL_EDEVICE);
        assert_non_null(strstr(bl_error(), "comes back changed"));
    }
}

/* ---- memory that a device and the host share ---- */

/* Weights are read to where they stay, and what both take together is what there is. */
static void shared_memory_is_one(void **state)
{
    (void)state;
    static const char *const sets[] = {"cpu0.read=1GB/s", "cpu0.usable=16MiB"};
    struct bl_options one = small(NULL), opt = small("sim0:shared:64MiB");
    struct bl_engine *e;
    float *want, *got;

    ok(bl_open(&e, MODEL, &one));
    ok(speak(e, &want));
    bl_close(e);
    opt.device_set = sets;
    opt.n_device_set = BL_COUNT(sets);
    ok(bl_open(&e, MODEL, &opt));
    const struct bl_machine_device *d = &e->parts.machine.device[1];
    assert_int_equal(d->mem_kind, BL_MEMORY_UNIFIED);
    assert_int_equal(d->shares, 0);
    assert_true(e->parts.device[1]->unified && e->weights.block[1].n == 1);
    assert_non_null(e->weights.block[1].mem[0].host);
    const struct bl_ledger *l = &e->parts.plan.ledger;
    assert_true(bl_ledger_planned(l, 0) + bl_ledger_planned(l, 1) <= UINT64_C(16) << 20);
    ok(speak(e, &got));
    assert_true(nmse(got, want, bl_engine_n_vocab(e)) <= 1e-9);
    for (uint32_t i = 0; i < l->n; i++)
        if (l->line[i].purpose != BL_MEM_HOST)
            assert_int_equal(l->line[i].planned_bytes, l->line[i].measured_bytes);
    bl_close(e);
    opt.n_device_set = 2;
    opt.device_set = (const char *const[]){"cpu0.read=1GB/s", "cpu0.usable=1MiB"};
    assert_int_equal(bl_open(&e, MODEL, &opt), BL_ENOFIT); /* there is no more on the other side */
    free(want);
    free(got);
}

/* ---- less memory than promised ---- */

struct told {
    char line[8][512];
    uint32_t n;
};

static void note_warning(void *arg, enum bl_log_level level, const char *line)
{
    struct told *t = arg;
    if (level == BL_LOG_WARN && t->n < BL_COUNT(t->line))
        snprintf(t->line[t->n++], sizeof t->line[0], "%s", line);
}

/* sim0 promises 64 MiB. */
static enum bl_status open_short(struct bl_engine **e, uint32_t kib, bool slow_host,
                                 const char *plan_file, struct told *t)
{
    static const char *const slow = "cpu0.read=1GB/s";
    char devices[64];

    snprintf(devices, sizeof devices, "sim0:64MiB+memory=%uKiB", kib);
    struct bl_options opt = small(devices);
    opt.device_set = &slow;
    opt.n_device_set = slow_host;
    opt.plan_file = plan_file;
    *t = (struct told){.n = 0};
    bl_log_set(note_warning, t, BL_LOG_WARN);
    const enum bl_status st = bl_open(e, MODEL, &opt);
    bl_log_set(NULL, NULL, BL_LOG_ERROR);
    return st;
}

static uint64_t taken_on(const struct bl_engine *e, const char *device)
{
    struct bl_memory_line m;
    uint64_t sum = 0;

    for (uint32_t i = 0; i < bl_engine_memory(e, i, &m); i++) {
        if (strcmp(m.purpose, "host"))
            assert_int_equal(m.planned_bytes, m.measured_bytes);
        else
            assert_true(m.measured_bytes && m.measured_bytes <= m.planned_bytes);
        sum += strcmp(m.device, device) ? 0 : m.measured_bytes;
    }
    return sum;
}

/* With all there is, with less and less, with nothing: the same logits, and one line says why. */
static void short_memory_means_another_plan(void **state)
{
    (void)state;
    const struct bl_options one = small(NULL);
    struct bl_engine *e;
    struct told t;
    float *want, *got;
    uint64_t all = UINT64_MAX;

    ok(bl_open(&e, MODEL, &one));
    ok(speak(e, &want));
    bl_close(e);
    for (uint32_t kib = 64 << 10; kib; kib = kib > 2048 ? 2048 : kib / 2) {
        ok(open_short(&e, kib, true, NULL, &t));
        ok(speak(e, &got));
        const uint64_t taken = taken_on(e, "sim0");
        assert_true(nmse(got, want, bl_engine_n_vocab(e)) <= 1e-9);
        assert_true(taken <= (uint64_t)kib << 10);
        if (all == UINT64_MAX)
            all = taken;
        assert_true(all && (taken == all) == (t.n == 0));
        for (uint32_t i = 0; i < t.n; i++)
            if (!strstr(t.line[i], "sim0 has") || !strstr(t.line[i], "instead: cpu0"))
                fail_msg("%s", t.line[i]);
        bl_close(e);
        free(got);
    }
    free(want);
}

static void a_plan_asked_for_stays(void **state)
{
    (void)state;
    char path[] = "/tmp/test_devices.XXXXXX";
    struct bl_options opt = small("sim0:64MiB");
    struct bl_placement_options po = {.prefill_weight = 0.5};
    struct bl_placement *placed;
    struct bl_gguf *g;
    struct bl_engine *e;
    struct told t;
    size_t n_bytes;
    char *text;
    const int fd = mkstemp(path);

    opt.device_set = (const char *const[]){"cpu0.read=1GB/s"};
    opt.n_device_set = 1;
    ok(bl_gguf_open(&g, MODEL));
    ok(bl_placement_make(&placed, g, &opt, &po));
    ok(bl_placement_json(placed, &text, &n_bytes));
    assert_int_equal(write(fd, text, n_bytes), n_bytes);
    close(fd);
    free(text);
    bl_placement_close(placed);
    bl_gguf_close(g);
    ok(open_short(&e, 64 << 10, true, path, &t));
    bl_close(e);
    assert_int_equal(open_short(&e, 256, true, path, &t), BL_ENOMEM);
    if (!strstr(bl_error(), "plan anew") || !strstr(bl_error(), path))
        fail_msg("%s", bl_error());
    remove(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_are_read),
        cmocka_unit_test(planned_is_taken),
        cmocka_unit_test(times_are_those_predicted),
        cmocka_unit_test(every_fault_is_told),
        cmocka_unit_test(wrong_bytes_are_found_at_the_start),
        cmocka_unit_test(shared_memory_is_one),
        cmocka_unit_test(short_memory_means_another_plan),
        cmocka_unit_test(a_plan_asked_for_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

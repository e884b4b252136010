/* SPDX-License-Identifier: MIT */
/* Slots on simulated and Vulkan devices: results, memory, times, what a trace tells, and what
 * happens when a stream of slots fails, is lost or gets stuck.
 *
 *     test_slots_devices [--seed N]     BALLAST_SEED=N does the same
 */
#include "slots_rig.h"

#include "sim/sim.h"
#include "vulkan_rig.h"

#include <stdlib.h>

static uint64_t first_seed = 1;

static struct bl_options on(const char *devices)
{
    struct bl_options opt = small();
    opt.devices = devices;
    return opt;
}

static struct bl_engine *open_on(const char *name, const struct bl_options *opt, uint32_t most,
                                 uint64_t *seed)
{
    struct bl_engine *e;
    if (slots_on_open(&e, path_of(name), opt, BL_EXPERTS_LRU, most, seed))
        fail_msg("%s on %s: %s", name, opt->devices, bl_error());
    return e;
}

/* ---- results and memory ---------------------------------------------------------------------- */

struct seen {
    uint64_t moves, hits;
};

static void compare(const char *name, const struct bl_options *one_opt, struct bl_engine *e,
                    uint64_t *seed, struct seen *seen)
{
    struct bl_engine *one = opened(name, one_opt);

    each_is_computed_once(e);
    slots_hold_what_they_say(e);
    memory_is_as_planned(e);
    same_as(one, e, name, seed);
    memory_is_as_planned(e);
    seen->moves += e->residency.experts.n_moves;
    seen->hits += e->residency.experts.n_hits;
    bl_close(one);
    bl_close(e);
}

/* Down to one slot for a layer, where every step evicts. */
static void run_lists(const char *const *list, size_t n, bool virtual_clock)
{
    const struct bl_options plain = small();
    struct seen seen = {0};
    uint64_t seed = first_seed;

    for (size_t i = 0; i < n * BL_COUNT(models); i++) {
        struct bl_options opt = on(list[i % n]);
        opt.virtual_clock = virtual_clock;
        opt.no_mmap = i & 1;
        const char *name = models[(i + i / n) % BL_COUNT(models)];
        compare(name, &plain, open_on(name, &opt, i % 3 ? 0 : 1, &seed), &seed, &seen);
    }
    print_message("%llu moves, %llu hits\n", (unsigned long long)seen.moves,
                  (unsigned long long)seen.hits);
    assert_true(seen.moves > 40 * n);
    assert_true(seen.hits > 100 * n);
}

static void simulated_are_as_one_device(void **state)
{
    static const char *const list[] = {"sim0", "sim0,sim1:64MiB@2GB/s", "sim2@50MB/s,sim0,sim1"};
    (void)state;
    run_lists(list, BL_COUNT(list), false);
}

static void on_a_virtual_clock_too(void **state)
{
    static const char *const list[] = {"sim0@1GB/s", "sim0,sim1@100MB/s"};
    (void)state;
    run_lists(list, BL_COUNT(list), true);
}

static void vulkan_and_mixed_are_as_one_device(void **state)
{
    static const char *const list[] = {"vulkan0:1GiB", "sim0,vulkan0:1GiB"};
    (void)state;
    if (!vulkan_here())
        skip();
    run_lists(list, BL_COUNT(list), false);
}

static enum bl_status with_slots(struct bl_plan *p, const struct bl_model *m, uint32_t n_devices,
                                 void *arg)
{
    BL_TRY(divide_plan(p, m, n_devices, arg));
    p->expert_policy = BL_EXPERTS_LRU;
    for (uint32_t l = 0; l < p->n_layers; l++)
        if (m->layer[l].moe)
            BL_TRY(slot_layer(p, l, m->hp.n_expert, n_devices, arg));
    return BL_OK;
}

static void several_vulkan_devices(void **state)
{
    const struct bl_options opt = small();
    struct seen seen = {0};
    uint64_t seed = first_seed;

    (void)state;
    if (!vulkan_here())
        skip();
    for (uint32_t i = 0; i < BL_COUNT(models); i++) {
        struct bl_engine *e;
        if (vulkan_open(&e, path_of(models[i]), &opt, 2 + i % 2, with_slots, &seed))
            fail_msg("%s: %s", models[i], bl_error());
        compare(models[i], &opt, e, &seed, &seen);
    }
    assert_true(seen.moves > 40);
}

/* ---- times and traces ------------------------------------------------------------------------ */

/* The i-th step from the last. */
static const struct bl_event *step_of(const struct bl_engine *e, uint32_t back)
{
    const struct bl_trace *t = e->sched.trace;
    for (uint32_t i = t->n; i-- > 0;)
        if (t->event[i].kind == BL_EVENT_STEP && !back--)
            return &t->event[i];
    fail_msg("there is no such step");
    return NULL;
}

/* One layer's slots on one device, everything else on the host. */
static struct bl_engine *one_slot(const struct bl_options *opt, const char *name)
{
    struct bl_engine_parts p = {0};
    struct bl_engine *e = NULL;
    uint64_t seed = 1;

    assert_int_equal(slots_on_parts(&p, path_of(name), opt, BL_EXPERTS_LRU, 0, &seed), BL_OK);
    p.plan.n_ranges = p.plan.n_slot_sets = 0;
    memset(p.plan.slot, 0, (p.plan.n_layers + 1) * BL_N_PARTS * sizeof *p.plan.slot);
    for (uint32_t l = 0; l < p.plan.n_layers; l++)
        if (p.model->layer[l].moe)
            assert_int_equal(bl_plan_add_slots(&p.plan, l, 1, 1), BL_OK);
    for (uint32_t d = 0; d < p.machine.n_devices; d++)
        if (p.device[d])
            p.device[d]->ops->close(p.device[d]);
    free(p.device);
    if (bl_devices_open(&p, opt) || bl_engine_create(&e, &p, opt))
        fail_msg("%s", bl_error());
    return e;
}

/* A step begins when the one before is over, wherever experts are, however long they take. */
static void nobody_waits_for_experts(void **state)
{
    (void)state;
    struct bl_options opt = on("sim0@1MB/s");
    struct bl_session *s;

    opt.virtual_clock = true;
    struct bl_engine *e = one_slot(&opt, "mixtral-f32");
    assert_int_equal(bl_engine_trace(e, true), BL_OK);
    assert_int_equal(bl_session_create(&s, e), BL_OK);
    uint32_t travelling = 0;
    for (uint32_t i = 0; i < N_PROMPT; i++) {
        travelling += e->residency.block[1].n_moving > 0;
        assert_int_equal(feed(e, s, &prompt[i], 1), BL_OK);
        if (i)
            assert_true(fabs(step_of(e, 0)->begin_ns - step_of(e, 1)->end_ns) < 1);
    }
    assert_true(travelling > 2);
    wait_for_all(e);
    assert_int_equal(e->residency.block[1].n_moving, 0);
    each_is_computed_once(e);
    slots_hold_what_they_say(e);
    bl_session_destroy(s);
    bl_close(e);
}

static void keep_line(void *arg, const char *text)
{
    snprintf(arg, 1024, "%s", text);
}

/* Each expert that came is there, with its bytes, and none before the one that came before it. */
static void traces_tell_of_experts(void **state)
{
    (void)state;
    const struct bl_options opt = on("sim0@200MB/s");
    struct bl_engine *e = one_slot(&opt, "qwen3moe-iq3");
    struct bl_session *s;
    char line[1024], *json;
    double bytes = 0, end = 0;
    uint64_t n = 0;
    size_t size;

    assert_int_equal(bl_engine_trace(e, true), BL_OK);
    assert_int_equal(bl_session_create(&s, e), BL_OK);
    for (uint32_t i = 0; i < 4 * N_PROMPT; i++) {
        assert_int_equal(feed(e, s, &prompt[i % N_PROMPT], 1), BL_OK);
        if (i % 2)
            assert_int_equal(bl_residency_arrive(&e->residency, e->sched.trace, true), BL_OK);
    }
    assert_int_equal(bl_residency_arrive(&e->residency, e->sched.trace, true), BL_OK);
    const struct bl_trace *t = e->sched.trace;
    for (uint32_t i = 0; i < t->n; i++) {
        const struct bl_event *v = &t->event[i];
        if (v->kind != BL_EVENT_MOVE)
            continue;
        assert_true(v->begin_ns >= end && v->end_ns > v->begin_ns);
        assert_int_equal(v->from, 0);
        assert_int_equal(v->to, 1);
        end = v->end_ns;
        bytes += v->bytes;
        n++;
    }
    print_message("%llu events, %llu moves\n", (unsigned long long)n,
                  (unsigned long long)e->residency.experts.n_moves);
    assert_true(n > 10);
    assert_int_equal(n, e->residency.experts.n_moves);
    assert_int_equal((uint64_t)bytes, e->residency.moved_bytes);
    bl_engine_trace_describe(e, keep_line, line);
    if (!strstr(line, "experts in slots ") || !strstr(line, "came, "))
        fail_msg("%s", line);
    assert_int_equal(bl_engine_trace_json(e, &json, &size), BL_OK);
    assert_non_null(strstr(json, "experts to sim0"));
    assert_non_null(strstr(json, "\"cat\": \"move\""));
    free(json);
    bl_session_destroy(s);
    bl_close(e);
}

/* ---- what goes wrong ------------------------------------------------------------------------- */

/* A device whose stream of slots fails: its own table of functions, in which some are changed. */
static struct bl_device_ops changed;
static const struct bl_device_ops *real;
static struct bl_stream *victim;
static uint32_t left;

static enum bl_status copy_until(struct bl_stream *s, const struct bl_mem *dst, size_t dst_off,
                                 const struct bl_mem *src, size_t src_off, size_t bytes)
{
    if (s == victim && !left--)
        return bl_fail(BL_EDEVICE, "%s: a copy failed, as asked for", dst->dev->name);
    return real->copy(s, dst, dst_off, src, src_off, bytes);
}

static enum bl_status signal_never(struct bl_stream *s, struct bl_point *out)
{
    struct bl_device *dev;
    memcpy(&dev, s, sizeof dev);
    return s == victim ? bl_fail(BL_EDEVICE, "%s: work was not taken, as asked for", dev->name)
                       : real->signal(s, out);
}

static bool poll_never(struct bl_point p)
{
    return p.stream != victim && real->poll(p);
}

static void progress_none(const struct bl_stream *s, uint32_t *enqueued, uint32_t *done)
{
    real->progress(s, enqueued, done);
    if (s == victim)
        *done = 0;
}

static void change(struct bl_engine *e, const struct bl_device_ops *by)
{
    struct bl_device *dev = e->parts.device[1];

    real = dev->ops;
    changed = *real;
    changed.copy = by->copy ? by->copy : changed.copy;
    changed.signal = by->signal ? by->signal : changed.signal;
    changed.poll = by->poll ? by->poll : changed.poll;
    changed.progress = by->progress ? by->progress : changed.progress;
    victim = e->residency.block[1].stream;
    dev->ops = &changed;
}

static enum bl_status speak(struct bl_engine *e, bool wait)
{
    struct bl_session *s;
    enum bl_status st = bl_session_create(&s, e);

    for (uint32_t i = 0; !st && i < N_PROMPT; i++) {
        st = feed(e, s, &prompt[i], 1);
        if (!st && wait)
            st = bl_residency_arrive(&e->residency, NULL, true);
    }
    bl_session_destroy(s);
    return st;
}

static void says(const char *words)
{
    if (!strstr(bl_error(), words))
        fail_msg("'%s' lacks '%s'", bl_error(), words);
}

/* It fails, fails again, and the next engine is as good as any. */
static void break_down(const struct bl_options *opt, const struct bl_device_ops *by,
                       enum bl_status want, const char *words)
{
    struct bl_engine *e = one_slot(opt, "qwen3moe-iq3");

    e->residency.patience_ns = 20000000;
    change(e, by);
    enum bl_status st = BL_OK;
    for (unsigned i = 0; i < 400 && !st; i++) /* by then patience is at an end */
        st = speak(e, false);
    assert_int_equal(st, want);
    says(words);
    says(e->parts.device[1]->name);
    each_is_computed_once(e);
    assert_int_equal(speak(e, false), want);
    says(words);
    e->parts.device[1]->ops = real;
    bl_close(e);
    e = one_slot(opt, "qwen3moe-iq3");
    assert_int_equal(speak(e, true), BL_OK);
    bl_close(e);
}

static void break_down_on(const char *devices)
{
    const struct bl_options opt = on(devices);

    for (left = 0; left < 3; left++) {
        const uint32_t nth = left;
        break_down(&opt, &(struct bl_device_ops){.copy = copy_until}, BL_EDEVICE, "a copy failed");
        left = nth;
    }
    break_down(&opt, &(struct bl_device_ops){.signal = signal_never}, BL_EDEVICE, "not taken");
    break_down(&opt, &(struct bl_device_ops){.poll = poll_never, .progress = progress_none},
               BL_ETIMEDOUT, "for its slots, of expert");
}

static void failures_are_told(void **state)
{
    (void)state;
    break_down_on("sim0");
}

static void failures_on_vulkan_are_told(void **state)
{
    (void)state;
    if (!vulkan_here())
        skip();
    break_down_on("vulkan0:1GiB");
}

/* The n-th copy or command of a device, whatever it is for: while loading, while slots are filled
 * and while tokens come. */
static void every_command_may_fail(void **state)
{
    static const char *const fault[] = {"copy", "lost", "alloc", "submit"};
    (void)state;
    uint32_t failed = 0, travelling = 0;

    for (size_t k = 0; k < BL_COUNT(fault); k++)
        for (uint32_t nth = 1, good = 0; !good && nth < 2000; nth += nth < 40 ? 1 : nth / 8) {
            char list[64];
            struct bl_engine *e;
            uint64_t seed = first_seed;
            snprintf(list, sizeof list, "sim0+%s=%u", fault[k], nth);
            const struct bl_options opt = on(list);
            enum bl_status st =
                slots_on_open(&e, path_of("qwen3moe-iq3"), &opt, BL_EXPERTS_LRU, 1, &seed);
            if (!st) {
                st = speak(e, true);
                travelling += st && strstr(bl_error(), "to its slots") != NULL;
                if (st && st != BL_EDEVICE)
                    fail_msg("%s: %s", list, bl_error());
                bl_close(e);
            }
            good = !st;
            failed += st != BL_OK;
            if (st)
                says("sim0");
        }
    print_message("%u runs failed, %u of them while experts travelled\n", failed, travelling);
    assert_true(failed > 60 && travelling > 5);
}

/* Stuck at the n-th command, of whichever stream: the run ends and says where. */
static void stuck_is_noticed(void **state)
{
    (void)state;
    uint32_t in_slots = 0;

    for (uint32_t nth = 60; nth < 100 && !in_slots; nth++) {
        char list[64];
        snprintf(list, sizeof list, "sim0+stuck=%u", nth);
        struct bl_options opt = on(list);
        opt.watchdog_s = 1;
        struct bl_engine *e = one_slot(&opt, "mixtral-f32");
        e->patience_ns = e->residency.patience_ns = 50000000;
        enum bl_status st = BL_OK;
        for (unsigned i = 0; i < 40 && !st; i++)
            st = speak(e, true);
        assert_int_equal(st, BL_ETIMEDOUT);
        says("sim0 has finished nothing for");
        in_slots += strstr(bl_error(), "for its slots, of expert") != NULL;
        bl_close(e);
    }
    assert_int_equal(in_slots, 1);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(simulated_are_as_one_device),
        cmocka_unit_test(on_a_virtual_clock_too),
        cmocka_unit_test(vulkan_and_mixed_are_as_one_device),
        cmocka_unit_test(several_vulkan_devices),
        cmocka_unit_test(nobody_waits_for_experts),
        cmocka_unit_test(traces_tell_of_experts),
        cmocka_unit_test(failures_are_told),
        cmocka_unit_test(failures_on_vulkan_are_told),
        cmocka_unit_test(every_command_may_fail),
        cmocka_unit_test(stuck_is_noticed),
    };
    const char *seed = getenv("BALLAST_SEED");

    for (int i = 1; i + 1 < argc; i += 2)
        if (!strcmp(argv[i], "--seed"))
            seed = argv[i + 1];
    if (seed)
        first_seed = strtoull(seed, NULL, 10);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: MIT */
#include "support.h"

#include "thread.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static uint64_t cpu_ns(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000000u +
           (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1000u;
}

static void sleep_ms(unsigned ms)
{
    usleep(ms * 1000);
}

static uint32_t usable_cpus(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) ? 1 : (uint32_t)CPU_COUNT(&set);
}

/* ---- counter ---- */

static void *set_later(void *arg)
{
    sleep_ms(20);
    bl_counter_set(arg, 3);
    return NULL;
}

static void counter_wakes_a_sleeper(void **state)
{
    (void)state;
    struct bl_counter c = {0};
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, set_later, &c), 0);
    assert_true(bl_counter_wait(&c, 3, 1000, UINT64_MAX));
    assert_int_equal(bl_counter_get(&c), 3);
    assert_true(bl_counter_wait(&c, 2, 0, 0));
    pthread_join(t, NULL);
}

static void counter_times_out(void **state)
{
    (void)state;
    struct bl_counter c = {0};
    const uint64_t start = bl_now_ns(), cpu = cpu_ns();
    assert_false(bl_counter_wait(&c, 1, 10000, 100000000));
    const uint64_t took = bl_now_ns() - start;
    assert_true(took >= 100000000);
    assert_true(cpu_ns() - cpu < took / 4); /* it slept */
    assert_false(bl_counter_wait(&c, 1, UINT64_MAX, 0));
    assert_int_equal(c.sleepers, 0);
}

static void counter_wraps(void **state)
{
    (void)state;
    struct bl_counter c = {.value = UINT32_MAX};
    assert_false(bl_counter_wait(&c, 1, 0, 0));
    bl_counter_set(&c, 1);
    assert_true(bl_counter_wait(&c, UINT32_MAX, 0, 0));
    assert_true(bl_counter_wait(&c, 1, 0, 0));
    assert_false(bl_counter_wait(&c, 2, 0, 0));
}

/* ---- pool ---- */

enum { MEETINGS = 200, MOST = 8 };
struct meeting {
    struct bl_pool *pool;
    uint32_t n;
    uint32_t count[MOST]; /* plain memory: only the barrier orders it */
    uint32_t wrong[MOST];
    _Atomic uint32_t ran;
};

/* Everyone counts, meets, checks that all have counted, and meets again. */
static void meet(void *arg, uint32_t ith, uint32_t nth)
{
    struct meeting *m = arg;
    atomic_fetch_add(&m->ran, 1);
    m->wrong[ith] += nth != m->n;
    for (uint32_t i = 1; i <= MEETINGS; i++) {
        m->count[ith]++;
        bl_pool_barrier(m->pool);
        for (uint32_t t = 0; t < nth; t++)
            m->wrong[ith] += m->count[t] != i;
        bl_pool_barrier(m->pool);
    }
}

static void pool_threads_meet(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= MOST; n++) {
        struct bl_pool *p;
        assert_int_equal(bl_pool_create(&p, n, &(struct bl_pool_split){.n_few = n / 2}), BL_OK);
        assert_int_equal(bl_pool_threads(p), n);
        for (uint32_t used = 1; used <= n; used++) {
            struct meeting m = {.pool = p, .n = used};
            const uint64_t before = bl_pool_barriers(p);
            bl_pool_run(p, used, meet, &m);
            assert_int_equal(m.ran, used);
            assert_int_equal(bl_pool_barriers(p) - before, 2 * MEETINGS);
            for (uint32_t t = 0; t < used; t++)
                assert_int_equal(m.wrong[t], 0);
        }
        bl_pool_destroy(p);
    }
}

/* ---- phases ---- */

enum { UNITS = 64, PHASES = 200 };
struct phases {
    _Atomic uint32_t next; /* unit of the phase in hand, of all phases */
    _Atomic uint32_t n_helped, n_wrong;
    uint32_t done[UNITS]; /* plain memory: only the ends of phases order it */
    uint32_t over;
    bool late; /* thread 1 does nothing and is long about it */
    uint64_t over_ns;
};

/* The units of a phase come after those of the phases before. */
static bool take_unit(struct phases *h, uint32_t phase, uint32_t *unit)
{
    uint32_t seen = atomic_load(&h->next);
    do {
        if (seen >= (phase + 1) * UNITS)
            return false;
    } while (!atomic_compare_exchange_weak(&h->next, &seen, seen + 1));
    *unit = seen % UNITS;
    return true;
}

static uint32_t do_units(void *arg, uint32_t phase, uint32_t ith, uint32_t nth, bool helps,
                         uint32_t *all)
{
    struct phases *h = arg;
    uint32_t n = 0;
    *all = UNITS;
    if (h->late && ith == 1) {
        sleep_ms(helps ? 0 : 100);
        return 0;
    }
    if (phase % nth != ith && !helps) /* all work is meant for one, who is late now and then */
        return 0;
    if (phase % 8 == 0 && !helps && nth > 1)
        usleep(200);
    for (uint32_t u; take_unit(h, phase, &u); n++) {
        h->done[u]++;
        atomic_fetch_add(&h->n_wrong, phase != h->over);
    }
    atomic_fetch_add(&h->n_helped, helps ? n : 0);
    return n;
}

static void end_of_phase(void *arg, uint32_t phase)
{
    struct phases *h = arg;
    h->over++;
    h->over_ns = bl_now_ns();
    atomic_fetch_add(&h->n_wrong, phase + 1 != h->over);
    for (uint32_t u = 0; u < UNITS; u++)
        atomic_fetch_add(&h->n_wrong, h->done[u] != h->over);
}

static const struct bl_pool_phases phases = {PHASES, do_units, end_of_phase};

/* Every unit is done once before the phase ends, and that before the next begins; other jobs go
 * between. */
static void who_waits_helps(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= MOST; n++) {
        struct bl_pool *p;
        assert_int_equal(bl_pool_create(&p, n, &(struct bl_pool_split){.n_few = n / 2}), BL_OK);
        for (uint32_t used = 1; used <= n; used++) {
            struct phases h = {.n_helped = 0};
            struct meeting m = {.pool = p, .n = used};
            const uint64_t before = bl_pool_barriers(p);
            bl_pool_run_phases(p, used, &phases, &h);
            assert_int_equal(bl_pool_barriers(p) - before, PHASES - 1);
            assert_int_equal(h.over, PHASES);
            assert_int_equal(h.n_wrong, 0);
            assert_true(used == 1 || h.n_helped > UNITS); /* a few times at least */
            bl_pool_run(p, used, meet, &m);
            assert_int_equal(m.ran, used);
            for (uint32_t t = 0; t < used; t++)
                assert_int_equal(m.wrong[t], 0);
        }
        bl_pool_destroy(p);
    }
}

static void nobody_waits_for_who_does_nothing(void **state)
{
    (void)state;
    struct bl_pool *p;
    struct phases h = {.late = true};
    assert_int_equal(bl_pool_create(&p, 3, NULL), BL_OK);
    const uint64_t start = bl_now_ns();
    bl_pool_run_phases(p, 3, &phases, &h);
    bl_pool_destroy(p);
    assert_int_equal(h.over, PHASES);
    assert_int_equal(h.n_wrong, 0);
    assert_true(h.over_ns - start < 90 * 1000000ull);
}

static void count_calls(void *arg, uint32_t ith, uint32_t nth)
{
    (void)nth;
    ((uint32_t *)arg)[ith]++;
}

/* Many jobs with changing numbers of threads, some after every worker has gone to sleep. */
static void pool_runs_jobs_in_a_row(void **state)
{
    (void)state;
    struct bl_pool *p;
    uint32_t calls[4] = {0};
    assert_int_equal(bl_pool_create(&p, 4, NULL), BL_OK);
    for (uint32_t i = 0; i < 2000; i++) {
        bl_pool_run(p, 1 + i % 4, count_calls, calls);
        if (i % 500 == 0)
            sleep_ms(3);
    }
    bl_pool_run(p, 99, count_calls, calls); /* no more than there are */
    for (uint32_t t = 0; t < 4; t++)
        assert_int_equal(calls[t], 2000 - 500 * t + 1);
    bl_pool_destroy(p);
    bl_pool_destroy(NULL);
}

static void pool_is_idle_after_a_job(void **state)
{
    (void)state;
    struct bl_pool *p;
    uint32_t calls[4] = {0};
    assert_int_equal(bl_pool_create(&p, 4, NULL), BL_OK);
    bl_pool_run(p, 4, count_calls, calls);
    const uint64_t before = cpu_ns();
    sleep_ms(2000);
    const uint64_t used = cpu_ns() - before;
    print_message("idle for 2 s: %.2f ms of CPU time\n", (double)used * 1e-6);
    assert_true(used < 20000000);
    bl_pool_destroy(p);
}

static void pool_takes_any_binding(void **state)
{
    (void)state;
    struct bl_pool *p;
    uint32_t calls[3] = {0};
    const int cpu[3] = {0, -1, 1 << 20};
    const struct bl_pool_split split[] = {{.cpu = cpu, .n_home = 1, .n_cpus = 3},
                                          {.cpu = cpu, .n_home = 3, .n_cpus = 3},
                                          {.cpu = cpu}};
    for (size_t i = 0; i < sizeof split / sizeof split[0]; i++) {
        assert_int_equal(bl_pool_create(&p, 3, &split[i]), BL_OK);
        bl_pool_run(p, 3, count_calls, calls);
        bl_pool_destroy(p);
    }
    assert_int_equal(calls[0] + calls[1] + calls[2], 9);
}

static void tell_affinity(void *arg, uint32_t ith, uint32_t nth)
{
    (void)nth;
    (void)sched_getaffinity(0, sizeof(cpu_set_t), (cpu_set_t *)arg + ith);
}

/* Home threads keep to the home processors, the others to the rest, the caller to neither. */
static void pool_binds_by_home(void **state)
{
    (void)state;
    cpu_set_t own, seen[3];
    int cpu[2];
    uint32_t n = 0;
    struct bl_pool *p;
    assert_int_equal(sched_getaffinity(0, sizeof own, &own), 0);
    for (int i = 0; i < CPU_SETSIZE && n < 2; i++)
        if (CPU_ISSET((size_t)i, &own))
            cpu[n++] = i;
    if (n < 2)
        skip();
    const struct bl_pool_split split = {.n_few = 2, .cpu = cpu, .n_home = 1, .n_cpus = 2};
    assert_int_equal(bl_pool_create(&p, 3, &split), BL_OK);
    bl_pool_run(p, 3, tell_affinity, seen);
    bl_pool_destroy(p);
    assert_true(CPU_EQUAL(&seen[0], &own));
    for (uint32_t i = 1; i < 3; i++) { /* one home: thread 0's */
        assert_int_equal(CPU_COUNT(&seen[i]), 1);
        assert_true(CPU_ISSET((size_t)cpu[1], &seen[i]));
    }
}

static void spend(void *arg, uint32_t ith, uint32_t nth)
{
    (void)nth;
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    ((uint64_t *)arg)[ith] = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Jobs for few threads cost the others nothing: their CPU time stands still meanwhile. */
static void few_threads_leave_the_rest_asleep(void **state)
{
    (void)state;
    struct bl_pool *p;
    uint64_t before[4], after[4];
    uint32_t calls[4] = {0};
    assert_int_equal(bl_pool_create(&p, 4, &(struct bl_pool_split){.n_few = 2}), BL_OK);
    bl_pool_run(p, 4, spend, before);
    sleep_ms(5);
    for (uint32_t i = 0; i < 20000; i++)
        bl_pool_run(p, 2, count_calls, calls);
    bl_pool_run(p, 4, spend, after);
    assert_int_equal(calls[0] + calls[1], 40000);
    for (uint32_t i = 2; i < 4; i++) {
        print_message("thread %u: %.2f ms during 20000 jobs of others\n", i,
                      (double)(after[i] - before[i]) * 1e-6);
        assert_true(after[i] - before[i] < 3000000);
    }
    bl_pool_destroy(p);
}

/* ---- more threads than processors ---- */

enum { ROUNDS = 500, WORK = 30000 }; /* rounds of 20 us on two processors */
static void work_and_meet(void *arg, uint32_t ith, uint32_t nth)
{
    (void)ith;
    volatile double sink = 1;
    for (int p = 0; p < ROUNDS; p++) {
        double x = sink;
        for (uint32_t i = 0; i < WORK / nth; i++)
            x = x * 1.0000001 + 1e-9;
        sink = x;
        bl_pool_barrier(arg);
    }
}

static double best_seconds(uint32_t n)
{
    struct bl_pool *p;
    uint64_t best = UINT64_MAX;
    assert_int_equal(bl_pool_create(&p, n, NULL), BL_OK);
    for (int i = 0; i < 5; i++) {
        const uint64_t start = bl_now_ns();
        bl_pool_run(p, n, work_and_meet, p);
        const uint64_t took = bl_now_ns() - start;
        best = took < best ? took : best;
    }
    bl_pool_destroy(p);
    return (double)best * 1e-9;
}

/* Threads that wait must make way for those they wait for. Without that this takes ten times as
 * long and more; the limit leaves room for a busy machine. */
static void twice_the_threads_do_not_collapse(void **state)
{
    (void)state;
    const uint32_t n = usable_cpus();
    if (n > 64)
        skip();
    double ratio = 0;
    for (int i = 0; i < 3 && ratio < 0.5; i++) {
        const double one = best_seconds(n), two = best_seconds(2 * n);
        ratio = one / two > ratio ? one / two : ratio;
    }
    print_message("%u threads on %u processors: %.0f %% of the best speed\n", 2 * n, n,
                  100 * ratio);
#if !defined(__SANITIZE_THREAD__) && !defined(BL_ASAN) /* what they add to a switch is not ours */
    assert_true(ratio >= 0.35);
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counter_wakes_a_sleeper),
        cmocka_unit_test(counter_times_out),
        cmocka_unit_test(counter_wraps),
        cmocka_unit_test(pool_threads_meet),
        cmocka_unit_test(who_waits_helps),
        cmocka_unit_test(nobody_waits_for_who_does_nothing),
        cmocka_unit_test(pool_runs_jobs_in_a_row),
        cmocka_unit_test(pool_is_idle_after_a_job),
        cmocka_unit_test(pool_takes_any_binding),
        cmocka_unit_test(pool_binds_by_home),
        cmocka_unit_test(few_threads_leave_the_rest_asleep),
        cmocka_unit_test(twice_the_threads_do_not_collapse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

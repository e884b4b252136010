/* SPDX-License-Identifier: MIT */
#include "thread.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Whom to leave the core to while waiting. Yielding is best where threads of one's own want it, or
 * nobody. Yet Linux takes who yields to have given up the rest of its turn: a program that computes
 * on the same core then has it for milliseconds, every time. A thread that sleeps keeps its claim
 * and is back at once; but its wake costs 25 to 50 us. So waits yield until a row of yields has
 * taken long, then sleep early for a second. */
enum {
    /* Pauses before the first yield, about 1 us: long enough for evenly shared work, short enough
     * that a thread which shares its core with the one it waits for gives way before much is
     * lost. Measured on two cores, phases of 6 us: 64 instead of 32 gain 0.3 % with two threads and
     * lose 10 % with four. */
    PAUSES_FIRST = 32,
    PAUSES_NEXT = 16,
    /* Waits inside a step are mostly shorter than this. */
    SPIN_NS = 150000,
    /* Before sleep on a core that others want. */
    BRIEF_NS = 20000,
    LONG_NS = 1000000, /* of a yield: somebody had the core for a turn */
    ROW = 3,           /* so many of them */
    WARY_NS = 1000000000
};

uint64_t bl_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- counter ---- */

static bool reached(uint32_t value, uint32_t at_least)
{
    return (int32_t)(value - at_least) >= 0;
}

uint32_t bl_counter_get(const struct bl_counter *c)
{
    return atomic_load_explicit(&c->value, memory_order_acquire);
}

static void futex_wake_all(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Sleeps while *word == seen, at most until the deadline (UINT64_MAX: for ever). May return early.
 */
static void futex_sleep(_Atomic uint32_t *word, uint32_t seen, uint64_t deadline)
{
    struct timespec left, *limit = NULL;
    if (deadline != UINT64_MAX) {
        const uint64_t now = bl_now_ns(), ns = deadline > now ? deadline - now : 0;
        left.tv_sec = (time_t)(ns / 1000000000u);
        left.tv_nsec = (long)(ns % 1000000000u);
        limit = &left;
    }
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, limit, NULL, 0);
}

void bl_counter_set(struct bl_counter *c, uint32_t value)
{
    /* Value before sleepers here, sleepers before value in the waiter, both sequentially
     * consistent: one of the two sees the other's store. */
    atomic_store(&c->value, value);
    if (atomic_load(&c->sleepers))
        futex_wake_all(&c->value);
}

static bool pause_until(const struct bl_counter *c, uint32_t at_least, unsigned pauses)
{
    for (unsigned i = 0; i < pauses; i++) {
        if (reached(bl_counter_get(c), at_least))
            return true;
        BL_PAUSE();
    }
    return false;
}

static bool spin_until(const struct bl_counter *c, uint32_t at_least, uint64_t spin_ns)
{
    const uint64_t start = bl_now_ns();
    do {
        if (pause_until(c, at_least, PAUSES_NEXT))
            return true;
    } while (bl_now_ns() - start < spin_ns);
    return false;
}

/* Waiters may all write what is learnt; nothing depends on a count more or less. */
static bool yield_until(struct bl_counter *c, uint32_t at_least, uint64_t spin_ns)
{
    const uint64_t start = bl_now_ns();
    for (uint64_t then = start, now; then - start < spin_ns; then = now) {
        sched_yield();
        now = bl_now_ns();
        if (now - then < LONG_NS) {
            /* read first: a store would take the line from the thread that is to set the value */
            if (atomic_load_explicit(&c->robbed, memory_order_relaxed))
                atomic_store_explicit(&c->robbed, 0, memory_order_relaxed);
        } else if (atomic_fetch_add_explicit(&c->robbed, 1, memory_order_relaxed) + 1 >= ROW) {
            atomic_store_explicit(&c->wary_until_ns, now + WARY_NS, memory_order_relaxed);
            atomic_store_explicit(&c->robbed, ROW - 1, memory_order_relaxed);
            return false;
        }
        if (pause_until(c, at_least, PAUSES_NEXT))
            return true;
    }
    return false;
}

static void sleep_until(struct bl_counter *c, uint32_t at_least, uint64_t deadline)
{
    atomic_fetch_add(&c->sleepers, 1);
    uint32_t seen = atomic_load(&c->value);
    while (!reached(seen, at_least) && (deadline == UINT64_MAX || bl_now_ns() < deadline)) {
        futex_sleep(&c->value, seen, deadline);
        seen = atomic_load(&c->value);
    }
    atomic_fetch_sub(&c->sleepers, 1);
}

/* After the first pauses. */
static bool wait_on(struct bl_counter *c, uint32_t at_least, uint64_t spin_ns, uint64_t timeout_ns)
{
    const uint64_t now = bl_now_ns();
    const uint64_t deadline = timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns;
    spin_ns = spin_ns < timeout_ns ? spin_ns : timeout_ns;
    if (atomic_load_explicit(&c->wary_until_ns, memory_order_relaxed) > now
            ? spin_until(c, at_least, spin_ns < BRIEF_NS ? spin_ns : BRIEF_NS)
            : yield_until(c, at_least, spin_ns))
        return true;
    sleep_until(c, at_least, deadline);
    return reached(bl_counter_get(c), at_least);
}

bool bl_counter_wait(struct bl_counter *c, uint32_t at_least, uint64_t spin_ns, uint64_t timeout_ns)
{
    return pause_until(c, at_least, PAUSES_FIRST) || wait_on(c, at_least, spin_ns, timeout_ns);
}

/* ---- pool ---- */

/* Threads that are woken together. */
enum { FEW, REST, N_GROUPS };

struct worker {
    struct bl_pool *pool;
    pthread_t thread;
    uint32_t index; /* 1 ... n - 1 */
    uint32_t group;
    _Atomic uint32_t inside BL_ALIGNED(64); /* looks at a job of phases */
};

/* What different threads write lies on different cache lines. */
struct bl_pool {
    struct {
        struct bl_counter job BL_ALIGNED(64); /* jobs posted to the group */
        _Atomic uint32_t whole;               /* those of them that every thread must answer */
    } group[N_GROUPS];
    bl_pool_fn *fn; /* of a whole job; NULL = leave */
    const struct bl_pool_phases *phases;
    void *arg;
    uint32_t n_job;    /* threads that take part */
    uint32_t n_posted; /* whole jobs so far */
    uint32_t first;    /* number of the first phase */
    struct bl_counter done BL_ALIGNED(64);
    _Atomic uint32_t busy;                /* workers still in the whole job */
    struct bl_counter met BL_ALIGNED(64); /* meetings and phases that are over */
    _Atomic uint32_t open;                /* a job of phases is on */
    /* Threads that are at the barrier; parts of the phase that are done. */
    _Atomic uint32_t arrived BL_ALIGNED(64);
    _Atomic uint64_t barriers BL_ALIGNED(64);
    struct worker *worker; /* [n - 1] */
    uint32_t n, n_few;
    uint32_t n_started[N_GROUPS];
};

static bool cpu_set(cpu_set_t *set, const int *cpu, uint32_t n)
{
    CPU_ZERO(set);
    for (uint32_t i = 0; i < n; i++)
        if (cpu[i] >= 0 && cpu[i] < CPU_SETSIZE)
            CPU_SET((size_t)cpu[i], set);
    return CPU_COUNT(set) > 0;
}

void bl_thread_bind(const int *cpu, uint32_t n)
{
    cpu_set_t set;
    if (cpu_set(&set, cpu, n))
        (void)sched_setaffinity(0, sizeof set, &set);
}

static void bind_worker(const struct worker *w, const struct bl_pool_split *split)
{
    const bool home = w->index < split->n_home;
    cpu_set_t set;
    if (split->cpu && cpu_set(&set, home ? split->cpu : split->cpu + split->n_home,
                              home ? split->n_home : split->n_cpus - split->n_home))
        (void)pthread_setaffinity_np(w->thread, sizeof set, &set);
}

/* ---- phases ---- */

/* The last one. */
static void end_phase(struct bl_pool *p, uint32_t number)
{
    const uint32_t phase = number - p->first;
    if (phase + 1 < p->phases->n)
        atomic_fetch_add_explicit(&p->barriers, 1, memory_order_relaxed);
    if (p->phases->after)
        p->phases->after(p->arg, phase);
    atomic_store_explicit(&p->arrived, 0, memory_order_relaxed);
    bl_counter_set(&p->met, number + 1);
}

/* Whether these parts were the last. Who did none may be late: then `arrived` is another phase's.
 */
static bool hand_in(struct bl_pool *p, uint32_t number, uint32_t done, uint32_t all)
{
    if (!done || atomic_fetch_add_explicit(&p->arrived, done, memory_order_acq_rel) + done != all)
        return false;
    end_phase(p, number);
    return true;
}

static void do_phase(struct bl_pool *p, uint32_t number, uint32_t ith)
{
    const struct bl_pool_phases *of = p->phases;
    const uint32_t phase = number - p->first;
    uint32_t all = 0, done = of->work(p->arg, phase, ith, p->n_job, false, &all);
    if (hand_in(p, number, done, all) || pause_until(&p->met, number + 1, PAUSES_FIRST))
        return;
    done = of->work(p->arg, phase, ith, p->n_job, true, &all);
    hand_in(p, number, done, all);
}

/* What a job points at is there while a thread is inside; `inside` before `open` here, `open`
 * before `inside` in who closes the job, both sequentially consistent: one of the two sees the
 * other's store. Who waits is outside, so that nobody need wait for a thread that cannot run. */
static void follow(struct worker *w)
{
    struct bl_pool *p = w->pool;
    for (;;) {
        atomic_store(&w->inside, 1);
        const bool on = atomic_load(&p->open) && w->index < p->n_job;
        const uint32_t number = bl_counter_get(&p->met);
        const bool goes_on = on && number - p->first < p->phases->n;
        if (goes_on)
            do_phase(p, number, w->index);
        atomic_store_explicit(&w->inside, 0, memory_order_release);
        if (!goes_on)
            return;
        bl_counter_wait(&p->met, number + 1, SPIN_NS, UINT64_MAX);
    }
}

static void lead(struct bl_pool *p)
{
    for (uint32_t number; (number = bl_counter_get(&p->met)) - p->first < p->phases->n;) {
        do_phase(p, number, 0);
        bl_counter_wait(&p->met, number + 1, SPIN_NS, UINT64_MAX);
    }
}

static void close_phases(struct bl_pool *p)
{
    atomic_store(&p->open, 0);
    for (uint32_t i = 0; i < p->n_started[FEW] + p->n_started[REST]; i++)
        for (uint32_t n = 0; atomic_load(&p->worker[i].inside); n++)
            if (n < PAUSES_FIRST)
                BL_PAUSE();
            else
                sched_yield();
}

/* ---- jobs ---- */

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct bl_pool *p = w->pool;
    for (uint32_t seen = 0, answered = 0;;) {
        bl_counter_wait(&p->group[w->group].job, seen + 1, SPIN_NS, UINT64_MAX);
        seen = bl_counter_get(&p->group[w->group].job);
        follow(w);
        if (atomic_load_explicit(&p->group[w->group].whole, memory_order_acquire) == answered)
            continue;
        answered++;
        bl_pool_fn *const fn = p->fn;
        const uint32_t number = p->n_posted;
        if (fn && w->index < p->n_job)
            fn(p->arg, w->index, p->n_job);
        /* Threads of a group that sit a job out answer too: only then may its description be
         * overwritten. */
        if (atomic_fetch_sub(&p->busy, 1) == 1)
            bl_counter_set(&p->done, number);
        if (!fn)
            return NULL;
    }
}

/* Wakes who is needed for n threads. */
static void call_workers(struct bl_pool *p, uint32_t n, bool whole)
{
    for (uint32_t g = 0; g < (n > p->n_few ? N_GROUPS : REST); g++) {
        if (whole)
            atomic_fetch_add_explicit(&p->group[g].whole, 1, memory_order_release);
        bl_counter_set(&p->group[g].job, bl_counter_get(&p->group[g].job) + 1);
    }
}

static void post_whole(struct bl_pool *p, uint32_t n, bl_pool_fn *fn, void *arg)
{
    p->fn = fn;
    p->arg = arg;
    p->n_job = n;
    p->n_posted++;
    atomic_store_explicit(&p->busy, p->n_started[FEW] + (n > p->n_few ? p->n_started[REST] : 0),
                          memory_order_relaxed);
    call_workers(p, n, true);
}

static uint32_t within(const struct bl_pool *p, uint32_t n)
{
    return n < 1 ? 1 : n > p->n ? p->n : n;
}

void bl_pool_run(struct bl_pool *p, uint32_t n, bl_pool_fn *fn, void *arg)
{
    n = within(p, n);
    if (n == 1) {
        p->n_job = 1;
        fn(arg, 0, 1);
        return;
    }
    post_whole(p, n, fn, arg);
    fn(arg, 0, n);
    bl_counter_wait(&p->done, p->n_posted, SPIN_NS, UINT64_MAX);
}

void bl_pool_run_phases(struct bl_pool *p, uint32_t n, const struct bl_pool_phases *phases,
                        void *arg)
{
    p->n_job = within(p, n);
    p->phases = phases;
    p->arg = arg;
    p->first = bl_counter_get(&p->met);
    if (p->n_job == 1) {
        lead(p);
        return;
    }
    atomic_store_explicit(&p->open, 1, memory_order_release);
    call_workers(p, p->n_job, false);
    lead(p);
    close_phases(p);
}

void bl_pool_barrier(struct bl_pool *p)
{
    const uint32_t number = bl_counter_get(&p->met);
    if (atomic_fetch_add_explicit(&p->arrived, 1, memory_order_acq_rel) + 1 < p->n_job) {
        bl_counter_wait(&p->met, number + 1, SPIN_NS, UINT64_MAX);
        return;
    }
    atomic_fetch_add_explicit(&p->barriers, 1, memory_order_relaxed);
    atomic_store_explicit(&p->arrived, 0, memory_order_relaxed);
    bl_counter_set(&p->met, number + 1);
}

uint64_t bl_pool_barriers(const struct bl_pool *p)
{
    return atomic_load_explicit(&p->barriers, memory_order_relaxed);
}

uint32_t bl_pool_threads(const struct bl_pool *p)
{
    return p->n;
}

static enum bl_status start_worker(struct bl_pool *p, uint32_t i, const struct bl_pool_split *split)
{
    struct worker *w = &p->worker[i - 1];
    w->pool = p;
    w->index = i;
    w->group = i < p->n_few ? FEW : REST;
    const int err = pthread_create(&w->thread, NULL, worker_main, w);
    if (err)
        return bl_fail(BL_ENOMEM, "thread %u of %u cannot be started (%s); use fewer with -t",
                       i + 1, p->n,
                       err == EAGAIN ? "the system's limit on threads or memory" : strerror(err));
    bind_worker(w, split);
    p->n_started[w->group]++;
    return BL_OK;
}

enum bl_status bl_pool_create(struct bl_pool **out, uint32_t n, const struct bl_pool_split *split)
{
    static const struct bl_pool_split none;
    assert(n >= 1);
    split = split ? split : &none;
    assert(split->n_home <= split->n_cpus);
    struct bl_pool *p = aligned_alloc(64, sizeof *p);
    if (!p)
        return bl_fail(BL_ENOMEM, "thread pool: out of memory");
    memset(p, 0, sizeof *p);
    p->n = n;
    p->n_few = split->n_few && split->n_few < n ? split->n_few : n;
    p->n_job = 1;
    p->worker = aligned_alloc(64, n * sizeof *p->worker);
    enum bl_status st =
        p->worker ? BL_OK : bl_fail(BL_ENOMEM, "thread pool: out of memory for %u threads", n);
    if (p->worker)
        memset(p->worker, 0, n * sizeof *p->worker);
    for (uint32_t i = 1; i < n && !st; i++)
        st = start_worker(p, i, split);
    if (st) {
        bl_pool_destroy(p);
        return st;
    }
    *out = p;
    return BL_OK;
}

void bl_pool_destroy(struct bl_pool *p)
{
    if (!p)
        return;
    const uint32_t n_started = p->n_started[FEW] + p->n_started[REST];
    if (n_started)
        post_whole(p, p->n + 1, NULL, NULL);
    for (uint32_t i = 0; i < n_started; i++)
        pthread_join(p->worker[i].thread, NULL);
    free(p->worker);
    free(p);
}

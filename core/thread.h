/* SPDX-License-Identifier: MIT */
/* thread.h — worker pool with a spin-then-sleep barrier, and a counter that can be waited for.
 *
 * Purpose   run one function on n threads, meet inside it, wait for a value with a deadline; no CPU time when idle.
 * Ownership the pool owns its threads. Counters are embedded and need no finish.
 * Units     nanoseconds for deadlines.
 * Errors    create: BL_ENOMEM or BL_EIO when threads cannot be started. wait: false on timeout.
 * Threads   bl_pool_run from one thread at a time per pool; barrier only from inside a running job.
 */
#ifndef BL_THREAD_H
#define BL_THREAD_H

#include "status.h"
#include <stdatomic.h>

uint64_t bl_now_ns(void); /* monotonic */

/* A monotonically growing value; waiters sleep on it (futex on Linux). */
struct bl_counter {
    _Atomic uint32_t value;
    _Atomic uint32_t sleepers;
    _Atomic uint32_t robbed;        /* yields in a row after which others had the core for long */
    _Atomic uint64_t wary_until_ns; /* until then who waits sleeps early */
};
uint32_t bl_counter_get(const struct bl_counter *);
void bl_counter_set(struct bl_counter *, uint32_t value); /* must not go back; wakes waiters */
/* True once value >= at_least (wrap-safe comparison). Spins for spin_ns, then sleeps. timeout UINT64_MAX = forever. */
bool bl_counter_wait(struct bl_counter *, uint32_t at_least, uint64_t spin_ns, uint64_t timeout_ns);

/* Keeps the calling thread to these logical CPUs; a hint, ignored where it cannot be. None that is valid: nothing. */
void bl_thread_bind(const int *cpu, uint32_t n);

typedef void bl_pool_fn(void *arg, uint32_t ith, uint32_t nth);
struct bl_pool;
/* How the threads of a pool are told apart; zeroed: they are not. */
struct bl_pool_split {
    uint32_t n_few;    /* jobs of at most so many threads leave the others asleep; 0: all are woken for every job */
    const int *cpu;    /* [n_cpus] logical CPUs, NULL: threads are left to the system */
    uint32_t n_home;   /* threads below n_home run on any of the first n_home CPUs, the others on the rest */
    uint32_t n_cpus;
};
/* n >= 1 threads in a job, the caller of bl_pool_run included, so n - 1 are started. The caller's own thread is never
 * bound. split NULL: as zeroed. */
enum bl_status bl_pool_create(struct bl_pool **out, uint32_t n, const struct bl_pool_split *split);
void bl_pool_destroy(struct bl_pool *);
uint32_t bl_pool_threads(const struct bl_pool *);
/* fn(arg, i, n) on n <= bl_pool_threads threads, the caller being i = 0; returns when all have returned. */
void bl_pool_run(struct bl_pool *, uint32_t n, bl_pool_fn *fn, void *arg);
void bl_pool_barrier(struct bl_pool *); /* all threads of the running job meet */

/* A job whose work lies open to all its threads, phase by phase, in parts that any of them may begin. Nobody waits for a
 * thread that has begun none: it may be off its processor or asleep, and finds the phase that is on when it comes. */
struct bl_pool_phases {
    uint32_t n;
    /* Does parts of a phase that nobody has begun: those meant for thread ith, or, where it helps, others'. Returns how
     * many it did. *all: how many the phase has, at least one, the same for everyone; not asked for of who helps. */
    uint32_t (*work)(void *arg, uint32_t phase, uint32_t ith, uint32_t nth, bool helps, uint32_t *all);
    void (*after)(void *arg, uint32_t phase); /* by one thread while no other works; NULL: nothing */
};
/* As bl_pool_run; returns when all phases are over and no thread looks at them any more. */
void bl_pool_run_phases(struct bl_pool *, uint32_t n, const struct bl_pool_phases *, void *arg);
uint64_t bl_pool_barriers(const struct bl_pool *); /* meetings so far, those between phases too: tests count them */

#endif

/* SPDX-License-Identifier: MIT */
#include "bandwidth.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PASSES = 16, LINE_WORDS = 8, STREAMS = 4, PAGE = 4096 };
static const uint64_t LEAST_BYTES = 256u << 20;

struct test {
    pthread_mutex_t gate; /* held until all threads are there */
    pthread_barrier_t meet;
    uint32_t n;
    size_t thread_bytes;
    _Atomic bool failed; /* some thread is missing or got no memory */
    double best;         /* bytes per nanosecond; thread 0's */
};
struct reader {
    struct test *test;
    pthread_t thread;
    uint32_t index;
    volatile uint64_t sum; /* so that the reads cannot be left out */
};

uint64_t bl_clock_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Several streams at once, as a thread has that works on several rows. */
static uint64_t read_all(const uint64_t *p, size_t n_words)
{
    const size_t part = n_words / STREAMS;
    uint64_t sum[LINE_WORDS] = {0}, all = 0;

    for (size_t i = 0; i + LINE_WORDS <= part; i += LINE_WORDS)
        for (size_t s = 0; s < STREAMS; s++)
            for (size_t w = 0; w < LINE_WORDS; w++)
                sum[w] += p[s * part + i + w];
    for (size_t w = 0; w < LINE_WORDS; w++)
        all += sum[w];
    return all;
}

static void read_repeatedly(struct reader *r, const uint64_t *buffer)
{
    struct test *t = r->test;

    for (int i = 0; i < PASSES; i++) {
        pthread_barrier_wait(&t->meet);
        const uint64_t began = bl_clock_ns();
        r->sum += read_all(buffer, t->thread_bytes / sizeof *buffer);
        pthread_barrier_wait(&t->meet);
        const double ns = (double)(bl_clock_ns() - began);
        const double rate = (double)t->thread_bytes * t->n / ns;
        if (!r->index && rate > t->best)
            t->best = rate;
    }
}

static void *reader_main(void *arg)
{
    struct reader *r = arg;
    struct test *t = r->test;

    pthread_mutex_lock(&t->gate);
    pthread_mutex_unlock(&t->gate);
    if (atomic_load(&t->failed))
        return NULL;
    uint64_t *buffer = aligned_alloc(PAGE, t->thread_bytes);
    if (buffer) /* written, so that it has pages of its own, near its reader */
        memset(buffer, 1, t->thread_bytes);
    else
        atomic_store(&t->failed, true);
    pthread_barrier_wait(&t->meet);
    if (!atomic_load(&t->failed))
        read_repeatedly(r, buffer);
    free(buffer);
    return NULL;
}

/* Per thread; all together four times what the last cache holds. */
static size_t buffer_bytes(uint32_t threads)
{
    uint64_t total = LEAST_BYTES;
#ifdef _SC_LEVEL3_CACHE_SIZE
    const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (cache > 0 && (uint64_t)cache * 4 > total)
        total = (uint64_t)cache * 4;
#endif
    return (size_t)(total / threads / PAGE + 1) * PAGE;
}

/* Starts the others, reads along and waits for them. */
static void run(struct test *t, struct reader *r)
{
    uint32_t started = 1;

    pthread_mutex_lock(&t->gate);
    for (uint32_t i = 0; i < t->n; i++)
        r[i] = (struct reader){.test = t, .index = i};
    while (started < t->n && !pthread_create(&r[started].thread, NULL, reader_main, &r[started]))
        started++;
    atomic_store(&t->failed, started < t->n);
    pthread_mutex_unlock(&t->gate);
    reader_main(&r[0]);
    for (uint32_t i = 1; i < started; i++)
        pthread_join(r[i].thread, NULL);
}

bool bl_bandwidth_read(uint32_t threads, double *gb_per_s)
{
    struct test t = {.n = threads, .thread_bytes = buffer_bytes(threads)};
    struct reader *r = calloc(threads, sizeof *r);

    if (!r || pthread_barrier_init(&t.meet, NULL, threads)) {
        free(r);
        return false;
    }
    pthread_mutex_init(&t.gate, NULL);
    run(&t, r);
    pthread_mutex_destroy(&t.gate);
    pthread_barrier_destroy(&t.meet);
    free(r);
    if (atomic_load(&t.failed))
        return false;
    *gb_per_s = t.best;
    return true;
}

/* SPDX-License-Identifier: MIT */
#include "calibrate.h"

#include "mem.h"
#include "numa.h"
#include "thread.h"

#include <time.h>

enum {
    SURE_CORES = 8,        /* fewer rarely ask for more than their memory gives */
    WAYS = 4,              /* n, n/2, n/4, n/8 threads */
    ROUNDS = 3,            /* of all of them, the best of each counts */
    PASS_BYTES = 8 << 20,  /* between two barriers: a large matrix of a layer */
    FILL_BYTES = 16 << 20, /* between two looks at the clock */
    LEAST_BYTES = 64 << 20
};
static const uint64_t most_bytes = (uint64_t)1 << 30;
static const double near_best = 0.97;
static const double own_share =
    0.8; /* of processor time: with less the speeds are those of others, too */

bool bl_calibrate_in_doubt(const struct bl_cpus *c)
{
    return c->n_nodes > 1 || c->n_home > SURE_CORES || c->threads.n_logical > c->threads.n_physical;
}

uint32_t bl_calibrate_pick(const double *gb_per_s, uint32_t n)
{
    double best = 0;
    uint32_t pick = 0;
    for (uint32_t i = 0; i < n; i++)
        best = gb_per_s[i] > best ? gb_per_s[i] : best;
    for (uint32_t i = 0; i < n; i++)
        if (gb_per_s[i] >= near_best * best)
            pick = i;
    return pick;
}

/* ---- jobs ---- */

struct trial {
    struct bl_pool *pool;
    unsigned char *block;
    size_t bytes;         /* of the block, as far as it is filled */
    size_t at;            /* where the next pass begins */
    uint64_t deadline_ns; /* of the job in hand */
    bool over;            /* thread 0's answer to all */
    uint64_t read_bytes;
    uint64_t cpu_ns, wanted_ns; /* processor time had, and what the threads would have used alone */
    _Atomic uint64_t sum;       /* what was read matters to somebody */
};

static struct bl_share_of {
    size_t first, end;
} share_of(size_t bytes, uint32_t ith, uint32_t nth)
{
    const size_t lines = bytes / 64;
    return (struct bl_share_of){lines * ith / nth * 64, lines * (ith + 1) / nth * 64};
}

/* Thread 0 looks at the clock for all. */
static bool go_on(struct trial *t, uint32_t ith)
{
    if (ith == 0)
        t->over = bl_now_ns() >= t->deadline_ns || t->at + PASS_BYTES > t->bytes;
    bl_pool_barrier(t->pool);
    const bool on = !t->over;
    bl_pool_barrier(t->pool);
    return on;
}

static void fill(void *arg, uint32_t ith, uint32_t nth)
{
    struct trial *t = arg;
    while (go_on(t, ith)) {
        const size_t n = t->bytes - t->at < FILL_BYTES ? t->bytes - t->at : FILL_BYTES;
        const struct bl_share_of s = share_of(n, ith, nth);
        memset(t->block + t->at + s.first, 1, s.end - s.first);
        bl_pool_barrier(t->pool);
        if (ith == 0)
            t->at += n;
    }
}

static uint64_t read_lines(const unsigned char *p, size_t bytes)
{
    uint64_t sum[8] = {0};
    for (size_t i = 0; i < bytes; i += 64) {
        uint64_t line[8];
        memcpy(line, p + i, sizeof line);
        BL_PREFETCH(p + i + 2048);
        for (unsigned k = 0; k < 8; k++)
            sum[k] += line[k];
    }
    return sum[0] ^ sum[1] ^ sum[2] ^ sum[3] ^ sum[4] ^ sum[5] ^ sum[6] ^ sum[7];
}

static void read_passes(void *arg, uint32_t ith, uint32_t nth)
{
    struct trial *t = arg;
    const struct bl_share_of s = share_of(PASS_BYTES, ith, nth);
    uint64_t sum = 0;
    while (go_on(t, ith)) {
        sum += read_lines(t->block + t->at + s.first, s.end - s.first);
        bl_pool_barrier(t->pool);
        if (ith)
            continue;
        t->read_bytes += PASS_BYTES;
        t->at = t->at + 2 * PASS_BYTES <= t->bytes ? t->at + PASS_BYTES : 0;
    }
    atomic_fetch_add_explicit(&t->sum, sum, memory_order_relaxed);
}

/* ---- trials ---- */

static uint64_t process_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static double speed(struct trial *t, uint32_t threads, uint64_t ns)
{
    const uint64_t start = bl_now_ns(), cpu = process_ns();
    t->deadline_ns = start + ns;
    t->read_bytes = 0;
    bl_pool_run(t->pool, threads, read_passes, t);
    const uint64_t took = bl_now_ns() - start;
    t->cpu_ns += process_ns() - cpu;
    t->wanted_ns += threads * took;
    return (double)t->read_bytes / (double)took;
}

static struct bl_decode_way try_all(struct trial *t, uint32_t most, uint64_t ns)
{
    struct bl_decode_way way[WAYS];
    double best[WAYS] = {0};
    uint32_t n = 0;
    for (uint32_t k = most; k && n < WAYS; k /= 2)
        way[n++] = (struct bl_decode_way){.threads = k};
    for (unsigned r = 0; r < ROUNDS; r++)
        for (uint32_t i = 0; i < n; i++) {
            const double now = speed(t, way[i].threads, ns / (ROUNDS * n));
            best[i] = now > best[i] ? now : best[i];
        }
    const uint32_t pick = bl_calibrate_pick(best, n);
    way[pick].gb_per_s = best[pick];
    return way[pick];
}

/* Memory that no cache holds, touched by those who will read it, for a third of the time at most.
 */
static enum bl_status try_block(struct trial *t, uint64_t bytes, uint64_t nodes, uint32_t threads,
                                uint64_t ns, struct bl_decode_way *out)
{
    void *block;
    BL_TRY(bl_pages_alloc((size_t)bytes, &block));
    if (nodes)
        (void)bl_numa_place(block, (size_t)bytes, nodes);
    t->block = block;
    t->bytes = (size_t)bytes;
    t->at = 0;
    const uint64_t start = bl_now_ns();
    t->deadline_ns = start + ns / 3;
    bl_pool_run(t->pool, threads, fill, t);
    t->bytes = t->at;
    t->at = 0;
    const uint64_t took = bl_now_ns() - start;
    if (t->bytes >= bytes / 2 && took < ns)
        *out = try_all(t, threads, ns - took);
    bl_pages_free(block, (size_t)bytes);
    return out->threads ? BL_OK
                        : bl_fail(BL_EUNAVAILABLE, "calibration: memory could not be filled in "
                                                   "time; threads are counted by rule");
}

static uint64_t all_nodes(const struct bl_cpus *c)
{
    uint64_t nodes = 0;
    for (uint32_t i = 0; i < c->n_nodes; i++)
        nodes |= c->node[i].id < BL_MAX_NODES ? (uint64_t)1 << c->node[i].id : 0;
    return nodes;
}

enum bl_status bl_calibrate(const struct bl_cpus *c, uint32_t most, bool bind,
                            uint64_t usable_bytes, uint64_t budget_ns, struct bl_decode_way *home,
                            struct bl_decode_way *spread)
{
    uint64_t bytes = c->cache_bytes > LEAST_BYTES / 2 ? 2 * c->cache_bytes : LEAST_BYTES;
    const bool several = c->n_nodes > 1;
    uint32_t n_home = c->n_home, n_all = c->n_cpus;
    struct bl_decode_way found[2] = {0};
    struct trial t = {0};

    if (most) {
        n_home = n_home < most ? n_home : most;
        n_all = n_all < most ? n_all : most;
    }
    bytes = bytes < most_bytes ? bytes : most_bytes;
    if (bytes > usable_bytes / 4)
        return bl_fail(BL_EUNAVAILABLE, "calibration: too little memory to read in; threads are "
                                        "counted by rule");
    const struct bl_pool_split split = {
        .n_few = n_home, .cpu = bind ? c->cpu : NULL, .n_home = c->n_home, .n_cpus = c->n_cpus};
    BL_TRY(bl_pool_create(&t.pool, several ? n_all : n_home, &split));
    const uint64_t ns = several ? budget_ns / 2 : budget_ns;
    const uint64_t own =
        c->node[c->home].id < BL_MAX_NODES ? (uint64_t)1 << c->node[c->home].id : 0;
    enum bl_status st = try_block(&t, bytes, several ? own : 0, n_home, ns, &found[0]);
    if (!st && several)
        st = try_block(&t, bytes, all_nodes(c), n_all, ns, &found[1]);
    bl_pool_destroy(t.pool);
    BL_TRY(st);
    if ((double)t.cpu_ns < own_share * (double)t.wanted_ns)
        return bl_fail(BL_EUNAVAILABLE, "calibration: other programs use the processors; threads "
                                        "are counted by rule");
    *home = found[0];
    *spread = several ? found[1] : found[0];
    return BL_OK;
}

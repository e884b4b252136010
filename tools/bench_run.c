/* SPDX-License-Identifier: MIT */
/* One row: the same work again and again, and what its times say. */
#include "bench.h"
#include "common/bandwidth.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct feeder {
    struct bl_engine *engine;
    struct bl_session *session, **sessions; /* sessions: one per token of a batch */
    int32_t *ids;
    uint32_t batch, n_vocab;
    uint64_t random;
    const struct bl_bench_how *how;
    bool untested; /* no memory for a read test */
};

/* ---- feeding ---- */

/* splitmix64 from a fixed seed: every run of a row sees the same tokens. */
static int32_t next_id(struct feeder *f)
{
    uint64_t z = f->random += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (int32_t)((z ^ z >> 31) % f->n_vocab);
}

static int32_t first_id(struct feeder *f)
{
    const struct bl_vocab *v = bl_engine_vocab(f->engine);
    const int32_t bos = v ? bl_vocab_bos(v) : -1;

    return bos >= 0 && (uint32_t)bos < f->n_vocab ? bos : next_id(f);
}

/* n tokens, `most` at a time. */
static enum bl_status feed(struct feeder *f, uint32_t n, uint32_t most)
{
    while (n) {
        const uint32_t now = n < most ? n : most;
        if (f->how->stopped())
            return BL_ECANCELLED;
        f->ids[0] = bl_session_n_tokens(f->session) ? next_id(f) : first_id(f);
        for (uint32_t i = 1; i < now; i++)
            f->ids[i] = next_id(f);
        const struct bl_batch b = {.n = now, .token = f->ids, .session = f->sessions};
        const enum bl_status st = bl_decode(f->engine, &b);
        if (st)
            return st;
        n -= now;
    }
    return BL_OK;
}

/* The session holds `depth` tokens again: taken back where its state allows, else fed anew. */
static enum bl_status stand_at(struct feeder *f, uint32_t depth)
{
    if (bl_session_n_tokens(f->session) >= depth && !bl_session_rewind(f->session, depth))
        return BL_OK;
    const enum bl_status st = bl_session_rewind(f->session, 0);
    return st ? st : feed(f, depth, f->batch);
}

static enum bl_status warm_up(struct feeder *f, const struct bl_bench_case *c)
{
    enum bl_status st = feed(f, c->prompt, f->batch);

    if (!st && c->gen)
        st = feed(f, 1, 1);
    return st ? st : bl_session_rewind(f->session, 0);
}

/* A machine may change its speed between one sample and the next, a virtual one by half. Without
 * memory for it nothing is said of shares. */
static void test_reading(struct feeder *f, struct bl_bench_result *r, uint32_t i)
{
    if (f->how->read_tests && !f->untested && !bl_bandwidth_read(r->c.threads, &r->test_gbs[i]))
        f->untested = true;
    if (f->untested)
        r->test_gbs[0] = 0;
}

static enum bl_status repeat(struct feeder *f, struct bl_bench_result *r)
{
    for (uint32_t i = 0; i < f->how->repetitions; i++) {
        enum bl_status st = stand_at(f, r->c.depth);
        if (st)
            return st;
        test_reading(f, r, i);
        if (f->how->profile)
            bl_engine_profile(f->engine, true, i == 0);
        const uint64_t began = bl_clock_ns();
        st = feed(f, r->c.prompt, f->batch);
        if (!st)
            st = feed(f, r->c.gen, 1);
        r->ns[i] = bl_clock_ns() - began;
        if (f->how->profile)
            bl_engine_profile(f->engine, false, false);
        if (st)
            return st;
        r->n_samples = i + 1;
    }
    test_reading(f, r, r->n_samples);
    return BL_OK;
}

static enum bl_status measure(struct feeder *f, struct bl_bench_result *r)
{
    enum bl_status st = bl_session_create(&f->session, f->engine);

    if (st)
        return st;
    for (uint32_t i = 0; i < f->batch; i++)
        f->sessions[i] = f->session;
    if (!f->how->no_warmup)
        st = warm_up(f, &r->c);
    if (!st)
        st = repeat(f, r);
    bl_session_destroy(f->session);
    return st;
}

enum bl_status bl_bench_measure(struct bl_bench_result *r, struct bl_engine *e,
                                const struct bl_bench_how *how)
{
    struct feeder f = {.engine = e, .batch = r->c.batch, .how = how};
    struct bl_token_cost cost;
    /* A token in the middle of what is generated stands for all of them. */
    const uint64_t middle = (uint64_t)r->c.depth + r->c.prompt + r->c.gen / 2;
    enum bl_status st = BL_ENOMEM;

    f.n_vocab = bl_engine_n_vocab(e);
    f.ids = calloc(f.batch, sizeof *f.ids);
    f.sessions = calloc(f.batch, sizeof *f.sessions);
    r->ns = calloc(how->repetitions, sizeof *r->ns);
    r->test_gbs = calloc((size_t)how->repetitions + 1, sizeof *r->test_gbs);
    if (f.ids && f.sessions && r->ns && r->test_gbs)
        st = measure(&f, r);
    if (!st)
        st = bl_engine_token_cost(e, middle, &cost);
    if (!st)
        bl_bench_figures(r, &cost);
    free(f.ids);
    free(f.sessions);
    return st;
}

void bl_bench_result_finish(struct bl_bench_result *r)
{
    free(r->ns);
    free(r->test_gbs);
    r->ns = NULL;
    r->test_gbs = NULL;
}

/* ---- figures ---- */

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Sorts them. */
static double median(double *v, uint32_t n)
{
    qsort(v, n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

/* 0 without memory, which leaves the figure out. */
static double median_ns(const struct bl_bench_result *r)
{
    double *v = malloc(r->n_samples * sizeof *v), m = 0;

    for (uint32_t i = 0; v && i < r->n_samples; i++)
        v[i] = (double)r->ns[i];
    if (v)
        m = median(v, r->n_samples);
    free(v);
    return m;
}

/* Of what the memory gave around each sample; likewise. */
static double median_share(const struct bl_bench_result *r, double sample_bytes)
{
    double *v = malloc(r->n_samples * sizeof *v), m = 0;

    for (uint32_t i = 0; v && i < r->n_samples; i++)
        v[i] = sample_bytes / (double)r->ns[i] * 2 / (r->test_gbs[i] + r->test_gbs[i + 1]);
    if (v)
        m = median(v, r->n_samples);
    free(v);
    return m;
}

static double spread(double sum, double squares, uint32_t n)
{
    const double variance = n > 1 ? (squares - sum * sum / n) / (n - 1) : 0;

    return variance > 0 ? sqrt(variance) : 0;
}

static void work_figures(struct bl_bench_result *r, const struct bl_token_cost *cost, double ns)
{
    const struct bl_bench_case *c = &r->c;
    const double outputs = (double)((c->prompt + c->batch - 1) / c->batch) + c->gen;
    const double macs = (double)cost->weight_macs * ((double)c->prompt + c->gen) +
                        (double)cost->head_macs * outputs;

    r->weight_gmacs = macs / ns;
    if (c->prompt)
        return;
    r->weight_bytes = cost->weight_bytes + cost->head_bytes;
    r->state_bytes = cost->state_bytes;
    const double bytes = (double)(r->weight_bytes + r->state_bytes) * c->gen;
    r->read_gbs = bytes / ns;
    if (r->test_gbs && r->test_gbs[0] > 0)
        r->read_share = median_share(r, bytes);
    else
        r->read_share = r->machine_gbs > 0 ? r->read_gbs / r->machine_gbs : 0;
}

void bl_bench_figures(struct bl_bench_result *r, const struct bl_token_cost *cost)
{
    const double tokens = (double)r->c.prompt + r->c.gen;
    double ns = 0, ns2 = 0, ts = 0, ts2 = 0;

    for (uint32_t i = 0; i < r->n_samples; i++) {
        const double one = (double)r->ns[i], rate = tokens * 1e9 / one;
        ns += one;
        ns2 += one * one;
        ts += rate;
        ts2 += rate * rate;
        r->best_ts = rate > r->best_ts ? rate : r->best_ts;
    }
    r->avg_ns = ns / r->n_samples;
    r->stddev_ns = spread(ns, ns2, r->n_samples);
    r->avg_ts = ts / r->n_samples;
    r->stddev_ts = spread(ts, ts2, r->n_samples);
    const double middle = median_ns(r);
    r->median_ts = middle > 0 ? tokens * 1e9 / middle : 0;
    if (middle > 0)
        work_figures(r, cost, middle);
}

/* ---- profile ---- */

static void print_kind(const struct bl_report *report, const char *name, uint64_t steps,
                       double run_ns, double wait_ns, const struct bl_bench_result *r, double all)
{
    const double runs = r->n_samples, tokens = ((double)r->c.prompt + r->c.gen) * runs;

    bl_report_note(report, "%-24s %9.0f %11.3f %11.3f %10.2f %6.1f %%", name, (double)steps / runs,
                   run_ns * 1e-6 / runs, wait_ns * 1e-6 / runs, (run_ns + wait_ns) * 1e-3 / tokens,
                   all > 0 ? (run_ns + wait_ns) / all * 100 : 0);
}

void bl_bench_print_profile(const struct bl_report *report, const struct bl_bench_result *r,
                            const struct bl_engine *e)
{
    struct bl_op_time t;
    struct bl_token_cost cost = {.layers = 0};
    double all = 0, counted = 0;
    uint64_t barriers = 0;
    char name[64];

    for (uint32_t i = 0; i < r->n_samples; i++)
        all += (double)r->ns[i];
    bl_bench_name(&r->c, name);
    bl_report_note(report, "profile of %s, first of %u thread%s, means of %u run%s:", name,
                   r->c.threads, bl_report_plural(r->c.threads), r->n_samples,
                   bl_report_plural(r->n_samples));
    bl_report_note(report, "%-24s %9s %11s %11s %10s %8s", "kind of step", "steps", "run ms",
                   "wait ms", "us/token", "share");
    for (uint32_t i = 0; i < bl_engine_op_time(e, i, &t); i++) {
        if (!t.steps)
            continue;
        print_kind(report, t.name, t.steps, (double)t.run_ns, (double)t.wait_ns, r, all);
        counted += (double)t.run_ns + (double)t.wait_ns;
        barriers += t.barriers;
    }
    print_kind(report, "between steps", 0, all - counted, 0, r, all);
    (void)bl_engine_token_cost(e, 0, &cost);
    bl_report_note(report, "%" PRIu64 " barriers a run, model of %u layer%s",
                   barriers / r->n_samples, cost.layers, bl_report_plural(cost.layers));
}

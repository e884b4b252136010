/* SPDX-License-Identifier: MIT */
/* Speeds of the device that runs the program, through the device contract. Everything is measured
 * in rounds, each figure once a round, so that what disturbs the machine for a while disturbs some
 * samples of all figures and not all of some. */
#include "probe_impl.h"

#include "mem.h"
#include "thread.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_ROUNDS = 15, LEAST_ROUNDS = 5 };
static const double steady = 0.015; /* a median that moves by less than this is good enough */

bool bl_probe_late(const struct bl_probe *p)
{
    return bl_now_ns() > p->deadline_ns;
}

void bl_probe_say(const struct bl_probe *p, const char *text)
{
    if (p->plan->note && p->round == 0)
        p->plan->note(p->plan->arg, text);
}

struct bl_device_config bl_probe_config(const struct bl_probe *p, uint32_t threads)
{
    struct bl_device_config c = p->dev->config;
    c.threads = c.threads_prefill = threads;
    c.nodes = 0;
    return c;
}

uint32_t bl_probe_few_threads(const struct bl_probe *p)
{
    return p->dev->config.threads ? p->dev->config.threads : 1;
}

uint32_t bl_probe_many_threads(const struct bl_probe *p)
{
    const uint32_t n = p->dev->config.threads_prefill;
    return n ? n : bl_probe_few_threads(p);
}

uint32_t bl_probe_next_count(uint32_t n, uint32_t most)
{
    return n == most ? 0 : 2 * n > most ? most : 2 * n;
}

/* ---- figures ---- */

/* Figure number i of a device, NULL: there are no more. Types come last. */
static double *figure(struct bl_machine_device *d, uint32_t i)
{
    enum {
        STEP = sizeof(struct bl_step_rate) / sizeof(double),
        KV = sizeof d->kv_rate / sizeof(double),
        TYPE = sizeof(struct bl_type_rate) / sizeof(double)
    };
    double *const single[] = {&d->read_measured_bps, &d->launch_ns, &d->layer_ns, &d->step_ns};
    if (i < BL_COUNT(single))
        return single[i];
    i -= (uint32_t)BL_COUNT(single);
    if (i < BL_MAX_READ_RATES)
        return &d->read_rate[i].bps;
    i -= BL_MAX_READ_RATES;
    if (i < BL_MAX_BARRIERS)
        return &d->barrier[i].ns;
    i -= BL_MAX_BARRIERS;
    if (i < 2 * BL_MAX_DOMAINS)
        return i % 2 ? &d->domain[i / 2].far_bps : &d->domain[i / 2].read_measured_bps;
    i -= 2 * BL_MAX_DOMAINS;
    if (i < STEP * BL_N_STEP_TEAMS)
        return (double *)&d->step_rate[i / STEP] + i % STEP;
    i -= STEP * BL_N_STEP_TEAMS;
    if (i < KV)
        return (double *)d->kv_rate + i;
    i -= KV;
    if (i < TYPE * BL_N_DTYPES)
        return (double *)&d->rate[i / TYPE] + i % TYPE;
    i -= TYPE * BL_N_DTYPES;
    return i < TYPE ? (double *)&d->rate_default + i : NULL;
}

double bl_probe_rounded(double v)
{
    char text[32];
    if (!(v > 0) || !isfinite(v))
        return 0;
    snprintf(text, sizeof text, "%.3g", v);
    return strtod(text, NULL);
}

/* By how much a median moves from one set of n samples to the next, relative to it: half the range
 * between the quartiles, over the root of n. Sorts. */
static double wander(double *v, uint32_t n)
{
    const double middle = bl_median(v, n);
    return middle > 0 && n >= LEAST_ROUNDS
               ? (v[n - 1 - n / 4] - v[n / 4]) / 2 / middle * 1.25 / sqrt(n)
               : 0;
}

static uint32_t samples_of(struct bl_machine_device *round, uint32_t n_rounds, uint32_t i,
                           double *v)
{
    uint32_t n = 0;
    for (uint32_t r = 0; r < n_rounds; r++)
        if (*figure(&round[r], i) > 0)
            v[n++] = *figure(&round[r], i);
    return n;
}

/* Medians of the rounds; returns how far their like may wander: of the figures that move most, all
 * but one in eight. */
static double merge(struct bl_machine_device *d, struct bl_machine_device *round, uint32_t n_rounds)
{
    enum { MOST = 512 };
    double v[MOST_ROUNDS], moves[MOST];
    uint32_t n_moves = 0;
    for (uint32_t i = 0; figure(d, i); i++) {
        const uint32_t n = samples_of(round, n_rounds, i, v);
        *figure(d, i) = bl_probe_rounded(bl_median(v, n));
        if (n >= LEAST_ROUNDS && n_moves < MOST)
            moves[n_moves++] = wander(v, n);
    }
    (void)bl_median(moves, n_moves); /* sorted */
    return n_moves ? moves[n_moves - 1 - n_moves / 8] : 0;
}

/* ---- rounds ---- */

static enum bl_status measure(struct bl_probe *p)
{
    BL_TRY(bl_probe_fixed(p));
    BL_TRY(bl_probe_reading(p));
    if (!bl_probe_late(p))
        BL_TRY(bl_probe_steps(p));
    return bl_probe_types(p);
}

static void say_how_sure(struct bl_probe *p, uint32_t n, double moves)
{
    char text[160];
    p->round = 0;
    if (n >= LEAST_ROUNDS) {
        snprintf(text, sizeof text, "medians of %u rounds, good to %.1f %%%s", n, 100 * moves,
                 moves > 0.05 ? ": something else keeps this machine busy" : "");
        bl_probe_say(p, text);
    }
    if ((double)p->cpu_ns >= 0.8 * (double)p->wanted_ns)
        return;
    snprintf(text, sizeof text,
             "other programs used the processors: %.0f %% of their time was had; the figures may "
             "be too low",
             100 * (double)p->cpu_ns / (double)p->wanted_ns);
    bl_probe_say(p, text);
}

/* Rounds until medians are good, or time for another is short. */
static enum bl_status measure_rounds(struct bl_probe *p, struct bl_machine_device *round)
{
    const struct bl_machine_device before = *p->dev;
    uint64_t longest = 0;
    double moves = 1;
    uint32_t n = 0;
    const uint32_t most = p->plan->quick ? LEAST_ROUNDS : MOST_ROUNDS;
    while (n < most && (n < LEAST_ROUNDS || moves > steady)) {
        const uint64_t start = bl_now_ns();
        if (n && start + longest > p->deadline_ns)
            break;
        *p->dev = before;
        p->round = n;
        BL_TRY(measure(p));
        round[n++] = *p->dev;
        const uint64_t took = bl_now_ns() - start;
        longest = took > longest ? took : longest;
        *p->dev = round[0];
        moves = merge(p->dev, round, n);
    }
    say_how_sure(p, n, moves);
    return BL_OK;
}

enum bl_status bl_probe_measure(struct bl_machine *m, const struct bl_probe_plan *plan)
{
    static const uint64_t budget_ns = 15000000000, quick_ns = 3000000000;
    const uint64_t ns = plan->budget_ns ? plan->budget_ns : plan->quick ? quick_ns : budget_ns;
    struct bl_probe p = {.machine = m, .dev = &m->device[0], .plan = plan};
    struct bl_machine_device *round = bl_calloc(MOST_ROUNDS, sizeof *round);
    if (!round)
        return bl_fail(BL_ENOMEM, "probe: out of memory");
    p.deadline_ns = bl_now_ns() + ns;
    enum bl_status st = bl_probe_take_mapped(&p, &p.weights);
    if (!st)
        st = bl_probe_take(&p, bl_probe_home_bit(&p), &p.states);
    if (!st)
        st = measure_rounds(&p, round);
    bl_probe_give(&p.states);
    bl_probe_give(&p.weights);
    free(round);
    return st;
}

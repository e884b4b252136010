/* SPDX-License-Identifier: MIT */
/* deal.h — who computes which unit of a step when threads are not equally fast; private to backends/cpu.
 *
 * Purpose   units are dealt to the threads beforehand in equal runs, so that each reads memory in one long stream. A
 *           thread takes a few of its own at a time; who waits for others takes over from the far ends of
 *           theirs. A thread's shares of all other steps of the stretch are one more unit. Nothing may depend on who
 *           computed what.
 * Ownership the device's; each step of a stretch that deals has a row of its own for its threads. Needs no setting to
 *           zero: what earlier stretches left is told by their numbers.
 * Units     units; their number is at most BL_CPU_MOST_UNITS.
 * Errors    none.
 * Threads   every thread of the job has a hand of its own. One that comes late may look at a step whose stretch is over:
 *           until it has taken a unit it must read only what stays the same during a segment.
 */
#ifndef BL_CPU_DEAL_H
#define BL_CPU_DEAL_H

#include "segment.h"

enum { BL_CPU_MOST_UNITS = UINT16_MAX };

/* The step in hand is one whose frame uses a hand. */
void bl_cpu_deals(struct bl_cpu_builder *);

/* A thread's way through n units: its own, or, where it helps, all others'. */
struct bl_cpu_hand {
    const struct bl_cpu_job *job;
    uint32_t n;
    uint32_t of, end;    /* whose units are taken now, up to whose; modulo the threads */
    struct bl_cpu_range share; /* of that thread */
};
static inline struct bl_cpu_hand bl_cpu_hand_of(const struct bl_cpu_job *job, uint32_t n)
{
    const uint32_t of = job->ith + job->helps, end = job->ith + (job->helps ? job->nth : 1);
    if (job->deal && !job->helps)
        job->tally->all += n;
    return (struct bl_cpu_hand){job, n, of, end, {0, 0}};
}
/* The next units, one after the other. */
bool bl_cpu_hand_next(struct bl_cpu_hand *, struct bl_cpu_range *units);
/* What will be taken after these, if nobody else does; n: not known. */
static inline uint32_t bl_cpu_hand_ahead(const struct bl_cpu_hand *h, struct bl_cpu_range units)
{
    return !h->job->helps && units.end < h->share.end ? units.end : h->n;
}
/* The first unit that a thread will get of n. */
static inline uint32_t bl_cpu_hand_first(const struct bl_cpu_job *job, uint32_t n)
{
    return bl_cpu_split(n, job->ith, job->nth).first;
}

/* Whether a thread's shares of the steps that do not deal are the caller's to do. */
bool bl_cpu_takes_shares(const struct bl_cpu_device *, const struct bl_cpu_job *, uint32_t of);
/* Before a segment whose stretches take n stamps. */
void bl_cpu_deal_anew(struct bl_cpu_device *, uint32_t n);

#endif

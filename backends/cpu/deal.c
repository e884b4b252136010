/* SPDX-License-Identifier: MIT */
#include "deal.h"

#include <assert.h>

/* Units taken at a time: others wait for them if the thread loses its processor. */
enum { MOST = 4 };

void bl_cpu_deals(struct bl_cpu_builder *b)
{
    if (!b->status)
        b->seg->step[b->seg->n_steps - 1].dealt = true;
}

/* Up to half of what is left of a thread's share of n: its own from the front, others' from the
 * back, so that the owner's stream stays whole. A later stamp means that the stretch is over.
 * Orders nothing: what units read was there before the stretch, the meeting hands on what they
 * write. */
static bool take(struct bl_cpu_deal *d, uint32_t stamp, uint32_t n, bool own,
                 struct bl_cpu_range *out)
{
    uint64_t seen = atomic_load_explicit(&d->taken, memory_order_relaxed), then;
    do {
        const int32_t age = (int32_t)(stamp - (uint32_t)(seen >> 32));
        const uint32_t front = age ? 0 : (uint32_t)(seen >> 16) & UINT16_MAX,
                       back = age ? 0 : (uint32_t)seen & UINT16_MAX;
        if (age < 0 || front + back >= n)
            return false;
        const uint32_t half = (n - front - back + 1) / 2, some = half < MOST ? half : MOST,
                       first = own ? front : n - back - some;
        *out = (struct bl_cpu_range){first, first + some};
        then = (uint64_t)stamp << 32 | (front + (own ? some : 0)) << 16 | (back + (own ? 0 : some));
    } while (!atomic_compare_exchange_weak_explicit(&d->taken, &seen, then, memory_order_relaxed,
                                                    memory_order_relaxed));
    return true;
}

/* When the run halts, what is left is taken and not done, so that the phase ends. */
static bool take_to_do(const struct bl_cpu_job *job, uint32_t of, uint32_t n, bool own,
                       struct bl_cpu_range *units)
{
    while (take(&job->deal[of], job->stamp, n, own, units)) {
        job->tally->done += units->end - units->first;
        if (!bl_cpu_halts(job->halt))
            return true;
    }
    return false;
}

bool bl_cpu_hand_next(struct bl_cpu_hand *h, struct bl_cpu_range *units)
{
    const struct bl_cpu_job *job = h->job;
    assert(h->n <= BL_CPU_MOST_UNITS);
    for (; h->of < h->end; h->of++) {
        const uint32_t of = h->of % job->nth;
        h->share = bl_cpu_split(h->n, of, job->nth);
        const uint32_t n = h->share.end - h->share.first;
        if (!job->deal) { /* nobody will help */
            *units = h->share;
            h->of = h->end;
            return n > 0;
        }
        if (!take_to_do(job, of, n, h->of == job->ith, units))
            continue;
        units->first += h->share.first;
        units->end += h->share.first;
        return true;
    }
    return false;
}

bool bl_cpu_takes_shares(const struct bl_cpu_device *d, const struct bl_cpu_job *job, uint32_t of)
{
    struct bl_cpu_range one;
    const bool takes =
        take(&d->deal[BL_CPU_DEALS * job->nth + of], job->stamp, 1, of == job->ith, &one);
    job->tally->done += takes;
    return takes;
}

/* What was not used for half the stamps there are would seem to be of the future. */
void bl_cpu_deal_anew(struct bl_cpu_device *d, uint32_t n)
{
    enum { PERIOD_SHIFT = 28 };
    if (!((d->stamp ^ (d->stamp + n)) >> PERIOD_SHIFT))
        return;
    for (uint32_t i = 0; i < BL_CPU_DEAL_ROWS * d->base.caps.threads; i++)
        atomic_store_explicit(&d->deal[i].taken, (uint64_t)(d->stamp - 1) << 32,
                              memory_order_relaxed);
}

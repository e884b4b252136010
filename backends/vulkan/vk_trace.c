/* SPDX-License-Identifier: MIT */
/* Times of commands: the device's by its timestamps, those of waits for others by the host's clock.
 */
#include "vk_device.h"

#include "mem.h"
#include "thread.h"

#include <stdlib.h>

static const uint64_t clock_lasts_ns = 1000000000; /* until the two may have drifted apart */

static enum bl_status make_room(const struct bl_vk_device *d, struct bl_vk_trace *t, uint32_t cap)
{
    const VkQueryPoolCreateInfo info = {.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO,
                                        .queryType = VK_QUERY_TYPE_TIMESTAMP,
                                        .queryCount = 2 * cap};
    if (cap <= t->cap)
        return BL_OK;
    bl_vk_trace_finish(d, t);
    t->mark = bl_calloc(cap, sizeof *t->mark);
    if (!t->mark)
        return bl_fail(BL_ENOMEM, "%s: out of memory for a trace of %u commands", d->base.name,
                       cap);
    t->cap = cap;
    return bl_vk_check(d->vk.CreateQueryPool(d->dev, &info, NULL, &t->pool), d->base.name,
                       "no timestamps");
}

enum bl_status bl_vk_trace_begin(const struct bl_vk_device *d, struct bl_vk_trace *t,
                                 struct bl_lapse_log *log)
{
    BL_TRY(make_room(d, t, log->cap + 1));
    t->log = log;
    t->n = 0;
    t->reset_due = true;
    t->began_ns = bl_now_ns();
    return BL_OK;
}

uint32_t bl_vk_trace_next(struct bl_vk_trace *t, bool timed)
{
    if (!t->log || t->n == t->cap)
        return BL_VK_NO_MARK;
    t->mark[t->n].timed = timed;
    atomic_store(&t->mark[t->n].passed_ns, 0);
    return t->n++;
}

void bl_vk_trace_stamp(const struct bl_vk_device *d, struct bl_vk_trace *t, VkCommandBuffer cmd,
                       uint32_t k, bool end)
{
    if (k == BL_VK_NO_MARK)
        return;
    if (t->reset_due)
        d->vk.CmdResetQueryPool(cmd, t->pool, 0, 2 * t->cap);
    t->reset_due = false;
    d->vk.CmdWriteTimestamp(cmd, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, t->pool, 2 * k + end);
}

void bl_vk_trace_passed(struct bl_vk_trace *t, uint32_t k)
{
    if (k != BL_VK_NO_MARK)
        atomic_store(&t->mark[k].passed_ns, bl_now_ns());
}

/* ---- from ticks to the host's clock ---- */

/* False: the command was not done. */
static bool read_ticks(const struct bl_vk_device *d, const struct bl_vk_trace *t, uint32_t k,
                       uint64_t tick[2])
{
    return d->vk.GetQueryPoolResults(d->dev, t->pool, 2 * k, 2, 2 * sizeof *tick, tick,
                                     sizeof *tick, VK_QUERY_RESULT_64_BIT) == VK_SUCCESS;
}

/* Counters of few bits run over; what is measured is never that far from the zero. */
static uint64_t host_ns(const struct bl_vk_device *d, const struct bl_vk_trace *t, uint64_t tick)
{
    const unsigned unused = 64 - d->facts.tick_bits;
    const int64_t ahead = (int64_t)((tick - t->zero_tick) << unused) >> unused;
    return t->zero_ns + (uint64_t)(int64_t)((double)ahead * d->facts.tick_ns);
}

/* The end lies somewhere between: a span longer than the one before tells less. */
void bl_vk_trace_set_clock(const struct bl_vk_device *d, struct bl_vk_trace *t, uint32_t k,
                           uint64_t from_ns, uint64_t to_ns)
{
    uint64_t tick[2];

    const uint64_t span_ns = to_ns - from_ns;

    if (k == BL_VK_NO_MARK || (t->zero_ns && span_ns > t->span_ns) || !read_ticks(d, t, k, tick))
        return;
    t->zero_tick = tick[1];
    t->zero_ns = from_ns + span_ns / 2;
    t->span_ns = span_ns;
}

static struct bl_lapse lapse_of(const struct bl_vk_device *d, const struct bl_vk_trace *t,
                                uint32_t k, uint64_t before_ns)
{
    const uint64_t passed = atomic_load(&t->mark[k].passed_ns);
    uint64_t tick[2];

    if (!t->mark[k].timed || !read_ticks(d, t, k, tick))
        return (struct bl_lapse){before_ns, passed > before_ns ? passed : before_ns, false};
    return (struct bl_lapse){host_ns(d, t, tick[0]), host_ns(d, t, tick[1]), false};
}

void bl_vk_trace_end(const struct bl_vk_device *d, struct bl_vk_trace *t)
{
    struct bl_lapse_log *log = t->log;
    uint64_t before_ns = t->began_ns;

    if (!log)
        return;
    for (uint32_t k = 0; k < t->n && k < log->cap; k++) {
        log->lapse[k] = lapse_of(d, t, k, before_ns);
        before_ns = log->lapse[k].end_ns;
        atomic_store(&log->n, k + 1);
    }
    t->log = NULL;
}

/* Drift makes what was known of it worth less. */
bool bl_vk_trace_clock_is_old(struct bl_vk_trace *t)
{
    if (t->zero_ns && bl_now_ns() - t->zero_ns <= clock_lasts_ns)
        return false;
    t->span_ns = 2 * t->span_ns;
    return true;
}

void bl_vk_trace_finish(const struct bl_vk_device *d, struct bl_vk_trace *t)
{
    if (t->pool)
        d->vk.DestroyQueryPool(d->dev, t->pool, NULL);
    free(t->mark);
    *t = (struct bl_vk_trace){0};
}

/* SPDX-License-Identifier: MIT */
/* How threads walk through the steps of a segment. */
#include "cpu.h"
#include "segment.h"

static bool holds(const struct bl_params *p, uint32_t off, uint32_t n, size_t item)
{
    return off % 4 == 0 && off >= sizeof *p && off <= p->n_bytes &&
           (uint64_t)n * item <= p->n_bytes - off;
}

static enum bl_status check_token(const struct bl_cpu_limits *l, const struct bl_params *p,
                                  uint32_t t)
{
    const uint32_t seq = BL_PARAMS_ARRAY(const uint32_t, p, p->seq_off)[t];
    const uint32_t pos = BL_PARAMS_ARRAY(const uint32_t, p, p->pos_off)[t];
    const int32_t id = BL_PARAMS_ARRAY(const int32_t, p, p->token_off)[t];
    if (seq >= p->n_seq)
        return bl_fail(BL_EINVAL, "token %u belongs to sequence %u of %u", t, seq, p->n_seq);
    const struct bl_seq_params *s =
        BL_PARAMS_ARRAY(const struct bl_seq_params, p, p->table_off) + seq;
    if (s->slot >= l->n_slots)
        return bl_fail(BL_EINVAL, "sequence %u owns slot %u, the state has %u", seq, s->slot,
                       l->n_slots);
    if (pos >= s->n_kv || pos >= l->n_pos)
        return bl_fail(BL_EINVAL, "token %u stands at position %u of sequence %u, which holds %u",
                       t, pos, seq, s->n_kv < l->n_pos ? s->n_kv : l->n_pos);
    if (id < 0 || (uint32_t)id >= l->n_ids)
        return bl_fail(BL_EINVAL, "token %u has id %d, the model has %u", t, id, l->n_ids);
    return BL_OK;
}

/* Kernels index by these numbers: what is wrong here must not become a stray write. */
static enum bl_status check_params(const struct bl_segment *s)
{
    const struct bl_params *p = s->block;
    const struct bl_cpu_limits *l = &s->limits;
    if (s->block_bytes < sizeof *p || p->n_bytes > s->block_bytes)
        return bl_fail(BL_EINVAL, "params block is cut off");
    if (p->n_tok > l->n_tok || (l->n_out && p->n_out > l->n_out))
        return bl_fail(
            BL_EINVAL,
            "params ask for %u tokens and %u outputs, the segment has room for %u and %u", p->n_tok,
            p->n_out, l->n_tok, l->n_out);
    if (!holds(p, p->token_off, p->n_tok, 4) || !holds(p, p->pos_off, p->n_tok, 4) ||
        !holds(p, p->seq_off, p->n_tok, 4) || !holds(p, p->out_off, p->n_out, 4) ||
        !holds(p, p->table_off, p->n_seq, sizeof(struct bl_seq_params)))
        return bl_fail(BL_EINVAL, "params arrays lie outside their block");
    for (uint32_t t = 0; t < p->n_tok; t++)
        BL_TRY(check_token(l, p, t));
    for (uint32_t i = 0; i < p->n_out; i++)
        if (BL_PARAMS_ARRAY(const uint32_t, p, p->out_off)[i] >= p->n_tok)
            return bl_fail(BL_EINVAL, "output %u is of token %u of %u", i,
                           BL_PARAMS_ARRAY(const uint32_t, p, p->out_off)[i], p->n_tok);
    return BL_OK;
}

/* ---- the walk ---- */

/* Where thread 0's time goes, by kind of step. Waiting counts for the step before it: that is the
 * one whose shares were uneven. Steps for one thread, whichever did them, are none of it. */
struct watch {
    struct bl_cpu_kind *last; /* of the last step */
    uint64_t then;            /* up to when all is counted */
    uint64_t alone_ns;        /* of steps for one thread, in the meeting in hand */
};
struct walk {
    struct bl_segment *segment;
    struct watch watch;
};
/* A thread's way through the segment. */
struct walker {
    struct walk *walk;
    struct bl_cpu_job job;
    const struct bl_cpu_stretch *at; /* whose steps come next */
    bool timed;                      /* the profile is on */
};

/* One thread at a time does this: thread 0, or the one that works while all wait. */
static uint64_t count(const struct walker *w, const struct bl_cpu_step *step, uint64_t then)
{
    struct bl_cpu_kind *k = &w->walk->segment->dev->profile.kind[step->kind];
    const uint64_t now = bl_now_ns();
    k->run_ns += now - then;
    k->steps++;
    w->walk->watch.last = k;
    return now;
}

/* Steps of a stretch; of one that helps, those that deal. */
static void run_steps(const struct walker *w, const struct bl_cpu_stretch *of,
                      struct bl_cpu_job job, bool timed)
{
    const struct bl_segment *s = w->walk->segment;
    struct bl_cpu_deal *const deal = s->dev->deal;
    uint32_t n_deals = 0;
    uint64_t then = timed ? bl_now_ns() : 0;
    job.stamp = s->dev->stamp + (uint32_t)(of - s->stretch);
    for (uint32_t i = of->first; i < of->end; i++) {
        const struct bl_cpu_step *step = &s->step[i];
        job.deal = step->dealt && n_deals < BL_CPU_DEALS ? deal + n_deals++ * w->job.nth : NULL;
        if (!job.deal && job.helps)
            continue;
        step->run(step->args, &job);
        if (timed)
            then = count(w, step, then);
    }
}

/* Units that nobody has begun, of the steps before the meeting. */
static void help(void *arg)
{
    const struct walker *w = arg;
    struct bl_cpu_job job = w->job;
    job.helps = true;
    run_steps(w, w->at - 1, job, false);
}

static void run_alone(void *arg)
{
    struct walker *w = arg;
    struct bl_cpu_job job = w->job;
    job.ith = 0;
    job.nth = 1;
    const uint64_t then = w->timed ? bl_now_ns() : 0;
    run_steps(w, w->at, job, w->timed);
    if (w->timed)
        w->walk->watch.alone_ns = bl_now_ns() - then;
}

static void meet(struct walker *w)
{
    const struct bl_pool_meeting m = {w->at[-1].dealt ? help : NULL,
                                      w->at->alone ? run_alone : NULL};
    bl_pool_meet(w->walk->segment->dev->pool, &m, w);
}

static void meet_timed(struct walker *w)
{
    struct watch *watch = &w->walk->watch;
    struct bl_cpu_kind *before = watch->last;
    watch->alone_ns = 0;
    meet(w);
    const uint64_t now = bl_now_ns();
    before->wait_ns += now - watch->then - watch->alone_ns;
    before->barriers++;
    watch->then = now;
}

static void walk(void *arg, uint32_t ith, uint32_t nth)
{
    struct walk *all = arg;
    const struct bl_segment *s = all->segment;
    struct walker w = {.walk = all,
                       .job = {&s->dev->kernels, s->block, ith, nth, false, 0, NULL},
                       .timed = s->dev->profile.on};
    const bool timed = w.timed && !ith;
    for (uint32_t i = 0; i < s->n_stretches; i++) {
        w.at = &s->stretch[i];
        if (w.at->meet)
            timed ? meet_timed(&w) : meet(&w);
        if (w.at->alone)
            continue;
        run_steps(&w, w.at, w.job, timed);
        if (timed)
            all->watch.then = bl_now_ns();
    }
}

static void run(struct bl_segment *s, uint32_t n_threads)
{
    struct walk w = {.segment = s};
    w.watch.then = bl_now_ns();
    bl_pool_run(s->dev->pool, n_threads, walk, &w);
    s->dev->stamp += s->n_stretches;
    if (s->dev->profile.on && w.watch.last)
        w.watch.last->wait_ns += bl_now_ns() - w.watch.then;
}

enum bl_status bl_cpu_segment_execute(struct bl_segment *s)
{
    BL_TRY(check_params(s));
    pthread_mutex_lock(&s->dev->turn);
    for (struct bl_cpu_counter *c = s->counters; c; c = c->link)
        atomic_store_explicit(&c->next, 0, memory_order_relaxed);
    const struct bl_cpu_device *d = s->dev;
    const uint32_t n_threads = s->block->n_tok <= BL_FEW_TOKENS ? d->threads : d->threads_prefill;
    run(s, n_threads);
    pthread_mutex_unlock(&s->dev->turn);
    return BL_OK;
}

/* SPDX-License-Identifier: MIT */
/* How threads walk through the steps of a segment. */
#include "cpu.h"
#include "deal.h"

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
    bool on;
    struct bl_cpu_kind *last;  /* of its last step */
    uint32_t phase;            /* where it was last */
    uint64_t then;             /* up to when all is counted */
    _Atomic uint64_t alone_ns; /* of steps for one thread so far */
    uint64_t counted_alone_ns; /* of these, up to `then` */
};
struct walk {
    const struct bl_segment *segment;
    struct watch watch;
    struct bl_cpu_halt halt;
    struct bl_cpu_halt *between; /* units too: halt, or NULL */
    _Atomic bool over;           /* it halted in an earlier phase: those that follow do nothing */
};

static uint64_t count(const struct walk *w, const struct bl_cpu_step *step, uint64_t then)
{
    struct bl_cpu_kind *k = &w->segment->dev->profile.kind[step->kind];
    const uint64_t now = bl_now_ns();
    atomic_fetch_add_explicit(&k->run_ns, now - then, memory_order_relaxed);
    atomic_fetch_add_explicit(&k->steps, 1, memory_order_relaxed);
    return now;
}

/* Thread 0 comes to a phase, or to the end; all phases before that are over. */
static void count_arrival(struct watch *w, uint32_t phase)
{
    const uint64_t now = bl_now_ns(),
                   alone_ns = atomic_load_explicit(&w->alone_ns, memory_order_relaxed);
    w->last->wait_ns += now - w->then - (alone_ns - w->counted_alone_ns);
    w->last->barriers += phase - w->phase;
    w->phase = phase;
    w->then = now;
    w->counted_alone_ns = alone_ns;
}

/* Those of the stretch's steps that deal, and the others, if these are the caller's to do. */
static void run_steps(struct walk *w, const struct bl_cpu_stretch *of, struct bl_cpu_job job,
                      bool dealt, bool others, bool timed)
{
    const struct bl_segment *s = w->segment;
    uint32_t n_deals = 0;
    uint64_t then = timed ? bl_now_ns() : 0;
    for (uint32_t i = of->first; i < of->end; i++) {
        const struct bl_cpu_step *step = &s->step[i];
        job.deal =
            step->dealt && n_deals < BL_CPU_DEALS ? s->dev->deal + n_deals++ * job.nth : NULL;
        if (!(job.deal ? dealt : others))
            continue;
        if (!job.deal && bl_cpu_halts(w->between))
            continue;
        step->run(step->args, &job);
        if (!timed)
            continue;
        then = count(w, step, then);
        w->watch.last = &s->dev->profile.kind[step->kind];
    }
}

static void run_own(struct walk *w, uint32_t phase, const struct bl_cpu_job *job)
{
    const bool timed = w->watch.on && !job->ith;
    if (timed)
        count_arrival(&w->watch, phase);
    const bool others = bl_cpu_takes_shares(w->segment->dev, job, job->ith);
    if (!atomic_load_explicit(&w->over, memory_order_relaxed))
        run_steps(w, &w->segment->stretch[phase], *job, true, others, timed);
    if (timed)
        w->watch.then = bl_now_ns();
}

/* Whole shares of threads that have not come, then units of steps that deal. */
static void run_others(struct walk *w, uint32_t phase, const struct bl_cpu_job *job)
{
    const struct bl_cpu_stretch *of = &w->segment->stretch[phase];
    const bool over = atomic_load_explicit(&w->over, memory_order_relaxed);
    for (uint32_t i = 1; i < job->nth; i++) {
        struct bl_cpu_job for_it = *job;
        for_it.ith = (job->ith + i) % job->nth;
        for_it.helps = false;
        if (bl_cpu_takes_shares(w->segment->dev, job, for_it.ith) && !over)
            run_steps(w, of, for_it, false, true, false);
    }
    if (!over)
        run_steps(w, of, *job, true, false, false);
}

static uint32_t run_phase(void *arg, uint32_t phase, uint32_t ith, uint32_t nth, bool helps,
                          uint32_t *all)
{
    struct walk *w = arg;
    const struct bl_segment *s = w->segment;
    struct bl_cpu_tally tally = {.all = nth};
    const struct bl_cpu_job job = {.kernels = &s->dev->kernels,
                                   .params = s->block,
                                   .ith = ith,
                                   .nth = nth,
                                   .helps = helps,
                                   .stamp = s->dev->stamp + phase,
                                   .tally = &tally,
                                   .halt = w->between};
    if (helps) {
        run_others(w, phase, &job);
    } else {
        run_own(w, phase, &job);
        *all = tally.all;
    }
    return tally.done;
}

/* What a halted phase left is not looked at. */
static void run_alone(void *arg, uint32_t phase)
{
    struct walk *w = arg;
    if (bl_cpu_halts(&w->halt)) {
        atomic_store_explicit(&w->over, true, memory_order_relaxed);
        return;
    }
    const struct bl_segment *s = w->segment;
    const struct bl_cpu_stretch *of = &s->stretch[phase];
    const struct bl_cpu_job job = {.kernels = &s->dev->kernels, .params = s->block, .nth = 1};
    const uint64_t start = w->watch.on ? bl_now_ns() : 0;
    uint64_t then = start;
    for (uint32_t i = of->end; i < of->alone_end; i++) {
        s->step[i].run(s->step[i].args, &job);
        if (w->watch.on)
            then = count(w, &s->step[i], then);
    }
    atomic_fetch_add_explicit(&w->watch.alone_ns, then - start, memory_order_relaxed);
}

static enum bl_status run(struct bl_segment *s, const struct bl_stream *stream)
{
    struct bl_cpu_device *d = s->dev;
    const bool few = s->block->n_tok <= BL_FEW_TOKENS;
    struct walk w = {
        .segment = s, .watch = {.on = d->profile.on && s->n_steps}, .halt = {.stream = stream}};
    w.between = few ? NULL : &w.halt;
    for (struct bl_cpu_counter *c = s->counters; c; c = c->link) {
        atomic_store_explicit(&c->next, 0, memory_order_relaxed);
        c->halt = w.between;
    }
    const struct bl_pool_phases phases = {s->n_stretches, run_phase, run_alone};
    bl_cpu_deal_anew(d, s->n_stretches);
    if (w.watch.on) {
        w.watch.last = &d->profile.kind[s->step[0].kind];
        w.watch.then = bl_now_ns();
    }
    bl_pool_run_phases(d->pool, few ? d->threads : d->threads_prefill, &phases, &w);
    d->stamp += s->n_stretches;
    if (w.watch.on)
        count_arrival(&w.watch, s->n_stretches - 1);
    return atomic_load_explicit(&w.halt.on, memory_order_relaxed)
               ? bl_fail(BL_ECANCELLED, "stopped")
               : BL_OK;
}

enum bl_status bl_cpu_segment_execute(struct bl_segment *s, const struct bl_stream *stream)
{
    BL_TRY(check_params(s));
    pthread_mutex_lock(&s->dev->turn);
    const enum bl_status st = run(s, stream);
    pthread_mutex_unlock(&s->dev->turn);
    return st;
}

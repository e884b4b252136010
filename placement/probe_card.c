/* SPDX-License-Identifier: MIT */
/* Speeds of a card and of its link, through the device contract: everything lies in one block of
 * it. */
#include "probe_impl.h"

#include "mem.h"
#include "thread.h"

#include <stdio.h>

enum { MIB = 1 << 20, MANY_TOKENS = 512, LEAST_COPY = 4096, COPIES = 5 };

/* What a card cannot do, or not with its memory, is not known of it; a device that fails is told
 * of. */
static enum bl_status forgive(enum bl_status st)
{
    return st == BL_EDEVICE || st == BL_ETIMEDOUT ? st : BL_OK;
}

/* ---- the link ---- */

struct link {
    struct bl_device *host;
    struct bl_mem there_and_back; /* of the host */
    struct bl_rig *rig;
};

static enum bl_status time_copy(const struct link *l, bool to_card, size_t bytes, double *best_ns)
{
    const struct bl_device_ops *ops = l->rig->dev->ops;
    const struct bl_mem *to = to_card ? &l->rig->card : &l->there_and_back;
    const struct bl_mem *from = to_card ? &l->there_and_back : &l->rig->card;

    for (unsigned i = 0; i < COPIES; i++) {
        const uint64_t start = bl_now_ns();
        struct bl_point p;
        BL_TRY(ops->copy(l->rig->stream, to, 0, from, 0, bytes));
        BL_TRY(ops->signal(l->rig->stream, &p));
        BL_TRY(bl_rig_join(l->rig, p));
        const double ns = (double)(bl_now_ns() - start);
        *best_ns = i == 0 || ns < *best_ns ? ns : *best_ns;
    }
    return BL_OK;
}

static struct bl_link *link_of(struct bl_machine *m, uint16_t d)
{
    for (uint32_t i = 0; i < m->n_links; i++)
        if (m->link[i].a == 0 && m->link[i].b == d)
            return &m->link[i];
    return NULL;
}

static enum bl_status measure_both_ways(const struct link *l, struct bl_link *out)
{
    const size_t bytes = l->there_and_back.bytes;
    double small, there, back;

    BL_TRY(time_copy(l, true, LEAST_COPY, &small));
    BL_TRY(time_copy(l, true, bytes, &there));
    BL_TRY(time_copy(l, false, bytes, &back));
    const double least = small / 2;
    out->ab_measured_bps =
        bl_probe_rounded((double)bytes / (there - small > least ? there - small : least) * 1e9);
    out->ba_measured_bps =
        bl_probe_rounded((double)bytes / (back - small > least ? back - small : least) * 1e9);
    out->latency_ns = out->cross_ns = bl_probe_rounded(small);
    snprintf(out->name, sizeof out->name, "measured");
    return BL_OK;
}

static enum bl_status measure_link(struct bl_probe *p, struct bl_rig *r, struct bl_link *out)
{
    const struct bl_machine_device *host = &p->machine->device[0];
    struct link l = {.rig = r};
    const size_t bytes = r->card.bytes < 64 * MIB ? r->card.bytes : 64 * MIB;

    bl_probe_say(p, "copies to it and back");
    BL_TRY(host->backend->open(host->index, &host->config, &l.host));
    enum bl_status st = l.host->ops->mem_alloc(l.host, bytes, true, &l.there_and_back);
    if (!st)
        memset(l.there_and_back.host, 0, bytes);
    if (!st)
        st = measure_both_ways(&l, out);
    /* the stream may know the block by its pages: it is emptied before they go */
    r->dev->ops->stream_close(r->stream);
    r->stream = NULL;
    if (l.there_and_back.dev)
        l.host->ops->mem_free(&l.there_and_back);
    l.host->ops->close(l.host);
    const enum bl_status again = r->dev->ops->stream_open(r->dev, &r->stream);
    return again ? again : st;
}

/* ---- the card ---- */

static enum bl_status measure_types(struct bl_probe *p, struct bl_rig *r)
{
    struct bl_machine_device *d = p->dev;

    bl_probe_say(p, "its kernels by type");
    for (uint32_t i = 0; bl_probe_common(i) != BL_N_DTYPES && (i == 0 || !bl_probe_late(p)); i++)
        BL_TRY(forgive(bl_probe_type(p, r, r, (enum bl_dtype)bl_probe_common(i))));
    d->rate_default = d->rate[bl_probe_common(0)];
    for (unsigned t = 0; t < BL_N_DTYPES; t++)
        if (d->rate[t].decode_bps > d->read_measured_bps)
            d->read_measured_bps = d->rate[t].decode_bps;
    return BL_OK;
}

static enum bl_status measure(struct bl_probe *p, struct bl_rig *r, struct bl_link *link)
{
    BL_TRY(forgive(bl_probe_narrow(p->dev, r)));
    if (link) {
        const enum bl_status st = measure_link(p, r, link);
        BL_TRY(r->stream ? forgive(st) : st);
    }
    BL_TRY(measure_types(p, r));
    if (bl_probe_late(p))
        return BL_OK;
    bl_probe_say(p, "its attention and other steps");
    BL_TRY(forgive(bl_probe_team(p, r, 1, BL_STEP_FEW)));
    return bl_probe_late(p) ? BL_OK : forgive(bl_probe_team(p, r, MANY_TOKENS, BL_STEP_MANY));
}

static void forget_figures(struct bl_machine_device *d)
{
    d->read_rated_bps = d->read_measured_bps = 0;
    d->f32_macs_per_s = d->f16_macs_per_s = d->i8_macs_per_s = 0;
    d->launch_ns = d->layer_ns = d->step_ns = 0;
    d->rate_default = (struct bl_type_rate){0};
    memset(d->rate, 0, sizeof d->rate);
    memset(d->step_rate, 0, sizeof d->step_rate);
    memset(d->kv_rate, 0, sizeof d->kv_rate);
}

static void round_type(struct bl_type_rate *r)
{
    r->decode_bps = bl_probe_rounded(r->decode_bps);
    for (unsigned i = 0; i < BL_N_RATE_TOKENS; i++)
        r->macs_per_s[i] = bl_probe_rounded(r->macs_per_s[i]);
}

static void round_figures(struct bl_machine_device *d)
{
    double *const one[] = {&d->read_measured_bps, &d->launch_ns, &d->layer_ns, &d->step_ns};
    double *kv = (double *)d->kv_rate, *step = (double *)d->step_rate;

    for (size_t i = 0; i < BL_COUNT(one); i++)
        *one[i] = bl_probe_rounded(*one[i]);
    for (size_t i = 0; i < sizeof d->kv_rate / sizeof *kv; i++)
        kv[i] = bl_probe_rounded(kv[i]);
    for (size_t i = 0; i < sizeof d->step_rate / (sizeof *step); i++)
        step[i] = bl_probe_rounded(step[i]);
    for (unsigned t = 0; t < BL_N_DTYPES; t++)
        round_type(&d->rate[t]);
    round_type(&d->rate_default);
}

/* Enough that caches of a card hold little of it; where there is less, in the same proportions. */
static void share_out(const struct bl_machine_device *d, struct bl_probe *p, size_t *bytes,
                      size_t *rest)
{
    const uint64_t all =
        d->usable_bytes / 2 < 512 * (uint64_t)MIB ? d->usable_bytes / 2 : 512 * (uint64_t)MIB;
    const size_t part = (size_t)(all / 16) & ~(size_t)4095;

    p->weights.n = 8 * part;
    p->states.n = 2 * part;
    *rest = 6 * part;
    *bytes = 16 * part;
}

enum bl_status bl_probe_card(struct bl_machine *m, uint16_t d, const struct bl_probe_plan *plan)
{
    static const uint64_t usual_ns = 4000000000, quick_ns = 2000000000;
    struct bl_machine_device *card = &m->device[d];
    struct bl_probe p = {.machine = m, .dev = card, .plan = plan};
    const uint64_t ns = plan->budget_ns ? plan->budget_ns : plan->quick ? quick_ns : usual_ns;
    char text[128];
    size_t bytes, rest;
    struct bl_rig r;

    snprintf(text, sizeof text, "%s%u is %s: %s", card->backend_name, card->index, card->id,
             card->name);
    bl_probe_say(&p, text);
    share_out(card, &p, &bytes, &rest);
    p.deadline_ns = bl_now_ns() + ns;
    BL_TRY(bl_rig_open_card(&r, card, bytes, rest));
    p.weights.bytes = (unsigned char *)(uintptr_t)r.card.addr;
    p.states.bytes = p.weights.bytes + p.weights.n;
    forget_figures(card);
    const enum bl_status st = measure(&p, &r, link_of(m, d));
    round_figures(card);
    bl_rig_close(&r);
    return st;
}

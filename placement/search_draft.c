/* SPDX-License-Identifier: MIT */
/* Candidates: counted, scored and filled, all on cached costs. */
#include "search_impl.h"

#include "mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint16_t *cell(const struct bl_draft *d, uint32_t layer, unsigned group)
{
    return &d->at[(size_t)layer * BL_N_GROUPS + group];
}

static size_t n_cells(const struct bl_costs *c)
{
    return (size_t)c->n_layers * BL_N_GROUPS;
}

enum bl_status bl_draft_init(struct bl_draft *d, const struct bl_costs *c)
{
    *d = (struct bl_draft){.at = bl_calloc(n_cells(c) + 1, sizeof *d->at),
                           .used = bl_calloc(c->n_devices, sizeof *d->used)};
    if (d->at && d->used)
        return BL_OK;
    bl_draft_finish(d);
    return bl_fail(BL_ENOMEM, "out of memory for a candidate plan");
}

void bl_draft_finish(struct bl_draft *d)
{
    free(d->at);
    free(d->used);
    *d = (struct bl_draft){0};
}

void bl_draft_copy(struct bl_draft *to, const struct bl_draft *from, const struct bl_costs *c)
{
    memcpy(to->at, from->at, n_cells(c) * sizeof *to->at);
    memcpy(to->used, from->used, c->n_devices * sizeof *to->used);
    to->score = from->score;
}

bool bl_draft_same(const struct bl_draft *a, const struct bl_draft *b, const struct bl_costs *c)
{
    return !memcmp(a->at, b->at, n_cells(c) * sizeof *a->at);
}

/* ---- bytes ---- */

static uint16_t head_device(const struct bl_draft *d, const struct bl_costs *c)
{
    return c->head_pin != BL_NO_DEVICE ? c->head_pin
                                       : bl_draft_at(d, c->n_layers - 1, BL_GROUP_REST);
}

void bl_draft_count(struct bl_draft *d, const struct bl_costs *c)
{
    const uint16_t head = head_device(d, c);

    memcpy(d->used, c->fixed, c->n_devices * sizeof *d->used);
    for (uint32_t l = 0; l < c->n_layers; l++)
        for (unsigned g = 0; g < BL_N_GROUPS; g++)
            d->used[bl_draft_at(d, l, g)] += bl_group_bytes(c, l, g);
    d->used[head] += bl_head_bytes(c, head);
    d->used[c->embed_at] += c->embed_bytes;
    for (uint32_t i = 1; i < c->n_devices; i++)
        d->used[i] += d->used[i] ? c->compute[i] : 0;
    d->used[0] += c->host_bytes + c->compute[0];
}

/* A card that shares the host's memory takes from it. */
bool bl_draft_fits(const struct bl_draft *d, const struct bl_costs *c, const struct bl_machine *m)
{
    uint64_t shared = d->used[0];

    for (uint32_t i = 0; i < c->n_devices; i++) {
        if (d->used[i] > c->budget[i])
            return false;
        if (i && m->device[i].shares == 0)
            shared += d->used[i];
    }
    return shared <= c->budget[0];
}

/* ---- time ---- */

static double experts_cost(const struct bl_costs *c, uint32_t l, uint16_t h, uint16_t e)
{
    const uint32_t n = c->n_devices;
    return (h && !e ? c->blend_sent[(size_t)l * n + h]
                    : c->blend[bl_cost_at(c, l, BL_GROUP_EXPERTS, e)]) +
           c->blend_cross[h * n + e] + c->blend_cross[e * n + h];
}

double bl_layer_cost(const struct bl_draft *d, const struct bl_costs *c, uint32_t l)
{
    const uint32_t n = c->n_devices;
    const double *cross = c->blend_cross;
    const uint16_t before = l ? bl_draft_at(d, l - 1, BL_GROUP_REST) : c->embed_at;
    const uint16_t h = bl_draft_at(d, l, BL_GROUP_REST), e = bl_draft_at(d, l, BL_GROUP_EXPERTS);
    double cost = c->blend[bl_cost_at(c, l, BL_GROUP_REST, h)] + cross[before * n + h];

    if (bl_group_bytes(c, l, BL_GROUP_EXPERTS))
        cost += experts_cost(c, l, h, e);
    if (l + 1 == c->n_layers) {
        const uint16_t head = head_device(d, c);
        cost += c->blend_head[head] + cross[h * n + head] + cross[head * n];
    }
    return cost;
}

void bl_draft_score(struct bl_draft *d, const struct bl_costs *c)
{
    d->score = 0;
    for (uint32_t l = 0; l < c->n_layers; l++)
        d->score += bl_layer_cost(d, c, l);
}

double bl_draft_ns(const struct bl_draft *d, const struct bl_costs *c, enum bl_phase phase)
{
    const unsigned p = phase == BL_DECODE ? BL_DECODE : BL_PREFILL;
    const double *cross = c->cross_ns[p];
    const uint16_t head = head_device(d, c);
    const uint32_t n = c->n_devices;
    uint16_t before = c->embed_at;
    double ns = 0;

    for (uint32_t l = 0; l < c->n_layers; l++) {
        const uint16_t h = bl_draft_at(d, l, BL_GROUP_REST),
                       e = bl_draft_at(d, l, BL_GROUP_EXPERTS);
        const double sent = c->ns[BL_SENT][(size_t)l * n + h];
        ns += c->ns[p][bl_cost_at(c, l, BL_GROUP_REST, h)] + cross[before * n + h];
        before = h;
        if (!bl_group_bytes(c, l, BL_GROUP_EXPERTS))
            continue;
        ns += phase == BL_SENT && h && !e && sent > 0
                  ? sent
                  : c->ns[p][bl_cost_at(c, l, BL_GROUP_EXPERTS, e)];
        ns += cross[h * n + e] + cross[e * n + h];
    }
    return ns + c->head_ns[p][head] + cross[before * n + head] + cross[head * n];
}

double bl_plan_score(double decode_ns, double prefill_ns, double prefill_weight)
{
    return pow(decode_ns, 1 - prefill_weight) * pow(prefill_ns, prefill_weight);
}

/* ---- as a plan ---- */

void bl_draft_to_plan(const struct bl_draft *d, const struct bl_costs *c, struct bl_plan *p)
{
    const size_t n = (size_t)(p->n_layers + 1) * BL_N_PARTS;

    for (uint32_t l = 0; l < p->n_layers; l++)
        for (unsigned part = 0; part < BL_N_PARTS; part++)
            p->slot[l * BL_N_PARTS + part] =
                bl_draft_at(d, l, part == BL_PART_EXPERTS ? BL_GROUP_EXPERTS : BL_GROUP_REST);
    for (unsigned part = 0; part < BL_N_PARTS; part++)
        p->slot[p->n_layers * BL_N_PARTS + part] = part == BL_PART_HEAD    ? head_device(d, c)
                                                   : part == BL_PART_EMBED ? c->embed_at
                                                                           : 0;
    for (size_t i = 0; c->pins && i < n; i++)
        if (c->pins->at[i] != BL_NO_DEVICE)
            p->slot[i] = c->pins->at[i];
    p->n_ranges = 0;
}

/* ---- filling ---- */

static bool ranks_before(const struct bl_machine *m, uint16_t a, uint16_t b)
{
    const struct bl_machine_device *x = &m->device[a], *y = &m->device[b];
    const double xb = bl_device_read_bps(x), yb = bl_device_read_bps(y);

    if (xb > yb || xb < yb)
        return xb > yb;
    return x->usable_bytes != y->usable_bytes ? x->usable_bytes > y->usable_bytes : a < b;
}

uint32_t bl_rank_cards(const struct bl_costs *c, const struct bl_machine *m, uint16_t *card)
{
    uint32_t n = 0;

    for (uint16_t d = 1; d < m->n_devices; d++) {
        if (!c->open[d])
            continue;
        uint32_t i = n++;
        for (; i && ranks_before(m, d, card[i - 1]); i--)
            card[i] = card[i - 1];
        card[i] = d;
    }
    return n;
}

static uint64_t room(const struct bl_costs *c, uint16_t d)
{
    const uint64_t gone = c->compute[d] + c->fixed[d];
    return c->budget[d] > gone ? c->budget[d] - gone : 0;
}

/* Runs end where the share of the layers' bytes reaches the share of the cards' room; when all fits
 * the first cards are filled, the last left empty. */
static void lay_runs(struct bl_draft *d, const struct bl_costs *c, const uint16_t *card, uint32_t n)
{
    double all = 0, bytes = (double)c->head_bytes, done = 0, end;
    uint32_t k = 0;

    for (uint32_t l = 0; l < c->n_layers; l++)
        bytes +=
            (double)(bl_group_bytes(c, l, BL_GROUP_REST) + bl_group_bytes(c, l, BL_GROUP_EXPERTS));
    for (uint32_t i = 0; i < n; i++)
        all += (double)room(c, card[i]);
    const double scale = bytes > all && all > 0 ? bytes / all : 1;
    end = (double)room(c, card[0]) * scale;
    for (uint32_t l = 0; l < c->n_layers; l++) {
        const double whole =
            (double)(bl_group_bytes(c, l, BL_GROUP_REST) + bl_group_bytes(c, l, BL_GROUP_EXPERTS));
        const double need = scale > 1 ? whole / 2 : whole;
        while (done + need > end && k + 1 < n) {
            done = scale > 1 ? done : end; /* what is left of a card stays empty */
            end += (double)room(c, card[++k]) * scale;
        }
        *cell(d, l, BL_GROUP_REST) = card[k];
        done += whole;
    }
}

/* Rules decide; what a card cannot run stays on the host. */
static void obey(struct bl_draft *d, const struct bl_costs *c)
{
    for (uint32_t i = 0; i < n_cells(c); i++)
        d->at[i] = c->pin[i] != BL_NO_DEVICE
                       ? c->pin[i]
                       : bl_able_or_host(c, i / BL_N_GROUPS, i % BL_N_GROUPS, d->at[i]);
}

static bool has_room(const struct bl_draft *d, const struct bl_costs *c, uint16_t dev,
                     uint64_t bytes)
{
    const uint64_t fresh = d->used[dev] || !dev ? 0 : c->compute[dev];
    return d->used[dev] + fresh + bytes <= c->budget[dev];
}

static void place(struct bl_draft *d, const struct bl_costs *c, uint16_t dev, uint64_t bytes)
{
    d->used[dev] += bytes + (d->used[dev] || !dev ? 0 : c->compute[dev]);
}

struct offer {    /* a layer's experts to a card */
    double saved; /* for a byte */
    uint32_t layer;
    uint16_t card, rank;
};

/* Ties: later layers first, as hand-made plans have it. */
static int by_saving(const void *a, const void *b)
{
    const struct offer *x = a, *y = b;

    if (x->saved > y->saved || x->saved < y->saved)
        return x->saved > y->saved ? -1 : 1;
    if (x->layer != y->layer)
        return x->layer > y->layer ? -1 : 1;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

static uint32_t make_offers(const struct bl_draft *d, const struct bl_costs *c,
                            const uint16_t *card, uint32_t n, struct offer *offer)
{
    uint32_t n_offers = 0;

    for (uint32_t l = 0; l < c->n_layers; l++) {
        const uint64_t bytes = bl_group_bytes(c, l, BL_GROUP_EXPERTS);
        const uint16_t h = bl_draft_at(d, l, BL_GROUP_REST);
        if (!bytes || c->pin[l * BL_N_GROUPS + BL_GROUP_EXPERTS] != BL_NO_DEVICE)
            continue;
        for (uint32_t i = 0; i < n; i++) {
            const double saved =
                (experts_cost(c, l, h, 0) - experts_cost(c, l, h, card[i])) / (double)bytes;
            if (saved > 0 && bl_able_or_host(c, l, BL_GROUP_EXPERTS, card[i]) == card[i])
                offer[n_offers++] = (struct offer){saved, l, card[i], (uint16_t)i};
        }
    }
    qsort(offer, n_offers, sizeof *offer, by_saving);
    return n_offers;
}

/* Where they save most for their bytes, while there is room. */
static enum bl_status fill_experts(struct bl_draft *d, const struct bl_costs *c,
                                   const uint16_t *card, uint32_t n)
{
    struct offer *offer = bl_calloc((size_t)c->n_layers * n + 1, sizeof *offer);

    if (!offer)
        return bl_fail(BL_ENOMEM, "out of memory for a candidate plan");
    const uint32_t n_offers = make_offers(d, c, card, n, offer);
    for (uint32_t i = 0; i < n_offers; i++) {
        uint16_t *e = cell(d, offer[i].layer, BL_GROUP_EXPERTS);
        const uint64_t bytes = bl_group_bytes(c, offer[i].layer, BL_GROUP_EXPERTS);
        if (*e || !has_room(d, c, offer[i].card, bytes))
            continue;
        *e = offer[i].card;
        d->used[0] -= bytes;
        place(d, c, offer[i].card, bytes);
    }
    free(offer);
    return BL_OK;
}

enum bl_status bl_draft_fill(struct bl_draft *d, const struct bl_costs *c,
                             const struct bl_machine *m, const uint16_t *card, uint32_t n,
                             bool in_runs, bool *fits)
{
    memset(d->at, 0, n_cells(c) * sizeof *d->at);
    if (n && in_runs)
        lay_runs(d, c, card, n);
    for (uint32_t l = 0; n && !in_runs && l < c->n_layers; l++)
        *cell(d, l, BL_GROUP_REST) = card[0];
    if (n && m->device[card[0]].shares == 0) /* never split: the memory is the same */
        for (uint32_t l = 0; l < c->n_layers; l++)
            *cell(d, l, BL_GROUP_EXPERTS) = card[0];
    obey(d, c);
    bl_draft_count(d, c);
    if (n && m->device[card[0]].shares != 0)
        BL_TRY(fill_experts(d, c, card, n));
    bl_draft_count(d, c);
    bl_draft_score(d, c);
    *fits = bl_draft_fits(d, c, m);
    return BL_OK;
}

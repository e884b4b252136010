/* SPDX-License-Identifier: MIT */
/* Candidates: filled, counted, improved, all on cached costs. */
#include "search_impl.h"

#include "mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint16_t *at(const struct bl_draft *d, uint32_t layer, enum bl_group g)
{
    return &d->at[layer * BL_N_GROUPS + g];
}

static uint64_t bytes_of(const struct bl_costs *c, uint32_t layer, enum bl_group g)
{
    return c->bytes[(size_t)layer * BL_N_GROUPS + g];
}

enum bl_status bl_draft_init(struct bl_draft *d, const struct bl_costs *c)
{
    *d = (struct bl_draft){.at = bl_calloc((size_t)c->n_layers * BL_N_GROUPS + 1, sizeof *d->at),
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
    memcpy(to->at, from->at, (size_t)c->n_layers * BL_N_GROUPS * sizeof *to->at);
    memcpy(to->used, from->used, c->n_devices * sizeof *to->used);
    to->score = from->score;
}

/* ---- bytes ---- */

static uint16_t head_device(const struct bl_draft *d, const struct bl_costs *c)
{
    return *at(d, c->n_layers - 1, BL_GROUP_REST);
}

void bl_draft_count(struct bl_draft *d, const struct bl_costs *c)
{
    memset(d->used, 0, c->n_devices * sizeof *d->used);
    for (uint32_t l = 0; l < c->n_layers; l++)
        for (unsigned g = 0; g < BL_N_GROUPS; g++)
            d->used[*at(d, l, g)] += bytes_of(c, l, g);
    d->used[head_device(d, c)] += c->head_bytes;
    for (uint32_t i = 1; i < c->n_devices; i++)
        d->used[i] += d->used[i] ? c->compute[i] : 0;
    d->used[0] += c->host_bytes + c->embed_bytes + c->compute[0];
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

/* A layer, the way to it from the one before, and what follows the last. */
static double layer_ns(const struct bl_draft *d, const struct bl_costs *c, enum bl_phase phase,
                       uint32_t l)
{
    const double *cross = c->cross_ns[phase];
    const uint16_t before = l ? *at(d, l - 1, BL_GROUP_REST) : 0;
    const uint16_t h = *at(d, l, BL_GROUP_REST), e = *at(d, l, BL_GROUP_EXPERTS);
    double ns = c->ns[phase][bl_cost_at(c, l, BL_GROUP_REST, h)] +
                c->ns[phase][bl_cost_at(c, l, BL_GROUP_EXPERTS, e)] +
                cross[before * c->n_devices + h];

    if (bytes_of(c, l, BL_GROUP_EXPERTS))
        ns += cross[h * c->n_devices + e] + cross[e * c->n_devices + h];
    if (l + 1 == c->n_layers)
        ns += c->head_ns[phase][h] + cross[h * c->n_devices];
    return ns;
}

double bl_draft_ns(const struct bl_draft *d, const struct bl_costs *c, enum bl_phase phase)
{
    double ns = 0;
    for (uint32_t l = 0; l < c->n_layers; l++)
        ns += layer_ns(d, c, phase, l);
    return ns;
}

double bl_plan_score(double decode_ns, double prefill_ns, double prefill_weight)
{
    return pow(decode_ns, 1 - prefill_weight) * pow(prefill_ns, prefill_weight);
}

static double score(const struct bl_draft *d, const struct bl_costs *c, double weight)
{
    return bl_plan_score(bl_draft_ns(d, c, BL_DECODE), bl_draft_ns(d, c, BL_PREFILL), weight);
}

void bl_draft_to_plan(const struct bl_draft *d, struct bl_plan *p)
{
    const uint16_t last = *at(d, p->n_layers - 1, BL_GROUP_REST);

    for (uint32_t l = 0; l < p->n_layers; l++)
        for (unsigned part = 0; part < BL_N_PARTS; part++)
            p->slot[l * BL_N_PARTS + part] =
                *at(d, l, part == BL_PART_EXPERTS ? BL_GROUP_EXPERTS : BL_GROUP_REST);
    for (unsigned part = 0; part < BL_N_PARTS; part++)
        p->slot[p->n_layers * BL_N_PARTS + part] = part == BL_PART_HEAD ? last : 0;
}

/* ---- filling ---- */

/* Beside cards with memory of their own, those that live in the host's are left out: they would
 * take its memory for the sake of little. */
static bool is_usable(const struct bl_machine *m, uint16_t d)
{
    const struct bl_machine_device *md = &m->device[d];
    bool dedicated = false;

    for (uint32_t i = 1; i < m->n_devices; i++)
        dedicated = dedicated || (m->device[i].kind == BL_KIND_GPU &&
                                  m->device[i].mem_kind == BL_MEMORY_DEDICATED);
    return md->kind == BL_KIND_GPU && md->usable_bytes &&
           !(dedicated && (md->integrated || md->mem_kind == BL_MEMORY_UNIFIED));
}

static bool ranks_before(const struct bl_machine *m, uint16_t a, uint16_t b)
{
    const struct bl_machine_device *x = &m->device[a], *y = &m->device[b];
    const double xb = bl_device_read_bps(x), yb = bl_device_read_bps(y);

    if (xb > yb || xb < yb)
        return xb > yb;
    return x->usable_bytes != y->usable_bytes ? x->usable_bytes > y->usable_bytes : a < b;
}

uint32_t bl_rank_cards(const struct bl_machine *m, uint16_t *card)
{
    uint32_t n = 0;

    for (uint16_t d = 1; d < m->n_devices; d++) {
        if (!is_usable(m, d))
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
    return c->budget[d] > c->compute[d] ? c->budget[d] - c->compute[d] : 0;
}

/* Runs end where the share of the layers' bytes reaches the share of the cards' room; when all fits
 * the first cards are filled, the last left empty. */
static void lay_runs(struct bl_draft *d, const struct bl_costs *c, const uint16_t *card, uint32_t n)
{
    double all = 0, bytes = (double)c->head_bytes, done = 0, end;
    uint32_t k = 0;

    for (uint32_t l = 0; l < c->n_layers; l++)
        bytes += (double)(bytes_of(c, l, BL_GROUP_REST) + bytes_of(c, l, BL_GROUP_EXPERTS));
    for (uint32_t i = 0; i < n; i++)
        all += (double)room(c, card[i]);
    const double scale = bytes > all && all > 0 ? bytes / all : 1;
    end = (double)room(c, card[0]) * scale;
    for (uint32_t l = 0; l < c->n_layers; l++) {
        const double whole =
            (double)(bytes_of(c, l, BL_GROUP_REST) + bytes_of(c, l, BL_GROUP_EXPERTS));
        const double need = scale > 1 ? whole / 2 : whole;
        while (done + need > end && k + 1 < n) {
            done = scale > 1 ? done : end; /* what is left of a card stays empty */
            end += (double)room(c, card[++k]) * scale;
        }
        *at(d, l, BL_GROUP_REST) = card[k];
        done += whole;
    }
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

/* What a layer's experts cost on a device, with the way there and back. */
static double experts_score(const struct bl_costs *c, uint32_t l, uint16_t h, uint16_t e,
                            double weight)
{
    double ns[BL_N_PHASES];

    for (unsigned p = 0; p < BL_N_PHASES; p++)
        ns[p] = c->ns[p][bl_cost_at(c, l, BL_GROUP_EXPERTS, e)] +
                c->cross_ns[p][h * c->n_devices + e] + c->cross_ns[p][e * c->n_devices + h];
    return (1 - weight) * ns[BL_DECODE] + weight * ns[BL_PREFILL];
}

/* The layer and card whose experts save most for their bytes; ties: later layers first, as
 * hand-made plans have it. */
static bool next_experts(const struct bl_draft *d, const struct bl_costs *c, const uint16_t *card,
                         uint32_t n, double weight, uint32_t *layer, uint16_t *to)
{
    double best = 0;

    for (uint32_t l = c->n_layers; l-- > 0;) {
        const uint64_t bytes = bytes_of(c, l, BL_GROUP_EXPERTS);
        const uint16_t h = *at(d, l, BL_GROUP_REST);
        if (!bytes || *at(d, l, BL_GROUP_EXPERTS) != 0)
            continue;
        for (uint32_t i = 0; i < n; i++) {
            if (!has_room(d, c, card[i], bytes))
                continue;
            const double saved =
                (experts_score(c, l, h, 0, weight) - experts_score(c, l, h, card[i], weight)) /
                (double)bytes;
            if (saved > best * (1 + 1e-9)) {
                best = saved;
                *layer = l;
                *to = card[i];
            }
        }
    }
    return best > 0;
}

bool bl_draft_fill(struct bl_draft *d, const struct bl_costs *c, const struct bl_machine *m,
                   const uint16_t *card, uint32_t n, bool in_runs, double weight)
{
    uint32_t l;
    uint16_t to;

    memset(d->at, 0, (size_t)c->n_layers * BL_N_GROUPS * sizeof *d->at);
    if (n && in_runs)
        lay_runs(d, c, card, n);
    for (l = 0; n && !in_runs && l < c->n_layers; l++)
        *at(d, l, BL_GROUP_REST) = card[0];
    bl_draft_count(d, c);
    if (n && m->device[card[0]].shares == 0)
        for (l = 0; l < c->n_layers; l++) /* never split: the memory is the same */
            *at(d, l, BL_GROUP_EXPERTS) = card[0];
    else
        while (next_experts(d, c, card, n, weight, &l, &to)) {
            *at(d, l, BL_GROUP_EXPERTS) = to;
            d->used[0] -= bytes_of(c, l, BL_GROUP_EXPERTS);
            place(d, c, to, bytes_of(c, l, BL_GROUP_EXPERTS));
        }
    bl_draft_count(d, c);
    d->score = score(d, c, weight);
    return bl_draft_fits(d, c, m);
}

/* ---- improving ---- */

struct improver {
    struct bl_draft *d;
    const struct bl_costs *c;
    const struct bl_machine *m;
    uint32_t *groups; /* [n_devices] groups with bytes there */
    double ns[BL_N_PHASES];
    double weight;
};
struct change {
    uint32_t layer;
    enum bl_group group;
    uint16_t to;
};

static void take(const struct improver *v, uint16_t dev, uint64_t bytes)
{
    v->d->used[dev] -= bytes;
    if (bytes && !--v->groups[dev] && dev)
        v->d->used[dev] -= v->c->compute[dev];
}

static void give(const struct improver *v, uint16_t dev, uint64_t bytes)
{
    if (bytes && !v->groups[dev]++ && dev)
        v->d->used[dev] += v->c->compute[dev];
    v->d->used[dev] += bytes;
}

/* Makes the change and leaves in it how to take it back. */
static void apply(const struct improver *v, struct change *change, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        struct change *k = &change[i];
        uint16_t *cell = at(v->d, k->layer, k->group), was = *cell;
        uint64_t bytes = bytes_of(v->c, k->layer, k->group);
        if (k->group == BL_GROUP_REST && k->layer + 1 == v->c->n_layers)
            bytes += v->c->head_bytes;
        take(v, was, bytes);
        give(v, k->to, bytes);
        *cell = k->to;
        k->to = was;
    }
}

/* What the changed layers and those after them take. */
static double local_ns(const struct improver *v, const struct change *change, unsigned n,
                       enum bl_phase phase)
{
    double ns = 0;

    for (unsigned i = 0; i < n; i++)
        for (uint32_t l = change[i].layer; l <= change[i].layer + 1 && l < v->c->n_layers; l++) {
            bool counted = false;
            for (unsigned k = 0; k < i; k++)
                counted = counted || l == change[k].layer || l == change[k].layer + 1;
            ns += counted ? 0 : layer_ns(v->d, v->c, phase, l);
        }
    return ns;
}

/* Keeps a change that fits and helps. */
static bool keep_if_better(struct improver *v, struct change *change, unsigned n)
{
    double ns[BL_N_PHASES];

    for (unsigned p = 0; p < BL_N_PHASES; p++)
        ns[p] = v->ns[p] - local_ns(v, change, n, p);
    apply(v, change, n);
    if (bl_draft_fits(v->d, v->c, v->m)) {
        for (unsigned p = 0; p < BL_N_PHASES; p++)
            ns[p] += local_ns(v, change, n, p);
        const double now = bl_plan_score(ns[BL_DECODE], ns[BL_PREFILL], v->weight);
        if (now < v->d->score * (1 - 1e-9)) {
            memcpy(v->ns, ns, sizeof ns);
            v->d->score = now;
            return true;
        }
    }
    apply(v, change, n);
    return false;
}

static bool may_be_at(const struct bl_machine *m, uint16_t d)
{
    return d == 0 || (is_usable(m, d) && m->device[d].shares != 0);
}

static bool move_one(struct improver *v, uint32_t l)
{
    bool moved = false;

    for (uint16_t dev = 0; dev < v->c->n_devices; dev++) {
        const bool experts = bytes_of(v->c, l, BL_GROUP_EXPERTS) > 0;
        if (!may_be_at(v->m, dev))
            continue;
        for (unsigned first = 0; first < BL_N_GROUPS; first++)
            for (unsigned n = 1; n <= BL_N_GROUPS - first; n++) { /* one of them, or both */
                struct change c[] = {{l, first, dev}, {l, BL_GROUP_EXPERTS, dev}};
                if (*at(v->d, l, first) == dev || (first + n > BL_GROUP_EXPERTS && !experts))
                    continue;
                moved = keep_if_better(v, c, n) || moved;
            }
    }
    return moved;
}

static bool swap_two(struct improver *v, uint32_t l, uint32_t k)
{
    bool moved = false;

    for (unsigned g = 0; g < BL_N_GROUPS; g++)
        for (unsigned f = 0; f < BL_N_GROUPS; f++) {
            const uint16_t a = *at(v->d, l, g), b = *at(v->d, k, f);
            struct change c[] = {{l, g, b}, {k, f, a}};
            if (a != b && bytes_of(v->c, l, g) && bytes_of(v->c, k, f))
                moved = keep_if_better(v, c, 2) || moved;
        }
    return moved;
}

static void improve(struct improver *v)
{
    enum { PASSES = 6, MOST_APART = 24 };

    for (unsigned pass = 0; pass < PASSES; pass++) {
        bool moved = false;
        for (uint32_t l = 0; l < v->c->n_layers; l++) {
            moved = move_one(v, l) || moved;
            for (uint32_t k = l + 1; k < v->c->n_layers && k < l + MOST_APART; k++)
                moved = swap_two(v, l, k) || moved;
        }
        if (!moved)
            return;
    }
}

enum bl_status bl_draft_improve(struct bl_draft *d, const struct bl_costs *c,
                                const struct bl_machine *m, double weight)
{
    struct improver v = {.d = d, .c = c, .m = m, .weight = weight};

    for (uint32_t l = 0; l < c->n_layers; l++)
        if (!may_be_at(m, *at(d, l, BL_GROUP_REST)))
            return BL_OK;
    v.groups = bl_calloc(c->n_devices, sizeof *v.groups);
    if (!v.groups)
        return bl_fail(BL_ENOMEM, "out of memory for a candidate plan");
    for (uint32_t l = 0; l < c->n_layers; l++)
        for (unsigned g = 0; g < BL_N_GROUPS; g++)
            v.groups[*at(d, l, g)] += bytes_of(c, l, g) > 0;
    for (unsigned p = 0; p < BL_N_PHASES; p++)
        v.ns[p] = bl_draft_ns(d, c, p);
    improve(&v);
    free(v.groups);
    bl_draft_count(d, c);
    return BL_OK;
}

/* SPDX-License-Identifier: MIT */
/* Candidates made better: by moves and swaps, and by prices on memory. */
#include "search_impl.h"

#include "mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MANY_LAYERS = 128 };

struct improver {
    struct bl_draft *d;
    const struct bl_costs *c;
    const struct bl_machine *m;
    uint32_t *groups; /* [n_devices] groups with bytes there */
};
struct change {
    uint32_t layer;
    unsigned group;
    uint16_t to;
};

/* ---- changes ---- */

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
    const struct bl_costs *c = v->c;

    for (unsigned i = 0; i < n; i++) {
        struct change *k = &change[i];
        uint16_t *cell = &v->d->at[(size_t)k->layer * BL_N_GROUPS + k->group], was = *cell;
        const uint64_t bytes = bl_group_bytes(c, k->layer, k->group);
        const bool head =
            k->group == BL_GROUP_REST && k->layer + 1 == c->n_layers && c->head_pin == BL_NO_DEVICE;
        take(v, was, bytes + (head ? bl_head_bytes(c, was) : 0));
        give(v, k->to, bytes + (head ? bl_head_bytes(c, k->to) : 0));
        *cell = k->to;
        k->to = was;
    }
}

/* What the changed layers and those after them cost. */
static double local_cost(const struct improver *v, const struct change *change, unsigned n)
{
    double cost = 0;

    for (unsigned i = 0; i < n; i++)
        for (uint32_t l = change[i].layer; l <= change[i].layer + 1 && l < v->c->n_layers; l++) {
            bool counted = false;
            for (unsigned k = 0; k < i; k++)
                counted = counted || l == change[k].layer || l == change[k].layer + 1;
            cost += counted ? 0 : bl_layer_cost(v->d, v->c, l);
        }
    return cost;
}

/* How much more the draft would cost. */
static double cost_of(const struct improver *v, struct change *change, unsigned n)
{
    const double before = local_cost(v, change, n);

    apply(v, change, n);
    const double after = local_cost(v, change, n);
    apply(v, change, n);
    return after - before;
}

static bool has_room_for(const struct improver *v, const struct change *change, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        if (v->d->used[change[i].to] > v->c->budget[change[i].to])
            return false;
    return true;
}

/* Keeps a change that fits and helps. */
static bool keep_if_better(struct improver *v, struct change *change, unsigned n)
{
    const double before = local_cost(v, change, n);
    struct change back[BL_N_GROUPS];

    memcpy(back, change, n * sizeof *back);
    apply(v, back, n);
    if (has_room_for(v, change, n)) {
        const double gain = before - local_cost(v, change, n);
        if (gain > v->d->score * 1e-9 && bl_draft_fits(v->d, v->c, v->m)) {
            v->d->score -= gain;
            return true;
        }
    }
    apply(v, back, n);
    return false;
}

static enum bl_status open_improver(struct improver *v)
{
    v->groups = bl_calloc(v->c->n_devices, sizeof *v->groups);
    return v->groups ? BL_OK : bl_fail(BL_ENOMEM, "out of memory for a candidate plan");
}

static void count_groups(const struct improver *v)
{
    const struct bl_costs *c = v->c;

    for (uint32_t i = 0; i < c->n_devices; i++)
        v->groups[i] = c->fixed[i] > 0; /* these never leave */
    if (c->head_pin != BL_NO_DEVICE)
        v->groups[c->head_pin]++;
    v->groups[c->embed_at]++;
    for (uint32_t l = 0; l < c->n_layers; l++)
        for (unsigned g = 0; g < BL_N_GROUPS; g++)
            v->groups[bl_draft_at(v->d, l, g)] += bl_group_bytes(c, l, g) > 0;
}

/* ---- moves and swaps ---- */

static bool move_one(struct improver *v, uint32_t l)
{
    const bool experts = bl_group_bytes(v->c, l, BL_GROUP_EXPERTS) > 0;
    bool moved = false;

    for (uint16_t dev = 0; dev < v->c->n_devices; dev++)
        for (unsigned first = 0; first < BL_N_GROUPS; first++)
            for (unsigned n = 1; n <= BL_N_GROUPS - first; n++) { /* one of them, or both */
                struct change c[] = {{l, first, dev}, {l, BL_GROUP_EXPERTS, dev}};
                if (bl_draft_at(v->d, l, first) == dev ||
                    (first + n > BL_GROUP_EXPERTS && !experts) ||
                    !bl_may_move(v->c, v->m, l, first, dev) ||
                    (n > 1 && !bl_may_move(v->c, v->m, l, BL_GROUP_EXPERTS, dev)))
                    continue;
                moved = keep_if_better(v, c, n) || moved;
            }
    return moved;
}

static bool swap_two(struct improver *v, uint32_t l, uint32_t k)
{
    bool moved = false;

    for (unsigned g = 0; g < BL_N_GROUPS; g++)
        for (unsigned f = 0; f < BL_N_GROUPS; f++) {
            const uint16_t a = bl_draft_at(v->d, l, g), b = bl_draft_at(v->d, k, f);
            struct change c[] = {{l, g, b}, {k, f, a}};
            if (a != b && bl_group_bytes(v->c, l, g) && bl_group_bytes(v->c, k, f) &&
                bl_may_move(v->c, v->m, l, g, b) && bl_may_move(v->c, v->m, k, f, a))
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
                                const struct bl_machine *m)
{
    struct improver v = {.d = d, .c = c, .m = m};

    BL_TRY(open_improver(&v));
    count_groups(&v);
    improve(&v);
    free(v.groups);
    bl_draft_count(d, c);
    bl_draft_score(d, c);
    return BL_OK;
}

/* ---- prices ---- */

struct sale;
struct market {
    const struct bl_costs *c;
    const struct bl_machine *m;
    uint16_t dev[BL_MAX_DEVICES]; /* host and cards */
    uint32_t n;
    double price[BL_MAX_DEVICES]; /* of a byte on the device, in blended cost */
    double *least;            /* [n_layers][n] of the layers so far, this one's rest being there */
    uint16_t *from, *experts; /* [n_layers][n] index of the layer before; device */
    struct sale *sale;        /* [n_layers][BL_N_GROUPS] */
};

/* Experts of a layer whose rest is at h. */
static double cheapest_experts(const struct market *k, uint32_t l, uint16_t h, uint16_t *best)
{
    const struct bl_costs *c = k->c;
    const uint64_t bytes = bl_group_bytes(c, l, BL_GROUP_EXPERTS);
    const uint16_t pin = c->pin[(size_t)l * BL_N_GROUPS + BL_GROUP_EXPERTS];
    const uint32_t n = c->n_devices;
    double least = INFINITY;

    *best = pin != BL_NO_DEVICE ? pin : 0;
    if (!bytes)
        return 0;
    for (uint32_t i = 0; i < (pin != BL_NO_DEVICE ? 1 : k->n); i++) {
        const uint16_t e = pin != BL_NO_DEVICE ? pin : k->dev[i];
        if (pin == BL_NO_DEVICE && bl_able_or_host(c, l, BL_GROUP_EXPERTS, e) != e)
            continue;
        const double cost = (h && !e ? c->blend_sent[(size_t)l * n + h]
                                     : c->blend[bl_cost_at(c, l, BL_GROUP_EXPERTS, e)]) +
                            c->blend_cross[h * n + e] + c->blend_cross[e * n + h] +
                            k->price[e] * (double)bytes;
        if (cost < least) {
            least = cost;
            *best = e;
        }
    }
    return least;
}

static void price_layer(const struct market *k, uint32_t l)
{
    const struct bl_costs *c = k->c;
    const uint16_t pin = c->pin[(size_t)l * BL_N_GROUPS + BL_GROUP_REST];
    const double *before = l ? &k->least[(size_t)(l - 1) * k->n] : NULL;

    for (uint32_t i = 0; i < k->n; i++) {
        const uint16_t h = k->dev[i];
        const size_t at = (size_t)l * k->n + i;
        const double own = c->blend[bl_cost_at(c, l, BL_GROUP_REST, h)] +
                           k->price[h] * (double)bl_group_bytes(c, l, BL_GROUP_REST) +
                           cheapest_experts(k, l, h, &k->experts[at]);
        double way = l ? INFINITY : c->blend_cross[c->embed_at * c->n_devices + h];
        for (uint32_t j = 0; l && j < k->n; j++) {
            const double cost = before[j] + c->blend_cross[k->dev[j] * c->n_devices + h];
            if (cost < way) {
                way = cost;
                k->from[at] = (uint16_t)j;
            }
        }
        const bool may =
            pin == BL_NO_DEVICE ? bl_able_or_host(c, l, BL_GROUP_REST, h) == h : pin == h;
        k->least[at] = may ? way + own : INFINITY;
    }
}

static double head_cost(const struct market *k, uint16_t last)
{
    const struct bl_costs *c = k->c;
    const uint16_t head = c->head_pin != BL_NO_DEVICE ? c->head_pin : last;
    return c->blend_head[head] + c->blend_cross[last * c->n_devices + head] +
           c->blend_cross[head * c->n_devices] + k->price[head] * (double)bl_head_bytes(c, head);
}

/* The best plan at these prices, whatever fits. */
static void buy(const struct market *k, struct bl_draft *d)
{
    const struct bl_costs *c = k->c;
    double least = INFINITY;
    uint32_t i = 0;

    for (uint32_t l = 0; l < c->n_layers; l++)
        price_layer(k, l);
    for (uint32_t j = 0; j < k->n; j++) {
        const double cost =
            k->least[(size_t)(c->n_layers - 1) * k->n + j] + head_cost(k, k->dev[j]);
        if (cost < least) {
            least = cost;
            i = j;
        }
    }
    for (uint32_t l = c->n_layers; l-- > 0; i = k->from[(size_t)l * k->n + i]) {
        d->at[(size_t)l * BL_N_GROUPS + BL_GROUP_REST] = k->dev[i];
        d->at[(size_t)l * BL_N_GROUPS + BL_GROUP_EXPERTS] = k->experts[(size_t)l * k->n + i];
    }
    bl_draft_count(d, c);
}

struct sale {    /* a group that may leave its device */
    double loss; /* for a byte */
    struct change to;
};

static int by_loss(const void *a, const void *b)
{
    const struct sale *x = a, *y = b;

    if (x->loss > y->loss || x->loss < y->loss)
        return x->loss < y->loss ? -1 : 1;
    if (x->to.layer != y->to.layer)
        return x->to.layer < y->to.layer ? -1 : 1;
    return (x->to.group > y->to.group) - (x->to.group < y->to.group);
}

static bool has_room_at(const struct improver *v, uint16_t dev, uint64_t bytes)
{
    const uint64_t fresh = v->groups[dev] ? 0 : v->c->compute[dev];
    return v->d->used[dev] + fresh + bytes <= v->c->budget[dev];
}

/* The cheapest way out for every group on the device. */
static uint32_t list_sales(struct improver *v, const struct market *k, uint16_t dev)
{
    uint32_t n = 0;

    for (uint32_t l = 0; l < v->c->n_layers; l++)
        for (unsigned g = 0; g < BL_N_GROUPS; g++) {
            const uint64_t bytes = bl_group_bytes(v->c, l, g);
            struct sale best = {.loss = INFINITY};
            for (uint32_t i = 0; bytes && bl_draft_at(v->d, l, g) == dev && i < k->n; i++) {
                struct change c = {l, g, k->dev[i]};
                if (c.to == dev || !bl_may_move(v->c, v->m, l, g, c.to) ||
                    !has_room_at(v, c.to, bytes))
                    continue;
                const double loss = cost_of(v, &c, 1) / (double)bytes;
                if (loss < best.loss)
                    best = (struct sale){loss, {l, g, k->dev[i]}};
            }
            if (isfinite(best.loss))
                k->sale[n++] = best;
        }
    qsort(k->sale, n, sizeof *k->sale, by_loss);
    return n;
}

/* What loses least for the bytes it frees leaves first. Neighbours then lose otherwise: the list is
 * made anew, the more often the shorter it is. */
static bool free_device(struct improver *v, const struct market *k, uint16_t dev)
{
    enum { AT_ONCE = 4, SHARE = 16 };
    const uint64_t has = v->c->budget[dev];
    bool moved = true;

    while (v->d->used[dev] > has && moved) {
        const uint32_t n = list_sales(v, k, dev);
        uint32_t left = n / SHARE > AT_ONCE ? n / SHARE : AT_ONCE;
        moved = false;
        for (uint32_t i = 0; i < n && left && v->d->used[dev] > has; i++) {
            struct change *c = &k->sale[i].to;
            if (!has_room_at(v, c->to, bl_group_bytes(v->c, c->layer, c->group)))
                continue;
            apply(v, c, 1);
            moved = true;
            left--;
        }
    }
    return v->d->used[dev] <= has;
}

/* Twice, as what has left one device may have gone to another that is freed later. */
static bool repair(struct improver *v, const struct market *k)
{
    bool good = false;

    count_groups(v);
    for (unsigned round = 0; round < 2 && !good; round++) {
        good = true;
        for (uint16_t d = (uint16_t)v->c->n_devices; d-- > 0;)
            good = free_device(v, k, d) && good;
    }
    return good && bl_draft_fits(v->d, v->c, v->m);
}

/* Dearer where too much was bought, cheaper where room was left; less and less so. */
static void set_prices(struct market *k, const struct bl_draft *d, double step)
{
    for (uint32_t i = 0; i < k->n; i++) {
        const uint16_t dev = k->dev[i];
        const double has = (double)k->c->budget[dev];
        if (has > 0)
            k->price[dev] =
                fmax(0, k->price[dev] + step * fmin(1, ((double)d->used[dev] - has) / has));
    }
}

/* What a byte saves on the first card against the host, all layers together. */
static double mean_price(const struct market *k)
{
    const struct bl_costs *c = k->c;
    double saved = 0, bytes = 1;

    for (uint32_t l = 0; l < c->n_layers; l++)
        for (unsigned g = 0; g < BL_N_GROUPS; g++) {
            saved += c->blend[bl_cost_at(c, l, g, 0)] - c->blend[bl_cost_at(c, l, g, k->dev[1])];
            bytes += (double)bl_group_bytes(c, l, g);
        }
    return fmax(saved, 0) / bytes;
}

static enum bl_status trade(struct market *k, struct bl_draft *best, struct bl_draft *d, bool *fits)
{
    const unsigned rounds = k->c->n_layers <= MANY_LAYERS ? 24 : 10;
    struct improver v = {.d = d, .c = k->c, .m = k->m};
    const double unit = mean_price(k);

    BL_TRY(open_improver(&v));
    for (unsigned round = 0; round < rounds; round++) {
        buy(k, d);
        set_prices(k, d, unit / (1 + round / 3.0));
        if (!repair(&v, k))
            continue;
        bl_draft_score(d, k->c);
        if (!*fits || d->score < best->score) {
            bl_draft_copy(best, d, k->c);
            *fits = true;
        }
    }
    free(v.groups);
    return BL_OK;
}

enum bl_status bl_draft_price(struct bl_draft *best, const struct bl_costs *c,
                              const struct bl_machine *m, const uint16_t *card, uint32_t n,
                              bool *fits)
{
    struct market k = {.c = c, .m = m, .n = 1};
    struct bl_draft d = {0};
    enum bl_status st;

    *fits = false;
    for (uint32_t i = 0; i < n; i++)
        if (m->device[card[i]].shares != 0)
            k.dev[k.n++] = card[i];
    for (uint32_t l = 0; l < c->n_layers; l++) { /* where rules put layers is bought there */
        const uint16_t pin = c->pin[(size_t)l * BL_N_GROUPS + BL_GROUP_REST];
        bool known = pin == BL_NO_DEVICE;
        for (uint32_t i = 0; i < k.n; i++)
            known = known || k.dev[i] == pin;
        if (!known)
            k.dev[k.n++] = pin;
    }
    if (k.n < 2)
        return BL_OK;
    const size_t cells = (size_t)c->n_layers * k.n;
    k.least = bl_calloc(cells, sizeof *k.least);
    k.from = bl_calloc(cells, sizeof *k.from);
    k.experts = bl_calloc(cells, sizeof *k.experts);
    k.sale = bl_calloc((size_t)c->n_layers * BL_N_GROUPS, sizeof *k.sale);
    st = bl_draft_init(&d, c);
    if (!st && (!k.least || !k.from || !k.experts || !k.sale))
        st = bl_fail(BL_ENOMEM, "out of memory for a candidate plan");
    if (!st)
        st = trade(&k, best, &d, fits);
    bl_draft_finish(&d);
    free(k.least);
    free(k.from);
    free(k.experts);
    free(k.sale);
    return st;
}

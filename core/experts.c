/* SPDX-License-Identifier: MIT */
#include "experts.h"

#include "mem.h"

#include <stdlib.h>
#include <string.h>

static const char *const policy_name[BL_N_EXPERT_POLICIES + 1] = {"off", "fixed", "lru"};

const char *bl_expert_policy_name(enum bl_expert_policy p)
{
    return (unsigned)p < BL_N_EXPERT_POLICIES ? policy_name[p] : NULL;
}

enum bl_status bl_expert_policy_by_name(const char *name, uint8_t *out)
{
    for (uint8_t p = 0; p < BL_N_EXPERT_POLICIES; p++)
        if (!strcmp(name, policy_name[p])) {
            *out = p;
            return BL_OK;
        }
    return bl_fail(BL_EINVAL, "'%s' is no policy for slots of experts; there are off, fixed, lru",
                   name);
}

enum bl_status bl_experts_init(struct bl_experts *x, uint32_t n_layers, uint32_t n_experts,
                               enum bl_expert_policy policy)
{
    const size_t n = (size_t)n_layers * n_experts;

    *x = (struct bl_experts){.policy = (uint8_t)policy};
    BL_TRY(bl_expert_stats_init(&x->stats, n_layers, n_experts));
    x->last = bl_calloc(n + 1, sizeof *x->last);
    x->at = bl_calloc(n + 1, sizeof *x->at);
    x->stays = bl_calloc(n + 1, sizeof *x->stays);
    if (!x->last || !x->at || !x->stays) {
        bl_experts_finish(x);
        return bl_fail(BL_ENOMEM, "out of memory for the places of %u layers' experts", n_layers);
    }
    for (size_t i = 0; i < n; i++)
        x->at[i] = BL_NO_EXPERT;
    return BL_OK;
}

static void finish_set(struct bl_expert_set *s)
{
    free(s->expert);
    free(s->coming);
}

void bl_experts_finish(struct bl_experts *x)
{
    for (uint32_t i = 0; i < x->n_sets; i++)
        finish_set(&x->set[i]);
    bl_expert_stats_finish(&x->stats);
    free(x->set);
    free(x->last);
    free(x->at);
    free(x->stays);
    *x = (struct bl_experts){0};
}

enum bl_status bl_experts_add_set(struct bl_experts *x, uint32_t layer, uint16_t device, uint32_t n)
{
    struct bl_expert_set s = {.layer = layer, .n = n, .device = device};
    struct bl_expert_set *bigger = realloc(x->set, (x->n_sets + (size_t)1) * sizeof *bigger);

    x->set = bigger ? bigger : x->set;
    s.expert = bl_calloc((size_t)n + 1, sizeof *s.expert);
    s.coming = bl_calloc((size_t)n + 1, sizeof *s.coming);
    if (!bigger || !s.expert || !s.coming) {
        finish_set(&s);
        return bl_fail(BL_ENOMEM, "out of memory for %u slots of layer %u", n, layer);
    }
    for (uint32_t i = 0; i < n; i++)
        s.expert[i] = BL_NO_EXPERT;
    x->set[x->n_sets++] = s;
    return BL_OK;
}

/* ---- what was used ---- */

static size_t first_of(const struct bl_experts *x, uint32_t layer)
{
    return (size_t)layer * x->stats.n_experts;
}

bool bl_experts_is_in(const struct bl_experts *x, uint32_t set, uint32_t expert)
{
    const struct bl_expert_set *s = &x->set[set];

    for (uint32_t i = 0; i < s->n; i++)
        if (s->expert[i] == expert)
            return !s->coming[i];
    return false;
}

static bool has_slots(const struct bl_experts *x, uint32_t layer)
{
    for (uint32_t i = 0; i < x->n_sets; i++)
        if (x->set[i].layer == layer)
            return true;
    return false;
}

/* How many other experts have been used since this one; among those of the same token the lower
 * numbers. */
static uint32_t others_since(const uint64_t *last, uint32_t n, uint32_t expert)
{
    uint32_t since = 0;

    for (uint32_t e = 0; e < n; e++)
        since += last[e] > last[expert] || (last[e] == last[expert] && e < expert);
    return since;
}

static void note_reuse(struct bl_experts *x, uint32_t layer, const int32_t *ids, uint32_t n_used)
{
    const size_t first = first_of(x, layer);

    for (uint32_t k = 0; k < n_used; k++) {
        const uint32_t e = (uint32_t)ids[k];
        if (e >= x->stats.n_experts)
            continue;
        if (x->last[first + e])
            x->stats.reuse[first + others_since(x->last + first, x->stats.n_experts, e)]++;
        x->stats.alone[layer]++;
    }
}

/* Some of its experts are on cards for good, others are not. */
static bool is_divided(const struct bl_experts *x, uint32_t layer)
{
    const bool *stays = x->stays + first_of(x, layer);

    for (uint32_t e = 1; e < x->stats.n_experts; e++)
        if (stays[e] != stays[0])
            return true;
    return false;
}

static void note_use(struct bl_experts *x, size_t at, uint32_t expert, uint64_t token, bool counts)
{
    const uint32_t set = x->at[at];

    x->stats.uses[at]++;
    x->last[at] = token;
    x->n_hits += set != BL_NO_EXPERT ? bl_experts_is_in(x, set, expert)
                                     : counts && !x->n_sets && x->stays[at];
}

/* The ids come from a device's memory: what is no expert's number is not counted. */
void bl_experts_note(struct bl_experts *x, uint32_t layer, const int32_t *ids, uint32_t n_tok,
                     uint32_t n_used)
{
    const size_t first = first_of(x, layer);
    const bool counts = x->n_sets ? has_slots(x, layer) : is_divided(x, layer);

    if (n_tok == 1) /* a step of many finds what it began with, whoever chose what in between */
        note_reuse(x, layer, ids, n_used);
    for (uint32_t t = 0; t < n_tok; t++)
        for (uint32_t k = 0; k < n_used; k++) {
            const uint32_t e = (uint32_t)ids[(size_t)t * n_used + k];
            if (e >= x->stats.n_experts)
                continue;
            note_use(x, first + e, e, x->clock + t + 1, counts);
            x->n_uses += counts;
        }
}

void bl_experts_end_step(struct bl_experts *x, uint32_t n_tok)
{
    x->clock += n_tok;
    x->stats.n_tok += n_tok;
}

/* ---- what should sit where ---- */

/* a should sit in a slot rather than b: places in the tables. */
static bool before(const struct bl_experts *x, size_t a, size_t b)
{
    if (x->policy == BL_EXPERTS_LRU && x->last[a] != x->last[b])
        return x->last[a] > x->last[b];
    return x->stats.uses[a] != x->stats.uses[b] ? x->stats.uses[a] > x->stats.uses[b] : a < b;
}

/* The first that sits nowhere. */
static uint32_t find_in(const struct bl_experts *x, uint32_t layer)
{
    const size_t first = first_of(x, layer);
    uint32_t in = BL_NO_EXPERT;

    for (uint32_t e = 0; e < x->stats.n_experts; e++)
        if (x->at[first + e] == BL_NO_EXPERT && !x->stays[first + e] &&
            (in == BL_NO_EXPERT || before(x, first + e, first + in)))
            in = e;
    return in;
}

/* A free slot, or that of the last of those who sit there; n: all are on their way. */
static uint32_t find_slot(const struct bl_experts *x, const struct bl_expert_set *s)
{
    const size_t first = first_of(x, s->layer);
    uint32_t slot = s->n;

    for (uint32_t i = 0; i < s->n; i++) {
        if (s->expert[i] == BL_NO_EXPERT)
            return i;
        if (!s->coming[i] &&
            (slot == s->n || before(x, first + s->expert[slot], first + s->expert[i])))
            slot = i;
    }
    return slot;
}

static bool next_of(const struct bl_experts *x, uint32_t set, struct bl_expert_move *out)
{
    const struct bl_expert_set *s = &x->set[set];
    const size_t first = first_of(x, s->layer);
    const uint32_t slot = find_slot(x, s);

    if (slot == s->n)
        return false;
    const uint32_t in = find_in(x, s->layer), was = s->expert[slot];
    if (in == BL_NO_EXPERT)
        return false;
    /* what both used at the same time is not worth a move */
    if (was != BL_NO_EXPERT &&
        (x->policy != BL_EXPERTS_LRU || x->last[first + in] <= x->last[first + was]))
        return false;
    *out = (struct bl_expert_move){set, slot, in, was};
    return true;
}

static void leave(struct bl_experts *x, const struct bl_expert_move *m)
{
    struct bl_expert_set *s = &x->set[m->set];
    const size_t first = first_of(x, s->layer);

    if (m->out != BL_NO_EXPERT)
        x->at[first + m->out] = BL_NO_EXPERT;
    x->at[first + m->in] = m->set;
    s->expert[m->slot] = m->in;
    s->coming[m->slot] = true;
    x->n_moves++;
}

bool bl_experts_next(struct bl_experts *x, struct bl_expert_move *out)
{
    if (x->policy == BL_EXPERTS_OFF)
        return false;
    for (uint32_t i = 0; i < x->n_sets; i++) {
        const uint32_t set = (x->turn + i) % x->n_sets;
        if (x->set[set].held || !next_of(x, set, out))
            continue;
        leave(x, out);
        x->turn = (set + 1) % x->n_sets;
        return true;
    }
    return false;
}

void bl_experts_arrived(struct bl_experts *x, const struct bl_expert_move *m)
{
    x->set[m->set].coming[m->slot] = false;
}

/* SPDX-License-Identifier: MIT */
/* What is known of the use of experts. */
#include "experts.h"

#include "mem.h"

#include <stdlib.h>

enum bl_status bl_expert_stats_init(struct bl_expert_stats *s, uint32_t n_layers,
                                    uint32_t n_experts)
{
    const size_t n = (size_t)n_layers * n_experts + 1;

    *s = (struct bl_expert_stats){.n_layers = n_layers, .n_experts = n_experts};
    s->uses = bl_calloc(n, sizeof *s->uses);
    s->reuse = bl_calloc(n, sizeof *s->reuse);
    s->alone = bl_calloc((size_t)n_layers + 1, sizeof *s->alone);
    if (s->uses && s->reuse && s->alone)
        return BL_OK;
    bl_expert_stats_finish(s);
    return bl_fail(BL_ENOMEM, "out of memory for the counts of %u layers' experts", n_layers);
}

void bl_expert_stats_finish(struct bl_expert_stats *s)
{
    free(s->uses);
    free(s->reuse);
    free(s->alone);
    *s = (struct bl_expert_stats){0};
}

/* Counts of strangers are bounded where they are read; a sum that would wrap stays at the most. */
static void add(uint64_t *to, uint64_t n)
{
    *to = *to > UINT64_MAX - n ? UINT64_MAX : *to + n;
}

void bl_expert_stats_add(struct bl_expert_stats *to, const struct bl_expert_stats *from)
{
    const size_t n = (size_t)to->n_layers * to->n_experts;

    for (size_t i = 0; i < n; i++) {
        add(&to->uses[i], from->uses[i]);
        add(&to->reuse[i], from->reuse[i]);
    }
    for (uint32_t l = 0; l < to->n_layers; l++)
        add(&to->alone[l], from->alone[l]);
    add(&to->n_tok, from->n_tok);
}

/* ---- the most used ---- */

struct ranked {
    uint64_t uses;
    uint32_t expert;
};

static int more_used(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;

    if (x->uses != y->uses)
        return x->uses < y->uses ? 1 : -1;
    return x->expert < y->expert ? -1 : x->expert > y->expert;
}

static const uint64_t *uses_of(const struct bl_expert_stats *s, uint32_t layer)
{
    return s->uses + (size_t)layer * s->n_experts;
}

/* How many experts come before this one. */
static uint32_t rank(const uint64_t *uses, uint32_t n, uint32_t expert)
{
    const struct ranked me = {uses[expert], expert};
    uint32_t before = 0;

    for (uint32_t e = 0; e < n; e++)
        before += more_used(&(struct ranked){uses[e], e}, &me) < 0;
    return before;
}

void bl_expert_stats_order(const struct bl_expert_stats *s, uint32_t layer, uint32_t *expert)
{
    for (uint32_t e = 0; e < s->n_experts; e++)
        expert[rank(uses_of(s, layer), s->n_experts, e)] = e;
}

double bl_expert_stats_best(const struct bl_expert_stats *s, uint32_t layer, uint32_t n)
{
    const uint64_t *uses = uses_of(s, layer);
    double all = 0, best = 0;

    for (uint32_t e = 0; e < s->n_experts; e++) {
        all += (double)uses[e];
        best += rank(uses, s->n_experts, e) < n ? (double)uses[e] : 0;
    }
    return all > 0 ? best / all : -1;
}

double bl_expert_stats_recent(const struct bl_expert_stats *s, uint32_t layer, uint32_t n)
{
    const uint64_t *reuse = s->reuse + (size_t)layer * s->n_experts;
    double kept = 0;

    for (uint32_t others = 0; others < n && others < s->n_experts; others++)
        kept += (double)reuse[others];
    return s->alone[layer] ? kept / (double)s->alone[layer] : -1;
}

/* SPDX-License-Identifier: MIT */
/* From how many tokens a step on a card is quicker with experts sent to it than the host without
 * it: a card at a time, all layers whose experts the host has and whose attention is on the card.
 */
#include "search_impl.h"

#include "mem.h"

#include <math.h>
#include <stdlib.h>

struct crossover {
    const struct bl_plan *plan;
    const struct bl_graph *graph;
    uint32_t n_experts; /* of a layer */
    const struct bl_machine_device *to;
    const struct bl_pricing *host, *card;
    uint16_t device;
    double link_bps;
    bool measured;
};

static const struct bl_link *link_to(const struct bl_machine *m, uint16_t card)
{
    for (uint32_t i = 0; i < m->n_links; i++)
        if ((m->link[i].a == 0 && m->link[i].b == card) ||
            (m->link[i].b == 0 && m->link[i].a == card))
            return &m->link[i];
    return NULL;
}

static bool is_asked(const struct crossover *x, const struct bl_node *n)
{
    return n->op == BL_OP_EXPERTS && n->layer >= 0 &&
           bl_plan_device(x->plan, n->layer, BL_PART_EXPERTS) == 0 &&
           bl_plan_device(x->plan, n->layer, BL_PART_ATTN) == x->device &&
           x->to->backend->supports(&x->to->caps, x->graph, n);
}

/* Some of a layer's experts may be on cards for good. */
static double share_in_ram(const struct crossover *x, const struct bl_node *n)
{
    return (double)bl_plan_experts_on(x->plan, (uint32_t)n->layer, x->n_experts, 0) / x->n_experts;
}

/* Of a step of so many tokens; false: there are no such experts. */
static bool sending_gains(const struct crossover *x, uint32_t n_tok)
{
    double there = 0, sent = 0;

    for (uint32_t i = 0; i < x->graph->n_nodes; i++) {
        struct bl_work w;
        if (!is_asked(x, &x->graph->nodes[i]))
            continue;
        bl_work_count(&w, x->graph, &x->graph->nodes[i], n_tok, 0);
        bl_work_share(&w, share_in_ram(x, &x->graph->nodes[i]));
        there += bl_work_ns(x->host, &w);
        sent += bl_stream_ns(x->card, &w, x->link_bps, x->measured);
    }
    return sent < there;
}

/* The least, by halving; 0: none of a sensible size. */
static uint32_t find(const struct crossover *x)
{
    enum { MOST = 1 << 16 };
    uint32_t low = BL_FEW_TOKENS, high = 2 * BL_FEW_TOKENS;

    while (high < MOST && !sending_gains(x, high)) {
        low = high;
        high *= 2;
    }
    if (!sending_gains(x, high))
        return 0;
    while (high - low > 1) {
        const uint32_t mid = low + (high - low) / 2;
        *(sending_gains(x, mid) ? &high : &low) = mid;
    }
    return high;
}

enum bl_status bl_find_crossovers(struct bl_choice *c, const struct bl_model *m,
                                  const struct bl_machine *machine,
                                  const struct bl_search_options *opt)
{
    const struct bl_shape s = bl_plan_bucket(&c->plan, c->plan.ubatch_tokens, 1);
    struct bl_cost_table committed;
    struct bl_pricing host, card;
    struct bl_graph g;

    bl_cost_table_init(&committed);
    const struct bl_cost_table *table = opt->table ? opt->table : &committed;
    bl_graph_init(&g);
    const enum bl_status st = bl_model_build(m, &s, &g);
    bl_pricing_init(&host, &machine->device[0], m, &c->plan, table);
    for (uint16_t d = 1; !st && d < machine->n_devices; d++) {
        const struct bl_link *l = link_to(machine, d);
        c->sent_from_tok[d] = 0;
        if (!l)
            continue;
        bl_pricing_init(&card, &machine->device[d], m, &c->plan, table);
        const struct crossover x = {.plan = &c->plan,
                                    .graph = &g,
                                    .n_experts = m->hp.n_expert,
                                    .to = &machine->device[d],
                                    .host = &host,
                                    .card = &card,
                                    .device = d,
                                    .link_bps = bl_link_bps(l, 0),
                                    .measured =
                                        (l->a == 0 ? l->ab_measured_bps : l->ba_measured_bps) > 0};
        c->sent_from_tok[d] = find(&x);
    }
    bl_graph_finish(&g);
    return st;
}

/* SPDX-License-Identifier: MIT */
/* Costs and bytes of every group of a model on every device of a machine. */
#include "search_impl.h"

#include "machine_file.h"
#include "mem.h"
#include "program.h"
#include "timeline.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TENSOR_ALIGN = 64 }; /* as bl_plan_tensor_offsets has it */

static enum bl_group group_of(unsigned part)
{
    return part == BL_PART_EXPERTS ? BL_GROUP_EXPERTS : BL_GROUP_REST;
}

uint64_t bl_device_budget(const struct bl_machine_device *d, uint64_t reserve_bytes)
{
    const uint64_t gone = d->driver_bytes + (d->kind == BL_KIND_GPU ? reserve_bytes : 0);
    return d->usable_bytes > gone ? d->usable_bytes - gone : 0;
}

/* ---- bytes ---- */

static uint64_t *bytes_at(struct bl_costs *c, const struct bl_weight *w)
{
    return w->layer >= 0             ? &c->bytes[(size_t)w->layer * BL_N_GROUPS + group_of(w->part)]
           : w->part == BL_PART_HEAD ? &c->head_bytes
                                     : &c->embed_bytes;
}

/* A tensor that several weights are parts of lies there once. */
static enum bl_status count_weights(struct bl_costs *c, const struct bl_model *m)
{
    const uint32_t n = bl_gguf_n_tensors(m->gguf);
    uint64_t **seen = bl_calloc(n + 1, sizeof *seen);

    if (!seen)
        return bl_fail(BL_ENOMEM, "out of memory while counting weights");
    for (uint32_t i = 0; i < m->n_weights; i++) {
        const struct bl_weight *w = &m->weight[i];
        uint64_t *at = bytes_at(c, w);
        if (seen[w->tensor] != at)
            *at += bl_align_up(bl_gguf_tensor(m->gguf, w->tensor)->bytes, TENSOR_ALIGN);
        seen[w->tensor] = at;
        if (bl_weight_has_table(w))
            *at += sizeof(uint64_t) * w->ne[2];
    }
    free(seen);
    return BL_OK;
}

static void count_state(struct bl_costs *c, const struct bl_model *m, const struct bl_plan *p)
{
    const struct bl_shape s = bl_plan_bucket(p, p->ubatch_tokens, 1);

    for (uint32_t i = 0; i < m->n_states; i++)
        c->bytes[(size_t)m->state[i].layer * BL_N_GROUPS + BL_GROUP_REST] +=
            bl_align_up(bl_state_bytes(&m->state[i], &s), TENSOR_ALIGN);
}

/* ---- time ---- */

static void price_node(struct bl_costs *c, const struct bl_graph *g, const struct bl_node *n,
                       const struct bl_work *w, const struct bl_pricing *price, unsigned phase)
{
    (void)g;
    for (uint16_t d = 0; d < c->n_devices; d++) {
        const double ns = bl_work_ns(&price[d], w) + bl_node_fixed_ns(&price[d]);
        if (n->layer >= 0)
            c->ns[phase][bl_cost_at(c, (uint32_t)n->layer, group_of(n->part), d)] += ns;
        else if (n->part == BL_PART_HEAD)
            c->head_ns[phase][d] += ns;
    }
}

static void price_layers(struct bl_costs *c, const struct bl_model *m,
                         const struct bl_pricing *price, unsigned phase, uint32_t n_tok)
{
    for (uint32_t l = 0; l < c->n_layers; l++)
        for (uint16_t d = 0; d < c->n_devices; d++)
            c->ns[phase][bl_cost_at(c, l, BL_GROUP_REST, d)] +=
                bl_layer_fixed_ns(&price[d], m, (int)l, n_tok);
}

static void price_index(struct bl_costs *c, const struct bl_graph *g,
                        const struct bl_pricing *price, double ctx)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->n_nodes; i++)
        n += g->nodes[i].op == BL_OP_CHOOSE;
    for (uint32_t i = 0; i < g->n_nodes; i++)
        for (uint16_t d = 0; g->nodes[i].op == BL_OP_CHOOSE && d < c->n_devices; d++)
            c->ns[BL_DECODE][bl_cost_at(c, (uint32_t)g->nodes[i].layer, BL_GROUP_REST, d)] +=
                bl_index_ns(&price[d], ctx) / n;
}

static void price_crossings(struct bl_costs *c, const struct bl_model *m,
                            const struct bl_machine *machine, const struct bl_pricing *price,
                            unsigned phase, uint32_t n_tok)
{
    const double bytes = (double)m->hp.n_embd * sizeof(float) * n_tok;

    for (uint16_t a = 0; a < c->n_devices; a++)
        for (uint16_t b = 0; b < c->n_devices; b++) {
            double latency = 0, bps = a == b ? 0 : bl_machine_path_bps(machine, a, b, &latency);
            c->cross_ns[phase][(size_t)a * c->n_devices + b] =
                a == b ? 0
                       : bl_crossing_ns(price, machine, a, b) + latency +
                             (bps > 0 ? bytes / bps * 1e9 : 0);
        }
}

static enum bl_status price_phase(struct bl_costs *c, const struct bl_model *m,
                                  const struct bl_machine *machine, const struct bl_plan *p,
                                  const struct bl_pricing *price, unsigned phase, uint64_t depth)
{
    const struct bl_shape s = bl_plan_bucket(p, phase == BL_DECODE ? 1 : p->ubatch_tokens, 1);
    struct bl_graph g;

    bl_graph_init(&g);
    enum bl_status st = bl_model_build(m, &s, &g);
    for (uint32_t i = 0; !st && i < g.n_nodes; i++) {
        struct bl_work w;
        bl_work_count(&w, &g, &g.nodes[i], s.n_tok, depth);
        price_node(c, &g, &g.nodes[i], &w, price, phase);
    }
    if (!st) {
        price_layers(c, m, price, phase, s.n_tok);
        price_crossings(c, m, machine, price, phase, s.n_tok);
        if (phase == BL_DECODE)
            price_index(c, &g, price, (double)depth);
    }
    bl_graph_finish(&g);
    return st;
}

static enum bl_status allocate(struct bl_costs *c)
{
    const size_t cells = (size_t)c->n_layers * BL_N_GROUPS * c->n_devices;
    bool ok = true;

    for (unsigned p = 0; p < BL_N_PHASES; p++) {
        c->ns[p] = bl_calloc(cells + 1, sizeof *c->ns[p]);
        c->head_ns[p] = bl_calloc(c->n_devices, sizeof *c->head_ns[p]);
        c->cross_ns[p] = bl_calloc((size_t)c->n_devices * c->n_devices, sizeof *c->cross_ns[p]);
        ok = ok && c->ns[p] && c->head_ns[p] && c->cross_ns[p];
    }
    c->bytes = bl_calloc((size_t)c->n_layers * BL_N_GROUPS + 1, sizeof *c->bytes);
    c->compute = bl_calloc(c->n_devices, sizeof *c->compute);
    c->budget = bl_calloc(c->n_devices, sizeof *c->budget);
    return ok && c->bytes && c->compute && c->budget
               ? BL_OK
               : bl_fail(BL_ENOMEM, "out of memory while pricing %u layers", c->n_layers);
}

static enum bl_status fill(struct bl_costs *c, const struct bl_model *m,
                           const struct bl_machine *machine, const struct bl_plan *p,
                           const struct bl_search_options *opt)
{
    struct bl_cost_table committed;
    struct bl_pricing *price = bl_calloc(c->n_devices, sizeof *price);
    enum bl_status st = price ? BL_OK : bl_fail(BL_ENOMEM, "out of memory while pricing");

    bl_cost_table_init(&committed);
    for (uint32_t d = 0; !st && d < c->n_devices; d++) {
        bl_pricing_init(&price[d], &machine->device[d], m, p, opt->table ? opt->table : &committed);
        c->budget[d] = bl_device_budget(&machine->device[d], opt->reserve_bytes);
    }
    for (unsigned phase = 0; !st && phase < BL_N_PHASES; phase++)
        st = price_phase(c, m, machine, p, price, phase, opt->depth_tokens);
    free(price);
    if (!st)
        st = count_weights(c, m);
    if (!st)
        count_state(c, m, p);
    return st;
}

enum bl_status bl_costs_make(struct bl_costs *out, const struct bl_model *m,
                             const struct bl_machine *machine, const struct bl_plan *p,
                             const struct bl_search_options *opt)
{
    struct bl_costs c = {.n_layers = m->hp.n_layer, .n_devices = machine->n_devices};
    enum bl_status st = allocate(&c);

    if (!st)
        st = fill(&c, m, machine, p, opt);
    if (st)
        bl_costs_finish(&c);
    else
        *out = c;
    return st;
}

void bl_costs_finish(struct bl_costs *c)
{
    for (unsigned p = 0; p < BL_N_PHASES; p++) {
        free(c->ns[p]);
        free(c->head_ns[p]);
        free(c->cross_ns[p]);
    }
    free(c->bytes);
    free(c->compute);
    free(c->budget);
    *c = (struct bl_costs){0};
}

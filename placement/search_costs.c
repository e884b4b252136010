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
    const uint64_t gone = d->kind == BL_KIND_GPU ? reserve_bytes : 0;
    return d->usable_bytes > gone ? d->usable_bytes - gone : 0;
}

/* ---- what rules fix ---- */

static uint16_t pin_of(const struct bl_costs *c, int layer, unsigned part)
{
    const uint32_t row = layer < 0 ? c->n_layers : (uint32_t)layer;
    return c->pins ? c->pins->at[row * BL_N_PARTS + part] : BL_NO_DEVICE;
}

/* A part that rules put elsewhere than its group may go. */
static bool is_apart(const struct bl_costs *c, int layer, unsigned part)
{
    return layer >= 0 && part != BL_PART_EXPERTS && pin_of(c, layer, part) != BL_NO_DEVICE &&
           c->pin[(size_t)layer * BL_N_GROUPS + BL_GROUP_REST] == BL_NO_DEVICE;
}

/* Beside cards with memory of their own, those that live in the host's are left out: they would
 * take its memory for the sake of little. */
static bool is_usable(const struct bl_machine *m, uint16_t d)
{
    const struct bl_machine_device *md = &m->device[d];
    bool dedicated = false;

    for (uint32_t i = 1; i < m->n_devices; i++)
        dedicated = dedicated || (m->device[i].kind == BL_KIND_GPU &&
                                  m->device[i].mem_kind == BL_MEMORY_DEDICATED);
    return md->usable_bytes &&
           !(dedicated && (md->integrated || md->mem_kind == BL_MEMORY_UNIFIED));
}

static void read_pins(struct bl_costs *c, const struct bl_machine *m)
{
    for (uint32_t l = 0; l < c->n_layers; l++) {
        const uint16_t attn = pin_of(c, (int)l, BL_PART_ATTN);
        uint16_t *pin = &c->pin[l * BL_N_GROUPS];
        const bool whole =
            attn == pin_of(c, (int)l, BL_PART_STATE) && attn == pin_of(c, (int)l, BL_PART_FFN);
        pin[BL_GROUP_REST] = whole ? attn : BL_NO_DEVICE;
        pin[BL_GROUP_EXPERTS] = pin_of(c, (int)l, BL_PART_EXPERTS);
    }
    c->head_pin = pin_of(c, -1, BL_PART_HEAD);
    c->embed_at = pin_of(c, -1, BL_PART_EMBED) == BL_NO_DEVICE ? 0 : pin_of(c, -1, BL_PART_EMBED);
    for (uint16_t d = 0; d < c->n_devices; d++)
        c->open[d] = d == 0 || (is_usable(m, d) && !(c->pins && c->pins->left_out >> d & 1));
}

/* ---- bytes ---- */

static uint64_t *bytes_at(struct bl_costs *c, int layer, unsigned part)
{
    if (is_apart(c, layer, part))
        return &c->fixed[pin_of(c, layer, part)];
    return layer >= 0             ? &c->bytes[(size_t)layer * BL_N_GROUPS + group_of(part)]
           : part == BL_PART_HEAD ? &c->head_bytes
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
        uint64_t *at = bytes_at(c, w->layer, w->part);
        if (seen[w->tensor] != at)
            *at += bl_align_up(bl_gguf_tensor(m->gguf, w->tensor)->bytes, TENSOR_ALIGN);
        seen[w->tensor] = at;
        *at += sizeof(uint64_t) * bl_weight_n_experts(w);
    }
    free(seen);
    return BL_OK;
}

static void count_state(struct bl_costs *c, const struct bl_model *m, const struct bl_plan *p)
{
    const struct bl_shape s = bl_plan_bucket(p, p->ubatch_tokens, 1);

    for (uint32_t i = 0; i < m->n_states; i++)
        *bytes_at(c, m->state[i].layer, BL_PART_STATE) +=
            bl_align_up(bl_state_bytes(&m->state[i], &s), TENSOR_ALIGN);
}

/* ---- what devices cannot run ---- */

static uint8_t weight_type(const struct bl_graph *g, const struct bl_node *n)
{
    const struct bl_value *most = NULL;

    for (unsigned i = 0; i < n->n_src; i++) {
        const struct bl_value *v = &g->vals[bl_node_src(g, n, i)];
        if (v->origin == BL_WEIGHT && (!most || bl_value_bytes(v) > bl_value_bytes(most)))
            most = v;
    }
    return most ? most->type : BL_N_DTYPES;
}

/* The host can run everything. Parts that rules put apart go there whether they can or not. */
static void note_lacks(struct bl_costs *c, const struct bl_machine *machine,
                       const struct bl_graph *g, const struct bl_node *n)
{
    const bool head = n->layer < 0 && n->part == BL_PART_HEAD && c->head_pin == BL_NO_DEVICE;

    if ((n->layer < 0 && !head) || is_apart(c, n->layer, n->part))
        return;
    for (uint16_t d = 1; d < c->n_devices; d++) {
        const struct bl_machine_device *md = &machine->device[d];
        struct bl_lack *lack = &c->lack[bl_cost_at(c, head ? c->n_layers - 1 : (uint32_t)n->layer,
                                                   group_of(n->part), d)];
        if (!lack->op && !md->backend->supports(&md->caps, g, n))
            *lack = (struct bl_lack){(uint8_t)(n->op + 1), weight_type(g, n), 0};
    }
}

static void note_size(struct bl_costs *c, const struct bl_machine *machine, int layer,
                      unsigned part, uint64_t bytes)
{
    const bool head = layer < 0 && part == BL_PART_HEAD && c->head_pin == BL_NO_DEVICE;

    if ((layer < 0 && !head) || is_apart(c, layer, part))
        return;
    for (uint16_t d = 1; d < c->n_devices; d++) {
        const uint64_t window = bl_plan_window(machine, d);
        struct bl_lack *lack = &c->lack[bl_cost_at(c, head ? c->n_layers - 1 : (uint32_t)layer,
                                                   group_of((enum bl_part)part), d)];
        if (!lack->op && window && bytes > window)
            *lack = (struct bl_lack){1, BL_N_DTYPES, bytes};
    }
}

/* What lies in one block: a tensor, of experts one, and a layer's rows of a kind. */
static void note_sizes(struct bl_costs *c, const struct bl_machine *machine,
                       const struct bl_model *m, const struct bl_plan *p)
{
    const struct bl_shape s = bl_plan_bucket(p, p->ubatch_tokens, 1);

    for (uint32_t i = 0; i < m->n_weights; i++) {
        const struct bl_weight *w = &m->weight[i];
        note_size(c, machine, w->layer, w->part,
                  bl_weight_has_table(w) ? bl_weight_expert_stride(w)
                                         : bl_gguf_tensor(m->gguf, w->tensor)->bytes);
    }
    for (uint32_t i = 0; i < m->n_states; i++)
        note_size(c, machine, m->state[i].layer, BL_PART_STATE, bl_state_bytes(&m->state[i], &s));
}

uint64_t bl_least_group(const struct bl_costs *c, uint16_t d)
{
    uint64_t least = 0;

    for (uint32_t l = 0; l < c->n_layers; l++)
        for (unsigned g = 0; g < BL_N_GROUPS; g++) {
            const uint64_t bytes = bl_group_bytes(c, l, g);
            if (bytes && bl_able_or_host(c, l, g, d) == d && (!least || bytes < least))
                least = bytes;
        }
    return least;
}

static void close_unable(struct bl_costs *c)
{
    for (uint16_t d = 1; d < c->n_devices; d++) {
        bool able = false;
        for (uint32_t l = 0; l < c->n_layers; l++)
            for (unsigned g = 0; g < BL_N_GROUPS; g++)
                able = able || (bl_group_bytes(c, l, g) && bl_able_or_host(c, l, g, d) == d);
        c->open[d] = c->open[d] && able;
    }
}

/* ---- time ---- */

static void price_node(struct bl_costs *c, const struct bl_node *n, const struct bl_work *w,
                       const struct bl_pricing *price, unsigned phase)
{
    const bool apart = is_apart(c, n->layer, n->part);

    for (uint16_t d = 0; d < c->n_devices; d++) {
        const struct bl_pricing *p = &price[apart ? pin_of(c, n->layer, n->part) : d];
        const double ns = bl_work_ns(p, w) + bl_node_fixed_ns(p);
        if (n->layer >= 0)
            c->ns[phase][bl_cost_at(c, (uint32_t)n->layer, group_of(n->part), d)] += ns;
        else if (n->part == BL_PART_HEAD)
            c->head_ns[phase][d] += ns;
    }
}

static void price_sent(struct bl_costs *c, const struct bl_node *n, const struct bl_work *w,
                       const struct bl_machine *machine, const struct bl_pricing *price)
{
    for (uint32_t i = 0; i < machine->n_links; i++) {
        const struct bl_link *l = &machine->link[i];
        if (l->a != 0 && l->b != 0)
            continue;
        const uint16_t d = l->a ? l->a : l->b;
        if (bl_able_or_host(c, (uint32_t)n->layer, BL_GROUP_EXPERTS, d) != d)
            continue;
        const bool measured = (l->a == 0 ? l->ab_measured_bps : l->ba_measured_bps) > 0;
        c->ns[BL_SENT][(size_t)n->layer * c->n_devices + d] =
            bl_stream_ns(&price[d], w, bl_link_bps(l, 0), measured);
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

/* There and back again, for every part that is apart from its group. */
static void price_apart(struct bl_costs *c, unsigned phase)
{
    static const uint8_t parts[] = {BL_PART_ATTN, BL_PART_STATE, BL_PART_FFN};
    const double *cross = c->cross_ns[phase];

    for (uint32_t l = 0; l < c->n_layers; l++)
        for (size_t i = 0; i < sizeof parts; i++)
            for (uint16_t d = 0; is_apart(c, (int)l, parts[i]) && d < c->n_devices; d++) {
                const uint16_t p = pin_of(c, (int)l, parts[i]);
                c->ns[phase][bl_cost_at(c, l, BL_GROUP_REST, d)] +=
                    cross[d * c->n_devices + p] + cross[p * c->n_devices + d];
            }
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

/* Whoever is crossed to starts anew. */
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
                             machine->device[b].launch_ns + (bps > 0 ? bytes / bps * 1e9 : 0);
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
        note_lacks(c, machine, &g, &g.nodes[i]);
        price_node(c, &g.nodes[i], &w, price, phase);
        if (phase == BL_PREFILL && g.nodes[i].op == BL_OP_EXPERTS)
            price_sent(c, &g.nodes[i], &w, machine, price);
    }
    if (!st) {
        price_layers(c, m, price, phase, s.n_tok);
        price_crossings(c, m, machine, price, phase, s.n_tok);
        price_apart(c, phase);
        if (phase == BL_DECODE)
            price_index(c, &g, price, (double)depth);
    }
    bl_graph_finish(&g);
    return st;
}

void bl_costs_blend(struct bl_costs *c, const double ns[BL_N_PHASES], enum bl_phase prefill,
                    double weight)
{
    const double one = (1 - weight) / ns[BL_DECODE], many = weight / ns[prefill];
    const size_t n_dev = c->n_devices, cells = (size_t)c->n_layers * BL_N_GROUPS * n_dev;

    for (size_t i = 0; i < cells; i++)
        c->blend[i] = one * c->ns[BL_DECODE][i] + many * c->ns[BL_PREFILL][i];
    for (uint32_t l = 0; l < c->n_layers; l++)
        for (uint16_t d = 0; d < n_dev; d++) {
            const double sent = c->ns[BL_SENT][l * n_dev + d];
            const size_t host = bl_cost_at(c, l, BL_GROUP_EXPERTS, 0);
            c->blend_sent[l * n_dev + d] = prefill == BL_SENT && sent > 0
                                               ? one * c->ns[BL_DECODE][host] + many * sent
                                               : c->blend[host];
        }
    for (size_t i = 0; i < n_dev; i++)
        c->blend_head[i] = one * c->head_ns[BL_DECODE][i] + many * c->head_ns[BL_PREFILL][i];
    for (size_t i = 0; i < n_dev * n_dev; i++)
        c->blend_cross[i] = one * c->cross_ns[BL_DECODE][i] + many * c->cross_ns[BL_PREFILL][i];
}

/* ---- the whole ---- */

static enum bl_status allocate(struct bl_costs *c)
{
    const size_t n_dev = c->n_devices, groups = (size_t)c->n_layers * BL_N_GROUPS;
    bool ok = true;

    for (unsigned p = 0; p < BL_N_PHASES; p++) {
        c->ns[p] = bl_calloc(groups * n_dev + 1, sizeof *c->ns[p]);
        c->head_ns[p] = bl_calloc(n_dev, sizeof *c->head_ns[p]);
        c->cross_ns[p] = bl_calloc(n_dev * n_dev, sizeof *c->cross_ns[p]);
        ok = ok && c->ns[p] && c->head_ns[p] && c->cross_ns[p];
    }
    c->blend = bl_calloc(groups * n_dev + 1, sizeof *c->blend);
    c->blend_sent = bl_calloc(c->n_layers * n_dev + 1, sizeof *c->blend_sent);
    c->blend_head = bl_calloc(n_dev, sizeof *c->blend_head);
    c->blend_cross = bl_calloc(n_dev * n_dev, sizeof *c->blend_cross);
    c->bytes = bl_calloc(groups + 1, sizeof *c->bytes);
    c->fixed = bl_calloc(n_dev, sizeof *c->fixed);
    c->compute = bl_calloc(n_dev, sizeof *c->compute);
    c->budget = bl_calloc(n_dev, sizeof *c->budget);
    c->pin = bl_calloc(groups + 1, sizeof *c->pin);
    c->open = bl_calloc(n_dev, sizeof *c->open);
    c->lack = bl_calloc(groups * n_dev + 1, sizeof *c->lack);
    ok = ok && c->blend && c->blend_sent && c->blend_head && c->blend_cross && c->bytes && c->fixed;
    return ok && c->compute && c->budget && c->pin && c->open && c->lack
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

    read_pins(c, machine);
    bl_cost_table_init(&committed);
    for (uint32_t d = 0; !st && d < c->n_devices; d++) {
        bl_pricing_init(&price[d], &machine->device[d], m, p, opt->table ? opt->table : &committed);
        c->budget[d] = bl_device_budget(&machine->device[d], opt->reserve_bytes);
    }
    for (unsigned phase = BL_DECODE; !st && phase <= BL_PREFILL; phase++)
        st = price_phase(c, m, machine, p, price, phase, opt->depth_tokens);
    free(price);
    if (!st)
        st = count_weights(c, m);
    if (!st) {
        count_state(c, m, p);
        note_sizes(c, machine, m, p);
        close_unable(c);
    }
    return st;
}

enum bl_status bl_costs_make(struct bl_costs *out, const struct bl_model *m,
                             const struct bl_machine *machine, const struct bl_plan *p,
                             const struct bl_search_options *opt)
{
    struct bl_costs c = {.n_layers = m->hp.n_layer,
                         .n_devices = machine->n_devices,
                         .tied = m->tied_output,
                         .pins = opt->pins};
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
    free(c->blend);
    free(c->blend_sent);
    free(c->blend_head);
    free(c->blend_cross);
    free(c->bytes);
    free(c->fixed);
    free(c->compute);
    free(c->budget);
    free(c->pin);
    free(c->open);
    free(c->lack);
    *c = (struct bl_costs){0};
}

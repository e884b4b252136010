/* SPDX-License-Identifier: MIT */
#include "pacing.h"

#include "device.h"
#include "expert_share.h"
#include "mem.h"
#include "wires.h"

#include <pthread.h>
#include <stdlib.h>

struct bl_pacer {
    struct bl_machine machine; /* devices, links and hubs only */
    const struct bl_model *model;
    struct bl_cost_table table;
    struct bl_pricing *price; /* [n_devices] */
    struct bl_wires wires;    /* under turn */
    pthread_mutex_t turn;
    struct bl_virtual_clock clock;
    bool is_virtual;
    _Atomic uint32_t refs;
    double *share;           /* [n_layers][n_devices] of a layer's experts */
    struct bl_chunking *cut; /* [n_layers] how they are sent */
};
struct pace {
    struct bl_pace base; /* first */
    struct bl_pacer *of;
    uint16_t device;
};

/* ---- what a device asks ---- */

static double share_of(const struct pace *p, const struct bl_graph *g, const struct bl_node *n)
{
    const uint32_t n_layers = p->of->model->hp.n_layer;

    if (n->op != BL_OP_EXPERTS || n->layer < 0 || (uint32_t)n->layer >= n_layers)
        return 1;
    const struct bl_experts_attr *at = bl_node_attr(g, n);
    return p->of->share[(size_t)n->layer * p->of->machine.n_devices + (at->chunks ? 0 : p->device)];
}

static double run_ns(struct bl_pace *pace, const struct bl_graph *g, const struct bl_node *first,
                     uint32_t n, uint32_t n_tok, uint64_t depth)
{
    const struct pace *p = (const struct pace *)pace;
    const struct bl_pricing *price = &p->of->price[p->device];
    double ns = price->device->launch_ns;

    for (uint32_t i = 0; i < n; i++) {
        const struct bl_node_step step = {p->of->model, n_tok, depth, share_of(p, g, &first[i]),
                                          first[i].layer < 0 ? NULL : &p->of->cut[first[i].layer]};
        struct bl_work w;
        ns += bl_node_ns(price, g, &first[i], &step, &w);
    }
    return ns;
}

static struct bl_copy_time copy(struct bl_pace *pace, double ready_ns, uint64_t bytes,
                                bool to_device)
{
    const struct pace *p = (const struct pace *)pace;
    const uint16_t from = to_device ? 0 : p->device, to = to_device ? p->device : 0;

    pthread_mutex_lock(&p->of->turn);
    const struct bl_copy_time t =
        bl_wires_copy(&p->of->wires, p->of->price, from, to, (double)bytes, ready_ns);
    pthread_mutex_unlock(&p->of->turn);
    return t;
}

static double cross_ns(struct bl_pace *pace, const struct bl_device *from)
{
    const struct pace *p = (const struct pace *)pace;
    return from->number < p->of->machine.n_devices
               ? bl_crossing_ns(p->of->price, &p->of->machine, from->number, p->device)
               : 0;
}

static void pace_close(struct bl_pace *pace)
{
    bl_pacer_release(((struct pace *)pace)->of);
    free(pace);
}

enum bl_status bl_pacer_pace(struct bl_pacer *pacer, uint16_t device, struct bl_pace **out)
{
    static const struct bl_pace_ops ops = {run_ns, copy, cross_ns, pace_close};
    struct pace *p = bl_calloc(1, sizeof *p);

    if (!p)
        return bl_fail(BL_ENOMEM, "out of memory for the pace of %s",
                       pacer->machine.device[device].id);
    *p = (struct pace){
        .base = {&ops, pacer->is_virtual ? &pacer->clock : NULL}, .of = pacer, .device = device};
    atomic_fetch_add(&pacer->refs, 1);
    *out = &p->base;
    return BL_OK;
}

struct bl_virtual_clock *bl_pacer_clock(struct bl_pacer *p)
{
    return p->is_virtual ? &p->clock : NULL;
}

/* ---- the whole ---- */

static void *copy_of(const void *items, size_t n, size_t size)
{
    void *p = bl_calloc(n + 1, size);
    if (p && n)
        memcpy(p, items, n * size);
    return p;
}

static bool copy_machine(struct bl_machine *out, const struct bl_machine *m)
{
    out->device = copy_of(m->device, m->n_devices, sizeof *m->device);
    out->link = copy_of(m->link, m->n_links, sizeof *m->link);
    out->hub = copy_of(m->hub, m->n_hubs, sizeof *m->hub);
    out->n_devices = m->n_devices;
    out->n_links = m->n_links;
    out->n_hubs = m->n_hubs;
    return out->device && out->link && out->hub;
}

enum bl_status bl_pacer_make(struct bl_pacer **out, const struct bl_model *model,
                             const struct bl_plan *plan, const struct bl_machine *machine,
                             bool is_virtual)
{
    struct bl_pacer *p = bl_calloc(1, sizeof *p);

    if (!p)
        return bl_fail(BL_ENOMEM, "out of memory for simulated devices");
    p->model = model;
    p->is_virtual = is_virtual;
    p->refs = 1;
    bl_cost_table_init(&p->table);
    pthread_mutex_init(&p->turn, NULL);
    p->price = bl_calloc(machine->n_devices, sizeof *p->price);
    p->share = bl_calloc((size_t)machine->n_devices * model->hp.n_layer + 1, sizeof *p->share);
    p->cut = bl_calloc((size_t)model->hp.n_layer + 1, sizeof *p->cut);
    if (!copy_machine(&p->machine, machine) || !p->price || !p->share || !p->cut ||
        bl_wires_init(&p->wires, &p->machine)) {
        bl_pacer_release(p);
        return bl_fail(BL_ENOMEM, "out of memory for simulated devices");
    }
    bl_expert_shares(plan, model, machine->n_devices, p->share);
    for (uint32_t l = 0; l < model->hp.n_layer; l++)
        bl_plan_chunks(plan, model, l, &p->cut[l]);
    for (uint32_t d = 0; d < machine->n_devices; d++)
        bl_pricing_init(&p->price[d], &p->machine.device[d], model, plan, &p->table);
    *out = p;
    return BL_OK;
}

void bl_pacer_release(struct bl_pacer *p)
{
    if (!p || atomic_fetch_sub(&p->refs, 1) != 1)
        return;
    bl_wires_finish(&p->wires);
    bl_machine_finish(&p->machine);
    pthread_mutex_destroy(&p->turn);
    free(p->price);
    free(p->share);
    free(p->cut);
    free(p);
}

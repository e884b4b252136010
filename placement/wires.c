/* SPDX-License-Identifier: MIT */
#include "wires.h"

#include "mem.h"

#include <math.h>
#include <stdlib.h>

enum bl_status bl_wires_init(struct bl_wires *w, const struct bl_machine *m)
{
    *w = (struct bl_wires){.machine = m};
    w->link_free = bl_calloc(2 * (size_t)m->n_links + 1, sizeof *w->link_free);
    w->hub_free = bl_calloc(2 * (size_t)m->n_hubs + 1, sizeof *w->hub_free);
    if (w->link_free && w->hub_free)
        return BL_OK;
    bl_wires_finish(w);
    return bl_fail(BL_ENOMEM, "out of memory for %u links", m->n_links);
}

void bl_wires_finish(struct bl_wires *w)
{
    free(w->link_free);
    free(w->hub_free);
    *w = (struct bl_wires){0};
}

const struct bl_link *bl_wires_link(const struct bl_machine *m, uint16_t a, uint16_t b)
{
    for (uint32_t i = 0; i < m->n_links; i++) {
        const struct bl_link *l = &m->link[i];
        if ((l->a == a && l->b == b) || (l->a == b && l->b == a))
            return l;
    }
    return NULL;
}

/* The constant is of the way to the host and back. */
double bl_crossing_ns(const struct bl_pricing *price, const struct bl_machine *m, uint16_t from,
                      uint16_t to)
{
    const struct bl_link *l = bl_wires_link(m, from, to);
    const struct bl_pricing *card = &price[from ? from : to];

    if (from == to)
        return 0;
    if (l && l->cross_ns > 0)
        return l->cross_ns;
    return from && to ? bl_cost_hop_ns(card->table, &card->key)
                      : bl_cost_cross_ns(card->table, &card->key) / 2;
}

static double copy_bps(const struct bl_link *l, const struct bl_pricing *card, uint16_t from)
{
    const double measured = from == l->a ? l->ab_measured_bps : l->ba_measured_bps;
    return measured > 0
               ? measured
               : bl_link_bps(l, from) * bl_cost_look(card->table, BL_COST_LINK, &card->key);
}

/* A hub is held for as long as the bytes take it. */
static double occupy(struct bl_wires *w, const struct bl_link *l, unsigned way, double bytes,
                     double ready_ns)
{
    const struct bl_machine *m = w->machine;
    double begin = fmax(ready_ns, w->link_free[2 * (size_t)(l - m->link) + way]);

    for (uint16_t h = l->via; h != BL_NO_DEVICE; h = m->hub[h].up)
        begin = fmax(begin, w->hub_free[2 * (size_t)h + way]);
    for (uint16_t h = l->via; h != BL_NO_DEVICE; h = m->hub[h].up)
        if (m->hub[h].bps > 0)
            w->hub_free[2 * (size_t)h + way] = begin + bytes / m->hub[h].bps * 1e9;
    return begin;
}

struct bl_copy_time bl_wires_copy(struct bl_wires *w, const struct bl_pricing *price, uint16_t from,
                                  uint16_t to, double bytes, double ready_ns)
{
    const struct bl_link *l = bl_wires_link(w->machine, from, to);

    if (!l)
        return (struct bl_copy_time){ready_ns, ready_ns};
    const unsigned way = from != l->a;
    const double ns = l->latency_ns + bytes / copy_bps(l, &price[from ? from : to], from) * 1e9;
    const double begin = occupy(w, l, way, bytes, ready_ns);
    w->link_free[2 * (size_t)(l - w->machine->link) + way] = begin + ns;
    return (struct bl_copy_time){begin, begin + ns};
}

/* SPDX-License-Identifier: MIT */
#include "expert_share.h"

#include "machine_file.h"
#include "search_impl.h"

#include <math.h>

/* ---- what is where --------------------------------------------------------------------------- */

/* Of all uses of the layer; where none is known, the tokens choose alike. */
static double use_of(const struct bl_plan *p, uint32_t layer, uint32_t first, uint32_t n,
                     uint32_t n_experts)
{
    const struct bl_expert_stats *s = p->known;
    double some = 0, all = 0;

    for (uint32_t e = 0; s && e < n_experts; e++) {
        const double uses = (double)s->uses[(size_t)layer * n_experts + e];
        all += uses;
        some += e >= first && e < first + n ? uses : 0;
    }
    return all > 0 ? some / all : (double)n / n_experts;
}

void bl_expert_shares(const struct bl_plan *p, const struct bl_model *m, uint32_t n_devices,
                      double *share)
{
    const uint32_t n = m->hp.n_expert;

    for (uint32_t l = 0; l < p->n_layers; l++) {
        double *of = share + (size_t)l * n_devices;
        for (uint32_t d = 0; d < n_devices; d++)
            of[d] = 0;
        if (!m->layer[l].moe)
            continue;
        for (uint32_t e = 0; e < n;) {
            const struct bl_expert_range run = bl_plan_expert_run(p, l, e, n);
            of[run.device] += use_of(p, l, e, run.n, n);
            e += run.n;
        }
    }
    for (uint32_t i = 0; bl_plan_has_slots(p) && i < p->n_slot_sets; i++) {
        const struct bl_slot_set *s = &p->slots[i];
        double *of = share + (size_t)s->layer * n_devices;
        const double hit = fmin(s->hit > 0 ? s->hit : (double)s->n / n, of[0]);
        of[s->device] += hit;
        of[0] -= hit;
    }
}

uint64_t bl_expert_bytes(const struct bl_model *m, uint32_t layer)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < m->n_weights; i++) {
        const struct bl_weight *w = &m->weight[i];
        bool seen = !bl_weight_has_table(w) || w->layer != (int)layer;
        for (uint32_t k = 0; k < i && !seen; k++) /* halves of one tensor */
            seen = m->weight[k].tensor == w->tensor;
        bytes += seen ? 0 : bl_weight_expert_stride(w);
    }
    return bytes;
}

/* ---- slots ----------------------------------------------------------------------------------- */

/* If everything came in at once. */
static double ideal_hit(const struct bl_plan *p, const struct bl_slot_set *s, uint32_t n_experts)
{
    const double alike = (double)s->n / n_experts;
    double hit = -1;

    if (p->known)
        hit = p->expert_policy == BL_EXPERTS_LRU ? bl_expert_stats_recent(p->known, s->layer, s->n)
                                                 : bl_expert_stats_best(p->known, s->layer, s->n);
    return hit < 0 ? alike : hit;
}

/* Bytes that come to a device for a token, if all that is missed does. */
static double missed_bytes(const struct bl_plan *p, const struct bl_model *m, uint16_t device)
{
    double bytes = 0;

    for (uint32_t i = 0; i < p->n_slot_sets; i++)
        if (p->slots[i].device == device)
            bytes += m->hp.n_expert_used * (1 - ideal_hit(p, &p->slots[i], m->hp.n_expert)) *
                     (double)bl_expert_bytes(m, p->slots[i].layer);
    return bytes;
}

/* Of what is missed, so much can come in during a step; the slots then hold as much of the last
 * used, and otherwise what they had. */
static void set_hits(struct bl_plan *p, const struct bl_model *m, const struct bl_machine *machine,
                     double step_ns)
{
    for (uint32_t i = 0; i < p->n_slot_sets; i++) {
        struct bl_slot_set *s = &p->slots[i];
        const double ideal = ideal_hit(p, s, m->hp.n_expert), alike = (double)s->n / m->hp.n_expert;
        const double bytes = missed_bytes(p, m, s->device),
                     room = bl_machine_path_bps(machine, 0, s->device, NULL) * step_ns * 1e-9;
        const double comes =
            p->expert_policy == BL_EXPERTS_LRU && bytes > 0 ? fmin(1, room / bytes) : 1;
        s->hit = alike + comes * (ideal - alike);
    }
}

enum bl_status bl_price_slots(struct bl_plan *p, const struct bl_model *m,
                              const struct bl_machine *machine, const struct bl_search_options *opt)
{
    double ns;

    if (!bl_plan_has_slots(p))
        return BL_OK;
    set_hits(p, m, machine, INFINITY);
    if (p->expert_policy != BL_EXPERTS_LRU)
        return BL_OK;
    BL_TRY(bl_simulate(m, p, machine, opt, 1, 0, &ns));
    set_hits(p, m, machine, isfinite(ns) ? ns : 0);
    return BL_OK;
}

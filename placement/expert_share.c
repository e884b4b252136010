/* SPDX-License-Identifier: MIT */
#include "expert_share.h"

#include "machine_file.h"
#include "program.h"
#include "residency.h"
#include "search_impl.h"
#include "timeline.h"

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

enum { ROUNDS = 3 };
#define MOST_LOAD 0.9 /* of the host's reading: steps go on, however much comes */

/* Share of a layer's uses that so many slots would have if everything came in at once. */
static double held_by(const struct bl_plan *p, uint32_t layer, uint32_t n, uint32_t n_experts)
{
    double hit = -1;

    if (p->known)
        hit = p->expert_policy == BL_EXPERTS_LRU ? bl_expert_stats_recent(p->known, layer, n)
                                                 : bl_expert_stats_best(p->known, layer, n);
    return hit < 0 ? fmin(1, (double)n / n_experts) : hit;
}

struct layer_slots {
    uint32_t all, before; /* of the layer; of them, in sets before this one */
};

/* Sets of a layer are neighbours. */
static struct layer_slots count_slots(const struct bl_plan *p, uint32_t set)
{
    struct layer_slots n = {p->slots[set].n, 0};

    for (uint32_t i = set; i-- > 0 && p->slots[i].layer == p->slots[set].layer;)
        n.before += p->slots[i].n;
    for (uint32_t i = set + 1; i < p->n_slot_sets && p->slots[i].layer == p->slots[set].layer; i++)
        n.all += p->slots[i].n;
    n.all += n.before;
    return n;
}

/* The last used are anywhere among a layer's slots; of the most used the first set has the first.
 */
static double ideal_hit(const struct bl_plan *p, uint32_t set, uint32_t n_experts)
{
    const struct bl_slot_set *s = &p->slots[set];
    const struct layer_slots n = count_slots(p, set);

    if (p->expert_policy == BL_EXPERTS_LRU)
        return held_by(p, s->layer, n.all, n_experts) * s->n / n.all;
    return held_by(p, s->layer, n.before + s->n, n_experts) -
           held_by(p, s->layer, n.before, n_experts);
}

struct flow {
    double missed[BL_MAX_DEVICES]; /* bytes that come for a token, if all that is missed does */
    double sent[BL_MAX_DEVICES];   /* of them, those that can */
};

static void count_missed(struct flow *f, const struct bl_plan *p, const struct bl_model *m)
{
    const uint32_t n_experts = m->hp.n_expert;

    *f = (struct flow){0};
    for (uint32_t i = 0; i < p->n_slot_sets; i++) {
        const struct bl_slot_set *s = &p->slots[i];
        const struct layer_slots n = count_slots(p, i);
        const double each = (double)bl_expert_bytes(m, s->layer);
        f->missed[s->device] += m->hp.n_expert_used * each * s->n / n.all *
                                (1 - held_by(p, s->layer, n.all, n_experts));
        /* however long a step is, no more are on their way to a device */
        f->sent[s->device] = fmax(f->sent[s->device], BL_MOST_MOVES * each);
    }
    for (uint32_t d = 0; d < BL_MAX_DEVICES; d++) {
        const double most = p->move_bytes ? (double)p->move_bytes : INFINITY;
        f->sent[d] = fmin(f->missed[d], fmin(f->sent[d], most));
    }
}

static bool goes_through(const struct bl_machine *m, uint16_t d, uint32_t hub)
{
    const struct bl_link *l = bl_wires_link(m, 0, d);

    for (uint16_t h = l ? l->via : BL_NO_DEVICE; h != BL_NO_DEVICE; h = m->hub[h].up)
        if (h == hub)
            return true;
    return false;
}

/* Devices share what they have in common by what they would take. hub == n_hubs: all do, the host's
 * memory. */
static void share_out(struct flow *f, const struct bl_machine *m, uint32_t hub, double bytes)
{
    double sum = 0;

    for (uint16_t d = 1; d < m->n_devices; d++)
        sum += hub == m->n_hubs || goes_through(m, d, hub) ? f->sent[d] : 0;
    for (uint16_t d = 1; d < m->n_devices && sum > bytes; d++)
        f->sent[d] *= hub == m->n_hubs || goes_through(m, d, hub) ? bytes / sum : 1;
}

/* What is missed comes over links and hubs and out of the host's memory while a step goes by. */
static void limit(struct flow *f, const struct bl_machine *m, double step_ns)
{
    const double s = step_ns * 1e-9;

    for (uint16_t d = 1; d < m->n_devices; d++)
        if (f->sent[d] > 0)
            f->sent[d] = fmin(f->sent[d], bl_machine_path_bps(m, 0, d, NULL) * s);
    for (uint32_t h = 0; h < m->n_hubs; h++)
        if (m->hub[h].bps > 0)
            share_out(f, m, h, m->hub[h].bps * s);
    if (bl_device_read_bps(&m->device[0]) > 0)
        share_out(f, m, m->n_hubs, MOST_LOAD * bl_device_read_bps(&m->device[0]) * s);
}

/* Slots hold as much of the last used as comes, and otherwise what they had; what comes is read
 * beside what the host computes with. */
static void set_hits(struct bl_plan *p, const struct bl_model *m, const struct bl_machine *machine,
                     double step_ns)
{
    const bool moves = p->expert_policy == BL_EXPERTS_LRU;
    const double host_bps = bl_device_read_bps(&machine->device[0]);
    struct flow f;
    double sum = 0;

    count_missed(&f, p, m);
    if (isfinite(step_ns))
        limit(&f, machine, step_ns);
    for (uint32_t i = 0; i < p->n_slot_sets; i++) {
        struct bl_slot_set *s = &p->slots[i];
        const double ideal = ideal_hit(p, i, m->hp.n_expert), alike = (double)s->n / m->hp.n_expert,
                     missed = f.missed[s->device],
                     comes = moves && missed > 0 ? f.sent[s->device] / missed : 1;
        s->hit = alike + comes * (ideal - alike);
    }
    for (uint16_t d = 1; moves && d < machine->n_devices; d++)
        sum += f.sent[d];
    p->slot_load = isfinite(step_ns) && step_ns > 0 && host_bps > 0
                       ? fmin(MOST_LOAD, sum / (host_bps * step_ns * 1e-9))
                       : 0;
}

/* The longer a step is, the more comes, and the shorter it is for that. */
static enum bl_status settle_hits(struct bl_plan *p, const struct bl_program *one,
                                  const struct bl_model *m, const struct bl_machine *machine,
                                  const struct bl_search_options *opt)
{
    const struct bl_timeline_options to = {.table = opt->table, .depth_tokens = opt->depth_tokens};

    for (unsigned round = 0; round < ROUNDS; round++) {
        struct bl_timeline t = {0};
        BL_TRY(bl_timeline_make(&t, one, m, p, machine, &to));
        set_hits(p, m, machine, isfinite(t.ns) ? t.ns : 0);
        bl_timeline_finish(&t);
    }
    return BL_OK;
}

enum bl_status bl_price_slots(struct bl_plan *p, const struct bl_model *m,
                              const struct bl_machine *machine, const struct bl_search_options *opt)
{
    const struct bl_shape shape = bl_plan_bucket(p, 1, 1);
    struct bl_program one = {0};

    p->slot_load = 0;
    if (!bl_plan_has_slots(p))
        return BL_OK;
    set_hits(p, m, machine, INFINITY);
    if (p->expert_policy != BL_EXPERTS_LRU)
        return BL_OK;
    BL_TRY(bl_program_lower(&one, m, p, machine, &shape));
    const enum bl_status st = settle_hits(p, &one, m, machine, opt);
    bl_program_finish(&one);
    return st;
}

enum bl_status bl_fix_slots(struct bl_plan *p, const struct bl_model *m,
                            const struct bl_machine *machine, const struct bl_expert_stats *known)
{
    if (!p->n_slot_sets || p->expert_policy != BL_EXPERTS_FIXED)
        return BL_OK;
    BL_TRY(bl_plan_fix_slots(p, m, known));
    return bl_plan_fill_memory(p, m, machine);
}

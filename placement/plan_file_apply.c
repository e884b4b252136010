/* SPDX-License-Identifier: MIT */
/* From a plan file to a plan: every part placed once, memory counted, speeds predicted anew. */
#include "plan_file.h"

#include "expert_share.h"
#include "log.h"
#include "mem.h"
#include "search_impl.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

struct apply {
    const struct bl_plan_file *file;
    const struct bl_model *model;
    struct bl_plan *plan;
    uint16_t *at;  /* [file's n_devices] */
    uint32_t *row; /* [n_layers + 1][BL_N_PARTS] which row placed it, from 1; 0: none has */
};

static uint32_t *row_of(struct apply *a, uint32_t layer, unsigned part)
{
    return &a->row[(size_t)layer * BL_N_PARTS + part];
}

/* ---- rows ----------------------------------------------------------------------------------- */

static enum bl_status place_at(struct apply *a, uint32_t i, uint32_t layer, unsigned part)
{
    const struct bl_plan_file *f = a->file;
    uint32_t *row = row_of(a, layer, part);

    if (*row && layer == a->plan->n_layers)
        return bl_fail(BL_EINVAL, "%s: placement[%u] places %s, as placement[%u] does", f->what, i,
                       bl_part_name((enum bl_part)part), *row - 1);
    if (*row)
        return bl_fail(BL_EINVAL, "%s: placement[%u] places %s of layer %u, as placement[%u] does",
                       f->what, i, bl_part_name((enum bl_part)part), layer, *row - 1);
    *row = i + 1;
    a->plan->slot[(size_t)layer * BL_N_PARTS + part] = a->at[f->place[i].on];
    return BL_OK;
}

static enum bl_status place_run(struct apply *a, uint32_t i)
{
    const struct bl_plan_file_place *p = &a->file->place[i];
    const uint32_t n = a->plan->n_layers;
    bool any = false;

    if (p->part == BL_PART_EMBED || p->part == BL_PART_HEAD)
        return place_at(a, i, n, p->part);
    if (p->last >= n)
        return bl_fail(BL_EINVAL, "%s: placement[%u].layers ends at %u; the last layer is %u",
                       a->file->what, i, p->last, n - 1);
    for (uint32_t l = p->first; l <= p->last; l++) {
        if (p->part == BL_PART_EXPERTS && !a->model->layer[l].moe)
            continue;
        any = true;
        BL_TRY(place_at(a, i, l, p->part));
    }
    return any ? BL_OK
               : bl_fail(BL_EINVAL, "%s: placement[%u] places experts of layers that have none",
                         a->file->what, i);
}

static enum bl_status place_some(struct apply *a, uint32_t i)
{
    const struct bl_plan_file_place *p = &a->file->place[i];
    const char *what = a->file->what;

    if (p->first >= a->plan->n_layers)
        return bl_fail(BL_EINVAL, "%s: placement[%u].layer is %u; the last layer is %u", what, i,
                       p->first, a->plan->n_layers - 1);
    if (!a->model->layer[p->first].moe)
        return bl_fail(BL_EINVAL, "%s: placement[%u].layer is %u, which has no experts", what, i,
                       p->first);
    if (p->expert_last >= a->model->hp.n_expert)
        return bl_fail(BL_EINVAL, "%s: placement[%u].experts ends at %u; the last expert is %u",
                       what, i, p->expert_last, a->model->hp.n_expert - 1);
    for (uint32_t k = 0; k < i; k++) {
        const struct bl_plan_file_place *o = &a->file->place[k];
        if (o->some && o->first == p->first && o->expert_first <= p->expert_last &&
            p->expert_first <= o->expert_last)
            return bl_fail(BL_EINVAL,
                           "%s: placement[%u] places experts of layer %u that placement[%u] does",
                           what, i, p->first, k);
    }
    /* Where the whole layer's are, no range is needed. */
    if (a->at[p->on] == bl_plan_device(a->plan, (int)p->first, BL_PART_EXPERTS))
        return BL_OK;
    return bl_plan_add_range(a->plan, p->first, p->expert_first,
                             p->expert_last - p->expert_first + 1, a->at[p->on]);
}

/* A device's slots of a layer are those of one row. */
static enum bl_status check_slots_once(const struct apply *a, uint32_t i, uint32_t layer)
{
    const struct bl_plan_file_place *p = &a->file->place[i];

    for (uint32_t k = 0; k < i; k++) {
        const struct bl_plan_file_place *o = &a->file->place[k];
        if (o->slots && o->on == p->on && o->first <= layer && layer <= o->last)
            return bl_fail(BL_EINVAL,
                           "%s: placement[%u] has %u slot%s for layer %u on %s, which has %u by "
                           "placement[%u]",
                           a->file->what, i, p->slots, bl_plural(p->slots), layer, p->device,
                           o->slots, k);
    }
    return BL_OK;
}

static enum bl_status place_slots(struct apply *a, uint32_t i)
{
    const struct bl_plan_file_place *p = &a->file->place[i];
    bool any = false;

    if (p->last >= a->plan->n_layers)
        return bl_fail(BL_EINVAL, "%s: placement[%u].layers ends at %u; the last layer is %u",
                       a->file->what, i, p->last, a->plan->n_layers - 1);
    for (uint32_t l = p->first; l <= p->last; l++) {
        if (!a->model->layer[l].moe)
            continue;
        BL_TRY(check_slots_once(a, i, l));
        const enum bl_status st = bl_plan_add_slots(a->plan, l, a->at[p->on], p->slots);
        if (st)
            return bl_fail_in(st, "%s: placement[%u]", a->file->what, i);
        any = true;
    }
    return any ? BL_OK
               : bl_fail(BL_EINVAL, "%s: placement[%u] has slots for layers that have no experts",
                         a->file->what, i);
}

/* The dense part and the state are with attention where no row says otherwise. */
static enum bl_status complete(struct apply *a)
{
    static const uint8_t follow[] = {BL_PART_STATE, BL_PART_FFN, BL_PART_EXPERTS};
    const uint32_t n = a->plan->n_layers;

    for (uint32_t l = 0; l < n; l++) {
        uint16_t *slot = &a->plan->slot[(size_t)l * BL_N_PARTS];
        const bool lacks = a->model->layer[l].moe && !*row_of(a, l, BL_PART_EXPERTS);
        if (!*row_of(a, l, BL_PART_ATTN) || lacks)
            return bl_fail(BL_EINVAL, "%s: placement has no row for %s of layer %u", a->file->what,
                           lacks ? "experts" : "attn", l);
        for (size_t i = 0; i < BL_COUNT(follow); i++)
            if (!*row_of(a, l, follow[i]))
                slot[follow[i]] = slot[BL_PART_ATTN];
    }
    for (unsigned part = BL_PART_EMBED; part < BL_N_PARTS; part += BL_PART_HEAD - BL_PART_EMBED)
        if (!*row_of(a, n, part))
            return bl_fail(BL_EINVAL, "%s: placement has no row for %s", a->file->what,
                           bl_part_name((enum bl_part)part));
    return BL_OK;
}

static enum bl_status place_all(struct apply *a)
{
    const struct bl_plan_file *f = a->file;

    for (uint32_t i = 0; i < f->n_places; i++)
        if (!f->place[i].some && !f->place[i].slots)
            BL_TRY(place_run(a, i));
    BL_TRY(complete(a));
    for (uint32_t i = 0; i < f->n_places; i++)
        if (f->place[i].some)
            BL_TRY(place_some(a, i));
        else if (f->place[i].slots)
            BL_TRY(place_slots(a, i));
    a->plan->expert_policy = f->settings.expert_policy;
    a->plan->move_bytes = f->settings.move_bytes;
    a->plan->stream_from = f->settings.stream_from;
    a->plan->chunk_bytes = f->settings.chunk_bytes;
    return BL_OK;
}

static enum bl_status place(struct bl_plan *p, const struct bl_plan_file *f,
                            const struct bl_model *m, const struct bl_machine *machine)
{
    struct apply a = {.file = f, .model = m, .plan = p};
    enum bl_status st = BL_OK;

    a.at = bl_calloc((size_t)f->n_devices + 1, sizeof *a.at);
    a.row = bl_calloc(((size_t)p->n_layers + 1) * BL_N_PARTS, sizeof *a.row);
    if (!a.at || !a.row)
        st = bl_fail(BL_ENOMEM, "out of memory for the places of a plan");
    if (!st)
        st = bl_plan_file_is_on(f, machine, a.at);
    if (!st)
        st = place_all(&a);
    if (!st && (st = bl_plan_check(p, m, machine)) != BL_OK)
        st = bl_fail_in(st == BL_EUNSUPPORTED ? BL_EINVAL : st, "%s", f->what);
    free(a.at);
    free(a.row);
    return st;
}

/* ---- memory --------------------------------------------------------------------------------- */

static const struct bl_plan_file_device *device_there(const struct bl_plan_file *f, const char *id)
{
    for (uint32_t d = 0; d < f->n_devices; d++)
        if (!strcmp(f->device[d].id, id))
            return &f->device[d];
    return NULL;
}

static enum bl_status check_room(const struct bl_plan *p, const struct bl_plan_file *f,
                                 const struct bl_machine *m, uint64_t reserve_bytes)
{
    uint64_t shared = 0;

    for (uint16_t d = (uint16_t)m->n_devices; d-- > 0;) {
        const struct bl_machine_device *md = &m->device[d];
        const struct bl_plan_file_device *there = device_there(f, md->id);
        const uint64_t has = bl_device_budget(md, reserve_bytes);
        uint64_t need = bl_ledger_planned(&p->ledger, d);
        shared += md->shares == 0 ? need : 0;
        need += d ? 0 : shared;
        if (need > has)
            return bl_fail(BL_ENOFIT,
                           "%s needs %s on %s, of which %s can be planned with (%s): "
                           "%s short; there were %s when it was made",
                           f->what, BL_SIZE(need), md->id, BL_SIZE(has), md->mem_source,
                           BL_SIZE(need - has), BL_SIZE(there ? there->usable_bytes : 0));
    }
    return bl_plan_check_blocks(p, m);
}

/* Memory nodes of this machine as the plan has them; where it says nothing, or they are gone, by
 * the planner's rule. */
static void choose_nodes(struct bl_plan *p, const struct bl_plan_file *f,
                         const struct bl_machine *machine, const struct bl_options *opt)
{
    const struct bl_machine_device *d = &machine->device[0];
    const struct bl_cpus *c = machine->cpus;
    uint64_t here = 0;

    for (uint32_t i = 0; c && i < c->n_nodes; i++)
        if (c->node[i].id < BL_MAX_MEMORY_NODES)
            here |= UINT64_C(1) << c->node[i].id;
    for (uint32_t i = 0; !c && i < d->n_domains; i++)
        here |= d->domain[i].node < BL_MAX_MEMORY_NODES ? UINT64_C(1) << d->domain[i].node : 0;
    bl_plan_choose_nodes(p, machine, opt);
    if (opt->no_bind || machine->by_node || !f->settings.nodes)
        return;
    const uint64_t gone = f->settings.nodes & ~here;
    uint32_t first = 0;
    while (gone && !(gone >> first & 1))
        first++;
    if (!gone)
        p->nodes = f->settings.nodes;
    else if (here)
        bl_warn("%s: settings.nodes has memory node %u, which is not here; they are chosen anew",
                f->what, first);
}

enum bl_status bl_plan_file_apply(struct bl_plan *out, const struct bl_plan_file *f,
                                  const struct bl_model *m, const struct bl_machine *machine,
                                  const struct bl_options *opt, uint64_t reserve_bytes)
{
    struct bl_plan p;

    BL_TRY(bl_plan_file_is_for(f, m));
    BL_TRY(bl_plan_init(&p, m));
    enum bl_status st = bl_plan_size_steps(&p, m, opt);
    if (!st)
        st = place(&p, f, m, machine);
    if (!st && opt->expert_policy)
        st = bl_expert_policy_by_name(opt->expert_policy, &p.expert_policy);
    if (!st)
        st = bl_plan_fill_memory(&p, m, machine);
    if (!st)
        st = check_room(&p, f, machine, reserve_bytes);
    if (!st)
        choose_nodes(&p, f, machine, opt);
    if (st)
        bl_plan_finish(&p);
    else
        *out = p;
    return st;
}

/* ---- judging -------------------------------------------------------------------------------- */

static uint64_t bytes_there(const struct bl_plan_file *f, const char *id)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < f->n_memory; i++)
        if (!strcmp(f->memory[i].device, id))
            sum += f->memory[i].planned_bytes;
    return sum;
}

bool bl_plan_file_moved(const struct bl_plan_file *f, const struct bl_plan *p,
                        const struct bl_machine *m)
{
    for (uint16_t d = 0; d < m->n_devices; d++)
        if (bl_ledger_planned(&p->ledger, d) != bytes_there(f, m->device[d].id))
            return true;
    return false;
}

static enum bl_status judge(struct bl_choice *c, struct bl_costs *costs,
                            const struct bl_plan_file *f, const struct bl_model *m,
                            const struct bl_machine *machine, const struct bl_options *options,
                            const struct bl_search_options *opt)
{
    BL_TRY(bl_plan_file_apply(&c->plan, f, m, machine, options, opt->reserve_bytes));
    c->sending_chosen = true;
    BL_TRY(bl_fix_slots(&c->plan, m, machine, opt->known));
    c->plan.known = opt->known;
    BL_TRY(bl_price_slots(&c->plan, m, machine, opt));
    c->asked_ctx_tokens = f->settings.asked_ctx_tokens > c->plan.ctx_tokens
                              ? f->settings.asked_ctx_tokens
                              : c->plan.ctx_tokens;
    c->by_hand = f->settings.placed_by == BL_BY_HAND || bl_plan_file_moved(f, &c->plan, machine);
    c->by_rules = !c->by_hand && f->settings.placed_by == BL_BY_RULES;
    BL_TRY(bl_costs_make(costs, m, machine, &c->plan, opt));
    BL_TRY(bl_explain(c, costs, m, machine));
    BL_TRY(bl_explain_split(c, costs, m, machine));
    return bl_plan_speed(c, m, machine, opt);
}

enum bl_status bl_plan_file_judge(struct bl_choice *out, const struct bl_plan_file *f,
                                  const struct bl_model *m, const struct bl_machine *machine,
                                  const struct bl_options *options,
                                  const struct bl_search_options *opt)
{
    struct bl_choice c = {.depth_tokens = opt->depth_tokens};
    struct bl_costs costs = {0};
    const enum bl_status st = judge(&c, &costs, f, m, machine, options, opt);

    bl_costs_finish(&costs);
    if (st)
        bl_choice_finish(&c);
    else
        *out = c;
    return st;
}

/* ---- differences to what was derived before ------------------------------------------------- */

struct line {
    char text[512];
    size_t n;
};

static void add(struct line *l, const char *fmt, ...) BL_PRINTF(2, 3);

static void add(struct line *l, const char *fmt, ...)
{
    va_list args;

    if (l->n >= sizeof l->text)
        return;
    va_start(args, fmt);
    l->n += (size_t)vsnprintf(l->text + l->n, sizeof l->text - l->n, fmt, args);
    va_end(args);
}

static void add_bytes(struct line *l, const char *id, uint64_t then, uint64_t now)
{
    const bool large = then >> 30 || now >> 30;
    const double unit = large ? 0x1p-30 : 0x1p-20;

    add(l, "%s%s %.2f -> %.2f %s", l->n ? ", " : "planned memory redone: ", id, (double)then * unit,
        (double)now * unit, large ? "GiB" : "MiB");
}

static bool is_known(double tok_per_s)
{
    return isfinite(tok_per_s) && tok_per_s > 0;
}

static void add_speed(struct line *l, const char *what, double then, double now)
{
    const double shown = 5e-4; /* less does not show in the digits that are printed */

    if (!is_known(then) || (is_known(now) && fabs(now / then - 1) < shown))
        return;
    add(l, "%s%s %.1f -> ", l->n ? ", " : "prediction redone: ", what, then);
    if (is_known(now))
        add(l, "%.1f tokens/s", now);
    else
        add(l, "not known");
}

void bl_plan_file_redone(const struct bl_plan_file *then, const struct bl_choice *now,
                         const struct bl_machine *m, void (*line)(void *arg, const char *text),
                         void *arg)
{
    struct line memory = {.n = 0}, speed = {.n = 0};

    for (uint16_t d = 0; then->n_memory && d < m->n_devices; d++) {
        const uint64_t a = bytes_there(then, m->device[d].id),
                       b = bl_ledger_planned(&now->plan.ledger, d);
        if (a != b)
            add_bytes(&memory, m->device[d].id, a, b);
    }
    add_speed(&speed, "decode", then->decode.tok_per_s, now->decode.tok_per_s);
    add_speed(&speed, "prefill", then->prefill.tok_per_s, now->prefill.tok_per_s);
    if (memory.n)
        line(arg, memory.text);
    if (speed.n)
        line(arg, speed.text);
}

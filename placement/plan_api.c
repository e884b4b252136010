/* SPDX-License-Identifier: MIT */
/* What the public API says of a placement. */
#include "cache_type.h"
#include "constraints.h"
#include "expert_file.h"
#include "json.h"
#include "machine_file.h"
#include "mem.h"
#include "node_cost.h"
#include "placement.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void read_name(struct bl_placement *p)
{
    const char *s = p->model->family->arch;
    uint64_t n = strlen(s);

    (void)bl_gguf_str(p->gguf, "general.name", false, &s, &n);
    if (n >= sizeof p->name)
        n = sizeof p->name - 1;
    memcpy(p->name, s, n);
    bl_one_line(p->name);
}

static void note_redone(void *arg, const char *text)
{
    struct bl_placement *p = arg;

    if (p->n_redone < BL_COUNT(p->redone))
        snprintf(p->redone[p->n_redone++], sizeof p->redone[0], "%s", text);
}

struct making {
    struct bl_placement *p;
    const struct bl_options *opt;
    const struct bl_search_options *so;
};

/* Without cards a plan is what running makes, which knows no speeds. */
static enum bl_status try_cache(void *arg, struct bl_cache_attempt *a)
{
    const struct making *k = arg;
    const struct bl_machine *machine = &k->p->machine;
    const struct bl_choice *c = &a->choice;

    BL_TRY(k->opt->rules ? bl_judge(&a->choice, a->model, machine, k->opt, k->so, k->opt->rules)
                         : bl_search(&a->choice, a->model, machine, k->opt, k->so));
    a->outcome.ctx_tokens = c->plan.ctx_tokens;
    if (machine->n_devices > 1 && c->decode.tok_per_s > 0 && c->prefill.tok_per_s > 0)
        a->outcome.score =
            bl_plan_score(1 / c->decode.tok_per_s, 1 / c->prefill.tok_per_s, k->so->prefill_weight);
    return BL_OK;
}

static enum bl_status make(struct making *k)
{
    struct bl_placement *p = k->p;
    struct bl_cache_attempt a = {.model = p->model};

    if (bl_cache_is_auto(k->opt)) {
        BL_TRY(bl_cache_choose(&a, p->gguf, k->opt, try_cache, k));
        bl_model_close(p->model);
    } else {
        BL_TRY(try_cache(k, &a));
    }
    p->model = a.model;
    p->choice = a.choice;
    return BL_OK;
}

/* Of a plan file, or made now. */
static enum bl_status decide(struct bl_placement *p, const struct bl_options *opt,
                             const struct bl_search_options *so, const struct bl_plan_file *file)
{
    p->placed_by = opt->rules ? BL_BY_RULES : BL_BY_SEARCH;
    if (opt->rules || !opt->plan_file)
        return make(&(struct making){p, opt, so});
    BL_TRY(bl_plan_file_judge(&p->choice, file, p->model, &p->machine, opt, so));
    p->placed_by = p->choice.by_hand ? BL_BY_HAND : file->settings.placed_by;
    bl_plan_file_redone(file, &p->choice, &p->machine, note_redone, p);
    return BL_OK;
}

/* Planning goes by what is known; it does not count. */
static enum bl_status read_experts(struct bl_placement *p, struct bl_options *opt)
{
    const char *path = opt->expert_file;

    opt->expert_file = NULL;
    if (!path)
        return BL_OK;
    BL_TRY(bl_expert_file_load(&p->experts, p->model, path));
    return p->experts.uses ? BL_OK : bl_fail(BL_EINVAL, "%s: there is no such file", path);
}

static enum bl_status choose(struct bl_placement *p, const struct bl_options *opt,
                             const struct bl_placement_options *po, const struct bl_plan_file *file)
{
    struct bl_model_options mo;
    struct bl_options plain = *opt;

    BL_TRY(bl_model_choose(&mo, opt));
    BL_TRY(bl_model_open(&p->model, p->gguf, &mo));
    BL_TRY(read_experts(p, &plain));
    read_name(p);
    BL_TRY(bl_machine_choose(&p->machine, opt));
    struct bl_device_config *host = &p->machine.device[0].config;
    if (opt->threads) /* of a described machine nobody has asked for any yet */
        host->threads = host->threads_prefill = opt->threads;
    if (opt->threads_prefill)
        host->threads_prefill = opt->threads_prefill;
    const struct bl_search_options so = {
        .prefill_weight = po->prefill_weight,
        .reserve_bytes = po->reserve_bytes,
        .depth_tokens =
            po->depth_tokens ? po->depth_tokens : bl_usual_depth(p->model->opt.ctx_tokens),
        .may_shrink_ctx = po->may_shrink_ctx,
        .least_ctx_tokens = po->least_ctx_tokens,
        .lack = po->lack,
        .known = p->experts.uses ? &p->experts : NULL,
        .no_slots = opt->expert_policy && strcmp(opt->expert_policy, "lru"),
        .fixed_ubatch = po->fixed_ubatch};
    if (so.depth_tokens >= p->model->opt.ctx_tokens)
        return bl_fail(BL_EINVAL, "a depth of %llu tokens leaves no room in a context of %llu",
                       (unsigned long long)so.depth_tokens,
                       (unsigned long long)p->model->opt.ctx_tokens);
    p->reserve_bytes = po->reserve_bytes;
    p->prefill_weight = po->prefill_weight;
    p->exact = opt->exact;
    p->with_peers = po->peers;
    return decide(p, &plain, &so, file);
}

/* What a plan file says is taken from it, unless this asks for something else that memory does not
 * depend on. */
static enum bl_status choose_by_file(struct bl_placement *p, const struct bl_options *opt,
                                     const struct bl_placement_options *po)
{
    struct bl_plan_file file;
    struct bl_options filled = *opt;
    struct bl_placement_options place = *po;

    if (po->may_shrink_ctx)
        return bl_fail(BL_EINVAL,
                       "the context of a plan file is settled; plan anew for a shorter one");
    BL_TRY(bl_plan_file_load(&file, opt->plan_file));
    enum bl_status st = bl_plan_file_options(&file, &filled);
    place.prefill_weight = file.settings.prefill_weight;
    if (!po->depth_tokens)
        place.depth_tokens = file.settings.depth_tokens;
    if (!po->reserve_bytes)
        place.reserve_bytes = file.settings.reserve_bytes;
    if (!st)
        st = choose(p, &filled, &place, &file);
    bl_plan_file_finish(&file);
    return st;
}

enum bl_status bl_placement_make(struct bl_placement **out, const struct bl_gguf *gguf,
                                 const struct bl_options *opt,
                                 const struct bl_placement_options *po)
{
    static const struct bl_options defaults;
    static const struct bl_placement_options placement_defaults;
    struct bl_placement *p = bl_calloc(1, sizeof *p);

    if (!p)
        return bl_fail(BL_ENOMEM, "out of memory for a placement");
    p->gguf = gguf;
    opt = opt ? opt : &defaults;
    po = po ? po : &placement_defaults;
    enum bl_status st = opt->plan_file ? choose_by_file(p, opt, po) : choose(p, opt, po, NULL);
    if (st) {
        bl_placement_close(p);
        return st;
    }
    *out = p;
    return BL_OK;
}

void bl_placement_close(struct bl_placement *p)
{
    if (!p)
        return;
    bl_choice_finish(&p->choice);
    bl_expert_stats_finish(&p->experts);
    bl_machine_finish(&p->machine);
    bl_model_close(p->model);
    free(p);
}

enum bl_status bl_machine_cards(struct bl_machine_cards *out, const struct bl_options *opt)
{
    static const struct bl_options defaults;
    struct bl_machine m;

    BL_TRY(bl_machine_choose(&m, opt ? opt : &defaults));
    *out = (struct bl_machine_cards){.n = 0};
    for (uint32_t d = 1; d < m.n_devices && out->n < BL_COUNT(out->id); d++)
        if (m.device[d].kind == BL_KIND_GPU)
            snprintf(out->id[out->n++], sizeof out->id[0], "%s", m.device[d].id);
    bl_machine_finish(&m);
    return BL_OK;
}

/* ---- asking ---- */

static const char *id_of(const struct bl_placement *p, int layer, unsigned part)
{
    return p->machine.device[bl_plan_device(&p->choice.plan, layer, part)].id;
}

static const char *why(const struct bl_placement *p, int layer, unsigned part)
{
    const bool experts = part == BL_PART_EXPERTS;

    for (uint32_t i = 0; layer >= 0 && i < p->choice.n_reasons; i++) {
        const struct bl_reason *r = &p->choice.reason[i];
        if (r->first <= layer && layer <= r->last && (r->part == BL_PART_EXPERTS) == experts)
            return r->text;
    }
    return layer >= 0             ? ""
           : part == BL_PART_HEAD ? "the head follows the last layer"
                                  : "a few rows of it are read for a step: RAM does";
}

void bl_placement_describe(const struct bl_placement *p, struct bl_placement_info *out)
{
    const struct bl_choice *c = &p->choice;
    struct bl_pricing host;

    bl_pricing_init(&host, &p->machine.device[0], p->model, &c->plan, NULL);
    *out = (struct bl_placement_info){.model = p->name,
                                      .arch = p->model->family->arch,
                                      .machine = p->machine.name,
                                      .n_layers = c->plan.n_layers,
                                      .ctx_tokens = c->plan.ctx_tokens,
                                      .asked_ctx_tokens = c->asked_ctx_tokens,
                                      .depth_tokens = c->depth_tokens,
                                      .batch_tokens = c->plan.batch_tokens,
                                      .ubatch_tokens = c->plan.ubatch_tokens,
                                      .stream_from_tok = c->stream_from_tok,
                                      .decode = c->decode,
                                      .prefill = c->prefill,
                                      .threads = host.few.threads,
                                      .threads_prefill = host.many.threads,
                                      .type_k = bl_dtypes[p->model->opt.type_k].name,
                                      .type_v = bl_dtypes[p->model->opt.type_v].name};
}

uint32_t bl_placement_device(const struct bl_placement *p, uint32_t i,
                             struct bl_placement_device *out)
{
    if (i < p->machine.n_devices) {
        const struct bl_machine_device *d = &p->machine.device[i];
        const struct bl_choice *c = &p->choice;
        *out = (struct bl_placement_device){
            .id = d->id,
            .name = d->name,
            .usable_bytes = d->usable_bytes,
            .budget_bytes = bl_device_budget(d, p->reserve_bytes),
            .planned_bytes = bl_ledger_planned(&c->plan.ledger, (uint16_t)i),
            .mem_bytes = d->mem_bytes,
            .driver_bytes = d->driver_bytes,
            .shares = d->shares < i ? p->machine.device[d->shares].id : NULL,
            .cpu = d->kind == BL_KIND_CPU,
            .sends = bl_plan_sends_to(&c->plan, p->model, (uint16_t)i),
            .sent_from_tok = c->sent_from_tok[i]};
    }
    return p->machine.n_devices;
}

/* Where the experts of a layer are; of one that has none, those of the next that does. */
static uint16_t experts_of(const struct bl_placement *p, uint32_t l)
{
    const uint32_t n = p->choice.plan.n_layers;

    while (l + 1 < n && !p->model->layer[l].moe)
        l++;
    return bl_plan_device(&p->choice.plan, (int)l, BL_PART_EXPERTS);
}

static bool same_places(const struct bl_placement *p, uint32_t a, uint32_t b)
{
    const struct bl_plan *plan = &p->choice.plan;

    return bl_plan_device(plan, (int)a, BL_PART_ATTN) ==
               bl_plan_device(plan, (int)b, BL_PART_ATTN) &&
           experts_of(p, a) == experts_of(p, b);
}

uint32_t bl_placement_group(const struct bl_placement *p, uint32_t i,
                            struct bl_placement_group *out)
{
    const struct bl_plan *plan = &p->choice.plan;
    uint32_t n = 0, first = 0;

    for (uint32_t l = 0; l < plan->n_layers; l++) {
        if (l + 1 < plan->n_layers && same_places(p, l, l + 1))
            continue;
        bool moe = false;
        for (uint32_t k = first; k <= l; k++)
            moe = moe || p->model->layer[k].moe;
        if (n++ == i)
            *out = (struct bl_placement_group){first,
                                               l,
                                               id_of(p, (int)l, BL_PART_ATTN),
                                               moe ? id_of(p, (int)l, BL_PART_EXPERTS) : NULL,
                                               why(p, (int)l, BL_PART_ATTN),
                                               moe ? why(p, (int)l, BL_PART_EXPERTS) : ""};
        first = l + 1;
    }
    return n;
}

uint32_t bl_placement_memory(const struct bl_placement *p, uint32_t i, struct bl_memory_line *out)
{
    const struct bl_ledger *l = &p->choice.plan.ledger;

    if (i < l->n)
        *out =
            (struct bl_memory_line){.device = p->machine.device[l->line[i].device].id,
                                    .purpose = bl_purpose_name((enum bl_purpose)l->line[i].purpose),
                                    .planned_bytes = l->line[i].planned_bytes};
    return l->n;
}

uint32_t bl_placement_note(const struct bl_placement *p, uint32_t i, const char **text)
{
    uint32_t n = 0;

    for (uint32_t k = 0; k < p->choice.n_reasons; k++)
        if (p->choice.reason[k].first < 0 && n++ == i)
            *text = p->choice.reason[k].text;
    if (i >= n && i - n < p->n_redone)
        *text = p->redone[i - n];
    return n + p->n_redone;
}

static const char *tensor_name(const void *gguf, size_t i)
{
    return i < bl_gguf_n_tensors(gguf) ? bl_gguf_tensor(gguf, (uint32_t)i)->name : NULL;
}

enum bl_status bl_placement_tensor(const struct bl_placement *p, const char *name,
                                   struct bl_placement_tensor *out)
{
    for (uint32_t i = 0; i < p->model->n_weights; i++) {
        const struct bl_weight *w = &p->model->weight[i];
        const struct bl_tensor_info *t = bl_gguf_tensor(p->gguf, w->tensor);
        if (strcmp(t->name, name))
            continue;
        *out = (struct bl_placement_tensor){.device = id_of(p, w->layer, w->part),
                                            .part = bl_part_name((enum bl_part)w->part),
                                            .why = why(p, w->layer, w->part),
                                            .layer = w->layer,
                                            .bytes = t->bytes};
        return BL_OK;
    }
    for (uint32_t i = 0; i < bl_gguf_n_tensors(p->gguf); i++)
        if (!strcmp(bl_gguf_tensor(p->gguf, i)->name, name))
            return bl_fail(BL_EINVAL, "tensor %s plays no part in the model: it goes nowhere",
                           name);
    const char *near = bl_nearest_name(name, tensor_name, p->gguf);
    return bl_fail(BL_EINVAL, "the model has no tensor '%.60s'%s%s", name,
                   near ? "; the nearest is " : "", near ? near : "");
}

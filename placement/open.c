/* SPDX-License-Identifier: MIT */
/* The composition root: file, model, machine, plan, devices, engine. */
#include "planner.h"

#include "cache_type.h"
#include "devices.h"
#include "expert_file.h"
#include "expert_share.h"
#include "log.h"
#include "mem.h"
#include "plan_file.h"
#include "vocab.h"

#include <math.h>
#include <stdio.h>

static enum bl_status kv_type(const char *flag, const char *name, const struct bl_options *opt,
                              uint8_t *out)
{
    enum bl_dtype t = opt->exact ? BL_F32 : BL_F16;

    enum bl_status st = name && strcmp(name, "auto") != 0 ? bl_dtype_by_name(name, &t) : BL_OK;
    if (st)
        return bl_fail_in(st, "%s", flag);
    if (!bl_dtype_can_cache(t))
        return bl_fail(BL_EINVAL, "%s %s: a KV cache can be f32, f16, bf16, q8_0 or q4_0", flag,
                       name);
    *out = (uint8_t)t;
    return BL_OK;
}

enum bl_status bl_model_choose(struct bl_model_options *out, const struct bl_options *opt)
{
    *out = (struct bl_model_options){
        .ctx_tokens = opt->ctx_tokens,
        .round_kv = opt->round_kv,
        .round_index = opt->round_index,
        .slack_tokens = opt->rewind_tokens,
        .rope = {opt->rope_scaling, opt->rope_freq_base, opt->rope_freq_scale, opt->yarn_orig_ctx}};
    BL_TRY(kv_type("-ctk", opt->type_k, opt, &out->type_k));
    return kv_type("-ctv", opt->type_v, opt, &out->type_v);
}

static enum bl_status open_model(struct bl_engine_parts *p, const char *path,
                                 const struct bl_options *opt)
{
    struct bl_model_options mo;

    BL_TRY(bl_model_choose(&mo, opt));
    BL_TRY(bl_gguf_open(&p->gguf, path));
    BL_TRY(bl_model_open(&p->model, p->gguf, &mo));
    if (opt->expert_file)
        BL_TRY(bl_expert_file_load(&p->experts, p->model, opt->expert_file));
    enum bl_status st = bl_vocab_open(&p->vocab, p->gguf);
    if (st == BL_EUNAVAILABLE) {
        bl_warn("%s", bl_error());
        return BL_OK;
    }
    return st;
}

static const struct bl_expert_stats *known_of(const struct bl_engine_parts *p)
{
    return p->experts.uses ? &p->experts : NULL;
}

static void warn_line(void *arg, const char *text)
{
    bl_warn("%s: %s", (const char *)arg, text);
}

/* A plan whose memory is no longer what was written down was edited, or this program counts
 * otherwise. */
static enum bl_status say_redone(struct bl_plan_file *file, struct bl_choice *c,
                                 const struct bl_engine_parts *p)
{
    const struct bl_search_options so = {.depth_tokens = file->settings.depth_tokens};

    c->plan = p->plan; /* lent */
    c->sending_chosen = true;
    BL_TRY(bl_plan_speed(c, p->model, &p->machine, &so));
    if (!(c->decode.tok_per_s >
          0)) { /* nothing was measured here: what was predicted may still hold */
        c->decode = file->decode;
        c->prefill = file->prefill;
    }
    bl_plan_file_redone(file, c, &p->machine, warn_line, file->what);
    return BL_OK;
}

static enum bl_status plan_by_file(struct bl_engine_parts *p, struct bl_plan_file *file,
                                   const struct bl_options *asked, const struct bl_options *filled)
{
    struct bl_choice c = {.depth_tokens = file->settings.depth_tokens};

    BL_TRY(bl_plan_file_apply(&p->plan, file, p->model, &p->machine, filled,
                              file->settings.reserve_bytes));
    BL_TRY(bl_fix_slots(&p->plan, p->model, &p->machine, known_of(p)));
    /* Threads, kernels and rows of logits that were asked for now change buffers: that is no edit.
     */
    const bool otherwise = asked->threads || asked->threads_prefill || asked->scalar ||
                           asked->cpu_mask || asked->expert_file || asked->expert_policy ||
                           filled->out_tokens != file->settings.out_tokens;
    if (otherwise || !bl_plan_file_moved(file, &p->plan, &p->machine))
        return BL_OK;
    return say_redone(file, &c, p);
}

struct trying {
    const struct bl_engine_parts *parts;
    const struct bl_options *opt;
};

static enum bl_status try_cache(void *arg, struct bl_cache_attempt *a)
{
    const struct trying *t = arg;
    const enum bl_status st = bl_plan_for_devices(&a->choice.plan, a->model, &t->parts->machine,
                                                  t->opt, known_of(t->parts));

    a->outcome.ctx_tokens = a->choice.plan.ctx_tokens;
    return st;
}

/* A type that was not the first choice is told of, since it rounds more. */
static enum bl_status plan_with_cache(struct bl_engine_parts *p, const struct bl_options *opt)
{
    struct trying t = {p, opt};
    struct bl_cache_attempt a;

    BL_TRY(bl_cache_choose(&a, p->gguf, opt, try_cache, &t));
    const bool usual =
        a.model->opt.type_k == p->model->opt.type_k && a.model->opt.type_v == p->model->opt.type_v;
    for (uint32_t i = 0; i < a.choice.n_reasons; i++)
        if (usual)
            bl_info("%s", a.choice.reason[i].text);
        else
            bl_warn("%s", a.choice.reason[i].text);
    bl_model_close(p->model);
    p->model = a.model;
    p->plan = a.choice.plan;
    a.choice.plan = (struct bl_plan){0};
    bl_choice_finish(&a.choice);
    return BL_OK;
}

static enum bl_status plan_and_open(struct bl_engine_parts *p, const struct bl_options *opt)
{
    if (bl_cache_is_auto(opt))
        BL_TRY(plan_with_cache(p, opt));
    else
        BL_TRY(bl_plan_for_devices(&p->plan, p->model, &p->machine, opt, known_of(p)));
    const enum bl_status st = bl_devices_open(p, opt);
    p->plan.known = NULL; /* parts move */
    return st;
}

static enum bl_status open_parts(struct bl_engine_parts *p, const char *path,
                                 const struct bl_options *opt)
{
    BL_TRY(open_model(p, path, opt));
    BL_TRY(bl_machine_probe(&p->machine, opt));
    return plan_and_open(p, opt);
}

static enum bl_status open_by_file(struct bl_engine_parts *p, const char *path,
                                   const struct bl_options *opt, struct bl_plan_file *file)
{
    struct bl_options filled = *opt;

    BL_TRY(bl_plan_file_options(file, &filled));
    BL_TRY(open_model(p, path, &filled));
    BL_TRY(bl_machine_probe(&p->machine, &filled));
    BL_TRY(plan_by_file(p, file, opt, &filled));
    return bl_devices_open(p, &filled);
}

/* ---- when a device has less memory than was planned ------------------------------------------ */

struct lacking {
    uint16_t device;
    double planned_mib, there_mib;
    const char *purpose;
};

static double mib(uint64_t bytes)
{
    return (double)bytes / 0x1p20;
}

/* What is there, but never as much as was planned: it would be planned again. A device that keeps
 * promising more than it has is left alone. */
static void lower(struct bl_engine_parts *p, uint32_t *n_failed, struct lacking *out)
{
    enum { PATIENCE = 3 };
    const struct bl_shortage *s = &p->plan.ledger.shortage;
    struct bl_machine_device *d = &p->machine.device[s->device];
    const uint64_t planned = bl_ledger_planned(&p->plan.ledger, s->device);
    const uint64_t most = planned - planned / 16, there = s->there_bytes + d->driver_bytes;

    *out = (struct lacking){s->device, mib(planned), mib(there),
                            bl_purpose_name((enum bl_purpose)s->purpose)};
    d->usable_bytes = there < most ? there : most;
    if (!s->there_bytes || ++n_failed[s->device] == PATIENCE)
        d->usable_bytes = 0;
    snprintf(d->mem_source, sizeof d->mem_source, "what it granted");
}

static void close_devices(struct bl_engine_parts *p)
{
    for (uint32_t d = 0; p->device && d < p->machine.n_devices; d++)
        if (p->device[d])
            p->device[d]->ops->close(p->device[d]);
    free(p->device);
    p->device = NULL;
    bl_plan_finish(&p->plan);
}

/* "cpu0 12.0 MiB, sim0 3.1 MiB with 2 of 4 layers" */
static void describe(const struct bl_engine_parts *p, char *text, size_t cap)
{
    size_t n = 0;

    for (uint16_t d = 0; d < p->machine.n_devices && n < cap; d++) {
        uint32_t layers = 0;
        if (!bl_plan_uses(&p->plan, d))
            continue;
        for (uint32_t l = 0; l < p->plan.n_layers; l++)
            layers += bl_plan_device(&p->plan, (int)l, BL_PART_ATTN) == d;
        n += (size_t)snprintf(text + n, cap - n, "%s%s %.1f MiB with %u of %u layers",
                              n ? ", " : "", p->machine.device[d].id,
                              mib(bl_ledger_planned(&p->plan.ledger, d)), layers, p->plan.n_layers);
    }
}

/* A block was refused, rather than no plan found. */
static bool is_short(const struct bl_engine_parts *p, enum bl_status st)
{
    return st == BL_ENOMEM && p->plan.ledger.shortage.asked_bytes;
}

static enum bl_status open_lesser(struct bl_engine_parts *p, const struct bl_options *opt,
                                  uint32_t *n_failed)
{
    struct lacking lack;
    char instead[600];

    lower(p, n_failed, &lack);
    const char *id = p->machine.device[lack.device].id;
    close_devices(p);
    const enum bl_status st = plan_and_open(p, opt);
    if (st && !is_short(p, st))
        return bl_fail_in(st, "%s has %.1f MiB where %.1f MiB were planned", id, lack.there_mib,
                          lack.planned_mib);
    describe(p, instead, sizeof instead);
    bl_warn("%s has %.1f MiB where %.1f MiB were planned, too little for %s; instead: %s", id,
            lack.there_mib, lack.planned_mib, lack.purpose, instead);
    return st;
}

static enum bl_status create_or_lower(struct bl_engine **out, struct bl_engine_parts *p,
                                      const struct bl_options *opt, enum bl_status st)
{
    uint32_t n_failed[BL_MAX_DEVICES] = {0};

    while (!st || is_short(p, st)) {
        st = st ? open_lesser(p, opt, n_failed) : bl_engine_create(out, p, opt);
        if (!st && !p->gguf) /* handed over */
            return BL_OK;
    }
    return st;
}

/* A plan that was asked for is not changed behind one's back. */
static enum bl_status explain_shortage(const struct bl_engine_parts *p, const char *plan_file)
{
    const struct bl_shortage *s = &p->plan.ledger.shortage;
    const struct bl_machine_device *d = &p->machine.device[s->device];
    const double whole_mib = floor(mib(s->there_bytes));
    char how[sizeof d->id + 64];

    if (whole_mib < 1)
        snprintf(how, sizeof how, "without %s", d->id);
    else
        snprintf(how, sizeof how, "with --device-set %s.usable=%.0fMiB", d->id, whole_mib);
    return bl_fail_in(
        BL_ENOMEM, "%s wants %.1f MiB on %s, which has %.1f MiB, too little for %s; plan anew, %s",
        plan_file, mib(bl_ledger_planned(&p->plan.ledger, s->device)), d->id, mib(s->there_bytes),
        bl_purpose_name((enum bl_purpose)s->purpose), how);
}

enum bl_status bl_open(struct bl_engine **out, const char *gguf_path, const struct bl_options *opt)
{
    static const struct bl_options defaults;
    struct bl_engine_parts p = {0};
    struct bl_plan_file file = {.n_devices = 0};
    enum bl_status st;

    opt = opt ? opt : &defaults;
    if (!opt->plan_file)
        st = open_parts(&p, gguf_path, opt);
    else if (!(st = bl_plan_file_load(&file, opt->plan_file)))
        st = open_by_file(&p, gguf_path, opt, &file);
    bl_plan_file_finish(&file);
    if (!opt->plan_file)
        st = create_or_lower(out, &p, opt, st);
    else if (!st)
        st = bl_engine_create(out, &p, opt);
    if (opt->plan_file && is_short(&p, st))
        st = explain_shortage(&p, opt->plan_file);
    bl_engine_parts_finish(&p);
    return st;
}

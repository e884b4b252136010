/* SPDX-License-Identifier: MIT */
/* The composition root: file, model, machine, plan, devices, engine. */
#include "planner.h"

#include "backends.h"
#include "engine.h"
#include "log.h"
#include "mem.h"
#include "vocab.h"

static enum bl_status kv_type(const char *flag, const char *name, const struct bl_options *opt,
                              uint8_t *out)
{
    enum bl_dtype t = opt->exact ? BL_F32 : BL_F16;

    enum bl_status st = name ? bl_dtype_by_name(name, &t) : BL_OK;
    if (st)
        return bl_fail_in(st, "%s", flag);
    if (!bl_dtype_can_encode(t) || bl_dtypes[t].act == BL_ACT_NONE)
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
    enum bl_status st = bl_vocab_open(&p->vocab, p->gguf);
    if (st == BL_EUNAVAILABLE) {
        bl_warn("%s", bl_error());
        return BL_OK;
    }
    return st;
}

static enum bl_status open_devices(struct bl_engine_parts *p)
{
    p->device = bl_calloc(p->machine.n_devices, sizeof *p->device);
    if (!p->device)
        return bl_fail(BL_ENOMEM, "out of memory for %u devices", p->machine.n_devices);
    if (p->machine.cpus && p->machine.cpus->described)
        p->plan.nodes = 0; /* they are not this machine's */
    for (uint16_t d = 0; d < p->machine.n_devices; d++) {
        const struct bl_machine_device *md = &p->machine.device[d];
        struct bl_device_config config = md->config;
        if (d == 0) {
            config.threads = p->plan.threads ? p->plan.threads : config.threads;
            config.nodes = p->plan.nodes;
        }
        if (bl_plan_uses(&p->plan, d) || d == 0)
            BL_TRY(md->backend->open(md->index, &config, &p->device[d]));
    }
    return BL_OK;
}

enum bl_status bl_open(struct bl_engine **out, const char *gguf_path, const struct bl_options *opt)
{
    static const struct bl_options defaults;
    struct bl_engine_parts p = {0};
    enum bl_status st;

    opt = opt ? opt : &defaults;
    if ((st = open_model(&p, gguf_path, opt)) || (st = bl_machine_probe(&p.machine, opt)) ||
        (st = bl_plan_make(&p.plan, p.model, &p.machine, opt)) || (st = open_devices(&p))) {
        bl_engine_parts_finish(&p);
        return st;
    }
    return bl_engine_create(out, &p, opt);
}

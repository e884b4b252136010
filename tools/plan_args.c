/* SPDX-License-Identifier: MIT */
/* plan_args.c — the options of `ballast plan`, and the question they make. */
#include "plan_verb.h"

#include <stdlib.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define FORMAT_WORDS "table|json|svg|flags" /* enum bl_plan_format */
#define SWEEP_WORDS "ub|ctx|gpus"           /* enum bl_sweep_what */

#define AT(member) offsetof(struct bl_plan_args, member)
static const struct bl_arg plan_rows[] = {
    {"--shape", BL_ARG_TEXT, AT(shape), "NAME", .instead = BL_INSTEAD_OF_MODEL,
     .help = "a model that 'ballast synth --list' knows, without a file of it"},
    {"--target", BL_ARG_TEXT, AT(target), "decode|prefill|balance=X",
     .help =
         "what speed counts: of tokens one by one, of prompts, or both with X from 0 (decode) to "
         "1 (prefill) (default: balance=0.3)"},
    {"--reserve", BL_ARG_FLOAT, AT(reserve_gib), "GIB", 0, 1024,
     .help = "memory to keep free on every card (default: 0)"},
    {"--depth", BL_ARG_INT, AT(depth_tokens), "N", 1, 1 << 30,
     .help = "context at which speeds are predicted (default: half of it, at most 4096)"},
    {"--shorter-context", BL_ARG_FLAG, AT(shorter),
     .help = "if -c does not fit, plan for the longest context that does"},
    {"-fitc,--fit-ctx", BL_ARG_INT, AT(least_ctx), "N", 1, 1 << 30,
     .help = "likewise, but not shorter than N tokens"},
    {"--peers", BL_ARG_FLAG, AT(peers),
     .help = "also what llama.cpp and ik_llama.cpp would reach there, each with the nearest "
             "placement that its flags can say (--format flags)"},
    {"--what-if", BL_ARG_TEXTS, AT(what_if), "DEVICE.MEMBER=VALUE",
     .help = "the plan beside that with this figure of the machine, as --device-set has them: "
             "gpu0.mem=24GiB, cpu0.read=200GB/s; may be repeated"},
    {"--compare", BL_ARG_TEXTS, AT(compare), "A B", .words = 2, .excuses = true,
     .help =
         "two plans side by side: files of -o as they are written, or machines, by name or file, "
         "to plan for"},
    {"--sweep", BL_ARG_CHOICE, AT(sweep), SWEEP_WORDS,
     .help = "predicted speeds and memory over sizes of steps, lengths of context or numbers of "
             "cards: a table, json or, as svg, a picture"},
    {"--explain", BL_ARG_TEXT, AT(explain), "TENSOR",
     .help = "only where this tensor goes, and why"},
    {"-o,--output", BL_ARG_TEXT, AT(out), "FILE", .out = BL_ARG_OUT, .renews = "--plan",
     .help = "write the plan there as JSON as well; with --format svg the picture goes there"},
    {"--trace", BL_ARG_TEXT, AT(trace), "FILE", .out = BL_ARG_OUT,
     .help = "write the predicted timelines of a decode step and a prefill step there, for "
             "ui.perfetto.dev"},
    {"--format", BL_ARG_CHOICE, AT(format), FORMAT_WORDS,
     .help = "table for people (default), json, a picture as svg, or command lines of llama.cpp "
             "and ik_llama.cpp as flags"},
};

#undef AT

void bl_plan_args_init(struct bl_plan_args *a)
{
    *a = (struct bl_plan_args){.prefill_weight = 0.3, .sweep = -1};
}

struct bl_arg_group bl_plan_group(struct bl_plan_args *a)
{
    return (struct bl_arg_group){"Plan", plan_rows, COUNT(plan_rows), a};
}

static bool parse_target(const char *text, double *weight)
{
    char *end;

    if (!text)
        return true;
    if (!strcmp(text, "decode") || !strcmp(text, "prefill")) {
        *weight = text[0] == 'p';
        return true;
    }
    if (strncmp(text, "balance=", 8))
        return false;
    *weight = strtod(text + 8, &end);
    return end > text + 8 && !*end && *weight >= 0 && *weight <= 1;
}

int bl_plan_args_check(struct bl_command *c, struct bl_plan_args *a)
{
    if (!parse_target(a->target, &a->prefill_weight))
        return bl_args_fail(
            c, "--target %s: must be decode, prefill or balance=X with X from 0 to 1", a->target);
    if (a->peers && (a->format == BL_PLAN_SVG || a->format == BL_PLAN_FLAGS || a->explain))
        return bl_args_fail(c, "--peers adds to the table and to JSON");
    const char *own = a->what_if.n ? "--what-if" : a->compare.n ? "--compare" : NULL;
    if (!!a->what_if.n + !!a->compare.n + (a->sweep >= 0) > 1)
        return bl_args_fail(c,
                            "--what-if, --compare and --sweep are questions of their own; ask one");
    if (a->compare.n > 2)
        return bl_args_fail(c, "--compare takes two plans, once");
    if (own && (a->format != BL_PLAN_TABLE || a->explain || a->out || a->trace))
        return bl_args_fail(
            c, "%s prints a table of its own, without --format, --explain, -o or --trace", own);
    if (a->sweep >= 0 && (a->format == BL_PLAN_FLAGS || a->explain || a->trace || a->peers))
        return bl_args_fail(c, "--sweep prints a table, json or svg, without --explain, --trace or "
                               "--peers");
    if (a->sweep >= 0 && a->out && a->format == BL_PLAN_TABLE)
        return bl_args_fail(c, "-o takes --format json or svg of a --sweep");
    return BL_EXIT_OK;
}

/* ---- the question ---- */

static enum bl_status open_model(struct bl_plan_ask *q, const char *shape, const char *path)
{
    const struct bl_synth_options so = {.shape = shape, .no_data = true};
    return shape ? bl_synth_open(&q->synth, &so) : bl_gguf_open_header(&q->file, path);
}

const struct bl_gguf *bl_plan_ask_model(const struct bl_plan_ask *q)
{
    return q->synth ? bl_synth_gguf(q->synth) : q->file;
}

void bl_plan_ask_finish(struct bl_plan_ask *q)
{
    bl_synth_close(q->synth);
    bl_gguf_close(q->file);
    *q = (struct bl_plan_ask){0};
}

static void fill(struct bl_plan_ask *q, const struct bl_plan_args *a,
                 const struct bl_engine_args *e)
{
    q->opt = bl_engine_args_machine(e);
    q->opt.ctx_tokens = bl_engine_args_ctx(e);
    q->opt.batch_tokens = (uint32_t)e->batch_tokens;
    q->opt.ubatch_tokens = (uint32_t)e->asked_ubatch;
    q->opt.type_k = e->type_k;
    q->opt.type_v = e->type_v;
    q->opt.rewind_tokens = (uint32_t)e->rewind_tokens;
    q->opt.plan_file = e->plan_file;
    q->opt.expert_file = e->expert_file;
    q->opt.expert_policy = bl_engine_args_policy(e);
    q->opt.exact = e->exact;
    q->opt.no_mmap = e->no_mmap;
    q->opt.rules = bl_rule_args_given(&e->rules, &q->rules) ? &q->rules : NULL;
    q->place = (struct bl_placement_options){.prefill_weight = a->prefill_weight,
                                             .reserve_bytes =
                                                 (uint64_t)(a->reserve_gib * (double)(1 << 30)),
                                             .depth_tokens = (uint64_t)a->depth_tokens,
                                             .may_shrink_ctx = a->shorter || a->least_ctx,
                                             .least_ctx_tokens = (uint64_t)a->least_ctx,
                                             .peers = a->peers,
                                             .fixed_ubatch = a->fixed_ubatch};
}

int bl_plan_ask_init(struct bl_plan_ask *q, const struct bl_command *c,
                     const struct bl_plan_args *a, const struct bl_engine_args *e)
{
    *q = (struct bl_plan_ask){0};
    fill(q, a, e);
    const enum bl_status st = open_model(q, a->shape, e->model);
    if (st && a->shape) {
        bl_report_error(&c->report, "--shape: %s", bl_error());
        return BL_EXIT_USAGE;
    }
    return st ? bl_report_status(&c->report, BL_STAGE_OPEN, st) : BL_EXIT_OK;
}

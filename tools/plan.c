/* SPDX-License-Identifier: MIT */
/* plan.c — `ballast plan`: where every tensor goes, why, how many bytes and how fast. */
#include "common/engine_args.h"
#include "common/io.h"
#include "verbs.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define AT(member) offsetof(struct plan_args, member)
#define FORMAT_WORDS "table|json"
enum { FORMAT_TABLE, FORMAT_JSON };

struct plan_args {
    const char *shape, *explain, *target, *out;
    double reserve_gib;
    int64_t depth_tokens;
    bool shorter;
    int format; /* index of FORMAT_WORDS */
};
struct rule_args {
    struct bl_arg_texts override;
    int64_t n_gpu_layers, n_cpu_moe, main_gpu; /* n_gpu_layers -1: not given */
    const char *tensor_split, *devices;
    int split_mode; /* index of SPLIT_WORDS; -1: not given */
    bool cpu_moe, no_kv_offload;
};
#define RULE(member) offsetof(struct rule_args, member)
#define SPLIT_WORDS "none|layer|row|tensor"
static const char *const split_word[] = {"none", "layer", "row", "tensor"};

static const struct bl_arg rule_rows[] = {
    {"-ngl,--n-gpu-layers,--gpu-layers", BL_ARG_INT, RULE(n_gpu_layers), "N", 0, 1 << 20,
     .help = "layers on cards, from the end, the head counting as one (default with rules: all)"},
    {"-ot,--override-tensor", BL_ARG_TEXTS, RULE(override), "PATTERN=DEVICE,...",
     .help = "tensors whose names match go to CPU, CUDA0, ...; the first match wins"},
    {"-ncmoe,--n-cpu-moe", BL_ARG_INT, RULE(n_cpu_moe), "N", 1, 1 << 20,
     .help = "experts of the first N layers stay in RAM"},
    {"-cmoe,--cpu-moe", BL_ARG_FLAG, RULE(cpu_moe), .help = "all experts stay in RAM"},
    {"-ts,--tensor-split", BL_ARG_TEXT, RULE(tensor_split), "N,N,...",
     .help = "shares of the layers for each card (default with rules: by memory)"},
    {"-sm,--split-mode", BL_ARG_CHOICE, RULE(split_mode), SPLIT_WORDS,
     .help = "one card, or layers over several"},
    {"-mg,--main-gpu", BL_ARG_INT, RULE(main_gpu), "N", 0, 63, .help = "that one card"},
    {"-dev,--device", BL_ARG_TEXT, RULE(devices), "NAME,...",
     .help = "only these cards, in this order"},
    {"-nkvo,--no-kv-offload", BL_ARG_FLAG, RULE(no_kv_offload), .help = "cached state in RAM"},
};

/* False: none was given. */
static bool rules_given(const struct rule_args *a, struct bl_placement_rules *out)
{
    *out = (struct bl_placement_rules){.n_gpu_layers = (int32_t)a->n_gpu_layers,
                                       .override = a->override.item,
                                       .n_overrides = (uint32_t)a->override.n,
                                       .n_cpu_moe = (uint32_t)a->n_cpu_moe,
                                       .cpu_moe = a->cpu_moe,
                                       .no_kv_offload = a->no_kv_offload,
                                       .tensor_split = a->tensor_split,
                                       .devices = a->devices,
                                       .split_mode =
                                           a->split_mode < 0 ? NULL : split_word[a->split_mode],
                                       .main_gpu = (int32_t)a->main_gpu};
    return a->n_gpu_layers >= 0 || a->override.n || a->n_cpu_moe || a->cpu_moe ||
           a->no_kv_offload || a->tensor_split || a->devices || a->split_mode >= 0 || a->main_gpu;
}

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
    {"--explain", BL_ARG_TEXT, AT(explain), "TENSOR",
     .help = "only where this tensor goes, and why"},
    {"-o,--output", BL_ARG_TEXT, AT(out), "FILE", .help = "write the plan there as JSON as well"},
    {"--format", BL_ARG_CHOICE, AT(format), FORMAT_WORDS,
     .help = "of standard output: table for people (default), json"},
};

/* ---- the table ---- */

static const double gib = 1.0 / (1 << 30);

static void print_speed(FILE *f, const char *what, const struct bl_speed *s)
{
    fprintf(f, "  %-8s %8.1f tokens/s, between %.1f and %.1f in two cases of three\n", what,
            s->tok_per_s, s->tok_per_s * exp(-s->sd), s->tok_per_s * exp(s->sd));
}

static void print_speeds(FILE *f, const struct bl_placement_info *i)
{
    fprintf(f, "\nPredicted at a depth of %" PRIu64 " tokens\n", i->depth_tokens);
    print_speed(f, "decode", &i->decode);
    print_speed(f, "prefill", &i->prefill);
    if (i->stream_from_tok)
        fprintf(
            f,
            "  prefill is with experts in RAM sent to the cards, in steps of %u tokens or more\n",
            i->stream_from_tok);
}

static void print_groups(FILE *f, const struct bl_placement *p)
{
    struct bl_placement_group g;

    fprintf(f, "\n%-9s %-16s experts\n", "layers", "attention, dense");
    for (uint32_t i = 0; i < bl_placement_group(p, i, &g); i++) {
        char layers[32];
        snprintf(layers, sizeof layers, g.first < g.last ? "%u-%u" : "%u", g.first, g.last);
        fprintf(f, "%-9s %-16s %-16s %s\n", layers, g.attention, g.experts ? g.experts : "-",
                g.experts ? g.why_experts : g.why_attention);
        if (g.experts)
            fprintf(f, "%-9s %-16s %-16s %s\n", "", "", "", g.why_attention);
    }
}

static uint64_t bytes_for(const struct bl_placement *p, const char *device, const char *purpose)
{
    struct bl_memory_line l;
    uint64_t sum = 0;

    for (uint32_t i = 0; i < bl_placement_memory(p, i, &l); i++)
        if (!strcmp(l.device, device) && (!purpose || !strcmp(l.purpose, purpose)))
            sum += l.planned_bytes;
    return sum;
}

static void print_memory(FILE *f, const struct bl_placement *p)
{
    static const char *const purposes[] = {"weights", "state", "compute"};
    struct bl_placement_device d;

    fprintf(f, "\n%-16s %10s %10s %10s %10s %10s %10s   GiB\n", "device", "weights", "state",
            "compute", "other", "planned", "of");
    for (uint32_t i = 0; i < bl_placement_device(p, i, &d); i++) {
        uint64_t rest = d.planned_bytes;
        fprintf(f, "%-16s", d.id);
        for (size_t k = 0; k < COUNT(purposes); k++) {
            const uint64_t bytes = bytes_for(p, d.id, purposes[k]);
            fprintf(f, " %10.2f", (double)bytes * gib);
            rest -= bytes;
        }
        fprintf(f, " %10.2f %10.2f %10.2f\n", (double)rest * gib, (double)d.planned_bytes * gib,
                (double)d.budget_bytes * gib);
    }
}

static void print_table(FILE *f, const struct bl_placement *p)
{
    struct bl_placement_info i;
    const char *note;

    bl_placement_describe(p, &i);
    fprintf(f, "%s (%s) on %s\n", i.model, i.arch, i.machine);
    fprintf(f, "context %" PRIu64 " tokens, steps of at most %u\n", i.ctx_tokens, i.ubatch_tokens);
    print_groups(f, p);
    print_memory(f, p);
    fputc('\n', f);
    for (uint32_t n = 0; n < bl_placement_note(p, n, &note); n++)
        fprintf(f, "%s\n", note);
    print_speeds(f, &i);
}

/* ---- the verb ---- */

static int explain(const struct bl_command *c, FILE *f, const struct bl_placement *p,
                   const char *name)
{
    struct bl_placement_tensor t;

    if (bl_placement_tensor(p, name, &t)) {
        bl_report_error(&c->report, "--explain: %s", bl_error());
        return BL_EXIT_USAGE;
    }
    fprintf(f, "%s: %" PRIu64 " bytes, %s", name, t.bytes, t.part);
    if (t.layer >= 0)
        fprintf(f, " of layer %d", t.layer);
    fprintf(f, ", on %s\n%s\n", t.device, t.why);
    return BL_EXIT_OK;
}

static int write_file(const struct bl_report *r, const char *path, const char *text, size_t n)
{
    struct bl_out_file file;

    if (!bl_out_file_create(r, &file, path))
        return BL_EXIT_FAILURE;
    if (!bl_out_file_write(r, &file, text, n)) {
        bl_out_file_abandon(&file);
        return BL_EXIT_FAILURE;
    }
    return bl_out_file_commit(r, &file) ? BL_EXIT_OK : BL_EXIT_FAILURE;
}

static int show(const struct bl_command *c, const struct plan_args *a, const struct bl_placement *p)
{
    struct bl_out_page page;
    char *json = NULL;
    size_t n = 0;
    int code = BL_EXIT_OK;
    FILE *f = bl_out_page_begin(&page);

    if (bl_placement_json(p, &json, &n))
        code = bl_report_status(&c->report, BL_STAGE_RUN, BL_ENOMEM);
    if (!code && a->out)
        code = write_file(&c->report, a->out, json, n);
    if (!code && f && a->explain)
        code = explain(c, f, p, a->explain);
    else if (!code && f && a->format == FORMAT_JSON)
        fwrite(json, 1, n, f);
    else if (!code && f)
        print_table(f, p);
    free(json);
    if (code) {
        bl_out_page_drop(&page);
        return code;
    }
    return bl_out_page_end(&c->report, &page);
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

struct source {
    struct bl_gguf *file;
    struct bl_synth *synth;
};

static enum bl_status open_source(struct source *s, const struct plan_args *a, const char *model)
{
    const struct bl_synth_options so = {.shape = a->shape, .no_data = true};
    return a->shape ? bl_synth_open(&s->synth, &so) : bl_gguf_open_header(&s->file, model);
}

static int plan(const struct bl_command *c, const struct plan_args *a,
                const struct bl_engine_args *e, const struct bl_placement_options *po)
{
    struct bl_options opt = bl_engine_args_machine(e);
    struct bl_placement *p = NULL;
    struct source s = {0};

    opt.ctx_tokens = (uint64_t)e->ctx_tokens;
    opt.batch_tokens = (uint32_t)e->batch_tokens;
    opt.ubatch_tokens = (uint32_t)e->ubatch_tokens;
    opt.type_k = e->type_k;
    opt.type_v = e->type_v;
    opt.rewind_tokens = (uint32_t)e->rewind_tokens;
    enum bl_status st = open_source(&s, a, e->model);
    if (st && a->shape) {
        bl_report_error(&c->report, "--shape: %s", bl_error());
        return BL_EXIT_USAGE;
    }
    if (!st)
        st = bl_placement_make(&p, s.synth ? bl_synth_gguf(s.synth) : s.file, &opt, po);
    int code = st ? bl_report_status(&c->report, BL_STAGE_OPEN, st) : show(c, a, p);
    bl_placement_close(p);
    bl_synth_close(s.synth);
    bl_gguf_close(s.file);
    return code;
}

int bl_verb_plan(int argc, char **argv)
{
    struct plan_args args = {0};
    struct rule_args rules = {.n_gpu_layers = -1, .split_mode = -1};
    struct bl_placement_rules said;
    struct bl_engine_args engine;
    double weight = 0.3;

    bl_engine_args_init(&engine);
    const struct bl_arg_group groups[] = {
        bl_model_group(&engine),
        {"Plan", plan_rows, COUNT(plan_rows), &args},
        {"Rules: a placement by hand, judged as it is; llama.cpp's meaning", rule_rows,
         COUNT(rule_rows), &rules},
        bl_engine_group(&engine),
        bl_machine_group(&engine),
    };
    struct bl_command command = {
        .report = {.verb = "plan"},
        .usage = "(-m FILE | --shape NAME) [--machine FILE] [-c N] [options]",
        .about =
            "Says where every tensor of a model goes on a machine and why, how many bytes that "
            "takes on\neach device, and how fast it will be. Reads the model's header only and "
            "touches no device.",
        .groups = groups,
        .n_groups = COUNT(groups),
        .more = "Examples:\n"
                "  ballast plan -m model.gguf\n"
                "  ballast plan -m model.gguf --machine strix-halo-128 -c 65536\n"
                "  ballast plan --shape gpt-oss-120b --machine rtx-3090-ddr5-2ch --target decode\n"
                "  ballast plan -m model.gguf --explain "
                "blk.3.ffn_up_exps.weight\n\n" BL_EXIT_CODES_HELP,
    };
    enum bl_parsed parsed = bl_args_parse(&command, argc, argv);
    if (parsed != BL_PARSED)
        return bl_args_code(&command, parsed);
    if (!parse_target(args.target, &weight))
        return bl_args_fail(&command,
                            "--target %s: must be decode, prefill or balance=X with X from 0 to 1",
                            args.target);
    const bool ruled = rules_given(&rules, &said);
    const struct bl_placement_options po = {.rules = ruled ? &said : NULL,
                                            .prefill_weight = weight,
                                            .reserve_bytes =
                                                (uint64_t)(args.reserve_gib * (double)(1 << 30)),
                                            .depth_tokens = (uint64_t)args.depth_tokens,
                                            .may_shrink_ctx = args.shorter,
                                            .fixed_ubatch = engine.ubatch_tokens > 0};
    int code = bl_engine_args_check(&command, &engine);
    bl_log_set(bl_report_log, &command.report, BL_LOG_WARN);
    return code ? code : plan(&command, &args, &engine, &po);
}

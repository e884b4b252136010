/* SPDX-License-Identifier: MIT */
/* plan.c — `ballast plan`: where every tensor goes, why, how many bytes and how fast. */
#include "common/io.h"
#include "plan_verb.h"
#include "verbs.h"

#include <stdlib.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static int write_file(const struct bl_report *r, const char *path, const char *text, size_t n)
{
    return bl_out_file_save(r, path, text, n) ? BL_EXIT_OK : BL_EXIT_FAILURE;
}

static int print_json(const struct bl_report *r, FILE *f, const struct bl_placement *p)
{
    char *json;
    size_t n;
    const enum bl_status st = bl_placement_json(p, &json, &n);

    if (st)
        return bl_report_status(r, BL_STAGE_RUN, st);
    fwrite(json, 1, n, f);
    free(json);
    return BL_EXIT_OK;
}

static int print_as(const struct bl_report *r, FILE *f, const struct bl_placement *p,
                    const struct bl_plan_args *a, int format)
{
    switch (format) {
    case BL_PLAN_JSON:
        return print_json(r, f, p);
    case BL_PLAN_SVG:
        return bl_plan_svg_print(r, f, p);
    case BL_PLAN_FLAGS:
        return bl_plan_flags_print(r, f, p, a->model);
    default:
        bl_plan_table_print(f, p);
        if (a->peers)
            bl_plan_peers_print(f, p);
        return BL_EXIT_OK;
    }
}

/* The file that -o names: the picture if one is wanted, else JSON. */
static int save(const struct bl_report *r, const struct bl_plan_args *a,
                const struct bl_placement *p)
{
    struct bl_out_page page;
    FILE *f = bl_out_page_begin(&page);
    int code = f ? print_as(r, f, p, a, a->format == BL_PLAN_SVG ? BL_PLAN_SVG : BL_PLAN_JSON)
                 : bl_out_page_end(r, &page);

    if (!f)
        return code;
    if (!code && fflush(f))
        code = bl_report_status(r, BL_STAGE_RUN, BL_ENOMEM);
    if (!code)
        code = write_file(r, a->out, page.text, page.n);
    bl_out_page_drop(&page);
    return code;
}

static int save_trace(const struct bl_report *r, const char *path, const struct bl_placement *p)
{
    char *text;
    size_t n;
    const enum bl_status st = bl_placement_trace(p, &text, &n);

    if (st)
        return bl_report_status(r, BL_STAGE_OPEN, st);
    const int code = write_file(r, path, text, n);
    free(text);
    return code;
}

static int show(const struct bl_command *c, const struct bl_plan_args *a,
                const struct bl_placement *p)
{
    const int format = a->out && a->format == BL_PLAN_SVG ? BL_PLAN_TABLE : a->format;
    struct bl_out_page page;
    int code = a->out ? save(&c->report, a, p) : BL_EXIT_OK;

    if (!code && a->trace)
        code = save_trace(&c->report, a->trace, p);
    if (code)
        return code;
    FILE *f = bl_out_page_begin(&page);
    if (f && a->explain)
        code = bl_plan_table_explain(&c->report, f, p, a->explain);
    else if (f)
        code = print_as(&c->report, f, p, a, format);
    if (code) {
        bl_out_page_drop(&page);
        return code;
    }
    return bl_out_page_end(&c->report, &page);
}

/* The same question with figures of the machine changed, which stand behind those of --device-set.
 */
static enum bl_status ask_again(const struct bl_plan_ask *q, const struct bl_plan_args *a,
                                struct bl_placement **out)
{
    const size_t n = q->opt.n_device_set + a->what_if.n;
    const char **set = malloc(n * sizeof *set);
    struct bl_options opt = q->opt;

    if (!set)
        return BL_ENOMEM;
    for (size_t i = 0; i < n; i++)
        set[i] = i < q->opt.n_device_set ? q->opt.device_set[i]
                                         : a->what_if.item[i - q->opt.n_device_set];
    opt.device_set = set;
    opt.n_device_set = (uint32_t)n;
    const enum bl_status st = bl_placement_make(out, bl_plan_ask_model(q), &opt, &q->place);
    free(set);
    return st;
}

static int what_if(const struct bl_command *c, const struct bl_plan_args *a,
                   const struct bl_plan_ask *q, const struct bl_placement *before)
{
    struct bl_placement *after = NULL;
    struct bl_out_page page;
    const enum bl_status st = ask_again(q, a, &after);

    if (st)
        return bl_report_status(&c->report, BL_STAGE_OPEN, st);
    FILE *f = bl_out_page_begin(&page);
    const int code = f ? bl_plan_compare_print(&c->report, f, before, after) : BL_EXIT_OK;
    bl_placement_close(after);
    if (!code)
        return bl_out_page_end(&c->report, &page);
    bl_out_page_drop(&page);
    return code;
}

static int plan_once(const struct bl_command *c, const struct bl_plan_args *a,
                     const struct bl_plan_ask *q)
{
    struct bl_placement *p = NULL;
    const enum bl_status st = bl_placement_make(&p, bl_plan_ask_model(q), &q->opt, &q->place);
    const int code = st             ? bl_report_status(&c->report, BL_STAGE_OPEN, st)
                     : a->what_if.n ? what_if(c, a, q, p)
                                    : show(c, a, p);

    bl_placement_close(p);
    return code;
}

/* A table for people; JSON or a picture, which -o sends to a file. */
static int sweep(const struct bl_command *c, const struct bl_plan_args *a,
                 const struct bl_plan_ask *q)
{
    struct bl_out_page page;
    FILE *f = bl_out_page_begin(&page);
    int code = f ? bl_plan_sweep(&c->report, f, a, q) : BL_EXIT_OK;

    if (!code && !(a->out && f))
        return bl_out_page_end(&c->report, &page);
    if (!code && fflush(f))
        code = bl_report_status(&c->report, BL_STAGE_RUN, BL_ENOMEM);
    if (!code)
        code = write_file(&c->report, a->out, page.text, page.n);
    bl_out_page_drop(&page);
    return code;
}

static int plan(const struct bl_command *c, const struct bl_plan_args *a,
                const struct bl_engine_args *e)
{
    struct bl_plan_ask q;

    if (a->compare.n && !a->shape && !e->model)
        return bl_plan_compare(&c->report, NULL, a->compare.item);
    int code = bl_plan_ask_init(&q, c, a, e);
    if (!code)
        code = a->sweep >= 0  ? sweep(c, a, &q)
               : a->compare.n ? bl_plan_compare(&c->report, &q, a->compare.item)
                              : plan_once(c, a, &q);
    bl_plan_ask_finish(&q);
    return code;
}

int bl_verb_plan(int argc, char **argv)
{
    struct bl_plan_args args;
    struct bl_engine_args engine;

    bl_plan_args_init(&args);
    bl_engine_args_init(&engine);
    const struct bl_arg_group groups[] = {
        bl_model_group(&engine),  bl_plan_group(&args),      bl_rule_group(&engine.rules),
        bl_engine_group(&engine), bl_machine_group(&engine),
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
        .only_reads = true,
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
    int code = bl_plan_args_check(&command, &args);
    args.model = engine.model;
    args.fixed_ubatch = engine.ubatch_tokens > 0; /* before defaults are filled in */
    if (!code)
        code = bl_engine_args_check(&command, &engine);
    bl_log_set(bl_report_log, &command.report, BL_LOG_WARN);
    return code ? code : plan(&command, &args, &engine);
}

/* SPDX-License-Identifier: MIT */
/* probe.c — `ballast probe`: this machine, measured. */
#include "common/engine_args.h"
#include "common/io.h"
#include "verbs.h"

#include <stdlib.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

struct probe_args {
    const char *out;
    bool quick;
    int format; /* index of FORMAT_WORDS */
};
#define AT(member) offsetof(struct probe_args, member)
#define FORMAT_WORDS "table|json"
enum { FORMAT_TABLE, FORMAT_JSON };

static const struct bl_arg probe_rows[] = {
    {"-o,--output", BL_ARG_TEXT, AT(out), "FILE", .out = BL_ARG_OUT,
     .help = "write the machine there as JSON, for --machine"},
    {"--quick", BL_ARG_FLAG, AT(quick), .help = "few types and 3 seconds instead of all and 15"},
    {"--format", BL_ARG_CHOICE, AT(format), FORMAT_WORDS,
     .help = "of standard output: table for people (default), json as in the file"},
};

struct probe {
    const struct bl_report *report;
    FILE *page; /* NULL: the table is not wanted */
    char *json;
    size_t n_bytes;
};

static void print_line(void *arg, const char *text)
{
    const struct probe *p = arg;
    if (p->page)
        fprintf(p->page, "%s\n", text);
}

static void print_note(void *arg, const char *text)
{
    const struct probe *p = arg;
    bl_report_note(p->report, "probe: %s", text);
}

static int measure(struct probe *p, const struct probe_args *a, const struct bl_engine_args *e)
{
    struct bl_out_page page;
    const struct bl_options opt = bl_engine_args_machine(e);
    const struct bl_probe_options po = {
        .quick = a->quick, .line = print_line, .note = print_note, .arg = p};
    FILE *f = bl_out_page_begin(&page);
    p->page = a->format == FORMAT_TABLE ? f : NULL;
    int code = bl_engine_args_machine_code(p->report, bl_probe(&p->json, &p->n_bytes, &opt, &po));
    if (!code && a->format == FORMAT_JSON && f)
        fwrite(p->json, 1, p->n_bytes, f);
    if (!code && a->out)
        code =
            bl_out_file_save(p->report, a->out, p->json, p->n_bytes) ? BL_EXIT_OK : BL_EXIT_FAILURE;
    if (code) {
        bl_out_page_drop(&page);
        return code;
    }
    return bl_out_page_end(p->report, &page);
}

int bl_verb_probe(int argc, char **argv)
{
    struct probe_args args = {0};
    struct bl_engine_args engine;
    bl_engine_args_init(&engine);
    const struct bl_arg_group groups[] = {
        {"Probe", probe_rows, COUNT(probe_rows), &args},
        bl_machine_group(&engine),
    };
    struct bl_command command = {
        .report = {.verb = "probe"},
        .usage = "[-o FILE] [options]",
        .about = "Measures this machine: memory and its sources, how fast threads read it, kernels "
                 "by type, fixed costs.",
        .groups = groups,
        .n_groups = COUNT(groups),
        .more = "Examples:\n"
                "  ballast probe -o machine.json\n"
                "  ballast run -m model.gguf --machine machine.json -p \"Hello\"\n\n"
                "Exit codes: 0 ok, 1 failure, 2 usage.",
    };
    enum bl_parsed parsed = bl_args_parse(&command, argc, argv);
    if (parsed != BL_PARSED)
        return bl_args_code(&command, parsed);
    if (engine.machine_file)
        return bl_args_fail(&command, "--machine is for what was measured; probe measures");
    int code = bl_engine_args_check(&command, &engine);
    bl_log_set(bl_report_log, &command.report, BL_LOG_WARN);
    struct probe probe = {.report = &command.report};
    if (!code)
        code = measure(&probe, &args, &engine);
    free(probe.json);
    return code;
}

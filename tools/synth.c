/* SPDX-License-Identifier: MIT */
/* synth.c — `ballast synth`: a model file of a known shape with random weights. */
#include "common/args.h"
#include "common/io.h"
#include "common/progress.h"
#include "verbs.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
enum { MOST_LAYERS = 1024, MOST_VOCAB = 1 << 20, LEAST_VOCAB = 260 };

struct synth_args {
    const char *shape, *out, *type;
    int64_t layers, vocab, seed;
    bool no_data, list;
    int progress;
};
#define AT(member) offsetof(struct synth_args, member)

static const struct bl_arg rows[] = {
    {"-o,--output", BL_ARG_TEXT, AT(out), "FILE", .out = BL_ARG_OUT_FILE, .instead = 1,
     .required = true, .help = "GGUF file to write; it appears whole or not at all"},
    {"--list", BL_ARG_FLAG, AT(list), .instead = 1,
     .help = "print the shapes and the recipes instead"},
    {"-t,--type", BL_ARG_TEXT, AT(type), "RECIPE",
     .help = "types of the weights: a recipe, a type for all, or a type and rules such as"
             " q8_0,*_exps=q4_k (default: the shape's)"},
    {"-l,--layers", BL_ARG_INT, AT(layers), "N", 1, MOST_LAYERS,
     .help = "layers, patterns kept, without drafting blocks (default: as published, with them)"},
    {"--vocab", BL_ARG_INT, AT(vocab), "N", LEAST_VOCAB, MOST_VOCAB,
     .help = "tokens of the vocabulary (default: the shape's)"},
    {"--seed", BL_ARG_INT, AT(seed), "N", 0, (double)(INT64_C(1) << 53),
     .help = "of the random weights (default: 0)"},
    {"--no-data", BL_ARG_FLAG, AT(no_data), .help = "the header alone: a file to look at"},
    {"--progress", BL_ARG_CHOICE, AT(progress), BL_PROGRESS_WORDS,
     .help = "how writing is shown (default: auto)"},
};

/* ---- --list ---- */

static enum bl_status list_shape(FILE *f, const struct synth_args *a, const char *name)
{
    struct bl_synth_options o = {.shape = name, .recipe = a->type};
    struct bl_synth *s = NULL;
    struct bl_synth_info info;
    char bytes[24];
    enum bl_status st = bl_synth_open(&s, &o);
    if (st)
        return st;
    bl_synth_describe(s, &info);
    bl_format_bytes(bytes, (double)info.weight_bytes);
    fprintf(f, "  %-20s %-13s %3u layers %8.2f billion %9s  %s\n", info.shape, info.arch,
            info.layers, (double)info.params / 1e9, bytes, info.recipe);
    bl_synth_close(s);
    return BL_OK;
}

static int list(const struct bl_command *c, const struct synth_args *a)
{
    struct bl_out_page page;
    FILE *f = bl_out_page_begin(&page);
    const char *name, *types;
    enum bl_status st = BL_OK;
    if (f) {
        fprintf(f, "Shapes: architecture, layers, parameters, bytes of weights, recipe\n");
        for (uint32_t i = 0; !st && (name = bl_synth_shape(i)); i++)
            st = list_shape(f, a, name);
        fprintf(f, "\nRecipes\n");
        for (uint32_t i = 0; (name = bl_synth_recipe(i, &types)); i++)
            fprintf(f, "  %-12s %s\n", name, types);
    }
    if (st) {
        bl_out_page_drop(&page);
        return bl_args_fail(c, "%s", bl_error());
    }
    return bl_out_page_end(&c->report, &page);
}

/* ---- writing ---- */

static bool show(void *view, const struct bl_progress *p)
{
    bl_progress_update(view, p);
    return !bl_interrupt_code();
}

/* BL_EINVAL and BL_EFORMAT are about the command line and the shape. */
static int failed(const struct bl_report *r, enum bl_status st)
{
    if (st == BL_ECANCELLED && bl_interrupt_code())
        return bl_interrupt_code();
    bl_report_error(r, "%s", bl_error());
    return st == BL_EINVAL || st == BL_EFORMAT ? BL_EXIT_USAGE : BL_EXIT_FAILURE;
}

static void announce(const struct bl_report *r, const struct synth_args *a,
                     const struct bl_synth *s)
{
    struct bl_synth_info info;
    char bytes[24];
    bl_synth_describe(s, &info);
    bl_format_bytes(bytes, (double)info.weight_bytes);
    bl_report_note(r, "%s: %u layer%s, %u tokens, %.2f billion parameters, %s of weights as %s%s",
                   info.shape, info.layers, bl_report_plural(info.layers), info.vocab,
                   (double)info.params / 1e9, bytes, info.recipe, a->no_data ? ", left out" : "");
}

static int write_file(struct bl_report *r, const struct synth_args *a, struct bl_synth_options *o)
{
    struct bl_progress_view view;
    struct bl_synth *s = NULL;
    o->progress = show;
    o->progress_arg = &view;
    enum bl_status st = bl_synth_open(&s, o);
    if (st)
        return failed(r, st);
    announce(r, a, s);
    bl_interrupt_catch();
    bl_progress_begin(&view, r, (enum bl_progress_mode)a->progress);
    view.writing = true;
    st = bl_synth_write(s, a->out);
    bl_progress_end(&view, !st);
    int code = st ? failed(r, st) : BL_EXIT_OK;
    bl_interrupt_release();
    bl_synth_close(s);
    return code;
}

/* The shape is no option, so that those of outputs.h do not see it. */
static bool is_over_shape(const struct synth_args *a)
{
    struct stat in, out;
    const bool there = strcmp(a->shape, "-") ? !stat(a->shape, &in) : !fstat(STDIN_FILENO, &in);

    return there && !stat(a->out, &out) && in.st_dev == out.st_dev && in.st_ino == out.st_ino;
}

static int synth(struct bl_command *c, const struct synth_args *a)
{
    struct bl_report *r = &c->report;
    struct bl_synth_options o = {.shape = a->shape,
                                 .recipe = a->type,
                                 .layers = (uint32_t)a->layers,
                                 .vocab = (uint32_t)a->vocab,
                                 .seed = (uint64_t)a->seed,
                                 .no_data = a->no_data};
    size_t tail = strlen(a->shape);
    char *json = NULL;
    if ((tail > 5 && !strcmp(a->shape + tail - 5, ".json")) || !strcmp(a->shape, "-")) {
        if (is_over_shape(a))
            return bl_args_fail(c, "-o %s would write over the shape; name another file", a->out);
        if (!bl_io_read(r, a->shape, &json, &o.json_bytes))
            return BL_EXIT_USAGE;
        o.json = json;
    }
    int code = write_file(r, a, &o);
    free(json);
    return code;
}

int bl_verb_synth(int argc, char **argv)
{
    struct synth_args args = {0};
    const struct bl_arg_group groups[] = {{"Model", rows, COUNT(rows), &args}};
    struct bl_command command = {
        .report = {.verb = "synth"},
        .usage = "(SHAPE -o FILE | --list) [options]",
        .about = "Writes a model file of a known shape with random weights, to study speed and\n"
                 "memory without the download. SHAPE is a name that --list shows, or a JSON file\n"
                 "(FILE.json or -); see configs/README.md.",
        .groups = groups,
        .n_groups = COUNT(groups),
        .more =
            "Examples:\n"
            "  ballast synth qwen3-30b-a3b -o q.gguf --layers 6 --vocab 32000 -t q8_0,*_exps=q4_k\n"
            "  ballast synth deepseek-v4-flash -o header.gguf --no-data",
    };
    bool named = argc > 1 && (argv[1][0] != '-' || !argv[1][1]);
    if (named)
        args.shape = argv[1];
    enum bl_parsed parsed = bl_args_parse(&command, argc - named, argv + named);
    if (parsed != BL_PARSED)
        return bl_args_code(&command, parsed);
    command.report.json = args.progress == BL_PROGRESS_JSON;
    if (args.list)
        return named ? bl_args_fail(&command, "--list takes no shape") : list(&command, &args);
    if (!named)
        return bl_args_fail(&command, "the first word must be a shape; see --list");
    return synth(&command, &args);
}

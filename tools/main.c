/* SPDX-License-Identifier: MIT */
/* main.c — the table of verbs. */
#include "ballast.h"
#include "common/args.h"
#include "common/io.h"
#include "verbs.h"

#include <string.h>

static const struct {
    const char *name, *about;
    int (*run)(int argc, char **argv);
} verbs[] = {
    {"run", "answer or continue a prompt; chat with -i", bl_verb_run},
    {"info", "what is in a model file; what this processor gets", bl_verb_info},
    {"plan", "where every tensor goes on a machine, and how fast that is", bl_verb_plan},
    {"probe", "this machine, measured: what plans are made from", bl_verb_probe},
    {"tokenize", "text to token ids", bl_verb_tokenize},
    {"template", "the prompt that a chat template makes of a conversation", bl_verb_template},
    {"bench", "speed, in the rows and formats of llama-bench", bl_verb_bench},
    {"synth", "a model file of a known shape with random weights", bl_verb_synth},
    {"logits", "raw model output for given token ids", bl_verb_logits},
};
enum { N_VERBS = sizeof verbs / sizeof verbs[0] };

static int show_help(const struct bl_report *report)
{
    struct bl_out_page page;
    FILE *f = bl_out_page_begin(&page);

    if (f) {
        fprintf(f, "Usage: ballast VERB [options]\n\n"
                   "Runs large language models in GGUF files.\n\nVerbs:\n");
        for (size_t i = 0; i < N_VERBS; i++)
            fprintf(f, "  %-12s %s\n", verbs[i].name, verbs[i].about);
        fprintf(f, "\n  -h, --help   this text; 'ballast help VERB' for a verb's options\n"
                   "  --version    version and commit\n\n"
                   "Example:\n  ballast run -m model.gguf -p \"What is the capital of France?\"\n");
    }
    return bl_out_page_end(report, &page);
}

static int show_version(const struct bl_report *report)
{
    struct bl_out_page page;
    FILE *f = bl_out_page_begin(&page);

    if (f)
        fprintf(f, "ballast %s\n", bl_version());
    return bl_out_page_end(report, &page);
}

static int unknown_verb(const struct bl_report *report, const char *word)
{
    struct bl_nearest near;
    const char *kind = word[0] == '-' ? "option" : "verb";

    bl_nearest_begin(&near, word);
    for (size_t i = 0; i < N_VERBS; i++)
        bl_nearest_offer(&near, verbs[i].name, strlen(verbs[i].name));
    bl_nearest_offer(&near, "--version", strlen("--version"));
    bl_nearest_offer(&near, "--help", strlen("--help"));
    if (near.best[0])
        bl_report_error(report, "unknown %s '%s'; the nearest is '%s'; see 'ballast --help'", kind,
                        word, near.best);
    else
        bl_report_error(report, "unknown %s '%s'; see 'ballast --help'", kind, word);
    return BL_EXIT_USAGE;
}

static int run_verb(const struct bl_report *report, int argc, char **argv)
{
    for (size_t i = 0; i < N_VERBS; i++)
        if (!strcmp(argv[0], verbs[i].name))
            return verbs[i].run(argc, argv);
    return unknown_verb(report, argv[0]);
}

/* "help VERB" is "VERB --help". */
static int help(const struct bl_report *report, int argc, char **argv)
{
    char option[] = "--help";

    if (argc < 2 || argv[1][0] == '-')
        return show_help(report);
    return run_verb(report, 2, (char *[]){argv[1], option, NULL});
}

int main(int argc, char **argv)
{
    const struct bl_report report = {.json = bl_args_want_json(argc, argv)};

    bl_io_init();
    if (argc < 2) {
        bl_report_error(&report, "no verb given; see 'ballast --help'");
        return BL_EXIT_USAGE;
    }
    const char *word = argv[1];
    if (!strcmp(word, "-h") || !strcmp(word, "--help"))
        return show_help(&report);
    if (!strcmp(word, "help"))
        return help(&report, argc - 1, argv + 1);
    if (!strcmp(word, "--version"))
        return show_version(&report);
    return run_verb(&report, argc - 1, argv + 1);
}

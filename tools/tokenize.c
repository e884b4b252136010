/* SPDX-License-Identifier: MIT */
/* tokenize.c — `ballast tokenize`: text to ids, without loading weights. */
#include "common/engine_args.h"
#include "common/io.h"
#include "verbs.h"

#include <stdlib.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

struct tokenize_args {
    const char *prompt, *file;
    bool no_bos, no_parse_special;
};
#define AT(member) offsetof(struct tokenize_args, member)

static const struct bl_arg tokenize_rows[] = {
    {"-p,--prompt", BL_ARG_TEXT, AT(prompt), "TEXT", .instead = 1, .required = true,
     .help = "text, taken literally"},
    {"-f,--file", BL_ARG_TEXT, AT(file), "FILE", .instead = 1,
     .help = "read the text from FILE (- is standard input), every byte of it"},
    {"--no-bos", BL_ARG_FLAG, AT(no_bos),
     .help = "add no begin and end tokens, even if the model asks for them"},
    {"--no-parse-special", BL_ARG_FLAG, AT(no_parse_special),
     .help = "read text such as <|im_end|> as text, not as its control token"},
};

static int print_ids(const struct bl_report *r, const int32_t *ids, size_t n)
{
    struct bl_out_page page;
    FILE *f = bl_out_page_begin(&page);

    for (size_t i = 0; f && i < n; i++)
        fprintf(f, "%s%d", i ? " " : "", ids[i]);
    if (f)
        fputc('\n', f);
    return bl_out_page_end(r, &page);
}

static int tokenize(const struct bl_report *r, const char *model, const char *text, size_t n,
                    unsigned flags)
{
    struct bl_gguf *gguf = NULL;
    struct bl_vocab *vocab = NULL;
    int32_t *ids = NULL;
    size_t n_ids = 0;
    int code;
    enum bl_status st = bl_gguf_open(&gguf, model);

    if (!st)
        st = bl_vocab_open(&vocab, gguf);
    if (st)
        code = bl_report_status(r, BL_STAGE_OPEN, st);
    else if ((st = bl_tokenize(vocab, text, n, flags, &ids, &n_ids)))
        code = bl_report_status(r, BL_STAGE_RUN, st);
    else
        code = print_ids(r, ids, n_ids);
    free(ids);
    bl_vocab_close(vocab);
    bl_gguf_close(gguf);
    return code;
}

int bl_verb_tokenize(int argc, char **argv)
{
    struct tokenize_args args = {0};
    struct bl_engine_args engine_args;
    bl_engine_args_init(&engine_args);
    const struct bl_arg_group groups[] = {
        bl_model_group(&engine_args),
        {"Text", tokenize_rows, COUNT(tokenize_rows), &args},
    };
    struct bl_command command = {
        .report = {.verb = "tokenize"},
        .usage = "-m FILE (-p TEXT | -f FILE) [options]",
        .about = "Prints the token ids of a text, separated by spaces, on one line.",
        .groups = groups,
        .n_groups = COUNT(groups),
        .more = "Example:\n  ballast tokenize -m model.gguf -p \"Hello world\"",
    };
    enum bl_parsed parsed = bl_args_parse(&command, argc, argv);
    if (parsed != BL_PARSED)
        return bl_args_code(&command, parsed);

    unsigned flags =
        (args.no_bos ? 0 : BL_TOK_ADD_SPECIAL) | (args.no_parse_special ? 0 : BL_TOK_PARSE_SPECIAL);
    char *file_text = NULL;
    size_t n = args.prompt ? strlen(args.prompt) : 0;
    if (args.file && !bl_io_read(&command.report, args.file, &file_text, &n))
        return BL_EXIT_USAGE;
    int code =
        tokenize(&command.report, engine_args.model, args.file ? file_text : args.prompt, n, flags);
    free(file_text);
    return code;
}

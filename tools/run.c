/* SPDX-License-Identifier: MIT */
/* run.c — `ballast run`: answer or continue a prompt; `-i` hands over to chat.c. */
#include "chat.h"
#include "common/engine_args.h"
#include "common/generate.h"
#include "common/io.h"
#include "common/prompt.h"
#include "verbs.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

struct run_args {
    const char *prompt, *file;
    bool chat;
    struct bl_prompt_args template;
    int64_t n_predict, top_k, repeat_last,
        seed; /* n_predict -1: no limit; seed -1: from the clock */
    double temp, top_p, min_p, repeat_penalty;
};
#define AT(member) offsetof(struct run_args, member)

static const struct bl_arg prompt_rows[] = {
    {"-p,--prompt", BL_ARG_TEXT, AT(prompt), "TEXT", .instead = 1, .required = true,
     .help = "what to answer, or without a chat template to continue"},
    {"-f,--file", BL_ARG_TEXT, AT(file), "FILE", .instead = 1,
     .help = "read the text from FILE (- is standard input); one newline at its end is dropped"},
    {"-i,--interactive", BL_ARG_FLAG, AT(chat), .instead = 1,
     .help = "chat: a line is a message, /help lists commands"},
    {"-n,--predict,--n-predict", BL_ARG_INT, AT(n_predict), "N", -1, INT32_MAX,
     .help = "tokens to generate (default -1: until an end token or the context is full)"},
};
static const struct bl_arg sampling_rows[] = {
    {"--temp,--temperature", BL_ARG_FLOAT, AT(temp), "T", 0, 1000,
     .help = "0 takes the likeliest token each time (default), larger is more random"},
    {"--top-k", BL_ARG_INT, AT(top_k), "N", 0, INT32_MAX,
     .help = "choose among the N likeliest (default 40, 0 is off)"},
    {"--top-p", BL_ARG_FLOAT, AT(top_p), "P", 0, 1,
     .help =
         "choose among the likeliest that together have probability P (default 0.95, 1 is off)"},
    {"--min-p", BL_ARG_FLOAT, AT(min_p), "P", 0, 1,
     .help = "drop tokens less than P times as likely as the likeliest (default 0.05, 0 is off)"},
    {"--repeat-penalty", BL_ARG_FLOAT, AT(repeat_penalty), "X", 0, 100,
     .help = "make recent tokens less likely (default 1, which is off)"},
    {"--repeat-last-n", BL_ARG_INT, AT(repeat_last), "N", -1, INT32_MAX,
     .help = "how many tokens are recent (default 64, -1 is the whole context, 0 is off)"},
    {"-s,--seed", BL_ARG_INT, AT(seed), "N", -1, 4294967295.0,
     .help = "of the random choice (default -1: another one each time; it is printed)"},
};

/* The library reads 0 as "off" or "default" where these options mean the least possible. */
static struct bl_sampling sampling_of(const struct bl_report *report, const struct run_args *a,
                                      uint64_t ctx)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    struct bl_sampling s = {
        .temp = (float)a->temp,
        .top_k = (uint32_t)a->top_k,
        .top_p = a->top_p > 0 ? (float)a->top_p : 1e-9f,
        .min_p = (float)a->min_p,
        .repeat_penalty = a->repeat_last ? (float)a->repeat_penalty : 1.0f,
        .repeat_last = a->repeat_last < 0 || (uint64_t)a->repeat_last > ctx
                           ? (uint32_t)ctx
                           : (uint32_t)a->repeat_last,
        .seed = a->seed < 0 ? ((uint64_t)t.tv_sec * 1000000007u ^ (uint64_t)t.tv_nsec) & 0xffffffffu
                            : (uint64_t)a->seed,
    };
    if (s.temp > 0 && a->seed < 0)
        bl_report_note(report, "seed %" PRIu64, s.seed);
    return s;
}

static int check_prompt(const struct bl_report *report, size_t n_ids, uint64_t ctx)
{
    if (!n_ids) {
        bl_report_error(report, "the prompt is empty and the model has no token to begin with");
        return BL_EXIT_FAILURE;
    }
    if (n_ids > ctx) {
        bl_report_error(report,
                        "the prompt has %zu token%s but the context holds %" PRIu64
                        "; make it larger with -c",
                        n_ids, bl_report_plural(n_ids), ctx);
        return BL_EXIT_FAILURE;
    }
    return BL_EXIT_OK;
}

static int prompt_ids(struct bl_dialogue *d, const char *text, size_t n, int32_t **ids,
                      size_t *n_ids)
{
    if (!d->chat) { /* any bytes, taken literally */
        enum bl_status st =
            bl_tokenize(d->vocab, text, n, BL_TOK_ADD_SPECIAL | BL_TOK_PARSE_SPECIAL, ids, n_ids);
        return st ? bl_report_status(d->report, BL_STAGE_RUN, st) : BL_EXIT_OK;
    }
    if (!bl_dialogue_add(d, "user", text, n)) {
        bl_report_error(d->report, "out of memory");
        return BL_EXIT_FAILURE;
    }
    return bl_dialogue_ids(d, ids, n_ids);
}

/* Writes what was held back, ends the line on a terminal, closes stdout. */
static int finish_output(struct bl_generator *g, struct bl_reply *r, int code)
{
    bool good = !bl_generator_flush(g) && bl_reply_end(r, isatty(STDOUT_FILENO));

    if (good && bl_out_close(g->report))
        good = false;
    return good || code ? code : BL_EXIT_FAILURE;
}

static int one_answer(struct bl_generator *g, struct bl_dialogue *d, const struct run_args *args,
                      const char *text, size_t n)
{
    struct bl_reply reply;
    int32_t *ids = NULL;
    size_t n_ids = 0;
    int code = prompt_ids(d, text, n, &ids, &n_ids);

    bl_reply_init(&reply, g->report, false);
    bl_reply_begin(&reply, d->answer);
    g->write = bl_reply_write;
    g->arg = &reply;
    if (!code)
        code = check_prompt(g->report, n_ids, bl_engine_ctx(g->engine));
    if (!code) {
        bl_interrupt_catch();
        code = bl_generator_hold(g, ids, n_ids);
        if (!code)
            code =
                bl_generator_run(g, args->n_predict < 0 ? UINT64_MAX : (uint64_t)args->n_predict);
        if (code == BL_EXIT_OK || code == bl_interrupt_code()) {
            code = finish_output(g, &reply, code);
            bl_generator_report(g);
        }
    }
    bl_reply_finish(&reply);
    free(ids);
    return code;
}

static int run(struct bl_report *report, const struct run_args *args,
               struct bl_engine_args *engine_args, const char *text, size_t n)
{
    struct bl_generator g = {.report = report,
                             .chunk_tokens = (uint32_t)engine_args->ubatch_tokens};
    struct bl_dialogue d = {.report = report};
    int code = bl_engine_args_open(report, engine_args, &g.engine);

    if (!code)
        code = bl_dialogue_init(&d, &args->template, g.engine);
    if (!code) {
        struct bl_sampling sampling = sampling_of(report, args, bl_engine_ctx(g.engine));
        code = bl_generator_init(&g, &sampling);
    }
    if (!code)
        code =
            args->chat ? bl_chat_loop(&g, &d, args->n_predict) : one_answer(&g, &d, args, text, n);
    if (g.session && engine_args->verbose)
        bl_engine_args_memory(report, g.engine);
    if (g.session) {
        const int saved = bl_engine_args_experts(report, engine_args, g.engine);
        code = code ? code : saved;
    }
    const int traced = bl_engine_args_trace(report, engine_args, g.engine);
    code = code ? code : traced;
    bl_generator_finish(&g);
    bl_dialogue_finish(&d);
    bl_close(g.engine);
    return code;
}

int bl_verb_run(int argc, char **argv)
{
    struct run_args args = {.n_predict = -1,
                            .top_k = 40,
                            .repeat_last = 64,
                            .seed = -1,
                            .top_p = 0.95,
                            .min_p = 0.05,
                            .repeat_penalty = 1.0};
    struct bl_engine_args engine_args;
    bl_engine_args_init(&engine_args);
    const struct bl_arg_group groups[] = {
        bl_model_group(&engine_args),    {"Prompt", prompt_rows, COUNT(prompt_rows), &args},
        bl_prompt_group(&args.template), {"Sampling", sampling_rows, COUNT(sampling_rows), &args},
        bl_engine_group(&engine_args),   bl_rope_group(&engine_args),
        bl_machine_group(&engine_args),  bl_rule_group(&engine_args.rules),
        bl_message_group(&engine_args),
    };
    struct bl_command command = {
        .report = {.verb = "run"},
        .usage = "-m FILE (-p TEXT | -f FILE | -i) [options]",
        .about =
            "Prints the answer to a text, and nothing else, on standard output. The model's chat\n"
            "template makes the prompt; --raw, or a model without one, continues the text.",
        .groups = groups,
        .n_groups = COUNT(groups),
        .more = "Ctrl-C stops after the current token, a second one at once.\n\n"
                "Examples:\n"
                "  ballast run -m model.gguf -p \"What is the capital of France?\"\n"
                "  ballast run -m model.gguf -i --system \"Answer in one sentence.\"\n"
                "  ballast run -m model.gguf --raw -f story.txt --temp 0.8 --seed 1 > "
                "ending.txt\n\n" BL_EXIT_CODES_HELP,
    };
    enum bl_parsed parsed = bl_args_parse(&command, argc, argv);
    if (parsed != BL_PARSED)
        return bl_args_code(&command, parsed);
    int code = bl_engine_args_check(&command, &engine_args);
    if (!code)
        code = bl_prompt_args_check(&command, &args.template);
    if (!code && args.chat && args.template.raw)
        code = bl_args_fail(&command, "-i is a chat and excludes --raw");
    if (code)
        return code;

    char *file_text = NULL;
    const char *text = args.prompt;
    size_t n = text ? strlen(text) : 0;
    if (args.file) {
        if (!bl_io_read(&command.report, args.file, &file_text, &n))
            return BL_EXIT_USAGE;
        text = file_text;
        n -= n && text[n - 1] == '\n'; /* editors add it; models take it for a finished line */
    }
    code = run(&command.report, &args, &engine_args, text, n);
    free(file_text);
    return code;
}

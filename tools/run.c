/* SPDX-License-Identifier: MIT */
/* run.c — `ballast run`: continue a prompt. */
#include "common/engine_args.h"
#include "common/io.h"
#include "verbs.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

struct run_args {
    const char *prompt, *file;
    bool raw;
    int64_t n_predict, top_k, repeat_last,
        seed; /* n_predict -1: no limit; seed -1: from the clock */
    double temp, top_p, min_p, repeat_penalty;
};
#define AT(member) offsetof(struct run_args, member)

static const struct bl_arg prompt_rows[] = {
    {"-p,--prompt", BL_ARG_TEXT, AT(prompt), "TEXT", .instead = 1, .required = true,
     .help = "text to continue, taken literally"},
    {"-f,--file", BL_ARG_TEXT, AT(file), "FILE", .instead = 1,
     .help = "read the text from FILE (- is standard input); one newline at its end is dropped"},
    {"--raw", BL_ARG_FLAG, AT(raw),
     .help = "no chat template around the text (this version has none)"},
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

/* One prompt and its continuation. */
struct run {
    const struct bl_report *report;
    const struct run_args *args;
    struct bl_engine *engine;
    struct bl_session *session;
    struct bl_sampler *sampler;
    struct bl_text *text;
    int32_t *prompt;
    size_t n_prompt, n_generated, n_steps; /* steps: decodes of one token */
    uint64_t prompt_ns, decode_ns;
    uint32_t chunk_tokens, last_row; /* last_row: batch entry of the prompt's last token */
    const char *stopped;             /* why, in words */
};

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int failed(const struct run *r, enum bl_status st)
{
    return bl_report_status(r->report, BL_STAGE_RUN, st);
}

/* ---- preparing
 * ---------------------------------------------------------------------------------------- */

static int tokenize_prompt(struct run *r, const char *text, size_t n)
{
    const struct bl_vocab *vocab = bl_engine_vocab(r->engine);
    uint64_t ctx = bl_engine_ctx(r->engine);

    if (!vocab) {
        bl_report_error(r->report, "the model file has no tokenizer; 'ballast logits' takes ids");
        return BL_EXIT_MODEL;
    }
    enum bl_status st = bl_tokenize(vocab, text, n, BL_TOK_ADD_SPECIAL | BL_TOK_PARSE_SPECIAL,
                                    &r->prompt, &r->n_prompt);
    if (st)
        return failed(r, st);
    if (!r->n_prompt) {
        bl_report_error(r->report, "the prompt is empty and the model has no token to begin with");
        return BL_EXIT_FAILURE;
    }
    if (r->n_prompt > ctx) {
        bl_report_error(r->report,
                        "the prompt has %zu tokens but the context holds %" PRIu64
                        "; make it larger with -c",
                        r->n_prompt, ctx);
        return BL_EXIT_FAILURE;
    }
    return BL_EXIT_OK;
}

static struct bl_sampling sampling_of(const struct run *r)
{
    const struct run_args *a = r->args;
    /* The library reads 0 as "off" or "default" where these options mean the least possible. */
    struct bl_sampling s = {
        .temp = (float)a->temp,
        .top_k = (uint32_t)a->top_k,
        .top_p = a->top_p > 0 ? (float)a->top_p : 1e-9f,
        .min_p = (float)a->min_p,
        .repeat_penalty = a->repeat_last ? (float)a->repeat_penalty : 1.0f,
        .repeat_last =
            a->repeat_last < 0 ? (uint32_t)bl_engine_ctx(r->engine) : (uint32_t)a->repeat_last,
        .seed = a->seed < 0 ? now_ns() & 0xffffffffu : (uint64_t)a->seed,
    };
    if (s.temp > 0 && a->seed < 0)
        bl_report_note(r->report, "seed %" PRIu64, s.seed);
    return s;
}

static int prepare(struct run *r, const char *text, size_t n)
{
    int code = tokenize_prompt(r, text, n);
    if (code)
        return code;

    struct bl_sampling sampling = sampling_of(r);
    enum bl_status st = bl_session_create(&r->session, r->engine);
    if (!st)
        st = bl_sampler_create(&r->sampler, &sampling, bl_engine_n_vocab(r->engine));
    if (!st)
        st = bl_text_create(&r->text, bl_engine_vocab(r->engine), false);
    if (st)
        return failed(r, st);
    for (size_t i = 0; i < r->n_prompt; i++)
        bl_sampler_accept(r->sampler, r->prompt[i]);
    return BL_EXIT_OK;
}

/* ---- computing
 * ---------------------------------------------------------------------------------------- */

/* Physical batches one by one, so that an interruption waits for no more than one of them. */
static int feed_prompt(struct run *r)
{
    uint32_t cap = r->n_prompt < r->chunk_tokens ? (uint32_t)r->n_prompt : r->chunk_tokens;
    struct bl_session **session = malloc(cap * sizeof *session);
    uint8_t *no_logits = calloc(cap, 1);
    enum bl_status st = BL_OK;
    uint64_t start = now_ns();
    int code = BL_EXIT_FAILURE;

    if (!session || !no_logits) {
        bl_report_error(r->report, "out of memory");
        goto out;
    }
    for (uint32_t i = 0; i < cap; i++)
        session[i] = r->session;
    for (size_t done = 0; done < r->n_prompt && !st && !bl_interrupt_code();) {
        size_t left = r->n_prompt - done;
        struct bl_batch b = {.n = left < cap ? (uint32_t)left : cap,
                             .token = r->prompt + done,
                             .session = session,
                             .want_logits = left > cap ? no_logits : NULL};
        st = bl_decode(r->engine, &b);
        done += b.n;
        r->last_row = b.n - 1;
    }
    r->prompt_ns = now_ns() - start;
    code = st ? failed(r, st) : BL_EXIT_OK;
out:
    free(session);
    free(no_logits);
    return code;
}

static bool print_token(struct run *r, int32_t id, enum bl_status *st)
{
    const char *bytes;
    size_t n;

    *st = bl_text_push(r->text, id, &bytes, &n);
    return !*st && bl_out_write(r->report, bytes, n);
}

/* Samples from the row at hand, prints, feeds back; exit code. */
static int generate(struct run *r)
{
    const struct bl_vocab *vocab = bl_engine_vocab(r->engine);
    uint64_t limit = r->args->n_predict < 0 ? UINT64_MAX : (uint64_t)r->args->n_predict;
    const float *logits = bl_logits(r->engine, r->last_row);
    enum bl_status st;

    for (;;) {
        r->stopped = "interrupted";
        if (bl_interrupt_code())
            return bl_interrupt_code();
        r->stopped = "-n reached";
        if (r->n_generated >= limit)
            return BL_EXIT_OK;
        int32_t id = bl_sampler_pick(r->sampler, logits);
        r->stopped = "end token";
        if (bl_vocab_is_end(vocab, id))
            return BL_EXIT_OK;
        bl_sampler_accept(r->sampler, id);
        r->n_generated++;
        if (!print_token(r, id, &st))
            return st ? failed(r, st) : BL_EXIT_FAILURE;
        r->stopped = "context full";
        if (bl_session_n_tokens(r->session) >= bl_engine_ctx(r->engine))
            return BL_EXIT_OK;
        if (r->n_generated >= limit)
            continue;

        struct bl_batch one = {.n = 1, .token = &id, .session = &r->session};
        uint64_t start = now_ns();
        if ((st = bl_decode(r->engine, &one)))
            return failed(r, st);
        r->decode_ns += now_ns() - start;
        r->n_steps++;
        logits = bl_logits(r->engine, 0);
    }
}

/* ---- ending
 * ------------------------------------------------------------------------------------------- */

static double per_second(size_t n, uint64_t ns)
{
    return ns ? (double)n * 1e9 / (double)ns : 0;
}

static void report_speed(const struct run *r)
{
    double prompt = per_second(r->n_prompt, r->prompt_ns);
    double decode = per_second(r->n_steps, r->decode_ns);

    if (r->report->json) {
        fprintf(stderr,
                "{\"event\":\"done\",\"prompt_tokens\":%zu,\"prompt_tokens_per_s\":%.2f,"
                "\"generated_tokens\":%zu,\"decode_tokens_per_s\":%.2f,\"stopped\":\"%s\"}\n",
                r->n_prompt, prompt, r->n_generated, decode, r->stopped);
        return;
    }
    bl_report_note(
        r->report,
        "prompt %zu tokens, %.1f tokens/s; decode %zu tokens, %.1f tokens/s; stopped: %s",
        r->n_prompt, prompt, r->n_generated, decode, r->stopped);
}

/* Prints what was held back, ends the line on a terminal, closes stdout. */
static int finish_output(struct run *r, int code)
{
    const char *bytes;
    size_t n;
    bool good = !bl_text_flush(r->text, &bytes, &n) && bl_out_write(r->report, bytes, n);

    if (good && isatty(STDOUT_FILENO))
        good = bl_out_write(r->report, "\n", 1);
    if (good && bl_out_close(r->report))
        good = false;
    return good || code ? code : BL_EXIT_FAILURE;
}

static int run_prompt(struct bl_report *report, const struct run_args *args,
                      struct bl_engine_args *engine_args, const char *text, size_t n)
{
    struct run r = {.report = report,
                    .args = args,
                    .chunk_tokens = (uint32_t)engine_args->ubatch_tokens,
                    .stopped = "interrupted"};
    int code = bl_engine_args_open(report, engine_args, &r.engine);

    if (!code)
        code = prepare(&r, text, n);
    if (code)
        goto out;
    bl_interrupt_catch();
    code = feed_prompt(&r);
    if (!code)
        code = generate(&r);
    if (code == BL_EXIT_OK || code == bl_interrupt_code()) {
        code = finish_output(&r, code);
        report_speed(&r);
    }
    if (engine_args->verbose)
        bl_engine_args_memory(report, r.engine);
out:
    bl_text_destroy(r.text);
    bl_sampler_destroy(r.sampler);
    bl_session_destroy(r.session);
    bl_close(r.engine);
    free(r.prompt);
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
        bl_model_group(&engine_args),
        {"Prompt", prompt_rows, COUNT(prompt_rows), &args},
        {"Sampling", sampling_rows, COUNT(sampling_rows), &args},
        bl_engine_group(&engine_args),
        bl_rope_group(&engine_args),
        bl_machine_group(&engine_args),
        bl_message_group(&engine_args),
    };
    struct bl_command command = {
        .report = {.verb = "run"},
        .usage = "-m FILE (-p TEXT | -f FILE) [options]",
        .about = "Prints the continuation of a text, and nothing else, on standard output.",
        .groups = groups,
        .n_groups = COUNT(groups),
        .more = "Ctrl-C stops after the current token, a second one at once.\n\n"
                "Examples:\n"
                "  ballast run -m model.gguf -p \"The capital of France is\" -n 32\n"
                "  ballast run -m model.gguf -f story.txt --temp 0.8 --seed 1 > "
                "ending.txt\n\n" BL_EXIT_CODES_HELP,
    };
    enum bl_parsed parsed = bl_args_parse(&command, argc, argv);
    if (parsed != BL_PARSED)
        return bl_args_code(&command, parsed);
    int code = bl_engine_args_check(&command, &engine_args);
    if (code)
        return code;

    char *file_text = NULL;
    const char *text = args.prompt;
    size_t n = text ? strlen(text) : 0;
    if (args.file) {
        if (!bl_io_read(&command.report, args.file, &file_text, &n))
            return BL_EXIT_FAILURE;
        text = file_text;
        n -= n && text[n - 1] == '\n'; /* editors add it; models take it for a finished line */
    }
    code = run_prompt(&command.report, &args, &engine_args, text, n);
    free(file_text);
    return code;
}

/* SPDX-License-Identifier: MIT */
/* logits.c — `ballast logits`: raw output for given ids, to be compared with other programs. */
#include "common/engine_args.h"
#include "common/io.h"
#include "verbs.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

struct logits_args {
    const char *ids, *ids_file, *out, *chunks;
    int64_t greedy;
};
#define AT(member) offsetof(struct logits_args, member)

static const struct bl_arg logits_rows[] = {
    {"--ids", BL_ARG_TEXT, AT(ids), "LIST", .instead = 1, .required = true,
     .help = "token ids, separated by spaces or commas; nothing is put before them"},
    {"--ids-file", BL_ARG_TEXT, AT(ids_file), "FILE", .instead = 1,
     .help = "read the ids from FILE (- is standard input)"},
    {"-o,--output", BL_ARG_TEXT, AT(out), "FILE", .out = BL_ARG_OUT_STDOUT,
     .help =
         "write the logits of every position: little-endian float32, one vocabulary a row (- is "
         "standard output)"},
    {"--greedy", BL_ARG_INT, AT(greedy), "N", 0, 1 << 20,
     .help = "print the ids of the N likeliest tokens that follow, one after the other; end tokens "
             "do not stop it"},
    {"--chunks", BL_ARG_TEXT, AT(chunks), "LIST",
     .help = "tokens of the successive steps; the last is repeated (default: the batch size)"},
};

struct logits {
    const struct bl_report *report;
    struct bl_engine *engine;
    struct bl_session *session, **sessions; /* sessions: one per token of the largest step */
    int32_t *ids, *chunks;
    size_t n_ids, n_chunks;
    uint32_t chunk_max;
    uint8_t *all_rows;
    struct bl_out_file out;
    bool want_file;
    const float *last; /* logits row of the last token */
};

/* ---- input ---------------------------------------------------------------------------------- */

static int read_ids(struct logits *l, const struct bl_command *c, const struct logits_args *a)
{
    char error[160], *text = NULL;
    size_t n;

    if (a->ids)
        return bl_args_numbers(a->ids, 0, INT32_MAX, &l->ids, &l->n_ids, error)
                   ? BL_EXIT_OK
                   : bl_args_fail(c, "--ids: %s", error);
    if (!bl_io_read(l->report, a->ids_file, &text, &n))
        return BL_EXIT_USAGE;
    bool good = !memchr(text, 0, n);
    if (good)
        good = bl_args_numbers(text, 0, INT32_MAX, &l->ids, &l->n_ids, error);
    else
        snprintf(error, sizeof error, "holds a NUL byte; it must be text");
    free(text);
    if (good)
        return BL_EXIT_OK;
    bl_report_error(l->report, "%s: %s", a->ids_file, error);
    return BL_EXIT_USAGE;
}

/* Sizes of steps, and with them how many rows a step can give. */
static int read_chunks(struct logits *l, const struct bl_command *c, const struct logits_args *a,
                       struct bl_engine_args *e)
{
    char error[160];
    int64_t max = e->batch_tokens;

    if (a->chunks && !bl_args_numbers(a->chunks, 1, max, &l->chunks, &l->n_chunks, error))
        return bl_args_fail(c, "--chunks: %s", error);
    for (size_t i = 0; i < l->n_chunks; i++)
        l->chunk_max =
            (uint32_t)l->chunks[i] > l->chunk_max ? (uint32_t)l->chunks[i] : l->chunk_max;
    if (!a->chunks)
        l->chunk_max = (uint32_t)max;
    if (l->chunk_max > l->n_ids)
        l->chunk_max = (uint32_t)l->n_ids;
    e->out_tokens = l->want_file ? l->chunk_max : 1;
    return BL_EXIT_OK;
}

static int check_ids(const struct logits *l, int64_t n_greedy)
{
    uint32_t n_vocab = bl_engine_n_vocab(l->engine);
    uint64_t ctx = bl_engine_ctx(l->engine);

    for (size_t i = 0; i < l->n_ids; i++)
        if ((uint32_t)l->ids[i] >= n_vocab) {
            bl_report_error(l->report, "id %d at position %zu is outside the vocabulary of %u",
                            l->ids[i], i, n_vocab);
            return BL_EXIT_FAILURE;
        }
    /* The last greedy id is chosen, not fed. */
    uint64_t need = l->n_ids + (uint64_t)(n_greedy > 0 ? n_greedy - 1 : 0);
    if (need > ctx) {
        bl_report_error(l->report,
                        "%" PRIu64 " tokens are asked for but the context holds %" PRIu64
                        "; make it larger with -c",
                        need, ctx);
        return BL_EXIT_FAILURE;
    }
    return BL_EXIT_OK;
}

/* ---- computing ------------------------------------------------------------------------------ */

static bool write_rows(struct logits *l, uint32_t n)
{
    size_t n_vocab = bl_engine_n_vocab(l->engine);

    for (uint32_t i = 0; i < n; i++)
        if (!bl_out_file_write(l->report, &l->out, bl_logits(l->engine, i),
                               n_vocab * sizeof(float)))
            return false;
    return true;
}

static int feed_ids(struct logits *l)
{
    size_t next_chunk = 0;

    for (size_t done = 0; done < l->n_ids;) {
        size_t left = l->n_ids - done;
        uint32_t n = l->n_chunks ? (uint32_t)l->chunks[next_chunk] : l->chunk_max;
        if (next_chunk + 1 < l->n_chunks)
            next_chunk++;
        n = n < left ? n : (uint32_t)left;
        if (bl_interrupt_code())
            return bl_interrupt_code();
        struct bl_batch b = {.n = n,
                             .token = l->ids + done,
                             .session = l->sessions,
                             .want_logits = l->want_file ? l->all_rows : NULL};
        enum bl_status st = bl_decode(l->engine, &b);
        if (st)
            return bl_report_status(l->report, BL_STAGE_RUN, st);
        if (l->want_file && !write_rows(l, n))
            return BL_EXIT_FAILURE;
        l->last = bl_logits(l->engine, n - 1);
        done += n;
    }
    return BL_EXIT_OK;
}

static int continue_greedily(struct logits *l, int64_t n, FILE *f)
{
    const struct bl_sampling greedy = {0};
    struct bl_sampler *sampler;
    enum bl_status st = bl_sampler_create(&sampler, &greedy, bl_engine_n_vocab(l->engine));

    if (st)
        return bl_report_status(l->report, BL_STAGE_RUN, st);
    for (int64_t i = 0; i < n && !st && !bl_interrupt_code(); i++) {
        int32_t id = bl_sampler_pick(sampler, l->last);
        fprintf(f, "%s%d", i ? " " : "", id);
        if (i + 1 == n)
            break;
        struct bl_batch one = {.n = 1, .token = &id, .session = &l->session};
        st = bl_decode(l->engine, &one);
        l->last = bl_logits(l->engine, 0);
    }
    fputc('\n', f);
    bl_sampler_destroy(sampler);
    return st ? bl_report_status(l->report, BL_STAGE_RUN, st) : bl_interrupt_code();
}

static int print_greedy(struct logits *l, int64_t n)
{
    struct bl_out_page page;
    FILE *f = bl_out_page_begin(&page);
    int code = f ? continue_greedily(l, n, f) : BL_EXIT_FAILURE;
    int end = bl_out_page_end(l->report, &page);

    return code ? code : end;
}

static int compute(struct logits *l, int64_t n_greedy)
{
    enum bl_status st = bl_session_create(&l->session, l->engine);

    if (st)
        return bl_report_status(l->report, BL_STAGE_RUN, st);
    l->sessions = malloc(l->chunk_max * sizeof *l->sessions);
    l->all_rows = malloc(l->chunk_max);
    if (!l->sessions || !l->all_rows) {
        bl_report_error(l->report, "out of memory");
        return BL_EXIT_FAILURE;
    }
    memset(l->all_rows, 1, l->chunk_max);
    for (uint32_t i = 0; i < l->chunk_max; i++)
        l->sessions[i] = l->session;
    int code = feed_ids(l);
    if (!code && l->want_file && !bl_out_file_commit(l->report, &l->out))
        code = BL_EXIT_FAILURE;
    return code || !n_greedy ? code : print_greedy(l, n_greedy);
}

static int evaluate(struct bl_command *c, struct logits *l, const struct logits_args *a,
                    struct bl_engine_args *e)
{
    int code = read_ids(l, c, a);

    if (!code)
        code = read_chunks(l, c, a, e);
    if (!code)
        code = bl_engine_args_open(&c->report, e, &l->engine);
    if (!code)
        code = check_ids(l, a->greedy);
    if (code)
        return code;
    bl_interrupt_catch(); /* before there is a file to take back */
    /* An output that cannot be written is said before the work is done. */
    if (l->want_file && !bl_out_file_create(l->report, &l->out, a->out))
        return BL_EXIT_FAILURE;
    code = compute(l, a->greedy);
    if (e->verbose)
        bl_engine_args_memory(l->report, l->engine);
    const int saved = bl_engine_args_experts(l->report, e, l->engine);
    const int traced = bl_engine_args_trace(l->report, e, l->engine);
    return code ? code : saved ? saved : traced;
}

int bl_verb_logits(int argc, char **argv)
{
    struct logits_args args = {0};
    struct bl_engine_args engine_args;
    bl_engine_args_init(&engine_args);
    const struct bl_arg_group groups[] = {
        bl_model_group(&engine_args),   {"Tokens", logits_rows, COUNT(logits_rows), &args},
        bl_engine_group(&engine_args),  bl_rope_group(&engine_args),
        bl_machine_group(&engine_args), bl_rule_group(&engine_args.rules),
        bl_message_group(&engine_args),
    };
    struct bl_command command = {
        .report = {.verb = "logits"},
        .usage = "-m FILE (--ids LIST | --ids-file FILE) [-o FILE] [--greedy N] [options]",
        .about = "Evaluates token ids and gives the numbers before any sampling.",
        .groups = groups,
        .n_groups = COUNT(groups),
        .more = "Examples:\n"
                "  ballast logits -m model.gguf --ids \"1 403 407\" -o out.f32 --exact\n"
                "  ballast logits -m model.gguf --ids-file ids.txt --chunks 7,1,32 --greedy "
                "24\n\n" BL_EXIT_CODES_HELP,
    };
    enum bl_parsed parsed = bl_args_parse(&command, argc, argv);
    if (parsed != BL_PARSED)
        return bl_args_code(&command, parsed);
    int code = bl_engine_args_check(&command, &engine_args);
    if (code)
        return code;
    if (!args.out && !args.greedy)
        return bl_args_fail(&command, "nothing to do: give -o FILE, --greedy N or both");
    if (args.out && bl_out_is_stdout(args.out) && args.greedy)
        return bl_args_fail(&command, "-o %s and --greedy would both write to standard output",
                            args.out);

    struct logits l = {.report = &command.report, .want_file = args.out};
    code = evaluate(&command, &l, &args, &engine_args);
    bl_out_file_abandon(&l.out);
    bl_session_destroy(l.session);
    bl_close(l.engine);
    free(l.ids);
    free(l.chunks);
    free(l.sessions);
    free(l.all_rows);
    return code;
}

/* SPDX-License-Identifier: MIT */
/* info.c — `ballast info`: what a model file holds, from its header alone; what this processor
 * gets. */
#include "common/engine_args.h"
#include "common/io.h"
#include "info_json.h"
#include "verbs.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

struct info_args {
    bool tensors, full, cpu, machines;
    int format; /* index of FORMAT_WORDS */
};
#define AT(member) offsetof(struct info_args, member)
#define FORMAT_WORDS "table|json"
enum { FORMAT_TABLE, FORMAT_JSON };

struct info {
    struct info_args args;
    struct bl_engine_args engine;
    struct bl_gguf *gguf;
    struct bl_state_info state;
    bool state_asked, state_known;
    char why[512]; /* it is not */
};

static const struct bl_arg info_rows[] = {
    {"--tensors", BL_ARG_FLAG, AT(tensors), .help = "list every tensor (json always does)"},
    {"--format", BL_ARG_CHOICE, AT(format), FORMAT_WORDS,
     .help = "table for people (default), json for programs"},
    {"--full", BL_ARG_FLAG, AT(full), .help = "json: arrays in full, not only their first items"},
    {"--cpu", BL_ARG_FLAG, AT(cpu),
     .help = "threads and kernels that this processor gets; needs no model"},
    {"--machines", BL_ARG_FLAG, AT(machines),
     .help = "list the machines that --machine knows by name, and nothing else"},
};

/* ---- the model ------------------------------------------------------------------------------ */

static void print_text(FILE *f, const char *label, const struct bl_kv *kv)
{
    char text[256];
    uint64_t n;

    if (!kv || kv->type != BL_VAL_STRING || kv->data_bytes < sizeof n)
        return;
    memcpy(&n, kv->data, sizeof n);
    if (n > kv->data_bytes - sizeof n)
        return;
    bl_clean_text(text, sizeof text, (const char *)kv->data + sizeof n, (size_t)n, true);
    fprintf(f, "%-14s %s\n", label, text);
}

/* An integer of any width, or the smallest and largest of a per-layer array. */
static bool number_range(const struct bl_kv *kv, uint64_t *min, uint64_t *max)
{
    *min = UINT64_MAX;
    *max = 0;
    for (uint64_t i = 0; kv && i < kv->n; i++) {
        uint64_t v;
        if (!bl_info_integer(kv, i, &v))
            return false;
        *min = v < *min ? v : *min;
        *max = v > *max ? v : *max;
    }
    return kv && kv->n;
}

static const struct bl_kv *model_key(const struct bl_gguf *g, const char *suffix)
{
    const struct bl_kv *arch = bl_info_find(g, "general.architecture");
    char key[160];
    uint64_t n;

    if (!arch || arch->type != BL_VAL_STRING || arch->data_bytes < sizeof n)
        return NULL;
    memcpy(&n, arch->data, sizeof n);
    if (n > 64 || n > arch->data_bytes - sizeof n)
        return NULL;
    snprintf(key, sizeof key, "%.*s.%s", (int)n, (const char *)arch->data + sizeof n, suffix);
    return bl_info_find(g, key);
}

static void print_numbers(FILE *f, const struct bl_gguf *g)
{
    static const struct {
        const char *label, *suffix;
    } row[] = {
        {"context", "context_length"},     {"layers", "block_count"},
        {"embedding", "embedding_length"}, {"feed-forward", "feed_forward_length"},
        {"heads", "attention.head_count"}, {"kv heads", "attention.head_count_kv"},
        {"experts", "expert_count"},       {"experts used", "expert_used_count"},
    };

    for (size_t i = 0; i < COUNT(row); i++) {
        uint64_t min, max;
        if (!number_range(model_key(g, row[i].suffix), &min, &max))
            continue;
        fprintf(f, "%-14s %" PRIu64, row[i].label, min);
        if (max != min)
            fprintf(f, " to %" PRIu64, max);
        fputc('\n', f);
    }
    const struct bl_kv *tokens = bl_info_find(g, "tokenizer.ggml.tokens");
    if (tokens)
        fprintf(f, "%-14s %" PRIu64 " tokens\n", "vocabulary", tokens->n);
    print_text(f, "tokenizer", bl_info_find(g, "tokenizer.ggml.model"));
    print_text(f, "pre-tokenizer", bl_info_find(g, "tokenizer.ggml.pre"));
}

static void print_parameters(FILE *f, const struct bl_info_types *t)
{
    double n = (double)t->parameters;
    double bits = n > 0 ? 8.0 * (double)t->bytes / n : 0;

    if (n >= 1e9)
        fprintf(f, "%-14s %.2f billion, %.2f bits each\n", "parameters", n * 1e-9, bits);
    else
        fprintf(f, "%-14s %.2f million, %.2f bits each\n", "parameters", n * 1e-6, bits);
}

static void print_types(FILE *f, const struct bl_info_types *t)
{
    for (size_t i = 0; i < t->n; i++) {
        char bytes[24];
        bl_format_bytes(bytes, (double)t->row[i].bytes);
        fprintf(f, "%-14s %-8s %6u tensors %12s\n", i ? "" : "types", t->row[i].name,
                t->row[i].tensors, bytes);
    }
}

static void print_files(FILE *f, const struct bl_gguf *g)
{
    uint32_t n = bl_gguf_n_shards(g);

    for (uint32_t i = 0; i < n; i++) {
        const char *path = bl_gguf_shard_path(g, i);
        char bytes[24], text[512];
        bl_clean_text(text, sizeof text, path, strlen(path), true);
        bl_format_bytes(bytes, (double)bl_gguf_shard_bytes(g, i));
        fprintf(f, "%-14s %s, %s\n", i ? "" : n > 1 ? "files" : "file", text, bytes);
    }
}

/* A download that stopped, or a header kept on its own. */
static void print_missing(FILE *f, const struct bl_gguf *g, const struct bl_info_types *t)
{
    uint64_t n = bl_gguf_missing_bytes(g);

    if (n)
        fprintf(f, "%s: %" PRIu64 " bytes of tensor data are missing\n",
                n < t->bytes ? "incomplete" : "header only", n);
}

static void print_state_line(FILE *f, const struct bl_state_line *l)
{
    char span[32] = "";

    if (l->span_tokens > 1)
        snprintf(span, sizeof span, " of %u", l->span_tokens);
    fprintf(f,
            "  %-12s %s%-*s %-5s %4u layers x %9" PRIu64 " rows x %7" PRIu64 " B %16" PRIu64 "\n",
            l->name, l->law, (int)(18 - strlen(l->law)), span, l->type_name, l->layers, l->rows,
            l->row_bytes, l->bytes);
}

static void print_state(FILE *f, const struct info *info)
{
    const struct bl_state_info *s = &info->state;

    if (!info->state_known) {
        fprintf(f, "%-14s not known: %s\n", "cached state", info->why);
        return;
    }
    fprintf(f, "\ncached state, in bytes, of a session of %" PRIu64 " tokens, %u at a time\n",
            s->ctx_tokens, s->ubatch_tokens);
    for (uint32_t i = 0; i < s->n_lines; i++)
        print_state_line(f, &s->line[i]);
    fprintf(f, "  %-70s %16" PRIu64 "\n", "state", s->bytes);
    fprintf(f, "  %-70s %16" PRIu64 "\n", "ring slack: rows that windows keep beyond themselves",
            s->slack_bytes);
}

static void print_tensors(FILE *f, const struct bl_gguf *g)
{
    fprintf(f, "\n%-36s %-8s %-24s %14s\n", "tensor", "type", "shape", "bytes");
    for (uint32_t i = 0; i < bl_gguf_n_tensors(g); i++) {
        const struct bl_tensor_info *t = bl_gguf_tensor(g, i);
        char name[256], shape[100];
        size_t used = 0;
        for (uint32_t d = 0; d < t->n_dims; d++)
            used += (size_t)snprintf(shape + used, sizeof shape - used, "%s%" PRIu64,
                                     d ? " x " : "", t->ne[d]);
        bl_clean_text(name, sizeof name, t->name, strlen(t->name), true);
        fprintf(f, "%-36s %-8s %-24s %14" PRIu64 "\n", name, t->type_name, shape, t->bytes);
    }
}

static void print_model(FILE *f, const struct info *i)
{
    struct bl_info_types types;
    const struct bl_gguf *g = i->gguf;

    bl_info_types(&types, g);
    print_files(f, g);
    print_missing(f, g, &types);
    print_text(f, "architecture", bl_info_find(g, "general.architecture"));
    print_text(f, "name", bl_info_find(g, "general.name"));
    print_parameters(f, &types);
    print_numbers(f, g);
    print_types(f, &types);
    print_state(f, i);
    if (i->args.tensors)
        print_tensors(f, g);
}

/* ---- the verb ------------------------------------------------------------------------------- */

static void print_line(void *file, const char *text)
{
    fprintf(file, "%s\n", text);
}

static int show(const struct bl_report *r, const struct info *i)
{
    struct bl_out_page page;
    FILE *f = bl_out_page_begin(&page);
    int code = BL_EXIT_OK;

    if (f && i->args.format == FORMAT_JSON) {
        const struct bl_info_source source = {.gguf = i->gguf,
                                              .state = i->state_known ? &i->state : NULL,
                                              .cpu = i->args.cpu ? &i->engine : NULL,
                                              .full = i->args.full};
        code = bl_info_json(f, r, &source);
    } else if (f) {
        if (i->gguf)
            print_model(f, i);
        if (i->gguf && i->args.cpu)
            fputc('\n', f);
        if (i->args.cpu)
            code = bl_engine_args_describe(r, &i->engine, print_line, f);
    }
    if (code) {
        bl_out_page_drop(&page);
        return code;
    }
    return bl_out_page_end(r, &page);
}

/* A file that this build cannot run can be looked at all the same, unless its state is asked for.
 */
static int open_model(const struct bl_report *r, struct info *i)
{
    const struct bl_engine_args *e = &i->engine;
    const struct bl_options opt = {.ctx_tokens = (uint64_t)e->ctx_tokens,
                                   .batch_tokens = (uint32_t)e->batch_tokens,
                                   .ubatch_tokens = (uint32_t)e->ubatch_tokens,
                                   .type_k = e->type_k,
                                   .type_v = e->type_v,
                                   .rewind_tokens = (uint32_t)e->rewind_tokens};
    enum bl_status st = bl_gguf_open_header(&i->gguf, e->model);

    if (st)
        return bl_report_status(r, BL_STAGE_OPEN, st);
    st = bl_state_info_make(&i->state, i->gguf, &opt);
    i->state_known = !st;
    if (st && i->state_asked)
        return bl_report_status(r, BL_STAGE_OPEN, st);
    if (st)
        bl_clean_text(i->why, sizeof i->why, bl_error(), strlen(bl_error()), true);
    return BL_EXIT_OK;
}

static int list_machines(const struct bl_report *r)
{
    struct bl_out_page page;
    struct bl_machine_title t;
    FILE *f = bl_out_page_begin(&page);

    for (uint32_t i = 0; f && bl_machine_known(i, &t) == BL_OK; i++)
        fprintf(f, "%-24s %s\n", t.name, t.about);
    return bl_out_page_end(r, &page);
}

int bl_verb_info(int argc, char **argv)
{
    struct info info = {0};
    struct bl_engine_args *e = &info.engine;
    bl_engine_args_init(e);
    struct bl_arg model_row = bl_model_group(e).rows[0];
    model_row.required = false; /* --cpu alone is a question, too */
    const struct bl_arg_group groups[] = {
        {"Model", &model_row, 1, e},
        {"What to show", info_rows, COUNT(info_rows), &info.args},
        bl_state_group(e),
        bl_machine_group(e),
    };
    struct bl_command command = {
        .report = {.verb = "info"},
        .usage = "(-m FILE | --cpu | --machine FILE) [options]",
        .about =
            "Shows what a model file holds, reading its header only, or what this processor gets.",
        .groups = groups,
        .n_groups = COUNT(groups),
        .more = "Examples:\n"
                "  ballast info -m model.gguf --tensors\n"
                "  ballast info -m model.gguf -c 131072\n"
                "  ballast info -m model-00001-of-00003.gguf --format json\n"
                "  ballast info --cpu\n"
                "  ballast info --machine dgx-spark\n\n" BL_EXIT_CODES_HELP,
    };
    enum bl_parsed parsed = bl_args_parse(&command, argc, argv);
    if (parsed != BL_PARSED)
        return bl_args_code(&command, parsed);
    if (info.args.machines)
        return list_machines(&command.report);
    info.args.cpu |= e->machine_file != NULL;
    if (!e->model && !info.args.cpu)
        return bl_args_fail(&command, "missing -m FILE, --cpu or --machine FILE");

    info.state_asked =
        e->ctx_tokens || e->ubatch_tokens || e->type_k || e->type_v || e->rewind_tokens;
    int code = bl_engine_args_check(&command, e);
    bl_log_set(bl_report_log, &command.report, BL_LOG_WARN);
    if (!code && e->model)
        code = open_model(&command.report, &info);
    if (!code)
        code = show(&command.report, &info);
    bl_state_info_finish(&info.state);
    bl_gguf_close(info.gguf);
    return code;
}

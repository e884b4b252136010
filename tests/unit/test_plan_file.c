/* SPDX-License-Identifier: MIT */
/* Plan files: the same bytes again, edits that count, files that are wrong or for something else.
 */
#include "engine_rig.h"

#include "alloc_fail.h"
#include "machine_file.h"
#include "plan_fields.h"
#include "plan_file.h"
#include "schema_rig.h"

#include <time.h>
#include <unistd.h>

#define TWO_CARDS "2x-rtx-pro-4000"

static char path[] = "/tmp/ballast-plan-XXXXXX";

static void good(enum bl_status st)
{
    if (st)
        fail_msg("%s", bl_error());
}

static void refused(enum bl_status st, enum bl_status expected, const char *message)
{
    if (st != expected || strcmp(bl_error(), message))
        fail_msg("%d: %s\nexpected %d: %s", st, bl_error(), expected, message);
}

static void save(const char *text)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    assert_int_equal(fclose(f), 0);
}

/* A copy with the first `from` in it replaced. */
static char *edited(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    if (!at)
        fail_msg("'%s' is not in:\n%s", from, text);
    char *out = malloc(strlen(text) + strlen(to) + 1);
    assert_non_null(out);
    sprintf(out, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    return out;
}

/* ---- plans of made-up models ---- */

struct rig {
    struct bl_synth *synth;
    struct bl_placement *placement;
    struct bl_options opt;
    char *text;
    size_t n;
};

static void open_rig(struct rig *r, const char *shape, uint32_t layers, const char *machine)
{
    const struct bl_synth_options so = {.shape = shape, .layers = layers, .no_data = true};
    const struct bl_placement_options po = {.prefill_weight = 0.3};

    *r = (struct rig){.opt = {.machine_file = machine}};
    good(bl_synth_open(&r->synth, &so));
    good(bl_placement_make(&r->placement, bl_synth_gguf(r->synth), &r->opt, &po));
    good(bl_placement_json(r->placement, &r->text, &r->n));
    r->opt.plan_file = path;
}

static void close_rig(struct rig *r)
{
    bl_placement_close(r->placement);
    bl_synth_close(r->synth);
    free(r->text);
}

static enum bl_status judge(const struct rig *r, const char *text, struct bl_placement **out)
{
    save(text);
    return bl_placement_make(out, bl_synth_gguf(r->synth), &r->opt, NULL);
}

/* What is written of it when it is read. */
static char *again(const struct rig *r, const char *text)
{
    struct bl_placement *p;
    char *out;
    size_t n;

    good(judge(r, text, &p));
    good(bl_placement_json(p, &out, &n));
    assert_int_equal(n, strlen(out));
    bl_placement_close(p);
    return out;
}

/* What only a search knows: how other sizes of steps compare. */
static void drop_remarks(char *text)
{
    for (char *at; (at = strstr(text, "      \"steps of ")) != NULL;) {
        const char *next = strchr(at, '\n');
        at -= next[-1] == ',' ? 1 : 2; /* of the last, the comma before it goes too */
        memmove(at, next, strlen(next) + 1);
    }
}

static void same_bytes_again(void **state)
{
    static const struct {
        const char *shape, *machine;
        uint32_t layers;
    } rigs[] = {
        {"deepseek-v4-flash", "4x-rtx-3060-ddr4-4ch", 43},
        {"gpt-oss-120b", "rtx-3090-ddr5-2ch", 36},
        {"gpt-oss-120b", "strix-halo-128", 12},
        {"qwen3-next-80b", "rtx-pro-5000-72-48", 48},
        {"deepseek-v3", "granite-rapids-2s", 8},
        {"llama-3-8b", "rtx-4090-ddr5-2ch", 32},
        {"qwen3-30b-a3b", TWO_CARDS, 48},
    };
    (void)state;
    for (size_t i = 0; i < BL_COUNT(rigs); i++) {
        struct rig r;
        open_rig(&r, rigs[i].shape, rigs[i].layers, rigs[i].machine);
        char *second = again(&r, r.text);
        drop_remarks(r.text);
        assert_string_equal(r.text, second);
        free(second);
        close_rig(&r);
    }
}

/* From one member of the texts up to another. */
static void same_part(const char *a, const char *b, const char *from, const char *to)
{
    const char *at = strstr(a, from), *other = strstr(b, from), *end = strstr(at, to);
    if (strncmp(at, other, (size_t)(end - at)) != 0)
        fail_msg("%.*s\nis now %.*s", (int)(end - at), at, (int)(end - at), other);
}

/* The plan that running makes for this machine, for every family. */
static void reference_models(void **state)
{
    static const char *const models[] = {"llama-f32",        "gpt-oss-mxfp4", "deepseek2-f32",
                                         "deepseek4-f32",    "qwen35moe-f32", "gemma3-f32",
                                         "phi4mini-long-f32"};
    (void)state;
    for (size_t i = 0; i < BL_COUNT(models); i++) {
        struct bl_options opt = {.threads = 2, .type_k = "f32", .rewind_tokens = 3};
        char model[512], *first, *second;
        struct bl_placement *p;
        struct bl_gguf *g;
        size_t n;
        snprintf(model, sizeof model, MODELS "%s.gguf", models[i]);
        good(bl_gguf_open(&g, model));
        good(bl_placement_make(&p, g, &opt, NULL));
        good(bl_placement_json(p, &first, &n));
        bl_placement_close(p);
        save(first);
        opt = (struct bl_options){.plan_file = path};
        good(bl_placement_make(&p, g, &opt, NULL));
        good(bl_placement_json(p, &second, &n));
        /* What is free in RAM moves between the two. */
        same_part(first, second, "ballast_plan", "usable_bytes");
        same_part(first, second, "settings", "devices");
        same_part(first, second, "memory", "notes");
        bl_placement_close(p);
        bl_gguf_close(g);
        free(first);
        free(second);
    }
}

/* ---- edits ---- */

static const char *note(const struct bl_placement *p, const char *begin)
{
    const char *text;
    for (uint32_t i = 0; i < bl_placement_note(p, i, &text); i++)
        if (!strncmp(text, begin, strlen(begin)))
            return text;
    return NULL;
}

static void an_edit_is_counted_and_said(void **state)
{
    struct bl_placement_info before, after;
    struct bl_placement_group g;
    struct bl_placement *p;
    struct rig r;
    (void)state;
    open_rig(&r, "gpt-oss-20b", 0, "rtx-3090-ddr5-2ch");
    bl_placement_describe(r.placement, &before);
    char *moved =
        edited(r.text, "{\"layers\": \"0-23\", \"part\": \"experts\", \"device\": \"gpu0\"}",
               "{\"layers\": \"0-19\", \"part\": \"experts\", \"device\": \"gpu0\"},\n"
               "{\"layers\": \"20-23\", \"part\": \"experts\", \"device\": \"cpu0\"}");
    good(judge(&r, moved, &p));
    bl_placement_describe(p, &after);
    assert_true(after.decode.tok_per_s < 0.9 * before.decode.tok_per_s);
    assert_int_equal(bl_placement_group(p, 1, &g), 2);
    assert_int_equal(g.first, 20);
    assert_string_equal(g.experts, "cpu0");
    assert_non_null(strstr(g.why_experts, "as the plan says"));
    assert_non_null(note(p, "planned memory redone: cpu0 "));
    assert_non_null(note(p, "prediction redone: decode "));
    bl_placement_close(p);
    /* Once it was written anew there is nothing to say. */
    char *second = again(&r, moved), *third = again(&r, second);
    assert_string_equal(second, third);
    assert_non_null(strstr(second, "\"placed_by\": \"hand\""));
    good(judge(&r, second, &p));
    assert_null(note(p, "planned memory redone"));
    assert_null(note(p, "prediction redone"));
    bl_placement_close(p);
    free(moved);
    free(second);
    free(third);
    close_rig(&r);
}

static void rows_in_any_form(void **state)
{
    struct rig r;
    (void)state;
    open_rig(&r, "gpt-oss-20b", 4, TWO_CARDS);
    const char *from = "\"placement\": [", *end = strstr(r.text, "  \"derived\"");
    char *text = malloc(r.n + 1024);
    assert_non_null(text);
    /* No derived half, aliases, rows that overlap in nothing, single layers as numbers. */
    sprintf(text,
            "%.*s%s {\"layer\": 2, \"experts\": 5, \"device\": \"cpu0\"}, {\"layer\": 2, "
            "\"experts\": \"6-9\", "
            "\"device\": \"cpu0\"}, {\"layers\": 3, \"part\": \"ffn\", \"device\": \"gpu0\"}, "
            "{\"layers\": \"0-3\", "
            "\"part\": \"attn\", \"device\": \"gpu1\"}, {\"part\": \"head\", \"device\": "
            "\"gpu0\"}, {\"layers\": "
            "\"1-3\", \"part\": \"experts\", \"device\": \"gpu0\"}, {\"layers\": \"0\", \"part\": "
            "\"experts\", "
            "\"device\": \"gpu1\"}, {\"part\": \"embed\", \"device\": \"cpu0\"}]}",
            (int)(strstr(r.text, from) - r.text), r.text, from);
    assert_non_null(end);
    char *second = again(&r, text);
    const char *want = "  \"placement\": [\n"
                       "    {\"part\": \"embed\", \"device\": \"cpu0\"},\n"
                       "    {\"part\": \"head\", \"device\": \"gpu0\"},\n"
                       "    {\"layers\": \"0-3\", \"part\": \"attn\", \"device\": \"gpu1\"},\n"
                       "    {\"layers\": \"3\", \"part\": \"ffn\", \"device\": \"gpu0\"},\n"
                       "    {\"layers\": \"0\", \"part\": \"experts\", \"device\": \"gpu1\"},\n"
                       "    {\"layers\": \"1-3\", \"part\": \"experts\", \"device\": \"gpu0\"},\n"
                       "    {\"layer\": 2, \"experts\": \"5-9\", \"device\": \"cpu0\"}\n"
                       "  ],\n";
    if (!strstr(second, want))
        fail_msg("%s", second);
    char *third = again(&r, second);
    assert_string_equal(second, third);
    free(text);
    free(second);
    free(third);
    close_rig(&r);
}

/* ---- what is refused ---- */

static void wrong_files(void **state)
{
    static const struct {
        const char *from, *to, *message; /* message behind "plan NAME" */
    } bad[] = {
        {"\"ballast_plan\": 1", "\"ballast_plan\": 2",
         ": ballast_plan is 2; this build reads format 1"},
        {"\"ballast_plan\": 1,", "", ": no plan: its first member must be \"ballast_plan\": 1"},
        {"\"settings\"", "\"setings\"", ": setings is not known; the nearest is 'settings'"},
        {"\"ctx_tokens\": 4096", "\"ctx_tokens\": -1",
         ": settings.ctx_tokens is -1; it must lie between 1 and 1.073742e+09"},
        {"\"ctx_tokens\": 4096", "\"ctx_tokens\": \"4096\"",
         ": settings.ctx_tokens must be a number"},
        {"\"ubatch_tokens\": 2048", "\"ubatch_tokens\": 4096",
         ": settings.ubatch_tokens is 4096, more than batch_tokens, which is 2048"},
        {"\"type_v\": \"f16\"", "\"type_v\": \"q2_k\"",
         ": settings.type_v is 'q2_k'; what is cached can be f32, f16, bf16, q8_0 or q4_0"},
        {"\"mmap\": false", "\"mmap\": false, \"threads\": 1025",
         ": settings.threads is 1025; it must lie between 0 and 1024"},
        {"\"type_k\": \"f16\"", "\"type_k\": \"f17\"",
         ": settings.type_k must name a tensor type: 'f17' is no tensor type; near it: f16"},
        {"\"mmap\": false", "\"mmap\": 0", ": settings.mmap must be true or false"},
        {"\"mem_bytes\": ", "\"mem_bytes\": -",
         ": machine.devices[0].mem_bytes is -1.717987e+11; it must lie between 0 and 1.1259e+15"},
        {"\"id\": \"gpu1\"", "\"id\": \"gpu0\"",
         ": machine.devices[2] has the id 'gpu0' of an earlier one"},
        {"\"part\": \"head\", \"device\": \"gpu0\"", "\"part\": \"head\", \"device\": \"gpu2\"",
         ": placement[1].device 'gpu2' is no device of the plan's machine; the nearest is 'gpu0'"},
        {"\"part\": \"head\"", "\"part\": \"haed\"",
         ": placement[1].part 'haed' is not known; the nearest is 'head'"},
        {"\"part\": \"head\"", "\"part\": \"embed\"",
         ": placement[1] places embed, as placement[0] does"},
        {"{\"part\": \"head\", \"device\": \"gpu0\"},", "", ": placement has no row for head"},
        {"{\"part\": \"head\"", "{\"layers\": \"1\", \"slots\": 0",
         ": placement[1].slots is 0; it must lie between 1 and 1048576"},
        {"{\"part\": \"head\"", "{\"layers\": \"1\", \"part\": \"head\"",
         ": placement[1].layers do not have 'head'"},
        {"{\"layers\": \"0-3\", \"part\": \"attn\"", "{\"part\": \"attn\"",
         ": placement[2] must have a member 'layers'"},
        {"{\"layers\": \"0-3\", \"part\": \"attn\"", "{\"layers\": \"0-2\", \"part\": \"attn\"",
         ": placement has no row for attn of layer 3"},
        {"{\"layers\": \"0-3\", \"part\": \"experts\"",
         "{\"layers\": \"0-1\", \"part\": \"experts\"",
         ": placement has no row for experts of layer 2"},
        {"{\"layers\": \"0-3\", \"part\": \"attn\"", "{\"layers\": \"0-4\", \"part\": \"attn\"",
         ": placement[2].layers ends at 4; the last layer is 3"},
        {"{\"layers\": \"0-3\", \"part\": \"attn\"", "{\"layers\": \"3-0\", \"part\": \"attn\"",
         ": placement[2].layers must be a number or a run, such as \"34-42\""},
        {"{\"layers\": \"0-3\", \"part\": \"attn\"",
         "{\"layers\": \"0-99999999999\", \"part\": \"attn\"",
         ": placement[2].layers must be a number or a run, such as \"34-42\""},
        {"{\"layers\": \"0-3\", \"part\": \"attn\"", "{\"layers\": -1, \"part\": \"attn\"",
         ": placement[2].layers must be a number or a run, such as \"34-42\""},
        {"{\"layers\": \"0-3\", \"part\": \"attn\"",
         "{\"layers\": \"2\", \"part\": \"attn\", \"device\": \"gpu1\"}, {\"layers\": \"0-3\", "
         "\"part\": \"attn\"",
         ": placement[3] places attn of layer 2, as placement[2] does"},
        {"{\"layers\": \"0-3\", \"part\": \"attn\"",
         "{\"layer\": 4, \"experts\": \"0\", \"device\": \"gpu1\"}, {\"layers\": \"0-3\", "
         "\"part\": \"attn\"",
         ": placement[2].layer is 4; the last layer is 3"},
        {"{\"layers\": \"0-3\", \"part\": \"attn\"",
         "{\"layer\": 0, \"experts\": \"31-32\", \"device\": \"gpu1\"}, {\"layers\": \"0-3\", "
         "\"part\": \"attn\"",
         ": placement[2].experts ends at 32; the last expert is 31"},
        {"{\"layers\": \"0-3\", \"part\": \"attn\"",
         "{\"layer\": 0, \"experts\": \"1-7\", \"device\": \"gpu1\"}, {\"layer\": 0, \"experts\": "
         "7, \"device\": "
         "\"cpu0\"}, {\"layers\": \"0-3\", \"part\": \"attn\"",
         ": placement[3] places experts of layer 0 that placement[2] does"},
        {"{\"layers\": \"0-3\", \"part\": \"attn\"",
         "{\"experts\": \"1-7\", \"device\": \"gpu1\"}, {\"layers\": \"0-3\", \"part\": \"attn\"",
         ": placement[2] must have a member 'layer' beside 'experts'"},
        {"{\"layers\": \"0-3\", \"part\": \"attn\"",
         "{\"layer\": 1, \"experts\": \"1-7\", \"part\": \"experts\", \"device\": \"gpu1\"}, "
         "{\"layers\": \"0-3\", "
         "\"part\": \"attn\"",
         ": placement[2].part cannot stand beside 'experts', which are those of one 'layer'"},
        {"{\"layers\": \"0-3\", \"part\": \"attn\"", "{\"layers\": \"0-3\"",
         ": placement[2] must have a member 'part', or 'experts' of one 'layer'"},
        {"\"placement\": [", "\"placement\": [7, ", ": placement[0] must be a JSON object"},
        {"\"mmap\": false", "\"mmap\": false, \"nodes\": 7", ": settings.nodes must be a list"},
        {"\"mmap\": false", "\"mmap\": false, \"nodes\": [\"1-64\"]",
         ": settings.nodes[0] must be a number or a run, such as \"34-42\""},
        {"\"tok_per_s\": ", "\"tok_per_s\": -", NULL},
        {"\"purpose\": \"weights\"", "\"purpose\": 7",
         ": derived.memory[0].purpose must be a text, neither empty nor with control characters"},
    };
    struct rig r;
    (void)state;
    open_rig(&r, "gpt-oss-20b", 4, TWO_CARDS);
    for (size_t i = 0; i < BL_COUNT(bad); i++) {
        struct bl_placement *p;
        char *text = edited(r.text, bad[i].from, bad[i].to), message[512];
        const enum bl_status st = judge(&r, text, &p);
        const bool bare = bad[i].message && bad[i].message[0] != ':';
        snprintf(message, sizeof message, "%s%s%s", bare ? "" : "plan ",
                 bare ? "" : strrchr(path, '/') + 1, bad[i].message ? bad[i].message : "");
        assert_int_equal(st, BL_EINVAL);
        if (bad[i].message)
            refused(st, BL_EINVAL, message);
        else
            assert_non_null(strstr(bl_error(), "derived.prediction.decode.tok_per_s is -"));
        free(text);
    }
    close_rig(&r);
}

static void too_much(void **state)
{
    enum { MANY = 10 << 20 };
    struct timespec begin, end;
    struct bl_plan_file f;
    char *text = malloc(MANY + 1);
    (void)state;
    assert_non_null(text);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    memset(text, '[', MANY);
    refused(bl_plan_file_parse(&f, "plan p", text, MANY), BL_EINVAL,
            "plan p: 10485760 bytes; the most is 4194304");
    refused(bl_plan_file_parse(&f, "plan p", text, 4 << 20), BL_EINVAL,
            "plan p: nested deeper than 16 at byte 16");
    for (size_t i = 0; i < 4 << 20; i += 2)
        memcpy(text + i, "7,", 2);
    text[0] = '[';
    refused(bl_plan_file_parse(&f, "plan p", text, 4 << 20), BL_EINVAL,
            "plan p: more than 100000 values");
    clock_gettime(CLOCK_MONOTONIC, &end);
    assert_true(end.tv_sec - begin.tv_sec < 2);
    free(text);
    refused(bl_plan_file_load(&f, "/no/such.json"), BL_EINVAL,
            "/no/such.json: cannot open: No such file or directory");
}

/* ---- for something else ---- */

static void another_model(void **state)
{
    static const struct bl_synth_options others[] = {
        {.shape = "gpt-oss-20b", .layers = 5, .no_data = true},
        {.shape = "gpt-oss-20b", .layers = 4, .recipe = "q8_0", .no_data = true},
        {.shape = "qwen3-30b-a3b", .layers = 4, .no_data = true},
    };
    static const char *const why[] = {
        "4 layers there, 5 here; ",
        "bytes of them there, ",
        "the architecture is gpt-oss there, qwen3moe here; ",
    };
    struct bl_placement *p;
    struct rig r;
    (void)state;
    open_rig(&r, "gpt-oss-20b", 4, TWO_CARDS);
    save(r.text);
    for (size_t i = 0; i < BL_COUNT(others); i++) {
        struct bl_synth *other;
        good(bl_synth_open(&other, &others[i]));
        assert_int_equal(bl_placement_make(&p, bl_synth_gguf(other), &r.opt, NULL), BL_EINVAL);
        if (!strstr(bl_error(), " is for another model, gpt-oss-20b: ") ||
            !strstr(bl_error(), why[i]))
            fail_msg("%s", bl_error());
        bl_synth_close(other);
    }
    char *text = edited(r.text, "\"digest\": \"", "\"digest\": \"0");
    assert_int_equal(judge(&r, text, &p), BL_EINVAL);
    assert_non_null(strstr(bl_error(), ": tensors have other names, types or shapes"));
    free(text);
    close_rig(&r);
}

static void another_machine(void **state)
{
    struct bl_placement *p;
    struct rig r;
    (void)state;
    open_rig(&r, "gpt-oss-20b", 4, TWO_CARDS);
    save(r.text);
    r.opt.machine_file = "rtx-3090-ddr5-2ch";
    assert_int_equal(judge(&r, r.text, &p), BL_EINVAL);
    assert_non_null(strstr(bl_error(), " is for another machine, 2x RTX PRO 4000"));
    assert_non_null(strstr(bl_error(), "gpu0 is NVIDIA RTX PRO 4000"));
    assert_non_null(strstr(bl_error(), " there, NVIDIA GeForce RTX 3090"));
    r.opt.machine_file = "cobalt-100-32";
    assert_int_equal(judge(&r, r.text, &p), BL_EINVAL);
    assert_non_null(strstr(bl_error(), ") is not here"));
    /* Less memory is for the ledger to judge, more of it is welcome. */
    r.opt.machine_file = TWO_CARDS;
    r.opt.n_device_set = 1;
    r.opt.device_set = (const char *const[]){"gpu0.usable=1GiB"};
    assert_int_equal(judge(&r, r.text, &p), BL_ENOFIT);
    assert_non_null(strstr(bl_error(), " GiB on gpu0, of which "));
    r.opt.device_set = (const char *const[]){"gpu0.mem=96GiB"};
    good(judge(&r, r.text, &p));
    bl_placement_close(p);
    close_rig(&r);
}

static void options_beside_a_plan(void **state)
{
    static const struct {
        struct bl_options opt;
        const char *message;
    } bad[] = {
        {{.ctx_tokens = 8192},
         "-c 8192 contradicts %s, which has 4096: leave it out, or plan anew"},
        {{.batch_tokens = 512},
         "-b 512 contradicts %s, which has 2048: leave it out, or plan anew"},
        {{.ubatch_tokens = 512},
         "-ub 512 contradicts %s, which has 2048: leave it out, or plan anew"},
        {{.rewind_tokens = 8},
         "--rewind 8 contradicts %s, which has 0: leave it out, or plan anew"},
        {{.type_k = "q8_0"}, "-ctk q8_0 contradicts %s, which has f16: leave it out, or plan anew"},
        {{.type_v = "f32"}, "-ctv f32 contradicts %s, which has f16: leave it out, or plan anew"},
        {{.exact = true},
         "--exact contradicts %s, which has weights as they are in the file: leave it out, or plan "
         "anew"},
    };
    struct bl_plan_file f;
    struct rig r;
    (void)state;
    open_rig(&r, "gpt-oss-20b", 4, TWO_CARDS);
    good(bl_plan_file_parse(&f, "plan p", r.text, r.n));
    for (size_t i = 0; i < BL_COUNT(bad); i++) {
        struct bl_options opt = bad[i].opt;
        char message[200], what[] = "plan p";
        snprintf(message, sizeof message, bad[i].message, what);
        refused(bl_plan_file_options(&f, &opt), BL_EINVAL, message);
    }
    /* The same said twice is no contradiction; threads of now come first; more rows of logits are
     * had. */
    struct bl_options same = {.ctx_tokens = 4096, .type_k = "f16", .threads = 3, .out_tokens = 7};
    good(bl_plan_file_options(&f, &same));
    assert_int_equal(same.ubatch_tokens, 2048);
    assert_int_equal(same.threads, 3);
    assert_int_equal(same.threads_prefill, 0);
    assert_int_equal(same.out_tokens, 7);
    assert_true(same.no_mmap);
    bl_plan_file_finish(&f);
    close_rig(&r);
}

/* ---- running ---- */

static char *plan_for(const char *model, const struct bl_options *opt)
{
    struct bl_placement *p;
    struct bl_gguf *g;
    char full[512], *text;
    size_t n;

    snprintf(full, sizeof full, MODELS "%s.gguf", model);
    good(bl_gguf_open(&g, full));
    good(bl_placement_make(&p, g, opt, NULL));
    good(bl_placement_json(p, &text, &n));
    bl_placement_close(p);
    bl_gguf_close(g);
    save(text);
    return text;
}

static void run(const char *model, const struct bl_options *opt, float *logits, uint64_t *bytes)
{
    struct bl_engine *e = opened(model, opt);
    struct bl_memory_line line;
    struct bl_session *s;

    good(bl_session_create(&s, e));
    good(feed(e, s, prompt, N_PROMPT));
    const float *row = bl_logits(e, N_PROMPT - 1);
    memcpy(logits, row, bl_engine_n_vocab(e) * sizeof *logits);
    *bytes = bl_engine_n_vocab(e);
    for (uint32_t i = 0; i < bl_engine_memory(e, i, &line); i++)
        *bytes += line.planned_bytes;
    bl_session_destroy(s);
    bl_close(e);
}

static void the_same_logits_by_plan(void **state)
{
    static const char *const models[] = {"gpt-oss-mxfp4", "qwen3-f32"};
    static float a[4096], b[4096];
    (void)state;
    for (size_t i = 0; i < BL_COUNT(models); i++) {
        struct bl_options opt = small();
        uint64_t n_a, n_b;
        char *text = plan_for(models[i], &opt);
        run(models[i], &opt, a, &n_a);
        const struct bl_options by_plan = {.plan_file = path};
        run(models[i], &by_plan, b, &n_b);
        assert_int_equal(n_a, n_b); /* bytes, too */
        assert_memory_equal(a, b, sizeof a);
        free(text);
    }
}

static void not_for_this_model_or_machine(void **state)
{
    struct bl_options opt = small();
    struct bl_engine *e = NULL;
    (void)state;
    char *text = plan_for("qwen3-f32", &opt);
    opt = (struct bl_options){.plan_file = path};
    assert_int_equal(bl_open(&e, MODELS "llama-f32.gguf", &opt), BL_EINVAL);
    assert_non_null(strstr(bl_error(), "the architecture is qwen3 there, llama here"));
    opt.ctx_tokens = 64;
    assert_int_equal(bl_open(&e, MODELS "qwen3-f32.gguf", &opt), BL_EINVAL);
    assert_non_null(strstr(bl_error(), "-c 64 contradicts "));
    free(text);
    const struct bl_options there = {.machine_file = "turin-80"};
    text = plan_for("qwen3-f32", &there);
    opt.ctx_tokens = 0;
    assert_int_equal(bl_open(&e, MODELS "qwen3-f32.gguf", &opt), BL_EINVAL);
    assert_non_null(strstr(bl_error(), " is for another machine, "));
    free(text);
    assert_null(e);
}

/* ---- the schema, memory ---- */

static void schema_names_every_member(void **state)
{
    (void)state;
    schema_tables(BL_TEST_SCHEMA, bl_plan_fields_all, &bl_plan_fields_file);
}

static void parts_have_their_names(void **state)
{
    (void)state;
    for (unsigned part = 0; part < BL_N_PARTS; part++)
        assert_string_equal(bl_part_words[part], bl_part_name((enum bl_part)part));
    assert_null(bl_part_words[BL_N_PARTS]);
}

static void reading_and_judging_without_memory(void **state)
{
    struct bl_placement *p;
    struct rig r;
    uint64_t n = 1;
    (void)state;
    open_rig(&r, "gpt-oss-20b", 2, TWO_CARDS);
    char *text = edited(r.text, "{\"layers\": \"0-1\", \"part\": \"attn\"",
                        "{\"layer\": 0, \"experts\": \"1-7\", \"device\": \"cpu0\"}, {\"layers\": "
                        "\"0-1\", \"part\": "
                        "\"attn\"");
    save(text);
    for (;; n++) {
        char *json = NULL;
        size_t n_bytes;
        alloc_fail_at(n);
        enum bl_status st = bl_placement_make(&p, bl_synth_gguf(r.synth), &r.opt, NULL);
        const bool made = st == BL_OK;
        if (made)
            st = bl_placement_json(p, &json, &n_bytes);
        const bool failed = alloc_fail_stop();
        free(json);
        if (made)
            bl_placement_close(p);
        if (!failed)
            break;
        if (st != BL_ENOMEM && st != BL_OK) /* warnings may be lost */
            fail_msg("allocation %llu: %s", (unsigned long long)n, bl_error());
    }
    assert_true(n > 20);
    free(text);
    close_rig(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bytes_again),
        cmocka_unit_test(reference_models),
        cmocka_unit_test(an_edit_is_counted_and_said),
        cmocka_unit_test(rows_in_any_form),
        cmocka_unit_test(wrong_files),
        cmocka_unit_test(too_much),
        cmocka_unit_test(another_model),
        cmocka_unit_test(another_machine),
        cmocka_unit_test(options_beside_a_plan),
        cmocka_unit_test(the_same_logits_by_plan),
        cmocka_unit_test(not_for_this_model_or_machine),
        cmocka_unit_test(schema_names_every_member),
        cmocka_unit_test(parts_have_their_names),
        cmocka_unit_test(reading_and_judging_without_memory),
    };
    const int fd = mkstemp(path);
    if (fd < 0)
        return 1;
    close(fd);
    const int code = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return code;
}

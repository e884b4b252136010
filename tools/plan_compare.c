/* SPDX-License-Identifier: MIT */
/* plan_compare.c — two plans side by side: speeds, memory, what is elsewhere. Both are taken as
 * files that they are or would be, so that it does not matter where they come from. */
#include "common/io.h"
#include "plan_verb.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
static const double gib = 1.0 / (1 << 30), shown = 0.005; /* less looks like nothing */

struct side {
    const char *label;
    struct bl_saved_plan *plan;
    struct bl_placement_info info;
};

/* ---- figures ---- */

static void print_head(FILE *f, const char *what, const struct side *a, const struct side *b,
                       const char *last)
{
    fprintf(f, "%-24s %12s %12s %12s\n", what, a->label, b->label, last);
}

/* Of a machine without figures, or a file without a prediction, nothing is known. */
static void print_speed(FILE *f, const char *what, double a, double b)
{
    const double v[] = {a, b};

    fprintf(f, "%-24s", what);
    for (size_t i = 0; i < COUNT(v); i++)
        if (v[i] > 0)
            fprintf(f, " %12.1f", v[i]);
        else
            fprintf(f, " %12s", "-");
    if (a > 0 && b > 0)
        fprintf(f, " %12.3f", b / a);
    fputc('\n', f);
}

static void print_tokens(FILE *f, const char *what, uint64_t a, uint64_t b)
{
    if (a != b)
        fprintf(f, "%-24s %12" PRIu64 " %12" PRIu64 "\n", what, a, b);
}

static void print_words(FILE *f, const char *what, const char *a, const char *b)
{
    if (strcmp(a, b) != 0)
        fprintf(f, "%-24s %12s %12s\n", what, a, b);
}

static void print_settings(FILE *f, const struct side *a, const struct side *b)
{
    const struct bl_placement_info *x = &a->info, *y = &b->info;

    print_head(f, "", a, b, "ratio");
    print_speed(f, "decode, tokens/s", x->decode.tok_per_s, y->decode.tok_per_s);
    print_speed(f, "prefill, tokens/s", x->prefill.tok_per_s, y->prefill.tok_per_s);
    print_tokens(f, "at a depth of tokens", x->depth_tokens, y->depth_tokens);
    print_tokens(f, "context, tokens", x->ctx_tokens, y->ctx_tokens);
    print_tokens(f, "step, tokens", x->ubatch_tokens, y->ubatch_tokens);
    print_words(f, "cached keys", x->type_k, y->type_k);
    print_words(f, "cached values", x->type_v, y->type_v);
    print_tokens(f, "threads", x->threads, y->threads);
    print_tokens(f, "threads for prompts", x->threads_prefill, y->threads_prefill);
}

/* ---- memory ---- */

/* What rounds to nothing is neither more nor less. */
static double change(uint64_t a, uint64_t b)
{
    const double v = ((double)b - (double)a) * gib;

    return v > -0.005 && v < 0.005 ? 0 : v;
}

static bool find_device(const struct side *s, const char *id, struct bl_placement_device *out)
{
    struct bl_placement_device d;

    for (uint32_t i = 0; i < bl_saved_plan_device(s->plan, i, &d); i++)
        if (!strcmp(d.id, id)) {
            *out = d;
            return true;
        }
    return false;
}

static void print_gib(FILE *f, bool there, uint64_t bytes)
{
    if (!there)
        fprintf(f, " %12s", "-");
    else if (!bytes || (double)bytes * gib >= shown)
        fprintf(f, " %12.2f", (double)bytes * gib);
    else
        fprintf(f, " %12s", bl_size_text(bytes, (char[BL_SIZE_TEXT]){0}));
}

static void print_change(FILE *f, uint64_t a, uint64_t b)
{
    const double v = change(a, b);
    char text[BL_SIZE_TEXT + 1] = {b < a ? '-' : '+'};

    if (a == b || a >> 30 || b >> 30 || v >= shown || v <= -shown)
        fprintf(f, " %+12.2f", v);
    else
        fprintf(f, " %12s", (bl_size_text(b < a ? a - b : b - a, text + 1), text));
}

static void print_device(FILE *f, const struct bl_placement_device *a,
                         const struct bl_placement_device *b)
{
    const struct bl_placement_device *any = a ? a : b;

    fprintf(f, "%-24s", any->id);
    print_gib(f, a, a ? a->planned_bytes : 0);
    print_gib(f, b, b ? b->planned_bytes : 0);
    print_change(f, a ? a->planned_bytes : 0, b ? b->planned_bytes : 0);
    fprintf(f, "   of %.2f", (double)any->budget_bytes * gib);
    if (a && b && a->budget_bytes != b->budget_bytes)
        fprintf(f, " and %.2f", (double)b->budget_bytes * gib);
    if (a && b && strcmp(a->name, b->name) != 0)
        fprintf(f, "   %s; %s", a->name, b->name);
    else if (!a || !b)
        fprintf(f, "   %s", any->name);
    fputc('\n', f);
}

static uint64_t sum_of(const struct side *s, const char *purpose)
{
    struct bl_memory_line l;
    uint64_t sum = 0;

    for (uint32_t i = 0; i < bl_saved_plan_memory(s->plan, i, &l); i++)
        if (!strcmp(l.purpose, purpose))
            sum += l.planned_bytes;
    return sum;
}

static void print_purpose(FILE *f, const char *what, uint64_t a, uint64_t b)
{
    fprintf(f, "%-24s", what);
    print_gib(f, true, a);
    print_gib(f, true, b);
    print_change(f, a, b);
    fputc('\n', f);
}

static void print_memory(FILE *f, const struct side *a, const struct side *b)
{
    struct bl_placement_device x, y;

    fputc('\n', f);
    print_head(f, "planned, GiB", a, b, "change");
    for (uint32_t i = 0; i < bl_saved_plan_device(a->plan, i, &x); i++)
        print_device(f, &x, find_device(b, x.id, &y) ? &y : NULL);
    for (uint32_t i = 0; i < bl_saved_plan_device(b->plan, i, &y); i++)
        if (!find_device(a, y.id, &x))
            print_device(f, NULL, &y);
    print_purpose(f, "weights on all", sum_of(a, "weights"), sum_of(b, "weights"));
    print_purpose(f, "cached state", sum_of(a, "state") + sum_of(a, "ring slack"),
                  sum_of(b, "state") + sum_of(b, "ring slack"));
    print_purpose(f, "compute", sum_of(a, "compute"), sum_of(b, "compute"));
}

/* ---- what is where ---- */

enum { PLACE_TEXT = 128 };

/* Device of a part of layer l (-1: outside of layers), and which experts are elsewhere; "": the
 * plan does not say. */
static void place_of(const struct side *s, int32_t l, const char *part, char text[PLACE_TEXT])
{
    struct bl_saved_place p;
    size_t n = 0;

    text[0] = 0;
    for (uint32_t i = 0; i < bl_saved_plan_place(s->plan, i, &p); i++) {
        if (strcmp(p.part, part) != 0 || l < p.first || l > p.last || n >= PLACE_TEXT)
            continue;
        n += (size_t)(p.expert_first < 0
                          ? snprintf(text + n, PLACE_TEXT - n, "%s", p.device)
                          : snprintf(text + n, PLACE_TEXT - n, "%s%d-%d on %s", n ? ", " : "",
                                     p.expert_first, p.expert_last, p.device));
    }
    if (!text[0] && (!strcmp(part, "state") || !strcmp(part, "ffn")))
        place_of(s, l, "attn", text);
}

struct pair {
    char a[PLACE_TEXT], b[PLACE_TEXT];
};
struct places {
    FILE *f;
    const struct side *a, *b;
    uint32_t n_told;
};

/* What a row would say of the layer. False: nothing, since it is the same, or told of attention. */
static bool look(const struct places *p, int32_t l, const char *part, struct pair *out)
{
    struct pair attn;

    place_of(p->a, l, part, out->a);
    place_of(p->b, l, part, out->b);
    if (!strcmp(out->a, out->b))
        return false;
    if (strcmp(part, "state") != 0 && strcmp(part, "ffn") != 0)
        return true;
    place_of(p->a, l, "attn", attn.a);
    place_of(p->b, l, "attn", attn.b);
    return strcmp(out->a, attn.a) != 0 || strcmp(out->b, attn.b) != 0;
}

static void tell(struct places *p, const char *layers, const char *what, const struct pair *at)
{
    if (!p->n_told++)
        fprintf(p->f, "%-9s %-22s %-30s %s\n", "layers", "", p->a->label, p->b->label);
    fprintf(p->f, "%-9s %-22s %-30s %s\n", layers, what, at->a[0] ? at->a : "-",
            at->b[0] ? at->b : "-");
}

static void tell_runs(struct places *p, const char *part, const char *what)
{
    const int32_t n = (int32_t)p->a->info.n_layers;
    struct pair here, next;
    char layers[32];

    for (int32_t l = 0, e; l < n; l = e) {
        e = l + 1;
        if (!look(p, l, part, &here))
            continue;
        while (e < n && look(p, e, part, &next) && !strcmp(here.a, next.a) &&
               !strcmp(here.b, next.b))
            e++;
        snprintf(layers, sizeof layers, e > l + 1 ? "%d-%d" : "%d", l, e - 1);
        tell(p, layers, what, &here);
    }
}

static void print_places(FILE *f, const struct side *a, const struct side *b)
{
    struct places p = {f, a, b, 0};
    struct pair at;

    fputc('\n', f);
    if (a->info.n_layers != b->info.n_layers || strcmp(a->info.arch, b->info.arch) != 0) {
        fprintf(f, "the models are different ones: their layers are not compared\n");
        return;
    }
    tell_runs(&p, "attn", "attention, dense part");
    tell_runs(&p, "state", "cached state");
    tell_runs(&p, "ffn", "dense part");
    tell_runs(&p, "experts", "experts");
    if (look(&p, -1, "embed", &at))
        tell(&p, "", "embedding", &at);
    if (look(&p, -1, "head", &at))
        tell(&p, "", "head", &at);
    if (!p.n_told)
        fprintf(f, "every layer stays where it was\n");
}

/* ---- the whole ---- */

static void print_titles(FILE *f, const struct side *a, const struct side *b)
{
    const bool one = !strcmp(a->info.model, b->info.model) && !strcmp(a->info.arch, b->info.arch) &&
                     !strcmp(a->info.machine, b->info.machine);

    if (one)
        fprintf(f, "%s (%s) on %s\n", a->info.model, a->info.arch, a->info.machine);
    for (size_t i = 0; i < 2 && !one; i++) {
        const struct side *s = i ? b : a;
        fprintf(f, "%-6s %s (%s) on %s\n", s->label, s->info.model, s->info.arch, s->info.machine);
    }
    fputc('\n', f);
}

static void print(FILE *f, struct side *a, struct side *b)
{
    bl_saved_plan_describe(a->plan, &a->info);
    bl_saved_plan_describe(b->plan, &b->info);
    print_titles(f, a, b);
    print_settings(f, a, b);
    print_memory(f, a, b);
    print_places(f, a, b);
}

static enum bl_status as_saved(struct bl_saved_plan **out, const struct bl_placement *p)
{
    char *text;
    size_t n;
    enum bl_status st = bl_placement_json(p, &text, &n);

    if (st)
        return st;
    st = bl_saved_plan_parse(out, "the plan", text, n);
    free(text);
    return st;
}

int bl_plan_compare_print(const struct bl_report *r, FILE *f, const struct bl_placement *before,
                          const struct bl_placement *after)
{
    struct side a = {.label = "before"}, b = {.label = "after"};
    enum bl_status st = as_saved(&a.plan, before);

    if (!st)
        st = as_saved(&b.plan, after);
    if (!st)
        print(f, &a, &b);
    bl_saved_plan_close(a.plan);
    bl_saved_plan_close(b.plan);
    return st ? bl_report_status(r, BL_STAGE_RUN, st) : BL_EXIT_OK;
}

/* ---- files and machines ---- */

/* Their names are no paths, as for --machine. */
static bool is_known_machine(const char *name)
{
    const char *dot = strrchr(name, '.');
    struct bl_machine_title t;

    if (strchr(name, '/') || (dot && !strcmp(dot, ".json")))
        return false;
    for (uint32_t i = 0; !bl_machine_known(i, &t); i++)
        if (!strcmp(t.name, name))
            return true;
    return false;
}

/* Either kind of file says in its first member what it is. */
static int is_machine(const struct bl_report *r, const char *item, bool *yes)
{
    char *text;
    size_t n;

    *yes = is_known_machine(item);
    if (*yes)
        return BL_EXIT_OK;
    if (!bl_io_read(r, item, &text, &n))
        return BL_EXIT_USAGE;
    *yes = strstr(text, "\"ballast_machine\"") && !strstr(text, "\"ballast_plan\"");
    free(text);
    return BL_EXIT_OK;
}

static int plan_for(const struct bl_report *r, const struct bl_plan_ask *q, const char *machine,
                    struct bl_saved_plan **out)
{
    struct bl_options opt = q->opt;
    struct bl_placement *p = NULL;

    opt.machine_file = machine;
    enum bl_status st = bl_placement_make(&p, bl_plan_ask_model(q), &opt, &q->place);
    if (!st)
        st = as_saved(out, p);
    bl_placement_close(p);
    if (!st)
        return BL_EXIT_OK;
    bl_report_error(r, "%s: %s", machine, bl_error());
    return bl_exit_code(BL_STAGE_OPEN, st);
}

static int open_side(const struct bl_report *r, const struct bl_plan_ask *q, const char *item,
                     struct bl_saved_plan **out)
{
    bool machine;
    const int code = is_machine(r, item, &machine);

    if (code)
        return code;
    if (!machine) {
        const enum bl_status st = bl_saved_plan_load(out, item);
        return st ? bl_report_status(r, BL_STAGE_OPEN, st) : BL_EXIT_OK;
    }
    if (q)
        return plan_for(r, q, item, out);
    bl_report_error(r,
                    "--compare %s: that is a machine; -m FILE or --shape NAME says for which "
                    "model to plan",
                    item);
    return BL_EXIT_USAGE;
}

int bl_plan_compare(const struct bl_report *r, const struct bl_plan_ask *q,
                    const char *const item[2])
{
    struct side a = {.label = "A"}, b = {.label = "B"};
    struct bl_out_page page;
    int code = open_side(r, q, item[0], &a.plan);

    if (!code)
        code = open_side(r, q, item[1], &b.plan);
    if (!code) {
        FILE *f = bl_out_page_begin(&page);
        if (f)
            print(f, &a, &b);
        code = bl_out_page_end(r, &page);
    }
    bl_saved_plan_close(a.plan);
    bl_saved_plan_close(b.plan);
    return code;
}

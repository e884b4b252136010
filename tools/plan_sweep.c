/* SPDX-License-Identifier: MIT */
/* plan_sweep.c — the same plan over sizes of steps, contexts or numbers of cards. */
#include "plan_sweep.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
enum { FIRST_UB = 8, LAST_UB = 8192, LEAST_CTX = 2048 };
static const double gib = 1.0 / (1 << 30);

const char *bl_sweep_axis(const struct bl_sweep *s)
{
    static const char *const axis[] = {"tokens of a step (-ub)", "context, tokens", "cards in use"};
    return axis[s->what];
}

/* ---- one point ---- */

static struct bl_sweep_memory *place_of(struct bl_sweep_point *p, const struct bl_placement *from,
                                        const char *device)
{
    struct bl_placement_device d;

    for (uint32_t i = 0; i < bl_placement_device(from, i, &d); i++)
        if (!strcmp(d.id, device))
            return d.cpu ? &p->ram : &p->cards;
    return NULL;
}

static enum bl_sweep_use use_of(const char *purpose)
{
    return !strcmp(purpose, "weights")                                   ? BL_SWEEP_WEIGHTS
           : !strcmp(purpose, "state") || !strcmp(purpose, "ring slack") ? BL_SWEEP_STATE
           : !strcmp(purpose, "compute")                                 ? BL_SWEEP_COMPUTE
                                                                         : BL_SWEEP_OTHER;
}

static void take(struct bl_sweep_point *p, const struct bl_placement *from)
{
    struct bl_placement_device d;
    struct bl_placement_info i;
    struct bl_memory_line l;

    bl_placement_describe(from, &i);
    p->fits = true;
    p->ctx_tokens = i.ctx_tokens;
    p->depth_tokens = i.depth_tokens;
    p->ubatch_tokens = i.ubatch_tokens;
    p->decode = i.decode;
    p->prefill = i.prefill;
    for (uint32_t k = 0; k < bl_placement_memory(from, k, &l); k++) {
        struct bl_sweep_memory *m = place_of(p, from, l.device);
        if (m)
            m->bytes[use_of(l.purpose)] += l.planned_bytes;
    }
    for (uint32_t k = 0; k < bl_placement_device(from, k, &d); k++) {
        struct bl_sweep_memory *m = d.cpu ? &p->ram : &p->cards;
        m->planned_bytes += d.planned_bytes;
        m->budget_bytes += d.planned_bytes || d.cpu ? d.budget_bytes : 0;
    }
}

static void name(struct bl_sweep *s, const struct bl_placement *from)
{
    struct bl_placement_info i;

    bl_placement_describe(from, &i);
    snprintf(s->model, sizeof s->model, "%s", i.model);
    snprintf(s->arch, sizeof s->arch, "%s", i.arch);
    snprintf(s->machine, sizeof s->machine, "%s", i.machine);
    snprintf(s->types, sizeof s->types, "%s, %s", i.type_k, i.type_v);
}

static enum bl_status make_point(struct bl_sweep *s, const struct bl_plan_ask *q,
                                 const struct bl_options *opt,
                                 const struct bl_placement_options *place, uint64_t x)
{
    struct bl_sweep_point *p = &s->point[s->n++];
    struct bl_placement_options with = *place;
    struct bl_placement *made = NULL;

    *p = (struct bl_sweep_point){.x = x};
    with.lack = &p->lack;
    const enum bl_status st = bl_placement_make(&made, bl_plan_ask_model(q), opt, &with);
    if (!st) {
        take(p, made);
        name(s, made);
        s->n_fit++;
    }
    bl_placement_close(made);
    return st == BL_ENOFIT ? BL_OK : st;
}

/* ---- the ranges ---- */

static enum bl_status context_of(const struct bl_plan_ask *q, uint64_t *ctx)
{
    struct bl_state_info info;
    const enum bl_status st = bl_state_info_make(&info, bl_plan_ask_model(q), &q->opt);

    if (st)
        return st;
    *ctx = info.ctx_tokens;
    bl_state_info_finish(&info);
    return BL_OK;
}

static enum bl_status over_steps(struct bl_sweep *s, const struct bl_plan_ask *q)
{
    struct bl_placement_options place = q->place;
    struct bl_options opt = q->opt;
    enum bl_status st;
    uint64_t ctx;

    st = context_of(q, &ctx);
    place.fixed_ubatch = true;
    for (uint32_t ub = FIRST_UB; !st && ub <= LAST_UB && ub <= ctx; ub *= 2) {
        opt.ubatch_tokens = ub;
        opt.batch_tokens = q->opt.batch_tokens < ub ? ub : q->opt.batch_tokens;
        st = make_point(s, q, &opt, &place, ub);
    }
    return st;
}

/* Halves of the longest; predicted in the middle of each, unless a depth was given. */
static enum bl_status over_contexts(struct bl_sweep *s, const struct bl_plan_ask *q)
{
    struct bl_placement_options place = q->place;
    struct bl_options opt = q->opt;
    uint64_t ctx[BL_SWEEP_MOST], longest;
    uint32_t n = 0;

    opt.ctx_tokens = opt.ctx_tokens ? opt.ctx_tokens : BL_CTX_MAX;
    const struct bl_plan_ask all = {.file = q->file, .synth = q->synth, .opt = opt};
    enum bl_status st = context_of(&all, &longest);
    for (uint64_t c = longest; !st && c && n < BL_SWEEP_MOST - 4; c /= 2)
        if (!n || (c >= LEAST_CTX && c > q->place.depth_tokens))
            ctx[n++] = c;
    while (!st && n--) {
        opt.ctx_tokens = ctx[n];
        place.depth_tokens = q->place.depth_tokens ? q->place.depth_tokens : ctx[n] / 2;
        st = make_point(s, q, &opt, &place, ctx[n]);
    }
    return st;
}

/* The first of them, in the machine's order; 0: none. */
static enum bl_status over_cards(struct bl_sweep *s, const struct bl_plan_ask *q)
{
    struct bl_placement_rules rules = q->rules;
    struct bl_options opt = q->opt;
    struct bl_machine_cards cards;
    enum bl_status st = bl_machine_cards(&cards, &q->opt);
    char list[COUNT(cards.id) * sizeof cards.id[0] + 1] = "none";
    size_t at = 0;

    if (!q->opt.rules)
        rules = (struct bl_placement_rules){.n_gpu_layers = -1};
    rules.devices = list;
    opt.rules = &rules;
    for (uint32_t n = 0; !st && n <= cards.n && s->n < BL_SWEEP_MOST; n++) {
        if (n)
            at += (size_t)snprintf(list + at, sizeof list - at, "%s%s", at ? "," : "",
                                   cards.id[n - 1]);
        st = make_point(s, q, &opt, &q->place, n);
    }
    if (!st) {
        s->n_cards = cards.n;
        memcpy(s->card, cards.id, sizeof s->card);
    }
    return st;
}

static enum bl_status sweep(struct bl_sweep *s, const struct bl_plan_ask *q)
{
    switch (s->what) {
    case BL_SWEEP_UB:
        return over_steps(s, q);
    case BL_SWEEP_CTX:
        return over_contexts(s, q);
    default:
        return over_cards(s, q);
    }
}

/* ---- for people ---- */

static void print_speed(FILE *f, const struct bl_speed *v)
{
    if (v->tok_per_s > 0)
        fprintf(f, " %11.1f", v->tok_per_s);
    else
        fprintf(f, " %11s", "-");
}

static void print_point(FILE *f, const struct bl_sweep *s, const struct bl_sweep_point *p)
{
    fprintf(f, "%9" PRIu64, p->x);
    if (!p->fits) {
        fprintf(f, "   does not fit: %s are missing on %s\n",
                bl_size_text(p->lack.bytes, (char[BL_SIZE_TEXT]){0}), p->lack.device);
        return;
    }
    print_speed(f, &p->decode);
    print_speed(f, &p->prefill);
    fprintf(f, " %9u %9.2f %9.2f %9.2f %9.2f", p->ubatch_tokens,
            (double)p->cards.planned_bytes * gib, (double)p->ram.planned_bytes * gib,
            (double)(p->cards.bytes[BL_SWEEP_STATE] + p->ram.bytes[BL_SWEEP_STATE]) * gib,
            (double)(p->cards.bytes[BL_SWEEP_COMPUTE] + p->ram.bytes[BL_SWEEP_COMPUTE]) * gib);
    for (uint64_t i = 0; s->what == BL_SWEEP_GPUS && i < p->x && i < s->n_cards; i++)
        fprintf(f, "%s%s", i ? " " : "   ", s->card[i]);
    fputc('\n', f);
}

static void print_table(FILE *f, const struct bl_sweep *s)
{
    static const char *const first[] = {"step", "context", "cards"};
    const struct bl_sweep_point *any = s->point;

    while (!any->fits)
        any++;
    fprintf(f, "%s (%s) on %s\n", s->model, s->arch, s->machine);
    if (s->what == BL_SWEEP_CTX)
        fprintf(f, "cache %s; predicted in the middle of each context, or at --depth\n", s->types);
    else
        fprintf(f, "context %" PRIu64 " tokens, cache %s; predicted at a depth of %" PRIu64 "\n",
                any->ctx_tokens, s->types, any->depth_tokens);
    fprintf(f, "\n%9s %11s %11s %9s %9s %9s %9s %9s\n", "", "decode", "prefill", "step", "cards",
            "RAM", "state", "compute");
    fprintf(f, "%9s %11s %11s %9s %9s %9s %9s %9s\n", first[s->what], "tokens/s", "tokens/s",
            "tokens", "GiB", "GiB", "GiB", "GiB");
    for (uint32_t i = 0; i < s->n; i++)
        print_point(f, s, &s->point[i]);
}

/* ---- for programs ---- */

static void add_number(cJSON *o, const char *key, uint64_t v)
{
    char text[24];

    snprintf(text, sizeof text, "%" PRIu64, v);
    cJSON_AddRawToObject(o, key, text);
}

static void add_speed(cJSON *o, const char *key, const struct bl_speed *v)
{
    cJSON *s = v->tok_per_s > 0 ? cJSON_AddObjectToObject(o, key) : NULL;

    if (!s)
        return;
    cJSON_AddNumberToObject(s, "tok_per_s", v->tok_per_s);
    cJSON_AddNumberToObject(s, "sd", v->sd);
}

static void add_memory(cJSON *o, const char *key, const struct bl_sweep_memory *m)
{
    static const char *const use[] = {"weights_bytes", "state_bytes", "compute_bytes",
                                      "other_bytes"};
    cJSON *at = cJSON_AddObjectToObject(o, key);

    add_number(at, "budget_bytes", m->budget_bytes);
    add_number(at, "planned_bytes", m->planned_bytes);
    for (size_t i = 0; i < COUNT(use); i++)
        add_number(at, use[i], m->bytes[i]);
}

static void add_point(cJSON *rows, const struct bl_sweep *s, const struct bl_sweep_point *p)
{
    static const char *const key[] = {"ubatch_tokens", "ctx_tokens", "cards_used"};
    cJSON *o = cJSON_CreateObject();

    if (!cJSON_AddItemToArray(rows, o)) {
        cJSON_Delete(o);
        return;
    }
    add_number(o, key[s->what], p->x);
    cJSON_AddBoolToObject(o, "fits", p->fits);
    if (!p->fits) {
        cJSON *lack = cJSON_AddObjectToObject(o, "lacks");
        cJSON_AddStringToObject(lack, "device", p->lack.device);
        add_number(lack, "bytes", p->lack.bytes);
        return;
    }
    if (s->what != BL_SWEEP_CTX)
        add_number(o, "ctx_tokens", p->ctx_tokens);
    if (s->what != BL_SWEEP_UB)
        add_number(o, "ubatch_tokens", p->ubatch_tokens);
    add_number(o, "depth_tokens", p->depth_tokens);
    add_speed(o, "decode", &p->decode);
    add_speed(o, "prefill", &p->prefill);
    add_memory(o, "cards", &p->cards);
    add_memory(o, "ram", &p->ram);
}

static int print_json(const struct bl_report *r, FILE *f, const struct bl_sweep *s)
{
    static const char *const what[] = {"ub", "ctx", "gpus"};
    cJSON *o = cJSON_CreateObject();

    cJSON_AddStringToObject(o, "sweep", what[s->what]);
    cJSON_AddStringToObject(o, "model", s->model);
    cJSON_AddStringToObject(o, "machine", s->machine);
    cJSON *rows = cJSON_AddArrayToObject(o, "rows");
    for (uint32_t i = 0; i < s->n; i++)
        add_point(rows, s, &s->point[i]);
    char *text = cJSON_Print(o);
    cJSON_Delete(o);
    if (!text) {
        bl_report_error(r, "out of memory");
        return BL_EXIT_FAILURE;
    }
    fprintf(f, "%s\n", text);
    cJSON_free(text);
    return BL_EXIT_OK;
}

/* ---- the whole ---- */

static int check(const struct bl_report *r, int what, const struct bl_plan_ask *q)
{
    const struct bl_placement_rules *u = q->opt.rules;

    if (q->opt.plan_file)
        bl_report_error(r, "--sweep plans anew, and a plan file says where everything goes");
    else if (what == BL_SWEEP_UB && q->place.fixed_ubatch)
        bl_report_error(r, "--sweep ub and -ub both say how large steps are");
    else if (what == BL_SWEEP_GPUS && u &&
             (u->devices || u->tensor_split || u->split_mode || u->main_gpu))
        bl_report_error(r, "--sweep gpus and -dev, -ts, -sm or -mg both say which cards are used");
    else
        return BL_EXIT_OK;
    return BL_EXIT_USAGE;
}

int bl_plan_sweep(const struct bl_report *r, FILE *f, const struct bl_plan_args *a,
                  const struct bl_plan_ask *q)
{
    struct bl_sweep s = {.what = a->sweep};
    const int code = check(r, a->sweep, q);

    if (code)
        return code;
    const enum bl_status st = sweep(&s, q);
    if (st)
        return bl_report_status(r, BL_STAGE_OPEN, st);
    if (!s.n_fit) {
        bl_report_error(r, "nothing of that fits: %s are missing on %s for the first of it",
                        bl_size_text(s.point[0].lack.bytes, (char[BL_SIZE_TEXT]){0}),
                        s.point[0].lack.device);
        return BL_EXIT_NOFIT;
    }
    if (a->format == BL_PLAN_JSON)
        return print_json(r, f, &s);
    if (a->format == BL_PLAN_SVG)
        bl_sweep_svg_print(&s, f);
    else
        print_table(f, &s);
    return BL_EXIT_OK;
}

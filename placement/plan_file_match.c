/* SPDX-License-Identifier: MIT */
/* What a plan file is for: options, a model, a machine, and whether these are they. */
#include "plan_fields.h"
#include "plan_file.h"

#include "backends.h"
#include "found.h"
#include "machine_file.h"

#include <stdarg.h>
#include <stdio.h>

/* ---- options -------------------------------------------------------------------------------- */

struct asked {
    const char *flag;
    uint64_t given, plan; /* given 0: it was not */
};

static enum bl_status contradicts(const char *flag, const char *given, const char *plan,
                                  const struct bl_plan_file *f)
{
    return bl_fail(BL_EINVAL, "%s%s%s contradicts %s, which has %s: leave it out, or plan anew",
                   flag, given[0] ? " " : "", given, f->what, plan);
}

static enum bl_status check_numbers(const struct bl_plan_file *f, const struct bl_options *o)
{
    const struct bl_plan_file_settings *s = &f->settings;
    const struct asked asked[] = {{"-c", o->ctx_tokens, s->ctx_tokens},
                                  {"-b", o->batch_tokens, s->batch_tokens},
                                  {"-ub", o->ubatch_tokens, s->ubatch_tokens},
                                  {"sessions", o->max_sessions, s->max_sessions},
                                  {"--rewind", o->rewind_tokens, s->rewind_tokens}};

    for (size_t i = 0; i < BL_COUNT(asked); i++) {
        char given[24], plan[24];
        if (!asked[i].given || asked[i].given == asked[i].plan)
            continue;
        snprintf(given, sizeof given, "%llu", (unsigned long long)asked[i].given);
        snprintf(plan, sizeof plan, "%llu", (unsigned long long)asked[i].plan);
        return contradicts(asked[i].flag, given, plan, f);
    }
    return BL_OK;
}

static enum bl_status check_type(const struct bl_plan_file *f, const char *flag, const char *given,
                                 const char *plan)
{
    enum bl_dtype a, b;

    if (!given || !strcmp(given, "auto"))
        return BL_OK;
    const enum bl_status st = bl_dtype_by_name(given, &a);
    if (st)
        return bl_fail_in(st, "%s", flag);
    BL_TRY(bl_dtype_by_name(plan, &b));
    return a == b ? BL_OK : contradicts(flag, given, plan, f);
}

enum bl_status bl_plan_file_options(const struct bl_plan_file *f, struct bl_options *o)
{
    const struct bl_plan_file_settings *s = &f->settings;

    if (o->rules)
        return bl_fail(BL_EINVAL, "rules and %s both say where everything goes; give one", f->what);
    if (o->ctx_tokens == BL_CTX_MAX)
        return bl_fail(BL_EINVAL,
                       "-c max contradicts %s, whose context is settled: leave it out, "
                       "or plan anew",
                       f->what);
    BL_TRY(check_numbers(f, o));
    BL_TRY(check_type(f, "-ctk", o->type_k, s->type_k));
    BL_TRY(check_type(f, "-ctv", o->type_v, s->type_v));
    if (o->no_mmap && s->mmap)
        return contradicts("--no-mmap", "", "the file mapped", f);
    if (o->exact && !s->exact)
        return contradicts("--exact", "", "weights as they are in the file", f);
    o->ctx_tokens = s->ctx_tokens;
    o->batch_tokens = s->batch_tokens;
    o->ubatch_tokens = s->ubatch_tokens;
    o->max_sessions = s->max_sessions;
    o->rewind_tokens = s->rewind_tokens;
    o->type_k = s->type_k;
    o->type_v = s->type_v;
    o->no_mmap = !s->mmap;
    o->exact = s->exact;
    if (o->out_tokens < s->out_tokens)
        o->out_tokens = s->out_tokens;
    /* Threads asked for now come first; those of a plan are for its machine, which this has to be.
     */
    if (!o->threads) {
        o->threads = s->threads;
        o->threads_prefill = o->threads_prefill ? o->threads_prefill : s->threads_prefill;
    }
    return BL_OK;
}

/* ---- differences ---------------------------------------------------------------------------- */

struct difference {
    char text[600];
    size_t n;
};

static void differ(struct difference *d, const char *fmt, ...) BL_PRINTF(2, 3);

static void differ(struct difference *d, const char *fmt, ...)
{
    va_list args;

    if (d->n >= sizeof d->text)
        return;
    d->n += (size_t)snprintf(d->text + d->n, sizeof d->text - d->n, "%s", d->n ? "; " : "");
    if (d->n >= sizeof d->text)
        return;
    va_start(args, fmt);
    d->n += (size_t)vsnprintf(d->text + d->n, sizeof d->text - d->n, fmt, args);
    va_end(args);
}

static void differ_number(struct difference *d, const char *what, uint64_t there, uint64_t here)
{
    if (there != here)
        differ(d, "%llu %s there, %llu here", (unsigned long long)there, what,
               (unsigned long long)here);
}

enum bl_status bl_plan_file_is_for(const struct bl_plan_file *f, const struct bl_model *m)
{
    const struct bl_plan_file_model *there = &f->model;
    struct bl_plan_file_model here;
    struct difference d = {.n = 0};

    bl_plan_file_describe(&here, m);
    if (strcmp(there->arch, here.arch))
        differ(&d, "the architecture is %s there, %s here", there->arch, here.arch);
    differ_number(&d, "layers", there->n_layers, here.n_layers);
    differ_number(&d, "tensors", there->n_tensors, here.n_tensors);
    differ_number(&d, "bytes of them", there->tensor_bytes, here.tensor_bytes);
    if (!d.n && strcmp(there->digest, here.digest))
        differ(&d, "tensors have other names, types or shapes");
    return d.n ? bl_fail(BL_EINVAL, "%s is for another model, %s: %s", f->what,
                         there->name[0] ? there->name : there->arch, d.text)
               : BL_OK;
}

static bool is_used(const struct bl_plan_file *f, uint32_t device)
{
    for (uint32_t i = 0; i < f->n_places; i++)
        if (f->place[i].on == device)
            return true;
    return false;
}

static void compare(struct difference *d, const struct bl_plan_file_device *there,
                    const struct bl_machine_device *here)
{
    if (there->kind != here->kind || there->mem_kind != here->mem_kind)
        differ(d, "%s is a %s with %s memory there, a %s with %s memory here", there->id,
               bl_kind_words[there->kind], bl_memory_words[there->mem_kind],
               bl_kind_words[here->kind], bl_memory_words[here->mem_kind]);
    else if (strcmp(there->name, here->name[0] ? here->name : here->id))
        differ(d, "%s is %s there, %s here", there->id, there->name, here->name);
    else if (there->cores != here->cores)
        differ(d, "%s has %u core%s there, %u here", there->id, there->cores,
               bl_plural(there->cores), here->cores);
}

static bool can_be_named(const struct bl_plan_file_device *d)
{
    char kind[sizeof d->id];
    const size_t n = strcspn(d->id, "0123456789");

    snprintf(kind, sizeof kind, "%.*s", (int)n, d->id);
    return bl_found_is_id(d->id) || bl_backend_find(kind);
}

/* What brings back devices that are used and not here: a list of them all, since one option is. */
static void hint(struct difference *h, const struct bl_plan_file *f, const uint16_t *at)
{
    bool missing = false, names = true;

    for (uint32_t d = 0; d < f->n_devices; d++)
        if (is_used(f, d)) {
            missing = missing || at[d] == BL_NO_DEVICE;
            names = names && (!d || can_be_named(&f->device[d]));
        }
    if (!missing || at[0] == BL_NO_DEVICE)
        return;
    if (!names) {
        differ(h, "; --machine FILE has the machine that it is for");
        return;
    }
    differ(h, "; name what it uses: --devices ");
    for (uint32_t d = 1, n = 0; d < f->n_devices && h->n < sizeof h->text; d++)
        if (is_used(f, d))
            h->n += (size_t)snprintf(h->text + h->n, sizeof h->text - h->n, "%s%s", n++ ? "," : "",
                                     f->device[d].id);
}

/* Memory is left to the ledger: more than before is no reason, and less only where it is needed. */
enum bl_status bl_plan_file_is_on(const struct bl_plan_file *f, const struct bl_machine *m,
                                  uint16_t *at)
{
    struct difference diff = {.n = 0}, help = {.n = 0};

    for (uint32_t d = 0; d < f->n_devices; d++) {
        const struct bl_plan_file_device *there = &f->device[d];
        at[d] = BL_NO_DEVICE;
        for (uint32_t h = 0; h < m->n_devices; h++)
            if (!strcmp(m->device[h].id, there->id))
                at[d] = (uint16_t)h;
        if (d && !is_used(f, d)) /* the first runs the program */
            continue;
        if (at[d] == BL_NO_DEVICE)
            differ(&diff, "%s (%s) is not here", there->id, there->name);
        else
            compare(&diff, there, &m->device[at[d]]);
    }
    if (diff.n)
        hint(&help, f, at);
    return diff.n ? bl_fail(BL_EINVAL, "%s is for another machine%s%s: %s%s", f->what,
                            f->machine_name[0] ? ", " : "", f->machine_name, diff.text, help.text)
                  : BL_OK;
}

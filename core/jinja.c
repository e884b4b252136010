/* SPDX-License-Identifier: MIT */
#include "jinja.h"

#include <stdlib.h>

#include "jinja_eval.h"

enum bl_status bl_jinja_compile(struct bl_jinja **out, const char *source, size_t n_bytes,
                                const struct bl_jinja_limits *limits)
{
    struct bl_jinja_options options = {0};
    if (limits)
        options.limits = *limits;
    struct bl_jinja *t = bl_calloc(1, sizeof *t);
    if (!t)
        return bl_fail(BL_ENOMEM, "template: out of memory");
    bl_jrun_init(&t->run, &options);
    t->body = bl_jparse_template(&t->run, source, n_bytes);
    t->source = bl_jrun_alloc(&t->run, n_bytes);
    if (t->source && n_bytes) {
        memcpy(t->source, source, n_bytes);
        t->n_source = n_bytes;
    }
    enum bl_status st = t->run.status;
    if (st) {
        bl_jinja_destroy(t);
        return st;
    }
    *out = t;
    return BL_OK;
}

void bl_jinja_destroy(struct bl_jinja *t)
{
    if (!t)
        return;
    bl_jrun_finish(&t->run);
    free(t);
}

bool bl_jinja_mentions(const struct bl_jinja *t, const char *word)
{
    return t->n_source && memmem(t->source, t->n_source, word, strlen(word));
}

/* ---- output ---------------------------------------------------------------------------------- */

void bl_jinja_text_finish(struct bl_jinja_text *t)
{
    free(t->bytes);
    free(t->user);
    *t = (struct bl_jinja_text){0};
}

static enum bl_status hand_out(const struct bl_jbuf *b, struct bl_jinja_text *out)
{
    char *bytes = bl_calloc((size_t)b->used + 1, 1);
    struct bl_jinja_range *user = bl_calloc(b->n_user, sizeof *user);
    if (!bytes || !user) {
        free(bytes);
        free(user);
        return bl_fail(BL_ENOMEM, "template: out of memory for %u bytes of output", b->used);
    }
    if (b->used)
        memcpy(bytes, b->bytes, b->used);
    for (uint32_t i = 0; i < b->n_user; i++)
        user[i] = (struct bl_jinja_range){b->user[i].begin, b->user[i].end};
    *out = (struct bl_jinja_text){bytes, b->used, user, b->n_user};
    return BL_OK;
}

/* ---- runs ------------------------------------------------------------------------------------ */

/* Builtins lie below the caller's variables, which lie below what the template sets. */
void bl_jinja_start(struct bl_jinja_run *r, const struct bl_jinja_options *options)
{
    bl_jrun_init(r, options);
    bl_jscope_push(r, NULL);
    if (r->status)
        return;
    bl_jglobals_define(r);
    bl_jscope_push(r, r->scope);
}

enum bl_status bl_jinja_execute(struct bl_jinja_run *r, const struct bl_jinja *t,
                                struct bl_jinja_text *out)
{
    if (!r->status)
        bl_jscope_push(r, r->scope);
    r->out = r->whole = bl_jbuf_new(r, 1024);
    bl_jexec(r, t->body);
    return r->status ? r->status : hand_out(r->whole, out);
}

struct bl_jv bl_jinja_read(struct bl_jinja_run *r, struct bl_jinja_json json, bool user)
{
    if (json.tree)
        return bl_jv_from_tree(r, json.tree, user);
    return bl_jv_from_json(r, bl_jv_wrap(r, json.text, json.n_bytes, user));
}

enum bl_status bl_jinja_render(const struct bl_jinja *t, const struct bl_jinja_var *vars,
                               size_t n_vars, const struct bl_jinja_options *options,
                               struct bl_jinja_text *out)
{
    struct bl_jinja_run r;
    enum bl_status st;
    bl_jinja_start(&r, options);
    for (size_t i = 0; i < n_vars && !r.status; i++) {
        struct bl_jv v = bl_jinja_read(&r, vars[i].value, !vars[i].trusted);
        if (r.status)
            bl_fail_in(r.status, "variable '%s'", vars[i].name);
        else
            bl_jscope_set(&r, vars[i].name, v);
    }
    st = r.status ? r.status : bl_jinja_execute(&r, t, out);
    bl_jrun_finish(&r);
    return st;
}

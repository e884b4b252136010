/* SPDX-License-Identifier: MIT */
/* Any template over any variables.
 *
 * Input: the template, a NUL, and the value of the variable "v" as JSON; without a NUL "v" is null.
 */
#include <stdio.h>
#include <stdlib.h>

#include "chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void must(bool good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "broken promise: %s\n", what);
    abort();
}

static void check_failure(enum bl_status st)
{
    must(st == BL_EFORMAT || st == BL_EINVAL || st == BL_ELIMIT || st == BL_EUNSUPPORTED,
         "a template fails in one of four ways");
    must(!strpbrk(bl_error(), "\n\r"), "a message is one line");
}

static void check_output(const struct bl_jinja_text *t)
{
    size_t at = 0;
    must(t->bytes[t->n_bytes] == 0, "the output ends with a NUL");
    for (size_t i = 0; i < t->n_user; i++) {
        const struct bl_jinja_range *r = &t->user[i];
        must(r->begin < r->end && r->end <= t->n_bytes && (!i || r->begin > at),
             "ranges are sorted, apart and inside");
        at = r->end;
    }
}

static void render(const struct bl_jinja *t, const struct bl_jinja_options *o, const char *json,
                   size_t n_json, struct bl_jinja_text *out)
{
    const struct bl_jinja_var var = {.name = "v", .value = {NULL, json, n_json}};
    enum bl_status st = bl_jinja_render(t, &var, 1, o, out);
    must(!st == (out->bytes != NULL), "an output or a failure");
    if (st)
        check_failure(st);
    else
        check_output(out);
}

/* A template renders the same twice: it is not written to. */
static void use(const struct bl_jinja *t, const struct bl_jinja_options *o, const char *json,
                size_t n_json)
{
    struct bl_jinja_text once = {0}, again = {0};
    render(t, o, json, n_json, &once);
    render(t, o, json, n_json, &again);
    must(once.n_bytes == again.n_bytes && once.n_user == again.n_user, "renders are repeatable");
    must(!once.bytes || memcmp(once.bytes, again.bytes, once.n_bytes) == 0,
         "renders are repeatable");
    bl_jinja_text_finish(&once);
    bl_jinja_text_finish(&again);
}

static void chat(const struct bl_jinja *t, const struct bl_jinja_options *o, const char *json,
                 size_t n_json)
{
    const struct bl_chat_input in = {.messages = {NULL, json, n_json},
                                     .bos = "<s>",
                                     .adapt = true,
                                     .now = o->now,
                                     .limits = o->limits};
    struct bl_jinja_text out;
    enum bl_status st = bl_chat_render(t, &in, &out);
    must(!st == (out.bytes != NULL), "an output or a failure");
    if (st)
        check_failure(st);
    else
        check_output(&out);
    bl_jinja_text_finish(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const struct tm now = {.tm_year = 126, .tm_mday = 1};
    const struct bl_jinja_options o = {
        .limits = {.depth = 30, .steps = 20000, .output_bytes = 1 << 18, .memory_bytes = 4 << 20},
        .now = &now,
        .mutable_values = true};
    const uint8_t *nul = n ? memchr(data, 0, n) : NULL;
    size_t n_source = nul ? (size_t)(nul - data) : n, n_json = nul ? n - n_source - 1 : 4;
    char *source = malloc(n_source ? n_source : 1), *json = malloc(n_json ? n_json : 1);
    must(source && json, "the harness has memory"); /* exact sizes, for the address sanitizer */
    if (n_source)
        memcpy(source, data, n_source);
    memcpy(json, nul ? (const char *)nul + 1 : "null", n_json);
    struct bl_jinja *t = NULL;
    enum bl_status st = bl_jinja_compile(&t, source, n_source, &o.limits);
    free(source); /* the template stands alone */
    if (st)
        check_failure(st);
    if (t) {
        use(t, &o, json, n_json);
        chat(t, &o, json, n_json);
    }
    bl_jinja_destroy(t);
    free(json);
    return 0;
}

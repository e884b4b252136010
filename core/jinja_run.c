/* SPDX-License-Identifier: MIT */
#include "jinja_value.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    DEPTH = 100,
    FRAMES_PER_DEPTH = 16, /* recursion in C per level of the language: an expression inside a block
                              inside a macro */
    BYTES_PER_STEP = 1024
};
#define STEPS UINT64_C(1000000)
#define OUTPUT_BYTES (UINT64_C(8) << 20)
#define MEMORY_BYTES (UINT64_C(256) << 20)
#define MOST_MEMORY_BYTES (UINT64_C(2) << 30) /* offsets into strings are 32 bits */

static struct bl_jinja_limits with_defaults(struct bl_jinja_limits l)
{
    l.depth = l.depth ? l.depth : DEPTH;
    l.steps = l.steps ? l.steps : STEPS;
    l.output_bytes = l.output_bytes ? l.output_bytes : OUTPUT_BYTES;
    l.memory_bytes = l.memory_bytes ? l.memory_bytes : MEMORY_BYTES;
    if (l.memory_bytes > MOST_MEMORY_BYTES)
        l.memory_bytes = MOST_MEMORY_BYTES;
    return l;
}

void bl_jrun_init(struct bl_jinja_run *r, const struct bl_jinja_options *options)
{
    struct bl_jinja_options o = {0};
    if (options)
        o = *options;
    *r = (struct bl_jinja_run){.limits = with_defaults(o.limits),
                               .mutable_values = o.mutable_values};
    r->steps = r->limits.steps;
    r->has_now = o.now != NULL;
    if (o.now)
        r->now = *o.now;
}

void bl_jrun_finish(struct bl_jinja_run *r)
{
    bl_arena_finish(&r->arena);
}

/* Messages quote templates and conversations; they stay one line. */
static void flatten(char *s)
{
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7F)
            *s = ' ';
}

struct bl_jv bl_jrun_fail(struct bl_jinja_run *r, enum bl_status code, const char *fmt, ...)
{
    char text[400];
    va_list ap;
    if (r->status)
        return bl_jv_undefined(NULL);
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    flatten(text);
    r->status =
        r->line ? bl_fail(code, "template line %u: %s", r->line, text) : bl_fail(code, "%s", text);
    return bl_jv_undefined(NULL);
}

struct bl_jv bl_jrun_raise(struct bl_jinja_run *r, struct bl_jv message)
{
    char text[480];
    if (r->status)
        return bl_jv_undefined(NULL);
    snprintf(text, sizeof text, "%.*s", (int)message.len, bl_jv_bytes(message));
    flatten(text);
    r->status = bl_fail(BL_EINVAL, "%s", text);
    return bl_jv_undefined(NULL);
}

struct bl_jv bl_jrun_fail_undefined(struct bl_jinja_run *r, struct bl_jv undefined)
{
    const struct bl_jhint *h = undefined.hint;
    if (!h)
        return bl_jrun_fail(r, BL_EINVAL, "an undefined value is used");
    if (h->text)
        return bl_jrun_fail(r, BL_EINVAL, "%s", h->text);
    struct bl_jbuf *b = bl_jbuf_new(r, 64);
    bl_jv_repr(r, b, h->name);
    int n = (int)b->used;
    if (h->forbidden)
        return bl_jrun_fail(r, BL_EINVAL, "access to attribute %.*s of '%s' object is unsafe.", n,
                            b->bytes, h->owner);
    if (!h->owner)
        return bl_jrun_fail(r, BL_EINVAL, "%.*s is undefined", n, b->bytes);
    bool none = strcmp(h->owner, "NoneType") == 0, attribute = h->name.kind == BL_J_STRING;
    const char *quote = attribute ? "'" : "";
    return bl_jrun_fail(r, BL_EINVAL, "%s%s%s%s has no %s %.*s", quote, none ? "None" : h->owner,
                        none ? "" : " object", quote, attribute ? "attribute" : "element", n,
                        b->bytes);
}

bool bl_jrun_step(struct bl_jinja_run *r, uint64_t n)
{
    if (r->status)
        return false;
    if (n > r->steps) {
        bl_jrun_fail(r, BL_ELIMIT, "stopped after %" PRIu64 " steps: an endless loop?",
                     r->limits.steps);
        return false;
    }
    r->steps -= n;
    return true;
}

bool bl_jrun_work(struct bl_jinja_run *r, uint64_t n_bytes)
{
    r->work_bytes += n_bytes;
    uint64_t n = r->work_bytes / BYTES_PER_STEP;
    r->work_bytes %= BYTES_PER_STEP;
    return bl_jrun_step(r, n);
}

bool bl_jrun_enter(struct bl_jinja_run *r)
{
    r->frames++;
    if (r->frames > (uint64_t)r->limits.depth * FRAMES_PER_DEPTH)
        bl_jrun_fail(r, BL_ELIMIT, "nested too deeply");
    return !r->status;
}

void bl_jrun_leave(struct bl_jinja_run *r)
{
    r->frames--;
}

void *bl_jrun_alloc(struct bl_jinja_run *r, uint64_t bytes)
{
    if (r->status)
        return NULL;
    uint64_t limit = r->limits.memory_bytes;
    if (bytes > limit || r->arena.taken_bytes > limit - bytes) {
        bl_jrun_fail(r, BL_ELIMIT, "needs more than %" PRIu64 " bytes of memory", limit);
        return NULL;
    }
    void *p = bl_arena_alloc(&r->arena, (size_t)bytes);
    if (!p)
        bl_jrun_fail(r, BL_ENOMEM, "out of memory");
    return p;
}

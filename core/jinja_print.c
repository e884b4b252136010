/* SPDX-License-Identifier: MIT */
#include "jinja_value.h"

#include <inttypes.h>
#include <stdio.h>

#include "jinja_eval.h"

static void put_int(struct bl_jinja_run *r, struct bl_jbuf *b, int64_t i)
{
    char text[24];
    int n = snprintf(text, sizeof text, "%" PRId64, i);
    bl_jbuf_put(r, b, text, (size_t)n, false);
}

static void put_double(struct bl_jinja_run *r, struct bl_jbuf *b, double v)
{
    char text[32];
    size_t n = bl_jtext_double(v, text);
    bl_jbuf_put(r, b, text, n, false);
}

/* How repr() spells a character that cannot stand for itself; 0 if it can. */
static int escape(uint32_t cp, char quote, char out[16])
{
    switch (cp) {
    case '\n':
        return snprintf(out, 16, "\\n");
    case '\r':
        return snprintf(out, 16, "\\r");
    case '\t':
        return snprintf(out, 16, "\\t");
    case '\\':
        return snprintf(out, 16, "\\\\");
    default:
        if (cp == (unsigned char)quote)
            return snprintf(out, 16, "\\%c", quote);
        if (bl_jtext_is_printable(cp))
            return 0;
        return snprintf(out, 16, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", cp);
    }
}

static void repr_run(struct bl_jinja_run *r, struct bl_jbuf *b, const char *bytes, uint32_t n_bytes,
                     char quote, bool user)
{
    char escaped[16];
    for (uint32_t at = 0, n; at < n_bytes && !r->status; at += n) {
        n = (uint32_t)bl_jtext_next(bytes + at, n_bytes - at);
        int n_escaped = escape(bl_jtext_decode(bytes + at, n), quote, escaped);
        if (n_escaped)
            bl_jbuf_put(r, b, escaped, (size_t)n_escaped, user);
        else
            bl_jbuf_put(r, b, bytes + at, n, user);
    }
}

static void repr_string(struct bl_jinja_run *r, struct bl_jbuf *b, struct bl_jv s)
{
    bool single = memchr(bl_jv_bytes(s), '\'', s.len), twice = memchr(bl_jv_bytes(s), '"', s.len);
    char quote = single && !twice ? '"' : '\'';
    bool user;
    bl_jbuf_put(r, b, &quote, 1, false);
    for (uint32_t at = 0, n; at < s.len && !r->status; at += n) {
        n = bl_jv_run_at(s, at, &user);
        repr_run(r, b, bl_jv_bytes(s) + at, n, quote, user);
    }
    bl_jbuf_put(r, b, &quote, 1, false);
}

static void repr_items(struct bl_jinja_run *r, struct bl_jbuf *b, const struct bl_jlist *l,
                       const char *open, const char *close)
{
    bl_jbuf_puts(r, b, open);
    for (uint32_t i = 0; i < l->n && !r->status; i++) {
        bl_jbuf_puts(r, b, i ? ", " : "");
        bl_jv_repr(r, b, l->item[i]);
    }
    bl_jbuf_puts(r, b, close);
}

static void repr_map(struct bl_jinja_run *r, struct bl_jbuf *b, const struct bl_jmap *m)
{
    bl_jbuf_puts(r, b, "{");
    for (uint32_t i = 0; i < m->n && !r->status; i++) {
        bl_jbuf_puts(r, b, i ? ", " : "");
        bl_jv_repr(r, b, m->entry[i].key);
        bl_jbuf_puts(r, b, ": ");
        bl_jv_repr(r, b, m->entry[i].value);
    }
    bl_jbuf_puts(r, b, "}");
}

static void repr_container(struct bl_jinja_run *r, struct bl_jbuf *b, struct bl_jv v)
{
    switch (v.kind) {
    case BL_J_LIST:
        r->printed |= v.list->watch;
        repr_items(r, b, v.list, "[", "]");
        break;
    case BL_J_TUPLE:
        repr_items(r, b, v.list, "(", v.list->n == 1 ? ",)" : ")");
        break;
    case BL_J_VIEW:
        bl_jbuf_puts(r, b, v.list->type);
        repr_items(r, b, v.list, "([", "])");
        break;
    case BL_J_MAP:
        r->printed |= v.map->watch;
        repr_map(r, b, v.map);
        break;
    default:
        bl_jbuf_puts(r, b, "<Namespace ");
        repr_map(r, b, v.map);
        bl_jbuf_puts(r, b, ">");
    }
}

static void repr_range(struct bl_jinja_run *r, struct bl_jbuf *b, const struct bl_jrange *range)
{
    bl_jbuf_puts(r, b, "range(");
    put_int(r, b, range->start);
    bl_jbuf_puts(r, b, ", ");
    put_int(r, b, range->stop);
    if (range->step != 1) {
        bl_jbuf_puts(r, b, ", ");
        put_int(r, b, range->step);
    }
    bl_jbuf_puts(r, b, ")");
}

static void repr_loop(struct bl_jinja_run *r, struct bl_jbuf *b, struct bl_jloop *l)
{
    bl_jbuf_puts(r, b, "<LoopContext ");
    put_int(r, b, l->index0 + 1);
    bl_jbuf_puts(r, b, "/");
    put_int(r, b, bl_jloop_length(r, l));
    bl_jbuf_puts(r, b, ">");
}

/* Python prints addresses of most such objects; no template can want that. */
static void repr_object(struct bl_jinja_run *r, struct bl_jbuf *b, struct bl_jv v)
{
    bl_jbuf_puts(r, b, v.kind == BL_J_MACRO ? "<Macro " : "<");
    if (v.kind == BL_J_MACRO) {
        bl_jv_repr(r, b, v.macro->node->value);
    } else {
        bl_jbuf_puts(r, b, bl_jv_type(v));
        bl_jbuf_puts(r, b, v.kind == BL_J_FUNCTION ? " " : " object");
        bl_jbuf_puts(r, b, v.kind == BL_J_FUNCTION ? v.bound->fn->name : "");
    }
    bl_jbuf_puts(r, b, ">");
}

static void repr_deep(struct bl_jinja_run *r, struct bl_jbuf *b, struct bl_jv v)
{
    if (++r->calls > r->limits.depth)
        bl_jrun_fail(r, BL_ELIMIT, "a value is nested more than %u deep", r->limits.depth);
    if (bl_jrun_enter(r))
        repr_container(r, b, v);
    bl_jrun_leave(r);
    r->calls--;
}

void bl_jv_repr(struct bl_jinja_run *r, struct bl_jbuf *b, struct bl_jv v)
{
    switch (v.kind) {
    case BL_J_ABSENT:
    case BL_J_UNDEFINED:
        bl_jbuf_puts(r, b, "Undefined");
        break;
    case BL_J_NONE:
        bl_jbuf_puts(r, b, "None");
        break;
    case BL_J_BOOL:
        bl_jbuf_puts(r, b, v.b ? "True" : "False");
        break;
    case BL_J_INT:
        put_int(r, b, v.i);
        break;
    case BL_J_FLOAT:
        put_double(r, b, v.f);
        break;
    case BL_J_STRING:
        repr_string(r, b, v);
        break;
    case BL_J_LIST:
    case BL_J_TUPLE:
    case BL_J_VIEW:
    case BL_J_MAP:
    case BL_J_NAMESPACE:
        repr_deep(r, b, v);
        break;
    case BL_J_RANGE:
        repr_range(r, b, v.range);
        break;
    case BL_J_LOOP:
        repr_loop(r, b, v.loop);
        break;
    default:
        repr_object(r, b, v);
    }
}

void bl_jv_print(struct bl_jinja_run *r, struct bl_jbuf *b, struct bl_jv v)
{
    if (v.kind == BL_J_STRING)
        bl_jbuf_add(r, b, v);
    else if (v.kind > BL_J_UNDEFINED)
        bl_jv_repr(r, b, v);
}

struct bl_jv bl_jv_str(struct bl_jinja_run *r, struct bl_jv v)
{
    if (v.kind == BL_J_STRING)
        return v;
    struct bl_jbuf *b = bl_jbuf_new(r, 32);
    bl_jv_print(r, b, v);
    return bl_jbuf_string(b);
}

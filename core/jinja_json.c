/* SPDX-License-Identifier: MIT */
#include "jinja_value.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- from cJSON ------------------------------------------------------------------------------ */

static struct bl_jv from_number(double v)
{
    /* cJSON keeps every number as a double; what is integral was most likely written as an integer.
     */
    if (v == floor(v) && fabs(v) < 0x1p63)
        return bl_jv_int((int64_t)v);
    return bl_jv_float(v);
}

static struct bl_jv from_children(struct bl_jinja_run *r, const cJSON *j, bool user)
{
    struct bl_jlist *list = cJSON_IsArray(j) ? bl_jlist_new(r, 0) : NULL;
    struct bl_jmap *map = list ? NULL : bl_jmap_new(r);
    for (const cJSON *c = j->child; c && !r->status; c = c->next) {
        struct bl_jv v = bl_jv_from_tree(r, c, user);
        if (list)
            bl_jlist_push(r, list, v);
        else
            bl_jmap_set(r, map, bl_jv_wrap(r, c->string, strlen(c->string), user), v);
    }
    return list ? bl_jlist_value(BL_J_LIST, list) : bl_jmap_value(map);
}

struct bl_jv bl_jv_from_tree(struct bl_jinja_run *r, const struct cJSON *j, bool user)
{
    struct bl_jv v = bl_jv_none();
    if (cJSON_IsBool(j))
        return bl_jv_bool(cJSON_IsTrue(j));
    if (cJSON_IsNumber(j))
        return from_number(j->valuedouble);
    if (cJSON_IsString(j))
        return bl_jv_wrap(r, j->valuestring, strlen(j->valuestring), user);
    if (cJSON_IsRaw(j))
        return bl_jv_from_json(r, bl_jv_wrap(r, j->valuestring, strlen(j->valuestring), user));
    if (!cJSON_IsArray(j) && !cJSON_IsObject(j))
        return v;
    if (++r->calls > r->limits.depth)
        bl_jrun_fail(r, BL_ELIMIT, "JSON is nested more than %u deep", r->limits.depth);
    if (bl_jrun_enter(r))
        v = from_children(r, j, user);
    bl_jrun_leave(r);
    r->calls--;
    return v;
}

/* ---- from text ------------------------------------------------------------------------------- */

struct reader {
    struct bl_jinja_run *r;
    struct bl_jv text;
    const char *s;
    uint32_t at, n, depth;
    const char *wanted; /* what was not found; NULL: fine so far */
};

static struct bl_jv read_value(struct reader *p);

static struct bl_jv wrong(struct reader *p, const char *wanted)
{
    if (!p->wanted)
        p->wanted = wanted;
    return bl_jv_none();
}

static char peek(struct reader *p)
{
    while (p->at < p->n && p->s[p->at] && strchr(" \t\n\r", p->s[p->at]))
        p->at++;
    return p->at < p->n ? p->s[p->at] : 0;
}

static bool skip(struct reader *p, char c)
{
    bool found = peek(p) == c && p->at < p->n;
    p->at += found;
    return found;
}

static bool read_hex(struct reader *p, uint32_t *out)
{
    uint32_t v = 0;
    if (p->n - p->at < 4)
        return false;
    for (int i = 0; i < 4; i++) {
        char c = p->s[p->at++];
        if (c >= '0' && c <= '9')
            v = v * 16 + (uint32_t)(c - '0');
        else if ((c | 32) >= 'a' && (c | 32) <= 'f')
            v = v * 16 + (uint32_t)((c | 32) - 'a' + 10);
        else
            return false;
    }
    *out = v;
    return true;
}

static void read_unicode(struct reader *p, struct bl_jbuf *b, bool user)
{
    uint32_t cp = 0, low = 0;
    char bytes[4];
    if (!read_hex(p, &cp)) {
        wrong(p, "four hexadecimal digits");
        return;
    }
    uint32_t here = p->at;
    if (cp >= 0xD800 && cp < 0xDC00 && p->n - p->at >= 6 && memcmp(p->s + p->at, "\\u", 2) == 0) {
        p->at += 2;
        if (read_hex(p, &low) && low >= 0xDC00 && low < 0xE000)
            cp = 0x10000 + ((cp - 0xD800) << 10) + (low - 0xDC00);
        else
            p->at = here;
    }
    size_t n = bl_jtext_encode(cp, bytes);
    bl_jbuf_put(p->r, b, bytes, n, user);
}

static void read_escape(struct reader *p, struct bl_jbuf *b, bool user)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (p->at >= p->n) {
        wrong(p, "an escape");
        return;
    }
    char c = p->s[p->at++];
    const char *at = c ? strchr(from, c) : NULL;
    if (c == 'u')
        read_unicode(p, b, user);
    else if (at)
        bl_jbuf_put(p->r, b, &to[at - from], 1, user);
    else
        wrong(p, "an escape");
}

static uint32_t plain_bytes(const struct reader *p)
{
    uint32_t at = p->at;
    while (at < p->n && p->s[at] != '"' && p->s[at] != '\\')
        at++;
    return at - p->at;
}

/* Most strings hold no escape and are slices of the text. */
static struct bl_jv read_string(struct reader *p)
{
    bool user;
    struct bl_jv v = bl_jv_slice(p->text, p->at, plain_bytes(p));
    p->at += v.len;
    bl_jv_run_at(p->text, p->at < p->n ? p->at : 0, &user);
    struct bl_jbuf *b = NULL;
    while (!p->wanted && p->at < p->n && p->s[p->at] == '\\' && !p->r->status) {
        p->at++;
        if (!b) {
            b = bl_jbuf_new(p->r, 0);
            bl_jbuf_add(p->r, b, v);
        }
        read_escape(p, b, user);
        uint32_t n = plain_bytes(p);
        bl_jbuf_add(p->r, b, bl_jv_slice(p->text, p->at, n));
        p->at += n;
    }
    if (p->at >= p->n)
        return wrong(p, "the end of a string");
    p->at++;
    return b ? bl_jbuf_string(b) : v;
}

static struct bl_jv read_number(struct reader *p)
{
    char text[400]; /* room for every double written out; no NUL ends the JSON text itself */
    uint32_t n = 0;
    bool whole = true;
    char *end;
    while (p->at + n < p->n && n < sizeof text - 1 && p->s[p->at + n] &&
           strchr("+-.0123456789eE", p->s[p->at + n])) {
        text[n] = p->s[p->at + n];
        whole = whole && !strchr(".eE", text[n]);
        n++;
    }
    text[n] = 0;
    const char *digits = text + (text[0] == '-');
    if (*digits < '0' || *digits > '9' ||
        (digits[0] == '0' && digits[1] >= '0' && digits[1] <= '9'))
        return wrong(p, "a value");
    errno = 0;
    int64_t i = whole ? strtoll(text, &end, 10) : 0;
    bool fits = whole && !errno;
    double f = fits ? 0 : strtod(text, &end);
    if (*end || end[-1] == '.')
        return wrong(p, "a number");
    p->at += n;
    return fits ? bl_jv_int(i) : bl_jv_float(f);
}

static struct bl_jv read_array(struct reader *p)
{
    struct bl_jlist *l = bl_jlist_new(p->r, 0);
    if (skip(p, ']'))
        return bl_jlist_value(BL_J_LIST, l);
    do {
        bl_jlist_push(p->r, l, read_value(p));
    } while (!p->wanted && !p->r->status && skip(p, ','));
    return skip(p, ']') ? bl_jlist_value(BL_J_LIST, l) : wrong(p, "',' or ']'");
}

static struct bl_jv read_object(struct reader *p)
{
    struct bl_jmap *m = bl_jmap_new(p->r);
    if (skip(p, '}'))
        return bl_jmap_value(m);
    do {
        if (!skip(p, '"'))
            return wrong(p, "a key");
        struct bl_jv key = read_string(p);
        if (p->wanted || !skip(p, ':'))
            return wrong(p, "':'");
        struct bl_jv value = read_value(p);
        if (!p->wanted)
            bl_jmap_set(p->r, m, key, value);
    } while (!p->wanted && !p->r->status && skip(p, ','));
    return skip(p, '}') ? bl_jmap_value(m) : wrong(p, "',' or '}'");
}

static struct bl_jv read_word(struct reader *p)
{
    static const char *const words[] = {"null", "true", "false", "NaN", "Infinity", "-Infinity"};
    const struct bl_jv values[] = {bl_jv_none(),     bl_jv_bool(true),      bl_jv_bool(false),
                                   bl_jv_float(NAN), bl_jv_float(INFINITY), bl_jv_float(-INFINITY)};
    for (size_t i = 0; i < BL_COUNT(words); i++) {
        size_t n = strlen(words[i]);
        if (p->n - p->at >= n && memcmp(p->s + p->at, words[i], n) == 0) {
            p->at += (uint32_t)n;
            return values[i];
        }
    }
    return read_number(p);
}

static struct bl_jv read_value(struct reader *p)
{
    char c = peek(p);
    if (c == '"') {
        p->at++;
        return read_string(p);
    }
    if (c != '[' && c != '{')
        return p->at < p->n ? read_word(p) : wrong(p, "a value");
    if (p->depth >= p->r->limits.depth)
        return wrong(p, "less nesting");
    p->depth++;
    p->at++;
    struct bl_jv v = c == '[' ? read_array(p) : read_object(p);
    p->depth--;
    return v;
}

static struct bl_jv read_text(struct reader *p, struct bl_jinja_run *r, struct bl_jv string)
{
    *p = (struct reader){.r = r, .text = string, .s = bl_jv_bytes(string), .n = string.len};
    bl_jrun_work(r, string.len);
    struct bl_jv v = read_value(p);
    peek(p);
    return p->at < p->n ? wrong(p, "the end") : v;
}

struct bl_jv bl_jv_from_json(struct bl_jinja_run *r, struct bl_jv string)
{
    struct reader p;
    if (string.kind != BL_J_STRING)
        return bl_jrun_fail(r, BL_EINVAL, "the JSON object must be str, not %s",
                            bl_jv_type(string));
    struct bl_jv v = read_text(&p, r, string);
    if (p.wanted)
        return bl_jrun_fail(r, BL_EINVAL, "JSON: %s expected at byte %u", p.wanted, p.at);
    return v;
}

bool bl_jv_try_json(struct bl_jinja_run *r, struct bl_jv string, struct bl_jv *out)
{
    struct reader p;
    if (string.kind != BL_J_STRING)
        return false;
    *out = read_text(&p, r, string);
    return !p.wanted && !r->status;
}

/* ---- to text --------------------------------------------------------------------------------- */

struct writer {
    struct bl_jinja_run *r;
    struct bl_jbuf *out;
    const struct bl_jdump *how;
    int64_t level;
};

static void write_value(struct writer *w, struct bl_jv v);

/* 0: stands for itself */
static int escape_json(uint32_t cp, bool ascii, char out[16])
{
    static const char named[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    const char *at = cp && cp < 0x80 ? strchr(named, (int)cp) : NULL;
    if (at)
        return snprintf(out, 16, "\\%c", letters[at - named]);
    if (cp < 0x20 || (ascii && cp > 0x7E && cp < 0x10000))
        return snprintf(out, 16, "\\u%04x", cp);
    if (ascii && cp >= 0x10000)
        return snprintf(out, 16, "\\u%04x\\u%04x", 0xD800 + ((cp - 0x10000) >> 10),
                        0xDC00 + (cp & 0x3FF));
    return 0;
}

/* Bytes of one provenance. */
static void write_run(struct writer *w, const char *bytes, uint32_t n_bytes, bool user)
{
    char escaped[16];
    uint32_t plain = 0, at = 0;
    while (at < n_bytes && !w->r->status) {
        uint32_t n = (uint32_t)bl_jtext_next(bytes + at, n_bytes - at);
        int n_escaped = escape_json(bl_jtext_decode(bytes + at, n), w->how->ascii, escaped);
        if (n_escaped) {
            bl_jbuf_put(w->r, w->out, bytes + plain, at - plain, user);
            bl_jbuf_put(w->r, w->out, escaped, (size_t)n_escaped, user);
            plain = at + n;
        }
        at += n;
    }
    bl_jbuf_put(w->r, w->out, bytes + plain, at - plain, user);
}

static void write_string(struct writer *w, struct bl_jv s)
{
    bool user;
    bl_jbuf_puts(w->r, w->out, "\"");
    for (uint32_t at = 0, n; at < s.len && !w->r->status; at += n) {
        n = bl_jv_run_at(s, at, &user);
        write_run(w, bl_jv_bytes(s) + at, n, user);
    }
    bl_jbuf_puts(w->r, w->out, "\"");
}

static void write_double(struct writer *w, double v)
{
    char text[32];
    size_t n = bl_jtext_double(v, text);
    if (isfinite(v))
        bl_jbuf_put(w->r, w->out, text, n, false);
    else
        bl_jbuf_puts(w->r, w->out, isnan(v) ? "NaN" : v < 0 ? "-Infinity" : "Infinity");
}

static void write_scalar(struct writer *w, struct bl_jv v)
{
    switch (v.kind) {
    case BL_J_NONE:
        bl_jbuf_puts(w->r, w->out, "null");
        break;
    case BL_J_BOOL:
        bl_jbuf_puts(w->r, w->out, v.b ? "true" : "false");
        break;
    case BL_J_INT:
        bl_jv_repr(w->r, w->out, v);
        break;
    case BL_J_FLOAT:
        write_double(w, v.f);
        break;
    default:
        bl_jrun_fail(w->r, BL_EINVAL, "Object of type %s is not JSON serializable", bl_jv_type(v));
    }
}

static void write_break(struct writer *w)
{
    if (!w->how->pretty)
        return;
    bl_jbuf_puts(w->r, w->out, "\n");
    bl_jbuf_fill(w->r, w->out, w->how->indent, w->level);
}

static void write_key(struct writer *w, struct bl_jv key)
{
    if (key.kind == BL_J_TUPLE)
        bl_jrun_fail(w->r, BL_EINVAL, "keys must be str, int, float, bool or None, not tuple");
    bl_jbuf_puts(w->r, w->out, key.kind == BL_J_STRING ? "" : "\"");
    write_value(w, key);
    bl_jbuf_puts(w->r, w->out, key.kind == BL_J_STRING ? "" : "\"");
    bl_jbuf_add(w->r, w->out, w->how->key_separator);
}

static void write_list(struct writer *w, const struct bl_jlist *l)
{
    for (uint32_t i = 0; i < l->n && !w->r->status; i++) {
        if (i)
            bl_jbuf_add(w->r, w->out, w->how->item_separator);
        write_break(w);
        write_value(w, l->item[i]);
    }
}

static void write_entry(struct writer *w, const struct bl_jentry *e, uint32_t i)
{
    if (i)
        bl_jbuf_add(w->r, w->out, w->how->item_separator);
    write_break(w);
    write_key(w, e->key);
    write_value(w, e->value);
}

/* Sorted output is rare and its maps are small: pick the next key each time. */
static void write_sorted(struct writer *w, const struct bl_jmap *m)
{
    const struct bl_jentry *last = NULL;
    for (uint32_t n = 0; n < m->n && !w->r->status; n++) {
        const struct bl_jentry *next = NULL;
        for (uint32_t i = 0; i < m->n && bl_jrun_work(w->r, sizeof *next); i++) {
            const struct bl_jentry *e = &m->entry[i];
            if ((!last || bl_jv_order(w->r, last->key, e->key, "<") < 0) &&
                (!next || bl_jv_order(w->r, e->key, next->key, "<") < 0))
                next = e;
        }
        if (next)
            write_entry(w, next, n);
        last = next;
    }
}

static void write_container(struct writer *w, struct bl_jv v)
{
    bool map = v.kind == BL_J_MAP;
    uint32_t n = map ? v.map->n : v.list->n;
    bl_jbuf_puts(w->r, w->out, map ? "{" : "[");
    w->level++;
    if (map && w->how->sort)
        write_sorted(w, v.map);
    else if (map)
        for (uint32_t i = 0; i < n && !w->r->status; i++)
            write_entry(w, &v.map->entry[i], i);
    else
        write_list(w, v.list);
    w->level--;
    if (n)
        write_break(w);
    bl_jbuf_puts(w->r, w->out, map ? "}" : "]");
}

static void write_value(struct writer *w, struct bl_jv v)
{
    if (v.kind == BL_J_STRING) {
        write_string(w, v);
        return;
    }
    if (v.kind != BL_J_MAP && v.kind != BL_J_LIST && v.kind != BL_J_TUPLE) {
        write_scalar(w, v);
        return;
    }
    if (w->level >= w->r->limits.depth)
        bl_jrun_fail(w->r, BL_ELIMIT, "a value is nested more than %u deep", w->r->limits.depth);
    if (bl_jrun_enter(w->r))
        write_container(w, v);
    bl_jrun_leave(w->r);
}

struct bl_jdump bl_jdump_default(struct bl_jinja_run *r)
{
    return (struct bl_jdump){.indent = bl_jv_text(r, ""),
                             .item_separator = bl_jv_text(r, ", "),
                             .key_separator = bl_jv_text(r, ": ")};
}

void bl_jv_dump(struct bl_jinja_run *r, struct bl_jbuf *out, struct bl_jv v,
                const struct bl_jdump *how)
{
    struct writer w = {.r = r, .out = out, .how = how};
    write_value(&w, v);
}

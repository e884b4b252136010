/* SPDX-License-Identifier: MIT */
#include "jinja_eval.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- text ------------------------------------------------------------------------------------ */

static struct bl_jv to_string(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    return bl_jv_str(r, c->self);
}

static struct bl_jv change_case(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    return bl_jstr_case(r, bl_jv_str(r, c->self), c->fn->mode);
}

static struct bl_jv trim(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    return bl_jstr_strip(r, bl_jv_str(r, c->self), c->arg[0], true, true);
}

static struct bl_jv replace(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    struct bl_jv s = bl_jv_str(r, c->self), old = bl_jv_str(r, c->arg[0]);
    int64_t most = c->arg[2].kind == BL_J_NONE ? -1 : bl_jcall_int(r, c->arg[2], -1);
    return bl_jstr_replace(r, s, old, bl_jv_str(r, c->arg[1]), most);
}

static struct bl_jv indentation(struct bl_jinja_run *r, struct bl_jv width)
{
    if (width.kind == BL_J_STRING)
        return width;
    int64_t n = bl_jcall_int(r, width, 4);
    return bl_jstr_pad(r, bl_jv_text(r, ""), bl_jv_text(r, " "), n, 0);
}

/* jinja2 adds a newline before it splits, so that one at the end gives an empty last line. */
static struct bl_jv indent(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    if (c->self.kind != BL_J_STRING)
        return bl_jrun_fail(r, BL_EINVAL, "indent: a string is needed, not %s",
                            bl_jv_type(c->self));
    struct bl_jv by = indentation(r, c->arg[0]);
    bool first = bl_jv_truth(c->arg[1]), blank = bl_jv_truth(c->arg[2]);
    const struct bl_jlist *lines =
        bl_jstr_lines(r, bl_jv_concat(r, c->self, bl_jv_text(r, "\n")), false);
    struct bl_jbuf *b = bl_jbuf_new(r, c->self.len);
    for (uint32_t i = 0; i < lines->n && !r->status; i++) {
        bl_jbuf_puts(r, b, i ? "\n" : "");
        if (i ? blank || lines->item[i].len : first)
            bl_jbuf_add(r, b, by);
        bl_jbuf_add(r, b, lines->item[i]);
    }
    return bl_jbuf_string(b);
}

static struct bl_jv center(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    struct bl_jv s = bl_jv_str(r, c->self);
    int64_t width = bl_jcall_int(r, c->arg[0], 80), n = 0;
    bl_jv_length(r, s, &n);
    if (width <= n)
        return s;
    int64_t left = (width - n) / 2 + ((width - n) & width & 1);
    return bl_jstr_pad(r, s, bl_jv_text(r, " "), left, width - n - left);
}

static struct bl_jv word_count(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    struct bl_jv s = bl_jv_str(r, c->self);
    const char *bytes = bl_jv_bytes(s);
    int64_t n = 0;
    bool inside = false;
    if (!bl_jrun_work(r, s.len))
        return s;
    for (size_t at = 0; at < s.len; at += bl_jtext_next(bytes + at, s.len - at)) {
        uint32_t cp = bl_jtext_decode(bytes + at, s.len - at);
        bool word = bl_jtext_is_alpha(cp) || (cp >= '0' && cp <= '9') || cp == '_';
        n += word && !inside;
        inside = word;
    }
    return bl_jv_int(n);
}

static struct bl_jv truncate(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    struct bl_jv s = c->self;
    struct bl_jv end = c->arg[2].kind ? c->arg[2] : bl_jv_text(r, "...");
    int64_t length = bl_jcall_int(r, c->arg[0], 255), leeway = 5, n = 0, n_end = 0;
    if (c->arg[3].kind > BL_J_NONE)
        leeway = bl_jcall_int(r, c->arg[3], 5);
    if (!bl_jv_length(r, s, &n))
        return bl_jrun_fail(r, BL_EINVAL, "object of type '%s' has no len()", bl_jv_type(s));
    if (end.kind != BL_J_STRING || !bl_jv_length(r, end, &n_end) || length < n_end || leeway < 0)
        return bl_jrun_fail(r, BL_EINVAL, "truncate: expected length >= %lld, got %lld",
                            (long long)n_end, (long long)length);
    if (n - leeway <= length)
        return s;
    if (s.kind != BL_J_STRING)
        return bl_jrun_fail(r, BL_EINVAL, "truncate: a string is needed, not %s", bl_jv_type(s));
    struct bl_jv kept = bl_jget_slice(r, s, bl_jv_int(0), bl_jv_int(length - n_end), bl_jv_none());
    if (!bl_jv_truth(c->arg[1])) { /* not inside a word */
        int64_t space = bl_jstr_find_last(r, kept, kept.len, bl_jv_text(r, " "));
        kept = space < 0 ? kept : bl_jv_slice(kept, 0, (size_t)space);
    }
    return bl_jv_concat(r, kept, end);
}

static struct bl_jv mark_safe(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    struct bl_jv s = bl_jv_str(r, c->self);
    s.markup = true;
    return s;
}

static struct bl_jv escape(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    return bl_jstr_escape(r, bl_jv_str(r, c->self));
}

static struct bl_jv url_encode(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    struct bl_jv s = bl_jv_str(r, c->self);
    struct bl_jbuf *b = bl_jbuf_new(r, s.len);
    for (uint32_t at = 0; at < s.len && !r->status; at++) {
        unsigned char byte = (unsigned char)bl_jv_bytes(s)[at];
        char hex[4];
        bool user, plain = byte < 0x80 && byte &&
                           (bl_jtext_is_alpha(byte) || strchr("0123456789_.-~/", byte));
        bl_jv_run_at(s, at, &user);
        int n = plain ? snprintf(hex, sizeof hex, "%c", byte)
                      : snprintf(hex, sizeof hex, "%%%02X", byte);
        bl_jbuf_put(r, b, hex, (size_t)n, user);
    }
    return bl_jbuf_string(b);
}

/* Tags and comments go, white space becomes single spaces. Entities are left alone. */
static struct bl_jv strip_tags(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    struct bl_jv s = bl_jv_str(r, c->self), close = bl_jv_text(r, ">");
    struct bl_jbuf *b = bl_jbuf_new(r, s.len);
    uint32_t at = 0;
    while (at < s.len && !r->status) {
        int64_t open = bl_jstr_find(r, s, at, bl_jv_text(r, "<"));
        int64_t end = open < 0 ? -1 : bl_jstr_find(r, s, (uint32_t)open, close);
        uint32_t stop = end < 0 ? s.len : (uint32_t)open;
        bl_jbuf_add(r, b, bl_jv_slice(s, at, stop - at));
        at = end < 0 ? s.len : (uint32_t)end + 1;
    }
    struct bl_jv words = bl_jstr_split(r, bl_jbuf_string(b), bl_jv_none(), -1, false);
    return r->status ? words : bl_jstr_join(r, bl_jv_text(r, " "), words, true);
}

static struct bl_jv format(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    struct bl_jlist *l = bl_jlist_new(r, c->args.n_pos);
    struct bl_jmap *m = bl_jmap_new(r);
    for (uint32_t i = 0; i < c->args.n_pos; i++)
        bl_jlist_push(r, l, c->args.pos[i]);
    for (uint32_t i = 0; i < c->args.n_named; i++)
        bl_jmap_set(r, m, c->args.named[i].name, c->args.named[i].value);
    if (l->n && m->n)
        return bl_jrun_fail(r, BL_EINVAL,
                            "can't handle positional and keyword arguments at the same time");
    return bl_jformat_percent(r, bl_jv_str(r, c->self),
                              m->n ? bl_jmap_value(m) : bl_jlist_value(BL_J_TUPLE, l));
}

static struct bl_jv file_size(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    static const char *const decimal[] = {"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"};
    static const char *const binary[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"};
    bool two = bl_jv_truth(c->arg[0]);
    char text[40];
    if (!bl_jv_is_number(c->self))
        return bl_jrun_fail(r, BL_EINVAL, "filesizeformat: a number is needed, not %s",
                            bl_jv_type(c->self));
    double bytes = bl_jv_as_double(c->self), base = two ? 1024 : 1000, unit = base;
    size_t i = 0;
    while (i < BL_COUNT(decimal) - 1 && bytes >= unit * base) {
        unit *= base;
        i++;
    }
    int n = bytes == 1 ? snprintf(text, sizeof text, "1 Byte")
            : bytes < base
                ? snprintf(text, sizeof text, "%.0f Bytes", trunc(bytes))
                : snprintf(text, sizeof text, "%.1f %s", bytes / unit, (two ? binary : decimal)[i]);
    return bl_jv_copy(r, text, n < (int)sizeof text ? (size_t)n : sizeof text - 1, false);
}

/* ---- numbers --------------------------------------------------------------------------------- */

/* What int() and float() accept besides the number itself: space around it. */
static size_t trimmed_text(struct bl_jv s, char text[64])
{
    const char *bytes = bl_jv_bytes(s);
    size_t end = bl_jtext_rstrip(bytes, s.len), begin = bl_jtext_lstrip(bytes, end);
    size_t n = end - begin < 63 ? end - begin : 0;
    memcpy(text, bytes + begin, n);
    text[n] = 0;
    return n;
}

static bool parse_double(struct bl_jv s, double *out)
{
    char text[64], *end;
    size_t n = trimmed_text(s, text);
    if (!n || strpbrk(text, "xXpP(")) /* hexadecimal floats are C, not Python */
        return false;
    *out = strtod(text, &end);
    return *end == 0;
}

static bool to_int(struct bl_jv v, int64_t base, int64_t *out)
{
    char text[64], *end;
    double f = 0;
    if (bl_jv_as_int(v, out))
        return true;
    if (v.kind == BL_J_STRING) {
        size_t n = trimmed_text(v, text);
        errno = 0;
        *out = strtoll(text, &end, (int)base);
        if (n && !*end && !errno)
            return true;
        if (!parse_double(v, &f))
            return false;
    } else if (v.kind == BL_J_FLOAT) {
        f = v.f;
    } else {
        return false;
    }
    if (!(fabs(f) < 0x1p63))
        return false;
    *out = (int64_t)f;
    return true;
}

static bool is_convertible(struct bl_jinja_run *r, struct bl_jv v)
{
    if (v.kind == BL_J_UNDEFINED)
        bl_jrun_fail_undefined(r, v);
    return bl_jrun_work(r, v.kind == BL_J_STRING ? v.len : 0);
}

static struct bl_jv make_int(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    int64_t base = bl_jcall_int(r, c->arg[1], 10), i;
    if (base < 0 || base == 1 || base > 36)
        return bl_jrun_fail(r, BL_EINVAL, "int() base must be >= 2 and <= 36, or 0");
    if (!is_convertible(r, c->self))
        return bl_jv_undefined(NULL);
    if (to_int(c->self, base, &i))
        return bl_jv_int(i);
    return c->arg[0].kind ? c->arg[0] : bl_jv_int(0);
}

static struct bl_jv make_float(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    double f;
    if (!is_convertible(r, c->self))
        return bl_jv_undefined(NULL);
    if (bl_jv_is_number(c->self))
        return bl_jv_float(bl_jv_as_double(c->self));
    if (c->self.kind == BL_J_STRING && parse_double(c->self, &f))
        return bl_jv_float(f);
    return c->arg[0].kind ? c->arg[0] : bl_jv_float(0);
}

static struct bl_jv absolute(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    int64_t i;
    if (c->self.kind == BL_J_FLOAT)
        return bl_jv_float(fabs(c->self.f));
    if (!bl_jv_as_int(c->self, &i))
        return bl_jrun_fail(r, BL_EINVAL, "bad operand type for abs(): '%s'", bl_jv_type(c->self));
    return i < 0 ? bl_jop_negate(r, bl_jv_int(i)) : bl_jv_int(i);
}

/* printf rounds the exact binary value to even, as Python's round() does. */
static double round_common(double v, int64_t precision)
{
    char text[400];
    if (precision <= 0) {
        double scale = pow(10, (double)-precision);
        return precision ? nearbyint(v / scale) * scale : nearbyint(v);
    }
    snprintf(text, sizeof text, "%.*f", (int)precision, v);
    return strtod(text, NULL);
}

static struct bl_jv round_number(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    int64_t precision = bl_jcall_int(r, c->arg[0], 0);
    struct bl_jv method = c->arg[1].kind ? c->arg[1] : bl_jv_text(r, "common");
    if (!bl_jv_is_number(c->self))
        return bl_jrun_fail(r, BL_EINVAL, "type %s doesn't define __round__ method",
                            bl_jv_type(c->self));
    if (precision < -20 || precision > 20)
        return bl_jrun_fail(r, BL_ELIMIT, "round: a precision between -20 and 20 is supported");
    if (bl_jv_is_text(method, "common") && c->self.kind != BL_J_FLOAT && precision >= 0)
        return bl_jop_plus(r, c->self);
    double v = bl_jv_as_double(c->self), scale = pow(10, (double)precision);
    if (bl_jv_is_text(method, "common"))
        return bl_jv_float(round_common(v, precision));
    if (bl_jv_is_text(method, "ceil"))
        return bl_jv_float(ceil(v * scale) / scale);
    if (bl_jv_is_text(method, "floor"))
        return bl_jv_float(floor(v * scale) / scale);
    return bl_jrun_fail(r, BL_EINVAL, "method must be common, ceil or floor");
}

/* ---- anything -------------------------------------------------------------------------------- */

static struct bl_jv length(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    int64_t n;
    if (!bl_jv_length(r, c->self, &n))
        return bl_jrun_fail(r, BL_EINVAL, "object of type '%s' has no len()", bl_jv_type(c->self));
    return bl_jv_int(n);
}

static struct bl_jv default_value(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    if (c->self.kind == BL_J_UNDEFINED || (bl_jv_truth(c->arg[1]) && !bl_jv_truth(c->self)))
        return c->arg[0].kind ? c->arg[0] : bl_jv_text(r, "");
    return c->self;
}

static struct bl_jv attribute(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    return bl_jget_attribute(r, c->self, bl_jv_str(r, c->arg[0]));
}

/* Not jinja2's. With an argument, that stands in for what is no JSON. */
static struct bl_jv from_json(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    struct bl_jv v;
    if (!c->arg[0].kind)
        return bl_jv_from_json(r, c->self);
    return bl_jv_try_json(r, c->self, &v) ? v : c->arg[0];
}

/* transformers' tojson: json.dumps without HTML escapes; ensure_ascii is the first argument. */
static struct bl_jv to_json(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    struct bl_jdump how = bl_jdump_default(r);
    struct bl_jv indent_by = c->arg[1], separators = c->arg[2];
    how.ascii = bl_jv_truth(c->arg[0]);
    how.sort = bl_jv_truth(c->arg[3]);
    how.pretty = indent_by.kind > BL_J_NONE;
    if (how.pretty) {
        how.indent = indentation(r, indent_by);
        how.item_separator = bl_jv_text(r, ",");
    }
    if (separators.kind == BL_J_TUPLE || separators.kind == BL_J_LIST) {
        if (separators.list->n != 2)
            return bl_jrun_fail(r, BL_EINVAL, "tojson: separators must be a pair");
        how.item_separator = bl_jv_str(r, separators.list->item[0]);
        how.key_separator = bl_jv_str(r, separators.list->item[1]);
    }
    struct bl_jbuf *b = bl_jbuf_new(r, 64);
    bl_jv_dump(r, b, c->self, &how);
    return bl_jbuf_string(b);
}

static const struct bl_jbuiltin filters[] = {
    {"tojson", to_json, "ensure_ascii indent separators sort_keys", 0, 0},
    {"length", length, "", 0, 0},
    {"count", length, "", 0, 0},
    {"trim", trim, "chars", 0, 0},
    {"string", to_string, "", 0, 0},
    {"safe", mark_safe, "", 0, 0},
    {"default", default_value, "default_value boolean", 0, 0},
    {"d", default_value, "default_value boolean", 0, 0},
    {"upper", change_case, "", 0, BL_JCASE_UPPER},
    {"lower", change_case, "", 0, BL_JCASE_LOWER},
    {"title", change_case, "", 0, BL_JCASE_WORDS},
    {"capitalize", change_case, "", 0, BL_JCASE_CAPITALIZE},
    {"from_json", from_json, "default", 0, 0},
    {"indent", indent, "width first blank", 0, 0},
    {"int", make_int, "default base", 0, 0},
    {"float", make_float, "default", 0, 0},
    {"replace", replace, "old new count", 2, 0},
    {"abs", absolute, "", 0, 0},
    {"round", round_number, "precision method", 0, 0},
    {"attr", attribute, "name", 1, 0},
    {"format", format, NULL, 0, 0},
    {"escape", escape, "", 0, 0},
    {"e", escape, "", 0, 0},
    {"center", center, "width", 0, 0},
    {"wordcount", word_count, "", 0, 0},
    {"truncate", truncate, "length killwords end leeway", 0, 0},
    {"filesizeformat", file_size, "binary", 0, 0},
    {"urlencode", url_encode, "", 0, 0},
    {"striptags", strip_tags, "", 0, 0},
};

const struct bl_jbuiltin *bl_jfilter_find(struct bl_jv name)
{
    const struct bl_jbuiltin *fn = bl_jbuiltin_find(filters, BL_COUNT(filters), name);
    return fn ? fn : bl_jfilter_find_sequence(name);
}

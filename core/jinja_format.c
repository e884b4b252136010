/* SPDX-License-Identifier: MIT */
#include "jinja_eval.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* Python's two ways to fill in a text: "%05.2f" % x and "{:>8}".format(x). */

enum { MOST_PRECISION = 300, NUMBER_BYTES = 1000 };

struct spec {
    struct bl_jv fill; /* one character */
    char align;        /* < > ^ =, 0: as the type likes */
    char sign;         /* + or space, 0: minus only */
    bool alternate, comma;
    int64_t width, precision; /* precision -1: none */
    char type;                /* 0: none given */
};

struct number {
    char sign[4]; /* sign and prefix: zeros go behind it */
    char digits[NUMBER_BYTES];
};

static void put_padded(struct bl_jinja_run *r, struct bl_jbuf *b, const struct spec *s,
                       const char *prefix, struct bl_jv body, char usual_align)
{
    char align = s->align ? s->align : usual_align;
    int64_t n = 0, room, left = 0;
    bl_jv_length(r, body, &n);
    room = s->width - n - (int64_t)strlen(prefix);
    if (room > 0)
        left = align == '<' || align == '=' ? 0 : align == '^' ? room / 2 : room;
    bl_jbuf_fill(r, b, s->fill, left);
    bl_jbuf_puts(r, b, prefix);
    if (align == '=')
        bl_jbuf_fill(r, b, s->fill, room);
    bl_jbuf_add(r, b, body);
    if (align != '=')
        bl_jbuf_fill(r, b, s->fill, room - left);
}

static void put_number(struct bl_jinja_run *r, struct bl_jbuf *b, const struct spec *s,
                       const struct number *n)
{
    put_padded(r, b, s, n->sign, bl_jv_copy(r, n->digits, strlen(n->digits), false), '>');
}

static void put_text(struct bl_jinja_run *r, struct bl_jbuf *b, const struct spec *s,
                     struct bl_jv text, char usual_align)
{
    if (s->precision >= 0)
        text = bl_jget_slice(r, text, bl_jv_none(), bl_jv_int(s->precision), bl_jv_none());
    if (!r->status)
        put_padded(r, b, s, "", text, usual_align);
}

static void set_sign(struct number *n, const struct spec *s, bool negative, const char *prefix)
{
    size_t at = 0;
    if (negative || s->sign)
        n->sign[at++] = negative ? '-' : s->sign;
    strcpy(n->sign + at, prefix); /* two bytes at most */
}

/* 1234567 -> 1,234,567, up to the point or exponent. */
static void add_commas(char *digits)
{
    size_t whole = strspn(digits, "0123456789"), n = strlen(digits);
    for (size_t at = whole; at > 3 && n + 1 < NUMBER_BYTES; n++) {
        at -= 3;
        memmove(digits + at + 1, digits + at, n - at + 1);
        digits[at] = ',';
    }
}

static void format_int(struct number *n, const struct spec *s, int64_t v)
{
    uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    char type = s->type, lower = (char)(type | 32);
    const char *prefix = !s->alternate  ? ""
                         : lower == 'x' ? "0x"
                         : type == 'o'  ? "0o"
                         : type == 'b'  ? "0b"
                                        : "";
    set_sign(n, s, v < 0, type == 'X' && s->alternate ? "0X" : prefix);
    if (type == 'b') {
        size_t bits = 1, at = 0;
        while (bits < 64 && u >> bits)
            bits++;
        while (bits)
            n->digits[at++] = (char)('0' + (u >> --bits & 1));
        n->digits[at] = 0;
        return;
    }
    snprintf(n->digits, sizeof n->digits,
             type == 'x'   ? "%" PRIx64
             : type == 'X' ? "%" PRIX64
             : type == 'o' ? "%" PRIo64
                           : "%" PRIu64,
             u);
    if (s->comma)
        add_commas(n->digits);
}

static void format_double(struct number *n, const struct spec *s, double v)
{
    int precision = s->precision < 0 ? 6 : (int)s->precision;
    char c_format[] = "%#.*f";
    bool percent = s->type == '%';
    set_sign(n, s, signbit(v) && !isnan(v), "");
    v = fabs(percent ? v * 100 : v);
    if (!s->type && s->precision < 0) {
        bl_jtext_double(v, n->digits);
    } else {
        char type = percent ? 'f' : s->type ? s->type : 'g';
        c_format[4] = type;
        if (!s->alternate)
            memmove(c_format + 1, c_format + 2, sizeof c_format - 2); /* no '#' */
        if (!precision && (type | 32) == 'g')
            precision = 1;
        snprintf(n->digits, sizeof n->digits - 1, c_format, precision, v);
    }
    if (s->comma)
        add_commas(n->digits);
    if (percent)
        strcat(n->digits, "%");
}

static bool check(struct bl_jinja_run *r, const struct spec *s)
{
    if (s->precision > MOST_PRECISION)
        bl_jrun_fail(r, BL_ELIMIT, "a precision of more than %d is not supported", MOST_PRECISION);
    return !r->status;
}

/* Digits at *at, moved past; saturates, since any such width is too large anyway. */
static int64_t read_count(const char *f, uint32_t n, uint32_t *at)
{
    int64_t v = 0;
    for (; *at < n && f[*at] >= '0' && f[*at] <= '9'; (*at)++)
        if (v < INT64_C(1) << 50)
            v = v * 10 + (f[*at] - '0');
    return v;
}

/* ---- percent --------------------------------------------------------------------------------- */

struct percent {
    struct bl_jinja_run *r;
    struct bl_jbuf *out;
    const char *f;
    uint32_t at, n;
    struct bl_jv args;
    uint32_t n_used; /* of args, if a tuple; of one value otherwise */
};

static struct bl_jv next_argument(struct percent *p)
{
    bool tuple = p->args.kind == BL_J_TUPLE;
    uint32_t n = tuple ? p->args.list->n : 1;
    if (p->n_used >= n)
        return bl_jrun_fail(p->r, BL_EINVAL, "not enough arguments for format string");
    return tuple ? p->args.list->item[p->n_used++] : (p->n_used++, p->args);
}

/* %(key)s */
static struct bl_jv keyed_argument(struct percent *p)
{
    const char *close = memchr(p->f + p->at, ')', p->n - p->at);
    if (!close)
        return bl_jrun_fail(p->r, BL_EINVAL, "incomplete format key");
    if (p->args.kind != BL_J_MAP)
        return bl_jrun_fail(p->r, BL_EINVAL, "format requires a mapping");
    uint32_t n = (uint32_t)(close - p->f) - p->at;
    struct bl_jv key = bl_jv_copy(p->r, p->f + p->at, n, false);
    const struct bl_jentry *e = bl_jmap_find(p->r, p->args.map, key);
    p->at += n + 1;
    if (!e)
        return bl_jrun_fail(p->r, BL_EINVAL, "format: no such key: '%.*s'", (int)n, close - n);
    return e->value;
}

static int64_t count_or_star(struct percent *p)
{
    if (p->at >= p->n || p->f[p->at] != '*')
        return read_count(p->f, p->n, &p->at);
    p->at++;
    return bl_jcall_int(p->r, next_argument(p), 0);
}

static struct spec percent_spec(struct percent *p)
{
    struct spec s = {.fill = bl_jv_text(p->r, " "), .precision = -1};
    for (; p->at < p->n && p->f[p->at] && strchr("-+ #0", p->f[p->at]); p->at++) {
        char c = p->f[p->at];
        if (c == '-')
            s.align = '<';
        else if (c == '0' && s.align != '<')
            s.align = '=';
        else if (c == '#')
            s.alternate = true;
        else if (c == '+' || (c == ' ' && !s.sign))
            s.sign = c;
    }
    if (s.align == '=')
        s.fill = bl_jv_text(p->r, "0");
    s.width = count_or_star(p);
    if (s.width < 0) {
        s.align = '<';
        s.width = s.width < -INT64_MAX ? INT64_MAX : -s.width;
    }
    if (p->at < p->n && p->f[p->at] == '.') {
        p->at++;
        s.precision = count_or_star(p);
        s.precision = s.precision < 0 ? 0 : s.precision;
    }
    while (p->at < p->n && p->f[p->at] && strchr("hlL", p->f[p->at]))
        p->at++;
    return s;
}

static void percent_number(struct percent *p, struct spec *s, struct bl_jv v)
{
    struct number n = {0};
    bool integer = strchr("diuxXo", s->type);
    int64_t i = 0;
    if (!bl_jv_is_number(v) || (strchr("xXo", s->type) && v.kind == BL_J_FLOAT)) {
        bl_jrun_fail(p->r, BL_EINVAL, "%%%c format: %s is required, not %s", s->type,
                     strchr("xXo", s->type) ? "an integer" : "a real number", bl_jv_type(v));
        return;
    }
    if (v.kind == BL_J_FLOAT && integer && !(fabs(v.f) < 0x1p63)) {
        bl_jrun_fail(p->r, BL_ELIMIT, "an integer does not fit 64 bits");
        return;
    }
    if (integer && !bl_jv_as_int(v, &i))
        i = (int64_t)v.f;
    if (integer)
        format_int(&n, s, i);
    else
        format_double(&n, s, bl_jv_as_double(v));
    put_number(p->r, p->out, s, &n);
}

static void percent_character(struct percent *p, const struct spec *s, struct bl_jv v)
{
    char bytes[4];
    int64_t cp, n = 0;
    if (bl_jv_as_int(v, &cp) && cp >= 0 && cp <= 0x10FFFF)
        v = bl_jv_copy(p->r, bytes, bl_jtext_encode((uint32_t)cp, bytes), false);
    else if (v.kind != BL_J_STRING || !bl_jv_length(p->r, v, &n) || n != 1)
        bl_jrun_fail(p->r, BL_EINVAL, "%%c requires int or char");
    if (!p->r->status)
        put_text(p->r, p->out, s, v, '>');
}

static void percent_conversion(struct percent *p)
{
    struct bl_jv v = {0};
    if (p->at < p->n && p->f[p->at] == '(') {
        p->at++;
        v = keyed_argument(p);
    }
    struct spec s = percent_spec(p);
    s.type = p->at < p->n ? p->f[p->at++] : 0;
    if (!check(p->r, &s))
        return;
    if (s.type == '%') {
        bl_jbuf_puts(p->r, p->out, "%");
        return;
    }
    if (!s.type || !strchr("sradiuxXoeEfFgGc", s.type)) {
        bl_jrun_fail(p->r, BL_EINVAL,
                     s.type ? "unsupported format character" : "incomplete format");
        return;
    }
    if (!v.kind)
        v = next_argument(p);
    if (s.type == 'c') {
        percent_character(p, &s, v);
    } else if (strchr("sra", s.type)) {
        struct bl_jbuf *text = bl_jbuf_new(p->r, 0);
        (s.type == 's' ? bl_jv_print : bl_jv_repr)(p->r, text, v);
        s.align = s.align == '=' ? 0 : s.align;
        put_text(p->r, p->out, &s, bl_jbuf_string(text), '>');
    } else {
        percent_number(p, &s, v);
    }
}

struct bl_jv bl_jformat_percent(struct bl_jinja_run *r, struct bl_jv format, struct bl_jv args)
{
    struct percent p = {.r = r,
                        .out = bl_jbuf_new(r, format.len),
                        .f = bl_jv_bytes(format),
                        .n = format.len,
                        .args = args};
    while (p.at < p.n && !r->status) {
        const char *next = memchr(p.f + p.at, '%', p.n - p.at);
        uint32_t end = next ? (uint32_t)(next - p.f) : p.n;
        bl_jbuf_add(r, p.out, bl_jv_slice(format, p.at, end - p.at));
        p.at = end + 1;
        if (next)
            percent_conversion(&p);
    }
    bool keyed = args.kind == BL_J_MAP || args.kind == BL_J_LIST || args.kind == BL_J_RANGE ||
                 args.kind == BL_J_UNDEFINED; /* whatever can be indexed need not be used */
    uint32_t n = args.kind == BL_J_TUPLE ? args.list->n : !keyed;
    if (p.n_used < n)
        return bl_jrun_fail(r, BL_EINVAL, "not all arguments converted during string formatting");
    return bl_jbuf_string(p.out);
}

/* ---- braces ---------------------------------------------------------------------------------- */

struct braces {
    struct bl_jinja_run *r;
    struct bl_jbuf *out;
    struct bl_jv format;
    const char *f;
    uint32_t n;
    const struct bl_jargs *args;
    uint32_t n_auto; /* fields without a number so far */
};

static struct bl_jv numbered(struct braces *p, uint64_t i)
{
    if (i >= p->args->n_pos)
        return bl_jrun_fail(p->r, BL_EINVAL,
                            "Replacement index %" PRIu64 " out of range for positional args tuple",
                            i);
    return p->args->pos[i];
}

/* "name", "0" or nothing, then .attribute and [item] */
static struct bl_jv field_value(struct braces *p, uint32_t at, uint32_t end)
{
    uint32_t stop = at;
    while (stop < end && p->f[stop] != '.' && p->f[stop] != '[')
        stop++;
    struct bl_jv v = {0}, name = bl_jv_slice(p->format, at, stop - at);
    uint32_t digits = at;
    int64_t number = read_count(p->f, stop, &digits);
    if (at == stop)
        v = numbered(p, p->n_auto++);
    else if (digits == stop)
        v = numbered(p, (uint64_t)number);
    for (uint32_t i = 0; !v.kind && i < p->args->n_named; i++)
        if (bl_jv_equal(p->r, p->args->named[i].name, name))
            v = p->args->named[i].value;
    if (!v.kind)
        return bl_jrun_fail(p->r, BL_EINVAL, "format: no such key: '%.*s'", (int)name.len,
                            bl_jv_bytes(name));
    while (stop < end && !p->r->status) {
        bool item = p->f[stop] == '[';
        uint32_t from = stop + 1;
        for (stop = from;
             stop < end && (item ? p->f[stop] != ']' : p->f[stop] != '.' && p->f[stop] != '[');)
            stop++;
        struct bl_jv part = bl_jv_slice(p->format, from, stop - from);
        v = item ? bl_jget_path(p->r, v, part) : bl_jget_attribute(p->r, v, part);
        stop += item;
    }
    return v;
}

static struct spec braces_spec(struct braces *p, uint32_t at, uint32_t end)
{
    struct spec s = {.fill = bl_jv_text(p->r, " "), .precision = -1};
    const char *f = p->f;
    uint32_t n = at < end ? (uint32_t)bl_jtext_next(f + at, end - at) : 0;
    if (at + n < end && f[at + n] && strchr("<>^=", f[at + n])) {
        s.fill = bl_jv_slice(p->format, at, n);
        s.align = f[at + n];
        at += n + 1;
    } else if (at < end && f[at] && strchr("<>^=", f[at])) {
        s.align = f[at++];
    }
    if (at < end && f[at] && strchr("+- ", f[at])) {
        s.sign = f[at] == '-' ? 0 : f[at];
        at++;
    }
    s.alternate = at < end && f[at] == '#';
    at += s.alternate;
    if (at < end && f[at] == '0' && !s.align) {
        s.fill = bl_jv_text(p->r, "0");
        s.align = '=';
    }
    s.width = read_count(f, end, &at);
    s.comma = at < end && (f[at] == ',' || f[at] == '_');
    at += s.comma;
    if (at < end && f[at] == '.') {
        at++;
        s.precision = read_count(f, end, &at);
    }
    s.type = at < end ? f[at++] : 0;
    if (at < end)
        bl_jrun_fail(p->r, BL_EINVAL, "Invalid format specifier");
    return s;
}

static void put_field(struct braces *p, struct spec *s, struct bl_jv v)
{
    struct number n = {0};
    int64_t i;
    bool wants_float = s->type && strchr("eEfFgG%", s->type);
    if (!check(p->r, s))
        return;
    if (bl_jv_is_number(v) && (v.kind != BL_J_BOOL || s->type) && s->type != 's') {
        if (bl_jv_as_int(v, &i) && !wants_float && strchr("dxXobn", s->type ? s->type : 'd'))
            format_int(&n, s, i);
        else if (wants_float || !s->type)
            format_double(&n, s, bl_jv_as_double(v));
        else
            bl_jrun_fail(p->r, BL_EINVAL, "Unknown format code '%c' for object of type '%s'",
                         s->type, bl_jv_type(v));
        put_number(p->r, p->out, s, &n);
        return;
    }
    if (s->type && s->type != 's')
        bl_jrun_fail(p->r, BL_EINVAL, "Unknown format code '%c' for object of type '%s'", s->type,
                     bl_jv_type(v));
    s->align = s->align == '=' ? '<' : s->align;
    put_text(p->r, p->out, s, bl_jv_str(p->r, v), '<');
}

static void braces_field(struct braces *p, uint32_t at, uint32_t end)
{
    uint32_t name_end = at;
    while (name_end < end && p->f[name_end] != ':' && p->f[name_end] != '!')
        name_end++;
    struct bl_jv v = field_value(p, at, name_end);
    if (name_end + 1 < end && p->f[name_end] == '!') {
        struct bl_jbuf *b = bl_jbuf_new(p->r, 0);
        (p->f[name_end + 1] == 's' ? bl_jv_print : bl_jv_repr)(p->r, b, v);
        v = bl_jbuf_string(b);
        name_end += 2;
    }
    if (name_end < end && p->f[name_end] != ':')
        bl_jrun_fail(p->r, BL_EINVAL, "expected ':' after conversion specifier");
    struct spec s = braces_spec(p, name_end < end ? name_end + 1 : end, end);
    if (!p->r->status)
        put_field(p, &s, v);
}

/* Fields inside a field's specification ("{:{width}}") are not supported. */
static uint32_t field_end(struct braces *p, uint32_t at)
{
    while (at < p->n && p->f[at] != '}' && p->f[at] != '{')
        at++;
    if (at == p->n)
        bl_jrun_fail(p->r, BL_EINVAL, "expected '}' before end of string");
    else if (p->f[at] == '{')
        bl_jrun_fail(p->r, BL_EUNSUPPORTED, "format: fields inside fields are not supported");
    return at;
}

struct bl_jv bl_jformat_braces(struct bl_jinja_run *r, struct bl_jv format,
                               const struct bl_jargs *args)
{
    struct braces p = {.r = r,
                       .out = bl_jbuf_new(r, format.len),
                       .format = format,
                       .f = bl_jv_bytes(format),
                       .n = format.len,
                       .args = args};
    for (uint32_t at = 0; at < p.n && !r->status;) {
        uint32_t end = at;
        while (end < p.n && p.f[end] != '{' && p.f[end] != '}')
            end++;
        bl_jbuf_add(r, p.out, bl_jv_slice(format, at, end - at));
        if (end == p.n)
            break;
        if (end + 1 < p.n && p.f[end + 1] == p.f[end]) {
            bl_jbuf_add(r, p.out, bl_jv_slice(format, end, 1));
            at = end + 2;
        } else if (p.f[end] == '}') {
            return bl_jrun_fail(r, BL_EINVAL, "Single '}' encountered in format string");
        } else {
            at = field_end(&p, end + 1);
            if (!r->status)
                braces_field(&p, end + 1, at);
            at++;
        }
    }
    return bl_jbuf_string(p.out);
}

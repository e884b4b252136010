/* SPDX-License-Identifier: MIT */
#include "jinja_eval.h"

#include <stdio.h>

enum { MOST_RANGE = 100000 }; /* of jinja2's sandbox */

static struct bl_jv make_range(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    bool one = !c->arg[1].kind;
    int64_t start = one ? 0 : bl_jcall_int(r, c->arg[0], 0);
    int64_t stop = bl_jcall_int(r, c->arg[one ? 0 : 1], 0), step = bl_jcall_int(r, c->arg[2], 1);
    if (!step)
        return bl_jrun_fail(r, BL_EINVAL, "range() arg 3 must not be zero");
    uint64_t span = step > 0 ? (stop > start ? (uint64_t)stop - (uint64_t)start : 0)
                             : (start > stop ? (uint64_t)start - (uint64_t)stop : 0);
    uint64_t stride = step > 0 ? (uint64_t)step : 0 - (uint64_t)step;
    uint64_t n = span ? (span - 1) / stride + 1 : 0;
    if (n > MOST_RANGE)
        return bl_jrun_fail(r, BL_ELIMIT,
                            "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).",
                            MOST_RANGE);
    struct bl_jrange *range = bl_jrun_alloc(r, sizeof *range);
    if (!range)
        return bl_jv_undefined(NULL);
    *range = (struct bl_jrange){start, stop, step, (uint32_t)n};
    return (struct bl_jv){.kind = BL_J_RANGE, .range = range};
}

static void add_pairs(struct bl_jinja_run *r, struct bl_jmap *m, struct bl_jv pairs)
{
    struct bl_jiter it = bl_jiter_start(r, pairs);
    struct bl_jv pair;
    while (bl_jiter_next(r, &it, &pair)) {
        if (!bl_jv_is_sequence(pair) || pair.list->n != 2) {
            bl_jrun_fail(r, BL_EINVAL, "dict() takes pairs of a key and a value");
            return;
        }
        bl_jmap_set(r, m, pair.list->item[0], pair.list->item[1]);
    }
}

static struct bl_jmap *collect_map(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    struct bl_jmap *m = bl_jmap_new(r);
    if (c->args.n_pos > 1)
        bl_jrun_fail(r, BL_EINVAL, "%s expected at most 1 argument, got %u", c->fn->name,
                     c->args.n_pos);
    if (c->args.n_pos == 1 && c->args.pos[0].kind == BL_J_MAP) {
        const struct bl_jmap *from = c->args.pos[0].map;
        for (uint32_t i = 0; i < from->n && !r->status; i++)
            bl_jmap_set(r, m, from->entry[i].key, from->entry[i].value);
    } else if (c->args.n_pos == 1) {
        add_pairs(r, m, c->args.pos[0]);
    }
    for (uint32_t i = 0; i < c->args.n_named && !r->status; i++)
        bl_jmap_set(r, m, c->args.named[i].name, c->args.named[i].value);
    return m;
}

static struct bl_jv make_dict(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    return bl_jmap_value(collect_map(r, c));
}

static struct bl_jv make_namespace(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    return (struct bl_jv){.kind = BL_J_NAMESPACE, .map = collect_map(r, c)};
}

static struct bl_jv make_cycler(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    struct bl_jlist *l = bl_jlist_new(r, c->args.n_pos);
    if (!c->args.n_pos)
        return bl_jrun_fail(r, BL_EINVAL, "at least one item has to be provided");
    for (uint32_t i = 0; i < c->args.n_pos; i++)
        bl_jlist_push(r, l, c->args.pos[i]);
    return bl_jlist_value(BL_J_CYCLER, l);
}

static struct bl_jv make_joiner(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    struct bl_jlist *l = bl_jlist_new(r, 1);
    bl_jlist_push(r, l, c->arg[0].kind ? c->arg[0] : bl_jv_text(r, ", "));
    return bl_jlist_value(BL_J_JOINER, l);
}

static struct bl_jv lipsum(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    (void)c;
    return bl_jrun_fail(r, BL_EUNSUPPORTED, "lipsum() is not supported");
}

static struct bl_jv raise_exception(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    return bl_jrun_raise(r, bl_jv_str(r, c->arg[0]));
}

/* ---- time ------------------------------------------------------------------------------------ */

static const char *const days[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                   "Thursday", "Friday", "Saturday"};
static const char *const months[] = {"January",   "February", "March",    "April",
                                     "May",       "June",     "July",     "August",
                                     "September", "October",  "November", "December"};

static const char *name_of(const char *const *names, size_t n, int i)
{
    return i >= 0 && (size_t)i < n ? names[i] : "?";
}

/* libc's strftime follows the locale and has conversions that are undefined; these are Python's, in
 * English. */
static int format_time(const struct tm *t, char c, char *out, size_t size)
{
    const char *day = name_of(days, BL_COUNT(days), t->tm_wday);
    const char *month = name_of(months, BL_COUNT(months), t->tm_mon);
    int hour12 = t->tm_hour % 12 ? t->tm_hour % 12 : 12;
    switch (c) {
    case 'a':
        return snprintf(out, size, "%.3s", day);
    case 'A':
        return snprintf(out, size, "%s", day);
    case 'b':
    case 'h':
        return snprintf(out, size, "%.3s", month);
    case 'B':
        return snprintf(out, size, "%s", month);
    case 'd':
        return snprintf(out, size, "%02d", t->tm_mday);
    case 'e':
        return snprintf(out, size, "%2d", t->tm_mday);
    case 'D':
    case 'x':
        return snprintf(out, size, "%02d/%02d/%02d", t->tm_mon + 1, t->tm_mday, t->tm_year % 100);
    case 'F':
        return snprintf(out, size, "%d-%02d-%02d", t->tm_year + 1900, t->tm_mon + 1, t->tm_mday);
    case 'H':
        return snprintf(out, size, "%02d", t->tm_hour);
    case 'I':
        return snprintf(out, size, "%02d", hour12);
    case 'j':
        return snprintf(out, size, "%03d", t->tm_yday + 1);
    case 'm':
        return snprintf(out, size, "%02d", t->tm_mon + 1);
    case 'M':
        return snprintf(out, size, "%02d", t->tm_min);
    case 'n':
        return snprintf(out, size, "\n");
    case 'p':
        return snprintf(out, size, "%s", t->tm_hour < 12 ? "AM" : "PM");
    case 'R':
        return snprintf(out, size, "%02d:%02d", t->tm_hour, t->tm_min);
    case 'S':
        return snprintf(out, size, "%02d", t->tm_sec);
    case 'T':
    case 'X':
        return snprintf(out, size, "%02d:%02d:%02d", t->tm_hour, t->tm_min, t->tm_sec);
    case 'u':
        return snprintf(out, size, "%d", t->tm_wday ? t->tm_wday : 7);
    case 'w':
        return snprintf(out, size, "%d", t->tm_wday);
    case 'y':
        return snprintf(out, size, "%02d", t->tm_year % 100);
    case 'Y':
        return snprintf(out, size, "%d", t->tm_year + 1900);
    case 'Z':
    case 'z':
        return 0; /* Python's now() knows no zone */
    case '%':
        return snprintf(out, size, "%%");
    default:
        return -1;
    }
}

static struct bl_jv strftime_now(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    struct bl_jv f = c->arg[0];
    if (f.kind != BL_J_STRING)
        return bl_jrun_fail(r, BL_EINVAL, "strftime() argument 1 must be str, not %s",
                            bl_jv_type(f));
    struct bl_jbuf *b = bl_jbuf_new(r, 64);
    for (uint32_t at = 0; at < f.len && !r->status; at++) {
        const char *s = bl_jv_bytes(f) + at;
        char text[64];
        int n = *s == '%' && at + 1 < f.len ? format_time(&r->now, s[1], text, sizeof text) : -1;
        if (n >= 0)
            bl_jbuf_put(r, b, text, (size_t)n, false);
        else
            bl_jbuf_add(r, b, bl_jv_slice(f, at, 1));
        at += n >= 0;
    }
    return bl_jbuf_string(b);
}

static const struct bl_jbuiltin functions[] = {
    {"range", make_range, "start stop step", 1, 0},
    {"dict", make_dict, NULL, 0, 0},
    {"namespace", make_namespace, NULL, 0, 0},
    {"cycler", make_cycler, NULL, 0, 0},
    {"joiner", make_joiner, "sep", 0, 0},
    {"lipsum", lipsum, NULL, 0, 0},
    {"raise_exception", raise_exception, "message", 1, 0},
    {"strftime_now", strftime_now, "format", 1, 0},
};

void bl_jglobals_define(struct bl_jinja_run *r)
{
    for (size_t i = 0; i < BL_COUNT(functions); i++) {
        struct bl_jbound *bound = bl_jrun_alloc(r, sizeof *bound);
        if (!bound)
            return;
        bound->fn = &functions[i];
        if (functions[i].call != strftime_now || r->has_now)
            bl_jscope_set(r, functions[i].name,
                          (struct bl_jv){.kind = BL_J_FUNCTION, .bound = bound});
    }
}

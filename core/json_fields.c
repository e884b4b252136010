/* SPDX-License-Identifier: MIT */
/* Members by table: values with units, ranges, misspelt names. */
#include "json.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- quantities ------------------------------------------------------------------------------ */

struct unit {
    const char *name;
    double times;
};
#define BINARY(rest)                                                                               \
    {"KiB" rest, 0x1p10}, {"MiB" rest, 0x1p20}, {"GiB" rest, 0x1p30},                              \
    {                                                                                              \
        "TiB" rest, 0x1p40                                                                         \
    }
#define DECIMAL(rest)                                                                              \
    {"kB" rest, 1e3}, {"KB" rest, 1e3}, {"MB" rest, 1e6}, {"GB" rest, 1e9},                        \
    {                                                                                              \
        "TB" rest, 1e12                                                                            \
    }
static const struct unit bytes_units[] = {{"B", 1}, BINARY(""), DECIMAL(""), {NULL, 0}};
static const struct unit bps_units[] = {{"B/s", 1}, BINARY("/s"), DECIMAL("/s"), {NULL, 0}};
static const struct unit ns_units[] = {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {NULL, 0}};
static const struct unit per_s_units[] = {{"M/s", 1e6}, {"G/s", 1e9}, {"T/s", 1e12}, {NULL, 0}};
static const struct unit hz_units[] = {{"Hz", 1}, {"MHz", 1e6}, {"GHz", 1e9}, {NULL, 0}};

static const struct unit *units_of(enum bl_json_kind kind)
{
    switch (kind) {
    case BL_JSON_BYTES:
    case BL_JSON_SIZE:
        return bytes_units;
    case BL_JSON_BPS:
        return bps_units;
    case BL_JSON_NS:
        return ns_units;
    case BL_JSON_PER_S:
        return per_s_units;
    case BL_JSON_HZ:
        return hz_units;
    default:
        return NULL;
    }
}

static const char *example_of(enum bl_json_kind kind)
{
    switch (kind) {
    case BL_JSON_BYTES:
    case BL_JSON_SIZE:
        return "bytes, or a text such as \"24GiB\"";
    case BL_JSON_BPS:
        return "bytes per second, or a text such as \"64GB/s\"";
    case BL_JSON_NS:
        return "nanoseconds, or a text such as \"5us\"";
    case BL_JSON_PER_S:
        return "a number per second, or a text such as \"70T/s\"";
    case BL_JSON_HZ:
        return "hertz, or a text such as \"3.5GHz\"";
    default:
        return "a number";
    }
}

bool bl_quantity(enum bl_json_kind kind, const char *text, double *out)
{
    char *end;
    if (!((*text >= '0' && *text <= '9') || *text == '.' || *text == '-'))
        return false; /* strtod also knows "nan", "inf", blanks and signs */
    const double v = strtod(text, &end);
    double times = 1;
    if (end == text || !isfinite(v))
        return false;
    while (*end == ' ')
        end++;
    if (*end) {
        const struct unit *u = units_of(kind);
        while (u && u->name && strcmp(u->name, end))
            u++;
        if (!u || !u->name)
            return false;
        times = u->times;
    }
    *out = v * times;
    return true;
}

/* ---- names ----------------------------------------------------------------------------------- */

enum { MOST_NAME = 40 };

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Letters put in, left out, changed, or changed about with the next. */
static size_t edits(const char *a, const char *b)
{
    size_t row[3][MOST_NAME + 1], n = strlen(b);
    for (size_t j = 0; j <= n; j++)
        row[0][j] = j;
    for (size_t i = 1; i <= strlen(a); i++) {
        size_t *now = row[i % 3], *above = row[(i + 2) % 3], *two_up = row[(i + 1) % 3];
        now[0] = i;
        for (size_t j = 1; j <= n; j++) {
            now[j] = least(above[j - 1] + (a[i - 1] != b[j - 1]), 1 + least(above[j], now[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                now[j] = least(now[j], two_up[j - 2] + 1);
        }
    }
    return row[strlen(a) % 3][n];
}

const char *bl_nearest_name(const char *word, const char *(*name)(const void *arg, size_t i),
                            const void *arg)
{
    const char *best = NULL, *n;
    size_t bound = strlen(word) / 3 + 1;
    if (strlen(word) > MOST_NAME)
        return NULL;
    for (size_t i = 0; (n = name(arg, i)); i++) {
        const size_t d = strlen(n) <= MOST_NAME ? edits(word, n) : bound;
        if (d < bound) {
            bound = d;
            best = n;
        }
    }
    return best;
}

struct rows {
    const struct bl_json_field *field;
    size_t n;
};

static const char *row_name(const void *arg, size_t i)
{
    const struct rows *r = arg;
    return i < r->n ? r->field[i].name : NULL;
}

static const char *word_name(const void *arg, size_t i)
{
    const char *const *words = arg;
    return words[i];
}

/* ---- values ---------------------------------------------------------------------------------- */

static bool is_text_clean(const char *s)
{
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f)
            return false;
    return true;
}

/* What is wrong, in words that go behind a path or name; NULL: it is stored. */
struct why {
    char text[160];
};

static const char *store_text(const struct bl_json_field *f, const char *v, char *to, struct why *w)
{
    if (!v || !*v || !is_text_clean(v))
        return "must be a text, neither empty nor with control characters";
    if (strlen(v) >= (size_t)f->max) {
        snprintf(w->text, sizeof w->text, "is longer than %.0f bytes", f->max - 1);
        return w->text;
    }
    memcpy(to, v, strlen(v) + 1);
    return NULL;
}

static const char *store_word(const struct bl_json_field *f, const char *v, uint8_t *to,
                              struct why *w)
{
    size_t at = 0;
    for (unsigned i = 0; v && f->words[i]; i++)
        if (!strcmp(v, f->words[i])) {
            *to = (uint8_t)i;
            return NULL;
        }
    const char *near = v ? bl_nearest_name(v, word_name, f->words) : NULL;
    if (near) {
        snprintf(w->text, sizeof w->text, "'%.40s' is not known; the nearest is '%s'", v, near);
        return w->text;
    }
    at = (size_t)snprintf(w->text, sizeof w->text, "must be one of");
    for (unsigned i = 0; f->words[i] && at < sizeof w->text; i++)
        at +=
            (size_t)snprintf(w->text + at, sizeof w->text - at, "%s %s", i ? "," : "", f->words[i]);
    return w->text;
}

static const char *store_number(const struct bl_json_field *f, double v, void *to, struct why *w)
{
    const bool whole = f->kind == BL_JSON_U16 || f->kind == BL_JSON_U32 || f->kind == BL_JSON_BYTES;
    if (!(v >= f->min && v <= f->max)) {
        snprintf(w->text, sizeof w->text, "is %.7g; it must lie between %.7g and %.7g", v, f->min,
                 f->max);
        return w->text;
    }
    v = f->kind == BL_JSON_BYTES ? floor(v + 0.5) : v; /* 23.6GiB is no whole number of bytes */
    if (whole && v != floor(v)) {
        snprintf(w->text, sizeof w->text, "is %.6g; it must be a whole number", v);
        return w->text;
    }
    switch (f->kind) {
    case BL_JSON_U16:
        *(uint16_t *)to = (uint16_t)v;
        break;
    case BL_JSON_U32:
        *(uint32_t *)to = (uint32_t)v;
        break;
    case BL_JSON_BYTES:
        *(uint64_t *)to = (uint64_t)v;
        break;
    default:
        *(double *)to = v;
    }
    return NULL;
}

static const char *store(const struct bl_json_field *f, const cJSON *item, void *base,
                         struct why *w)
{
    char *to = (char *)base + f->at;
    const char *text = cJSON_IsString(item) ? item->valuestring : NULL;
    double v = 0;
    switch (f->kind) {
    case BL_JSON_TEXT:
        return store_text(f, text, to, w);
    case BL_JSON_WORD:
        return store_word(f, text, (uint8_t *)to, w);
    case BL_JSON_FLAG:
        if (!cJSON_IsBool(item))
            return "must be true or false";
        *(bool *)to = cJSON_IsTrue(item);
        return NULL;
    case BL_JSON_OTHER:
        return NULL;
    default:
        break;
    }
    if (cJSON_IsNumber(item))
        v = item->valuedouble;
    else if (!text || !units_of(f->kind) || !bl_quantity(f->kind, text, &v)) {
        snprintf(w->text, sizeof w->text, "must be %s", example_of(f->kind));
        return w->text;
    }
    return store_number(f, v, to, w);
}

static enum bl_status check_complete(const struct bl_json *object, const struct bl_json_field *f,
                                     size_t n)
{
    struct bl_json member;
    for (size_t i = 0; i < n; i++)
        if (f[i].required && !bl_json_member(object, f[i].name, &member))
            return bl_json_wrong(object, "must have a member '%s'", f[i].name);
    return BL_OK;
}

enum bl_status bl_json_fields(const struct bl_json *object, const struct bl_json_field *f, size_t n,
                              void *base)
{
    const struct rows rows = {f, n};
    uint64_t seen = 0;
    struct bl_json it;
    BL_TRY(bl_json_object(object));
    for (bool more = bl_json_first(object, &it); more; more = bl_json_next(&it)) {
        struct why w;
        size_t i = 0;
        while (i < n && strcmp(f[i].name, bl_json_name(&it)))
            i++;
        if (i == n) {
            const char *near = bl_nearest_name(bl_json_name(&it), row_name, &rows);
            return near ? bl_json_wrong(&it, "is not known; the nearest is '%s'", near)
                        : bl_json_wrong(&it, "is not known");
        }
        if (seen >> i & 1)
            return bl_json_wrong(&it, "is there twice");
        seen |= (uint64_t)1 << i;
        const char *wrong = store(&f[i], it.item, base, &w);
        if (wrong)
            return bl_json_wrong(&it, "%s", wrong);
    }
    return check_complete(object, f, n);
}

enum bl_status bl_json_assign(const struct bl_json_field *f, const char *name, const char *text,
                              void *base)
{
    struct why w;
    char *to = (char *)base + f->at;
    const char *wrong = NULL;
    double v;
    if (!is_text_clean(text))
        return bl_fail(BL_EINVAL, "%s: control characters in its value", name);
    if (f->kind == BL_JSON_TEXT)
        wrong = store_text(f, text, to, &w);
    else if (f->kind == BL_JSON_WORD)
        wrong = store_word(f, text, (uint8_t *)to, &w);
    else if (f->kind == BL_JSON_OTHER)
        wrong = "cannot be set alone; edit the file";
    else if (f->kind == BL_JSON_FLAG && (!strcmp(text, "true") || !strcmp(text, "false")))
        *(bool *)to = *text == 't';
    else if (f->kind == BL_JSON_FLAG)
        wrong = "must be true or false";
    else if (!bl_quantity(f->kind, text, &v)) {
        snprintf(w.text, sizeof w.text, "'%.40s': must be %s", text, example_of(f->kind));
        wrong = w.text;
    } else
        wrong = store_number(f, v, to, &w);
    return wrong ? bl_fail(BL_EINVAL, "%s %s", name, wrong) : BL_OK;
}

/* SPDX-License-Identifier: MIT */
#include "json.h"

#include "file.h"
#include "mem.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- the text -------------------------------------------------------------------------------- */

struct scan {
    const char *text;
    size_t n, at;
    uint32_t depth, items;
};

static void skip_string(struct scan *s)
{
    for (s->at++; s->at < s->n && s->text[s->at] != '"'; s->at++)
        if (s->text[s->at] == '\\')
            s->at++;
}

/* The parser recurses and takes a node per value, so both are counted before it sees the text. */
static enum bl_status check_limits(const char *what, const char *text, size_t n,
                                   const struct bl_json_limits *l)
{
    struct scan s = {.text = text, .n = n, .items = 1};
    if (n > l->most_bytes)
        return bl_fail(BL_EFORMAT, "%s: %zu bytes; the most is %zu", what, n, l->most_bytes);
    for (; s.at < n; s.at++) {
        const char c = text[s.at];
        if (c == '"')
            skip_string(&s);
        s.items += c == ',' || c == '[' || c == '{';
        s.depth += c == '[' || c == '{';
        s.depth -= (c == ']' || c == '}') && s.depth;
        if (!c)
            return bl_fail(BL_EFORMAT, "%s: no JSON: a zero byte at byte %zu", what, s.at);
        if (s.depth > l->most_depth)
            return bl_fail(BL_EFORMAT, "%s: nested deeper than %" PRIu32 " at byte %zu", what,
                           l->most_depth, s.at);
        if (s.items > l->most_items)
            return bl_fail(BL_EFORMAT, "%s: more than %" PRIu32 " values", what, l->most_items);
    }
    return BL_OK;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

enum bl_status bl_json_parse(cJSON **out, const char *what, const char *text, size_t n,
                             const struct bl_json_limits *limits)
{
    const char *end = text;
    BL_TRY(check_limits(what, text, n, limits));
    cJSON *root = cJSON_ParseWithLengthOpts(text, n, &end, false);
    while (root && end < text + n && is_blank(*end))
        end++;
    if (root && end == text + n) {
        *out = root;
        return BL_OK;
    }
    cJSON_Delete(root);
    return bl_fail(BL_EFORMAT, "%s: no JSON, or cut off, at byte %td", what, end - text);
}

enum bl_status bl_json_load(cJSON **out, const char *what, const char *path,
                            const struct bl_json_limits *limits)
{
    struct bl_file *file;
    BL_TRY(bl_file_open(&file, path));
    const uint64_t n = bl_file_bytes(file);
    char *text = NULL;
    enum bl_status st = BL_OK;
    if (n > limits->most_bytes)
        st = bl_fail(BL_EFORMAT, "%s: %" PRIu64 " bytes; the most is %zu", what, n,
                     limits->most_bytes);
    else if (!(text = bl_calloc((size_t)n + 1, 1)))
        st = bl_fail(BL_ENOMEM, "%s: out of memory", what);
    if (!st && n)
        st = bl_file_read(file, 0, n, text);
    if (!st)
        st = bl_json_parse(out, what, text, (size_t)n, limits);
    free(text);
    bl_file_close(file);
    return st;
}

void bl_json_free(cJSON *root)
{
    cJSON_Delete(root);
}

/* ---- places ---------------------------------------------------------------------------------- */

struct bl_json bl_json_root(const cJSON *root, const char *what)
{
    return (struct bl_json){.item = root, .what = what};
}

bool bl_json_member(const struct bl_json *at, const char *name, struct bl_json *out)
{
    const cJSON *item =
        cJSON_IsObject(at->item) ? cJSON_GetObjectItemCaseSensitive(at->item, name) : NULL;
    *out = (struct bl_json){.item = item, .up = at, .what = at->what};
    return item != NULL;
}

bool bl_json_first(const struct bl_json *at, struct bl_json *out)
{
    *out = (struct bl_json){.item = at->item->child, .up = at, .what = at->what};
    return out->item != NULL;
}

bool bl_json_next(struct bl_json *it)
{
    it->item = it->item->next;
    it->index++;
    return it->item != NULL;
}

const char *bl_json_name(const struct bl_json *at)
{
    return at->item->string ? at->item->string : "";
}

const char *bl_json_text(const struct bl_json *at)
{
    return cJSON_IsString(at->item) ? at->item->valuestring : NULL;
}

/* Written from the end, since the way leads up. */
static char *path_of(const struct bl_json *at, char *room, size_t cap)
{
    size_t begin = cap - 1;
    room[begin] = 0;
    for (; at->up; at = at->up) {
        char step[64];
        const int n = at->item->string ? snprintf(step, sizeof step, "%s%.40s",
                                                  at->up->up ? "." : "", at->item->string)
                                       : snprintf(step, sizeof step, "[%" PRIu32 "]", at->index);
        if (n < 0 || (size_t)n > begin)
            break;
        begin -= (size_t)n;
        memcpy(room + begin, step, (size_t)n);
    }
    return room + begin;
}

void bl_one_line(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            *text = '?';
}

enum bl_status bl_json_wrong(const struct bl_json *at, const char *fmt, ...)
{
    char room[200], text[400];
    va_list list;
    va_start(list, fmt);
    vsnprintf(text, sizeof text, fmt, list);
    va_end(list);
    char *path = path_of(at, room, sizeof room);
    bl_one_line(path);
    bl_one_line(text);
    return bl_fail(BL_EFORMAT, "%s: %s%s%s", at->what, path, *path ? " " : "", text);
}

enum bl_status bl_json_list(const struct bl_json *at, uint32_t most, uint32_t *n)
{
    if (!cJSON_IsArray(at->item))
        return bl_json_wrong(at, "must be a list");
    const int have = cJSON_GetArraySize(at->item);
    if (have < 0 || (uint32_t)have > most)
        return bl_json_wrong(at, "has %d entries; the most is %" PRIu32, have, most);
    *n = (uint32_t)have;
    return BL_OK;
}

enum bl_status bl_json_new_list(const struct bl_json *at, uint32_t most, size_t bytes, void **items,
                                uint32_t *n)
{
    uint32_t count = 0;

    BL_TRY(bl_json_list(at, most, &count));
    *items = bl_calloc((size_t)count + 1, bytes);
    if (!*items)
        return bl_fail(BL_ENOMEM, "%s: out of memory", at->what);
    *n = count;
    return BL_OK;
}

enum bl_status bl_json_object(const struct bl_json *at)
{
    return cJSON_IsObject(at->item) ? BL_OK : bl_json_wrong(at, "must be a JSON object");
}

/* SPDX-License-Identifier: MIT */
/* JSON out: the same data gives the same bytes, one member per line where a person would look. */
#include "json.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static void put(struct bl_json_out *o, const char *bytes, size_t n)
{
    if (o->failed)
        return;
    if (n >= o->cap - o->n) {
        const size_t cap = 2 * o->cap + n + 256;
        char *text = realloc(o->text, cap);
        if (!text) {
            o->failed = true;
            return;
        }
        o->text = text;
        o->cap = cap;
    }
    memcpy(o->text + o->n, bytes, n);
    o->n += n;
    o->text[o->n] = 0;
}

static void put_string(struct bl_json_out *o, const char *s)
{
    put(o, "\"", 1);
    for (; *s; s++) {
        char code[8];
        const unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\')
            put(o, (const char[]){'\\', *s}, 2);
        else if (c < 0x20)
            put(o, code, (size_t)snprintf(code, sizeof code, "\\u%04x", c));
        else
            put(o, s, 1);
    }
    put(o, "\"", 1);
}

static void new_line(struct bl_json_out *o)
{
    put(o, "\n", 1);
    for (uint32_t i = 0; i < o->depth; i++)
        put(o, "  ", 2);
}

/* Comma, place and name of the next member or element. */
static void begin(struct bl_json_out *o, const char *name)
{
    if (o->comma)
        put(o, ",", 1);
    if (!o->line && o->depth)
        new_line(o);
    else if (o->comma)
        put(o, " ", 1);
    if (name) {
        put_string(o, name);
        put(o, ": ", 2);
    }
    o->comma = true;
}

void bl_json_open(struct bl_json_out *o, const char *name, char bracket, bool one_line)
{
    begin(o, name);
    put(o, &bracket, 1);
    o->depth++;
    o->comma = false;
    if (one_line && !o->line)
        o->line_depth = o->depth;
    o->line = o->line || one_line;
}

void bl_json_close(struct bl_json_out *o, char bracket)
{
    o->depth--;
    if (!o->line && o->comma)
        new_line(o);
    put(o, &bracket, 1);
    o->comma = true;
    o->line = o->line && o->depth >= o->line_depth;
}

void bl_json_put_text(struct bl_json_out *o, const char *name, const char *text)
{
    begin(o, name);
    put_string(o, text);
}

void bl_json_put_number(struct bl_json_out *o, const char *name, double v)
{
    char text[40];
    int n = 0;
    begin(o, name);
    if (v == floor(v) && fabs(v) < 0x1p53) {
        n = snprintf(text, sizeof text, "%.0f", v);
    } else {
        for (int digits = 6; digits <= 17; digits++) {
            n = snprintf(text, sizeof text, "%.*g", digits, v);
            if (strtod(text, NULL) == v)
                break;
        }
    }
    put(o, text, (size_t)n);
}

void bl_json_put_flag(struct bl_json_out *o, const char *name, bool v)
{
    begin(o, name);
    put(o, v ? "true" : "false", v ? 4 : 5);
}

static double number_at(const struct bl_json_field *f, const void *at)
{
    switch (f->kind) {
    case BL_JSON_U16:
        return *(const uint16_t *)at;
    case BL_JSON_U32:
        return *(const uint32_t *)at;
    case BL_JSON_BYTES:
        return (double)*(const uint64_t *)at;
    default:
        return *(const double *)at;
    }
}

void bl_json_put_fields(struct bl_json_out *o, const struct bl_json_field *f, size_t n,
                        const void *base)
{
    for (size_t i = 0; i < n; i++) {
        const char *at = (const char *)base + f[i].at;
        if (f[i].kind == BL_JSON_TEXT) {
            if (*at || f[i].always)
                bl_json_put_text(o, f[i].name, at);
        } else if (f[i].kind == BL_JSON_WORD) {
            if (*(const uint8_t *)at || f[i].always)
                bl_json_put_text(o, f[i].name, f[i].words[*(const uint8_t *)at]);
        } else if (f[i].kind == BL_JSON_FLAG) {
            if (*(const bool *)at || f[i].always)
                bl_json_put_flag(o, f[i].name, *(const bool *)at);
        } else if (f[i].kind != BL_JSON_OTHER) {
            const double v = number_at(&f[i], at);
            if (v != 0 || f[i].always)
                bl_json_put_number(o, f[i].name, v);
        }
    }
}

enum bl_status bl_json_out_end(struct bl_json_out *o)
{
    put(o, "\n", 1);
    if (!o->failed)
        return BL_OK;
    free(o->text);
    *o = (struct bl_json_out){0};
    return bl_fail(BL_ENOMEM, "out of memory for a JSON text");
}

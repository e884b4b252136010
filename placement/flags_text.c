/* SPDX-License-Identifier: MIT */
#include "flags_text.h"

#include "mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- lists of texts ---- */

void bl_list_add(struct bl_text_list *l, const char *fmt, ...)
{
    char **more = realloc(l->text, (l->n + (size_t)1) * sizeof *more);
    va_list ap;

    if (more)
        l->text = more;
    if (!more) {
        l->failed = true;
        return;
    }
    va_start(ap, fmt);
    const int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    char *text = n < 0 ? NULL : bl_calloc((size_t)n + 1, 1);
    if (!text) {
        l->failed = true;
        return;
    }
    va_start(ap, fmt);
    vsnprintf(text, (size_t)n + 1, fmt, ap);
    va_end(ap);
    l->text[l->n++] = text;
}

void bl_list_drop(struct bl_text_list *l)
{
    for (uint32_t i = 0; i < l->n; i++)
        free(l->text[i]);
    free(l->text);
    *l = (struct bl_text_list){0};
}

void bl_grow(struct bl_growing *g, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    const int n = vsnprintf(g->text + g->n, sizeof g->text - g->n, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= sizeof g->text - g->n)
        g->full = true;
    else
        g->n += (size_t)n;
}

/* ---- sets of layers ---- */

static unsigned digits_at(const struct bl_layer_set *s, uint32_t tens)
{
    unsigned mask = 0;

    for (uint32_t d = 0; d < 10; d++)
        if (10 * tens + d < s->n && s->in[10 * tens + d])
            mask |= 1u << d;
    return mask;
}

/* Digits as "7", "[36]", "[3-6]", "[13-57]". */
static void put_digits(struct bl_growing *g, unsigned mask)
{
    const bool one = (mask & (mask - 1)) == 0;

    bl_grow(g, "%s", one ? "" : "[");
    for (unsigned d = 0; d < 10; d++) {
        unsigned e = d;
        if (!(mask >> d & 1))
            continue;
        while (e < 9 && mask >> (e + 1) & 1)
            e++;
        if (e >= d + 2)
            bl_grow(g, "%u-%u", d, e);
        else if (e > d)
            bl_grow(g, "%u%u", d, e);
        else
            bl_grow(g, "%u", d);
        d = e;
    }
    bl_grow(g, "%s", one ? "" : "]");
}

/* A regular expression that matches these numbers and no others: tens that have the same units
 * share a term. */
void bl_put_layers(struct bl_growing *g, const struct bl_layer_set *s)
{
    bool first = true;

    for (uint32_t t = 0; 10 * t < s->n; t++) {
        const unsigned units = digits_at(s, t);
        unsigned tens = t < 10 ? 1u << t : 0;
        if (!units)
            continue;
        for (uint32_t u = 1; u < t && t < 10; u++) /* written with an earlier one */
            tens = digits_at(s, u) == units ? 0 : tens;
        if (t < 10 && !tens)
            continue;
        for (uint32_t u = t + 1; t > 0 && u < 10; u++)
            tens |= digits_at(s, u) == units ? 1u << u : 0;
        bl_grow(g, "%s", first ? "" : "|");
        first = false;
        if (t >= 10)
            bl_grow(g, "%u", t);
        else if (t > 0)
            put_digits(g, tens);
        put_digits(g, units);
    }
}

/* As people write them: "0-3, 7". */
void bl_name_layers(struct bl_growing *g, const struct bl_layer_set *s)
{
    bool first = true;

    for (uint32_t l = 0; l < s->n; l++) {
        uint32_t e = l;
        if (!s->in[l])
            continue;
        while (e + 1 < s->n && s->in[e + 1])
            e++;
        bl_grow(g, e > l ? "%s%u-%u" : "%s%u", first ? "" : ", ", l, e);
        first = false;
        l = e;
    }
}

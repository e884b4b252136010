/* SPDX-License-Identifier: MIT */
#include "svg.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* Two decimals at most, none that are zero, and no "-0". */
static void put_number(FILE *f, double v)
{
    char text[40];

    snprintf(text, sizeof text, "%.2f", fabs(v) < 0.005 ? 0 : v);
    char *end = text + strlen(text);
    while (end[-1] == '0')
        *--end = 0;
    if (end[-1] == '.')
        *--end = 0;
    fputs(text, f);
}

static void put_attribute(FILE *f, const char *name, double v)
{
    fprintf(f, " %s=\"", name);
    put_number(f, v);
    fputc('"', f);
}

static void put_escaped(FILE *f, const char *s)
{
    for (; *s; s++)
        switch (*s) {
        case '&':
            fputs("&amp;", f);
            break;
        case '<':
            fputs("&lt;", f);
            break;
        case '>':
            fputs("&gt;", f);
            break;
        case '"':
            fputs("&quot;", f);
            break;
        default:
            fputc(*s, f);
        }
}

/* What strangers wrote: valid UTF-8 without control characters, then escaped. */
static void put_text(FILE *f, const char *s)
{
    char clean[768];

    bl_clean_text(clean, sizeof clean, s, strlen(s), true);
    put_escaped(f, clean);
}

void bl_svg_begin(struct bl_svg *s, FILE *f, double width, double height, const char *title,
                  const char *about)
{
    *s = (struct bl_svg){f, width, height};
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" viewBox=\"0 0 %.0f %.0f\" "
            "width=\"%.0f\" height=\"%.0f\" font-family=\"system-ui, 'Segoe UI', 'Helvetica Neue', "
            "Arial, 'Liberation Sans', sans-serif\">\n<title>",
            width, height, width, height);
    put_text(f, title);
    fputs("</title>\n<desc>", f);
    put_text(f, about);
    fputs("</desc>\n", f);
    const struct bl_svg_box page = {0, 0, width, height};
    bl_svg_rect(s, &page, BL_SVG_PAPER, NULL);
}

void bl_svg_end(struct bl_svg *s)
{
    fputs("</svg>\n", s->f);
}

static void put_box(FILE *f, const struct bl_svg_box *b)
{
    fputs("<rect", f);
    put_attribute(f, "x", b->x);
    put_attribute(f, "y", b->y);
    put_attribute(f, "width", b->w);
    put_attribute(f, "height", b->h);
}

void bl_svg_rect(struct bl_svg *s, const struct bl_svg_box *b, const char *fill, const char *tip)
{
    put_box(s->f, b);
    fprintf(s->f, " fill=\"%s\"", fill);
    if (!tip) {
        fputs("/>\n", s->f);
        return;
    }
    fputs("><title>", s->f);
    put_text(s->f, tip);
    fputs("</title></rect>\n", s->f);
}

void bl_svg_frame(struct bl_svg *s, const struct bl_svg_box *b, const char *stroke)
{
    put_box(s->f, b);
    fprintf(s->f, " fill=\"none\" stroke=\"%s\"/>\n", stroke);
}

void bl_svg_line(struct bl_svg *s, double x0, double y0, double x1, double y1, const char *stroke,
                 double width)
{
    fputs("<line", s->f);
    put_attribute(s->f, "x1", x0);
    put_attribute(s->f, "y1", y0);
    put_attribute(s->f, "x2", x1);
    put_attribute(s->f, "y2", y1);
    fprintf(s->f, " stroke=\"%s\"", stroke);
    put_attribute(s->f, "stroke-width", width);
    fputs("/>\n", s->f);
}

void bl_svg_area(struct bl_svg *s, const struct bl_svg_point *p, size_t n, const char *fill,
                 double opacity)
{
    fputs("<polygon points=\"", s->f);
    for (size_t i = 0; i < n; i++) {
        fputs(i ? " " : "", s->f);
        put_number(s->f, p[i].x);
        fputc(',', s->f);
        put_number(s->f, p[i].y);
    }
    fprintf(s->f, "\" fill=\"%s\"", fill);
    put_attribute(s->f, "fill-opacity", opacity);
    fputs("/>\n", s->f);
}

void bl_svg_dot(struct bl_svg *s, double x, double y, double radius, const char *fill)
{
    fputs("<circle", s->f);
    put_attribute(s->f, "cx", x);
    put_attribute(s->f, "cy", y);
    put_attribute(s->f, "r", radius);
    fprintf(s->f, " fill=\"%s\"/>\n", fill);
}

void bl_svg_hatch(struct bl_svg *s, const char *id, const char *under, const char *stripe)
{
    fprintf(s->f,
            "<defs><pattern id=\"%s\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" "
            "patternTransform=\"rotate(45)\"><rect width=\"6\" height=\"6\" fill=\"%s\"/><rect "
            "width=\"2\" height=\"6\" fill=\"%s\"/></pattern></defs>\n",
            id, under, stripe);
}

/* ---- text ---- */

/* In ems, of common sans-serif fonts; a little wide rather than narrow. */
static double em_of(unsigned char c)
{
    if (strchr("il.,:;|'!", c))
        return 0.32;
    if (strchr("fjrt()[]-/ ", c))
        return 0.39;
    if (strchr("mwMW%@", c))
        return 0.95;
    return c >= 'A' && c <= 'Z' ? 0.7 : 0.61;
}

static bool begins_character(unsigned char c)
{
    return (c & 0xc0) != 0x80;
}

double bl_svg_text_width(const char *text, double size, bool bold)
{
    double em = 0;

    for (; *text; text++)
        em += !begins_character((unsigned char)*text) ? 0
              : (unsigned char)*text >= 0x80          ? 0.7
                                                      : em_of((unsigned char)*text);
    return em * size * (bold ? 1.06 : 1);
}

/* Cuts whole characters off until text and an ellipsis fit. */
static void fit(char *text, const struct bl_svg_style *st)
{
    static const char more[] = "\xe2\x80\xa6";
    size_t n = strlen(text);

    if (st->most <= 0 || bl_svg_text_width(text, st->size, st->bold) <= st->most)
        return;
    const double room = st->most - 0.8 * st->size;
    while (n > 0 && bl_svg_text_width(text, st->size, st->bold) > room) {
        do
            n--;
        while (n > 0 && !begins_character((unsigned char)text[n]));
        text[n] = 0;
    }
    while (n > 0 && text[n - 1] == ' ')
        text[--n] = 0;
    memcpy(text + n, more, sizeof more);
}

void bl_svg_text(struct bl_svg *s, double x, double y, const struct bl_svg_style *st,
                 const char *fmt, ...)
{
    static const char *const anchor[] = {"", " text-anchor=\"middle\"", " text-anchor=\"end\""};
    char said[256], text[sizeof said * 3 + 8];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(said, sizeof said, fmt, ap);
    va_end(ap);
    bl_clean_text(text, sizeof text - 4, said, strlen(said), true);
    fit(text, st);
    fputs("<text", s->f);
    put_attribute(s->f, "x", x);
    put_attribute(s->f, "y", y);
    put_attribute(s->f, "font-size", st->size);
    fprintf(s->f, " fill=\"%s\"%s%s%s>", st->fill ? st->fill : BL_SVG_INK, anchor[st->anchor],
            st->bold ? " font-weight=\"600\"" : "",
            st->halo ? " stroke=\"" BL_SVG_PAPER "\" stroke-width=\"3\" paint-order=\"stroke\""
                     : "");
    put_escaped(s->f, text);
    fputs("</text>\n", s->f);
}

void bl_svg_number(char text[32], double value)
{
    char digits[32];
    const int n = snprintf(digits, sizeof digits, "%.0f", value);
    size_t k = 0;

    for (int i = 0; i < n && k < 30; i++) {
        if (i && (n - i) % 3 == 0 && digits[i - 1] != '-')
            text[k++] = ',';
        text[k++] = digits[i];
    }
    text[k] = 0;
}

/* ---- axes ---- */

static double round_step(double span, uint32_t most)
{
    const double raw = span / most, power = pow(10, floor(log10(raw)));
    const double lead = raw / power;

    return power * (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 2.5 ? 2.5 : lead <= 5 ? 5 : 10);
}

void bl_svg_axis_init(struct bl_svg_axis *a, double low, double high, uint32_t most)
{
    *a = (struct bl_svg_axis){.low = low, .high = high};
    if (!(a->high > a->low))
        a->high = a->low + 1;
    const double step = round_step(a->high - a->low, most ? most : 1);
    for (double v = ceil(a->low / step) * step;
         v <= a->high * (1 + 1e-9) && a->n_marks < BL_SVG_MARKS; v += step)
        a->mark[a->n_marks++] = v;
}

double bl_svg_axis_at(const struct bl_svg_axis *a, double value)
{
    const double share = (value - a->low) / (a->high - a->low);

    return a->from + share * (a->to - a->from);
}

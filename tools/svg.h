/* SPDX-License-Identifier: MIT */
/* svg.h — pictures as SVG text: shapes, fitted labels, axes.
 *
 * Purpose   one look for all pictures of the program. They need no font, script or style sheet from elsewhere, and paint
 *           their own background. The same calls give the same bytes.
 * Ownership the stream is the caller's; texts are borrowed during a call.
 * Units     pixels at a scale of one; text sizes likewise. Widths of texts are estimated: viewers differ in fonts.
 * Errors    none: a stream that fails is its owner's business.
 * Threads   the thread that runs the verb.
 */
#ifndef BL_SVG_H
#define BL_SVG_H

#include "common/report.h"

#include <stdio.h>

#define BL_SVG_INK "#1f2933"
#define BL_SVG_SOFT "#5f6b7a"   /* labels */
#define BL_SVG_FAINT "#d8dee6"  /* rules, frames */
#define BL_SVG_PAPER "#ffffff"
#define BL_SVG_TINT "#f3f5f8"   /* behind bars */

struct bl_svg {
    FILE *f;
    double width, height;
};
struct bl_svg_box { double x, y, w, h; };

/* title, about: what screen readers say. */
void bl_svg_begin(struct bl_svg *, FILE *, double width, double height, const char *title, const char *about);
void bl_svg_end(struct bl_svg *);

/* fill: a colour, or "url(#hatch)" and the like; tip: shown when pointed at, NULL: none. */
void bl_svg_rect(struct bl_svg *, const struct bl_svg_box *, const char *fill, const char *tip);
void bl_svg_frame(struct bl_svg *, const struct bl_svg_box *, const char *stroke);
void bl_svg_line(struct bl_svg *, double x0, double y0, double x1, double y1, const char *stroke, double width);
struct bl_svg_point { double x, y; };
/* A polygon that lets through what is below it; opacity from 0 to 1. */
void bl_svg_area(struct bl_svg *, const struct bl_svg_point *, size_t n, const char *fill, double opacity);
void bl_svg_dot(struct bl_svg *, double x, double y, double radius, const char *fill);
enum bl_svg_anchor { BL_SVG_START, BL_SVG_MIDDLE, BL_SVG_FINISH };
struct bl_svg_style {
    double size;
    const char *fill;           /* NULL: ink */
    enum bl_svg_anchor anchor;
    bool bold, halo;            /* halo: readable over lines */
    double most;                /* width at which the text is cut; 0: none */
};
void bl_svg_text(struct bl_svg *, double x, double y, const struct bl_svg_style *, const char *fmt, ...)
    BL_REPORT_PRINTF(5, 6);
double bl_svg_text_width(const char *text, double size, bool bold);
/* Diagonal stripes of ink over a colour, to be used as "url(#id)". */
void bl_svg_hatch(struct bl_svg *, const char *id, const char *under, const char *stripe);

/* Marks of an axis from 0 or low to high: round numbers, between 3 and most. */
enum { BL_SVG_MARKS = 16 };
struct bl_svg_axis {
    double low, high;           /* of the data */
    double from, to;            /* pixels of low and high */
    double mark[BL_SVG_MARKS];
    uint32_t n_marks;
};
void bl_svg_axis_init(struct bl_svg_axis *, double low, double high, uint32_t most);
double bl_svg_axis_at(const struct bl_svg_axis *, double value);
/* 1,234,567 */
void bl_svg_number(char text[32], double value);

#endif

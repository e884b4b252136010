/* SPDX-License-Identifier: MIT */
/* plan_sweep_svg.c — a sweep as a picture: two speeds as lines, memory as bars, one axis below. */
#include "plan_sweep.h"

#include "plan_svg.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define DECODE "#2f6db5"
#define PREFILL "#2c9c85"
#define WRONG "#b3372f"

enum {
    LEFT = 92,
    RIGHT = BL_PIC_WIDTH - BL_PIC_MARGIN - 8,
    TOP = 96,
    HEADING = 52,
    SPEED = 150,
    MEMORY = 130,
    GAP = 22,
    AXIS = 44,
    LACKS = 36 /* lines below marks of what does not fit */
};

static const struct {
    const char *word, *fill;
} use[BL_N_SWEEP_USES] = {
    [BL_SWEEP_WEIGHTS] = {"weights", "#e08a2c"},
    [BL_SWEEP_STATE] = {"cached state", "#c04d78"},
    [BL_SWEEP_COMPUTE] = {"compute", "#7f90a5"},
    [BL_SWEEP_OTHER] = {"driver and other", "#b4c0cd"},
};

struct picture {
    struct bl_svg svg;
    const struct bl_sweep *sweep;
    double slot; /* width of a point's place */
};

/* Steps and contexts double from one to the next: places of one width are a logarithmic axis. */
static double x_of(const struct picture *p, uint32_t i)
{
    return LEFT + (i + 0.5) * p->slot;
}

static struct bl_svg_axis value_axis(double high, double y, double h)
{
    struct bl_svg_axis a;

    bl_svg_axis_init(&a, 0, high > 0 ? high * 1.08 : 1, 5);
    a.from = y + h;
    a.to = y;
    return a;
}

static void draw_grid(struct picture *p, const struct bl_svg_axis *a, const char *unit)
{
    const struct bl_svg_style mark = {.size = 10, .fill = BL_SVG_SOFT, .anchor = BL_SVG_FINISH};

    for (uint32_t i = 0; i < a->n_marks; i++) {
        const double y = bl_svg_axis_at(a, a->mark[i]);
        char text[32];
        bl_svg_line(&p->svg, LEFT, y, RIGHT, y, i ? BL_SVG_FAINT : "#9aa5b1", 1);
        if (a->mark[a->n_marks - 1] < 10)
            snprintf(text, sizeof text, "%g", a->mark[i]);
        else
            bl_svg_number(text, a->mark[i]);
        bl_svg_text(&p->svg, LEFT - 8, y + 3.5, &mark, "%s", text);
    }
    bl_svg_text(&p->svg, LEFT - 8, a->to - 7, &mark, "%s", unit);
}

/* Neighbours that do not fit are one area. */
static void shade_missing(struct picture *p, double y, double h)
{
    const struct bl_sweep *s = p->sweep;

    for (uint32_t i = 0, end; i < s->n; i = end) {
        end = i + 1;
        if (s->point[i].fits)
            continue;
        while (end < s->n && !s->point[end].fits)
            end++;
        const struct bl_svg_box b = {LEFT + i * p->slot, y, (end - i) * p->slot, h};
        bl_svg_rect(&p->svg, &b, "url(#missing)", NULL);
        bl_svg_text(&p->svg, b.x + b.w / 2, y + h / 2 + 4,
                    &(struct bl_svg_style){
                        .size = 11, .anchor = BL_SVG_MIDDLE, .fill = WRONG, .halo = true},
                    "does not fit");
    }
}

/* ---- speeds ---- */

static const struct bl_speed *speed_of(const struct bl_sweep_point *p, bool prefill)
{
    return prefill ? &p->prefill : &p->decode;
}

static double above(const struct bl_speed *v)
{
    return v->tok_per_s * exp(v->sd);
}

static double highest(const struct bl_sweep *s, bool prefill)
{
    double most = 0;

    for (uint32_t i = 0; i < s->n; i++)
        if (s->point[i].fits)
            most = fmax(most, above(speed_of(&s->point[i], prefill)));
    return most;
}

/* Two cases of three lie in the band; a line breaks where a point does not fit. */
static void draw_band(struct picture *p, const struct bl_svg_axis *a, bool prefill,
                      const char *colour)
{
    for (uint32_t i = 0; i + 1 < p->sweep->n; i++) {
        const struct bl_sweep_point *l = &p->sweep->point[i], *r = l + 1;
        const struct bl_speed *u = speed_of(l, prefill), *v = speed_of(r, prefill);
        if (!l->fits || !r->fits)
            continue;
        const double x0 = x_of(p, i), x1 = x_of(p, i + 1);
        const struct bl_svg_point band[] = {
            {x0, bl_svg_axis_at(a, above(u))},
            {x1, bl_svg_axis_at(a, above(v))},
            {x1, bl_svg_axis_at(a, v->tok_per_s * exp(-v->sd))},
            {x0, bl_svg_axis_at(a, u->tok_per_s * exp(-u->sd))},
        };
        bl_svg_area(&p->svg, band, COUNT(band), colour, 0.14);
    }
    for (uint32_t i = 0; i + 1 < p->sweep->n; i++) {
        const struct bl_sweep_point *l = &p->sweep->point[i], *r = l + 1;
        if (l->fits && r->fits)
            bl_svg_line(&p->svg, x_of(p, i), bl_svg_axis_at(a, speed_of(l, prefill)->tok_per_s),
                        x_of(p, i + 1), bl_svg_axis_at(a, speed_of(r, prefill)->tok_per_s), colour,
                        2);
    }
}

static void draw_points(struct picture *p, const struct bl_svg_axis *a, bool prefill,
                        const char *colour)
{
    const struct bl_svg_style label = {.size = 10.5, .anchor = BL_SVG_MIDDLE, .halo = true};

    for (uint32_t i = 0; i < p->sweep->n; i++) {
        const struct bl_sweep_point *at = &p->sweep->point[i];
        char text[32];
        if (!at->fits)
            continue;
        const double x = x_of(p, i), v = speed_of(at, prefill)->tok_per_s;
        const double y = bl_svg_axis_at(a, v);
        bl_svg_dot(&p->svg, x, y, 3.2, colour);
        bl_pic_speed(text, v);
        bl_svg_text(&p->svg, x, y - 8, &label, "%s", text);
    }
}

static double draw_speeds(struct picture *p, double y, bool prefill)
{
    const char *colour = prefill ? PREFILL : DECODE;

    bl_pic_heading(&p->svg, y, prefill ? "Prefill" : "Decode",
                   "band: two cases of three lie in it");
    const struct bl_svg_axis a = value_axis(highest(p->sweep, prefill), y + HEADING, SPEED);
    draw_grid(p, &a, "tokens/s");
    shade_missing(p, y + HEADING, SPEED);
    draw_band(p, &a, prefill, colour);
    draw_points(p, &a, prefill, colour);
    return y + HEADING + SPEED + GAP;
}

/* ---- memory ---- */

static const struct bl_sweep_memory *memory_of(const struct bl_sweep_point *p, bool cards)
{
    return cards ? &p->cards : &p->ram;
}

static double most_memory(const struct bl_sweep *s, bool cards)
{
    double most = 0;

    for (uint32_t i = 0; i < s->n; i++) {
        const struct bl_sweep_memory *m = memory_of(&s->point[i], cards);
        if (s->point[i].fits)
            most = fmax(most, (double)m->planned_bytes);
    }
    return most / (1 << 30);
}

static void draw_stack(struct picture *p, const struct bl_svg_axis *a, uint32_t i, bool cards)
{
    const struct bl_sweep_memory *m = memory_of(&p->sweep->point[i], cards);
    const double w = fmin(p->slot * 0.56, 44), x = x_of(p, i) - w / 2, gib = 1.0 / (1 << 30);
    double sum = 0;

    for (unsigned k = 0; k < BL_N_SWEEP_USES; k++) {
        const double v = (double)m->bytes[k] * gib;
        const double top = bl_svg_axis_at(a, sum + v), bottom = bl_svg_axis_at(a, sum);
        const struct bl_svg_box b = {x, top, w, bottom - top};
        char tip[96];
        snprintf(tip, sizeof tip, "%s: %s", use[k].word,
                 bl_size_text(m->bytes[k], (char[BL_SIZE_TEXT]){0}));
        if (b.h >= 0.05)
            bl_svg_rect(&p->svg, &b, use[k].fill, tip);
        sum += v;
    }
    bl_svg_text(&p->svg, x + w / 2, bl_svg_axis_at(a, sum) - 5,
                &(struct bl_svg_style){.size = 10.5, .anchor = BL_SVG_MIDDLE, .halo = true},
                sum < 100 ? "%.1f" : "%.0f", sum);
}

/* What there is of it, where that is within the picture. */
static void draw_budget(struct picture *p, const struct bl_svg_axis *a, uint32_t i, bool cards)
{
    const double has = (double)memory_of(&p->sweep->point[i], cards)->budget_bytes / (1 << 30);

    if (has <= a->high && has > 0)
        bl_svg_line(&p->svg, LEFT + i * p->slot, bl_svg_axis_at(a, has), LEFT + (i + 1) * p->slot,
                    bl_svg_axis_at(a, has), WRONG, 1.2);
}

static void draw_legend(struct picture *p, double y)
{
    double x = LEFT + 130;

    for (size_t k = 0; k < COUNT(use); k++) {
        const struct bl_svg_box b = {x, y, 10, 10};
        bl_svg_rect(&p->svg, &b, use[k].fill, NULL);
        bl_svg_text(&p->svg, x + 15, y + 9, &(struct bl_svg_style){.size = 11, .fill = BL_SVG_SOFT},
                    "%s", use[k].word);
        x += 29 + bl_svg_text_width(use[k].word, 11, false);
    }
}

static double draw_memory(struct picture *p, double y, bool cards, bool first)
{
    const bool mapped = !cards && first; /* one device uses the file where it is mapped */

    bl_pic_heading(&p->svg, y, cards ? "Memory of cards" : "RAM",
                   mapped ? "a mapped file is not counted"
                          : "red: what there is, where it is near");
    if (first)
        draw_legend(p, y + 15);
    const struct bl_svg_axis a =
        value_axis(most_memory(p->sweep, cards) * 1.06, y + HEADING, MEMORY);
    draw_grid(p, &a, "GiB");
    shade_missing(p, y + HEADING, MEMORY);
    for (uint32_t i = 0; i < p->sweep->n; i++)
        if (p->sweep->point[i].fits) {
            draw_budget(p, &a, i, cards);
            draw_stack(p, &a, i, cards);
        }
    return y + HEADING + MEMORY + GAP;
}

/* ---- the whole ---- */

static double lacks_height(const struct bl_sweep *s)
{
    return s->n_fit < s->n ? LACKS : 0;
}

static void draw_axis(struct picture *p, double y)
{
    const struct bl_svg_style mark = {.size = 11, .anchor = BL_SVG_MIDDLE},
                              lack = {.size = 9.5, .anchor = BL_SVG_MIDDLE, .fill = WRONG};

    for (uint32_t i = 0; i < p->sweep->n; i++) {
        const struct bl_sweep_point *at = &p->sweep->point[i];
        char text[32];
        bl_svg_number(text, (double)at->x);
        bl_svg_text(&p->svg, x_of(p, i), y, &mark, "%s", text);
        if (at->fits)
            continue;
        bl_svg_text(&p->svg, x_of(p, i), y + 14, &lack, "%s",
                    bl_size_text(at->lack.bytes, (char[BL_SIZE_TEXT]){0}));
        bl_svg_text(&p->svg, x_of(p, i), y + 26, &lack, "missing");
        bl_svg_text(&p->svg, x_of(p, i), y + 38, &lack, "on %s", at->lack.device);
    }
    bl_svg_text(&p->svg, (LEFT + RIGHT) / 2.0, y + 20 + lacks_height(p->sweep),
                &(struct bl_svg_style){
                    .size = 11.5, .fill = BL_SVG_SOFT, .anchor = BL_SVG_MIDDLE, .bold = true},
                "%s", bl_sweep_axis(p->sweep));
}

static void draw_top(struct picture *p)
{
    const struct bl_sweep *s = p->sweep;
    const struct bl_sweep_point *any = s->point;
    const struct bl_svg_style soft = {.size = 12, .fill = BL_SVG_SOFT, .most = 840};
    char ctx[32], depth[32];

    while (!any->fits)
        any++;
    bl_svg_number(ctx, (double)any->ctx_tokens);
    bl_svg_number(depth, (double)any->depth_tokens);
    bl_svg_text(&p->svg, BL_PIC_MARGIN, 38,
                &(struct bl_svg_style){.size = 21, .bold = true, .most = 840}, "%s", s->model);
    bl_svg_text(&p->svg, BL_PIC_MARGIN, 60, &(struct bl_svg_style){.size = 13, .most = 840},
                "on %s", s->machine);
    if (s->what == BL_SWEEP_CTX)
        bl_svg_text(&p->svg, BL_PIC_MARGIN, 80, &soft,
                    "cache %s \xc2\xb7 speeds in the middle of each context, or at --depth",
                    s->types);
    else
        bl_svg_text(&p->svg, BL_PIC_MARGIN, 80, &soft,
                    "context %s tokens \xc2\xb7 cache %s \xc2\xb7 speeds at a depth of %s", ctx,
                    s->types, depth);
}

void bl_sweep_svg_print(const struct bl_sweep *s, FILE *f)
{
    struct picture p = {.sweep = s, .slot = (double)(RIGHT - LEFT) / s->n};
    const bool cards = most_memory(s, true) > 0, known = highest(s, false) > 0;
    double y = TOP;
    char title[256];

    snprintf(title, sizeof title, "%s on %s", s->model, s->machine);
    const double height = TOP + (known ? 2 : 0) * (HEADING + SPEED + GAP) +
                          (cards ? 2 : 1) * (HEADING + MEMORY + GAP) + AXIS + lacks_height(s);
    bl_svg_begin(&p.svg, f, BL_PIC_WIDTH, height, title,
                 "predicted speeds and planned memory over one setting");
    bl_svg_hatch(&p.svg, "missing", "#fbf3f2", "#ecc9c6");
    draw_top(&p);
    if (known) {
        y = draw_speeds(&p, y, false);
        y = draw_speeds(&p, y, true);
    }
    if (cards)
        y = draw_memory(&p, y, true, true);
    y = draw_memory(&p, y, false, !cards);
    draw_axis(&p, y - GAP + 18);
    bl_svg_text(&p.svg, BL_PIC_MARGIN, height - 10,
                &(struct bl_svg_style){.size = 10.5, .fill = BL_SVG_SOFT},
                "ballast plan --sweep \xc2\xb7 predicted, not measured");
    bl_svg_end(&p.svg);
}

/* SPDX-License-Identifier: MIT */
/* plan_svg_time.c — the panel of a predicted step: what each device and link does when. */
#include "plan_svg.h"

#include <math.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
enum { HEADING = 60, LANE = 18, LINK = 7, GAP = 7, AXIS = 24, ZOOM_HEAD = 34, FEW_LAYERS = 8 };

static const enum bl_pic_colour legend[] = {BL_PIC_EXPERTS, BL_PIC_ATTN, BL_PIC_FFN,
                                            BL_PIC_EMBED,   BL_PIC_SENT, BL_PIC_TO_CARD,
                                            BL_PIC_TO_HOST};

struct window {
    const struct bl_predicted_step *step;
    double begin_ns, end_ns;
    int32_t first, last; /* layers shown, when enlarged; -1: all of the step */
};

static bool is_copy(const struct bl_step_event *e)
{
    return !strcmp(e->what, "copy");
}

static bool crosses(const struct bl_step_event *e)
{
    return strcmp(e->from, e->to) != 0;
}

static bool seen(const struct window *w, const struct bl_step_event *e)
{
    return e->begin_ns < w->end_ns && e->end_ns > w->begin_ns;
}

/* Experts that are sent are multiplied by the card. */
static bool on_stream(const struct bl_step_event *e, const char *device)
{
    return !is_copy(e) && !strcmp(e->to, device);
}

/* A link's lane stands below its card's. */
static bool on_link(const struct bl_step_event *e, const struct bl_placement_device *d)
{
    return crosses(e) && !d->cpu && (!strcmp(e->from, d->id) || !strcmp(e->to, d->id));
}

static bool has_lane(const struct window *w, const struct bl_placement_device *d, bool link)
{
    for (uint32_t i = 0; i < w->step->n_events; i++) {
        const struct bl_step_event *e = &w->step->event[i];
        if (seen(w, e) && (link ? on_link(e, d) : on_stream(e, d->id)))
            return true;
    }
    return false;
}

static double lanes_height(const struct bl_plan_picture *p, const struct window *w)
{
    struct bl_placement_device d;
    double height = 0;

    for (uint32_t i = 0; i < p->n_devices; i++) {
        bl_placement_device(p->placement, i, &d);
        const bool stream = has_lane(w, &d, false), link = has_lane(w, &d, true);
        height += (stream ? LANE : 0) + (link ? LINK + 2 : 0) + (stream || link ? GAP : 0);
    }
    return height;
}

/* ---- lanes ---- */

/* Segments of one kind that nearly touch are drawn as one; what is too thin to see is not drawn. */
struct pen {
    struct bl_svg *svg;
    double y, h, x0, x1, busy_px;
    int colour; /* -1: nothing in hand */
    bool labels;
    char tip[96];
};

static void lift(struct pen *pen)
{
    const double width = pen->x1 - pen->x0;

    if (pen->colour < 0 || width < 0.25)
        return;
    const struct bl_pic_kind *k = &bl_pic_kind[pen->colour];
    const struct bl_svg_box b = {pen->x0, pen->y, width, pen->h};
    bl_svg_rect(pen->svg, &b, k->fill, pen->tip[0] ? pen->tip : NULL);
    if (pen->labels && bl_svg_text_width(k->word, 10, false) < width - 6)
        bl_svg_text(pen->svg, pen->x0 + width / 2, pen->y + 12.5,
                    &(struct bl_svg_style){.size = 10, .fill = k->ink, .anchor = BL_SVG_MIDDLE},
                    "%s", k->word);
}

static void stroke(struct pen *pen, int colour, double x0, double x1)
{
    if (pen->colour == colour && x0 - pen->x1 < 0.75) {
        pen->x1 = fmax(pen->x1, x1);
        return;
    }
    lift(pen);
    pen->colour = colour;
    pen->x0 = x0;
    pen->x1 = x1;
    pen->tip[0] = 0;
}

static int link_colour(const struct bl_step_event *e, const struct bl_placement_device *card)
{
    return !is_copy(e) ? BL_PIC_SENT : !strcmp(e->to, card->id) ? BL_PIC_TO_CARD : BL_PIC_TO_HOST;
}

static void draw_lane(struct bl_svg *s, const struct window *w, const struct bl_placement_device *d,
                      bool link, double y)
{
    const double scale = (BL_PIC_BAR_END - BL_PIC_BAR) / (w->end_ns - w->begin_ns);
    const struct bl_svg_box whole = {BL_PIC_BAR, y, BL_PIC_BAR_END - BL_PIC_BAR,
                                     link ? LINK : LANE};
    struct pen pen = {.svg = s, .y = y, .h = whole.h, .colour = -1, .labels = !link};

    bl_svg_rect(s, &whole, BL_SVG_TINT, NULL);
    for (uint32_t i = 0; i < w->step->n_events; i++) {
        const struct bl_step_event *e = &w->step->event[i];
        if (!seen(w, e) || !(link ? on_link(e, d) : on_stream(e, d->id)))
            continue;
        const double x0 = whole.x + (fmax(e->begin_ns, w->begin_ns) - w->begin_ns) * scale;
        double x1 = whole.x + (fmin(e->end_ns, w->end_ns) - w->begin_ns) * scale;
        if (link) /* small copies matter by their number */
            x1 = fmax(x1, fmin(x0 + 0.8, whole.x + whole.w));
        stroke(&pen, link ? link_colour(e, d) : (int)bl_pic_of_part(e->what), x0, x1);
        if (e->layer >= 0 && w->first >= 0)
            snprintf(pen.tip, sizeof pen.tip, "layer %d: %.4g us", e->layer,
                     (e->end_ns - e->begin_ns) / 1e3);
    }
    lift(&pen);
}

static double busy_ns(const struct window *w, const char *device)
{
    double sum = 0;

    for (uint32_t i = 0; i < w->step->n_events; i++) {
        const struct bl_step_event *e = &w->step->event[i];
        if (on_stream(e, device))
            sum += e->end_ns - e->begin_ns;
    }
    return sum;
}

/* Returns the y below. */
static double draw_lanes(struct bl_plan_picture *p, const struct window *w, double y)
{
    const double most = BL_PIC_BAR - BL_PIC_MARGIN - 10;
    const struct bl_svg_style name = {.size = 12, .bold = true, .most = most},
                              small = {.size = 9, .fill = BL_SVG_SOFT, .most = most},
                              busy = {.size = 11, .fill = BL_SVG_SOFT, .anchor = BL_SVG_FINISH};
    struct bl_placement_device d;

    for (uint32_t i = 0; i < p->n_devices; i++) {
        bl_placement_device(p->placement, i, &d);
        const bool stream = has_lane(w, &d, false), link = has_lane(w, &d, true);
        if (stream) {
            bl_svg_text(&p->svg, BL_PIC_MARGIN, y + 13, &name, "%s", d.id);
            draw_lane(&p->svg, w, &d, false, y);
            if (w->first < 0)
                bl_svg_text(&p->svg, BL_PIC_END, y + 13, &busy, "%.0f %% busy",
                            100 * busy_ns(w, d.id) / w->step->ns);
            y += LANE;
        }
        if (link) {
            bl_svg_text(&p->svg, BL_PIC_MARGIN, y + 9, &small, "link of %s", d.id);
            draw_lane(&p->svg, w, &d, true, y + 2);
            y += LINK + 2;
        }
        y += stream || link ? GAP : 0;
    }
    return y;
}

static void draw_axis(struct bl_svg *s, const struct window *w, double y)
{
    const double span = w->end_ns - w->begin_ns;
    const double unit = span >= 2e9 ? 1e9 : span >= 2e6 ? 1e6 : 1e3;
    const char *name = unit == 1e9 ? "s" : unit == 1e6 ? "ms" : "\xc2\xb5s";
    const struct bl_svg_style style = {.size = 10, .fill = BL_SVG_SOFT, .anchor = BL_SVG_MIDDLE};
    struct bl_svg_axis a;

    bl_svg_axis_init(&a, 0, span / unit, 10);
    a.from = BL_PIC_BAR;
    a.to = BL_PIC_BAR_END;
    for (uint32_t i = 0; i < a.n_marks; i++) {
        const double x = bl_svg_axis_at(&a, a.mark[i]);
        bl_svg_line(s, x, y - 4, x, y, "#9aa5b1", 1);
        if (i)
            bl_svg_text(s, x, y + 10, &style, "%g", a.mark[i]);
        else
            bl_svg_text(s, x, y + 10, &style, "0 %s", name);
    }
}

/* ---- some layers, enlarged ---- */

static double layer_begin(const struct bl_predicted_step *step, int32_t layer)
{
    for (uint32_t i = 0; i < step->n_events; i++)
        if (step->event[i].layer == layer)
            return step->event[i].begin_ns;
    return step->ns;
}

/* Three layers of the longest stretch whose experts are elsewhere than their attention, else from
 * the middle. False: the step has too few layers to need it. */
static bool choose_window(const struct bl_plan_picture *p, const struct bl_predicted_step *step,
                          struct window *w)
{
    const int32_t n = (int32_t)p->info.n_layers;
    struct bl_placement_group g;
    int32_t first = n / 2 - 1, longest = 0;

    if (n < FEW_LAYERS)
        return false;
    for (uint32_t i = 0; i < bl_placement_group(p->placement, i, &g); i++) {
        const int32_t length = (int32_t)(g.last - g.first) + 1;
        if (!g.experts || !strcmp(g.experts, g.attention) || length <= longest)
            continue;
        longest = length;
        first = (int32_t)g.first + (length > 3 ? length / 2 - 1 : 0);
    }
    first = first + 3 > n ? n - 3 : first;
    *w = (struct window){.step = step,
                         .begin_ns = layer_begin(step, first),
                         .end_ns = layer_begin(step, first + 3),
                         .first = first,
                         .last = first + 2};
    return w->end_ns > w->begin_ns;
}

/* top: of the lanes above, in which the layers are marked. */
static void draw_zoom(struct bl_plan_picture *p, const struct window *w, double y, double top)
{
    const double scale = (BL_PIC_BAR_END - BL_PIC_BAR) / w->step->ns,
                 x0 = BL_PIC_BAR + w->begin_ns * scale, x1 = BL_PIC_BAR + w->end_ns * scale;
    struct bl_svg *s = &p->svg;
    const struct bl_svg_style small = {.size = 10, .fill = BL_SVG_SOFT};

    const struct bl_svg_box mark = {x0, top - 2, x1 - x0, y - AXIS - GAP - top + 4};
    bl_svg_frame(s, &mark, BL_SVG_INK);
    bl_svg_line(s, x0, y - 6, BL_PIC_BAR, y + 16, "#9aa5b1", 1);
    bl_svg_line(s, x1, y - 6, BL_PIC_BAR_END, y + 16, "#9aa5b1", 1);
    bl_svg_text(s, BL_PIC_MARGIN, y + 28, &(struct bl_svg_style){.size = 11, .fill = BL_SVG_SOFT},
                "layers %d\xe2\x80\x93%d, larger", w->first, w->last);
    const double lanes = lanes_height(p, w), span = w->end_ns - w->begin_ns;
    draw_lanes(p, w, y + ZOOM_HEAD);
    for (int32_t l = w->first; l <= w->last; l++) {
        const double x = BL_PIC_BAR + (layer_begin(w->step, l) - w->begin_ns) *
                                          (BL_PIC_BAR_END - BL_PIC_BAR) / span;
        bl_svg_line(s, x, y + 18, x, y + ZOOM_HEAD + lanes - GAP, "#9aa5b1", 1);
        bl_svg_text(s, x + 4, y + 28, &small, "layer %d", l);
    }
    draw_axis(s, w, y + ZOOM_HEAD + lanes);
}

/* ---- the panel ---- */

static struct window all_of(const struct bl_predicted_step *step)
{
    return (struct window){.step = step, .end_ns = step->ns, .first = -1, .last = -1};
}

double bl_plan_svg_step_height(const struct bl_plan_picture *p,
                               const struct bl_predicted_step *step)
{
    const struct window all = all_of(step);
    struct window some;
    double height = HEADING + lanes_height(p, &all) + AXIS;

    if (choose_window(p, step, &some))
        height += ZOOM_HEAD + lanes_height(p, &some) + AXIS;
    return height + 8;
}

static void format_time(char text[32], double ns)
{
    if (ns >= 1e9)
        snprintf(text, 32, "%.2f s", ns / 1e9);
    else
        snprintf(text, 32, "%.3g ms", ns / 1e6);
}

void bl_plan_svg_step(struct bl_plan_picture *p, const struct bl_predicted_step *step,
                      const struct bl_speed *speed, double y)
{
    const struct window all = all_of(step);
    struct window some;
    char what[128], sum[192], time[32], n_tok[32], depth[32], low[32], mean[32], high[32];

    bl_svg_number(n_tok, step->n_tok);
    bl_svg_number(depth, (double)step->depth_tokens);
    format_time(time, step->ns);
    if (step->n_tok == 1)
        snprintf(what, sizeof what, "Decode: one token after %s others", depth);
    else
        snprintf(what, sizeof what, "Prefill: a chunk of %s tokens after %s others", n_tok, depth);
    bl_pic_speed(low, speed->tok_per_s * exp(-speed->sd));
    bl_pic_speed(mean, speed->tok_per_s);
    bl_pic_speed(high, speed->tok_per_s * exp(speed->sd));
    snprintf(sum, sizeof sum, "%s, %s tokens/s; %s to %s in two cases of three", time, mean, low,
             high);
    bl_pic_heading(&p->svg, y, what, sum);
    bl_pic_legend(&p->svg, y + 37, legend, COUNT(legend));
    const double below = draw_lanes(p, &all, y + HEADING);
    draw_axis(&p->svg, &all, below);
    if (choose_window(p, step, &some))
        draw_zoom(p, &some, below + AXIS, y + HEADING);
}

/* SPDX-License-Identifier: MIT */
/* plan_svg_memory.c — the panel of memory: a bar per device, as long as the device is large. */
#include "plan_svg.h"

#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
enum { HEADING = 60, ROW = 38, BAR = 22, AXIS = 12 };

static const enum bl_pic_colour legend[] = {
    BL_PIC_EXPERTS, BL_PIC_ATTN,  BL_PIC_FFN,     BL_PIC_EMBED,  BL_PIC_STATE,
    BL_PIC_COMPUTE, BL_PIC_OTHER, BL_PIC_RESERVE, BL_PIC_DRIVER, BL_PIC_SYSTEM};

/* What lies in one device, by colour. */
static void gather(const struct bl_plan_picture *p, const struct bl_placement_device *d,
                   uint64_t bytes[BL_N_PIC_COLOURS])
{
    struct bl_memory_line l;
    uint64_t named = 0;

    memset(bytes, 0, BL_N_PIC_COLOURS * sizeof *bytes);
    for (uint32_t i = 0; i < p->n_parts; i++)
        if (!strcmp(p->parts[i].device, d->id))
            bytes[bl_pic_of_part(p->parts[i].part)] += p->parts[i].bytes;
    for (uint32_t i = 0; i < bl_placement_memory(p->placement, i, &l); i++) {
        if (strcmp(l.device, d->id))
            continue;
        if (!strcmp(l.purpose, "state") || !strcmp(l.purpose, "ring slack"))
            bytes[BL_PIC_STATE] += l.planned_bytes;
        else if (!strcmp(l.purpose, "compute"))
            bytes[BL_PIC_COMPUTE] += l.planned_bytes;
    }
    for (unsigned k = 0; k < BL_PIC_OTHER; k++)
        named += bytes[k];
    named += d->driver_bytes;
    bytes[BL_PIC_OTHER] = d->planned_bytes > named ? d->planned_bytes - named : 0;
    bytes[BL_PIC_DRIVER] = d->driver_bytes;
    if (d->usable_bytes > d->budget_bytes)
        bytes[BL_PIC_RESERVE] = d->usable_bytes - d->budget_bytes;
    if (d->mem_bytes > d->usable_bytes)
        bytes[BL_PIC_SYSTEM] = d->mem_bytes - d->usable_bytes;
}

static uint64_t capacity(const struct bl_placement_device *d)
{
    uint64_t all = d->mem_bytes > d->usable_bytes ? d->mem_bytes : d->usable_bytes;
    return all > d->planned_bytes ? all : d->planned_bytes;
}

static void draw_segment(struct bl_svg *s, const struct bl_svg_box *b, enum bl_pic_colour colour,
                         uint64_t bytes)
{
    const struct bl_pic_kind *k = &bl_pic_kind[colour];
    const double size = 10.5, gib = (double)bytes / (1 << 30);
    char tip[96], label[64];

    if (b->w < 0.05)
        return;
    snprintf(tip, sizeof tip, "%s: %s", k->word, bl_size_text(bytes, (char[BL_SIZE_TEXT]){0}));
    bl_svg_rect(s, b, k->fill, tip);
    snprintf(label, sizeof label, "%s %.*f", k->word, gib < 10 ? 2 : 1, gib);
    if (bl_svg_text_width(label, size, false) > b->w - 6)
        snprintf(label, sizeof label, "%.*f", gib < 10 ? 2 : 1, gib);
    if (bl_svg_text_width(label, size, false) <= b->w - 4 && colour != BL_PIC_SYSTEM &&
        colour != BL_PIC_RESERVE)
        bl_svg_text(s, b->x + b->w / 2, b->y + 15,
                    &(struct bl_svg_style){.size = size, .fill = k->ink, .anchor = BL_SVG_MIDDLE},
                    "%s", label);
}

static void draw_bar(struct bl_plan_picture *p, const struct bl_placement_device *d, double y,
                     double px_per_byte)
{
    const double all = (double)capacity(d) * px_per_byte;
    uint64_t bytes[BL_N_PIC_COLOURS];
    double x = BL_PIC_BAR, end = BL_PIC_BAR + all;

    gather(p, d, bytes);
    const struct bl_svg_box whole = {x, y, all, BAR};
    bl_svg_rect(&p->svg, &whole, BL_SVG_TINT, NULL);
    for (unsigned k = 0; k <= BL_PIC_OTHER; k++) {
        const struct bl_svg_box b = {x, y, (double)bytes[k] * px_per_byte, BAR};
        draw_segment(&p->svg, &b, k, bytes[k]);
        x += b.w;
    }
    for (unsigned k = BL_PIC_SYSTEM; k >= BL_PIC_RESERVE; k--) {
        const double w = (double)bytes[k] * px_per_byte;
        const struct bl_svg_box b = {end - w, y, w, BAR};
        draw_segment(&p->svg, &b, k, bytes[k]);
        end -= w;
    }
    bl_svg_frame(&p->svg, &whole, "#9aa5b1");
}

/* Makers are known by their products. */
static const char *short_name(const char *name)
{
    static const char *const makers[] = {"NVIDIA GeForce ", "NVIDIA ", "AMD ", "Intel "};

    for (size_t i = 0; i < COUNT(makers); i++)
        if (!strncmp(name, makers[i], strlen(makers[i])))
            return name + strlen(makers[i]);
    return name;
}

/* Of a device with less than a GiB. */
static void draw_small(struct bl_svg *s, double y, const struct bl_placement_device *d,
                       const struct bl_svg_style *sum, const struct bl_svg_style *rest)
{
    const uint64_t used = d->planned_bytes, all = d->budget_bytes;
    char part[BL_SIZE_TEXT], whole[BL_SIZE_TEXT];

    bl_svg_text(s, BL_PIC_END, y + 10, sum, "%s of %s", bl_size_text(used, part),
                bl_size_text(all, whole));
    bl_svg_text(s, BL_PIC_END, y + 24, rest, "%s %s",
                bl_size_text(used > all ? used - all : all - used, part),
                used > all ? "too much" : "free");
}

static void draw_row(struct bl_plan_picture *p, const struct bl_placement_device *d, double y,
                     double px_per_byte)
{
    const double gib = 1.0 / (1 << 30), most = BL_PIC_BAR - BL_PIC_MARGIN - 10;
    const struct bl_svg_style small = {.size = 10.5, .fill = BL_SVG_SOFT, .most = most};
    const double used = (double)d->planned_bytes * gib, all = (double)d->budget_bytes * gib;
    struct bl_svg *s = &p->svg;

    bl_svg_text(s, BL_PIC_MARGIN, y + 11,
                &(struct bl_svg_style){.size = 13, .bold = true, .most = most}, "%s", d->id);
    if (d->shares)
        bl_svg_text(s, BL_PIC_MARGIN, y + 24, &small, "in the memory of %s", d->shares);
    else
        bl_svg_text(s, BL_PIC_MARGIN, y + 24, &small, "%s", short_name(d->name));
    draw_bar(p, d, y, px_per_byte);
    const struct bl_svg_style sum = {.size = 12, .anchor = BL_SVG_FINISH},
                              rest = {.size = 10.5, .fill = BL_SVG_SOFT, .anchor = BL_SVG_FINISH};
    if (all < 1) {
        draw_small(s, y, d, &sum, &rest);
        return;
    }
    bl_svg_text(s, BL_PIC_END, y + 10, &sum,
                used < 100 && all < 100 ? "%.1f of %.1f GiB" : "%.0f of %.0f GiB", used, all);
    const double left = all - used;
    bl_svg_text(s, BL_PIC_END, y + 24, &rest, left < 0 ? "%.1f too much" : "%.1f free",
                left < 0 ? -left : left);
}

static void draw_scale(struct bl_svg *s, double y, double gib_all)
{
    struct bl_svg_axis a;

    bl_svg_axis_init(&a, 0, gib_all, 8);
    a.from = BL_PIC_BAR;
    a.to = BL_PIC_BAR_END;
    for (uint32_t i = 0; i < a.n_marks; i++) {
        const double x = bl_svg_axis_at(&a, a.mark[i]);
        bl_svg_line(s, x, y - 6, x, y - 2, "#9aa5b1", 1);
        bl_svg_text(
            s, x, y + 8,
            &(struct bl_svg_style){.size = 10, .fill = BL_SVG_SOFT, .anchor = BL_SVG_MIDDLE},
            i ? "%g" : "%g GiB", a.mark[i]);
    }
}

/* Devices from i on that share a scale: RAM, or cards. Returns the one behind them. */
static uint32_t group_from(const struct bl_plan_picture *p, uint32_t i, double *largest)
{
    struct bl_placement_device d;

    bl_placement_device(p->placement, i, &d);
    const bool cpu = d.cpu;
    *largest = 0;
    for (; i < p->n_devices; i++) {
        bl_placement_device(p->placement, i, &d);
        if (d.cpu != cpu)
            break;
        if ((double)capacity(&d) > *largest)
            *largest = (double)capacity(&d);
    }
    return i;
}

double bl_plan_svg_memory_height(const struct bl_plan_picture *p)
{
    double height = HEADING + 10, largest;

    for (uint32_t i = 0, end; i < p->n_devices; i = end) {
        end = group_from(p, i, &largest);
        height += (end - i) * ROW + AXIS;
    }
    return height;
}

void bl_plan_svg_memory(struct bl_plan_picture *p, double y)
{
    struct bl_placement_device d;
    double largest;

    bl_pic_heading(&p->svg, y, "Memory", "GiB planned of what can be planned with");
    bl_pic_legend(&p->svg, y + 37, legend, COUNT(legend));
    y += HEADING;
    for (uint32_t i = 0, end; i < p->n_devices; i = end) {
        end = group_from(p, i, &largest);
        const double scale = largest > 0 ? (BL_PIC_BAR_END - BL_PIC_BAR) / largest : 0;
        for (; i < end; i++, y += ROW) {
            bl_placement_device(p->placement, i, &d);
            draw_row(p, &d, y, scale);
        }
        draw_scale(&p->svg, y - ROW + BAR + 6, largest / (1 << 30));
        y += AXIS;
    }
}

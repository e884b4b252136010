/* SPDX-License-Identifier: MIT */
/* plan_svg.c — a plan as one picture: memory of every device, and the time of its steps. */
#include "plan_svg.h"

#include "plan_verb.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define WHITE "#ffffff"

const struct bl_pic_kind bl_pic_kind[BL_N_PIC_COLOURS] = {
    [BL_PIC_EXPERTS] = {"experts", "#e08a2c", BL_SVG_INK},
    [BL_PIC_ATTN] = {"attention", "#2f6db5", WHITE},
    [BL_PIC_FFN] = {"dense, shared", "#2c9c85", WHITE},
    [BL_PIC_EMBED] = {"embedding, head", "#7d59b0", WHITE},
    [BL_PIC_STATE] = {"cached state", "#c04d78", WHITE},
    [BL_PIC_COMPUTE] = {"compute", "#7f90a5", WHITE},
    [BL_PIC_OTHER] = {"other", "#b4c0cd", BL_SVG_INK},
    [BL_PIC_RESERVE] = {"reserve", "url(#reserve)", BL_SVG_INK},
    [BL_PIC_DRIVER] = {"driver", "#4a5563", WHITE},
    [BL_PIC_SYSTEM] = {"not usable", "url(#system)", BL_SVG_INK},
    [BL_PIC_SENT] = {"experts sent to a card", "url(#sent)", BL_SVG_INK},
    [BL_PIC_TO_CARD] = {"copy to a card", "#6a9e2f", WHITE},
    [BL_PIC_TO_HOST] = {"copy to the host", "#a3761b", WHITE},
};

enum bl_pic_colour bl_pic_of_part(const char *part)
{
    static const struct {
        const char *part;
        enum bl_pic_colour colour;
    } of[] = {{"experts", BL_PIC_EXPERTS},  {"attn", BL_PIC_ATTN},   {"state", BL_PIC_ATTN},
              {"ffn", BL_PIC_FFN},          {"embed", BL_PIC_EMBED}, {"head", BL_PIC_EMBED},
              {"experts sent", BL_PIC_SENT}};

    for (size_t i = 0; i < COUNT(of); i++)
        if (!strcmp(part, of[i].part))
            return of[i].colour;
    return BL_PIC_OTHER;
}

void bl_pic_heading(struct bl_svg *s, double y, const char *what, const char *sum)
{
    bl_svg_line(s, BL_PIC_MARGIN, y, BL_PIC_END, y, BL_SVG_FAINT, 1);
    bl_svg_text(s, BL_PIC_MARGIN, y + 24, &(struct bl_svg_style){.size = 15, .bold = true}, "%s",
                what);
    bl_svg_text(s, BL_PIC_END, y + 24,
                &(struct bl_svg_style){.size = 13, .anchor = BL_SVG_FINISH, .fill = BL_SVG_SOFT},
                "%s", sum);
}

void bl_pic_legend(struct bl_svg *s, double y, const enum bl_pic_colour *colour, size_t n)
{
    double x = BL_PIC_MARGIN;

    for (size_t i = 0; i < n; i++) {
        const struct bl_pic_kind *k = &bl_pic_kind[colour[i]];
        const struct bl_svg_box box = {x, y, 10, 10};
        bl_svg_rect(s, &box, k->fill, NULL);
        bl_svg_text(s, x + 15, y + 9, &(struct bl_svg_style){.size = 11, .fill = BL_SVG_SOFT}, "%s",
                    k->word);
        x += 15 + bl_svg_text_width(k->word, 11, false) + 14;
    }
}

/* ---- the whole ---- */

enum { TOP = 104, FOOT = 34 };

void bl_pic_speed(char text[32], double tok_per_s)
{
    if (tok_per_s < 100)
        snprintf(text, 32, tok_per_s < 1 ? "%.2f" : "%.1f", tok_per_s);
    else
        bl_svg_number(text, tok_per_s);
}

static void draw_speed(struct bl_svg *s, double x, const char *what, const struct bl_speed *v)
{
    const struct bl_svg_style small = {.size = 11, .fill = BL_SVG_SOFT, .anchor = BL_SVG_FINISH},
                              large = {.size = 22, .bold = true, .anchor = BL_SVG_FINISH};
    char speed[32];

    bl_pic_speed(speed, v->tok_per_s);
    bl_svg_text(s, x, 40, &large, "%s", speed);
    bl_svg_text(s, x, 58, &small, "%s, tokens/s", what);
}

static void draw_top(struct bl_plan_picture *p)
{
    const struct bl_placement_info *i = &p->info;
    struct bl_svg *s = &p->svg;
    char ctx[32], depth[32];

    bl_svg_number(ctx, (double)i->ctx_tokens);
    bl_svg_number(depth, (double)i->depth_tokens);
    bl_svg_text(s, BL_PIC_MARGIN, 40, &(struct bl_svg_style){.size = 21, .bold = true, .most = 600},
                "%s", i->model);
    bl_svg_text(s, BL_PIC_MARGIN, 62, &(struct bl_svg_style){.size = 13, .most = 600}, "on %s",
                i->machine);
    bl_svg_text(s, BL_PIC_MARGIN, 84,
                &(struct bl_svg_style){.size = 12, .fill = BL_SVG_SOFT, .most = 840},
                "context %s tokens \xc2\xb7 cache %s, %s \xc2\xb7 steps of at most %u "
                "\xc2\xb7 %u thread%s, %u for prompts \xc2\xb7 speeds at a depth of %s",
                ctx, i->type_k, i->type_v, i->ubatch_tokens, i->threads,
                bl_report_plural(i->threads), i->threads_prefill, depth);
    draw_speed(s, BL_PIC_END - 110, "decode", &i->decode);
    draw_speed(s, BL_PIC_END, "prefill", &i->prefill);
}

static void draw(struct bl_plan_picture *p, FILE *f)
{
    const double memory = bl_plan_svg_memory_height(p),
                 decode = bl_plan_svg_step_height(p, &p->decode),
                 prefill = bl_plan_svg_step_height(p, &p->prefill);
    char title[256];

    snprintf(title, sizeof title, "%s on %s", p->info.model, p->info.machine);
    bl_svg_begin(&p->svg, f, BL_PIC_WIDTH, TOP + memory + decode + prefill + FOOT, title,
                 "memory of each device by purpose, and the predicted time of a decode step and of "
                 "a chunk of a prompt");
    bl_svg_hatch(&p->svg, "reserve", BL_SVG_PAPER, "#aeb8c4");
    bl_svg_hatch(&p->svg, "system", BL_SVG_TINT, "#d8dee6");
    bl_svg_hatch(&p->svg, "sent", bl_pic_kind[BL_PIC_EXPERTS].fill, "#f4c48d");
    draw_top(p);
    bl_plan_svg_memory(p, TOP);
    bl_plan_svg_step(p, &p->decode, &p->info.decode, TOP + memory);
    bl_plan_svg_step(p, &p->prefill, &p->info.prefill, TOP + memory + decode);
    bl_svg_text(&p->svg, BL_PIC_MARGIN, p->svg.height - 14,
                &(struct bl_svg_style){.size = 10.5, .fill = BL_SVG_SOFT},
                "ballast plan \xc2\xb7 predicted, not measured");
    bl_svg_end(&p->svg);
}

int bl_plan_svg_print(const struct bl_report *r, FILE *f, const struct bl_placement *placement)
{
    struct bl_plan_picture p = {.placement = placement};
    struct bl_placement_device d;

    bl_placement_describe(placement, &p.info);
    p.n_devices = bl_placement_device(placement, 0, &d);
    enum bl_status st = bl_placement_parts(placement, &p.parts, &p.n_parts);
    if (!st)
        st = bl_placement_step(placement, 1, &p.decode);
    if (!st)
        st = bl_placement_step(placement, p.info.ubatch_tokens, &p.prefill);
    if (!st)
        draw(&p, f);
    bl_predicted_step_finish(&p.decode);
    bl_predicted_step_finish(&p.prefill);
    free(p.parts);
    return st ? bl_report_status(r, BL_STAGE_RUN, st) : BL_EXIT_OK;
}

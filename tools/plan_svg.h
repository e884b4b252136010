/* SPDX-License-Identifier: MIT */
/* plan_svg.h — what the parts of a plan's picture share.
 *
 * Purpose   columns, colours and heights; each panel says how high it will be before it is drawn.
 * Ownership a picture borrows the placement and owns what was asked of it: bl_plan_picture_finish.
 * Units     pixels; bytes; nanoseconds.
 * Errors    what the library reports.
 * Threads   the thread that runs the verb.
 */
#ifndef BL_PLAN_SVG_H
#define BL_PLAN_SVG_H

#include "svg.h"

enum { /* columns of all panels */
    BL_PIC_WIDTH = 900,
    BL_PIC_MARGIN = 28,
    BL_PIC_BAR = 164,  /* left end of bars */
    BL_PIC_BAR_END = 764,
    BL_PIC_END = BL_PIC_WIDTH - BL_PIC_MARGIN
};
enum bl_pic_colour {
    BL_PIC_EXPERTS, BL_PIC_ATTN, BL_PIC_FFN, BL_PIC_EMBED, BL_PIC_STATE, BL_PIC_COMPUTE, BL_PIC_OTHER, BL_PIC_RESERVE,
    BL_PIC_DRIVER, BL_PIC_SYSTEM, BL_PIC_SENT, BL_PIC_TO_CARD, BL_PIC_TO_HOST, BL_N_PIC_COLOURS
};
struct bl_pic_kind {
    const char *word, *fill, *ink; /* ink: of a label on it */
};
extern const struct bl_pic_kind bl_pic_kind[BL_N_PIC_COLOURS];
enum bl_pic_colour bl_pic_of_part(const char *part); /* as the library calls it */

struct bl_plan_picture {
    struct bl_svg svg;
    const struct bl_placement *placement;
    struct bl_placement_info info;
    struct bl_part_bytes *parts;
    uint32_t n_parts, n_devices;
    struct bl_predicted_step decode, prefill;
};
/* A heading, and to its right what sums the panel up. */
void bl_pic_heading(struct bl_svg *, double y, const char *what, const char *sum);
void bl_pic_speed(char text[32], double tok_per_s);
void bl_pic_legend(struct bl_svg *, double y, const enum bl_pic_colour *, size_t n);

double bl_plan_svg_memory_height(const struct bl_plan_picture *);
void bl_plan_svg_memory(struct bl_plan_picture *, double y);
double bl_plan_svg_step_height(const struct bl_plan_picture *, const struct bl_predicted_step *);
void bl_plan_svg_step(struct bl_plan_picture *, const struct bl_predicted_step *, const struct bl_speed *, double y);

#endif

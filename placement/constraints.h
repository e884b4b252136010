/* SPDX-License-Identifier: MIT */
/* constraints.h — placements as other programs' options say them.
 *
 * Purpose   -ngl, -ot, -ncmoe, -cmoe, -ts, -mg, -sm and -dev with llama.cpp's meaning, as a plan's table: layers in runs by
 *           -ts over the cards, then each tensor by the first rule that matches it.
 * Ownership none.
 * Units     layers.
 * Errors    BL_EINVAL names the option and the rule: unknown devices, patterns that are none, rules that match nothing or
 *           only what earlier ones took, options that contradict each other. BL_EUNSUPPORTED: what a plan cannot say.
 * Threads   any.
 */
#ifndef BL_CONSTRAINTS_H
#define BL_CONSTRAINTS_H

#include "search.h"

/* Fills the plan's table. */
enum bl_status bl_constrain(struct bl_plan *, const struct bl_model *, const struct bl_machine *,
                            const struct bl_placement_rules *);
/* The plan that the rules make, sized, explained, predicted. BL_ENOFIT: the device and what it lacks. */
enum bl_status bl_judge(struct bl_choice *out, const struct bl_model *, const struct bl_machine *,
                        const struct bl_options *, const struct bl_search_options *, const struct bl_placement_rules *);

#endif

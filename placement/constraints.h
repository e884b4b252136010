/* SPDX-License-Identifier: MIT */
/* constraints.h — placements as other programs' options say them.
 *
 * Purpose   -ngl, -ot, -ncmoe, -cmoe, -ts, -mg, -sm, -dev and -nkvo with llama.cpp's meaning. They fix what they name and
 *           leave the rest to the search:
 *             -ngl, -ts, -sm, -mg  divide all layers over the cards; one of them, and nothing is left to search
 *             -ot, -ncmoe, -cmoe   the parts of layers whose tensors match; the first rule that matches wins
 *             -nkvo                cached state and the attention over it are the host's, projections stay
 *             -dev                 nothing goes to other cards
 *           Cached state stays on its layer's device when -ot moves attention's tensors. Cards are numbered as the
 *           machine lists them; -dev changes the order in which -ts counts them.
 * Ownership the caller finishes the pins.
 * Units     layers.
 * Errors    BL_EINVAL names the option and the rule: unknown devices, patterns that are none, rules that match nothing or
 *           only what earlier ones took, options that contradict each other. BL_EUNSUPPORTED: what a plan cannot say;
 *           parts of layers (attn, ffn, experts) are placed whole.
 * Threads   any.
 */
#ifndef BL_CONSTRAINTS_H
#define BL_CONSTRAINTS_H

#include "search.h"

enum bl_status bl_pins_read(struct bl_pins *out, const struct bl_model *, const struct bl_machine *,
                            const struct bl_placement_rules *);
void bl_pins_finish(struct bl_pins *); /* zeroed is fine */
/* Fills the plan's table; what the rules leave open as llama.cpp does by default: all layers on the cards, by memory. */
enum bl_status bl_constrain(struct bl_plan *, const struct bl_model *, const struct bl_machine *,
                            const struct bl_placement_rules *);
/* The plan that the rules make, searched where they leave anything open; sized, explained, predicted. BL_ENOFIT: the device
 * and what it lacks. */
enum bl_status bl_judge(struct bl_choice *out, const struct bl_model *, const struct bl_machine *,
                        const struct bl_options *, const struct bl_search_options *, const struct bl_placement_rules *);

#endif

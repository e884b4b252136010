/* SPDX-License-Identifier: MIT */
/* planner.h — a pure function (model, machine, options) → plan, and the memory it needs.
 *
 * Purpose   decides where parts live; predicts every byte before anything is allocated.
 * Ownership the plan is the caller's.
 * Units     bytes, tokens.
 * Errors    BL_ENOFIT names device, bytes needed by purpose and bytes usable, and what would help.
 * Threads   any.
 */
#ifndef BL_PLANNER_H
#define BL_PLANNER_H

#include "plan.h"

enum bl_status bl_plan_make(struct bl_plan *out, const struct bl_model *, const struct bl_machine *,
                            const struct bl_options *);
/* Fills the planned column: the same arithmetic that the engine allocates by. */
enum bl_status bl_plan_memory(struct bl_plan *, const struct bl_model *, const struct bl_machine *);
/* Devices of this machine with the configuration the options ask for. */
enum bl_status bl_machine_probe(struct bl_machine *out, const struct bl_options *, struct bl_device_config *cpu);
void bl_machine_finish(struct bl_machine *);

#endif

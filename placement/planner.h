/* SPDX-License-Identifier: MIT */
/* planner.h — a pure function (model, machine, options) → plan, and the memory it needs.
 *
 * Purpose   decides where parts live; predicts every byte before anything is allocated.
 * Ownership the plan and the machine are the caller's.
 * Units     bytes, tokens.
 * Errors    BL_ENOFIT names device, bytes needed by purpose and bytes usable, and what would help.
 * Threads   any.
 */
#ifndef BL_PLANNER_H
#define BL_PLANNER_H

#include "plan.h"

/* The devices of this machine, configured as the options ask. */
enum bl_status bl_machine_probe(struct bl_machine *out, const struct bl_options *);

/* The machine to plan for: that of the options' machine_file as it stands there, otherwise this one; device_set applied.
 * A described machine cannot be opened; bl_machine_probe takes from a machine_file only what was measured here. */
enum bl_status bl_machine_choose(struct bl_machine *out, const struct bl_options *);

/* What of it concerns threads and memory, a line each. */
void bl_machine_print(const struct bl_machine *, const struct bl_options *, void (*line)(void *arg, const char *text),
                      void *arg);
/* Where the host's blocks should lie, and threads to match; mapped files cannot be placed. */
void bl_plan_choose_nodes(struct bl_plan *, const struct bl_machine *, const struct bl_options *);

/* How the options want the model opened. */
enum bl_status bl_model_choose(struct bl_model_options *out, const struct bl_options *);
/* Context, batches and sessions of a plan, from the options and their defaults. */
enum bl_status bl_plan_size_steps(struct bl_plan *, const struct bl_model *, const struct bl_options *);

/* Decides and fills the ledger's planned column; BL_ENOFIT when a device has too little. */
enum bl_status bl_plan_make(struct bl_plan *out, const struct bl_model *, const struct bl_machine *,
                            const struct bl_options *);

#endif

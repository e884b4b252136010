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
/* The most tokens up to `most` for which fits() says so, `most` or a multiple of 256; 0: there are none. What fits at some
 * size must do so at smaller ones. */
typedef enum bl_status bl_ctx_fits_fn(void *arg, uint64_t ctx_tokens, bool *fits);
enum bl_status bl_longest_ctx(uint64_t most, bl_ctx_fits_fn *fits, void *arg, uint64_t *out);
/* Context, unless the plan has one, batches and sessions, from the options and their defaults. */
enum bl_status bl_plan_size_steps(struct bl_plan *, const struct bl_model *, const struct bl_options *);

/* What the plan that bl_plan_make refuses lacks; bytes 0: nothing, or that is not known. */
void bl_plan_lack(struct bl_placement_lack *out, const struct bl_model *, const struct bl_machine *,
                  const struct bl_options *);
/* Decides and fills the ledger's planned column; BL_ENOFIT when a device has too little. With BL_CTX_MAX as the options'
 * context it becomes the longest that fits, up to the model's. */
enum bl_status bl_plan_make(struct bl_plan *out, const struct bl_model *, const struct bl_machine *,
                            const struct bl_options *);

#endif

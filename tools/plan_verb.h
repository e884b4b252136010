/* SPDX-License-Identifier: MIT */
/* plan_verb.h — what the files of `ballast plan` share.
 *
 * Purpose   the command line as data; what a plan is asked for; one file per way to show it.
 * Ownership a question's model is closed by bl_plan_ask_finish; texts point into argv.
 * Units     bytes, tokens.
 * Errors    exit codes; the line has been printed.
 * Threads   the thread that runs the verb.
 */
#ifndef BL_PLAN_VERB_H
#define BL_PLAN_VERB_H

#include "common/engine_args.h"

#include <stdio.h>

enum bl_sweep_what { BL_SWEEP_UB, BL_SWEEP_CTX, BL_SWEEP_GPUS };
enum bl_plan_format { BL_PLAN_TABLE, BL_PLAN_JSON, BL_PLAN_SVG, BL_PLAN_FLAGS };
struct bl_plan_args {
    const char *model, *shape, *explain, *target, *out, *trace; /* model: -m */
    double reserve_gib, prefill_weight; /* prefill_weight: what target says */
    int64_t depth_tokens, least_ctx; /* least_ctx: 0: not given */
    bool shorter, peers, fixed_ubatch; /* fixed: -ub was given */
    int format; /* enum bl_plan_format */
    int sweep;  /* enum bl_sweep_what; -1: not asked for */
    struct bl_arg_texts what_if, compare;
};

void bl_plan_args_init(struct bl_plan_args *);
struct bl_arg_group bl_plan_group(struct bl_plan_args *);
/* Checks that one row cannot express. Exit code, 0 = good. */
int bl_plan_args_check(struct bl_command *, struct bl_plan_args *);

/* A model, a machine and what a plan of them should be like. */
struct bl_plan_ask {
    struct bl_gguf *file;    /* one of the two is the model */
    struct bl_synth *synth;
    struct bl_options opt;
    struct bl_placement_options place;
    struct bl_placement_rules rules; /* opt.rules points here when any are given */
};
/* Reads the model's header. */
int bl_plan_ask_init(struct bl_plan_ask *, const struct bl_command *, const struct bl_plan_args *,
                     const struct bl_engine_args *);
void bl_plan_ask_finish(struct bl_plan_ask *); /* zeroed is fine */
const struct bl_gguf *bl_plan_ask_model(const struct bl_plan_ask *);

void bl_plan_table_print(FILE *, const struct bl_placement *);
/* Beneath it: what other programs would reach. */
void bl_plan_peers_print(FILE *, const struct bl_placement *);
int bl_plan_table_explain(const struct bl_report *, FILE *, const struct bl_placement *, const char *tensor);
int bl_plan_compare_print(const struct bl_report *, FILE *, const struct bl_placement *before,
                          const struct bl_placement *after);
/* Two plan files, as they are written, or machines to plan for what is asked. q NULL: no model was given. */
int bl_plan_compare(const struct bl_report *, const struct bl_plan_ask *q, const char *const item[2]);
/* Plans over a range of step sizes, contexts or cards, in the format asked for. */
int bl_plan_sweep(const struct bl_report *, FILE *, const struct bl_plan_args *, const struct bl_plan_ask *);
int bl_plan_svg_print(const struct bl_report *, FILE *, const struct bl_placement *);
/* model: its path; NULL: none. */
int bl_plan_flags_print(const struct bl_report *, FILE *, const struct bl_placement *, const char *model);

#endif

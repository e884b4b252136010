/* SPDX-License-Identifier: MIT */
/* rule_args.h — options that say where parts of a model go, as llama.cpp has them.
 *
 * Purpose   -ngl, -ot, -ncmoe, -cmoe, -ts, -sm, -mg, -dev and -nkvo of every verb that plans.
 * Ownership text values point into argv.
 * Units     layers.
 * Errors    none here; what rules mean is judged where they meet a model and a machine.
 * Threads   the thread that runs the verb.
 */
#ifndef BL_RULE_ARGS_H
#define BL_RULE_ARGS_H

#include "args.h"

struct bl_rule_args {
    struct bl_arg_texts override;
    int64_t n_gpu_layers, n_cpu_moe, main_gpu; /* n_gpu_layers -1: not given */
    const char *tensor_split, *devices;
    int split_mode; /* -1: not given */
    bool cpu_moe, no_kv_offload;
};

void bl_rule_args_init(struct bl_rule_args *);
struct bl_arg_group bl_rule_group(struct bl_rule_args *);
/* False: none was given. *out borrows from the arguments. */
bool bl_rule_args_given(const struct bl_rule_args *, struct bl_placement_rules *out);

#endif

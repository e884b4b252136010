/* SPDX-License-Identifier: MIT */
/* engine_args.h — the options that all verbs with a model share, and what they do.
 *
 * Purpose   rows for the model, the engine and the machine; opening an engine from them with progress;
 *           what `-v` prints.
 * Ownership text values point into argv.
 * Units     tokens, threads.
 * Errors    exit codes; the line has been printed.
 * Threads   the thread that runs the verb.
 */
#ifndef BL_ENGINE_ARGS_H
#define BL_ENGINE_ARGS_H

#include "rule_args.h"

struct bl_engine_args {
    const char *model, *topology, *cgroup_root, *type_k, *type_v, *machine_file, *plan_file, *projector;
    const char *expert_file, *devices, *trace;
    int expert_policy;                                        /* enum bl_expert_policy; -1: not given */
    struct bl_arg_texts device_set;
    int64_t ctx_tokens, batch_tokens, ubatch_tokens;          /* 0: not given; context -1: max */
    int64_t asked_ubatch;                                     /* as given, or as a plan file says; 0: neither does */
    int64_t threads, threads_prefill, watchdog_s;             /* likewise */
    bool no_bind, calibrate, no_calibrate;
    int64_t cpu_mask;                                         /* -1: not given, 0: scalar */
    uint32_t out_tokens;                                      /* most logits rows of one step; set by the verb */
    int64_t rewind_tokens;
    int round_cache;                                          /* enum bl_round_cache; -1: not given */
    bool exact, no_mmap, mlock, verbose;
    int progress; /* enum bl_progress_mode */
    int rope_scaling;                                         /* -1: not given */
    double rope_freq_base, rope_freq_scale, rope_scale;       /* 0: not given */
    int64_t yarn_orig_ctx;
    struct bl_rule_args rules;
};
enum bl_round_cache { BL_ROUND_NONE, BL_ROUND_ROWS, BL_ROUND_INDEX, BL_ROUND_ALL };
enum { BL_INSTEAD_OF_ROPE_SCALE = 6, BL_INSTEAD_OF_MODEL = 7 };

void bl_engine_args_init(struct bl_engine_args *);
struct bl_arg_group bl_model_group(struct bl_engine_args *);
struct bl_arg_group bl_engine_group(struct bl_engine_args *);
struct bl_arg_group bl_state_group(struct bl_engine_args *); /* the rows of it that say what a session keeps */
struct bl_arg_group bl_rope_group(struct bl_engine_args *);
struct bl_arg_group bl_machine_group(struct bl_engine_args *);
struct bl_arg_group bl_message_group(struct bl_engine_args *);

/* Checks that one row cannot express; sets report.json. Exit code, 0 = good. */
int bl_engine_args_check(struct bl_command *, struct bl_engine_args *);
uint64_t bl_engine_args_ctx(const struct bl_engine_args *); /* as bl_options has it */
unsigned bl_engine_args_mask(const struct bl_engine_args *); /* for bl_cpu_describe */
const char *bl_engine_args_policy(const struct bl_engine_args *); /* of slots; NULL: not given */
struct bl_options bl_engine_args_machine(const struct bl_engine_args *); /* the part that concerns the machine */

/* Opens the engine with progress; with -v prints threads and kernels first. The report also receives the library's log
 * from here on and must outlive the engine. Exit code, 0 = *out is set. */
int bl_engine_args_open(struct bl_report *, const struct bl_engine_args *, struct bl_engine **out);
/* The ledger: planned and measured bytes. */
void bl_engine_args_memory(const struct bl_report *, const struct bl_engine *);
/* Writes what was counted of experts, where that was asked for; with -v tells of slots. Exit code. */
int bl_engine_args_experts(const struct bl_report *, const struct bl_engine_args *, const struct bl_engine *);
/* The file of --trace and its line, if there is to be one; engine NULL: it was not opened. Exit code. */
int bl_engine_args_trace(const struct bl_report *, const struct bl_engine_args *, const struct bl_engine *);
/* Of a failed look at the machine, whose topology or root is an option, not a model: says why. */
int bl_engine_args_machine_code(const struct bl_report *, enum bl_status);
/* One line each: threads with their reason, memory nodes, kernels by type. */
int bl_engine_args_describe(const struct bl_report *, const struct bl_engine_args *,
                            void (*line)(void *arg, const char *text), void *arg);

#define BL_CPU_MASKS_HELP                                                                          \
    "1 AVX2, 2 AVX-512 with VNNI, VBMI and GFNI, 4 NEON with dot products, 8 i8mm, "               \
    "16 one row at a time, 32 SVE, 64 AVX-VNNI, 128 AVX-512 VNNI in 256 bits, 256 AMX, "           \
    "512 AVX-512 BF16, sums of them, 0 none"
#define BL_EXIT_CODES_HELP                                                                         \
    "Exit codes: 0 ok, 1 failure, 2 usage, 3 does not fit in memory, 4 bad or missing model\n"     \
    "file, 5 device failure, 130 interrupted, 143 terminated."

#endif

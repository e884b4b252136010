/* SPDX-License-Identifier: MIT */
#include "rule_args.h"

#include <stddef.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define SPLIT_WORDS "none|layer|row|tensor"
enum { ALL_LAYERS = -2 }; /* as words_for counts */
static const char *const split_word[] = {"none", "layer", "row", "tensor"};

#define AT(member) offsetof(struct bl_rule_args, member)
static const struct bl_arg rule_rows[] = {
    {"-ngl,--n-gpu-layers,--gpu-layers", BL_ARG_INT, AT(n_gpu_layers), "N|auto|all", 0, 1 << 20,
     .words_for = "auto|all",
     .help = "layers on cards, from the end, the head counting as one; auto: as the planner likes "
             "(default; with other rules: all)"},
    {"-ot,--override-tensor", BL_ARG_TEXTS, AT(override), "PATTERN=DEVICE,...",
     .help = "tensors whose names match go to CPU, CUDA0, ...; the first match wins"},
    {"-ncmoe,--n-cpu-moe", BL_ARG_INT, AT(n_cpu_moe), "N", 0, 1 << 20,
     .help = "experts of the first N layers stay in RAM"},
    {"-cmoe,--cpu-moe", BL_ARG_FLAG, AT(cpu_moe), .help = "all experts stay in RAM"},
    {"-ts,--tensor-split", BL_ARG_TEXT, AT(tensor_split), "N,N,...",
     .help = "shares of the layers for each card (default with rules: by memory)"},
    {"-sm,--split-mode", BL_ARG_CHOICE, AT(split_mode), SPLIT_WORDS,
     .help = "one card, or layers over several"},
    {"-mg,--main-gpu", BL_ARG_INT, AT(main_gpu), "N", 0, 63, .help = "that one card"},
    {"-dev,--device", BL_ARG_TEXT, AT(devices), "NAME,...",
     .help = "only these cards, in this order"},
    {"-nkvo,--no-kv-offload", BL_ARG_FLAG, AT(no_kv_offload), .help = "cached state in RAM"},
};

#undef AT

void bl_rule_args_init(struct bl_rule_args *a)
{
    *a = (struct bl_rule_args){.n_gpu_layers = -1, .split_mode = -1};
}

struct bl_arg_group bl_rule_group(struct bl_rule_args *a)
{
    return (struct bl_arg_group){"Rules: a placement by hand; llama.cpp's meaning", rule_rows,
                                 COUNT(rule_rows), a};
}

bool bl_rule_args_given(const struct bl_rule_args *a, struct bl_placement_rules *out)
{
    const int64_t n_gpu_layers = a->n_gpu_layers == ALL_LAYERS ? INT32_MAX : a->n_gpu_layers;

    *out = (struct bl_placement_rules){.n_gpu_layers = (int32_t)n_gpu_layers,
                                       .override = a->override.item,
                                       .n_overrides = (uint32_t)a->override.n,
                                       .n_cpu_moe = (uint32_t)a->n_cpu_moe,
                                       .cpu_moe = a->cpu_moe,
                                       .no_kv_offload = a->no_kv_offload,
                                       .tensor_split = a->tensor_split,
                                       .devices = a->devices,
                                       .split_mode =
                                           a->split_mode < 0 ? NULL : split_word[a->split_mode],
                                       .main_gpu = (int32_t)a->main_gpu};
    return n_gpu_layers >= 0 || a->override.n || a->n_cpu_moe || a->cpu_moe || a->no_kv_offload ||
           a->tensor_split || a->devices || a->split_mode >= 0 || a->main_gpu;
}

/* SPDX-License-Identifier: MIT */
/* cost.h — how long work takes on a resource: time from bytes, operations and fixed costs.
 *
 * Purpose   one model of time for planner, simulator and reports. A table of constants (cost.def), each a factor with a
 *           key; a quantity is the product of the rows whose keys match. Terms can be asked for one step at a time;
 *           bl_cost_decode and bl_cost_prefill add them up for a run in which nothing overlaps.
 * Ownership none; callers own their structs.
 * Units     bytes, nanoseconds, bytes/s, multiply-adds/s (half of the FLOPS that vendors print). Fields say otherwise.
 * Errors    none: absent resources (rate 0) give INFINITY, absent work gives 0.
 * Threads   any; nothing is shared.
 */
#ifndef BL_COST_H
#define BL_COST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum bl_cost_engine {
    BL_COST_BALLAST,
    BL_COST_LLAMACPP,
    BL_COST_IK,
    BL_COST_DS4,
    BL_COST_KTRANSFORMERS,
    BL_N_COST_ENGINES
};
enum bl_cost_backend { BL_COST_CPU, BL_COST_CUDA, BL_COST_ROCM, BL_COST_VULKAN, BL_COST_METAL, BL_N_COST_BACKENDS };
/* Layers by their attention; whether the feed-forward part has experts is a matter of its own. */
enum bl_cost_kind { BL_COST_GQA, BL_COST_MLA, BL_COST_DELTA, BL_COST_V4, BL_N_COST_KINDS };
/* How weights are unpacked: by lookup in a codebook (IQ1-IQ3), from planes of bits (2-3 bit), from nibbles (4-5 bit),
 * bytes (6-8 bit), or hardly at all (16 bit). */
enum bl_cost_quant { BL_COST_CODEBOOK, BL_COST_LOWBIT, BL_COST_NIBBLE, BL_COST_BYTE, BL_COST_HALF, BL_N_COST_QUANTS };
/* By what multiplies bytes: AVX2, AVX-512 without VNNI in three steps; VNNI in halves (Zen 4) or in full width (Zen 5
 * servers, Ice Lake); large Xeons with AMX; Arm with i8mm; Apple. */
enum bl_cost_isa {
    BL_COST_AVX2,
    BL_COST_AVX512,
    BL_COST_VNNI,
    BL_COST_WIDE,
    BL_COST_AMX,
    BL_COST_NEON,
    BL_COST_APPLE,
    BL_N_COST_ISAS
};
/* Where a figure of bandwidth comes from: somebody's measurement, or the data sheet of a machine with few or many
 * channels (few cores cannot draw what many channels offer). */
enum bl_cost_figure { BL_COST_MEASURED, BL_COST_RATED_FEW, BL_COST_RATED_MANY, BL_N_COST_FIGURES };

/* What the rows of the table describe. */
enum bl_cost_quantity {
#define Q(e, unit, what) BL_COST_##e,
#define X(...)
#include "cost.def"
#undef X
#undef Q
    BL_N_COST_QUANTITIES
};
enum bl_cost_phase { BL_COST_BOTH, BL_COST_IN_DECODE, BL_COST_IN_PREFILL };

/* Selects rows. A row's mask of 0 matches everything. */
struct bl_cost_key {
    uint8_t engine, backend, kind, quant, isa, figure;
    bool repacked; /* weights in rows interleaved for the CPU's kernels */
    bool unified;  /* the GPU reads the CPU's memory */
};
struct bl_cost_constant {
    const char *name;     /* identifies the row in messages and fits */
    uint8_t quantity, phase;
    uint16_t engines, backends, kinds, quants, isas, figures, flags; /* bits of the enums above; flags: BL_COST_F_* */
    double value, sd;     /* sd of its logarithm: what the evidence leaves open */
    double prior, prior_sd; /* before public measurements were seen: physics, or one published micro-measurement */
    const char *evidence;
};
enum { BL_COST_F_REPACKED = 1, BL_COST_F_PLAIN = 2, BL_COST_F_UNIFIED = 4, BL_COST_F_DISCRETE = 8 };

enum {
#define Q(...)
#define X(e, ...) BL_COST_C_##e,
#include "cost.def"
#undef X
#undef Q
    BL_N_COST_CONSTANTS
};
extern const struct bl_cost_constant bl_cost_constants[BL_N_COST_CONSTANTS];
extern const char *const bl_cost_quantity_name[BL_N_COST_QUANTITIES];
extern const char *const bl_cost_quantity_unit[BL_N_COST_QUANTITIES];

/* Values to compute with: the committed ones, or a caller's after a fit or a measurement of its machine. */
struct bl_cost_table {
    double value[BL_N_COST_CONSTANTS], sd[BL_N_COST_CONSTANTS];
};
void bl_cost_table_init(struct bl_cost_table *);
/* Product of the matching rows of a quantity; if none match 1 for a share or factor (unit "1"), else 0. */
double bl_cost_look(const struct bl_cost_table *, enum bl_cost_quantity, const struct bl_cost_key *);

/* ---- resources ---- */

struct bl_cost_cpu {
    double domain_bps;    /* read bandwidth of one memory domain (socket, or a part of one with memory of its own) */
    double clock;         /* relative to 3.3 GHz */
    uint32_t cores;       /* threads beyond them add nothing; 0: not known */
    bool local;           /* every domain reads weights of its own (copied or divided) */
};
struct bl_cost_team {
    uint32_t threads, domains; /* domains that the threads or the weights span */
};
struct bl_cost_gpu {
    double bps, macs_per_s; /* rated */
    double link_bps;        /* from the host; 0: not known */
    double share;           /* of what the GPUs hold; they sum to 1 */
};
/* Smooth versions of min and max: no jump where the limiting resource changes. */
double bl_cost_soft_min(double a, double b, double order);
double bl_cost_soft_max(double a, double b, double order);

/* Time to read bytes once: from a GPU's memory; from RAM by threads. */
double bl_cost_gpu_memory_ns(const struct bl_cost_table *, const struct bl_cost_key *, const struct bl_cost_gpu *,
                             double bytes);
double bl_cost_ram_bps(const struct bl_cost_table *, const struct bl_cost_key *, const struct bl_cost_cpu *,
                       const struct bl_cost_team *);
/* Time to unpack weights and multiply them with one token. */
double bl_cost_unpack_ns(const struct bl_cost_table *, const struct bl_cost_key *, const struct bl_cost_cpu *,
                         const struct bl_cost_team *, double weights);
/* Weights read by the CPU for one token: the slower of memory and unpacking. */
double bl_cost_cpu_weights_ns(const struct bl_cost_table *, const struct bl_cost_key *, const struct bl_cost_cpu *,
                              const struct bl_cost_team *, double bytes, double weights);
/* Fixed cost of one layer: launches on a GPU, barriers on a CPU. heads: of MLA. */
double bl_cost_layer_ns(const struct bl_cost_table *, const struct bl_cost_key *, const struct bl_cost_cpu *,
                        const struct bl_cost_team *, double heads, bool experts);
/* From a GPU to the CPU and back. */
double bl_cost_cross_ns(const struct bl_cost_table *, const struct bl_cost_key *);
/* From one GPU to the next, or all of them meeting. */
double bl_cost_hop_ns(const struct bl_cost_table *, const struct bl_cost_key *);
double bl_cost_link_ns(const struct bl_cost_table *, const struct bl_cost_key *, double link_bps, double bytes);
/* Matrix products of some tokens per matrix: by a GPU, by the CPU's threads. ffn: rows of a small matrix, 0: large. */
double bl_cost_gpu_matmul_ns(const struct bl_cost_table *, const struct bl_cost_key *, const struct bl_cost_gpu *,
                             double macs, double tok_per_matrix, double ffn);
double bl_cost_cpu_matmul_ns(const struct bl_cost_table *, const struct bl_cost_key *, const struct bl_cost_cpu *,
                             const struct bl_cost_team *, double macs, double tok_per_matrix, double ffn);
/* Attention of a step. */
double bl_cost_gpu_attend_ns(const struct bl_cost_table *, const struct bl_cost_key *, const struct bl_cost_gpu *,
                             double macs);
double bl_cost_cpu_attend_ns(const struct bl_cost_table *, const struct bl_cost_key *, const struct bl_cost_cpu *,
                             const struct bl_cost_team *, double macs);

/* ---- whole runs ---- */

/* sd of ln(speed) among runs of one description: near-repeats in public reports differ by 13 and 35 % in the median. */
#define BL_COST_UNSAID_DECODE 0.17
#define BL_COST_UNSAID_PREFILL 0.25

/* The same where a probe measured all that a prediction is made of: root mean squares of what was left between predicted
 * and measured speed (tests/reports/predict_check.py) in 18 rows of decode and 21 of prefill of eleven synthetic models, on
 * two cores of a shared EPYC 9005. Its memory's speed jumps between about 49 and 75 GB/s; rows count that were measured
 * while it was as the probe found it. */
#define BL_COST_PROBED_DECODE 0.06
#define BL_COST_PROBED_PREFILL 0.07

enum bl_cost_where { BL_COST_ON_GPU, BL_COST_IN_RAM, BL_N_COST_PLACES };
struct bl_cost_load {
    double bytes, weights;
};
struct bl_cost_run {
    enum bl_cost_engine engine;
    enum bl_cost_backend backend; /* of the GPUs; BL_COST_CPU: there are none */
    bool unified, repacked, tensor_parallel;
    enum bl_cost_figure figure;
    enum bl_cost_isa isa;
    enum bl_cost_quant dense_quant, expert_quant;
    struct bl_cost_cpu cpu;
    const struct bl_cost_gpu *gpu;
    uint32_t n_gpus;
    struct bl_cost_team decode_team, prefill_team;
    /* the model */
    double layers[BL_N_COST_KINDS], moe_layers, heads, experts, experts_per_token, expert_ffn;
    struct bl_cost_load dense[BL_N_COST_PLACES];  /* read for every token */
    struct bl_cost_load expert[BL_N_COST_PLACES]; /* read for one token */
    struct bl_cost_load held[BL_N_COST_PLACES];   /* all experts there */
    bool cache_in_ram;
    double cache_bytes_per_tok, cache_fixed_bytes; /* read per token of context; whatever the context */
    double state_bytes;                            /* of recurrent layers, read and written */
    double attend_macs_per_tok, attend_fixed_macs; /* for one token, per token of context; whatever the context */
    /* the step */
    double depth;                /* tokens of context when decoding */
    double prompt, prompt_depth; /* tokens to prefill, mean context that they attend to */
    double ubatch;               /* of them at a time */
    double stream_from;          /* experts in RAM go to the GPUs for steps of so many tokens; 0: where that is quicker,
                                  * INFINITY: never */
};
enum bl_cost_term {
    BL_COST_T_GPU,     /* GPU memory or mathematics */
    BL_COST_T_RAM,     /* CPU: memory, unpacking, mathematics */
    BL_COST_T_STREAM,  /* experts sent to the GPU */
    BL_COST_T_LAYERS,
    BL_COST_T_CROSS,
    BL_COST_T_HOP,
    BL_COST_T_CONTEXT,
    BL_N_COST_TERMS
};
struct bl_cost_time {
    double ns;                    /* per token; a ubatch takes as much for each of its tokens */
    double term[BL_N_COST_TERMS]; /* they sum to ns */
};
void bl_cost_decode(const struct bl_cost_table *, const struct bl_cost_run *, struct bl_cost_time *out);
void bl_cost_prefill(const struct bl_cost_table *, const struct bl_cost_run *, struct bl_cost_time *out);
/* The least ubatch for which sending the experts in RAM over the links is quicker than the CPU; INFINITY: none is. */
double bl_cost_stream_from(const struct bl_cost_table *, const struct bl_cost_run *);

/* sd of the logarithm of a predicted time: what the constants leave open (variances add up in logarithms), and what no
 * description of a run says: the build, where pages lie. */
double bl_cost_decode_sd(const struct bl_cost_table *, const struct bl_cost_run *);
double bl_cost_prefill_sd(const struct bl_cost_table *, const struct bl_cost_run *);

#endif

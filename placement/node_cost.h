/* SPDX-License-Identifier: MIT */
/* node_cost.h — how long one node of a graph takes on one device of a machine.
 *
 * Purpose   counts a node's work (bytes of weights and state, multiply-adds) and prices it by what was measured on the
 *           device where that is known, else by the cost model (cost.h) from its rated figures.
 * Ownership a pricing borrows device and table.
 * Units     bytes, elements, multiply-adds, nanoseconds.
 * Errors    none: a device without figures gives INFINITY.
 * Threads   any; nothing is shared.
 */
#ifndef BL_NODE_COST_H
#define BL_NODE_COST_H

#include "cost.h"
#include "chunks.h"

struct bl_work {
    double weight_bytes;     /* that the step reads: of experts, those that any token chose */
    double weights;          /* elements of them in matrices */
    double macs;             /* of matrix products, of all tokens */
    double tok_per_matrix;
    double ffn;              /* rows of an expert's matrix; 0: not experts */
    double state_bytes, attend_macs;
    double scores, cache_values; /* of attention: pairs of a head and a row, values that they read */
    double latent_macs;      /* of attention whose rows are keys and values; they are not in scores and values */
    double state_values;     /* of recurrent layers, updated for a token */
    double padded_macs;      /* macs of whole blocks of 256 columns */
    double arranged;         /* activations made ready for products with matrices */
    double moved_bytes;      /* activations read and written besides */
    double index_tok;        /* tokens of context among whose groups some are chosen */
    uint32_t n_tok;
    uint32_t rows;           /* of the matrix, of the expert's */
    uint8_t steps;           /* that it takes, as a layer of few has them */
    uint8_t type, kv_type;   /* enum bl_dtype of the largest weight, of what attention reads */
};
/* depth: tokens of context before the step. Of experts, as if the device had all that the layer has. */
void bl_work_count(struct bl_work *, const struct bl_graph *, const struct bl_node *, uint32_t n_tok, uint64_t depth);
/* What a type of weights, and a layer's attention, are to the cost model. */
enum bl_cost_quant bl_cost_quant_of(uint8_t type);
enum bl_cost_kind bl_cost_kind_of(const struct bl_model *, uint32_t layer);
/* Of experts divided over devices, those of one that has so much of them. */
void bl_work_share(struct bl_work *, double share);

struct bl_pricing {
    const struct bl_machine_device *device;
    const struct bl_cost_table *table;
    struct bl_cost_key key;
    struct bl_cost_cpu cpu;
    struct bl_cost_gpu card;
    struct bl_cost_team few, many; /* threads of steps of few tokens and of many */
    double heads;                  /* of latent attention */
    double slowed;                 /* steps of few tokens, by what reads beside them; 1: nothing does */
    bool gpu;
};
/* How the plan would use the device. table NULL: the committed constants. */
void bl_pricing_init(struct bl_pricing *, const struct bl_machine_device *, const struct bl_model *, const struct bl_plan *,
                     const struct bl_cost_table *table);
double bl_work_ns(const struct bl_pricing *, const struct bl_work *);
/* Whether a probe told what kernels do there, so that no constant of the table is asked. */
bool bl_kernels_measured(const struct bl_machine_device *);
/* Choosing among groups of context in one token's step, all layers together. */
double bl_index_ns(const struct bl_pricing *, double ctx_tokens);
/* What does not depend on work: of a layer (-1: what lies outside of layers is free) or of one node, in the step. */
double bl_layer_fixed_ns(const struct bl_pricing *, const struct bl_model *, int layer, uint32_t n_tok);
double bl_node_fixed_ns(const struct bl_pricing *);
struct bl_node_step {            /* a node's step, and its device's part in it */
    const struct bl_model *model;
    uint32_t n_tok;
    uint64_t depth_tokens;       /* context before the step */
    double share;                /* of its layer's experts that the device has; 1 for other nodes; of those that are sent
                                  * to it, what the host has */
    const struct bl_chunking *cut; /* of the layer, where its experts are sent in chunks; NULL */
};
/* All of the above, of one node of a program. work: what was counted. */
double bl_node_ns(const struct bl_pricing *, const struct bl_graph *, const struct bl_node *, const struct bl_node_step *,
                  struct bl_work *work);
/* What a chunk's experts are expected to weigh, tables too, in a step of n_tok tokens that choose as the node says; and the
 * copies that it takes. */
double bl_chunk_bytes(const struct bl_chunking *, const struct bl_graph *, const struct bl_node *, uint32_t n_tok);
uint32_t bl_chunk_copies(const struct bl_chunking *, bool staged);
/* The host's own copy of bytes. */
double bl_host_copy_ns(const struct bl_machine_device *host, double bytes);
/* Sending a step's experts over a link of so many bytes/s, and multiplying them there. */
double bl_stream_ns(const struct bl_pricing *card, const struct bl_work *, double link_bps, bool measured);

#endif

/* SPDX-License-Identifier: MIT */
/* chunks.h — how the host's experts are cut up on their way to a card: the plan's arithmetic.
 *
 * Purpose   in steps of plan.stream_from tokens and more the experts of a layer that live on the host are computed by the
 *           card that has the layer. They come a chunk at a time: some experts of one layer, in a part of a ring of
 *           buffers there, with the tables of addresses that kernels find them by. Lowering, memory, runtime and prediction
 *           cut alike, by this.
 * Ownership none.
 * Units     bytes, experts, tokens.
 * Errors    none.
 * Threads   any.
 */
#ifndef BL_CHUNKS_H
#define BL_CHUNKS_H

#include "plan.h"

#define BL_CHUNK_BYTES (UINT64_C(64) << 20)
enum {
    BL_RING_PARTS = 4,       /* chunks on a card: one that is computed, others that are there or on their way */
    BL_LEAST_CHUNKS = 8,     /* of a layer, if it has so many experts, so that copies have something to hide behind */
    BL_MOST_CHUNKS = 64,     /* each costs a pass over the step's tokens */
    BL_SURE_TOKENS = 16      /* an expert that so many tokens of a step are expected to choose is sent before they have */
};

struct bl_chunking {         /* of a layer */
    uint16_t card;           /* BL_NO_DEVICE: its experts are not sent */
    uint32_t n_chunks, n_each; /* of so many experts, the last may have fewer */
    uint32_t n_experts, n_sent; /* of the layer; of them, those on the host */
    uint32_t n_tables, n_tensors; /* that an expert is reached by; that it has a piece of */
    uint64_t table_bytes;    /* of a chunk, which begins with them */
    uint64_t expert_bytes;   /* of one expert, all tensors */
    uint64_t bytes;          /* of the largest chunk */
};
/* Whether steps of a shape of n_tok tokens send experts at all. */
static inline bool bl_plan_streams(const struct bl_plan *p, uint32_t n_tok)
{
    return p->stream_from && n_tok >= p->stream_from;
}
/* As it would be in a step that sends. */
void bl_plan_chunks(const struct bl_plan *, const struct bl_model *, uint32_t layer, struct bl_chunking *out);
/* Where the pieces of a tensor lie in a chunk of n experts: side by side from there on. Tensors come in the order of their
 * weights; a later weight of the same tensor has the same place. */
uint64_t bl_chunk_offset(const struct bl_model *, const struct bl_chunking *, uint32_t weight, uint32_t n);
/* Where the table of a weight begins in a chunk. */
uint64_t bl_chunk_table(const struct bl_model *, uint32_t weight);
/* Of a tensor's weights that experts have, the first. */
bool bl_weight_leads(const struct bl_model *, uint32_t weight);

/* Whether a card's copies cannot take experts from where the host has them, so that they pass through a ring there, too. */
bool bl_plan_stages(const struct bl_plan *, const struct bl_machine *, uint16_t card);
struct bl_ring_bytes {       /* of a card */
    uint64_t part;           /* of its ring; 0: nothing is sent to it */
    uint32_t most_chunks;    /* of a layer */
    uint64_t tables;         /* on the host: of the chunks of two layers */
};
void bl_plan_ring(const struct bl_plan *, const struct bl_model *, uint16_t card, struct bl_ring_bytes *out);
/* What the engine keeps on the host to know which experts are sure to be used; 0: nothing is sent. */
uint64_t bl_plan_stage_notes_bytes(const struct bl_plan *, const struct bl_model *);

/* Expected of a chunk, where tokens choose alike: of a layer's experts of the host that any of n_tok tokens chose, how many
 * are in it. used: by a token. */
double bl_chunk_experts(const struct bl_chunking *, uint32_t chunk, uint32_t used, uint32_t n_tok);
/* Of the work with the host's experts of the layer. */
double bl_chunk_share(const struct bl_chunking *, uint32_t chunk, uint32_t used, uint32_t n_tok);
/* Whether so many are expected to choose each expert that it is sent ahead. */
static inline bool bl_chunk_sure(const struct bl_chunking *c, uint32_t used, uint32_t n_tok)
{
    return (double)n_tok * used >= (double)BL_SURE_TOKENS * c->n_experts;
}

#endif

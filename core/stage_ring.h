/* SPDX-License-Identifier: MIT */
/* stage_ring.h — experts of the host on their way through cards, for one step at a time.
 *
 * Purpose   executes what lowering left open: which experts come in which chunk (chunks.h). Sends only those that tokens
 *           chose; ahead of knowing, only those that are sure to be, as far as guesses wasted no more than one byte in a
 *           hundred. A chunk brings its tables of addresses with it, so nothing else is to be kept in order.
 * Ownership owns rings, streams and counts; weights, plan, model and devices are borrowed and outlive it.
 * Units     bytes, tokens, experts.
 * Errors    those of the devices; BL_ENOMEM. BL_ETIMEDOUT of send: a queue is full; asked again, it goes on where it was.
 * Threads   submitting thread.
 */
#ifndef BL_STAGE_RING_H
#define BL_STAGE_RING_H

#include "program.h"
#include "weights.h"

struct bl_ring {                 /* of a card */
    struct bl_mem mem;           /* BL_RING_PARTS parts */
    struct bl_mem host;          /* as many on the host; no bytes: copies take experts from where they are */
    struct bl_mem tables;        /* on the host: a place for each chunk of two layers */
    struct bl_stream *stream;
    uint64_t part_bytes, table_bytes;
    uint32_t n_tables;           /* places */
};
struct bl_cargo {                /* what a chunk brings in the running step */
    uint32_t first, n;           /* of stage.expert */
    bool filled, staged, sent;
    uint32_t n_staged, n_sent;   /* commands enqueued so far */
    uint32_t n_copies, n_stage_copies; /* of them, but for waits before and the signal behind them */
    uint64_t bytes;              /* copied to the card */
};
struct bl_stage {
    const struct bl_model *model;
    struct bl_plan *plan;
    const struct bl_weights *weights;
    struct bl_device *const *device; /* [n_devices] */
    struct bl_ring *ring;        /* [n_devices] */
    struct bl_stream *beside;    /* of the host, fills its rings; NULL: none does */
    uint64_t *table;             /* [n_weights] where a weight's table begins in a chunk */
    uint32_t *first_weight, *end_weight; /* [n_layers] those of its experts are among these */
    uint32_t n_devices;
    /* what is known of tokens before */
    double sure_tokens;          /* BL_SURE_TOKENS */
    uint64_t *uses, *seen;       /* [n_layers * n_experts] tokens that chose it; [n_layers] tokens */
    uint64_t used_bytes, wasted_bytes; /* of experts that were sent: chosen, and not */
    uint64_t sent_bytes;         /* all that was copied, tables too */
    /* of the running step */
    const struct bl_program *program;
    uint32_t n_tok;
    struct bl_cargo *cargo;      /* [n_chunks] */
    uint32_t *expert;            /* by chunk */
    uint32_t *n_filled;          /* [n_sendings] chunks */
    bool *picked;                /* [n_sendings] */
    uint8_t *mark;               /* [n_layers * n_experts] */
    uint32_t cap_chunks, cap_experts;
};
/* After the weights are there. before: statistics of the model, NULL: none. Nothing is taken where the plan sends none. */
enum bl_status bl_stage_open(struct bl_stage *, const struct bl_model *, struct bl_plan *, const struct bl_machine *,
                             const struct bl_weights *, struct bl_device *const *device,
                             const struct bl_expert_stats *before);
void bl_stage_close_streams(struct bl_stage *); /* as far as that is to come before the rest */
void bl_stage_close(struct bl_stage *); /* zeroed is fine; before the weights and devices */
/* Streams that were closed, anew; to be settled again. */
enum bl_status bl_stage_open_streams(struct bl_stage *);
/* The streams and rings of a device, for its place. */
void bl_stage_settle(const struct bl_stage *, uint16_t device, struct bl_place *);

/* Before a step of n_tok tokens. */
enum bl_status bl_stage_begin(struct bl_stage *, const struct bl_program *, uint32_t n_tok);
/* The ids are in the host's arena. */
void bl_stage_pick(struct bl_stage *, uint32_t sending, const struct bl_mem *arena);
/* A step STAGE or SEND. point: [n_signals], of the running step. */
enum bl_status bl_stage_step(struct bl_stage *, const struct bl_step *, struct bl_point *point);

#endif

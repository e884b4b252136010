/* SPDX-License-Identifier: MIT */
/* residency.h — moves experts between steps: from the host into slots of devices, as the policy of experts.h wants it.
 *
 * Purpose   reads who was chosen in a step, evicts and copies on a stream of its own beside the next steps, and changes
 *           tables of addresses only between them: an expert is computed by exactly one device in every step.
 * Ownership owns slots, streams and counts; weights, plan, model and devices are borrowed and outlive it.
 * Units     bytes, tokens.
 * Errors    those of the devices, by name; BL_ENOMEM. BL_ETIMEDOUT: a stream of slots has finished nothing for as long as
 *           patience goes; names the device and the expert. What has failed once fails again.
 * Threads   submitting thread.
 */
#ifndef BL_RESIDENCY_H
#define BL_RESIDENCY_H

#include "trace.h"
#include "weights.h"

enum { BL_MOST_MOVES = 16 };         /* on their way to a device at a time */
struct bl_slot_block {               /* of one device */
    struct bl_device *dev;           /* NULL: there are none */
    struct bl_blocks mem;
    uint64_t *off;                   /* [n_tensors] of its first slot, UINT64_MAX: none */
    struct bl_stream *stream;        /* copies; NULL: no slots here */
    struct bl_expert_move moving[BL_MOST_MOVES]; /* enqueued together, there when the point is reached */
    uint32_t n_moving, n_copies;
    uint64_t moving_bytes;
    struct bl_point there;
    uint32_t before, done;           /* commands of the stream: done before these moves; when last looked at */
    uint64_t moved_ns;               /* when that changed */
    struct bl_lapse_log log;         /* lent to the stream while there is a trace */
};
struct bl_expert_part {              /* a weight that each of a layer's experts has */
    uint32_t weight;
    bool leads;                      /* of the weights in its tensor, which move together, the first */
    uint64_t *home;                  /* [n_experts] addresses on the host, as loaded */
};
struct bl_residency {
    struct bl_experts experts;
    const struct bl_model *model;
    struct bl_plan *plan;
    struct bl_weights *weights;
    struct bl_device *const *device; /* [n_devices] */
    struct bl_slot_block *block;     /* [n_devices] */
    struct bl_expert_part *part;     /* by layer */
    uint32_t *first_part;            /* [n_layers + 1] */
    uint32_t n_devices;
    uint64_t moved_bytes;
    uint64_t patience_ns;
    enum bl_status failed;           /* and why: moves may have been left half done */
    char why[256];
};
/* After the weights are there. before: statistics of the model, NULL: none; slots are filled by them before it returns.
 * Nothing is taken, and nothing is done later, where the plan has no slots and counts nothing. */
enum bl_status bl_residency_open(struct bl_residency *, const struct bl_model *, struct bl_plan *,
                                 const struct bl_block_bytes *, struct bl_weights *, struct bl_device *const *device,
                                 uint32_t n_devices, const struct bl_expert_stats *before, uint64_t patience_ns);
void bl_residency_close(struct bl_residency *); /* zeroed is fine; before the weights and devices */
/* Before a step: what has arrived may be used, and is noted in the trace, unless that is NULL. wait: until everything that
 * was sent for is there. */
enum bl_status bl_residency_arrive(struct bl_residency *, struct bl_trace *, bool wait);
/* After a step of n_tok tokens, with the host's arena: counts, evicts, and sends for others. */
enum bl_status bl_residency_learn(struct bl_residency *, const struct bl_program *, const struct bl_mem *arena,
                                  uint32_t n_tok, struct bl_trace *);

#endif

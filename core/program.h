/* SPDX-License-Identifier: MIT */
/* program.h — lowering: graph + plan → steps and buffer offsets; binding: steps → addresses and segments.
 *
 * Purpose   the only place that inserts copies and waits. CPU-only is the plan with one device: same graph, no copies.
 * Ownership a program owns its graph, tables and segments; memory belongs to the engine and is shared by its programs.
 * Units     bytes.
 * Errors    BL_EUNSUPPORTED: a node that its device cannot run, or a copy with no path, by name. BL_ENOMEM.
 * Threads   one thread per program.
 */
#ifndef BL_PROGRAM_H
#define BL_PROGRAM_H

#include "chunks.h"

/* Of experts on their way to a card (chunks.h): PICK, the one step that the submitting thread waits in, is where it learns
 * who was chosen in a layer and decides what comes in which chunk. STAGE copies a chunk into the host's ring, SEND to the
 * card, each after what it depends on and followed by a signal, in a stream of its own. Both come twice for a chunk that
 * may be sent ahead of the PICK: what was done the first time is not done again. */
enum bl_step_kind {
    BL_STEP_RUN, BL_STEP_COPY, BL_STEP_SIGNAL, BL_STEP_WAIT, BL_STEP_PICK, BL_STEP_STAGE, BL_STEP_SEND, BL_N_STEP_KINDS
};
struct bl_step {
    uint8_t kind;
    uint16_t device;             /* whose stream; of STAGE and SEND the one beside it; PICK: the card */
    uint32_t index;              /* RUN: range. COPY: copy. SIGNAL, WAIT: signal number, counted from 0. PICK: sending.
                                  * STAGE, SEND: chunk */
};
static inline bool bl_step_is_beside(const struct bl_step *s)
{
    return s->kind == BL_STEP_STAGE || s->kind == BL_STEP_SEND;
}
#define BL_NO_SIGNAL UINT32_MAX
#define BL_NO_CHUNK UINT32_MAX
struct bl_sending {              /* a layer whose experts are sent in this program */
    struct bl_chunking cut;
    uint32_t layer;
    uint32_t first;              /* of its chunks */
    uint32_t signal;             /* ids are on the host */
    bl_val ids;
    bool staged;                 /* chunks pass through the host's ring */
};
struct bl_chunk {
    uint32_t sending, nth;       /* which of it */
    uint32_t node;
    uint32_t seq;                /* of the card's, counted over all layers: which part of the ring */
    uint32_t before;             /* chunk that was in that part; BL_NO_CHUNK: none in this step */
    uint32_t staged, sent, freed;/* signals: in the host's ring, on the card, computed; the last one's part is never freed */
};
struct bl_copy {                 /* a value, from one device's arena to another's, by who gets it or by who gives it to the host */
    bl_val val;
    uint16_t from, to;
};
struct bl_range {                /* consecutive nodes on one device */
    uint32_t first, n;
    uint16_t device;
    struct bl_segment *segment;  /* NULL until bound */
};
#define BL_NO_HOME UINT64_MAX

struct bl_program {
    struct bl_shape shape;
    struct bl_graph graph;
    uint16_t *node_device;       /* [n_nodes] */
    uint64_t *home;              /* [n_vals * n_devices]: offset of an activation in the device's arena, or BL_NO_HOME */
    uint64_t *arena_bytes;       /* [n_devices] activations only */
    uint64_t *scratch_bytes;     /* [n_devices] largest of its nodes */
    bool *used;                  /* [n_devices] */
    bl_val *route;               /* [n_layers] ids of the experts chosen, which stay on the host after the step; NULL: not
                                  * asked for, 0: the layer has none */
    uint16_t *signal_device;     /* [n_signals] who signals it */
    struct bl_sending *sending;  /* [n_sendings] by layer */
    struct bl_chunk *chunk;      /* [n_chunks] by sending */
    struct bl_step *step;
    struct bl_copy *copy;
    struct bl_range *range;
    struct bl_bound *bound;      /* [n_nodes] once bound */
    uint64_t *addr;              /* addresses behind bound */
    const struct bl_device_ops **ops; /* [n_devices] once bound: frees segments */
    uint32_t n_layers;           /* of route */
    uint32_t n_sendings, n_chunks;
    uint32_t n_devices, n_steps, n_copies, n_ranges, n_signals;
    uint32_t cap_steps, cap_copies, cap_ranges, cap_signals;
};
/* No device is touched: the same call sizes plans and makes programs. */
enum bl_status bl_program_lower(struct bl_program *out, const struct bl_model *, const struct bl_plan *,
                                const struct bl_machine *, const struct bl_shape *);
/* Replays the steps symbolically: every read sees the value last written there, every wait has an earlier signal.
 * BL_EINVAL names the step. */
enum bl_status bl_program_verify(const struct bl_program *);
/* NULL: no experts of the layer are sent in this program. */
const struct bl_sending *bl_program_sending(const struct bl_program *, int layer);
uint64_t bl_program_heap_bytes(const struct bl_program *);
void bl_program_finish(struct bl_program *); /* zeroed is fine */

/* Where things are on a device; filled by the engine. */
struct bl_place {
    struct bl_device *dev;       /* NULL: the plan does not use it */
    struct bl_stream *stream;
    struct bl_mem arena;         /* activations */
    struct bl_mem scratch;
    struct bl_mem params;        /* its copy of the params block */
    struct bl_stream *beside;    /* for STAGE and SEND; NULL: none here; the stage's (stage_ring.h) */
    uint64_t ring, ring_part;    /* address of its ring, bytes of a part; 0: nothing is sent here */
};
struct bl_binding {
    struct bl_place *place;          /* [n_devices] */
    const uint64_t *weight;          /* [n_devices * n_weights] address of the first row, of an expert's of its table */
    const uint64_t *state;           /* [n_states] */
    uint32_t n_weights;
    const uint64_t *sent_table;      /* [n_weights] of experts: where their table begins in a chunk; NULL: none are sent */
};
enum bl_status bl_program_bind(struct bl_program *, const struct bl_binding *);

#endif

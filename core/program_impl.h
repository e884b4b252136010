/* SPDX-License-Identifier: MIT */
/* program_impl.h — the walk that turns nodes into steps, shared by the files of lowering.
 *
 * Purpose   private to core/program*.c.
 * Ownership the walk lives as long as lowering takes.
 * Units     none.
 * Errors    BL_ENOMEM.
 * Threads   one.
 */
#ifndef BL_PROGRAM_IMPL_H
#define BL_PROGRAM_IMPL_H

#include "program.h"

struct bl_walk {
    const struct bl_machine *machine;
    uint32_t *open;    /* [n_devices] range being extended, or UINT32_MAX */
    uint32_t *signal;  /* [n_devices] its last signal plus one, 0: none */
    uint32_t *waited;  /* [n_devices * n_devices] reader, writer: signal waited for plus one */
    uint16_t *home;    /* [n_vals] device that computed the value */
    uint16_t *writer;  /* [n_vals * n_devices] stream that put it there */
    uint32_t *made;    /* [n_vals * n_devices] signals that existed then */
    bool *present;     /* [n_vals * n_devices] */
    uint32_t *pending; /* [n_devices] chunk whose part is free as soon as what was enqueued is done, plus one; 0: none */
};

enum bl_status bl_walk_step(struct bl_program *, enum bl_step_kind, uint16_t device, uint32_t index);
/* A signal of the device's stream after all it was given so far, and its number. */
enum bl_status bl_walk_signal(struct bl_program *, struct bl_walk *, uint16_t device);
/* A number for a signal that other steps imply. */
enum bl_status bl_walk_number(struct bl_program *, uint16_t device, uint32_t *out);
/* The value is where the device reads it. */
enum bl_status bl_walk_bring(struct bl_program *, struct bl_walk *, bl_val, uint16_t to);

/* ---- experts that are sent to cards ---- */

/* Before the graph is built: which layers, in how many chunks. */
enum bl_status bl_stream_plan(struct bl_program *, const struct bl_model *, const struct bl_plan *,
                              const struct bl_machine *);
/* Of a node of EXPERTS whose attributes have chunks. */
struct bl_chunk *bl_stream_chunk(const struct bl_program *, const struct bl_node *);
/* Steps before a step's first node, before each node and after it. */
enum bl_status bl_stream_begin(struct bl_program *);
enum bl_status bl_stream_before(struct bl_program *, struct bl_walk *, uint32_t node);
void bl_stream_after(struct bl_program *, struct bl_walk *, uint32_t node);
/* Each chunk is sent into a part that is free, and computed once it is there. */
enum bl_status bl_stream_verify(const struct bl_program *);

#endif

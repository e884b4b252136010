/* SPDX-License-Identifier: MIT */
/* placement.h — what the public API's placement holds.
 *
 * Purpose   shared by the files that say something about a placement: plan_api.c, view.c, flags.c, peers.c.
 * Ownership the placement owns its model, machine and choice; it borrows the file.
 * Units     bytes.
 * Errors    none: data only.
 * Threads   read-only once made.
 */
#ifndef BL_PLACEMENT_H
#define BL_PLACEMENT_H

#include "plan_file.h"

struct bl_placement {
    const struct bl_gguf *gguf;
    struct bl_model *model;
    struct bl_machine machine;
    struct bl_choice choice;
    struct bl_expert_stats experts; /* what the choice went by; zeroed: nothing was known */
    uint64_t reserve_bytes;
    double prefill_weight;
    bool exact;
    uint8_t placed_by;   /* enum bl_placed_by */
    char redone[2][512]; /* what a plan file's derived half said otherwise */
    uint32_t n_redone;
    bool with_peers;     /* its JSON says what other programs reach */
    char name[96]; /* as the file calls itself, else its architecture */
};

/* ---- other programs ---- */

struct bl_peer_run { /* a program's run of the placement; run.gpu points into gpu */
    struct bl_cost_run run;
    struct bl_cost_gpu gpu[BL_MAX_DEVICES];
};
/* Where its flags put everything; the caller finishes the plan. */
enum bl_status bl_peer_plan(struct bl_plan *out, const struct bl_placement *, enum bl_peer);
/* Its engine with everything where the plan has it, in other things as the placement. */
enum bl_status bl_peer_run_fill(struct bl_peer_run *out, const struct bl_placement *, enum bl_peer,
                                const struct bl_plan *);
/* The steps from which on its experts in RAM are quicker sent to cards; 0: none are. */
uint32_t bl_peer_stream_from(const struct bl_peer_run *);

#endif

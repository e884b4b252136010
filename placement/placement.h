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
    uint64_t reserve_bytes;
    double prefill_weight;
    bool exact;
    uint8_t placed_by;   /* enum bl_placed_by */
    char redone[2][512]; /* what a plan file's derived half said otherwise */
    uint32_t n_redone;
    char name[96]; /* as the file calls itself, else its architecture */
};

#endif

/* SPDX-License-Identifier: MIT */
/* plan_sweep.h — plans of one model over a range of one setting.
 *
 * Purpose   what the table, the JSON and the picture of a sweep are made from.
 * Ownership data only: nothing in a sweep points into a placement.
 * Units     bytes, tokens, tokens per second.
 * Errors    exit codes; the line has been printed.
 * Threads   the thread that runs the verb.
 */
#ifndef BL_PLAN_SWEEP_H
#define BL_PLAN_SWEEP_H

#include "plan_verb.h"

enum { BL_SWEEP_MOST = 16, BL_SWEEP_MOST_CARDS = 64 };
enum bl_sweep_use { BL_SWEEP_WEIGHTS, BL_SWEEP_STATE, BL_SWEEP_COMPUTE, BL_SWEEP_OTHER, BL_N_SWEEP_USES };

struct bl_sweep_memory {                 /* of RAM, or of all cards together */
    uint64_t bytes[BL_N_SWEEP_USES], planned_bytes, budget_bytes;
};
struct bl_sweep_point {
    uint64_t x;                          /* tokens, or the number of cards */
    bool fits;
    struct bl_placement_lack lack;       /* if it does not */
    uint64_t ctx_tokens, depth_tokens;
    uint32_t ubatch_tokens;
    struct bl_speed decode, prefill;     /* tok_per_s 0: nothing is known of the machine's */
    struct bl_sweep_memory ram, cards;
};
struct bl_sweep {
    int what;                            /* enum bl_sweep_what */
    char model[96], arch[64], machine[96], types[48];
    struct bl_sweep_point point[BL_SWEEP_MOST];
    uint32_t n, n_cards;                 /* cards: of the machine */
    char card[BL_SWEEP_MOST_CARDS][32];
    uint32_t n_fit;
};

const char *bl_sweep_axis(const struct bl_sweep *); /* "tokens of a step" */
void bl_sweep_svg_print(const struct bl_sweep *, FILE *);

#endif

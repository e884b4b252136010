/* SPDX-License-Identifier: MIT */
/* recurrent.h — where a token stands in the state of its sequence; shared by the recurrent ops, private to backends/cpu.
 *
 * Purpose   SHORT_CONV and DELTA_RULE take tokens in the order of the batch; a sequence begins at position 0, and what an
 *           earlier one left in its slot is never read.
 * Ownership none.
 * Units     tokens, slots.
 * Errors    none: bl_cpu_segment_execute has checked the numbers.
 * Threads   pure.
 */
#ifndef BL_RECURRENT_H
#define BL_RECURRENT_H

#include "segment.h"

struct bl_cpu_place {
    uint32_t slot, pos;
};

static inline struct bl_cpu_place bl_cpu_place_of(const struct bl_params *p, uint32_t t)
{
    const uint32_t seq = BL_PARAMS_ARRAY(const uint32_t, p, p->seq_off)[t];
    return (struct bl_cpu_place){BL_PARAMS_ARRAY(const struct bl_seq_params, p, p->table_off)[seq].slot,
                                 BL_PARAMS_ARRAY(const uint32_t, p, p->pos_off)[t]};
}

/* Tokens [first, end) of a batch that follow each other in one sequence; at: of the first. */
struct bl_cpu_run {
    uint32_t first, end;
    struct bl_cpu_place at;
};
/* The run behind *run, which begins as zeros; false when there is none. */
static inline bool bl_cpu_next_run(const struct bl_params *p, struct bl_cpu_run *run)
{
    if (run->end >= p->n_tok)
        return false;
    run->first = run->end;
    run->at = bl_cpu_place_of(p, run->first);
    for (run->end++; run->end < p->n_tok; run->end++) {
        const struct bl_cpu_place next = bl_cpu_place_of(p, run->end);
        if (next.slot != run->at.slot || next.pos != run->at.pos + (run->end - run->first))
            break;
    }
    return true;
}

#endif

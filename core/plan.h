/* SPDX-License-Identifier: MIT */
/* plan.h — where every part of every layer lives: data, check, print.
 *
 * Purpose   a short table keyed by (layer, part); the scheduler executes it without knowing who made it.
 * Ownership the plan owns its table.
 * Units     tokens, bytes.
 * Errors    check: BL_EINVAL with the slot that is wrong; BL_ENOFIT with device, need and room.
 * Threads   read-only once made.
 */
#ifndef BL_PLAN_H
#define BL_PLAN_H

#include "ledger.h"
#include "machine.h"
#include "model.h"

struct bl_plan {
    uint32_t n_layers;
    uint16_t *slot;              /* device of [n_layers + 1][BL_N_PARTS]; the last row: embed and head */
    uint64_t ctx_tokens;
    uint32_t ubatch_tokens, out_tokens, max_sequences;
    bool mmap;                   /* weights used where the file is mapped, on devices that can */
    struct bl_ledger ledger;     /* planned column filled by bl_plan_memory */
};
enum bl_status bl_plan_init(struct bl_plan *, const struct bl_model *); /* all on device 0 */
void bl_plan_finish(struct bl_plan *);                                  /* zeroed is fine */
static inline uint16_t bl_plan_device(const struct bl_plan *p, int layer, enum bl_part part)
{
    return p->slot[(layer < 0 ? p->n_layers : (uint32_t)layer) * BL_N_PARTS + part];
}
static inline struct bl_shape bl_plan_shape(const struct bl_plan *p, uint32_t n_tok, uint32_t n_out)
{
    return (struct bl_shape){n_tok, n_out, p->max_sequences, p->ubatch_tokens, p->ctx_tokens};
}
enum bl_status bl_plan_check(const struct bl_plan *, const struct bl_model *, const struct bl_machine *);
void bl_plan_print(const struct bl_plan *, const struct bl_model *, const struct bl_machine *,
                   void (*line)(void *arg, const char *text), void *arg);

#endif

/* SPDX-License-Identifier: MIT */
/* expert_share.h — what share of a layer's work with experts each device gets.
 *
 * Purpose   tokens choose experts as statistics say, or where there are none alike: then a device gets what it holds.
 *           Slots get what their policy finds there.
 * Ownership none.
 * Units     shares of a layer's uses, which sum to 1.
 * Errors    BL_ENOMEM, and what lowering reports.
 * Threads   any.
 */
#ifndef BL_EXPERT_SHARE_H
#define BL_EXPERT_SHARE_H

#include "search.h"

/* share: [n_layers][n_devices], filled; of layers without experts 0. */
void bl_expert_shares(const struct bl_plan *, const struct bl_model *, uint32_t n_devices, double *share);
/* The hit of every set of slots of the plan, and what feeding them takes of the host's reading. What was used last can
 * only be there if its bytes come out of the host's memory and over links and hubs as quickly as a step goes by, so decode
 * is simulated for it. */
enum bl_status bl_price_slots(struct bl_plan *, const struct bl_model *, const struct bl_machine *,
                              const struct bl_search_options *);
/* bl_plan_fix_slots, and memory counted anew. */
enum bl_status bl_fix_slots(struct bl_plan *, const struct bl_model *, const struct bl_machine *,
                            const struct bl_expert_stats *known);
/* Bytes of one expert of a layer, in all its tensors. */
uint64_t bl_expert_bytes(const struct bl_model *, uint32_t layer);

#endif

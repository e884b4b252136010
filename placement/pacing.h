/* SPDX-License-Identifier: MIT */
/* pacing.h — how long a simulated device takes, by the figures of its machine and the arithmetic of predictions.
 *
 * Purpose   makes what devices are opened with (core/pace.h). All of a machine share its links, so that copies take turns
 *           as predicted.
 * Ownership a pacer is released by whoever made it and by every pace; the last one frees it. It copies what it needs of
 *           machine and plan; the model outlives it.
 * Units     nanoseconds.
 * Errors    BL_ENOMEM.
 * Threads   as core/pace.h.
 */
#ifndef BL_PACING_H
#define BL_PACING_H

#include "pace.h"
#include "plan.h"

struct bl_pacer;
enum bl_status bl_pacer_make(struct bl_pacer **out, const struct bl_model *, const struct bl_plan *,
                             const struct bl_machine *, bool is_virtual);
void bl_pacer_release(struct bl_pacer *); /* NULL is fine */
enum bl_status bl_pacer_pace(struct bl_pacer *, uint16_t device, struct bl_pace **out);
/* Of the virtual clock, NULL: there is none. Valid while a device is open. */
struct bl_virtual_clock *bl_pacer_clock(struct bl_pacer *);

#endif

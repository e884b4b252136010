/* SPDX-License-Identifier: MIT */
/* plan_fields.h — the members of plan files, one table per struct of plan_file.h.
 *
 * Purpose   reading, writing and the test of the schema go by these tables.
 * Ownership static.
 * Units     as the names say.
 * Errors    none.
 * Threads   any.
 */
#ifndef BL_PLAN_FIELDS_H
#define BL_PLAN_FIELDS_H

#include "machine_fields.h"

extern const struct bl_machine_fields bl_plan_fields_file, bl_plan_fields_model, bl_plan_fields_machine,
    bl_plan_fields_device, bl_plan_fields_settings, bl_plan_fields_place, bl_plan_fields_derived,
    bl_plan_fields_prediction, bl_plan_fields_speed, bl_plan_fields_memory;
extern const struct bl_machine_fields *const bl_plan_fields_all[]; /* NULL-terminated */
extern const char *const bl_placed_by_words[], *const bl_part_words[];

#endif

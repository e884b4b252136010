/* SPDX-License-Identifier: MIT */
/* machine_fields.h — the members of machine files, one table per struct of machine.h.
 *
 * Purpose   reading, writing, assignments and the test of the schema go by these tables.
 * Ownership static.
 * Units     as the names say.
 * Errors    none.
 * Threads   any.
 */
#ifndef BL_MACHINE_FIELDS_H
#define BL_MACHINE_FIELDS_H

#include "json.h"
#include "machine.h"

struct bl_machine_fields {
    const char *name;                  /* in the schema: "device" */
    const struct bl_json_field *field;
    size_t n;
};
extern const struct bl_machine_fields bl_fields_machine, bl_fields_device, bl_fields_domain, bl_fields_reading,
    bl_fields_read_rate, bl_fields_rate, bl_fields_step_rate, bl_fields_kv_rate, bl_fields_barrier, bl_fields_caps, bl_fields_tile,
    bl_fields_link, bl_fields_hub;
extern const struct bl_machine_fields *const bl_fields_all[]; /* NULL-terminated */
extern const char *const bl_step_team_names[BL_N_STEP_TEAMS]; /* "few" and "many" tokens */
extern const char *const bl_kind_words[], *const bl_memory_words[], *const bl_isa_words[], *const bl_hub_words[];

static inline enum bl_status bl_fields_read(const struct bl_json *at, const struct bl_machine_fields *f, void *base)
{
    return bl_json_fields(at, f->field, f->n, base);
}
static inline void bl_fields_put(struct bl_json_out *o, const struct bl_machine_fields *f, const void *base)
{
    bl_json_put_fields(o, f->field, f->n, base);
}

#endif

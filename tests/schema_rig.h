/* SPDX-License-Identifier: MIT */
/* schema_rig.h — a schema and the tables that a file is read by name the same members, struct by struct. */
#ifndef BL_TEST_SCHEMA_RIG_H
#define BL_TEST_SCHEMA_RIG_H

#include "support.h"

#include "machine_fields.h"

static inline void schema_table(const struct bl_json *properties, const struct bl_machine_fields *f)
{
    struct bl_json it;
    uint32_t n = 0;

    for (size_t i = 0; i < f->n; i++)
        if (!bl_json_member(properties, f->field[i].name, &it))
            fail_msg("the schema does not know '%s' of a %s", f->field[i].name, f->name);
    for (bool more = bl_json_first(properties, &it); more; more = bl_json_next(&it))
        n++;
    if (n != f->n)
        fail_msg("of a %s the schema has %u members, its table %zu", f->name, n, f->n);
}

/* whole: the table of the document itself; the others are its definitions. all ends with NULL. */
static inline void schema_tables(const char *path, const struct bl_machine_fields *const *all,
                                 const struct bl_machine_fields *whole)
{
    static const struct bl_json_limits limits = {1 << 20, 32, 100000};
    struct bl_json definitions, definition, properties;
    struct cJSON *tree;

    if (bl_json_load(&tree, "schema", path, &limits))
        fail_msg("%s", bl_error());
    const struct bl_json root = bl_json_root(tree, "schema");
    assert_true(bl_json_member(&root, "definitions", &definitions));
    for (; *all; all++) {
        definition = root;
        if (*all != whole)
            assert_true(bl_json_member(&definitions, (*all)->name, &definition));
        assert_true(bl_json_member(&definition, "properties", &properties));
        schema_table(&properties, *all);
    }
    bl_json_free(tree);
}

#endif

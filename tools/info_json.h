/* SPDX-License-Identifier: MIT */
/* info_json.h — metadata of a model file, read generically, and as JSON.
 *
 * Purpose   values by key whatever their width, sums by tensor type, the whole header as one JSON object.
 * Ownership results borrow from the file.
 * Units     bytes.
 * Errors    exit codes; the line has been printed.
 * Threads   the thread that runs the verb.
 */
#ifndef BL_INFO_JSON_H
#define BL_INFO_JSON_H

#include "common/engine_args.h"

struct bl_info_type {
    const char *name;
    uint32_t type, tensors;
    uint64_t bytes;
};
struct bl_info_types {
    struct bl_info_type row[64]; /* most bytes first */
    size_t n;
    uint64_t parameters, bytes;
};
void bl_info_types(struct bl_info_types *, const struct bl_gguf *);

const struct bl_kv *bl_info_find(const struct bl_gguf *, const char *key); /* NULL: absent */
/* Item i of an integer value or array; false: another type, or negative. */
bool bl_info_integer(const struct bl_kv *, uint64_t i, uint64_t *out);

/* gguf or cpu may be NULL: that part is left out; state NULL: it is not known. */
struct bl_info_source {
    const struct bl_gguf *gguf;
    const struct bl_state_info *state;
    const struct bl_engine_args *cpu;
    bool full;
};
int bl_info_json(FILE *, const struct bl_report *, const struct bl_info_source *);

#endif

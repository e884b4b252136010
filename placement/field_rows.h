/* SPDX-License-Identifier: MIT */
/* field_rows.h — one row of a table of members, for the files that hold such tables.
 *
 * Purpose   short names for rows of struct bl_json_field; OF is the struct whose members they are.
 * Ownership none.
 * Units     as the members' names say.
 * Errors    none.
 * Threads   any.
 *
 * Bounds keep out what cannot be: a rate or time of 0 is left out of a file, not written in it.
 */
#ifndef BL_FIELD_ROWS_H
#define BL_FIELD_ROWS_H

#include "machine_fields.h"

#include <stddef.h>

#define MOST_BYTES 0x1p50
#define AT(member) offsetof(OF, member)
#define TEXT(name, member, need) {name, BL_JSON_TEXT, AT(member), 0, sizeof(((OF *)0)->member), NULL, need, need}
#define COUNT(name, member, max) {name, BL_JSON_U32, AT(member), 0, max, NULL, false, false}
#define NEED(name, member, max) {name, BL_JSON_U32, AT(member), 1, max, NULL, true, true}
#define BYTES(name, member, min) {name, BL_JSON_BYTES, AT(member), min, MOST_BYTES, NULL, false, false}
#define BPS(name, member) {name, BL_JSON_BPS, AT(member), 1e3, 1e16, NULL, false, false}
#define MACS(name, member) {name, BL_JSON_PER_S, AT(member), 1e3, 1e18, NULL, false, false}
#define WORD(name, member, words, need) {name, BL_JSON_WORD, AT(member), 0, 0, words, need, true}
#define OTHER(name, need) {name, BL_JSON_OTHER, 0, 0, 0, NULL, need, false}

#endif

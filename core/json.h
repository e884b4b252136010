/* SPDX-License-Identifier: MIT */
/* json.h — JSON of people and strangers: bounded reading by tables, canonical writing.
 *
 * Purpose   one row per member serves reading, range checks, units, the nearest match for a misspelt name, writing and
 *           single assignments. Machine and plan files and requests are read with it.
 * Ownership a document is freed with bl_json_free; places in it and the tables' names are borrowed.
 * Units     members say theirs in their name; a size, rate or time may also be a text with a unit, "24GiB", "64 GB/s",
 *           "5us".
 * Errors    BL_EFORMAT: no JSON, or over a limit, with the byte; a member that is wrong, with its path. BL_EINVAL the same
 *           for assignments.
 * Threads   any; a document is not changed by reading.
 */
#ifndef BL_JSON_H
#define BL_JSON_H

#include "status.h"

struct cJSON;
struct bl_json_limits { size_t most_bytes; uint32_t most_depth, most_items; };

/* what: names the document in messages, "machine rig.json". */
enum bl_status bl_json_parse(struct cJSON **out, const char *what, const char *text, size_t n_bytes,
                             const struct bl_json_limits *);
enum bl_status bl_json_load(struct cJSON **out, const char *what, const char *path, const struct bl_json_limits *);
void bl_json_free(struct cJSON *); /* NULL is fine */

/* A place in a document: knows its way up, so that messages can say "devices[1].links[0].bps". */
struct bl_json {
    const struct cJSON *item;
    const struct bl_json *up;    /* NULL: the document */
    const char *what;            /* of the document */
    uint32_t index;              /* of an element */
};
struct bl_json bl_json_root(const struct cJSON *, const char *what);
bool bl_json_member(const struct bl_json *at, const char *name, struct bl_json *out); /* false: there is none */
/* for (bool more = bl_json_first(at, &it); more; more = bl_json_next(&it)): elements of an array, members of an object. */
bool bl_json_first(const struct bl_json *at, struct bl_json *out);
bool bl_json_next(struct bl_json *);
const char *bl_json_name(const struct bl_json *); /* of a member; "" of an element */
const char *bl_json_text(const struct bl_json *); /* NULL: not a text */
enum bl_status bl_json_list(const struct bl_json *, uint32_t most, uint32_t *n); /* an array of at most so many */
/* Room for its elements, zeroed, and their number; bytes: of one. *items is the caller's. */
enum bl_status bl_json_new_list(const struct bl_json *, uint32_t most, size_t bytes, void **items, uint32_t *n);
enum bl_status bl_json_object(const struct bl_json *);                           /* is one */
/* "machine rig.json: devices[1].bps must be …"; returns BL_EFORMAT. fmt goes on behind the path. */
enum bl_status bl_json_wrong(const struct bl_json *, const char *fmt, ...) BL_PRINTF(2, 3);

/* ---- members by table ---- */

enum bl_json_kind {
    BL_JSON_TEXT,      /* char[cap]; neither empty nor with control characters */
    BL_JSON_WORD,      /* uint8_t: index in words */
    BL_JSON_FLAG,      /* bool */
    BL_JSON_U16,
    BL_JSON_U32,
    BL_JSON_BYTES,     /* uint64_t */
    BL_JSON_BPS,       /* double, as all below; 0 in the struct: not known, and not written */
    BL_JSON_NS,
    BL_JSON_PER_S,
    BL_JSON_HZ,
    BL_JSON_SIZE,      /* bytes as a double */
    BL_JSON_RATIO,     /* without a unit */
    BL_JSON_OTHER      /* the caller's business; known, so that it is not refused */
};
struct bl_json_field {
    const char *name;
    enum bl_json_kind kind;
    size_t at;                 /* offset of the target */
    double min, max;           /* inclusive; TEXT: max is the room in bytes */
    const char *const *words;  /* NULL-terminated */
    bool required;
    bool always;               /* written even when 0 */
};
enum bl_status bl_json_fields(const struct bl_json *object, const struct bl_json_field *, size_t n, void *base);
/* One member from a text, as of a command line: numbers with units, words, true and false. BL_EINVAL; `name` begins the
 * message. */
enum bl_status bl_json_assign(const struct bl_json_field *, const char *name, const char *text, void *base);
void bl_one_line(char *text); /* what strangers wrote, for messages: control characters become '?' */
/* The closest of the names by edits, NULL when none is close. */
const char *bl_nearest_name(const char *word, const char *(*name)(const void *arg, size_t i), const void *arg);
/* "24GiB" with one of the kind's units, or a plain number; false: neither. */
bool bl_quantity(enum bl_json_kind, const char *text, double *out);

/* ---- writing: two blanks per level, members in the order of calls ---- */

struct bl_json_out {
    char *text;                /* NUL-terminated; the caller frees it */
    size_t n, cap;
    uint32_t depth, line_depth;
    bool comma, line, failed;  /* line: from line_depth on all stays on one line; failed: out of memory */
};
void bl_json_open(struct bl_json_out *, const char *name, char bracket, bool one_line); /* name NULL: an element */
void bl_json_close(struct bl_json_out *, char bracket);
void bl_json_put_text(struct bl_json_out *, const char *name, const char *text);
void bl_json_put_number(struct bl_json_out *, const char *name, double); /* shortest that reads back the same */
void bl_json_put_flag(struct bl_json_out *, const char *name, bool);
void bl_json_put_fields(struct bl_json_out *, const struct bl_json_field *, size_t n, const void *base);
enum bl_status bl_json_out_end(struct bl_json_out *); /* a newline; BL_ENOMEM: nothing is left to free */

#endif

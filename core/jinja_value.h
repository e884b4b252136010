/* SPDX-License-Identifier: MIT */
/* jinja_value.h — values of the template language, and the run that owns them.
 *
 * Purpose   what Python's str, list, dict ... are to jinja2. A string is a view into a buffer that only grows at its
 *           end: slices share it, appending to the latest string of a buffer costs only the new bytes, and each buffer
 *           knows which of its bytes came from the user, so that slices, joins and replacements know it too.
 * Ownership everything lives in the run's arena until bl_jrun_finish. Strings may point at memory of the caller.
 * Units     bytes for strings, items for the rest.
 * Errors    sticky: the first failure is kept in run.status with its message, from then on every function does nothing
 *           and returns a harmless value. Callers check run.status where they loop or hand results out. Whatever looks
 *           at more bytes or items than a constant charges them with bl_jrun_work: that, not the number of steps
 *           alone, bounds the time a hostile template can take.
 * Threads   a run belongs to one thread.
 */
#ifndef BL_JINJA_VALUE_H
#define BL_JINJA_VALUE_H

#include "jinja.h"
#include "jinja_text.h"
#include "mem.h"

enum bl_jkind {
    BL_J_ABSENT, /* an argument that was not given */
    BL_J_UNDEFINED,
    BL_J_NONE,
    BL_J_BOOL,
    BL_J_INT,
    BL_J_FLOAT,
    BL_J_STRING,
    BL_J_LIST,
    BL_J_TUPLE,
    BL_J_VIEW, /* dict.items() and the like */
    BL_J_ITER, /* a generator: readable once, no length */
    BL_J_MAP,
    BL_J_RANGE,
    BL_J_NAMESPACE,
    BL_J_FUNCTION, /* builtin, perhaps bound to an object */
    BL_J_MACRO,
    BL_J_LOOP,
    BL_J_CYCLER,
    BL_J_JOINER
};

struct bl_jv {
    enum bl_jkind kind;
    uint32_t off, len; /* of a string in its buffer */
    bool markup;       /* a string that "safe" or "escape" made: what is added to it gets HTML escapes */
    union {
        bool b;
        int64_t i;
        double f;
        struct bl_jbuf *buf;
        struct bl_jlist *list; /* also tuple, view, iter, cycler, joiner */
        struct bl_jmap *map;   /* also namespace */
        struct bl_jrange *range;
        struct bl_jbound *bound;
        struct bl_jmacro *macro;
        struct bl_jloop *loop;
        const struct bl_jhint *hint; /* of undefined; NULL: nothing known */
    };
};

struct bl_jspan {
    uint32_t begin, end;
};
struct bl_jbuf {
    char *bytes;
    uint32_t used, cap;
    struct bl_jspan *user; /* sorted, apart */
    uint32_t n_user, cap_user;
    struct bl_jspan one; /* enough for a buffer that is all the user's */
};

enum { /* what the chat layer wants to know about a container */
    BL_JWATCH_ARGUMENTS = 1,
    BL_JWATCH_PARTS = 2
};
struct bl_jlist {
    struct bl_jv *item;
    uint32_t n, cap;
    uint32_t next;    /* iter, cycler, joiner: what was handed out */
    const char *type; /* view, iter: Python's name */
    uint8_t watch;
};
struct bl_jentry {
    struct bl_jv key, value;
    uint64_t hash;
};
struct bl_jmap { /* keeps the order of insertion */
    struct bl_jentry *entry;
    uint32_t n, cap;
    uint32_t *slot; /* index + 1, 0 = free; NULL while the map is small */
    uint32_t mask;
    uint8_t watch;
};
struct bl_jrange {
    int64_t start, stop, step;
    uint32_t n;
};
struct bl_jhint { /* why something is undefined */
    struct bl_jv name;
    const char *owner; /* what lacks it; NULL: a variable */
    const char *text;  /* the whole reason, if it is another one */
    bool forbidden;
};

struct bl_jscope;
struct bl_jinja_run {
    struct bl_jinja_limits limits;
    bool mutable_values, has_now;
    struct tm now;
    struct bl_arena arena;
    enum bl_status status;
    uint32_t line;          /* of the statement or expression at work; 0 before there is any */
    uint32_t calls, frames; /* depth of macro calls; of recursion in C */
    uint64_t steps;         /* left */
    uint64_t work_bytes;    /* not yet charged as a step */
    struct bl_jscope *scope;
    struct bl_jbuf *out;    /* where statements print to */
    struct bl_jbuf *whole;  /* the prompt */
    uint8_t flow;           /* break, continue */
    struct bl_jv captured;  /* what a filter or set block printed, while its filters work */
    uint8_t printed, tested; /* BL_JWATCH bits: printed as Python would, asked whether it is a string */
    struct bl_jbuf no_buf;  /* what the allocators below return after a failure */
    struct bl_jlist no_list;
    struct bl_jmap no_map;
};

/* ---- the run ---- */
void bl_jrun_init(struct bl_jinja_run *, const struct bl_jinja_options *); /* NULL: defaults */
void bl_jrun_finish(struct bl_jinja_run *);
struct bl_jv bl_jrun_fail(struct bl_jinja_run *, enum bl_status, const char *fmt, ...) BL_PRINTF(3, 4); /* undefined */
struct bl_jv bl_jrun_raise(struct bl_jinja_run *, struct bl_jv message); /* no line, one line of text */
struct bl_jv bl_jrun_fail_undefined(struct bl_jinja_run *, struct bl_jv undefined);
bool bl_jrun_step(struct bl_jinja_run *, uint64_t n);  /* false: failed, now or before */
bool bl_jrun_work(struct bl_jinja_run *, uint64_t n_bytes);
enum { BL_JPIECE_BYTES = 16 }; /* what a piece costs however short, where text is worked on piece by piece */
bool bl_jrun_enter(struct bl_jinja_run *); /* one level of recursion; leave even when it says false */
void bl_jrun_leave(struct bl_jinja_run *);
void *bl_jrun_alloc(struct bl_jinja_run *, uint64_t bytes); /* zeroed; NULL after a failure */

/* ---- buffers and strings ---- */
struct bl_jbuf *bl_jbuf_new(struct bl_jinja_run *, uint64_t cap);
void bl_jbuf_put(struct bl_jinja_run *, struct bl_jbuf *, const char *bytes, size_t n, bool user);
void bl_jbuf_puts(struct bl_jinja_run *, struct bl_jbuf *, const char *text);
void bl_jbuf_add(struct bl_jinja_run *, struct bl_jbuf *, struct bl_jv string);
void bl_jbuf_fill(struct bl_jinja_run *, struct bl_jbuf *, struct bl_jv string, int64_t times); /* <= 0: nothing */
struct bl_jv bl_jbuf_string(const struct bl_jbuf *);

struct bl_jv bl_jv_wrap(struct bl_jinja_run *, const char *bytes, size_t n, bool user); /* no copy */
struct bl_jv bl_jv_text(struct bl_jinja_run *, const char *literal);
struct bl_jv bl_jv_copy(struct bl_jinja_run *, const char *bytes, size_t n, bool user);
struct bl_jv bl_jv_concat(struct bl_jinja_run *, struct bl_jv a, struct bl_jv b); /* strings */
struct bl_jv bl_jv_slice(struct bl_jv string, size_t off, size_t n_bytes);
uint32_t bl_jv_run_at(struct bl_jv string, uint32_t at, bool *user); /* bytes of one provenance from there */
bool bl_jv_is_text(struct bl_jv, const char *text);
static inline const char *bl_jv_bytes(struct bl_jv string)
{
    return string.len ? string.buf->bytes + string.off : "";
}

/* ---- plain values ---- */
static inline struct bl_jv bl_jv_none(void)
{
    return (struct bl_jv){.kind = BL_J_NONE};
}
static inline struct bl_jv bl_jv_bool(bool b)
{
    return (struct bl_jv){.kind = BL_J_BOOL, .b = b};
}
static inline struct bl_jv bl_jv_int(int64_t i)
{
    return (struct bl_jv){.kind = BL_J_INT, .i = i};
}
static inline struct bl_jv bl_jv_float(double f)
{
    return (struct bl_jv){.kind = BL_J_FLOAT, .f = f};
}
static inline struct bl_jv bl_jv_undefined(const struct bl_jhint *hint)
{
    return (struct bl_jv){.kind = BL_J_UNDEFINED, .hint = hint};
}
static inline bool bl_jv_is_number(struct bl_jv v)
{
    return v.kind == BL_J_INT || v.kind == BL_J_FLOAT || v.kind == BL_J_BOOL;
}
static inline bool bl_jv_is_sequence(struct bl_jv v) /* has items side by side */
{
    return v.kind >= BL_J_LIST && v.kind <= BL_J_ITER;
}
bool bl_jv_as_int(struct bl_jv, int64_t *out); /* int and bool */
double bl_jv_as_double(struct bl_jv);          /* of a number */
bool bl_jv_truth(struct bl_jv);
const char *bl_jv_type(struct bl_jv);          /* Python's name */
bool bl_jv_length(struct bl_jinja_run *, struct bl_jv, int64_t *out); /* false: has none */
bool bl_jv_is_callable(struct bl_jv);

/* ---- containers ---- */
struct bl_jlist *bl_jlist_new(struct bl_jinja_run *, uint64_t cap);
void bl_jlist_push(struct bl_jinja_run *, struct bl_jlist *, struct bl_jv);
struct bl_jv bl_jlist_value(enum bl_jkind, struct bl_jlist *);
struct bl_jv bl_jlist_iter(struct bl_jlist *, const char *type); /* a generator over it */
struct bl_jmap *bl_jmap_new(struct bl_jinja_run *);
struct bl_jv bl_jmap_value(struct bl_jmap *);
void bl_jmap_set(struct bl_jinja_run *, struct bl_jmap *, struct bl_jv key, struct bl_jv value);
struct bl_jentry *bl_jmap_find(struct bl_jinja_run *, const struct bl_jmap *, struct bl_jv key); /* NULL: absent */
struct bl_jentry *bl_jmap_find_text(struct bl_jinja_run *, const struct bl_jmap *, const char *key);
void bl_jmap_remove(struct bl_jinja_run *, struct bl_jmap *, struct bl_jentry *);
void bl_jmap_clear(struct bl_jmap *);

/* Walks anything iterable: characters, items, keys. A list may grow meanwhile. */
struct bl_jiter {
    struct bl_jv of;
    uint32_t at;
};
struct bl_jiter bl_jiter_start(struct bl_jinja_run *, struct bl_jv); /* fails when not iterable; empty then */
bool bl_jiter_next(struct bl_jinja_run *, struct bl_jiter *, struct bl_jv *item);
bool bl_jv_is_iterable(struct bl_jv);

/* ---- comparing (jinja_compare.c) ---- */
bool bl_jv_equal(struct bl_jinja_run *, struct bl_jv, struct bl_jv);
enum { BL_J_UNORDERED = 1000 }; /* NaN */
int bl_jv_order(struct bl_jinja_run *, struct bl_jv a, struct bl_jv b, const char *op); /* <0, 0, >0, or that */
bool bl_jv_contains(struct bl_jinja_run *, struct bl_jv in, struct bl_jv what);

/* ---- printing (jinja_print.c) ---- */
void bl_jv_print(struct bl_jinja_run *, struct bl_jbuf *, struct bl_jv); /* str() */
void bl_jv_repr(struct bl_jinja_run *, struct bl_jbuf *, struct bl_jv);  /* repr() */
struct bl_jv bl_jv_str(struct bl_jinja_run *, struct bl_jv);

/* ---- JSON (jinja_json.c) ---- */
struct bl_jdump {
    bool ascii, sort;
    bool pretty; /* newlines; `indent` before each level */
    struct bl_jv indent, item_separator, key_separator;
};
struct bl_jv bl_jv_from_tree(struct bl_jinja_run *, const struct cJSON *, bool user);
struct bl_jv bl_jv_from_json(struct bl_jinja_run *, struct bl_jv string); /* strings inherit where they came from */
bool bl_jv_try_json(struct bl_jinja_run *, struct bl_jv string, struct bl_jv *out); /* false: no JSON, no failure */
struct bl_jdump bl_jdump_default(struct bl_jinja_run *);
void bl_jv_dump(struct bl_jinja_run *, struct bl_jbuf *, struct bl_jv, const struct bl_jdump *);

#endif

/* SPDX-License-Identifier: MIT */
#include "jinja_value.h"

#include <stdlib.h>

/* ---- buffers --------------------------------------------------------------------------------- */

enum { SMALL_BUFFER = 64 };

struct bl_jbuf *bl_jbuf_new(struct bl_jinja_run *r, uint64_t cap)
{
    struct bl_jbuf *b = bl_jrun_alloc(r, sizeof *b);
    char *bytes = cap > UINT32_MAX ? NULL : bl_jrun_alloc(r, cap);
    if (!b || !bytes) {
        if (cap > UINT32_MAX)
            bl_jrun_fail(r, BL_ELIMIT, "a string of %llu bytes is too long",
                         (unsigned long long)cap);
        return &r->no_buf;
    }
    b->bytes = bytes;
    b->cap = (uint32_t)cap;
    return b;
}

/* The old bytes stay where they are: whoever still holds a pointer to them may read on. */
static bool make_room(struct bl_jinja_run *r, struct bl_jbuf *b, size_t n)
{
    if (r->status)
        return false;
    if (n <= b->cap - b->used)
        return true;
    uint64_t cap = (uint64_t)b->used + n;
    if (cap > UINT32_MAX / 2) {
        bl_jrun_fail(r, BL_ELIMIT, "a string of %llu bytes is too long", (unsigned long long)cap);
        return false;
    }
    cap = cap < SMALL_BUFFER ? SMALL_BUFFER : cap * 2;
    char *bytes = bl_jrun_alloc(r, cap);
    if (!bytes)
        return false;
    if (b->used)
        memcpy(bytes, b->bytes, b->used);
    b->bytes = bytes;
    b->cap = (uint32_t)cap;
    return true;
}

static void add_span(struct bl_jinja_run *r, struct bl_jbuf *b, uint32_t begin, uint32_t end)
{
    if (b->n_user && b->user[b->n_user - 1].end == begin) {
        b->user[b->n_user - 1].end = end;
        return;
    }
    if (b->n_user == b->cap_user) {
        uint32_t cap = b->cap_user ? b->cap_user * 2 : 4;
        struct bl_jspan *user = bl_jrun_alloc(r, (uint64_t)cap * sizeof *user);
        if (!user)
            return;
        if (b->n_user)
            memcpy(user, b->user, b->n_user * sizeof *user);
        b->user = user;
        b->cap_user = cap;
    }
    b->user[b->n_user++] = (struct bl_jspan){begin, end};
}

void bl_jbuf_put(struct bl_jinja_run *r, struct bl_jbuf *b, const char *bytes, size_t n, bool user)
{
    if (!n || !bl_jrun_work(r, (uint64_t)n + BL_JPIECE_BYTES) || !make_room(r, b, n))
        return;
    memcpy(b->bytes + b->used, bytes, n);
    b->used += (uint32_t)n;
    if (user)
        add_span(r, b, b->used - (uint32_t)n, b->used);
    if (b == r->whole && b->used > r->limits.output_bytes)
        bl_jrun_fail(r, BL_ELIMIT, "the output is longer than %llu bytes",
                     (unsigned long long)r->limits.output_bytes);
}

void bl_jbuf_puts(struct bl_jinja_run *r, struct bl_jbuf *b, const char *text)
{
    bl_jbuf_put(r, b, text, strlen(text), false);
}

void bl_jbuf_add(struct bl_jinja_run *r, struct bl_jbuf *b, struct bl_jv string)
{
    bool user;
    for (uint32_t at = 0, n; at < string.len && !r->status; at += n) {
        n = bl_jv_run_at(string, at, &user);
        bl_jbuf_put(r, b, bl_jv_bytes(string) + at, n, user);
    }
}

void bl_jbuf_fill(struct bl_jinja_run *r, struct bl_jbuf *b, struct bl_jv string, int64_t times)
{
    uint64_t bytes;
    if (times <= 0 || !string.len)
        return;
    if (!bl_size_mul((uint64_t)times, string.len, &bytes) || bytes > r->limits.memory_bytes) {
        bl_jrun_fail(r, BL_ELIMIT, "a string of more than %llu bytes is too long",
                     (unsigned long long)r->limits.memory_bytes);
        return;
    }
    if (make_room(r, b, (size_t)bytes))
        for (int64_t i = 0; i < times && !r->status; i++)
            bl_jbuf_add(r, b, string);
}

/* ---- strings --------------------------------------------------------------------------------- */

struct bl_jv bl_jbuf_string(const struct bl_jbuf *b)
{
    /* The value may append to its buffer later, so the buffer is not const to it. */
    return (struct bl_jv){.kind = BL_J_STRING, .len = b->used, .buf = (struct bl_jbuf *)b};
}

struct bl_jv bl_jv_wrap(struct bl_jinja_run *r, const char *bytes, size_t n, bool user)
{
    if (n > r->limits.memory_bytes)
        return bl_jrun_fail(r, BL_ELIMIT, "a string of %zu bytes is too long", n);
    struct bl_jbuf *b = bl_jrun_alloc(r, sizeof *b);
    if (!b)
        return bl_jbuf_string(&r->no_buf);
    b->bytes = (char *)bytes; /* full, so never written */
    b->used = b->cap = (uint32_t)n;
    if (user && n) {
        b->one.end = b->used;
        b->user = &b->one;
        b->n_user = b->cap_user = 1;
    }
    return bl_jbuf_string(b);
}

struct bl_jv bl_jv_text(struct bl_jinja_run *r, const char *literal)
{
    return bl_jv_wrap(r, literal, strlen(literal), false);
}

struct bl_jv bl_jv_copy(struct bl_jinja_run *r, const char *bytes, size_t n, bool user)
{
    struct bl_jbuf *b = bl_jbuf_new(r, n);
    bl_jbuf_put(r, b, bytes, n, user);
    return bl_jbuf_string(b);
}

struct bl_jv bl_jv_concat(struct bl_jinja_run *r, struct bl_jv a, struct bl_jv b)
{
    if (!b.len)
        return a;
    if (!a.len)
        return b;
    if (a.off + a.len != a.buf->used || b.len > a.buf->cap - a.buf->used) {
        struct bl_jbuf *buf = bl_jbuf_new(r, SMALL_BUFFER + 2 * ((uint64_t)a.len + b.len));
        bl_jbuf_add(r, buf, a);
        a = bl_jbuf_string(buf);
    }
    bl_jbuf_add(r, a.buf, b);
    if (!r->status)
        a.len += b.len;
    return a;
}

struct bl_jv bl_jv_slice(struct bl_jv string, size_t off, size_t n_bytes)
{
    string.off += (uint32_t)off;
    string.len = (uint32_t)n_bytes;
    return string;
}

uint32_t bl_jv_run_at(struct bl_jv string, uint32_t at, bool *user)
{
    const struct bl_jbuf *b = string.buf;
    uint32_t abs = string.off + at, end = string.off + string.len, low = 0, high = b->n_user;
    while (low < high) { /* the first span that ends after abs */
        uint32_t mid = low + (high - low) / 2;
        if (b->user[mid].end <= abs)
            low = mid + 1;
        else
            high = mid;
    }
    *user = false;
    if (low == b->n_user)
        return end - abs;
    const struct bl_jspan *s = &b->user[low];
    *user = s->begin <= abs;
    uint32_t until = *user ? s->end : s->begin;
    return (until < end ? until : end) - abs;
}

bool bl_jv_is_text(struct bl_jv v, const char *text)
{
    size_t n = strlen(text);
    return v.kind == BL_J_STRING && v.len == n && memcmp(bl_jv_bytes(v), text, n) == 0;
}

/* ---- plain values ---------------------------------------------------------------------------- */

bool bl_jv_as_int(struct bl_jv v, int64_t *out)
{
    if (v.kind != BL_J_INT && v.kind != BL_J_BOOL)
        return false;
    *out = v.kind == BL_J_INT ? v.i : v.b;
    return true;
}

double bl_jv_as_double(struct bl_jv v)
{
    return v.kind == BL_J_FLOAT ? v.f : v.kind == BL_J_INT ? (double)v.i : (double)v.b;
}

/* Of what is no string. */
static bool count_items(struct bl_jv v, int64_t *out)
{
    switch (v.kind) {
    case BL_J_UNDEFINED:
        *out = 0;
        return true;
    case BL_J_LIST:
    case BL_J_TUPLE:
    case BL_J_VIEW:
        *out = v.list->n;
        return true;
    case BL_J_MAP:
        *out = v.map->n;
        return true;
    case BL_J_RANGE:
        *out = v.range->n;
        return true;
    default:
        return false;
    }
}

bool bl_jv_length(struct bl_jinja_run *r, struct bl_jv v, int64_t *out)
{
    if (v.kind != BL_J_STRING)
        return count_items(v, out);
    *out = bl_jrun_work(r, v.len) ? (int64_t)bl_jtext_count(bl_jv_bytes(v), v.len) : 0;
    return true;
}

bool bl_jv_truth(struct bl_jv v)
{
    int64_t n;
    switch (v.kind) {
    case BL_J_ABSENT:
    case BL_J_UNDEFINED:
    case BL_J_NONE:
        return false;
    case BL_J_BOOL:
        return v.b;
    case BL_J_INT:
        return v.i != 0;
    case BL_J_FLOAT:
        return v.f != 0;
    case BL_J_STRING:
        return v.len != 0;
    default:
        return !count_items(v, &n) || n != 0;
    }
}

const char *bl_jv_type(struct bl_jv v)
{
    static const char *const names[] = {
        [BL_J_ABSENT] = "Undefined",  [BL_J_UNDEFINED] = "Undefined",
        [BL_J_NONE] = "NoneType",     [BL_J_BOOL] = "bool",
        [BL_J_INT] = "int",           [BL_J_FLOAT] = "float",
        [BL_J_STRING] = "str",        [BL_J_LIST] = "list",
        [BL_J_TUPLE] = "tuple",       [BL_J_MAP] = "dict",
        [BL_J_RANGE] = "range",       [BL_J_NAMESPACE] = "Namespace",
        [BL_J_FUNCTION] = "function", [BL_J_MACRO] = "Macro",
        [BL_J_LOOP] = "LoopContext",  [BL_J_CYCLER] = "Cycler",
        [BL_J_JOINER] = "Joiner",
    };
    return v.kind == BL_J_VIEW || v.kind == BL_J_ITER ? v.list->type : names[v.kind];
}

/* ---- lists ----------------------------------------------------------------------------------- */

struct bl_jlist *bl_jlist_new(struct bl_jinja_run *r, uint64_t cap)
{
    if (cap > UINT32_MAX / 2) {
        bl_jrun_fail(r, BL_ELIMIT, "a list of %llu items is too long", (unsigned long long)cap);
        return &r->no_list;
    }
    struct bl_jlist *l = bl_jrun_alloc(r, sizeof *l);
    struct bl_jv *item = bl_jrun_alloc(r, cap * sizeof *item);
    if (!l || !item)
        return &r->no_list;
    l->item = item;
    l->cap = (uint32_t)cap;
    return l;
}

void bl_jlist_push(struct bl_jinja_run *r, struct bl_jlist *l, struct bl_jv v)
{
    if (r->status)
        return;
    if (l->n == l->cap) {
        uint64_t cap = l->cap < 4 ? 8 : (uint64_t)l->cap * 2;
        struct bl_jv *item = cap > UINT32_MAX ? NULL : bl_jrun_alloc(r, cap * sizeof *item);
        if (!item) {
            bl_jrun_fail(r, BL_ELIMIT, "a list of %u items is too long", l->n);
            return;
        }
        if (l->n)
            memcpy(item, l->item, l->n * sizeof *item);
        l->item = item;
        l->cap = (uint32_t)cap;
    }
    if (bl_jrun_work(r, sizeof v))
        l->item[l->n++] = v;
}

struct bl_jv bl_jlist_value(enum bl_jkind kind, struct bl_jlist *l)
{
    return (struct bl_jv){.kind = kind, .list = l};
}

struct bl_jv bl_jlist_iter(struct bl_jlist *l, const char *type)
{
    l->type = type;
    l->next = 0;
    return bl_jlist_value(BL_J_ITER, l);
}

/* ---- walking --------------------------------------------------------------------------------- */

bool bl_jv_is_iterable(struct bl_jv v)
{
    return v.kind == BL_J_UNDEFINED || v.kind == BL_J_STRING || v.kind == BL_J_MAP ||
           v.kind == BL_J_RANGE || bl_jv_is_sequence(v);
}

struct bl_jiter bl_jiter_start(struct bl_jinja_run *r, struct bl_jv v)
{
    if (!bl_jv_is_iterable(v)) {
        bl_jrun_fail(r, BL_EINVAL, "'%s' object is not iterable", bl_jv_type(v));
        v = bl_jv_undefined(NULL);
    }
    return (struct bl_jiter){.of = v};
}

static bool next_character(struct bl_jiter *it, struct bl_jv *item)
{
    if (it->at >= it->of.len)
        return false;
    size_t n = bl_jtext_next(bl_jv_bytes(it->of) + it->at, it->of.len - it->at);
    *item = bl_jv_slice(it->of, it->at, n);
    it->at += (uint32_t)n;
    return true;
}

bool bl_jiter_next(struct bl_jinja_run *r, struct bl_jiter *it, struct bl_jv *item)
{
    struct bl_jv v = it->of;
    uint32_t n = 0, *at = &it->at;
    if (v.kind == BL_J_UNDEFINED || !bl_jrun_work(r, sizeof v))
        return false;
    if (v.kind == BL_J_STRING)
        return next_character(it, item);
    if (v.kind == BL_J_ITER)
        at = &v.list->next;
    n = v.kind == BL_J_MAP ? v.map->n : v.kind == BL_J_RANGE ? v.range->n : v.list->n;
    if (*at >= n)
        return false;
    if (v.kind == BL_J_MAP)
        *item = v.map->entry[*at].key;
    else if (v.kind == BL_J_RANGE)
        *item = bl_jv_int(v.range->start + (int64_t)*at * v.range->step);
    else
        *item = v.list->item[*at];
    (*at)++;
    return true;
}

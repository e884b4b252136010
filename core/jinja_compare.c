/* SPDX-License-Identifier: MIT */
#include "jinja_value.h"

#include <math.h>

static bool equal_items(struct bl_jinja_run *r, const struct bl_jlist *a, const struct bl_jlist *b)
{
    bool same = a->n == b->n && bl_jrun_enter(r);
    for (uint32_t i = 0; same && i < a->n; i++)
        same = bl_jrun_work(r, sizeof *a->item) && bl_jv_equal(r, a->item[i], b->item[i]);
    if (a->n == b->n)
        bl_jrun_leave(r);
    return same;
}

static bool equal_maps(struct bl_jinja_run *r, const struct bl_jmap *a, const struct bl_jmap *b)
{
    bool same = a->n == b->n && bl_jrun_enter(r);
    for (uint32_t i = 0; same && i < a->n; i++) {
        const struct bl_jentry *e = bl_jmap_find(r, b, a->entry[i].key);
        same = e && bl_jrun_work(r, sizeof *e) && bl_jv_equal(r, a->entry[i].value, e->value);
    }
    if (a->n == b->n)
        bl_jrun_leave(r);
    return same;
}

/* -1, 0, 1, or unordered with NaN. Integers that a double cannot hold are told apart from their
 * neighbours. */
static int order_numbers(struct bl_jv a, struct bl_jv b)
{
    int64_t i, j;
    if (bl_jv_as_int(a, &i) && bl_jv_as_int(b, &j))
        return (i > j) - (i < j);
    double x = bl_jv_as_double(a), y = bl_jv_as_double(b);
    if (isnan(x) || isnan(y))
        return BL_J_UNORDERED;
    if (x != y || fabs(x) >= 0x1p63 || (a.kind == BL_J_FLOAT && b.kind == BL_J_FLOAT))
        return (x > y) - (x < y);
    i = a.kind == BL_J_FLOAT ? (int64_t)a.f : bl_jv_as_int(a, &i) ? i : 0;
    j = b.kind == BL_J_FLOAT ? (int64_t)b.f : bl_jv_as_int(b, &j) ? j : 0;
    return (i > j) - (i < j);
}

static bool equal_objects(struct bl_jinja_run *r, struct bl_jv a, struct bl_jv b)
{
    if (a.kind != b.kind)
        return false;
    switch (a.kind) {
    case BL_J_STRING:
        return a.len == b.len && bl_jrun_work(r, a.len) &&
               memcmp(bl_jv_bytes(a), bl_jv_bytes(b), a.len) == 0;
    case BL_J_LIST:
    case BL_J_TUPLE:
        return a.list == b.list || equal_items(r, a.list, b.list);
    case BL_J_MAP:
        return a.map == b.map || equal_maps(r, a.map, b.map);
    case BL_J_RANGE:
        return a.range->n == b.range->n &&
               (!a.range->n || (a.range->start == b.range->start &&
                                (a.range->n == 1 || a.range->step == b.range->step)));
    case BL_J_ABSENT:
    case BL_J_UNDEFINED:
    case BL_J_NONE:
        return true;
    case BL_J_FUNCTION:
        return a.bound == b.bound;
    default:
        return a.list == b.list; /* the same object; all of them are pointers */
    }
}

bool bl_jv_equal(struct bl_jinja_run *r, struct bl_jv a, struct bl_jv b)
{
    if (bl_jv_is_number(a) && bl_jv_is_number(b))
        return order_numbers(a, b) == 0;
    return equal_objects(r, a, b);
}

static int order_strings(struct bl_jinja_run *r, struct bl_jv a, struct bl_jv b)
{
    uint32_t n = a.len < b.len ? a.len : b.len;
    if (!bl_jrun_work(r, n))
        return 0;
    int c = memcmp(bl_jv_bytes(a), bl_jv_bytes(b), n);
    return c ? (c > 0) - (c < 0) : (a.len > b.len) - (a.len < b.len);
}

static int order_items(struct bl_jinja_run *r, const struct bl_jlist *a, const struct bl_jlist *b,
                       const char *op)
{
    int c = 0;
    if (bl_jrun_enter(r)) {
        uint32_t n = a->n < b->n ? a->n : b->n, i = 0;
        while (i < n && bl_jv_equal(r, a->item[i], b->item[i]) && bl_jrun_work(r, sizeof *a->item))
            i++;
        c = i < n ? bl_jv_order(r, a->item[i], b->item[i], op) : (a->n > b->n) - (a->n < b->n);
    }
    bl_jrun_leave(r);
    return c;
}

int bl_jv_order(struct bl_jinja_run *r, struct bl_jv a, struct bl_jv b, const char *op)
{
    if (bl_jv_is_number(a) && bl_jv_is_number(b))
        return order_numbers(a, b);
    if (a.kind == BL_J_STRING && b.kind == BL_J_STRING)
        return order_strings(r, a, b);
    if (a.kind == b.kind && (a.kind == BL_J_LIST || a.kind == BL_J_TUPLE))
        return order_items(r, a.list, b.list, op);
    if (a.kind == BL_J_UNDEFINED || b.kind == BL_J_UNDEFINED)
        bl_jrun_fail_undefined(r, a.kind == BL_J_UNDEFINED ? a : b);
    bl_jrun_fail(r, BL_EINVAL, "'%s' not supported between instances of '%s' and '%s'", op,
                 bl_jv_type(a), bl_jv_type(b));
    return 0;
}

static bool contains_text(struct bl_jinja_run *r, struct bl_jv in, struct bl_jv what)
{
    if (what.kind == BL_J_UNDEFINED)
        bl_jrun_fail_undefined(r, what);
    if (what.kind != BL_J_STRING)
        bl_jrun_fail(r, BL_EINVAL, "'in <string>' requires string as left operand, not %s",
                     bl_jv_type(what));
    if (r->status || !bl_jrun_work(r, in.len))
        return false;
    return !what.len || memmem(bl_jv_bytes(in), in.len, bl_jv_bytes(what), what.len);
}

bool bl_jv_contains(struct bl_jinja_run *r, struct bl_jv in, struct bl_jv what)
{
    struct bl_jv item;
    if (in.kind == BL_J_STRING)
        return contains_text(r, in, what);
    if (in.kind == BL_J_MAP)
        return bl_jmap_find(r, in.map, what) != NULL;
    if (!bl_jv_is_iterable(in)) {
        bl_jrun_fail(r, BL_EINVAL, "argument of type '%s' is not iterable", bl_jv_type(in));
        return false;
    }
    struct bl_jiter it = bl_jiter_start(r, in);
    while (bl_jiter_next(r, &it, &item))
        if (bl_jv_equal(r, item, what))
            return true;
    return false;
}

/* SPDX-License-Identifier: MIT */
#include "jinja_eval.h"

/* jinja2 names its own types with their modules here, and only here. */
static const char *owner_type(struct bl_jv of)
{
    switch (of.kind) {
    case BL_J_NAMESPACE:
        return "jinja2.utils.Namespace";
    case BL_J_MACRO:
        return "jinja2.runtime.Macro";
    case BL_J_LOOP:
        return "jinja2.runtime.LoopContext";
    default:
        return bl_jv_type(of);
    }
}

static struct bl_jv missing(struct bl_jinja_run *r, struct bl_jv of, struct bl_jv name)
{
    struct bl_jhint *h = bl_jrun_alloc(r, sizeof *h);
    if (h)
        *h = (struct bl_jhint){.name = name, .owner = owner_type(of)};
    return bl_jv_undefined(h);
}

static struct bl_jv forbidden(struct bl_jinja_run *r, struct bl_jv of, struct bl_jv name)
{
    struct bl_jhint *h = bl_jrun_alloc(r, sizeof *h);
    if (h)
        *h = (struct bl_jhint){.name = name, .owner = bl_jv_type(of), .forbidden = true};
    return bl_jv_undefined(h);
}

/* ---- attributes ------------------------------------------------------------------------------ */

static struct bl_jv loop_number(struct bl_jinja_run *r, struct bl_jloop *l, struct bl_jv name)
{
    if (bl_jv_is_text(name, "index"))
        return bl_jv_int(l->index0 + 1);
    if (bl_jv_is_text(name, "index0"))
        return bl_jv_int(l->index0);
    if (bl_jv_is_text(name, "depth"))
        return bl_jv_int((int64_t)l->depth0 + 1);
    if (bl_jv_is_text(name, "depth0"))
        return bl_jv_int(l->depth0);
    if (bl_jv_is_text(name, "length"))
        return bl_jv_int(bl_jloop_length(r, l));
    if (bl_jv_is_text(name, "revindex"))
        return bl_jv_int(bl_jloop_length(r, l) - l->index0);
    if (bl_jv_is_text(name, "revindex0"))
        return bl_jv_int(bl_jloop_length(r, l) - l->index0 - 1);
    return (struct bl_jv){0};
}

/* ABSENT: no such attribute. */
static struct bl_jv loop_attribute(struct bl_jinja_run *r, struct bl_jloop *l, struct bl_jv name)
{
    static const struct bl_jhint before = {.text = "there is no previous item"},
                                 after = {.text = "there is no next item"};
    if (bl_jv_is_text(name, "first"))
        return bl_jv_bool(l->index0 == 0);
    if (bl_jv_is_text(name, "last"))
        return bl_jv_bool(!bl_jloop_peek(r, l));
    if (bl_jv_is_text(name, "previtem"))
        return l->index0 > 0 ? l->previous : bl_jv_undefined(&before);
    if (bl_jv_is_text(name, "nextitem"))
        return bl_jloop_peek(r, l) ? l->next : bl_jv_undefined(&after);
    return loop_number(r, l, name);
}

static struct bl_jv own_attribute(struct bl_jinja_run *r, struct bl_jv of, struct bl_jv name)
{
    if (of.kind == BL_J_LOOP)
        return loop_attribute(r, of.loop, name);
    if (of.kind == BL_J_MACRO && bl_jv_is_text(name, "name"))
        return of.macro->node->value;
    if (of.kind == BL_J_CYCLER && bl_jv_is_text(name, "current") && of.list->n)
        return of.list->item[of.list->next % of.list->n];
    if (of.kind == BL_J_NAMESPACE) {
        const struct bl_jentry *e = bl_jmap_find(r, of.map, name);
        if (e)
            return e->value;
    }
    return (struct bl_jv){0};
}

static bool is_dunder(struct bl_jv name)
{
    const char *s = bl_jv_bytes(name);
    return name.len > 4 && memcmp(s, "__", 2) == 0 && memcmp(s + name.len - 2, "__", 2) == 0;
}

/* What Python's getattr would find: ABSENT if nothing. */
static struct bl_jv python_attribute(struct bl_jinja_run *r, struct bl_jv of, struct bl_jv name)
{
    struct bl_jv v = own_attribute(r, of, name);
    if (v.kind || r->status)
        return v;
    const struct bl_jbuiltin *method = bl_jmethod_find(of, name);
    if (is_dunder(name) || (method && bl_jmethod_mutates(method) && !r->mutable_values))
        return forbidden(r, of, name);
    struct bl_jbound *bound = method ? bl_jrun_alloc(r, sizeof *bound) : NULL;
    if (!bound)
        return (struct bl_jv){0};
    *bound = (struct bl_jbound){method, of};
    return (struct bl_jv){.kind = BL_J_FUNCTION, .bound = bound};
}

/* ---- items ----------------------------------------------------------------------------------- */

static struct bl_jv character(struct bl_jv s, int64_t index)
{
    const char *bytes = bl_jv_bytes(s);
    size_t at = 0, end = s.len;
    if (index >= 0) {
        while (at < end && index--)
            at += bl_jtext_next(bytes + at, end - at);
        if (at < end)
            return bl_jv_slice(s, at, bl_jtext_next(bytes + at, end - at));
    } else {
        while (end && ++index)
            end -= bl_jtext_last(bytes, end);
        if (end) {
            size_t n = bl_jtext_last(bytes, end);
            return bl_jv_slice(s, end - n, n);
        }
    }
    return (struct bl_jv){0};
}

static struct bl_jv indexed(struct bl_jinja_run *r, struct bl_jv of, int64_t index)
{
    if (of.kind == BL_J_STRING)
        return bl_jrun_work(r, of.len) ? character(of, index) : (struct bl_jv){0};
    int64_t n = of.kind == BL_J_RANGE ? of.range->n : of.list->n;
    if (index < 0)
        index += n;
    if (index < 0 || index >= n)
        return (struct bl_jv){0};
    return of.kind == BL_J_RANGE ? bl_jv_int(of.range->start + index * of.range->step)
                                 : of.list->item[index];
}

static bool is_hashable(struct bl_jv v)
{
    if (v.kind == BL_J_TUPLE)
        for (uint32_t i = 0; i < v.list->n; i++)
            if (v.list->item[i].kind == BL_J_TUPLE || !is_hashable(v.list->item[i]))
                return false; /* tuples in tuples are hashable too, but nobody has such keys */
    return v.kind != BL_J_LIST && v.kind != BL_J_MAP && v.kind != BL_J_VIEW;
}

/* What of[index] gives in Python: ABSENT where it raises. */
static struct bl_jv python_item(struct bl_jinja_run *r, struct bl_jv of, struct bl_jv index)
{
    int64_t i;
    bool by_number = of.kind == BL_J_STRING || of.kind == BL_J_LIST || of.kind == BL_J_TUPLE ||
                     of.kind == BL_J_RANGE;
    if (of.kind == BL_J_MAP && is_hashable(index)) {
        const struct bl_jentry *e = bl_jmap_find(r, of.map, index);
        return e ? e->value : (struct bl_jv){0};
    }
    return by_number && bl_jv_as_int(index, &i) ? indexed(r, of, i) : (struct bl_jv){0};
}

struct bl_jv bl_jget_attribute(struct bl_jinja_run *r, struct bl_jv of, struct bl_jv name)
{
    if (of.kind == BL_J_UNDEFINED)
        return bl_jrun_fail_undefined(r, of);
    struct bl_jv v = python_attribute(r, of, name);
    if (!v.kind)
        v = python_item(r, of, name);
    return v.kind ? v : missing(r, of, name);
}

struct bl_jv bl_jget_item(struct bl_jinja_run *r, struct bl_jv of, struct bl_jv index)
{
    if (of.kind == BL_J_UNDEFINED)
        return bl_jrun_fail_undefined(r, of);
    struct bl_jv v = python_item(r, of, index);
    if (!v.kind && index.kind == BL_J_STRING)
        v = python_attribute(r, of, index);
    return v.kind ? v : missing(r, of, index);
}

struct bl_jv bl_jget_path(struct bl_jinja_run *r, struct bl_jv of, struct bl_jv path)
{
    if (path.kind != BL_J_STRING)
        return bl_jget_item(r, of, path);
    for (uint32_t at = 0; at <= path.len && !r->status;) {
        const char *s = bl_jv_bytes(path) + at;
        const char *dot = memchr(s, '.', path.len - at);
        uint32_t n = dot ? (uint32_t)(dot - s) : path.len - at, digits = 0;
        int64_t number = 0;
        for (; digits < n && digits < 9 && s[digits] >= '0' && s[digits] <= '9'; digits++)
            number = number * 10 + (s[digits] - '0');
        struct bl_jv part = n && digits == n ? bl_jv_int(number) : bl_jv_slice(path, at, n);
        of = bl_jget_item(r, of, part);
        at += n + 1;
    }
    return of;
}

/* ---- slices ---------------------------------------------------------------------------------- */

struct bounds {
    int64_t start, stop, step, n;
};

static bool slice_index(struct bl_jinja_run *r, struct bl_jv v, int64_t *out)
{
    if (bl_jv_as_int(v, out))
        return true;
    if (v.kind == BL_J_UNDEFINED)
        bl_jrun_fail_undefined(r, v);
    bl_jrun_fail(r, BL_EINVAL,
                 "slice indices must be integers or None or have an __index__ method");
    return false;
}

static int64_t clamp(int64_t i, int64_t n, int64_t low, int64_t high)
{
    if (i < 0)
        i = i < -n ? -1 : i + n;
    return i < low ? low : i > high ? high : i;
}

static struct bounds slice_bounds(struct bl_jinja_run *r, int64_t n, struct bl_jv start,
                                  struct bl_jv stop, struct bl_jv step)
{
    struct bounds b = {.step = 1};
    int64_t i;
    if (step.kind != BL_J_NONE && slice_index(r, step, &i))
        b.step = i;
    if (!b.step)
        bl_jrun_fail(r, BL_EINVAL, "slice step cannot be zero");
    bool back = b.step < 0;
    int64_t low = back ? -1 : 0, high = back ? n - 1 : n;
    b.start = back ? high : low;
    b.stop = back ? low : high;
    if (start.kind != BL_J_NONE && slice_index(r, start, &i))
        b.start = clamp(i, n, low, high);
    if (stop.kind != BL_J_NONE && slice_index(r, stop, &i))
        b.stop = clamp(i, n, low, high);
    if (r->status)
        return b;
    int64_t span = back ? b.start - b.stop : b.stop - b.start;
    uint64_t stride = back ? 0 - (uint64_t)b.step : (uint64_t)b.step;
    b.n = span > 0 ? (int64_t)(((uint64_t)span - 1) / stride) + 1 : 0;
    return b;
}

static size_t skip_characters(struct bl_jv s, size_t at, int64_t n)
{
    while (n-- > 0 && at < s.len)
        at += bl_jtext_next(bl_jv_bytes(s) + at, s.len - at);
    return at;
}

static struct bl_jv slice_string(struct bl_jinja_run *r, struct bl_jv s, const struct bounds *b)
{
    size_t at = skip_characters(s, 0, b->start);
    if (b->step == 1)
        return bl_jv_slice(s, at, skip_characters(s, at, b->n) - at);
    struct bl_jbuf *out = bl_jbuf_new(r, 0);
    if (b->n && b->step < 0)
        at = skip_characters(s, at, 1); /* behind the first one taken */
    for (int64_t i = 0; i < b->n && !r->status; i++) {
        const char *bytes = bl_jv_bytes(s);
        size_t n = b->step < 0 ? bl_jtext_last(bytes, at) : bl_jtext_next(bytes + at, s.len - at);
        bl_jbuf_add(r, out, bl_jv_slice(s, b->step < 0 ? at - n : at, n));
        if (b->step > 0)
            at = skip_characters(s, at, b->step);
        else
            for (int64_t k = b->step; k && at; k++)
                at -= bl_jtext_last(bytes, at);
    }
    return bl_jbuf_string(out);
}

static struct bl_jv slice_range(struct bl_jinja_run *r, const struct bl_jrange *of,
                                const struct bounds *b)
{
    struct bl_jrange *range = bl_jrun_alloc(r, sizeof *range);
    if (!range)
        return bl_jv_undefined(NULL);
    *range = (struct bl_jrange){.start = of->start + b->start * of->step,
                                .stop = of->start + b->stop * of->step,
                                .step = b->n > 1 ? of->step * b->step : of->step,
                                .n = (uint32_t)b->n};
    return (struct bl_jv){.kind = BL_J_RANGE, .range = range};
}

static struct bl_jv slice_items(struct bl_jinja_run *r, struct bl_jv of, const struct bounds *b)
{
    struct bl_jlist *l = bl_jlist_new(r, (uint64_t)b->n);
    for (int64_t i = 0; i < b->n && !r->status; i++)
        bl_jlist_push(r, l, indexed(r, of, b->start + i * b->step));
    return bl_jlist_value(of.kind == BL_J_TUPLE ? BL_J_TUPLE : BL_J_LIST, l);
}

struct bl_jv bl_jget_slice(struct bl_jinja_run *r, struct bl_jv of, struct bl_jv start,
                           struct bl_jv stop, struct bl_jv step)
{
    int64_t n = 0;
    if (of.kind == BL_J_UNDEFINED)
        return bl_jrun_fail_undefined(r, of);
    if (of.kind == BL_J_MAP)
        return bl_jrun_fail(r, BL_EINVAL, "unhashable type: 'slice'");
    if (of.kind != BL_J_STRING && of.kind != BL_J_LIST && of.kind != BL_J_TUPLE &&
        of.kind != BL_J_RANGE)
        return bl_jrun_fail(r, BL_EINVAL, "'%s' object is not subscriptable", bl_jv_type(of));
    bl_jv_length(r, of, &n);
    struct bounds b = slice_bounds(r, n, start, stop, step);
    if (r->status || (of.kind == BL_J_STRING && !bl_jrun_work(r, of.len)))
        return bl_jv_undefined(NULL);
    if (of.kind == BL_J_RANGE)
        return slice_range(r, of.range, &b);
    return of.kind == BL_J_STRING ? slice_string(r, of, &b) : slice_items(r, of, &b);
}

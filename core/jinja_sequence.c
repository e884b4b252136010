/* SPDX-License-Identifier: MIT */
#include "jinja_eval.h"

#include <stdlib.h>

static struct bl_jlist *collect(struct bl_jinja_run *r, struct bl_jv v)
{
    struct bl_jlist *l = bl_jlist_new(r, 0);
    struct bl_jiter it = bl_jiter_start(r, v);
    struct bl_jv item;
    while (bl_jiter_next(r, &it, &item))
        bl_jlist_push(r, l, item);
    return l;
}

static struct bl_jv undefined_because(struct bl_jinja_run *r, const char *text)
{
    struct bl_jhint *h = bl_jrun_alloc(r, sizeof *h);
    if (h)
        h->text = text;
    return bl_jv_undefined(h);
}

/* ---- whole sequences ------------------------------------------------------------------------- */

static struct bl_jv to_list(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    return bl_jlist_value(BL_J_LIST, collect(r, c->self));
}

static struct bl_jv first(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    struct bl_jiter it = bl_jiter_start(r, c->self);
    struct bl_jv item;
    return bl_jiter_next(r, &it, &item)
               ? item
               : undefined_because(r, "No first item, sequence was empty.");
}

static struct bl_jv last(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    if (c->self.kind == BL_J_ITER)
        return bl_jrun_fail(r, BL_EINVAL, "'generator' object is not reversible");
    const struct bl_jlist *l = collect(r, c->self);
    return l->n ? l->item[l->n - 1] : undefined_because(r, "No last item, sequence was empty.");
}

static struct bl_jv join(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    struct bl_jv separator = c->arg[0].kind ? bl_jv_str(r, c->arg[0]) : bl_jv_text(r, "");
    struct bl_jv items = c->self;
    if (c->arg[1].kind > BL_J_NONE) {
        struct bl_jlist *l = collect(r, items);
        for (uint32_t i = 0; i < l->n && !r->status; i++)
            l->item[i] = bl_jget_path(r, l->item[i], c->arg[1]);
        items = bl_jlist_value(BL_J_LIST, l);
    }
    return bl_jstr_join(r, separator, items, true);
}

static struct bl_jv items(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    struct bl_jlist *l = bl_jlist_new(r, 0);
    if (c->self.kind != BL_J_MAP && c->self.kind != BL_J_UNDEFINED)
        return bl_jrun_fail(r, BL_EINVAL, "Can only get item pairs from a mapping.");
    uint32_t n = c->self.kind == BL_J_MAP ? c->self.map->n : 0;
    for (uint32_t i = 0; i < n && !r->status; i++) {
        struct bl_jlist *pair = bl_jlist_new(r, 2);
        bl_jlist_push(r, pair, c->self.map->entry[i].key);
        bl_jlist_push(r, pair, c->self.map->entry[i].value);
        bl_jlist_push(r, l, bl_jlist_value(BL_J_TUPLE, pair));
    }
    return bl_jlist_iter(l, "generator");
}

static struct bl_jv reverse(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    if (c->self.kind == BL_J_STRING)
        return bl_jget_slice(r, c->self, bl_jv_none(), bl_jv_none(), bl_jv_int(-1));
    struct bl_jlist *l = collect(r, c->self), *out = bl_jlist_new(r, l->n);
    for (uint32_t i = l->n; i && !r->status; i--)
        bl_jlist_push(r, out, l->item[i - 1]);
    return bl_jlist_iter(out, c->self.kind == BL_J_ITER ? "list" : "list_reverseiterator");
}

static struct bl_jv sum(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    struct bl_jv total = c->arg[1].kind ? c->arg[1] : bl_jv_int(0), item;
    struct bl_jiter it = bl_jiter_start(r, c->self);
    while (bl_jiter_next(r, &it, &item)) {
        if (c->arg[0].kind > BL_J_NONE)
            item = bl_jget_path(r, item, c->arg[0]);
        total = bl_jop_binary(r, BL_JT_ADD, total, item);
    }
    return total;
}

static struct bl_jv batch(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    struct bl_jlist *out = bl_jlist_new(r, 0), *row = NULL;
    int64_t size = bl_jcall_int(r, c->arg[0], 1);
    struct bl_jiter it = bl_jiter_start(r, c->self);
    struct bl_jv item;
    while (bl_jiter_next(r, &it, &item)) {
        if (!row || row->n == size) {
            row = bl_jlist_new(r, 0);
            bl_jlist_push(r, out, bl_jlist_value(BL_J_LIST, row));
        }
        bl_jlist_push(r, row, item);
    }
    if (row && c->arg[1].kind > BL_J_NONE)
        while (row->n < size && !r->status)
            bl_jlist_push(r, row, c->arg[1]);
    return bl_jlist_iter(out, "generator");
}

/* So many columns, the first ones longer by one where it does not divide. */
static struct bl_jv slice(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    struct bl_jlist *l = collect(r, c->self), *out = bl_jlist_new(r, 0);
    int64_t columns = bl_jcall_int(r, c->arg[0], 1);
    if (columns <= 0)
        return bl_jrun_fail(r, BL_EINVAL, "slice: the number of slices must be positive");
    int64_t each = l->n / columns, longer = l->n % columns, at = 0;
    for (int64_t i = 0; i < columns && bl_jrun_step(r, 1); i++) {
        struct bl_jlist *column = bl_jlist_new(r, 0);
        for (int64_t end = at + each + (i < longer); at < end && !r->status; at++)
            bl_jlist_push(r, column, l->item[at]);
        if (c->arg[1].kind > BL_J_NONE && i >= longer)
            bl_jlist_push(r, column, c->arg[1]);
        bl_jlist_push(r, out, bl_jlist_value(BL_J_LIST, column));
    }
    return bl_jlist_iter(out, "generator");
}

/* ---- order ----------------------------------------------------------------------------------- */

struct sorter {
    struct bl_jinja_run *r;
    struct bl_jv attribute; /* a path; ABSENT or none: the item itself */
    bool case_sensitive, descending;
    bool several; /* `attribute` may name several paths; keys are tuples then, even of one part */
};

static struct bl_jv fold(struct bl_jinja_run *r, struct bl_jv v, bool case_sensitive)
{
    return case_sensitive || v.kind != BL_J_STRING ? v : bl_jstr_case(r, v, BL_JCASE_LOWER);
}

/* What an item is sorted or compared by. */
static struct bl_jv one_key(const struct sorter *s, struct bl_jv item, struct bl_jv path)
{
    if (path.kind > BL_J_NONE)
        item = bl_jget_path(s->r, item, path);
    return fold(s->r, item, s->case_sensitive);
}

static struct bl_jv sort_key(const struct sorter *s, struct bl_jv item)
{
    struct bl_jv path = s->attribute;
    if (!s->several)
        return one_key(s, item, path);
    struct bl_jlist *keys = bl_jlist_new(s->r, 1);
    if (path.kind != BL_J_STRING) {
        bl_jlist_push(s->r, keys, one_key(s, item, path));
        return bl_jlist_value(BL_J_TUPLE, keys);
    }
    struct bl_jv paths = bl_jstr_split(s->r, path, bl_jv_text(s->r, ","), -1, false);
    for (uint32_t i = 0; !s->r->status && i < paths.list->n; i++)
        bl_jlist_push(s->r, keys, one_key(s, item, paths.list->item[i]));
    return bl_jlist_value(BL_J_TUPLE, keys);
}

struct keyed {
    struct bl_jv key, item;
};

/* Stable; libc's sort gives no place for a context and need not be. */
static void merge_sort(const struct sorter *s, struct keyed *a, struct keyed *spare, size_t n)
{
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t at = 0; at < n && !s->r->status; at += 2 * width) {
            size_t mid = at + width < n ? at + width : n, end = mid + width < n ? mid + width : n;
            size_t i = at, j = mid;
            for (size_t k = at; k < end && bl_jrun_work(s->r, sizeof *a); k++) {
                int c = i < mid && j < end ? bl_jv_order(s->r, a[j].key, a[i].key, "<") : 0;
                bool right = i == mid || (j < end && (s->descending ? c > 0 : c < 0));
                spare[k] = right ? a[j++] : a[i++];
            }
        }
        if (s->r->status)
            return;
        memcpy(a, spare, n * sizeof *a);
    }
}

static struct bl_jv sorted(const struct sorter *s, struct bl_jlist *l)
{
    struct bl_jinja_run *r = s->r;
    struct keyed *a = bl_jrun_alloc(r, (uint64_t)l->n * 2 * sizeof *a);
    if (!a)
        return bl_jv_undefined(NULL);
    for (uint32_t i = 0; i < l->n && !r->status; i++)
        a[i] = (struct keyed){sort_key(s, l->item[i]), l->item[i]};
    merge_sort(s, a, a + l->n, l->n);
    for (uint32_t i = 0; i < l->n && !r->status; i++)
        l->item[i] = a[i].item;
    return bl_jlist_value(BL_J_LIST, l);
}

static struct bl_jv sort(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    struct sorter s = {.r = r,
                       .attribute = c->arg[2],
                       .case_sensitive = bl_jv_truth(c->arg[1]),
                       .descending = bl_jv_truth(c->arg[0]),
                       .several = true};
    return sorted(&s, collect(r, c->self));
}

static struct bl_jv dict_sort(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    struct bl_jv by = c->arg[1].kind ? c->arg[1] : bl_jv_text(r, "key");
    bool by_value = bl_jv_is_text(by, "value");
    if (!by_value && !bl_jv_is_text(by, "key"))
        return bl_jrun_fail(r, BL_EINVAL, "You can only sort by either \"key\" or \"value\"");
    if (c->self.kind != BL_J_MAP)
        return bl_jrun_fail(r, BL_EINVAL, "'%s' object has no attribute 'items'",
                            bl_jv_type(c->self));
    struct sorter s = {.r = r,
                       .attribute = bl_jv_int(by_value),
                       .case_sensitive = bl_jv_truth(c->arg[0]),
                       .descending = bl_jv_truth(c->arg[2])};
    return sorted(&s, collect(r, items(r, c)));
}

static struct bl_jv unique(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    struct sorter s = {.r = r, .attribute = c->arg[1], .case_sensitive = bl_jv_truth(c->arg[0])};
    struct bl_jlist *out = bl_jlist_new(r, 0);
    struct bl_jmap *seen = bl_jmap_new(r);
    struct bl_jiter it = bl_jiter_start(r, c->self);
    struct bl_jv item;
    while (bl_jiter_next(r, &it, &item)) {
        struct bl_jv key = sort_key(&s, item);
        if (bl_jmap_find(r, seen, key))
            continue;
        bl_jmap_set(r, seen, key, bl_jv_none());
        bl_jlist_push(r, out, item);
    }
    return bl_jlist_iter(out, "generator");
}

enum { SMALLEST, LARGEST };

static struct bl_jv extreme(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    struct sorter s = {.r = r, .attribute = c->arg[1], .case_sensitive = bl_jv_truth(c->arg[0])};
    bool largest = c->fn->mode == LARGEST;
    struct bl_jiter it = bl_jiter_start(r, c->self);
    struct bl_jv item, best = {0}, best_key = {0};
    while (bl_jiter_next(r, &it, &item)) {
        struct bl_jv key = sort_key(&s, item);
        int order = best.kind ? bl_jv_order(r, key, best_key, largest ? ">" : "<") : 0;
        if (!best.kind || (order != BL_J_UNORDERED && (largest ? order > 0 : order < 0))) {
            best = item;
            best_key = key;
        }
    }
    return best.kind ? best : undefined_because(r, "No aggregated item, sequence was empty.");
}

/* ---- item by item ---------------------------------------------------------------------------- */

/* The value of one named argument, taken out of those that go on to the filter. */
static struct bl_jv take_named(const struct bl_jargs *args, const char *name)
{
    for (uint32_t i = 0; i < args->n_named; i++)
        if (bl_jv_is_text(args->named[i].name, name))
            return args->named[i].value;
    return (struct bl_jv){0};
}

/* These filters take anything false for an empty sequence, none for instance. */
static struct bl_jiter start_unless_empty(struct bl_jinja_run *r, struct bl_jv v)
{
    return bl_jiter_start(r, bl_jv_truth(v) ? v : bl_jv_undefined(NULL));
}

static struct bl_jv map(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    struct bl_jlist *out = bl_jlist_new(r, 0);
    struct bl_jv path = take_named(&c->args, "attribute"),
                 otherwise = take_named(&c->args, "default");
    struct bl_jv item;
    if (!c->args.n_pos && !path.kind)
        return bl_jrun_fail(r, BL_EINVAL, "map requires a filter argument");
    struct bl_jiter it = start_unless_empty(r, c->self);
    while (bl_jiter_next(r, &it, &item)) {
        if (c->args.n_pos) {
            item = bl_jcall_filter_by_name(r, item, c->args);
        } else {
            item = bl_jget_path(r, item, path);
            if (item.kind == BL_J_UNDEFINED && otherwise.kind)
                item = otherwise;
        }
        bl_jlist_push(r, out, item);
    }
    return bl_jlist_iter(out, "generator");
}

enum { SELECT = 0, REJECT = 1, BY_ATTRIBUTE = 2 };

static struct bl_jv choose(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    struct bl_jlist *out = bl_jlist_new(r, 0);
    struct bl_jargs test = c->args;
    struct bl_jv path = {0}, item;
    if (c->fn->mode & BY_ATTRIBUTE) {
        if (!test.n_pos)
            return bl_jrun_fail(r, BL_EINVAL, "Missing parameter for attribute name");
        path = *test.pos++;
        test.n_pos--;
    }
    struct bl_jiter it = start_unless_empty(r, c->self);
    while (bl_jiter_next(r, &it, &item)) {
        struct bl_jv v = path.kind ? bl_jget_path(r, item, path) : item;
        bool yes = test.n_pos ? bl_jcall_test_by_name(r, v, test) : bl_jv_truth(v);
        if (yes != (c->fn->mode & REJECT))
            bl_jlist_push(r, out, item);
    }
    return bl_jlist_iter(out, "generator");
}

static const struct bl_jbuiltin filters[] = {
    {"join", join, "d attribute", 0, 0},
    {"items", items, "", 0, 0},
    {"list", to_list, "", 0, 0},
    {"first", first, "", 0, 0},
    {"last", last, "", 0, 0},
    {"map", map, NULL, 0, 0},
    {"select", choose, NULL, 0, SELECT},
    {"reject", choose, NULL, 0, REJECT},
    {"selectattr", choose, NULL, 0, SELECT | BY_ATTRIBUTE},
    {"rejectattr", choose, NULL, 0, REJECT | BY_ATTRIBUTE},
    {"sort", sort, "reverse case_sensitive attribute", 0, 0},
    {"dictsort", dict_sort, "case_sensitive by reverse", 0, 0},
    {"unique", unique, "case_sensitive attribute", 0, 0},
    {"min", extreme, "case_sensitive attribute", 0, SMALLEST},
    {"max", extreme, "case_sensitive attribute", 0, LARGEST},
    {"sum", sum, "attribute start", 0, 0},
    {"reverse", reverse, "", 0, 0},
    {"batch", batch, "linecount fill_with", 1, 0},
    {"slice", slice, "slices fill_with", 1, 0},
};

const struct bl_jbuiltin *bl_jfilter_find_sequence(struct bl_jv name)
{
    return bl_jbuiltin_find(filters, BL_COUNT(filters), name);
}

/* SPDX-License-Identifier: MIT */
#include "jinja_eval.h"

/* A method's argument that must be a string. */
static struct bl_jv text_arg(struct bl_jinja_run *r, const struct bl_jcall *c, int i)
{
    struct bl_jv v = c->arg[i];
    if (v.kind == BL_J_STRING)
        return v;
    if (v.kind == BL_J_UNDEFINED)
        bl_jrun_fail_undefined(r, v);
    bl_jrun_fail(r, BL_EINVAL, "%s() argument %d must be str, not %s", c->fn->name, i + 1,
                 bl_jv_type(v));
    return bl_jv_text(r, "");
}

/* bl_jbuiltin.mode of string methods */
enum { LEFT = 1, RIGHT = 2, BOTH = 3 };
enum { FROM_LEFT, FROM_RIGHT, FROM_LEFT_OR_FAIL, FROM_RIGHT_OR_FAIL };
enum { MUTATES = 100 }; /* of methods that change their object */
enum { ALPHA, ALNUM, DIGIT, SPACE, UPPER, LOWER };

/* ---- strings --------------------------------------------------------------------------------- */

static struct bl_jv change_case(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    return bl_jstr_case(r, c->self, c->fn->mode);
}

static struct bl_jv strip(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    return bl_jstr_strip(r, c->self, c->arg[0], c->fn->mode & LEFT, c->fn->mode & RIGHT);
}

static struct bl_jv split(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    return bl_jstr_split(r, c->self, c->arg[0], bl_jcall_int(r, c->arg[1], -1),
                         c->fn->mode == FROM_RIGHT);
}

static struct bl_jv split_lines(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    return bl_jlist_value(BL_J_LIST, bl_jstr_lines(r, c->self, bl_jv_truth(c->arg[0])));
}

static bool has_affix(struct bl_jinja_run *r, struct bl_jv s, struct bl_jv affix, bool at_end)
{
    if (affix.kind != BL_J_STRING) {
        if (affix.kind == BL_J_UNDEFINED)
            bl_jrun_fail_undefined(r, affix);
        bl_jrun_fail(r, BL_EINVAL, "%s first arg must be str or a tuple of str, not %s",
                     at_end ? "endswith" : "startswith", bl_jv_type(affix));
        return false;
    }
    return affix.len <= s.len && bl_jrun_work(r, affix.len) &&
           memcmp(bl_jv_bytes(s) + (at_end ? s.len - affix.len : 0), bl_jv_bytes(affix),
                  affix.len) == 0;
}

static struct bl_jv affix(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    bool at_end = c->fn->mode == FROM_RIGHT, found = false;
    if (c->arg[0].kind != BL_J_TUPLE)
        return bl_jv_bool(has_affix(r, c->self, c->arg[0], at_end));
    const struct bl_jlist *l = c->arg[0].list;
    for (uint32_t i = 0; i < l->n && !found && !r->status; i++)
        found = has_affix(r, c->self, l->item[i], at_end);
    return bl_jv_bool(found);
}

static struct bl_jv remove_affix(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    bool at_end = c->fn->mode == FROM_RIGHT;
    struct bl_jv what = text_arg(r, c, 0), s = c->self;
    if (!has_affix(r, s, what, at_end))
        return s;
    return bl_jv_slice(s, at_end ? 0 : what.len, s.len - what.len);
}

static struct bl_jv replace(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    struct bl_jv old = text_arg(r, c, 0), with = text_arg(r, c, 1);
    return bl_jstr_replace(r, c->self, old, with, bl_jcall_int(r, c->arg[2], -1));
}

static struct bl_jv find(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    struct bl_jv what = text_arg(r, c, 0), s = c->self;
    bool last = c->fn->mode == FROM_RIGHT || c->fn->mode == FROM_RIGHT_OR_FAIL;
    int64_t at = last ? bl_jstr_find_last(r, s, s.len, what) : bl_jstr_find(r, s, 0, what);
    if (at >= 0)
        return bl_jv_int((int64_t)bl_jtext_count(bl_jv_bytes(s), (size_t)at));
    if (c->fn->mode >= FROM_LEFT_OR_FAIL)
        return bl_jrun_fail(r, BL_EINVAL, "substring not found");
    return bl_jv_int(-1);
}

static struct bl_jv count(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    struct bl_jv what = text_arg(r, c, 0), s = c->self;
    if (!what.len)
        return bl_jv_int((int64_t)bl_jtext_count(bl_jv_bytes(s), s.len) + 1);
    int64_t n = 0, at = bl_jstr_find(r, s, 0, what);
    for (; at >= 0; n++)
        at = bl_jstr_find(r, s, (uint32_t)at + what.len, what);
    return bl_jv_int(n);
}

static struct bl_jv join(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    if (!bl_jv_is_iterable(c->arg[0]))
        return bl_jrun_fail(r, BL_EINVAL, "can only join an iterable");
    return bl_jstr_join(r, c->self, c->arg[0], false);
}

static struct bl_jv format(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    return bl_jformat_braces(r, c->self, &c->args);
}

static bool is_upper(uint32_t cp)
{
    return bl_jtext_lower(cp) != cp;
}

static bool is_lower(uint32_t cp)
{
    return bl_jtext_upper(cp) != cp || cp == 0xDF;
}

static bool is_digit(uint32_t cp)
{
    return cp >= '0' && cp <= '9';
}

static bool is_alnum(uint32_t cp)
{
    return is_digit(cp) || bl_jtext_is_alpha(cp);
}

static struct bl_jv all_are(struct bl_jv s, bool (*is)(uint32_t))
{
    const char *bytes = bl_jv_bytes(s);
    for (size_t at = 0; at < s.len; at += bl_jtext_next(bytes + at, s.len - at))
        if (!is(bl_jtext_decode(bytes + at, s.len - at)))
            return bl_jv_bool(false);
    return bl_jv_bool(s.len != 0);
}

/* At least one character has a case, and none the other one. */
static struct bl_jv cased_are(struct bl_jv s, bool (*is)(uint32_t), bool (*is_other)(uint32_t))
{
    const char *bytes = bl_jv_bytes(s);
    bool some = false;
    for (size_t at = 0; at < s.len; at += bl_jtext_next(bytes + at, s.len - at)) {
        uint32_t cp = bl_jtext_decode(bytes + at, s.len - at);
        if (is_other(cp))
            return bl_jv_bool(false);
        some |= is(cp);
    }
    return bl_jv_bool(some);
}

static struct bl_jv classify(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    if (!bl_jrun_work(r, c->self.len))
        return bl_jv_undefined(NULL);
    switch (c->fn->mode) {
    case UPPER:
        return cased_are(c->self, is_upper, is_lower);
    case LOWER:
        return cased_are(c->self, is_lower, is_upper);
    case ALPHA:
        return all_are(c->self, bl_jtext_is_alpha);
    case ALNUM:
        return all_are(c->self, is_alnum);
    case SPACE:
        return all_are(c->self, bl_jtext_is_space);
    default:
        return all_are(c->self, is_digit);
    }
}

static struct bl_jv partition(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    struct bl_jv separator = text_arg(r, c, 0), s = c->self;
    struct bl_jlist *l = bl_jlist_new(r, 3);
    bool last = c->fn->mode == FROM_RIGHT;
    if (!separator.len)
        return bl_jrun_fail(r, BL_EINVAL, "empty separator");
    int64_t at =
        last ? bl_jstr_find_last(r, s, s.len, separator) : bl_jstr_find(r, s, 0, separator);
    uint32_t cut = at < 0 ? (last ? 0 : s.len) : (uint32_t)at, n = at < 0 ? 0 : separator.len;
    bl_jlist_push(r, l, bl_jv_slice(s, 0, cut));
    bl_jlist_push(r, l, n ? separator : bl_jv_text(r, ""));
    bl_jlist_push(r, l, bl_jv_slice(s, cut + n, s.len - cut - n));
    return bl_jlist_value(BL_J_TUPLE, l);
}

static struct bl_jv justify(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    struct bl_jv fill = c->arg[1].kind ? text_arg(r, c, 1) : bl_jv_text(r, " ");
    int64_t width = bl_jcall_int(r, c->arg[0], 0), n = 0;
    bl_jv_length(r, c->self, &n);
    if (width <= n)
        return c->self;
    int64_t room = width - n, left = c->fn->mode == LEFT ? 0 : room;
    if (c->fn->mode == BOTH)
        left = room / 2 + (room & width & 1);
    return bl_jstr_pad(r, c->self, fill, left, room - left);
}

static struct bl_jv zero_fill(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    struct bl_jv s = c->self;
    int64_t n = 0;
    bl_jv_length(r, s, &n);
    uint32_t sign = s.len && strchr("+-", bl_jv_bytes(s)[0]) && bl_jv_bytes(s)[0] ? 1 : 0;
    int64_t width = bl_jcall_int(r, c->arg[0], 0);
    if (width <= n)
        return s;
    struct bl_jv digits =
        bl_jstr_pad(r, bl_jv_slice(s, sign, s.len - sign), bl_jv_text(r, "0"), width - n, 0);
    return sign ? bl_jv_concat(r, bl_jv_slice(s, 0, 1), digits) : digits;
}

static const struct bl_jbuiltin text_methods[] = {
    {"split", split, "sep maxsplit", 0, FROM_LEFT},
    {"rsplit", split, "sep maxsplit", 0, FROM_RIGHT},
    {"strip", strip, "chars", 0, BOTH},
    {"lstrip", strip, "chars", 0, LEFT},
    {"rstrip", strip, "chars", 0, RIGHT},
    {"startswith", affix, "prefix", 1, FROM_LEFT},
    {"endswith", affix, "suffix", 1, FROM_RIGHT},
    {"replace", replace, "old new count", 2, 0},
    {"upper", change_case, "", 0, BL_JCASE_UPPER},
    {"lower", change_case, "", 0, BL_JCASE_LOWER},
    {"title", change_case, "", 0, BL_JCASE_TITLE},
    {"capitalize", change_case, "", 0, BL_JCASE_CAPITALIZE},
    {"swapcase", change_case, "", 0, BL_JCASE_SWAP},
    {"find", find, "sub", 1, FROM_LEFT},
    {"rfind", find, "sub", 1, FROM_RIGHT},
    {"index", find, "sub", 1, FROM_LEFT_OR_FAIL},
    {"rindex", find, "sub", 1, FROM_RIGHT_OR_FAIL},
    {"count", count, "sub", 1, 0},
    {"join", join, "iterable", 1, 0},
    {"format", format, NULL, 0, 0},
    {"splitlines", split_lines, "keepends", 0, 0},
    {"partition", partition, "sep", 1, FROM_LEFT},
    {"rpartition", partition, "sep", 1, FROM_RIGHT},
    {"removeprefix", remove_affix, "prefix", 1, FROM_LEFT},
    {"removesuffix", remove_affix, "suffix", 1, FROM_RIGHT},
    {"ljust", justify, "width fillchar", 1, LEFT},
    {"rjust", justify, "width fillchar", 1, RIGHT},
    {"center", justify, "width fillchar", 1, BOTH},
    {"zfill", zero_fill, "width", 1, 0},
    {"isalpha", classify, "", 0, ALPHA},
    {"isalnum", classify, "", 0, ALNUM},
    {"isdigit", classify, "", 0, DIGIT},
    {"isdecimal", classify, "", 0, DIGIT},
    {"isnumeric", classify, "", 0, DIGIT},
    {"isspace", classify, "", 0, SPACE},
    {"isupper", classify, "", 0, UPPER},
    {"islower", classify, "", 0, LOWER},
};

/* ---- mappings -------------------------------------------------------------------------------- */

enum { ITEMS, KEYS, VALUES };

static struct bl_jv view_item(struct bl_jinja_run *r, const struct bl_jentry *e, int what)
{
    if (what != ITEMS)
        return what == KEYS ? e->key : e->value;
    struct bl_jlist *pair = bl_jlist_new(r, 2);
    bl_jlist_push(r, pair, e->key);
    bl_jlist_push(r, pair, e->value);
    return bl_jlist_value(BL_J_TUPLE, pair);
}

static struct bl_jv view(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    static const char *const types[] = {"dict_items", "dict_keys", "dict_values"};
    const struct bl_jmap *m = c->self.map;
    struct bl_jlist *l = bl_jlist_new(r, m->n);
    l->type = types[c->fn->mode];
    for (uint32_t i = 0; i < m->n && !r->status; i++)
        bl_jlist_push(r, l, view_item(r, &m->entry[i], c->fn->mode));
    return bl_jlist_value(BL_J_VIEW, l);
}

static struct bl_jv map_get(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    const struct bl_jentry *e = bl_jmap_find(r, c->self.map, c->arg[0]);
    return e ? e->value : c->arg[1].kind ? c->arg[1] : bl_jv_none();
}

static void update_map(struct bl_jinja_run *r, struct bl_jmap *m, const struct bl_jmap *from)
{
    for (uint32_t i = 0; i < from->n && !r->status; i++)
        bl_jmap_set(r, m, from->entry[i].key, from->entry[i].value);
}

static struct bl_jv copy_map(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    struct bl_jmap *m = bl_jmap_new(r);
    update_map(r, m, c->self.map);
    return bl_jmap_value(m);
}

static struct bl_jv map_update(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    if (c->arg[0].kind != BL_J_MAP)
        return bl_jrun_fail(r, BL_EINVAL, "update() takes a mapping, not %s",
                            bl_jv_type(c->arg[0]));
    update_map(r, c->self.map, c->arg[0].map);
    return bl_jv_none();
}

static struct bl_jv map_pop(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    struct bl_jentry *e = bl_jmap_find(r, c->self.map, c->arg[0]);
    if (!e && !c->arg[1].kind)
        return bl_jrun_fail(r, BL_EINVAL, "pop() found no such key");
    struct bl_jv v = e ? e->value : c->arg[1];
    if (e)
        bl_jmap_remove(r, c->self.map, e);
    return v;
}

static struct bl_jv map_set_default(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    const struct bl_jentry *e = bl_jmap_find(r, c->self.map, c->arg[0]);
    struct bl_jv v = e ? e->value : c->arg[1].kind ? c->arg[1] : bl_jv_none();
    if (!e)
        bl_jmap_set(r, c->self.map, c->arg[0], v);
    return v;
}

static const struct bl_jbuiltin map_methods[] = {
    {"items", view, "", 0, ITEMS},
    {"get", map_get, "key default", 1, 0},
    {"keys", view, "", 0, KEYS},
    {"values", view, "", 0, VALUES},
    {"copy", copy_map, "", 0, 0},
    {"update", map_update, "other", 1, MUTATES},
    {"pop", map_pop, "key default", 1, MUTATES},
    {"setdefault", map_set_default, "key default", 1, MUTATES},
};

/* ---- lists, tuples, loops, cyclers ----------------------------------------------------------- */

static struct bl_jv list_copy(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    struct bl_jlist *l = bl_jlist_new(r, c->self.list->n);
    for (uint32_t i = 0; i < c->self.list->n && !r->status; i++)
        bl_jlist_push(r, l, c->self.list->item[i]);
    return bl_jlist_value(BL_J_LIST, l);
}

static struct bl_jv list_index(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    for (uint32_t i = 0; i < c->self.list->n && bl_jrun_work(r, sizeof c->self); i++)
        if (bl_jv_equal(r, c->self.list->item[i], c->arg[0]))
            return bl_jv_int(i);
    return bl_jrun_fail(r, BL_EINVAL, "index(): the value is not in the %s", bl_jv_type(c->self));
}

static struct bl_jv list_count(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    int64_t n = 0;
    for (uint32_t i = 0; i < c->self.list->n && bl_jrun_work(r, sizeof c->self); i++)
        n += bl_jv_equal(r, c->self.list->item[i], c->arg[0]);
    return bl_jv_int(n);
}

static struct bl_jv list_append(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    bl_jlist_push(r, c->self.list, c->arg[0]);
    return bl_jv_none();
}

static struct bl_jv list_extend(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    struct bl_jv item;
    struct bl_jiter it = bl_jiter_start(r, c->arg[0]);
    while (bl_jiter_next(r, &it, &item))
        bl_jlist_push(r, c->self.list, item);
    return bl_jv_none();
}

static struct bl_jv list_insert(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    struct bl_jlist *l = c->self.list;
    int64_t at = bl_jcall_int(r, c->arg[0], 0), n = l->n;
    bl_jlist_push(r, l, c->arg[1]);
    if (r->status || !bl_jrun_work(r, l->n * sizeof *l->item))
        return bl_jv_none();
    at = at < 0 ? (at < -n ? 0 : at + n) : at > n ? n : at;
    memmove(l->item + at + 1, l->item + at, (size_t)(n - at) * sizeof *l->item);
    l->item[at] = c->arg[1];
    return bl_jv_none();
}

static struct bl_jv list_pop(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    struct bl_jlist *l = c->self.list;
    int64_t at = bl_jcall_int(r, c->arg[0], -1);
    if (at < 0)
        at += l->n;
    if (at < 0 || at >= l->n)
        return bl_jrun_fail(r, BL_EINVAL, l->n ? "pop index out of range" : "pop from empty list");
    struct bl_jv v = l->item[at];
    size_t behind = l->n - (size_t)at - 1;
    if (bl_jrun_work(r, behind * sizeof v))
        memmove(l->item + at, l->item + at + 1, behind * sizeof v);
    l->n--;
    return v;
}

static const struct bl_jbuiltin list_methods[] = {
    {"index", list_index, "value", 1, 0},
    {"count", list_count, "value", 1, 0},
    {"copy", list_copy, "", 0, 0},
    {"append", list_append, "object", 1, MUTATES},
    {"extend", list_extend, "iterable", 1, MUTATES},
    {"insert", list_insert, "index object", 2, MUTATES},
    {"pop", list_pop, "index", 0, MUTATES},
};
enum { TUPLE_METHODS = 2 }; /* those of lists that come first */

static struct bl_jv loop_cycle(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    if (!c->args.n_pos)
        return bl_jrun_fail(r, BL_EINVAL, "no items for cycling given");
    return c->args.pos[(uint64_t)c->self.loop->index0 % c->args.n_pos];
}

static struct bl_jv loop_changed(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    struct bl_jlist *l = bl_jlist_new(r, c->args.n_pos);
    for (uint32_t i = 0; i < c->args.n_pos; i++)
        bl_jlist_push(r, l, c->args.pos[i]);
    struct bl_jv now = bl_jlist_value(BL_J_TUPLE, l), before = c->self.loop->changed;
    bool same = before.kind && bl_jv_equal(r, before, now);
    c->self.loop->changed = now;
    return bl_jv_bool(!same);
}

static const struct bl_jbuiltin loop_methods[] = {
    {"cycle", loop_cycle, NULL, 0, 0},
    {"changed", loop_changed, NULL, 0, 0},
};

static struct bl_jv cycler_next(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    struct bl_jlist *l = c->self.list;
    (void)r;
    struct bl_jv v = l->item[l->next];
    l->next = (l->next + 1) % l->n;
    return v;
}

static struct bl_jv cycler_reset(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    (void)r;
    c->self.list->next = 0;
    return bl_jv_none();
}

static const struct bl_jbuiltin cycler_methods[] = {
    {"next", cycler_next, "", 0, 0},
    {"reset", cycler_reset, "", 0, 0},
};

const struct bl_jbuiltin *bl_jmethod_find(struct bl_jv object, struct bl_jv name)
{
    switch (object.kind) {
    case BL_J_STRING:
        return bl_jbuiltin_find(text_methods, BL_COUNT(text_methods), name);
    case BL_J_MAP:
        return bl_jbuiltin_find(map_methods, BL_COUNT(map_methods), name);
    case BL_J_LIST:
        return bl_jbuiltin_find(list_methods, BL_COUNT(list_methods), name);
    case BL_J_TUPLE:
        return bl_jbuiltin_find(list_methods, TUPLE_METHODS, name);
    case BL_J_LOOP:
        return bl_jbuiltin_find(loop_methods, BL_COUNT(loop_methods), name);
    case BL_J_CYCLER:
        return bl_jbuiltin_find(cycler_methods, BL_COUNT(cycler_methods), name);
    default:
        return NULL;
    }
}

bool bl_jmethod_mutates(const struct bl_jbuiltin *m)
{
    return m->mode == MUTATES;
}

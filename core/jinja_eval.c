/* SPDX-License-Identifier: MIT */
#include "jinja_eval.h"

#include <assert.h>

/* ---- arguments and calls --------------------------------------------------------------------- */

static uint32_t count(const struct bl_jnode *n)
{
    uint32_t total = 0;
    for (; n; n = n->next)
        total++;
    return total;
}

static void spread_list(struct bl_jinja_run *r, struct bl_jlist *pos, struct bl_jv v)
{
    struct bl_jv item;
    struct bl_jiter it = bl_jiter_start(r, v);
    while (bl_jiter_next(r, &it, &item))
        bl_jlist_push(r, pos, item);
}

/* Named arguments live in a list too, name and value in turn. */
static void spread_map(struct bl_jinja_run *r, struct bl_jlist *named, struct bl_jv v)
{
    if (v.kind != BL_J_MAP) {
        bl_jrun_fail(r, BL_EINVAL, "argument after ** must be a mapping, not %s", bl_jv_type(v));
        return;
    }
    for (uint32_t i = 0; i < v.map->n; i++) {
        bl_jlist_push(r, named, v.map->entry[i].key);
        bl_jlist_push(r, named, v.map->entry[i].value);
    }
}

static void name_arguments(struct bl_jinja_run *r, struct bl_jargs *args, const struct bl_jlist *l)
{
    args->named = bl_jrun_alloc(r, l->n / 2 * sizeof *args->named);
    if (!args->named)
        return;
    args->n_named = l->n / 2;
    for (uint32_t i = 0; i < args->n_named; i++)
        args->named[i] = (struct bl_jnamed){l->item[2 * i], l->item[2 * i + 1]};
}

static struct bl_jargs eval_arguments(struct bl_jinja_run *r, const struct bl_jnode *list)
{
    struct bl_jargs args = {0};
    if (!list)
        return args;
    struct bl_jlist *pos = bl_jlist_new(r, count(list)), *named = bl_jlist_new(r, 0);
    for (const struct bl_jnode *n = list; n && !r->status; n = n->next) {
        struct bl_jv v = bl_jeval(r, n->a);
        if (n->op == BL_JT_MUL) {
            spread_list(r, pos, v);
        } else if (n->op == BL_JT_POW) {
            spread_map(r, named, v);
        } else if (n->value.kind) {
            bl_jlist_push(r, named, n->value);
            bl_jlist_push(r, named, v);
        } else {
            bl_jlist_push(r, pos, v);
        }
    }
    args.pos = pos->item;
    args.n_pos = pos->n;
    if (named->n)
        name_arguments(r, &args, named);
    return args;
}

/* The place of `name` among "first second third"; -1 if it is not there. */
static int param_index(const char *params, struct bl_jv name)
{
    for (int i = 0; *params; i++) {
        size_t n = strcspn(params, " ");
        if (name.kind == BL_J_STRING && name.len == n && memcmp(bl_jv_bytes(name), params, n) == 0)
            return i;
        params += n + (params[n] == ' ');
    }
    return -1;
}

static uint32_t param_count(const char *params)
{
    uint32_t n = *params != 0;
    for (; *params; params++)
        n += *params == ' ';
    return n;
}

static bool bind(struct bl_jinja_run *r, struct bl_jcall *c)
{
    const struct bl_jbuiltin *fn = c->fn;
    uint32_t most = param_count(fn->params);
    if (c->args.n_pos > most) {
        bl_jrun_fail(r, BL_EINVAL, "%s() takes at most %u arguments (%u given)", fn->name, most,
                     c->args.n_pos);
        return false;
    }
    for (uint32_t i = 0; i < c->args.n_pos; i++)
        c->arg[i] = c->args.pos[i];
    for (uint32_t i = 0; i < c->args.n_named; i++) {
        struct bl_jv name = c->args.named[i].name;
        int at = param_index(fn->params, name);
        if (at < 0 || c->arg[at].kind) {
            bl_jrun_fail(r, BL_EINVAL,
                         at < 0 ? "%s() got an unexpected keyword argument '%.*s'"
                                : "%s() got multiple values for argument '%.*s'",
                         fn->name, (int)name.len, bl_jv_bytes(name));
            return false;
        }
        c->arg[at] = c->args.named[i].value;
    }
    for (uint32_t i = 0; i < fn->n_required; i++)
        if (!c->arg[i].kind) {
            bl_jrun_fail(r, BL_EINVAL, "%s() missing %u required arguments: %s", fn->name,
                         fn->n_required, fn->params);
            return false;
        }
    return true;
}

struct bl_jv bl_jcall_builtin(struct bl_jinja_run *r, const struct bl_jbuiltin *fn,
                              struct bl_jv self, const struct bl_jargs *args)
{
    struct bl_jcall c = {.fn = fn, .self = self, .args = *args};
    if (!bl_jrun_step(r, 1) || (fn->params && !bind(r, &c)))
        return bl_jv_undefined(NULL);
    return fn->call(r, &c);
}

static struct bl_jv call_joiner(struct bl_jinja_run *r, struct bl_jlist *l)
{
    return l->next++ ? l->item[0] : bl_jv_text(r, "");
}

struct bl_jv bl_jcall_value(struct bl_jinja_run *r, struct bl_jv callee,
                            const struct bl_jargs *args)
{
    if (r->status)
        return bl_jv_undefined(NULL);
    switch (callee.kind) {
    case BL_J_FUNCTION:
        return bl_jcall_builtin(r, callee.bound->fn, callee.bound->self, args);
    case BL_J_MACRO:
        return bl_jexec_macro(r, callee.macro, args);
    case BL_J_JOINER:
        return call_joiner(r, callee.list);
    case BL_J_LOOP:
        if (callee.loop->node->flag && args->n_pos == 1)
            return bl_jexec_loop(r, callee.loop, args->pos[0]);
        return bl_jrun_fail(r, BL_EINVAL,
                            "The loop must have the 'recursive' marker to be called "
                            "recursively.");
    case BL_J_UNDEFINED:
        return bl_jrun_fail_undefined(r, callee);
    default:
        return bl_jrun_fail(r, BL_EINVAL, "'%s' object is not callable", bl_jv_type(callee));
    }
}

static struct bl_jv unknown(struct bl_jinja_run *r, const char *what, struct bl_jv name)
{
    return bl_jrun_fail(r, BL_EINVAL, "No %s named '%.*s'.", what, (int)name.len,
                        name.kind == BL_J_STRING ? bl_jv_bytes(name) : "");
}

static struct bl_jargs without_first(struct bl_jargs args)
{
    args.pos++;
    args.n_pos--;
    return args;
}

struct bl_jv bl_jcall_filter_by_name(struct bl_jinja_run *r, struct bl_jv self,
                                     struct bl_jargs args)
{
    const struct bl_jbuiltin *fn = bl_jfilter_find(args.pos[0]);
    if (!fn)
        return unknown(r, "filter", args.pos[0]);
    args = without_first(args);
    return bl_jcall_builtin(r, fn, self, &args);
}

bool bl_jcall_test_by_name(struct bl_jinja_run *r, struct bl_jv self, struct bl_jargs args)
{
    const struct bl_jbuiltin *fn = bl_jtest_find(args.pos[0]);
    if (!fn)
        return bl_jv_truth(unknown(r, "test", args.pos[0]));
    args = without_first(args);
    return bl_jv_truth(bl_jcall_builtin(r, fn, self, &args));
}

int64_t bl_jcall_int(struct bl_jinja_run *r, struct bl_jv arg, int64_t absent)
{
    int64_t i = absent;
    if (arg.kind && !bl_jv_as_int(arg, &i))
        bl_jrun_fail(r, BL_EINVAL, "'%s' object cannot be interpreted as an integer",
                     bl_jv_type(arg));
    return i;
}

const struct bl_jbuiltin *bl_jbuiltin_find(const struct bl_jbuiltin *rows, size_t n,
                                           struct bl_jv name)
{
    for (size_t i = 0; i < n; i++)
        if (bl_jv_is_text(name, rows[i].name))
            return &rows[i];
    return NULL;
}

/* ---- scopes ---------------------------------------------------------------------------------- */

void bl_jscope_push(struct bl_jinja_run *r, struct bl_jscope *outer)
{
    struct bl_jscope *s = bl_jrun_alloc(r, sizeof *s);
    if (!s)
        return;
    s->outer = outer;
    r->scope = s;
}

void bl_jscope_set(struct bl_jinja_run *r, const char *name, struct bl_jv value)
{
    bl_jmap_set(r, &r->scope->vars, bl_jv_text(r, name), value);
}

static struct bl_jv look_up(struct bl_jinja_run *r, struct bl_jv name)
{
    for (const struct bl_jscope *s = r->scope; s && !r->status; s = s->outer) {
        const struct bl_jentry *e = bl_jmap_find(r, &s->vars, name);
        if (e)
            return e->value;
    }
    struct bl_jhint *h = bl_jrun_alloc(r, sizeof *h);
    if (h)
        h->name = name;
    return bl_jv_undefined(h);
}

/* ---- expressions ----------------------------------------------------------------------------- */

static struct bl_jv eval_items(struct bl_jinja_run *r, const struct bl_jnode *n)
{
    struct bl_jlist *l = bl_jlist_new(r, count(n->list));
    for (const struct bl_jnode *i = n->list; i && !r->status; i = i->next)
        bl_jlist_push(r, l, bl_jeval(r, i));
    return bl_jlist_value(n->type == BL_JN_TUPLE ? BL_J_TUPLE : BL_J_LIST, l);
}

static struct bl_jv eval_dict(struct bl_jinja_run *r, const struct bl_jnode *n)
{
    struct bl_jmap *m = bl_jmap_new(r);
    for (const struct bl_jnode *i = n->list; i && i->next && !r->status; i = i->next->next) {
        struct bl_jv key = bl_jeval(r, i);
        bl_jmap_set(r, m, key, bl_jeval(r, i->next));
    }
    return bl_jmap_value(m);
}

static struct bl_jv eval_binary(struct bl_jinja_run *r, const struct bl_jnode *n)
{
    struct bl_jv a = bl_jeval(r, n->a), b = bl_jeval(r, n->b);
    r->line = n->line;
    return bl_jop_binary(r, n->op, a, b);
}

static struct bl_jv eval_sign(struct bl_jinja_run *r, const struct bl_jnode *n)
{
    struct bl_jv a = bl_jeval(r, n->a);
    r->line = n->line;
    return n->type == BL_JN_NEGATE ? bl_jop_negate(r, a) : bl_jop_plus(r, a);
}

static struct bl_jv eval_concat(struct bl_jinja_run *r, const struct bl_jnode *n)
{
    struct bl_jbuf *b = bl_jbuf_new(r, 64);
    for (const struct bl_jnode *i = n->list; i && !r->status; i = i->next)
        bl_jv_print(r, b, bl_jeval(r, i));
    return bl_jbuf_string(b);
}

static struct bl_jv eval_compare(struct bl_jinja_run *r, const struct bl_jnode *n)
{
    struct bl_jv a = bl_jeval(r, n->a);
    for (const struct bl_jnode *i = n->list; i && !r->status; i = i->next) {
        struct bl_jv b = bl_jeval(r, i->a);
        r->line = n->line;
        if (!bl_jop_compare(r, i->op, a, b))
            return bl_jv_bool(false);
        a = b;
    }
    return bl_jv_bool(true);
}

static struct bl_jv eval_cond(struct bl_jinja_run *r, const struct bl_jnode *n)
{
    static const struct bl_jhint no_else = {
        .text = "the inline if-expression evaluated to false and no else section was defined."};
    if (bl_jv_truth(bl_jeval(r, n->a)))
        return bl_jeval(r, n->b);
    return n->c ? bl_jeval(r, n->c) : bl_jv_undefined(&no_else);
}

static struct bl_jv eval_part(struct bl_jinja_run *r, const struct bl_jnode *n)
{
    return n ? bl_jeval(r, n) : bl_jv_none();
}

static struct bl_jv eval_item(struct bl_jinja_run *r, const struct bl_jnode *n)
{
    struct bl_jv of = bl_jeval(r, n->a);
    const struct bl_jnode *index = n->b;
    if (index->type == BL_JN_SLICE) {
        struct bl_jv start = eval_part(r, index->a), stop = eval_part(r, index->b);
        struct bl_jv step = eval_part(r, index->c);
        r->line = n->line;
        return bl_jget_slice(r, of, start, stop, step);
    }
    struct bl_jv at = bl_jeval(r, index);
    r->line = n->line;
    return bl_jget_item(r, of, at);
}

static struct bl_jv eval_call(struct bl_jinja_run *r, const struct bl_jnode *n)
{
    struct bl_jv callee = bl_jeval(r, n->a);
    struct bl_jargs args = eval_arguments(r, n->list);
    r->line = n->line;
    return bl_jcall_value(r, callee, &args);
}

static struct bl_jv eval_builtin(struct bl_jinja_run *r, const struct bl_jnode *n)
{
    struct bl_jv a = bl_jeval(r, n->a);
    struct bl_jargs args = eval_arguments(r, n->list);
    r->line = n->line;
    if (!n->fn)
        return unknown(r, n->type == BL_JN_FILTER ? "filter" : "test", n->value);
    return bl_jcall_builtin(r, n->fn, a, &args);
}

static struct bl_jv eval_attribute(struct bl_jinja_run *r, const struct bl_jnode *n)
{
    struct bl_jv of = bl_jeval(r, n->a);
    r->line = n->line;
    return bl_jget_attribute(r, of, n->value);
}

static struct bl_jv eval_logic(struct bl_jinja_run *r, const struct bl_jnode *n)
{
    struct bl_jv a = bl_jeval(r, n->a);
    if (n->type == BL_JN_NOT)
        return bl_jv_bool(!bl_jv_truth(a));
    return bl_jv_truth(a) == (n->type == BL_JN_OR) ? a : bl_jeval(r, n->b);
}

static struct bl_jv eval_node(struct bl_jinja_run *r, const struct bl_jnode *n)
{
    switch (n->type) {
    case BL_JN_LIST:
    case BL_JN_TUPLE:
        return eval_items(r, n);
    case BL_JN_DICT:
        return eval_dict(r, n);
    case BL_JN_NEGATE:
    case BL_JN_PLUS:
        return eval_sign(r, n);
    case BL_JN_NOT:
    case BL_JN_AND:
    case BL_JN_OR:
        return eval_logic(r, n);
    case BL_JN_BINARY:
        return eval_binary(r, n);
    case BL_JN_CONCAT:
        return eval_concat(r, n);
    case BL_JN_COMPARE:
        return eval_compare(r, n);
    case BL_JN_COND:
        return eval_cond(r, n);
    case BL_JN_ATTRIBUTE:
        return eval_attribute(r, n);
    case BL_JN_ITEM:
        return eval_item(r, n);
    case BL_JN_CALL:
        return eval_call(r, n);
    case BL_JN_FILTER:
    case BL_JN_TEST:
        return eval_builtin(r, n);
    case BL_JN_SLICE: /* among several indices: no value can be asked for that */
        return bl_jrun_fail(r, BL_EUNSUPPORTED, "slices are supported alone in brackets only");
    default:
        assert(false); /* a statement among expressions */
        return bl_jv_undefined(NULL);
    }
}

struct bl_jv bl_jeval(struct bl_jinja_run *r, const struct bl_jnode *n)
{
    struct bl_jv v = bl_jv_undefined(NULL);
    if (n->type == BL_JN_CONST)
        return n->value;
    if (n->type == BL_JN_CAPTURED)
        return r->captured;
    if (n->type == BL_JN_NAME)
        return look_up(r, n->value);
    if (bl_jrun_enter(r))
        v = eval_node(r, n);
    bl_jrun_leave(r);
    return v;
}

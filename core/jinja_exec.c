/* SPDX-License-Identifier: MIT */
#include "jinja_eval.h"

#include <assert.h>

/* ---- assignment ------------------------------------------------------------------------------ */

static void assign(struct bl_jinja_run *r, const struct bl_jnode *target, struct bl_jv v);

static void assign_items(struct bl_jinja_run *r, const struct bl_jnode *target, struct bl_jv v)
{
    struct bl_jv item;
    uint32_t wanted = 0, got = 0;
    for (const struct bl_jnode *n = target->list; n; n = n->next)
        wanted++;
    if (!bl_jv_is_iterable(v)) {
        bl_jrun_fail(r, BL_EINVAL, "cannot unpack non-iterable %s object", bl_jv_type(v));
        return;
    }
    struct bl_jiter it = bl_jiter_start(r, v);
    const struct bl_jnode *n = target->list;
    for (; n && bl_jiter_next(r, &it, &item); n = n->next, got++)
        assign(r, n, item);
    if (n)
        bl_jrun_fail(r, BL_EINVAL, "not enough values to unpack (expected %u, got %u)", wanted,
                     got);
    else if (bl_jiter_next(r, &it, &item))
        bl_jrun_fail(r, BL_EINVAL, "too many values to unpack (expected %u)", wanted);
}

static void assign(struct bl_jinja_run *r, const struct bl_jnode *target, struct bl_jv v)
{
    if (target->type == BL_JN_NAME) {
        bl_jmap_set(r, &r->scope->vars, target->value, v);
    } else if (target->type == BL_JN_TUPLE) {
        if (bl_jrun_enter(r))
            assign_items(r, target, v);
        bl_jrun_leave(r);
    } else {
        struct bl_jv of = bl_jeval(r, target->a);
        if (of.kind == BL_J_NAMESPACE)
            bl_jmap_set(r, of.map, target->value, v);
        else
            bl_jrun_fail(r, BL_EINVAL, "cannot assign attribute on non-namespace object");
    }
}

/* ---- capturing ------------------------------------------------------------------------------- */

/* Runs a body in a scope of its own and returns what it printed. */
static struct bl_jv capture(struct bl_jinja_run *r, const struct bl_jnode *body)
{
    struct bl_jbuf *out = r->out, *b = bl_jbuf_new(r, 64);
    struct bl_jscope *scope = r->scope;
    bl_jscope_push(r, scope);
    r->out = b;
    bl_jexec(r, body);
    r->out = out;
    r->scope = scope;
    return bl_jbuf_string(b);
}

static struct bl_jv capture_filtered(struct bl_jinja_run *r, const struct bl_jnode *n)
{
    struct bl_jv text = capture(r, n->list);
    r->captured = text; /* filters read it before they evaluate anything else */
    return bl_jeval(r, n->b);
}

/* ---- loops ----------------------------------------------------------------------------------- */

static bool passes(struct bl_jinja_run *r, struct bl_jloop *l, struct bl_jv item)
{
    struct bl_jscope *scope = r->scope;
    if (!l->probe) {
        bl_jscope_push(r, l->outer);
        l->probe = r->scope;
    }
    r->scope = l->probe;
    bl_jmap_clear(&l->probe->vars);
    assign(r, l->node->a, item);
    bool pass = !r->status && bl_jv_truth(bl_jeval(r, l->node->c));
    r->scope = scope;
    return pass && !r->status;
}

static bool pull(struct bl_jinja_run *r, struct bl_jloop *l, struct bl_jv *item)
{
    while (bl_jrun_step(r, 1) && bl_jiter_next(r, &l->it, item))
        if (!l->filtered || passes(r, l, *item))
            return true;
    return false;
}

bool bl_jloop_peek(struct bl_jinja_run *r, struct bl_jloop *l)
{
    if (!l->has_next && !l->ended) {
        l->has_next = pull(r, l, &l->next);
        l->ended = !l->has_next;
    }
    return l->has_next;
}

int64_t bl_jloop_length(struct bl_jinja_run *r, struct bl_jloop *l)
{
    struct bl_jv item;
    if (l->length >= 0)
        return l->length;
    struct bl_jlist *rest = bl_jlist_new(r, 0);
    while (pull(r, l, &item))
        bl_jlist_push(r, rest, item);
    l->it = bl_jiter_start(r, bl_jlist_value(BL_J_LIST, rest));
    l->filtered = false;
    l->length = l->index0 + 1 + l->has_next + rest->n;
    return l->length;
}

static bool advance(struct bl_jinja_run *r, struct bl_jloop *l)
{
    if (!bl_jloop_peek(r, l))
        return false;
    l->previous = l->current;
    l->current = l->next;
    l->has_next = false;
    l->index0++;
    return true;
}

static void run_rounds(struct bl_jinja_run *r, struct bl_jloop *l)
{
    bl_jscope_push(r, l->outer);
    struct bl_jscope *scope = r->scope;
    while (!r->status && advance(r, l)) {
        bl_jmap_clear(&scope->vars); /* what a round sets is gone in the next */
        r->scope = scope;
        bl_jscope_set(r, "loop", (struct bl_jv){.kind = BL_J_LOOP, .loop = l});
        assign(r, l->node->a, l->current);
        bl_jexec(r, l->node->list);
        bool stop = r->flow == BL_JFLOW_BREAK;
        r->flow = BL_JFLOW_NONE;
        if (stop)
            break;
    }
    if (l->index0 < 0 && l->node->more && !r->status)
        bl_jexec(r, l->node->more);
}

static void run_loop(struct bl_jinja_run *r, const struct bl_jnode *n, struct bl_jscope *outer,
                     struct bl_jv iterable, uint32_t depth0)
{
    struct bl_jscope *scope = r->scope;
    struct bl_jloop *l = bl_jrun_alloc(r, sizeof *l);
    if (!l)
        return;
    *l = (struct bl_jloop){.node = n,
                           .outer = outer,
                           .filtered = n->c,
                           .index0 = -1,
                           .length = -1,
                           .depth0 = depth0,
                           .it = bl_jiter_start(r, iterable)};
    if (!n->c && iterable.kind == BL_J_ITER)
        l->length = (int64_t)iterable.list->n - iterable.list->next;
    else if (!n->c && !bl_jv_length(r, iterable, &l->length))
        l->length = 0;
    run_rounds(r, l);
    r->scope = scope;
}

static bool enter_call(struct bl_jinja_run *r)
{
    if (++r->calls > r->limits.depth)
        bl_jrun_fail(r, BL_ELIMIT, "calls are nested more than %u deep", r->limits.depth);
    return !r->status;
}

struct bl_jv bl_jexec_loop(struct bl_jinja_run *r, const struct bl_jloop *l, struct bl_jv iterable)
{
    struct bl_jbuf *out = r->out, *b = bl_jbuf_new(r, 64);
    r->out = b;
    if (enter_call(r))
        run_loop(r, l->node, l->outer, iterable, l->depth0 + 1);
    r->calls--;
    r->out = out;
    return bl_jbuf_string(b);
}

/* ---- macros ---------------------------------------------------------------------------------- */

/* The positional argument of that number, or the one of that name; ABSENT without. */
static struct bl_jv argument(const struct bl_jargs *args, uint32_t i, struct bl_jv name)
{
    if (i < args->n_pos)
        return args->pos[i];
    for (uint32_t k = 0; k < args->n_named; k++) {
        struct bl_jv given = args->named[k].name;
        if (given.kind == BL_J_STRING && given.len == name.len &&
            memcmp(bl_jv_bytes(given), bl_jv_bytes(name), name.len) == 0)
            return args->named[k].value;
    }
    return (struct bl_jv){0};
}

static bool is_param(const struct bl_jnode *params, struct bl_jv name)
{
    for (; params; params = params->next)
        if (name.kind == BL_J_STRING && name.len == params->value.len &&
            memcmp(bl_jv_bytes(name), bl_jv_bytes(params->value), name.len) == 0)
            return true;
    return false;
}

static void bind_params(struct bl_jinja_run *r, const struct bl_jnode *params,
                        const struct bl_jargs *args)
{
    uint32_t i = 0;
    for (const struct bl_jnode *p = params; p && !r->status; p = p->next, i++) {
        struct bl_jv v = argument(args, i, p->value);
        if (!v.kind && p->a) {
            v = bl_jeval(r, p->a);
        } else if (!v.kind) {
            struct bl_jhint *h = bl_jrun_alloc(r, sizeof *h);
            if (h)
                h->name = p->value;
            v = bl_jv_undefined(h);
        }
        bl_jmap_set(r, &r->scope->vars, p->value, v);
    }
}

static void bind_named_rest(struct bl_jinja_run *r, const struct bl_jnode *n,
                            const struct bl_jargs *args)
{
    struct bl_jmap *rest = bl_jmap_new(r);
    for (uint32_t i = 0; i < args->n_named && !r->status; i++) {
        struct bl_jv name = args->named[i].name;
        if (is_param(n->list, name))
            continue;
        if ((n->flag & BL_JUSES_CALLER) && bl_jv_is_text(name, "caller"))
            bl_jmap_set(r, &r->scope->vars, name, args->named[i].value);
        else if (n->flag & BL_JUSES_KWARGS)
            bl_jmap_set(r, rest, name, args->named[i].value);
        else
            bl_jrun_fail(r, BL_EINVAL, "macro '%.*s' takes no keyword argument '%.*s'",
                         (int)n->value.len, bl_jv_bytes(n->value), (int)name.len,
                         bl_jv_bytes(name));
    }
    if (n->flag & BL_JUSES_KWARGS)
        bl_jscope_set(r, "kwargs", bl_jmap_value(rest));
}

static void bind_rest(struct bl_jinja_run *r, const struct bl_jnode *n, const struct bl_jargs *args)
{
    struct bl_jlist *rest = bl_jlist_new(r, 0);
    uint32_t n_params = 0;
    for (const struct bl_jnode *p = n->list; p; p = p->next)
        n_params++;
    if (args->n_pos > n_params && !(n->flag & BL_JUSES_VARARGS))
        bl_jrun_fail(r, BL_EINVAL, "macro '%.*s' takes not more than %u argument(s)",
                     (int)n->value.len, bl_jv_bytes(n->value), n_params);
    for (uint32_t i = n_params; i < args->n_pos; i++)
        bl_jlist_push(r, rest, args->pos[i]);
    if (n->flag & BL_JUSES_VARARGS)
        bl_jscope_set(r, "varargs", bl_jlist_value(BL_J_TUPLE, rest));
}

struct bl_jv bl_jexec_macro(struct bl_jinja_run *r, const struct bl_jmacro *m,
                            const struct bl_jargs *args)
{
    struct bl_jscope *scope = r->scope;
    struct bl_jbuf *out = r->out, *b = bl_jbuf_new(r, 64);
    if (enter_call(r) && bl_jrun_step(r, 1)) {
        bl_jscope_push(r, m->scope);
        r->out = b;
        bind_params(r, m->node->list, args);
        bind_rest(r, m->node, args);
        bind_named_rest(r, m->node, args);
        bl_jexec(r, m->node->more);
    }
    r->calls--;
    r->out = out;
    r->scope = scope;
    return bl_jbuf_string(b);
}

static struct bl_jv macro_value(struct bl_jinja_run *r, const struct bl_jnode *n)
{
    struct bl_jmacro *m = bl_jrun_alloc(r, sizeof *m);
    if (!m)
        return bl_jv_undefined(NULL);
    *m = (struct bl_jmacro){n, r->scope};
    return (struct bl_jv){.kind = BL_J_MACRO, .macro = m};
}

/* The call's own arguments are evaluated by a copy of its node with one more, the macro made of the
 * block. */
static void exec_call_block(struct bl_jinja_run *r, const struct bl_jnode *n)
{
    struct bl_jnode caller = {.type = BL_JN_CONST, .value = macro_value(r, n->b)};
    struct bl_jnode arg = {
        .type = BL_JN_ARG, .a = &caller, .value = n->b->value, .next = n->a->list};
    struct bl_jnode call = *n->a;
    call.list = &arg;
    bl_jv_print(r, r->out, bl_jeval(r, &call));
}

/* ---- statements ------------------------------------------------------------------------------ */

static void exec_if(struct bl_jinja_run *r, const struct bl_jnode *n)
{
    for (const struct bl_jnode *b = n->list; b && !r->status; b = b->next)
        if (!b->a || bl_jv_truth(bl_jeval(r, b->a))) {
            bl_jexec(r, b->list);
            return;
        }
}

static void exec_for(struct bl_jinja_run *r, const struct bl_jnode *n)
{
    struct bl_jv iterable = bl_jeval(r, n->b);
    r->line = n->line;
    run_loop(r, n, r->scope, iterable, 0);
}

static void exec_with(struct bl_jinja_run *r, const struct bl_jnode *n)
{
    struct bl_jscope *outer = r->scope;
    bl_jscope_push(r, outer);
    struct bl_jscope *inner = r->scope;
    for (const struct bl_jnode *set = n->list; set && !r->status; set = set->next) {
        r->scope = outer; /* the values do not see each other */
        struct bl_jv v = bl_jeval(r, set->b);
        r->scope = inner;
        assign(r, set->a, v);
    }
    bl_jexec(r, n->more);
    r->scope = outer;
}

static void exec_scope(struct bl_jinja_run *r, const struct bl_jnode *n)
{
    struct bl_jscope *outer = r->scope;
    bl_jscope_push(r, outer);
    bl_jexec(r, n->list);
    r->scope = outer;
}

static void exec_set(struct bl_jinja_run *r, const struct bl_jnode *n)
{
    struct bl_jv v = n->type == BL_JN_SET ? bl_jeval(r, n->b) : capture_filtered(r, n);
    r->line = n->line;
    assign(r, n->a, v);
}

static void exec_node(struct bl_jinja_run *r, const struct bl_jnode *n)
{
    switch (n->type) {
    case BL_JN_TEXT:
        bl_jbuf_add(r, r->out, n->value);
        break;
    case BL_JN_PRINT:
        bl_jv_print(r, r->out, bl_jeval(r, n->a));
        break;
    case BL_JN_IF:
        exec_if(r, n);
        break;
    case BL_JN_FOR:
        exec_for(r, n);
        break;
    case BL_JN_SET:
    case BL_JN_SET_BLOCK:
        exec_set(r, n);
        break;
    case BL_JN_FILTER_BLOCK:
        bl_jv_print(r, r->out, capture_filtered(r, n));
        break;
    case BL_JN_MACRO:
        bl_jmap_set(r, &r->scope->vars, n->value, macro_value(r, n));
        break;
    case BL_JN_CALL_BLOCK:
        exec_call_block(r, n);
        break;
    case BL_JN_WITH:
        exec_with(r, n);
        break;
    case BL_JN_SCOPE:
        exec_scope(r, n);
        break;
    case BL_JN_BREAK:
        r->flow = BL_JFLOW_BREAK;
        break;
    case BL_JN_CONTINUE:
        r->flow = BL_JFLOW_CONTINUE;
        break;
    case BL_JN_UNSUPPORTED:
        bl_jrun_fail(r, BL_EUNSUPPORTED,
                     "the statement '%.*s' needs other templates: there are none",
                     (int)n->value.len, bl_jv_bytes(n->value));
        break;
    default:
        assert(false); /* an expression among statements */
    }
}

void bl_jexec(struct bl_jinja_run *r, const struct bl_jnode *body)
{
    if (bl_jrun_enter(r))
        for (const struct bl_jnode *n = body; n && !r->flow && bl_jrun_step(r, 1); n = n->next) {
            r->line = n->line;
            exec_node(r, n);
        }
    bl_jrun_leave(r);
}

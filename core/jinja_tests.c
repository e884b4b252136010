/* SPDX-License-Identifier: MIT */
#include "jinja_eval.h"

/* ---- what something is ----------------------------------------------------------------------- */

static struct bl_jv is_defined(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    (void)r;
    return bl_jv_bool(c->self.kind != BL_J_UNDEFINED);
}

static struct bl_jv is_kind(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    (void)r;
    return bl_jv_bool(c->self.kind == (enum bl_jkind)c->fn->mode);
}

static struct bl_jv is_string(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    if (c->self.kind == BL_J_MAP)
        r->tested |= c->self.map->watch;
    return bl_jv_bool(c->self.kind == BL_J_STRING);
}

static struct bl_jv is_number(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    (void)r;
    return bl_jv_bool(bl_jv_is_number(c->self));
}

static struct bl_jv is_truth(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    (void)r;
    return bl_jv_bool(c->self.kind == BL_J_BOOL && c->self.b == (bool)c->fn->mode);
}

static struct bl_jv is_iterable(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    (void)r;
    return bl_jv_bool(bl_jv_is_iterable(c->self));
}

/* Whatever has a length and __getitem__, undefined included. */
static struct bl_jv is_sequence(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    int64_t n;
    return bl_jv_bool(bl_jv_length(r, c->self, &n) && c->self.kind != BL_J_VIEW);
}

static struct bl_jv is_callable(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    enum bl_jkind k = c->self.kind;
    (void)r;
    return bl_jv_bool(k == BL_J_FUNCTION || k == BL_J_MACRO || k == BL_J_JOINER || k == BL_J_LOOP ||
                      k == BL_J_UNDEFINED);
}

static struct bl_jv is_case(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    static const struct bl_jargs none = {0};
    struct bl_jv s = bl_jv_str(r, c->self);
    struct bl_jv name = bl_jv_text(r, c->fn->mode == BL_JCASE_UPPER ? "isupper" : "islower");
    const struct bl_jbuiltin *method = bl_jmethod_find(s, name);
    return method ? bl_jcall_builtin(r, method, s, &none) : s;
}

static struct bl_jv is_escaped(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    (void)r;
    (void)c;
    return bl_jv_bool(false);
}

static struct bl_jv is_filter(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    (void)r;
    return bl_jv_bool(bl_jfilter_find(c->self) != NULL);
}

static struct bl_jv is_test(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    (void)r;
    return bl_jv_bool(bl_jtest_find(c->self) != NULL);
}

/* ---- against something else ------------------------------------------------------------------ */

static struct bl_jv is_divisible(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    struct bl_jv by = c->fn->mode ? bl_jv_int(2) : c->arg[0];
    struct bl_jv rest = bl_jop_binary(r, BL_JT_MOD, c->self, by);
    int64_t odd = c->fn->mode == 2;
    return bl_jv_bool(bl_jv_equal(r, rest, bl_jv_int(odd)));
}

static struct bl_jv is_related(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    return bl_jv_bool(bl_jop_compare(r, c->fn->mode, c->self, c->arg[0]));
}

static struct bl_jv is_same(struct bl_jinja_run *r, const struct bl_jcall *c)
{
    bool containers = c->self.kind >= BL_J_LIST && c->self.kind <= BL_J_RANGE;
    if (c->self.kind != c->arg[0].kind)
        return bl_jv_bool(false);
    return bl_jv_bool(containers ? c->self.list == c->arg[0].list
                                 : bl_jv_equal(r, c->self, c->arg[0]));
}

static const struct bl_jbuiltin tests[] = {
    {"defined", is_defined, "", 0, 0},
    {"undefined", is_kind, "", 0, BL_J_UNDEFINED},
    {"none", is_kind, "", 0, BL_J_NONE},
    {"boolean", is_kind, "", 0, BL_J_BOOL},
    {"float", is_kind, "", 0, BL_J_FLOAT},
    {"integer", is_kind, "", 0, BL_J_INT},
    {"mapping", is_kind, "", 0, BL_J_MAP},
    {"string", is_string, "", 0, 0},
    {"number", is_number, "", 0, 0},
    {"true", is_truth, "", 0, true},
    {"false", is_truth, "", 0, false},
    {"iterable", is_iterable, "", 0, 0},
    {"sequence", is_sequence, "", 0, 0},
    {"callable", is_callable, "", 0, 0},
    {"upper", is_case, "", 0, BL_JCASE_UPPER},
    {"lower", is_case, "", 0, BL_JCASE_LOWER},
    {"escaped", is_escaped, "", 0, 0},
    {"filter", is_filter, "", 0, 0},
    {"test", is_test, "", 0, 0},
    {"divisibleby", is_divisible, "num", 1, 0},
    {"even", is_divisible, "", 0, 1},
    {"odd", is_divisible, "", 0, 2},
    {"sameas", is_same, "other", 1, 0},
    {"in", is_related, "seq", 1, BL_JT_IN},
    {"eq", is_related, "other", 1, BL_JT_EQ},
    {"equalto", is_related, "other", 1, BL_JT_EQ},
    {"==", is_related, "other", 1, BL_JT_EQ},
    {"ne", is_related, "other", 1, BL_JT_NE},
    {"!=", is_related, "other", 1, BL_JT_NE},
    {"lt", is_related, "other", 1, BL_JT_LT},
    {"lessthan", is_related, "other", 1, BL_JT_LT},
    {"<", is_related, "other", 1, BL_JT_LT},
    {"le", is_related, "other", 1, BL_JT_LE},
    {"<=", is_related, "other", 1, BL_JT_LE},
    {"gt", is_related, "other", 1, BL_JT_GT},
    {"greaterthan", is_related, "other", 1, BL_JT_GT},
    {">", is_related, "other", 1, BL_JT_GT},
    {"ge", is_related, "other", 1, BL_JT_GE},
    {">=", is_related, "other", 1, BL_JT_GE},
};

const struct bl_jbuiltin *bl_jtest_find(struct bl_jv name)
{
    return bl_jbuiltin_find(tests, BL_COUNT(tests), name);
}

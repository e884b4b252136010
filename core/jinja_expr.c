/* SPDX-License-Identifier: MIT */
#include "jinja_ast.h"

#include "jinja_eval.h"

/* Appends to a list of nodes; tail points at where the next one goes. */
static void append(struct bl_jnode ***tail, struct bl_jnode *n)
{
    if (!n)
        return;
    **tail = n;
    *tail = &n->next;
}

static struct bl_jnode *with_a(struct bl_jparser *p, enum bl_jnode_type type, uint32_t line,
                               struct bl_jnode *a)
{
    struct bl_jnode *n = bl_jparse_node(p, type, line);
    if (n)
        n->a = a;
    return n;
}

static struct bl_jnode *with_ab(struct bl_jparser *p, enum bl_jnode_type type, uint32_t line,
                                struct bl_jnode *a, struct bl_jnode *b)
{
    struct bl_jnode *n = with_a(p, type, line, a);
    if (n)
        n->b = b;
    return n;
}

static struct bl_jnode *constant(struct bl_jparser *p, uint32_t line, struct bl_jv value)
{
    struct bl_jnode *n = bl_jparse_node(p, BL_JN_CONST, line);
    if (n)
        n->value = value;
    return n;
}

static struct bl_jnode *named(struct bl_jparser *p, enum bl_jnode_type type, uint32_t line,
                              struct bl_jnode *a, struct bl_jv name)
{
    struct bl_jnode *n = with_a(p, type, line, a);
    if (n)
        n->value = name;
    return n;
}

/* ---- primaries ------------------------------------------------------------------------------- */

static bool is_literal(struct bl_jv name, struct bl_jv *value)
{
    if (bl_jv_is_text(name, "true") || bl_jv_is_text(name, "True"))
        *value = bl_jv_bool(true);
    else if (bl_jv_is_text(name, "false") || bl_jv_is_text(name, "False"))
        *value = bl_jv_bool(false);
    else if (bl_jv_is_text(name, "none") || bl_jv_is_text(name, "None"))
        *value = bl_jv_none();
    else
        return false;
    return true;
}

static struct bl_jnode *parse_name(struct bl_jparser *p)
{
    struct bl_jv value, name = p->cur.value;
    uint32_t line = p->cur.line;
    bl_jparse_advance(p);
    if (is_literal(name, &value))
        return constant(p, line, value);
    if (bl_jv_is_text(name, "caller"))
        p->uses |= BL_JUSES_CALLER;
    if (bl_jv_is_text(name, "varargs"))
        p->uses |= BL_JUSES_VARARGS;
    if (bl_jv_is_text(name, "kwargs"))
        p->uses |= BL_JUSES_KWARGS;
    return named(p, BL_JN_NAME, line, NULL, name);
}

/* Strings side by side are one. */
static struct bl_jnode *parse_string(struct bl_jparser *p)
{
    struct bl_jv value = p->cur.value;
    uint32_t line = p->cur.line;
    bl_jparse_advance(p);
    while (p->cur.type == BL_JT_STRING) {
        value = bl_jv_concat(p->run, value, p->cur.value);
        bl_jparse_advance(p);
    }
    if (value.len)
        value.buf->cap = value.buf->used; /* shared by all renders: nobody may append */
    return constant(p, line, value);
}

static struct bl_jnode *parse_list(struct bl_jparser *p)
{
    struct bl_jnode *n = bl_jparse_node(p, BL_JN_LIST, p->cur.line);
    struct bl_jnode *items = NULL, **tail = &items;
    bl_jparse_expect(p, BL_JT_LBRACKET);
    while (p->cur.type != BL_JT_RBRACKET && !p->run->status) {
        if (items)
            bl_jparse_expect(p, BL_JT_COMMA);
        if (p->cur.type == BL_JT_RBRACKET)
            break;
        append(&tail, bl_jparse_expression(p));
    }
    bl_jparse_expect(p, BL_JT_RBRACKET);
    if (n)
        n->list = items;
    return n;
}

static struct bl_jnode *parse_dict(struct bl_jparser *p)
{
    struct bl_jnode *n = bl_jparse_node(p, BL_JN_DICT, p->cur.line);
    struct bl_jnode *items = NULL, **tail = &items;
    bl_jparse_expect(p, BL_JT_LBRACE);
    while (p->cur.type != BL_JT_RBRACE && !p->run->status) {
        if (items)
            bl_jparse_expect(p, BL_JT_COMMA);
        if (p->cur.type == BL_JT_RBRACE)
            break;
        append(&tail, bl_jparse_expression(p));
        bl_jparse_expect(p, BL_JT_COLON);
        append(&tail, bl_jparse_expression(p));
    }
    bl_jparse_expect(p, BL_JT_RBRACE);
    if (n)
        n->list = items;
    return n;
}

static bool at_tuple_end(const struct bl_jparser *p)
{
    return p->cur.type == BL_JT_PRINT_END || p->cur.type == BL_JT_BLOCK_END ||
           p->cur.type == BL_JT_RPAREN;
}

/* One expression, or several with commas; nothing at all only inside parentheses. */
static struct bl_jnode *parse_items(struct bl_jparser *p, bool with_condition, bool in_parentheses)
{
    struct bl_jnode *items = NULL, **tail = &items, *n;
    uint32_t line = p->cur.line;
    bool comma = false;
    while (!at_tuple_end(p) && !p->run->status) {
        append(&tail, with_condition ? bl_jparse_expression(p) : bl_jparse_operation(p));
        if (!bl_jparse_skip(p, BL_JT_COMMA))
            break;
        comma = true;
    }
    if (items && !comma)
        return items;
    if (!items && !in_parentheses) {
        p->run->line = p->cur.line;
        bl_jrun_fail(p->run, BL_EFORMAT, "Expected an expression, got '%s'",
                     bl_jtok_text(p->cur.type));
        return NULL;
    }
    n = bl_jparse_node(p, BL_JN_TUPLE, line);
    if (n)
        n->list = items;
    return n;
}

struct bl_jnode *bl_jparse_tuple(struct bl_jparser *p, bool with_condition)
{
    return parse_items(p, with_condition, false);
}

static struct bl_jnode *parse_primary(struct bl_jparser *p)
{
    struct bl_jnode *n;
    struct bl_jtoken t = p->cur;
    switch (t.type) {
    case BL_JT_NAME:
        return parse_name(p);
    case BL_JT_STRING:
        return parse_string(p);
    case BL_JT_INT:
    case BL_JT_FLOAT:
        bl_jparse_advance(p);
        return constant(p, t.line, t.value);
    case BL_JT_LPAREN:
        bl_jparse_advance(p);
        n = parse_items(p, true, true);
        bl_jparse_expect(p, BL_JT_RPAREN);
        return n;
    case BL_JT_LBRACKET:
        return parse_list(p);
    case BL_JT_LBRACE:
        return parse_dict(p);
    default:
        return bl_jparse_unexpected(p);
    }
}

/* ---- what follows a primary ------------------------------------------------------------------ */

static struct bl_jnode *parse_argument(struct bl_jparser *p)
{
    struct bl_jnode *n = bl_jparse_node(p, BL_JN_ARG, p->cur.line);
    if (!n)
        return NULL;
    if (p->cur.type == BL_JT_MUL || p->cur.type == BL_JT_POW) {
        n->op = (uint8_t)p->cur.type;
        bl_jparse_advance(p);
    } else if (p->cur.type == BL_JT_NAME && p->ahead.type == BL_JT_ASSIGN) {
        n->value = p->cur.value;
        bl_jparse_advance(p);
        bl_jparse_advance(p);
    }
    n->a = bl_jparse_expression(p);
    return n;
}

static struct bl_jnode *parse_arguments(struct bl_jparser *p)
{
    struct bl_jnode *args = NULL, **tail = &args;
    bool named_already = false;
    bl_jparse_expect(p, BL_JT_LPAREN);
    while (p->cur.type != BL_JT_RPAREN && !p->run->status) {
        if (args)
            bl_jparse_expect(p, BL_JT_COMMA);
        if (p->cur.type == BL_JT_RPAREN)
            break;
        uint32_t line = p->cur.line;
        struct bl_jnode *n = parse_argument(p);
        bool is_named = n && (n->value.kind || n->op == BL_JT_POW);
        if (n && named_already && !is_named && n->op != BL_JT_MUL) {
            p->run->line = line;
            bl_jrun_fail(p->run, BL_EFORMAT, "invalid syntax for function call expression");
        }
        named_already |= is_named;
        append(&tail, n);
    }
    bl_jparse_expect(p, BL_JT_RPAREN);
    return args;
}

static struct bl_jnode *parse_call(struct bl_jparser *p, struct bl_jnode *callee)
{
    struct bl_jnode *n = with_a(p, BL_JN_CALL, p->cur.line, callee);
    struct bl_jnode *args = parse_arguments(p);
    if (n)
        n->list = args;
    return n;
}

static struct bl_jnode *parse_dot(struct bl_jparser *p, struct bl_jnode *of)
{
    uint32_t line = p->cur.line;
    bl_jparse_advance(p);
    struct bl_jtoken t = p->cur;
    if (t.type == BL_JT_INT) {
        bl_jparse_advance(p);
        return with_ab(p, BL_JN_ITEM, line, of, constant(p, line, t.value));
    }
    bl_jparse_expect(p, BL_JT_NAME);
    return named(p, BL_JN_ATTRIBUTE, line, of, t.value);
}

static struct bl_jnode *slice_part(struct bl_jparser *p)
{
    if (p->cur.type == BL_JT_COLON || p->cur.type == BL_JT_RBRACKET || p->cur.type == BL_JT_COMMA)
        return NULL;
    return bl_jparse_expression(p);
}

static struct bl_jnode *parse_index(struct bl_jparser *p)
{
    struct bl_jnode *first = p->cur.type == BL_JT_COLON ? NULL : bl_jparse_expression(p);
    if (!bl_jparse_skip(p, BL_JT_COLON))
        return first;
    struct bl_jnode *n = with_ab(p, BL_JN_SLICE, p->cur.line, first, slice_part(p));
    if (bl_jparse_skip(p, BL_JT_COLON) && n)
        n->c = slice_part(p);
    return n;
}

static struct bl_jnode *parse_brackets(struct bl_jparser *p, struct bl_jnode *of)
{
    struct bl_jnode *items = NULL, **tail = &items, *index;
    uint32_t line = p->cur.line;
    bl_jparse_advance(p);
    do {
        append(&tail, parse_index(p));
    } while (bl_jparse_skip(p, BL_JT_COMMA) && p->cur.type != BL_JT_RBRACKET && !p->run->status);
    bl_jparse_expect(p, BL_JT_RBRACKET);
    index = items;
    if (items && items->next) {
        index = bl_jparse_node(p, BL_JN_TUPLE, line);
        if (index)
            index->list = items;
    }
    return with_ab(p, BL_JN_ITEM, line, of, index);
}

static struct bl_jnode *parse_postfix(struct bl_jparser *p, struct bl_jnode *n)
{
    while (!p->run->status) {
        if (p->cur.type == BL_JT_DOT)
            n = parse_dot(p, n);
        else if (p->cur.type == BL_JT_LBRACKET)
            n = parse_brackets(p, n);
        else if (p->cur.type == BL_JT_LPAREN)
            n = parse_call(p, n);
        else
            break;
    }
    return n;
}

/* Names of filters and tests may hold dots; none of ours does. */
static struct bl_jtoken dotted_name(struct bl_jparser *p)
{
    struct bl_jtoken t = p->cur;
    bl_jparse_expect(p, BL_JT_NAME);
    while (p->cur.type == BL_JT_DOT && !p->run->status) {
        bl_jparse_advance(p);
        struct bl_jv part = p->cur.value;
        bl_jparse_expect(p, BL_JT_NAME);
        t.value = bl_jv_slice(t.value, 0, part.off + part.len - t.value.off);
    }
    return t;
}

static struct bl_jnode *parse_filter(struct bl_jparser *p, struct bl_jnode *of)
{
    struct bl_jtoken t = dotted_name(p);
    struct bl_jnode *n = named(p, BL_JN_FILTER, t.line, of, t.value);
    struct bl_jnode *args = p->cur.type == BL_JT_LPAREN ? parse_arguments(p) : NULL;
    if (n) {
        n->fn = bl_jfilter_find(t.value);
        n->list = args;
    }
    return n;
}

static bool at_test_operand(const struct bl_jparser *p)
{
    switch (p->cur.type) {
    case BL_JT_NAME:
        return !bl_jparse_at_name(p, "else") && !bl_jparse_at_name(p, "or") &&
               !bl_jparse_at_name(p, "and");
    case BL_JT_STRING:
    case BL_JT_INT:
    case BL_JT_FLOAT:
    case BL_JT_LPAREN:
    case BL_JT_LBRACKET:
    case BL_JT_LBRACE:
        return true;
    default:
        return false;
    }
}

static struct bl_jnode *test_operand(struct bl_jparser *p)
{
    if (bl_jparse_at_name(p, "is")) {
        p->run->line = p->cur.line;
        bl_jrun_fail(p->run, BL_EFORMAT, "You cannot chain multiple tests with is");
        return NULL;
    }
    uint32_t line = p->cur.line;
    return with_a(p, BL_JN_ARG, line, parse_postfix(p, parse_primary(p)));
}

static struct bl_jnode *parse_test(struct bl_jparser *p, struct bl_jnode *of)
{
    uint32_t line = p->cur.line;
    bl_jparse_advance(p);
    bool negated = bl_jparse_skip_name(p, "not");
    struct bl_jtoken t = dotted_name(p);
    struct bl_jnode *n = named(p, BL_JN_TEST, t.line, of, t.value), *args = NULL;
    if (p->cur.type == BL_JT_LPAREN)
        args = parse_arguments(p);
    else if (at_test_operand(p))
        args = test_operand(p);
    if (n) {
        n->fn = bl_jtest_find(t.value);
        n->list = args;
    }
    return negated ? with_a(p, BL_JN_NOT, line, n) : n;
}

struct bl_jnode *bl_jparse_filters(struct bl_jparser *p, struct bl_jnode *n, bool first_has_no_pipe)
{
    if (first_has_no_pipe)
        n = parse_filter(p, n);
    while (!p->run->status) {
        if (bl_jparse_skip(p, BL_JT_PIPE))
            n = parse_filter(p, n);
        else if (bl_jparse_at_name(p, "is"))
            n = parse_test(p, n);
        else if (p->cur.type == BL_JT_LPAREN)
            n = parse_call(p, n);
        else
            break;
    }
    return n;
}

/* ---- operators, from tight to loose ---------------------------------------------------------- */

static struct bl_jnode *parse_sign(struct bl_jparser *p, bool with_filters)
{
    struct bl_jnode *n;
    uint32_t line = p->cur.line;
    bool minus = p->cur.type == BL_JT_SUB;
    if (minus || p->cur.type == BL_JT_ADD) {
        bl_jparse_advance(p);
        struct bl_jnode *of = bl_jparse_enter(p) ? parse_sign(p, false) : NULL;
        bl_jparse_leave(p);
        n = with_a(p, minus ? BL_JN_NEGATE : BL_JN_PLUS, line, of);
    } else {
        n = parse_primary(p);
    }
    n = parse_postfix(p, n);
    return with_filters ? bl_jparse_filters(p, n, false) : n;
}

enum level { LEVEL_SUM, LEVEL_CONCAT, LEVEL_PRODUCT, LEVEL_POWER, LEVEL_UNARY };

static bool at_operator(const struct bl_jparser *p, enum level level)
{
    enum bl_jtok t = p->cur.type;
    switch (level) {
    case LEVEL_SUM:
        return t == BL_JT_ADD || t == BL_JT_SUB;
    case LEVEL_PRODUCT:
        return t == BL_JT_MUL || t == BL_JT_DIV || t == BL_JT_FLOORDIV || t == BL_JT_MOD;
    case LEVEL_POWER:
        return t == BL_JT_POW;
    default:
        return t == BL_JT_TILDE;
    }
}

static struct bl_jnode *parse_binary(struct bl_jparser *p, enum level level);

static struct bl_jnode *parse_concat(struct bl_jparser *p, struct bl_jnode *first)
{
    struct bl_jnode *n = bl_jparse_node(p, BL_JN_CONCAT, p->cur.line), *items = NULL,
                    **tail = &items;
    append(&tail, first);
    while (bl_jparse_skip(p, BL_JT_TILDE) && !p->run->status)
        append(&tail, parse_binary(p, LEVEL_PRODUCT));
    if (n)
        n->list = items;
    return n;
}

/* Every level associates to the left, powers too. */
static struct bl_jnode *parse_binary(struct bl_jparser *p, enum level level)
{
    if (level == LEVEL_UNARY)
        return parse_sign(p, true);
    struct bl_jnode *n = parse_binary(p, level + 1);
    if (level == LEVEL_CONCAT && p->cur.type == BL_JT_TILDE)
        return parse_concat(p, n);
    while (at_operator(p, level) && !p->run->status) {
        struct bl_jtoken t = p->cur;
        bl_jparse_advance(p);
        n = with_ab(p, BL_JN_BINARY, t.line, n, parse_binary(p, level + 1));
        if (n)
            n->op = (uint8_t)t.type;
    }
    return n;
}

static bool at_comparison(struct bl_jparser *p, enum bl_jtok *op)
{
    if (p->cur.type >= BL_JT_EQ && p->cur.type <= BL_JT_GE)
        *op = p->cur.type;
    else if (bl_jparse_at_name(p, "in"))
        *op = BL_JT_IN;
    else if (bl_jparse_at_name(p, "not") && p->ahead.type == BL_JT_NAME &&
             bl_jv_is_text(p->ahead.value, "in"))
        *op = BL_JT_NOT_IN;
    else
        return false;
    return true;
}

static struct bl_jnode *parse_comparison(struct bl_jparser *p)
{
    struct bl_jnode *first = parse_binary(p, LEVEL_SUM), *operands = NULL, **tail = &operands;
    uint32_t line = p->cur.line;
    enum bl_jtok op;
    while (!p->run->status && at_comparison(p, &op)) {
        bl_jparse_advance(p);
        if (op == BL_JT_NOT_IN)
            bl_jparse_advance(p);
        struct bl_jnode *n = with_a(p, BL_JN_OPERAND, line, parse_binary(p, LEVEL_SUM));
        if (n)
            n->op = (uint8_t)op;
        append(&tail, n);
    }
    if (!operands)
        return first;
    struct bl_jnode *n = with_a(p, BL_JN_COMPARE, line, first);
    if (n)
        n->list = operands;
    return n;
}

static struct bl_jnode *parse_not(struct bl_jparser *p)
{
    uint32_t line = p->cur.line;
    if (!bl_jparse_skip_name(p, "not"))
        return parse_comparison(p);
    struct bl_jnode *of = bl_jparse_enter(p) ? parse_not(p) : NULL;
    bl_jparse_leave(p);
    return with_a(p, BL_JN_NOT, line, of);
}

static struct bl_jnode *parse_and(struct bl_jparser *p)
{
    struct bl_jnode *n = parse_not(p);
    uint32_t line = p->cur.line;
    while (bl_jparse_skip_name(p, "and") && !p->run->status)
        n = with_ab(p, BL_JN_AND, line, n, parse_not(p));
    return n;
}

struct bl_jnode *bl_jparse_operation(struct bl_jparser *p)
{
    struct bl_jnode *n = parse_and(p);
    uint32_t line = p->cur.line;
    while (bl_jparse_skip_name(p, "or") && !p->run->status)
        n = with_ab(p, BL_JN_OR, line, n, parse_and(p));
    return n;
}

struct bl_jnode *bl_jparse_expression(struct bl_jparser *p)
{
    struct bl_jnode *n = bl_jparse_enter(p) ? bl_jparse_operation(p) : NULL;
    uint32_t line = p->cur.line;
    while (bl_jparse_skip_name(p, "if") && !p->run->status) {
        struct bl_jnode *cond = with_ab(p, BL_JN_COND, line, bl_jparse_operation(p), n);
        bool has_else = bl_jparse_skip_name(p, "else");
        if (cond && has_else)
            cond->c = bl_jparse_expression(p);
        n = cond;
    }
    bl_jparse_leave(p);
    return n;
}

/* ---- targets of assignments ------------------------------------------------------------------ */

struct bl_jnode *bl_jparse_target_name(struct bl_jparser *p)
{
    struct bl_jtoken t = p->cur;
    struct bl_jv value;
    bl_jparse_expect(p, BL_JT_NAME);
    if (!p->run->status && is_literal(t.value, &value)) {
        p->run->line = t.line;
        bl_jrun_fail(p->run, BL_EFORMAT, "can't assign to 'const'");
    }
    return named(p, BL_JN_NAME, t.line, NULL, t.value);
}

static struct bl_jnode *one_target(struct bl_jparser *p, bool with_namespace)
{
    if (p->cur.type == BL_JT_LPAREN) {
        bl_jparse_advance(p);
        struct bl_jnode *n = bl_jparse_enter(p) ? bl_jparse_target(p, with_namespace) : NULL;
        bl_jparse_leave(p);
        bl_jparse_expect(p, BL_JT_RPAREN);
        return n;
    }
    struct bl_jnode *n = bl_jparse_target_name(p);
    return with_namespace && p->cur.type == BL_JT_DOT ? parse_dot(p, n) : n;
}

struct bl_jnode *bl_jparse_target(struct bl_jparser *p, bool with_namespace)
{
    struct bl_jnode *items = NULL, **tail = &items, *n;
    uint32_t line = p->cur.line;
    bool comma = false;
    do {
        append(&tail, one_target(p, with_namespace));
        if (!bl_jparse_skip(p, BL_JT_COMMA))
            break;
        comma = true;
    } while ((p->cur.type == BL_JT_LPAREN || p->cur.type == BL_JT_NAME) &&
             !bl_jparse_at_name(p, "in") && !p->run->status);
    if (!comma)
        return items;
    n = bl_jparse_node(p, BL_JN_TUPLE, line);
    if (n)
        n->list = items;
    return n;
}

/* SPDX-License-Identifier: MIT */
#include "jinja_ast.h"

/* ---- shared with expressions ----------------------------------------------------------------- */

void bl_jparse_advance(struct bl_jparser *p)
{
    p->cur = p->ahead;
    p->ahead = bl_jlex_next(&p->lex);
    if (p->run->status)
        p->cur = p->ahead = (struct bl_jtoken){.type = BL_JT_END, .line = p->cur.line};
}

bool bl_jparse_at_name(const struct bl_jparser *p, const char *name)
{
    return p->cur.type == BL_JT_NAME && bl_jv_is_text(p->cur.value, name);
}

bool bl_jparse_skip_name(struct bl_jparser *p, const char *name)
{
    if (!bl_jparse_at_name(p, name))
        return false;
    bl_jparse_advance(p);
    return true;
}

bool bl_jparse_skip(struct bl_jparser *p, enum bl_jtok type)
{
    if (p->cur.type != type || p->run->status)
        return false;
    bl_jparse_advance(p);
    return true;
}

static struct bl_jv describe(struct bl_jparser *p)
{
    return p->cur.type == BL_JT_NAME ? p->cur.value : bl_jv_text(p->run, bl_jtok_text(p->cur.type));
}

struct bl_jnode *bl_jparse_unexpected(struct bl_jparser *p)
{
    struct bl_jv got = describe(p);
    p->run->line = p->cur.line;
    bl_jrun_fail(p->run, BL_EFORMAT, "unexpected '%.*s'", (int)got.len, bl_jv_bytes(got));
    return NULL;
}

static void fail_expected(struct bl_jparser *p, const char *wanted)
{
    struct bl_jv got = describe(p);
    p->run->line = p->cur.line;
    if (p->cur.type == BL_JT_END)
        bl_jrun_fail(p->run, BL_EFORMAT, "unexpected end of template, expected '%s'.", wanted);
    else
        bl_jrun_fail(p->run, BL_EFORMAT, "expected token '%s', got '%.*s'", wanted, (int)got.len,
                     bl_jv_bytes(got));
}

void bl_jparse_expect(struct bl_jparser *p, enum bl_jtok type)
{
    if (!bl_jparse_skip(p, type))
        fail_expected(p, bl_jtok_text(type));
}

static void expect_name(struct bl_jparser *p, const char *name)
{
    if (!bl_jparse_skip_name(p, name))
        fail_expected(p, name);
}

struct bl_jnode *bl_jparse_node(struct bl_jparser *p, enum bl_jnode_type type, uint32_t line)
{
    struct bl_jnode *n = bl_jrun_alloc(p->run, sizeof *n);
    if (n) {
        n->type = (uint8_t)type;
        n->line = line;
    }
    return n;
}

bool bl_jparse_enter(struct bl_jparser *p)
{
    if (++p->depth > p->run->limits.depth) {
        p->run->line = p->cur.line;
        bl_jrun_fail(p->run, BL_ELIMIT, "nested more than %u deep", p->run->limits.depth);
    }
    return !p->run->status;
}

void bl_jparse_leave(struct bl_jparser *p)
{
    p->depth--;
}

/* ---- bodies ---------------------------------------------------------------------------------- */

static struct bl_jnode *parse_statement(struct bl_jparser *p);

static struct bl_jnode *fail_tag(struct bl_jparser *p)
{
    const struct bl_jopen *o = p->open;
    struct bl_jv name = describe(p);
    p->run->line = p->cur.line;
    bl_jrun_fail(p->run, BL_EFORMAT, "%s%.*s%s%s%s%s%s%s",
                 p->cur.type == BL_JT_END ? "Unexpected end of template."
                                          : "Encountered unknown tag '",
                 p->cur.type == BL_JT_END ? 0 : (int)name.len, bl_jv_bytes(name),
                 p->cur.type == BL_JT_END ? "" : "'.",
                 o ? " Jinja was looking for the following tags: " : "", o ? o->ends : "",
                 o ? ". The innermost block that needs to be closed is '" : "", o ? o->tag : "",
                 o ? "'." : "");
    return NULL;
}

/* ends: "'elif' or 'else' or 'endif'". */
static bool at_end_tag(const struct bl_jparser *p, const char *ends)
{
    struct bl_jv v = p->cur.value;
    const char *s = ends;
    while (p->cur.type == BL_JT_NAME && (s = strchr(s, '\''))) {
        size_t n = strcspn(++s, "'");
        if (v.len == n && memcmp(bl_jv_bytes(v), s, n) == 0)
            return true;
        s += n + 1;
    }
    return false;
}

static struct bl_jnode *parse_print(struct bl_jparser *p)
{
    struct bl_jnode *n = bl_jparse_node(p, BL_JN_PRINT, p->cur.line);
    bl_jparse_advance(p);
    struct bl_jnode *a = bl_jparse_tuple(p, true);
    bl_jparse_expect(p, BL_JT_PRINT_END);
    if (n)
        n->a = a;
    return n;
}

static struct bl_jnode *parse_data(struct bl_jparser *p)
{
    struct bl_jnode *n = bl_jparse_node(p, BL_JN_TEXT, p->cur.line);
    if (n)
        n->value = p->cur.value;
    bl_jparse_advance(p);
    return n;
}

/* Statements up to one of the end tags, whose name is left as the current token; up to the end of
 * the template with no end tags. */
static struct bl_jnode *parse_body(struct bl_jparser *p, const char *tag, const char *ends)
{
    struct bl_jopen open = {p->open, tag, ends};
    struct bl_jnode *body = NULL, **tail = &body;
    if (ends)
        p->open = &open;
    while (!p->run->status) {
        struct bl_jnode *n;
        if (p->cur.type == BL_JT_END) {
            n = ends ? fail_tag(p) : NULL;
            break;
        }
        if (p->cur.type == BL_JT_BLOCK_BEGIN) {
            bl_jparse_advance(p);
            if (ends && at_end_tag(p, ends))
                break;
            n = parse_statement(p);
            bl_jparse_expect(p, BL_JT_BLOCK_END);
        } else {
            n = p->cur.type == BL_JT_DATA ? parse_data(p) : parse_print(p);
        }
        if (n) {
            *tail = n;
            tail = &n->next;
        }
    }
    p->open = open.outer;
    return body;
}

/* The body of a statement whose tag is about to end, and the name that ends it. */
static struct bl_jnode *parse_block(struct bl_jparser *p, const char *tag, const char *ends)
{
    bl_jparse_expect(p, BL_JT_BLOCK_END);
    struct bl_jnode *body = parse_body(p, tag, ends);
    return body;
}

static struct bl_jnode *parse_last_block(struct bl_jparser *p, const char *tag, const char *ends)
{
    struct bl_jnode *body = parse_block(p, tag, ends);
    bl_jparse_advance(p);
    return body;
}

/* ---- statements ------------------------------------------------------------------------------ */

static void parse_if(struct bl_jparser *p, struct bl_jnode *n)
{
    static const char before_else[] = "'elif' or 'else' or 'endif'";
    struct bl_jnode **tail = &n->list;
    bool last = false;
    n->type = BL_JN_IF;
    do {
        struct bl_jnode *b = bl_jparse_node(p, BL_JN_BRANCH, p->cur.line);
        if (!b)
            return;
        if (!last)
            b->a = bl_jparse_tuple(p, false);
        b->list = parse_block(p, "if", last ? "'endif'" : before_else);
        *tail = b;
        tail = &b->next;
        last = bl_jparse_at_name(p, "else");
    } while (!p->run->status && (bl_jparse_skip_name(p, "elif") || bl_jparse_skip_name(p, "else")));
    expect_name(p, "endif");
}

static void parse_for(struct bl_jparser *p, struct bl_jnode *n)
{
    n->type = BL_JN_FOR;
    n->a = bl_jparse_target(p, false);
    expect_name(p, "in");
    n->b = bl_jparse_tuple(p, false);
    if (bl_jparse_skip_name(p, "if"))
        n->c = bl_jparse_expression(p);
    n->flag = bl_jparse_skip_name(p, "recursive");
    p->loops++;
    n->list = parse_block(p, "for", "'endfor' or 'else'");
    p->loops--;
    if (bl_jparse_skip_name(p, "else"))
        n->more = parse_block(p, "for", "'endfor'");
    expect_name(p, "endfor");
}

static struct bl_jnode *captured(struct bl_jparser *p)
{
    return bl_jparse_node(p, BL_JN_CAPTURED, p->cur.line);
}

static void parse_set(struct bl_jparser *p, struct bl_jnode *n)
{
    n->a = bl_jparse_target(p, true);
    if (bl_jparse_skip(p, BL_JT_ASSIGN)) {
        n->type = BL_JN_SET;
        n->b = bl_jparse_tuple(p, true);
        return;
    }
    n->type = BL_JN_SET_BLOCK;
    n->b = bl_jparse_filters(p, captured(p), false);
    n->list = parse_last_block(p, "set", "'endset'");
}

static void parse_filter_block(struct bl_jparser *p, struct bl_jnode *n)
{
    n->type = BL_JN_FILTER_BLOCK;
    n->b = bl_jparse_filters(p, captured(p), true);
    n->list = parse_last_block(p, "filter", "'endfilter'");
}

static struct bl_jnode *parse_parameters(struct bl_jparser *p)
{
    struct bl_jnode *params = NULL, **tail = &params;
    bool optional = false;
    bl_jparse_expect(p, BL_JT_LPAREN);
    while (p->cur.type != BL_JT_RPAREN && !p->run->status) {
        if (params)
            bl_jparse_expect(p, BL_JT_COMMA);
        struct bl_jnode *n = bl_jparse_target_name(p);
        if (!n)
            return params;
        n->type = BL_JN_PARAM;
        bool has_default = bl_jparse_skip(p, BL_JT_ASSIGN);
        if (has_default)
            n->a = bl_jparse_expression(p);
        else if (optional)
            bl_jrun_fail(p->run, BL_EFORMAT, "non-default argument follows default argument");
        optional |= has_default;
        *tail = n;
        tail = &n->next;
    }
    bl_jparse_expect(p, BL_JT_RPAREN);
    return params;
}

/* A macro is a function: loops outside do not reach in, and what it mentions is its own affair; yet
 * the names that a nested macro mentions count for the outer one as well. */
static void parse_macro_body(struct bl_jparser *p, struct bl_jnode *n, const char *tag,
                             const char *ends)
{
    uint8_t uses = p->uses;
    uint32_t loops = p->loops;
    p->uses = 0;
    p->loops = 0;
    n->more = parse_last_block(p, tag, ends);
    n->flag = p->uses;
    p->uses |= uses;
    p->loops = loops;
}

static void parse_macro(struct bl_jparser *p, struct bl_jnode *n)
{
    struct bl_jnode *name = bl_jparse_target_name(p);
    n->type = BL_JN_MACRO;
    if (name)
        n->value = name->value;
    n->list = parse_parameters(p);
    parse_macro_body(p, n, "macro", "'endmacro'");
}

static void parse_call_block(struct bl_jparser *p, struct bl_jnode *n)
{
    struct bl_jnode *caller = bl_jparse_node(p, BL_JN_MACRO, p->cur.line);
    n->type = BL_JN_CALL_BLOCK;
    n->b = caller;
    if (!caller)
        return;
    caller->value = bl_jv_text(p->run, "caller");
    if (p->cur.type == BL_JT_LPAREN)
        caller->list = parse_parameters(p);
    n->a = bl_jparse_expression(p);
    if (n->a && n->a->type != BL_JN_CALL) {
        p->run->line = n->line;
        bl_jrun_fail(p->run, BL_EFORMAT, "expected call");
    }
    parse_macro_body(p, caller, "call", "'endcall'");
}

static void parse_with(struct bl_jparser *p, struct bl_jnode *n)
{
    struct bl_jnode **tail = &n->list;
    n->type = BL_JN_WITH;
    while (p->cur.type != BL_JT_BLOCK_END && !p->run->status) {
        if (n->list)
            bl_jparse_expect(p, BL_JT_COMMA);
        struct bl_jnode *set = bl_jparse_node(p, BL_JN_SET, p->cur.line);
        if (!set)
            return;
        set->a = bl_jparse_target(p, false);
        bl_jparse_expect(p, BL_JT_ASSIGN);
        set->b = bl_jparse_expression(p);
        *tail = set;
        tail = &set->next;
    }
    n->more = parse_last_block(p, "with", "'endwith'");
}

static void parse_generation(struct bl_jparser *p, struct bl_jnode *n)
{
    uint32_t loops = p->loops;
    n->type = BL_JN_SCOPE;
    p->loops = 0;
    n->list = parse_last_block(p, "generation", "'endgeneration'");
    p->loops = loops;
}

static void parse_jump(struct bl_jparser *p, struct bl_jnode *n, bool is_break)
{
    n->type = is_break ? BL_JN_BREAK : BL_JN_CONTINUE;
    if (!p->loops)
        bl_jrun_fail(p->run, BL_EFORMAT,
                     is_break ? "'break' outside loop" : "'continue' not properly in loop");
}

/* They need other templates, which do not exist; an error only if the statement is reached. */
static void parse_unsupported(struct bl_jparser *p, struct bl_jnode *n, struct bl_jv name)
{
    n->type = BL_JN_UNSUPPORTED;
    n->value = name;
    while (p->cur.type != BL_JT_BLOCK_END && p->cur.type != BL_JT_END)
        bl_jparse_advance(p);
}

static bool parse_simple(struct bl_jparser *p, struct bl_jnode *n)
{
    static const char *const unsupported[] = {"include", "import", "from", "extends"};
    struct bl_jv name = p->cur.value;
    bool is_break = bl_jparse_at_name(p, "break");
    if (is_break || bl_jparse_at_name(p, "continue")) {
        p->run->line = n->line;
        bl_jparse_advance(p);
        parse_jump(p, n, is_break);
        return true;
    }
    for (size_t i = 0; i < BL_COUNT(unsupported); i++)
        if (bl_jparse_skip_name(p, unsupported[i])) {
            parse_unsupported(p, n, name);
            return true;
        }
    return false;
}

static const struct {
    const char *name;
    void (*parse)(struct bl_jparser *, struct bl_jnode *);
} statements[] = {
    {"if", parse_if},           {"for", parse_for},
    {"set", parse_set},         {"macro", parse_macro},
    {"call", parse_call_block}, {"filter", parse_filter_block},
    {"with", parse_with},       {"generation", parse_generation},
};

static struct bl_jnode *parse_known(struct bl_jparser *p)
{
    struct bl_jnode *n = bl_jparse_node(p, BL_JN_SCOPE, p->cur.line);
    if (!n)
        return NULL;
    for (size_t i = 0; i < BL_COUNT(statements); i++)
        if (bl_jparse_skip_name(p, statements[i].name)) {
            statements[i].parse(p, n);
            return n;
        }
    return parse_simple(p, n) ? n : fail_tag(p);
}

static struct bl_jnode *parse_statement(struct bl_jparser *p)
{
    if (p->cur.type != BL_JT_NAME) {
        p->run->line = p->cur.line;
        bl_jrun_fail(p->run, BL_EFORMAT, "tag name expected");
        return NULL;
    }
    struct bl_jnode *n = bl_jparse_enter(p) ? parse_known(p) : NULL;
    bl_jparse_leave(p);
    return n;
}

struct bl_jnode *bl_jparse_template(struct bl_jinja_run *r, const char *source, size_t n_bytes)
{
    struct bl_jparser p = {.run = r};
    bl_jlex_init(&p.lex, r, source, n_bytes);
    bl_jparse_advance(&p);
    bl_jparse_advance(&p);
    struct bl_jnode *body = parse_body(&p, NULL, NULL);
    return r->status ? NULL : body;
}

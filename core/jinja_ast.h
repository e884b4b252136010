/* SPDX-License-Identifier: MIT */
/* jinja_ast.h — from the text of a template to its tree.
 *
 * Purpose   tokens, nodes, and the parser that the two halves of the grammar (statements, expressions) share.
 * Ownership nodes and constants live in the arena of the run that parses; constants may be slices of the source.
 * Units     bytes; lines from 1.
 * Errors    sticky in that run, BL_EFORMAT. After a failure tokens are all BL_JT_END and parse functions return NULL.
 * Threads   a parser belongs to one thread; a finished tree is read-only.
 */
#ifndef BL_JINJA_AST_H
#define BL_JINJA_AST_H

#include "jinja_value.h"

/* ---- tokens ---- */
enum bl_jtok {
    BL_JT_END, /* of the template */
    BL_JT_DATA,
    BL_JT_PRINT_BEGIN,
    BL_JT_PRINT_END,
    BL_JT_BLOCK_BEGIN,
    BL_JT_BLOCK_END,
    BL_JT_NAME,
    BL_JT_STRING,
    BL_JT_INT,
    BL_JT_FLOAT,
    BL_JT_ADD,
    BL_JT_SUB,
    BL_JT_MUL,
    BL_JT_DIV,
    BL_JT_FLOORDIV,
    BL_JT_MOD,
    BL_JT_POW,
    BL_JT_TILDE,
    BL_JT_EQ,
    BL_JT_NE,
    BL_JT_LT,
    BL_JT_LE,
    BL_JT_GT,
    BL_JT_GE,
    BL_JT_ASSIGN,
    BL_JT_DOT,
    BL_JT_COLON,
    BL_JT_PIPE,
    BL_JT_COMMA,
    BL_JT_SEMICOLON,
    BL_JT_LPAREN,
    BL_JT_RPAREN,
    BL_JT_LBRACKET,
    BL_JT_RBRACKET,
    BL_JT_LBRACE,
    BL_JT_RBRACE,
    BL_JT_IN, /* these two only as operators of comparisons */
    BL_JT_NOT_IN
};
struct bl_jtoken {
    enum bl_jtok type;
    uint32_t line;
    struct bl_jv value; /* data, name, string, numbers */
};

enum { BL_JLEX_OPEN = 1024 }; /* brackets open at once, at most; limits.depth is usually less */
struct bl_jlex {
    struct bl_jinja_run *run;
    struct bl_jv source; /* newlines are \n, the last one is gone */
    const char *s;
    uint32_t n, at, line;
    bool at_tag;       /* s + at is a tag whose preceding text was handed out */
    enum bl_jtok mode; /* BL_JT_DATA, BL_JT_PRINT_BEGIN or BL_JT_BLOCK_BEGIN */
    uint32_t n_open;
    char open[BL_JLEX_OPEN];
};
void bl_jlex_init(struct bl_jlex *, struct bl_jinja_run *, const char *source, size_t n_bytes);
struct bl_jtoken bl_jlex_next(struct bl_jlex *);
const char *bl_jtok_text(enum bl_jtok); /* as messages call it */

/* ---- nodes ---- */
enum bl_jnode_type {
    /* expressions                what they use of a, b, c, list, more, value, op */
    BL_JN_CONST,               /* value */
    BL_JN_NAME,                /* value */
    BL_JN_LIST,                /* list: items */
    BL_JN_TUPLE,               /* list: items */
    BL_JN_DICT,                /* list: key, value, key, value ... */
    BL_JN_NEGATE,              /* a */
    BL_JN_PLUS,                /* a */
    BL_JN_NOT,                 /* a */
    BL_JN_AND,                 /* a, b */
    BL_JN_OR,                  /* a, b */
    BL_JN_BINARY,              /* a, b; op: a token */
    BL_JN_CONCAT,              /* list: the pieces of ~ */
    BL_JN_COMPARE,             /* a; list: OPERANDs */
    BL_JN_OPERAND,             /* a; op: a token */
    BL_JN_COND,                /* a if b else c; c may be NULL */
    BL_JN_ATTRIBUTE,           /* a; value: name */
    BL_JN_ITEM,                /* a; b: index or SLICE */
    BL_JN_SLICE,               /* a, b, c: start, stop, step, each may be NULL */
    BL_JN_CALL,                /* a; list: ARGs */
    BL_JN_FILTER,              /* a; list: ARGs; value: name; fn */
    BL_JN_TEST,                /* a; list: ARGs; value: name; fn */
    BL_JN_ARG,                 /* a; value: name if a keyword; op: MUL, POW for * and ** */
    BL_JN_CAPTURED,            /* what a filter or set block printed */
    /* statements */
    BL_JN_TEXT,                /* value */
    BL_JN_PRINT,               /* a */
    BL_JN_IF,                  /* list: BRANCHes */
    BL_JN_BRANCH,              /* a: test, NULL for else; list: body */
    BL_JN_FOR,                 /* a: target; b: iterable; c: filter or NULL; list: body; more: else; flag: recursive */
    BL_JN_SET,                 /* a: target; b */
    BL_JN_SET_BLOCK,           /* a: target; b: filters around CAPTURED; list: body */
    BL_JN_FILTER_BLOCK,        /* b: filters around CAPTURED; list: body */
    BL_JN_MACRO,               /* value: name; list: PARAMs; more: body; flag: uses */
    BL_JN_PARAM,               /* value: name; a: default or NULL */
    BL_JN_CALL_BLOCK,          /* a: call; b: MACRO that becomes caller */
    BL_JN_WITH,                /* list: SETs; more: body */
    BL_JN_SCOPE,               /* list: body */
    BL_JN_BREAK,
    BL_JN_CONTINUE,
    BL_JN_UNSUPPORTED          /* value: name of the statement */
};
enum { /* flag of MACRO: what its body mentions */
    BL_JUSES_CALLER = 1,
    BL_JUSES_VARARGS = 2,
    BL_JUSES_KWARGS = 4
};
struct bl_jnode {
    uint8_t type, op, flag;
    uint32_t line;
    struct bl_jnode *a, *b, *c, *list, *more;
    struct bl_jnode *next; /* in the list it is part of */
    struct bl_jv value;
    const struct bl_jbuiltin *fn; /* NULL: unknown, an error only when reached */
};

struct bl_jopen { /* an open block, for messages */
    const struct bl_jopen *outer;
    const char *tag, *ends;
};
struct bl_jparser {
    struct bl_jinja_run *run;
    struct bl_jlex lex;
    struct bl_jtoken cur, ahead;
    uint32_t depth;
    uint32_t loops; /* open in this macro */
    uint8_t uses;   /* BL_JUSES bits of the macro at work */
    const struct bl_jopen *open;
};

/* ---- the parser: shared ---- */
void bl_jparse_advance(struct bl_jparser *);
bool bl_jparse_at_name(const struct bl_jparser *, const char *name);
bool bl_jparse_skip_name(struct bl_jparser *, const char *name);
bool bl_jparse_skip(struct bl_jparser *, enum bl_jtok);
void bl_jparse_expect(struct bl_jparser *, enum bl_jtok);
struct bl_jnode *bl_jparse_unexpected(struct bl_jparser *); /* fails; NULL */
struct bl_jnode *bl_jparse_node(struct bl_jparser *, enum bl_jnode_type, uint32_t line);
bool bl_jparse_enter(struct bl_jparser *); /* one level of nesting; leave even when it says false */
void bl_jparse_leave(struct bl_jparser *);

/* ---- expressions (jinja_expr.c) ---- */
struct bl_jnode *bl_jparse_expression(struct bl_jparser *);
struct bl_jnode *bl_jparse_operation(struct bl_jparser *); /* an expression without "if" */
struct bl_jnode *bl_jparse_tuple(struct bl_jparser *, bool with_condition); /* at least one item */
struct bl_jnode *bl_jparse_filters(struct bl_jparser *, struct bl_jnode *around, bool first_has_no_pipe);
struct bl_jnode *bl_jparse_target(struct bl_jparser *, bool with_namespace);
struct bl_jnode *bl_jparse_target_name(struct bl_jparser *);

/* ---- statements (jinja_parse.c) ---- */
struct bl_jnode *bl_jparse_template(struct bl_jinja_run *, const char *source, size_t n_bytes);

#endif

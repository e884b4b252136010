/* SPDX-License-Identifier: MIT */
/* jinja_eval.h — what evaluating a tree and its builtins share.
 *
 * Purpose   scopes, calls, operators, attributes; one table row per filter, test, function or method.
 * Ownership everything lives in the run's arena.
 * Units     none.
 * Errors    sticky in the run, see jinja_value.h.
 * Threads   as the run.
 */
#ifndef BL_JINJA_EVAL_H
#define BL_JINJA_EVAL_H

#include "jinja_ast.h"

/* ---- calls ---- */
struct bl_jnamed {
    struct bl_jv name, value;
};
struct bl_jargs {
    struct bl_jv *pos;
    uint32_t n_pos;
    struct bl_jnamed *named;
    uint32_t n_named;
};
enum { BL_JCALL_ARGS = 6 };
struct bl_jcall {
    const struct bl_jbuiltin *fn;
    struct bl_jv self;               /* the filtered or tested value, the object of a method */
    struct bl_jv arg[BL_JCALL_ARGS]; /* by the order of fn->params; ABSENT when not given */
    struct bl_jargs args;            /* as written */
};
typedef struct bl_jv bl_jinja_fn(struct bl_jinja_run *, const struct bl_jcall *);
struct bl_jbuiltin {
    const char *name;
    bl_jinja_fn *call;
    const char *params; /* names, with spaces between; NULL: takes anything */
    uint8_t n_required;
    uint8_t mode; /* which of several builtins that share a function */
};
struct bl_jbound {
    const struct bl_jbuiltin *fn;
    struct bl_jv self;
};
struct bl_jv bl_jcall_builtin(struct bl_jinja_run *, const struct bl_jbuiltin *, struct bl_jv self,
                              const struct bl_jargs *);
struct bl_jv bl_jcall_value(struct bl_jinja_run *, struct bl_jv callee, const struct bl_jargs *);
/* Calls the filter or test that the first argument names, with the rest. */
struct bl_jv bl_jcall_filter_by_name(struct bl_jinja_run *, struct bl_jv self, struct bl_jargs);
bool bl_jcall_test_by_name(struct bl_jinja_run *, struct bl_jv self, struct bl_jargs);
int64_t bl_jcall_int(struct bl_jinja_run *, struct bl_jv arg, int64_t absent); /* fails on other types */

/* ---- tables ---- */
const struct bl_jbuiltin *bl_jbuiltin_find(const struct bl_jbuiltin *rows, size_t n, struct bl_jv name);
const struct bl_jbuiltin *bl_jfilter_find(struct bl_jv name);
const struct bl_jbuiltin *bl_jfilter_find_sequence(struct bl_jv name); /* jinja_sequence.c */
const struct bl_jbuiltin *bl_jtest_find(struct bl_jv name);
const struct bl_jbuiltin *bl_jmethod_find(struct bl_jv object, struct bl_jv name);
bool bl_jmethod_mutates(const struct bl_jbuiltin *);
void bl_jglobals_define(struct bl_jinja_run *);

/* ---- operators (jinja_ops.c) ---- */
struct bl_jv bl_jop_binary(struct bl_jinja_run *, enum bl_jtok op, struct bl_jv a, struct bl_jv b);
struct bl_jv bl_jop_negate(struct bl_jinja_run *, struct bl_jv);
struct bl_jv bl_jop_plus(struct bl_jinja_run *, struct bl_jv);
bool bl_jop_compare(struct bl_jinja_run *, enum bl_jtok op, struct bl_jv a, struct bl_jv b);

/* ---- parts of values (jinja_access.c) ---- */
struct bl_jv bl_jget_attribute(struct bl_jinja_run *, struct bl_jv of, struct bl_jv name);
struct bl_jv bl_jget_item(struct bl_jinja_run *, struct bl_jv of, struct bl_jv index);
struct bl_jv bl_jget_slice(struct bl_jinja_run *, struct bl_jv of, struct bl_jv start, struct bl_jv stop,
                           struct bl_jv step);
struct bl_jv bl_jget_path(struct bl_jinja_run *, struct bl_jv of, struct bl_jv path); /* "a.b.0" */

/* ---- formatting (jinja_format.c) ---- */
struct bl_jv bl_jformat_percent(struct bl_jinja_run *, struct bl_jv format, struct bl_jv args);
struct bl_jv bl_jformat_braces(struct bl_jinja_run *, struct bl_jv format, const struct bl_jargs *);

/* ---- operations on strings (jinja_string.c) ---- */
enum bl_jcase { BL_JCASE_UPPER, BL_JCASE_LOWER, BL_JCASE_SWAP, BL_JCASE_CAPITALIZE, BL_JCASE_TITLE, BL_JCASE_WORDS };
struct bl_jv bl_jstr_case(struct bl_jinja_run *, struct bl_jv, enum bl_jcase); /* TITLE: the method; WORDS: the filter */
struct bl_jv bl_jstr_strip(struct bl_jinja_run *, struct bl_jv, struct bl_jv chars, bool left, bool right);
int64_t bl_jstr_find(struct bl_jinja_run *, struct bl_jv in, uint32_t from, struct bl_jv what); /* byte; -1 */
int64_t bl_jstr_find_last(struct bl_jinja_run *, struct bl_jv in, uint32_t end, struct bl_jv what);
struct bl_jv bl_jstr_replace(struct bl_jinja_run *, struct bl_jv, struct bl_jv old, struct bl_jv with, int64_t most);
struct bl_jv bl_jstr_split(struct bl_jinja_run *, struct bl_jv, struct bl_jv separator, int64_t most, bool from_right);
struct bl_jv bl_jstr_escape(struct bl_jinja_run *, struct bl_jv); /* gives markup */
struct bl_jlist *bl_jstr_lines(struct bl_jinja_run *, struct bl_jv, bool keep_ends);
struct bl_jv bl_jstr_pad(struct bl_jinja_run *, struct bl_jv, struct bl_jv fill, int64_t left, int64_t right);
struct bl_jv bl_jstr_join(struct bl_jinja_run *, struct bl_jv separator, struct bl_jv items, bool convert);

/* ---- evaluating ---- */
struct bl_jscope {
    struct bl_jscope *outer;
    struct bl_jmap vars;
};
struct bl_jmacro {
    const struct bl_jnode *node;
    struct bl_jscope *scope; /* where it was defined */
};
struct bl_jloop {
    const struct bl_jnode *node;
    struct bl_jscope *outer, *probe; /* probe: for the loop's filter */
    struct bl_jiter it;
    bool filtered;              /* what `it` gives has yet to pass the filter */
    struct bl_jv previous, current, next;
    bool has_next, ended;       /* next was fetched; there is none */
    int64_t index0;             /* -1 before the first round */
    int64_t length;             /* -1: not known */
    uint32_t depth0;
    struct bl_jv changed;       /* last argument of loop.changed */
};
enum { BL_JFLOW_NONE, BL_JFLOW_BREAK, BL_JFLOW_CONTINUE };

void bl_jscope_push(struct bl_jinja_run *, struct bl_jscope *outer); /* becomes run.scope */
void bl_jscope_set(struct bl_jinja_run *, const char *name, struct bl_jv value);
struct bl_jv bl_jeval(struct bl_jinja_run *, const struct bl_jnode *);
void bl_jexec(struct bl_jinja_run *, const struct bl_jnode *body);
struct bl_jv bl_jexec_macro(struct bl_jinja_run *, const struct bl_jmacro *, const struct bl_jargs *);
struct bl_jv bl_jexec_loop(struct bl_jinja_run *, const struct bl_jloop *, struct bl_jv iterable); /* loop(...) */
bool bl_jloop_peek(struct bl_jinja_run *, struct bl_jloop *); /* is there a next item? */
int64_t bl_jloop_length(struct bl_jinja_run *, struct bl_jloop *);

/* ---- a whole run, for jinja.c and chat.c ---- */
struct bl_jinja {
    struct bl_jinja_run run; /* owns the tree */
    struct bl_jnode *body;
    char *source;
    size_t n_source;
};
void bl_jinja_start(struct bl_jinja_run *, const struct bl_jinja_options *); /* then bl_jscope_set variables */
struct bl_jv bl_jinja_read(struct bl_jinja_run *, struct bl_jinja_json, bool user);
enum bl_status bl_jinja_execute(struct bl_jinja_run *, const struct bl_jinja *, struct bl_jinja_text *out);

#endif

/* SPDX-License-Identifier: MIT */
/* jinja.h — the template language of chat prompts.
 *
 * Purpose   compiles and renders the Jinja subset that chat templates use, as Python's jinja2 does when transformers
 *           sets it up: trim_blocks, lstrip_blocks, loop controls, {% generation %}, raise_exception, strftime_now and
 *           a tojson that escapes no HTML; besides, a from_json filter. The output says which of its bytes came from
 *           the caller's data, so that a user's "<|im_end|>" need not become a control token.
 * Ownership a template owns its text; a bl_jinja_text belongs to the caller. Nothing points into the arguments after a
 *           call returns.
 * Units     bytes.
 * Errors    one line that begins "template line N: ". BL_EFORMAT: the template is wrong; BL_EINVAL: it fails with these
 *           variables; BL_ELIMIT: nesting, steps, output or memory; BL_EUNSUPPORTED: a feature left out.
 *           raise_exception gives BL_EINVAL and the template's own words, without the line.
 * Threads   a template is read-only after compile: any number of threads may render it at once. Worst stack use is
 *           below 1 MiB with default limits.
 */
#ifndef BL_JINJA_H
#define BL_JINJA_H

#include <time.h>

#include "status.h"

struct cJSON;
struct bl_jinja; /* a compiled template */

struct bl_jinja_limits {   /* zero means the default */
    uint32_t depth;        /* brackets and blocks in the text, calls of macros, values inside values: 100 */
    uint64_t steps;        /* statements, rounds of loops, calls, and kilobytes worked on: 1,000,000 */
    uint64_t output_bytes; /* 8 MiB */
    uint64_t memory_bytes; /* 256 MiB; at most 2 GiB */
};

/* A value from outside: a cJSON tree, or JSON text where tree is NULL. Text keeps what cJSON cannot: 1.0 beside 1,
 * integers of 64 bits, "\u0000". */
struct bl_jinja_json {
    const struct cJSON *tree;
    const char *text;
    size_t n_bytes;
};
struct bl_jinja_var {
    const char *name;
    struct bl_jinja_json value;
    bool trusted; /* not user data: may become control tokens, as bos_token should */
};

struct bl_jinja_options {
    struct bl_jinja_limits limits;
    const struct tm *now; /* for strftime_now; NULL leaves strftime_now undefined */
    bool mutable_values;  /* list.append and the like work; transformers forbids them, yet Kimi-K2's template needs them */
};

struct bl_jinja_range {
    size_t begin, end;
};
struct bl_jinja_text {
    char *bytes; /* NUL-terminated */
    size_t n_bytes;
    struct bl_jinja_range *user; /* bytes that came from untrusted variables: sorted, apart, none empty */
    size_t n_user;
};

enum bl_status bl_jinja_compile(struct bl_jinja **out, const char *source, size_t n_bytes,
                                const struct bl_jinja_limits *limits); /* NULL: defaults */
void bl_jinja_destroy(struct bl_jinja *);
/* Whether the text of the template contains the word. */
bool bl_jinja_mentions(const struct bl_jinja *, const char *word);

/* A later variable of the same name wins. `options` may be NULL. */
enum bl_status bl_jinja_render(const struct bl_jinja *, const struct bl_jinja_var *vars, size_t n_vars,
                               const struct bl_jinja_options *options, struct bl_jinja_text *out);
void bl_jinja_text_finish(struct bl_jinja_text *);

#endif

/* SPDX-License-Identifier: MIT */
/* answer.h — the marks that models put around their reasoning.
 *
 * Purpose   one table of forms (<think>, harmony's channels, …) for whoever reads an answer or writes one into a
 *           history; the machine that parts a stream by them is public, see bl_answer_create.
 * Ownership forms are static.
 * Units     bytes.
 * Errors    none.
 * Threads   any.
 */
#ifndef BL_ANSWER_H
#define BL_ANSWER_H

#include "jinja.h"
#include "status.h"

struct bl_answer_form;
/* By what the template mentions, else by the tokens of the vocabulary (may be NULL); NULL: no marks. */
const struct bl_answer_form *bl_answer_form_of(const struct bl_jinja *, const struct bl_vocab *);
/* The marks around reasoning where they are two plain texts, as in "<think>…</think>"; false: another form. */
bool bl_answer_form_marks(const struct bl_answer_form *, const char **open, const char **close);
/* For bl_vocab_open: control tokens whose text a reader of answers has to see. */
bool bl_answer_is_mark(const char *piece, size_t n_bytes);

/* chat_api.c */
const struct bl_answer_form *bl_chat_form(const struct bl_chat *);

#endif

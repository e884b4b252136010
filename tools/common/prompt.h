/* SPDX-License-Identifier: MIT */
/* prompt.h — from what a user typed to token ids, through the chat template where there is one.
 *
 * Purpose   options --raw, --system and --chat-template; conversations as JSON; token ids of a prompt.
 * Ownership a dialogue owns template and messages; ids are malloc'ed and the caller's.
 * Units     bytes, tokens.
 * Errors    exit codes; the line has been printed.
 * Threads   the thread that runs the verb.
 */
#ifndef BL_PROMPT_H
#define BL_PROMPT_H

#include "args.h"
#include "reply.h"

struct cJSON;
struct bl_prompt_args {
    const char *system, *template_file;
    bool raw;
};
struct bl_arg_group bl_prompt_group(struct bl_prompt_args *);
int bl_prompt_args_check(const struct bl_command *, const struct bl_prompt_args *); /* usage */

/* The file's or the model's template; *out stays NULL where the model has none. Exit code. */
int bl_prompt_template(const struct bl_report *, const char *file, const struct bl_gguf *,
                       const struct bl_vocab *, struct bl_chat **out);

struct bl_dialogue {
    const struct bl_report *report;
    const struct bl_vocab *vocab;
    struct bl_chat *chat;     /* NULL: texts are taken as they are */
    struct cJSON *messages;
    char *system;             /* copy of the first message's text, kept over a clear; NULL: none */
    struct bl_answer *answer; /* parts the answer to the last prompt; NULL: without a template */
};
int bl_dialogue_init(struct bl_dialogue *, const struct bl_prompt_args *, struct bl_engine *);
void bl_dialogue_finish(struct bl_dialogue *); /* zeroed is fine */
bool bl_dialogue_clear(struct bl_dialogue *);  /* back to the system message alone; false: out of memory */
/* Adds a message; malformed UTF-8 in the text is replaced. */
bool bl_dialogue_add(struct bl_dialogue *, const char *role, const char *text, size_t n);
bool bl_dialogue_add_answer(struct bl_dialogue *, const struct bl_reply *); /* what it kept */
void bl_dialogue_drop_last(struct bl_dialogue *);
/* Ids of the prompt that asks for the next answer. */
int bl_dialogue_ids(struct bl_dialogue *, int32_t **ids, size_t *n);

#endif

/* SPDX-License-Identifier: MIT */
/* chat.h — from a conversation to the text of a prompt.
 *
 * Purpose   renders messages in OpenAI's form through a model's own template, set up as transformers does. With `adapt`
 *           the conversation is also fitted to what the template can take, found out by rendering: tool arguments as
 *           objects or as JSON text, contents as lists of parts or as text, a system message where there is no role
 *           for it, reasoning (reasoning_content) under the name the template knows, in the content, or left out.
 *           Without it the template gets exactly what the caller gave.
 * Ownership a text belongs to the caller (bl_jinja_text_finish); nothing points into the input afterwards.
 * Units     bytes.
 * Errors    as jinja.h; a conversation that is not one gives BL_EINVAL and names the message.
 * Threads   any; a template may be shared.
 *
 * The text has to be tokenised in one piece. Control tokens are recognised only where they touch no byte of out->user:
 * there a user's "<|im_end|>" is plain text.
 */
#ifndef BL_CHAT_H
#define BL_CHAT_H

#include "jinja.h"

struct bl_chat_input {
    struct bl_jinja_json messages;  /* array of objects with a role */
    struct bl_jinja_json tools;     /* array; all zero: none */
    struct bl_jinja_json variables; /* object of more variables, which win over all others; all zero: none */
    const char *bos, *eos;          /* the tokens' texts; NULL: undefined in the template */
    bool no_generation_prompt;      /* do not ask for an answer */
    bool adapt;
    const struct bl_answer_form *form; /* of the model's reasoning, for `adapt`; NULL: none */
    const struct tm *now;           /* NULL: strftime_now is undefined */
    struct bl_jinja_limits limits;
};

/* For tools and documents that are not given the template sees none, not undefined, as in transformers. */
enum bl_status bl_chat_render(const struct bl_jinja *, const struct bl_chat_input *, struct bl_jinja_text *out);

/* The template this library brings for an architecture whose models come without one, or with one that leaves out part
 * of their format; BL_EUNAVAILABLE if there is none. deepseek4: what DeepSeek's encoder does; its variables are thinking
 * (or enable_thinking, on by default), reasoning_effort (low, high, max) and response_format. */
enum bl_status bl_chat_compile_builtin(struct bl_jinja **out, const char *arch);

#endif

/* SPDX-License-Identifier: MIT */
/* chat.h — `ballast run -i`: a conversation, line by line.
 *
 * Purpose   reads messages from standard input, streams answers to standard output, keeps the history.
 * Ownership borrows the generator and the dialogue; takes over the generator's write.
 * Units     tokens.
 * Errors    exit code; a message that fails is taken out of the history and the chat goes on.
 * Threads   the thread that runs the verb.
 */
#ifndef BL_TOOLS_CHAT_H
#define BL_TOOLS_CHAT_H

#include "common/generate.h"
#include "common/prompt.h"

int bl_chat_loop(struct bl_generator *, struct bl_dialogue *, int64_t n_predict);

#endif

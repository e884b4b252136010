/* SPDX-License-Identifier: MIT */
/* reply.h — an answer on its way to standard output.
 *
 * Purpose   reasoning looks the same whatever marks the model has for it: dimmed on a terminal, elsewhere between
 *           <think> and </think>. Keeps both parts for a history where that is wanted.
 * Ownership a reply owns what it keeps and borrows the rest.
 * Units     bytes.
 * Errors    false; the line has been printed.
 * Threads   the thread that runs the verb.
 */
#ifndef BL_REPLY_H
#define BL_REPLY_H

#include "report.h"

struct bl_kept {
    char *bytes;
    size_t n, cap;
};
struct bl_reply {
    const struct bl_report *report;
    struct bl_answer *answer; /* NULL: all is text */
    bool colour, keep;
    bool reasoning_shown;     /* last */
    bool any;                 /* something was shown */
    bool broken;              /* nobody takes it; that has been said */
    struct bl_kept text, reasoning;
};
void bl_reply_init(struct bl_reply *, const struct bl_report *, bool keep);
void bl_reply_finish(struct bl_reply *);
void bl_reply_begin(struct bl_reply *, struct bl_answer *); /* forgets the one before */
bool bl_reply_write(void *reply, const char *bytes, size_t n); /* bl_generator.write */
bool bl_reply_end(struct bl_reply *, bool newline);

#endif

/* SPDX-License-Identifier: MIT */
/* generate.h — one session: feeding token ids, sampling until something stops it.
 *
 * Purpose   what `run` and the chat share; remembers which tokens the session holds.
 * Ownership borrows the engine and the report; owns session, sampler and text.
 * Units     tokens, nanoseconds.
 * Errors    exit codes; the line has been printed.
 * Threads   the thread that runs the verb.
 */
#ifndef BL_GENERATE_H
#define BL_GENERATE_H

#include "report.h"

struct bl_generator {
    const struct bl_report *report;
    struct bl_engine *engine;
    uint32_t chunk_tokens;           /* fed between two looks at the interrupt */
    /* Receives the text as it comes; false stops with exit 1. */
    bool (*write)(void *arg, const char *bytes, size_t n);
    void *arg;

    struct bl_session *session;
    struct bl_sampler *sampler;
    struct bl_text *text;
    int32_t *held;                   /* [n_held] what the session holds */
    size_t n_held, cap_held;
    uint32_t last_row;               /* batch entry of the last token fed */
    size_t n_fed, n_generated, n_steps; /* since the last start; steps: decodes of one token */
    uint64_t feed_ns, decode_ns;
    const char *stopped;             /* why, in words */
};
/* The first three members are set by the caller, write and arg before anything is generated; anything else zero. */
int bl_generator_init(struct bl_generator *, const struct bl_sampling *);
void bl_generator_finish(struct bl_generator *); /* zeroed is fine */
/* Zeroes counts and times, forgets held-back text. */
int bl_generator_start(struct bl_generator *);
/* Makes the session hold exactly these ids, keeping the beginning that it already holds. */
int bl_generator_hold(struct bl_generator *, const int32_t *ids, size_t n);
/* Samples from the logits at hand, writes, feeds back; n_most tokens, UINT64_MAX: no limit. */
int bl_generator_run(struct bl_generator *, uint64_t n_most);
/* Writes what was held back of an unfinished character. */
int bl_generator_flush(struct bl_generator *);
void bl_generator_report(const struct bl_generator *); /* the line with both speeds */

#endif

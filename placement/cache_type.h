/* SPDX-License-Identifier: MIT */
/* cache_type.h — which type a cache has where that is left open: "auto".
 *
 * Purpose   f16, unless a smaller type is needed or pays: q8_0 and then q4_0 where nothing larger fits; q8_0, which is
 *           nearly as exact, also for a context that is a quarter longer or speed that is a tenth better.
 * Ownership an attempt owns its model and choice: bl_cache_attempt_finish. The file is borrowed.
 * Units     tokens; scores as of bl_plan_score.
 * Errors    BL_ENOFIT, of the largest type: none fits.
 * Threads   any.
 */
#ifndef BL_CACHE_TYPE_H
#define BL_CACHE_TYPE_H

#include "search.h"

struct bl_cache_outcome {
    bool fits;
    uint64_t ctx_tokens;
    double score;                /* less is better; 0: not known, or not to be asked */
};
enum bl_cache_why { BL_CACHE_KEEP, BL_CACHE_ROOM, BL_CACHE_CONTEXT, BL_CACHE_SPEED };
/* Why the smaller type is better; BL_CACHE_KEEP: it is not. asked: the context that somebody named; 0: the longest. */
enum bl_cache_why bl_cache_compare(const struct bl_cache_outcome *larger, const struct bl_cache_outcome *smaller,
                                   uint64_t asked_tokens, bool nearly_exact);

bool bl_cache_is_auto(const struct bl_options *);

struct bl_cache_attempt {
    struct bl_model *model;
    struct bl_choice choice;
    struct bl_cache_outcome outcome;
};
void bl_cache_attempt_finish(struct bl_cache_attempt *); /* zeroed is fine */
/* Of an attempt whose model is open it fills in the rest; BL_ENOFIT is an answer. */
typedef enum bl_status bl_cache_try_fn(void *arg, struct bl_cache_attempt *);
/* The best of the types that the options leave open, with a reason that says so. */
enum bl_status bl_cache_choose(struct bl_cache_attempt *out, const struct bl_gguf *, const struct bl_options *,
                               bl_cache_try_fn *, void *arg);

#endif

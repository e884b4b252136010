/* SPDX-License-Identifier: MIT */
/* status.h — result codes and the message of the last failure.
 *
 * Purpose   one enum for every function that can fail, one line of text that says what, where, what to do.
 * Ownership the message belongs to the calling thread; read it before the next call into the library.
 * Units     none.
 * Errors    is about them: 0 is success, everything else is negative.
 * Threads   the message slot is per thread and does not cross threads by itself.
 */
#ifndef BL_STATUS_H
#define BL_STATUS_H

#include "ballast.h"
#include "compiler.h"

/* Sets this thread's message and returns `code`. */
enum bl_status bl_fail(enum bl_status code, const char *fmt, ...) BL_PRINTF(2, 3);
/* Puts "text: " before the message already set, keeps the code: adds where to what. */
enum bl_status bl_fail_in(enum bl_status code, const char *fmt, ...) BL_PRINTF(2, 3);

/* Behind a noun of which there are so many. */
static inline const char *bl_plural(uint64_t n)
{
    return n == 1 ? "" : "s";
}

#define BL_SIZE(bytes) bl_size_text(bytes, (char[BL_SIZE_TEXT]){0})

#define BL_TRY(expr)                                                                               \
    do {                                                                                           \
        enum bl_status bl_try_ = (expr);                                                           \
        if (bl_try_)                                                                               \
            return bl_try_;                                                                        \
    } while (0)

#endif

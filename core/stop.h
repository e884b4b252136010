/* SPDX-License-Identifier: MIT */
/* stop.h — whether what runs is to end early, as whoever opened the engine says.
 *
 * Purpose   one question for loading, for the scheduler and for threads that compute.
 * Ownership plain data; what it asks is the caller's.
 * Units     none.
 * Errors    none.
 * Threads   any, several at a time.
 */
#ifndef BL_STOP_H
#define BL_STOP_H

#include <stdbool.h>
#include <stddef.h>

struct bl_stop {
    bool (*ask)(void *arg); /* NULL: never */
    void *arg;
};
static inline bool bl_stop_asked(const struct bl_stop *s)
{
    return s && s->ask && s->ask(s->arg);
}

#endif

/* SPDX-License-Identifier: MIT */
/* best.h — the largest of many scores; private to backends/cpu.
 *
 * Purpose   which rows CHOOSE keeps, by the law of graph.h.
 * Ownership all memory is the caller's.
 * Units     rows; bytes of room.
 * Errors    none: callers guarantee 1 <= keep < n and that every score is a number.
 * Threads   pure.
 */
#ifndef BL_CPU_BEST_H
#define BL_CPU_BEST_H

#include <stdint.h>

/* y[keep] = rows of the best, ascending. */
void bl_cpu_best(uint32_t n, const float *score, uint32_t keep, int32_t *y, void *room);
/* Of the room that it needs, a multiple of 64. */
uint64_t bl_cpu_best_bytes(uint32_t keep);

#endif

/* SPDX-License-Identifier: MIT */
/* calibrate.h — how many threads it takes to read this machine's memory.
 *
 * Purpose   decode reads weights; times that reading, in passes that meet at barriers as steps do, and takes the least
 *           number of threads that comes near the best. Only where the rule of topology.h is in doubt.
 * Ownership none.
 * Units     nanoseconds, GB/s.
 * Errors    BL_EUNAVAILABLE: not enough memory or time to tell; the rule stands.
 * Threads   any; starts threads of its own and ends them.
 */
#ifndef BL_CALIBRATE_H
#define BL_CALIBRATE_H

#include "machine.h"
#include "topology.h"

/* Several memory nodes, threads that share cores, or more cores than their memory is sure to keep busy. */
bool bl_calibrate_in_doubt(const struct bl_cpus *);
/* Index of the least number of threads within 3 % of the best speed; threads[] falls. */
uint32_t bl_calibrate_pick(const double *gb_per_s, uint32_t n);
/* Times half the budget for memory of decode's node with that node's threads, half for memory spread over all nodes with
 * all threads; on one node only the former. most: threads that a quota allows, 0 = any. */
enum bl_status bl_calibrate(const struct bl_cpus *, uint32_t most, bool bind, uint64_t usable_bytes, uint64_t budget_ns,
                            struct bl_decode_way *home, struct bl_decode_way *spread);

#endif

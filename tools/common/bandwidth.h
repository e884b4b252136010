/* SPDX-License-Identifier: MIT */
/* bandwidth.h — how fast this machine's memory can be read.
 *
 * Purpose   the yardstick that decoding is held against, measured in the same run.
 * Ownership buffers live only during the call.
 * Units     bytes per nanosecond, which are GB/s.
 * Errors    false: no memory or no threads for it.
 * Threads   starts its own and ends them.
 */
#ifndef BL_BANDWIDTH_H
#define BL_BANDWIDTH_H

#include <stdbool.h>
#include <stdint.h>

uint64_t bl_clock_ns(void); /* monotonic */
/* The best of several passes of all threads over buffers that no cache holds. Takes about half a second. */
bool bl_bandwidth_read(uint32_t threads, double *gb_per_s);

#endif

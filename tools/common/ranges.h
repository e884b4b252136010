/* SPDX-License-Identifier: MIT */
/* ranges.h — lists of numbers as benchmarks take them.
 *
 * Purpose   "1,4,16-64*2,100-130+10" and the option repeated become one list.
 * Ownership plain data.
 * Units     none.
 * Errors    false with a sentence that names the item.
 * Threads   any.
 */
#ifndef BL_RANGES_H
#define BL_RANGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BL_RANGES_MAX = 256 };
struct bl_ranges {
    int64_t item[BL_RANGES_MAX];
    size_t n;
};
/* Appends the list's items: N, first-last, first-last+step, first-last*factor, separated by commas. */
bool bl_ranges_add(struct bl_ranges *, const char *text, int64_t min, int64_t max, char error[160]);

#endif

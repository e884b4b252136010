/* SPDX-License-Identifier: MIT */
/* alloc_fail.h — makes the n-th allocation fail, to walk every out-of-memory path of a function.
 *
 * Purpose   name a test FAILS in tests/CMakeLists.txt; the linker's --wrap then sends every malloc, calloc,
 *           realloc, posix_memalign, aligned_alloc, strdup and mmap of the test and of libballast.a through here.
 *           Calls made inside shared libraries (libc's qsort, PCRE2, cmocka) are not seen.
 *
 *               for (uint64_t n = 1;; n++) {
 *                   alloc_fail_at(n);
 *                   enum bl_status st = bl_thing_open(&t, ...);
 *                   if (!alloc_fail_stop())
 *                       break;                     (it made fewer than n allocations: all paths were walked)
 *                   assert_int_not_equal(st, BL_OK);
 *               }
 *
 *           Build with -DBL_SANITIZE=address,undefined to see leaks and use after free on those paths. Where a
 *           failed allocation may be survived (a cache, a hint), accept BL_OK too.
 * Ownership none.
 * Units     allocations, counted from 1.
 * Errors    the failing call returns NULL (mmap: MAP_FAILED) with errno = ENOMEM; all others pass through.
 * Threads   any; the count is shared, so one test at a time.
 */
#ifndef BL_ALLOC_FAIL_H
#define BL_ALLOC_FAIL_H

#include <stdbool.h>
#include <stdint.h>

void alloc_fail_at(uint64_t n); /* counts from now */
bool alloc_fail_stop(void);     /* lets everything succeed again; true if an allocation was made to fail */

#endif

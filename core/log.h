/* SPDX-License-Identifier: MIT */
/* log.h — lines for people, through one callback.
 *
 * Purpose   the library never prints; it hands lines to the sink set by bl_log_set. No per-token logging.
 * Ownership the line is borrowed for the duration of the call.
 * Units     none.
 * Errors    none: a line too long is cut at 1,000 bytes.
 * Threads   any thread; the sink must be set before other threads run.
 */
#ifndef BL_LOG_H
#define BL_LOG_H

#include "ballast.h"
#include "compiler.h"

void bl_log(enum bl_log_level, const char *fmt, ...) BL_PRINTF(2, 3);

#define bl_warn(...) bl_log(BL_LOG_WARN, __VA_ARGS__)
#define bl_info(...) bl_log(BL_LOG_INFO, __VA_ARGS__)
#define bl_debug(...) bl_log(BL_LOG_DEBUG, __VA_ARGS__)

#endif

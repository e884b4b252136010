/* SPDX-License-Identifier: MIT */
/* blame.h — whose failure it is.
 *
 * Purpose   lines of devices' failures name the device once, whoever noticed.
 * Ownership none.
 * Units     none.
 * Errors    the status that is given.
 * Threads   any.
 */
#ifndef BL_BLAME_H
#define BL_BLAME_H

#include "status.h"

/* Puts the device's name before the line, unless it begins with that. */
enum bl_status bl_blame(enum bl_status, const char *name);
/* The same, and behind the line in brackets what the device was at. */
enum bl_status bl_blame_at(enum bl_status, const char *name, const char *at);
/* What to do about a device that has stopped, for the end of a line. */
#define BL_STUCK_ADVICE "; leave it out of --devices, or give it longer with --watchdog"

#endif

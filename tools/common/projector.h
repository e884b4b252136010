/* SPDX-License-Identifier: MIT */
/* projector.h — what is said to a user who brings the vision or audio part of a model.
 *
 * Purpose   such parts cannot be run yet; the file is looked at, so that the refusal names what it is.
 * Ownership none.
 * Units     none.
 * Errors    exit codes; the line has been printed.
 * Threads   the thread that runs the verb.
 */
#ifndef BL_PROJECTOR_H
#define BL_PROJECTOR_H

#include "report.h"

/* BL_EXIT_USAGE: a projector, which is named; BL_EXIT_MODEL: not a file of one. */
int bl_projector_refuse(const struct bl_report *, const char *path);

#endif

/* SPDX-License-Identifier: MIT */
/* backends.h — the list of backends of this build.
 *
 * Purpose   the one place that knows them all; order is order of preference.
 * Ownership static.
 * Units     none.
 * Errors    find returns NULL for an unknown name.
 * Threads   any.
 */
#ifndef BL_BACKENDS_H
#define BL_BACKENDS_H

#include "device.h"

extern const struct bl_backend *const bl_backends[]; /* NULL-terminated */
const struct bl_backend *bl_backend_find(const char *name);

#endif

/* SPDX-License-Identifier: MIT */
/* null.h — the device that is only described.
 *
 * Purpose   plans for machines one does not own: answers from capabilities, holds nothing, runs nothing. Also what a new
 *           backend is copied from.
 * Ownership static.
 * Units     bytes.
 * Errors    open is always BL_EUNAVAILABLE.
 * Threads   any.
 */
#ifndef BL_NULL_H
#define BL_NULL_H

#include "device.h"

extern const struct bl_backend bl_null_backend;

#endif

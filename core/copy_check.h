/* SPDX-License-Identifier: MIT */
/* copy_check.h — whether what is copied to a device comes back as it was.
 *
 * Purpose   a start-up test: transfers that are quietly wrong, as with some chipsets and settings of theirs, are found
 *           before a model is answered with.
 * Ownership takes and gives back small blocks on both.
 * Units     bytes, nanoseconds.
 * Errors    BL_EDEVICE: the first byte that differs. Otherwise as the devices.
 * Threads   that of both devices.
 */
#ifndef BL_COPY_CHECK_H
#define BL_COPY_CHECK_H

#include "device.h"

/* patience_ns: with a copy; 0: 10 s. */
enum bl_status bl_copy_check(struct bl_device *host, struct bl_device *, uint64_t patience_ns);

#endif

/* SPDX-License-Identifier: MIT */
/* take.h — blocks of devices, counted where they are obtained.
 *
 * Purpose   one way to take what a plan has: the ledger counts it, and says what was there where it was not to be had.
 * Ownership the block is the caller's.
 * Units     bytes.
 * Errors    the device's; after BL_ENOMEM the ledger's shortage is filled.
 * Threads   submitting thread.
 */
#ifndef BL_TAKE_H
#define BL_TAKE_H

#include "device.h"
#include "ledger.h"

/* No bytes: nothing is taken. */
enum bl_status bl_take(struct bl_ledger *, uint16_t d, struct bl_device *, enum bl_purpose, uint64_t bytes,
                       bool host_visible, struct bl_mem *out);

#endif

/* SPDX-License-Identifier: MIT */
/* direct.h — cards that reach each other without the host, as links of the machine.
 *
 * Purpose   plans count on what drivers say; what a device then does not do when it is tried is taken out again, before
 *           memory is taken and programs are made.
 * Ownership none.
 * Units     none.
 * Errors    BL_ENOMEM.
 * Threads   one.
 */
#ifndef BL_DIRECT_H
#define BL_DIRECT_H

#include "machine.h"

/* Links between cards of one backend that have none yet, from `first` on or with one of those, where its driver says so;
 * as fast as the slower of their ways to the host until somebody measures it. */
enum bl_status bl_direct_find(struct bl_machine *, uint16_t first);
/* Opened devices [n_devices], NULL where not used: links whose ends do not copy to each other are dropped. */
void bl_direct_check(struct bl_machine *, struct bl_device *const *device);

#endif

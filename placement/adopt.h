/* SPDX-License-Identifier: MIT */
/* adopt.h — what a machine file says of this machine, taken over.
 *
 * Purpose   speeds are the file's; what may be used now, and how devices are opened, is not.
 * Ownership both machines are the caller's; nothing of the file is kept.
 * Units     as machine.h.
 * Errors    BL_EINVAL: the file is of another machine. BL_ENOMEM.
 * Threads   any.
 */
#ifndef BL_ADOPT_H
#define BL_ADOPT_H

#include "machine.h"

enum bl_status bl_machine_adopt_host(struct bl_machine *, const struct bl_machine *file, const char *path);
/* The devices of the file that can be opened here, with their links. The others are told of. */
enum bl_status bl_machine_adopt_cards(struct bl_machine *, const struct bl_machine *file);
/* Of those that are there already, by id. */
enum bl_status bl_machine_adopt_figures(struct bl_machine *, const struct bl_machine *file);

#endif

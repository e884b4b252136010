/* SPDX-License-Identifier: MIT */
/* variables.h — variables of the environment that Ballast goes by: one list, one check.
 *
 * Purpose   a variable that is misspelt within or leads nowhere would have no effect, or one that nobody looks for.
 * Ownership values belong to the environment.
 * Units     none.
 * Errors    BL_EINVAL: the variable, its value and what it must be.
 * Threads   any, as long as nobody changes the environment.
 */
#ifndef BL_VARIABLES_H
#define BL_VARIABLES_H

#include "status.h"

/* NULL: not set, or empty. */
const char *bl_variable(const char *name);
/* All of them; before the first is gone by. */
enum bl_status bl_variables_check(void);

#endif

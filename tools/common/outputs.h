/* SPDX-License-Identifier: MIT */
/* outputs.h — files that a command will write, tried before it does anything else.
 *
 * Purpose   minutes or hours of work do not end in a file that cannot be written, or in place of one that was wanted.
 *           Rows of the tables of options say what is an output (struct bl_arg: out).
 * Ownership nothing is kept, and what is there stays as it is.
 * Units     none.
 * Errors    one line: no name, also of what is read; a directory, socket or disk; no permission; standard output, where
 *           it has the result; a file that another option names, or a model.
 * Threads   the thread that runs the verb.
 */
#ifndef BL_OUTPUTS_H
#define BL_OUTPUTS_H

#include "args.h"

bool bl_outputs_try(const struct bl_command *);

#endif

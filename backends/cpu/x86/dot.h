/* SPDX-License-Identifier: MIT */
/* dot.h — what every x86 dot kernel includes: its instruction set's table pieces, the walk over rows, the intrinsics.
 *
 * Purpose   one line for the headers avx2.h and avx512.h, which are compiled for one instruction set each.
 * Ownership none.
 * Units     as dot_rows.h.
 * Errors    none.
 * Threads   pure.
 */
#ifndef BL_X86_DOT_H
#define BL_X86_DOT_H

#include "../dot_rows.h"
#include "isa.h"

#include <immintrin.h>

#endif

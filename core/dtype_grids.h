/* SPDX-License-Identifier: MIT */
/* dtype_grids.h — the codebooks of the IQ types, packed.
 *
 * Purpose   an entry holds its 8 (IQ2, IQ1) or 4 (IQ3) elements as indices of 2 or 3 bits into a
 *           short list of levels, element 0 lowest: 9 KiB in all. The numbers are part of the
 *           file format.
 * Ownership none; static data of the one file that includes this.
 * Units     none.
 * Errors    none; every index a block can hold is inside its table. test_dtype.c sums each up.
 * Threads   any.
 */
#ifndef BL_DTYPE_GRIDS_H
#define BL_DTYPE_GRIDS_H

#include <stdint.h>

static const int8_t iq2_levels[3] = {8, 25, 43};
static const int8_t iq3xxs_levels[8] = {4, 12, 20, 28, 36, 44, 52, 62};
static const int8_t iq3s_levels[8] = {1, 3, 5, 7, 9, 11, 13, 15};
#define G(...) __VA_ARGS__,
static const uint16_t iq2xxs_grid[256] = {
#include "grid_iq2_xxs.def"
};
static const uint16_t iq2xs_grid[512] = {
#include "grid_iq2_xs.def"
};
static const uint16_t iq2s_grid[1024] = {
#include "grid_iq2_s.def"
};
static const uint16_t iq3xxs_grid[256] = {
#include "grid_iq3_xxs.def"
};
static const uint16_t iq3s_grid[512] = {
#include "grid_iq3_s.def"
};
/* levels -1, 0, 1 */
static const uint16_t iq1s_grid[2048] = {
#include "grid_iq1_s.def"
};
#undef G

#endif

/* SPDX-License-Identifier: MIT */
/* amx_tile.h — the operations on tiles that the AMX panels are made of.
 *
 * Purpose   one instruction each. kernel_check replaces this header by the same operations in plain C, so that the
 *           kernels run where there are no tiles.
 * Ownership none.
 * Units     strides in bytes; tile numbers are literals.
 * Errors    none.
 * Threads   tiles belong to the thread.
 *
 * A tile has at most 16 rows of 64 bytes. TILE_DOT(c, a, b): dword (m, n) of c += sum over k of the products of the four
 * signed bytes k of row m of a and the four unsigned bytes n of row k of b. */
#ifndef BL_X86_AMX_TILE_H
#define BL_X86_AMX_TILE_H

#include <stdint.h>

/* As LDTILECFG reads it. */
struct tile_config {
    uint8_t palette, start_row, zero[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

static inline void tile_configure(const struct tile_config *c)
{
    __asm__ volatile("ldtilecfg %0" : : "m"(*c));
}
static inline void tile_release(void)
{
    __asm__ volatile("tilerelease");
}
#define TILE_ZERO(t) __asm__ volatile("tilezero %%tmm" #t ::)
#define TILE_LOAD(t, from, stride)                                                                                     \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t : : "r"((const void *)(from)), "r"((intptr_t)(stride)) : "memory")
#define TILE_STORE(to, stride, t)                                                                                      \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" : : "r"((void *)(to)), "r"((intptr_t)(stride)) : "memory")
#define TILE_DOT(c, a, b) __asm__ volatile("tdpbsud %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)

#endif

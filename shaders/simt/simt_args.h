/* SPDX-License-Identifier: MIT */
/* simt_args.h — what a CUDA or HIP kernel is given: its only parameter, by value.
 *
 * Purpose   one struct for all of them, so that the host side and the kernels cannot differ about it.
 * Ownership addresses are borrowed.
 * Units     the kernel's own.
 * Errors    none.
 * Threads   read-only.
 */
#ifndef BL_SIMT_ARGS_H
#define BL_SIMT_ARGS_H

#include <stdint.h>

enum { BL_SIMT_ADDRS = 48, BL_SIMT_NUMS = 64 }; /* for what several nodes at once are given */
struct bl_simt_args {
    uint64_t a[BL_SIMT_ADDRS];
    uint32_t n[BL_SIMT_NUMS];
};

#endif

/* SPDX-License-Identifier: MIT */
/* host_kernels.h — kernels of shaders/simt compiled for this CPU, by name.
 *
 * Purpose   what an emulated driver calls where a real one launches.
 * Ownership kernels are static.
 * Units     threads, blocks, bytes.
 * Errors    run: -1 and a line in `why`; the grid has stopped in the middle then.
 * Threads   any; a grid runs on the calling thread. In address sanitizer builds one grid runs at a time.
 */
#ifndef BL_TEST_HOST_KERNELS_H
#define BL_TEST_HOST_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct bl_host_kernel;
const struct bl_host_kernel *bl_host_kernel_find(const char *unit, const char *name); /* NULL: none */
unsigned bl_host_warp(void);
size_t bl_host_kernel_args_bytes(const struct bl_host_kernel *);
unsigned bl_host_kernel_max_threads(const struct bl_host_kernel *);  /* the only number of threads it is made for */
size_t bl_host_kernel_static_shared(const struct bl_host_kernel *);  /* 0: not known */
int bl_host_kernel_run(const struct bl_host_kernel *, const void *args, const uint32_t grid[3],
                       const uint32_t block[3], uint32_t shared_bytes, char *why, size_t why_bytes);

#ifdef __cplusplus
}
#endif

#endif

/* SPDX-License-Identifier: MIT */
/* cpu.h — the CPU as a device: an executor thread per stream unless in line, one worker pool per device.
 *
 * Purpose   implements core/device.h with host memory, threads and the kernel table.
 * Ownership as the contract.
 * Units     bytes.
 * Errors    as the contract.
 * Threads   as the contract; kernels run on the pool; the submitting thread computes only where the device is in line.
 */
#ifndef BL_CPU_H
#define BL_CPU_H

#include "device.h"

extern const struct bl_backend bl_cpu_backend;
/* Does the steps of a segment of a CPU device, on the calling thread and its pool; returns when all are done. BL_ECANCELLED:
 * the stream was cancelled, or its device says stop, before they were. */
enum bl_status bl_cpu_segment_execute(struct bl_segment *, const struct bl_stream *);
uint64_t bl_cpu_barriers(const struct bl_device *); /* meetings of its threads so far: tests count them */

#endif

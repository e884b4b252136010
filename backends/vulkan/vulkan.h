/* SPDX-License-Identifier: MIT */
/* vulkan.h — graphics cards, and drivers that compute on the CPU, through Vulkan 1.2.
 *
 * Purpose   a backend for whatever has a Vulkan driver with buffer addresses, timeline semaphores and integers of 8, 16 and
 *           64 bits.
 * Ownership static.
 * Units     none.
 * Errors    count: BL_EUNAVAILABLE where there is no loader or driver, or the build is without Vulkan: then it is for
 *           planning only. open: what the device lacks, by name.
 * Threads   as core/device.h.
 */
#ifndef BL_VULKAN_H
#define BL_VULKAN_H

#include "device.h"

extern const struct bl_backend bl_vulkan_backend;

#endif

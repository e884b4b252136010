/* SPDX-License-Identifier: MIT */
/* cuda.h — NVIDIA cards through the driver's own library.
 *
 * Purpose   one backend of backends/simt. The environment may name the library (BALLAST_CUDA_LIBRARY) and a folder with
 *           other kernels than those built in (BALLAST_CUDA_KERNELS: UNIT.fatbin). Which cards there are, and their order,
 *           is the driver's to say, CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER included.
 * Ownership static.
 * Units     as core/device.h.
 * Errors    BL_EUNAVAILABLE: no driver or no card, not an error. Otherwise as the device contract.
 * Threads   as core/device.h.
 */
#ifndef BL_CUDA_H
#define BL_CUDA_H

#include "device.h"

extern const struct bl_backend bl_cuda_backend;

#endif

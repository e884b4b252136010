/* SPDX-License-Identifier: MIT */
/* hip.h — AMD cards through the HIP runtime's library.
 *
 * Purpose   one backend of backends/simt. The environment may name the library (BALLAST_HIP_LIBRARY) and a folder with
 *           other kernels than those built in (BALLAST_HIP_KERNELS: UNIT.ARCH.co). Which cards there are, and their order,
 *           is the runtime's to say, HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES included.
 * Ownership static.
 * Units     as core/device.h.
 * Errors    BL_EUNAVAILABLE: no runtime or no card, not an error. Otherwise as the device contract.
 * Threads   as core/device.h.
 */
#ifndef BL_HIP_H
#define BL_HIP_H

#include "device.h"

extern const struct bl_backend bl_hip_backend;

#endif

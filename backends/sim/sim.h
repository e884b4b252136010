/* SPDX-License-Identifier: MIT */
/* sim.h — a device of chosen memory, speed and link, on threads of the host.
 *
 * Purpose   what overlaps, what fits, what fails: all of it repeatable without the hardware. Segments compute with the CPU
 *           kernels, then the stream sleeps until they would be done on the device that is stood for (core/pace.h); copies
 *           likewise. On a virtual clock nobody sleeps and times are exact.
 * Ownership as the contract.
 * Units     bytes, nanoseconds.
 * Errors    as the contract; BL_ENOMEM: the budget is used up. Others where a fault was asked for.
 * Threads   as the contract. On a virtual clock all devices that share it are one thread's.
 */
#ifndef BL_SIM_H
#define BL_SIM_H

#include "device.h"

extern const struct bl_backend bl_sim_backend;
uint64_t bl_sim_taken_bytes(const struct bl_device *); /* of its budget */

#endif

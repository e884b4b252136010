/* SPDX-License-Identifier: MIT */
/* machine.h — the machine as plain data: what a plan is made for.
 *
 * Purpose   devices and their memory; can be probed or typed.
 * Ownership the machine owns its array.
 * Units     bytes.
 * Errors    none: data only.
 * Threads   read-only once made.
 */
#ifndef BL_MACHINE_H
#define BL_MACHINE_H

#include "device.h"

struct bl_machine_device {
    char id[32];                 /* stable name: "cpu0" */
    const char *backend;         /* name of a row of bl_backends */
    uint32_t index;              /* within the backend, at this moment; only printed */
    uint64_t mem_bytes, usable_bytes;
    char mem_source[96];         /* where usable_bytes came from */
    struct bl_caps caps;
};
struct bl_machine {
    struct bl_machine_device *device;
    uint32_t n_devices;          /* device 0 is always the host CPU */
};

#endif

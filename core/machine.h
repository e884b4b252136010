/* SPDX-License-Identifier: MIT */
/* machine.h — the machine as plain data: what a plan is made for.
 *
 * Purpose   devices, what they can do and how much memory they have; can be probed or typed.
 * Ownership the machine owns its array.
 * Units     bytes.
 * Errors    none: data only.
 * Threads   read-only once made.
 */
#ifndef BL_MACHINE_H
#define BL_MACHINE_H

#include "device.h"

#include <stdlib.h>

struct bl_machine_device {
    char id[32];                      /* stable name: "cpu0" */
    const struct bl_backend *backend; /* answers supports and scratch_bytes from caps alone */
    uint32_t index;                   /* within the backend, at this moment */
    struct bl_device_config config;   /* how it is to be opened */
    struct bl_caps caps;              /* what that gives */
    uint64_t mem_bytes, usable_bytes;
    char mem_source[96];              /* where usable_bytes came from */
};
struct bl_machine {
    struct bl_machine_device *device;
    uint32_t n_devices;               /* device 0 is always the host CPU */
};
static inline void bl_machine_finish(struct bl_machine *m) /* zeroed is fine */
{
    free(m->device);
    *m = (struct bl_machine){0};
}

#endif

/* SPDX-License-Identifier: MIT */
/* machine.h — the machine as plain data: what a plan is made for.
 *
 * Purpose   devices, what they can do and how much memory they have; can be probed or typed.
 * Ownership the machine owns its arrays.
 * Units     bytes.
 * Errors    none: data only.
 * Threads   read-only once made.
 */
#ifndef BL_MACHINE_H
#define BL_MACHINE_H

#include "device.h"
#include "topology.h"

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
struct bl_decode_way {                /* threads for decode where weights lie so */
    uint32_t threads;                 /* 0: not known */
    double gb_per_s;                  /* what they read; 0: by rule, not timed */
};
struct bl_machine {
    struct bl_machine_device *device;
    uint32_t n_devices;               /* device 0 is always the host CPU */
    struct bl_cpus *cpus;             /* the host's processors and memory nodes; NULL: not known */
    struct bl_decode_way home, spread; /* weights on decode's memory node; over all of them */
};
static inline void bl_machine_finish(struct bl_machine *m) /* zeroed is fine */
{
    free(m->device);
    free(m->cpus);
    *m = (struct bl_machine){0};
}

#endif

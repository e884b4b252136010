/* SPDX-License-Identifier: MIT */
#include "backends.h"

#include "cpu/cpu.h"
#include "cuda/cuda.h"
#include "hip/hip.h"
#include "null/null.h"
#include "sim/sim.h"
#include "vulkan/vulkan.h"

const struct bl_backend *const bl_backends[] = {
    &bl_cpu_backend,
    &bl_sim_backend,
    &bl_cuda_backend,
    &bl_hip_backend,
    &bl_vulkan_backend,
    &bl_null_backend,
    NULL,
};

const struct bl_backend *bl_backend_find(const char *name)
{
    for (const struct bl_backend *const *b = bl_backends; *b; b++)
        if (!strcmp((*b)->name, name))
            return *b;
    return NULL;
}

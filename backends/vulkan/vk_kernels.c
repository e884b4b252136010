/* SPDX-License-Identifier: MIT */
/* Kernels by name, and their pipelines. */
#include "vk_device.h"

#include "dtype.h"
#include "mem.h"

#include <stdio.h>
#include <stdlib.h>

static int compare(const void *key, const void *source)
{
    return strcmp(key, ((const struct bl_vk_source *)source)->name);
}

uint32_t bl_vk_kernel_find(const char *name, int type)
{
    char full[64];
    if (type == BL_VK_NO_TYPE)
        snprintf(full, sizeof full, "%s", name);
    else
        snprintf(full, sizeof full, "%s.%s", name, bl_dtypes[type].name);
    const struct bl_vk_source *s =
        bsearch(full, bl_vk_sources, bl_vk_n_sources, sizeof *s, compare);
    return s ? (uint32_t)(s - bl_vk_sources) : bl_vk_n_sources;
}

static enum bl_status make(struct bl_vk_device *d, const struct bl_vk_source *s,
                           const uint32_t spec[BL_VK_SPECS], VkPipeline *out)
{
    VkSpecializationMapEntry entry[BL_VK_SPECS];
    for (uint32_t i = 0; i < BL_VK_SPECS; i++)
        entry[i] = (VkSpecializationMapEntry){i, i * (uint32_t)sizeof *spec, sizeof *spec};
    const VkSpecializationInfo special = {BL_VK_SPECS, entry, sizeof *spec * BL_VK_SPECS, spec};
    const VkShaderModuleCreateInfo code = {.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
                                           .codeSize = s->bytes,
                                           .pCode = s->words};
    VkShaderModule module;
    BL_TRY(
        bl_vk_check(d->vk.CreateShaderModule(d->dev, &code, NULL, &module), d->base.name, s->name));
    const VkComputePipelineCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                  .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                  .module = module,
                  .pName = "main",
                  .pSpecializationInfo = &special},
        .layout = d->layout};
    const VkResult r = d->vk.CreateComputePipelines(d->dev, VK_NULL_HANDLE, 1, &info, NULL, out);
    d->vk.DestroyShaderModule(d->dev, module, NULL);
    return bl_vk_check(r, d->base.name, s->name);
}

enum bl_status bl_vk_pipeline_get(struct bl_vk_device *d, uint32_t kernel,
                                  const uint32_t spec[BL_VK_SPECS], VkPipeline *out)
{
    for (uint32_t i = 0; i < d->n_pipelines; i++)
        if (d->pipeline[i].kernel == kernel &&
            !memcmp(d->pipeline[i].spec, spec, sizeof d->pipeline[i].spec)) {
            *out = d->pipeline[i].handle;
            return BL_OK;
        }
    if (d->n_pipelines == d->cap_pipelines) {
        const uint32_t cap = 2 * d->cap_pipelines + 32;
        struct bl_vk_pipeline *bigger = realloc(d->pipeline, cap * sizeof *bigger);
        if (!bigger)
            return bl_fail(BL_ENOMEM, "%s: out of memory for kernels", d->base.name);
        d->pipeline = bigger;
        d->cap_pipelines = cap;
    }
    struct bl_vk_pipeline *p = &d->pipeline[d->n_pipelines];
    BL_TRY(make(d, &bl_vk_sources[kernel], spec, &p->handle));
    p->kernel = kernel;
    memcpy(p->spec, spec, sizeof p->spec);
    d->n_pipelines++;
    *out = p->handle;
    return BL_OK;
}

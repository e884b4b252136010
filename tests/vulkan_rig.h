/* SPDX-License-Identifier: MIT */
/* vulkan_rig.h — engines of which some or all layers are on Vulkan devices.
 *
 *     if (!vulkan_here()) skip();
 *     vulkan_open(&engine, path, &opt, 2, place, arg);
 *
 * Purpose   device 0 is this CPU, the others are Vulkan devices, one physical device several times if there are fewer.
 * Ownership as bl_open.
 * Units     none.
 * Errors    as bl_open.
 * Threads   one.
 */
#ifndef BL_TEST_VULKAN_RIG_H
#define BL_TEST_VULKAN_RIG_H

#include "parts.h"

#include "backends.h"

#include <stdio.h>
#include <stdlib.h>

static inline const struct bl_backend *vulkan_backend(void)
{
    return bl_backend_find("vulkan");
}

/* Of devices that can be used; the first is taken for all. */
static inline bool vulkan_here(void)
{
    const struct bl_backend *b = vulkan_backend();
    const struct bl_device_config config = {.threads = 1};
    struct bl_device *dev;

    if (!b) {
        printf("skipped: this build has no Vulkan backend\n");
        return false;
    }
    if (b->open(0, &config, &dev)) {
        printf("skipped: %s\n", bl_error());
        return false;
    }
    dev->ops->close(dev);
    return true;
}

static inline enum bl_status vulkan_devices(struct bl_machine *m, uint32_t n)
{
    struct bl_machine_device *d = realloc(m->device, (n + 1) * sizeof *d);

    if (!d)
        return bl_fail(BL_ENOMEM, "out of memory for %u devices", n);
    m->device = d;
    m->n_devices = n + 1;
    for (uint32_t i = 1; i <= n; i++) {
        d[i] = d[0];
        snprintf(d[i].id, sizeof d[i].id, "vulkan%u", i - 1);
        d[i].backend = vulkan_backend();
        d[i].kind = BL_KIND_GPU;
        BL_TRY(d[i].backend->caps(0, &d[i].config, &d[i].caps));
    }
    return BL_OK;
}

typedef enum bl_status vulkan_place_fn(struct bl_plan *, const struct bl_model *, uint32_t n_devices, void *arg);

static inline enum bl_status vulkan_parts(struct bl_engine_parts *p, const char *path, const struct bl_options *opt,
                                          uint32_t n, vulkan_place_fn *put, void *arg)
{
    BL_TRY(parts_model(p, path, opt));
    BL_TRY(bl_plan_make(&p->plan, p->model, &p->machine, opt));
    BL_TRY(vulkan_devices(&p->machine, n));
    BL_TRY(put(&p->plan, p->model, n + 1, arg));
    return parts_devices(p);
}

static inline enum bl_status vulkan_open(struct bl_engine **out, const char *path, const struct bl_options *opt, uint32_t n,
                                         vulkan_place_fn *put, void *arg)
{
    struct bl_engine_parts p = {0};
    return parts_open(out, &p, opt, vulkan_parts(&p, path, opt, n, put, arg));
}

#endif

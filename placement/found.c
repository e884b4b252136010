/* SPDX-License-Identifier: MIT */
#include "found.h"

#include "backends.h"
#include "log.h"

#include <stdio.h>
#include <string.h>

static uint32_t count(const struct bl_backend *b)
{
    uint32_t n = 0;
    return b->facts && !b->count(&n) ? n : 0;
}

enum bl_status bl_found_at(uint32_t k, struct bl_found *out)
{
    for (const struct bl_backend *const *b = bl_backends; *b; b++) {
        const uint32_t n = count(*b);
        if (k < n) {
            *out = (struct bl_found){.backend = *b, .index = k};
            return (*b)->facts(k, &out->facts);
        }
        k -= n;
    }
    return bl_fail(BL_EINVAL, "there are no more devices");
}

bool bl_found_is_id(const char *name)
{
    return !strncmp(name, "pci-", 4) || !strncmp(name, "uuid-", 5);
}

enum bl_status bl_found_by_id(const char *id, const struct bl_backend *of, struct bl_found *out)
{
    uint32_t unusable = BL_MAX_DEVICES;
    char all[256] = "";
    size_t n = 0;
    struct bl_found f;

    for (uint32_t k = 0; k < BL_MAX_DEVICES; k++) {
        const enum bl_status st = bl_found_at(k, &f);
        if (st == BL_EINVAL)
            break;
        if (of && f.backend != of)
            continue;
        if (st) { /* another backend may know it, too */
            if (!strcmp(f.facts.id, id))
                unusable = k;
            continue;
        }
        if (!strcmp(f.facts.id, id)) {
            *out = f;
            return BL_OK;
        }
        if (n < sizeof all)
            n += (size_t)snprintf(all + n, sizeof all - n, "%s%s", n ? ", " : "", f.facts.id);
    }
    if (unusable < BL_MAX_DEVICES && bl_found_at(unusable, &f)) /* says once more why */
        return BL_EUNAVAILABLE;
    return bl_fail(BL_EUNAVAILABLE, "there is no device '%s' here%s%s", id, n ? ", but " : "", all);
}

struct bl_device_config bl_card_config(const struct bl_machine_device *card,
                                       const struct bl_machine_device *host)
{
    return (struct bl_device_config){.threads = 1,
                                     .cpu_mask = host->config.cpu_mask,
                                     .exact = host->config.exact,
                                     .unified = card->mem_kind == BL_MEMORY_UNIFIED};
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Kernels, graphs and what drivers take besides what is asked for. */
static uint64_t usable_of(const struct bl_device_facts *f)
{
    const uint64_t left = f->free_bytes ? f->free_bytes : f->mem_bytes;
    const uint64_t least_reserve = UINT64_C(256) << 20, share = f->mem_bytes / 32;
    const uint64_t reserve = share > least_reserve ? share : least_reserve;

    return left > 2 * reserve ? left - reserve : left / 2;
}

static void fill_memory(struct bl_machine_device *d, const struct bl_machine_device *host,
                        const struct bl_device_facts *f, uint64_t usable_bytes)
{
    const uint64_t free_bytes = usable_of(f);

    d->mem_bytes = f->mem_bytes;
    d->usable_bytes = usable_bytes ? usable_bytes : free_bytes;
    if (d->mem_kind == BL_MEMORY_UNIFIED) {
        d->mem_bytes = least(d->mem_bytes, host->mem_bytes);
        d->usable_bytes = usable_bytes ? usable_bytes : least(free_bytes, host->usable_bytes);
    }
    if (d->mem_bytes < d->usable_bytes)
        d->mem_bytes = d->usable_bytes;
    snprintf(d->mem_source, sizeof d->mem_source, "%s",
             usable_bytes ? "--devices" : "what the driver says is free");
}

enum bl_status bl_found_fill(struct bl_machine_device *d, const struct bl_machine_device *host,
                             const struct bl_found *found, bool shared, uint64_t usable_bytes)
{
    const struct bl_device_facts *f = &found->facts;

    d->backend = found->backend;
    d->index = found->index;
    snprintf(d->backend_name, sizeof d->backend_name, "%s", found->backend->name);
    snprintf(d->name, sizeof d->name, "%s", f->name);
    snprintf(d->kernels, sizeof d->kernels, "%s", f->kernels);
    d->kind = BL_KIND_GPU;
    d->integrated = f->integrated;
    d->mem_kind = f->integrated || shared ? BL_MEMORY_UNIFIED : BL_MEMORY_DEDICATED;
    d->shares = d->mem_kind == BL_MEMORY_UNIFIED ? 0 : BL_NO_DEVICE;
    fill_memory(d, host, f, usable_bytes);
    d->config = bl_card_config(d, host);
    if (f->software)
        bl_warn(
            "%s%u (%s) is a driver that computes on this processor, slower than cpu0: for tests",
            found->backend->name, found->index, f->name);
    BL_TRY(found->backend->caps(found->index, &d->config, &d->caps));
    d->caps.block_bytes = f->block_bytes;
    return BL_OK;
}

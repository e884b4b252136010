/* SPDX-License-Identifier: MIT */
/* Blocks of memory: the card's own, the host's that it reaches, and the host's that somebody else
 * has. */
#include "simt.h"

#include "mem.h"

#include <stdlib.h>

/* What a block's impl points at; constants, as a block has nothing else of its own. */
static const char own, pinned, imported;

static void *kind(const char *k)
{
    return (void *)(uintptr_t)k;
}

static enum bl_status alloc_own(struct bl_simt_device *d, struct bl_mem *m)
{
    size_t left = 0, all = 0;
    const int code = d->fn->mem_alloc(d->driver, &m->addr, m->granted_bytes);

    if (code == BL_SIMT_NO_MEMORY && !d->fn->mem_info(d->driver, &left, &all))
        return bl_fail(BL_ENOMEM, "%s: %zu MiB are not to be had, %zu of %zu MiB are free",
                       d->base.name, m->granted_bytes >> 20, left >> 20, all >> 20);
    BL_TRY(bl_simt_try(d, code, "no memory"));
    m->impl = kind(&own);
    return BL_OK;
}

static enum bl_status alloc_pinned(struct bl_simt_device *d, struct bl_mem *m)
{
    BL_TRY(bl_simt_try(d, d->fn->host_alloc(d->driver, &m->host, m->granted_bytes),
                       "no host memory that it reaches"));
    m->impl = kind(&pinned);
    memset(m->host, 0, m->granted_bytes);
    return bl_simt_try(d, d->fn->host_addr(d->driver, &m->addr, m->host),
                       "host memory has no address on it");
}

enum bl_status bl_simt_mem_alloc(struct bl_device *dev, size_t bytes, bool host_visible,
                                 struct bl_mem *out)
{
    struct bl_simt_device *d = bl_simt_of(dev);
    struct bl_mem m = {.dev = dev, .bytes = bytes};

    if (bytes > SIZE_MAX - BL_SIMT_GRANULE)
        return bl_fail(BL_ENOMEM, "%s: %zu bytes are asked for", dev->name, bytes);
    m.granted_bytes = (size_t)bl_align_up(bytes ? bytes : 1, BL_SIMT_GRANULE);
    BL_TRY(bl_simt_use(d));
    const enum bl_status st = host_visible ? alloc_pinned(d, &m) : alloc_own(d, &m);
    if (st)
        bl_simt_mem_free(&m);
    else
        *out = m;
    return st;
}

enum bl_status bl_simt_mem_import(struct bl_device *dev, void *host, size_t bytes,
                                  struct bl_mem *out)
{
    struct bl_simt_device *d = bl_simt_of(dev);
    struct bl_mem m = {.dev = dev, .host = host, .bytes = bytes};

    if (!bytes || (uintptr_t)host % bl_page_bytes())
        return bl_fail(BL_EINVAL, "%s: host memory is imported by whole pages", dev->name);
    BL_TRY(bl_simt_use(d));
    BL_TRY(bl_simt_try(
        d, d->fn->host_register(d->driver, host, (size_t)bl_align_up(bytes, bl_page_bytes())),
        "host memory cannot be imported"));
    m.impl = kind(&imported);
    const enum bl_status st = bl_simt_try(d, d->fn->host_addr(d->driver, &m.addr, host),
                                          "host memory has no address on it");
    if (st)
        bl_simt_mem_free(&m);
    else
        *out = m;
    return st;
}

/* A card that is lost would let nobody return from here. */
void bl_simt_mem_free(struct bl_mem *m)
{
    struct bl_simt_device *d = bl_simt_of(m->dev);

    if (m->impl && !atomic_load(&d->lost) && !bl_simt_use(d)) {
        if (m->impl == &own)
            d->fn->mem_free(d->driver, m->addr);
        else if (m->impl == &pinned)
            d->fn->host_free(d->driver, m->host);
        else
            d->fn->host_unregister(d->driver, m->host);
    }
    *m = (struct bl_mem){0};
}

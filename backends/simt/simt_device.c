/* SPDX-License-Identifier: MIT */
/* Which cards there are, and opening one. */
#include "simt.h"

#include "mem.h"
#include "simt_stream.h"

#include <stdio.h>
#include <stdlib.h>

enum bl_status bl_simt_use(const struct bl_simt_device *d)
{
    return bl_simt_try(d, d->fn->use(d->driver, d->card.handle, d->context), "it cannot be used");
}

enum bl_status bl_simt_count(const struct bl_simt_vendor *v, uint32_t *n)
{
    struct bl_simt_driver *driver;
    int count = 0;

    *n = 0;
    BL_TRY(v->load(&driver));
    const enum bl_status st = bl_simt_check(driver, driver->fns->device_count(driver, &count),
                                            v->name, "cards cannot be counted");
    v->unload(driver);
    if (!st)
        *n = (uint32_t)count;
    return st;
}

/* The same for every card, so that a plan for one that is not here needs no driver. */
enum bl_status bl_simt_caps(const struct bl_device_config *c, struct bl_caps *out)
{
    *out = (struct bl_caps){.granule_bytes = BL_SIMT_GRANULE,
                            .threads = 1,
                            .exact = c->exact,
                            .copies_from = BL_COPIES_FROM_BLOCKS,
                            .visible_on_host = 1};
    return BL_OK;
}

/* ---- open and close ---- */

static enum bl_status find_card(struct bl_simt_device *d, uint32_t index)
{
    int n = 0;

    BL_TRY(bl_simt_check(d->driver, d->fn->device_count(d->driver, &n), d->vendor->name,
                         "cards cannot be counted"));
    if (index >= (uint32_t)n)
        return bl_fail(BL_EUNAVAILABLE, "there is no %s, only %d card%s", d->base.name, n,
                       n == 1 ? "" : "s");
    return bl_simt_try(d, d->fn->card(d->driver, (int)index, &d->card), "it cannot be asked");
}

static enum bl_status open_context(struct bl_simt_device *d)
{
    BL_TRY(bl_simt_try(d, d->fn->open_card(d->driver, d->card.handle, &d->context),
                       "it cannot be opened"));
    d->is_open = true;
    return bl_simt_use(d);
}

static enum bl_status open_parts(struct bl_simt_device *d)
{
    BL_TRY(open_context(d));
    BL_TRY(bl_simt_try(d, d->fn->stream_create(d->driver, &d->recorder), "no stream"));
    return bl_simt_kernels_load(d);
}

static void device_close(struct bl_device *dev)
{
    struct bl_simt_device *d = bl_simt_of(dev);

    if (!d)
        return;
    if (d->is_open && !atomic_load(&d->lost) && !bl_simt_use(d)) {
        bl_simt_kernels_unload(d);
        if (d->recorder)
            d->fn->stream_destroy(d->driver, d->recorder);
        d->fn->close_card(d->driver, d->card.handle, d->context);
    }
    if (d->driver)
        d->vendor->unload(d->driver);
    free(d->module);
    free(d);
}

static enum bl_status find(struct bl_simt_device **out, const struct bl_simt_vendor *v,
                           uint32_t index)
{
    struct bl_simt_device *d = bl_calloc(1, sizeof *d);
    enum bl_status st;

    if (!d)
        return bl_fail(BL_ENOMEM, "%s%u: out of memory", v->name, index);
    d->vendor = v;
    d->base.ops = &bl_simt_ops;
    snprintf(d->base.name, sizeof d->base.name, "%s%u", v->name, index);
    if (!(st = v->load(&d->driver))) {
        d->fn = d->driver->fns;
        st = find_card(d, index);
    }
    if (st)
        device_close(&d->base);
    else
        *out = d;
    return st;
}

enum bl_status bl_simt_open(const struct bl_simt_vendor *v, uint32_t index,
                            const struct bl_device_config *c, struct bl_device **out)
{
    struct bl_simt_device *d;
    enum bl_status st;

    BL_TRY(find(&d, v, index));
    d->base.number = c->number;
    if ((st = bl_simt_caps(c, &d->base.caps)) || (st = open_parts(d)))
        device_close(&d->base);
    else
        *out = &d->base;
    return st;
}

/* What is free only an open card says. */
static enum bl_status free_memory(struct bl_simt_device *d, uint64_t *out)
{
    size_t left = 0, all = 0;

    BL_TRY(open_context(d));
    BL_TRY(bl_simt_try(d, d->fn->mem_info(d->driver, &left, &all), "its memory is not known"));
    *out = left;
    return BL_OK;
}

enum bl_status bl_simt_facts(const struct bl_simt_vendor *v, uint32_t index,
                             struct bl_device_facts *out)
{
    struct bl_simt_device *d;

    BL_TRY(find(&d, v, index));
    *out =
        (struct bl_device_facts){.mem_bytes = d->card.mem_bytes, .integrated = d->card.integrated};
    snprintf(out->name, sizeof out->name, "%s", d->card.name);
    if (d->card.pci[0])
        snprintf(out->id, sizeof out->id, "pci-%s", d->card.pci);
    enum bl_status st = bl_simt_kernels_exist(d); /* else it is passed over: another may run it */
    if (!st)
        st = free_memory(d, &out->free_bytes);
    if (!st)
        bl_simt_kernels_say(d, out->kernels, sizeof out->kernels);
    device_close(&d->base);
    return st;
}

const struct bl_device_ops bl_simt_ops = {
    .close = device_close,
    .mem_alloc = bl_simt_mem_alloc,
    .mem_import = bl_simt_mem_import,
    .mem_free = bl_simt_mem_free,
    .stream_open = bl_simt_stream_open,
    .stream_close = bl_simt_stream_close,
    .reaches = bl_simt_reaches_card,
    .copy = bl_simt_copy,
    .fill = bl_simt_fill,
    .signal = bl_simt_signal,
    .wait = bl_simt_wait,
    .poll = bl_simt_poll,
    .join = bl_simt_join,
    .segment_build = bl_simt_segment_build,
    .segment_run = bl_simt_segment_run,
    .segment_free = bl_simt_segment_free,
    .progress = bl_simt_progress,
    .cancel = bl_simt_cancel,
    .trace = bl_simt_trace,
    .patience = bl_simt_patience,
};

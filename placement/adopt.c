/* SPDX-License-Identifier: MIT */
#include "adopt.h"

#include "backends.h"
#include "found.h"
#include "log.h"
#include "machine_file.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* What is not a figure stays as it is now. */
static void take_figures(struct bl_machine_device *now, const struct bl_machine_device *then)
{
    struct bl_machine_device d = *then;
    memcpy(d.id, now->id, sizeof d.id);
    memcpy(d.backend_name, now->backend_name, sizeof d.backend_name);
    d.kind = now->kind;
    d.mem_kind = now->mem_kind;
    d.shares = now->shares;
    d.described = false;
    d.integrated = now->integrated;
    d.backend = now->backend;
    d.index = now->index;
    d.config = now->config;
    d.caps = now->caps;
    d.fault = now->fault;
    d.caps_assumed = false;
    d.mem_bytes = now->mem_bytes;
    d.n_readings = now->n_readings;
    memcpy(d.reading, now->reading, sizeof d.reading);
    if (now->usable_bytes < then->usable_bytes) {
        d.usable_bytes = now->usable_bytes;
        memcpy(d.mem_source, now->mem_source, sizeof d.mem_source);
    }
    *now = d;
}

enum bl_status bl_machine_adopt_host(struct bl_machine *m, const struct bl_machine *file,
                                     const char *path)
{
    struct bl_machine_device *now = &m->device[0];
    const struct bl_machine_device *then = &file->device[0];

    if (then->isa != now->isa || (now->cores && then->cores != now->cores))
        return bl_fail(BL_EINVAL,
                       "%s is of another machine: '%s' with %u cores, this is '%s' with %u; only a "
                       "plan can be made for it",
                       path, then->name, then->cores, now->name, now->cores);
    take_figures(now, then);
    return BL_OK;
}

/* ---- cards ---- */

static struct bl_link *link_of(const struct bl_machine *m, uint16_t a, uint16_t b)
{
    for (uint32_t i = 0; i < m->n_links; i++)
        if ((m->link[i].a == a && m->link[i].b == b) || (m->link[i].a == b && m->link[i].b == a))
            return &m->link[i];
    return NULL;
}

static uint32_t number_in(const char *id)
{
    while (*id && !isdigit((unsigned char)*id))
        id++;
    return (uint32_t)strtoul(id, NULL, 10);
}

/* False: there is no such device here. */
static bool find_here(const struct bl_machine *m, const struct bl_machine_device *then,
                      struct bl_machine_device *out)
{
    const struct bl_backend *b = bl_backend_find(then->backend_name);
    struct bl_found found;

    *out = *then;
    if (b && !strcmp(b->name, "sim")) { /* is wherever one wants it */
        out->backend = b;
        out->index = number_in(then->id);
        out->config = bl_card_config(out, &m->device[0]);
        return !b->caps(out->index, &out->config, &out->caps);
    }
    if (!b || !b->facts || bl_found_by_id(then->id, b, &found) ||
        bl_found_fill(out, &m->device[0], &found, then->mem_kind == BL_MEMORY_UNIFIED, 0))
        return false;
    snprintf(out->id, sizeof out->id, "%s", then->id);
    return true;
}

static enum bl_status add_card(struct bl_machine *m, const struct bl_machine_device *card)
{
    struct bl_machine_device *d = bl_machine_new_device(m);

    if (!d)
        return BL_ENOMEM;
    *d = *card;
    d->config.number = (uint16_t)m->n_devices++;
    return BL_OK;
}

static enum bl_status add_cards(struct bl_machine *m, const struct bl_machine *file, uint16_t *now)
{
    struct bl_machine_device card;

    for (uint16_t d = 1; d < file->n_devices; d++) {
        const struct bl_machine_device *then = &file->device[d];
        now[d] = BL_NO_DEVICE;
        if (!find_here(m, then, &card)) {
            bl_info("%s of the machine file is left out: no backend of this build opens it here",
                    then->id);
            continue;
        }
        take_figures(&card, then);
        now[d] = (uint16_t)m->n_devices;
        BL_TRY(add_card(m, &card));
    }
    return BL_OK;
}

/* Hubs come whole, so that numbers of them hold. */
static enum bl_status add_links(struct bl_machine *m, const struct bl_machine *file,
                                const uint16_t *now)
{
    if (m->n_devices < 2)
        return BL_OK;
    if (file->n_hubs && !(m->hub = calloc(file->n_hubs, sizeof *m->hub)))
        return bl_fail(BL_ENOMEM, "out of memory for %u hubs", file->n_hubs);
    if (file->n_hubs)
        memcpy(m->hub, file->hub, file->n_hubs * sizeof *m->hub);
    m->n_hubs = file->n_hubs;
    for (uint32_t i = 0; i < file->n_links; i++) {
        struct bl_link l = file->link[i];
        l.a = now[l.a];
        l.b = now[l.b];
        if (l.a != BL_NO_DEVICE && l.b != BL_NO_DEVICE)
            BL_TRY(bl_machine_add_link(m, &l));
    }
    return BL_OK;
}

enum bl_status bl_machine_adopt_cards(struct bl_machine *m, const struct bl_machine *file)
{
    uint16_t now[BL_MAX_DEVICES] = {0};

    BL_TRY(add_cards(m, file, now));
    BL_TRY(add_links(m, file, now));
    return bl_machine_check(m, "the machine file") ? BL_EINVAL : BL_OK;
}

enum bl_status bl_machine_adopt_figures(struct bl_machine *m, const struct bl_machine *file)
{
    for (uint16_t d = 1; d < m->n_devices; d++)
        for (uint16_t t = 1; t < file->n_devices; t++) {
            if (strcmp(m->device[d].id, file->device[t].id) != 0)
                continue;
            struct bl_link *now = link_of(m, 0, d);
            const struct bl_link *then = link_of(file, 0, t);
            take_figures(&m->device[d], &file->device[t]);
            if (now && then && then->a == 0 && then->via == BL_NO_DEVICE) {
                *now = *then;
                now->b = d;
            }
        }
    return bl_machine_check(m, "the machine file") ? BL_EINVAL : BL_OK;
}

/* SPDX-License-Identifier: MIT */
/* found.h — devices that drivers tell of, and how they become entries of a machine.
 *
 * Purpose   what `--devices` names and `ballast probe` measures is looked up here, by number or by what stays the same.
 * Ownership facts are copied; the machine is the caller's.
 * Units     bytes.
 * Errors    BL_EUNAVAILABLE: no such device, with those there are.
 * Threads   any.
 */
#ifndef BL_FOUND_H
#define BL_FOUND_H

#include "machine.h"

struct bl_found {
    const struct bl_backend *backend;
    uint32_t index;
    struct bl_device_facts facts;
};
/* The k-th, counting all backends in their order; BL_EINVAL after the last. Its facts, or BL_EUNAVAILABLE: it lacks
 * something, in words. */
enum bl_status bl_found_at(uint32_t k, struct bl_found *out);
/* of NULL: any that knows it, the preferred first. */
enum bl_status bl_found_by_id(const char *id, const struct bl_backend *of, struct bl_found *out);
bool bl_found_is_id(const char *name); /* "pci-0000:01:00.0", "uuid-01234567" */

/* Name, memory, how to open it; not its id, speeds and links. shared: its memory is the host's, whatever the driver says;
 * usable_bytes 0: as the driver and the host say. */
enum bl_status bl_found_fill(struct bl_machine_device *, const struct bl_machine_device *host, const struct bl_found *,
                             bool shared, uint64_t usable_bytes);
/* How a card is opened beside the host. */
struct bl_device_config bl_card_config(const struct bl_machine_device *card, const struct bl_machine_device *host);

#endif

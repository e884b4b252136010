/* SPDX-License-Identifier: MIT */
#include "take.h"

#include <stdio.h>

/* The most that one block more could have, to a 64th of what was asked for. */
static uint64_t most_left(struct bl_device *dev, uint64_t bytes, bool host_visible)
{
    uint64_t low = 0, high = bytes;

    while (high - low > bytes / 64 + dev->caps.granule_bytes) {
        const uint64_t mid = low + (high - low) / 2;
        struct bl_mem m = {0};
        if (dev->ops->mem_alloc(dev, mid, host_visible, &m)) {
            high = mid;
            continue;
        }
        dev->ops->mem_free(&m);
        low = mid;
    }
    return low;
}

static void note_shortage(struct bl_ledger *l, uint16_t d, struct bl_device *dev,
                          enum bl_purpose purpose, uint64_t bytes, bool host_visible)
{
    char why[512];

    snprintf(why, sizeof why, "%s", bl_error());
    l->shortage = (struct bl_shortage){.device = d,
                                       .purpose = (uint8_t)purpose,
                                       .asked_bytes = bytes,
                                       .there_bytes = bl_ledger_measured(l, d) +
                                                      most_left(dev, bytes, host_visible)};
    (void)bl_fail(BL_ENOMEM, "%s", why);
}

enum bl_status bl_take(struct bl_ledger *l, uint16_t d, struct bl_device *dev,
                       enum bl_purpose purpose, uint64_t bytes, bool host_visible,
                       struct bl_mem *out)
{
    if (!bytes)
        return BL_OK;
    const enum bl_status st = dev->ops->mem_alloc(dev, bytes, host_visible, out);
    if (st == BL_ENOMEM)
        note_shortage(l, d, dev, purpose, bytes, host_visible);
    BL_TRY(st);
    return bl_ledger_count(l, d, purpose, (int64_t)out->granted_bytes);
}

/* SPDX-License-Identifier: MIT */
/* Room for one more device or link. */
#include "machine_file.h"

#include "status.h"

#include <stdlib.h>

struct bl_machine_device *bl_machine_new_device(struct bl_machine *m)
{
    struct bl_machine_device *bigger = realloc(m->device, (m->n_devices + 1) * sizeof *bigger);

    if (!bigger) {
        bl_fail(BL_ENOMEM, "out of memory for %u devices", m->n_devices + 1);
        return NULL;
    }
    m->device = bigger;
    return &bigger[m->n_devices];
}

enum bl_status bl_machine_add_link(struct bl_machine *m, const struct bl_link *l)
{
    struct bl_link *bigger = realloc(m->link, (m->n_links + 1) * sizeof *bigger);

    if (!bigger)
        return bl_fail(BL_ENOMEM, "out of memory for %u links", m->n_links + 1);
    m->link = bigger;
    m->link[m->n_links++] = *l;
    return BL_OK;
}

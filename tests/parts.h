/* SPDX-License-Identifier: MIT */
/* parts.h — engines of parts that a test makes itself: what all of them begin and end with.
 *
 * Purpose   a file and this machine, then devices and a plan of the test's own, then their opening.
 * Ownership parts_open takes the parts, as bl_engine_create does; also those of a failure.
 * Units     none.
 * Errors    as bl_open.
 * Threads   one.
 */
#ifndef BL_TEST_PARTS_H
#define BL_TEST_PARTS_H

#include "devices.h"
#include "engine.h"
#include "mem.h"
#include "planner.h"

/* The model and this machine; no plan yet. */
static inline enum bl_status parts_model(struct bl_engine_parts *p, const char *path, const struct bl_options *opt)
{
    struct bl_model_options mo;

    BL_TRY(bl_model_choose(&mo, opt));
    BL_TRY(bl_gguf_open(&p->gguf, path));
    BL_TRY(bl_model_open(&p->model, p->gguf, &mo));
    return bl_machine_probe(&p->machine, opt);
}

/* The plan is checked, its devices opened, each the first of its backend. */
static inline enum bl_status parts_devices(struct bl_engine_parts *p)
{
    const uint32_t n = p->machine.n_devices;

    BL_TRY(bl_plan_check(&p->plan, p->model, &p->machine));
    p->device = bl_calloc(n, sizeof *p->device);
    if (!p->device)
        return bl_fail(BL_ENOMEM, "out of memory for %u devices", n);
    for (uint16_t d = 0; d < n; d++) {
        const struct bl_machine_device *md = &p->machine.device[d];
        if (d == 0 || bl_plan_uses(&p->plan, d))
            BL_TRY(md->backend->open(md->index, &md->config, &p->device[d]));
    }
    return BL_OK;
}

/* made: what came of making the parts. */
static inline enum bl_status parts_open(struct bl_engine **out, struct bl_engine_parts *p, const struct bl_options *opt,
                                        enum bl_status made)
{
    if (made) {
        bl_engine_parts_finish(p);
        return made;
    }
    made = bl_engine_create(out, p, opt);
    bl_engine_parts_finish(p); /* handed back where a device had less memory than was planned */
    return made;
}

#endif

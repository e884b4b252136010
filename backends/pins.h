/* SPDX-License-Identifier: MIT */
/* pins.h — what drivers hold down of a host device's blocks.
 *
 * Purpose   a driver registers a range once for the whole process, whichever of its devices asked; so who copies with it
 *           holds it together with the others, and the last to let go gives it back, in whatever order they close.
 * Ownership of the host device, closed with it; every hold is released before the memory is freed.
 * Units     bytes.
 * Errors    none: a range that cannot be held down is not reached, which is remembered as well.
 * Threads   any.
 */
#ifndef BL_PINS_H
#define BL_PINS_H

#include "device.h"

struct bl_pins;
struct bl_pinning {          /* how a driver does it; who is what it is known by, the same for all its devices */
    const void *who;
    void *arg;
    /* pin: *ours: it is to be given back. */
    bool (*pin)(void *arg, void *at, size_t bytes, bool *ours);
    void (*unpin)(void *arg, void *at);
};
struct bl_pin {
    const void *who;
    void *at;                /* whole pages */
    size_t bytes;
    bool reached, ours;
    uint32_t n_holders;
    struct bl_pin *next;
};

enum bl_status bl_pins_open(struct bl_pins **out);
void bl_pins_close(struct bl_pins *); /* NULL is fine */
/* The same range as those before asked for, or one that none of theirs overlaps. NULL: no memory for it. */
struct bl_pin *bl_pins_hold(struct bl_pins *, const struct bl_pinning *, void *at, size_t bytes);
void bl_pins_release(struct bl_pins *, const struct bl_pinning *, struct bl_pin *);

#endif

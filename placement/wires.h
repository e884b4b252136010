/* SPDX-License-Identifier: MIT */
/* wires.h — copies take turns on a link and share what their links have in common.
 *
 * Purpose   the one arithmetic of copies, for what is predicted and for what is simulated.
 * Ownership borrows the machine; owns its tables.
 * Units     nanoseconds from any beginning, bytes.
 * Errors    BL_ENOMEM.
 * Threads   one at a time.
 */
#ifndef BL_WIRES_H
#define BL_WIRES_H

#include "node_cost.h"
#include "pace.h"

struct bl_wires {
    const struct bl_machine *machine;
    double *link_free; /* [2 * n_links] each way: until then it is taken */
    double *hub_free;  /* [2 * n_hubs] */
};
enum bl_status bl_wires_init(struct bl_wires *, const struct bl_machine *);
void bl_wires_finish(struct bl_wires *); /* zeroed is fine */
const struct bl_link *bl_wires_link(const struct bl_machine *, uint16_t a, uint16_t b); /* NULL: none */
/* Takes the way between two devices for a copy that could begin at ready_ns. price: [n_devices]. Without a link nothing
 * moves, and it takes no time. */
struct bl_copy_time bl_wires_copy(struct bl_wires *, const struct bl_pricing *price, uint16_t from, uint16_t to,
                                  double bytes, double ready_ns);
/* A value that goes to a device that waits for it, without its bytes. */
double bl_crossing_ns(const struct bl_pricing *, const struct bl_machine *, uint16_t from, uint16_t to);

#endif

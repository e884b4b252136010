/* SPDX-License-Identifier: MIT */
/* devices.h — devices by a list of names, planned for and opened together.
 *
 * Purpose   "sim0:12GiB@16GB/s,sim1": what `--devices` means. The host's CPU is device 0 whether it is named or not, the
 *           others follow in the order of the list.
 * Ownership the caller's machine, plan and parts.
 * Units     bytes, bytes per second.
 * Errors    BL_EINVAL: the list, with the item that is wrong. Otherwise as planning and opening.
 * Threads   any.
 */
#ifndef BL_DEVICES_H
#define BL_DEVICES_H

#include "engine.h"
#include "planner.h"

/* Adds what the list names: NAME[NUMBER][:MEMORY][@LINK][+FAULT=N], or instead of NAME and NUMBER what a device is called
 * at every start ("pci-0000:01:00.0"); MEMORY is a size, "shared" (the host's) or "shared:" and a size.
 * "all": what bl_machine_add_found finds. NULL: nothing. */
enum bl_status bl_machine_add_devices(struct bl_machine *, const char *list);
/* The host's k-th memory node, its cores and memory, as a device; what device 0 is then is the first. */
enum bl_status bl_machine_add_node(struct bl_machine *, uint32_t k);
/* Adds what drivers tell of, but for those that compute on this processor; note: what is left out and why; may be NULL. */
enum bl_status bl_machine_add_found(struct bl_machine *, void (*note)(void *arg, const char *text), void *arg);
/* Device 0 is simulated as well, in host memory, so that all times are those of one virtual clock. */
enum bl_status bl_machine_simulate_host(struct bl_machine *);
/* Like bl_plan_make; with several devices by search, which goes by what is known of the use of experts, unless that is
 * NULL. */
enum bl_status bl_plan_for_devices(struct bl_plan *out, const struct bl_model *, const struct bl_machine *,
                                   const struct bl_options *, const struct bl_expert_stats *known);
/* Opens those that the plan uses and device 0. Before anything is laid on it, a pattern goes to every device and back. */
enum bl_status bl_devices_open(struct bl_engine_parts *, const struct bl_options *);

#endif

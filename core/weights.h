/* SPDX-License-Identifier: MIT */
/* weights.h — brings a model's tensors to where the plan wants them.
 *
 * Purpose   maps or reads tensors, of experts those that a device has, builds the tables of expert addresses, reports progress.
 * Ownership owns the memory it takes; the mapping belongs to the GGUF file.
 * Units     bytes.
 * Errors    BL_EIO, BL_ENOMEM, BL_EDEVICE; mlock that fails is a warning.
 * Threads   submitting thread.
 */
#ifndef BL_WEIGHTS_H
#define BL_WEIGHTS_H

#include "plan.h"

struct bl_weights {
    uint64_t *addr;          /* [n_devices * n_weights] first row, of experts their table; 0: not on the device */
    struct bl_blocks *block; /* [n_devices] tensors read into memory */
    struct bl_mem *table;    /* [n_devices] */
    struct bl_mem *import;   /* [n_shards] imported mappings */
    uint32_t n_devices, n_shards;
};
/* room: a block of the host that is not in use yet; what goes to memory that the host does not see passes through it. */
enum bl_status bl_weights_load(struct bl_weights *, const struct bl_model *, struct bl_plan *,
                               const struct bl_block_bytes *, struct bl_device *const *device, uint32_t n_devices,
                               const struct bl_mem *room, const struct bl_options *);
/* The addresses of an expert weight on a device, as the host sees them; NULL: it has none. Not while a step runs. */
uint64_t *bl_weights_table(const struct bl_weights *, const struct bl_model *, uint16_t device, uint32_t weight);
/* The host's block or mapped file that has a tensor which is on the host. */
const struct bl_mem *bl_weights_home(const struct bl_weights *, const struct bl_model *, uint32_t tensor);
/* Before each use of mapped weights: their files are still whole. */
enum bl_status bl_weights_check(const struct bl_weights *, const struct bl_model *);
void bl_weights_finish(struct bl_weights *); /* zeroed is fine */

#endif

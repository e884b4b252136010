/* SPDX-License-Identifier: MIT */
/* ledger.h — every byte by device and purpose: planned before allocation, measured where it was obtained.
 *
 * Purpose   one arithmetic for planner and engine; the answer to "does it fit" before anything is allocated.
 * Ownership the ledger owns its lines; device names are borrowed from the machine.
 * Units     bytes.
 * Errors    BL_ENOMEM from plan and count.
 * Threads   submitting thread only.
 */
#ifndef BL_LEDGER_H
#define BL_LEDGER_H

#include "status.h"

enum bl_purpose {
    BL_MEM_WEIGHTS, /* tensors as they lie in the file, mapped or read */
    BL_MEM_STATE,   /* KV and other cached state */
    BL_MEM_SLACK,   /* of it, rows beyond what windows and recurrent state need: struct bl_state_line */
    BL_MEM_COMPUTE, /* activations and kernel scratch of the largest legal step */
    BL_MEM_PARAMS,  /* per-step numbers */
    BL_MEM_OUTPUT,  /* logits */
    BL_MEM_HOST,    /* metadata, vocabulary, graphs, programs: an upper bound is planned */
    BL_MEM_DRIVER,  /* what the driver takes as soon as the device is opened, by the machine's description */
    BL_MEM_STAGING, /* rings through which experts pass on their way to a card, and their tables; 0: programs send none */
    BL_MEM_DRAFT,   /* layers of the file that guess tokens ahead; 0: they are not loaded */
    BL_MEM_SLOTS,   /* experts of the host that also sit on a card, which ones changes */
    BL_N_PURPOSES
};
struct bl_ledger_line {
    uint16_t device;
    uint8_t purpose;
    uint64_t planned_bytes, measured_bytes;
};
/* What ended the taking of what was planned. */
struct bl_shortage {
    uint16_t device;
    uint8_t purpose;
    uint64_t asked_bytes;           /* of the block that was refused; 0: none was */
    uint64_t there_bytes;           /* taken on the device by then, and what more it would have given */
};
/* Something that has to lie in one block, which is larger than the device's largest. */
struct bl_excess {
    uint16_t device;
    uint8_t purpose;
    uint64_t bytes, most_bytes;     /* 0: there is none */
};
struct bl_ledger {
    struct bl_ledger_line *line;
    uint32_t n, cap;
    struct bl_excess excess;
    struct bl_shortage shortage;
};
const char *bl_purpose_name(enum bl_purpose);
enum bl_status bl_ledger_plan(struct bl_ledger *, uint16_t device, enum bl_purpose, uint64_t bytes);  /* adds */
enum bl_status bl_ledger_count(struct bl_ledger *, uint16_t device, enum bl_purpose, int64_t bytes);  /* adds; < 0: given back */
uint64_t bl_ledger_planned(const struct bl_ledger *, uint16_t device);  /* sum over purposes */
uint64_t bl_ledger_measured(const struct bl_ledger *, uint16_t device); /* likewise */
void bl_ledger_finish(struct bl_ledger *);

#endif

/* SPDX-License-Identifier: MIT */
/* plan.h — where every part of every layer lives: data, memory arithmetic, check, print.
 *
 * Purpose   a short table keyed by (layer, part); the engine executes it without knowing who made it. The memory of a
 *           plan is computed here, once, for planner and engine alike.
 * Ownership the plan owns its table and ledger.
 * Units     tokens, bytes.
 * Errors    check: BL_EINVAL with the slot that is wrong. memory: what lowering reports.
 * Threads   read-only once made.
 */
#ifndef BL_PLAN_H
#define BL_PLAN_H

#include "blocks.h"
#include "experts.h"
#include "ledger.h"
#include "machine.h"
#include "model.h"

/* Experts [first, first + n) of a layer, which live elsewhere than its slot of BL_PART_EXPERTS says. */
struct bl_expert_range { uint32_t layer, first, n; uint16_t device; };
/* Slots of a device for experts of a layer that live on the host; which of them sit there is decided while running
 * (experts.h). */
struct bl_slot_set {
    uint32_t layer, n;
    uint16_t device;
    double hit;                  /* share of the layer's uses expected there; 0: not known */
};

struct bl_plan {
    uint32_t n_layers;
    uint16_t *slot;              /* device of [n_layers + 1][BL_N_PARTS]; the last row: embed and head */
    struct bl_expert_range *range; /* [n_ranges] by layer, then first; none overlap */
    uint32_t n_ranges;
    struct bl_slot_set *slots;   /* [n_slot_sets] by layer, then device */
    uint32_t n_slot_sets;
    uint8_t expert_policy;       /* enum bl_expert_policy; off: as if there were no slots */
    const struct bl_expert_stats *known; /* borrowed; which experts predictions take to be chosen; NULL: all alike */
    bool count_experts;          /* uses are counted even where there are no slots */
    uint32_t stream_from;        /* steps of so many tokens send the host's experts through cards (chunks.h); 0: none does */
    uint64_t chunk_bytes;        /* of experts on their way at a time, about; 0: BL_CHUNK_BYTES */
    double slot_load;            /* share of what the host can read in a step of one token that goes to slots, expected */
    uint64_t move_bytes;         /* at most, into a device's slots between two steps, but one expert always; 0: any */
    uint64_t ctx_tokens;
    uint32_t batch_tokens, ubatch_tokens, out_tokens, max_sessions;
    bool mmap;                   /* weights used where the file is mapped, on devices that can */
    uint32_t threads;            /* of the host for steps of few tokens; 0: as the machine's configuration says */
    uint64_t nodes;              /* memory nodes that the host's blocks lie on, a bit each; 0: left to the system */
    struct bl_ledger ledger;     /* planned column filled by bl_plan_memory */
};

enum bl_status bl_plan_init(struct bl_plan *, const struct bl_model *); /* all on device 0 */
void bl_plan_finish(struct bl_plan *);                                  /* zeroed is fine */
static inline uint16_t bl_plan_device(const struct bl_plan *p, int layer, unsigned part)
{
    return p->slot[(layer < 0 ? p->n_layers : (uint32_t)layer) * BL_N_PARTS + part];
}
/* Adds a range; of neighbours on one device it makes one. BL_EINVAL: no such layer, no experts, or some are taken. */
enum bl_status bl_plan_add_range(struct bl_plan *, uint32_t layer, uint32_t first, uint32_t n, uint16_t device);
uint16_t bl_plan_expert_device(const struct bl_plan *, uint32_t layer, uint32_t expert);
/* The experts from `expert` on that are on its device, as far as no other comes between. */
struct bl_expert_range bl_plan_expert_run(const struct bl_plan *, uint32_t layer, uint32_t expert, uint32_t n_experts);
/* Of a layer's n_experts, how many are on a device. */
uint32_t bl_plan_experts_on(const struct bl_plan *, uint32_t layer, uint32_t n_experts, uint16_t device);
/* The devices that hold any of them or have slots for them, in order: which is the k-th; BL_NO_DEVICE: there are no
 * more. */
uint16_t bl_plan_expert_holder(const struct bl_plan *, uint32_t layer, uint32_t n_experts, uint32_t k);
/* BL_EINVAL: no such layer, no slots, or there are some already. */
enum bl_status bl_plan_add_slots(struct bl_plan *, uint32_t layer, uint16_t device, uint32_t n);
/* Slots that are filled once and left alone become ranges, so that the host keeps no copies of what is in them: the most
 * used experts that are known, where nothing is (NULL) the first, for a layer's devices in order. */
enum bl_status bl_plan_fix_slots(struct bl_plan *, const struct bl_model *, const struct bl_expert_stats *known);
uint32_t bl_plan_slots_on(const struct bl_plan *, uint32_t layer, uint16_t device); /* 0 where the policy is off */
static inline bool bl_plan_has_slots(const struct bl_plan *p)
{
    return p->n_slot_sets && p->expert_policy != BL_EXPERTS_OFF;
}
static inline bool bl_plan_notes_experts(const struct bl_plan *p)
{
    return p->count_experts || bl_plan_has_slots(p);
}
bool bl_plan_uses(const struct bl_plan *, uint16_t device);
enum bl_status bl_plan_check(const struct bl_plan *, const struct bl_model *, const struct bl_machine *);
void bl_plan_print(const struct bl_plan *, const struct bl_model *, const struct bl_machine *,
                   void (*line)(void *arg, const char *text), void *arg);

/* Steps come in buckets: the legal shapes are the powers of two up to ubatch (and ubatch itself) with 0, 1 or as many
 * logits as fit. bl_plan_bucket rounds a step up to one; bl_plan_buckets calls fn for each until it fails. */
struct bl_shape bl_plan_bucket(const struct bl_plan *, uint32_t n_tok, uint32_t n_out);
enum bl_status bl_plan_buckets(const struct bl_plan *,
                               enum bl_status (*fn)(void *arg, const struct bl_shape *), void *arg);

/* Sizes of the blocks that the engine takes per device; the ledger is filled from the same numbers. */
struct bl_block_bytes {
    uint64_t weights;  /* read into one block, of experts those of the device; 0 where the file is used as mapped */
    uint64_t mapped;   /* bytes of mapped files */
    uint64_t tables;   /* addresses of experts */
    uint64_t slots;    /* for experts that come and go */
    uint64_t state;    /* with its slack */
    uint64_t slack;
    uint64_t compute;  /* activations, then kernel scratch */
    uint64_t scratch;  /* of it */
    uint64_t params;
    uint64_t window;   /* of weights, slots and state, which spread over several where one is larger: blocks.h */
};
/* The window of a device's blocks; 0: there is no largest. The host's have none. */
uint64_t bl_plan_window(const struct bl_machine *, uint16_t device);
/* Matrices, biases and scales of experts are reached through a table of addresses, one per expert. Each device that has
 * some of a layer's experts has tables of its own, in which others are 0. */
static inline bool bl_weight_has_table(const struct bl_weight *w)
{
    return w->part == BL_PART_EXPERTS;
}
uint64_t bl_params_bytes(const struct bl_plan *);
uint64_t bl_output_bytes(const struct bl_plan *, const struct bl_model *);
/* Bytes of each tensor [n_tensors] that a device holds: all, those of its experts, or 0. */
void bl_plan_tensor_bytes(const struct bl_plan *, const struct bl_model *, uint16_t device, uint64_t *bytes);
/* What is laid out on a device, with windows of so many bytes, and how far that goes. */
struct bl_layout {
    uint64_t window, end;
    uint64_t largest;        /* unit */
};
/* Offsets inside the blocks: of each tensor (UINT64_MAX: nothing of it is there), whose experts lie one after the other,
 * and of each state. */
void bl_plan_tensor_offsets(const struct bl_plan *, const struct bl_model *, uint16_t device, struct bl_layout *,
                            uint64_t *off);
/* The same inside the blocks of slots, for tensors that have some there: a layer's slots lie one after the other. */
void bl_plan_slot_offsets(const struct bl_plan *, const struct bl_model *, uint16_t device, struct bl_layout *,
                          uint64_t *off);
void bl_plan_state_offsets(const struct bl_plan *, const struct bl_model *, uint16_t device, struct bl_layout *,
                           uint64_t *off);
/* n units of a size side by side behind what there is: where the first is. */
uint64_t bl_layout_add(struct bl_layout *, uint64_t each, uint64_t n);
/* blocks: [n_devices], filled. What one allocation cannot hold is left in the ledger's excess. */
enum bl_status bl_plan_memory(struct bl_plan *, const struct bl_model *, const struct bl_machine *,
                              struct bl_block_bytes *blocks);
/* BL_ENOFIT where the ledger has an excess, with what does not go into one block. */
enum bl_status bl_plan_check_blocks(const struct bl_plan *, const struct bl_machine *);
/* What the engine keeps on the host to note who was chosen and who sits where; 0: nothing is noted. */
uint64_t bl_plan_expert_notes_bytes(const struct bl_plan *, const struct bl_model *);
enum { BL_PROGRAM_CAP = 16 }; /* programs kept by an engine */

#endif

/* SPDX-License-Identifier: MIT */
/* experts.h — which expert sits in which slot of a device, and which were used how often.
 *
 * Purpose   experts of the host may also sit in slots of other devices, as many as the plan gives a layer there. Between
 *           steps a policy says what should come in and what goes for it; nothing here touches memory of a device, and a
 *           wrong guess costs time only, since an expert that is in no slot is computed on the host. The counts that it
 *           keeps outlive the run as statistics (placement/expert_file.h).
 * Ownership finish frees everything.
 * Units     tokens, experts.
 * Errors    BL_ENOMEM.
 * Threads   submitting thread.
 */
#ifndef BL_EXPERTS_H
#define BL_EXPERTS_H

#include "status.h"

#define BL_NO_EXPERT UINT32_MAX

enum bl_expert_policy {
    BL_EXPERTS_OFF,   /* slots are not used, nor is memory taken for them */
    BL_EXPERTS_FIXED, /* filled once, with the most used that statistics know, then left alone */
    BL_EXPERTS_LRU,   /* what was used last comes in for what was not used for longest */
    BL_N_EXPERT_POLICIES
};

/* Of every layer and expert [n_layers * n_experts]: tokens that chose it; and of tokens computed alone, how many chose an
 * expert that had been used with so many others since: slots that keep the last used would have had it if they were more.
 * A layer's alone: all such choices, those of experts used for the first time too. */
struct bl_expert_stats {
    uint32_t n_layers, n_experts;
    uint64_t *uses, *reuse;
    uint64_t *alone;             /* [n_layers] */
    uint64_t n_tok;              /* tokens counted */
};
enum bl_status bl_expert_stats_init(struct bl_expert_stats *, uint32_t n_layers, uint32_t n_experts);
void bl_expert_stats_finish(struct bl_expert_stats *); /* zeroed is fine */
void bl_expert_stats_add(struct bl_expert_stats *to, const struct bl_expert_stats *from); /* of the same sizes */
/* Share of a layer's uses that its n most used experts have; that the n last used would have. < 0: nothing is known. */
double bl_expert_stats_best(const struct bl_expert_stats *, uint32_t layer, uint32_t n);
double bl_expert_stats_recent(const struct bl_expert_stats *, uint32_t layer, uint32_t n);
/* The layer's experts [n_experts], the most used first; of equally used ones the lower number. */
void bl_expert_stats_order(const struct bl_expert_stats *, uint32_t layer, uint32_t *expert);

struct bl_expert_set {           /* a layer's slots on a device */
    uint32_t layer, n;
    uint16_t device;
    bool held;                   /* may not choose for now */
    uint32_t *expert;            /* [n] what sits there or is on its way; BL_NO_EXPERT: nothing */
    bool *coming;                /* [n] not to be used yet */
};
struct bl_expert_move {
    uint32_t set, slot;
    uint32_t in, out;            /* out: what is taken away at once; BL_NO_EXPERT: the slot was free */
};
struct bl_experts {
    struct bl_expert_stats stats; /* with what was known at the start */
    uint8_t policy;              /* enum bl_expert_policy */
    uint64_t clock;              /* tokens */
    uint64_t *last;              /* [n_layers * n_experts] token that used it last, counted from 1; 0: none did */
    uint32_t *at;                /* [likewise] set where it sits or to which it is on its way; BL_NO_EXPERT: none */
    bool *stays;                 /* [likewise] is on a card for good */
    struct bl_expert_set *set;
    uint32_t n_sets, turn;       /* turn: the set that may choose next, so that all get their share of a bounded step */
    uint64_t n_uses, n_hits, n_moves; /* uses: in layers with slots, or, if there are none, with
                                       * some experts on cards; hits: of experts that sat in one, or were there */
};
enum bl_status bl_experts_init(struct bl_experts *, uint32_t n_layers, uint32_t n_experts, enum bl_expert_policy);
void bl_experts_finish(struct bl_experts *); /* zeroed is fine */
/* Slots of a layer on a device; several sets of one layer take turns. */
enum bl_status bl_experts_add_set(struct bl_experts *, uint32_t layer, uint16_t device, uint32_t n);
/* Notes who was chosen in a step: ids [n_tok * n_used], those of a token side by side. All layers of a step, then end. */
void bl_experts_note(struct bl_experts *, uint32_t layer, const int32_t *ids, uint32_t n_tok, uint32_t n_used);
void bl_experts_end_step(struct bl_experts *, uint32_t n_tok);
/* The next move; false: everything that is not held is where the policy wants it. From now on `in` is on its way: arrived
 * ends that. */
bool bl_experts_next(struct bl_experts *, struct bl_expert_move *out);
void bl_experts_arrived(struct bl_experts *, const struct bl_expert_move *);
/* The expert sits there, ready for use. */
bool bl_experts_is_in(const struct bl_experts *, uint32_t set, uint32_t expert);

const char *bl_expert_policy_name(enum bl_expert_policy); /* "off", "fixed", "lru"; NULL: none such */
enum bl_status bl_expert_policy_by_name(const char *name, uint8_t *out);  /* BL_EINVAL */

#endif

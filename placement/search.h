/* SPDX-License-Identifier: MIT */
/* search.h — which device gets which part of which layer.
 *
 * Purpose   candidates are filled in by saved time per byte until devices are full, improved by moves on cached costs, and
 *           the best of them lowered and simulated; what was decided is explained group by group. Deterministic. Nothing
 *           is allocated on a device.
 * Ownership the caller finishes the choice, which owns its plan and reasons.
 * Units     bytes, tokens, nanoseconds, tokens per second.
 * Errors    BL_ENOFIT: names device and shortfall, and the nearest context, KV type or memory that would do.
 * Threads   any.
 */
#ifndef BL_SEARCH_H
#define BL_SEARCH_H

#include "cost.h"
#include "planner.h"

/* What rules fix of a placement; see constraints.h. */
struct bl_pins {
    uint16_t *at;                /* [n_layers + 1][BL_N_PARTS] device; BL_NO_DEVICE: to be chosen */
    uint8_t *by;                 /* [same] which of said, plus one */
    char (*said)[64];            /* [n_said] rules, as the command line has them */
    uint32_t n_said;
    uint64_t left_out;           /* devices that nothing else may go to, a bit each */
    bool complete;               /* nothing is left to choose */
};
struct bl_search_options {
    const struct bl_cost_table *table; /* NULL: the committed constants */
    double prefill_weight;       /* 0: decode alone counts, 1: prefill alone; between: powers of both */
    uint64_t reserve_bytes;      /* kept free on every card */
    uint64_t depth_tokens;       /* context at which speeds are predicted */
    bool may_shrink_ctx;
    uint64_t least_ctx_tokens;   /* then at least so many */
    struct bl_placement_lack *lack; /* told of BL_ENOFIT, which then searches for nothing else; NULL */
    bool fixed_ubatch;           /* as the options say, else chosen among those at least as large */
    const struct bl_pins *pins;  /* NULL: none */
    const struct bl_expert_stats *known; /* of the use of experts; NULL: nothing is */
    bool no_slots;               /* a policy was asked for by which what is in them does not change */
};
struct bl_reason {
    int32_t first, last;         /* layers; -1: outside of layers, or all */
    uint16_t device;
    uint8_t part;                /* enum bl_part that it is about; BL_N_PARTS: the device as a whole */
    char text[232];
};
struct bl_choice {
    struct bl_plan plan;
    struct bl_reason *reason;
    uint32_t n_reasons, cap_reasons;
    struct bl_speed decode, prefill;
    uint64_t depth_tokens;
    uint64_t asked_ctx_tokens;   /* more than the plan's: it was reduced */
    uint32_t stream_from_tok;    /* from there on sending the host's experts to cards is quicker; 0: never is */
    uint32_t sent_from_tok[BL_MAX_DEVICES]; /* likewise of each card alone, and not in powers of two */
    uint32_t n_simulated;
    bool sending_chosen;             /* from where on experts are sent stands in the plan */
    bool by_rules, by_hand;      /* not searched; by_hand: a plan file that was edited */
};
enum bl_status bl_search(struct bl_choice *out, const struct bl_model *, const struct bl_machine *,
                         const struct bl_options *, const struct bl_search_options *);
void bl_choice_finish(struct bl_choice *); /* zeroed is fine */
/* What a device can give to a plan, its driver included: usable bytes without the reserve. */
uint64_t bl_device_budget(const struct bl_machine_device *, uint64_t reserve_bytes);
/* A plan's speed by simulation, with what is left open; stream_from_tok: as in bl_choice, chosen for the plan. */
enum bl_status bl_plan_speed(struct bl_choice *, const struct bl_model *, const struct bl_machine *,
                             const struct bl_search_options *);
/* The context at which speeds are predicted unless one is asked for: some 4096 tokens, of short contexts a half. */
uint64_t bl_usual_depth(uint64_t ctx_tokens);
/* Whether layers are on the card whose experts are in RAM. */
bool bl_plan_sends_to(const struct bl_plan *, const struct bl_model *, uint16_t card);
/* Less is better: nanoseconds per token of decode and prefill, weighed as the options say. */
double bl_plan_score(double decode_ns, double prefill_ns, double prefill_weight);

#endif

/* SPDX-License-Identifier: MIT */
/* search_impl.h — what the files of the search share.
 *
 * Purpose   costs and bytes per layer and device, counted once; a candidate as two devices per layer.
 * Ownership bl_costs_finish, bl_draft_finish.
 * Units     bytes, nanoseconds.
 * Errors    BL_ENOMEM, and what lowering reports.
 * Threads   one search per thread.
 */
#ifndef BL_SEARCH_IMPL_H
#define BL_SEARCH_IMPL_H

#include "node_cost.h"
#include "search.h"

enum bl_phase { BL_DECODE, BL_PREFILL, BL_N_PHASES };
enum bl_group { BL_GROUP_REST /* attention, state and the dense part */, BL_GROUP_EXPERTS, BL_N_GROUPS };

struct bl_costs {
    uint32_t n_layers, n_devices;
    double *ns[BL_N_PHASES];        /* [n_layers][BL_N_GROUPS][n_devices] */
    double *head_ns[BL_N_PHASES];   /* [n_devices] */
    double *cross_ns[BL_N_PHASES];  /* [n_devices][n_devices] a hidden state and its crossing */
    uint64_t *bytes;                /* [n_layers][BL_N_GROUPS] weights, tables, state */
    uint64_t *compute;              /* [n_devices] activations, scratch, per-step numbers: as last lowered */
    uint64_t *budget;               /* [n_devices] */
    uint64_t head_bytes, embed_bytes, host_bytes;
};
enum bl_status bl_costs_make(struct bl_costs *out, const struct bl_model *, const struct bl_machine *,
                             const struct bl_plan *, const struct bl_search_options *);
void bl_costs_finish(struct bl_costs *); /* zeroed is fine */
static inline size_t bl_cost_at(const struct bl_costs *c, uint32_t layer, enum bl_group g, uint16_t d)
{
    return ((size_t)layer * BL_N_GROUPS + g) * c->n_devices + d;
}

/* A candidate: where each layer's two groups are. The head is where the last layer is. */
struct bl_draft {
    uint16_t *at;                   /* [n_layers][BL_N_GROUPS] */
    uint64_t *used;                 /* [n_devices] */
    double score;
};
enum bl_status bl_draft_init(struct bl_draft *, const struct bl_costs *);
void bl_draft_finish(struct bl_draft *);
void bl_draft_copy(struct bl_draft *to, const struct bl_draft *from, const struct bl_costs *);
void bl_draft_count(struct bl_draft *, const struct bl_costs *); /* used, from at */
bool bl_draft_fits(const struct bl_draft *, const struct bl_costs *, const struct bl_machine *);
double bl_draft_ns(const struct bl_draft *, const struct bl_costs *, enum bl_phase); /* by cached costs, without overlap */
void bl_draft_to_plan(const struct bl_draft *, struct bl_plan *);

/* Usable cards, the quickest first. */
uint32_t bl_rank_cards(const struct bl_machine *, uint16_t *card);
/* Layers in runs, one for each of the n cards, in proportion to what they can hold; or all on the first. Then experts
 * where they save most for their bytes. False: it does not fit. */
bool bl_draft_fill(struct bl_draft *, const struct bl_costs *, const struct bl_machine *, const uint16_t *card, uint32_t n,
                   bool in_runs, double prefill_weight);
/* Moves and swaps while they help, on cached costs. */
enum bl_status bl_draft_improve(struct bl_draft *, const struct bl_costs *, const struct bl_machine *,
                                double prefill_weight);

enum bl_status bl_explain(struct bl_choice *, const struct bl_costs *, const struct bl_model *,
                          const struct bl_machine *);

#endif

/* SPDX-License-Identifier: MIT */
/* search_impl.h — what the files of the search share.
 *
 * Purpose   costs and bytes per layer and device, counted once; a candidate as two devices per layer.
 * Ownership bl_costs_finish, bl_draft_finish.
 * Units     bytes, nanoseconds; blended costs have no unit.
 * Errors    BL_ENOMEM, and what lowering reports.
 * Threads   one search per thread.
 */
#ifndef BL_SEARCH_IMPL_H
#define BL_SEARCH_IMPL_H

#include "node_cost.h"
#include "search.h"

/* SENT: prefill with the host's experts sent to the card of their layer. */
enum bl_phase { BL_DECODE, BL_PREFILL, BL_SENT, BL_N_PHASES };
enum bl_group { BL_GROUP_REST /* attention, state and the dense part */, BL_GROUP_EXPERTS, BL_N_GROUPS };
struct bl_lack {                  /* what a device cannot run */
    uint8_t op;                   /* enum bl_op plus one; 0: nothing */
    uint8_t type;                 /* of its largest weight; BL_N_DTYPES: it has none */
    uint64_t bytes;               /* instead: of what is larger than its largest allocation; 0: that is not it */
};

struct bl_costs {
    uint32_t n_layers, n_devices;
    double *ns[BL_N_PHASES];        /* [n_layers][BL_N_GROUPS][n_devices]; SENT: of experts, on the card [n_devices] */
    double *head_ns[BL_N_PHASES];   /* [n_devices] */
    double *cross_ns[BL_N_PHASES];  /* [n_devices][n_devices] a hidden state and its crossing */
    /* One number for both phases, near a plan that takes so long: see bl_costs_blend. */
    double *blend;                  /* [n_layers][BL_N_GROUPS][n_devices] */
    double *blend_sent;             /* [n_layers][n_devices] the host's experts, by the card of their layer */
    double *blend_head, *blend_cross;
    uint64_t *bytes;                /* [n_layers][BL_N_GROUPS] weights, tables, state */
    uint64_t *fixed;                /* [n_devices] parts that rules put apart from their group */
    uint64_t *compute;              /* [n_devices] activations, scratch, per-step numbers: as last lowered */
    uint64_t *budget;               /* [n_devices] */
    uint16_t *pin;                  /* [n_layers][BL_N_GROUPS] by rules; BL_NO_DEVICE: to be chosen */
    bool *open;                     /* [n_devices] worth using, able to, and rules do not leave it out */
    struct bl_lack *lack;           /* [n_layers][BL_N_GROUPS][n_devices] of a group; the last layer brings the head */
    uint64_t head_bytes, embed_bytes, host_bytes;
    uint16_t head_pin, embed_at;
    bool tied;                      /* the head is a copy of the embedding, unless both are on one device */
    const struct bl_pins *pins;     /* NULL: none */
};
enum bl_status bl_costs_make(struct bl_costs *out, const struct bl_model *, const struct bl_machine *,
                             const struct bl_plan *, const struct bl_search_options *);
void bl_costs_finish(struct bl_costs *); /* zeroed is fine */
/* The score is a product of powers; near a plan of so many nanoseconds it falls as a sum does, in which each phase is
 * divided by what it takes there. */
void bl_costs_blend(struct bl_costs *, const double ns[BL_N_PHASES], enum bl_phase prefill, double prefill_weight);
static inline size_t bl_cost_at(const struct bl_costs *c, uint32_t layer, enum bl_group g, uint16_t d)
{
    return ((size_t)layer * BL_N_GROUPS + g) * c->n_devices + d;
}

/* The device itself, or the host where it cannot run the group. */
static inline uint16_t bl_able_or_host(const struct bl_costs *c, uint32_t layer, unsigned group, uint16_t d)
{
    return c->lack[bl_cost_at(c, layer, (enum bl_group)group, d)].op ? 0 : d;
}

/* A candidate: where each layer's two groups are. The head is where the last layer is. */
struct bl_draft {
    uint16_t *at;                   /* [n_layers][BL_N_GROUPS] */
    uint64_t *used;                 /* [n_devices] */
    double score;                   /* blended */
};
enum bl_status bl_draft_init(struct bl_draft *, const struct bl_costs *);
void bl_draft_finish(struct bl_draft *);
void bl_draft_copy(struct bl_draft *to, const struct bl_draft *from, const struct bl_costs *);
bool bl_draft_same(const struct bl_draft *, const struct bl_draft *, const struct bl_costs *);
void bl_draft_count(struct bl_draft *, const struct bl_costs *); /* used, from at */
bool bl_draft_fits(const struct bl_draft *, const struct bl_costs *, const struct bl_machine *);
double bl_draft_ns(const struct bl_draft *, const struct bl_costs *, enum bl_phase); /* by cached costs, without overlap */
void bl_draft_score(struct bl_draft *, const struct bl_costs *);
void bl_draft_to_plan(const struct bl_draft *, const struct bl_costs *, struct bl_plan *);
/* Whether a group may be moved there, room aside: the device can run it. Cards that live in the host's memory take all or
 * nothing. */
static inline bool bl_may_move(const struct bl_costs *c, const struct bl_machine *m, uint32_t layer, unsigned group,
                               uint16_t to)
{
    return c->pin[(size_t)layer * BL_N_GROUPS + group] == BL_NO_DEVICE && c->open[to] && m->device[to].shares != 0 &&
           bl_able_or_host(c, layer, group, to) == to;
}
static inline uint16_t bl_draft_at(const struct bl_draft *d, uint32_t layer, unsigned group)
{
    return d->at[(size_t)layer * BL_N_GROUPS + group];
}
static inline uint64_t bl_group_bytes(const struct bl_costs *c, uint32_t layer, unsigned group)
{
    return c->bytes[(size_t)layer * BL_N_GROUPS + group];
}
/* The least that a device could have of the model; 0: it can run nothing. */
uint64_t bl_least_group(const struct bl_costs *, uint16_t device);
/* Blended cost of a layer, of the way to it from the one before, and of what follows the last. */
double bl_layer_cost(const struct bl_draft *, const struct bl_costs *, uint32_t layer);
/* What the head takes on a device: nothing where it is the embedding. */
static inline uint64_t bl_head_bytes(const struct bl_costs *c, uint16_t device)
{
    return c->tied && device == c->embed_at ? 0 : c->head_bytes;
}

/* Usable cards, the quickest first. */
uint32_t bl_rank_cards(const struct bl_costs *, const struct bl_machine *, uint16_t *card);
/* Layers in runs, one for each of the n cards, in proportion to what they can hold; or all on the first. Then experts
 * where they save most for their bytes. */
enum bl_status bl_draft_fill(struct bl_draft *, const struct bl_costs *, const struct bl_machine *, const uint16_t *card,
                             uint32_t n, bool in_runs, bool *fits);
/* Memory of the n cards and the host has prices, which rise where a plan made without regard to room takes too much; for
 * given prices the best plan is found exactly, layer by layer, and what still does not fit moves to where it costs
 * least. The best of these that fit; *fits false: none did. */
enum bl_status bl_draft_price(struct bl_draft *, const struct bl_costs *, const struct bl_machine *, const uint16_t *card,
                              uint32_t n, bool *fits);
/* Moves and swaps while they help, on cached costs. */
enum bl_status bl_draft_improve(struct bl_draft *, const struct bl_costs *, const struct bl_machine *);

/* ---- the search of one size of steps, with experts sent to cards or not, as the plan's stream_from says ---- */

enum { BL_MOST_FINALISTS = 24 };
struct bl_finalist {
    struct bl_draft draft;
    double score;                   /* of cached times */
};
struct bl_search_state {
    const struct bl_model *model;
    const struct bl_machine *machine;
    const struct bl_search_options *opt;
    struct bl_plan *plan;           /* sizes of steps; its table is the candidate being simulated */
    struct bl_costs costs;
    struct bl_finalist pool[BL_MOST_FINALISTS];
    uint32_t n_pool;
    struct bl_draft best, draft;    /* best: by simulation */
    double best_score;              /* INFINITY: none yet */
    double decode_ns, prefill_ns;   /* of the best, for a token */
    uint32_t n_simulated, most_simulated;
    bool quick, on_cards;           /* on_cards: RAM is to hold nothing that a card could */
    uint64_t least_missing;         /* of candidates that do not fit */
    uint16_t missing_on;
};
enum bl_status bl_search_open(struct bl_search_state *);
void bl_search_close(struct bl_search_state *);
/* Buffers as large as any plan would have them. */
enum bl_status bl_search_guess(struct bl_search_state *);
/* A good plan, to compare sizes of steps by; the ledger is not yet filled. */
enum bl_status bl_search_settle(struct bl_search_state *, bool *fits);
/* The best there is, from there. */
enum bl_status bl_search_finish(struct bl_search_state *);
/* Fills the ledger, which counts every legal step; where it shows more than was thought, searches again. */
enum bl_status bl_search_confirm(struct bl_search_state *, bool *fits);
/* Some experts of a layer to a card with room for no whole one, where that is quicker; the ledger stays right. */
enum bl_status bl_search_split(struct bl_search_state *);
/* With statistics: the most used experts of all layers, or slots, where that is quicker; the ledger stays right. */
enum bl_status bl_search_experts(struct bl_search_state *);
/* Nanoseconds of a token of the state's plan. */
enum bl_status bl_search_simulate(struct bl_search_state *, double *decode, double *prefill);
/* The best is the plan as it stands. */
enum bl_status bl_search_score_now(struct bl_search_state *);
static inline enum bl_phase bl_search_prefill(const struct bl_search_state *s)
{
    return s->plan->stream_from && s->opt->prefill_weight > 0 ? BL_SENT : BL_PREFILL;
}
/* Whether any candidate fits, without regard to speed; with that context. */
enum bl_status bl_search_fits(const struct bl_search_state *, const struct bl_model *, uint64_t ctx, bool *fits);
/* The longest context, up to the one sized for; any: there is one. on_cards: it is one with which cards can hold all
 * weights, which a usual context must leave room for, too. */
enum bl_status bl_search_longest(struct bl_plan *sized, const struct bl_model *, const struct bl_machine *,
                                 const struct bl_search_options *, bool *any, bool *on_cards);
/* RAM has no room for more than it needs when all that a card can hold is on one. */
void bl_search_empty_host(struct bl_search_state *);
enum bl_status bl_explain_longest(struct bl_choice *, const struct bl_model *, const struct bl_search_options *,
                                  bool on_cards);
/* Fills the pool with candidates, by cached costs. */
enum bl_status bl_search_gather(struct bl_search_state *);
void bl_search_cached_ns(const struct bl_search_state *, const struct bl_draft *, double ns[BL_N_PHASES]);
/* All that blocks of the device may be rounded up by. */
uint64_t bl_search_rounding(const struct bl_search_state *, uint16_t device);
/* Whether any candidate fits, without regard to speed. */
enum bl_status bl_search_any(struct bl_search_state *, bool *fits);
/* BL_ENOFIT with what lacks where, and the nearest context, type of cache and memory that would do. *nearest: a multiple
 * of 256 tokens; 0: none. */
enum bl_status bl_search_nearest(const struct bl_search_state *, uint64_t *nearest);
enum bl_status bl_search_no_room(const struct bl_search_state *, uint64_t nearest);
/* A step's nanoseconds, with the plan's experts sent from so many tokens on; INFINITY: they cannot be. */
enum bl_status bl_simulate(const struct bl_model *, const struct bl_plan *, const struct bl_machine *,
                           const struct bl_search_options *, uint32_t n_tok, uint32_t stream_from, double *ns);
bool bl_plan_fits(const struct bl_plan *, const struct bl_costs *, const struct bl_machine *);
enum bl_status bl_plan_fill_memory(struct bl_plan *, const struct bl_model *, const struct bl_machine *);

/* ---- what is decided once the plan stands ---- */

/* Threads and memory nodes of a described host, unless somebody asked for some. */
enum bl_status bl_choose_host(struct bl_choice *, const struct bl_model *, const struct bl_machine *,
                              const struct bl_search_options *);
/* From where on experts are sent, which is from then on the plan's: with smaller chunks where there is little room for them;
 * the ledger is filled. */
enum bl_status bl_choose_sending(struct bl_choice *, const struct bl_model *, const struct bl_machine *,
                                 const struct bl_search_options *);
#define BL_LEAST_CHUNK_BYTES (UINT64_C(256) << 10)
/* Nanoseconds of a token, as bl_plan_speed will tell. */
enum bl_status bl_plan_rates(struct bl_choice *, const struct bl_model *, const struct bl_machine *,
                             const struct bl_search_options *, double ns[2]);
/* sent_from_tok of every card. */
enum bl_status bl_find_crossovers(struct bl_choice *, const struct bl_model *, const struct bl_machine *,
                                  const struct bl_search_options *);
enum bl_status bl_add_reason(struct bl_choice *, const struct bl_reason *about, const char *fmt, ...) BL_PRINTF(3, 4);
enum bl_status bl_explain(struct bl_choice *, const struct bl_costs *, const struct bl_model *,
                          const struct bl_machine *);
/* "s 3-5", or " 3": to put behind a noun. */
const char *bl_range_text(uint32_t first, uint32_t last, char text[32]);
/* Of single experts that statistics chose, and of slots. */
enum bl_status bl_explain_experts(struct bl_choice *, const struct bl_model *, const struct bl_machine *);
enum bl_status bl_explain_split(struct bl_choice *, const struct bl_costs *, const struct bl_model *,
                                const struct bl_machine *);
/* From where on sending experts gains, for each card of layers with experts in RAM. */
enum bl_status bl_explain_sending(struct bl_choice *, const struct bl_model *, const struct bl_machine *);

#endif

/* SPDX-License-Identifier: MIT */
/* segment.h — how nodes become steps of the CPU device; private to backends/cpu.
 *
 * Purpose   a segment is an array of steps which every thread of the pool walks from first to last. A step computes
 *           one phase of one op (quantise x; rows of a matmul) and never waits inside: all waiting is between steps.
 *           While a segment is built each step declares what it reads and writes, and the builder puts a barrier
 *           before a step only where threads would meet each other's bytes.
 * Ownership a segment owns its steps and their arguments; addresses in them are borrowed.
 * Units     bytes, rows.
 * Errors    frames report through the builder, which keeps the first failure.
 * Threads   building: one. Running: the pool.
 */
#ifndef BL_CPU_SEGMENT_H
#define BL_CPU_SEGMENT_H

#include "args.h"
#include "cpu_kernels.h"
#include "device.h"
#include "host_stream.h"
#include "mem.h"
#include "thread.h"

#include <pthread.h>

/* Where the time of thread 0 goes, by kind of step: op, whether of the head, type of the first weight. */
enum { BL_CPU_KINDS = 128 };
struct bl_cpu_kind {
    uint8_t op, head, type;
    uint64_t barriers, wait_ns;     /* thread 0 counts */
    _Atomic uint64_t steps, run_ns; /* others, too */
};
struct bl_cpu_profile {
    bool on;
    uint32_t n;
    struct bl_cpu_kind kind[BL_CPU_KINDS]; /* the last one gathers what found no place */
};

struct bl_cpu_device {
    struct bl_device base; /* first */
    struct bl_cpu_kernels kernels;
    struct bl_pool *pool;
    pthread_mutex_t turn;  /* one stream at a time runs on the pool */
    uint32_t threads, threads_prefill; /* of steps of up to BL_FEW_TOKENS tokens, of others */
    struct bl_stream_work stream_work;
    uint64_t nodes;        /* memory nodes of its blocks, 0: any */
    struct bl_cpu_profile profile; /* under turn, as the steps that it counts */
    /* [BL_CPU_DEAL_ROWS][threads], few and always in use, so that they stay in the cache; under turn */
    struct bl_cpu_deal *deal;
    uint32_t stamp;
};
enum {
    BL_CPU_DEALS = 8,                   /* steps of a stretch that deal; more do not */
    BL_CPU_DEAL_ROWS = BL_CPU_DEALS + 1 /* the last: all other steps */
};

/* ---- running ---- */

/* What is taken of one thread's units of a step; alone in its cache line. */
struct bl_cpu_deal {
    _Atomic uint64_t taken; /* stamp << 32 | units from the front << 16 | units from the back */
    char apart[56];
};

/* Parts of a stretch: how many there are, and what the thread did of them. */
struct bl_cpu_tally {
    uint32_t all, done;
};
/* Whether a run of a segment ends before its last step. */
struct bl_cpu_halt {
    const struct bl_stream *stream;
    _Atomic bool on;
};
/* Asks anew, unless it is on already. NULL: steps are too short to be asked between units. */
static inline bool bl_cpu_halts(struct bl_cpu_halt *h)
{
    if (!h || atomic_load_explicit(&h->on, memory_order_relaxed))
        return h;
    if (!bl_stream_is_cancelled(h->stream) && !bl_stop_asked(h->stream->dev->stop))
        return false;
    atomic_store_explicit(&h->on, true, memory_order_relaxed);
    return true;
}
struct bl_cpu_job {
    const struct bl_cpu_kernels *kernels;
    const struct bl_params *params;
    uint32_t ith, nth;
    bool helps;               /* only units of other threads are wanted */
    uint32_t stamp;           /* of the stretch: later ones have greater ones */
    struct bl_cpu_deal *deal; /* [nth] of the step, NULL: nobody helps */
    struct bl_cpu_tally *tally;
    struct bl_cpu_halt *halt;
};
typedef void bl_cpu_step_fn(const void *args, const struct bl_cpu_job *);

struct bl_cpu_step {
    bl_cpu_step_fn *run;
    void *args;
    bool barrier; /* all threads meet before it */
    bool dealt;   /* in units that threads take over from each other */
    bool one;     /* its only row is for thread 0 */
    uint8_t kind; /* index into the device's profile */
};
/* Steps from one barrier to the next. Steps of one row only that come before all others behind a barrier are done by one
 * thread, whichever, and need no barrier after them. */
struct bl_cpu_stretch {
    uint32_t first, end; /* of all threads */
    uint32_t alone_end;  /* from end on: of one */
};

/* Limits that a params block is checked against before a step may trust it. */
struct bl_cpu_limits {
    uint32_t n_tok, n_out; /* rows the values were made for */
    uint32_t n_ids;        /* rows of the embedding table */
    uint32_t n_slots;      /* sequences of the state */
    uint32_t n_pos;        /* positions that do not wrap onto rows still needed */
};

/* Hands out units of work, so that a step whose units cost the same ends at the same time for all threads, however fast
 * each is. Set to zero before every run of its segment; it lies alone in its cache lines. */
struct bl_cpu_counter {
    struct bl_cpu_counter *link; /* the segment's counters */
    struct bl_cpu_halt *halt;    /* of the run */
    char apart[48];
    _Atomic uint32_t next;
    char after[60];
};
/* The next of n units; nothing may depend on who computes what. When the run halts, UINT32_MAX and no more. */
static inline bool bl_cpu_claim(struct bl_cpu_counter *c, uint32_t n, uint32_t *unit)
{
    *unit = UINT32_MAX;
    if (bl_cpu_halts(c->halt))
        return false;
    *unit = atomic_fetch_add_explicit(&c->next, 1, memory_order_relaxed);
    return *unit < n;
}

struct bl_segment {
    struct bl_cpu_device *dev;
    const struct bl_params *block;
    uint64_t block_bytes;
    struct bl_cpu_limits limits;
    struct bl_cpu_step *step;
    uint32_t n_steps, cap_steps;
    struct bl_cpu_stretch *stretch;
    uint32_t n_stretches;
    struct bl_arena arena; /* arguments, counters */
    struct bl_cpu_counter *counters;
};
enum bl_status bl_cpu_segment_build(struct bl_device *, const struct bl_graph *, const struct bl_bound *, uint32_t n,
                                    const struct bl_mem *scratch, const struct bl_mem *params,
                                    struct bl_segment **out);
void bl_cpu_segment_free(struct bl_segment *);

/* Index of the node's kind, a new one if need be. */
uint8_t bl_cpu_profile_kind(struct bl_cpu_profile *, const struct bl_graph *, const struct bl_node *);
void bl_cpu_profile_set(struct bl_device *, bool on, bool from_zero);
uint32_t bl_cpu_profile_get(const struct bl_device *, uint32_t i, struct bl_op_time *out);

/* ---- shares ---- */

/* Who computes what in a step. Rows are dealt in one way only (bl_cpu_rows), so that steps over the same rows need no
 * barrier between them: each thread reads back what it wrote itself. */
enum bl_cpu_share {
    BL_CPU_SPREAD, /* anyhow: a barrier on both sides of whatever bytes it touches */
    BL_CPU_TOKENS, /* rows are the step's tokens */
    BL_CPU_OUTPUTS, /* rows are the tokens whose logits are wanted */
    BL_CPU_OWN     /* of an access: row i is for thread i alone */
};
struct bl_cpu_range {
    uint32_t first, end;
};
/* Thread 0 gets the longer shares: with one row it does all. */
static inline struct bl_cpu_range bl_cpu_split(uint32_t n, uint32_t ith, uint32_t nth)
{
    return (struct bl_cpu_range){(uint32_t)(((uint64_t)n * ith + nth - 1) / nth),
                                 (uint32_t)(((uint64_t)n * (ith + 1) + nth - 1) / nth)};
}
static inline uint32_t bl_cpu_n_rows(const struct bl_cpu_job *job, uint8_t rows)
{
    return rows == BL_CPU_OUTPUTS ? job->params->n_out : job->params->n_tok;
}
static inline struct bl_cpu_range bl_cpu_rows(const struct bl_cpu_job *job, uint8_t rows)
{
    return bl_cpu_split(bl_cpu_n_rows(job, rows), job->ith, job->nth);
}
/* Thread ith's part of n rows in whole groups; the grouping of rows does not depend on the number of threads. */
static inline struct bl_cpu_range bl_cpu_groups(uint32_t n, uint32_t group, uint32_t ith, uint32_t nth)
{
    const struct bl_cpu_range r = bl_cpu_split((n + group - 1) / group, ith, nth);
    return (struct bl_cpu_range){r.first * group < n ? r.first * group : n, r.end * group < n ? r.end * group : n};
}

/* ---- building ---- */

struct bl_cpu_access {
    uint64_t addr, bytes, row_bytes; /* row r of the share is [addr + r * row_bytes, + row_bytes) */
    uint8_t share;
    bool write, thread0;             /* thread0: only one row, so thread 0 alone */
};

/* What earlier steps of this segment left in the scratch block: a cache. Laws Q8_0 and Q8_1 differ in what a dot reads,
 * not in what is stored; so there are two quantised forms of a vector. */
enum bl_cpu_family { BL_CPU_FLOAT, BL_CPU_OF_32, BL_CPU_OF_256, BL_CPU_WORK };
struct bl_cpu_slot {
    uint64_t src, src_bytes, at, bytes; /* bytes 0: free */
    uint32_t k;
    uint8_t family;         /* enum bl_cpu_family; BL_CPU_WORK: every thread's own room, k bytes each */
    uint8_t tokens;         /* of a tile, 0: a vector after the other */
    bl_arrange_fn *arrange, *fold; /* of tiles, of the same for many tokens */
};
enum { BL_CPU_SLOTS = 8 };

struct bl_cpu_matmul_args;
struct bl_cpu_builder {
    struct bl_cpu_device *dev;
    struct bl_segment *seg;
    const struct bl_graph *graph;
    const struct bl_bound *bound; /* of the node in hand */
    const struct bl_node *node;
    uint32_t n_after;             /* nodes after it in the segment */
    uint8_t *rows;                /* [n_vals] enum bl_cpu_share of activations */
    uint64_t scratch, scratch_bytes, scratch_used;
    struct bl_cpu_slot slot[BL_CPU_SLOTS];
    uint32_t next_slot;
    struct bl_cpu_matmul_args *last_matmul; /* gets the address of the next one's weights */
    /* accesses since the last barrier; those of the step in hand start at own_access */
    struct bl_cpu_access *access;
    uint32_t n_access, cap_access, own_access;
    uint8_t share;
    bool thread0;
    enum bl_status status;
};

/* A step of the node in hand; returns its zeroed arguments, NULL after any failure. Its accesses are declared next. */
void *bl_cpu_step(struct bl_cpu_builder *, bl_cpu_step_fn *, size_t arg_bytes, enum bl_cpu_share);
struct bl_cpu_counter *bl_cpu_counter_of(struct bl_cpu_builder *); /* a new one; NULL after any failure */
/* Declares access of the step in hand; row_bytes 0: anywhere in the range. */
void bl_cpu_touch(struct bl_cpu_builder *, uint64_t addr, uint64_t bytes, uint64_t row_bytes, bool write);
/* Declares that every thread writes and reads its own part alone, each_bytes of it, which hold nothing before and after. */
void bl_cpu_touch_own(struct bl_cpu_builder *, uint64_t addr, uint64_t each_bytes);
/* Address of a source or destination of the node in hand, declared as read or written. Weights need no declaration. */
const void *bl_cpu_reads(struct bl_cpu_builder *, unsigned src);
void *bl_cpu_writes(struct bl_cpu_builder *, unsigned dst);
const void *bl_cpu_weight(const struct bl_cpu_builder *, unsigned src);
const struct bl_value *bl_cpu_src(const struct bl_cpu_builder *, unsigned src); /* vals[0] where absent */
const struct bl_value *bl_cpu_dst(const struct bl_cpu_builder *, unsigned dst);
uint8_t bl_cpu_rows_of(const struct bl_cpu_builder *, unsigned src); /* how the source's rows are counted */
static inline const void *bl_cpu_attr(const struct bl_cpu_builder *b)
{
    return bl_node_attr(b->graph, b->node);
}
/* Room for `bytes` in one piece, then pieces of it: 64-byte aligned. Where the block ends it begins anew, and nothing that
 * earlier nodes left is found any more. */
void bl_cpu_reserve(struct bl_cpu_builder *, uint64_t bytes);
uint64_t bl_cpu_take(struct bl_cpu_builder *, uint64_t bytes);
void bl_cpu_fail(struct bl_cpu_builder *, enum bl_status);

static inline uint64_t bl_cpu_round(uint64_t bytes) /* what bl_cpu_take really takes */
{
    return bl_align_up(bytes, 64);
}

/* Rows of one kernel call: `rows` * 2^n of them, near 16 KiB of weights, the distance that prefetching runs ahead. */
uint32_t bl_cpu_chunk_rows(uint64_t row_bytes, uint32_t rows);

/* act(gate) * up for n elements. */
void bl_cpu_glu_run(const struct bl_cpu_kernels *, const struct bl_glu_attr *, uint32_t n, float *y, const float *gate,
                    const float *up);

/* ---- ops ---- */

struct bl_cpu_op {
    bool (*supports)(const struct bl_graph *, const struct bl_node *);                         /* NULL: always */
    uint64_t (*scratch)(const struct bl_caps *, const struct bl_graph *, const struct bl_node *); /* NULL: none */
    void (*emit)(struct bl_cpu_builder *);
};
extern const struct bl_cpu_op bl_cpu_embed, bl_cpu_gather_rows, bl_cpu_kv_store, bl_cpu_glu, bl_cpu_add, bl_cpu_softcap;
extern const struct bl_cpu_op bl_cpu_rms_norm, bl_cpu_rope_angles, bl_cpu_rope, bl_cpu_matmul, bl_cpu_attention;
extern const struct bl_cpu_op bl_cpu_route, bl_cpu_experts, bl_cpu_matmul_heads, bl_cpu_temper;
extern const struct bl_cpu_op bl_cpu_slice, bl_cpu_concat, bl_cpu_short_conv, bl_cpu_delta_rule;
extern const struct bl_cpu_op bl_cpu_repeat, bl_cpu_stream_weights, bl_cpu_stream_read, bl_cpu_stream_write;
extern const struct bl_cpu_op bl_cpu_compress, bl_cpu_choose, bl_cpu_round_op, bl_cpu_hadamard;
const struct bl_cpu_op *bl_cpu_op_of(const struct bl_node *);

#endif

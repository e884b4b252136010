/* SPDX-License-Identifier: MIT */
/* engine.h — weights resident as planned, programs kept by shape, sessions, one step at a time.
 *
 * Purpose   executes a plan: takes the planned blocks, binds programs, writes params, runs steps.
 * Ownership owns file, model, vocabulary, machine, plan, devices and all memory given or taken.
 * Units     bytes, tokens.
 * Errors    create: as the step that failed; everything handed in is closed on failure too, unless memory was short.
 * Threads   one thread at a time per engine.
 */
#ifndef BL_ENGINE_H
#define BL_ENGINE_H

#include "residency.h"
#include "sched.h"
#include "weights.h"

struct bl_engine_parts {         /* handed over to the engine, on failure as well; but see create */
    struct bl_gguf *gguf;
    struct bl_model *model;
    struct bl_vocab *vocab;      /* NULL: none */
    struct bl_machine machine;
    struct bl_plan plan;         /* with its ledger planned */
    struct bl_expert_stats experts; /* what is known of their use; zeroed: nothing */
    struct bl_device **device;   /* [n_devices], malloc'ed; NULL where not used */
};
void bl_engine_parts_finish(struct bl_engine_parts *); /* zeroed or half-filled is fine */
/* BL_ENOMEM with a shortage in the plan's ledger: a device has less memory than was planned; the parts are handed back, to
 * be planned anew. Otherwise they are zeroed. */
enum bl_status bl_engine_create(struct bl_engine **out, struct bl_engine_parts *, const struct bl_options *);

struct bl_kept_program {
    struct bl_program *program;
    uint64_t last_used;
};
struct bl_engine {
    struct bl_engine_parts parts;
    struct bl_block_bytes *blocks;   /* [n_devices] */
    struct bl_place *place;          /* [n_devices] */
    struct bl_blocks *state_mem;     /* [n_devices] */
    uint64_t *state_off;             /* [n_states] in the blocks of its device */
    uint64_t *state_addr;            /* [n_states] */
    struct bl_weights weights;
    struct bl_residency residency;
    struct bl_stage stage;
    struct bl_mem params, output;    /* on the host */
    struct bl_sched sched;
    struct bl_stop stop;             /* what loads and computes asks */
    bool broken;                     /* a step did not end, or streams could not be opened anew after it was stopped */
    uint64_t patience_ns;            /* with a step in which nothing gets done */
    struct bl_kept_program kept[BL_PROGRAM_CAP];
    uint64_t n_steps;                /* clock of last_used */
    struct bl_session **session;     /* [max_sessions], NULL = free slot */
    uint32_t *out_row;               /* [batch_tokens] row of a batch entry of the last decode, UINT32_MAX: none */
    uint32_t n_last;                 /* entries of the last decode */
};
struct bl_session {
    struct bl_engine *engine;
    uint32_t slot;
    uint64_t n_tok;                  /* tokens held */
    uint64_t high;                   /* most it has held since it was last empty: older window rows are gone */
    uint32_t n_batch, last_entry;    /* of the batch being checked: entries of this session, the last of them */
};
/* The program for a shape, from the kept ones or made now. Borrowed until the next call. */
enum bl_status bl_engine_program(struct bl_engine *, const struct bl_shape *, const struct bl_program **out);

/* After a step that was stopped: streams of its kind stay failed, others take their place. */
void bl_engine_renew(struct bl_engine *);
/* BL_EDEVICE where it can compute no more. */
enum bl_status bl_engine_whole(const struct bl_engine *);

#endif

/* SPDX-License-Identifier: MIT */
/* ops_rig.h — nodes on a device against the same nodes on the CPU's float reference.
 *
 *     struct rig r;
 *     ops_open(&r); build r.g; ops_fill(&r); set what must not be random; ops_check(&r, "what it is %u", ...);
 *
 * Purpose   every value of the graph gets memory on both devices and the same random contents; ops_check runs the nodes
 *           from r.first on, compares each destination, looks at everything that was not to be written, closes the rig.
 * Ownership the device is opened once (ops_start), so that kernels are compiled once.
 * Units     elements, bytes.
 * Errors    cmocka's failures, with the name of the case.
 * Threads   one.
 */
#ifndef BL_TEST_OPS_RIG_H
#define BL_TEST_OPS_RIG_H

#include "cpu_rig.h"

#include <stdbool.h>

struct ops_device {
    const struct bl_backend *backend;
    struct bl_device *cpu, *dev;
    struct bl_stream *stream;
    struct bl_mem mem, host; /* of one size: all values of a case, on the device and as the host sees them */
    bool all;                /* the full product of cases, not a selection */
    uint32_t n_cases, every; /* the first case of a kind is run, and of all each so many-th */
    const char *kind;        /* of the case before: what ops_check was told */
    double bound;            /* of the NMSE of floats; 1e-10 unless activations are rounded */
    double within;           /* the same of the case in hand, which may lower it once it is open */
    double least;            /* mean square of floats below which it is taken for that: sums may come near 0 */
    /* Where memory of the device is the process's own: nobody may touch these bytes while a case runs, or may again. NULL:
     * what is written there shows, what is read does not. */
    void (*fence)(uint64_t addr, uint64_t bytes, bool closed);
};
extern struct ops_device ops;
void ops_start(const struct bl_backend *, uint32_t index, const struct bl_device_config *, bool all);
void ops_stop(void);
/* All cases, or those of the filter; the number that failed. */
extern const struct CMUnitTest ops_tests[];
extern const size_t ops_n_tests;
int ops_run(const char *name);

void ops_open(struct rig *);
/* Memory and random contents: floats within 1, weights of any type near 1 / sqrt(row), states of encoded rows. */
void ops_fill(struct rig *);
void ops_check(struct rig *, const char *what, ...) BL_PRINTF(2, 3);

/* An activation that is no node's result: sources of what is tested; r->first moves behind it. */
bl_val ops_input(struct rig *, uint32_t n, uint32_t n_tok);
/* The same of whole numbers below `limit`, all of a token different; after ops_fill. */
bl_val ops_ids(struct rig *, uint32_t n_used, uint32_t n_experts, uint32_t n_tok);
void ops_fill_ids(struct rig *, bl_val ids, uint32_t limit);
bl_val ops_weight(struct rig *, enum bl_dtype, uint32_t n0, uint32_t n1, uint32_t n2);
bl_val ops_state(struct rig *, enum bl_dtype, uint32_t elems, uint32_t rows, uint32_t n_seq);
/* The step: n_tok tokens dealt to n_seq sequences at random, each going on from position from[s]; slots in reverse. */
void ops_deal(struct rig *, uint32_t n_tok, uint32_t n_seq, const uint32_t *from);

/* What a weight may be. */
bool ops_is_weight(enum bl_dtype);
static inline const char *ops_name(enum bl_dtype t) { return bl_dtypes[t].name; }
#define OPS_N(a) (sizeof(a) / sizeof *(a))

/* ---- the cases ---- */
void ops_embed(void **), ops_matmul(void **), ops_matmul_many_shapes(void **), ops_matmul_in_turn(void **), ops_heads(void **),
    ops_experts(void **), ops_experts_kinds(void **);
void ops_kv_store(void **), ops_attention(void **), ops_attention_many(void **),
    ops_attention_long(void **), ops_attention_groups(void **),
    ops_choose(void **), ops_choose_ties(void **), ops_compress(void **), ops_short_conv(void **), ops_delta_rule(void **);

#endif

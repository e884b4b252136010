/* SPDX-License-Identifier: MIT */
/* experts.h — the two forms of EXPERTS: row by row for few tokens, in panels for many; private to backends/cpu.
 *
 * Purpose   the pairs (token, slot) are sorted by expert; a matrix of an expert is then read once for all its tokens.
 *           Pairs of experts that the device does not have are left out. Threads share (expert, rows) evenly whatever
 *           the routing. Every pair has its own result in scratch, summed in the order of the slots: nothing depends on
 *           the number of threads.
 * Ownership as segment.h.
 * Units     elements and bytes. A position is a pair's place in order[].
 * Errors    none.
 * Threads   as segment.h.
 */
#ifndef BL_CPU_EXPERTS_H
#define BL_CPU_EXPERTS_H

#include "operand.h"

/* Sources of the node; biases and scales follow in the order of the matrices. */
enum { BL_EXPERTS_INPUT, BL_EXPERTS_IDS, BL_EXPERTS_WEIGHTS, BL_EXPERTS_GATE, BL_EXPERTS_UP, BL_EXPERTS_DOWN };

/* Pairs of one expert. */
struct bl_experts_batch {
    uint32_t expert, first, n; /* positions */
};
/* One matrix of every expert, as its rows are dealt. */
struct bl_experts_matrix {
    const struct bl_matmul_kernel *kernel;
    const uint64_t *expert, *bias, *scale; /* addresses; of experts that are elsewhere 0 */
    size_t stride;
    uint32_t k, rows, group, chunk, call; /* call: rows of one kernel call at most */
};
struct bl_experts_args {
    struct bl_experts_matrix gate, up, down;
    const uint8_t *x[2]; /* for gate, for up */
    size_t x_stride[2];
    const int32_t *ids;
    const float *weights;
    float *y;
    uint32_t n_experts, n_used;
    uint32_t most;  /* pairs of a batch; an expert with more has several */
    uint32_t spare; /* batches more than experts that may make */
    struct bl_glu_attr glu;
    uint8_t rows;
    bool divided; /* some experts may be elsewhere */
    /* scratch */
    uint64_t table, table_bytes;
    uint32_t *n_batches, *n_pairs;  /* pairs: of experts that are here */
    struct bl_experts_batch *batch;
    uint32_t *order;                /* [pairs] */
    float *h, *part;                /* [position][n_ff], [pair][n_out] */
    uint8_t *hq;                    /* h as the dots of down want it, by position */
    size_t hq_stride;
};

/* Rows [row, row + n) for a batch. */
struct bl_experts_piece {
    const struct bl_experts_batch *batch;
    uint32_t row, n;
};
static inline const uint8_t *bl_experts_rows(const struct bl_experts_matrix *m, const struct bl_experts_batch *b,
                                             uint32_t row)
{
    return (const uint8_t *)(uintptr_t)m->expert[b->expert] + row * m->stride;
}
void bl_experts_scale_and_bias(const struct bl_experts_matrix *, const struct bl_experts_piece *, float *y);
/* Most rows of a piece that dots serve. */
uint32_t bl_experts_piece_rows(const struct bl_experts_matrix *, const struct bl_experts_batch *);
/* By dots; next: weights that come after, or NULL. */
void bl_experts_gate_up(const struct bl_experts_args *, const struct bl_cpu_kernels *, const struct bl_experts_piece *,
                        const uint8_t *next);
void bl_experts_down(const struct bl_experts_args *, const struct bl_experts_piece *, const uint8_t *next);

/* What the sorted pairs take in scratch: order[] and, 64 bytes in, batch[]. */
uint64_t bl_experts_table_bytes(const struct bl_graph *, const struct bl_node *, uint32_t most);
/* All but x and the places that depend on the form. */
struct bl_experts_args bl_experts_of(const struct bl_cpu_builder *, uint64_t table, uint32_t most);
/* Another step over the same arguments, a copy of them; false after a failure. */
bool bl_experts_step(struct bl_cpu_builder *, const void *args, size_t arg_bytes, bl_cpu_step_fn *, enum bl_cpu_share);
/* The first and the last step: batch[] and order[] are filled; y = the weighted sum of parts. */
bool bl_experts_sort(struct bl_cpu_builder *, const struct bl_experts_args *);
bool bl_experts_sum(struct bl_cpu_builder *, const struct bl_experts_args *);
void bl_experts_reads_table(struct bl_cpu_builder *, const struct bl_experts_args *);
/* Pairs that the node has room for. */
uint64_t bl_experts_pairs(const struct bl_graph *, const struct bl_node *);

/* In panels. */
bool bl_experts_are_many(const struct bl_caps *, const struct bl_graph *, const struct bl_node *);
uint64_t bl_experts_many_bytes(const struct bl_caps *, const struct bl_graph *, const struct bl_node *);
void bl_experts_many(struct bl_cpu_builder *);

#endif

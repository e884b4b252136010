/* SPDX-License-Identifier: MIT */
/* attention.h — between the op ATTENTION, which is emitted in attention.c, and its steps in attend.c and
 * attend_block.c; private to backends/cpu.
 *
 * Purpose   what a token sees is a list of rows: those of whole groups of tokens, then those of single tokens. Both are
 *           cut into splits at fixed places; each split gives a partial result for a (token, head): its largest score,
 *           the sum of exponentials and the weighted values. Partials are merged in order. Few tokens: threads share
 *           (token, split, heads), and the last one of a token and key head merges (--exact: a second step). Many: a
 *           thread takes a block of tokens through all splits and merges as it goes (by tiles: one sum goes on).
 *           What a token gets depends neither on the number of threads nor on the other tokens, but for one thing: of
 *           few tokens rows are read where they lie if there are kernels for that, of many by way of panels, and these
 *           sum in different orders, in pairs where the CPU has them. There are two forms: by tiles of queries
 *           (attend_block.c), and for --exact by single queries (attend.c), in the order in which the specification
 *           sums, whatever the number of tokens.
 * Ownership arguments belong to the segment; addresses in them are borrowed.
 * Units     bytes where the name says so, else rows.
 * Errors    none.
 * Threads   the pool's; each has `work` of its own.
 */
#ifndef BL_CPU_ATTENTION_H
#define BL_CPU_ATTENTION_H

#include "segment.h"

struct bl_cpu_attention_args {
    const float *q, *sinks;
    const uint8_t *k, *v;
    const uint8_t *rows;   /* of groups, NULL: none */
    const int32_t *chosen; /* [token][n_chosen] which of them, in ascending order; NULL: all */
    float *y;
    bl_qk_fn *qk;
    bl_pv_fn *pv;
    bl_tile_keys_fn *keys;
    bl_tile_values_fn *values;
    bl_pair_keys_fn *pair_keys; /* NULL: not in pairs */
    bl_pair_values_fn *pair_values;
    bl_row_scores_fn *row_scores; /* rows are read where they lie; NULL: in panels */
    bl_row_sum_fn *row_sum;
    struct bl_cpu_counter *counter;
    struct bl_cpu_counter **done; /* few tokens by tiles: [token][key head] parts that are */
    size_t k_row_bytes, v_row_bytes, k_head_bytes, v_head_bytes;
    struct bl_attention_attr at;
    uint32_t group; /* query heads of one key head */
    uint32_t rows_per_seq;
    uint32_t split, most_parts; /* splits double until a token has no more parts of one kind */
    uint32_t tile_rows; /* queries that a thread has room for */
    uint32_t group_tokens, group_rows, n_chosen; /* group_rows: per sequence */
    uint8_t *work;                               /* every thread's own */
    size_t work_bytes;
    float *partial; /* few tokens: [token][head][split][dv, largest, sum] */
    uint32_t n_splits, partial_floats;
};

uint64_t bl_cpu_attend_work_bytes(uint32_t split, uint32_t dv); /* of a thread */

bl_cpu_step_fn bl_cpu_attend_few, bl_cpu_attend_merge; /* few tokens: one after the other */
bl_cpu_step_fn bl_cpu_attend_many;

/* The same by tiles. */
uint32_t bl_cpu_tile_rows(const struct bl_attention_attr *, uint32_t n_tok); /* of a thread, for at most n_tok tokens */
uint64_t bl_cpu_tile_work_bytes(const struct bl_attention_attr *, uint32_t rows);
bl_cpu_step_fn bl_cpu_tile_few, bl_cpu_tile_many;

#endif

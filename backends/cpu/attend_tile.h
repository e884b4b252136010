/* SPDX-License-Identifier: MIT */
/* attend_tile.h — attention kernels that take several queries together.
 *
 * Purpose   64 consecutive keys of one head are decoded once and meet every tile of up to eight queries: the query heads
 *           of that key head, of one token or of several. Scores are in powers of two (the caller scales queries by
 *           log2 e). What a query gets depends neither on the tile it is in nor on the other queries there.
 * Ownership buffers are the caller's, 64-byte aligned except queries and cached rows.
 * Units     keys, values and queries in elements.
 * Errors    none.
 * Threads   kernels are pure.
 *
 *   cached rows --keys--> panel  --scores--> score[query][key] --weights--> in place --sum--> acc[query][value]
 *   cached rows --values--> floats ---------------------------------------------------/
 */
#ifndef BL_ATTEND_TILE_H
#define BL_ATTEND_TILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    BL_TILE_ROWS = 8,   /* queries of a tile, at most */
    BL_TILE_KEYS = 64,  /* from one row of scores to the next */
    BL_TILE_PANEL = 32, /* keys of a panel */
    BL_TILE_PAD = 16    /* values are padded with zeros to a multiple */
};

/* Queries of a tile as they stand after the keys so far, and which of the 64 keys in hand each may see: none where
 * first >= end. */
struct bl_tile {
    float max[BL_TILE_ROWS], sum[BL_TILE_ROWS]; /* largest score, sum of weights; -INFINITY and 0 at first */
    float keep[BL_TILE_ROWS];                   /* what the sums so far are worth after the keys in hand */
    uint32_t first[BL_TILE_ROWS], end[BL_TILE_ROWS];
};

static inline uint32_t bl_tile_padded(uint32_t dv)
{
    return (dv + BL_TILE_PAD - 1) / BL_TILE_PAD * BL_TILE_PAD;
}

/* panel[i][32] = element i of 32 rows, found through row[] as in struct bl_kv_kernel. */
typedef void bl_tile_keys_fn(uint32_t dk, float *panel, const void *base, const uint64_t *row);
/* out[n][padded dv] = n rows. */
typedef void bl_tile_values_fn(uint32_t dv, uint32_t n, float *out, const void *base, const uint64_t *row);
/* Few queries read rows where they lie: what a copy would cost is more than it saves. Rows are asked for as those in hand
 * are consumed: `next`, of the same head, as many as are in hand; NULL: none. */
struct bl_tile_source {
    const void *base, *next_base;
    const uint64_t *row, *next; /* [n_keys] */
    uint32_t n_keys;
};
/* score[r][j] = q[r][dk] . row j for r < n, j < n_keys */
typedef void bl_row_scores_fn(uint32_t dk, uint32_t n, float *score, const float *q, const struct bl_tile_source *);
/* acc[r][padded dv] = keep[r] * acc[r] + sum over j < n_keys of weight[r][j] * row j; keep NULL: 1 */
typedef void bl_row_sum_fn(uint32_t dv, uint32_t n, float *acc, const float *weight, const float *keep,
                           const struct bl_tile_source *);
struct bl_rows_kernel {
    const char *name;
    bl_tile_keys_fn *keys; /* NULL: type cannot hold K or V, or --exact */
    bl_tile_values_fn *values;
    bl_row_scores_fn *scores; /* NULL: by way of panels always */
    bl_row_sum_fn *sum;
};

/* Cache lines the caller will want next, prefetched one by one while the kernel computes; NULL: none. */
typedef const void *const bl_tile_ahead;
/* score[r][0..31] = q[r][dk] . keys of the panel, r < n; ahead[dk] */
typedef void bl_tile_scores_fn(uint32_t dk, uint32_t n, float *score, const float *q, const float *panel,
                               bl_tile_ahead *ahead);
/* All 64 scores of each of n rows become weights 2^(score - max), 0 where the row may not look; max, sum and keep follow.
 * A score that is not a number gives such a sum. */
typedef void bl_tile_weights_fn(uint32_t n, float *score, struct bl_tile *);
/* acc[r][padded dv] = keep[r] * acc[r] + sum over j < n_keys of weight[r][j] * values[j]; keep NULL: 1;
 * ahead[n_keys * padded dv / 32], rounded down */
typedef void bl_tile_sum_fn(uint32_t dv, uint32_t n, uint32_t n_keys, float *acc, const float *weight,
                            const float *values, const float *keep, bl_tile_ahead *ahead);
struct bl_tile_kernel {
    const char *name;
    bl_tile_scores_fn *scores; /* NULL: --exact */
    bl_tile_weights_fn *weights;
    bl_tile_sum_fn *sum;
};

/* The same in pairs, twice the products of an instruction: scores of 16-bit integers, sums of bfloat16. Vectors are scaled to
 * one length, so that sums of products fit 31 bits whatever they are. A vector shorter than 1e-18 counts as zeros; what is
 * not finite, or longer than 1e19, makes all its scores no numbers. Vectors and rows of values are padded with zeros to
 * whole pairs. */
static inline uint32_t bl_pair_padded(uint32_t n)
{
    return (n + 1) & ~1u;
}

/* out[n][padded dk], and what a product of one is worth: q = unit[r] * out[r]; q in powers of two as above */
typedef void bl_pair_queries_fn(uint32_t dk, uint32_t n, int16_t *out, float *unit, const float *q);
/* panel[i][32][2] = elements 2 i and 2 i + 1 of 32 rows in their units */
typedef void bl_pair_keys_fn(uint32_t dk, int16_t *panel, float *unit, const void *base, const uint64_t *row);
/* out[j][padded dv][2] = rows 2 j and 2 j + 1 of n; returns whether all of it is finite */
typedef bool bl_pair_values_fn(uint32_t dv, uint32_t n, uint16_t *out, const void *base, const uint64_t *row);
struct bl_pair_rows {
    const char *name;
    bl_pair_keys_fn *keys; /* NULL: not in pairs */
    bl_pair_values_fn *values;
};

/* score[r][0..31] = unit of the key * products of the integers, r < n; ahead[dk] */
typedef void bl_pair_scores_fn(uint32_t dk, uint32_t n, float *score, const int16_t *q, const int16_t *panel,
                               const float *unit, bl_tile_ahead *ahead);
/* As bl_tile_weights_fn of unit[r] * score[r][64], in bfloat16 at the front of each row, of which sums are made as well.
 * max follows the largest score by jumps: weights may be as large as 2^BL_PAIR_SLACK. Returns whether keep differs from 1
 * for any row. */
enum { BL_PAIR_SLACK = 8 };
typedef bool bl_pair_weights_fn(uint32_t n, float *score, const float *unit, struct bl_tile *);
/* As bl_tile_sum_fn for pairs of keys; of each pair of values the bits of `mask` alone. weight[r] is 2 * BL_TILE_KEYS from
 * the next; ahead[2 * n_pairs * padded dv / 32], rounded down */
typedef void bl_pair_sum_fn(uint32_t dv, uint32_t n, uint32_t n_pairs, float *acc, const uint16_t *weight,
                            const uint16_t *values, const float *keep, uint32_t mask, bl_tile_ahead *ahead);
struct bl_pair_kernel {
    const char *name;
    bl_pair_queries_fn *queries; /* NULL: tiles of floats */
    bl_pair_scores_fn *scores;
    bl_pair_weights_fn *weights;
    bl_pair_sum_fn *sum;
};

#endif

/* SPDX-License-Identifier: MIT */
/* attend_block.h — attention by tiles of queries, between the files it is made of; private to backends/cpu.
 *
 * Purpose   a unit of work is the queries of some tokens and one key head. 64 keys at a time are in hand; they are decoded
 *           into panels, of floats or in pairs, or read where they lie, and meet the tiles of the unit in turn.
 *             attend_plan.c   what a thread needs, and how a batch is cut into units
 *             attend_keys.c   which keys come next, and their cache lines
 *             attend_meet.c   64 keys and some tiles, in floats
 *             attend_pairs.c  the same in pairs
 *             attend_block.c  parts of the cache, their results, the steps
 * Ownership all memory is the step's work; addresses in it are borrowed.
 * Units     lanes are keys in hand, 0 to 63; rows are queries of a unit.
 * Errors    none.
 * Threads   everything but the arguments belongs to one thread.
 */
#ifndef BL_CPU_ATTEND_BLOCK_H
#define BL_CPU_ATTEND_BLOCK_H

#include "attend_rows.h"

/* ---- a thread's tools ---- */

enum { BL_ATTEND_TILES = 4 }; /* that meet a panel one after the other, at most: it stays in the first-level cache */

/* 64 consecutive keys of one head in hand, or fewer: from lane `first` to `end`. */
struct bl_attend_keys {
    const uint8_t *k, *v; /* where offsets count from */
    uint64_t *k_off, *v_off;
    uint32_t first, end, at; /* lane 0 is key `at` */
};

/* Keys that a query sees of a part; lanes. */
struct bl_attend_span {
    uint32_t first, end;
};

struct bl_attend_work {
    struct bl_attend_keys keys[2];   /* in use, and the next */
    float *q, *panel, *values;       /* [rows], [64 keys], [64]: floats */
    int16_t *pair_q, *pair_panel;    /* the same memory in pairs */
    uint16_t *pair_values;
    float *unit, *key_unit;          /* [rows], [64]: of integers */
    float *acc;                      /* [rows] */
    float *score;                    /* [BL_ATTEND_TILES] */
    struct bl_tile *tile;
    struct bl_attend_span *span;     /* [rows] */
    const void **ahead;              /* lines for one call of a kernel */
    bool finite;                     /* all of pair_values */
};
struct bl_attend_work bl_attend_work_of(const struct bl_cpu_attention_args *, uint32_t ith);

/* ---- units ---- */

/* Query heads [head, head + n_heads) of one key head for tokens [t0, t1) of one sequence: rows of tiles in the order of
 * tokens, then heads. Many tokens: against all that they see; few: one part of it. */
struct bl_attend_unit {
    uint32_t t0, t1, kv, head, n_heads, part;
    uint32_t key, n_same; /* of its tokens and key head: a number, and how many units there are */
    struct bl_attend_view all;
};
static inline uint32_t bl_attend_rows_of(const struct bl_attend_unit *u)
{
    return (u->t1 - u->t0) * u->n_heads;
}

struct bl_attend_plan {
    uint32_t tokens, heads, subsets; /* of a unit; units of one key head */
    uint32_t together;               /* units that a thread takes at once */
    bool few;
};

/* Blocks of tokens from the last, whose tokens see most: what ends last shall be small. */
struct bl_attend_walk {
    struct bl_attend_plan plan;
    uint32_t t0, t1, parts, n_blocks;
    uint64_t before, units; /* of later blocks, of this one */
    uint32_t next, left;    /* units taken and not yet run: the first, how many */
    struct bl_attend_view all;
};
struct bl_attend_walk bl_attend_walk_of(const struct bl_cpu_attention_args *, const struct bl_cpu_job *, bool few);
/* Units are taken as threads come for them; results do not depend on who takes which. */
bool bl_attend_next_unit(const struct bl_cpu_attention_args *, const struct bl_params *, struct bl_attend_walk *,
                         struct bl_attend_unit *);

/* ---- keys in hand ---- */

/* Where the next 64 keys come from: what is left of a part. */
struct bl_attend_source {
    uint32_t kv;
    struct bl_attend_view view;
    struct bl_attend_part part;
};
struct bl_attend_source bl_attend_source_of(const struct bl_attend_unit *, uint32_t part);
/* Finds the first keys of the source, whose lanes are their places modulo 64 whatever comes before or after, and takes
 * them from it. Lanes outside get the nearest row. */
void bl_attend_find_keys(const struct bl_cpu_attention_args *, struct bl_attend_source *, struct bl_attend_keys *);

/* Lanes [from, from + n) of those that there are. */
static inline struct bl_attend_span bl_attend_lanes_of(const struct bl_attend_keys *k, uint32_t from, uint32_t n)
{
    const uint32_t end = from + n < k->end ? from + n : k->end;
    return (struct bl_attend_span){from > k->first ? from : k->first, end};
}

/* Cache lines of lanes [from, from + n) of the keys to come, for a kernel to ask for one in each of its `room` rounds. */
bl_tile_ahead *bl_attend_keys_ahead(const struct bl_cpu_attention_args *, const struct bl_attend_work *, uint32_t from,
                                    uint32_t n, uint32_t room);
bl_tile_ahead *bl_attend_values_ahead(const struct bl_cpu_attention_args *, const struct bl_attend_work *, uint32_t from,
                                      uint32_t n, uint32_t room);

/* ---- 64 keys ---- */

/* Some tiles of a unit and the keys in hand. decode: the first tiles to meet these; then `once`: there are no others, and
 * the second panel may take the place of the first in the cache. */
struct bl_attend_meeting {
    const struct bl_cpu_attention_args *a;
    const struct bl_cpu_kernels *kernels;
    struct bl_attend_work *w;
    uint32_t n_rows, first_tile, n_tiles;
    struct bl_attend_span seen[BL_ATTEND_TILES]; /* lanes that some row of the tile sees */
    bool decode, once;
};
static inline uint32_t bl_attend_rows_of_tile(const struct bl_attend_meeting *m, uint32_t i)
{
    const uint32_t left = m->n_rows - (m->first_tile + i) * BL_TILE_ROWS;
    return left < BL_TILE_ROWS ? left : BL_TILE_ROWS;
}
static inline float *bl_attend_score_of(const struct bl_attend_meeting *m, uint32_t i)
{
    return m->w->score + i * BL_TILE_ROWS * BL_TILE_KEYS;
}
/* The keys in hand meet all rows. */
void bl_attend_meet_keys(const struct bl_cpu_attention_args *, const struct bl_cpu_job *, struct bl_attend_work *,
                    uint32_t n_rows);
/* The keys in hand and the tiles of a meeting. */
void bl_attend_meet_pairs(const struct bl_attend_meeting *);

#endif

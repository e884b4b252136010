/* SPDX-License-Identifier: MIT */
/* attend_rows.h — what a token sees of the cache, cut at fixed places; private to the steps of attention.
 *
 * Purpose   a token sees rows of whole groups of tokens, then rows of single tokens. Both are cut into splits at multiples
 *           of `split`, whatever else is in the batch; a part is what lies in one split. A token that sees much has
 *           larger ones, since every part costs a merge.
 * Ownership none.
 * Units     rows; positions of a sequence.
 * Errors    none.
 * Threads   pure.
 */
#ifndef BL_CPU_ATTEND_ROWS_H
#define BL_CPU_ATTEND_ROWS_H

#include "attention.h"

struct bl_attend_view {
    uint32_t slot, first, end; /* positions [first, end) */
    uint32_t n_rows;           /* of groups */
    uint32_t split;            /* where both are cut */
    const int32_t *chosen;     /* [n_rows], NULL: all from the first */
};

static inline uint32_t bl_attend_split_of(const struct bl_cpu_attention_args *a, uint32_t n)
{
    uint64_t split = a->split;
    while (n > split * a->most_parts)
        split *= 2;
    return (uint32_t)split;
}

static inline struct bl_attend_view bl_attend_view_of(const struct bl_cpu_attention_args *a, const struct bl_params *p,
                                                      uint32_t t)
{
    const uint32_t pos = BL_PARAMS_ARRAY(const uint32_t, p, p->pos_off)[t];
    const uint32_t seq = BL_PARAMS_ARRAY(const uint32_t, p, p->seq_off)[t];
    const uint32_t window = a->at.window;
    struct bl_attend_view v = {
        .slot = BL_PARAMS_ARRAY(const struct bl_seq_params, p, p->table_off)[seq].slot,
        .first = window && pos >= window ? pos - window + 1 : 0,
        .end = pos + 1,
        .n_rows = a->rows ? (pos + 1) / a->group_tokens : 0,
    };
    if (a->chosen) {
        v.chosen = a->chosen + (size_t)t * a->n_chosen;
        v.n_rows = v.n_rows < a->n_chosen ? v.n_rows : a->n_chosen;
    }
    v.split = bl_attend_split_of(a, v.n_rows > v.end - v.first ? v.n_rows : v.end - v.first);
    return v;
}

/* What tokens [t0, t1) of one sequence see together; it is cut as the first one's is. */
static inline struct bl_attend_view bl_attend_view_of_all(const struct bl_cpu_attention_args *a,
                                                          const struct bl_params *p, uint32_t t0, uint32_t t1)
{
    struct bl_attend_view all = bl_attend_view_of(a, p, t0);
    for (uint32_t t = t0 + 1; t < t1; t++) {
        const struct bl_attend_view v = bl_attend_view_of(a, p, t);
        all.first = v.first < all.first ? v.first : all.first;
        all.end = v.end > all.end ? v.end : all.end;
        all.n_rows = v.n_rows > all.n_rows ? v.n_rows : all.n_rows;
    }
    return all;
}

/* What lies in one split: rows of groups, or positions. */
struct bl_attend_part {
    bool groups;
    uint32_t first, n;
};

/* What a token sees of a part, perhaps nothing. */
static inline struct bl_attend_part bl_attend_meet(struct bl_attend_view v, struct bl_attend_part p)
{
    const uint32_t first = p.groups ? 0 : v.first, end = p.groups ? v.n_rows : v.end;
    const uint32_t p_end = p.first + p.n < end ? p.first + p.n : end;
    p.first = p.first > first ? p.first : first;
    p.n = p_end > p.first ? p_end - p.first : 0;
    return p;
}

static inline uint32_t bl_attend_row_parts(struct bl_attend_view v)
{
    return (v.n_rows + v.split - 1) / v.split;
}

static inline uint32_t bl_attend_n_parts(struct bl_attend_view v)
{
    return bl_attend_row_parts(v) + (v.end - 1) / v.split - v.first / v.split + 1;
}

static inline struct bl_attend_part bl_attend_part_of(struct bl_attend_view v, uint32_t i)
{
    const uint32_t before = bl_attend_row_parts(v);
    const uint32_t split = i < before ? i : v.first / v.split + i - before;
    return bl_attend_meet(v, (struct bl_attend_part){i < before, split * v.split, v.split});
}

/* Offsets of the rows of a part from the first head's; a key row and its value row may differ in length. */
static inline void bl_attend_find(const struct bl_cpu_attention_args *a, struct bl_attend_view v,
                                  struct bl_attend_part p, uint64_t *k_off, uint64_t *v_off)
{
    if (p.groups) {
        for (uint32_t j = 0; j < p.n; j++) {
            const uint32_t row = v.chosen ? (uint32_t)v.chosen[p.first + j] : p.first + j;
            k_off[j] = v_off[j] = ((uint64_t)v.slot * a->group_rows + row) * a->k_row_bytes;
        }
        return;
    }
    const uint32_t base = v.slot * a->rows_per_seq;
    uint32_t row = bl_kv_row(a->rows_per_seq, v.slot, p.first) - base;
    for (uint32_t j = 0; j < p.n; j++) {
        k_off[j] = (uint64_t)(base + row) * a->k_row_bytes;
        v_off[j] = (uint64_t)(base + row) * a->v_row_bytes;
        row = row + 1 == a->rows_per_seq ? 0 : row + 1;
    }
}

#endif

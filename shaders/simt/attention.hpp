/* SPDX-License-Identifier: MIT */
/* attention.hpp — what blocks of attention have in common: which queries they answer, and what these see.
 *
 *   a: q, k, v, [sinks], [rows of groups], [chosen], y, params, [partials]
 *   n: below   grid: key heads times tiles of their query heads, tiles of tokens, splits
 *
 * Purpose   one list of rows for all that a block's tokens of a sequence see: rows of whole groups, all or the chosen, then
 *           positions of the window; and for each token which of these it sees itself.
 * Ownership none.
 * Units     tokens, heads, rows.
 * Errors    none.
 * Threads   any of a block.
 */
#ifndef BL_SIMT_ATTENTION_HPP
#define BL_SIMT_ATTENTION_HPP

#include "simt/kv.hpp"
#include "simt/params.hpp"

enum { Q, KEY, VALUE, SINKS, ROWS, CHOSEN, Y, PARAMS, PARTIALS };
enum {
    HEADS, HEADS_KV, DK, DV, WINDOW, SCALE, SEQ_ROWS, KEY_BYTES, VALUE_BYTES, GROUP_ROWS, GROUP, N_CHOSEN, SPLITS,
    TILE_TOKENS, TILE_HEADS, HEAD_TILES, KEY_TYPE, VALUE_TYPE, N_TOK
};

/* What a token sees: group rows [0, n_rows), positions [first, end). */
struct view {
    uint32_t n_rows, first, end;
};

BL_DEV view view_of(const struct bl_simt_args &p, uint32_t t)
{
    const uint32_t pos = pos_of(p.a[PARAMS], t), window = p.n[WINDOW];
    view v;
    v.first = window != 0 && pos >= window ? pos - window + 1 : 0;
    v.end = pos + 1;
    v.n_rows = p.a[ROWS] ? (pos + 1) / p.n[GROUP] : 0;
    if (p.a[CHOSEN])
        v.n_rows = least(v.n_rows, p.n[N_CHOSEN]);
    return v;
}

/* A block's rows: r is token first_token + r / TILE_HEADS and one of the tile's heads. */
struct block_job {
    uint32_t kv, first_head, n_heads, first_token, n_tokens;
};

BL_DEV block_job block_of(const struct bl_simt_args &p)
{
    const uint32_t of_kv = p.n[HEADS] / p.n[HEADS_KV], tile = block_x() % p.n[HEAD_TILES] * p.n[TILE_HEADS];
    block_job j;
    j.kv = block_x() / p.n[HEAD_TILES];
    j.first_head = j.kv * of_kv + tile;
    j.n_heads = least(p.n[TILE_HEADS], of_kv - tile);
    j.first_token = block_y() * p.n[TILE_TOKENS];
    const uint32_t n_tok = step_of(p.a[PARAMS])->n_tok;
    j.n_tokens = j.first_token < n_tok ? least(p.n[TILE_TOKENS], n_tok - j.first_token) : 0;
    return j;
}
BL_DEV uint32_t token_at(const struct bl_simt_args &p, const block_job &j, uint32_t r)
{
    return j.first_token + r / p.n[TILE_HEADS];
}
BL_DEV bool is_row(const struct bl_simt_args &p, const block_job &j, uint32_t r)
{
    return r / p.n[TILE_HEADS] < j.n_tokens && r % p.n[TILE_HEADS] < j.n_heads;
}
BL_DEV uint64_t query_at(const struct bl_simt_args &p, const block_job &j, uint32_t r)
{
    return static_cast<uint64_t>(p.n[HEADS]) * token_at(p, j, r) + j.first_head + r % p.n[TILE_HEADS];
}

/* Of the block's tokens of sequence `seq`: all that any of them sees. `t`: the first of them. */
struct range {
    uint32_t seq, slot, t;
    view all;
};

BL_DEV range range_of(const struct bl_simt_args &p, const block_job &j, uint32_t t)
{
    range g;
    g.t = t;
    g.seq = seq_of(p.a[PARAMS], t);
    g.slot = slot_of(p.a[PARAMS], g.seq);
    g.all = view_of(p, t);
    for (uint32_t u = t + 1; u < j.first_token + j.n_tokens; u++) {
        if (seq_of(p.a[PARAMS], u) != g.seq)
            continue;
        const view v = view_of(p, u);
        g.all.first = least(g.all.first, v.first);
        g.all.end = g.all.end > v.end ? g.all.end : v.end;
        g.all.n_rows = g.all.n_rows > v.n_rows ? g.all.n_rows : v.n_rows;
    }
    return g;
}

/* Addresses of what stands at [from, from + n) of the list; the block's first KEYS threads have one each. */
template <uint32_t KEYS>
BL_DEV void find_rows(uint64_t (&keys)[KEYS], uint64_t (&values)[KEYS], const struct bl_simt_args &p, const block_job &j,
                      const range &g, uint32_t from, uint32_t n)
{
    const uint32_t own = thread_x(), i = from + own;
    if (own >= KEYS)
        return;
    if (own >= n) {
        keys[own] = values[own] = 0;
        return;
    }
    const uint64_t head = kv_bytes(p.n[KEY_TYPE], p.n[DK]) * j.kv;
    if (i < g.all.n_rows) {
        const uint32_t row = p.a[CHOSEN] ? at<const uint32_t>(p.a[CHOSEN])[g.t * p.n[N_CHOSEN] + i] : i;
        keys[own] = values[own] =
            p.a[ROWS] +
            static_cast<uint64_t>(p.n[KEY_BYTES]) * (g.slot * p.n[GROUP_ROWS] + least(row, p.n[GROUP_ROWS] - 1)) + head;
        return;
    }
    const uint64_t row = row_of(p.n[SEQ_ROWS], g.slot, g.all.first + i - g.all.n_rows);
    keys[own] = p.a[KEY] + p.n[KEY_BYTES] * row + head;
    values[own] = p.a[KEY] == p.a[VALUE]
                      ? keys[own]
                      : p.a[VALUE] + p.n[VALUE_BYTES] * row + kv_bytes(p.n[VALUE_TYPE], p.n[DV]) * j.kv;
}

/* Whether that token, whose view is v, sees what stands at `at_list`. */
BL_DEV bool sees(const view &v, const range &g, uint32_t at_list)
{
    const uint32_t pos = g.all.first + at_list - g.all.n_rows;
    return at_list < g.all.n_rows ? at_list < v.n_rows : pos >= v.first && pos < v.end;
}
/* What a row of the block sees of the sequence: nothing of another one's. */
BL_DEV view view_of_row(const struct bl_simt_args &p, const block_job &j, const range &g, uint32_t r)
{
    const bool there = is_row(p, j, r) && seq_of(p.a[PARAMS], token_at(p, j, r)) == g.seq;
    return there ? view_of(p, token_at(p, j, r)) : view{0, 0, 0};
}
/* Whether a token before t of the block is of its sequence. */
BL_DEV bool seen_before(const struct bl_simt_args &p, const block_job &j, uint32_t t)
{
    bool before = false;
    for (uint32_t u = j.first_token; u < t; u++)
        before = before || seq_of(p.a[PARAMS], u) == seq_of(p.a[PARAMS], t);
    return before;
}

#endif

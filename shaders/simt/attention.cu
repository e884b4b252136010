/* SPDX-License-Identifier: MIT */
/* ATTENTION and ATTENTION_GROUPS: a block has up to R rows, each one query head of one token, all of one key head, and takes
 * KEYS rows of state at a time by a running softmax; what it reads of state it reads once for all its rows.
 *   a: q, k, v, [sinks], [rows of groups], [chosen], y, params, [partials]
 *   n: below   grid: key heads times tiles of their query heads, tiles of tokens, splits
 * What a token sees is one list: rows of whole groups, all or the chosen, then positions of the window. Tokens of a block may
 * be of several sequences, which come one after the other. With more than one split partials get {maximum, sum, dv values}
 * for each; attention_merge makes the result of them. */
#include "simt/kv.hpp"
#include "simt/params.hpp"

enum { Q, KEY, VALUE, SINKS, ROWS, CHOSEN, Y, PARAMS, PARTIALS };
enum {
    HEADS, HEADS_KV, DK, DV, WINDOW, SCALE, SEQ_ROWS, KEY_BYTES, VALUE_BYTES, GROUP_ROWS, GROUP, N_CHOSEN, SPLITS,
    TILE_TOKENS, TILE_HEADS, HEAD_TILES, KEY_TYPE, VALUE_TYPE, N_TOK
};
constexpr uint32_t THREADS = 256, KEYS = 64, SLICE = 64, PITCH = SLICE + 4; /* wide reads of rows meet different banks */
constexpr uint32_t LINES = THREADS / KEYS;                                   /* rows R a thread has are LINES apart */

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

template <uint32_t R> struct alignas(16) work {
    float q[R][PITCH], kv[KEYS][PITCH], score[R][PITCH];
    float keep[R], most[R], sum[R];
    uint64_t key[KEYS], value[KEYS]; /* addresses of rows */
};

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

/* Addresses of what stands at [from, from + n) of the list. */
template <uint32_t R>
BL_DEV void find_rows(work<R> &s, const struct bl_simt_args &p, const block_job &j, const range &g, uint32_t from, uint32_t n)
{
    const uint32_t i = from + thread_x();
    if (thread_x() >= KEYS)
        return;
    if (thread_x() >= n) {
        s.key[thread_x()] = s.value[thread_x()] = 0;
        return;
    }
    const uint64_t head = kv_bytes(p.n[KEY_TYPE], p.n[DK]) * j.kv;
    if (i < g.all.n_rows) {
        const uint32_t row = p.a[CHOSEN] ? at<const uint32_t>(p.a[CHOSEN])[g.t * p.n[N_CHOSEN] + i] : i;
        s.key[thread_x()] = s.value[thread_x()] =
            p.a[ROWS] +
            static_cast<uint64_t>(p.n[KEY_BYTES]) * (g.slot * p.n[GROUP_ROWS] + least(row, p.n[GROUP_ROWS] - 1)) + head;
        return;
    }
    const uint64_t row = row_of(p.n[SEQ_ROWS], g.slot, g.all.first + i - g.all.n_rows);
    s.key[thread_x()] = p.a[KEY] + p.n[KEY_BYTES] * row + head;
    s.value[thread_x()] = p.a[KEY] == p.a[VALUE]
                              ? s.key[thread_x()]
                              : p.a[VALUE] + p.n[VALUE_BYTES] * row + kv_bytes(p.n[VALUE_TYPE], p.n[DV]) * j.kv;
}

/* Elements [d, d + SLICE) of the tile's rows. */
BL_DEV void load_slice(float (&to)[KEYS][PITCH], const uint64_t *row, uint32_t type, uint32_t d, uint32_t n)
{
    BL_ROLLED for (uint32_t i = thread_x(); i < KEYS * SLICE / 8; i += THREADS) {
        const uint32_t key = i / (SLICE / 8), eight = i % (SLICE / 8);
        float v[8] = {};
        if (row[key] && d + 8 * eight < n)
            kv_eight(v, type, bytes(row[key]), d / 8 + eight, n);
        BL_UNROLL for (uint32_t e = 0; e < 8; e++)
            to[key][8 * eight + e] = v[e];
    }
}

template <uint32_t R>
BL_DEV void load_queries(work<R> &s, const struct bl_simt_args &p, const block_job &j, uint32_t d)
{
    BL_ROLLED for (uint32_t i = thread_x(); i < R * SLICE; i += THREADS) {
        const uint32_t r = i / SLICE, e = d + i % SLICE;
        s.q[r][i % SLICE] =
            is_row(p, j, r) && e < p.n[DK] ? floats(p.a[Q])[query_at(p, j, r) * p.n[DK] + e] * num(p, SCALE) : 0;
    }
}

/* A thread has one key and every LINES-th row. */
template <uint32_t R> BL_DEV void score_tile(work<R> &s, const struct bl_simt_args &p, const block_job &j)
{
    const uint32_t key = thread_x() % KEYS, line = thread_x() / KEYS;
    float sum[R / LINES] = {};
    BL_ROLLED for (uint32_t d = 0; d < p.n[DK]; d += SLICE) {
        load_queries(s, p, j, d);
        load_slice(s.kv, s.key, p.n[KEY_TYPE], d, p.n[DK]);
        sync();
        BL_ROLLED for (uint32_t e = 0; e < SLICE; e += 4) {
            const quad k = *reinterpret_cast<const quad *>(&s.kv[key][e]);
            BL_UNROLL for (uint32_t r = 0; r < R / LINES; r++) {
                const quad q = *reinterpret_cast<const quad *>(&s.q[line + LINES * r][e]);
                BL_UNROLL for (uint32_t i = 0; i < 4; i++)
                    sum[r] = fmaf(q.v[i], k.v[i], sum[r]);
            }
        }
        sync();
    }
    BL_UNROLL for (uint32_t r = 0; r < R / LINES; r++)
        s.score[line + LINES * r][key] = sum[r];
}

/* Scores to weights; THREADS / R lanes have a row, and keep its maximum and sum. */
template <uint32_t R>
BL_DEV void soften(work<R> &s, const struct bl_simt_args &p, const block_job &j, const range &g, uint32_t from, uint32_t n,
                   float &most, float &sum)
{
    constexpr uint32_t LANES = THREADS / R < BL_WARP ? THREADS / R : BL_WARP;
    static_assert(THREADS / R <= BL_WARP, "a row's lanes are of one warp");
    const uint32_t r = thread_x() / LANES;
    const bool there = is_row(p, j, r) && seq_of(p.a[PARAMS], token_at(p, j, r)) == g.seq;
    const view v = there ? view_of(p, token_at(p, j, r)) : view{0, 0, 0};
    float own = -INFINITE, part = 0;
    bool seen[KEYS / LANES];
    BL_UNROLL for (uint32_t i = 0; i < KEYS / LANES; i++) {
        const uint32_t key = thread_x() % LANES + i * LANES, at_list = from + key, pos = g.all.first + at_list - g.all.n_rows;
        seen[i] = key < n && (at_list < g.all.n_rows ? at_list < v.n_rows : pos >= v.first && pos < v.end);
        if (seen[i])
            own = fmaxf(own, s.score[r][key]);
    }
    const float next = fmaxf(most, most_lanes(own, LANES)), keep = most < next ? expf(most - next) : 1;
    BL_UNROLL for (uint32_t i = 0; i < KEYS / LANES; i++) {
        const uint32_t key = thread_x() % LANES + i * LANES;
        const float w = seen[i] ? expf(s.score[r][key] - next) : 0;
        s.score[r][key] = w;
        part += w;
    }
    sum = sum * keep + sum_lanes(part, LANES);
    most = next;
    if (thread_x() % LANES == 0)
        s.keep[r] = keep;
}

/* A thread has one element of each slice of values, and every LINES-th row. */
template <uint32_t R, uint32_t SLICES>
BL_DEV void add_values(work<R> &s, const struct bl_simt_args &p, float (&acc)[SLICES][R / LINES])
{
    const uint32_t e = thread_x() % SLICE, line = thread_x() / SLICE;
    BL_UNROLL for (uint32_t slice = 0; slice < SLICES; slice++) {
        uint32_t d = slice * SLICE;
        keep_here(d);
        if (d >= p.n[DV])
            break;
        load_slice(s.kv, s.value, p.n[VALUE_TYPE], d, p.n[DV]);
        BL_UNROLL for (uint32_t r = 0; r < R / LINES; r++)
            acc[slice][r] *= s.keep[line + LINES * r];
        sync();
        BL_ROLLED for (uint32_t key = 0; key < KEYS; key += 4) {
            float v[4];
            BL_UNROLL for (uint32_t i = 0; i < 4; i++)
                v[i] = s.kv[key + i][e];
            BL_UNROLL for (uint32_t r = 0; r < R / LINES; r++) {
                const quad w = *reinterpret_cast<const quad *>(&s.score[line + LINES * r][key]);
                BL_UNROLL for (uint32_t i = 0; i < 4; i++)
                    acc[slice][r] = fmaf(w.v[i], v[i], acc[slice][r]);
            }
        }
        sync();
    }
}

/* One sequence's share of this split. */
template <uint32_t R, uint32_t SLICES>
BL_DEV void attend_range(work<R> &s, const struct bl_simt_args &p, const block_job &j, const range &g, float &most, float &sum,
                         float (&acc)[SLICES][R / LINES])
{
    const uint32_t all = g.all.n_rows + g.all.end - g.all.first;
    const uint32_t begin = static_cast<uint32_t>(static_cast<uint64_t>(all) * block_z() / p.n[SPLITS]),
                   end = static_cast<uint32_t>(static_cast<uint64_t>(all) * (block_z() + 1) / p.n[SPLITS]);
    for (uint32_t from = begin; from < end; from += KEYS) {
        const uint32_t n = least(KEYS, end - from);
        find_rows(s, p, j, g, from, n);
        sync();
        score_tile(s, p, j);
        sync();
        soften(s, p, j, g, from, n, most, sum);
        sync();
        add_values<R, SLICES>(s, p, acc);
    }
}

template <uint32_t R, uint32_t SLICES>
BL_DEV void put_down(const work<R> &s, const struct bl_simt_args &p, const block_job &j, const float (&acc)[SLICES][R / LINES])
{
    const uint32_t e = thread_x() % SLICE, line = thread_x() / SLICE, dv = p.n[DV];
    BL_UNROLL for (uint32_t r = 0; r < R / LINES; r++) {
        const uint32_t row = line + LINES * r;
        if (!is_row(p, j, row))
            continue;
        const uint64_t query = query_at(p, j, row);
        float most = s.most[row], sum = s.sum[row], c = 1;
        float *y = floats(p.a[Y]) + query * dv;
        if (p.n[SPLITS] > 1) {
            y = floats(p.a[PARTIALS]) + (query * p.n[SPLITS] + block_z()) * (dv + 2);
            if (e == 0) {
                y[0] = most;
                y[1] = sum;
            }
            y += 2;
            sum = 1;
        } else if (p.a[SINKS]) { /* a sink is a score without a value */
            const float sink = floats(p.a[SINKS])[j.first_head + row % p.n[TILE_HEADS]], top = fmaxf(sink, most);
            c = expf(most - top);
            sum = sum * c + expf(sink - top);
        }
        BL_UNROLL for (uint32_t slice = 0; slice < SLICES; slice++)
            if (slice * SLICE + e < dv)
                y[slice * SLICE + e] = acc[slice][r] * (c / sum);
    }
}

template <uint32_t R, uint32_t SLICES> BL_DEV void attend(const struct bl_simt_args &p)
{
    constexpr uint32_t LANES = THREADS / R;
    BL_SHARED work<R> s;
    const block_job j = block_of(p);
    if (j.n_tokens == 0)
        return;
    float most = -INFINITE, sum = 0, acc[SLICES][R / LINES] = {};
    for (uint32_t t = j.first_token; t < j.first_token + j.n_tokens; t++) {
        bool before = false;
        for (uint32_t u = j.first_token; u < t; u++)
            before = before || seq_of(p.a[PARAMS], u) == seq_of(p.a[PARAMS], t);
        if (!before)
            attend_range<R, SLICES>(s, p, j, range_of(p, j, t), most, sum, acc);
    }
    if (thread_x() % LANES == 0) {
        s.most[thread_x() / LANES] = most;
        s.sum[thread_x() / LANES] = sum;
    }
    sync();
    put_down<R, SLICES>(s, p, j, acc);
}

/* By rows of a block and the most elements of a value. */
BL_KERNEL(attend8_128, THREADS)
{
    attend<8, 2>(p);
}
BL_KERNEL(attend8_512, THREADS)
{
    attend<8, 8>(p);
}
BL_KERNEL(attend8_1024, THREADS)
{
    attend<8, 16>(p);
}
BL_KERNEL(attend32_128, THREADS)
{
    attend<32, 2>(p);
}
BL_KERNEL(attend32_512, THREADS)
{
    attend<32, 8>(p);
}

/* Parts of attention into one result, in their order.
 *   a: partials, [sinks], y, params   n: heads, dv, splits   grid: heads, tokens */
constexpr uint32_t MERGE_THREADS = 128;
BL_KERNEL(attention_merge, MERGE_THREADS)
{
    const uint32_t head = block_x(), t = block_y(), dv = p.n[1], splits = p.n[2];
    if (t >= step_of(p.a[3])->n_tok)
        return;
    const uint64_t query = static_cast<uint64_t>(p.n[0]) * t + head;
    const float *part = floats(p.a[0]) + query * splits * (dv + 2), sink = p.a[1] ? floats(p.a[1])[head] : -INFINITE;
    float most = sink, sum = 0;
    for (uint32_t i = 0; i < splits; i++)
        most = fmaxf(most, part[i * (dv + 2)]);
    if (p.a[1])
        sum = expf(sink - most);
    for (uint32_t i = 0; i < splits; i++)
        sum += part[i * (dv + 2) + 1] > 0 ? part[i * (dv + 2) + 1] * expf(part[i * (dv + 2)] - most) : 0;
    for (uint32_t d = thread_x(); d < dv; d += MERGE_THREADS) {
        float acc = 0;
        for (uint32_t i = 0; i < splits; i++)
            acc += part[i * (dv + 2) + 1] > 0 ? part[i * (dv + 2) + 2 + d] * expf(part[i * (dv + 2)] - most) : 0;
        floats(p.a[2])[query * dv + d] = acc / sum;
    }
}

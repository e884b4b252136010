/* SPDX-License-Identifier: MIT */
/* ATTENTION and ATTENTION_GROUPS in floats: a block has up to R rows, each one query head of one token, all of one key head,
 * and takes KEYS rows of state at a time by a running softmax; what it reads of state it reads once for all its rows.
 * Tokens of a block may be of several sequences, which come one after the other. With more than one split partials get
 * {maximum, sum, dv values} for each; attention_merge makes the result of them. */
#include "simt/attention.hpp"

constexpr uint32_t THREADS = 256, KEYS = 64, SLICE = 64, PITCH = SLICE + 4; /* wide reads of rows meet different banks */
constexpr uint32_t LINES = THREADS / KEYS;                                   /* rows R a thread has are LINES apart */

template <uint32_t R> struct alignas(16) work {
    float q[R][PITCH], kv[KEYS][PITCH], score[R][PITCH];
    float keep[R], most[R], sum[R];
    uint64_t key[KEYS], value[KEYS]; /* addresses of rows */
};

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
    const view v = view_of_row(p, j, g, r);
    float own = -INFINITE, part = 0;
    bool seen[KEYS / LANES];
    BL_UNROLL for (uint32_t i = 0; i < KEYS / LANES; i++) {
        const uint32_t key = thread_x() % LANES + i * LANES;
        seen[i] = key < n && sees(v, g, from + key);
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
        find_rows(s.key, s.value, p, j, g, from, n);
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
    for (uint32_t t = j.first_token; t < j.first_token + j.n_tokens; t++)
        if (!seen_before(p, j, t))
            attend_range<R, SLICES>(s, p, j, range_of(p, j, t), most, sum, acc);
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

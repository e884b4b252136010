/* SPDX-License-Identifier: MIT */
/* ATTENTION and ATTENTION_GROUPS of many tokens by matrix hardware, of state in f16, q8_0 or q4_0. A block has R rows, each
 * one query head of one token, all of one key head; KEYS rows of state at a time meet all of them, by a running softmax.
 *   Queries are halves for as long as the block lasts, each row times a power of two that brings its largest near 1024.
 *   Keys and values come in slices of 64 elements, decoded to halves; while one is multiplied the next is on its way.
 *   Scores are floats in shared memory; weights, which take their place, halves: e^(score - maximum) times WHOLE, so that
 *   small ones keep their digits. Their sum is that of the halves.
 * Sums, maxima and results are floats. */
#include "simt/attention.hpp"
#include "simt/mma.hpp"

constexpr uint32_t SLICE = 64;
constexpr float WHOLE = 32768, MOST_HALF = 65504;

/* R rows, KEYS rows of state at a time, DK and DV: the most elements of a key and of a value. Pitches are words: rows of
 * eight begin in different banks, all at multiples of 16 bytes. */
template <uint32_t R_, uint32_t KEYS_, uint32_t THREADS_, uint32_t DK_, uint32_t DV_> struct shape {
    static constexpr uint32_t R = R_, KEYS = KEYS_, THREADS = THREADS_, DK = DK_, DV = DV_;
    static constexpr uint32_t SLICES = DV / SLICE, ROUNDS = KEYS * SLICE / 16 / THREADS, LANES = THREADS / R;
    static constexpr uint32_t Q_PITCH = DK / 2 + 4, KEY_PITCH = SLICE / 2 + 4, VALUE_PITCH = KEYS / 2 + 4,
                              SCORE_PITCH = KEYS + 4;
    static constexpr uint32_t KEY_WORDS = KEYS * KEY_PITCH, VALUE_WORDS = SLICE * VALUE_PITCH;
    static_assert(LANES <= BL_WARP, "a row's lanes are of one warp");
    static_assert(ROUNDS * THREADS * 16 == KEYS * SLICE, "each thread brings as much of a slice");
};

template <class S> struct alignas(16) halves_work {
    uint32_t q[S::R][S::Q_PITCH];
    uint32_t slice[S::KEY_WORDS > S::VALUE_WORDS ? S::KEY_WORDS : S::VALUE_WORDS]; /* [key][d], or [d][key] */
    uint32_t score[S::R][S::SCORE_PITCH];                                          /* floats; then halves in its first half */
    float scale[S::R], keep[S::R];
    uint64_t key[2][S::KEYS], value[2][S::KEYS]; /* addresses of rows: of these, and of the next */
};

/* ---- state to halves ---- */

BL_DEV uint32_t two_in_range(float a, float b)
{
    return two_halves(fminf(fmaxf(a, -MOST_HALF), MOST_HALF), fminf(fmaxf(b, -MOST_HALF), MOST_HALF));
}

/* Elements [8 i, 8 i + 8) of a row of n, two in a word; what is beyond it is 0. Only rows of halves have ends within. */
BL_DEV void kv_halves(uint32_t (&h)[4], uint32_t type, const uint8_t *row, uint32_t i, uint32_t n)
{
    if (type != KV_F16) {
        float v[8];
        if (type == KV_Q8_0)
            q8_eight(v, row, i);
        else
            q4_eight(v, row, i);
        BL_UNROLL for (uint32_t e = 0; e < 4; e++)
            h[e] = two_in_range(v[2 * e], v[2 * e + 1]);
    } else if (8 * i + 8 <= n && (reinterpret_cast<uintptr_t>(row) & 15u) == 0) {
        load_words<16>(h, row + 16 * i);
    } else {
        const uint16_t *x = reinterpret_cast<const uint16_t *>(row) + 8 * i;
        BL_UNROLL for (uint32_t e = 0; e < 4; e++) {
            h[e] = 8 * i + 2 * e < n ? x[2 * e] : 0;
            h[e] |= 8 * i + 2 * e + 1 < n ? static_cast<uint32_t>(x[2 * e + 1]) << 16 : 0;
        }
    }
}
/* The same of the row at an address, which may be that of none. */
BL_DEV void row_halves(uint32_t (&h)[4], uint32_t type, uint64_t row, uint32_t i, uint32_t n)
{
    BL_UNROLL for (uint32_t e = 0; e < 4; e++)
        h[e] = 0;
    if (row != 0 && 8 * i < n)
        kv_halves(h, type, bytes(row), i, n);
}

/* What a thread brings of a slice: 16 elements of a key, or 8 of two values that stand next to each other. */
template <class S> struct brought {
    uint32_t w[S::ROUNDS][8];
};

template <class S>
BL_DEV void bring_keys(brought<S> &b, const uint64_t (&row)[S::KEYS], const struct bl_simt_args &p, uint32_t d)
{
    BL_UNROLL for (uint32_t round = 0; round < S::ROUNDS; round++) {
        const uint32_t i = thread_here() + round * S::THREADS, eight = d / 8 + i % 4 * 2;
        BL_UNROLL for (uint32_t part = 0; part < 2; part++) {
            uint32_t h[4];
            row_halves(h, p.n[KEY_TYPE], row[i / 4], eight + part, p.n[DK]);
            BL_UNROLL for (uint32_t e = 0; e < 4; e++)
                b.w[round][4 * part + e] = h[e];
        }
    }
}
template <class S> BL_DEV void put_keys(halves_work<S> &s, const brought<S> &b)
{
    BL_UNROLL for (uint32_t round = 0; round < S::ROUNDS; round++) {
        const uint32_t i = thread_here() + round * S::THREADS;
        uint32_t *to = s.slice + i / 4 * S::KEY_PITCH + i % 4 * 8;
        store_four(to, b.w[round]);
        store_four(to + 4, b.w[round] + 4);
    }
}

template <class S>
BL_DEV void bring_values(brought<S> &b, const uint64_t (&row)[S::KEYS], const struct bl_simt_args &p, uint32_t d)
{
    BL_UNROLL for (uint32_t round = 0; round < S::ROUNDS; round++) {
        const uint32_t i = thread_here() + round * S::THREADS, two = i % (S::KEYS / 2) * 2, eight = d / 8 + i / (S::KEYS / 2);
        uint32_t one[4], next[4];
        row_halves(one, p.n[VALUE_TYPE], row[two], eight, p.n[DV]);
        row_halves(next, p.n[VALUE_TYPE], row[two + 1], eight, p.n[DV]);
        BL_UNROLL for (uint32_t e = 0; e < 4; e++) {
            b.w[round][2 * e] = (one[e] & 0xffffu) | next[e] << 16;
            b.w[round][2 * e + 1] = one[e] >> 16 | (next[e] & 0xffff0000u);
        }
    }
}
template <class S> BL_DEV void put_values(halves_work<S> &s, const brought<S> &b)
{
    BL_UNROLL for (uint32_t round = 0; round < S::ROUNDS; round++) {
        const uint32_t i = thread_here() + round * S::THREADS;
        uint32_t *to = s.slice + i / (S::KEYS / 2) * 8 * S::VALUE_PITCH + i % (S::KEYS / 2);
        BL_UNROLL for (uint32_t e = 0; e < 8; e++)
            to[e * S::VALUE_PITCH] = b.w[round][e];
    }
}

/* ---- products ---- */

/* The 16s of R rows and COLUMNS columns that are this warp's: DOWN times ACROSS. */
template <class S, uint32_t COLUMNS> struct share {
    static constexpr uint32_t ALL = S::R / 16 * (COLUMNS / 16) * BL_WARP / S::THREADS;
    static constexpr uint32_t ACROSS = ALL >= 2 ? 2 : 1, DOWN = ALL / ACROSS, IN_ROW = COLUMNS / 16 / ACROSS;
    sums sum[DOWN][ACROSS];

    BL_MEMBER uint32_t row(uint32_t warp)
    {
        return warp / IN_ROW * DOWN * 16;
    }
    BL_MEMBER uint32_t column(uint32_t warp)
    {
        return warp % IN_ROW * ACROSS * 16;
    }
};

/* a: rows of n halves, b: columns of them; no more than MOST, zeros to whole 16s. */
template <class S, uint32_t COLUMNS, uint32_t MOST>
BL_DEV void multiply_share(share<S, COLUMNS> &own, const uint32_t *a, uint32_t a_pitch, const uint32_t *b, uint32_t b_pitch,
                           uint32_t n)
{
    typedef share<S, COLUMNS> T;
    const uint32_t warp = thread_here() / BL_WARP;
    a += T::row(warp) * a_pitch;
    b += T::column(warp) * b_pitch;
    BL_UNROLL for (uint32_t k = 0; k < MOST; k += 16) {
        if (k >= n)
            break;
        fragment y[T::ACROSS];
        BL_UNROLL for (uint32_t c = 0; c < T::ACROSS; c++)
            load_fragment(y[c], b + 16 * c * b_pitch + k / 2, b_pitch);
        BL_UNROLL for (uint32_t r = 0; r < T::DOWN; r++) {
            fragment x;
            load_fragment(x, a + 16 * r * a_pitch + k / 2, a_pitch);
            BL_UNROLL for (uint32_t c = 0; c < T::ACROSS; c++)
                multiply(own.sum[r][c], x, y[c]);
        }
    }
}

template <class S> BL_DEV void halve_queries(halves_work<S> &s, const struct bl_simt_args &p, const block_job &j)
{
    const uint32_t r = thread_x() / S::LANES, first = thread_x() % S::LANES, n = is_row(p, j, r) ? p.n[DK] : 0;
    const float *x = floats(p.a[Q]) + (n ? query_at(p, j, r) * n : 0);
    float most = 0;
    for (uint32_t i = first; i < n; i += S::LANES)
        most = fmaxf(most, fabsf(x[i]));
    most = most_lanes(most, S::LANES);
    const uint32_t exponent = bits_as<uint32_t>(most) >> 23;
    const bool in_range = exponent > 40 && exponent < 255;
    const float scale = in_range ? bits_as<float>((exponent - 10) << 23) : 1, inverse = 1 / scale;
    const uint32_t words = (p.n[DK] + 15) / 16 * 8;
    for (uint32_t w = first; w < words; w += S::LANES)
        s.q[r][w] = two_halves(2 * w < n ? x[2 * w] * inverse : 0, 2 * w + 1 < n ? x[2 * w + 1] * inverse : 0);
    if (first == 0)
        s.scale[r] = scale * num(p, SCALE);
}

/* ---- softmax ---- */

template <class S> BL_DEV void put_scores(halves_work<S> &s, const share<S, S::KEYS> &own)
{
    typedef share<S, S::KEYS> T;
    const uint32_t warp = thread_here() / BL_WARP;
    BL_UNROLL for (uint32_t r = 0; r < T::DOWN; r++)
        BL_UNROLL for (uint32_t c = 0; c < T::ACROSS; c++)
            BL_UNROLL for (uint32_t i = 0; i < SUMS; i++)
                s.score[T::row(warp) + 16 * r + sum_row(i)][T::column(warp) + 16 * c + sum_column(i)] =
                    bits_as<uint32_t>(own.sum[r][c].v[i]);
}

/* Scores to weights: LANES lanes have a row, and keep its maximum and sum. They have read all of it when they shuffle. */
template <class S>
BL_DEV void soften(halves_work<S> &s, const struct bl_simt_args &p, const block_job &j, const range &g, uint32_t from,
                   uint32_t n, float &most, float &sum)
{
    constexpr uint32_t PAIRS = S::KEYS / S::LANES / 2;
    const uint32_t own_thread = thread_here(), r = own_thread / S::LANES, first = own_thread % S::LANES;
    const view v = view_of_row(p, j, g, r);
    const float scale = s.scale[r];
    float score[PAIRS][2], own = -INFINITE, part = 0;
    BL_UNROLL for (uint32_t i = 0; i < PAIRS; i++)
        BL_UNROLL for (uint32_t e = 0; e < 2; e++) {
            const uint32_t key = 2 * (first + i * S::LANES) + e;
            const bool seen = key < n && sees(v, g, from + key);
            score[i][e] = seen ? bits_as<float>(s.score[r][key]) * scale : -INFINITE;
            own = fmaxf(own, score[i][e]);
        }
    const float next = fmaxf(most, most_lanes(own, S::LANES)), keep = most < next ? expf(most - next) : 1;
    BL_UNROLL for (uint32_t i = 0; i < PAIRS; i++) {
        uint16_t h[2];
        BL_UNROLL for (uint32_t e = 0; e < 2; e++) {
            h[e] = score[i][e] == -INFINITE ? 0 : float_to_half(expf(score[i][e] - next) * WHOLE);
            part += half_to_float(h[e]);
        }
        s.score[r][first + i * S::LANES] = h[0] | static_cast<uint32_t>(h[1]) << 16;
    }
    sum = sum * keep + sum_lanes(part, S::LANES);
    most = next;
    if (first == 0)
        s.keep[r] = keep;
}

/* Sums of before, for which another maximum counted. */
template <class S> BL_DEV void lessen(const halves_work<S> &s, share<S, SLICE> &acc)
{
    typedef share<S, SLICE> T;
    const uint32_t row = T::row(thread_here() / BL_WARP);
    BL_UNROLL for (uint32_t r = 0; r < T::DOWN; r++)
        BL_UNROLL for (uint32_t i = 0; i < SUMS; i++) {
            const float keep = s.keep[row + 16 * r + sum_row(i)];
            BL_UNROLL for (uint32_t c = 0; c < T::ACROSS; c++)
                acc.sum[r][c].v[i] *= keep;
        }
}

/* ---- a block ---- */

/* The first slice of keys is b, the first of values then. */
template <class S>
BL_DEV void score_keys(halves_work<S> &s, const struct bl_simt_args &p, uint32_t turn, brought<S> &b)
{
    const uint32_t dk = p.n[DK];
    share<S, S::KEYS> own = {};
    BL_ROLLED for (uint32_t d = 0; d < dk; d += SLICE) {
        put_keys(s, b);
        sync();
        if (d + SLICE < dk)
            bring_keys<S>(b, s.key[turn], p, d + SLICE);
        else
            bring_values<S>(b, s.value[turn], p, 0);
        multiply_share<S, S::KEYS, SLICE>(own, &s.q[0][d / 2], S::Q_PITCH, s.slice, S::KEY_PITCH, dk - d);
        sync();
    }
    put_scores(s, own);
}

/* The first slice of values is b, the first of the next keys then. Weights are there once the first is. */
template <class S>
BL_DEV void add_values(halves_work<S> &s, const struct bl_simt_args &p, uint32_t turn, bool more, brought<S> &b,
                       share<S, SLICE> (&acc)[S::SLICES])
{
    const uint32_t dv = p.n[DV];
    BL_ROLLED for (uint32_t d = 0; d < dv; d += SLICE) {
        put_values(s, b);
        sync();
        if (d + SLICE < dv)
            bring_values<S>(b, s.value[turn], p, d + SLICE);
        else if (more)
            bring_keys<S>(b, s.key[turn ^ 1], p, 0);
        BL_UNROLL for (uint32_t slice = 0; slice < S::SLICES; slice++) /* sums are registers, which have no index */
            if (d == slice * SLICE) {
                lessen<S>(s, acc[slice]);
                multiply_share<S, SLICE, S::KEYS>(acc[slice], s.score[0], S::SCORE_PITCH, s.slice, S::VALUE_PITCH, S::KEYS);
            }
        sync();
    }
}

/* The list of a sequence's rows, KEYS at a time; then the next sequence's. */
struct place {
    range g;
    uint32_t t, from, all; /* t: the first token that has not been looked at */
};

/* To the first of the next sequence, if the block has one: its first slice is b. */
template <class S>
BL_DEV bool start_next(halves_work<S> &s, const struct bl_simt_args &p, const block_job &j, place &at, uint32_t turn,
                       brought<S> &b)
{
    const uint32_t end = j.first_token + j.n_tokens;
    while (at.t < end && seen_before(p, j, at.t))
        at.t++;
    if (at.t == end)
        return false;
    at.g = range_of(p, j, at.t++);
    at.all = at.g.all.n_rows + at.g.all.end - at.g.all.first;
    at.from = 0;
    find_rows(s.key[turn], s.value[turn], p, j, at.g, 0, least(S::KEYS, at.all));
    sync();
    bring_keys<S>(b, s.key[turn], p, 0);
    return true;
}

/* One loop for all sequences: a loop around another would keep the sums twice. */
template <class S>
BL_DEV void attend_all(halves_work<S> &s, const struct bl_simt_args &p, const block_job &j, float &most, float &sum,
                       share<S, SLICE> (&acc)[S::SLICES])
{
    place at = {};
    brought<S> b;
    at.t = j.first_token;
    BL_ROLLED for (uint32_t turn = 0; at.from < at.all || start_next<S>(s, p, j, at, turn, b); turn ^= 1) {
        const uint32_t left = at.all - at.from;
        const bool more = left > S::KEYS;
        score_keys<S>(s, p, turn, b);
        if (more)
            find_rows(s.key[turn ^ 1], s.value[turn ^ 1], p, j, at.g, at.from + S::KEYS, least(S::KEYS, left - S::KEYS));
        sync();
        soften<S>(s, p, j, at.g, at.from, least(S::KEYS, left), most, sum);
        add_values<S>(s, p, turn, more, b, acc);
        at.from += S::KEYS;
    }
}

/* What sums of a row are times to be its result; a sink is a score without a value. */
BL_DEV float factor_of(const struct bl_simt_args &p, const block_job &j, uint32_t r, float most, float sum)
{
    if (!p.a[SINKS] || !is_row(p, j, r))
        return 1 / sum;
    const float sink = floats(p.a[SINKS])[j.first_head + r % p.n[TILE_HEADS]], top = fmaxf(sink, most), c = expf(most - top);
    return c / (sum * c + WHOLE * expf(sink - top));
}

template <class S>
BL_DEV void put_down(const halves_work<S> &s, const struct bl_simt_args &p, const block_job &j,
                     const share<S, SLICE> (&acc)[S::SLICES])
{
    typedef share<S, SLICE> T;
    const uint32_t dv = p.n[DV];
    BL_UNROLL for (uint32_t r = 0; r < T::DOWN; r++)
        BL_UNROLL for (uint32_t i = 0; i < SUMS; i++) {
            const uint32_t row = T::row(warp_x()) + 16 * r + sum_row(i);
            if (!is_row(p, j, row))
                continue;
            float *y = floats(p.a[Y]) + query_at(p, j, row) * dv;
            BL_UNROLL for (uint32_t slice = 0; slice < S::SLICES; slice++)
                BL_UNROLL for (uint32_t c = 0; c < T::ACROSS; c++) {
                    const uint32_t d = slice * SLICE + T::column(warp_x()) + 16 * c + sum_column(i);
                    if (d < dv)
                        y[d] = acc[slice].sum[r][c].v[i] * s.keep[row];
                }
        }
}

template <class S> BL_DEV void attend_halves(const struct bl_simt_args &p)
{
    BL_SHARED halves_work<S> s;
    const block_job j = block_of(p);
    if (j.n_tokens == 0)
        return;
    float most = -INFINITE, sum = 0;
    share<S, SLICE> acc[S::SLICES] = {};
    halve_queries(s, p, j);
    attend_all<S>(s, p, j, most, sum, acc);
    if (thread_x() % S::LANES == 0)
        s.keep[thread_x() / S::LANES] = factor_of(p, j, thread_x() / S::LANES, most, sum);
    sync();
    put_down<S>(s, p, j, acc);
}

/* By the most elements of keys and values; simt_attention.c knows the rows and threads. */
#define ATTEND(name, R, KEYS, THREADS, DK, DV)                                                     \
    BL_KERNEL(name, THREADS)                                                                       \
    {                                                                                              \
        attend_halves<shape<R, KEYS, THREADS, DK, DV>>(p);                                         \
    }
ATTEND(attendh_128, 64, 64, 256, 128, 128)
ATTEND(attendh_256, 32, 64, 128, 256, 256)
ATTEND(attendh_576, 16, 64, 128, 576, 512)

/* SPDX-License-Identifier: MIT */
/* ROUTE, and what EXPERTS needs besides products: pairs by expert, sums of a token's experts. No count comes back to the
 * host: grids are for the most there can be. */
#include "simt/params.hpp"

constexpr uint32_t THREADS = 256, MOST = 1024, MOST_USED = 128;

/* ---- ROUTE: a block is one token ----
 *   a: router outputs, [selection bias], [table], ids, weights, params
 *   n: experts, used, gating, normalise, groups, groups used, group by its largest alone, scale   grid: tokens
 * Of equal scores the lower expert is taken; what is not a number counts as least. */

enum { SOFTMAX = 1, SIGMOID = 2, SOFTMAX_CHOSEN = 3, SQRT_SOFTPLUS = 4 };
constexpr int OUT = static_cast<int>(0x80000000u), NO_NUMBER = OUT + 1;

struct routing {
    float p[MOST], part[THREADS / BL_WARP], more[THREADS / BL_WARP];
    int key[MOST], best_key[THREADS / BL_WARP];
    uint32_t best[THREADS / BL_WARP], chosen[MOST_USED];
};

/* Integers in the order of the floats, both zeros alike. */
BL_DEV int key_of(float score)
{
    const int bits = bits_as<int>(score + 0.0f);
    return score != score ? NO_NUMBER : bits < 0 ? bits == OUT ? 0 : bits ^ 0x7fffffff : bits;
}

BL_DEV float score_of(const routing &s, const struct bl_simt_args &p, uint32_t e)
{
    return s.p[e] + (p.a[1] ? floats(p.a[1])[e] : 0);
}

/* Until the end a thread meets its own experts only. */
BL_DEV void gate(routing &s, const struct bl_simt_args &p)
{
    const uint32_t n = p.n[0], me = thread_x();
    float most = -INFINITE, sum = 0;
    if (p.n[2] == SOFTMAX) {
        for (uint32_t e = me; e < n; e += THREADS)
            most = fmaxf(most, s.p[e]);
        most = most_block<THREADS>(most, s.part);
        for (uint32_t e = me; e < n; e += THREADS)
            sum += s.p[e] = expf(s.p[e] - most);
        sum = sum_block<THREADS>(sum, s.more);
    }
    for (uint32_t e = me; e < n; e += THREADS) {
        if (p.n[2] == SOFTMAX)
            s.p[e] /= sum;
        else if (p.n[2] == SIGMOID)
            s.p[e] = sigmoid(s.p[e]);
        else if (p.n[2] == SQRT_SOFTPLUS)
            s.p[e] = sqrtf(softplus(s.p[e]));
    }
    sync();
}

/* The sum of a group's two largest scores, or the largest alone. */
BL_DEV float group_score(const routing &s, const struct bl_simt_args &p, uint32_t g, uint32_t n)
{
    float first = -INFINITE, second = first;
    for (uint32_t e = g * n; e < (g + 1) * n; e++) {
        const float v = score_of(s, p, e);
        second = v > first ? first : fmaxf(second, v);
        first = fmaxf(first, v);
    }
    return p.n[6] != 0 || n < 2 ? first : first + second;
}

/* Rules out the groups that are not among the best; by one thread. */
BL_DEV void pick_groups(routing &s, const struct bl_simt_args &p)
{
    const uint32_t n_group = p.n[4], n = p.n[0] / n_group;
    for (uint32_t e = 0; e < p.n[0]; e++)
        s.key[e] = OUT;
    for (uint32_t used = 0; used < p.n[5]; used++) {
        uint32_t best = n_group;
        float most = 0;
        for (uint32_t g = 0; g < n_group; g++) {
            const float v = group_score(s, p, g, n);
            if (s.key[g * n] == OUT && (best == n_group || v > most)) {
                best = g;
                most = v;
            }
        }
        for (uint32_t e = best * n; best < n_group && e < (best + 1) * n; e++)
            s.key[e] = key_of(score_of(s, p, e));
    }
}

/* The better of two, of equal keys the lower expert. */
BL_DEV void better(int &key, uint32_t &e, int other_key, uint32_t other)
{
    if (other_key > key || (other_key == key && other < e)) {
        key = other_key;
        e = other;
    }
}

/* The expert of the largest key; it is out from then on. */
BL_DEV uint32_t take(routing &s, uint32_t n)
{
    int key = OUT;
    uint32_t e = thread_x() < n ? thread_x() : 0;
    for (uint32_t i = thread_x(); i < n; i += THREADS)
        if (s.key[i] > key) {
            key = s.key[i];
            e = i;
        }
    for (uint32_t m = BL_WARP / 2; m > 0; m /= 2) {
        const int other_key = shuffle_xor(key, m);
        const uint32_t other = shuffle_xor(e, m);
        better(key, e, other_key, other);
    }
    if (lane() == 0) {
        s.best_key[warp_x()] = key;
        s.best[warp_x()] = e;
    }
    sync();
    key = s.best_key[0];
    e = s.best[0];
    for (uint32_t w = 1; w < THREADS / BL_WARP; w++)
        better(key, e, s.best_key[w], s.best[w]);
    if (thread_x() == 0)
        s.key[e] = OUT;
    sync();
    return e;
}

/* By one thread: there are few. */
BL_DEV void weigh(const routing &s, const struct bl_simt_args &p, uint32_t t)
{
    const uint32_t used = p.n[1];
    float *w = floats(p.a[4]) + static_cast<uint64_t>(used) * t, most = -INFINITE, sum = 0;
    for (uint32_t u = 0; u < used; u++) {
        at<uint32_t>(p.a[3])[static_cast<uint64_t>(used) * t + u] = s.chosen[u];
        most = fmaxf(most, s.p[s.chosen[u]]);
    }
    for (uint32_t u = 0; u < used; u++) {
        w[u] = p.n[2] == SOFTMAX_CHOSEN ? expf(s.p[s.chosen[u]] - most) : s.p[s.chosen[u]];
        sum += w[u];
    }
    for (uint32_t u = 0; p.n[2] == SOFTMAX_CHOSEN && u < used; u++)
        w[u] /= sum;
    if (p.n[3]) {
        sum = 0;
        for (uint32_t u = 0; u < used; u++)
            sum += w[u];
        for (uint32_t u = 0; u < used; u++)
            w[u] /= fmaxf(sum, 6.103515625e-5f);
    }
    for (uint32_t u = 0; num(p, 7) != 0 && u < used; u++)
        w[u] *= num(p, 7);
}

BL_DEV void choose_experts(routing &s, const struct bl_simt_args &p)
{
    const uint32_t n = p.n[0];
    if (p.n[4] <= 1) {
        for (uint32_t e = thread_x(); e < n; e += THREADS)
            s.key[e] = key_of(score_of(s, p, e));
    } else if (thread_x() == 0) {
        pick_groups(s, p);
    }
    sync();
    for (uint32_t u = 0; u < p.n[1]; u++) {
        const uint32_t e = take(s, n);
        if (thread_x() == 0)
            s.chosen[u] = e;
    }
}

BL_KERNEL(route, THREADS)
{
    BL_SHARED routing s;
    const uint32_t n = p.n[0], used = p.n[1], t = block_x();
    if (t >= step_of(p.a[5])->n_tok)
        return;
    for (uint32_t e = thread_x(); e < n; e += THREADS)
        s.p[e] = floats(p.a[0])[static_cast<uint64_t>(n) * t + e];
    gate(s, p);
    if (p.a[2])
        for (uint32_t u = thread_x(); u < used; u += THREADS)
            s.chosen[u] = at<const uint32_t>(p.a[2])[static_cast<uint64_t>(used) * token_of(p.a[5], t) + u];
    else
        choose_experts(s, p);
    sync();
    if (thread_x() == 0)
        weigh(s, p, t);
}

/* ---- EXPERTS ---- */

struct sorting {
    uint32_t count[MOST], next[MOST], tile[MOST];
};

/* Pairs by expert, and the tiles of pairs that they make; one block.
 *   a: table, ids, order, tiles, params   n: experts, used, most pairs of a tile
 * Ids beyond the experts, such as where the device that chooses has failed, are of none.
 * tiles: how many, then {expert, first place in order, pairs} each. Where a pair comes to stand among those of its expert
 * does not matter: each is multiplied on its own. */
BL_KERNEL(experts_sort, THREADS)
{
    BL_SHARED sorting s;
    const uint32_t n = p.n[0], side = p.n[2], me = thread_x(), pairs = step_of(p.a[4])->n_tok * p.n[1];
    const uint64_t *table = at<const uint64_t>(p.a[0]);
    const uint32_t *id = at<const uint32_t>(p.a[1]);
    uint32_t *tiles = at<uint32_t>(p.a[3]);
    for (uint32_t e = me; e < n; e += THREADS)
        s.count[e] = 0;
    sync();
    for (uint32_t i = me; i < pairs; i += THREADS)
        if (id[i] < n && table[id[i]])
            add_shared(&s.count[id[i]], 1);
    sync();
    if (me == 0) {
        uint32_t first = 0, n_tiles = 0;
        for (uint32_t e = 0; e < n; e++) {
            s.next[e] = first;
            s.tile[e] = n_tiles;
            first += s.count[e];
            n_tiles += (s.count[e] + side - 1) / side;
        }
        tiles[0] = n_tiles;
    }
    sync();
    for (uint32_t e = me; e < n; e += THREADS)
        for (uint32_t i = 0; i < s.count[e]; i += side) {
            uint32_t *tile = tiles + 1 + 3 * (s.tile[e] + i / side);
            tile[0] = e;
            tile[1] = s.next[e] + i;
            tile[2] = least(side, s.count[e] - i);
        }
    sync();
    for (uint32_t i = me; i < pairs; i += THREADS)
        if (id[i] < n && table[id[i]])
            at<uint32_t>(p.a[2])[add_shared(&s.next[id[i]], 1)] = i;
}

/* The weighted sum of a token's experts, of those that the device has, in the order they were chosen; added to a value.
 *   a: table, products, y, ids, params, weights, [what is added]   n: elements, used, experts   grid: elements, tokens */
BL_KERNEL(experts_sum, THREADS)
{
    const uint32_t n = p.n[0], used = p.n[1], i = block_x() * THREADS + thread_x(), t = block_y();
    if (i >= n || t >= step_of(p.a[4])->n_tok)
        return;
    const uint64_t *table = at<const uint64_t>(p.a[0]);
    float sum = 0;
    for (uint32_t u = 0; u < used; u++) {
        const uint64_t pair = static_cast<uint64_t>(used) * t + u;
        const uint32_t id = at<const uint32_t>(p.a[3])[pair];
        if (id < p.n[2] && table[id])
            sum = fmaf(floats(p.a[5])[pair], floats(p.a[1])[n * pair + i], sum);
    }
    const uint64_t to = static_cast<uint64_t>(n) * t + i;
    floats(p.a[2])[to] = p.a[6] ? floats(p.a[6])[to] + sum : sum;
}

/* SPDX-License-Identifier: MIT */
/* CHOOSE: scores of rows, then the rows of the largest in ascending order. */
#include "simt/kv.hpp"
#include "simt/params.hpp"

constexpr uint32_t THREADS = 256;

/* Of a row the sum over heads of weight * max(0, q · row). A warp has a row, which it reads once for all heads.
 *   a: q, weights, rows, scores, params
 *   n: heads, dk, kept, tokens of a group, rows of a sequence, bytes of a row, type, blocks   grid: blocks, tokens */
BL_KERNEL(choose_score, THREADS)
{
    constexpr uint32_t WARPS = THREADS / BL_WARP, OWN = 4; /* elements of a row that a lane holds at a time */
    const uint32_t heads = p.n[0], dk = p.n[1], t = block_y();
    if (t >= step_of(p.a[4])->n_tok)
        return;
    const uint32_t n = (pos_of(p.a[4], t) + 1) / p.n[3], slot = slot_of(p.a[4], seq_of(p.a[4], t));
    if (n <= p.n[2])
        return;
    for (uint32_t r = block_x() * WARPS + warp_x(); r < n; r += p.n[7] * WARPS) {
        const uint8_t *row = bytes(p.a[2]) + static_cast<uint64_t>(p.n[5]) * (slot * p.n[4] + r);
        float all = 0, own[OWN];
        BL_UNROLL for (uint32_t o = 0; o < OWN; o++)
            own[o] = lane() + o * BL_WARP < dk ? kv_one(p.n[6], row, lane() + o * BL_WARP) : 0;
        for (uint32_t h = 0; h < heads; h++) {
            const float *q = floats(p.a[0]) + (static_cast<uint64_t>(heads) * t + h) * dk;
            float sum = 0;
            BL_UNROLL for (uint32_t o = 0; o < OWN; o++)
                sum = fmaf(lane() + o * BL_WARP < dk ? q[lane() + o * BL_WARP] : 0, own[o], sum);
            for (uint32_t i = lane() + OWN * BL_WARP; i < dk; i += BL_WARP)
                sum = fmaf(q[i], kv_one(p.n[6], row, i), sum);
            sum = sum_lanes(sum);
            all += floats(p.a[1])[heads * t + h] * (sum < 0 ? 0 : sum);
        }
        if (lane() == 0)
            floats(p.a[3])[static_cast<uint64_t>(p.n[4]) * t + r] = all != all ? -INFINITE : all;
    }
}

/* ---- the best ---- */

constexpr uint32_t MARK = 0x7fc00000u; /* not a number: no score is */

/* A token's rows. */
struct choice {
    float *score;
    uint32_t *y, *heap; /* {score, row} each */
    uint32_t n, kept;
};

/* Floats in their order, as whole numbers, and back. */
BL_DEV float float_of(int key)
{
    return bits_as<float>(key < 0 ? key ^ 0x7fffffff : key);
}

BL_DEV bool stays(const choice &c, uint32_t i, float lowest, bool marked)
{
    return marked ? bits_as<uint32_t>(c.score[i]) == MARK : c.score[i] >= lowest;
}

/* How many of the block's rows stay; part[] is of each thread's share. */
BL_DEV uint32_t count_from(const choice &c, uint32_t *part, float lowest, bool marked)
{
    const uint32_t me = thread_x(), each = (c.n + THREADS - 1) / THREADS;
    uint32_t sum = 0;
    for (uint32_t i = me * each; i < least(c.n, (me + 1) * each); i++)
        sum += stays(c, i, lowest, marked) ? 1 : 0;
    sync();
    part[me] = sum;
    sync();
    uint32_t all = 0;
    for (uint32_t i = 0; i < THREADS; i++)
        all += part[i];
    return all;
}

BL_DEV void list_from(const choice &c, const uint32_t *part, float lowest, bool marked)
{
    const uint32_t me = thread_x(), each = (c.n + THREADS - 1) / THREADS;
    uint32_t to = 0;
    for (uint32_t i = 0; i < me; i++)
        to += part[i];
    for (uint32_t i = me * each; i < least(c.n, (me + 1) * each); i++)
        if (stays(c, i, lowest, marked))
            c.y[to++] = i;
}

BL_DEV float heap_score(const choice &c, uint32_t i)
{
    return bits_as<float>(c.heap[2 * i]);
}
BL_DEV void put(const choice &c, uint32_t i, float s, uint32_t row)
{
    c.heap[2 * i] = bits_as<uint32_t>(s);
    c.heap[2 * i + 1] = row;
}
BL_DEV void move(const choice &c, uint32_t to, uint32_t from)
{
    c.heap[2 * to] = c.heap[2 * from];
    c.heap[2 * to + 1] = c.heap[2 * from + 1];
}

BL_DEV void settle(const choice &c, uint32_t top, float s, uint32_t row)
{
    uint32_t i = top;
    for (uint32_t child = 2 * i + 1; child < c.kept; child = 2 * i + 1) {
        if (child + 1 < c.kept && heap_score(c, child + 1) <= heap_score(c, child))
            child++;
        move(c, i, child);
        i = child;
    }
    while (i > top && heap_score(c, (i - 1) / 2) > s) {
        move(c, i, (i - 1) / 2);
        i = (i - 1) / 2;
    }
    put(c, i, s, row);
}

/* What the law says (core/graph.h, bl_choose_attr), by one thread; what is in the heap at the end gets a mark for a score. */
BL_DEV void by_heap(const choice &c)
{
    for (uint32_t i = 0; i < c.kept; i++)
        put(c, i, c.score[i], i);
    for (uint32_t i = c.kept / 2; i > 0; i--)
        settle(c, i - 1, heap_score(c, i - 1), c.heap[2 * (i - 1) + 1]);
    for (uint32_t i = c.kept; i < c.n; i++)
        if (c.score[i] > heap_score(c, 0))
            settle(c, 0, c.score[i], i);
    for (uint32_t k = 0; k < c.kept; k++)
        c.score[c.heap[2 * k + 1]] = bits_as<float>(MARK);
}

/* A block has a token. Where one score divides the best from the others it is looked for by halves; where equal scores lie on
 * both sides, by the heap.
 *   a: scores, y, params, room for heaps   n: kept, tokens of a group, rows of a sequence   grid: tokens */
BL_KERNEL(choose_best, THREADS)
{
    BL_SHARED uint32_t part[THREADS];
    const uint32_t kept = p.n[0], t = block_x(), me = thread_x();
    if (t >= step_of(p.a[2])->n_tok)
        return;
    const choice c = {floats(p.a[0]) + static_cast<uint64_t>(p.n[2]) * t, at<uint32_t>(p.a[1]) + static_cast<uint64_t>(kept) * t,
                      at<uint32_t>(p.a[3]) + 2 * static_cast<uint64_t>(kept) * t, (pos_of(p.a[2], t) + 1) / p.n[1], kept};
    if (c.n <= kept) {
        for (uint32_t i = me; i < kept; i += THREADS)
            c.y[i] = i < c.n ? i : 0;
        return;
    }
    /* keys of minus infinity and of plus infinity: more than `kept` reach the one, fewer the other */
    int below = static_cast<int>(0xff800000u) ^ 0x7fffffff, above = 0x7f800001;
    while (above - 1 > below) {
        const int middle = static_cast<int>((static_cast<int64_t>(below) + above) >> 1);
        const uint32_t reach = count_from(c, part, float_of(middle), false);
        if (reach == kept) {
            list_from(c, part, float_of(middle), false);
            return;
        }
        if (reach > kept)
            below = middle;
        else
            above = middle;
    }
    if (me == 0)
        by_heap(c);
    sync();
    count_from(c, part, 0, true);
    list_from(c, part, 0, true);
}

/* SPDX-License-Identifier: MIT */
/* Where one score divides the best from the others, they are the ones not below it, whatever the
 * law says of equal ones: it is looked for by halves among all floats, with nothing but comparisons
 * that compilers make into vectors. Where equal scores lie on both sides, the heap of the law
 * decides. */
#include "best.h"
#include "segment.h"

#include <math.h>

struct found {
    float score;
    uint32_t row;
};

uint64_t bl_cpu_best_bytes(uint32_t keep)
{
    return bl_cpu_round((uint64_t)keep * sizeof(struct found));
}

/* ---- by a score ---- */

static uint32_t count_from(uint32_t n, const float *score, float least)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += score[i] >= least;
    return sum;
}

/* Floats in their order, as whole numbers: those below zero have their other bits turned. */
static float float_of(int32_t key)
{
    const int32_t bits = key < 0 ? key ^ INT32_MAX : key;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static int32_t key_of(float x)
{
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits < 0 ? bits ^ INT32_MAX : bits;
}

/* A score which just `keep` rows reach; false: there is none. */
static bool divide(uint32_t n, const float *score, uint32_t keep, float *least)
{
    int64_t below = key_of(-INFINITY), above = (int64_t)key_of(INFINITY) + 1;
    while (above - below > 1) { /* more than `keep` reach the one, fewer the other */
        const int64_t middle = below + (above - below) / 2;
        *least = float_of((int32_t)middle);
        const uint32_t reach = count_from(n, score, *least);
        if (reach == keep)
            return true;
        *(reach > keep ? &below : &above) = middle;
    }
    return false;
}

static void list_from(const float *score, float least, uint32_t keep, int32_t *y)
{
    uint32_t found = 0;
    for (uint32_t i = 0; found < keep; i++) {
        y[found] = (int32_t)i;
        found += score[i] >= least;
    }
}

/* ---- by the heap ---- */

/* Puts f into the tree below `top`, whose place is free: the free place sinks to a leaf, the worse
 * child moving up (of equal ones the right), then f rises from there past better ones. */
static void settle(struct found *h, uint32_t n, uint32_t top, struct found f)
{
    uint32_t at = top;
    for (uint32_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && h[child + 1].score <= h[child].score)
            child++;
        h[at] = h[child];
    }
    for (uint32_t up; at > top && h[up = (at - 1) / 2].score > f.score; at = up)
        h[at] = h[up];
    h[at] = f;
}

/* No row is better than those below it, the worst is on top. */
static void fill_heap(struct found *h, uint32_t n, const float *score, uint32_t keep)
{
    for (uint32_t i = 0; i < keep; i++)
        h[i] = (struct found){score[i], i};
    for (uint32_t i = keep / 2; i-- > 0;)
        settle(h, keep, i, h[i]);
    for (uint32_t i = keep; i < n; i++)
        if (score[i] > h[0].score)
            settle(h, keep, 0, (struct found){score[i], i});
}

/* Shell's way: a list is short, and nothing may be allocated in a step. */
static void sort_by_row(struct found *x, uint32_t n)
{
    uint32_t gap = 1;
    while (gap < n / 3)
        gap = 3 * gap + 1;
    for (; gap; gap /= 3)
        for (uint32_t i = gap; i < n; i++) {
            const struct found f = x[i];
            uint32_t at = i;
            for (; at >= gap && x[at - gap].row > f.row; at -= gap)
                x[at] = x[at - gap];
            x[at] = f;
        }
}

void bl_cpu_best(uint32_t n, const float *score, uint32_t keep, int32_t *y, void *room)
{
    struct found *heap = room;
    float least;
    if (divide(n, score, keep, &least)) {
        list_from(score, least, keep, y);
        return;
    }
    fill_heap(heap, n, score, keep);
    sort_by_row(heap, keep);
    for (uint32_t i = 0; i < keep; i++)
        y[i] = (int32_t)heap[i].row;
}

#version 450
/* SPDX-License-Identifier: MIT */
/* CHOOSE, the rows of the largest scores in ascending order; a work group has a token.
 *   a: scores, y, params, room   n: kept, tokens of a group, rows of a sequence   groups: tokens
 * Where one score divides the best from the others it is looked for by halves. Where equal scores lie on both sides, one
 * invocation does what the law says (core/graph.h, bl_choose_attr), with a heap of {score, row} in the room; what is in it
 * at the end gets a mark for a score. */
#extension GL_GOOGLE_include_directive : require
#include "bl.glsl"

layout(local_size_x = 128) in;
layout(buffer_reference, buffer_reference_align = 4, scalar) coherent buffer marks_at { uint v[]; };
const uint MARK = 0x7fc00000u; /* not a number: no score is */
shared uint part[128];

floats_at score;
marks_at mark;
words_at y;
uint64_t heap;

/* Floats in their order, as whole numbers, and back. */
float float_of(const int key) { return intBitsToFloat(key < 0 ? key ^ 0x7fffffff : key); }

bool stays(const uint i, const float least, const bool marked)
{
    return marked ? mark.v[i] == MARK : score.v[i] >= least;
}

uint count_from(const uint n, const float least, const bool marked)
{
    const uint me = gl_LocalInvocationIndex, each = (n + 127) / 128;
    uint sum = 0;
    for (uint i = me * each; i < min(n, (me + 1) * each); i++)
        sum += uint(stays(i, least, marked));
    barrier();
    part[me] = sum;
    barrier();
    uint all = 0;
    for (uint i = 0; i < 128; i++)
        all += part[i];
    return all;
}

/* part[] holds how many stay of each invocation's share. */
void list_from(const uint n, const float least, const bool marked)
{
    const uint me = gl_LocalInvocationIndex, each = (n + 127) / 128;
    uint at = 0;
    for (uint i = 0; i < me; i++)
        at += part[i];
    for (uint i = me * each; i < min(n, (me + 1) * each); i++)
        if (stays(i, least, marked))
            y.v[at++] = i;
}

float heap_score(const uint i) { return floats_at(heap + 8 * i).v[0]; }
uint heap_row(const uint i) { return words_at(heap + 8 * i).v[1]; }
void put(const uint i, const float s, const uint row)
{
    floats_at(heap + 8 * i).v[0] = s;
    words_at(heap + 8 * i).v[1] = row;
}

void settle(const uint n, const uint top, const float s, const uint row)
{
    uint at = top;
    for (uint child = 2 * at + 1; child < n; child = 2 * at + 1) {
        if (child + 1 < n && heap_score(child + 1) <= heap_score(child))
            child++;
        put(at, heap_score(child), heap_row(child));
        at = child;
    }
    while (at > top && heap_score((at - 1) / 2) > s) {
        put(at, heap_score((at - 1) / 2), heap_row((at - 1) / 2));
        at = (at - 1) / 2;
    }
    put(at, s, row);
}

void by_heap(const uint n, const uint kept)
{
    for (uint i = 0; i < kept; i++)
        put(i, score.v[i], i);
    for (uint i = kept / 2; i > 0; i--)
        settle(kept, i - 1, heap_score(i - 1), heap_row(i - 1));
    for (uint i = kept; i < n; i++)
        if (score.v[i] > heap_score(0))
            settle(kept, 0, score.v[i], i);
    for (uint k = 0; k < kept; k++)
        mark.v[heap_row(k)] = MARK;
}

void main()
{
    const uint kept = arg.n[0], t = gl_WorkGroupID.x, me = gl_LocalInvocationIndex;
    if (t >= params_at(arg.a[2]).n_tok)
        return;
    const uint n = (pos_of(arg.a[2], t) + 1) / arg.n[1];
    score = floats_at(arg.a[0] + 4 * uint64_t(arg.n[2]) * t);
    mark = marks_at(uint64_t(score));
    y = words_at(arg.a[1] + 4 * uint64_t(kept) * t);
    heap = arg.a[3] + 8 * uint64_t(kept) * t;
    if (n <= kept) {
        for (uint i = me; i < kept; i += 128)
            y.v[i] = i < n ? i : 0;
        return;
    }
    /* keys of minus infinity and of plus infinity: more than `kept` reach the one, fewer the other */
    int below = int(0xff800000u) ^ 0x7fffffff, above = 0x7f800001;
    while (above - 1 > below) {
        const int middle = int((int64_t(below) + int64_t(above)) >> 1);
        const uint reach = count_from(n, float_of(middle), false);
        if (reach == kept) {
            list_from(n, float_of(middle), false);
            return;
        }
        if (reach > kept)
            below = middle;
        else
            above = middle;
    }
    if (me == 0)
        by_heap(n, kept);
    memoryBarrierBuffer();
    barrier();
    count_from(n, 0, true);
    list_from(n, 0, true);
}

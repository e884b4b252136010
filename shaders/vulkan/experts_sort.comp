#version 450
/* SPDX-License-Identifier: MIT */
/* Pairs by expert, and the tiles of up to SIDE pairs that they make; one work group.
 *   a: table, ids, order, tiles, params   n: experts, used, most tiles
 * tiles: how many, then {expert, first place in order, pairs} each. Where a pair comes to stand among those of its expert
 * does not matter: each is multiplied on its own. */
#extension GL_GOOGLE_include_directive : require
#include "bl.glsl"

layout(local_size_x = 256) in;
const uint MOST = 1024, SIDE = 64;
shared uint count[MOST], next[MOST];

void main()
{
    const uint n = arg.n[0], me = gl_LocalInvocationIndex, pairs = params_at(arg.a[4]).n_tok * arg.n[1];
    words_at id = words_at(arg.a[1]), tile = words_at(arg.a[3]);
    for (uint e = me; e < n; e += 256)
        count[e] = 0;
    barrier();
    for (uint p = me; p < pairs; p += 256)
        if (id.v[p] < n && addrs_at(arg.a[0]).v[id.v[p]] != 0)
            atomicAdd(count[id.v[p]], 1);
    barrier();
    if (me == 0) {
        uint first = 0, tiles = 0;
        for (uint e = 0; e < n; e++) {
            next[e] = first;
            for (uint at = 0; at < count[e]; at += SIDE, tiles++) {
                tile.v[1 + 3 * tiles] = e;
                tile.v[2 + 3 * tiles] = first + at;
                tile.v[3 + 3 * tiles] = min(SIDE, count[e] - at);
            }
            first += count[e];
        }
        tile.v[0] = tiles;
    }
    barrier();
    for (uint p = me; p < pairs; p += 256)
        if (id.v[p] < n && addrs_at(arg.a[0]).v[id.v[p]] != 0)
            words_at(arg.a[2]).v[atomicAdd(next[id.v[p]], 1)] = p;
}

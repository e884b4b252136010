/* SPDX-License-Identifier: MIT */
/* tile.glsl — a work group multiplies SIDE rows of weights with SIDE rows of activations, DEPTH columns at a time through
 * shared memory; each of its 256 invocations holds SUB neighbouring rows of SUB neighbouring tokens.
 *
 * Four invocations load a row, each a unit of it, whose runs go into the tile one after the other: of what is summed over
 * the order is free as long as weights and activations agree. Depths 8 g to 8 g + 7 hold their rows 8 g further on, round
 * and round, so that what a subgroup writes at a time lies in different banks. */
#include "as_bytes.glsl"
const uint SIDE = 64, SUB = 4;

uint sub_row() { return gl_LocalInvocationIndex % (SIDE / SUB); }
uint sub_col() { return gl_LocalInvocationIndex / (SIDE / SUB); }
uint load_part() { return gl_LocalInvocationIndex % 4; }
/* Of the tile, the row that this invocation loads. */
uint load_side() { return gl_LocalInvocationIndex / 4; }

#if AS_BYTES
#include "tile_bytes.glsl"
#else
const uint DEPTH = 32;
shared vec4 tile_w[DEPTH][SIDE / SUB], tile_x[DEPTH][SIDE / SUB];

void store_w(const float v[8])
{
    const uint d = 8 * load_part(), c = (load_side() + d) % SIDE;
    [[unroll]] for (uint j = 0; j < 8; j++)
        tile_w[d + j][c / SUB][c % SUB] = v[j];
}

void store_x(const uint64_t row, const uint k, const uint e)
{
    const uint d = 8 * load_part(), c = (load_side() + d) % SIDE;
    float v[8];
    if (row != 0 && 8 * e + 8 <= k) {
        floats8_at(row + 32 * e, v);
    } else {
        [[unroll]] for (uint j = 0; j < 8; j++)
            v[j] = row != 0 && 8 * e + j < k ? floats_at(row).v[8 * e + j] : 0;
    }
    [[unroll]] for (uint j = 0; j < 8; j++)
        tile_x[d + j][c / SUB][c % SUB] = v[j];
}

/* sum[c] += rows * token c, of what the tile holds. */
void multiply_depth(inout vec4 sum[SUB])
{
    barrier();
    for (uint d = 0; d < DEPTH; d++) {
        const vec4 a = tile_w[d][(sub_row() + d / 8 * 2) % (SIDE / SUB)], b = tile_x[d][(sub_col() + d / 8 * 2) % (SIDE / SUB)];
        [[unroll]] for (uint c = 0; c < SUB; c++)
            sum[c] = fma(a, vec4(b[c]), sum[c]);
    }
    barrier();
}

/* w, x: addresses of the rows that this invocation loads; 0: there is none. sum[c][r]: of row SUB * sub_row() + r and token
 * SUB * sub_col() + c of the tile. */
void multiply_tile(const uint k, const uint64_t w, const uint64_t x, out vec4 sum[SUB])
{
    [[unroll]] for (uint c = 0; c < SUB; c++)
        sum[c] = vec4(0);
#if IS_FLOAT
    for (uint u = load_part(); u - load_part() < (k + 7) / 8; u += 4) {
        float v[EIGHTS][8];
        if (w != 0 && 8 * u + 8 <= k) {
            decode(w, u, v);
        } else {
            for (uint j = 0; j < 8; j++)
                v[0][j] = w != 0 && 8 * u + j < k ? decode1(w, 8 * u + j) : 0;
        }
        store_w(v[0]);
        store_x(x, k, u);
        multiply_depth(sum);
    }
#else
    for (uint u = load_part(); u - load_part() < units_of(k); u += 4) {
        uvec2 q[EIGHTS];
        float d[EIGHTS], m[EIGHTS], v[8];
        const bool have = w != 0 && u < units_of(k);
        if (have)
            unpack(w, u, q, d, m);
        for (uint n = 0; n < EIGHTS; n++) {
            floats_of(q[n], v);
            [[unroll]] for (uint j = 0; j < 8; j++)
#if HAS_MIN
                v[j] = have ? d[n] * v[j] + m[n] : 0;
#else
                v[j] = have ? d[n] * v[j] : 0;
#endif
            store_w(v);
            store_x(u < units_of(k) ? x : 0, k, eight_of(u, n));
            multiply_depth(sum);
        }
    }
#endif
}
#endif

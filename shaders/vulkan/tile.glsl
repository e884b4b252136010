/* SPDX-License-Identifier: MIT */
/* tile.glsl — a work group multiplies SIDE rows of weights with SIDE rows of activations, DEPTH columns at a time through
 * shared memory; each of its 256 invocations holds a square of SUB × SUB sums. */
const uint SIDE = 64, DEPTH = 32, SUB = 4;
shared float tile_w[DEPTH][SIDE + 1], tile_x[DEPTH][SIDE + 1];

/* Of the row and column that an invocation holds first; others follow SIDE / SUB apart. */
uint sub_row() { return gl_LocalInvocationIndex % (SIDE / SUB); }
uint sub_col() { return gl_LocalInvocationIndex / (SIDE / SUB); }

void load_w(const uint64_t row, const uint k, const uint at, const uint side)
{
    float q[8];
    const uint c = at % DEPTH;
    if (row == 0 || at >= k) {
        [[unroll]] for (uint j = 0; j < 8; j++)
            q[j] = 0;
#if TYPE == BL_F32 || TYPE == BL_F16 || TYPE == BL_BF16
    } else if (at + 8 > k) {
        for (uint j = 0; j < 8; j++)
            q[j] = at + j < k ? decode1(row, at + j) : 0;
#endif
    } else {
        decode8(row, at / 8, q);
    }
    [[unroll]] for (uint j = 0; j < 8; j++)
        tile_w[c + j][side] = q[j];
}

void load_x(const uint64_t row, const uint k, const uint at, const uint side)
{
    const uint c = at % DEPTH;
    [[unroll]] for (uint j = 0; j < 8; j++)
        tile_x[c + j][side] = row != 0 && at + j < k ? floats_at(row).v[at + j] : 0;
}

/* w, x: addresses of the row that this invocation loads, number gl_LocalInvocationIndex / 4 of the tile; 0: there is none. */
void multiply_tile(const uint k, const uint64_t w, const uint64_t x, out float sum[SUB][SUB])
{
    const uint side = gl_LocalInvocationIndex / 4, part = 8 * (gl_LocalInvocationIndex % 4);
    [[unroll]] for (uint r = 0; r < SUB; r++)
        [[unroll]] for (uint c = 0; c < SUB; c++)
            sum[r][c] = 0;
    for (uint at = 0; at < k; at += DEPTH) {
        load_w(w, k, at + part, side);
        load_x(x, k, at + part, side);
        barrier();
        for (uint d = 0; d < DEPTH; d++) {
            float a[SUB], b[SUB];
            [[unroll]] for (uint i = 0; i < SUB; i++) {
                a[i] = tile_w[d][sub_row() + i * (SIDE / SUB)];
                b[i] = tile_x[d][sub_col() + i * (SIDE / SUB)];
            }
            [[unroll]] for (uint r = 0; r < SUB; r++)
                [[unroll]] for (uint c = 0; c < SUB; c++)
                    sum[r][c] = fma(a[r], b[c], sum[r][c]);
        }
        barrier();
    }
}

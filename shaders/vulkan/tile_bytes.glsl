/* SPDX-License-Identifier: MIT */
/* tile_bytes.glsl — tiles of bytes, 32 or 64 columns at a time: a scale is applied to the sum of all that share it.
 * Included by tile.glsl, whose invocations load and hold the same rows and tokens.
 *
 * A tile has slots of eight columns, in order. The four invocations that load a row fill four slots at a time, and those lie
 * in different banks, as slots keep their rows further on by their turn. */
#if TYPE == BL_Q6_K || TYPE == BL_Q2_K || TYPE == BL_Q3_K || TYPE == BL_NVFP4 || TYPE == BL_IQ2_XS || TYPE == BL_IQ2_S || \
    TYPE == BL_IQ1_M
const uint SHARE = 2; /* slots with one scale of weights */
#else
const uint SHARE = 4;
#endif
const uint RUNS = EIGHTS == 1 ? 1 : 2, SLOTS = 4 * RUNS, GROUPS = SLOTS / SHARE; /* RUNS: of a unit, at a time */
shared uvec4 tile_w[2 * SLOTS][SIDE / SUB], tile_x[2 * SLOTS][SIDE / SUB];
shared vec4 scale_w[GROUPS][SIDE / SUB], scale_x[SLOTS / 4][SIDE / SUB];
#if HAS_MIN
shared vec4 min_w[GROUPS][SIDE / SUB], sum_x[GROUPS][SIDE / SUB];
#endif

uint turn_of(const uint slot)
{
    return STEP == 4 ? slot % 4 : STEP == 2 ? slot % 2 + slot / 4 * 2 : slot / RUNS;
}

/* What a loaded row has in columns [8 slot, 8 slot + 8) of the tile; at the first slot of a group its scale and minimum. */
void store_w(const uint slot, const uvec2 q, const float d, const float m)
{
    const uint side = load_side(), c = (side + 8 * turn_of(slot)) % SIDE;
    tile_w[2 * slot][c / SUB][c % SUB] = q.x;
    tile_w[2 * slot + 1][c / SUB][c % SUB] = q.y;
    if (slot % SHARE != 0)
        return;
    scale_w[slot / SHARE][side / SUB][side % SUB] = d;
#if HAS_MIN
    min_w[slot / SHARE][side / SUB][side % SUB] = m;
#endif
}

/* row: 0 where there is none. */
void store_x(const uint slot, const uint64_t row, const uint k, const uint e)
{
    const uint side = load_side(), c = (side + 8 * turn_of(slot)) % SIDE;
    const uvec2 q = row != 0 ? pair_at(row + 8 * e) : uvec2(0);
    tile_x[2 * slot][c / SUB][c % SUB] = q.x;
    tile_x[2 * slot + 1][c / SUB][c % SUB] = q.y;
    if (slot % 4 == 0)
        scale_x[slot / 4][side / SUB][side % SUB] = row != 0 ? floats_at(scale_at(row, k, e)).v[0] : 0;
#if HAS_MIN
    if (slot % SHARE == 0) {
        floats_at s = floats_at(sum_at(row, k, e));
        sum_x[slot / SHARE][side / SUB][side % SUB] = row == 0 ? 0 : SHARE == 4 ? s.v[0] + s.v[1] : s.v[0];
    }
#endif
}

/* sum[c] += rows * token c, of what the tile holds. */
void multiply_depth(inout vec4 sum[SUB])
{
    barrier();
    [[unroll]] for (uint g = 0; g < GROUPS; g++) {
        ivec4 part[SUB];
        [[unroll]] for (uint c = 0; c < SUB; c++)
            part[c] = ivec4(0);
        [[unroll]] for (uint d = 2 * SHARE * g; d < 2 * SHARE * (g + 1); d++) {
            const uint on = 2 * turn_of(d / 2);
            const uvec4 a = tile_w[d][(sub_row() + on) % (SIDE / SUB)], b = tile_x[d][(sub_col() + on) % (SIDE / SUB)];
            [[unroll]] for (uint c = 0; c < SUB; c++)
                [[unroll]] for (uint r = 0; r < SUB; r++)
                    part[c][r] += dot4(a[r], b[c]);
        }
        const vec4 w = scale_w[g][sub_row()], x = scale_x[g * SHARE / 4][sub_col()];
        [[unroll]] for (uint c = 0; c < SUB; c++)
            sum[c] = fma(w * x[c], vec4(part[c]), sum[c]);
#if HAS_MIN
        const vec4 m = min_w[g][sub_row()], s = sum_x[g][sub_col()];
        [[unroll]] for (uint c = 0; c < SUB; c++)
            sum[c] = fma(m, vec4(s[c]), sum[c]);
#endif
    }
    barrier();
}

/* As in tile.glsl; rows of x are as as_bytes.glsl has them. */
void multiply_tile(const uint k, const uint64_t w, const uint64_t x, out vec4 sum[SUB])
{
    const uint units = units_of(k), part = load_part();
    [[unroll]] for (uint c = 0; c < SUB; c++)
        sum[c] = vec4(0);
    for (uint u = part; u - part < units; u += 4) {
        uvec2 q[EIGHTS];
        float d[EIGHTS], m[EIGHTS];
        const bool have = w != 0 && u < units;
        if (have)
            unpack(w, u, q, d, m);
        [[unroll]] for (uint first = 0; first < EIGHTS; first += RUNS) {
            [[unroll]] for (uint n = 0; n < RUNS; n++) {
                const uint slot = eight_of(part, n);
                store_w(slot, have ? q[first + n] : uvec2(0), have ? d[first + n] : 0,
#if HAS_MIN
                        have ? m[first + n] : 0);
#else
                        0);
#endif
                store_x(slot, u < units ? x : 0, k, eight_of(u, first + n));
            }
            multiply_depth(sum);
        }
    }
}

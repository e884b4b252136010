#version 450
/* SPDX-License-Identifier: MIT */
/* MATMUL_HEADS transposed: y[t][head] = (transpose of w[head]) · x[t][head] * scale. An invocation sums the columns of a
 * unit over every ACROSS-th row.
 *   a, n: as for matvec.comp, in and out being those of w as it lies: x has `out` elements a head, y has `in`; n[4] is the
 *   floats of a row of x
 *   groups: columns as if units had eight, tokens, heads */
#extension GL_GOOGLE_include_directive : require
#include "bl.glsl"
#include "types.glsl"

layout(local_size_x = 64) in;
const uint ACROSS = 8, WIDE = 64 / ACROSS;
shared float part[ACROSS][WIDE][EIGHTS][8];

void columns(const uint64_t row, const uint k, const uint u, out float q[EIGHTS][8])
{
#if IS_FLOAT
    if (8 * u + 8 > k) {
        for (uint j = 0; j < 8; j++)
            q[0][j] = 8 * u + j < k ? decode1(row, 8 * u + j) : 0;
        return;
    }
#endif
    decode(row, u, q);
}

void main()
{
    const uint k = arg.n[0], m = arg.n[1], t = gl_WorkGroupID.y, head = gl_WorkGroupID.z, me = gl_LocalInvocationIndex;
    const uint first = gl_WorkGroupID.x * WIDE, u = first + me % WIDE, n_units = IS_FLOAT ? (k + 7) / 8 : units_of(k);
    const uint64_t w = arg.a[0] + uint64_t(arg.n[6]) * head, x = arg.a[1] + 4 * (uint64_t(arg.n[4]) * t + m * head);
    if (first >= n_units)
        return;
    float q[EIGHTS][8], sum[EIGHTS][8];
    [[unroll]] for (uint n = 0; n < EIGHTS; n++)
        [[unroll]] for (uint j = 0; j < 8; j++)
            sum[n][j] = 0;
    for (uint r = me / WIDE; u < n_units && r < m; r += ACROSS) {
        const float v = floats_at(x).v[r];
        columns(w + uint64_t(arg.n[3]) * r, k, u, q);
        [[unroll]] for (uint n = 0; n < EIGHTS; n++)
            [[unroll]] for (uint j = 0; j < 8; j++)
                sum[n][j] = fma(q[n][j], v, sum[n][j]);
    }
    part[me / WIDE][me % WIDE] = sum;
    barrier();
    const float scale = arg.a[4] != 0 ? floats_at(arg.a[4]).v[arg.n[7] * head] : 1;
    for (uint n = 0; n < EIGHTS; n++) {
        const uint col = 8 * eight_of(first + me / 8, n) + me % 8;
        float all = 0;
        for (uint r = 0; r < ACROSS; r++)
            all += part[r][me / 8][n][me % 8];
        if (first + me / 8 < n_units && col < k)
            floats_at(arg.a[2] + 4 * (uint64_t(arg.n[5]) * t + k * head)).v[col] = all * scale;
    }
}

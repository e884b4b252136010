#version 450
/* SPDX-License-Identifier: MIT */
/* MATMUL_HEADS transposed: y[t][head] = (transpose of w[head]) · x[t][head] * scale. An invocation sums eight columns over
 * every ACROSS-th row.
 *   a, n: as for matvec.comp, in and out being those of w as it lies: x has `out` elements a head, y has `in`
 *   groups: columns, tokens, heads */
#extension GL_GOOGLE_include_directive : require
#include "bl.glsl"
#include "types.glsl"

layout(local_size_x = 64) in;
const uint ACROSS = 8, WIDE = 64 / ACROSS;
shared float part[ACROSS][WIDE][8];

void columns(const uint64_t row, const uint k, const uint i, out float q[8])
{
#if TYPE == BL_F32 || TYPE == BL_F16 || TYPE == BL_BF16
    if (8 * i + 8 > k) {
        for (uint j = 0; j < 8; j++)
            q[j] = 8 * i + j < k ? decode1(row, 8 * i + j) : 0;
        return;
    }
#endif
    decode8(row, i, q);
}

void main()
{
    const uint k = arg.n[0], m = arg.n[1], t = gl_WorkGroupID.y, head = gl_WorkGroupID.z;
    const uint lane = gl_LocalInvocationIndex % WIDE, first = gl_LocalInvocationIndex / WIDE;
    const uint i = gl_WorkGroupID.x * WIDE + lane;
    const uint64_t w = arg.a[0] + uint64_t(arg.n[6]) * head, x = arg.a[1] + 4 * (uint64_t(arg.n[4]) * t + m * head);
    float q[8], sum[8];
    [[unroll]] for (uint j = 0; j < 8; j++)
        sum[j] = 0;
    for (uint r = first; 8 * i < k && r < m; r += ACROSS) {
        const float v = floats_at(x).v[r];
        columns(w + uint64_t(arg.n[3]) * r, k, i, q);
        [[unroll]] for (uint j = 0; j < 8; j++)
            sum[j] = fma(q[j], v, sum[j]);
    }
    [[unroll]] for (uint j = 0; j < 8; j++)
        part[first][lane][j] = sum[j];
    barrier();
    const float scale = arg.a[4] != 0 ? floats_at(arg.a[4]).v[arg.n[7] * head] : 1;
    const uint col = gl_WorkGroupID.x * WIDE * 8 + gl_LocalInvocationIndex;
    if (gl_LocalInvocationIndex >= WIDE * 8 || col >= k)
        return;
    float all = 0;
    for (uint r = 0; r < ACROSS; r++)
        all += part[r][gl_LocalInvocationIndex / 8][gl_LocalInvocationIndex % 8];
    floats_at(arg.a[2] + 4 * (uint64_t(arg.n[5]) * t + k * head)).v[col] = all * scale;
}

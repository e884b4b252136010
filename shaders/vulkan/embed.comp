#version 450
/* SPDX-License-Identifier: MIT */
/* EMBED: the row of each token's id, scaled. An invocation decodes a unit; of those for eights
 * the rest has nothing to do.
 *   a: table, y, params   n: elements, bytes of a row of the table, scale   groups: eights, tokens */
#extension GL_GOOGLE_include_directive : require
#include "bl.glsl"
#include "types.glsl"

layout(local_size_x = 64) in;

void main()
{
    const uint n = arg.n[0], t = gl_WorkGroupID.y, i = gl_GlobalInvocationID.x;
    if (t >= params_at(arg.a[2]).n_tok || 8 * i >= n)
        return;
    const uint64_t row = arg.a[0] + uint64_t(arg.n[1]) * param(arg.a[2], params_at(arg.a[2]).token_off, t);
    floats_at y = floats_at(arg.a[1] + 4 * uint64_t(n) * t);
#if TYPE == BL_F32 || TYPE == BL_F16 || TYPE == BL_BF16
    for (uint j = 8 * i; j < min(n, 8 * i + 8); j++)
        y.v[j] = num(2) * decode1(row, j);
#else
    if (i >= units_of(n))
        return;
    float w[EIGHTS][8];
    decode(row, i, w);
    [[unroll]] for (uint e = 0; e < EIGHTS; e++)
        [[unroll]] for (uint j = 0; j < 8; j++)
            y.v[8 * eight_of(i, e) + j] = num(2) * w[e][j];
#endif
}

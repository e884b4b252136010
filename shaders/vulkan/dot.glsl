/* SPDX-License-Identifier: MIT */
/* dot.glsl — a subgroup multiplies ROWS rows of weights with TOKENS rows of activations. */
layout(constant_id = 0) const uint TOKENS = 1;
const uint ROWS = 2;

/* sum[r][t] = row at w[r], k elements, · floats at x[t]; in all invocations. */
void dot_rows(const uint k, const uint64_t w[ROWS], const uint64_t x[TOKENS], out float sum[ROWS][TOKENS])
{
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        for (uint t = 0; t < TOKENS; t++)
            sum[r][t] = 0;
    for (uint i = gl_SubgroupInvocationID; i < k / 8; i += gl_SubgroupSize) {
        float q[ROWS][8];
        [[unroll]] for (uint r = 0; r < ROWS; r++)
            decode8(w[r], i, q[r]);
        for (uint t = 0; t < TOKENS; t++)
            [[unroll]] for (uint j = 0; j < 8; j++) {
                const float v = floats_at(x[t]).v[8 * i + j];
                [[unroll]] for (uint r = 0; r < ROWS; r++)
                    sum[r][t] = fma(q[r][j], v, sum[r][t]);
            }
    }
#if TYPE == BL_F32 || TYPE == BL_F16 || TYPE == BL_BF16
    for (uint i = k / 8 * 8 + gl_SubgroupInvocationID; i < k; i += gl_SubgroupSize)
        for (uint t = 0; t < TOKENS; t++)
            [[unroll]] for (uint r = 0; r < ROWS; r++)
                sum[r][t] = fma(decode1(w[r], i), floats_at(x[t]).v[i], sum[r][t]);
#endif
    for (uint t = 0; t < TOKENS; t++)
        [[unroll]] for (uint r = 0; r < ROWS; r++)
            sum[r][t] = subgroupAdd(sum[r][t]);
}

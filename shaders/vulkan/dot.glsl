/* SPDX-License-Identifier: MIT */
/* dot.glsl — a subgroup multiplies ROWS rows of weights with TOKENS rows of activations: of floats, or AS_BYTES. */
#include "as_bytes.glsl"
layout(constant_id = 0) const uint TOKENS = 1;
const uint ROWS = 2;

#if AS_BYTES
/* sum[r][t] += eight elements of w, quants with their scale and minimum, · bytes [8 e, 8 e + 8) of x. */
void add_bytes(const uvec2 q[ROWS], const vec2 dm[ROWS], const uint64_t x[TOKENS], const uint k, const uint e,
               inout float sum[ROWS][TOKENS])
{
    [[unroll]] for (uint t = 0; t < TOKENS; t++) {
        const uvec2 v = pair_at(x[t] + 8 * e);
        const float d = floats_at(scale_at(x[t], k, e)).v[0];
#if HAS_MIN
        const float all = d * float(dot8(uvec2(ONES), v));
#endif
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
#if HAS_MIN
            sum[r][t] = fma(dm[r].y, all, sum[r][t]);
#endif
            sum[r][t] = fma(dm[r].x, d * float(dot8(q[r], v)), sum[r][t]);
        }
    }
}
#endif

/* w · x, or with quants of w less what belongs to the whole run: scale and minimum come last. */
void add_run(const float w[ROWS][8], const vec2 dm[ROWS], const uint64_t x[TOKENS], const uint e,
             inout float sum[ROWS][TOKENS])
{
    [[unroll]] for (uint t = 0; t < TOKENS; t++) {
        float v[8], part[ROWS], all = 0;
        floats8_at(x[t] + 32 * e, v);
        [[unroll]] for (uint r = 0; r < ROWS; r++)
            part[r] = 0;
        [[unroll]] for (uint j = 0; j < 8; j++) {
            all += v[j];
            [[unroll]] for (uint r = 0; r < ROWS; r++)
                part[r] = fma(w[r][j], v[j], part[r]);
        }
        [[unroll]] for (uint r = 0; r < ROWS; r++)
#if IS_FLOAT
            sum[r][t] += part[r];
#elif HAS_MIN
            sum[r][t] = fma(dm[r].x, part[r], fma(dm[r].y, all, sum[r][t]));
#else
            sum[r][t] = fma(dm[r].x, part[r], sum[r][t]);
#endif
    }
}

/* sum[r][t] = row at w[r], k elements, · row at x[t]; in all invocations. */
void dot_rows(const uint k, const uint64_t w[ROWS], const uint64_t x[TOKENS], out float sum[ROWS][TOKENS])
{
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        [[unroll]] for (uint t = 0; t < TOKENS; t++)
            sum[r][t] = 0;
    for (uint u = gl_SubgroupInvocationID; u < units_of(k); u += gl_SubgroupSize) {
        vec2 dm[ROWS];
#if IS_FLOAT
        float v[ROWS][EIGHTS][8], run[ROWS][8];
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            decode(w[r], u, v[r]);
            run[r] = v[r][0];
        }
        add_run(run, dm, x, u, sum);
#else
        uvec2 q[ROWS][EIGHTS];
        float d[ROWS][EIGHTS], m[ROWS][EIGHTS], run[ROWS][8];
        [[unroll]] for (uint r = 0; r < ROWS; r++)
            unpack(w[r], u, q[r], d[r], m[r]);
        [[unroll]] for (uint n = 0; n < EIGHTS; n++) {
#if AS_BYTES
            uvec2 bytes[ROWS];
#endif
            [[unroll]] for (uint r = 0; r < ROWS; r++) {
                dm[r] = vec2(d[r][n], m[r][n]);
#if AS_BYTES
                bytes[r] = q[r][n];
#else
                floats_of(q[r][n], run[r]);
#endif
            }
#if AS_BYTES
            add_bytes(bytes, dm, x, k, eight_of(u, n), sum);
#else
            add_run(run, dm, x, eight_of(u, n), sum);
#endif
        }
#endif
    }
#if IS_FLOAT
    for (uint i = k / 8 * 8 + gl_SubgroupInvocationID; i < k; i += gl_SubgroupSize)
        [[unroll]] for (uint t = 0; t < TOKENS; t++)
            [[unroll]] for (uint r = 0; r < ROWS; r++)
                sum[r][t] = fma(decode1(w[r], i), floats_at(x[t]).v[i], sum[r][t]);
#endif
    [[unroll]] for (uint t = 0; t < TOKENS; t++)
        [[unroll]] for (uint r = 0; r < ROWS; r++)
            sum[r][t] = subgroupAdd(sum[r][t]);
}

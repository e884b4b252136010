/* SPDX-License-Identifier: MIT */
/* params.hpp — what of a step kernels read in its params block; activations of pairs of gate and up, streams.
 *
 * Purpose   accessors of shaders/args.h by address, as a captured launch has nothing else; what several units compute.
 * Ownership none.
 * Units     tokens, positions.
 * Errors    none.
 * Threads   any.
 */
#ifndef BL_SIMT_PARAMS_HPP
#define BL_SIMT_PARAMS_HPP

#include "args.h"
#include "simt/simt.hpp"

BL_DEV const struct bl_params *step_of(uint64_t params)
{
    return at<const struct bl_params>(params);
}
BL_DEV uint32_t param(uint64_t params, uint32_t off, uint32_t i)
{
    return at<const uint32_t>(params + off)[i];
}
BL_DEV uint32_t token_of(uint64_t params, uint32_t t)
{
    return param(params, step_of(params)->token_off, t);
}
BL_DEV uint32_t pos_of(uint64_t params, uint32_t t)
{
    return param(params, step_of(params)->pos_off, t);
}
BL_DEV uint32_t seq_of(uint64_t params, uint32_t t)
{
    return param(params, step_of(params)->seq_off, t);
}
BL_DEV uint32_t kv_of(uint64_t params, uint32_t seq)
{
    return param(params, step_of(params)->table_off, 2 * seq);
}
BL_DEV uint32_t slot_of(uint64_t params, uint32_t seq)
{
    return param(params, step_of(params)->table_off, 2 * seq + 1);
}

/* As bl_kv_row: a window is a ring. */
BL_DEV uint32_t row_of(uint32_t rows, uint32_t slot, uint32_t pos)
{
    return slot * rows + pos % rows;
}

BL_DEV float sigmoid(float x)
{
    return 1 / (1 + expf(-x));
}
/* Of arguments that are not small to a float's last bits. */
BL_DEV float tanh_of(float x)
{
    const float e = expf(2 * fminf(fmaxf(x, -15.0f), 15.0f));
    return (e - 1) / (e + 1);
}
/* ln(1 + x), as exact for small x. */
BL_DEV float log_1_plus(float x)
{
    const float u = 1 + x;
    return u == 1 ? x : logf(u) * x / (u - 1);
}
BL_DEV float softplus(float x)
{
    return x > 20 ? x : log_1_plus(expf(x));
}

/* act(gate) * up: core/graph.h, enum bl_glu_kind. */
BL_DEV float glu_of(uint32_t kind, float alpha, float limit, float g, float u)
{
    switch (kind) {
    case 0: /* SILU */
        return g / (1 + expf(-g)) * u;
    case 1: /* SILU_CLAMPED */
        g = fminf(g, limit);
        return g / (1 + expf(-g)) * fminf(fmaxf(u, -limit), limit);
    case 2: /* GELU_TANH */
        return 0.5f * g * (1 + tanh_of(0.7978845608028654f * g * (1 + 0.044715f * g * g))) * u;
    case 3: /* SWIGLU_OAI */
        g = fminf(g, limit);
        return g / (1 + expf(-alpha * g)) * (fminf(fmaxf(u, -limit), limit) + 1);
    default: /* SIGMOID */
        return u / (1 + expf(-g));
    }
}

/* A token's streams, mixed by its weights, with x added to each: of one element, n apart from stream to stream. */
BL_DEV void mix_streams(float *y, const float *h, const float *w, uint32_t s, uint32_t n, float x)
{
    BL_ROLLED for (uint32_t to = 0; to < s; to++) {
        float sum = w[s + to] * x;
        BL_ROLLED for (uint32_t j = 0; j < s; j++)
            sum = fmaf(w[2 * s + j * s + to], h[j * n], sum);
        y[to * n] = sum;
    }
}

#endif

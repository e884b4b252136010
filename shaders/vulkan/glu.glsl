/* SPDX-License-Identifier: MIT */
/* glu.glsl — act(gate) * up: core/graph.h, enum bl_glu_kind. */
float act(const uint kind, const float alpha, const float limit, float g, float u)
{
    switch (kind) {
    case 0: /* SILU */
        return g / (1 + exp(-g)) * u;
    case 1: /* SILU_CLAMPED */
        g = min(g, limit);
        return g / (1 + exp(-g)) * clamp(u, -limit, limit);
    case 2: /* GELU_TANH */
        return 0.5 * g * (1 + tanh(clamp(0.7978845608028654 * g * (1 + 0.044715 * g * g), -15.0, 15.0))) * u;
    case 3: /* SWIGLU_OAI */
        g = min(g, limit);
        return g / (1 + exp(-alpha * g)) * (clamp(u, -limit, limit) + 1);
    default: /* SIGMOID */
        return u / (1 + exp(-g));
    }
}

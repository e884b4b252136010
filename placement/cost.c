/* SPDX-License-Identifier: MIT */
#include "cost.h"

#include <math.h>
#include <string.h>

#define KEY(...) __VA_ARGS__
#define E(e) (1u << BL_COST_##e)
#define B(e) (1u << BL_COST_##e)
#define K(e) (1u << BL_COST_##e)
#define Z(e) (1u << BL_COST_##e)
#define I(e) (1u << BL_COST_##e)
#define F(e) (1u << BL_COST_##e)
/* Ballast starts from the constants of ik_llama.cpp, whose kernels work like its own, until they
 * are measured. */
#define OWN (E(IK) | E(BALLAST))
#define G (B(CUDA) | B(ROCM) | B(VULKAN) | B(METAL))
#define BL_COST_DECODE BL_COST_IN_DECODE
#define BL_COST_PREFILL BL_COST_IN_PREFILL

const struct bl_cost_constant bl_cost_constants[BL_N_COST_CONSTANTS] = {
#define Q(...)
#define X(e, q, ph, key, v, s, p, ps, why)                                                         \
    {.name = #e,                                                                                   \
     .quantity = BL_COST_##q,                                                                      \
     .phase = BL_COST_##ph,                                                                        \
     key,                                                                                          \
     .value = (v),                                                                                 \
     .sd = (s),                                                                                    \
     .prior = (p),                                                                                 \
     .prior_sd = (ps),                                                                             \
     .evidence = (why)},
#include "cost.def"
#undef X
#undef Q
};
#define X(...)
const char *const bl_cost_quantity_name[BL_N_COST_QUANTITIES] = {
#define Q(e, unit, what) #e,
#include "cost.def"
#undef Q
};
const char *const bl_cost_quantity_unit[BL_N_COST_QUANTITIES] = {
#define Q(e, unit, what) unit,
#include "cost.def"
#undef Q
};
#undef X

void bl_cost_table_init(struct bl_cost_table *t)
{
    for (int i = 0; i < BL_N_COST_CONSTANTS; i++) {
        t->value[i] = bl_cost_constants[i].value;
        t->sd[i] = bl_cost_constants[i].sd;
    }
}

static bool has(uint16_t mask, uint8_t bit)
{
    return !mask || (mask >> bit & 1);
}

static bool matches(const struct bl_cost_constant *c, const struct bl_cost_key *k)
{
    unsigned flags = (k->repacked ? BL_COST_F_REPACKED : BL_COST_F_PLAIN) |
                     (k->unified ? BL_COST_F_UNIFIED : BL_COST_F_DISCRETE);
    return (c->flags & ~flags) == 0 && has(c->engines, k->engine) && has(c->backends, k->backend) &&
           has(c->kinds, k->kind) && has(c->quants, k->quant) && has(c->isas, k->isa) &&
           has(c->figures, k->figure);
}

double bl_cost_look(const struct bl_cost_table *t, enum bl_cost_quantity q,
                    const struct bl_cost_key *k)
{
    double product = 1;
    bool any = false;
    for (int i = 0; i < BL_N_COST_CONSTANTS; i++)
        if (bl_cost_constants[i].quantity == q && matches(&bl_cost_constants[i], k)) {
            product *= t->value[i];
            any = true;
        }
    return any || !strcmp(bl_cost_quantity_unit[q], "1") ? product : 0;
}

double bl_cost_soft_min(double a, double b, double order)
{
    double low = fmin(a, b), high = fmax(a, b);
    return low > 0 && isfinite(high) ? low * pow(1 + pow(low / high, order), -1 / order) : low;
}

double bl_cost_soft_max(double a, double b, double order)
{
    double low = fmin(a, b), high = fmax(a, b);
    return high > 0 && isfinite(high) ? high * pow(1 + pow(low / high, order), 1 / order) : high;
}

static double over(double work, double rate)
{
    return work > 0 ? work / rate * 1e9 : 0;
}

double bl_cost_gpu_memory_ns(const struct bl_cost_table *t, const struct bl_cost_key *k,
                             const struct bl_cost_gpu *g, double bytes)
{
    return over(bytes, g->bps * bl_cost_look(t, BL_COST_GPU_SHARE, k));
}

static uint32_t working(const struct bl_cost_cpu *c, const struct bl_cost_team *w)
{
    return c->cores && w->threads > c->cores ? c->cores : w->threads;
}

/* What threads that share cores leave of the speed. */
static double crowded(const struct bl_cost_table *t, const struct bl_cost_key *k,
                      const struct bl_cost_cpu *c, const struct bl_cost_team *w)
{
    return c->cores && w->threads > c->cores
               ? pow((double)c->cores / w->threads, bl_cost_look(t, BL_COST_CROWD, k))
               : 1;
}

double bl_cost_ram_bps(const struct bl_cost_table *t, const struct bl_cost_key *k,
                       const struct bl_cost_cpu *c, const struct bl_cost_team *w)
{
    double bps = c->domain_bps * bl_cost_look(t, BL_COST_RAM_SHARE, k);
    if (w->domains > 1 && c->local)
        bps *= w->domains * bl_cost_look(t, BL_COST_LOCAL, k);
    else if (w->domains > 1)
        bps *= bl_cost_look(t, BL_COST_SPAN, k);
    bps *= crowded(t, k, c, w);
    return bl_cost_soft_min(bps, working(c, w) * bl_cost_look(t, BL_COST_CORE_BPS, k), 4);
}

double bl_cost_unpack_ns(const struct bl_cost_table *t, const struct bl_cost_key *k,
                         const struct bl_cost_cpu *c, const struct bl_cost_team *w, double weights)
{
    return over(weights, working(c, w) * crowded(t, k, c, w) * c->clock *
                             bl_cost_look(t, BL_COST_UNPACK, k));
}

double bl_cost_cpu_weights_ns(const struct bl_cost_table *t, const struct bl_cost_key *k,
                              const struct bl_cost_cpu *c, const struct bl_cost_team *w,
                              double bytes, double weights)
{
    return bl_cost_soft_max(over(bytes, bl_cost_ram_bps(t, k, c, w)),
                            bl_cost_unpack_ns(t, k, c, w, weights), 3);
}

double bl_cost_layer_ns(const struct bl_cost_table *t, const struct bl_cost_key *k,
                        const struct bl_cost_cpu *c, const struct bl_cost_team *w, double heads,
                        bool experts)
{
    double ns = bl_cost_look(t, BL_COST_LAYER, k);
    double kind = bl_cost_look(t, BL_COST_KIND, k);
    if (k->kind == BL_COST_MLA)
        kind = 1 + (kind - 1) * heads / 128;
    if (k->backend == BL_COST_CPU)
        ns *= 1 + working(c, w) * bl_cost_look(t, BL_COST_THREAD, k);
    return ns * kind * (experts ? 1 : bl_cost_look(t, BL_COST_DENSE, k));
}

double bl_cost_cross_ns(const struct bl_cost_table *t, const struct bl_cost_key *k)
{
    return bl_cost_look(t, BL_COST_CROSS, k);
}

double bl_cost_hop_ns(const struct bl_cost_table *t, const struct bl_cost_key *k)
{
    return bl_cost_look(t, BL_COST_HOP, k);
}

double bl_cost_link_ns(const struct bl_cost_table *t, const struct bl_cost_key *k, double link_bps,
                       double bytes)
{
    return over(bytes, link_bps * bl_cost_look(t, BL_COST_LINK, k));
}

double bl_cost_gpu_matmul_ns(const struct bl_cost_table *t, const struct bl_cost_key *k,
                             const struct bl_cost_gpu *g, double macs, double tok, double ffn)
{
    double rate = g->macs_per_s * bl_cost_look(t, BL_COST_MM, k);
    rate *= tok / (tok + bl_cost_look(t, BL_COST_HALF_TOK, k));
    if (ffn > 0)
        rate *= ffn / (ffn + bl_cost_look(t, BL_COST_HALF_FFN, k));
    return over(macs, rate);
}

double bl_cost_cpu_matmul_ns(const struct bl_cost_table *t, const struct bl_cost_key *k,
                             const struct bl_cost_cpu *c, const struct bl_cost_team *w, double macs,
                             double tok, double ffn)
{
    double rate =
        pow(working(c, w), 0.94) * crowded(t, k, c, w) * c->clock * bl_cost_look(t, BL_COST_MAC, k);
    if (w->domains > 1)
        rate *= bl_cost_look(t, BL_COST_MAC_SPAN, k);
    rate *= tok / (tok + bl_cost_look(t, BL_COST_CPU_HALF_TOK, k));
    if (ffn > 0)
        rate *= ffn / (ffn + bl_cost_look(t, BL_COST_CPU_HALF_FFN, k));
    return over(macs, rate);
}

double bl_cost_gpu_attend_ns(const struct bl_cost_table *t, const struct bl_cost_key *k,
                             const struct bl_cost_gpu *g, double macs)
{
    return over(macs, g->macs_per_s * bl_cost_look(t, BL_COST_ATTEND, k));
}

double bl_cost_cpu_attend_ns(const struct bl_cost_table *t, const struct bl_cost_key *k,
                             const struct bl_cost_cpu *c, const struct bl_cost_team *w, double macs)
{
    return over(macs, working(c, w) * c->clock * bl_cost_look(t, BL_COST_ATTEND_CPU, k));
}

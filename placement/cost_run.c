/* SPDX-License-Identifier: MIT */
#include "cost.h"

#include <math.h>

static enum bl_cost_kind main_kind(const struct bl_cost_run *r)
{
    enum bl_cost_kind kind = BL_COST_GQA;
    for (unsigned k = 0; k < BL_N_COST_KINDS; k++)
        if (r->layers[k] > 0 && (k == BL_COST_MLA || k == BL_COST_V4))
            kind = k;
    return kind;
}

static struct bl_cost_key key_of(const struct bl_cost_run *r, bool gpu, enum bl_cost_quant quant)
{
    return (struct bl_cost_key){.engine = (uint8_t)r->engine,
                                .backend = (uint8_t)(gpu ? r->backend : BL_COST_CPU),
                                .kind = (uint8_t)main_kind(r),
                                .quant = (uint8_t)quant,
                                .isa = (uint8_t)r->isa,
                                .figure = (uint8_t)r->figure,
                                .repacked = r->repacked,
                                .unified = r->unified};
}

static bool has_gpu(const struct bl_cost_run *r)
{
    return r->backend != BL_COST_CPU && r->n_gpus > 0;
}

/* Layers run one after another, so the GPUs' times add up; with tensor parallelism they share every
 * layer. */
static double on_gpus(const struct bl_cost_table *t, const struct bl_cost_run *r,
                      const struct bl_cost_key *k, double bytes)
{
    double sum = 0, rate = 0;
    for (uint32_t i = 0; i < r->n_gpus; i++) {
        sum += bl_cost_gpu_memory_ns(t, k, &r->gpu[i], bytes * r->gpu[i].share);
        rate += 1 / bl_cost_gpu_memory_ns(t, k, &r->gpu[i], bytes);
    }
    return bytes <= 0 ? 0 : r->tensor_parallel ? 1 / rate : sum;
}

static double all_layers(const struct bl_cost_run *r)
{
    double n = 0;
    for (unsigned kind = 0; kind < BL_N_COST_KINDS; kind++)
        n += r->layers[kind];
    return n;
}

static double layers_ns(const struct bl_cost_table *t, const struct bl_cost_run *r)
{
    struct bl_cost_key k = key_of(r, has_gpu(r), r->expert_quant);
    double all = all_layers(r), ns = 0;
    double share = all > 0 ? r->moe_layers / all : 0;
    for (unsigned kind = 0; kind < BL_N_COST_KINDS; kind++) {
        if (r->layers[kind] <= 0)
            continue;
        k.kind = (uint8_t)kind;
        ns += r->layers[kind] *
              (share * bl_cost_layer_ns(t, &k, &r->cpu, &r->decode_team, r->heads, true) +
               (1 - share) * bl_cost_layer_ns(t, &k, &r->cpu, &r->decode_team, r->heads, false));
    }
    return ns;
}

static double context_ns(const struct bl_cost_table *t, const struct bl_cost_run *r)
{
    bool gpu = has_gpu(r) && !r->cache_in_ram;
    struct bl_cost_key k = key_of(r, gpu, r->dense_quant);
    double bytes = r->cache_bytes_per_tok * r->depth + r->cache_fixed_bytes + r->state_bytes;
    double rate = bl_cost_look(t, BL_COST_CACHE_SHARE, &k);
    double index = r->depth * bl_cost_look(t, BL_COST_INDEX, &k);
    if (gpu)
        return index + on_gpus(t, r, &k, bytes) * bl_cost_look(t, BL_COST_GPU_SHARE, &k) / rate;
    k.figure = BL_COST_MEASURED;
    double bps = bl_cost_ram_bps(t, &k, &r->cpu, &r->decode_team);
    return index + bytes / (bps * rate) * 1e9;
}

static void sum_up(struct bl_cost_time *out)
{
    out->ns = 0;
    for (int i = 0; i < BL_N_COST_TERMS; i++)
        out->ns += out->term[i];
}

void bl_cost_decode(const struct bl_cost_table *t, const struct bl_cost_run *r,
                    struct bl_cost_time *out)
{
    bool gpu = has_gpu(r);
    struct bl_cost_key on = key_of(r, gpu, r->dense_quant),
                       dense = key_of(r, false, r->dense_quant);
    struct bl_cost_key expert = key_of(r, false, r->expert_quant);
    *out = (struct bl_cost_time){0};
    if (gpu)
        out->term[BL_COST_T_GPU] =
            on_gpus(t, r, &on, r->dense[BL_COST_ON_GPU].bytes + r->expert[BL_COST_ON_GPU].bytes);
    const struct bl_cost_load *d = &r->dense[BL_COST_IN_RAM], *e = &r->expert[BL_COST_IN_RAM];
    out->term[BL_COST_T_RAM] =
        bl_cost_cpu_weights_ns(t, &dense, &r->cpu, &r->decode_team, d->bytes, d->weights) +
        bl_cost_cpu_weights_ns(t, &expert, &r->cpu, &r->decode_team, e->bytes, e->weights);
    out->term[BL_COST_T_LAYERS] = layers_ns(t, r);
    double in_ram = r->held[BL_COST_IN_RAM].bytes, all = in_ram + r->held[BL_COST_ON_GPU].bytes;
    if (gpu && in_ram > 0)
        out->term[BL_COST_T_CROSS] = r->moe_layers * in_ram / all * bl_cost_cross_ns(t, &on);
    if (gpu && r->n_gpus > 1)
        out->term[BL_COST_T_HOP] =
            (r->tensor_parallel ? all_layers(r) : r->n_gpus - 1) * bl_cost_hop_ns(t, &on);
    out->term[BL_COST_T_CONTEXT] = context_ns(t, r);
    sum_up(out);
}

/* ---- prefill ---- */

static double ubatch(const struct bl_cost_run *r)
{
    return fmin(r->ubatch, r->prompt);
}

/* Share of the experts that get any of ub tokens; how many those get. */
static double touched(const struct bl_cost_run *r, double ub)
{
    return r->experts > 0 ? 1 - pow(1 - r->experts_per_token / r->experts, ub) : 1;
}

static double per_expert(const struct bl_cost_run *r, double ub)
{
    return r->experts > 0 ? ub * r->experts_per_token / (r->experts * touched(r, ub)) : ub;
}

static double gpus_matmul(const struct bl_cost_table *t, const struct bl_cost_run *r,
                          const struct bl_cost_key *k, double macs, double tok, double ffn)
{
    double sum = 0;
    for (uint32_t i = 0; i < r->n_gpus; i++)
        sum += bl_cost_gpu_matmul_ns(t, k, &r->gpu[i], macs * r->gpu[i].share, tok, ffn);
    return sum;
}

static double attention_ns(const struct bl_cost_table *t, const struct bl_cost_run *r)
{
    bool gpu = has_gpu(r) && !r->cache_in_ram;
    struct bl_cost_key k = key_of(r, gpu, r->dense_quant);
    double macs = r->attend_macs_per_tok * r->prompt_depth + r->attend_fixed_macs;
    double ns = bl_cost_look(t, BL_COST_SERIAL, &k) +
                r->prompt_depth * bl_cost_look(t, BL_COST_SERIAL_CONTEXT, &k);
    if (!gpu)
        return ns + bl_cost_cpu_attend_ns(t, &k, &r->cpu, &r->prefill_team, macs);
    for (uint32_t i = 0; i < r->n_gpus; i++)
        ns += bl_cost_gpu_attend_ns(t, &k, &r->gpu[i], macs * r->gpu[i].share);
    return ns;
}

static double by_cpu(const struct bl_cost_table *t, const struct bl_cost_run *r, double ub)
{
    struct bl_cost_key k = key_of(r, false, r->expert_quant), d = key_of(r, false, r->dense_quant);
    const struct bl_cost_load *expert = &r->expert[BL_COST_IN_RAM],
                              *dense = &r->dense[BL_COST_IN_RAM];
    double math = bl_cost_cpu_matmul_ns(t, &k, &r->cpu, &r->prefill_team, expert->weights,
                                        per_expert(r, ub), r->expert_ffn) +
                  bl_cost_cpu_matmul_ns(t, &d, &r->cpu, &r->prefill_team, dense->weights, ub, 0);
    double bytes = r->held[BL_COST_IN_RAM].bytes * touched(r, ub) + dense->bytes;
    double bps = bl_cost_ram_bps(t, &k, &r->cpu, &r->prefill_team);
    return bl_cost_soft_max(math, bytes > 0 ? bytes / bps / ub * 1e9 : 0, 3);
}

/* Every card fetches its own layers' experts, one after another. */
static double by_link(const struct bl_cost_table *t, const struct bl_cost_run *r, double ub)
{
    struct bl_cost_key k = key_of(r, true, r->expert_quant);
    double bytes = r->held[BL_COST_IN_RAM].bytes * touched(r, ub), ns = 0;
    for (uint32_t i = 0; i < r->n_gpus; i++)
        ns += bl_cost_link_ns(t, &k, r->gpu[i].link_bps, bytes * r->gpu[i].share);
    return ns / ub + gpus_matmul(t, r, &k, r->expert[BL_COST_IN_RAM].weights, per_expert(r, ub),
                                 r->expert_ffn);
}

static double ubatch_on_gpus(const struct bl_cost_table *t, const struct bl_cost_run *r, double ub)
{
    struct bl_cost_key k = key_of(r, true, r->expert_quant), d = key_of(r, true, r->dense_quant);
    const struct bl_cost_load *dense = &r->dense[BL_COST_ON_GPU];
    double math =
        gpus_matmul(t, r, &d, dense->weights, ub, 0) +
        gpus_matmul(t, r, &k, r->expert[BL_COST_ON_GPU].weights, per_expert(r, ub), r->expert_ffn);
    double bytes = r->held[BL_COST_ON_GPU].bytes * touched(r, ub) + dense->bytes;
    return bl_cost_soft_max(math, on_gpus(t, r, &k, bytes) / ub, 3);
}

void bl_cost_prefill(const struct bl_cost_table *t, const struct bl_cost_run *r,
                     struct bl_cost_time *out)
{
    double ub = ubatch(r);
    struct bl_cost_key k = key_of(r, has_gpu(r), r->dense_quant);
    *out = (struct bl_cost_time){0};
    if (has_gpu(r))
        out->term[BL_COST_T_GPU] = ubatch_on_gpus(t, r, ub);
    if (r->held[BL_COST_IN_RAM].bytes > 0 || r->dense[BL_COST_IN_RAM].bytes > 0) {
        bool may = has_gpu(r) && ub >= r->stream_from;
        double link = may ? by_link(t, r, ub) : INFINITY;
        double cpu = may && r->stream_from > 0 ? INFINITY : by_cpu(t, r, ub);
        out->term[link < cpu ? BL_COST_T_STREAM : BL_COST_T_RAM] = fmin(link, cpu);
    }
    out->term[BL_COST_T_LAYERS] = all_layers(r) * bl_cost_look(t, BL_COST_UBATCH_LAYER, &k) / ub;
    out->term[BL_COST_T_CONTEXT] = attention_ns(t, r);
    sum_up(out);
}

double bl_cost_stream_from(const struct bl_cost_table *t, const struct bl_cost_run *r)
{
    double low = 0, high = 1;
    if (!has_gpu(r) || r->held[BL_COST_IN_RAM].bytes <= 0)
        return INFINITY;
    while (by_link(t, r, high) > by_cpu(t, r, high)) {
        low = high;
        high *= 2;
        if (high > 1 << 20)
            return INFINITY;
    }
    while (high - low > 1) {
        double mid = floor((low + high) / 2);
        if (by_link(t, r, mid) > by_cpu(t, r, mid))
            low = mid;
        else
            high = mid;
    }
    return high;
}

/* ---- what is left open ---- */

typedef void run_fn(const struct bl_cost_table *, const struct bl_cost_run *,
                    struct bl_cost_time *);

static double open_sd(const struct bl_cost_table *t, const struct bl_cost_run *r, run_fn *fn,
                      double unsaid)
{
    struct bl_cost_table moved = *t;
    struct bl_cost_time at, beside;
    const double step = 0.02;
    double var = unsaid * unsaid;
    fn(t, r, &at);
    for (int i = 0; i < BL_N_COST_CONSTANTS; i++) {
        moved.value[i] = t->value[i] * exp(step);
        fn(&moved, r, &beside);
        double slope = log(beside.ns / at.ns) / step;
        var += slope * slope * t->sd[i] * t->sd[i];
        moved.value[i] = t->value[i];
    }
    return sqrt(var);
}

double bl_cost_decode_sd(const struct bl_cost_table *t, const struct bl_cost_run *r)
{
    return open_sd(t, r, bl_cost_decode, BL_COST_UNSAID_DECODE);
}

double bl_cost_prefill_sd(const struct bl_cost_table *t, const struct bl_cost_run *r)
{
    return open_sd(t, r, bl_cost_prefill, BL_COST_UNSAID_PREFILL);
}

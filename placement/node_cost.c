/* SPDX-License-Identifier: MIT */
#include "node_cost.h"

#include <math.h>
#include <string.h>

static const struct bl_value *source(const struct bl_graph *g, const struct bl_node *n, unsigned i)
{
    return &g->vals[bl_node_src(g, n, i)];
}

/* ---- work ---- */

/* Share of the experts that any of n tokens chose, if they choose at random. */
static double touched(double used, double of, double n)
{
    return of > 0 ? 1 - pow(1 - used / of, n) : 1;
}

static void count_weight(struct bl_work *w, const struct bl_value *v, double share)
{
    double bytes = (double)bl_value_bytes(v) * share;
    double elems = (double)v->ne[0] * v->ne[1] * v->ne[2] * share;

    if (bytes > w->weight_bytes)
        w->type = v->type;
    w->weight_bytes += bytes;
    if (v->ne[1] > 1)
        w->weights += elems;
}

static void count_experts(struct bl_work *w, const struct bl_graph *g, const struct bl_node *n)
{
    const struct bl_experts_attr *a = bl_node_attr(g, n);
    const struct bl_value *down = source(g, n, 5);
    const double of = down->ne[2], share = touched(a->n_used, of, w->n_tok);

    for (unsigned i = 3; i <= 5; i++)
        if (bl_node_src(g, n, i))
            count_weight(w, source(g, n, i), share);
    w->macs = w->weights / share * a->n_used / of * w->n_tok;
    w->tok_per_matrix = w->n_tok * a->n_used / (of * share);
    w->ffn = down->ne[0];
}

static double rows_bytes(const struct bl_value *state, double rows)
{
    return fmin(rows, state->ne[1]) *
           (double)bl_dtype_row_bytes((enum bl_dtype)state->type, state->ne[0]);
}

static void count_attention(struct bl_work *w, const struct bl_graph *g, const struct bl_node *n,
                            const struct bl_attention_attr *a, double ctx)
{
    const double seen = a->window ? fmin(ctx, a->window) : ctx;

    w->state_bytes += rows_bytes(source(g, n, 1), seen);
    if (bl_node_src(g, n, 2) != bl_node_src(g, n, 1))
        w->state_bytes += rows_bytes(source(g, n, 2), seen);
    w->attend_macs += (double)a->n_head * (a->dk + a->dv) * seen * w->n_tok;
}

static void count_groups(struct bl_work *w, const struct bl_graph *g, const struct bl_node *n,
                         double ctx)
{
    const struct bl_groups_attr *a = bl_node_attr(g, n);
    double rows = floor(ctx / a->group);

    if (bl_node_src(g, n, 5))
        rows = fmin(rows, source(g, n, 5)->ne[0]);
    count_attention(w, g, n, &a->at, ctx);
    w->state_bytes += rows_bytes(source(g, n, 4), rows);
    w->attend_macs += (double)a->at.n_head * (a->at.dk + a->at.dv) * rows * w->n_tok;
}

static void count_choose(struct bl_work *w, const struct bl_graph *g, const struct bl_node *n,
                         double ctx)
{
    const struct bl_choose_attr *a = bl_node_attr(g, n);
    const double rows = floor(ctx / a->group);

    w->state_bytes += rows_bytes(source(g, n, 2), rows);
    w->attend_macs += (double)a->n_head * a->dk * rows * w->n_tok;
    w->index_tok = ctx;
}

static void count_rest(struct bl_work *w, const struct bl_graph *g, const struct bl_node *n)
{
    const bool matrix = n->op == BL_OP_MATMUL || n->op == BL_OP_MATMUL_HEADS;

    for (unsigned i = 0; i < n->n_src; i++) {
        const struct bl_value *v = source(g, n, i);
        if (v->origin != BL_WEIGHT)
            continue;
        const bool rows = n->op == BL_OP_EMBED || (n->op == BL_OP_ROUTE && i == 2);
        count_weight(w, v, rows ? fmin(1, (double)w->n_tok / v->ne[1]) : 1);
    }
    if (!matrix)
        w->weights = 0;
    w->tok_per_matrix = matrix ? source(g, n, 1)->ne[1] : 0;
    w->macs = w->weights * w->tok_per_matrix;
}

void bl_work_count(struct bl_work *w, const struct bl_graph *g, const struct bl_node *n,
                   uint32_t n_tok, uint64_t depth)
{
    const double ctx = (double)depth + (n_tok + 1) / 2.0; /* of the mean token */

    *w = (struct bl_work){.n_tok = n_tok};
    switch (n->op) {
    case BL_OP_EXPERTS:
        count_experts(w, g, n);
        break;
    case BL_OP_ATTENTION:
        count_attention(w, g, n, bl_node_attr(g, n), ctx);
        break;
    case BL_OP_ATTENTION_GROUPS:
        count_groups(w, g, n, ctx);
        break;
    case BL_OP_CHOOSE:
        count_choose(w, g, n, ctx);
        break;
    case BL_OP_DELTA_RULE:
        w->state_bytes = 2 * rows_bytes(source(g, n, 5), 1);
        break;
    default:
        count_rest(w, g, n);
        break;
    }
}

/* ---- what a device is to the cost model ---- */

static enum bl_cost_quant quant_of(uint8_t type)
{
    switch ((enum bl_dtype)type) {
    case BL_IQ1_S:
    case BL_IQ1_M:
    case BL_IQ2_XXS:
    case BL_IQ2_XS:
    case BL_IQ2_S:
    case BL_IQ3_XXS:
    case BL_IQ3_S:
        return BL_COST_CODEBOOK;
    case BL_Q2_K:
    case BL_Q3_K:
    case BL_TQ1_0:
    case BL_TQ2_0:
    case BL_Q1_0:
    case BL_Q2_0:
        return BL_COST_LOWBIT;
    case BL_Q6_K:
    case BL_Q8_0:
        return BL_COST_BYTE;
    case BL_F32:
    case BL_F16:
    case BL_BF16:
        return BL_COST_HALF;
    default:
        return BL_COST_NIBBLE;
    }
}

static enum bl_cost_backend backend_of(const struct bl_machine_device *d)
{
    static const struct {
        const char *name;
        enum bl_cost_backend is;
    } known[] = {{"cuda", BL_COST_CUDA},
                 {"hip", BL_COST_ROCM},
                 {"rocm", BL_COST_ROCM},
                 {"vulkan", BL_COST_VULKAN},
                 {"metal", BL_COST_METAL}};

    if (d->kind == BL_KIND_CPU)
        return BL_COST_CPU;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (!strcmp(d->backend_name, known[i].name))
            return known[i].is;
    return BL_COST_CUDA;
}

static enum bl_cost_isa isa_of(const struct bl_machine_device *d)
{
    static const uint8_t isa[BL_N_ISAS] = {
        [BL_ISA_NONE] = BL_COST_AVX2,      [BL_ISA_AVX2] = BL_COST_AVX2,
        [BL_ISA_AVX512] = BL_COST_AVX512,  [BL_ISA_VNNI] = BL_COST_VNNI,
        [BL_ISA_VNNI_WIDE] = BL_COST_WIDE, [BL_ISA_AMX] = BL_COST_AMX,
        [BL_ISA_NEON] = BL_COST_NEON,      [BL_ISA_I8MM] = BL_COST_NEON,
        [BL_ISA_APPLE] = BL_COST_APPLE};
    return isa[d->isa < BL_N_ISAS ? d->isa : BL_ISA_NONE];
}

/* Rated for two channels or for more: no two channels of today's memory give so much. */
static enum bl_cost_figure figure_of(const struct bl_machine_device *d)
{
    const double most_of_two_channels = 140e9;
    return d->read_measured_bps > 0 && d->kind == BL_KIND_CPU ? BL_COST_MEASURED
           : d->read_rated_bps > most_of_two_channels         ? BL_COST_RATED_MANY
                                                              : BL_COST_RATED_FEW;
}

static enum bl_cost_kind kind_of(const struct bl_model *m, uint32_t layer)
{
    const struct bl_layer *l = &m->layer[layer];
    return l->role[BL_W_HC_ATTN_FN].w >= 0 ? BL_COST_V4
           : l->role[BL_W_ATTN_K_B].w >= 0 ? BL_COST_MLA
           : l->recurrent                  ? BL_COST_DELTA
                                           : BL_COST_GQA;
}

static uint32_t cores_of(const struct bl_machine_device *d)
{
    return d->cores            ? d->cores
           : d->threads        ? d->threads
           : d->config.threads ? d->config.threads
                               : 1;
}

/* Decode stays on one memory node while the weights fit there. */
static void init_cpu(struct bl_pricing *p, const struct bl_plan *plan)
{
    const struct bl_machine_device *d = p->device;
    const uint32_t cores = cores_of(d), domains = d->n_domains ? d->n_domains : 1;
    const bool spread =
        domains > 1 && bl_ledger_planned(&plan->ledger, 0) > d->domain[0].usable_bytes;
    const uint32_t near_cores = spread ? cores : (cores + domains - 1) / domains;

    p->cpu = (struct bl_cost_cpu){.domain_bps = bl_device_read_bps(d) / domains,
                                  .clock = d->clock_hz > 0 ? d->clock_hz / 3.3e9 : 1,
                                  .cores = cores};
    p->few = (struct bl_cost_team){.threads = plan->threads       ? plan->threads
                                              : d->config.threads ? d->config.threads
                                                                  : near_cores,
                                   .domains = spread ? domains : 1};
    p->many = (struct bl_cost_team){.threads = d->config.threads_prefill ? d->config.threads_prefill
                                                                         : cores,
                                    .domains = spread ? domains : 1};
}

void bl_pricing_init(struct bl_pricing *p, const struct bl_machine_device *d,
                     const struct bl_model *m, const struct bl_plan *plan,
                     const struct bl_cost_table *table)
{
    enum bl_cost_kind kind = BL_COST_GQA;

    for (uint32_t l = 0; l < m->hp.n_layer; l++)
        if (kind_of(m, l) == BL_COST_V4 || kind_of(m, l) == BL_COST_MLA)
            kind = kind_of(m, l);
    *p = (struct bl_pricing){
        .device = d,
        .table = table,
        .gpu = d->kind == BL_KIND_GPU,
        .heads = m->layer[0].n_head,
        .key = {.engine = BL_COST_BALLAST,
                .backend = (uint8_t)backend_of(d),
                .kind = (uint8_t)kind,
                .isa = (uint8_t)isa_of(d),
                .figure = (uint8_t)figure_of(d),
                .repacked = true,
                .unified = d->mem_kind == BL_MEMORY_UNIFIED},
        .card = {.bps = bl_device_read_bps(d), .macs_per_s = d->f16_macs_per_s, .share = 1}};
    if (!p->gpu)
        init_cpu(p, plan);
}

/* ---- prices ---- */

static double measured_rate(const struct bl_type_rate *r, double tok)
{
    double at = log2(fmax(tok, 1));

    for (unsigned i = 0; i + 1 < BL_N_RATE_TOKENS; i++) {
        const double low = log2(bl_rate_tokens[i]), high = log2(bl_rate_tokens[i + 1]);
        const double next = r->macs_per_s[i + 1] > 0 ? r->macs_per_s[i + 1] : r->macs_per_s[i];
        if (at <= high) {
            const double t = fmax(0, (at - low) / (high - low));
            return r->macs_per_s[i] + t * (next - r->macs_per_s[i]);
        }
    }
    return r->macs_per_s[BL_N_RATE_TOKENS - 1];
}

static double read_ns(const struct bl_pricing *p, const struct bl_cost_key *k,
                      const struct bl_work *w)
{
    const struct bl_type_rate *r = bl_type_rate_of(p->device, (enum bl_dtype)w->type);

    if (r->decode_bps > 0)
        return w->weight_bytes / r->decode_bps * 1e9;
    if (p->gpu)
        return bl_cost_gpu_memory_ns(p->table, k, &p->card, w->weight_bytes);
    if (w->n_tok > BL_FEW_TOKENS)
        return w->weight_bytes / bl_cost_ram_bps(p->table, k, &p->cpu, &p->many) * 1e9;
    return bl_cost_cpu_weights_ns(p->table, k, &p->cpu, &p->few, w->weight_bytes, w->weights);
}

static double product_ns(const struct bl_pricing *p, const struct bl_cost_key *k,
                         const struct bl_work *w)
{
    const double rate =
        measured_rate(bl_type_rate_of(p->device, (enum bl_dtype)w->type), w->tok_per_matrix);

    if (rate > 0)
        return w->macs / rate * 1e9;
    if (p->gpu)
        return bl_cost_gpu_matmul_ns(p->table, k, &p->card, w->macs, w->tok_per_matrix, w->ffn);
    return bl_cost_cpu_matmul_ns(p->table, k, &p->cpu, &p->many, w->macs, w->tok_per_matrix,
                                 w->ffn);
}

static double context_ns(const struct bl_pricing *p, const struct bl_work *w)
{
    struct bl_cost_key k = p->key;

    if (w->n_tok > BL_FEW_TOKENS)
        return p->gpu ? bl_cost_gpu_attend_ns(p->table, &k, &p->card, w->attend_macs)
                      : bl_cost_cpu_attend_ns(p->table, &k, &p->cpu, &p->many, w->attend_macs);
    const double share = bl_cost_look(p->table, BL_COST_CACHE_SHARE, &k);
    if (p->gpu)
        return w->state_bytes / (p->card.bps * share) * 1e9;
    k.figure = BL_COST_MEASURED;
    return w->state_bytes / (bl_cost_ram_bps(p->table, &k, &p->cpu, &p->few) * share) * 1e9;
}

double bl_work_ns(const struct bl_pricing *p, const struct bl_work *w)
{
    struct bl_cost_key k = p->key;
    double ns = 0;

    k.quant = (uint8_t)quant_of(w->type);
    if (w->weight_bytes > 0)
        ns = read_ns(p, &k, w);
    if (w->n_tok > BL_FEW_TOKENS && w->macs > 0)
        ns = bl_cost_soft_max(ns, product_ns(p, &k, w), 3);
    if (w->state_bytes > 0)
        ns += context_ns(p, w);
    return ns;
}

double bl_index_ns(const struct bl_pricing *p, double ctx_tokens)
{
    return ctx_tokens * bl_cost_look(p->table, BL_COST_INDEX, &p->key);
}

double bl_layer_fixed_ns(const struct bl_pricing *p, const struct bl_model *m, int layer,
                         uint32_t n_tok)
{
    struct bl_cost_key k = p->key;

    if (layer < 0 || p->device->step_ns > 0)
        return 0;
    if (n_tok > BL_FEW_TOKENS)
        return bl_cost_look(p->table, BL_COST_UBATCH_LAYER, &k);
    k.kind = (uint8_t)kind_of(m, (uint32_t)layer);
    return bl_cost_layer_ns(p->table, &k, &p->cpu, &p->few, p->heads, m->layer[layer].moe);
}

double bl_node_fixed_ns(const struct bl_pricing *p)
{
    return p->device->step_ns;
}

double bl_stream_ns(const struct bl_pricing *card, const struct bl_work *w, double link_bps,
                    bool measured)
{
    struct bl_cost_key k = card->key;

    k.quant = (uint8_t)quant_of(w->type);
    const double link = measured ? w->weight_bytes / link_bps * 1e9
                                 : bl_cost_link_ns(card->table, &k, link_bps, w->weight_bytes);
    return bl_cost_soft_max(link, product_ns(card, &k, w), 3);
}

/* SPDX-License-Identifier: MIT */
#include "node_cost.h"

#include <math.h>
#include <string.h>

/* ---- what a device is to the cost model ---- */

enum bl_cost_quant bl_cost_quant_of(uint8_t type)
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

enum bl_cost_kind bl_cost_kind_of(const struct bl_model *m, uint32_t layer)
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

static uint32_t count_bits(uint64_t mask)
{
    uint32_t n = 0;
    for (; mask; mask &= mask - 1)
        n++;
    return n;
}

/* As the plan says; else decode stays on one memory node while the weights fit there. */
static void init_cpu(struct bl_pricing *p, const struct bl_plan *plan)
{
    const struct bl_machine_device *d = p->device;
    const uint32_t cores = cores_of(d), domains = d->n_domains ? d->n_domains : 1;
    const bool spread = domains > 1 && (plan->nodes ? count_bits(plan->nodes) > 1
                                                    : bl_ledger_planned(&plan->ledger, 0) >
                                                          d->domain[0].usable_bytes);
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
        if (bl_cost_kind_of(m, l) == BL_COST_V4 || bl_cost_kind_of(m, l) == BL_COST_MLA)
            kind = bl_cost_kind_of(m, l);
    *p = (struct bl_pricing){
        .device = d,
        .table = table,
        .gpu = d->kind == BL_KIND_GPU,
        .heads = m->layer[0].n_head,
        .slowed = d->kind == BL_KIND_CPU ? 1 / (1 - plan->slot_load) : 1,
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

/* Multiply-adds per second with so many tokens. A pass over a weight takes a time for unpacking it
 * and one for each token, so that times are straight lines between the numbers of tokens that were
 * measured, and behind the last two. */
static double measured_rate(const struct bl_type_rate *r, double tok)
{
    double from = 0, from_s = 0, slope = 0;

    for (unsigned i = 0; i < BL_N_RATE_TOKENS && r->macs_per_s[i] > 0; i++) {
        const double n = bl_rate_tokens[i], s = n / r->macs_per_s[i];
        if (i > 0 || tok <= n) /* of fewer than the first: as much for each */
            slope = (s - from_s) / (n - from);
        if (tok <= n)
            return tok / (from_s + (tok - from) * slope);
        from = n;
        from_s = s;
    }
    return from > 0 ? tok / (from_s + (tok - from) * (slope > 0 ? slope : from_s / from)) : 0;
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

/* ---- prices of a device whose kernels were measured ---- */

static const struct bl_step_rate *step_rate(const struct bl_pricing *p, uint32_t n_tok)
{
    return &p->device->step_rate[n_tok > BL_FEW_TOKENS ? BL_STEP_MANY : BL_STEP_FEW];
}

bool bl_kernels_measured(const struct bl_machine_device *d)
{
    return d->step_rate[BL_STEP_FEW].moved_bps > 0 && d->step_rate[BL_STEP_MANY].moved_bps > 0 &&
           d->rate_default.decode_bps > 0;
}

/* What no figure is known of costs nothing: it was too small to tell. */
static double at_rate(double work, double rate)
{
    return work > 0 && rate > 0 ? work / rate * 1e9 : 0;
}

/* Threads of many tokens share a matrix by panels; one of fewer rows leaves some of them idle. */
static double idle_share(const struct bl_pricing *p, const struct bl_work *w)
{
    const double panel = 32, threads = p->many.threads ? p->many.threads : 1;

    if (w->ffn > 0 || !w->rows)
        return 1;
    return ceil(w->rows / (panel * threads)) * panel * threads / w->rows;
}

/* Few tokens wait for weights; many multiply them while others come from memory. How much of the
 * reading that hides was fitted to prompts of eleven models, of whose weights a chunk of 512 tokens
 * uses each ten to 512 times. */
static double known_weights_ns(const struct bl_pricing *p, const struct bl_work *w)
{
    const struct bl_type_rate *r = bl_type_rate_of(p->device, (enum bl_dtype)w->type);
    const bool few = w->n_tok <= BL_FEW_TOKENS;
    const double read =
        at_rate(w->weight_bytes, few ? r->decode_bps : bl_device_read_bps(p->device));

    if (few && w->tok_per_matrix <= 1)
        return read;
    const double macs = few ? w->macs : w->padded_macs * idle_share(p, w);
    return bl_cost_soft_max(read, at_rate(macs, measured_rate(r, w->tok_per_matrix)), 1.5);
}

/* Scores, products and values cost arithmetic. What is read for few tokens was measured as it comes
 * from memory; for many it may wait for that besides. */
static double known_context_ns(const struct bl_pricing *p, const struct bl_work *w)
{
    const bool few = w->n_tok <= BL_FEW_TOKENS;
    const struct bl_kv_rate *r =
        bl_kv_rate_of(p->device, few ? BL_STEP_FEW : BL_STEP_MANY, (enum bl_dtype)w->kv_type);
    const double latent = r->latent_macs_per_s > 0 ? w->latent_macs : 0;
    const double ns =
        at_rate(w->scores, r->scores_per_s) + at_rate(w->attend_macs - latent, r->macs_per_s) +
        at_rate(latent, r->latent_macs_per_s) + at_rate(w->cache_values, r->values_per_s) +
        at_rate(w->state_values, step_rate(p, w->n_tok)->state_values_per_s);

    return few ? ns
               : bl_cost_soft_max(ns, at_rate(w->state_bytes, bl_device_read_bps(p->device)), 3);
}

static double known_ns(const struct bl_pricing *p, const struct bl_work *w)
{
    const struct bl_step_rate *r = step_rate(p, w->n_tok);

    return known_weights_ns(p, w) + known_context_ns(p, w) +
           at_rate(w->arranged, r->arranged_per_s) + at_rate(w->moved_bytes, r->moved_bps) +
           (w->steps - 1) * p->device->step_ns;
}

double bl_work_ns(const struct bl_pricing *p, const struct bl_work *w)
{
    struct bl_cost_key k = p->key;
    double ns = 0;

    if (bl_kernels_measured(p->device))
        return known_ns(p, w);

    k.quant = (uint8_t)bl_cost_quant_of(w->type);
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
    if (bl_kernels_measured(p->device)) /* counted as work */
        return 0;
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
    k.kind = (uint8_t)bl_cost_kind_of(m, (uint32_t)layer);
    return bl_cost_layer_ns(p->table, &k, &p->cpu, &p->few, p->heads, m->layer[layer].moe);
}

double bl_node_fixed_ns(const struct bl_pricing *p)
{
    return p->device->step_ns;
}

/* Layers are built one after the other. */
static bool begins_attention(const struct bl_graph *g, const struct bl_node *n)
{
    if (n->part != BL_PART_ATTN || n->layer < 0)
        return false;
    for (const struct bl_node *before = n; before > g->nodes && before[-1].layer == n->layer;)
        if ((--before)->part == BL_PART_ATTN)
            return false;
    return true;
}

static uint32_t count_choices(const struct bl_graph *g)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->n_nodes; i++)
        n += g->nodes[i].op == BL_OP_CHOOSE;
    return n;
}

static double chunk_share(const struct bl_graph *g, const struct bl_node *n,
                          const struct bl_node_step *step)
{
    const struct bl_experts_attr *at = n->op == BL_OP_EXPERTS ? bl_node_attr(g, n) : NULL;
    return at && at->chunks && step->cut
               ? bl_chunk_share(step->cut, at->chunk, at->n_used, step->n_tok)
               : 1;
}

double bl_chunk_bytes(const struct bl_chunking *c, const struct bl_graph *g,
                      const struct bl_node *n, uint32_t n_tok)
{
    const struct bl_experts_attr *at = bl_node_attr(g, n);
    return (double)c->table_bytes +
           bl_chunk_experts(c, at->chunk, at->n_used, n_tok) * (double)c->expert_bytes;
}

uint32_t bl_chunk_copies(const struct bl_chunking *c, bool staged)
{
    return staged ? 1 : 1 + c->n_tensors;
}

/* Read and written by one thread. */
double bl_host_copy_ns(const struct bl_machine_device *host, double bytes)
{
    const double one_thread_bps = 12e9, bps = bl_device_read_bps(host) / 2;
    return bytes / (bps > 0 && bps < one_thread_bps ? bps : one_thread_bps) * 1e9;
}

double bl_node_ns(const struct bl_pricing *p, const struct bl_graph *g, const struct bl_node *n,
                  const struct bl_node_step *step, struct bl_work *w)
{
    bl_work_count(w, g, n, step->n_tok, step->depth_tokens);
    bl_work_share(w, step->share * chunk_share(g, n, step));
    const double slowed = w->n_tok <= BL_FEW_TOKENS ? p->slowed : 1;
    double ns = bl_work_ns(p, w) * slowed + bl_node_fixed_ns(p);
    if (w->index_tok > 0 && w->n_tok <= BL_FEW_TOKENS)
        ns += bl_index_ns(p, w->index_tok) / count_choices(g);
    if (begins_attention(g, n))
        ns += bl_layer_fixed_ns(p, step->model, n->layer, w->n_tok);
    return ns;
}

double bl_stream_ns(const struct bl_pricing *card, const struct bl_work *w, double link_bps,
                    bool measured)
{
    struct bl_cost_key k = card->key;

    k.quant = (uint8_t)bl_cost_quant_of(w->type);
    const double link = measured ? w->weight_bytes / link_bps * 1e9
                                 : bl_cost_link_ns(card->table, &k, link_bps, w->weight_bytes);
    return bl_cost_soft_max(link, product_ns(card, &k, w), 3);
}

/* SPDX-License-Identifier: MIT */
/* peers.c — what other programs reach with a placement: their runs, described to the cost model. */
#include "placement.h"

#include "machine_file.h"
#include "node_cost.h"

#include <math.h>
#include <string.h>

struct filling {
    struct bl_peer_run *out;
    const struct bl_placement *p;
    const struct bl_plan *plan;
    double dense[BL_N_DTYPES], expert[BL_N_DTYPES]; /* bytes that a token reads, by type */
    double on_card[BL_MAX_DEVICES];                 /* likewise, by device */
    double states_in_ram, states;                   /* layers whose cached state is there; all */
};

static bool is_card(const struct bl_placement *p, uint16_t d)
{
    return p->machine.device[d].kind == BL_KIND_GPU;
}

/* ---- the model ---- */

static void fill_layers(struct filling *f)
{
    const struct bl_model *m = f->p->model;
    struct bl_cost_run *r = &f->out->run;

    for (uint32_t l = 0; l < m->hp.n_layer; l++) {
        r->layers[bl_cost_kind_of(m, l)]++;
        r->moe_layers += m->layer[l].moe;
        f->states++;
        f->states_in_ram += !is_card(f->p, bl_plan_device(f->plan, (int)l, BL_PART_STATE));
    }
    r->heads = m->layer[0].n_head;
    r->experts = m->hp.n_expert;
    r->experts_per_token = m->hp.n_expert_used;
    r->expert_ffn = m->hp.n_ff_expert;
}

/* Latent rows are expanded to heads when a prompt is read: shorter products than with the rows. */
static double attend_macs(const struct bl_model *m, const struct bl_node *n,
                          const struct bl_work *w)
{
    const struct bl_layer *l = n->layer >= 0 ? &m->layer[n->layer] : NULL;

    if (!l || l->role[BL_W_ATTN_K_B].w < 0 || l->role[BL_W_ATTN_V_B].w < 0)
        return w->attend_macs;
    const double dk = m->weight[l->role[BL_W_ATTN_K_B].w].ne[0] + m->hp.rope_dims,
                 dv = m->weight[l->role[BL_W_ATTN_V_B].w].ne[1];
    return w->attend_macs / (m->hp.dk + m->hp.dv) * (dk + dv);
}

static void count_token(struct filling *f, const struct bl_node *n, const struct bl_work *w)
{
    const uint16_t d = bl_plan_device(f->plan, n->layer, n->part);
    const enum bl_cost_where where = is_card(f->p, d) ? BL_COST_ON_GPU : BL_COST_IN_RAM;
    struct bl_cost_run *r = &f->out->run;
    const bool experts = n->op == BL_OP_EXPERTS;
    struct bl_cost_load *load = experts ? &r->expert[where] : &r->dense[where];

    load->bytes += w->weight_bytes;
    load->weights += w->weights;
    (experts ? f->expert : f->dense)[w->type] += w->weight_bytes;
    f->on_card[d] += w->weight_bytes;
    if (r->layers[BL_COST_V4] > 0)
        return; /* what costs there is choosing among rows, not reading them */
    if (n->op == BL_OP_DELTA_RULE)
        r->state_bytes += w->state_bytes;
    else
        r->cache_fixed_bytes += w->state_bytes;
}

static enum bl_status build(const struct filling *f, struct bl_graph *g, uint32_t n_tok)
{
    const struct bl_shape s = bl_plan_bucket(&f->p->choice.plan, n_tok, 1);
    return bl_model_build(f->p->model, &s, g);
}

static enum bl_status fill_decode(struct filling *f)
{
    struct bl_graph g;

    bl_graph_init(&g);
    const enum bl_status st = build(f, &g, 1);
    for (uint32_t i = 0; !st && i < g.n_nodes; i++) {
        struct bl_work w;
        bl_work_count(&w, &g, &g.nodes[i], 1, f->p->choice.depth_tokens);
        count_token(f, &g.nodes[i], &w);
    }
    bl_graph_finish(&g);
    return st;
}

/* Attention of a step is counted at the depth that is asked for: nothing is left to multiply. */
static enum bl_status fill_prefill(struct filling *f)
{
    const uint32_t n_tok = f->p->choice.plan.ubatch_tokens;
    struct bl_cost_run *r = &f->out->run;
    struct bl_graph g;

    bl_graph_init(&g);
    const enum bl_status st = build(f, &g, n_tok);
    for (uint32_t i = 0; !st && i < g.n_nodes; i++) {
        struct bl_work w;
        bl_work_count(&w, &g, &g.nodes[i], n_tok, f->p->choice.depth_tokens);
        r->attend_fixed_macs += attend_macs(f->p->model, &g.nodes[i], &w) / n_tok;
    }
    bl_graph_finish(&g);
    r->depth = (double)f->p->choice.depth_tokens;
    r->prompt = r->ubatch = n_tok;
    r->prompt_depth = r->depth + n_tok / 2.0;
    return st;
}

/* What is there is what a token reads, times the experts for each that it chooses. */
static void fill_held(struct bl_cost_run *r)
{
    const double all = r->experts_per_token > 0 ? r->experts / r->experts_per_token : 0;

    for (unsigned w = 0; w < BL_N_COST_PLACES; w++)
        r->held[w] = (struct bl_cost_load){r->expert[w].bytes * all, r->expert[w].weights * all};
}

static enum bl_cost_quant largest(const double bytes[BL_N_DTYPES], enum bl_cost_quant otherwise)
{
    unsigned best = 0;

    for (unsigned t = 1; t < BL_N_DTYPES; t++)
        if (bytes[t] > bytes[best])
            best = t;
    return bytes[best] > 0 ? bl_cost_quant_of((uint8_t)best) : otherwise;
}

/* ---- the machine ---- */

static double from_host_bps(const struct bl_machine *m, uint16_t card)
{
    double latency;
    return bl_machine_path_bps(m, 0, card, &latency);
}

/* Prompts use every core, whichever node decoding stays on. */
static void fill_host(struct filling *f)
{
    const struct bl_placement *p = f->p;
    const struct bl_machine_device *d = &p->machine.device[0];
    struct bl_cost_run *r = &f->out->run;
    struct bl_pricing host;

    bl_pricing_init(&host, d, p->model, &p->choice.plan, NULL);
    r->isa = host.key.isa;
    r->figure = host.key.figure;
    r->cpu = host.cpu;
    r->decode_team = host.few;
    r->prefill_team = host.many;
    if (d->n_domains > 1 && host.many.threads > d->domain[0].n_cores && d->domain[0].n_cores)
        r->prefill_team.domains = d->n_domains;
}

static void fill_cards(struct filling *f)
{
    const struct bl_placement *p = f->p;
    struct bl_cost_run *r = &f->out->run;
    double all = 0;

    for (uint16_t d = 0; d < p->machine.n_devices; d++)
        all += is_card(p, d) ? f->on_card[d] : 0;
    for (uint16_t d = 0; d < p->machine.n_devices; d++) {
        struct bl_pricing card;
        if (!is_card(p, d) || !(f->on_card[d] > 0))
            continue;
        bl_pricing_init(&card, &p->machine.device[d], p->model, &p->choice.plan, NULL);
        if (!r->n_gpus)
            r->backend = card.key.backend;
        r->unified = r->unified || card.key.unified;
        card.card.link_bps = from_host_bps(&p->machine, d);
        card.card.share = f->on_card[d] / all;
        f->out->gpu[r->n_gpus++] = card.card;
    }
    r->cache_in_ram = r->n_gpus && f->states_in_ram > f->states / 2;
}

/* ---- the whole ---- */

enum bl_status bl_peer_run_fill(struct bl_peer_run *out, const struct bl_placement *p,
                                enum bl_peer peer, const struct bl_plan *plan)
{
    static const enum bl_cost_engine engine[BL_N_PEERS] = {BL_COST_LLAMACPP, BL_COST_IK,
                                                           BL_COST_DS4, BL_COST_KTRANSFORMERS};
    struct filling f = {.out = out, .p = p, .plan = plan};
    struct bl_cost_run *r = &out->run;

    *out = (struct bl_peer_run){.run = {.engine = engine[peer], .backend = BL_COST_CPU}};
    fill_layers(&f);
    BL_TRY(fill_decode(&f));
    BL_TRY(fill_prefill(&f));
    fill_held(r);
    r->dense_quant = largest(f.dense, BL_COST_NIBBLE);
    r->expert_quant = largest(f.expert, r->dense_quant);
    fill_host(&f);
    fill_cards(&f);
    r->gpu = out->gpu;
    r->repacked = peer == BL_PEER_IK && !r->n_gpus; /* as its flags ask for */
    return BL_OK;
}

uint32_t bl_peer_stream_from(const struct bl_peer_run *p)
{
    struct bl_cost_table table;

    bl_cost_table_init(&table);
    const double from = bl_cost_stream_from(&table, &p->run);
    return isfinite(from) ? (uint32_t)from : 0;
}

static bool runs_on(const struct bl_peer_run *p, enum bl_peer peer)
{
    return peer != BL_PEER_IK || !p->run.n_gpus || p->run.backend == BL_COST_CUDA;
}

static struct bl_speed speed_of(double ns, double sd)
{
    return isfinite(ns) && ns > 0 ? (struct bl_speed){1e9 / ns, sd} : (struct bl_speed){0};
}

enum bl_status bl_placement_peer(const struct bl_placement *p, enum bl_peer peer,
                                 struct bl_peer_speed *out)
{
    struct bl_cost_table table;
    struct bl_cost_time decode, prefill;
    struct bl_peer_run run;
    struct bl_plan plan;

    BL_TRY(bl_peer_plan(&plan, p, peer));
    const enum bl_status st = bl_peer_run_fill(&run, p, peer, &plan);
    bl_plan_finish(&plan);
    BL_TRY(st);
    if (!runs_on(&run, peer))
        return bl_fail(BL_EUNSUPPORTED, "%s supports the CPU and CUDA, not these cards",
                       bl_peer_name(peer));
    bl_cost_table_init(&table);
    bl_cost_decode(&table, &run.run, &decode);
    bl_cost_prefill(&table, &run.run, &prefill);
    *out = (struct bl_peer_speed){
        .decode = speed_of(decode.ns, bl_cost_decode_sd(&table, &run.run)),
        .prefill = speed_of(prefill.ns, bl_cost_prefill_sd(&table, &run.run)),
        .stream_from_tok = bl_peer_stream_from(&run)};
    return BL_OK;
}

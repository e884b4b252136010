/* SPDX-License-Identifier: MIT */
/* Weights: read for one token, multiplied with several. */
#include "probe_impl.h"

#include "backends.h"
#include "numa.h"
#include "thread.h"

#include <stdio.h>

enum {
    COLUMNS = 4096,    /* of matrices that meet several tokens */
    MOST_ROWS = 2048,  /* of them, so that they stay in caches */
    CARD_ROWS = 16384, /* on a card, which has more to keep busy */
    LEAST_ROWS = 64,
    SIDE = 3072, /* of matrices read for one token: a few MiB each, as in models */
    FIRST_WEIGHT = 1000
};
static const double run_s = 1e-2; /* of the runs that a figure is the median of */

static uint64_t node_bit(const struct bl_domain *o)
{
    return o->node < BL_MAX_NODES ? (uint64_t)1 << o->node : 0;
}

/* Index of the domain that decodes. */
static uint32_t home_domain(const struct bl_probe *p)
{
    const struct bl_cpus *c = p->machine->cpus;
    for (uint32_t i = 0; c && i < p->dev->n_domains; i++)
        if (p->dev->domain[i].node == c->node[c->home].id)
            return i;
    return 0;
}

uint64_t bl_probe_home_bit(const struct bl_probe *p)
{
    return p->dev->n_domains > 1 ? node_bit(&p->dev->domain[home_domain(p)]) : 0;
}

static uint32_t rows_in_block(const struct bl_probe *p, enum bl_dtype type)
{
    return (uint32_t)(p->weights.n / bl_dtype_row_bytes(type, COLUMNS));
}

/* ---- reading ---- */

/* Decode as models do it: matrices one after the other, each waiting for the one before. A single
 * large matrix would be read some percent faster. */
static enum bl_status build_chain(struct bl_rig *r, const struct bl_rig_block *block,
                                  enum bl_dtype type, uint64_t *bytes)
{
    const uint64_t each = bl_dtype_row_bytes(type, SIDE) * SIDE;
    const uint32_t n = block->n > each ? (uint32_t)(block->n / each) : 1;
    bl_rig_clear(r);
    bl_val x = bl_rig_input(r, SIDE, 1);
    for (uint32_t i = 0; i < n; i++)
        x = bl_graph_matmul(&r->graph,
                            bl_graph_weight(&r->graph, FIRST_WEIGHT + (int32_t)i, type,
                                            (uint32_t[]){SIDE, SIDE, 1}),
                            x, 0, 0);
    *bytes = each * n;
    return bl_rig_ready(r, block, 1);
}

enum bl_status bl_probe_time_read(struct bl_probe *p, struct bl_rig *r,
                                  const struct bl_rig_block *block, enum bl_dtype type, double *bps)
{
    uint64_t bytes;
    double ns;
    BL_TRY(build_chain(r, block, type, &bytes));
    const uint64_t start = bl_now_ns(), cpu = bl_process_ns();
    BL_TRY(bl_rig_time(r, BL_PROBE_RUNS, bl_probe_cell_ns, &ns));
    p->cpu_ns += bl_process_ns() - cpu;
    p->wanted_ns += (bl_now_ns() - start) * r->dev->caps.threads;
    *bps = (double)bytes / ns * 1e9;
    return BL_OK;
}

static enum bl_status read_by(struct bl_probe *p, const struct bl_rig_block *block,
                              uint32_t threads, double *bps)
{
    struct bl_rig r;
    const struct bl_device_config c = bl_probe_config(p, threads);
    BL_TRY(bl_rig_open(&r, p->dev->backend, &c));
    const enum bl_status st = bl_probe_time_read(p, &r, block, BL_Q8_0, bps);
    bl_rig_close(&r);
    return st;
}

static enum bl_status read_rates(struct bl_probe *p, const struct bl_rig_block *block,
                                 uint32_t domains, uint32_t first, uint32_t most)
{
    enum bl_status st = BL_OK;
    for (uint32_t n = first;
         !st && n && p->dev->n_read_rates < BL_MAX_READ_RATES && !bl_probe_late(p);
         n = bl_probe_next_count(n, most)) {
        struct bl_read_rate rate = {n, domains, 0};
        st = read_by(p, block, n, &rate.bps);
        if (!st)
            p->dev->read_rate[p->dev->n_read_rates++] = rate;
    }
    return st;
}

/* Of memory that lies on some nodes. */
static enum bl_status read_rates_on(struct bl_probe *p, uint64_t nodes, uint32_t domains,
                                    uint32_t first, uint32_t most)
{
    struct bl_rig_block block;
    BL_TRY(bl_probe_take(p, nodes, &block));
    const enum bl_status st = read_rates(p, &block, domains, first, most);
    bl_probe_give(&block);
    return st;
}

static double best_rate(const struct bl_machine_device *d, uint32_t domains)
{
    double best = 0;
    for (uint32_t i = 0; i < d->n_read_rates; i++)
        if (d->read_rate[i].domains == domains && d->read_rate[i].bps > best)
            best = d->read_rate[i].bps;
    return best;
}

/* Domains are alike; the one that decodes is measured, by its own cores and, from there, another.
 */
static enum bl_status read_domains(struct bl_probe *p)
{
    struct bl_machine_device *d = p->dev;
    const uint32_t home = home_domain(p), all_n = bl_probe_many_threads(p);
    const uint32_t most =
        d->domain[home].n_cores < all_n ? d->domain[home].n_cores : all_n; /* a quota may be less */
    struct bl_rig_block block;
    double far = 0;
    uint64_t all = 0;
    for (uint32_t i = 0; i < d->n_domains; i++)
        all |= node_bit(&d->domain[i]);
    BL_TRY(read_rates_on(p, node_bit(&d->domain[home]), 1, 1, most));
    BL_TRY(read_rates_on(p, all, d->n_domains, most, all_n));
    BL_TRY(bl_probe_take(p, node_bit(&d->domain[home ? 0 : 1]), &block));
    const enum bl_status st = read_by(p, &block, most, &far);
    bl_probe_give(&block);
    for (uint32_t i = 0; i < d->n_domains; i++) {
        d->domain[i].read_measured_bps = best_rate(d, 1);
        d->domain[i].far_bps = far;
    }
    return st;
}

enum bl_status bl_probe_reading(struct bl_probe *p)
{
    struct bl_machine_device *d = p->dev;
    bl_probe_say(p, "reading memory");
    const struct bl_rig_block block = bl_probe_cache_of(&p->states);
    BL_TRY(d->n_domains > 1 ? read_domains(p)
                            : read_rates(p, &block, 1, 1, bl_probe_many_threads(p)));
    d->read_measured_bps = best_rate(d, d->n_domains > 1 ? d->n_domains : 1);
    return BL_OK;
}

/* ---- types ---- */

/* The commonest first, lest time runs out. */
static const uint8_t common[] = {BL_Q4_K, BL_Q8_0, BL_F16,  BL_Q6_K,  BL_MXFP4,
                                 BL_Q5_K, BL_Q4_0, BL_BF16, BL_IQ4_XS};
enum { QUICK_TYPES = 4 };

uint32_t bl_probe_common(uint32_t i)
{
    return i < BL_COUNT(common) ? common[i] : BL_N_DTYPES;
}

/* Rows that take about a run's time, from what fewer tokens took: of the `have` in the block,
 * enough for every thread. */
static uint32_t rows_for(double macs_per_s, uint32_t n_tok, const struct bl_probe *p, uint32_t have)
{
    const uint32_t usual = p->dev->kind == BL_KIND_GPU ? CARD_ROWS : MOST_ROWS;
    const uint32_t threads = bl_probe_many_threads(p) * LEAST_ROWS;
    const uint32_t most = threads > usual ? threads : usual;
    const double wanted = macs_per_s * run_s / ((double)COLUMNS * n_tok);
    uint32_t rows = wanted > most ? most : (uint32_t)wanted;
    rows = rows < LEAST_ROWS ? LEAST_ROWS : rows / LEAST_ROWS * LEAST_ROWS;
    return rows < have ? rows : have;
}

static enum bl_status time_product(struct bl_rig *r, const struct bl_probe *p, enum bl_dtype type,
                                   uint32_t rows, uint32_t n_tok, double *ns)
{
    bl_rig_clear(r);
    const bl_val x = bl_rig_input(r, COLUMNS, n_tok);
    const bl_val w = bl_graph_weight(&r->graph, FIRST_WEIGHT, type, (uint32_t[]){COLUMNS, rows, 1});
    bl_graph_matmul(&r->graph, w, x, 0, 0);
    BL_TRY(bl_rig_ready(r, &p->weights, n_tok));
    return bl_rig_time(r, BL_PROBE_RUNS, bl_probe_cell_ns, ns);
}

/* A product with hardly any rows is arranging and those rows; one with many tells what they take.
 */
static enum bl_status measure_arranging(struct bl_probe *p, struct bl_rig *many)
{
    enum { TOKENS = 512 };
    const uint32_t few_rows = LEAST_ROWS * many->dev->caps.threads;
    const uint32_t have = rows_in_block(p, BL_Q8_0);
    double few, all;
    const uint32_t rows = 8 * few_rows < have ? 8 * few_rows : have;
    BL_TRY(time_product(many, p, BL_Q8_0, few_rows, TOKENS, &few));
    BL_TRY(time_product(many, p, BL_Q8_0, rows, TOKENS, &all));
    const double ns = (few * rows - all * few_rows) / (rows - few_rows);
    if (ns > 0)
        p->dev->step_rate[BL_STEP_MANY].arranged_per_s = (double)TOKENS * COLUMNS / ns * 1e9;
    return BL_OK;
}

/* What the product itself is not: arranging, and on a card the starting of it. */
static double arranging_ns(const struct bl_probe *p, uint32_t n_tok)
{
    if (p->dev->kind == BL_KIND_GPU)
        return p->dev->launch_ns;
    const double rate = p->dev->step_rate[BL_STEP_MANY].arranged_per_s;
    return rate > 0 && n_tok > BL_FEW_TOKENS ? (double)n_tok * COLUMNS / rate * 1e9 : 0;
}

enum bl_status bl_probe_type(struct bl_probe *p, struct bl_rig *few, struct bl_rig *many,
                             enum bl_dtype t)
{
    struct bl_type_rate rate = {0};
    const uint32_t rows = rows_in_block(p, t);
    BL_TRY(bl_probe_time_read(p, few, &p->weights, t, &rate.decode_bps));
    double ns, macs = rate.decode_bps * COLUMNS / (double)bl_dtype_row_bytes(t, COLUMNS);
    for (unsigned i = 0; i < BL_N_RATE_TOKENS; i++) {
        const uint32_t n_tok = bl_rate_tokens[i], n = rows_for(macs, n_tok, p, rows);
        /* steps of few tokens run on decode's threads */
        struct bl_rig *r = n_tok <= BL_FEW_TOKENS ? few : many;
        BL_TRY(time_product(r, p, t, n, n_tok, &ns));
        const double own = ns - arranging_ns(p, n_tok);
        macs = (double)COLUMNS * n * n_tok / (own > ns / 2 ? own : ns / 2) * 1e9;
        rate.macs_per_s[i] = macs;
    }
    p->dev->rate[t] = rate;
    return BL_OK;
}

static enum bl_status measure_list(struct bl_probe *p, struct bl_rig *few, struct bl_rig *many)
{
    const size_t n_common = p->plan->quick ? QUICK_TYPES : BL_COUNT(common);
    uint32_t left_out = 0;
    if (!bl_probe_late(p))
        BL_TRY(measure_arranging(p, many));
    for (size_t i = 0; i < n_common && !bl_probe_late(p); i++)
        BL_TRY(bl_probe_type(p, few, many, (enum bl_dtype)common[i]));
    p->dev->rate_default = p->dev->rate[common[0]];
    const bool all = !p->plan->quick && p->round % 3 == 0;
    for (unsigned t = 0; t < BL_N_DTYPES && all; t++) {
        if (bl_dtypes[t].act == BL_ACT_NONE || p->dev->rate[t].decode_bps > 0)
            continue;
        if (bl_probe_late(p))
            left_out++;
        else
            BL_TRY(bl_probe_type(p, few, many, (enum bl_dtype)t));
    }
    if (left_out) {
        char text[64];
        snprintf(text, sizeof text, "no time was left for %u types", left_out);
        bl_probe_say(p, text);
    }
    return BL_OK;
}

enum bl_status bl_probe_types(struct bl_probe *p)
{
    struct bl_rig few = {0}, many = {0};
    const struct bl_device_config c[2] = {bl_probe_config(p, bl_probe_few_threads(p)),
                                          bl_probe_config(p, bl_probe_many_threads(p))};
    bl_probe_say(p, "kernels by type");
    enum bl_status st = bl_rig_open(&few, p->dev->backend, &c[0]);
    if (!st)
        st = bl_rig_open(&many, p->dev->backend, &c[1]);
    if (!st)
        st = measure_list(p, &few, &many);
    bl_rig_close(&many);
    bl_rig_close(&few);
    return st;
}

/* SPDX-License-Identifier: MIT */
/* Speeds of the device that runs the program, through the device contract: weights read for one
 * token, matrix products with some, meetings of threads, layers that cost nothing else. */
#include "probe.h"

#include "backends.h"
#include "mem.h"
#include "numa.h"
#include "synth.h"
#include "thread.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    COLUMNS = 4096,   /* of every matrix */
    MOST_ROWS = 2048, /* of those that meet several tokens, so that they stay in caches */
    LEAST_ROWS = 64,
    LEAST_BLOCK = 64 << 20, /* read for one token: no cache holds it */
    MOST_BLOCK = 512 << 20,
    RUNS = 5, /* of which the median counts */
    BARRIERS = 200,
    BARRIER_RUNS = 15,
    LAYERS = 8
};
static const uint64_t cell_ns = 120000000; /* for one figure */
static const double run_s = 1e-2;          /* of the runs that it is the median of */

struct probe {
    struct bl_machine *machine;
    struct bl_machine_device *dev;
    const struct bl_probe_plan *plan;
    uint64_t deadline_ns;
    unsigned char *block; /* weights */
    size_t block_bytes;
    uint64_t cpu_ns, wanted_ns; /* processor time had while reading, and wanted */
};

static bool late(const struct probe *p)
{
    return bl_now_ns() > p->deadline_ns;
}

static void note(const struct probe *p, const char *text)
{
    if (p->plan->note)
        p->plan->note(p->plan->arg, text);
}

/* Three digits: what a second measurement may agree to. */
static double rounded(double v)
{
    char text[32];
    if (!(v > 0) || !isfinite(v))
        return 0;
    snprintf(text, sizeof text, "%.3g", v);
    return strtod(text, NULL);
}

static struct bl_device_config config_of(const struct probe *p, uint32_t threads)
{
    struct bl_device_config c = p->dev->config;
    c.threads = c.threads_prefill = threads;
    c.nodes = 0;
    return c;
}

static uint32_t home_threads(const struct probe *p)
{
    return p->dev->config.threads ? p->dev->config.threads : 1;
}

static uint32_t all_threads(const struct probe *p)
{
    const uint32_t n = p->dev->config.threads_prefill;
    return n ? n : home_threads(p);
}

static uint64_t node_bit(const struct bl_domain *o)
{
    return o->node < BL_MAX_NODES ? (uint64_t)1 << o->node : 0;
}

/* Index of the domain that decodes. */
static uint32_t home_domain(const struct probe *p)
{
    const struct bl_cpus *c = p->machine->cpus;
    for (uint32_t i = 0; c && i < p->dev->n_domains; i++)
        if (p->dev->domain[i].node == c->node[c->home].id)
            return i;
    return 0;
}

static uint64_t home_bit(const struct probe *p)
{
    return p->dev->n_domains > 1 ? node_bit(&p->dev->domain[home_domain(p)]) : 0;
}

/* ---- weights --------------------------------------------------------------------------------- */

static enum bl_status take_block(struct probe *p, uint64_t nodes)
{
    const double want = 2 * p->dev->cache_bytes;
    size_t bytes = want > MOST_BLOCK ? MOST_BLOCK : want > LEAST_BLOCK ? (size_t)want : LEAST_BLOCK;
    if (bytes > p->dev->usable_bytes / 4)
        return bl_fail(BL_EUNAVAILABLE,
                       "probe: %zu MiB of memory to read in are more than a "
                       "quarter of what may be used",
                       bytes >> 20);
    void *block;
    BL_TRY(bl_pages_alloc(bytes, &block));
    if (nodes)
        (void)bl_numa_place(block, bytes, nodes);
    p->block = block;
    p->block_bytes = bytes;
    return BL_OK;
}

static void give_block(struct probe *p)
{
    bl_pages_free(p->block, p->block_bytes);
    p->block = NULL;
}

/* The same piece again and again: kernels do not look at how often. */
static enum bl_status fill_block(struct probe *p, enum bl_dtype type, uint32_t *rows)
{
    const uint64_t row = bl_dtype_row_bytes(type, COLUMNS);
    struct bl_synth_fill *fill;
    const void *piece;
    size_t done = 0;
    *rows = (uint32_t)(p->block_bytes / row);
    const struct bl_tensor_info t = {.name = "probe",
                                     .type_name = bl_dtypes[type].name,
                                     .type = type,
                                     .n_dims = 2,
                                     .ne = {COLUMNS, *rows, 1, 1},
                                     .bytes = row * *rows};
    BL_TRY(bl_synth_fill_create(&fill, &t, 1, 0));
    const size_t n = (size_t)bl_synth_fill_next(fill, &piece);
    while (n && done < p->block_bytes) {
        const size_t left = p->block_bytes - done;
        memcpy(p->block + done, piece, n < left ? n : left);
        done += n < left ? n : left;
    }
    bl_synth_fill_destroy(fill);
    return BL_OK;
}

static enum bl_status build_matmul(struct bl_rig *r, const struct probe *p, enum bl_dtype type,
                                   uint32_t rows, uint32_t n_tok)
{
    bl_rig_clear(r);
    const bl_val x = bl_rig_input(r, COLUMNS, n_tok);
    const bl_val w = bl_graph_weight(&r->graph, 0, type, (uint32_t[]){COLUMNS, rows, 1});
    bl_graph_matmul(&r->graph, w, x, 0, 0);
    return bl_rig_ready(r, p->block, n_tok);
}

/* ---- decode: weights from memory ------------------------------------------------------------- */

static enum bl_status time_read(struct probe *p, struct bl_rig *r, enum bl_dtype type,
                                uint32_t rows, double *bps)
{
    double ns;
    BL_TRY(build_matmul(r, p, type, rows, 1));
    const uint64_t start = bl_now_ns(), cpu = bl_process_ns();
    BL_TRY(bl_rig_time(r, RUNS, cell_ns, &ns));
    p->cpu_ns += bl_process_ns() - cpu;
    p->wanted_ns += (bl_now_ns() - start) * r->dev->caps.threads;
    *bps = rounded((double)(bl_dtype_row_bytes(type, COLUMNS) * rows) / ns * 1e9);
    return BL_OK;
}

static enum bl_status read_by(struct probe *p, uint32_t threads, uint32_t rows, double *bps)
{
    struct bl_rig r;
    const struct bl_device_config c = config_of(p, threads);
    BL_TRY(bl_rig_open(&r, p->dev->backend, &c));
    const enum bl_status st = time_read(p, &r, BL_Q8_0, rows, bps);
    bl_rig_close(&r);
    return st;
}

/* Thread counts from 1 by doubling, then the count itself. */
static uint32_t next_count(uint32_t n, uint32_t most)
{
    return n == most ? 0 : 2 * n > most ? most : 2 * n;
}

static enum bl_status read_rates(struct probe *p, uint64_t nodes, uint32_t domains, uint32_t first,
                                 uint32_t most)
{
    uint32_t rows;
    BL_TRY(take_block(p, nodes));
    enum bl_status st = fill_block(p, BL_Q8_0, &rows);
    for (uint32_t n = first; !st && n && p->dev->n_read_rates < BL_MAX_READ_RATES && !late(p);
         n = next_count(n, most)) {
        struct bl_read_rate rate = {n, domains, 0};
        st = read_by(p, n, rows, &rate.bps);
        if (!st)
            p->dev->read_rate[p->dev->n_read_rates++] = rate;
    }
    give_block(p);
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
static enum bl_status read_domains(struct probe *p)
{
    struct bl_machine_device *d = p->dev;
    const uint32_t home = home_domain(p), all_n = all_threads(p);
    const uint32_t most =
        d->domain[home].n_cores < all_n ? d->domain[home].n_cores : all_n; /* a quota may be less */
    uint32_t rows;
    double far = 0;
    uint64_t all = 0;
    for (uint32_t i = 0; i < d->n_domains; i++)
        all |= node_bit(&d->domain[i]);
    BL_TRY(read_rates(p, node_bit(&d->domain[home]), 1, 1, most));
    BL_TRY(read_rates(p, all, d->n_domains, most, all_n));
    BL_TRY(take_block(p, node_bit(&d->domain[home ? 0 : 1])));
    enum bl_status st = fill_block(p, BL_Q8_0, &rows);
    if (!st)
        st = read_by(p, most, rows, &far);
    give_block(p);
    for (uint32_t i = 0; i < d->n_domains; i++) {
        d->domain[i].read_measured_bps = best_rate(d, 1);
        d->domain[i].far_bps = far;
    }
    return st;
}

static enum bl_status measure_reading(struct probe *p)
{
    struct bl_machine_device *d = p->dev;
    note(p, "reading memory");
    BL_TRY(d->n_domains > 1 ? read_domains(p) : read_rates(p, 0, 1, 1, all_threads(p)));
    d->read_measured_bps = best_rate(d, d->n_domains > 1 ? d->n_domains : 1);
    return BL_OK;
}

/* ---- types ----------------------------------------------------------------------------------- */

/* The commonest first, lest time runs out. */
static const uint8_t common[] = {BL_Q4_K, BL_Q8_0, BL_F16,  BL_Q6_K,  BL_MXFP4,
                                 BL_Q5_K, BL_Q4_0, BL_BF16, BL_IQ4_XS};
enum { QUICK_TYPES = 4 };

/* Rows that take about a run's time, from what fewer tokens took: of the `have` in the block,
 * enough for every thread, and for arranging activations to be as small a part as in models. */
static uint32_t rows_for(double macs_per_s, uint32_t n_tok, uint32_t threads, uint32_t have)
{
    const uint32_t most = threads * LEAST_ROWS > MOST_ROWS ? threads * LEAST_ROWS : MOST_ROWS;
    const double wanted = macs_per_s * run_s / ((double)COLUMNS * n_tok);
    uint32_t rows = wanted > most ? most : (uint32_t)wanted;
    rows = rows < LEAST_ROWS ? LEAST_ROWS : rows / LEAST_ROWS * LEAST_ROWS;
    return rows < have ? rows : have;
}

static enum bl_status measure_type(struct probe *p, struct bl_rig *few, struct bl_rig *many,
                                   enum bl_dtype t)
{
    struct bl_type_rate rate = {0};
    uint32_t rows;
    BL_TRY(fill_block(p, t, &rows));
    BL_TRY(time_read(p, few, t, rows, &rate.decode_bps));
    double ns, macs = rate.decode_bps * COLUMNS / (double)bl_dtype_row_bytes(t, COLUMNS);
    for (unsigned i = 0; i < BL_N_RATE_TOKENS; i++) {
        const uint32_t n_tok = bl_rate_tokens[i], n = rows_for(macs, n_tok, all_threads(p), rows);
        /* steps of few tokens run on decode's threads */
        struct bl_rig *r = n_tok <= BL_FEW_TOKENS ? few : many;
        BL_TRY(build_matmul(r, p, t, n, n_tok));
        BL_TRY(bl_rig_time(r, RUNS, cell_ns, &ns));
        macs = (double)COLUMNS * n * n_tok / ns * 1e9;
        rate.macs_per_s[i] = rounded(macs);
    }
    p->dev->rate[t] = rate;
    return BL_OK;
}

static enum bl_status measure_list(struct probe *p, struct bl_rig *few, struct bl_rig *many)
{
    const size_t n_common = p->plan->quick ? QUICK_TYPES : BL_COUNT(common);
    for (size_t i = 0; i < n_common && !late(p); i++)
        BL_TRY(measure_type(p, few, many, (enum bl_dtype)common[i]));
    p->dev->rate_default = p->dev->rate[common[0]];
    uint32_t left_out = 0;
    for (unsigned t = 0; t < BL_N_DTYPES && !p->plan->quick; t++) {
        if (bl_dtypes[t].act == BL_ACT_NONE || p->dev->rate[t].decode_bps > 0)
            continue;
        if (late(p))
            left_out++;
        else
            BL_TRY(measure_type(p, few, many, (enum bl_dtype)t));
    }
    if (left_out) {
        char text[64];
        snprintf(text, sizeof text, "no time was left for %u types", left_out);
        note(p, text);
    }
    return BL_OK;
}

static enum bl_status measure_types(struct probe *p)
{
    struct bl_rig few = {0}, many = {0};
    const struct bl_device_config c[2] = {config_of(p, home_threads(p)),
                                          config_of(p, all_threads(p))};
    note(p, "kernels by type");
    BL_TRY(take_block(p, home_bit(p)));
    enum bl_status st = bl_rig_open(&few, p->dev->backend, &c[0]);
    if (!st)
        st = bl_rig_open(&many, p->dev->backend, &c[1]);
    if (!st)
        st = measure_list(p, &few, &many);
    bl_rig_close(&many);
    bl_rig_close(&few);
    give_block(p);
    return st;
}

/* ---- fixed costs ----------------------------------------------------------------------------- */

static void meet(void *arg, uint32_t ith, uint32_t nth)
{
    struct bl_pool *pool = arg;
    (void)ith, (void)nth;
    for (unsigned i = 0; i < BARRIERS; i++)
        bl_pool_barrier(pool);
}

static enum bl_status time_barrier(struct probe *p, uint32_t threads, double *ns)
{
    const struct bl_device_config *c = &p->dev->config;
    const struct bl_pool_split split = {threads, c->cpus, c->n_home, c->cpus ? c->n_cpus : 0};
    double took[BARRIER_RUNS];
    struct bl_pool *pool;
    BL_TRY(bl_pool_create(&pool, threads, &split));
    bl_pool_run(pool, threads, meet, pool);
    for (unsigned i = 0; i < BARRIER_RUNS; i++) {
        const uint64_t start = bl_now_ns();
        bl_pool_run(pool, threads, meet, pool);
        took[i] = (double)(bl_now_ns() - start) / BARRIERS;
    }
    bl_pool_destroy(pool);
    /* who waits sleeps when others have the core, so that processor time tells nothing */
    *ns = rounded(bl_undisturbed(took, 0, BARRIER_RUNS));
    return BL_OK;
}

static enum bl_status measure_barriers(struct probe *p)
{
    const uint32_t most = all_threads(p);
    struct bl_machine_device *d = p->dev;
    note(p, "barriers");
    for (uint32_t n = most > 1 ? 2 : 0; n && d->n_barriers < BL_MAX_BARRIERS && !late(p);
         n = next_count(n, most)) {
        double ns;
        BL_TRY(time_barrier(p, n, &ns));
        d->barrier[d->n_barriers++] =
            (struct bl_barrier_cost){n, ns < 1 ? 1 : ns}; /* a figure of a file is not 0 */
    }
    return BL_OK;
}

/* A layer of grouped-query attention and a gated feed-forward part, as narrow as types allow. */
static bl_val add_layer(struct bl_graph *g, bl_val x, bl_val angles, int32_t layer)
{
    enum { N = 256, HEADS = 4, HEADS_KV = 2, HEAD = 64, KV = HEADS_KV * HEAD, ROWS = 64 };
    int32_t w = 1000 + 16 * layer;
    const struct bl_attention_attr at = {HEADS, HEADS_KV, HEAD, HEAD, 0, 0.125f};
    const struct bl_glu_attr glu = {.kind = BL_GLU_SILU};
#define WEIGHT(out) bl_graph_weight(g, w++, BL_Q8_0, (uint32_t[]){N, out, 1})
#define TIMES(out, v) bl_graph_matmul(g, WEIGHT(out), v, 0, 0)
#define NORM(v)                                                                                    \
    bl_graph_rms_norm(g, v, bl_graph_weight(g, w++, BL_F32, (uint32_t[]){N, 1, 1}), 1e-6f)
    bl_val h = NORM(x);
    const bl_val q = bl_graph_rope(g, TIMES(N, h), angles, BL_ROPE_NEOX, HEAD);
    const bl_val k = bl_graph_rope(g, TIMES(KV, h), angles, BL_ROPE_NEOX, HEAD);
    const bl_val v = TIMES(KV, h);
    const bl_val ks = bl_graph_kv_store(g, k, bl_graph_state(g, 2 * layer, BL_F16, KV, ROWS, 1));
    const bl_val vs =
        bl_graph_kv_store(g, v, bl_graph_state(g, 2 * layer + 1, BL_F16, KV, ROWS, 1));
    x = bl_graph_add(g, x, TIMES(N, bl_graph_attention(g, q, ks, vs, 0, &at)));
    h = NORM(x);
    const bl_val gate = TIMES(N, h), up = TIMES(N, h);
    return bl_graph_add(g, x, TIMES(N, bl_graph_glu(g, gate, up, &glu)));
#undef NORM
#undef TIMES
#undef WEIGHT
}

static enum bl_status time_layers(struct bl_rig *r, uint32_t layers, double *ns, uint32_t *steps)
{
    const struct bl_angles_attr angles = {
        .n_dims = 64, .base = 10000, .freq_scale = 1, .magnitude = 1};
    bl_rig_clear(r);
    struct bl_graph *g = &r->graph;
    bl_val x = bl_rig_input(r, 256, 1);
    const bl_val a = bl_graph_rope_angles(g, bl_graph_param(g, BL_PARAM_POSITIONS, 1), 0, &angles);
    for (uint32_t l = 0; l < layers; l++)
        x = add_layer(g, x, a, (int32_t)l);
    *steps = g->n_nodes - r->first;
    BL_TRY(bl_rig_ready(r, NULL, 1));
    return bl_rig_time(r, 31, 2 * cell_ns, ns);
}

static enum bl_status measure_layers(struct probe *p)
{
    struct bl_rig r;
    struct bl_machine_device *d = p->dev;
    const struct bl_device_config c = config_of(p, home_threads(p));
    double none, some = 0;
    uint32_t few = 0, many = 0;
    note(p, "layers");
    BL_TRY(bl_rig_open(&r, d->backend, &c));
    enum bl_status st = time_layers(&r, 0, &none, &few);
    if (!st)
        st = time_layers(&r, LAYERS, &some, &many);
    bl_rig_close(&r);
    BL_TRY(st);
    d->launch_ns = rounded(none);
    if (some > none) {
        d->layer_ns = rounded((some - none) / LAYERS);
        d->step_ns = rounded((some - none) / (many - few));
    }
    return BL_OK;
}

/* ---- all of it ------------------------------------------------------------------------------- */

enum bl_status bl_probe_measure(struct bl_machine *m, const struct bl_probe_plan *plan)
{
    static const uint64_t budget_ns = 12000000000, quick_ns = 3000000000;
    const uint64_t ns = plan->budget_ns ? plan->budget_ns : plan->quick ? quick_ns : budget_ns;
    struct probe p = {.machine = m, .dev = &m->device[0], .plan = plan};
    p.deadline_ns = bl_now_ns() + ns;
    BL_TRY(measure_layers(&p));
    BL_TRY(measure_barriers(&p));
    BL_TRY(measure_reading(&p));
    BL_TRY(measure_types(&p));
    if ((double)p.cpu_ns < 0.8 * (double)p.wanted_ns) {
        char text[120];
        snprintf(text, sizeof text,
                 "other programs used the processors: %.0f %% of their time was had; the figures "
                 "may be too low",
                 100 * (double)p.cpu_ns / (double)p.wanted_ns);
        note(&p, text);
    }
    return BL_OK;
}

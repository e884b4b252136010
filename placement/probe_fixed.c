/* SPDX-License-Identifier: MIT */
/* What does not depend on work: meetings of threads, layers too narrow to cost anything else. */
#include "probe_impl.h"

#include "backends.h"
#include "thread.h"

enum { BARRIERS = 200, BARRIER_RUNS = 15, LAYER_RUNS = 15, FIRST_WEIGHT = 1000 };

static void meet(void *arg, uint32_t ith, uint32_t nth)
{
    struct bl_pool *pool = arg;
    (void)ith, (void)nth;
    for (unsigned i = 0; i < BARRIERS; i++)
        bl_pool_barrier(pool);
}

static enum bl_status time_barrier(struct bl_probe *p, uint32_t threads, double *ns)
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
    *ns = bl_undisturbed(took, 0, BARRIER_RUNS);
    return BL_OK;
}

static enum bl_status barriers(struct bl_probe *p)
{
    const uint32_t most = bl_probe_many_threads(p);
    struct bl_machine_device *d = p->dev;
    bl_probe_say(p, "barriers");
    for (uint32_t n = most > 1 ? 2 : 0; n && d->n_barriers < BL_MAX_BARRIERS && !bl_probe_late(p);
         n = bl_probe_next_count(n, most)) {
        double ns;
        BL_TRY(time_barrier(p, n, &ns));
        d->barrier[d->n_barriers++] =
            (struct bl_barrier_cost){n, ns < 1 ? 1 : ns}; /* a figure of a file is not 0 */
    }
    return BL_OK;
}

/* A layer of grouped-query attention and a gated feed-forward part, n elements wide. */
static bl_val add_layer(struct bl_graph *g, bl_val x, bl_val angles, uint32_t n, int32_t layer)
{
    enum { HEAD = 64, ROWS = 64 };
    int32_t w = FIRST_WEIGHT + 16 * layer;
    const uint32_t kv = n / 2;
    const struct bl_attention_attr at = {n / HEAD, kv / HEAD, HEAD, HEAD, 0, 0.125f};
    const struct bl_glu_attr glu = {.kind = BL_GLU_SILU};
#define WEIGHT(out) bl_graph_weight(g, w++, BL_Q8_0, (uint32_t[]){n, out, 1})
#define TIMES(out, v) bl_graph_matmul(g, WEIGHT(out), v, 0, 0)
#define NORM(v)                                                                                    \
    bl_graph_rms_norm(g, v, bl_graph_weight(g, w++, BL_F32, (uint32_t[]){n, 1, 1}), 1e-6f)
    bl_val h = NORM(x);
    const bl_val q = bl_graph_rope(g, TIMES(n, h), angles, BL_ROPE_NEOX, HEAD);
    const bl_val k = bl_graph_rope(g, TIMES(kv, h), angles, BL_ROPE_NEOX, HEAD);
    const bl_val v = TIMES(kv, h);
    const bl_val ks = bl_graph_kv_store(g, k, bl_graph_state(g, 2 * layer, BL_F16, kv, ROWS, 1));
    const bl_val vs =
        bl_graph_kv_store(g, v, bl_graph_state(g, 2 * layer + 1, BL_F16, kv, ROWS, 1));
    x = bl_graph_add(g, x, TIMES(n, bl_graph_attention(g, q, ks, vs, 0, &at)));
    h = NORM(x);
    const bl_val gate = TIMES(n, h), up = TIMES(n, h);
    return bl_graph_add(g, x, TIMES(n, bl_graph_glu(g, gate, up, &glu)));
#undef NORM
#undef TIMES
#undef WEIGHT
}

/* What some layers take, and how many steps they are; weights NULL: they stay in caches. */
static enum bl_status time_layers(struct bl_rig *r, const struct bl_rig_block *weights, uint32_t n,
                                  uint32_t layers, double *ns, uint32_t *steps)
{
    const struct bl_angles_attr angles = {
        .n_dims = 64, .base = 10000, .freq_scale = 1, .magnitude = 1};
    bl_rig_clear(r);
    struct bl_graph *g = &r->graph;
    bl_val x = bl_rig_input(r, n, 1);
    const bl_val a = bl_graph_rope_angles(g, bl_graph_param(g, BL_PARAM_POSITIONS, 1), 0, &angles);
    for (uint32_t l = 0; l < layers; l++)
        x = add_layer(g, x, a, n, (int32_t)l);
    *steps = g->n_nodes - r->first;
    BL_TRY(bl_rig_ready(r, weights, 1));
    return bl_rig_time(r, LAYER_RUNS, bl_probe_cell_ns, ns);
}

enum bl_status bl_probe_narrow(struct bl_machine_device *d, struct bl_rig *r)
{
    enum { NARROW = 256, LAYERS = 8 }; /* as narrow as types allow */
    double none, some;
    uint32_t few, many;
    BL_TRY(time_layers(r, NULL, NARROW, 0, &none, &few));
    BL_TRY(time_layers(r, NULL, NARROW, LAYERS, &some, &many));
    d->launch_ns = none;
    if (some > none) {
        d->layer_ns = (some - none) / LAYERS;
        d->step_ns = (some - none) / (many - few);
    }
    return BL_OK;
}

/* In models, steps begin with everything but weights' worth of caches gone and memory idle: what
 * layers take beyond the reading of their matrices. */
static enum bl_status wide_layers(struct bl_probe *p, struct bl_rig *r)
{
    enum { WIDE = 2048 };
    const double bytes =
        6.0 * (double)bl_dtype_row_bytes(BL_Q8_0, WIDE) * WIDE; /* 5 and 2 halves */
    const uint32_t layers = (uint32_t)((double)p->weights.n / bytes);
    double bps, ns;
    uint32_t steps;
    BL_TRY(bl_probe_time_read(p, r, &p->weights, BL_Q8_0, &bps));
    BL_TRY(time_layers(r, &p->weights, WIDE, layers, &ns, &steps));
    const double each = (ns - p->dev->launch_ns - layers * bytes / bps * 1e9) / steps;
    if (each > p->dev->step_ns)
        p->dev->step_ns = each;
    if (p->dev->layer_ns < p->dev->step_ns) /* a layer has more than one */
        p->dev->layer_ns = p->dev->step_ns;
    return BL_OK;
}

static enum bl_status layers(struct bl_probe *p)
{
    struct bl_rig r;
    const struct bl_device_config c = bl_probe_config(p, bl_probe_few_threads(p));
    bl_probe_say(p, "layers");
    BL_TRY(bl_rig_open(&r, p->dev->backend, &c));
    enum bl_status st = bl_probe_narrow(p->dev, &r);
    if (!st)
        st = wide_layers(p, &r);
    bl_rig_close(&r);
    return st;
}

enum bl_status bl_probe_fixed(struct bl_probe *p)
{
    BL_TRY(layers(p));
    return barriers(p);
}

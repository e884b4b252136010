/* SPDX-License-Identifier: MIT */
/* What does not depend on work: meetings of threads, layers too narrow to cost anything else. */
#include "probe_impl.h"

#include "backends.h"
#include "thread.h"

enum { BARRIERS = 200, BARRIER_RUNS = 15, LAYERS = 8, LAYER_RUNS = 15 };

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
    return bl_rig_time(r, LAYER_RUNS, bl_probe_cell_ns, ns);
}

static enum bl_status layers(struct bl_probe *p)
{
    struct bl_rig r;
    struct bl_machine_device *d = p->dev;
    const struct bl_device_config c = bl_probe_config(p, bl_probe_few_threads(p));
    double none, some = 0;
    uint32_t few = 0, many = 0;
    bl_probe_say(p, "layers");
    BL_TRY(bl_rig_open(&r, d->backend, &c));
    enum bl_status st = time_layers(&r, 0, &none, &few);
    if (!st)
        st = time_layers(&r, LAYERS, &some, &many);
    bl_rig_close(&r);
    BL_TRY(st);
    d->launch_ns = none;
    if (some > none) {
        d->layer_ns = (some - none) / LAYERS;
        d->step_ns = (some - none) / (many - few);
    }
    return BL_OK;
}

enum bl_status bl_probe_fixed(struct bl_probe *p)
{
    BL_TRY(layers(p));
    return barriers(p);
}

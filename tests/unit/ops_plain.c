/* SPDX-License-Identifier: MIT */
/* Ops that work token by token, and the list of all cases. */
#include "ops_rig.h"

/* ---- rows chosen, norms ---- */

static void gather_rows(void **state)
{
    (void)state;
    for (uint32_t n = 1; n < 400; n += 127) {
        struct rig r;
        ops_open(&r);
        const bl_val x = ops_input(&r, n, 40);
        bl_graph_gather_rows(&r.g, x, bl_graph_param(&r.g, BL_PARAM_OUT_ROWS, 40));
        ops_deal(&r, 37, 2, (uint32_t[]){0, 5});
        ops_fill(&r);
        ops_check(&r, "gather of rows of %u", n);
    }
}

static void rms_norm(void **state)
{
    static const uint32_t runs[] = {1, 3, 64, 100, 128, 1031};
    (void)state;
    for (uint32_t i = 0; i < OPS_N(runs); i++)
        for (uint32_t n_runs = 1; n_runs < 4; n_runs++)
            for (uint32_t weighted = 0; weighted < 2; weighted++) {
                struct rig r;
                ops_open(&r);
                const bl_val x = ops_input(&r, runs[i] * n_runs, 5);
                if (weighted)
                    bl_graph_rms_norm(&r.g, x, ops_weight(&r, BL_F32, runs[i], 1, 1), 1e-6f);
                else
                    bl_graph_rms_norm_runs(&r.g, x, runs[i], 1e-2f);
                ops_deal(&r, 5, 1, (uint32_t[]){0});
                ops_fill(&r);
                ops_check(&r, "rms_norm, %u runs of %u%s", n_runs, runs[i], weighted ? ", w" : "");
            }
}

/* ---- positions ---- */

static void angles(const struct bl_angles_attr *at, bool factors, const char *what)
{
    static const uint32_t from[] = {0, 8190, 131071, 999990};
    struct rig r;
    ops_open(&r);
    const bl_val f = factors ? ops_weight(&r, BL_F32, at->n_dims / 2, 1, 1) : 0;
    bl_graph_rope_angles(&r.g, bl_graph_param(&r.g, BL_PARAM_POSITIONS, 64), f, at);
    ops_deal(&r, 60, 4, from);
    ops_fill(&r);
    for (uint32_t i = 0; factors && i < at->n_dims / 2; i++)
        ((float *)r.data[f])[i] = 4 + 3 * rig_random(&r);
    ops_check(&r, "angles: %s", what);
}

static void rope_angles(void **state)
{
    (void)state;
    struct bl_angles_attr at = {.n_dims = 128, .base = 10000, .freq_scale = 1, .magnitude = 1};
    angles(&at, false, "plain");
    angles(&at, true, "factors");
    at.inverse = 1;
    at.group = 4;
    angles(&at, true, "inverse, groups of 4");
    at =
        (struct bl_angles_attr){.n_dims = 64, .base = 1e6f, .freq_scale = 0.25f, .magnitude = 1.2f};
    angles(&at, false, "interpolated");
    at.yarn = 1;
    at.lo = 7.5f;
    at.hi = 20.25f;
    angles(&at, false, "yarn");
    at.lo = at.hi = 12;
    angles(&at, true, "yarn of one step");
    at = (struct bl_angles_attr){
        .n_dims = 64, .base = 1e7f, .freq_scale = 1, .magnitude = 1, .sections = {11, 11, 10, 0}};
    angles(&at, false, "sections");
    memcpy(at.sections, (uint32_t[4]){3, 2, 2, 1}, sizeof at.sections);
    angles(&at, false, "sections of four axes, again and again");
    at = (struct bl_angles_attr){.n_dims = 2, .base = 500000, .freq_scale = 1, .magnitude = 1};
    angles(&at, false, "one pair");
}

static void rope(void **state)
{
    static const struct {
        uint32_t heads, elems, n_dims, first;
    } cases[] = {{1, 64, 64, 0}, {3, 128, 64, 0}, {5, 96, 64, 32}, {2, 576, 64, 512},
                 {4, 10, 2, 4},  {1, 7, 4, 1},    {3, 5, 4, 0},    {8, 2, 2, 0}};
    (void)state;
    for (uint32_t i = 0; i < OPS_N(cases); i++)
        for (uint32_t mode = BL_ROPE_NORM; mode <= BL_ROPE_NEOX; mode++) {
            struct rig r;
            ops_open(&r);
            const bl_val x = ops_input(&r, cases[i].heads * cases[i].elems, 9),
                         a = ops_input(&r, cases[i].n_dims, 9);
            bl_graph_rope_at(&r.g, x, a, mode, cases[i].elems, cases[i].first);
            ops_deal(&r, 9, 1, (uint32_t[]){0});
            ops_fill(&r);
            ops_check(&r, "rope, mode %u, %u heads of %u, %u from %u", mode, cases[i].heads,
                      cases[i].elems, cases[i].n_dims, cases[i].first);
        }
}

static void temper(void **state)
{
    (void)state;
    for (uint32_t every = 1; every < 100000; every *= 90) {
        struct rig r;
        ops_open(&r);
        const bl_val x = ops_input(&r, 200, 32);
        bl_graph_temper(&r.g, x, bl_graph_param(&r.g, BL_PARAM_POSITIONS, 32),
                        &(struct bl_temper_attr){0.1f, every});
        ops_deal(&r, 30, 3, (uint32_t[]){0, every - 1, 999999});
        ops_fill(&r);
        ops_check(&r, "temper every %u", every);
    }
}

/* ---- element by element ---- */

static void scale_up(struct rig *r, bl_val v, float by)
{
    float *x = r->data[v];
    for (uint64_t i = 0; i < bl_value_bytes(&r->g.vals[v]) / sizeof *x; i++)
        x[i] *= by;
}

static void glu(void **state)
{
    static const uint32_t sizes[] = {1, 127, 300};
    (void)state;
    for (uint32_t kind = 0; kind <= BL_GLU_SIGMOID; kind++)
        for (uint32_t i = 0; i < OPS_N(sizes); i++)
            for (uint32_t one = 0; one < 2; one++) {
                if (one && (kind == BL_GLU_SWIGLU_OAI || kind == BL_GLU_SILU_CLAMPED))
                    continue;
                struct rig r;
                ops_open(&r);
                const bl_val gate = ops_input(&r, one ? 1 : sizes[i], 6),
                             up = ops_input(&r, sizes[i], 6);
                bl_graph_glu(&r.g, gate, up, &(struct bl_glu_attr){kind, 1.702f, 7});
                ops_deal(&r, 6, 1, (uint32_t[]){0});
                ops_fill(&r);
                scale_up(&r, gate,
                         30); /* beyond limits, and where exp leaves the range of floats */
                scale_up(&r, up, 20);
                if (sizes[i] > 1 && !one) {
                    ((float *)r.data[gate])[0] = 200;
                    ((float *)r.data[gate])[1] = -200;
                }
                ops_check(&r, "glu %u of %u%s", kind, sizes[i], one ? ", one gate" : "");
            }
}

static void elements(void **state)
{
    (void)state;
    for (uint32_t n = 6; n < 2000; n = n * 7 + 6) {
        struct rig r;
        ops_open(&r);
        const bl_val a = ops_input(&r, n, 7), b = ops_input(&r, n, 7), c = ops_input(&r, 3 * n, 7);
        const bl_val sum = bl_graph_add(&r.g, a, b);
        bl_graph_softcap(&r.g, c, 0.3f);
        bl_graph_slice(&r.g, c, n / 2, n / 2 - 2, 1);
        bl_graph_slice(&r.g, c, 3 * n, n - 1, n + 2);
        bl_graph_concat(&r.g, sum, b, 0);
        bl_graph_concat_runs(&r.g, a, c, b, 3);
        bl_graph_concat_runs(&r.g, c, a, 0, n);
        bl_graph_repeat(&r.g, a, 1);
        bl_graph_repeat(&r.g, sum, 5);
        ops_deal(&r, 7, 1, (uint32_t[]){0});
        ops_fill(&r);
        ((float *)r.data[c])[0] = 1e6f;
        ops_check(&r, "element by element, rows of %u", n);
    }
}

/* ---- streams ---- */

static void streams(void **state)
{
    static const uint32_t n[] = {1, 2, 4, 16};
    (void)state;
    for (uint32_t i = 0; i < OPS_N(n); i++)
        for (uint32_t iterations = 1; iterations < 30; iterations += 19)
            for (uint32_t all = 0; all < 2; all++) {
                const uint32_t m = all ? 2 * n[i] + n[i] * n[i] : n[i], elems = 33 + 100 * all;
                struct rig r;
                ops_open(&r);
                const bl_val h = ops_input(&r, n[i] * elems, 5), z = ops_input(&r, m, 5),
                             y = ops_input(&r, elems, 5);
                const bl_val w = bl_graph_stream_weights(
                    &r.g, h, z, ops_weight(&r, BL_F32, m, 1, 1),
                    ops_weight(&r, BL_F32, all ? 3 : 1, 1, 1),
                    &(struct bl_streams_attr){n[i], iterations, 1e-6f, 1e-6f});
                bl_graph_stream_read(&r.g, h, w, n[i]);
                if (all)
                    bl_graph_stream_write(&r.g, h, y, w);
                ops_deal(&r, 5, 1, (uint32_t[]){0});
                ops_fill(&r);
                scale_up(&r, z, 5);
                ops_check(&r, "%u streams, %u weights, %u rounds", n[i], m, iterations);
            }
}

/* ---- as models were trained ---- */

/* Halves between two roundings, powers of two, zeros, and what is far too large or small. */
static void hard_to_round(struct rig *r, bl_val v)
{
    static const float hard[] = {0,  -0.0f,  1,       448,   -448,   449,
                                 6,  5,      2.5f,    0.25f, 0.75f,  1.0625f,
                                 17, 1e-30f, -1e-12f, 1e20f, 240.0f, 0x1p-9f};
    float *x = r->data[v];
    const uint64_t n = bl_value_bytes(&r->g.vals[v]) / sizeof *x;
    for (uint64_t i = 0; i < n / 2; i++)
        x[i] = hard[rig_pick(r, OPS_N(hard))];
    for (uint64_t i = n / 2; i < n; i++)
        x[i] = ldexpf(x[i], (int)rig_pick(r, 20) - 10);
}

static void rounded(void **state)
{
    static const struct bl_round_attr cases[] = {
        {0, 128, 128, 64}, {0, 512, 448, 64}, {0, 100, 99, 7}, {0, 64, 64, 1},
        {1, 128, 128, 32}, {1, 96, 33, 32},   {1, 7, 7, 100},  {1, 2048, 2048, 16}};
    (void)state;
    for (uint32_t i = 0; i < OPS_N(cases); i++) {
        struct rig r;
        ops_open(&r);
        const bl_val x = ops_input(&r, 3 * cases[i].run, 6);
        bl_graph_round(&r.g, x, &cases[i]);
        ops_deal(&r, 6, 1, (uint32_t[]){0});
        ops_fill(&r);
        hard_to_round(&r, x);
        ops_check(&r, "round of kind %u, %u of %u in groups of %u", cases[i].kind, cases[i].n,
                  cases[i].run, cases[i].group);
    }
}

static void hadamard(void **state)
{
    (void)state;
    for (uint32_t run = 1; run <= 4096; run *= 2) {
        struct rig r;
        ops_open(&r);
        bl_graph_hadamard(&r.g, ops_input(&r, 2 * run, 3), run);
        ops_deal(&r, 3, 1, (uint32_t[]){0});
        ops_fill(&r);
        ops_check(&r, "hadamard of %u", run);
    }
}

/* ---- ROUTE ---- */

struct route_case {
    uint32_t n_experts;
    bool bias, table, ties;
    struct bl_route_attr at;
};

static void route_one(const struct route_case *c)
{
    enum { ROOM = 12, KNOWN = 5 };
    struct rig r;
    struct bl_route_vals v = {0};
    bl_val ids, weights;
    ops_open(&r);
    v.logits = ops_input(&r, c->n_experts, ROOM);
    if (c->bias)
        v.bias = ops_weight(&r, BL_F32, c->n_experts, 1, 1);
    if (c->table) {
        v.table = ops_weight(&r, BL_I32, c->at.n_used, KNOWN, 1);
        v.tokens = bl_graph_param(&r.g, BL_PARAM_TOKENS, ROOM);
    }
    bl_graph_route_by_table(&r.g, &v, &c->at, &ids, &weights);
    ops_deal(&r, ROOM - 1, 1, (uint32_t[]){0});
    ops_fill(&r);
    scale_up(&r, v.logits, 4);
    float *z = r.data[v.logits];
    for (uint32_t i = 0; c->ties && i < c->n_experts * ROOM; i++)
        z[i] = floorf(z[i] / 3);
    for (uint32_t i = 0; c->ties && c->bias && i < c->n_experts; i++)
        ((float *)r.data[v.bias])[i] = (float)(i % 2);
    for (uint32_t i = 0; c->table && i < KNOWN * c->at.n_used; i++)
        ((int32_t *)r.data[v.table])[i] = (int32_t)rig_pick(&r, c->n_experts);
    for (uint32_t t = 0; t < ROOM; t++)
        r.step.token[t] = (int32_t)rig_pick(&r, KNOWN);
    ops_check(&r, "route %u of %u, gating %u, groups %u of %u by %u%s%s%s, normalise %u",
              c->at.n_used, c->n_experts, c->at.gating, c->at.n_group_used, c->at.n_group,
              c->at.group_by_max, c->bias ? ", bias" : "", c->table ? ", table" : "",
              c->ties ? ", ties" : "", c->at.normalise);
}

static void route(void **state)
{
    static const struct {
        uint32_t experts, used, groups, groups_used;
    } shapes[] = {{1, 1, 0, 0},   {8, 2, 1, 0},  {7, 7, 0, 0},   {128, 8, 0, 0},   {129, 5, 0, 0},
                  {256, 8, 8, 4}, {64, 6, 4, 1}, {384, 8, 1, 1}, {1024, 16, 0, 0}, {12, 3, 12, 4}};
    (void)state;
    for (uint32_t i = 0; i < OPS_N(shapes); i++)
        for (uint32_t gating = BL_GATE_SOFTMAX; gating <= BL_GATE_SQRT_SOFTPLUS; gating++)
            for (uint32_t kind = 0; kind < 8; kind++) {
                struct route_case c = {.n_experts = shapes[i].experts,
                                       .bias = kind & 1,
                                       .ties = kind & 2,
                                       .at = {.n_used = shapes[i].used,
                                              .gating = gating,
                                              .normalise = kind >> 1 & 1,
                                              .n_group = shapes[i].groups,
                                              .n_group_used = shapes[i].groups_used,
                                              .group_by_max = kind >> 2,
                                              .scale = kind & 1 ? 2.5f : 0}};
                if (!ops.all && (kind + gating + i) % 4)
                    continue;
                route_one(&c);
                c.table = true;
                c.bias = false;
                if (kind % 4 == 0)
                    route_one(&c);
            }
}

/* ---- all of it ---- */

const struct CMUnitTest ops_tests[] = {
    cmocka_unit_test(gather_rows),
    cmocka_unit_test(rms_norm),
    cmocka_unit_test(rope_angles),
    cmocka_unit_test(rope),
    cmocka_unit_test(temper),
    cmocka_unit_test(glu),
    cmocka_unit_test(elements),
    cmocka_unit_test(streams),
    cmocka_unit_test(rounded),
    cmocka_unit_test(hadamard),
    cmocka_unit_test(route),
    {"embed", ops_embed, NULL, NULL, NULL},
    {"matmul", ops_matmul, NULL, NULL, NULL},
    {"matmul_many_shapes", ops_matmul_many_shapes, NULL, NULL, NULL},
    {"matmul_in_turn", ops_matmul_in_turn, NULL, NULL, NULL},
    {"heads", ops_heads, NULL, NULL, NULL},
    {"experts", ops_experts, NULL, NULL, NULL},
    {"experts_kinds", ops_experts_kinds, NULL, NULL, NULL},
    {"kv_store", ops_kv_store, NULL, NULL, NULL},
    {"attention", ops_attention, NULL, NULL, NULL},
    {"attention_long", ops_attention_long, NULL, NULL, NULL},
    {"attention_many", ops_attention_many, NULL, NULL, NULL},
    {"attention_groups", ops_attention_groups, NULL, NULL, NULL},
    {"choose", ops_choose, NULL, NULL, NULL},
    {"choose_ties", ops_choose_ties, NULL, NULL, NULL},
    {"compress", ops_compress, NULL, NULL, NULL},
    {"short_conv", ops_short_conv, NULL, NULL, NULL},
    {"delta_rule", ops_delta_rule, NULL, NULL, NULL},
};
const size_t ops_n_tests = OPS_N(ops_tests);

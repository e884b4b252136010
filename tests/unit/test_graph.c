/* SPDX-License-Identifier: MIT */
/* Graph builders: shapes they take and refuse, the first fault, leaves, attributes, the printed
 * form. */
#include "support.h"

#include "alloc_fail.h"
#include "graph.h"

#include <math.h>

/* One value of every kind the builders take: 64 wide, 7 tokens, 4 heads of 16 over 2, 8 experts
 * of 32. */
struct given {
    bl_val tokens, positions, out_rows;
    bl_val table, w, w96, ints, vec, bias, scale, factors, sinks, router;
    bl_val x, few, wide, logits, angles, ids, weights, other_ids, other_weights;
    bl_val gates, ones, few_ones;
    bl_val k, v, k_rows, v_rows;
    struct bl_expert_vals e;
};

enum { N_TOK = 7 };

static bl_val weight(struct bl_graph *g, enum bl_dtype type, uint32_t a, uint32_t b, uint32_t c)
{
    static int32_t next;
    return bl_graph_weight(g, next++, type, (uint32_t[]){a, b, c});
}

static const struct bl_route_attr route = {.n_used = 2, .gating = BL_GATE_SOFTMAX, .normalise = 1};
static const struct bl_route_attr other_route = {.n_used = 3, .gating = BL_GATE_SIGMOID};
static const struct bl_angles_attr angles = {
    .n_dims = 16, .base = 1e4f, .freq_scale = 1, .magnitude = 1};
static const struct bl_attention_attr attention = {
    .n_head = 4, .n_head_kv = 2, .dk = 16, .dv = 16, .scale = 0.25f};
static const struct bl_glu_attr silu = {.kind = BL_GLU_SILU};
static const struct bl_experts_attr experts = {.n_used = 2, .glu = {.kind = BL_GLU_SILU}};

static void give_experts(struct bl_graph *g, struct given *v)
{
    v->e.gate = weight(g, BL_Q8_0, 64, 32, 8);
    v->e.up = weight(g, BL_Q8_0, 64, 32, 8);
    v->e.down = weight(g, BL_Q4_0, 32, 64, 8);
    v->e.gate_b = weight(g, BL_F32, 32, 8, 1);
    v->e.up_b = weight(g, BL_F32, 32, 8, 1);
    v->e.down_b = weight(g, BL_F32, 64, 8, 1);
    v->e.gate_s = weight(g, BL_F32, 8, 1, 1);
    v->e.up_s = weight(g, BL_F32, 8, 1, 1);
    v->e.down_s = weight(g, BL_F32, 8, 1, 1);
}

static struct given give(struct bl_graph *g)
{
    struct given v = {0};
    bl_graph_init(g);
    v.tokens = bl_graph_param(g, BL_PARAM_TOKENS, N_TOK);
    v.positions = bl_graph_param(g, BL_PARAM_POSITIONS, N_TOK);
    v.out_rows = bl_graph_param(g, BL_PARAM_OUT_ROWS, 2);
    v.table = weight(g, BL_Q4_0, 64, 100, 1);
    v.w = weight(g, BL_F16, 64, 32, 1);
    v.w96 = weight(g, BL_F16, 96, 32, 1);
    v.ints = weight(g, BL_I32, 64, 32, 1);
    v.vec = weight(g, BL_F32, 64, 1, 1);
    v.bias = weight(g, BL_F32, 32, 1, 1);
    v.scale = weight(g, BL_F32, 1, 1, 1);
    v.factors = weight(g, BL_F32, 8, 1, 1);
    v.sinks = weight(g, BL_F32, 4, 1, 1);
    v.router = weight(g, BL_F32, 64, 8, 1);
    v.k = bl_graph_state(g, 0, BL_F16, 32, 128, 2);
    v.v = bl_graph_state(g, 1, BL_F16, 32, 128, 2);
    give_experts(g, &v);
    v.x = bl_graph_embed(g, v.table, v.tokens, 1);
    v.few = bl_graph_gather_rows(g, v.x, v.out_rows);
    v.wide = bl_graph_matmul(g, weight(g, BL_F16, 64, 96, 1), v.x, 0, 0);
    bl_val half = bl_graph_matmul(g, v.w, v.x, 0, 0);
    v.angles = bl_graph_rope_angles(g, v.positions, 0, &angles);
    v.k_rows = bl_graph_kv_store(g, half, v.k);
    v.v_rows = bl_graph_kv_store(g, half, v.v);
    v.logits = bl_graph_matmul(g, v.router, v.x, 0, 0);
    v.gates = bl_graph_matmul(g, weight(g, BL_F16, 64, 4, 1), v.x, 0, 0);
    v.ones = bl_graph_matmul(g, v.vec, v.x, 0, 0);
    v.few_ones = bl_graph_matmul(g, v.vec, v.few, 0, 0);
    bl_graph_route(g, v.logits, 0, &other_route, &v.other_ids, &v.other_weights);
    bl_graph_route(g, v.logits, 0, &route, &v.ids, &v.weights);
    assert_int_equal(bl_graph_check(g), BL_OK);
    return v;
}

static void check_value(const struct bl_graph *g, bl_val v, enum bl_op op, uint32_t ne0,
                        uint32_t ne1)
{
    const struct bl_value *x = &g->vals[v];
    assert_int_equal(bl_graph_check(g), BL_OK);
    assert_int_not_equal(v, 0);
    assert_int_equal(g->nodes[g->n_nodes - 1].op, op);
    assert_int_equal(g->nodes[g->n_nodes - 1].dst[0], v);
    assert_int_equal(x->type, BL_F32);
    assert_int_equal(x->origin, BL_ACTIVATION);
    assert_int_equal(x->index, -1);
    assert_int_equal(x->ne[0], ne0);
    assert_int_equal(x->ne[1], ne1);
    assert_int_equal(x->ne[2], 1);
    assert_int_equal(x->ne[3], 1);
}

static void good_shapes(void **state)
{
    (void)state;
    struct bl_graph g;
    struct given v = give(&g);
    check_value(&g, bl_graph_embed(&g, v.table, v.tokens, 8), BL_OP_EMBED, 64, N_TOK);
    check_value(&g, bl_graph_gather_rows(&g, v.x, v.out_rows), BL_OP_GATHER_ROWS, 64, 2);
    check_value(&g, bl_graph_rms_norm(&g, v.x, v.vec, 1e-6f), BL_OP_RMS_NORM, 64, N_TOK);
    check_value(&g, bl_graph_rms_norm(&g, v.x, v.bias, 1e-6f), BL_OP_RMS_NORM, 64, N_TOK);
    check_value(&g, bl_graph_matmul(&g, v.w, v.x, v.bias, v.scale), BL_OP_MATMUL, 32, N_TOK);
    check_value(&g, bl_graph_rope_angles(&g, v.positions, v.factors, &angles), BL_OP_ROPE_ANGLES,
                16, N_TOK);
    check_value(&g, bl_graph_rope(&g, v.x, v.angles, BL_ROPE_NEOX, 32), BL_OP_ROPE, 64, N_TOK);
    check_value(&g, bl_graph_attention(&g, v.x, v.k_rows, v.v_rows, v.sinks, &attention),
                BL_OP_ATTENTION, 64, N_TOK);
    check_value(&g, bl_graph_glu(&g, v.x, v.x, &silu), BL_OP_GLU, 64, N_TOK);
    check_value(&g, bl_graph_add(&g, v.wide, v.wide), BL_OP_ADD, 96, N_TOK);
    check_value(&g, bl_graph_experts(&g, v.x, v.ids, v.weights, &v.e, &experts), BL_OP_EXPERTS, 64,
                N_TOK);
    check_value(&g, bl_graph_softcap(&g, v.logits, 30), BL_OP_SOFTCAP, 8, N_TOK);
    check_value(&g, bl_graph_slice(&g, v.x, 16, 4, 3), BL_OP_SLICE, 12, N_TOK);
    check_value(&g, bl_graph_concat(&g, v.x, v.wide, 0), BL_OP_CONCAT, 160, N_TOK);
    check_value(&g, bl_graph_concat(&g, v.x, v.wide, v.logits), BL_OP_CONCAT, 168, N_TOK);
    check_value(&g, bl_graph_glu(&g, v.ones, v.x, &silu), BL_OP_GLU, 64, N_TOK);
    bl_graph_finish(&g);
}

/* Recurrent ops give their result and the state after the step. */
static struct bl_delta_vals give_delta(struct bl_graph *g, const struct given *v)
{
    return (struct bl_delta_vals){v->wide,  v->gates,
                                  v->gates, v->sinks,
                                  v->sinks, bl_graph_state(g, 8, BL_F32, 4 * 16 * 8, 3, 2)};
}

static const struct bl_delta_attr delta = {
    .n_head_k = 2, .n_head_v = 4, .dk = 8, .dv = 16, .tiled = 1, .eps = 1e-6f, .scale = 1};

static void check_state(const struct bl_graph *g, bl_val state)
{
    bl_val after = g->nodes[g->n_nodes - 1].dst[1];
    assert_int_not_equal(after, state);
    assert_memory_equal(&g->vals[after], &g->vals[state], sizeof g->vals[after]);
}

static void recurrent_ops(void **state)
{
    (void)state;
    struct bl_graph g;
    struct given v = give(&g);
    bl_val tail = bl_graph_state(&g, 9, BL_F32, 64, 3, 2), w = weight(&g, BL_F32, 4, 64, 1);
    check_value(&g, bl_graph_short_conv(&g, v.x, w, tail, true), BL_OP_SHORT_CONV, 64, N_TOK);
    check_state(&g, tail);
    struct bl_delta_vals in = give_delta(&g, &v);
    check_value(&g, bl_graph_delta_rule(&g, &in, &delta), BL_OP_DELTA_RULE, 64, N_TOK);
    check_state(&g, in.state);
    bl_graph_finish(&g);
}

static void route_gives_ids_and_weights(void **state)
{
    (void)state;
    struct bl_graph g;
    struct given v = give(&g);
    const struct bl_value *ids = &g.vals[v.ids], *weights = &g.vals[v.weights];
    assert_int_equal(ids->type, BL_I32);
    assert_int_equal(ids->ne[0], 2);
    assert_int_equal(ids->ne[1], N_TOK);
    assert_int_equal(weights->type, BL_F32);
    assert_int_equal(weights->ne[0], 2);
    assert_int_equal(g.nodes[g.n_nodes - 1].dst[1], v.weights);
    bl_graph_finish(&g);
}

/* The state after the step is another value of the same index: whoever reads it comes after the
 * write. */
static void stored_state_is_a_new_value(void **state)
{
    (void)state;
    struct bl_graph g;
    struct given v = give(&g);
    assert_int_not_equal(v.k_rows, v.k);
    assert_int_equal(g.vals[v.k_rows].origin, BL_STATE_ROWS);
    assert_int_equal(g.vals[v.k_rows].index, g.vals[v.k].index);
    assert_int_equal(bl_graph_state(&g, 0, BL_F16, 32, 128, 2), v.k);
    bl_graph_finish(&g);
}

/* The expression must fault, name its op and the shapes, and leave no node behind. */
#define REFUSED(op, expr)                                                                          \
    do {                                                                                           \
        struct bl_graph g;                                                                         \
        struct given v = give(&g);                                                                 \
        uint32_t n_nodes = g.n_nodes;                                                              \
        (void)(expr);                                                                              \
        check_refusal(&g, n_nodes, op, #expr);                                                     \
        (void)v;                                                                                   \
        bl_graph_finish(&g);                                                                       \
    } while (0)

static void check_refusal(const struct bl_graph *g, uint32_t n_nodes, const char *op,
                          const char *expr)
{
    if (bl_graph_check(g) != BL_EINVAL || g->n_nodes != n_nodes)
        fail_msg("%s: accepted", expr);
    if (!strstr(bl_error(), op) || !strstr(bl_error(), "needs") || !strstr(bl_error(), "given ["))
        fail_msg("%s: \"%s\"", expr, bl_error());
}

static struct bl_attention_attr heads(uint32_t n_head, uint32_t n_kv, uint32_t dk, uint32_t dv,
                                      float scale)
{
    return (struct bl_attention_attr){n_head, n_kv, dk, dv, 0, scale};
}

static struct bl_angles_attr turn(uint32_t n_dims, float base, float freq_scale, float magnitude)
{
    return (struct bl_angles_attr){
        .n_dims = n_dims, .base = base, .freq_scale = freq_scale, .magnitude = magnitude};
}

static struct bl_route_attr pick(uint32_t n_used, uint32_t gating, uint32_t n_group,
                                 uint32_t n_group_used, float scale)
{
    return (struct bl_route_attr){n_used, gating, 1, n_group, n_group_used, 0, scale};
}

static void bad_rows_and_norms(void **state)
{
    (void)state;
    REFUSED("embed", bl_graph_embed(&g, v.ints, v.tokens, 1));
    REFUSED("embed", bl_graph_embed(&g, v.e.gate, v.tokens, 1));
    REFUSED("embed", bl_graph_embed(&g, v.table, v.positions, 1));
    REFUSED("embed", bl_graph_embed(&g, v.table, v.x, 1));
    REFUSED("embed", bl_graph_embed(&g, v.table, v.tokens, NAN));
    REFUSED("embed", bl_graph_embed(&g, v.table, v.tokens, 0));
    REFUSED("gather_rows", bl_graph_gather_rows(&g, v.x, v.tokens));
    REFUSED("gather_rows", bl_graph_gather_rows(&g, v.ids, v.out_rows));
    REFUSED("gather_rows", bl_graph_gather_rows(&g, v.w, v.out_rows));
    REFUSED("rms_norm", bl_graph_rms_norm(&g, v.wide, v.vec, 1e-6f));
    REFUSED("rms_norm", bl_graph_rms_norm(&g, v.x, v.w, 1e-6f));
    REFUSED("rms_norm", bl_graph_rms_norm(&g, v.x, v.router, 1e-6f));
    REFUSED("rms_norm", bl_graph_rms_norm(&g, v.x, v.vec, 0));
    REFUSED("rms_norm", bl_graph_rms_norm(&g, v.ids, v.scale, 1e-6f));
    REFUSED("softcap", bl_graph_softcap(&g, v.x, 0));
    REFUSED("softcap", bl_graph_softcap(&g, v.ids, 30));
}

static void bad_matmuls(void **state)
{
    (void)state;
    REFUSED("matmul", bl_graph_matmul(&g, v.w96, v.x, 0, 0));
    REFUSED("matmul", bl_graph_matmul(&g, v.ints, v.x, 0, 0));
    REFUSED("matmul", bl_graph_matmul(&g, v.e.gate, v.x, 0, 0));
    REFUSED("matmul", bl_graph_matmul(&g, v.x, v.x, 0, 0));
    REFUSED("matmul", bl_graph_matmul(&g, v.w, v.w, 0, 0));
    REFUSED("matmul", bl_graph_matmul(&g, v.w, v.x, v.vec, 0));
    REFUSED("matmul", bl_graph_matmul(&g, v.w, v.x, v.bias, v.bias));
    REFUSED("matmul", bl_graph_matmul(&g, v.w, 0, 0, 0));
    REFUSED("matmul", bl_graph_matmul(&g, v.w, 999999, 0, 0));
    REFUSED("matmul", bl_graph_matmul(&g, v.w, v.x, 999999, 0));
}

static void bad_ropes(void **state)
{
    (void)state;
    const struct bl_angles_attr odd = turn(15, 1e4f, 1, 1), none = turn(0, 1e4f, 1, 1),
                                base = turn(16, -1, 1, 1), stretch = turn(16, 1e4f, 0, 1),
                                size = turn(16, 1e4f, 1, INFINITY), far = turn(8, 1e4f, 1, 1);
    struct bl_angles_attr yarn = angles;
    yarn.hi = NAN;
    REFUSED("rope_angles", bl_graph_rope_angles(&g, v.positions, 0, &odd));
    REFUSED("rope_angles", bl_graph_rope_angles(&g, v.positions, 0, &none));
    REFUSED("rope_angles", bl_graph_rope_angles(&g, v.positions, 0, &base));
    REFUSED("rope_angles", bl_graph_rope_angles(&g, v.positions, 0, &stretch));
    REFUSED("rope_angles", bl_graph_rope_angles(&g, v.positions, 0, &size));
    REFUSED("rope_angles", bl_graph_rope_angles(&g, v.positions, 0, &yarn));
    REFUSED("rope_angles", bl_graph_rope_angles(&g, v.positions, v.factors, &far));
    REFUSED("rope_angles", bl_graph_rope_angles(&g, v.tokens, 0, &angles));
    REFUSED("rope", bl_graph_rope(&g, v.x, v.angles, BL_ROPE_NORM, 24));
    REFUSED("rope", bl_graph_rope(&g, v.x, v.angles, BL_ROPE_NORM, 8));
    REFUSED("rope", bl_graph_rope(&g, v.x, v.angles, BL_ROPE_NORM, 0));
    REFUSED("rope", bl_graph_rope(&g, v.x, v.ids, BL_ROPE_NORM, 16));
    REFUSED("rope", bl_graph_rope(&g, v.few, v.angles, BL_ROPE_NORM, 16));
}

static void bad_attention(void **state)
{
    (void)state;
    const struct bl_attention_attr uneven = heads(4, 3, 16, 16, 1), no_kv = heads(4, 0, 16, 16, 1),
                                   many = heads(8, 2, 16, 16, 1), deep = heads(4, 2, 32, 16, 1),
                                   thin = heads(4, 2, 16, 8, 1), flat = heads(4, 2, 16, 16, 0);
    REFUSED("kv_store", bl_graph_kv_store(&g, v.x, v.k));
    REFUSED("kv_store", bl_graph_kv_store(&g, v.x, v.vec));
    REFUSED("kv_store", bl_graph_kv_store(&g, v.k, v.k));
    REFUSED("attention", bl_graph_attention(&g, v.x, v.k_rows, v.v_rows, 0, &uneven));
    REFUSED("attention", bl_graph_attention(&g, v.x, v.k_rows, v.v_rows, 0, &no_kv));
    REFUSED("attention", bl_graph_attention(&g, v.x, v.k_rows, v.v_rows, 0, &many));
    REFUSED("attention", bl_graph_attention(&g, v.x, v.k_rows, v.v_rows, 0, &deep));
    REFUSED("attention", bl_graph_attention(&g, v.x, v.k_rows, v.v_rows, 0, &thin));
    REFUSED("attention", bl_graph_attention(&g, v.x, v.k_rows, v.v_rows, 0, &flat));
    REFUSED("attention", bl_graph_attention(&g, v.x, v.k_rows, v.v_rows, v.vec, &attention));
    REFUSED("attention", bl_graph_attention(&g, v.x, v.x, v.v_rows, 0, &attention));
    REFUSED("attention",
            bl_graph_attention(&g, v.x, v.k_rows, bl_graph_state(&g, 2, BL_F16, 32, 64, 2), 0,
                               &attention));
}

static void bad_feed_forward(void **state)
{
    (void)state;
    const struct bl_glu_attr unknown = {.kind = 9}, no_limit = {BL_GLU_SWIGLU_OAI, 1.702f, 0},
                             oai = {BL_GLU_SWIGLU_OAI, 1.702f, 7};
    const struct bl_route_attr none = pick(0, 1, 0, 0, 0), many = pick(9, 1, 0, 0, 0),
                               gate = pick(2, 5, 0, 0, 0), split = pick(2, 2, 3, 1, 0),
                               few = pick(6, 2, 4, 2, 0), scale = pick(2, 1, 0, 0, NAN);
    const struct bl_route_attr *const route_attr[] = {&none, &many, &gate, &split, &few, &scale};
    bl_val a, b;
    REFUSED("glu", bl_graph_glu(&g, v.x, v.wide, &silu));
    REFUSED("glu", bl_graph_glu(&g, v.x, v.x, &unknown));
    REFUSED("glu", bl_graph_glu(&g, v.x, v.x, &no_limit));
    REFUSED("glu", bl_graph_glu(&g, v.ids, v.ids, &silu));
    REFUSED("glu", bl_graph_glu(&g, v.few_ones, v.x, &silu));
    REFUSED("glu", bl_graph_glu(&g, v.ones, v.x, &oai));
    REFUSED("add", bl_graph_add(&g, v.x, v.wide));
    REFUSED("add", bl_graph_add(&g, v.vec, v.vec));
    REFUSED("add", bl_graph_add(&g, v.x, 0));
    for (unsigned i = 0; i < BL_COUNT(route_attr); i++)
        REFUSED("route", (bl_graph_route(&g, v.logits, 0, route_attr[i], &a, &b), a | b));
    REFUSED("route", (bl_graph_route(&g, v.logits, v.vec, &route, &a, &b), a | b));
    REFUSED("route", (bl_graph_route(&g, v.ids, 0, &route, &a, &b), a | b));
    assert_int_equal(a | b, 0);
}

static void bad_experts(void **state)
{
    (void)state;
    const struct bl_experts_attr three = {.n_used = 3};
#define EXPERTS_WITH(member, value)                                                                \
    REFUSED("experts",                                                                             \
            (v.e.member = (value), bl_graph_experts(&g, v.x, v.ids, v.weights, &v.e, &experts)))
    EXPERTS_WITH(gate, v.w);
    EXPERTS_WITH(up, weight(&g, BL_Q8_0, 64, 64, 8));
    EXPERTS_WITH(up, weight(&g, BL_Q8_0, 64, 32, 4));
    EXPERTS_WITH(down, v.e.up);
    EXPERTS_WITH(down, 0);
    EXPERTS_WITH(gate_b, v.e.down_b);
    EXPERTS_WITH(up_b, v.bias);
    EXPERTS_WITH(down_b, v.e.up_b);
    EXPERTS_WITH(gate_s, v.scale);
    EXPERTS_WITH(up_s, v.vec);
    EXPERTS_WITH(down_s, v.vec);
#undef EXPERTS_WITH
    REFUSED("experts", bl_graph_experts(&g, v.wide, v.ids, v.weights, &v.e, &experts));
    REFUSED("experts", bl_graph_experts(&g, v.x, v.weights, v.ids, &v.e, &experts));
    REFUSED("experts", bl_graph_experts(&g, v.x, v.ids, v.weights, &v.e, &three));
    REFUSED("experts", bl_graph_experts(&g, v.x, v.other_ids, v.weights, &v.e, &experts));
    REFUSED("experts", bl_graph_experts(&g, v.x, v.ids, v.other_weights, &v.e, &experts));
}

static void bad_recurrent_ops(void **state)
{
    (void)state;
    REFUSED("slice", bl_graph_slice(&g, v.x, 0, 0, 0));
    REFUSED("slice", bl_graph_slice(&g, v.x, 15, 0, 1));
    REFUSED("slice", bl_graph_slice(&g, v.x, 16, 8, 9));
    REFUSED("slice", bl_graph_slice(&g, v.x, 16, UINT32_MAX, 2));
    REFUSED("slice", bl_graph_slice(&g, v.ids, 2, 0, 1));
    REFUSED("concat", bl_graph_concat(&g, v.x, v.few, 0));
    REFUSED("concat", bl_graph_concat(&g, v.x, v.wide, v.ids));
    REFUSED("concat", bl_graph_concat(&g, v.x, 0, 0));
#define CONV(x, w, state) bl_graph_short_conv(&g, x, w, state, false)
#define TAIL(type, n, rows) bl_graph_state(&g, 9, type, n, rows, 2)
    REFUSED("short_conv", CONV(v.x, weight(&g, BL_F32, 4, 32, 1), TAIL(BL_F32, 64, 3)));
    REFUSED("short_conv", CONV(v.x, weight(&g, BL_F16, 4, 64, 1), TAIL(BL_F32, 64, 3)));
    REFUSED("short_conv", CONV(v.x, weight(&g, BL_F32, 1, 64, 1), TAIL(BL_F32, 64, 3)));
    REFUSED("short_conv", CONV(v.x, weight(&g, BL_F32, 4, 64, 1), TAIL(BL_F32, 64, 2)));
    REFUSED("short_conv", CONV(v.x, weight(&g, BL_F32, 4, 64, 1), TAIL(BL_F16, 64, 3)));
    REFUSED("short_conv", CONV(v.x, weight(&g, BL_F32, 4, 64, 1), TAIL(BL_F32, 32, 3)));
    REFUSED("short_conv", CONV(v.x, weight(&g, BL_F32, 4, 64, 1), v.x));
#undef CONV
#undef TAIL
    const struct bl_delta_attr bad[] = {
        {0, 4, 8, 16, 1, 1e-6f, 1},
        {3, 4, 8, 16, 1, 1e-6f, 1},
        {2, 2, 8, 16, 1, 1e-6f, 1},
        {2, 4, 4, 16, 1, 1e-6f, 1},
        {2, 4, 8, 8, 1, 1e-6f, 1},
        {2, 4, 8, 16, 2, 1e-6f, 1},
        {2, 4, 8, 16, 1, 0, 1},
        {2, 4, 8, 16, 1, 1e-6f, NAN},
        {2, 4, 1u << 31, 1u << 31, 1, 1, 1},
    };
    struct bl_delta_vals in;
    for (unsigned i = 0; i < BL_COUNT(bad); i++)
        REFUSED("delta_rule", (in = give_delta(&g, &v), bl_graph_delta_rule(&g, &in, &bad[i])));
    for (unsigned i = 0; i < sizeof in / sizeof(bl_val); i++) {
        REFUSED("delta_rule", (in = give_delta(&g, &v), (&in.qkv)[i] = v.few,
                               bl_graph_delta_rule(&g, &in, &delta)));
        REFUSED("delta_rule", (in = give_delta(&g, &v), (&in.qkv)[i] = v.vec,
                               bl_graph_delta_rule(&g, &in, &delta)));
    }
}

static void first_fault_stays(void **state)
{
    (void)state;
    struct bl_graph g;
    struct given v = give(&g);
    char first[sizeof g.fault];
    bl_graph_at(&g, BL_PART_FFN, 3);
    assert_int_equal(bl_graph_matmul(&g, v.w96, v.x, 0, 0), 0);
    memcpy(first, g.fault, sizeof first);
    assert_non_null(strstr(first, "matmul (ffn layer 3)"));
    assert_non_null(strstr(first, "[96, 32] f16, [64, 7] f32, nothing, nothing"));
    uint32_t n_nodes = g.n_nodes, n_vals = g.n_vals;
    assert_int_equal(bl_graph_add(&g, v.x, v.x), 0);
    assert_int_equal(bl_graph_param(&g, BL_PARAM_TOKENS, 5), 0);
    assert_int_equal(weight(&g, BL_F32, 1, 1, 1), 0);
    assert_int_equal(bl_graph_softcap(&g, v.x, -1), 0);
    assert_string_equal(first, g.fault);
    assert_int_equal(g.n_nodes, n_nodes);
    assert_int_equal(g.n_vals, n_vals);
    assert_int_equal(bl_graph_check(&g), BL_EINVAL);
    assert_non_null(strstr(bl_error(), first));
    bl_graph_finish(&g);
}

static void check_bad_leaf(bl_val v, struct bl_graph *g, const char *what)
{
    assert_int_equal(v, 0);
    assert_int_equal(bl_graph_check(g), BL_EINVAL);
    assert_non_null(strstr(bl_error(), what));
    bl_graph_finish(g);
    bl_graph_init(g);
}

static void leaves_are_found_again(void **state)
{
    (void)state;
    struct bl_graph g;
    const uint32_t ne[3] = {64, 32, 1}, other[3] = {64, 33, 1}, rag[3] = {48, 32, 1},
                   none[3] = {64, 0, 1};
    bl_graph_init(&g);
    bl_val w = bl_graph_weight(&g, 5000, BL_F16, ne),
           s = bl_graph_state(&g, 5000, BL_F16, 64, 32, 1);
    bl_val p = bl_graph_param(&g, BL_PARAM_TOKENS, 7);
    assert_int_equal(bl_graph_weight(&g, 5000, BL_F16, ne), w);
    assert_int_equal(bl_graph_state(&g, 5000, BL_F16, 64, 32, 1), s);
    assert_int_equal(bl_graph_param(&g, BL_PARAM_TOKENS, 7), p);
    assert_int_not_equal(w, s);
    assert_int_equal(g.n_vals, 4);
    check_bad_leaf(bl_graph_weight(&g, 5000, BL_F16, other), &g, "weight 5000");
    w = bl_graph_weight(&g, 1, BL_F16, ne);
    check_bad_leaf(bl_graph_weight(&g, 1, BL_F32, ne), &g, "another shape");
    check_bad_leaf(bl_graph_weight(&g, -1, BL_F16, ne), &g, "index");
    check_bad_leaf(bl_graph_weight(&g, INT32_MAX, BL_F16, ne), &g, "index");
    check_bad_leaf(bl_graph_weight(&g, 0, BL_Q4_0, rag), &g, "whole blocks");
    check_bad_leaf(bl_graph_weight(&g, 0, BL_F16, none), &g, "empty");
    check_bad_leaf(bl_graph_param(&g, BL_PARAM_OUT_ROWS, 0), &g, "out_rows");
    bl_graph_finish(&g);
}

static void attributes_are_aligned_and_clean(void **state)
{
    (void)state;
    struct bl_graph g, h;
    struct given v = give(&g), u = give(&h);
    bl_val y = bl_graph_softcap(&g, v.x, 30);
    bl_graph_softcap(&h, u.x, 30);
    assert_int_not_equal(y, 0);
    for (uint32_t i = 0; i < g.n_nodes; i++)
        assert_int_equal(g.nodes[i].attr % 8, 0);
    assert_int_equal(g.n_attr_bytes % 8, 0);
    assert_int_equal(g.n_attr_bytes, h.n_attr_bytes);
    assert_memory_equal(g.attrs, h.attrs, g.n_attr_bytes);
    const struct bl_softcap_attr *cap = bl_node_attr(&g, &g.nodes[g.n_nodes - 1]);
    assert_true(cap->cap == 30);
    const struct bl_route_attr *r = bl_node_attr(&g, &g.nodes[g.n_nodes - 2]);
    assert_memory_equal(r, &route, sizeof route);
    bl_graph_finish(&g);
    bl_graph_finish(&h);
}

static void every_source_has_its_place(void **state)
{
    (void)state;
    struct bl_graph g;
    struct given v = give(&g);
    bl_val y = bl_graph_matmul(&g, v.w, v.x, 0, v.scale);
    const struct bl_node *n = &g.nodes[g.n_nodes - 1];
    assert_int_equal(n->dst[0], y);
    assert_int_equal(n->n_src, bl_ops[BL_OP_MATMUL].max_src);
    assert_int_equal(bl_node_src(&g, n, 0), v.w);
    assert_int_equal(bl_node_src(&g, n, 1), v.x);
    assert_int_equal(bl_node_src(&g, n, 2), 0);
    assert_int_equal(bl_node_src(&g, n, 3), v.scale);
    assert_int_equal(bl_node_src(&g, n, 4), 0);
    bl_graph_finish(&g);
}

static void op_table(void **state)
{
    (void)state;
    assert_string_equal(bl_ops[BL_OP_ROPE_ANGLES].name, "rope_angles");
    assert_int_equal(bl_ops[BL_OP_EXPERTS].max_src, 12);
    assert_int_equal(bl_ops[BL_OP_EXPERTS].attr_bytes, sizeof(struct bl_experts_attr));
    assert_int_equal(bl_ops[BL_OP_EXPERTS].split, BL_SPLIT_EXPERTS);
    assert_int_equal(bl_ops[BL_OP_ROUTE].n_dst, 2);
    assert_string_equal(bl_part_name(BL_PART_EXPERTS), "experts");
}

static void value_bytes(void **state)
{
    (void)state;
    struct bl_value v = {.ne = {64, 3, 2, 1}, .type = BL_Q4_0};
    assert_int_equal(bl_value_bytes(&v), 2 * 18 * 3 * 2);
    v = (struct bl_value){.ne = {7, 5, 1, 1}, .type = BL_F32};
    assert_int_equal(bl_value_bytes(&v), 4 * 35);
    v = (struct bl_value){.ne = {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX}, .type = BL_F32};
    assert_true(bl_value_bytes(&v) == UINT64_MAX);
}

struct lines {
    char text[2048];
    size_t n;
};

static void add_line(void *arg, const char *text)
{
    struct lines *l = arg;
    l->n += (size_t)snprintf(l->text + l->n, sizeof l->text - l->n, "%s\n", text);
}

static void printed_form(void **state)
{
    (void)state;
    struct bl_graph g;
    struct lines l = {.n = 0};
    bl_val ids, weights;
    bl_graph_init(&g);
    bl_graph_at(&g, BL_PART_EMBED, -1);
    bl_val table = bl_graph_weight(&g, 0, BL_Q4_0, (uint32_t[]){64, 100, 1});
    bl_val x = bl_graph_embed(&g, table, bl_graph_param(&g, BL_PARAM_TOKENS, 1), 1);
    bl_graph_at(&g, BL_PART_ATTN, 3);
    bl_graph_kv_store(&g, x, bl_graph_state(&g, 6, BL_F16, 64, 128, 2));
    bl_graph_at(&g, BL_PART_FFN, 3);
    bl_val w = bl_graph_weight(&g, 9, BL_F32, (uint32_t[]){64, 8, 1});
    bl_val b = bl_graph_weight(&g, 10, BL_F32, (uint32_t[]){8, 1, 1});
    bl_graph_route(&g, bl_graph_matmul(&g, w, x, b, 0), 0, &route, &ids, &weights);
    bl_graph_print(&g, add_line, &l);
    assert_string_equal(l.text, "%1 = weight 0   [64, 100] q4_0\n"
                                "%2 = tokens   [1] i32\n"
                                "%3 = embed %1 %2   [64, 1] f32  embed\n"
                                "%4 = state 6   [64, 128, 2] f16\n"
                                "%5 = kv_store %3 %4   [64, 128, 2] f16  state layer 3\n"
                                "%6 = weight 9   [64, 8] f32\n"
                                "%7 = weight 10   [8] f32\n"
                                "%8 = matmul %6 %3 %7   [8, 1] f32  ffn layer 3\n"
                                "%9, %10 = route %8   [2, 1] i32  ffn layer 3\n");
    bl_graph_finish(&g);
}

static void long_graphs_grow(void **state)
{
    (void)state;
    struct bl_graph g;
    struct given v = give(&g);
    bl_val x = v.x;
    for (int i = 0; i < 20000; i++)
        x = bl_graph_add(&g, x, v.x);
    assert_int_equal(bl_graph_check(&g), BL_OK);
    assert_int_equal(g.nodes[g.n_nodes - 1].dst[0], x);
    assert_int_equal(bl_node_src(&g, &g.nodes[g.n_nodes - 1], 1), v.x);
    bl_graph_finish(&g);
}

static void finish_takes_anything(void **state)
{
    (void)state;
    struct bl_graph g = {0};
    bl_graph_finish(&g);
    bl_graph_finish(&g);
}

static void build_some(struct bl_graph *g)
{
    bl_graph_init(g);
    bl_val x = bl_graph_embed(g, bl_graph_weight(g, 0, BL_F16, (uint32_t[]){64, 100, 1}),
                              bl_graph_param(g, BL_PARAM_TOKENS, 1), 1);
    for (int i = 0; i < 200; i++)
        x = bl_graph_add(g, x, x);
}

static void no_memory(void **state)
{
    (void)state;
    uint64_t n = 1;
    for (;; n++) {
        struct bl_graph g;
        alloc_fail_at(n);
        build_some(&g);
        enum bl_status st = bl_graph_check(&g);
        bool failed = alloc_fail_stop();
        assert_int_equal(st, failed ? BL_ENOMEM : BL_OK);
        if (failed)
            assert_non_null(strstr(bl_error(), "out of memory"));
        bl_graph_finish(&g);
        if (!failed)
            break;
    }
    assert_true(n > 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_shapes),
        cmocka_unit_test(route_gives_ids_and_weights),
        cmocka_unit_test(stored_state_is_a_new_value),
        cmocka_unit_test(bad_rows_and_norms),
        cmocka_unit_test(bad_matmuls),
        cmocka_unit_test(bad_ropes),
        cmocka_unit_test(bad_attention),
        cmocka_unit_test(bad_feed_forward),
        cmocka_unit_test(bad_experts),
        cmocka_unit_test(recurrent_ops),
        cmocka_unit_test(bad_recurrent_ops),
        cmocka_unit_test(first_fault_stays),
        cmocka_unit_test(leaves_are_found_again),
        cmocka_unit_test(attributes_are_aligned_and_clean),
        cmocka_unit_test(every_source_has_its_place),
        cmocka_unit_test(op_table),
        cmocka_unit_test(value_bytes),
        cmocka_unit_test(printed_form),
        cmocka_unit_test(long_graphs_grow),
        cmocka_unit_test(finish_takes_anything),
        cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests_name("graph", tests, NULL, NULL);
}

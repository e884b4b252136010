/* SPDX-License-Identifier: MIT */
/* deepseek2 and deepseek4 as models: what the keys make of them, both layouts of tensors and names
 * that other writers give, states and their sizes, graphs, and what is refused. */
#include "model_recipe.h"

#include "alloc_fail.h"
#include "log.h"

#include <math.h>

/* ---- recipes ---- */

enum { EMBD = 32, HEADS = 4, VOCAB = 16, EXPERTS = 8, USED = 2, FF = 8 };
enum { RANK = 32, Q_RANK = 24, DN = 16, ROPE = 8, DV = 12 }; /* deepseek2 */
enum {
    DK = 512,
    INDEX_DK = 128,
    INDEX_HEADS = 4,
    OUT_GROUPS = 2,
    OUT_RANK = 8,
    STREAMS = 4,
    TAIL = 64
};

static void base(struct rc *r, const char *arch)
{
    *r = (struct rc){.arch = arch};
    rc_text(r, "general.architecture", arch);
    rc_number(r, "context_length", 1048576);
    rc_number(r, "embedding_length", EMBD);
    rc_number(r, "vocab_size", VOCAB);
    rc_number(r, "attention.head_count", HEADS);
    rc_number(r, "attention.head_count_kv", 1);
    rc_real(r, "attention.layer_norm_rms_epsilon", 1e-6f);
    rc_real(r, "rope.freq_base", 10000);
    rc_number(r, "expert_count", EXPERTS);
    rc_number(r, "expert_used_count", USED);
    rc_number(r, "expert_feed_forward_length", FF);
    rc_number(r, "expert_shared_count", 1);
    rc_tensor(r, "token_embd.weight", BL_F32, EMBD, VOCAB, 0);
    rc_tensor(r, "output_norm.weight", BL_F32, EMBD, 0, 0);
    rc_tensor(r, "output.weight", BL_F32, EMBD, VOCAB, 0);
}

static void experts(struct rc *r, int i)
{
    rc_layer(r, i, "ffn_gate_inp.weight", EMBD, EXPERTS, 0);
    rc_layer(r, i, "ffn_gate_exps.weight", EMBD, FF, EXPERTS);
    rc_layer(r, i, "ffn_up_exps.weight", EMBD, FF, EXPERTS);
    rc_layer(r, i, "ffn_down_exps.weight", FF, EMBD, EXPERTS);
    rc_layer(r, i, "ffn_gate_shexp.weight", EMBD, FF, 0);
    rc_layer(r, i, "ffn_up_shexp.weight", EMBD, FF, 0);
    rc_layer(r, i, "ffn_down_shexp.weight", FF, EMBD, 0);
}

/* A dense layer and one of experts. legacy: one tensor from latent to heads, keys of the expanded
 * heads, whole queries. */
static void deepseek2(struct rc *r, bool legacy)
{
    base(r, "deepseek2");
    rc_number(r, "block_count", 2);
    rc_number(r, "feed_forward_length", 16);
    rc_number(r, "leading_dense_block_count", 1);
    rc_number(r, "attention.kv_lora_rank", RANK);
    rc_number(r, "rope.dimension_count", ROPE);
    rc_number(r, "attention.key_length", legacy ? DN + ROPE : RANK + ROPE);
    rc_number(r, "attention.value_length", legacy ? DV : RANK);
    if (!legacy) {
        rc_number(r, "attention.q_lora_rank", Q_RANK);
        rc_number(r, "attention.key_length_mla", DN + ROPE);
        rc_number(r, "attention.value_length_mla", DV);
    }
    for (int i = 0; i < 2; i++) {
        rc_layer(r, i, "attn_norm.weight", EMBD, 0, 0);
        rc_layer(r, i, "attn_kv_a_mqa.weight", EMBD, RANK + ROPE, 0);
        rc_layer(r, i, "attn_kv_a_norm.weight", RANK, 0, 0);
        rc_layer(r, i, "attn_output.weight", HEADS * DV, EMBD, 0);
        rc_layer(r, i, "ffn_norm.weight", EMBD, 0, 0);
        if (legacy) {
            rc_layer(r, i, "attn_q.weight", EMBD, HEADS * (DN + ROPE), 0);
            rc_layer(r, i, "attn_kv_b.weight", RANK, HEADS * (DN + DV), 0);
        } else {
            rc_layer(r, i, "attn_q_a.weight", EMBD, Q_RANK, 0);
            rc_layer(r, i, "attn_q_a_norm.weight", Q_RANK, 0, 0);
            rc_layer(r, i, "attn_q_b.weight", Q_RANK, HEADS * (DN + ROPE), 0);
            rc_layer(r, i, "attn_k_b.weight", DN, RANK, HEADS);
            rc_layer(r, i, "attn_v_b.weight", RANK, DV, HEADS);
        }
    }
    rc_layer(r, 0, "ffn_gate.weight", EMBD, 16, 0);
    rc_layer(r, 0, "ffn_up.weight", EMBD, 16, 0);
    rc_layer(r, 0, "ffn_down.weight", 16, EMBD, 0);
    experts(r, 1);
}

static void mixing(struct rc *r, int i, const char *which, uint32_t m)
{
    char name[64];
    snprintf(name, sizeof name, "%s_fn.weight", which);
    i < 0 ? rc_tensor(r, name, BL_F32, STREAMS * EMBD, m, 0)
          : rc_layer(r, i, name, STREAMS * EMBD, m, 0);
    snprintf(name, sizeof name, "%s_base.weight", which);
    i < 0 ? rc_tensor(r, name, BL_F32, m, 0, 0) : rc_layer(r, i, name, m, 0, 0);
    snprintf(name, sizeof name, "%s_scale.weight", which);
    i < 0 ? rc_tensor(r, name, BL_F32, 1, 0, 0) : rc_layer(r, i, name, 3, 0, 0);
}

static void rows(struct rc *r, int i, const char *stem, uint32_t n, uint32_t halves, uint32_t group)
{
    char name[64];
    snprintf(name, sizeof name, "%s_kv.weight", stem);
    rc_layer(r, i, name, EMBD, halves * n, 0);
    snprintf(name, sizeof name, "%s_gate.weight", stem);
    rc_layer(r, i, name, EMBD, halves * n, 0);
    snprintf(name, sizeof name, "%s_ape.weight", stem);
    rc_layer(r, i, name, halves * n, group, 0);
    snprintf(name, sizeof name, "%s_norm.weight", stem);
    rc_layer(r, i, name, n, 0, 0);
}

/* Layers of ratio 0, 4 and 128, with the heads of the released model. */
static void deepseek4(struct rc *r)
{
    static const uint32_t ratios[] = {0, 4, 128, 0};
    static const struct {
        const char *key;
        uint32_t x;
    } number[] = {{"block_count", 3},
                  {"attention.key_length", DK},
                  {"attention.value_length", DK},
                  {"attention.q_lora_rank", Q_RANK},
                  {"attention.sliding_window", 128},
                  {"attention.output_group_count", OUT_GROUPS},
                  {"attention.output_lora_rank", OUT_RANK},
                  {"attention.indexer.head_count", INDEX_HEADS},
                  {"attention.indexer.key_length", INDEX_DK},
                  {"attention.indexer.top_k", 512},
                  {"rope.dimension_count", TAIL},
                  {"expert_gating_func", 4},
                  {"hash_layer_count", 1},
                  {"hyper_connection.count", STREAMS},
                  {"hyper_connection.sinkhorn_iterations", 20},
                  {"rope.scaling.original_context_length", 65536},
                  {"expert_weights_norm", 1}};
    base(r, "deepseek4");
    for (unsigned i = 0; i < BL_COUNT(number); i++)
        rc_number(r, number[i].key, number[i].x);
    rc_real(r, "attention.compress_rope_freq_base", 160000);
    rc_real(r, "hyper_connection.epsilon", 1e-6f);
    rc_real(r, "expert_weights_scale", 1.5f);
    rc_real(r, "swiglu_clamp_exp", 10);
    rc_list(r, "attention.compress_ratios", RC_NUMBERS, 4, ratios);
    rc_text(r, "rope.scaling.type", "yarn");
    rc_real(r, "rope.scaling.factor", 16);
    mixing(r, -1, "output_hc", STREAMS);
    for (int i = 0; i < 3; i++) {
        mixing(r, i, "hc_attn", 2 * STREAMS + STREAMS * STREAMS);
        mixing(r, i, "hc_ffn", 2 * STREAMS + STREAMS * STREAMS);
        rc_layer(r, i, "attn_norm.weight", EMBD, 0, 0);
        rc_layer(r, i, "attn_q_a.weight", EMBD, Q_RANK, 0);
        rc_layer(r, i, "attn_q_a_norm.weight", Q_RANK, 0, 0);
        rc_layer(r, i, "attn_q_b.weight", Q_RANK, HEADS * DK, 0);
        rc_layer(r, i, "attn_kv.weight", EMBD, DK, 0);
        rc_layer(r, i, "attn_kv_a_norm.weight", DK, 0, 0);
        rc_layer(r, i, "attn_sinks.weight", HEADS, 0, 0);
        rc_layer(r, i, "attn_output_a.weight", HEADS / OUT_GROUPS * DK, OUT_GROUPS * OUT_RANK, 0);
        rc_layer(r, i, "attn_output_b.weight", OUT_GROUPS * OUT_RANK, EMBD, 0);
        rc_layer(r, i, "ffn_norm.weight", EMBD, 0, 0);
        experts(r, i);
    }
    rows(r, 1, "attn_compressor", DK, 2, 4);
    rows(r, 1, "indexer_compressor", INDEX_DK, 2, 4);
    rows(r, 2, "attn_compressor", DK, 1, 128);
    rc_layer(r, 1, "indexer.attn_q_b.weight", Q_RANK, INDEX_HEADS * INDEX_DK, 0);
    rc_layer(r, 1, "indexer.proj.weight", EMBD, INDEX_HEADS, 0);
    rc_layer(r, 1, "exp_probs_b.bias", EXPERTS, 0, 0);
    rc_layer(r, 2, "exp_probs_b.bias", EXPERTS, 0, 0);
    rc_tensor(r, "blk.0.ffn_gate_tid2eid.weight", BL_I32, USED, VOCAB, 0);
}

/* ---- warnings ---- */

static unsigned n_warnings;
static char warning[300];

static void note(void *arg, enum bl_log_level level, const char *line)
{
    (void)arg;
    n_warnings += level == BL_LOG_WARN;
    snprintf(warning, sizeof warning, "%s", line);
}

static struct rc_model opened(const struct rc *r, const struct bl_model_options *opt)
{
    n_warnings = 0;
    return rc_open(r, opt);
}

static void check_refused_with(const struct rc *r, const struct bl_model_options *opt,
                               enum bl_status status, const char *message)
{
    struct rc_model o = {NULL, NULL};
    rc_save(r);
    RC_GOOD(bl_gguf_open(&o.g, rc_path));
    const enum bl_status st = bl_model_open(&o.m, o.g, opt);
    if (st != status || !strstr(bl_error(), message))
        fail_msg("\"%s\" wanted; %s: %s", message, bl_status_name(st),
                 st ? bl_error() : "accepted");
    rc_close(&o);
}

static void check_refused(const struct rc *r, enum bl_status status, const char *message)
{
    check_refused_with(r, NULL, status, message);
}

/* ---- graphs ---- */

static struct bl_graph built(const struct bl_model *m, uint32_t n_tok, uint64_t ctx)
{
    struct bl_graph g;
    const struct bl_shape s = {
        .n_tok = n_tok, .n_out = 1, .max_sequences = 2, .ubatch_tokens = 64, .ctx_tokens = ctx};
    bl_graph_init(&g);
    RC_GOOD(bl_model_build(m, &s, &g));
    return g;
}

static unsigned count(const struct bl_graph *g, enum bl_op op)
{
    unsigned n = 0;
    for (uint32_t i = 0; i < g->n_nodes; i++)
        n += g->nodes[i].op == op;
    return n;
}

static const struct bl_node *nth(const struct bl_graph *g, enum bl_op op, unsigned n)
{
    for (uint32_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].op == op && !n--)
            return &g->nodes[i];
    fail_msg("no such node");
    return NULL;
}

/* ---- deepseek2 ---- */

static void latent_is_all_that_is_kept(void **state)
{
    (void)state;
    for (int legacy = 0; legacy < 2; legacy++) {
        struct rc r;
        deepseek2(&r, legacy);
        struct rc_model o = opened(&r, NULL);
        assert_int_equal(n_warnings, 0);
        assert_int_equal(o.m->n_states, 2);
        for (unsigned i = 0; i < 2; i++) {
            assert_int_equal(o.m->state[i].law, BL_PER_TOKEN);
            assert_int_equal(o.m->state[i].row_elems, RANK + ROPE);
            assert_int_equal(o.m->layer[i].moe, i);
        }
        assert_true(fabsf(o.m->hp.attn_scale - 1 / sqrtf(DN + ROPE)) < 1e-7f);
        assert_true(o.m->hp.rope_magnitude == 1);
        assert_int_equal(o.m->hp.route.gating, BL_GATE_SOFTMAX);
        assert_int_equal(o.m->hp.route.group_by_max, 1);
        rc_close(&o);
    }
}

static void check_heads(const struct bl_graph *g, unsigned i, bool transposed, uint32_t head_rows)
{
    const struct bl_node *n = nth(g, BL_OP_MATMUL_HEADS, i);
    const struct bl_heads_attr *at = bl_node_attr(g, n);
    assert_int_equal(at->transposed, transposed);
    assert_int_equal(at->head_rows, head_rows);
    assert_int_equal(n->part, BL_PART_ATTN);
}

static void latent_graphs(void **state)
{
    (void)state;
    for (int legacy = 0; legacy < 2; legacy++) {
        struct rc r;
        deepseek2(&r, legacy);
        struct rc_model o = opened(&r, NULL);
        struct bl_graph g = built(o.m, 7, 512);
        assert_int_equal(count(&g, BL_OP_ATTENTION), 2);
        assert_int_equal(count(&g, BL_OP_MATMUL_HEADS), 4);
        assert_int_equal(count(&g, BL_OP_KV_STORE), 2);
        assert_int_equal(count(&g, BL_OP_TEMPER), 0);
        check_heads(&g, 0, legacy, legacy ? DN + DV : RANK);
        check_heads(&g, 1, false, legacy ? DN + DV : DV);
        const struct bl_node *attention = nth(&g, BL_OP_ATTENTION, 0);
        assert_int_equal(bl_node_src(&g, attention, 1), bl_node_src(&g, attention, 2));
        const struct bl_weight *v = &o.m->weight[o.m->layer[0].role[BL_W_ATTN_V_B].w];
        assert_int_equal(bl_weight_offset(v), legacy ? DN * RANK * 4 : 0);
        assert_int_equal(bl_weight_expert_stride(v), (legacy ? DN + DV : DV) * RANK * 4);
        const struct bl_weight *rope = &o.m->weight[o.m->layer[0].role[BL_W_ATTN_KV_ROPE].w];
        assert_int_equal(bl_weight_offset(rope), RANK * EMBD * 4);
        bl_graph_finish(&g);
        rc_close(&o);
    }
}

/* The trained growth of scores goes into their scale, and not into rope; where the file does not
 * tell, rope grows as elsewhere. */
static void stretched_rope(void **state)
{
    (void)state;
    struct rc r;
    deepseek2(&r, false);
    rc_text(&r, "rope.scaling.type", "yarn");
    rc_real(&r, "rope.scaling.factor", 40);
    rc_number(&r, "rope.scaling.original_context_length", 4096);
    struct rc_model o = opened(&r, NULL);
    assert_int_equal(n_warnings, 1);
    assert_non_null(strstr(warning, "yarn_log_multiplier is missing"));
    assert_true(fabsf(o.m->hp.attn_scale - 1 / sqrtf(DN + ROPE)) < 1e-7f);
    assert_true(fabsf(o.m->hp.rope_magnitude - 1.3688879f) < 1e-6f);
    rc_close(&o);
    rc_real(&r, "rope.scaling.yarn_log_multiplier", 0.1f);
    o = opened(&r, NULL);
    assert_int_equal(n_warnings, 0);
    assert_true(fabsf(o.m->hp.attn_scale - 1.3688879f * 1.3688879f / sqrtf(DN + ROPE)) < 1e-6f);
    assert_true(o.m->hp.rope_magnitude == 1);
    rc_close(&o);
}

static void experts_of_latent_models(void **state)
{
    (void)state;
    struct rc r;
    deepseek2(&r, false);
    rc_layer(&r, 1, "exp_probs_b.bias", EXPERTS, 0, 0);
    rc_number(&r, "expert_group_count", 4);
    rc_number(&r, "expert_group_used_count", 2);
    struct rc_model o = opened(&r, NULL);
    assert_int_equal(o.m->hp.route.gating, BL_GATE_SIGMOID);
    assert_int_equal(o.m->hp.route.group_by_max, 0);
    assert_int_equal(o.m->hp.route.n_group_used, 2);
    assert_true(o.m->layer[1].role[BL_W_ROUTER_BIAS].w >= 0);
    rc_close(&o);
    rc_number(&r, "expert_gating_func", BL_GATE_SOFTMAX);
    o = opened(&r, NULL);
    assert_int_equal(o.m->hp.route.gating, BL_GATE_SOFTMAX);
    assert_int_equal(o.m->hp.route.group_by_max, 1);
    rc_close(&o);
    rc_number(&r, "expert_group_count", 3);
    check_refused(&r, BL_EFORMAT, "groups must divide the 8 experts");
}

static void tempered_queries(void **state)
{
    (void)state;
    struct rc r;
    deepseek2(&r, false);
    rc_real(&r, "attention.temperature_scale", 0.1f);
    check_refused(&r, BL_EFORMAT, "temperature_length' is missing");
    rc_number(&r, "attention.temperature_length", 8192);
    struct rc_model o = opened(&r, NULL);
    struct bl_graph g = built(o.m, 1, 512);
    const struct bl_temper_attr *at = bl_node_attr(&g, nth(&g, BL_OP_TEMPER, 1));
    assert_int_equal(at->every, 8192);
    bl_graph_finish(&g);
    rc_close(&o);
}

static void wrong_latents_are_refused(void **state)
{
    (void)state;
    struct bl_model_options opt = {.ctx_tokens = 64, .type_k = BL_Q8_0, .type_v = BL_Q8_0};
    struct rc r;
    deepseek2(&r, false);
    rc_drop_key(&r, "attention.kv_lora_rank");
    check_refused(&r, BL_EFORMAT, "kv_lora_rank' is missing");
    deepseek2(&r, false);
    rc_number(&r, "attention.key_length_mla", ROPE);
    check_refused(&r, BL_EFORMAT, "the key length of a head is 8; must be above");
    deepseek2(&r, false);
    rc_drop_key(&r, "expert_shared_count");
    check_refused(&r, BL_EFORMAT, "expert_shared_count' is missing");
    deepseek2(&r, false);
    rc_drop_tensor(&r, "blk.1.attn_v_b.weight");
    check_refused(&r, BL_EFORMAT, "'blk.1.attn_v_b.weight' is missing");
    deepseek2(&r, true);
    rc_layer(&r, 0, "attn_kv_b.weight", RANK, HEADS * (DN + DV) + 1, 0);
    check_refused(&r, BL_EFORMAT, "'blk.0.attn_kv_b.weight' is {32, 113}; must be {32, 112}");
    deepseek2(&r, false); /* rows of 40 are not whole blocks of 32 */
    check_refused_with(&r, &opt, BL_EINVAL, "cache type q8_0 needs whole 32 elements");
}

/* ---- deepseek4 ---- */

static uint64_t bytes_of(const struct bl_model *m, enum bl_law law, bool tail, int layer)
{
    const struct bl_shape s = {
        .n_tok = 1, .max_sequences = 1, .ubatch_tokens = 1, .ctx_tokens = 1048576};
    uint64_t sum = 0;
    for (uint32_t i = 0; i < m->n_states; i++)
        if (m->state[i].law == law && m->state[i].tail == tail && m->state[i].layer == layer)
            sum += bl_state_bytes(&m->state[i], &s);
    return sum;
}

/* 43 layers, of them 21 of ratio 4 and 20 of ratio 128, as the released model has. */
static void sizes_of_the_state(void **state)
{
    (void)state;
    struct rc r;
    deepseek4(&r);
    struct rc_model o = opened(&r, NULL);
    assert_int_equal(n_warnings, 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(43 * bytes_of(o.m, BL_WINDOW, false, i), 5636096);
    const uint64_t of_4 = bytes_of(o.m, BL_WINDOW, true, 1),
                   of_128 = bytes_of(o.m, BL_WINDOW, true, 2);
    assert_int_equal(of_4, 65536 + 16384);
    assert_int_equal(of_128, 524288);
    assert_int_equal(21 * of_4 + 20 * of_128, 12206080);
    assert_int_equal(bytes_of(o.m, BL_WINDOW, true, 0) + bytes_of(o.m, BL_PER_GROUP, false, 0), 0);
    const uint64_t rows_4 = bytes_of(o.m, BL_PER_GROUP, false, 1),
                   rows_128 = bytes_of(o.m, BL_PER_GROUP, false, 2);
    assert_int_equal(rows_4, 1048576ull * (1024 + 256) / 4);
    assert_int_equal(21 * rows_4 + 20 * rows_128, 6880 * 1048576ull);
    rc_close(&o);
}

/* A context that is not whole groups has a row for its end; slack is rows of the tails. */
static void rows_of_the_state(void **state)
{
    (void)state;
    const struct bl_model_options opt = {
        .ctx_tokens = 4096, .type_k = BL_F16, .type_v = BL_F16, .slack_tokens = 3};
    struct bl_shape s = {.n_tok = 1, .max_sequences = 1, .ubatch_tokens = 16, .ctx_tokens = 4097};
    struct rc r;
    deepseek4(&r);
    struct rc_model o = opened(&r, &opt);
    static const struct {
        const char *name;
        uint32_t rows, elems;
        enum bl_dtype type;
    } want[] = {{"blk.0.kv", 143, 512, BL_F16},          {"blk.1.kv", 143, 512, BL_F16},
                {"blk.1.groups", 1025, 512, BL_F16},     {"blk.1.groups_tail", 11, 2048, BL_F32},
                {"blk.1.index", 1025, 128, BL_F16},      {"blk.1.index_tail", 11, 512, BL_F32},
                {"blk.2.kv", 143, 512, BL_F16},          {"blk.2.groups", 33, 512, BL_F16},
                {"blk.2.groups_tail", 131, 1024, BL_F32}};
    assert_int_equal(o.m->n_states, BL_COUNT(want));
    for (unsigned i = 0; i < BL_COUNT(want); i++) {
        const struct bl_state_desc *d = &o.m->state[i];
        assert_string_equal(d->name, want[i].name);
        assert_int_equal(bl_state_rows(d, &s), want[i].rows);
        assert_int_equal(d->row_elems, want[i].elems);
        assert_int_equal(d->type, want[i].type);
    }
    rc_close(&o);
}

static void check_angles(const struct bl_graph *g, unsigned i, float base, uint32_t group,
                         bool inverse)
{
    const struct bl_angles_attr *at = bl_node_attr(g, nth(g, BL_OP_ROPE_ANGLES, i));
    assert_int_equal(at->n_dims, TAIL);
    assert_true(at->base == base && at->magnitude == 1);
    assert_int_equal(at->group, group);
    assert_int_equal(at->inverse, inverse);
    assert_int_equal(at->yarn, group != 0 || base > 10000);
    assert_true(at->freq_scale == (at->yarn ? 1.0f / 16 : 1));
    if (at->yarn)
        assert_true(at->lo == 15 && at->hi == 25);
}

static void check_graph(const struct bl_model *m, uint64_t ctx, bool chooses)
{
    struct bl_graph g = built(m, 7, ctx);
    assert_int_equal(count(&g, BL_OP_ATTENTION), 1);
    assert_int_equal(count(&g, BL_OP_ATTENTION_GROUPS), 2);
    assert_int_equal(count(&g, BL_OP_COMPRESS), 3);
    assert_int_equal(count(&g, BL_OP_CHOOSE), chooses);
    assert_int_equal(count(&g, BL_OP_STREAM_WEIGHTS), 7);
    assert_int_equal(count(&g, BL_OP_STREAM_READ), 7);
    assert_int_equal(count(&g, BL_OP_STREAM_WRITE), 6);
    assert_int_equal(count(&g, BL_OP_KV_STORE), 6);
    const struct bl_node *groups = nth(&g, BL_OP_ATTENTION_GROUPS, 0);
    assert_int_equal(bl_node_src(&g, groups, 5) != 0, chooses);
    assert_int_equal(bl_node_src(&g, nth(&g, BL_OP_ATTENTION_GROUPS, 1), 5), 0);
    for (unsigned i = 0; i < 3; i++) {
        const struct bl_node *route = nth(&g, BL_OP_ROUTE, i);
        assert_int_equal(bl_node_src(&g, route, 2) != 0, i == 0); /* by token */
        assert_int_equal(bl_node_src(&g, route, 1) != 0, i != 0); /* by score and bias */
    }
    check_angles(&g, 0, 10000, 0, false);
    check_angles(&g, 1, 10000, 0, true);
    check_angles(&g, 2, 160000, 0, false);
    check_angles(&g, 3, 160000, 4, false);
    check_angles(&g, 4, 160000, 0, true);
    check_angles(&g, 6, 160000, 128, false);
    bl_graph_finish(&g);
}

/* No choice where there are never more rows than are chosen. */
static void graphs_with_groups(void **state)
{
    (void)state;
    struct rc r;
    deepseek4(&r);
    struct rc_model o = opened(&r, NULL);
    check_graph(o.m, 2048, false);
    check_graph(o.m, 2052, true);
    rc_close(&o);
}

static void rounding_as_in_training(void **state)
{
    (void)state;
    struct bl_model_options opt = {.ctx_tokens = 64, .type_k = BL_F16, .type_v = BL_F16};
    struct rc r;
    deepseek4(&r);
    for (unsigned i = 0; i < 4; i++) {
        opt.round_kv = i & 1;
        opt.round_index = i >> 1;
        struct rc_model o = opened(&r, &opt);
        struct bl_graph g = built(o.m, 1, 4096);
        assert_int_equal(count(&g, BL_OP_ROUND), (i & 1 ? 3 + 2 : 0) + (i >> 1 ? 2 : 0));
        assert_int_equal(count(&g, BL_OP_HADAMARD), i >> 1 ? 2 : 0);
        bl_graph_finish(&g);
        rc_close(&o);
    }
    rc_number(&r, "attention.indexer.key_length", 96);
    check_refused_with(&r, &opt, BL_EUNSUPPORTED, "rounding as in training needs a power of two");
}

static void scaling_that_was_lost(void **state)
{
    (void)state;
    const struct bl_model_options none = {
        .ctx_tokens = 64, .type_k = BL_F16, .type_v = BL_F16, .rope = {.scaling = "none"}};
    struct rc r;
    deepseek4(&r);
    rc_drop_key(&r, "rope.scaling.type");
    rc_drop_key(&r, "rope.scaling.factor");
    rc_drop_key(&r, "rope.scaling.original_context_length");
    struct rc_model o = opened(&r, NULL);
    assert_int_equal(n_warnings, 1);
    assert_non_null(strstr(warning, "rope.scaling.type is missing"));
    check_graph(o.m, 2052, true);
    rc_close(&o);
    o = opened(&r, &none);
    assert_int_equal(n_warnings, 0);
    struct bl_graph g = built(o.m, 1, 64);
    for (unsigned i = 0; i < count(&g, BL_OP_ROPE_ANGLES); i++) {
        const struct bl_angles_attr *at = bl_node_attr(&g, nth(&g, BL_OP_ROPE_ANGLES, i));
        assert_true(!at->yarn && at->freq_scale == 1);
    }
    bl_graph_finish(&g);
    rc_close(&o);
    rc_text(&r, "rope.scaling.type", "none"); /* a file that says so */
    o = opened(&r, NULL);
    assert_int_equal(n_warnings, 0);
    rc_close(&o);
}

static void rename_tensor(struct rc *r, const char *from, const char *to)
{
    struct rc_tensor *t = rc_find(r, from);
    assert_non_null(t);
    snprintf(t->name, sizeof t->name, "%s", to);
}

static void other_names(void **state)
{
    (void)state;
    struct rc r;
    deepseek4(&r);
    rename_tensor(&r, "blk.0.attn_kv.weight", "blk.0.attn_kv_latent.weight");
    rename_tensor(&r, "blk.1.attn_kv.weight", "blk.1.attn_kv_a_mqa.weight");
    rename_tensor(&r, "blk.1.attn_compressor_kv.weight", "blk.1.attn_compress_kv.weight");
    rename_tensor(&r, "blk.1.attn_compressor_ape.weight", "blk.1.attn_compress_ape.weight");
    rename_tensor(&r, "blk.2.attn_compressor_gate.weight", "blk.2.attn_compress_gate.weight");
    rename_tensor(&r, "blk.2.attn_compressor_norm.weight", "blk.2.attn_compress_norm.weight");
    rename_tensor(&r, "blk.1.indexer_compressor_kv.weight", "blk.1.indexer.compress_kv.weight");
    rename_tensor(&r, "blk.1.indexer_compressor_gate.weight", "blk.1.indexer.compress_gate.weight");
    rename_tensor(&r, "blk.1.indexer_compressor_ape.weight", "blk.1.indexer.compress_ape.weight");
    rename_tensor(&r, "blk.1.indexer_compressor_norm.weight", "blk.1.indexer.compress_norm.weight");
    rename_tensor(&r, "blk.2.exp_probs_b.bias", "blk.2.exp_probs_b.weight");
    rename_tensor(&r, "output_hc_fn.weight", "hc_head_fn.weight");
    rename_tensor(&r, "output_hc_base.weight", "hc_head_base.weight");
    rename_tensor(&r, "output_hc_scale.weight", "hc_head_scale.weight");
    struct rc_model o = opened(&r, NULL);
    assert_int_equal(n_warnings, 0);
    check_graph(o.m, 4096, true);
    rc_close(&o);
}

/* Blocks past the layers are known to be for drafting, whether a key says so or the ratios do. */
static void drafts_are_not_built(void **state)
{
    (void)state;
    struct rc r;
    deepseek4(&r);
    rc_layer(&r, 3, "nextn.enorm.weight", EMBD, 0, 0);
    rc_layer(&r, 3, "attn_norm.weight", EMBD, 0, 0);
    rc_tensor(&r, "mtp.0.e_proj.weight", BL_F32, EMBD, EMBD, 0);
    struct rc_model o = opened(&r, NULL);
    assert_int_equal(n_warnings, 0);
    assert_int_equal(o.m->hp.n_layer, 3);
    rc_close(&o);
    rc_number(&r, "block_count", 4);
    rc_number(&r, "nextn_predict_layers", 1);
    o = opened(&r, NULL);
    assert_int_equal(n_warnings, 0);
    assert_int_equal(o.m->hp.n_layer, 3);
    rc_close(&o);
}

static void wrong_models_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        uint32_t x;
        enum bl_status status;
        const char *message;
    } number[] = {
        {"attention.head_count_kv", 2, BL_EFORMAT, "must be one key head"},
        {"attention.output_group_count", 3, BL_EFORMAT, "and whole groups"},
        {"attention.value_length", 256, BL_EFORMAT, "are the same vectors"},
        {"attention.indexer.key_length", 32, BL_EFORMAT, "indexer.key_length is 32; must be 64"},
        {"attention.sliding_window", 0, BL_EFORMAT, "sliding_window is 0"},
        {"attention.indexer.top_k", 0, BL_EFORMAT, "top_k is 0"},
        {"expert_gating_func", 2, BL_EUNSUPPORTED, "expert_gating_func is 2; must be 4"},
        {"hash_layer_count", 4, BL_EFORMAT, "hash_layer_count is 4"},
        {"hyper_connection.count", 17, BL_EFORMAT, "hyper_connection.count is 17"},
        {"hyper_connection.sinkhorn_iterations", 0, BL_EFORMAT, "sinkhorn_iterations is 0"},
    };
    static const char *const required[] = {"attention.q_lora_rank",
                                           "attention.compress_ratios",
                                           "attention.compress_rope_freq_base",
                                           "attention.indexer.top_k",
                                           "expert_weights_norm",
                                           "expert_shared_count",
                                           "hyper_connection.epsilon",
                                           "swiglu_clamp_exp",
                                           "hash_layer_count",
                                           "attention.output_lora_rank",
                                           "attention.head_count_kv",
                                           "rope.dimension_count",
                                           "rope.freq_base",
                                           "expert_count",
                                           "expert_weights_scale"};
    struct rc r;
    for (unsigned i = 0; i < BL_COUNT(number); i++) {
        deepseek4(&r);
        rc_number(&r, number[i].key, number[i].x);
        check_refused(&r, number[i].status, number[i].message);
    }
    for (unsigned i = 0; i < BL_COUNT(required); i++) {
        char message[80];
        deepseek4(&r);
        rc_drop_key(&r, required[i]);
        snprintf(message, sizeof message, "deepseek4.%s' is missing", required[i]);
        check_refused(&r, BL_EFORMAT, message);
    }
}

static void wrong_tensors_are_refused(void **state)
{
    (void)state;
    static const uint32_t eights[] = {0, 8, 128}, two[] = {0, 4};
    struct rc r;
    deepseek4(&r);
    rc_list(&r, "attention.compress_ratios", RC_NUMBERS, 3, eights);
    check_refused(&r, BL_EUNSUPPORTED, "compress_ratios of layer 1 is 8; must be 0, 4 or 128");
    rc_list(&r, "attention.compress_ratios", RC_NUMBERS, 2, two);
    check_refused(&r, BL_EFORMAT, "has 2 elements; 3 are needed");
    deepseek4(&r);
    rc_tensor(&r, "blk.0.ffn_gate_tid2eid.weight", BL_BF16, USED, VOCAB, 0);
    check_refused(&r, BL_EUNSUPPORTED, "expert ids must be i32");
    rc_tensor(&r, "blk.0.ffn_gate_tid2eid.weight", BL_I32, USED, VOCAB - 1, 0);
    check_refused(&r, BL_EFORMAT, "is {2, 15}; must be {2, 16}");
    deepseek4(&r);
    rc_drop_tensor(&r, "blk.2.exp_probs_b.bias");
    check_refused(&r, BL_EFORMAT, "'blk.2.exp_probs_b.bias' is missing");
    deepseek4(&r);
    rc_drop_tensor(&r, "output_hc_base.weight");
    check_refused(&r, BL_EFORMAT, "'output_hc_base.weight' is missing");
}

/* All that is attended to and the index are rows of whole blocks of 32; what groups are made of
 * stays as it is. */
static void quantised_rows(void **state)
{
    (void)state;
    static const uint8_t types[] = {BL_Q8_0, BL_Q4_0};
    static const uint32_t block_bytes[] = {34, 18};
    struct rc r;
    deepseek4(&r);
    for (unsigned i = 0; i < BL_COUNT(types); i++) {
        const struct bl_model_options opt = {
            .ctx_tokens = 4096, .type_k = types[i], .type_v = types[i]};
        struct rc_model o = opened(&r, &opt);
        const uint64_t row = 512 / 32 * block_bytes[i], index = 128 / 32 * block_bytes[i];
        assert_int_equal(n_warnings, 0);
        assert_int_equal(bytes_of(o.m, BL_WINDOW, false, 0), 128 * row);
        assert_int_equal(bytes_of(o.m, BL_PER_GROUP, false, 1), 1048576ull / 4 * (row + index));
        assert_int_equal(bytes_of(o.m, BL_PER_GROUP, false, 2), 1048576ull / 128 * row);
        assert_int_equal(bytes_of(o.m, BL_WINDOW, true, 1), 65536 + 16384);
        rc_close(&o);
    }
}

/* ---- no memory ---- */

static void no_memory(void **state)
{
    (void)state;
    for (unsigned family = 0; family < 2; family++) {
        struct rc r;
        struct rc_model o = {NULL, NULL};
        uint64_t n = 1;
        family ? deepseek4(&r) : deepseek2(&r, false);
        rc_save(&r);
        RC_GOOD(bl_gguf_open(&o.g, rc_path));
        for (bool failed = true; failed; n++) {
            alloc_fail_at(n);
            enum bl_status st = bl_model_open(&o.m, o.g, NULL);
            failed = alloc_fail_stop();
            assert_true(st == BL_OK || (failed && st == BL_ENOMEM)); /* a warning may be lost */
            bl_model_close(o.m);
            o.m = NULL;
        }
        assert_true(n > 5);
        rc_close(&o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(latent_is_all_that_is_kept),
        cmocka_unit_test(latent_graphs),
        cmocka_unit_test(stretched_rope),
        cmocka_unit_test(experts_of_latent_models),
        cmocka_unit_test(tempered_queries),
        cmocka_unit_test(wrong_latents_are_refused),
        cmocka_unit_test(sizes_of_the_state),
        cmocka_unit_test(rows_of_the_state),
        cmocka_unit_test(graphs_with_groups),
        cmocka_unit_test(rounding_as_in_training),
        cmocka_unit_test(scaling_that_was_lost),
        cmocka_unit_test(other_names),
        cmocka_unit_test(drafts_are_not_built),
        cmocka_unit_test(wrong_models_are_refused),
        cmocka_unit_test(wrong_tensors_are_refused),
        cmocka_unit_test(quantised_rows),
        cmocka_unit_test(no_memory),
    };
    bl_log_set(note, NULL, BL_LOG_WARN);
    return cmocka_run_group_tests(tests, rc_enter_folder, rc_leave_folder);
}
